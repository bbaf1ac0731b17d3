"""A detector from labelled successes that the model has not learned from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from demerit.data.episode import Episode
from demerit.data.instructions import normalize_instruction
from demerit.data.reward import Reward
from demerit.data.seen import SeenEpisodes
from demerit.errors import BadInput
from demerit.evaluate.metrics.success import affordable_risk, conformal_threshold, failures_needed
from demerit.models.protocol import ModelCard
from demerit.training.selection import LabelSelection
from demerit.use.detect.detector import ALL, Detector, EpisodeFollower, Floats, Schedule, hold_levels

FEWEST = 2
"""successes: each is compared with the others"""
USUAL = 0.2
"""share of successes that are below the usual level, at each frame"""
END = 0.5
"""share of successes that are below the usual level at their end, where a success is certain"""
OWN = 2
"""a task with this many times the successes needed gets a schedule of its own; with fewer, few failures are found"""


def calibrate_detector(
    scored: Iterable[tuple[Episode, Reward]],
    card: ModelCard,
    model: str,
    false_alarms: float = 0.05,
    confidence: float | None = None,
    learned_from: SeenEpisodes | None = None,
    selection: LabelSelection | None = None,
) -> Detector:
    """Calibrate a detector on the successes among scored episodes.

    Args:
        scored: labelled episodes with the model's rewards, e.g. a `ScoredDataset`.
        card: the model's.
        model: its name or folder, to load it for live episodes.
        false_alarms: the share of successes that may have an alarm, between 0 and 1.
        confidence: that the share holds for this very detector; None = it holds on average over calibration sets,
            which takes fewer successes (19 instead of 45 at a share of 0.05).
        learned_from: what the model learned from; those episodes do not count.
        selection: label sources and splits to take; None = no test split, no labels of models.
    """
    selection = selection or LabelSelection()
    low, high = check_card(card)
    if not 0 < false_alarms < 1:
        raise BadInput("--false-alarms", "a share between 0 and 1", false_alarms)
    needed = max(FEWEST, failures_needed(false_alarms, confidence))
    found: dict[str, list[Floats]] = {ALL: []}
    taken: list[Episode] = []
    not_used = {"that the model learned from": 0, "unscored": 0}
    for original, reward in scored:
        episode = selection.take(original)
        if episode is None or episode.outcome is None or episode.outcome.success is not True:
            continue
        if not reward.scored:
            not_used["unscored"] += 1
        elif learned_from is not None and learned_from.has(original):
            not_used["that the model learned from"] += 1
        else:
            levels = hold_levels(reward, len(episode), low, high)
            taken.append(original)
            found[ALL].append(levels)
            found.setdefault(normalize_instruction(episode.instruction), []).append(levels)
    if len(taken) < needed:
        notes = [f"{count} more {why}" for why, count in not_used.items() if count]
        afford = f" (or --false-alarms {affordable_risk(len(taken)):g})" if taken and confidence is None else ""
        got = "; ".join([f"{len(taken)}{afford}", *notes, *selection.notes()])
        raise BadInput(f"successes to calibrate on, for {false_alarms:g} false alarms", f"{needed} or more", got)
    schedules = {
        task: make_schedule(levels, false_alarms, confidence)
        for task, levels in found.items()
        if task == ALL or len(levels) >= OWN * needed
    }
    marks = SeenEpisodes.of(taken).as_facts()
    return Detector(model, card.hash(), low, high, card.causal, false_alarms, confidence, schedules, marks)


def check_card(card: ModelCard) -> tuple[float, float]:
    """Return the range of a model's values; refuse a model whose values cannot be compared."""
    if card.low is None or card.high is None:
        raise BadInput(card.name, "a model with values in a range", "an unbounded one (demerit calibrate bounds it)")
    if not card.comparable:
        raise BadInput(card.name, "a model whose values can be compared between episodes", "one that scales each")
    return card.low, card.high


def make_schedule(successes: Sequence[Floats], false_alarms: float, confidence: float | None) -> Schedule:
    """Make a schedule from the levels of successes.

    Each success is compared with the others alone. Compared also with itself it would be less far behind than a new
    one, and there would be too many false alarms.
    """
    longest = max(map(len, successes))
    table = np.array([np.pad(one, (0, longest - len(one)), mode="edge") for one in successes])
    largest = []
    for i, own in enumerate(successes):
        follower = EpisodeFollower(Schedule(*find_usual(np.delete(table, i, axis=0))))
        last = len(own) - 1
        largest.append(np.nanmax([follower.find_behind(t, x, t == last) for t, x in enumerate(own.tolist())]))
    bound = conformal_threshold(largest, false_alarms, confidence)
    return Schedule(*find_usual(table), bound.threshold, bound.n)


def find_usual(table: Floats) -> tuple[tuple[float, ...], float]:
    """Return the usual level at each frame, and at the end; before its first value, a success has level 0."""
    known = np.nan_to_num(table)
    return tuple(np.quantile(known, USUAL, axis=0).tolist()), float(np.quantile(known[:, -1], END))
