"""The sample that ships with demerit: 28 small simulated episodes of one task, successes and failures.

Twelve are for teaching (`split` train), sixteen for scoring the taught model (`split` test). The default model was
never trained on this task. Every episode has its own scene: no seed is used twice, and none is the benchmark's.

    python tools/make_sample.py FOLDER          makes the same bytes every time
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from demerit.data.episode import Episode
from demerit.data.video import Encoding
from demerit.negatives.sim.arena import Arena, SceneRenderer
from demerit.negatives.sim.rollout import REPEATABLE, EpisodeSpec, record, rollout, video_name
from demerit.negatives.sim.tasks import task

SIZE = 128
ENCODING = Encoding(options={"crf": "28", "preset": "slow", **REPEATABLE})
FIRST_SEED = 50_000
"""not a seed of the benchmark"""
TASK = "bin-picking"
# By split: seed (counted from the first) to behaviour.
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


def make_sample(folder: str | Path) -> Path:
    """Make the sample: videos and a `labels.jsonl` in the format of a folder of videos."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    arena = Arena(task(TASK))
    with SceneRenderer(arena, SIZE) as renderer:
        for split, wanted in EPISODES.items():
            for seed, behaviour in wanted.items():
                spec = EpisodeSpec(TASK, behaviour, FIRST_SEED + seed, "plain", SIZE, split)
                path = folder / video_name(spec)
                lines.append(_label(record(rollout(spec, arena, renderer), path, ENCODING), path))
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
    print(make_sample(sys.argv[1]))
