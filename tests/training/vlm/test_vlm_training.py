"""Training vision-language models: recipes, corpora, pairs, losses by hand, and questions laid as in scoring."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from demerit.data.dataset import Dataset, Record
from demerit.data.episode import Episode, Origin
from demerit.data.frames import Frames
from demerit.data.labels import Outcome, Preference
from demerit.errors import BadInput, DemeritError
from demerit.models.by_time import ByTime
from demerit.models.vlm.grades import grade_in
from demerit.models.vlm.heads import Head
from demerit.models.vlm.network import Network
from demerit.models.vlm.prompt import Picture
from demerit.models.vlm.reference import RobometerReference, transformers_network
from demerit.models.vlm.robometer import Protocol, RobometerEngine
from demerit.training.compact.made_from import left_out
from demerit.training.vlm import prepare as preparing
from demerit.training.vlm.corpus import Choice, Corpus, Row
from demerit.training.vlm.features import Eyes, Kept, Tower
from demerit.training.vlm.fit import pace
from demerit.training.vlm.frames_kept import corpus_for
from demerit.training.vlm.grading import GradesObjective
from demerit.training.vlm.laid import Batch, Example
from demerit.training.vlm.losses import Totals, balanced, binned, losses, two_hot
from demerit.training.vlm.network import Learner, groups_of
from demerit.training.vlm.objective import PairsObjective
from demerit.training.vlm.prepare import Part, prepare, shown, shrunk
from demerit.training.vlm.recipe import Recipe, RobometerRecipe, RoboRewardRecipe, load_recipe
from demerit.training.vlm.samples import Drawer, Sample, is_better, success_of
from demerit.training.vlm.train import start_of
from fakes.paths import TESTS
from fakes.tiny_vlm import head_shapes
from fakes.toy_corpus import listed
from fakes.toy_trajectories import WordTokens, tiny_start, toy, written

ANY: Any = None


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --- recipes ------------------------------------------------------------------------------------------------------


def test_the_shipped_recipes_are_the_defaults_and_the_public_facts() -> None:
    robometer, four, eight = (
        load_recipe("robometer"),
        load_recipe("roboreward"),
        load_recipe("roboreward", "roboreward_8b"),
    )
    assert robometer == RobometerRecipe()
    assert four == RoboRewardRecipe()
    assert eight == RoboRewardRecipe(rate=5e-6)
    assert (robometer.rate, robometer.warm_up, robometer.decay, robometer.clip) == (2e-5, 0.1, 0.01, 10.0)
    assert (four.rate, four.epochs, four.batch, four.warm_up, four.decay, four.clip) == (3e-6, 3, 32, 0.05, 0.05, 1.0)
    assert four.is_tower_frozen
    assert four.train_fusion
    adapters = robometer.changed({"lora": 32})
    assert adapters.lora_alpha / adapters.lora == 2


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"steps": 0}, "a number above 0 here or in epochs"),
        ({"batch": 6}, r"a multiple of part \(4\)"),
        ({"rate": "fast"}, "a number"),
        ({"rate": 0}, "above 0"),
        ({"rate": 1e30}, "at most 1"),
        ({"clip": float("inf")}, "a finite number"),
        ({"seed": -1}, "from 0 to 4294967295"),
        ({"frames": 1}, "at least 2"),
        ({"precision": "float16"}, "bfloat16, float32"),
        ({"cache": "disc"}, "Did you mean 'disk'"),
        ({"strategies": {"rewnd": 1}}, "Did you mean 'rewind'"),
        ({"strategies": {"rewind": 0}}, "not all 0"),
        ({"train_vision": "no"}, "true or false"),
        ({"fewest_frames": 2}, "there and back"),
        ({"preference": 0, "progress": 0, "success": 0}, "a loss that counts"),
        ({"stesp": 2}, "Did you mean 'steps'"),
    ],
)
def test_a_recipe_that_cannot_be_trained_is_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DemeritError, match=sentence):
        RobometerRecipe().changed(change)


def test_a_recipe_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("rate: 1e-4\nlora: 8\n")
    mine = load_recipe("robometer", tmp_path / "mine.yaml")
    assert (mine.rate, mine.lora) == (1e-4, 8)
    told = json.dumps(mine.changed({"strategies": {"rewind": 1}}).facts_of()["strategies"])
    assert told == '{"rewind": 1.0}'  # the same run as with 1.0: its identity is made from this text
    for text, sentence in (("rate: [", "YAML"), ("- 1", "names")):
        (tmp_path / "bad.yaml").write_text(text)
        with pytest.raises(BadInput, match=sentence):
            load_recipe("robometer", tmp_path / "bad.yaml")
    with pytest.raises(BadInput, match="roboreward_8b"):
        load_recipe("roboreward", tmp_path / "absent.yaml")


def test_a_shipped_recipe_begins_with_what_its_authors_began_with(tmp_path: Path) -> None:
    assert start_of("robometer") == start_of("roboreward") == "Qwen/Qwen3-VL-4B-Instruct"
    assert start_of("roboreward", Path("roboreward_8b")) == "Qwen/Qwen3-VL-8B-Instruct"
    assert start_of("roboreward", tmp_path / "roboreward_8b.yaml") == "Qwen/Qwen3-VL-4B-Instruct"


def test_the_rate_warms_up_and_falls_along_half_a_cosine() -> None:
    rates = [pace(step, 100, 0.1) for step in range(100)]
    assert rates[:10] == pytest.approx(np.arange(1, 11) / 10)
    assert rates[10:] == pytest.approx(0.5 * (1 + np.cos(np.pi * np.arange(90) / 90)))
    assert pace(0, 5, 0.0) == 1.0


# --- corpora ------------------------------------------------------------------------------------------------------


def filmed(id: str, frames: int, *outcomes: Outcome, words: str = "do it", size: tuple[int, int] = (48, 64)) -> Episode:
    images = np.stack([np.full((*size, 3), 3 * number, np.uint8) for number in range(frames)])
    return Episode(id, words, {"front": Frames.from_array(images, fps=4.0)}, outcomes, Origin(group="g"))


def some_episodes() -> list[Episode]:
    rise = np.linspace(0, 1, 20)
    return [
        filmed("measured", 20, Outcome("simulator", success=True, curve=rise, grade=5)),
        filmed("shown", 10, Outcome("human", success=True)),
        filmed("failed", 12, Outcome("human", success=False, grade=1)),
        filmed("half", 12, Outcome("human", success=False, progress=0.5)),
        filmed("guessed", 12, Outcome("model", success=True, curve=np.linspace(0, 1, 12))),
        filmed("unknown", 12),
        filmed("short", 4, Outcome("human", success=True)),
        filmed("silent", 12, Outcome("human", success=True), words=" "),
        filmed("odd", 12, Outcome("human", success=True, grade=5), words="pick <|image_pad|> up"),
    ]


def test_labels_are_what_somebody_trusted_says_and_nothing_else(tmp_path: Path) -> None:
    recipe = RobometerRecipe(most_frames=8)
    corpus = prepare([Part("lab", listed(some_episodes()))], tmp_path / "corpus", recipe, workers=0)
    rows = {row.id: row for row in corpus.rows}
    assert set(rows) == {"measured", "shown", "failed", "half"}
    assert left_out(tmp_path / "corpus") == {
        "only a model's word": 1,
        "nobody says what happened": 1,
        "fewer than 5 frames": 1,
        "no instruction": 1,
        "an instruction with a special token in it": 1,
    }
    places = np.rint(np.linspace(0, 19, 8)).astype(int)
    assert rows["measured"].progress == pytest.approx(np.linspace(0, 1, 20)[places])
    assert rows["shown"].progress == pytest.approx((np.rint(np.linspace(0, 9, 8)) + 1) / 10)  # t / T
    assert np.isnan(rows["failed"].progress).all()
    assert np.isnan(rows["failed"].final)
    assert np.isnan(rows["half"].progress[:-1]).all()
    assert rows["half"].progress[-1] == rows["half"].final == 0.5
    assert rows["measured"].times == pytest.approx(places / 4)
    assert np.array_equal(corpus.picture(0, 3), np.full((48, 64, 3), 3 * places[3], np.uint8))
    again = Corpus.load(tmp_path / "corpus")
    assert again.identity == corpus.identity
    with pytest.raises(BadInput, match="name another folder"):
        prepare([Part("lab", listed(some_episodes()))], tmp_path / "corpus", RobometerRecipe(), workers=0)


def test_instructions_with_a_special_token_are_not_trained_on(tmp_path: Path) -> None:
    graded = prepare([Part("lab", listed(some_episodes()))], tmp_path / "graded", RoboRewardRecipe(), workers=0)
    assert "odd" not in {row.id for row in graded.rows}
    assert left_out(tmp_path / "graded")["an instruction with a special token in it"] == 1
    old = toy((8,))
    object.__setattr__(old.rows[1], "instruction", "lift <|image_pad|>")
    folder = written(old, tmp_path / "old", RobometerRecipe())
    with pytest.raises(BadInput, match=r"words alone \(prepare it again.*'lift <\|image_pad\|>' in episode 'button-F"):
        Corpus.load(folder)


def test_other_labels_and_words_make_another_corpus(tmp_path: Path) -> None:
    recipe = RobometerRecipe()
    said = Preference("a", "b", "a", "human", why="closer")
    one, other = rollout("a"), rollout("b", Outcome("human", success=True, note="well done"))

    def again(*records: Record) -> Corpus:
        return prepare([Part("lab", listed(records))], tmp_path / "corpus", recipe, workers=0)

    again(one, other, said)
    again(one, rollout("b", Outcome("human", success=True, note="really", by="me")), replace(said, why="nearer"))
    flat = np.full(8, 0.5)
    for changed in (
        (rollout("a", Outcome("human", success=True)), other, said),
        (rollout("a", Outcome("simulator", success=False)), other, said),
        (rollout("a", Outcome("human", success=False, curve=flat)), other, said),
        (rollout("a", words="do that"), other, said),
        (one, other, replace(said, verdict="b")),
        (rollout("c"), other, said),
    ):
        with pytest.raises(BadInput, match="made before labels or words in 'lab' changed"):
            again(*changed[:2], changed[2] if changed[0].id == "a" else replace(said, a="c"))
    with pytest.raises(BadInput, match=r"parts .*not"):
        prepare([Part("field", listed([one, other, said]))], tmp_path / "corpus", recipe, workers=0)
    with pytest.raises(KeyboardInterrupt):
        prepare([Part("lab", listed([one, other], stop_at=1))], tmp_path / "cut", recipe, workers=0)
    with pytest.raises(BadInput, match="made before labels or words in 'lab' changed"):
        prepare([Part("lab", listed([one, rollout("b")]))], tmp_path / "cut", recipe, workers=0)


def test_what_is_trained_on_cannot_be_held_out(tmp_path: Path) -> None:
    def split(*held_out: Episode, name: str = "later") -> Corpus:
        parts = [Part("lab", listed([rollout("a"), rollout("b")]))]
        parts.append(Part(name, listed(held_out), split="validation"))
        return prepare(parts, tmp_path / "corpus", RobometerRecipe(), workers=0)

    with pytest.raises(BadInput, match=r"--held-out: expected episodes that are not trained on.*1 that are \(later: x"):
        split(replace(rollout("b"), id="x"), rollout("c"))  # the same words and pixels
    with pytest.raises(BadInput, match=r"1 that are \(lab: b\)"):
        split(rollout("b", words="do that"), name="lab")
    assert list(tmp_path.iterdir()) == []
    assert len(split(rollout("b", words="do that"), rollout("c")).rows) == 4  # another dataset's b


def test_a_corpus_must_not_contradict_the_recipe(tmp_path: Path) -> None:
    robometer, graded = RobometerRecipe(most_frames=8), RoboRewardRecipe(most_frames=8)
    episodes = [rollout(id, Outcome("human", success=False, grade=2)) for id in "ab"]
    prepare([Part("lab", listed(episodes))], tmp_path / "pairs", robometer, workers=0)
    prepare([Part("lab", listed(episodes))], tmp_path / "grades", graded, workers=0)
    assert len(corpus_for(tmp_path / "pairs", robometer.changed({"rate": 1})).rows) == 2
    assert corpus_for(tmp_path / "grades", graded).rows[0].grade == 2
    for folder, recipe, sentence in (
        ("pairs", RobometerRecipe(), "a corpus with most_frames 64.*got one with most_frames 8"),
        ("pairs", RobometerRecipe(most_frames=8, shorter_side=64), "--set shorter_side="),
        ("grades", RoboRewardRecipe(most_frames=8, fps=2), "with fps 2"),
        ("grades", robometer, "prepared for robometer, got one for roboreward"),
        ("pairs", graded, "prepared for roboreward, got one for robometer"),
    ):
        with pytest.raises(BadInput, match=sentence):
            corpus_for(tmp_path / folder, recipe)
    (tmp_path / "pairs" / "prepared.json").write_text('{"most_fra')
    with pytest.raises(BadInput, match="what a corpus was made from"):
        corpus_for(tmp_path / "pairs", robometer)
    (tmp_path / "pairs" / "prepared.json").unlink()
    with pytest.raises(BadInput, match=r"without prepared\.json"):
        corpus_for(tmp_path / "pairs", robometer)


def test_demonstrations_are_successes_unless_somebody_says_otherwise(tmp_path: Path) -> None:
    part = Part("demos", listed(some_episodes()), shown=True)
    rows = {row.id: row for row in prepare([part], tmp_path / "corpus", RobometerRecipe(), workers=0).rows}
    assert rows["unknown"].success
    assert rows["guessed"].success
    assert not rows["failed"].success


def test_a_corpus_that_was_interrupted_goes_on_and_ends_the_same(tmp_path: Path, monkeypatch: Any) -> None:
    recipe = RobometerRecipe(most_frames=8)
    whole = prepare([Part("lab", listed(some_episodes()))], tmp_path / "whole", recipe, workers=0)
    with pytest.raises(KeyboardInterrupt):
        prepare([Part("lab", listed(some_episodes(), stop_at=3))], tmp_path / "cut", recipe, workers=0)
    partial = tmp_path / "cut.partial"
    with (partial / "pictures.raw").open("ab") as file:  # killed in the middle of an episode
        file.write(b"half an episode")
    with (partial / "episodes.jsonl").open("ab") as file:
        file.write(b'{"id": "ha')
    made = prepare([Part("lab", listed(some_episodes()))], tmp_path / "cut", recipe, workers=0)
    assert made.identity == whole.identity
    assert bytes(made.pictures) == bytes(whole.pictures)


def test_equal_names_in_two_parts_are_two_episodes_also_after_an_interruption(tmp_path: Path) -> None:
    recipe = RobometerRecipe(most_frames=8)

    def parts(stop_at: int | None = None) -> list[Part]:
        second = listed(some_episodes()) if stop_at is None else listed(some_episodes(), stop_at=stop_at)
        return [Part("lab", listed(some_episodes())), Part("lab", second)]

    whole = prepare(parts(), tmp_path / "whole", recipe, workers=0)
    with pytest.raises(KeyboardInterrupt):
        prepare(parts(stop_at=3), tmp_path / "cut", recipe, workers=0)
    made = prepare(parts(), tmp_path / "cut", recipe, workers=0)
    assert [row.id for row in made.rows] == [row.id for row in whole.rows]
    assert made.identity == whole.identity


def rollout(id: str, *outcomes: Outcome, words: str = "do it") -> Episode:
    """Film one; other ids are other pixels."""
    made = filmed(id, 8, *(outcomes or (Outcome("human", success=False),)), words=words, size=(8, 8))
    images = made.main.all() + np.uint8(sum(id.encode()) % 100)
    return replace(made, views={"front": Frames.from_array(images, fps=4.0)})


def compared() -> list[Record]:
    """Episodes 0 to 4 are in the corpus, in this order; what can be learned is b over a, c over b, and a over b."""
    return [
        rollout("a"),
        rollout("b", Outcome("human", success=False, progress=0.5)),
        Preference("a", "b", "b", "human", why="closer", by="somebody"),
        Preference("a", "b", "tie", "human"),
        rollout("unlabelled", Outcome("model", success=True)),
        Preference("unlabelled", "a", "a", "human"),
        Preference("c", "b", "a", "simulator"),  # c comes later
        rollout("c", Outcome("human", success=True)),
        rollout("other", words="do that"),
        Preference("other", "a", "a", "human"),
        Preference("b", "c", "b", "model"),
        Preference("b", "c", "tie", "model"),
        rollout("last", words="Do it!"),
        Preference("a", "b", "a", "rule"),  # another opinion of the first two
    ]


LEARNED = (Choice(1, 0, "human"), Choice(2, 1, "simulator"), Choice(0, 1, "rule"))
UNLEARNED = {
    "only a model's word": 1,
    "preference: a tie": 1,
    "preference: an episode that is not in the corpus": 1,
    "preference: different instructions": 1,
    "preference: only a model's word": 2,
}


@pytest.mark.parametrize("workers", [0, 1])
def test_preferences_are_kept_where_both_episodes_are(tmp_path: Path, workers: int) -> None:
    corpus = prepare([Part("lab", listed(compared()))], tmp_path / "corpus", RobometerRecipe(), workers=workers)
    assert [row.id for row in corpus.rows] == ["a", "b", "c", "other", "last"]
    assert corpus.choices == Corpus.load(tmp_path / "corpus").choices == LEARNED
    assert left_out(tmp_path / "corpus") == UNLEARNED
    assert b"somebody" not in b"".join(path.read_bytes() for path in (tmp_path / "corpus").iterdir())
    graded = [rollout(id, Outcome("human", grade=2)) for id in "ab"]
    ours: list[Record] = [*graded, Preference("a", "b", "a", "human"), Preference("a", "b", "tie", "human")]
    assert not prepare([Part("lab", listed(ours))], tmp_path / "graded", RoboRewardRecipe(), workers=0).choices
    assert left_out(tmp_path / "graded") == {}  # grades compare nothing, so nothing is missing there


def test_preferences_stay_within_a_split_and_a_dataset(tmp_path: Path) -> None:
    said = [
        Preference("a", "b", "a", "human"),
        Preference("a", "x", "a", "human"),
        Preference("y", "x", "b", "human"),
        Preference("a", "z", "b", "human"),
    ]
    parts = [
        Part("lab", listed([rollout("a"), rollout("b"), *said])),
        Part("lab", listed([rollout("x"), rollout("y"), *said[1:3]]), split="validation"),
        Part("elsewhere", listed([rollout("z"), rollout("b")])),
    ]
    corpus = prepare(parts, tmp_path / "corpus", RobometerRecipe(), workers=0)
    assert [row.id for row in corpus.rows] == ["a", "b", "x", "y", "z", "b"]
    assert corpus.choices == (Choice(0, 1, "human"), Choice(2, 3, "human"), Choice(2, 3, "human"))
    assert left_out(tmp_path / "corpus") == {
        "preference: across splits": 2,
        "preference: an episode that is not in the corpus": 1,  # z means something else in another dataset
    }
    assert Drawer(corpus, RobometerRecipe()).chosen == [(0, 1)]
    assert Drawer(corpus, RobometerRecipe(), "validation").chosen == [(2, 3), (2, 3)]
    torn = Corpus(corpus.rows, corpus.pictures, (*corpus.choices, Choice(0, 2, "human")))
    assert Drawer(torn, RobometerRecipe()).chosen == [(0, 1)]
    twice = [Part("lab", listed([rollout("a"), rollout("b"), said[0]])), Part("lab", listed([rollout("b")]))]
    assert not prepare(twice, tmp_path / "twice", RobometerRecipe(), workers=0).choices
    assert left_out(tmp_path / "twice") == {"preference: an id that several episodes have": 1}


def test_preferences_are_part_of_what_a_corpus_is(tmp_path: Path) -> None:
    def identity(name: str, *said: Preference) -> str:
        data = listed([rollout("a"), rollout("b"), *said])
        return prepare([Part("lab", data)], tmp_path / name, RobometerRecipe(), workers=0).identity

    one = Preference("a", "b", "a", "human")
    found = [identity("none"), identity("one", one), identity("two", one, one)]
    found += [identity("turned", replace(one, verdict="b")), identity("measured", replace(one, source="simulator"))]
    assert len(set(found)) == 5
    assert identity("tie", replace(one, verdict="tie")) == found[0]
    assert identity("named", replace(one, a="b", b="a", verdict="b")) == found[1]  # the same choice
    for line in ('{"better": 0, "source": "human", "worse": 2}', '{"better": 1, "source": "human", "worse": 1}'):
        (tmp_path / "one" / "preferences.jsonl").write_text(line)
        with pytest.raises(BadInput, match="two different numbers from 0 to 1"):
            Corpus.load(tmp_path / "one")
    (tmp_path / "one" / "preferences.jsonl").unlink()
    with pytest.raises(BadInput, match=r"without preferences\.jsonl"):  # never trained without them silently
        Corpus.load(tmp_path / "one")


def test_preferences_survive_an_interruption(tmp_path: Path) -> None:
    recipe = RobometerRecipe()
    whole = prepare([Part("lab", listed(compared()))], tmp_path / "whole", recipe, workers=0)
    for stop in (3, 9, 13):
        with pytest.raises(KeyboardInterrupt):
            prepare([Part("lab", listed(compared(), stop_at=stop))], tmp_path / "cut", recipe, workers=0)
    (tmp_path / "cut.partial" / "preferences.jsonl").write_text('{"better": 1, "wo')  # killed while writing them
    made = prepare([Part("lab", listed(compared()))], tmp_path / "cut", recipe, workers=0)
    assert (made.identity, made.choices) == (whole.identity, LEARNED)
    assert left_out(tmp_path / "cut") == UNLEARNED


def test_preferences_survive_a_kill(tmp_path: Path) -> None:
    """Killed when all of them are written and the folder does not have its name yet."""
    script = f"""
