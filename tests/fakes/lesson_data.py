"""Episodes to teach from: a square that moves to the right as the task gets done, on noise; labels of every kind."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from demerit.data.dataset import Dataset, Record
from demerit.data.episode import Episode, Event, Origin, Outcome
from demerit.data.video import write_video
from fakes.coded_episodes import Listed

FRAMES = 24
WORDS = "push the square to the right"


def course(success: bool, seed: int) -> np.ndarray:
    """How far it is at each frame: to the end and a rest there, or stopped on the way, or taken back."""
    rise = np.clip(np.linspace(0, 1.2, FRAMES), 0, 1)
    if success:
        return rise
    stop = np.random.default_rng([seed, success]).uniform(0.1, 0.6)
    return np.minimum(rise, stop) if seed % 2 else np.clip(np.minimum(rise, 2 * stop - rise), 0, 1)


def draw_images(truth: np.ndarray, seed: int, side: int = 24) -> np.ndarray:
    rng = np.random.default_rng(seed)
    images = rng.integers(60, 90, (len(truth), side, side, 3)) + rng.integers(-20, 20, (side, side, 3))  # its own table
    for image, value in zip(images, truth, strict=True):
        left = round(value * (side - 8))
        image[8:16, left : left + 8] = (230, 60, 40)
    return images.astype(np.uint8)


def dense(success: bool, truth: np.ndarray) -> Outcome:
    return Outcome("human", success=success, progress=float(truth[-1]), curve=truth, by="us")


def verdict(success: bool, truth: np.ndarray) -> Outcome:
    return Outcome("human", success=success, by="us")


def graded(success: bool, truth: np.ndarray) -> Outcome:
    return Outcome("human", grade=5 if success else 1 + int(3 * truth[-1]), by="us")


def marked(success: bool, truth: np.ndarray) -> Outcome:
    curve = np.full(len(truth), np.nan)
    curve[[0, len(truth) // 2, -1]] = truth[[0, len(truth) // 2, -1]]
    return Outcome("human", success=success, curve=curve, by="us")


def with_events(success: bool, truth: np.ndarray) -> Outcome:
    events = () if success else (Event("dropped", len(truth) // 2, len(truth) // 2 + 2),)
    return Outcome("human", success=success, events=events, by="us")


def unlabelled(success: bool, truth: np.ndarray) -> None:
    return None


Labelling = Callable[[bool, np.ndarray], Outcome | None]


def episode(success: bool, seed: int, labelled: Labelling = dense) -> Episode:
    truth = course(success, seed)
    made = Episode.from_array(draw_images(truth, seed), WORDS, id=f"{'good' if success else 'bad'}-{seed}")
    outcome = labelled(success, truth)
    origin = Origin(dataset="squares", licence="CC-BY-4.0", group=f"session {success} {seed}")
    return replace(made, outcomes=() if outcome is None else (outcome,), origin=origin)


def episodes(good: int, bad: int, labelled: Labelling = dense, first: int = 0) -> list[Episode]:
    numbers = range(first, first + max(good, bad))
    kinds = ((True, first + good), (False, first + bad))
    return [episode(success, seed, labelled) for seed in numbers for success, end in kinds if seed < end]


def dataset(records: Sequence[Record], name: str = "squares") -> Dataset:
    return Dataset(Listed(records, name), address=f"{name}:memory")


def write_videos(folder: Path, good: int, bad: int, blank: int = 0, first: int = 0) -> Path:
    """The same as files: a folder of videos with labels.csv; `blank` more have no label."""
    folder.mkdir(parents=True)
    lines = ["file,instruction,success,group"]
    for number, one in enumerate(
        [*episodes(good, bad, first=first), *episodes(blank - blank // 2, blank // 2, first=50)]
    ):
        name = f"{one.id}.mp4"
        write_video(folder / name, np.kron(one.main.all(), np.ones((1, 2, 2, 1), dtype=np.uint8)))
        known = str(one.outcomes[0].success).lower() if number < good + bad else ""
        lines.append(f"{name},{WORDS},{known},{one.origin.group}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return folder
