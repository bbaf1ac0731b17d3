"""Preference-ordering accuracy and agreement with A/B/tie judgements, by the formula of the paper in plain loops."""

import math
import tracemalloc
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demerit.errors import BadInput
from demerit.evaluate.metrics import Resampling
from demerit.evaluate.metrics.bootstrap import values_of
from demerit.evaluate.metrics.ranking import (
    both_orders_agreement,
    episode_returns,
    judgement_agreement,
    preference_ordering,
)

QUICK = Resampling(resamples=100)
check = settings(max_examples=60)
maybe = st.one_of(st.integers(0, 4).map(float), st.just(math.nan))
episodes = st.lists(st.tuples(maybe, maybe, st.sampled_from("pqr")), min_size=1, max_size=25)


def the_paper(rows, tie=1.0):
    """1 - sum |P_c| D_c / sum |P_c|, where a tie of the model is a disagreement (or half of one)."""
    above = below = ties = unscored = 0
    for context in {c for *_, c in rows}:
        inside = [(m, y) for m, y, c in rows if c == context]
        strict = [(a, b) for a, b in combinations(inside, 2) if not math.isnan(a[1] + b[1]) and a[1] != b[1]]
        scored = [(a, b) for a, b in strict if not math.isnan(a[0] + b[0])]
        unscored += len(strict) - len(scored)
        if scored:
            wrong = [tie if a[0] == b[0] else float((a[0] > b[0]) != (a[1] > b[1])) for a, b in scored]
            ties += sum(a[0] == b[0] for a, b in scored)
            above += len(scored) * (sum(wrong) / len(scored))
            below += len(scored)
    return (1 - above / below if below else math.nan), below, ties, unscored


@check
@given(episodes)
def test_accuracy_matches_the_paper(rows):
    model, human, contexts = zip(*rows, strict=True)
    for credit, disagreement in (("wrong", 1.0), ("half", 0.5)):
        found = preference_ordering(model, human, contexts, ties=credit).measure(QUICK)
        value, n, ties, unscored = the_paper(rows, disagreement)
        assert found.value == pytest.approx(value, nan_ok=True)
        assert (found.n, found.ties, found.unscored) == (n, ties, unscored)
    paired = {k for i, j in combinations(range(len(rows)), 2) if strict(rows[i], rows[j]) for k in (i, j)}
    assert found.counts["episodes"] == len(paired)
    assert found.counts["unscored episodes"] == sum(math.isnan(rows[k][0]) for k in paired)


def test_ties_cost_a_grader_what_the_paper_says():
    """A constant scores 0, a grader from 1 to 5 loses half a point for each pair that it ties."""
    rng = np.random.default_rng(5)
    human, contexts = rng.random(80), rng.integers(0, 8, 80)
    fine = human + rng.normal(0, 0.2, 80)
    models = {"constant": np.zeros(80), "grades": np.clip(np.floor(1 + 4 * fine + 0.5), 1, 5), "fine": fine}
    found = {}
    for name, model in models.items():
        paper, half = (preference_ordering(model, human, contexts, ties=t).measure(QUICK) for t in ("wrong", "half"))
        # a second computation: the signs are compared, and 0 is no sign of a person's
        i, j = np.nonzero((contexts[:, None] == contexts) & (human[:, None] != human))
        agree = np.sign(model[i] - model[j]) == np.sign(human[i] - human[j])
        assert paper.value == pytest.approx(agree.mean())
        assert half.value - paper.value == pytest.approx(paper.ties / paper.n / 2)
        assert (paper.name, half.name) == ("strict_preference_ordering_by_sum", "preference_ordering_by_sum")
        found[name] = paper, half
    assert [measure.value for measure in found["constant"]] == [0.0, 0.5]
    assert found["fine"][0].ties == 0 < found["grades"][0].ties
    assert found["grades"][1].value - found["grades"][0].value > 0.05
    with pytest.raises(BadInput, match="ties"):
        preference_ordering([1, 2], [1, 2], "cc", ties="right")


