"""Training the compact network: what is drawn, what is asked, that it can be stopped, and what comes out."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import demerit
from demerit.cli import app
from demerit.cli.train_compact import compact as train_command
from demerit.config import parse_changes
from demerit.data.episode import Episode, Origin
from demerit.data.frames import Frames
from demerit.data.labels import Outcome
from demerit.errors import BadInput, DemeritError, Diverged, StoreError, UnknownName
from demerit.models import load_model
from demerit.models.compact.engine import Engine
from demerit.models.compact.text import TextEncoder
from demerit.training.compact import clips, fit
from demerit.training.compact.clips import Clip, Drawer, is_for_training, telling
from demerit.training.compact.corpus import AUXILIARY, Corpus, Row
from demerit.training.compact.export import export
from demerit.training.compact.fit import CHECKPOINT, Fitting, Told
from demerit.training.compact.losses import Batch, binned, by_task, known_mean, preferred, taught
from demerit.training.compact.made_from import left_out
from demerit.training.compact.network import Network, Shape, progress, running_maximum, start_from_imagenet
from demerit.training.compact.on_device import chosen_device
from demerit.training.compact.predict import predict
from demerit.training.compact.prepare import Part, prepare
from demerit.training.compact.recipe import Recipe, load_recipe
from demerit.training.compact.train import credits_of, load_weights, shipped_words, train
from demerit.training.compact.train import main as train_main
from fakes.tiny_network import make_network
from fakes.toy_corpus import INSTRUCTIONS, SIZE, listed, picture, small_recipe, toy

ROOT = Path(demerit.__file__).parent
TRAIN_SIDE = {
    "network",
    "augment",
    "losses",
    "on_device",
    "fit",
    "predict",
    "export",
    "train",
    "distil_words",
    "minilm",
}


@pytest.fixture(scope="module")
def words() -> TextEncoder:
    return TextEncoder.load(shipped_words())


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """On a busy machine torch's threads wait for each other many times longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --- the recipe ---------------------------------------------------------------------------------------------------


def test_the_file_and_the_defaults_are_what_made_the_shipped_weights() -> None:
    made = json.loads((ROOT / "data" / "compact" / "training.json").read_text())["recipe"]
    assert json.loads(json.dumps(load_recipe().facts_of())) == made
    assert load_recipe() == Recipe()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"steps": 0}, "at least 1"),
        ({"steps": 2.5}, "a whole number"),
        ({"clips": 3}, "an even number"),
        ({"frames": 3}, "at least 4"),
        ({"size": 100}, "a multiple of 32"),
        ({"rewind": 1.5}, "a share from 0 to 1"),
        ({"rewind": 0.9, "wrong_words": 0.2}, "together with rewind"),
        ({"fold": 3}, "0 to 2"),
        ({"failures": "no"}, "true or false"),
        ({"tower_rate": "fast"}, "a number"),
        ({"tower_rate": 0}, "a number above 0, at most 1"),
        ({"head_rate": 1e9}, "a number above 0, at most 1"),
        ({"head_rate": "nan"}, "a number above 0, at most 1"),
        ({"decay": -1}, "a number from 0 to 1"),
        ({"facts": "inf"}, "a finite number"),
        ({"shares": {"measured": 0}}, "not all 0"),
        ({"shares": {"measurd": 1}}, "Did you mean 'measured'"),
        ({"wrong_kinds": "model"}, "a list"),
        ({"stps": 3}, "Did you mean 'steps'"),
        ({7: 3}, "no key in recipe named '7'"),
        ({"steps": None}, "a whole number, got None"),
        ({"fold": "one"}, "a whole number"),
    ],
)
def test_a_recipe_that_cannot_be_trained_is_refused(change: dict[Any, Any], sentence: str) -> None:
    with pytest.raises(DemeritError, match=sentence):
        Recipe().changed(change)


def test_numbers_are_read_from_files_and_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("tower_rate: 3e-4\nwrong_kinds: []\nfold: null\n")
    mine = load_recipe(tmp_path / "mine.yaml")
    assert (mine.tower_rate, mine.wrong_kinds, mine.fold) == (3e-4, (), None)
    assert Recipe(fold=1).changed({"fold": None}).fold is None
    assert parse_changes(["steps=7", "head-rate=1e-3", 'shares={"model": 1}']) == {
        "steps": 7,
        "head_rate": 1e-3,
        "shares": {"model": 1},
    }
    with pytest.raises(BadInput, match="NAME=VALUE"):
        parse_changes(["steps"])
    (tmp_path / "torn.yaml").write_text("steps: [")
    (tmp_path / "list.yaml").write_text("- 1")
    for name, sentence in (
        ("torn.yaml", "YAML"),
        ("absent.yaml", "No such file"),
        ("list.yaml", "got list"),
    ):
        with pytest.raises(BadInput, match=sentence):
            load_recipe(tmp_path / name)