import os, signal, sys
sys.path.insert(0, {str(TESTS)!r})
from pathlib import Path
from demerit.training.vlm import prepare
from test_vlm_training import RobometerRecipe, compared, listed
write = prepare.write_choices
def killed(*given):
    write(*given)
    os.kill(os.getpid(), signal.SIGKILL)
prepare.write_choices = killed
part = prepare.Part("lab", listed(compared()))
prepare.prepare([part], Path({str(tmp_path)!r}) / "corpus", RobometerRecipe(), workers=0)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGKILL
    assert not (tmp_path / "corpus").exists()
    assert (tmp_path / "corpus.partial" / "preferences.jsonl").exists()
    made = prepare([Part("lab", listed(compared()))], tmp_path / "corpus", RobometerRecipe(), workers=0)
    assert made.choices == LEARNED
    assert left_out(tmp_path / "corpus") == UNLEARNED


def test_frames_for_grades_are_those_that_scoring_takes() -> None:
    recipe = RoboRewardRecipe(fps=1.0, most_frames=64)
    episode = filmed("long", 46)
    assert np.array_equal(shown(episode, recipe), ByTime(1.0, 64).by_time(episode.main.times()))
    assert shown(episode, recipe)[-1] == 45


def test_pictures_shrink_to_the_shorter_side_and_never_grow() -> None:
    large = np.zeros((2, 480, 640, 3), np.uint8)
    assert shrunk(large, 240).shape == (2, 240, 320, 3)
    assert shrunk(large[:, :100], 240).shape == (2, 100, 640, 3)
    assert preparing.every(3).tolist() == [0, 1, 2]


