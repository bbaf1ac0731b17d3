"""A small dataset with labels, events and the rewards of three models, to look at in a browser."""

import shutil
from pathlib import Path

import numpy as np

from demerit.data.dataset import Dataset
from demerit.data.episode import Episode, Event, Outcome
from demerit.data.formats import open_dataset
from demerit.data.frames import Frames
from demerit.data.reward import Reward
from demerit.data.store import Store
from demerit.models.protocol import example_card
from demerit.models.reward_store import RewardStore, scored_fingerprint
from demerit.models.score import rewards_folder
from fakes.tiny_video import write_video

EVIL = "</script><img src=x onerror='window.evil = 1'><script>window.evil = 2</script>"
LENGTH, FPS = 32, 8


def make_recording(path: Path, gop: int = 10, is_negative: bool = False, **options: str) -> Frames:
    """Write a video whose frames tell their number: frame k is about 2 + 3.5 k bright, or 255 minus that."""
    grey = (2 + 3.5 * np.arange(LENGTH)).astype(np.uint8)
    grey = 255 - grey if is_negative else grey
    images = np.broadcast_to(grey[:, None, None, None], (LENGTH, 48, 64, 3))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_video(path, np.ascontiguousarray(images), fps=FPS, gop=gop, **options)
    return Frames.from_video(path)


def make_viewed(root: Path, count: int = 24) -> Dataset:
    """Episode 0 has HTML in its instruction, 1 is a view that runs backwards, 2 has lost its video.

    `careful` scored all, `eager` all but the last, which is 1 - careful; `clock` all.
    """
    recording = make_recording(root.parent / "recording.mp4", gop=250)
    with Store.create(root, "viewed").writer() as writer:
        for i in range(count):
            words = EVIL if i == 0 else f"push the {'red' if i % 2 else 'blue'} block"
            events = (Event("collision", 4, 9, "<b>hit</b>"),) if i % 3 == 0 else ()
            curve = np.linspace(0, 1, LENGTH)
            label = Outcome("human", success=i % 2 == 0, curve=curve, events=events, by="Ada")
            frames = recording.select(range(LENGTH)[::-1]) if i == 1 else recording
            if i == 2:
                shutil.copy(root.parent / "recording.mp4", root.parent / "lost.mp4")
                frames = Frames.from_video(root.parent / "lost.mp4")
            writer.add(Episode(f"set/{i:03d}", words, {"main": frames}, (label,) if i != 5 else ()))
    (root.parent / "lost.mp4").unlink()
    dataset = open_dataset(str(root))
    for name in ("careful", "eager", "clock"):
        _store_rewards(dataset, name, count)
    return dataset


def _store_rewards(dataset: Dataset, name: str, count: int) -> None:
    card = example_card(name=name)
    store = RewardStore.open_or_create(rewards_folder(dataset, name), card, {})
    with store.writer(card) as writer:
        for i, episode in enumerate(dataset):
            if name == "eager" and i == count - 1:
                continue
            end = {"careful": i / count, "eager": 1 - i / count, "clock": 1.0}[name]
            reward = Reward(name, episode.id, np.arange(LENGTH), np.linspace(0, end, LENGTH))
            writer.commit([(reward, scored_fingerprint(episode, card))])
