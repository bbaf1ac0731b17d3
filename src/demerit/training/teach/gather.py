"""What a dataset offers to teach from; too little, or contradictory, is a sentence before a frame is decoded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import numpy as np

from demerit.data.dataset import Dataset
from demerit.data.episode import Episode
from demerit.data.labels import Preference
from demerit.data.splits import seed_of
from demerit.errors import BadInput, UnreadableVideo
from demerit.training.teach.labels import (
    HALF,
    Label,
    at_odds,
    contradicting_pairs,
    contradictions,
    kinds_of,
    label_of,
    says_a_model,
)

FEWEST_EPISODES, FEWEST_CHOICES = 2, 3
REACHED = 0.95
"""somebody must have got so far for anybody to know what done looks like"""
HOW = "success, a grade, progress, a curve, failure events or A/B preferences (see: demerit list sources)"


@dataclass(frozen=True, eq=False)
class Gathered:
    """The episodes of a dataset by what is known about them."""

    address: str
    name: str
    taught: tuple[Episode, ...]
    """labelled, or compared with one that is"""
    labels: Mapping[str, Label]
    unlabelled: tuple[Episode, ...]
    preferences: tuple[Preference, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    """episodes with contradictory labels, and how they contradict"""
    notes: tuple[str, ...] = ()

    def in_turns(self) -> list[Episode]:
        """What is taught from, successes and failures in turns: whoever stops early has seen both."""
        sides: dict[bool | None, list[Episode]] = {True: [], False: [], None: []}
        for one in self.taught:
            sides[self.labels[one.id].verdict if one.id in self.labels else None].append(one)
        return [one for turn in zip_longest(*sides.values()) for one in turn if one is not None]

    def kinds(self) -> dict[str, int]:
        """How many episodes have which kind of label."""
        counts = Counter(kind for label in self.labels.values() for kind in kinds_of(label))
        if self.preferences:
            counts["A/B preferences"] = len(self.preferences)
        return dict(counts.most_common())


def gather(dataset: Dataset, limit: int | None = None) -> Gathered:
    """Read a dataset and decide what is taught from; no frame is decoded."""
    episodes: list[Episode] = []
    choices: list[Preference] = []
    for record in dataset.records():
        if isinstance(record, Preference):
            choices.append(record)
        elif limit is None or len(episodes) < limit:
            episodes.append(record)
    address = dataset.address or dataset.name
    if not episodes:
        raise BadInput(address, "episodes to teach from", "none")
    labels = {one.id: label for one in episodes if (label := label_of(one)).known}
    odd = _contradictory(episodes, labels)
    kept = {id: label for id, label in labels.items() if id not in odd}
    split = contradicting_pairs([one for one in choices if one.source != "model"])
    known = {one.id for one in episodes} - set(odd)
    pairs = tuple(
        one
        for one in choices
        if one.source != "model" and {one.a, one.b} <= known and frozenset((one.a, one.b)) not in split
    )
    compared = {id for one in pairs for id in (one.a, one.b)}
    taught = tuple(one for one in episodes if one.id in kept or one.id in compared)
    rest = [one for one in episodes if one.id not in kept and one.id not in compared and one.id not in odd]
    found = Gathered(
        address,
        dataset.name,
        taught,
        kept,
        tuple(sorted(rest, key=lambda one: seed_of("unlabelled", one.id))),
        pairs,
        odd,
        (*_notes(dataset, odd, split), *_doubtful(kept)),
    )
    _check(found, episodes, labels)
    return found


def _contradictory(episodes: Sequence[Episode], labels: Mapping[str, Label]) -> dict[str, str]:
    odd = {one.id: reason for one in episodes if (reason := at_odds(one))}
    prints = {}
    for one in episodes:
        if one.id in labels:
            try:
                prints[one.id] = one.fingerprint()
            except UnreadableVideo:
                continue  # it is met again, with its reason, where it is decoded
    return {**contradictions(labels, prints), **odd}


def _check(found: Gathered, episodes: Sequence[Episode], labels: Mapping[str, Label]) -> None:
    """Refuse what no good model can come of, with what would help."""
    usable = found.labels
    if labels and not usable and not found.preferences:
        first = next(iter(found.left_out.items()))
        raise BadInput(
            found.address,
            "labels that agree with each other",
            f"{len(labels)} labelled episodes that all contradict another, e.g. {first[0]}: {first[1]}",
        )
    if not usable and not found.preferences:
        opinions = sum(says_a_model(one) for one in episodes)
        only = f", {opinions} of them with a model's opinion only, which is no label" if opinions else ""
        raise BadInput(found.address, f"labelled episodes: {HOW}", f"{len(episodes)} episodes, none labelled{only}")
    if len(usable) < FEWEST_EPISODES and len(found.preferences) < FEWEST_CHOICES:
        got = f"{len(usable)} labelled and {len(found.preferences)} compared"
        raise BadInput(
            found.address,
            f"at least {FEWEST_EPISODES} labelled episodes, or {FEWEST_CHOICES} comparisons",
            f"{got}; one success and one failure more would do",
        )
    if len(found.preferences) < FEWEST_CHOICES:
        _check_reach(found)


def _check_reach(found: Gathered) -> None:
    highest = max((_highest(label) for label in found.labels.values()), default=0.0)
    curves = [label.curve for label in found.labels.values() if label.curve is not None]
    if len(curves) == len(found.labels):
        values = np.concatenate([one[~np.isnan(one)] for one in curves])
        if float(values.min()) == float(values.max()):
            raise BadInput(
                found.address,
                "curves that rise and fall",
                f"{len(curves)} curves that are {values[0]:g} at every frame",
            )
    if highest < REACHED:
        raise BadInput(
            found.address,
            "at least one success: without one nobody knows what done looks like",
            f"{len(found.labels)} labelled episodes, none of them a success",
        )


def _highest(label: Label) -> float:
    """How far it got at most; an episode with failure events alone got nowhere that anybody knows of."""
    curve = 0.0 if label.curve is None else float(np.nanmax(label.curve))
    return max(curve, label.end or 0.0, 1.0 if label.verdict else 0.0)


def _doubtful(labels: Mapping[str, Label]) -> list[str]:
    """Say which labels do not fit together: they are used as they are, the verdict for success and the curve."""
    odd = [id for id, one in labels.items() if one.success and one.end is not None and one.end < HALF]
    if not odd:
        return []
    return [f"{len(odd)} episodes are called a success though their progress ends below a half, e.g. {odd[0]}."]


def _notes(dataset: Dataset, odd: Mapping[str, str], split: Iterable[frozenset[str]]) -> list[str]:
    notes = []
    if odd:
        first, reason = next(iter(odd.items()))
        notes.append(f"{len(odd)} episodes were left out because their labels contradict, e.g. {first}: {reason}.")
    pairs = list(split)
    if pairs:
        notes.append(f"{len(pairs)} comparisons were left out: each of the two was preferred by somebody.")
    for row in dataset.problems.rows():
        kept = "kept" if row["kept"] else "left out"
        notes.append(
            f"The dataset has a problem: {row['problem']}, {row['episodes']} episodes ({kept}), {row['first']}."
        )
    return notes