# --- pairs --------------------------------------------------------------------------------------------------------


def by_strategy(corpus: Corpus, count: int = 400, **changes: Any) -> dict[str, list[Sample]]:
    drawer = Drawer(corpus, RobometerRecipe().changed(changes))
    rng = np.random.default_rng(0)
    found: dict[str, list[Sample]] = {}
    for _ in range(count):
        sample = drawer.draw(rng)
        found.setdefault(sample.strategy, []).append(sample)
    return found


def test_pairs_are_what_the_paper_says() -> None:
    corpus = toy()
    found = by_strategy(corpus)
    assert {name: len(some) > 60 for name, some in found.items()} == dict.fromkeys(found, True)
    for sample in found["expertise"]:
        good, bad = (sample.first, sample.second) if sample.first_is_better else (sample.second, sample.first)
        assert corpus.rows[good.row].success
        assert not corpus.rows[bad.row].success
        assert corpus.rows[good.row].instruction == corpus.rows[bad.row].instruction == sample.instruction
        assert good.frames[-1] == corpus.rows[good.row].frames - 1  # outcomes are compared at the end
    for sample in found["instruction"]:
        good, bad = (sample.first, sample.second) if sample.first_is_better else (sample.second, sample.first)
        assert corpus.rows[good.row].instruction == sample.instruction != corpus.rows[bad.row].instruction
        assert not bad.progress.any()
        assert not bad.success.any()
        assert np.all(np.diff(good.frames) >= 0)
    for name in ("rewind", "reverse"):
        for sample in found[name]:
            good, bad = (sample.first, sample.second) if sample.first_is_better else (sample.second, sample.first)
            assert good.row == bad.row
            assert np.all(np.diff(good.progress) >= 0)
            assert bad.progress[-1] < good.progress[-1]  # decreasing, by the frames that are shown
            assert np.array_equal(bad.progress, corpus.rows[bad.row].progress[bad.frames])
    for some in found.values():
        share = np.mean([sample.first_is_better for sample in some])
        assert 0.3 < share < 0.7  # a coin decides who is A
        assert all(len(side.frames) == 8 for sample in some for side in (sample.first, sample.second))
    turned = [np.argmax(sample.second.frames) for sample in found["rewind"] if sample.first_is_better]
    assert len(set(map(int, turned))) > 2  # the turn is anywhere