def test_pairs_across_clusters_can_count_ties_as_wrong():
    human, contexts, clusters = [1, 2, 3, 3], ["c"] * 4, list("xyzz")
    tied = preference_ordering([2, 2, 2, 5], human, contexts, clusters=clusters, ties="wrong").measure(QUICK)
    assert (tied.value, tied.n, tied.ties) == (pytest.approx(2 / 5), 5, 3)


def strict(a, b):
    return a[2] == b[2] and not math.isnan(a[1] + b[1]) and a[1] != b[1]


@check
@given(episodes)
def test_negated_model_scores_one_minus(rows):
    model, human, contexts = (np.array(x) for x in zip(*rows, strict=True))
    found, other = (preference_ordering(m, human, contexts).measure(QUICK) for m in (model, -model))
    assert other.value == pytest.approx(1 - found.value, nan_ok=True)
    assert other.ties == found.ties


def test_returns_need_the_values_they_use():
    values = [[0.0, 1.0, 0.5], [math.nan, 1.0], [], [0.2, math.nan]]
    for how, first, second in (("sum", 1.5, math.nan), ("mean", 0.5, math.nan), ("final", 0.5, 1.0)):
        assert np.array_equal(episode_returns(values, how), [first, second, math.nan, math.nan], equal_nan=True)
        assert preference_ordering([1, 2], [1, 2], "cc", how=how).measure(QUICK).name.endswith(how)


@check
@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_returns_do_not_depend_on_the_order_of_frames(values, random):
    mixed = list(values)
    random.shuffle(mixed)
    for how in ("sum", "mean"):
        assert episode_returns([values], how)[0] == episode_returns([mixed], how)[0]
    assert episode_returns([values], "mean")[0] == pytest.approx(np.mean(values), abs=1e-9)
    assert episode_returns([values], "sum")[0] == pytest.approx(np.sum(values), abs=1e-9)


def test_constant_is_a_tie_by_mean_for_all_lengths():
    # np.mean of three and of ten times 0.1 differ in the last bit: rounding would order the episodes
    assert np.mean([0.1] * 3) != np.mean([0.1] * 10)
    curves = [[0.1] * n for n in (3, 10, 7, 49)]
    found = preference_ordering(episode_returns(curves, "mean"), [1, 2, 3, 4], ["c"] * 4, how="mean").measure(QUICK)
    assert (found.value, found.ties) == (0.5, 6)


def test_clusters_must_contain_whole_contexts():
    model, human, contexts = [1, 2, 1, 2, 3, 1], [1, 2, 1, 2, 1, 2], list("ppqqrr")
    wide = preference_ordering(model, human, contexts, clusters=list("xxxxyy")).measure(QUICK)
    assert (wide.clusters, preference_ordering(model, human, contexts).measure(QUICK).clusters) == (2, 3)
    # weighted by pairs: one of three is wrong, not one of two clusters
    assert (wide.value, wide.n, wide.counts["contexts"]) == (pytest.approx(2 / 3), 3, 3)


verdicts = st.lists(st.tuples(maybe, st.sampled_from(["a", "b", "tie"])), min_size=1, max_size=20)


@check
@given(verdicts)
def test_judgement_agreement_in_a_loop(rows):
    margin = [m - 2 for m, _ in rows]
    said = [v for _, v in rows]
    found = judgement_agreement(margin, said).measure(QUICK)
    credit = [
        0.5 if m == 0 else float((m > 0) == (v == "a"))
        for m, v in zip(margin, said, strict=True)
        if v != "tie" and not math.isnan(m)
    ]
    assert found.value == pytest.approx(np.mean(credit) if credit else math.nan, nan_ok=True)
    assert found.n == len(credit) and found.ties == credit.count(0.5)
    assert found.counts["human ties"] == said.count("tie")
    assert found.unscored == len(rows) - said.count("tie") - len(credit)
    # people's verdicts are really read: turning them round turns the result round
    turned = [{"a": "b", "b": "a", "tie": "tie"}[v] for v in said]
    assert judgement_agreement(margin, turned).measure(QUICK).value == pytest.approx(1 - found.value, nan_ok=True)


