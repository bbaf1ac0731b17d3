"""Leaks between splits are found: by task, by video, by recording and by original."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from demerit.data.episode import Episode, Origin
from demerit.evaluate.benchmarks.leaks import find_leaks, sentences


def one(id: str, words: str, split: str, seed: int, **origin: Any) -> Episode:
    images = np.random.default_rng(seed).integers(0, 255, (4, 4, 4, 3), dtype=np.uint8)
    return replace(Episode.from_array(images, words, id=id), origin=Origin(split=split, **origin))


def kinds(*episodes: Episode) -> dict[str, tuple[str, ...]]:
    return {leak.kind: leak.episodes for leak in find_leaks(episodes)}


def test_clean_splits_are_clean() -> None:
    assert not find_leaks([one("a", "open it", "train", 0), one("b", "close it", "test", 1), one("c", "x", "", 0)])
    assert not find_leaks([one("a", "open it", "train", 0), one("b", "open it", "train", 0)])


def test_a_task_in_two_splits() -> None:
    assert kinds(one("a", "Open it.", "train", 0), one("b", "open  it", "test", 1)) == {"task": ("a", "b")}


def test_a_video_in_two_splits_even_as_a_clip() -> None:
    whole = one("a", "open it", "train", 0)
    clip = replace(whole.select([0, 1]), id="b", instruction="close it", origin=Origin(split="test"))
    assert kinds(whole, clip) == {"video": ("a", "b")}


def test_a_recording_and_an_original_in_two_splits() -> None:
    assert kinds(one("a", "x", "train", 0, group="g"), one("b", "y", "val", 1, group="g")) == {"recording": ("a", "b")}
    assert kinds(one("a", "x", "train", 0), one("b", "y", "test", 1, parent="a")) == {"original": ("a", "b")}


def test_leaks_are_said_in_a_sentence_a_kind() -> None:
    leaks = find_leaks(
        [one(f"{i}{split}", f"task {i}", split, 100 * i + len(split)) for i in range(5) for split in ("a", "bb")]
    )
    (said,) = sentences(leaks)
    assert said.startswith("Splits leak: 5 tasks stand in more than one of a, bb (10 episodes)")
    assert "and 2 more" in said and str(leaks[0]) == "the task 'task 0' stands in a, bb (2 episodes)"