def test_people_are_believed_whatever_the_outcomes(tmp_path: Path) -> None:
    """Which pairs come, and their labels, from the list above: rows are a, b, c."""
    corpus = prepare([Part("lab", listed(compared()))], tmp_path / "corpus", RobometerRecipe(), workers=0)
    samples = by_strategy(corpus, 600)["people"]
    better = [(one.first, one.second) if one.first_is_better else (one.second, one.first) for one in samples]
    counts = {pair: sum((good.row, bad.row) == pair for good, bad in better) for pair in ((1, 0), (2, 1), (0, 1))}
    assert sum(counts.values()) == len(samples)
    assert min(counts.values()) > 0.2 * len(samples)
    assert 0.4 < np.mean([one.first_is_better for one in samples]) < 0.6
    even = (np.arange(8) + 1) / 8
    for one in samples:
        assert (one.instruction, one.strategy) == ("do it", "people")
        for side in (one.first, one.second):
            assert (len(side.frames), side.frames[-1]) == (8, 7)  # to the true end
            if side.row == 2:  # c is a success: t / T, and done at the end
                assert side.progress == pytest.approx(even[side.frames])
                assert side.success[-1] == 1
            else:  # a and b are failures: how far is unknown but for what was said of b's end
                ends = side.frames == 7
                assert np.isnan(side.progress[~ends]).all()
                assert (side.progress[ends] == 0.5).all() if side.row == 1 else np.isnan(side.progress[ends]).all()
                assert not side.success.any()
    assert {int(one.first.frames[0]) for one in samples} == {0, 1, 2, 3, 4}  # where they begin is free


