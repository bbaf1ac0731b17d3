"""Which of a dataset's preferences can be trained on: two episodes that both are in the corpus, and a clear choice.

Ids mean something within a dataset alone, so a preference is looked for among the episodes of the name that it came
under. What is left out is counted with its reason.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from demerit.data.instructions import normalize_instruction
from demerit.data.labels import LabelSource, Preference
from demerit.training.vlm.corpus import PREFERENCES, Choice, Row

NOT_A_MODEL: tuple[LabelSource, ...] = ("human", "simulator", "rule", "edit")
"""whose word is trained on; a model's opinion of what happened is not a label here"""


@dataclass(frozen=True)
class Heard:
    """A preference, and where it was heard."""

    source: str
    """the dataset"""
    split: str
    preference: Preference


def choices_of(heard: Iterable[Heard], rows: Sequence[Row], leave_out: Callable[[str], None]) -> list[Choice]:
    """Keep what can be trained on, in the order it was heard; `leave_out` is told why the rest cannot."""
    places: dict[tuple[str, str], dict[str, list[int]]] = defaultdict(dict)
    for at, row in enumerate(rows):
        places[row.source, row.id].setdefault(row.split, []).append(at)
    kept = []
    for one in heard:
        found = _choice(one, rows, places)
        if isinstance(found, str):
            leave_out(f"preference: {found}")
        else:
            kept.append(found)
    return kept


def write_choices(folder: Path, choices: Iterable[Choice]) -> None:
    """Write a line each, over what an interrupted attempt left."""
    with (folder / PREFERENCES).open("w", encoding="utf-8") as file:
        file.writelines(f"{one.line()}\n" for one in choices)
        file.flush()
        os.fsync(file.fileno())


def _choice(heard: Heard, rows: Sequence[Row], places: dict[tuple[str, str], dict[str, list[int]]]) -> Choice | str:
    """Find both episodes, or say why nothing can be learned from the choice."""
    said = heard.preference
    if said.source not in NOT_A_MODEL:
        return "only a model's word"
    if said.better is None:
        return "a tie"
    a, b = (places.get((heard.source, id), {}) for id in (said.a, said.b))
    if not (a and b):
        return "an episode that is not in the corpus"
    together = [split for split in (heard.split, *a) if split in a and split in b]
    if not together:
        return "across splits"
    if len(a[together[0]]) + len(b[together[0]]) > 2:  # noqa: PLR2004  one each
        return "an id that several episodes have"
    (first,), (second,) = a[together[0]], b[together[0]]
    if normalize_instruction(rows[first].instruction) != normalize_instruction(rows[second].instruction):
        return "different instructions"
    better, worse = (first, second) if said.verdict == "a" else (second, first)
    return Choice(better, worse, said.source)