# --- preparing ----------------------------------------------------------------------------------------------------


def filmed(id: str, frames: int, outcomes: tuple[Outcome, ...] = (), **origin: Any) -> Episode:
    images = np.stack([np.full((48, 48, 3), 5 * number, np.uint8) for number in range(frames)])
    return Episode(id, f"do {id}", {"front": Frames.from_array(images)}, outcomes, Origin(**origin))


def some_episodes() -> list[Episode]:
    """A curve of 40 frames by a simulator, one by a model, a person's success, and one of which nothing is known."""
    long = np.linspace(0, 1, 40, dtype=np.float32)
    rng = np.random.default_rng(0)
    signals = {"object": rng.normal(size=(40, 3)), "state": rng.normal(size=(40, 4))}
    measured = filmed(
        "measured", 40, (Outcome("simulator", success=True, curve=long),), tags={"task": "push"}, split="t"
    )
    return [
        replace(measured, signals=signals),
        filmed("judged", 5, (Outcome("model", curve=np.array([0, 0.2, np.nan, 0.4, 0.1])),)),
        filmed("good", 6, (Outcome("human", success=True),), tags={"lab": "west"}),
        filmed("unknown", 4),
        filmed("bad", 4, (Outcome("human", success=False),)),
    ]


def test_what_is_prepared_is_what_was_given(tmp_path: Path) -> None:
    episodes = some_episodes()
    parts = [Part("mixed", listed(episodes)), Part("shown", listed([filmed("demo", 3)]), "demonstrations")]
    parts.append(Part("later", listed([filmed("kept", 2, (Outcome("human", success=True),))]), "held-out"))
    corpus = prepare(parts, tmp_path / "corpus", SIZE, workers=0)
    told = [(row.id, row.source, row.kind, row.success, row.first, row.frames, row.split) for row in corpus.rows]
    assert told == [
        ("measured", "mixed", "measured", True, 0, 32, "t"),
        ("judged", "mixed", "model", None, 32, 5, ""),
        ("good", "mixed", "demonstration", True, 37, 6, ""),
        ("demo", "shown", "demonstration", True, 43, 3, ""),
        ("kept", "later", "demonstration", True, 46, 2, "held-out"),
    ]
    assert [row.task for row in corpus.rows[:2]] == ["push", "do judged"]
    assert corpus.rows[2].site == "west"
    places = np.rint(np.linspace(0, 39, 32)).astype(int)
    np.testing.assert_allclose(corpus.progress[:32], places / 39, atol=1e-6)
    np.testing.assert_array_equal(corpus.progress[32:37], np.array([0, 0.2, np.nan, 0.4, 0.1], np.float32))
    assert np.isnan(corpus.progress[37:]).all()
    np.testing.assert_array_equal(corpus.frames[:32, 10, 20, 1], 5 * places)
    assert corpus.frames.shape == (48, SIZE, SIZE, 3)
    thing, state = (np.asarray(episodes[0].signals[name])[places] for name in ("object", "state"))
    moved = np.sqrt(((thing - thing[0]) ** 2).sum(1)) / 0.3
    away = np.sqrt(((thing - state[:, :3]) ** 2).sum(1)) / 0.3
    lifted = (thing[:, 2] - thing[0, 2]) / 0.2
    assert AUXILIARY == ("object moved", "hand to object", "gripper open", "object lifted")
    np.testing.assert_allclose(corpus.facts[:32], np.stack([moved, away, state[:, 3], lifted], 1), rtol=1e-4, atol=1e-5)
    assert np.isnan(corpus.facts[32:]).all()
    assert left_out(tmp_path / "corpus") == {"neither a curve nor a demonstration": 2}


@pytest.mark.parametrize("torn", ["", "frames.raw", "labels.raw", "episodes.jsonl"])
def test_preparing_goes_on_where_it_was_stopped(tmp_path: Path, torn: str) -> None:
    curves = [(Outcome("simulator", success=True, curve=np.linspace(0, 1, 4)),)] * 20
    episodes = [filmed(f"e{number}", 4, curve) for number, curve in enumerate(curves)]
    whole = prepare([Part("a", listed(episodes))], tmp_path / "whole", SIZE, workers=0)
    with pytest.raises(KeyboardInterrupt):
        prepare([Part("a", listed(episodes, stop_at=17))], tmp_path / "corpus", SIZE, workers=0)
    assert not (tmp_path / "corpus").exists()
    if torn:  # a machine that lost its power in the middle of a write
        path = tmp_path / "corpus.partial" / torn
        os.truncate(path, path.stat().st_size - 7)
    counted: list[int] = []
    done = prepare([Part("a", listed(episodes))], tmp_path / "corpus", SIZE, lambda d: counted.append(d.episodes), 0)
    assert counted == list(range(16 if torn else 17, 21))
    assert done.rows == whole.rows
    np.testing.assert_array_equal(done.frames, whole.frames)
    np.testing.assert_array_equal(done.progress, whole.progress)
    again = prepare(
        [Part("a", listed(episodes))], tmp_path / "corpus", SIZE, lambda d: pytest.fail("prepared twice"), 0
    )
    assert again.rows == whole.rows
    assert not (tmp_path / "corpus.partial").exists()