def drawn_from(corpus: Corpus, recipe: RobometerRecipe, count: int = 300) -> list[tuple[Any, ...]]:
    drawer, rng = Drawer(corpus, recipe), np.random.default_rng(5)
    samples = [drawer.draw(rng) for _ in range(count)]
    return [
        (one.strategy, one.first_is_better, one.first.row, one.first.frames.tolist(), one.second.frames.tolist())
        for one in samples
    ]


def test_without_preferences_the_same_pairs_come_as_if_nobody_had_been_asked() -> None:
    corpus = toy()
    alone = RobometerRecipe(strategies=dict.fromkeys(("expertise", "instruction", "rewind", "reverse"), 1.0))
    assert drawn_from(corpus, RobometerRecipe()) == drawn_from(corpus, alone)
    chosen = Corpus(corpus.rows, corpus.pictures, (Choice(3, 0, "human"),))
    assert drawn_from(chosen, alone) == drawn_from(corpus, alone)
    found = drawn_from(chosen, RobometerRecipe())
    assert found == drawn_from(chosen, RobometerRecipe())
    assert 0.1 < np.mean([one[0] == "people" for one in found]) < 0.3  # one kind of five
    failures = [at for at, row in enumerate(corpus.rows) if not row.success][:2]
    alike = Corpus(tuple(corpus.rows[at] for at in failures), corpus.pictures, (Choice(1, 0, "human"),))
    assert {one[0] for one in drawn_from(alike, RobometerRecipe())} == {"people"}  # nothing else compares failures


def test_starts_and_ends_are_drawn() -> None:
    found = by_strategy(toy((30,)))
    sides = [sample.first for sample in found["instruction"]]
    assert len({int(side.frames[0]) for side in sides}) > 10
    assert len({int(side.frames[-1]) for side in sides}) > 10


def test_unknown_progress_is_masked_and_unlabelled_failures_still_compare() -> None:
    corpus = toy(measured=False)
    for sample in by_strategy(corpus)["expertise"]:
        known = ~np.isnan(sample.first.progress)
        assert known.all() if corpus.rows[sample.first.row].success else not known.any()
        assert not np.isnan(sample.first.success).all()


def test_success_is_known_where_somebody_looked() -> None:
    shown_row = toy(measured=False).rows[0]
    labels = success_of(shown_row, 0.5)
    assert labels[-1] == 1
    assert not labels[shown_row.progress < 0.5].any()
    assert np.isnan(labels[(shown_row.progress >= 0.5)][:-1]).all()
    failed = toy(measured=False).rows[3]
    assert not success_of(failed, 0.5).any()
    measured = replace(toy().rows[0], progress=np.array([0, 0.5, 1, 1, 1], np.float32))
    assert success_of(measured, 0.5).tolist() == [0, 0, 1, 1, 1]
    assert np.isnan(success_of(replace(measured, success=None), 0.5)).all()


def test_a_plateau_is_not_a_failure_when_it_is_rewound() -> None:
    flat = np.concatenate([np.linspace(0, 1, 4), np.ones(20)]).astype(np.float32)
    row = toy().rows[0]
    corpus = Corpus.of([replace(row, progress=flat, height=8, width=8)], [np.zeros((24, 8, 8, 3), np.uint8)])
    for sample in by_strategy(corpus, strategies={"rewind": 1, "reverse": 1})["rewind"]:
        good, bad = (sample.first, sample.second) if sample.first_is_better else (sample.second, sample.first)
        assert bad.progress[-1] < good.progress[-1]


def test_outcomes_that_hardly_differ_are_not_compared() -> None:
    row = replace(toy().rows[0], success=None)
    better = [is_better(replace(row, final=a), replace(row, final=b), 0.2) for a, b in ((0.5, 0.25), (0.5, 0.4))]
    assert better == [True, False]
    assert not is_better(replace(row, final=np.nan), replace(row, final=0.0), 0.2)
    assert is_better(replace(row, success=True), replace(row, success=False, final=np.nan), 0.2)


def test_a_corpus_without_any_pair_is_refused() -> None:
    corpus = toy()
    failures = Corpus(tuple(row for row in corpus.rows if not row.success), corpus.pictures)
    with pytest.raises(BadInput, match="pairs with different outcomes"):
        Drawer(failures, RobometerRecipe())
    with pytest.raises(BadInput, match="a grade from 1 to 5"):
        rows = tuple(replace(row, grade=None) for row in corpus.rows)
        GradesObjective(Corpus(rows, corpus.pictures), RoboRewardRecipe(), ANY, ANY)


