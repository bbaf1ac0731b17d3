"""teach: a dataset in, a model out, in an order that leaves something usable at every moment.

gather          labels read, contradictions left out; too little is a sentence
look            every frame through the network, kept on disk         Ctrl-C: go on with what was seen
fit             the head, on everything; the model is written
leave out       folds, probabilities, the threshold; written again    Ctrl-C: keep what is written
report          controls, the wrongest episodes, what to label next; written
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from demerit.data.dataset import Dataset
from demerit.data.episode import Episode
from demerit.data.files import lock_folder
from demerit.data.formats import open_dataset
from demerit.errors import BadInput, DemeritError, StoreError
from demerit.models.folder import DESCRIPTION, name_of
from demerit.models.taught.features import FeatureMaker, checked_parts
from demerit.models.taught.head import Head
from demerit.models.taught.model import KIND, Recipe, TaughtModel
from demerit.training.teach.building import build_lesson
from demerit.training.teach.calibrate import Calibration, calibrate
from demerit.training.teach.crossval import CrossValidated, CurvePoint, cross_validate, learning_curve
from demerit.training.teach.findings import Findings, find
from demerit.training.teach.folder import check_out, sealed, shelf_folder, write_model
from demerit.training.teach.gather import Gathered, gather
from demerit.training.teach.lesson import Lesson, Room, Seen
from demerit.training.teach.looking import Shelf, Unseen, common_cameras, look, stride_for
from demerit.training.teach.next_labels import Suggestion, suggest
from demerit.training.teach.page import write_page
from demerit.training.teach.settings import Settings

Watch = Callable[[str, int, int], None]
"""called with what is being done, how much of it is done and how much there is"""
CHEAP = 60
"""up to so many groups a learning curve is drawn as well"""
UNLABELLED = (20, 200)
"""unlabelled episodes that are looked at for what to label next: as many as are labelled, but at least and at most"""


@dataclass(frozen=True)
class Options:
    """What changes the model or how it is reached, beside the data."""

    risk: float = 0.05
    """share of failures that may be called a success"""
    cameras: tuple[str, ...] = ()
    """empty: every camera that all taught episodes have"""
    limit: int | None = None
    workers: int | None = None
    """decoding processes; None = one a core, 0 = none"""
    settings: Settings = field(default_factory=Settings)
    embed: int = 8
    """videos that the report carries in itself"""

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        if not 0 < self.risk < 1:
            raise BadInput("risk", "a number between 0 and 1", self.risk)
        for name, least in (("limit", 1), ("workers", 0), ("embed", 0)):
            number = getattr(self, name)
            if number is not None and number < least:
                raise BadInput(name, f"a number from {least} on", number)


@dataclass(frozen=True, eq=False)
class Taught:
    """What came of a lesson."""

    model: TaughtModel
    findings: Findings
    folder: Path | None
    stopped: str = ""
    """what an interruption left undone, as a sentence; empty when all is done"""


def teach(
    dataset: str | Path | Dataset,
    out: str | Path | None = None,
    *,
    risk: float = 0.05,
    cameras: Sequence[str] = (),
    limit: int | None = None,
    seed: int = 0,
    settings: Settings | None = None,
    maker: FeatureMaker | None = None,
    workers: int | None = None,
    on_progress: Watch = lambda what, done, total: None,
) -> Taught:
    """Teach a model from your own episodes: some of them labelled, in whatever way.

    Args:
        dataset: a folder whose format its files tell, `format:path`, or an open dataset.
        out: the model's folder; None = nothing is written.
        risk: the share of failures that may be called a success.
        cameras: which to look through; none = all that every taught episode has.
        limit: only the first so many episodes.
        seed: draws folds and negatives.
        settings: everything that can be tuned.
        maker: another network than the one that ships.
        workers: decoding processes.
        on_progress: told how far it is.
    """
    chosen = settings or replace(Settings(), seed=seed)
    options = Options(risk, tuple(cameras), limit, workers, chosen)
    opened = dataset if isinstance(dataset, Dataset) else open_dataset(str(dataset))
    if maker is None:
        from demerit.models.taught.network import Network  # noqa: PLC0415  # a tenth of a second

        maker = Network.shipped()
    gathered = gather(opened, options.limit)
    with _shelf(out, gathered.address) as shelf:
        return _Teaching(gathered, maker, options, None if out is None else Path(out), shelf, on_progress).run()


@contextmanager
def _shelf(out: str | Path | None, address: str) -> Iterator[Path]:
    """Give the folder for what was seen, locked; one that vanishes where no model is written."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="demerit-teach-") as folder:
            yield Path(folder)
        return
    check_out(Path(out), address)
    beside = shelf_folder(Path(out))
    try:
        beside.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(beside, f"the folder cannot be made ({error.strerror})") from error
    with lock_folder(beside):
        yield beside


