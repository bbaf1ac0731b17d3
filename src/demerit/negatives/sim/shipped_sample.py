"""The sample that ships with demerit: 28 small simulated episodes of one task, successes and failures.

Twelve are for teaching (`split` train), sixteen for scoring with what was taught (`split` test). The task is one of
those that the default model was never trained on, and every episode is a scene of its own: no seed is used twice, none
is the benchmark's.

Made by `python -m demerit.negatives.sim.shipped_sample FOLDER`; run it again and the same bytes come out.
"""

from __future__ import annotations

import json
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

from demerit.data.episode import Episode
from demerit.data.video import Encoding
from demerit.negatives.sim.arena import Arena, Painter
from demerit.negatives.sim.rollout import REPEATABLE, EpisodeSpec, record, rollout, video_name
from demerit.negatives.sim.tasks import task

SIZE = 128
ENCODING = Encoding(options={"crf": "28", "preset": "slow", **REPEATABLE})
FIRST_SEED = 50_000
"""far from the benchmark's seeds"""
TASK = "bin-picking"
# By split: behaviours, each with a seed of its own, counted from the first. What came of them is measured.
EPISODES = {
    "train": {
        **{0: "expert", 1: "hesitate", 2: "overshoot", 14: "expert", 15: "hesitate", 16: "overshoot"},
        **{3: "missed-grasp", 4: "undo", 5: "noisy", 17: "early-stop", 18: "never-closes", 19: "missed-grasp"},
    },
    "test": {
        **{6: "expert", 7: "expert", 8: "hesitate", 9: "overshoot"},
        **{20: "expert", 21: "slam", 22: "hesitate", 23: "overshoot"},
        **{10: "undo", 11: "missed-grasp", 12: "noisy", 13: "never-closes"},
        **{24: "early-stop", 25: "undo", 26: "random", 27: "noisy"},
    },
}


def sample_folder() -> Path:
    """Return the folder of the shipped sample, which `demerit.open_dataset("videos:...")` reads."""
    return Path(str(files("demerit") / "assets" / "sample"))


def make_shipped_sample(folder: str | Path) -> Path:
    """Make the sample: videos and a `labels.jsonl` in the format of a folder of videos."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    arena = Arena(task(TASK))
    with Painter(arena, SIZE) as painter:
        for split, wanted in EPISODES.items():
            for seed, behaviour in wanted.items():
                spec = EpisodeSpec(TASK, behaviour, FIRST_SEED + seed, "plain", SIZE, split)
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
        "split": episode.origin.split,
        **{name: episode.origin.tags[name] for name in ("task", "behaviour", "setting", "seed")},
    }


if __name__ == "__main__":
    print(make_shipped_sample(sys.argv[1]))