# --- losses, by hand ----------------------------------------------------------------------------------------------


def by_hand(said: dict[str, np.ndarray], targets: dict[str, np.ndarray], recipe: RobometerRecipe) -> dict[str, float]:
    """Compute the losses with plain loops."""
    sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    preferred = zip(said["preference"], targets["preference"], strict=True)
    pairs = [-np.log(sigmoid(x) if y else 1 - sigmoid(x)) for x, y in preferred]
    frames = []
    for logits, target in zip(said["progress"], targets["progress"], strict=True):
        if np.isnan(target):
            continue
        likely = np.exp(logits) / np.exp(logits).sum()
        centres = np.linspace(0, 1, len(logits))
        nearness = np.maximum(0, 1 - np.abs(centres - target) * (len(logits) - 1))
        frames.append(-(nearness * np.log(likely)).sum())
    judged = list(zip(said["success"], targets["success"], strict=True))
    done = [-np.log(sigmoid(x)) for x, y in judged if y == 1]
    not_done = [-np.log(1 - sigmoid(x)) for x, y in judged if y == 0]
    classes = [np.mean(one) for one in (done, not_done) if one]
    return {
        "preference": recipe.preference * np.mean(pairs),
        "progress": recipe.progress * (np.mean(frames) if frames else 0.0),
        "success": recipe.success * (np.mean(classes) if classes else 0.0),
    }


def drawn(seed: int, pairs: int = 6, frames: int = 4, bins: int = 10) -> tuple[dict[str, Any], list[Example]]:
    rng = np.random.default_rng(seed)
    said = {
        "preference": rng.normal(size=pairs),
        "progress": rng.normal(size=(pairs * frames, bins)),
        "success": rng.normal(size=pairs * frames),
    }
    none = np.empty(0, np.int64)
    examples = []
    for _ in range(pairs):
        progress = rng.random(frames).astype(np.float32)
        progress[rng.random(frames) < 0.3] = np.nan
        success = rng.choice([0, 0, 0, 1, np.nan], frames).astype(np.float32)
        better = np.array([rng.integers(2)], np.float32)
        targets = {"preference": better, "progress": progress, "success": success}
        examples.append(Example(none, none, none.astype(bool), (), none, targets))
    return said, examples


def joined(examples: list[Example]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([one.targets[name] for one in examples]) for name in examples[0].targets}


def tensors(arrays: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.asarray(one)).double() for name, one in arrays.items()}


@pytest.mark.parametrize("seed", range(5))
def test_the_losses_are_those_that_were_computed_by_hand(seed: int) -> None:
    recipe = RobometerRecipe(preference=0.7, progress=2.0, success=0.3)
    said, examples = drawn(seed)
    found = losses(tensors(said), tensors(joined(examples)), Totals.of(examples), recipe)
    for name, value in by_hand(said, joined(examples), recipe).items():
        assert float(found[name]) == pytest.approx(value, rel=1e-5), name


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_losses_do_not_depend_on_how_an_update_is_cut(cut: int) -> None:
    """Parts and machines add their shares: classes are balanced over the update, not within a part."""
    recipe = RobometerRecipe()
    said, examples = drawn(3)
    totals = Totals.of(examples)
    whole = losses(tensors(said), tensors(joined(examples)), totals, recipe)
    sums = dict.fromkeys(whole, 0.0)
    for start in range(0, 6, cut):
        some = slice(start, start + cut)
        frames = slice(start * 4, (start + cut) * 4)
        part = {"preference": said["preference"][some]}
        part |= {name: said[name][frames] for name in ("progress", "success")}
        shares = losses(tensors(part), tensors(joined(examples[some])), totals, recipe)
        sums = {name: sums[name] + float(one) for name, one in shares.items()}
    assert sums == pytest.approx({name: float(one) for name, one in whole.items()}, rel=1e-6)


def test_the_progress_weight_and_the_balance_of_classes_count() -> None:
    """In a public trainer both cancel: classes are weighted and divided by the weight, masked frames counted twice."""
    logits = torch.tensor([2.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0])  # one done, seven not
    targets = torch.tensor([1.0, 0, 0, 0, 0, 0, 0, 0])
    totals = Totals(1, 8, 1, 7)
    each = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    plain = float(each.mean())
    ours = float(balanced(logits, targets, totals))
    weights = torch.where(targets == 1, 7.0, 1.0)
    cancelled = float((each * weights / weights).mean())  # what weighting and dividing again comes to
    assert cancelled == pytest.approx(plain)
    assert ours == pytest.approx(float(0.5 * each[0] + 0.5 * each[1:].mean()))
    assert abs(ours - plain) > 0.05
    # the rare class has as much of the gradient as the frequent one
    free = torch.zeros(8, requires_grad=True)
    balanced(free, targets, totals).backward()
    assert free.grad is not None
    assert float(free.grad[0]) == pytest.approx(-float(free.grad[1:].sum()))
    # doubling the weight of progress doubles its loss, and the number of frames does not divide it twice
    said, examples = drawn(1)
    for weight in (1.0, 2.0):
        found = losses(tensors(said), tensors(joined(examples)), Totals.of(examples), RobometerRecipe(progress=weight))
        assert float(found["progress"]) == pytest.approx(
            by_hand(said, joined(examples), RobometerRecipe())["progress"] * weight
        )


@settings(max_examples=50)
@given(st.floats(0, 1), st.integers(2, 20))
def test_two_hot_shares_keep_the_target(target: float, bins: int) -> None:
    shares = two_hot(torch.tensor([target], dtype=torch.float64), bins)[0]
    assert float(shares.sum()) == pytest.approx(1)
    assert int((shares > 1e-9).sum()) <= 2
    assert float(shares @ torch.linspace(0, 1, bins, dtype=torch.float64)) == pytest.approx(target)


def test_nothing_known_is_no_loss_and_no_gradient() -> None:
    logits = torch.randn(3, 10, requires_grad=True)
    unknown = torch.full((3,), float("nan"))
    total = binned(logits, unknown).sum() + balanced(logits[:, 0], unknown, Totals(1, 0, 0, 0))
    total.backward()
    assert float(total.detach()) == 0
    assert logits.grad is not None
    assert not logits.grad.any()
    one = balanced(torch.zeros(2), torch.tensor([1.0, float("nan")]), Totals(1, 0, 1, 0))
    assert float(one) == pytest.approx(np.log(2))  # one class alone is its own mean