def test_pairs_that_cross_clusters_are_resampled_by_episode():
    rng = np.random.default_rng(4)
    human, model = rng.integers(0, 3, 9), rng.integers(0, 4, 9).astype(float)
    clusters = [0, 1, 2, 3, 4, 5, 6, 7, 7]  # the last two were recorded together
    tally = preference_ordering(model, human, ["c"] * 9, clusters=clusters)
    plain = preference_ordering(model, human, ["c"] * 9)
    assert tally.measure(QUICK).value == pytest.approx(plain.measure(QUICK).value) and tally.n == plain.n
    counts = rng.multinomial(8, np.full(8, 1 / 8), size=20)
    drawn = [[(c, k) for c in range(8) for k in range(n[c])] for n in counts]  # each drawn cluster with its copies
    for copies, weights in zip(drawn, counts, strict=True):
        rows = [(i, copy) for copy in copies for i in range(9) if clusters[i] == copy[0]]
        credit = []
        for at, (i, one) in enumerate(rows):
            for j, other in rows[at + 1 :]:
                if human[i] != human[j] and (one[0] != other[0] or one == other):  # not with its own copy
                    credit.append((np.sign(model[i] - model[j]) * np.sign(human[i] - human[j]) + 1) / 2)
        found = values_of(tally.statistic, tally.codes, weights[None].astype(float))[0]
        assert found == pytest.approx(np.mean(credit) if credit else math.nan, nan_ok=True)


def test_pairs_are_counted_without_a_list_of_them():
    """5,000 recordings of one task are 6 million pairs: numbers for each of them would be 50 MB a column."""
    rng, size = np.random.default_rng(0), 5_000
    human, model = rng.permutation(np.arange(size) % 2), rng.integers(0, 50, size)
    tracemalloc.start()
    tally = preference_ordering(model, human, ["c"] * size, clusters=range(size))
    found = tally.measure(Resampling(resamples=10))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30e6
    # a second computation: by the number of failures and successes at each value
    bad, good = (np.bincount(model[human == side], minlength=50) for side in (0, 1))
    ties = int((bad * good).sum())
    wins = int((np.cumsum(bad) * good).sum()) - ties
    assert (found.n, found.ties) == ((size // 2) ** 2, ties)
    assert found.value == (wins + ties / 2) / (size // 2) ** 2


def test_always_a_scores_half_in_both_orders():
    said = ["a", "a", "a", "b", "tie"]
    one = judgement_agreement([1] * 5, said).measure(QUICK)
    assert one.value == 0.75
    # shown (A, B) it names A, shown (B, A) it names B: no mean leaning
    both = both_orders_agreement([0] * 5, said).measure(QUICK)
    assert (both.value, both.n, both.counts["human ties"]) == (0.5, 4, 1)
    # a comparer that looks is right both times
    assert both_orders_agreement([1, 1, 1, -1, 1], said).measure(QUICK).value == 1.0
    lost = both_orders_agreement([1, 1, math.nan, -1, 1], said).measure(QUICK)
    assert (lost.n, lost.unscored) == (3, 1)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: judgement_agreement([1.0], ["A"]), "tie"),
        (lambda: preference_ordering([math.inf, 1], [1, 2], "cc"), "infinite"),
        (lambda: preference_ordering([1, 2, 3], [1, 2], "ccc"), "3 rows"),
        (lambda: episode_returns([[1.0]], "max"), "mean"),
    ],
)
def test_invalid_verdicts_and_values_are_refused(call, word):
    with pytest.raises(BadInput, match=word):
        call()
