"""Models that compare two episodes directly: asked in both orders, because some of them prefer what they see first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from demerit.data.episode import Episode
from demerit.data.frames import spread
from demerit.data.labels import Preference
from demerit.errors import BadInput, DemeritError
from demerit.evaluate.benchmarks.controls import ALWAYS_A
from demerit.evaluate.benchmarks.evidence import NAN, Evidence, Floats
from demerit.evaluate.benchmarks.question import Question
from demerit.evaluate.metrics import Tally
from demerit.evaluate.metrics.bootstrap import mean_tally
from demerit.evaluate.reports.report import Choice
from demerit.models.protocol import Comparer, RewardModel
from demerit.models.score import ScoreProgress

HALF = 0.5
MOST_REASONS = 3
Pair = tuple[Episode, Episode]
Answer = tuple[float, str]
"""a probability, or NaN and why"""


def ask_both_orders(
    model: RewardModel,
    about: tuple[Sequence[Episode], Sequence[Preference]],
    batch: int,
    frames: int | None,
    on_progress: Callable[[str, ScoreProgress], None],
) -> Iterator[Choice]:
    """Ask a model about every pair that people decided, as (a, b) and as (b, a); one without `prefer` says nothing.

    Args:
        model: any reward model.
        about: the episodes, and people's judgements of two of them.
        batch: how many pairs it is asked about at once.
        frames: show only so many frames of each episode; None shows all.
        on_progress: told how far it is.
    """
    if not isinstance(model, Comparer):
        return
    shown = {one.id: one for one in about[0]}
    # people's ties say nothing about who is right, so they are not asked about
    pairs = list(dict.fromkeys((one.a, one.b) for one in about[1] if one.verdict != "tie"))
    progress = ScoreProgress(len(pairs))
    for start in range(0, len(pairs), batch):
        some = pairs[start : start + batch]
        ours = [(_bare(shown[a], frames), _bare(shown[b], frames)) for a, b in some]
        forward, swapped = _answers(model, ours), _answers(model, [(b, a) for a, b in ours])
        for (a, b), (p_first, why), (p_swapped, why_not) in zip(some, forward, swapped, strict=True):
            yield Choice(model.card.name, a, b, p_first, p_swapped, why or why_not)
        progress.scored += len(some)
        on_progress(f"{model.card.name} (pairs)", progress)


def unanswered(choices: Sequence[Choice]) -> Iterator[str]:
    """Say how many pairs each comparer left open, and why."""
    for model in dict.fromkeys(one.model for one in choices):
        mine = [one for one in choices if one.model == model]
        open_ones = [one for one in mine if one.why_missing]
        if open_ones:
            reasons = Counter(one.why_missing for one in open_ones).most_common(MOST_REASONS)
            said = "; ".join(f"{reason} ({count})" for reason, count in reasons)
            yield f"{model} left {len(open_ones)} of {len(mine)} pairs undecided in an order: {said}."


def _bare(episode: Episode, frames: int | None) -> Episode:
    """Take the labels off, and the frames that are not to be shown."""
    if frames is None:
        return replace(episode, outcomes=())
    views = {name: view.select(spread(len(view), frames)) for name, view in episode.views.items()}
    return replace(episode, views=views, outcomes=(), signals={})


def _answers(model: Comparer, pairs: list[Pair]) -> list[Answer]:
    """Ask together; whatever goes wrong with a pair is that pair's, not the batch's."""
    try:
        told = list(model.prefer(pairs))
        if len(told) != len(pairs):
            raise BadInput("answers of a comparer", f"{len(pairs)}", f"{len(told)}")
        return [_checked(float(one)) for one in told]
    except Exception as error:  # a model is somebody else's code: anything may come out of it
        if len(pairs) == 1:
            return [(NAN, str(error) if isinstance(error, DemeritError) else f"{type(error).__name__}: {error}")]
        return [answer for pair in pairs for answer in _answers(model, [pair])]


def _checked(answer: float) -> Answer:
    if np.isnan(answer):
        return NAN, "it could not tell"
    return (answer, "") if 0 <= answer <= 1 else (NAN, f"{answer:g} is no probability")


def _leanings(evidence: Evidence, model: str) -> tuple[Floats, Floats]:
    """Which way each answer leans, to A (1), to B (-1) or neither (0): A shown first, and B shown first."""
    count = len(evidence.preferences)
    if model == ALWAYS_A:
        return np.ones(count), -np.ones(count)
    found = [evidence.choices.get((model, one.a, one.b)) for one in evidence.preferences]
    forward = [NAN if one is None else one.p_first - HALF for one in found]
    swapped = [NAN if one is None else HALF - one.p_swapped for one in found]
    return np.sign(np.array(forward, dtype=np.float64)), np.sign(np.array(swapped, dtype=np.float64))


def _mean_leaning(evidence: Evidence, model: str) -> Floats:
    forward, swapped = _leanings(evidence, model)
    return (forward + swapped) / 2


def _both_orders(evidence: Evidence, leaning: Floats) -> Tally:
    """Count a row per judgement that is no human tie: 1 right in both orders, 1/2 in one of them, 0 in none."""
    said = np.array([one.verdict for one in evidence.preferences], dtype=str)
    decided = said != "tie"
    credit = (np.where(said == "a", leaning, -leaning)[decided] + 1) / 2
    task = {one.id: one.task for one in evidence.episodes}
    tasks = [task[one.a] for one in evidence.preferences if one.verdict != "tie"]
    counts = {"a": int((said == "a").sum()), "b": int((said == "b").sum()), "human ties": int((~decided).sum())}
    return mean_tally("", "judgements", credit, tasks, ties=int((credit == HALF).sum()), counts=counts)


def _swayed(evidence: Evidence, model: str) -> str:
    decided = np.array([one.verdict != "tie" for one in evidence.preferences], dtype=bool)
    forward, swapped = (column[decided] for column in _leanings(evidence, model))
    known = ~np.isnan(forward) & ~np.isnan(swapped)
    differ = int((known & (forward != swapped)).sum())
    return f"{differ} of {int(known.sum())} pairs judged otherwise in the other order"


def _compares(evidence: Evidence, model: str) -> bool:
    """The models that were asked; the one that always names the first stands beside them, not alone."""
    return any(model in (one.model, ALWAYS_A) for one in evidence.choices.values())


BOTH_ORDERS = Question(
    "both_orders_agreement",
    _mean_leaning,
    _both_orders,
    needs="people's A/B judgements of two episodes",
    across=False,
    note=_swayed,
    asks_comparers=True,
    only=_compares,
)