def test_another_corpus_and_an_empty_one_are_refused(tmp_path: Path) -> None:
    episodes = some_episodes()
    prepare([Part("a", listed(episodes))], tmp_path / "corpus", SIZE, workers=0)
    with pytest.raises(BadInput, match="same data and size"):
        prepare([Part("b", listed(episodes))], tmp_path / "corpus", SIZE, workers=0)
    changed = [replace(one, outcomes=()) if one.id == "bad" else one for one in episodes]
    for others in (changed, [replace(one, instruction="do that") for one in episodes]):
        with pytest.raises(BadInput, match="made before labels or words in 'a' changed"):
            prepare([Part("a", listed(others))], tmp_path / "corpus", SIZE, workers=0)
    twice = [Part("a", listed(episodes)), Part("b", listed(episodes), "held-out")]
    with pytest.raises(BadInput, match=r"not trained on .*got 5 that are \(b: measured, .* and 2 more\)"):
        prepare(twice, tmp_path / "twice", SIZE, workers=0)
    with pytest.raises(BadInput, match="size 64, not 128"):
        prepare([Part("a", listed(episodes))], tmp_path / "corpus", 128, workers=0)
    with pytest.raises(BadInput, match="1 neither a curve nor a demonstration"):
        prepare([Part("a", listed([filmed("unknown", 4)]))], tmp_path / "nothing", SIZE, workers=0)
    with pytest.raises(BadInput, match="a folder without frames"):
        Corpus.load(tmp_path)


# --- clips --------------------------------------------------------------------------------------------------------


def drawn(corpus: Corpus, recipe: Recipe, seed: int) -> Iterator[tuple[Row, Clip]]:
    """Every clip of a step with the episode that it shows."""
    for group in Drawer(corpus, recipe).draw(np.random.default_rng(seed)):
        for clip in group:
            yield next(row for row in corpus.rows if row.first <= clip.frames[0] < row.first + row.frames), clip


def labels_of(corpus: Corpus, row: Row) -> np.ndarray:
    return np.linspace(0, 1, row.frames) if row.kind == "demonstration" else corpus.progress[row.places]


shares = st.floats(0, 0.5)


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), rewind=shares, wrong=shares, unsaid=shares, cut=shares, frames=st.integers(4, 9))
def test_a_clips_labels_follow_its_frames(
    seed: int, rewind: float, wrong: float, unsaid: float, cut: float, frames: int
) -> None:
    corpus = toy((1, 2, 5, 12))
    changes = {"rewind": rewind, "wrong_words": wrong, "unsaid": unsaid, "cut": cut, "frames": frames, "groups": 6}
    for row, clip in drawn(corpus, small_recipe(**changes), seed):
        places = clip.frames - row.first
        assert len(places) == frames
        assert places[0] == 0
        assert places.min() >= 0 and places.max() < row.frames
        np.testing.assert_allclose(clip.own, labels_of(corpus, row)[places], atol=1e-6)
        lied_to = clip.instruction not in ("", row.instruction)
        assert not lied_to or row.kind in ("demonstration", "model")
        np.testing.assert_array_equal(clip.progress, np.zeros(frames) if lied_to else clip.own)
        assert clip.weight == (0.5 if row.kind == "model" else 1.0) * (0.5 if lied_to else 1.0)
        assert clip.task == (row.task if row.kind == "measured" else "")
        if lied_to:
            assert not telling(row.instruction) & telling(clip.instruction)
            assert (clip.success == 0).all()
        elif row.kind == "measured":
            np.testing.assert_array_equal(clip.success, clip.own >= 0.9999)
        elif row.kind == "model":
            assert np.isnan(clip.success).all()
        else:
            sure = ~np.isnan(clip.success)
            np.testing.assert_array_equal(sure, (clip.own >= 0.97) | (clip.own <= 0.7))
            np.testing.assert_array_equal(clip.success[sure], clip.own[sure] >= 0.97)


