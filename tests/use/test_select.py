"""Best of K: the pick, its margin, ties, and what is refused."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demerit.data.episode import Episode
from demerit.data.reward import Reward
from demerit.errors import BadInput, BadReward
from demerit.models.protocol import ModelCard, example_card
from demerit.use.select import choose, pick

NAN = float("nan")


def make_reward(final: float, chance: float | None = None, **given: float) -> Reward:
    if np.isnan(final):
        return Reward.unscored("judge", "one", "it has no camera")
    success = None if chance is None else np.array([0.99, chance])
    return Reward("judge", "one", np.array([0, 4]), np.array([0.9, final]), success, given=given)


def make_candidate(brightness: int, id: str = "same") -> Episode:
    return Episode.from_array(np.full((3, 4, 4, 3), brightness, np.uint8), "lift the cup", id)


class LightJudge:
    """The brighter, the better; black is unscored."""

    card: ModelCard = example_card(name="light")

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        found = []
        for one in episodes:
            value = one.main.take([len(one) - 1]).mean() / 255
            known = Reward("light", one.id, np.array([len(one) - 1]), np.array([value]))
            found.append(known if value else Reward.unscored("light", one.id, "it is dark"))
        return found


def test_the_highest_final_value_is_picked() -> None:
    choice = pick([make_candidate(51), make_candidate(204), make_candidate(0), make_candidate(102)], LightJudge())
    assert choice.index == 1 and choice.ties == ()
    np.testing.assert_allclose(choice.values, [0.2, 0.8, NAN, 0.4], rtol=1e-6)
    assert choice.margin == pytest.approx(0.4)
    assert choice.unscored == {2: "it is dark"}


def test_a_tie_is_stated_and_the_first_is_picked() -> None:
    choice = choose([make_reward(0.1), make_reward(0.7), make_reward(NAN), make_reward(0.7)])
    assert (choice.index, choice.ties, choice.margin) == (1, (3,), 0.0)


def test_of_equal_values_the_probability_of_success_decides() -> None:
    choice = choose([make_reward(1.0, 0.7), make_reward(1.0, 0.9), make_reward(0.8, 0.95), make_reward(1.0, 0.9)])
    assert (choice.index, choice.ties, choice.margin) == (1, (3,), 0.0)
    assert choose([make_reward(1.0), make_reward(1.0, 0.2)]).index == 1


def test_a_model_may_be_named() -> None:
    choice = pick([make_candidate(9, "a"), make_candidate(9, "b")], "clock")
    assert (choice.index, choice.ties) == (0, (1,))


def test_alone_there_is_no_margin() -> None:
    choice = choose([make_reward(NAN), make_reward(0.5)])
    assert choice.index == 1 and np.isnan(choice.margin)


def test_a_guess_is_marked() -> None:
    assert choose([make_reward(0.9, familiarity=0.0), make_reward(0.1)]).is_guess
    assert not choose([make_reward(0.9, familiarity=0.5), make_reward(0.1)]).is_guess


def test_nothing_scored_is_refused() -> None:
    with pytest.raises(BadReward) as refused:
        pick([make_candidate(0), make_candidate(0)], LightJudge())
    assert "it is dark (2)" in refused.value.reason
    with pytest.raises(BadInput):
        pick([], LightJudge())


def test_values_that_cannot_be_compared_are_refused() -> None:
    class RelativeJudge(LightJudge):
        card = example_card(name="relative", comparable=False)

    with pytest.raises(BadInput):
        pick([make_candidate(1)], RelativeJudge())


@given(st.lists(st.sampled_from([NAN, 0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=8))
def test_no_candidate_is_better_than_the_pick(finals: list[float]) -> None:
    rewards = [make_reward(final) for final in finals]
    known = [final for final in finals if not np.isnan(final)]
    if not known:
        with pytest.raises(BadReward):
            choose(rewards)
        return
    choice = choose(rewards)
    assert finals[choice.index] == max(known) and finals.index(max(known)) == choice.index
    assert len(choice.ties) == known.count(max(known)) - 1
    assert len(choice.unscored) == len(finals) - len(known)