class _Teaching:
    """One lesson, stage by stage."""

    def __init__(
        self, gathered: Gathered, maker: FeatureMaker, options: Options, out: Path | None, shelf: Path, watch: Watch
    ) -> None:
        self.gathered, self.maker, self.options, self.out, self.watch = gathered, maker, options, out, watch
        self.shelf = shelf
        self.notes: list[str] = list(gathered.notes)
        self.stopped = ""
        self.name = KIND if out is None else name_of(out)

    def run(self) -> Taught:
        room = self._room()
        lesson, left = build_lesson(self.gathered, room, self._seen(room))
        self.notes += left
        head = lesson.fit()
        left_out = CrossValidated(np.full(len(lesson), -1))
        calibration = calibrate(lesson, left_out, self.options.risk)
        if self.out is None or not (self.out / DESCRIPTION).exists():
            self._write(lesson, head, calibration)  # an earlier lesson's model is better than this one without figures
        curve: list[CurvePoint] = []
        suggestions: list[Suggestion] = []
        try:
            cross_validate(lesson, lambda done, total: self.watch("leaving episodes out", done, total), left_out)
            if len(set(lesson.groups)) <= CHEAP:
                curve = learning_curve(lesson)
            if not self.stopped:
                suggestions = self._suggestions(room, lesson, left_out, head)
        except KeyboardInterrupt:
            self.stopped = self.stopped or "interrupted while episodes were left out: the figures rest on some of them"
        calibration = calibrate(lesson, left_out, self.options.risk)
        model = self._write(lesson, head, calibration)
        findings = find(self.gathered, lesson, left_out, calibration, model, curve, suggestions, tuple(self.notes))
        return self._reported(Taught(model, findings, self.out, self.stopped))

    def _room(self) -> Room:
        gathered, settings = self.gathered, self.options.settings
        cameras = self.options.cameras or common_cameras(gathered.taught)
        if not cameras:
            raise BadInput(gathered.address, "a camera that every labelled episode has (or --cameras)", "none")
        known = {name for one in gathered.taught for name in one.views}
        unknown = [name for name in cameras if name not in known]
        if unknown:
            raise BadInput("cameras", f"some of {', '.join(sorted(known))}", ", ".join(unknown))
        lengths = [_length(one, cameras[0]) for one in gathered.taught]
        return Room(self.maker, tuple(cameras), stride_for(lengths, len(cameras)), settings)

    def _seen(self, room: Room) -> list[Seen]:
        """Look at everything that is taught from; Ctrl-C ends looking, not the lesson."""
        episodes = self.gathered.in_turns()
        seen: list[Seen] = []
        lost: list[Unseen] = []
        try:
            for one in self._look(room, episodes, "looking at episodes"):
                if isinstance(one, Seen):
                    seen.append(one)
                else:
                    lost.append(one)
        except KeyboardInterrupt:
            if not seen:
                raise
            done = len(seen) + len(lost)
            self.stopped = f"interrupted after {done} of {len(episodes)} episodes: the model was taught on those"
        if len(lost) * 2 > len(episodes) or not seen:
            reason, count = Counter(one.reason for one in lost).most_common(1)[0]
            raise BadInput(
                self.gathered.address,
                "videos that can be read",
                f"{len(lost)} of {len(episodes)} labelled episodes that cannot, {count} of them because: {reason}",
            )
        for one in lost:
            self.notes.append(f"{one.id} was left out: {one.reason}.")
        order = {episode.id: place for place, episode in enumerate(self.gathered.taught)}
        return sorted(seen, key=lambda one: order[one.id])

    def _look(self, room: Room, episodes: Sequence[Episode], what: str) -> Iterator[Seen | Unseen]:
        workers = self.options.workers if self.options.workers is not None else os.cpu_count() or 1
        total = len(episodes)
        return look(
            episodes, room, Shelf(self.shelf, room), min(workers, total), lambda done: self.watch(what, done, total)
        )

    def _suggestions(self, room: Room, lesson: Lesson, left_out: CrossValidated, head: Head) -> list[Suggestion]:
        most = int(np.clip(len(lesson), *UNLABELLED))
        asked = list(self.gathered.unlabelled[:most])
        found = [one for one in self._look(room, asked, "looking for what to label next") if isinstance(one, Seen)]
        calibration = calibrate(lesson, left_out, self.options.risk)
        return suggest(lesson, left_out.heads, head, calibration, found)

    def _write(self, lesson: Lesson, head: Head, calibration: Calibration) -> TaughtModel:
        head = replace(head, steep=calibration.steep, middle=calibration.middle)
        recipe = Recipe(
            network=self.maker.hash,
            cameras=lesson.room.cameras,
            parts=checked_parts(list(lesson.room.settings.parts)),
            stride=lesson.room.stride,
            threshold=calibration.threshold,
            risk=calibration.risk,
            promise=calibration.note,
            taught_on=self._taught_on(lesson),
            licence=_licence(self.maker, lesson),
            lesson={"head": dict(head.about), "settings": lesson.room.settings.as_facts(), "stopped": self.stopped},
        )
        if self.out is None:
            return TaughtModel(sealed(recipe, head)[0], head, self.maker, self.name)
        return TaughtModel(write_model(self.out, recipe, head), head, self.maker, self.name)

    def _taught_on(self, lesson: Lesson) -> dict[str, Any]:
        verdicts = Counter(label.verdict for label in lesson.labels)
        kinds = self.gathered.kinds()
        return {
            "address": self.gathered.address,
            "dataset": self.gathered.name,
            "episodes": len(lesson),
            "successes": verdicts[True],
            "failures": verdicts[False],
            "labels": ", ".join(f"{kind}: {count}" for kind, count in kinds.items()),
            "tasks": lesson.tasks,
        }

    def _reported(self, taught: Taught) -> Taught:
        if self.out is not None:
            self.watch("writing the report", 0, 1)
            camera = taught.model.recipe.cameras[0]
            frames = {one.id: one.views[camera] for one in self.gathered.taught if camera in one.views}
            try:
                taught.findings.write(self.out / "report.json")
                embed = 0 if taught.stopped else self.options.embed
                write_page(taught.findings, self.out / "report.html", frames, embed)
            except KeyboardInterrupt:
                said = taught.stopped or "interrupted while the report was written: the model is complete"
                return replace(taught, stopped=said)
            self.watch("writing the report", 1, 1)
        return taught


def _length(episode: Episode, camera: str) -> int:
    try:
        return len(episode.views[camera]) if camera in episode.views else 0
    except DemeritError:
        return 0  # it is met again, with its reason, where it is decoded


def _licence(maker: FeatureMaker, lesson: Lesson) -> str:
    data = sorted({one.episode.origin.licence for one in lesson.seen} - {""})
    of_network = str(maker.facts.get("licence", "")) or "unknown"
    return of_network if not data else f"{of_network}, taught on data under {', '.join(data)}"