@settings(max_examples=40)
@given(
    length=st.integers(1, 40), frames=st.integers(4, 12), seed=st.integers(0, 10**6), cut=st.sampled_from([0.0, 1.0])
)
def test_forward_clips_do_not_go_back_and_rewound_ones_do(length: int, frames: int, seed: int, cut: float) -> None:
    recipe = small_recipe(frames=frames, cut=cut)
    forward = clips._forward(length, recipe, np.random.default_rng(seed))
    assert forward[0] == 0 and (np.diff(forward) >= 0).all()
    assert length // 4 <= forward[-1] < length
    assert cut == 1.0 or forward[-1] == length - 1
    back = clips._back(length, recipe, np.random.default_rng(seed))
    turn = int(back.argmax())
    assert len(back) == frames and back.min() >= 0 and back.max() < length
    assert (np.diff(back[: turn + 1]) >= 0).all() and (np.diff(back[turn:]) <= 0).all()
    assert length < 4 or back[-1] < back.max()


def test_without_other_words_nobody_is_lied_to() -> None:
    corpus = toy()
    only = tuple(row for row in corpus.rows if row.task == "judged")
    recipe = small_recipe(rewind=0.0, wrong_words=1.0, unsaid=0.0, groups=10)
    for row, clip in drawn(replace(corpus, rows=only), recipe, 0):
        assert clip.instruction == row.instruction
        np.testing.assert_array_equal(clip.progress, clip.own)


def test_an_unknown_label_stays_unknown() -> None:
    corpus = toy()
    corpus.progress[:] = np.nan
    for row, clip in drawn(corpus, small_recipe(shares={"measured": 1}, groups=4), 0):
        assert row.kind == "measured"
        assert np.isnan(clip.success).all() and np.isnan(clip.own).all()


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), fold=st.integers(0, 2), task=st.sampled_from(["press", "lift"]))
def test_what_is_held_out_is_never_drawn(seed: int, fold: int, task: str) -> None:
    corpus = toy((8, 9, 10, 12, 13))
    splits = ["train", "validation", "test", "held-out", "", "train"]
    rows = tuple(replace(row, split=splits[number % 6]) for number, row in enumerate(corpus.rows))
    corpus = replace(corpus, rows=rows)
    recipe = small_recipe(held_out_tasks=[task], fold=fold, groups=8, wrong_words=0.5)
    for row, _ in drawn(corpus, recipe, seed):
        assert row.task != task and row.split != "held-out"
        assert row.kind != "measured" or row.split in ("train", "")
        key = {"demonstration": row.site, "model": row.instruction}.get(row.kind)
        assert key is None or sum(key.encode()) % 3 != fold


def test_failures_are_left_away_when_the_recipe_says_so() -> None:
    for row in toy().rows:
        expected = row.kind != "measured" or bool(row.success)
        assert is_for_training(row, small_recipe(failures=False)) is expected
    with pytest.raises(BadInput, match="none of which the recipe may use"):
        Drawer(toy(split="held-out"), small_recipe())


# --- losses: each computed a second time, another way ------------------------------------------------------------


def batch(n: int = 8, frames: int = 5, clips: int = 4, seed: int = 0, **other: Any) -> Batch:
    rng = np.random.default_rng(seed)
    curves = rng.random((n, frames))
    curves[rng.random((n, frames)) < 0.3] = np.nan
    known = torch.from_numpy(curves)
    facts: dict[str, Any] = {
        "frames": torch.zeros(n, frames, dtype=torch.long),
        "progress": known,
        "success": (known > 0.5).double(),
        "own": known,
        "facts": torch.full((n, frames, len(AUXILIARY)), torch.nan),
        "words": torch.zeros(n, 192),
        "told": torch.ones(n, 1),
        "task": torch.tensor([0, 0, 0, 0, -1, -1, -1, -1][:n]),
        "weight": torch.from_numpy(rng.uniform(0.25, 1, n)),
        "comparable": torch.from_numpy(rng.random(n) < 0.8),
    }
    return Batch(**{**facts, **other}, clips=clips)


def test_progress_is_a_cross_entropy_against_the_two_nearest_bins() -> None:
    asked = batch()
    logits = torch.from_numpy(np.random.default_rng(1).normal(size=(8, 5, 21)))
    found, count = 0.0, 0
    for n in range(8):
        for t in range(5):
            truth = float(asked.progress[n, t])
            if np.isnan(truth):
                continue
            shares_of = np.maximum(0, 1 - np.abs(truth * 20 - np.arange(21)))
            likely = np.exp(logits[n, t].numpy())
            found -= float(asked.weight[n]) * float(shares_of @ np.log(likely / likely.sum()))
            count += 1
    assert float(binned(logits, asked.progress, asked.weight)) == pytest.approx(found / count)
    ends = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    sure = torch.full((1, 2, 21), -50.0, dtype=torch.float64)
    sure[0, 0, 0] = sure[0, 1, 20] = 50
    assert float(binned(sure, ends, torch.ones(1))) == pytest.approx(0, abs=1e-9)
    assert progress(sure)[0].tolist() == pytest.approx([0, 1])


