"""The chosen episodes of all sources as one stream, with the corpus's names and labels; nothing is decoded."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from demerit.data.dataset import Dataset, Record
from demerit.data.episode import Episode
from demerit.data.formats import open_dataset
from demerit.data.labels import Preference
from demerit.data.splits import task_of
from demerit.errors import NotApplicable
from demerit.training.corpus.drawing import drawn
from demerit.training.corpus.labelling import labelled
from demerit.training.corpus.recipe import HeldOut, Recipe, Source

SPLIT_NAMES = {"training": "train", "validation": "val", "valid": "val"}
"""how datasets spell splits, and how we do"""
SOURCE_SPLIT, SOURCE_DATASET, PLACE = "source_split", "source_dataset", "place"
"""tags that keep what the source said"""


@dataclass
class Drawn:
    """What came of looking through one source."""

    source: Source
    ids: set[str] = field(default_factory=set)
    """chosen ones, as the source names them"""
    found: int = 0
    """episodes that can be read"""
    usable: int = 0
    tasks: int = 0
    """different tasks among the usable ones"""
    left_out: Counter[str] = field(default_factory=Counter)
    """by reason; those over the cap are not among them"""

    @property
    def over(self) -> int:
        """Usable ones that were not drawn, because there are enough."""
        return self.usable - len(self.ids)


def opened(one: Source | HeldOut, strict: bool = False) -> Dataset:
    """Open a source where it lies."""
    address = f"{one.format}:{one.folder}" if one.format else one.folder
    camera = one.camera or None if isinstance(one, Source) else None
    return open_dataset(address, strict=strict, camera=camera, **dict(one.options))


def draw(
    recipe: Recipe, source: Source, strict: bool = False, progress: Callable[[int], None] = lambda done: None
) -> Drawn:
    """Look through a source once and choose."""
    result, known = Drawn(source), dict[str, str]()
    dataset = opened(source, strict)
    for episode in dataset:
        result.found += 1
        progress(result.found)
        try:
            known[episode.id] = task_of(labelled(episode, source))
        except NotApplicable as no:
            result.left_out[no.reason] += 1
    for problem in dataset.problems.rows():
        if not problem["kept"]:
            result.left_out[str(problem["problem"])] += int(problem["episodes"])
    result.usable, result.tasks = len(known), len(set(known.values()))
    result.ids = drawn(known.items(), recipe.cap_of(source), recipe.seed)
    return result


def digest_of(chosen: Iterable[Drawn], splits: Mapping[str, str]) -> str:
    """Changes when other episodes are chosen, or parted otherwise."""
    digest = hashlib.sha256()
    for one in chosen:
        told = sorted((id, splits.get(new_id(one.source, id), "")) for id in one.ids)
        digest.update(repr((one.source.name, told)).encode())
    return digest.hexdigest()[:16]


@dataclass(eq=False)
class Gathered:
    """A reader of the chosen episodes of all sources, source by source. Satisfies `DatasetReader`."""

    recipe: Recipe
    chosen: tuple[Drawn, ...]
    strict: bool = False

    @property
    def name(self) -> str:
        """The corpus's name."""
        return self.recipe.name

    def expected(self) -> int:
        """As many as were chosen."""
        return sum(len(one.ids) for one in self.chosen)

    def records(self) -> Iterator[Record]:
        """Stream episodes and the preferences between them."""
        for one in self.chosen:
            for record in opened(one.source, self.strict).records():
                if isinstance(record, Preference):
                    if {record.a, record.b} <= one.ids:
                        yield replace(record, a=new_id(one.source, record.a), b=new_id(one.source, record.b))
                elif record.id in one.ids:
                    yield renamed(labelled(record, one.source), one.source)


def new_id(source: Source, id: str) -> str:
    """What an episode is called in the corpus."""
    return f"{source.name}/{id}"


def renamed(episode: Episode, source: Source) -> Episode:
    """Give an episode the corpus's names; what the source called things goes to tags."""
    origin, id = episode.origin, new_id(source, episode.id)
    told = {SOURCE_SPLIT: origin.split, SOURCE_DATASET: origin.dataset if origin.dataset != source.name else ""}
    if not source.groups:
        told[PLACE] = origin.group
    return replace(
        episode,
        id=id,
        origin=replace(
            origin,
            dataset=source.name,
            licence=origin.licence or source.licence,
            embodiment=origin.embodiment or source.embodiment,
            split=SPLIT_NAMES.get(origin.split.lower(), origin.split),
            group=f"{source.name}/{origin.group}" if origin.group and source.groups else id,
            parent=new_id(source, origin.parent) if origin.parent else "",
            tags={**origin.tags, **{name: value for name, value in told.items() if value}},
        ),
    )
