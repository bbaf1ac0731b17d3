"""Every formula against a second computation: loops over one episode at a time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demerit.data.arrays import Floats
from demerit.use.write.frames import (
    EpisodeSpans,
    advantages_ahead,
    discount,
    normalise_groups,
    reward_steps,
    weigh_samples,
)

EPISODES = st.lists(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=40), min_size=1, max_size=6)
GAMMA = st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0])


def flat(episodes: list[list[float]]) -> tuple[Floats, EpisodeSpans]:
    return np.concatenate(episodes).astype(np.float64), EpisodeSpans(np.array([len(one) for one in episodes]))


@given(EPISODES, st.integers(1, 60))
@settings(max_examples=40)
def test_spans_agree_with_loops(episodes: list[list[float]], n: int) -> None:
    _, spans = flat(episodes)
    places = [(i, t, len(one)) for i, one in enumerate(episodes) for t in range(len(one))]
    first = [sum(len(one) for one in episodes[:i]) for i in range(len(episodes))]
    assert spans.starts.tolist() == first
    assert spans.owner.tolist() == [i for i, _, _ in places]
    assert spans.is_last.tolist() == [t == length - 1 for _, t, length in places]
    assert spans.ahead(n).tolist() == [first[i] + min(t + n, length - 1) for i, t, length in places]


@given(EPISODES, GAMMA)
@settings(max_examples=60)
def test_returns_agree_with_the_recursion(episodes: list[list[float]], gamma: float) -> None:
    expected = []
    for one in episodes:
        total, sums = 0.0, []
        for reward in reversed(one):
            total = reward + gamma * total
            sums.append(total)
        expected += sums[::-1]
    np.testing.assert_allclose(discount(*flat(episodes), gamma), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rule", ["dense", "potential", "final"])
@given(EPISODES, GAMMA, st.floats(0, 3), st.integers(0, 2**31))
@settings(max_examples=30)
def test_rewards_of_steps(rule: str, episodes: list[list[float]], gamma: float, penalty: float, seed: int) -> None:
    values, spans = flat(episodes)
    failing = np.random.default_rng(seed).random(len(values)) < 0.3
    expected, first = [], 0
    for one in episodes:
        for t, value in enumerate(one):
            end = t == len(one) - 1
            after = t if end else t + 1
            reward = {
                "dense": one[after],
                "potential": 0.0 if end else gamma * one[after] - value,
                "final": value if end else 0.0,
            }[rule]
            expected.append(reward - penalty * failing[first + after])
        first += len(one)
    got = reward_steps(values, failing, spans, rule, gamma, penalty)  # type: ignore[arg-type]
    np.testing.assert_allclose(got, expected, atol=1e-12)


@given(EPISODES)
@settings(max_examples=20)
def test_potential_rewards_add_up_to_the_rise(episodes: list[list[float]]) -> None:
    values, spans = flat(episodes)
    rewards = reward_steps(values, np.zeros(len(values), bool), spans, "potential", 1.0, 0.0)
    rises = [one[-1] - one[0] for one in episodes]
    np.testing.assert_allclose(discount(rewards, spans, 1.0)[spans.starts], rises, atol=1e-9)


@given(EPISODES, GAMMA, st.integers(1, 50), st.floats(0, 3), st.integers(0, 2**31))
@settings(max_examples=60)
def test_advantages_agree_with_the_sum(
    episodes: list[list[float]], gamma: float, n: int, penalty: float, seed: int
) -> None:
    values, spans = flat(episodes)
    failing = np.random.default_rng(seed).random(len(values)) < 0.3
    expected, first = [], 0
    for one in episodes:
        last = len(one) - 1
        for t in range(len(one)):
            m = min(n, last - t)
            lost = sum(gamma**k * failing[first + min(t + k + 1, last)] for k in range(n) if t + k <= last)
            expected.append(gamma**m * one[t + m] - one[t] - penalty * lost)
        first += len(one)
    np.testing.assert_allclose(advantages_ahead(values, failing, spans, n, gamma, penalty), expected, atol=1e-9)


@given(st.lists(st.tuples(st.floats(-10, 10, width=16), st.integers(0, 3)), min_size=1, max_size=50))
@settings(max_examples=60)
def test_groups_have_mean_zero_and_spread_one(rows: list[tuple[float, int]]) -> None:
    numbers, groups = np.array([x for x, _ in rows]), np.array([g for _, g in rows])
    got = normalise_groups(numbers, groups)
    for group in set(groups.tolist()):
        mine, normal = numbers[groups == group], got[groups == group]
        spread = mine.std()
        if spread > 1e-6:
            np.testing.assert_allclose(normal, (mine - mine.mean()) / spread, atol=1e-6)
        elif len(set(mine.tolist())) == 1:
            assert (normal == 0).all()


def test_unscored_numbers_stay_out_of_groups() -> None:
    got = normalise_groups(np.array([1.0, 3.0, np.nan, 5.0]), np.array([0, 0, 0, 1]))
    np.testing.assert_allclose(got, [-1.0, 1.0, np.nan, 0.0])


@given(EPISODES, st.integers(1, 50), st.sampled_from([0.0, 0.01, 0.25]), st.integers(0, 2**31))
@settings(max_examples=60)
def test_weights_agree_with_equations_8_and_9(episodes: list[list[float]], chunk: int, kappa: float, seed: int) -> None:
    values, spans = flat(episodes)
    values[np.random.default_rng(seed).random(len(values)) < 0.2] = np.nan
    rises: list[float] = []
    for start, length in zip(spans.starts, spans.lengths, strict=True):
        one = values[start : start + length]
        rises += [float(one[min(t + chunk, length - 1)] - one[t]) for t in range(length)]
    known = [rise for rise in rises if not np.isnan(rise)]
    mu, sigma = (max(np.mean(known), 0.0), max(np.std(known), 1e-6)) if known else (0.0, 1e-6)
    for rise, weight in zip(rises, weigh_samples(values, spans, chunk, kappa), strict=True):
        near_kappa = abs(rise - kappa) < 1e-7  # decided by rounding
        if np.isnan(rise):
            assert np.isnan(weight)
        elif rise < 0 or (rise > kappa and not near_kappa):
            assert weight == float(rise > 0)
        elif not near_kappa:
            soft = min(max((rise - (mu - 2 * sigma)) / (4 * sigma + 1e-6), 0.0), 1.0)
            assert weight == pytest.approx(soft, abs=1e-6)


def test_an_unscored_frame_makes_only_its_own_episode_unknown() -> None:
    values, spans = flat([[0.1, np.nan, 0.3], [0.4, 0.5]])
    rewards = reward_steps(values, np.zeros(5, bool), spans, "dense", 1.0, 0.0)
    np.testing.assert_allclose(rewards, [np.nan, 0.3, 0.3, 0.5, 0.5])
    np.testing.assert_allclose(discount(rewards, spans, 1.0), [np.nan, 0.6, 0.3, 1.0, 0.5])