def test_preferences_are_bradley_terry_over_clear_pairs_of_a_group() -> None:
    asked = batch(frames=1, seed=3)
    rank = torch.from_numpy(np.random.default_rng(2).normal(size=8))
    costs = []
    for a in range(8):
        for b in range(8):
            clear = float(asked.progress[a, -1]) - float(asked.progress[b, -1]) > 0.05
            if a // 4 == b // 4 and clear and asked.comparable[a] and asked.comparable[b]:
                costs.append(-np.log(1 / (1 + np.exp(float(rank[b] - rank[a])))))
    assert costs
    assert float(preferred(rank, asked)) == pytest.approx(np.mean(costs))
    assert float(preferred(rank, batch(comparable=torch.zeros(8, dtype=torch.bool)))) == 0


def test_teaching_in_training_is_ridge_regression() -> None:
    asked = batch(seed=5)
    features = np.random.default_rng(4).normal(size=(8, 5, 6))
    own = asked.own.numpy()
    x, y = features[:2].reshape(10, 6), own[:2].reshape(10)
    kept = ~np.isnan(y)
    middle, level = x[kept].mean(0), y[kept].mean()
    ridge = np.log1p(np.exp(0.3))
    # (x'x + width * ridge) w = x'y as least squares: rows of sqrt(width * ridge) pull every weight to nothing
    rows = np.vstack([x[kept] - middle, np.sqrt(6 * ridge) * np.eye(6)])
    weights = np.linalg.lstsq(rows, np.concatenate([y[kept] - level, np.zeros(6)]), rcond=None)[0]
    answers = (features[2:4].reshape(10, 6) - middle) @ weights + level
    error = np.nanmean((answers - own[2:4].reshape(10)) ** 2)
    stiffness = torch.tensor(0.3, dtype=torch.float64)
    assert float(taught(torch.from_numpy(features), stiffness, asked)) == pytest.approx(error)


def test_a_tasks_own_output_is_asked() -> None:
    each = torch.from_numpy(np.random.default_rng(6).random((8, 5, 2)))
    asked = batch(task=torch.tensor([0, 0, 0, 0, 1, 1, -1, -1]))
    errors = [
        (float(each[n, t, asked.task[n]]) - float(asked.own[n, t])) ** 2
        for n in range(6)
        for t in range(5)
        if not asked.own[n, t].isnan()
    ]
    assert float(by_task(each, asked)) == pytest.approx(np.mean(errors))


def test_unknown_labels_contribute_nothing() -> None:
    nothing = torch.full((8, 5), torch.nan, dtype=torch.float64)
    blank = batch(progress=nothing, own=nothing)
    given_ = torch.randn(8, 5, 21, dtype=torch.float64, requires_grad=True)
    rank, stiffness = given_[:, -1, 0], torch.tensor(0.0, dtype=torch.float64)
    found = [binned(given_, blank.progress, blank.weight), preferred(rank, blank), taught(given_, stiffness, blank)]
    found.append(by_task(given_.sigmoid(), blank))
    assert [float(one.detach()) for one in found] == [0.0] * 4
    sum(found).backward()
    assert given_.grad is not None and not given_.grad.any()
    assert float(known_mean(torch.ones(3), torch.zeros(3))) == 0


# --- the network --------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(frames=st.integers(1, 9), at=st.integers(0, 9), seed=st.integers(0, 10**6))
def test_the_memory_is_a_running_maximum_in_chunks_or_at_once(frames: int, at: int, seed: int) -> None:
    values = np.abs(np.random.default_rng(seed).normal(size=(2, frames, 3))).astype(np.float32)
    state = np.abs(np.random.default_rng(seed + 1).normal(size=(2, 3))).astype(np.float32)
    found = running_maximum(torch.from_numpy(values), torch.from_numpy(state))
    expected = np.maximum.accumulate(np.concatenate([state[:, None], values], axis=1), axis=1)[:, 1:]
    np.testing.assert_array_equal(found.numpy(), expected)
    at = min(at, frames - 1)
    if at:
        early = running_maximum(torch.from_numpy(values[:, :at]), torch.from_numpy(state))
        late = running_maximum(torch.from_numpy(values[:, at:]), early[:, -1])
        np.testing.assert_array_equal(torch.cat([early, late], dim=1).numpy(), found.numpy())


def test_the_tower_begins_as_the_image_network_that_it_is_given() -> None:
    torch.manual_seed(0)
    tower = Network(Shape(size=SIZE)).tower
    mine = {
        name: one
        for name, one in tower.state_dict().items()
        if name.split(".")[0] not in ("places", "project", "settle")
    }
    theirs = {f"_{name}": torch.ones_like(one) for name, one in mine.items()}
    theirs["_stem.weight"] = torch.ones(32, 3, 3, 3)
    start_from_imagenet(tower, {**theirs, "_fc.weight": torch.zeros(1000, 1280)})
    assert (tower.stem.weight[:, :3] == 1).all() and (tower.stem.weight[:, 3:] == 0).all()
    assert (tower.head[0].weight == 1).all()
    with pytest.raises(BadInput, match=r"_stem\.weight.*shape \(16, 3, 3, 3\)"):
        start_from_imagenet(tower, {**theirs, "_stem.weight": torch.ones(16, 3, 3, 3)})
    theirs.popitem()
    with pytest.raises(BadInput, match="tensors"):
        start_from_imagenet(tower, theirs)


