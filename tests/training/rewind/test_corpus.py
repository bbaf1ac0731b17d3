"""What the compact model keeps of an episode."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from demerit.data.episode import SOURCE_NAMES, Episode, Origin, Outcome
from demerit.data.frames import Frames
from demerit.training.prepared import CorpusPart, count_skipped, prepare
from demerit.training.rewind.data import SIMULATOR_FACTS, CompactCorpusPlan
from fakes.toy_corpus import SIZE, list_dataset


def film(id: str, frames: int, outcomes: tuple[Outcome, ...] = (), **origin: Any) -> Episode:
    images = np.stack([np.full((48, 48, 3), 5 * number, np.uint8) for number in range(frames)])
    return Episode(id, f"do {id}", {"front": Frames.from_array(images)}, outcomes, Origin(**origin))


def some_episodes() -> list[Episode]:
    """A simulator's curve of 40 frames, a model's curve, a person's success, and three without a usable label."""
    rise = Outcome("simulator", success=True, curve=np.linspace(0, 1, 40, dtype=np.float32))
    rng = np.random.default_rng(0)
    signals = {"object": rng.normal(size=(40, 3)), "state": rng.normal(size=(40, 4))}
    return [
        replace(film("measured", 40, (rise,), tags={"task": "push"}, split="t"), signals=signals),
        film("judged", 5, (Outcome("model", curve=np.array([0, 0.2, np.nan, 0.4, 0.1])),)),
        film("good", 6, (Outcome("human", success=True),), tags={"lab": "west"}),
        film("unknown", 4),
        film("bad", 4, (Outcome("human", success=False),)),
        film("short", 4, (Outcome("human", success=True, curve=np.array([0, 1])),)),
    ]


def test_what_is_prepared_is_what_was_given(tmp_path: Path) -> None:
    episodes = some_episodes()
    parts = [
        CorpusPart("mixed", list_dataset(episodes)),
        CorpusPart("shown", list_dataset([film("demo", 3)]), "demonstrations"),
        CorpusPart("later", list_dataset([film("kept", 2, (Outcome("human", success=True),))]), "held-out"),
    ]
    corpus = prepare(parts, tmp_path / "corpus", CompactCorpusPlan(SIZE, SOURCE_NAMES), workers=0)
    found = [(row.id, row.source, row.kind, row.success, row.first, row.frames, row.split) for row in corpus.rows]
    assert found == [
        ("measured", "mixed", "measured", True, 0, 32, "train"),
        ("judged", "mixed", "model", None, 32, 5, "train"),
        ("good", "mixed", "demonstration", True, 37, 6, "train"),
        ("bad", "mixed", "outcome", False, 43, 4, "train"),
        ("demo", "shown", "demonstration", True, 47, 3, "train"),
        ("kept", "later", "demonstration", True, 50, 2, "held-out"),
    ]
    assert [row.task for row in corpus.rows[:2]] == ["push", "do judged"]
    assert corpus.rows[2].site == "west"
    kept = np.rint(np.linspace(0, 39, 32)).astype(int)
    np.testing.assert_allclose(corpus.rows[0].progress, kept / 39, atol=1e-6)
    np.testing.assert_array_equal(corpus.rows[1].progress, np.array([0, 0.2, np.nan, 0.4, 0.1], np.float32))
    assert all(np.isnan(row.progress).all() for row in corpus.rows[2:])
    np.testing.assert_array_equal(corpus.images[:32, 10, 20, 1], 5 * kept)
    assert corpus.images.shape == (52, SIZE, SIZE, 3)
    thing, state = (np.asarray(episodes[0].signals[name])[kept] for name in ("object", "state"))
    moved = np.sqrt(((thing - thing[0]) ** 2).sum(1)) / 0.3
    away = np.sqrt(((thing - state[:, :3]) ** 2).sum(1)) / 0.3
    lifted = (thing[:, 2] - thing[0, 2]) / 0.2
    assert SIMULATOR_FACTS == ("object moved", "hand to object", "gripper open", "object lifted")
    expected = np.stack([moved, away, state[:, 3], lifted], 1)
    np.testing.assert_allclose(corpus.rows[0].facts, expected, rtol=1e-4, atol=1e-5)
    assert all(row.facts is None for row in corpus.rows[1:])
    assert count_skipped(tmp_path / "corpus") == {
        "no label": 1,
        "a curve of another length than the video": 1,
    }
