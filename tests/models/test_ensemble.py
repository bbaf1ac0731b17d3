"""Ensembles: the mean of all members; unscored where a member is unscored."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demerit.data.episode import Episode
from demerit.data.reward import Reward
from demerit.errors import BadInput, BadReward
from demerit.models import load_model
from demerit.models.check import check_model
from demerit.models.ensemble import Ensemble
from demerit.models.protocol import LiveEpisode, LiveFrame, LiveReward, ModelCard, Online, example_card

EPISODE = Episode.from_array(np.zeros((6, 4, 4, 3), np.uint8), "push it", id="one")
EVERY = tuple(range(6))


class FixedModel:
    """A model with fixed answers."""

    def __init__(
        self,
        name: str,
        value: Sequence[float] = (),
        at: Sequence[int] = EVERY,
        why: str = "",
        success: Sequence[float] | None = None,
        **card: Any,
    ) -> None:
        self.card: ModelCard = example_card(name=name, **card)
        self.answer = (np.array(at), np.array(value, np.float32), success, why)

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        at, value, success, why = self.answer
        if not len(value):
            return [Reward.unscored(self.card.name, one.id, why) for one in episodes]
        given = None if success is None else np.array(success)
        return [Reward(self.card.name, one.id, at, value, given, why) for one in episodes]


class FixedOnlineModel(FixedModel):
    """Also scores live: the mean brightness, plus an offset."""

    sure = False

    def start(self, instruction: str) -> LiveEpisode:
        return Brightness(float(len(instruction)) / 100, self.sure)


class SureOnlineModel(FixedOnlineModel):
    """Also gives success and familiarity live: half of its value, and a tenth."""

    sure = True


class Brightness(NamedTuple):
    """A live episode."""

    offset: float
    sure: bool

    def step(self, frame: LiveFrame) -> LiveReward:
        assert isinstance(frame, np.ndarray)
        value = float(frame.mean() / 255) * 0.5 + self.offset
        return LiveReward(value, value / 2, value / 10) if self.sure else LiveReward(value)


def score_one(*members: FixedModel) -> Reward:
    model = Ensemble(members)
    (reward,) = model.score([EPISODE])
    model.card.check(reward, EPISODE)
    return reward


numbers = st.lists(st.floats(0, 1, width=32), min_size=6, max_size=6)


@given(st.lists(numbers, min_size=2, max_size=5))
def test_the_mean_and_the_disagreement_are_those_of_the_members(columns: list[list[float]]) -> None:
    reward = score_one(*(FixedModel(f"m{i}", column) for i, column in enumerate(columns)))
    expected = [sum(row) / len(row) for row in zip(*columns, strict=True)]
    assert reward.value == pytest.approx(expected, abs=1e-6)
    spread = [
        (sum((x - mean) ** 2 for x in row) / len(row)) ** 0.5
        for row, mean in zip(zip(*columns, strict=True), expected, strict=True)
    ]
    found = reward.given["disagreement"]
    assert found == pytest.approx({"mean": sum(spread) / 6, "largest": max(spread), "end": spread[-1]}, abs=1e-6)
    assert reward.given["members"] == pytest.approx({f"m{i}": column[-1] for i, column in enumerate(columns)})


def test_a_frame_that_one_leaves_unscored_is_unscored_with_the_reason() -> None:
    reward = score_one(FixedModel("a", [0, 0, 0, 1, 1, 1]), FixedModel("b", [1, np.nan, 1, 1, 1, 1], why="it blinked"))
    assert np.isnan(reward.value).tolist() == [False, True, False, False, False, False]
    assert reward.why_missing == "b: it blinked"
    silent = score_one(FixedModel("a", [0.5] * 6), FixedModel("b", why="no answer"), FixedModel("c", why="no key"))
    assert not silent.scored and silent.why_missing == "b: no answer; c: no key"
    assert silent.given["members"] == {"a": 0.5, "b": None, "c": None}


def test_only_frames_that_all_look_at_are_averaged_and_no_end_goes_missing() -> None:
    reward = score_one(FixedModel("a", [0.2] * 6), FixedModel("b", [0.4, 0.6], at=[0, 5]))
    assert reward.at.tolist() == [0, 5] and reward.value == pytest.approx([0.3, 0.4])
    short = score_one(FixedModel("a", [0.2] * 6), FixedModel("b", [0.4, 0.6], at=[0, 3]))
    assert short.at.tolist() == [0, 3, 5] and np.isnan(short.final)
    assert short.why_missing == "b: it does not score frame 5"


def test_success_is_averaged_when_all_give_it() -> None:
    a, b = FixedModel("a", [0.5] * 6, success=[0.2] * 6), FixedModel("b", [0.5] * 6, success=[0.6] * 6)
    assert score_one(a, b).success == pytest.approx([0.4] * 6)
    assert score_one(a, b, FixedModel("c", [0.5] * 6)).success is None


def test_the_card_promises_what_all_members_do() -> None:
    card = load_model("ensemble:constant+change").card
    assert (card.name, card.causal, card.comparable) == ("ensemble-constant+change", True, True)
    assert (card.sees_pixels, card.frame_budget) == (True, 32)
    assert not load_model("ensemble:clock+change").card.causal
    last = FixedModel("b", licence="MIT", reads_instruction=False)
    mixed = Ensemble([FixedModel("a", comparable=False), last]).card
    assert not mixed.comparable and mixed.licence == "Apache-2.0 AND MIT" and mixed.reads_instruction
    assert mixed.frame_budget is None
    assert Ensemble([FixedModel("a", comparable=False, revision="2"), last]).card.hash() != mixed.hash()
    assert len(Ensemble([FixedModel("long" * 10 + str(i)) for i in range(5)]).card.name) < 80


def test_what_has_no_mean_is_refused() -> None:
    for members, word in (
        ("", "none"),
        ("clock", "one"),
        ("clock+clock", "clock twice"),
        ([FixedModel("a"), FixedModel("b", high=5.0)], "b from 0 to 5"),
        ([FixedModel("a"), FixedModel("b", low=None)], "b from no bound to 1"),
        ([FixedModel("a", low=None), FixedModel("b", low=None, quantity="grade")], "grade"),
    ):
        with pytest.raises(BadInput) as caught:
            Ensemble(members)  # type: ignore[arg-type]
        assert word in str(caught.value.got)
    assert Ensemble([FixedModel("a", low=None), FixedModel("b", low=None)]).card.low is None


def test_a_member_outside_its_own_range_is_not_hidden_by_the_mean() -> None:
    with pytest.raises(BadReward) as caught:
        Ensemble([FixedModel("a", [0.0] * 6), FixedModel("b", [1.5] * 6)]).score([EPISODE])
    assert caught.value.model == "b"


def test_online_only_when_all_are() -> None:
    assert not isinstance(Ensemble([FixedOnlineModel("a"), FixedModel("b")]), Online)
    model = Ensemble([FixedOnlineModel("a"), FixedOnlineModel("b")])
    assert isinstance(model, Online)
    run, other = model.start("0123456789"), model.start("")
    white = np.full((4, 4, 3), 255, np.uint8)
    assert run.step(white) == LiveReward(pytest.approx(0.6), None)
    assert other.step(white) == LiveReward(pytest.approx(0.5), None)
    sure = Ensemble([SureOnlineModel("a"), SureOnlineModel("b")]).start("")
    assert sure.step(white) == LiveReward(pytest.approx(0.5), pytest.approx(0.25), pytest.approx(0.05))
    mixed = Ensemble([SureOnlineModel("a"), FixedOnlineModel("b")]).start("")
    assert mixed.step(white).success is None  # as in score: only if all give one


@pytest.mark.parametrize("name", ["ensemble:change+motion", "ensemble:clock+change", "ensemble:constant:0.2+change"])
def test_check_passes(name: str) -> None:
    assert check_model(load_model(name)).broken == []
