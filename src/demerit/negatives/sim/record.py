"""A rollout as an episode of ours: its video in a file, everything that was measured beside it."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import numpy as np
from PIL import Image

from demerit.data.episode import Episode, Origin
from demerit.data.frames import Frames, Images
from demerit.data.labels import Outcome
from demerit.data.video import VideoClip
from demerit.data.video_writer import Encoding, write_video
from demerit.negatives.sim.events import find_events
from demerit.negatives.sim.rollout import EpisodeSpec, Rollout

LICENCE = "MIT"
"""Meta-World's, whose scenes and robot are shown"""
REPEATABLE = {"threads": "1", "x264-params": "mbtree=0:rc-lookahead=0:sync-lookahead=0:weightp=0"}
"""The same pictures give the same bytes. One thread is not enough: x264 looks ahead in another one, and with it 63 of
1,500 encodings of one episode differed in a few blocks; without it none did."""
ENCODING = Encoding(options={"crf": "23", "preset": "veryfast", **REPEATABLE})
SIDE = 32
"""motion and change are measured on pictures of so many pixels a side"""


def video_name(spec: EpisodeSpec) -> str:
    """Name the video file of an episode."""
    return spec.id.replace("/", "-") + ".mp4"


def record(rollout: Rollout, path: str | Path, encoding: Encoding = ENCODING) -> Episode:
    """Write the video and return the episode."""
    write_video(path, rollout.images, rollout.fps, encoding)
    spec, measured = rollout.spec, rollout.measured
    return Episode(
        spec.id,
        rollout.instruction,
        {"main": Frames(VideoClip(str(path), length=len(rollout.images)))},
        outcomes=(outcome(rollout),),
        origin=Origin(
            dataset="metaworld",
            revision=version("metaworld"),
            licence=LICENCE,
            embodiment="sawyer (simulated)",
            split=spec.split,
            group=spec.group,
            tags=_tags(rollout),
        ),
        signals={
            "state": measured.states(),
            "object": measured.objects(),
            "done": measured.success.astype(np.uint8),
            "object_force": measured.forces("object_force"),
            "scene_force": measured.forces("scene_force"),
        },
    )


def outcome(rollout: Rollout) -> Outcome:
    """Tell what happened: success is the task done at the last frame."""
    measured = rollout.measured
    note = "done at some time, not at the end" if measured.ever and not measured.at_end else ""
    curve = np.round(measured.progress, 4).astype(np.float32)
    return Outcome(
        "simulator",
        success=measured.at_end,
        progress=float(curve[-1]),
        curve=curve,
        events=find_events(measured),
        note=note,
        by="mujoco",
    )


def moved(images: Images) -> tuple[float, float]:
    """Measure what needs no understanding: the mean step from frame to frame, and from the first to the last.

    Mean absolute grey difference at 32 x 32, 0 to 1.
    """
    small = [
        Image.fromarray(one).convert("L").convert("F").resize((SIDE, SIDE), Image.Resampling.BOX) for one in images
    ]
    grey = np.stack([np.asarray(one, dtype=np.float64) for one in small]) / 255
    return float(np.abs(np.diff(grey, axis=0)).mean()), float(np.abs(grey[-1] - grey[0]).mean())


def _tags(rollout: Rollout) -> dict[str, str]:
    spec = rollout.spec
    motion, change = moved(rollout.images)
    return {
        "task": spec.task,
        "behaviour": spec.behaviour,
        "setting": spec.setting,
        "seed": str(spec.seed),
        "ever": "yes" if rollout.measured.ever else "no",
        "ending": rollout.ending,
        "frames": str(len(rollout.images)),
        "motion": f"{motion:.6f}",
        "change": f"{change:.6f}",
        "azimuth": f"{rollout.camera.azimuth:.1f}",
    }