# --- questions and pictures ---------------------------------------------------------------------------------------


def eyes_of(corpus: Corpus, recipe: Recipe, kept: Kept | None = None, *, merged: bool = True) -> Eyes:
    start = tiny_start(robometer=isinstance(recipe, RobometerRecipe))
    weights = {name.removeprefix("visual."): one for name, one in start.weights.items() if name.startswith("visual.")}
    tower = Tower(start.shape.vision, weights, merged=merged, compiled=False)
    return Eyes(tower, corpus, kept, torch.device("cpu"))


def answers_of(learner: Learner, eyes: Eyes | None, examples: list[Example], corpus: Corpus) -> dict[str, torch.Tensor]:
    from demerit.training.vlm.features import pixels_of

    shots = [shot for one in examples for shot in one.shots]
    if eyes is None:
        seen = [torch.from_numpy(pixels_of(corpus, shot)) for shot in shots]
    else:
        seen = eyes.look(shots, eyes.prepared(shots))
    with torch.no_grad():
        answers: dict[str, torch.Tensor] = learner.eval()(Batch.of(examples, torch.device("cpu")), seen)
    return answers


@pytest.mark.parametrize("change", [{}, {"train_vision": True}, {"train_fusion": True}, {"lora": 4}])
def test_training_asks_and_answers_as_scoring_does(change: dict[str, Any]) -> None:
    """Another path through other code: the engine's preference, and the library's own states of the whole prompt."""
    corpus = toy((8, 9))
    recipe = RobometerRecipe(frames=4, precision="float32").changed(change)
    start = tiny_start()
    objective = PairsObjective(corpus, recipe, start.tokens, start.shape)
    rng = np.random.default_rng(0)
    samples = [objective.drawer.draw(rng) for _ in range(3)]
    examples = [objective.example(sample) for sample in samples]
    eyes = None if recipe.train_vision else eyes_of(corpus, recipe, merged=not recipe.train_fusion)
    answers = answers_of(Learner(start, recipe), eyes, examples, corpus)

    heads = {name: one for name, one in tiny_start().weights.items() if name in head_shapes()}
    backbone = {name: one for name, one in tiny_start().weights.items() if name not in heads}
    tokens: Any = WordTokens()
    engine = RobometerEngine(Network(start.shape, backbone), heads, tokens, Protocol(frames=4))
    reference = RobometerReference(
        start.shape, transformers_network(start.config, backbone), heads, tokens, Protocol(frames=4)
    )
    for at, sample in enumerate(samples):
        clips = [
            np.stack([corpus.picture(side.row, int(frame)) for frame in side.frames])
            for side in (sample.first, sample.second)
        ]
        said = float(answers["preference"][at].sigmoid())
        assert said == pytest.approx(engine.compare(*clips, sample.instruction), abs=1e-5)
        assert said == pytest.approx(reference.compare(*clips, sample.instruction), abs=1e-5)
        places = [[Picture(number, 2, 2) for number in range(4)] for _ in clips]
        pieces = Protocol(frames=4).preference_pieces(sample.instruction, *places)
        with torch.no_grad():
            ids, states = reference._forward([pieces], [clips])
        read = states[0, (ids[0] == tokens.id("<|prog_token|>")).nonzero()[:4, 0]]  # of the first trajectory alone
        for name, shape in (("progress", (4, 10)), ("success", (4, 1))):
            found = answers[name].reshape(3, *shape)[at]
            assert torch.allclose(found, Head.named(name, heads)(read), atol=1e-5), name


def test_the_targets_stand_at_the_tokens_that_are_read() -> None:
    corpus, start = toy((8, 9)), tiny_start()
    objective = PairsObjective(corpus, RobometerRecipe(frames=4), start.tokens, start.shape)
    example = objective.draw(0)[0]
    tokens = WordTokens()
    assert [int(one) for one in example.ids[example.wanted]] == [tokens.id("<|prog_token|>")] * 4 + [
        tokens.id("<|pref_token|>")
    ]
    assert int(example.seen.sum()) == 8 * 4
    assert len(example.shots) == 8
    assert {int(one) for one in example.ids[example.seen]} == {start.shape.image_token}
    again = objective.draw(0)[0]
    assert np.array_equal(example.ids, again.ids)
    assert example.shots == again.shots
    assert any(one.shots != example.shots for one in objective.draw(1))


def test_graded_episodes_come_once_an_epoch_and_end_in_their_grade() -> None:
    corpus, start = toy(), tiny_start(robometer=False)
    objective = GradesObjective(corpus, RoboRewardRecipe(batch=4), start.tokens, start.shape)
    assert objective.updates == 9  # three epochs of twelve in fours
    for epoch in range(2):
        rows = [one.shots[0].row for step in range(3) for one in objective.draw(3 * epoch + step)]
        assert sorted(rows) == list(range(12))
    first, second = ([one.shots[0].row for step in range(3) for one in objective.draw(3 * e + step)] for e in (0, 1))
    assert first != second
    example = objective.example(0)
    assert example.targets["words"].tolist() == [*example.ids[example.wanted[0] + 1 :].tolist()]
    assert example.targets["words"][-1] == start.tokens.id("<|im_end|>")
    assert example.targets["words"][-2] == objective.digits[4]
    assert grade_in("ANSWER: 5") == example.targets["grade"][0]
    logits = torch.zeros(len(example.wanted), 351)
    logits[-2, objective.digits[2]] = 5.0
    targets = {name: torch.from_numpy(one) for name, one in example.targets.items()}
    assert objective.error({"words": logits}, targets).tolist() == [2.0]  # it says 3 of 5
    loss = objective.losses({"words": logits}, targets, objective.totals([example]))["answer"]
    each = -torch.log_softmax(logits.double(), -1)[range(len(example.wanted)), targets["words"]]
    assert float(loss) == pytest.approx(float(each.mean()), rel=1e-5)