def test_weights_come_from_a_file_of_tensors_alone(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2, dtype=torch.float16)}, tmp_path / "good.pth")
    assert load_weights(tmp_path / "good.pth")["a"].dtype == torch.float32
    torch.save({"a": Path("code")}, tmp_path / "code.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    (tmp_path / "text.pth").write_text("weights")
    for name in ("code.pth", "list.pth", "text.pth", "absent.pth"):
        with pytest.raises(BadInput, match="a file of tensors"):
            load_weights(tmp_path / name)


# --- the loop -----------------------------------------------------------------------------------------------------


def fitting(words: TextEncoder, folder: Path, corpus: Corpus | None = None, **changes: object) -> Fitting:
    return Fitting(corpus or toy(), small_recipe(**changes), words, folder, device="cpu")


def same(one: Fitting, other: Fitting) -> bool:
    """Whether two runs have come to the same weights, bit for bit."""
    pairs = zip(_numbers(one), _numbers(other), strict=True)
    return one.step == other.step and all(torch.equal(a, b) for a, b in pairs)


def _numbers(run: Fitting) -> Iterator[torch.Tensor]:
    for network in (run.network, run.averaged):
        yield from network.state_dict().values()
    for state in run.optimiser.state_dict()["state"].values():
        yield from state.values()


def test_a_run_that_was_stopped_ends_like_one_that_was_not(words: TextEncoder, tmp_path: Path) -> None:
    whole = fitting(words, tmp_path / "whole")
    whole.run()
    stopped = fitting(words, tmp_path / "stopped")

    def press(told: Told) -> None:
        if told.step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        stopped.run(press, every=1)
    assert stopped.step == 2
    torch.rand(5)  # somebody else draws numbers in between
    resumed = fitting(words, tmp_path / "stopped")
    assert same(resumed, stopped)
    resumed.run()
    assert same(resumed, whole)
    assert not same(stopped, whole)


def test_an_error_within_a_step_leaves_the_last_whole_one(
    words: TextEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "SAVE_EVERY", -1.0)
    whole, torn = fitting(words, tmp_path / "whole", steps=3), fitting(words, tmp_path / "torn", steps=3)
    whole.run()

    def fail() -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="out of memory"):
        average = Fitting._average
        patched.setattr(Fitting, "_average", lambda self: fail() if self.step == 2 else average(self))
        torn.run()
    resumed = fitting(words, tmp_path / "torn", steps=3)
    assert resumed.step == 2
    resumed.run()
    assert same(resumed, whole)


@pytest.mark.parametrize("times", [torch.nan, torch.inf])
def test_a_run_ends_at_the_first_loss_that_is_no_number(
    words: TextEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: float
) -> None:
    monkeypatch.setattr(fit, "SAVE_EVERY", -1.0)
    run, seen = fitting(words, tmp_path), fit.look
    monkeypatch.setattr(fit, "look", lambda *given: seen(*given) * (times if run.step == 2 else 1))
    with pytest.raises(Diverged, match=r"at update 3: .*update 2 stands.*--set head_rate=\.\.\. --set tow"):
        run.run()
    monkeypatch.undo()
    kept = fitting(words, tmp_path)
    assert kept.step == 2
    assert all(one.isfinite().all() for one in kept.network.state_dict().values())


