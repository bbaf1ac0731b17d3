"""Best of K: the pick, its margin, ties, and what is refused."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demerit.data.episode import Episode
from demerit.data.reward import Reward
from demerit.errors import BadInput, BadReward
from demerit.models.protocol import ModelCard, example_card
from demerit.use.select import choose, pick, pick_chunk
from fakes.lamp_env import LampModel

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


@pytest.mark.parametrize("candidates", ["demo/test", Path("demo/test"), [make_candidate(1), "two.mp4"], 7, None])
def test_what_is_no_episode_is_refused_in_one_sentence(candidates: Any) -> None:
    with pytest.raises(BadInput) as refused:
        pick(candidates, LightJudge())
    assert refused.value.what == "candidates" and "open_dataset" in str(refused.value)


@pytest.mark.parametrize("model", [Path("./my-model"), None, [make_candidate(1)]])
def test_what_is_no_model_is_refused_in_one_sentence(model: Any) -> None:
    with pytest.raises(BadInput) as refused:
        pick([make_candidate(1)], model)
    assert refused.value.what == "model"


def test_candidates_may_be_any_iterable() -> None:
    assert pick(iter([make_candidate(51), make_candidate(204)]), LightJudge()).index == 1


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


PAST = np.stack([np.full((4, 4, 3), level, np.uint8) for level in (10, 20)])


def imagine(frames: Any, chunk: Sequence[Sequence[int]]) -> list[Any]:
    """A chunk is a list of futures, a future the brightness of each of its frames."""
    return [np.stack([np.full((4, 4, 3), level, np.uint8) for level in future]) for future in chunk]


class FollowingLamp(LampModel):
    """It scores an episode as it follows it live."""

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        return [self._follow(episode) for episode in episodes]

    def _follow(self, episode: Episode) -> Reward:
        live = self.start(episode.instruction)
        values = [live.step(frame).value for frame in episode.main.all()]
        return Reward("lamp", episode.id, np.arange(len(values)), np.array(values))


@given(
    st.lists(
        st.lists(st.lists(st.integers(1, 255), min_size=1, max_size=4), min_size=1, max_size=3), min_size=1, max_size=4
    )
)
def test_the_value_of_a_chunk_is_the_mean_over_its_futures_as_a_live_model_sees_them(chunks: Any) -> None:
    model, expected = FollowingLamp(), []
    for chunk in chunks:
        finals = []
        for future in chunk:
            live = model.start("light it")
            finals.append([live.step(frame).value for frame in [*PAST, *imagine(PAST, [future])[0]]][-1])
        expected.append(sum(finals) / len(finals))
    choice = pick_chunk(chunks, imagine, PAST, model, "light it")
    np.testing.assert_allclose(choice.values, expected, rtol=1e-5)
    assert expected[choice.index] == pytest.approx(max(expected), rel=1e-6)


def test_a_sure_chunk_beats_one_that_is_better_once_in_a_while() -> None:
    assert pick_chunk([[[255], [10], [10]], [[120], [120], [120]]], imagine, PAST, LightJudge(), "").index == 1
    assert pick_chunk([[[255], [10]], [[120], [120]]], imagine, PAST, LightJudge(), "").index == 0


def test_a_chunk_with_a_future_that_cannot_be_scored_is_never_picked() -> None:
    choice = pick_chunk([[[255], [0]], [[30], [40]]], imagine, PAST, LightJudge(), "")
    assert choice.index == 1 and choice.unscored == {0: "1 of 2 futures: it is dark"}
    with pytest.raises(BadReward):
        pick_chunk([[[0]], [[0]]], imagine, PAST, LightJudge(), "")


class SureJudge(LightJudge):
    """All that is bright enough is worth the same; the last frame's blue is the probability of success."""

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        found = []
        for one in episodes:
            last, where = one.main.take([len(one) - 1]), np.array([len(one) - 1])
            facts = {"familiarity": float(last[..., 1].mean()) / 255}
            found.append(
                Reward(
                    "light", one.id, where, np.ones(1), last[..., 2].mean(keepdims=True).reshape(1) / 255, given=facts
                )
            )
        return found


def test_mean_probabilities_decide_between_equal_means_and_one_strange_future_makes_a_guess() -> None:
    def paint(frames: Any, chunk: Any) -> list[Any]:
        return [np.full((1, 4, 4, 3), (9, green, blue), np.uint8) for green, blue in chunk]

    choice = pick_chunk([[(99, 255), (99, 0)], [(99, 200), (0, 100)]], paint, PAST, SureJudge(), "")
    assert choice.index == 1 and choice.margin == 0.0 and choice.ties == () and choice.is_guess
    assert not pick_chunk([[(99, 255)], [(0, 100)]], paint, PAST, SureJudge(), "").is_guess


def test_cameras_are_joined_by_name() -> None:
    seen: list[Episode] = []

    class Seeing(LightJudge):
        def score(self, episodes: Sequence[Episode]) -> list[Reward]:
            seen.extend(episodes)
            return super().score(episodes)

    past = {"top": PAST, "wrist": PAST[:, :2]}
    one = {"wrist": PAST[:1, :2] + 5, "top": PAST[:1] + 1}
    assert pick_chunk([None], lambda frames, chunk: one, past, Seeing(), "lift it", fps=5.0).index == 0
    (episode,) = seen
    assert list(episode.views) == ["top", "wrist"] and episode.instruction == "lift it"
    assert [int(frame[0, 0, 0]) for frame in episode.views["wrist"].all()] == [10, 20, 15]
    assert episode.main.times().tolist() == [0.0, 0.2, 0.4]


GOOD = np.zeros((2, 4, 4, 3), np.uint8)


@pytest.mark.parametrize(
    "future",
    [
        GOOD[0],
        GOOD[:0],
        GOOD.astype(np.float32),
        GOOD[..., :1],
        GOOD[:, :2],
        [],
        [GOOD[0], GOOD[1]],
        {"other": GOOD},
        {},
        None,
        "frames",
    ],
)
def test_what_is_no_future_is_refused(future: Any) -> None:
    with pytest.raises(BadInput, match="imagine"):
        pick_chunk([0], lambda frames, chunk: future, PAST, LightJudge(), "")


def test_what_is_nothing_to_choose_from_is_refused() -> None:
    for chunks, frames in (([], PAST), ([0], GOOD[0]), ([0], {"a": GOOD, "b": GOOD[:1]}), ([0], {})):
        with pytest.raises(BadInput):
            pick_chunk(chunks, lambda frames, chunk: GOOD, frames, LightJudge(), "")
    several = np.stack([GOOD + 1, GOOD + 3])  # futures in one array
    assert pick_chunk([0], lambda frames, chunk: several, PAST, LightJudge(), "").values[0] == pytest.approx(2 / 255)
