"""Unscored frames, penalties and successes: what becomes a number and what does not."""

from dataclasses import replace

import numpy as np
import pytest

from demerit.data.episode import Event, Outcome
from demerit.data.reward import Reward
from demerit.errors import BadInput, UnscoredFrames
from demerit.models.protocol import example_card
from demerit.use.write.frames import (
    EpisodeFrames,
    RewardRecipe,
    fill_between,
    find_failing,
    lay_out,
    read_frames,
    weigh_samples,
)
from fakes.written_rewards import make_episodes

NAN = float("nan")
CARD = example_card()


def frames_of(*curves: list[float], task: str = "", success: bool | None = None) -> list[EpisodeFrames]:
    return [
        EpisodeFrames(
            f"e{place}", task, np.array(curve, np.float32), np.zeros(len(curve), bool), success, False, "dark"
        )
        for place, curve in enumerate(curves)
    ]


SOME = frames_of([0.1, 0.2], [0.1, NAN, 0.3, NAN], [NAN, NAN])


def test_by_default_unscored_frames_are_an_error_that_counts_them() -> None:
    with pytest.raises(UnscoredFrames) as caught:
        lay_out(SOME, RewardRecipe(), CARD)
    assert (caught.value.frames, caught.value.episodes, caught.value.of) == (4, 2, 3)
    assert "e1: dark" in str(caught.value)


def test_interpolation_never_goes_beyond_scored_frames() -> None:
    np.testing.assert_allclose(fill_between(SOME[1].value), [0.1, 0.2, 0.3, NAN])
    with pytest.raises(UnscoredFrames) as caught:
        lay_out(SOME, RewardRecipe(("interpolate",)), CARD)
    assert (caught.value.frames, caught.value.episodes) == (3, 2)
    whole = lay_out(frames_of([0.0, NAN, NAN, 0.3]), RewardRecipe(("interpolate",)), CARD)
    np.testing.assert_allclose(whole.value, [0.0, 0.1, 0.2, 0.3], atol=1e-7)
    assert (whole.unscored, whole.interpolated) == (2, 2)


def test_dropped_episodes_keep_the_numbers_of_the_others() -> None:
    kept = lay_out([*SOME, *frames_of([0.5])], RewardRecipe(("drop-episode",)), CARD)
    assert (kept.dropped, kept.places.tolist(), kept.index.tolist()) == (2, [0, 3], [0, 1, 8])
    assert not np.isnan(kept.reward).any()
    both = lay_out(frames_of([0.0, NAN, 0.2], [NAN, 1.0]), RewardRecipe(("interpolate", "drop-episode")), CARD)
    assert both.places.tolist() == [0]


def test_weight_zero_invents_no_reward() -> None:
    got = lay_out(SOME, RewardRecipe(("weight-zero",), ahead=1), CARD)
    assert got.weight is not None
    assert np.isnan(got.value).tolist() == [False, False, False, True, False, True, True, True]
    assert np.isnan(got.reward).tolist() == [False, False, True, False, True, True, True, True]
    unknown = np.isnan(got.value) | np.isnan(got.reward)
    assert (got.weight[unknown] == 0).all() and not np.isnan(got.weight).any()


@pytest.mark.parametrize("rule", ["drop-episode", "weight-zero"])
def test_nothing_scored_is_an_error(rule: str) -> None:
    with pytest.raises(BadInput, match=f"--unscored {rule}.*dark"):
        lay_out(frames_of([NAN, NAN]), RewardRecipe((rule,)), CARD)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"unscored": ()},
        {"unscored": ("guess",)},
        {"unscored": ("fail", "drop-episode")},
        {"reward": "sparse"},
        {"advantage": "gae"},
        {"gamma": 1.5},
        {"gamma": NAN},
        {"success": "anybody"},
        {"ahead": 0},
        {"penalty": -1.0},
        {"kappa": NAN},
    ],
)
def test_bad_recipes_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        RewardRecipe(**wrong)  # type: ignore[arg-type]


