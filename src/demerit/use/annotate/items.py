"""What to ask people about a dataset folder."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from demerit.data.dataset import Dataset
from demerit.data.episode import Episode
from demerit.data.importing import ImportProgress, import_dataset
from demerit.data.store import Store
from demerit.use.annotate.work import CHECK, NewItem, proposed_label

ANNOTATED = "annotated"
DUE, MODEL_LABEL = 2.0, 1.0
"""urgency: test labels that a person must check come first, then labels of models"""


def open_folder(dataset: Dataset, on_progress: object = None) -> Store:
    """Return the demerit folder that labels go to: the dataset itself, or one beside it that refers to its videos."""
    if isinstance(dataset.reader, Store):
        return dataset.reader
    path = Path(dataset.address.partition(":")[2])
    folder = path.parent / f"{path.name}.demerit" / ANNOTATED

    def show(progress: ImportProgress) -> None:
        if callable(on_progress):
            on_progress(progress.seen)

    import_dataset(dataset, folder, on_progress=show)
    return Store(folder)


def make_items(
    store: Store, kinds: Sequence[str], pairs: int | None = None, gold: int = 0, seed: int = 0
) -> Iterator[NewItem]:
    """List what to ask: each episode that no person has labelled, and pairs of episodes of one instruction.

    Args:
        store: the dataset folder.
        kinds: verify, compare and mark, or some of them.
        pairs: how many comparisons; None = as many as there are episodes.
        gold: how many episodes that a person has labelled are asked again, to check raters.
        seed: of the choice of pairs.
    """
    folder, episodes = str(store.root), list(store.episodes())
    for episode in episodes:
        known = next((label for label in episode.outcomes if label.source == "human"), None)
        if known is not None:
            facts = {name: getattr(known, name) for name in ("success", "grade") if getattr(known, name) is not None}
            if gold > 0 and facts and "verify" in kinds:
                gold -= 1
                yield NewItem("verify", folder, episode.id, gold=facts)
            continue
        if "verify" in kinds:
            yield NewItem("verify", folder, episode.id, urgency=_urgency(episode))
        if "mark" in kinds:
            yield NewItem("mark", folder, episode.id)
    if "compare" in kinds:
        for a, b in islice(_pairs(episodes, seed), len(episodes) if pairs is None else pairs):
            yield NewItem("compare", folder, a, b)


def _urgency(episode: Episode) -> float:
    if episode.origin.tags.get(CHECK) == "due":
        return DUE
    proposed = proposed_label(episode.outcomes)
    return MODEL_LABEL if proposed is not None and proposed.source == "model" else 0.0


def _pairs(episodes: Sequence[Episode], seed: int) -> Iterator[tuple[str, str]]:
    """Yield pairs of one instruction at random, every episode about equally often."""
    shuffle, seen = random.Random(seed).shuffle, set[tuple[str, str]]()
    by_task: dict[str, list[str]] = {}
    for episode in episodes:
        by_task.setdefault(episode.instruction, []).append(episode.id)
    while True:
        before = len(seen)
        for ids in by_task.values():
            shuffle(ids)
            for a, b in zip(ids[::2], ids[1::2], strict=False):
                pair = (min(a, b), max(a, b))
                if pair not in seen:
                    seen.add(pair)
                    yield pair
        if len(seen) == before:
            return
