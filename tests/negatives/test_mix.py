"""Mixes: shares, balanced grades, limits, and independence of order."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demerit.data.episode import Episode, Origin, Outcome
from demerit.data.frames import Frames
from demerit.errors import BadInput, UnknownName
from demerit.negatives import NEGATIVES
from demerit.negatives.mix import DEFAULT_MIX, Mix, Pool, choose_originals, level_out
from demerit.negatives.negative import is_success

SUCCESS = (Outcome("human", success=True),)


def some(count: int, frames: int = 40, sets: int = 1) -> list[Episode]:
    """Successes of twenty tasks in four scenes and two splits."""
    things, places = ("cup", "plate", "spoon", "sponge", "pen"), ("shelf", "drawer", "box", "sink")
    views = {"main": Frames.from_array(np.zeros((frames, 1, 1, 3), np.uint8))}

    def episode(i: int) -> Episode:
        origin = Origin(f"set{i % sets}", split=("train", "test")[i % 3 == 0], group=f"scene{i % 4}")
        return Episode(f"e{i}", f"put the {things[i % 5]} in the {places[i % 4]}", views, SUCCESS, origin)

    return [episode(i) for i in range(count)]


def chosen_by(mix: Mix, episodes: list[Episode]) -> list[Episode]:
    successes = {episode.id: episode.origin.dataset for episode in episodes if is_success(episode)}
    chosen = choose_originals(successes, mix.seed, mix.per_dataset)
    return [episode for episode in episodes if episode.id in chosen]


def made_by(mix: Mix, episodes: list[Episode]) -> tuple[list[Episode], list[tuple[str, str]]]:
    pool = Pool.of(episodes, mix.needs_partners)
    found = [made for episode in episodes for made in mix.make(episode, pool)]
    return [m for m in found if isinstance(m, Episode)], [m for m in found if not isinstance(m, Episode)]


def test_the_default_mix_has_balanced_grades() -> None:
    episodes = some(400)
    mix = Mix.parse(DEFAULT_MIX)
    made, skipped = made_by(mix, episodes)
    grades = Counter(episode.outcomes[0].grade for episode in made)
    grades[5] += len(episodes)  # the originals
    share = {grade: count / sum(grades.values()) for grade, count in grades.items()}
    assert sorted(share) == [1, 2, 3, 4, 5]
    assert all(abs(part - 0.2) < 0.01 for part in share.values()), share
    names = Counter(episode.edits[0].name for episode in made)
    assert sum(mix.shares.values()) == 40
    for name, wanted in mix.shares.items():
        assert abs(names[name] / len(made) - wanted / 40) < 0.01
    assert not skipped


@pytest.mark.parametrize(
    "text", ["clip=3,reverse=1", "clip,rewind,wrong-instruction", "freeze=1", "rewind=1,wrong-instruction=0.1"]
)
def test_grades_are_balanced_where_possible(text: str) -> None:
    made, _ = made_by(Mix.parse(text, per_episode=4), some(300))
    grades = Counter(episode.outcomes[0].grade for episode in made)
    assert sorted(grades) == [1, 2, 3, 4]
    expected = 1 / 3 if text == "clip,rewind,wrong-instruction" else 0.25
    assert abs(grades[1] / len(made) - expected) < 0.02


@given(st.dictionaries(st.sampled_from([1, 2, 3, 4]), st.floats(0, 1), min_size=4), st.floats(0, 1))
def test_level_out_distributes_everything(there: dict[int, float], more: float) -> None:
    got = level_out(there, more)
    assert sum(got.values()) == pytest.approx(more)
    assert min(got.values()) >= 0
    level = {grade: there[grade] + got[grade] for grade in there}
    raised = [level[grade] for grade in there if got[grade] > 1e-9]
    assert all(value == pytest.approx(min(level.values())) for value in raised)  # only the lowest were raised


@settings(max_examples=15)
@given(st.randoms(use_true_random=False), st.integers(0, 1000))
def test_the_order_of_episodes_does_not_matter(shuffler: object, seed: int) -> None:
    episodes = some(24)
    mix = Mix.parse("clip=2,rewind,freeze,wrong-instruction=2,splice", seed=seed, per_episode=5, per_dataset=9)
    shuffled = list(episodes)
    shuffler.shuffle(shuffled)  # type: ignore[attr-defined]

    def outcome_of(order: list[Episode]) -> dict[str, tuple[object, ...]]:
        made, skipped = made_by(mix, chosen_by(mix, order))
        facts = {m.id: (m.instruction, m.outcomes[0].grade, dict(m.edits[0].params), m.edits[0].seed) for m in made}
        return {**facts, "skipped": tuple(sorted(skipped))}

    assert outcome_of(episodes) == outcome_of(shuffled)


@settings(max_examples=20)
@given(st.integers(0, 1000))
def test_nothing_leaks_across_splits(seed: int) -> None:
    episodes = some(30)
    of_id = {episode.id: episode for episode in episodes}
    words = {split: {e.instruction for e in episodes if e.origin.split == split} for split in ("train", "test")}
    made, _ = made_by(Mix.parse("wrong-instruction=2,splice,clip", seed=seed, per_episode=4), episodes)
    for episode in made:
        parent = of_id[episode.origin.parent]
        assert (episode.origin.split, episode.origin.group) == (parent.origin.split, parent.origin.group)
        assert episode.instruction in words[parent.origin.split]
        partner = episode.edits[0].params.get("partner")
        assert partner is None or of_id[partner].origin.split == parent.origin.split


def test_limits() -> None:
    episodes = some(60, sets=2)
    mix = Mix.parse("clip,rewind", per_episode=3, per_dataset=7)
    failed = replace(episodes[0], id="failed", outcomes=(Outcome("human", success=False),))
    chosen = chosen_by(mix, [*episodes, failed])
    assert Counter(episode.origin.dataset for episode in chosen) == {"set0": 7, "set1": 7}
    assert failed not in chosen
    made, _ = made_by(mix, chosen)
    assert set(Counter(episode.origin.parent for episode in made).values()) == {3}
    assert chosen_by(replace(mix, seed=1), episodes) != chosen
    assert len(chosen_by(replace(mix, per_dataset=0), episodes)) == 60


def test_repeats_and_skipped_negatives() -> None:
    made, skipped = made_by(Mix.parse("reverse", per_episode=3), some(1))
    assert len(made) == 1
    assert [name for name, _ in skipped] == ["reverse"] * 2
    made, skipped = made_by(Mix.parse("clip,jump", per_episode=4), some(1, frames=1))
    assert not made
    assert {(name, reason[-8:]) for name, reason in skipped} == {("clip", "2 frames"), ("jump", "4 frames")}


def test_parse_and_str() -> None:
    mix = Mix.parse(" clip = 4, rewind=0.5,undo ")
    assert str(mix) == "clip=4,rewind=0.5,undo=1"
    assert Mix.parse(str(mix)) == mix
    with pytest.raises(UnknownName) as refused:
        Mix.parse("rewin=2")
    assert refused.value.known == sorted([*NEGATIVES, "variants"])


@pytest.mark.parametrize(
    ("text", "limits", "word"),
    [
        *[("", {}, "empty"), (" , ", {}, "empty"), ("clip=two", {}, "'two'"), ("clip=0", {}, "got 0")],
        *[("clip=nan", {}, "nan"), ("clip=1,clip=2", {}, "twice"), ("=3", {}, "''")],
        *[("clip", {"per_episode": 0}, "got 0"), ("clip", {"per_dataset": -1}, "got -1")],
    ],
)
def test_bad_mixes(text: str, limits: dict[str, int], word: str) -> None:
    with pytest.raises((BadInput, UnknownName), match=word):
        Mix.parse(text, **limits)
