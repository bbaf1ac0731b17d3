"""What an episode's role makes of its labels: a success is grade 5, a score becomes a grade; who said so stays."""

from __future__ import annotations

import math
from dataclasses import replace

from demerit.data.episode import Episode
from demerit.data.labels import LABEL_SOURCES, Outcome
from demerit.errors import NotApplicable
from demerit.evaluate.metrics.grades import grade_by_range
from demerit.negatives.job import assumed
from demerit.negatives.negative import DONE_GRADE, grade_of, succeeded
from demerit.training.corpus.recipe import Score, Source

NO_INSTRUCTION = "it has no instruction"
SUCCESS_IS_5 = "a success is grade 5"


def labelled(episode: Episode, source: Source) -> Episode:
    """Give an episode the grade that its role implies, or raise `NotApplicable` with why it has no place here."""
    if not episode.instruction.strip():
        raise NotApplicable(NO_INSTRUCTION)
    return _success(episode, source) if source.role == "successes" else _graded(episode, source)


def grade_given(episode: Episode) -> Outcome | None:
    """Return the most trusted account that has a grade."""
    graded = [said for said in episode.outcomes if said.grade is not None]
    return min(graded, key=lambda said: LABEL_SOURCES.index(said.source), default=None)


def _success(episode: Episode, source: Source) -> Episode:
    told = assumed(episode, source.because)
    succeeded(told)
    if grade_given(told) is not None:
        return told
    # Somebody said that it succeeded; that this is grade 5 is the rule's word, not theirs.
    rule = Outcome("rule", success=True, grade=DONE_GRADE, by=SUCCESS_IS_5)
    return replace(told, outcomes=(*told.outcomes, rule))


def _graded(episode: Episode, source: Source) -> Episode:
    outcomes = episode.outcomes
    if source.score is not None:
        outcomes = (*outcomes, Outcome("human", progress=_score(episode, source.score), by=source.score.column))
    for place, said in enumerate(outcomes):
        grade, progress = _grade(said), _progress(said)
        if said.source != source.vouched_by or grade is None:
            continue
        graded = replace(said, grade=grade, progress=progress)
        return replace(episode, outcomes=(*outcomes[:place], graded, *outcomes[place + 1 :]))
    who = "person" if source.vouched_by == "human" else source.vouched_by
    raise NotApplicable(f"no {who} says how far it got")


def _grade(said: Outcome) -> int | None:
    """The grade of an account: its own, or that of its progress.

    A person's score and a model's value become the nearest of five steps; where physics or a rule says that the task
    was not done, it is never a 5.
    """
    progress = _progress(said)
    if said.grade is not None or progress is None:
        return said.grade
    if said.source in ("simulator", "rule") and said.success is not None:
        return DONE_GRADE if said.success else grade_of(progress)
    return int(grade_by_range([progress], 0.0, 1.0)[0])


def _progress(said: Outcome) -> float | None:
    """How far it got: as the account says, or where its curve ends."""
    if said.progress is not None or said.curve is None or not len(said.curve) or math.isnan(said.curve[-1]):
        return said.progress
    return float(said.curve[-1])


def _score(episode: Episode, score: Score) -> float:
    """Read a person's score as a share of its range; nothing is rescaled that lies outside."""
    text = episode.origin.tags.get(score.column, "")
    try:
        share = (float(text) - score.low) / (score.high - score.low)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise NotApplicable(f"its {score.column} is no score from {score.low:g} to {score.high:g}")
    return share