def test_a_failure_lasts_from_its_event_to_the_end() -> None:
    event = Outcome("human", success=False, events=(Event("drop", 3, 4), Event("slam", 2, 2)))
    assert np.flatnonzero(find_failing([event], False, 6)).tolist() == [2, 3, 4, 5]
    assert np.flatnonzero(find_failing([event], True, 6)).tolist() == [2, 3, 4]  # it recovered
    assert np.flatnonzero(find_failing([event], None, 6)).tolist() == [2, 3, 4]
    assert np.flatnonzero(find_failing([], False, 6)).tolist() == [5]
    assert not find_failing([], True, 6).any() and not find_failing([], None, 6).any()


def test_penalties_fall_on_steps_to_failing_frames() -> None:
    episodes = [
        read_frames(one, Reward("m", one.id, np.arange(len(one)), np.ones(len(one))), RewardRecipe())
        for one in make_episodes()
    ]
    got = lay_out(episodes, RewardRecipe(penalty=2.0, gamma=1.0), CARD)
    assert got.of(got.reward, 0).tolist() == [1.0] * 6
    assert got.of(got.reward, 1).tolist() == [1.0, 1.0] + [-1.0] * 7  # the event is at frame 3
    assert got.of(got.advantage, 1).tolist() == [-14.0, -14.0, -14.0, -12.0, -10.0, -8.0, -6.0, -4.0, -2.0]
    assert got.without_event == 0
    untimed = lay_out([replace(episodes[1], has_event=False)], RewardRecipe(penalty=2.0), CARD)
    assert untimed.without_event == 1


def test_success_comes_from_labels_first_and_from_the_model_only_when_asked() -> None:
    episode = make_episodes()[0]
    low, high = (
        Reward("m", episode.id, np.arange(6), np.ones(6), np.full(6, 0.2), given={"succeeds": succeeds})
        for succeeds in (False, True)
    )
    unsure = replace(high, given={**high.given, "missing cameras": ["right"]})
    bare = replace(episode, outcomes=(Outcome("model", success=True),))  # an unconfirmed opinion
    assert read_frames(episode, low, RewardRecipe(success="model")).success is True
    assert read_frames(bare, low, RewardRecipe()).success is None
    assert read_frames(bare, low, RewardRecipe(success="model")).success is False
    assert read_frames(bare, high, RewardRecipe(success="model")).success is True
    assert read_frames(bare, unsure, RewardRecipe(success="model")).success is None
    unknown = lay_out([read_frames(bare, low, RewardRecipe())], RewardRecipe(), CARD)
    assert unknown.success is None


def test_group_advantages_compare_episodes_of_a_task() -> None:
    curves = frames_of([0.2, 0.2], [0.4, 0.4], task="a") + frames_of([0.9], task="b")
    got = lay_out(curves, RewardRecipe(advantage="group", gamma=1.0), CARD)
    np.testing.assert_allclose(got.advantage, [-1, -1, 1, 1, 0], atol=1e-6)
    steps = lay_out(curves, RewardRecipe(advantage="normalised"), CARD).advantage
    assert np.abs(steps[:4].mean()) < 1e-9 and steps[4] == 0


def test_grades_become_progress_for_weights_and_unbounded_values_do_not() -> None:
    grades = frames_of([1.0, 3.0, 5.0])
    got = lay_out(grades, RewardRecipe(ahead=1), example_card(low=1.0, high=5.0))
    assert got.progress is not None and got.progress.tolist() == [0.0, 0.5, 1.0] and got.value.tolist() == [1, 3, 5]
    np.testing.assert_array_equal(got.weight, weigh_samples(got.progress, got.spans, 1, 0.01))
    unbounded = lay_out(grades, RewardRecipe(), example_card(low=None))
    assert unbounded.progress is None and unbounded.weight is None
