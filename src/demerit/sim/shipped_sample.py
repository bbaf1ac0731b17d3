"""The sample that ships with demerit: a dozen small simulated episodes, successes and failures, under 1 MB.

Made by `python -m demerit.sim.shipped_sample FOLDER`; run it again and the same bytes come out.
"""

from __future__ import annotations

import json
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

from demerit.episode import Episode
from demerit.sim.arena import Arena
from demerit.sim.record import REPEATABLE, record, video_name
from demerit.sim.rollout import EpisodeSpec, rollout
from demerit.sim.scene import Painter
from demerit.sim.tasks import task
from demerit.video_writer import Encoding

SIZE = 96
ENCODING = Encoding(options={"crf": "26", "preset": "slow", **REPEATABLE})
EPISODES = {
    "pick-place": (("expert", 1), ("drop", 1), ("missed-grasp", 1), ("wrong-object", 1), ("hesitate", 0)),
    "drawer-open": (("expert", 3), ("undo", 3), ("early-stop", 3)),
    "door-close": (("expert", 2),),
    "push": (("expert", 1), ("wrong-place", 1), ("random", 1)),
}


def sample_folder() -> Path:
    """Return the folder of the shipped sample, which `demerit.open_dataset("videos:...")` reads."""
    return Path(str(files("demerit") / "data" / "sample"))


def make_shipped_sample(folder: str | Path) -> Path:
    """Make the sample: videos and a `labels.jsonl` in the format of a folder of videos."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for name, wanted in EPISODES.items():
        arena = Arena(task(name))
        with Painter(arena, SIZE) as painter:
            for behaviour, seed in wanted:
                spec = EpisodeSpec(name, behaviour, seed, "plain", SIZE)
                path = folder / video_name(spec)
                lines.append(_label(record(rollout(spec, arena, painter), path, ENCODING), path))
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "labels.jsonl").write_text(text, "utf-8")
    return folder


def _label(episode: Episode, path: Path) -> dict[str, Any]:
    outcome = episode.outcome
    assert outcome is not None and outcome.curve is not None and outcome.progress is not None
    return {
        "file": path.name,
        "instruction": episode.instruction,
        "success": outcome.success,
        "progress": round(outcome.progress, 3),
        "curve": [round(float(value), 3) for value in outcome.curve],
        "curve_source": "simulator",
        "curve_by": outcome.by,
        "events": [vars(event) for event in outcome.events],
        "note": "; ".join(f"{event.kind}: {event.note}" for event in outcome.events),
        "source": "simulator",
        "by": outcome.by,
        "group": episode.origin.group,
        "licence": episode.origin.licence,
        "embodiment": episode.origin.embodiment,
        **{name: episode.origin.tags[name] for name in ("task", "behaviour", "setting", "seed")},
    }


if __name__ == "__main__":
    print(make_shipped_sample(sys.argv[1]))