# --- the frozen tower ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("merged", [True, False])
@pytest.mark.parametrize("where", ["memory", "disk"])
def test_kept_features_are_the_same_to_the_bit(tmp_path: Path, where: str, merged: bool) -> None:
    corpus, start = toy((8, 9)), tiny_start()
    objective = PairsObjective(corpus, RobometerRecipe(frames=4), start.tokens, start.shape)
    shots = [shot for one in objective.draw(0)[:2] for shot in one.shots]
    fresh = eyes_of(corpus, RobometerRecipe(), merged=merged)
    folder = tmp_path if where == "disk" else None
    keeping = eyes_of(corpus, RobometerRecipe(), Kept(1e9, folder), merged=merged)
    expected = fresh.look(shots, fresh.prepared(shots))
    for _ in range(2):
        found = keeping.look(shots, keeping.prepared(shots))
        assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
    assert not keeping.prepared(shots)  # nothing is left to encode
    assert len(fresh.prepared(shots)) == len(set(shots))
    if where == "disk":
        with (tmp_path / "rank-0.raw").open("ab") as file:  # killed while writing
            file.write(b"half")
        with (tmp_path / "rank-0.jsonl").open("ab") as file:
            file.write(b'["ab')
        later = eyes_of(corpus, RobometerRecipe(), Kept(1e9, tmp_path), merged=merged)
        assert not later.prepared(shots)
        assert all(torch.equal(a, b) for a, b in zip(expected, later.look(shots, {}), strict=True))


def test_features_are_kept_for_their_pixels_and_weights_and_only_while_there_is_room() -> None:
    corpus = toy((8, 9))
    kept = Kept(1e9)
    eyes = eyes_of(corpus, RobometerRecipe(), kept)
    start = tiny_start()
    objective = PairsObjective(corpus, RobometerRecipe(frames=4), start.tokens, start.shape)
    shot = objective.draw(0)[0].shots[0]
    other_weights = eyes_of(corpus, RobometerRecipe(), kept)
    other_weights._weights = "others"
    assert eyes.key(shot) != other_weights.key(shot)
    assert eyes.key(shot) != eyes.key(replace(shot, width=96))
    assert eyes.key(shot) == eyes_of(toy((8, 9)), RobometerRecipe()).key(shot)
    full = Kept(10.0)
    full.put("a", torch.zeros(100))
    assert "a" not in full
    with pytest.raises(KeyError, match="neither prepared nor kept"):
        eyes.look([shot], {})


# --- what learns --------------------------------------------------------------------------------------------------


def learning(**changes: Any) -> set[str]:
    recipe = RobometerRecipe(precision="bfloat16").changed(changes)
    return {name for name, _ in Learner(tiny_start(), recipe).learning()}


def test_what_is_frozen_stays_frozen() -> None:
    everything = learning()
    assert not any(name.startswith("visual.") for name in everything)
    assert "language_model.layers.0.self_attn.q_proj.weight" in everything
    assert any(name.startswith("visual.blocks") for name in learning(train_vision=True))
    fusion = {name for name in learning(train_fusion=True) if name.startswith("visual.")}
    assert fusion
    assert all("merger" in name for name in fusion)
    adapters = learning(lora=4)
    assert {name for name in adapters if "lora_" not in name} == {name for name in everything if "_head" in name}
    assert len([name for name in adapters if "lora_" in name]) == 2 * 2 * 7


def test_norms_and_biases_do_not_decay_and_the_tower_has_its_own_rate() -> None:
    recipe = RobometerRecipe(train_vision=True)
    learner = Learner(tiny_start(), recipe)
    names = {id(one): name for name, one in learner.named_parameters()}
    for group in groups_of(learner, recipe):
        for one in group["params"]:
            assert group["weight_decay"] == (recipe.decay if one.ndim > 1 else 0.0), names[id(one)]
            assert group["lr"] == (recipe.vision_rate if names[id(one)].startswith("visual.") else recipe.rate)


def test_rows_survive_their_file() -> None:
    for row in toy(measured=False).rows:
        again = Row.of(json.loads(json.dumps(row.facts())))
        assert np.array_equal(again.progress, row.progress, equal_nan=True)
        assert (again.id, again.final == row.final or np.isnan(row.final)) == (row.id, True)


def test_a_corpus_of_the_wrong_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="a folder without"):
        Corpus.load(tmp_path)
    (tmp_path / "pictures.raw").write_bytes(b"12")
    (tmp_path / "episodes.jsonl").write_text(json.dumps(toy((8,)).rows[0].facts()) + "\n")
    (tmp_path / "preferences.jsonl").touch()
    with pytest.raises(BadInput, match="as many pictures"):
        Corpus.load(tmp_path)
    (tmp_path / "pictures.raw").write_bytes(b"")
    with pytest.raises(BadInput, match="0 bytes of pictures"):
        Corpus.load(tmp_path)
    whole = json.dumps(toy((8,)).rows[0].facts()) + "\n"
    for text in (whole + whole[:-50], whole + "[]\n", whole + '{"id": "a"}\n'):
        (tmp_path / "episodes.jsonl").write_text(text)
        with pytest.raises(BadInput, match=r"episodes\.jsonl: .*something else in line 2"):
            Corpus.load(tmp_path)
    facts = toy((8,)).rows[0].facts()
    for change in (
        {"instruction": 3},
        {"group": None},
        {"height": "64"},
        {"width": 64.5},
        {"start": -1},
        {"success": "yes"},
        {"measured": None},
        {"grade": 9},
        {"final": "1"},
        {"times": [0.0]},
        {"times": [], "progress": []},
        {"progress": [["a"]]},
        {"progress": 7},
    ):
        (tmp_path / "episodes.jsonl").write_text(json.dumps({**facts, **change}) + "\n")
        with pytest.raises(BadInput, match=r"episodes\.jsonl: .*something else in line 1"):
            Corpus.load(tmp_path)
    (tmp_path / "episodes.jsonl").write_text(whole + json.dumps({**facts, "start": 5}) + "\n")
    with pytest.raises(BadInput, match=r"episodes\.jsonl: expected pictures of one episode behind another's"):
        Corpus.load(tmp_path)
    (tmp_path / "episodes.jsonl").write_text(whole)
    (tmp_path / "pictures.raw").write_bytes(bytes(toy((8,)).rows[0].end))
    for odd in ('{"better": "0", "worse": 1, "source": "human"}', '{"better": 0, "worse": null, "source": "human"}'):
        (tmp_path / "preferences.jsonl").write_text(odd + "\n")
        with pytest.raises(BadInput, match=r"preferences\.jsonl: .*something else in line 1"):
            Corpus.load(tmp_path)
    (tmp_path / "preferences.jsonl").write_text('{"better": 1, "wor')
    with pytest.raises(BadInput, match=r"preferences\.jsonl: .*something else in line 1"):
        Corpus.load(tmp_path)
    assert isinstance(listed([]), Dataset)