def test_last_weights_that_are_no_numbers_are_not_exported(
    words: TextEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fitting(words, tmp_path, steps=1)
    monkeypatch.setattr(run, "_average", lambda: next(run.averaged.parameters()).fill_(torch.nan))
    with pytest.raises(Diverged, match=r"at update 1: it made weights that are no numbers\. Nothing was saved"):
        run.run()
    assert not (tmp_path / CHECKPOINT).exists()


def test_an_error_while_drawing_is_raised(words: TextEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = fitting(words, tmp_path)
    draw = run.drawer.draw
    calls: list[int] = []

    def broken(rng: np.random.Generator) -> list[list[Clip]]:
        calls.append(1)
        if len(calls) > 1:
            raise ZeroDivisionError("in the other thread")
        return draw(rng)

    monkeypatch.setattr(run.drawer, "draw", broken)
    with pytest.raises(ZeroDivisionError, match="in the other thread"):
        run.run()
    assert fitting(words, tmp_path).step == 1


def test_another_runs_checkpoint_is_refused(words: TextEncoder, tmp_path: Path) -> None:
    fitting(words, tmp_path).save()
    with pytest.raises(BadInput, match="this recipe and these episodes"):
        fitting(words, tmp_path, seed=1)
    with pytest.raises(BadInput, match="this recipe and these episodes"):
        fitting(words, tmp_path, toy((8, 9)))
    corpus = toy()
    other = replace(corpus, progress=1 - corpus.progress)  # the same episodes with other labels
    with pytest.raises(BadInput, match="this recipe and these episodes"):
        fitting(words, tmp_path, other)
    (tmp_path / CHECKPOINT).write_text("torn")
    with pytest.raises(BadInput, match="remove it to begin anew"):
        fitting(words, tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="the folder cannot be made"):
        fitting(words, tmp_path / "file" / "run")


def test_devices_are_told_by_name(words: TextEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert chosen_device(None).type == "cpu"
    with pytest.raises(BadInput, match="there is none"):
        chosen_device("cuda")
    with pytest.raises(UnknownName, match="device"):
        chosen_device("gpu")


def test_the_loss_goes_down_on_what_can_be_learned(
    words: TextEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "WARM_UP", 2)
    said: list[float] = []
    changes = {"shares": {"measured": 1}, "steps": 14, "tower_rate": 2e-3, "head_rate": 5e-3}
    run = fitting(words, tmp_path, **changes)
    run.run(lambda told: said.append(told.losses["progress"]), every=1)
    assert np.mean(said[-4:]) < np.mean(said[:4]) - 0.2, said
    rows = run.corpus.rows[:3]
    predicted = predict(run, rows)
    assert [len(one.progress) for one in predicted] == [row.frames for row in rows]
    alone = predict(run, rows[:1])[0]
    np.testing.assert_allclose(alone.progress, predicted[0].progress, atol=1e-5)


# --- what comes out -----------------------------------------------------------------------------------------------


def test_the_exported_network_says_what_the_trained_one_says(tmp_path: Path, words: TextEncoder) -> None:
    torch.manual_seed(3)
    network = Network(Shape(size=SIZE)).eval()
    for one in network.modules():  # as if it had seen something: fresh statistics and words would hide mistakes
        if isinstance(one, torch.nn.BatchNorm2d):
            one.running_mean.normal_(0, 0.1)
            one.running_var.uniform_(0.5, 1.5)
    torch.nn.init.normal_(network.head.film.weight, std=0.1)
    engine = Engine.load(export(network, tmp_path / "net", shipped_words(), "r1", ["nothing"]))
    images = np.stack([picture(done) for done in np.linspace(0, 1, 11)])
    features = engine.features(images, images[0])
    pixels = (torch.from_numpy(images).permute(0, 3, 1, 2).float() - 127) / 128
    with torch.no_grad():
        vector, middle = network.tower.both(pixels, pixels[:1].expand_as(pixels))
        np.testing.assert_allclose(features, torch.cat([vector, middle], dim=1).numpy(), atol=1e-4)
        for instruction in ("press the button", ""):
            followed = engine.follow(features, instruction)
            meaning = words.vector(instruction)
            given_ = torch.zeros(1, 192) if meaning is None else torch.from_numpy(meaning)[None]
            told = torch.tensor([[float(meaning is not None)]])
            answer = network.head(vector[None], given_, told, torch.zeros(1, 128))
            np.testing.assert_allclose(followed.progress, progress(answer.bins)[0].numpy(), atol=1e-4)
            np.testing.assert_allclose(followed.success, answer.success.sigmoid()[0].numpy(), atol=1e-4)
            np.testing.assert_allclose(followed.rank, answer.rank[0].numpy(), atol=1e-4)
            np.testing.assert_allclose(followed.hidden, answer.hidden[0].numpy(), atol=1e-4)
    assert next(network.parameters()).requires_grad


def test_a_size_that_cannot_be_exported_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="a multiple of 64"):
        train(toy(), tmp_path, small_recipe(size=96))
    assert not any(tmp_path.iterdir())
    with pytest.raises(BadInput, match="at most the 64 pixels"):
        train(toy(), tmp_path, small_recipe(size=128))


def test_credits_name_what_was_trained_on() -> None:
    rows = [replace(row, source={"press": "droid", "lift": "mine"}.get(row.task, "metaworld")) for row in toy().rows]
    named = credits_of(rows)
    assert named[0] == "DROID (CC-BY-4.0): Khazatsky et al. 2024, 8 demonstrations"
    assert named[1].startswith("Meta-World") and named[2:] == ["mine"]


def test_the_command_makes_a_model_and_does_nothing_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = [
        f"{name}={value}" for name, value in {"steps": 1, "size": 64, "groups": 1, "clips": 2, "frames": 4}.items()
    ]
    told: dict[str, Any] = {"data": [f"sample={ROOT / 'data' / 'sample'}"], "changes": small, "device": "cpu"}
    train_command(tmp_path / "out", **told, prepare_only=True, workers=0)
    corpus = tmp_path / "out" / "corpus" / "frames.npy"
    before = corpus.stat().st_mtime_ns
    train_command(tmp_path / "out", **told, workers=0)
    train_command(tmp_path / "out", corpus=corpus.parent, changes=small, device="cpu")
    assert corpus.stat().st_mtime_ns == before
    model = load_model(str(tmp_path / "out" / "network"))
    assert model.card.name == "out"
    images = np.stack([picture(done) for done in (0, 0.5, 1)])
    reward = model.score([Episode.from_array(images, INSTRUCTIONS["press"])])[0]
    assert reward.value.shape == (3,) and np.isfinite(reward.value).all()
    assert "--model" in capsys.readouterr().out
    for change, sentence in (
        ({"data": ["sample"]}, "NAME=DATASET"),
        ({"data": None}, "a prepared --corpus"),
        ({"data": [f"other={ROOT / 'data' / 'sample'}"], "corpus": corpus.parent}, "same data and size"),
    ):
        with pytest.raises(BadInput, match=sentence):
            train_command(tmp_path / "elsewhere", **{**told, **change}, workers=0)
    for wrong, found in (({"device": "gpu"}, "device"), ({"imagenet": tmp_path / "absent"}, "EfficientNet")):
        with pytest.raises(DemeritError, match=found):  # before the dataset, which is not there either, is opened
            train_command(tmp_path / "elsewhere", **{**told, "data": ["a=nowhere"], **wrong}, workers=0)


def test_a_machine_without_robot_libraries_trains_from_the_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare([Part("a", listed(some_episodes()))], tmp_path / "corpus", SIZE, workers=0)
    told = ["train", str(tmp_path / "corpus"), str(tmp_path / "out"), "--device", "cpu", "--set", "steps=1", "size=64"]
    monkeypatch.setattr(sys, "argv", [*told, "groups=1", "clips=2", "frames=4"])
    train_main()
    assert "1/1" in capsys.readouterr().out
    assert Engine.load(tmp_path / "out" / "network").info.size == SIZE
    monkeypatch.setattr(sys, "argv", [*told[:1], str(tmp_path / "absent"), str(tmp_path / "out")])
    with pytest.raises(SystemExit, match="a prepared corpus"):
        train_main()


def test_two_trained_networks_have_two_names(tmp_path: Path) -> None:
    folders = [tmp_path / name / "network" for name in ("mine", "other", "default")]
    for folder in folders:
        make_network(folder)
    assert [load_model(str(folder)).card.name for folder in folders] == ["mine", "other", "default-local"]


# --- what training costs those who do not train ----------------------------------------------------------------------


def test_only_the_training_side_imports_torch() -> None:
    for path in ROOT.rglob("*.py"):
        if path.parent.name in ("vlm", "vlm_training"):  # an extra of its own, which nothing else imports on top
            continue
        named = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                named |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                named.add((node.module or "").split(".")[0])
        assert "torch" not in named or (path.parent.name == "compact" and path.stem in TRAIN_SIDE), path


SCORING = """
import numpy as np
from demerit import Episode, load_model
load_model("default").score([Episode.from_array(np.zeros((3, 32, 32, 3), np.uint8), "press the button")])
"""
HELP = """
from demerit.cli import app
app(["train", "--help"], standalone_mode=False)
app(["train", "compact", "--help"], standalone_mode=False)
app(["train", "robometer", "--help"], standalone_mode=False)
app(["--help"], standalone_mode=False)
"""


@pytest.mark.parametrize("code", ["import demerit, demerit.cli", HELP, SCORING], ids=["import", "help", "scoring"])
def test_nobody_else_loads_torch(code: str) -> None:
    check = f"import sys\n{code}\nassert 'torch' not in sys.modules and 'onnx' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True, stdout=subprocess.DEVNULL)


def test_the_help_says_how_much_memory_a_step_takes() -> None:
    told = CliRunner().invoke(app, ["train", "compact", "--help"], env={"COLUMNS": "200"}).output
    assert "--set groups=2 --set clips=4 it took 2,400 MB" in " ".join(told.replace("│", " ").split())


def test_without_torch_the_extra_is_named_before_anything_is_done(tmp_path: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; from demerit.cli import main; main()"
    command = [sys.executable, "-c", code, "train", "compact", "-o", str(tmp_path / "out"), "--data", "a=nowhere"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    expected = (
        "demerit: Training the compact model needs an extra that is not installed: pip install 'demerit[train]'\n"
    )
    assert run.stderr == expected
    assert not (tmp_path / "out").exists()
