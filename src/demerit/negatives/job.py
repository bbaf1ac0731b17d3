"""The negatives job: make the negatives of a mix from a dataset, and count what could not be made."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from demerit.data.dataset import Dataset, Problem, Problems
from demerit.data.episode import Episode, Outcome
from demerit.data.importing import FolderUpdate, ImportProgress, copy_frames
from demerit.data.store import Store, StoreWriter, open_or_create
from demerit.data.video import VideoClip
from demerit.errors import NotApplicable, UnreadableVideo
from demerit.negatives.mix import Mix, Pool, choose_originals
from demerit.negatives.negative import (
    DONE_GRADE,
    apply_edit,
    is_generator,
    is_success,
    load_negative,
    targets_of,
    trusted_outcome,
)

ANY = "every negative"
ASSUMED = "assumed: "
SUCCEEDED = "that assume the original succeeded (--assume-success)"
EVENLY = "that assume the original's progress rises evenly with time: none was marked or measured"
MEASURED = "from progress that was marked or measured in the original"
KEPT = "of the original, unchanged"


@dataclass
class NegativesProgress:
    """Progress and results. Counts include the negatives of an earlier run of the same job."""

    expected: int | None
    seen: int = 0
    """episodes read"""
    originals: int = 0
    """episodes used to make negatives"""
    over: int = 0
    """originals over the limit per dataset"""
    kept: int = 0
    """episodes of the source written unchanged"""
    added: int = 0
    """episodes written by this run"""
    made: Counter[str] = field(default_factory=Counter)
    """negatives by name"""
    grades: Counter[tuple[str, int | None]] = field(default_factory=Counter)
    """by name ('original' for unchanged episodes) and grade; None = ungraded"""
    bases: Counter[str] = field(default_factory=Counter)
    """labels of negatives by what they rest on"""
    skipped: Counter[tuple[str, str]] = field(default_factory=Counter)
    """by name and reason"""
    lengths: Counter[tuple[bool, int]] = field(default_factory=Counter)
    """by success and number of frames"""
    changes: Counter[str] = field(default_factory=Counter)
    """episodes of an earlier run that follow their source now: labels added, changed or removed"""
    durable: int = 0
    """episodes in the folder at the end"""
    problems: Problems = field(default_factory=Problems)

    def ladder(self) -> dict[int | None, int]:
        """Episodes by grade, 1 to 5 and ungraded."""
        grades: dict[int | None, int] = dict.fromkeys((1, 2, 3, 4, 5, None), 0)
        for (_, grade), count in self.grades.items():
            grades[grade] += count
        return grades

    def length_auroc(self) -> float:
        """AUROC of success by length alone: P(longer) + P(equal) / 2; NaN without both outcomes."""
        better, successes, failures = 0.0, 0, 0
        for length in sorted({length for _, length in self.lengths}):
            good, bad = self.lengths[True, length], self.lengths[False, length]
            better += good * (failures + bad / 2)
            successes, failures = successes + good, failures + bad
        return better / (successes * failures) if successes and failures else float("nan")


def make_negatives(
    dataset: Dataset,
    dest: str | Path,
    mix: Mix,
    *,
    keep_originals: bool = False,
    assume_success: str = "",
    on_progress: Callable[[NegativesProgress], None] = lambda progress: None,
) -> NegativesProgress:
    """Make negatives of a dataset's successes, and variants of its failures.

    Run it again to resume, or when labels of the source have changed: those in the folder then follow.

    Args:
        dataset: read twice, first for its instructions.
        dest: a new folder, or that of an earlier run of the same job.
        mix: how many of which.
        keep_originals: also write the source's episodes, except originals over the limit per dataset.
        assume_success: the reason to treat episodes without an outcome as successes, for instance "demonstrations";
            empty = do not use them.
        on_progress: called after every episode of the second pass.
    """
    pool, possible, ids = Pool(mix.needs_partners), dict[str, str](), set[str]()
    for episode in dataset:
        labelled = with_assumed_success(episode, assume_success)
        pool.add(labelled)
        ids.add(labelled.id)
        with suppress(NotApplicable):
            mix.check_original(labelled)
            possible[labelled.id] = labelled.origin.dataset
    originals = choose_originals(possible, mix.seed, mix.per_dataset)
    licence = dataset.reader.manifest.header.get("licence", "") if isinstance(dataset.reader, Store) else ""
    job = _describe_job(dataset, mix, keep_originals, assume_success)
    store = open_or_create(dest, f"{dataset.name}-negatives", licence, source=job)
    progress = NegativesProgress(dataset.expected(), problems=dataset.problems)
    earlier: dict[str, list[Episode]] = defaultdict(list)
    with store.writer() as writer:
        update = FolderUpdate(dataset, writer, ImportProgress(None, changes=progress.changes))
        for made in Store(store.root).episodes():
            earlier[made.id if made.id in ids else made.origin.parent].append(made)
        dataset.on_problem = update.add_problem
        for episode in dataset:
            labelled = with_assumed_success(episode, assume_success)
            try:
                _add(labelled, writer, mix, pool if labelled.id in originals else None, keep_originals, progress)
                _follow(labelled, earlier[labelled.id], update, pool)
            except UnreadableVideo as error:
                dataset.report(Problem("unreadable video", episode.id, f"{error.path}: {error.reason}", kept=False))
            progress.seen += 1
            on_progress(progress)
        update.finish()
    progress.durable = len(Store(store.root))
    on_progress(progress)
    return progress


def with_assumed_success(episode: Episode, why: str) -> Episode:
    """Label an episode without a trusted outcome as a success, with the reason; an empty reason changes nothing."""
    if not why or trusted_outcome(episode) is not None or episode.edits or episode.check == "rejected":
        return episode
    success = Outcome("rule", success=True, progress=1.0, grade=DONE_GRADE, by=f"{ASSUMED}{why}")
    return replace(episode, outcomes=(*episode.outcomes, success))


def _add(
    episode: Episode,
    writer: StoreWriter,
    mix: Mix,
    pool: Pool | None,
    keep: bool,
    progress: NegativesProgress,
) -> None:
    """Add an episode's negatives (`pool` None = it was not chosen) and, if `keep`, the episode."""
    if pool is not None or keep:
        episode = _count_frames(episode)
    if pool is None:
        try:
            mix.check_original(episode)
            progress.over += 1
            return
        except NotApplicable as no:
            progress.skipped[ANY, no.reason] += 1
    else:
        progress.originals += 1
        for variant in mix.make(episode, pool, writer):
            if not isinstance(variant, Episode):
                progress.skipped[variant] += 1
                continue
            name = variant.edits[-1].name
            progress.made[name] += 1
            label = variant.outcome
            ungraded = DONE_GRADE if label is not None and label.success else None
            progress.grades[name, ungraded if label is None or label.grade is None else label.grade] += 1
            if label is not None:
                progress.bases[_name_basis(episode, variant, pool)] += 1
            _count_length(variant, label, progress)
            progress.added += _write(writer, variant)
    if keep:
        progress.kept += 1
        progress.grades["original", _grade(episode)] += 1
        _count_length(episode, trusted_outcome(episode), progress)
        progress.added += _write(writer, _with_group(episode))


def _name_basis(original: Episode, made: Episode, pool: Pool) -> str:
    """Say what the label of an edit rests on."""
    edit = made.edits[-1]
    edited, partner = load_negative(edit.name), edit.params.get("partner")
    attempts = [original, *([pool.find(partner)] if partner else [])]
    outcomes = [trusted_outcome(attempt) for attempt in attempts]
    if any(outcome is not None and outcome.by.startswith(ASSUMED) for outcome in outcomes):
        return SUCCEEDED
    if edited.keeps:
        return KEPT
    if edited.assumes:
        return f"that assume {edited.assumes}"
    return MEASURED if all(targets_of(attempt).measured for attempt in attempts if is_success(attempt)) else EVENLY


def _follow(episode: Episode, earlier: Iterable[Episode], update: FolderUpdate, pool: Pool) -> None:
    """Bring what an earlier run made of an episode up to date; what does not follow from it any more has no label."""
    for made in earlier:
        if made.id == episode.id:
            update.compare(_with_group(episode))
        elif not is_generator(made.edits[-1].name):
            try:
                update.compare(apply_edit(episode, made.edits[-1], pool=pool))
            except NotApplicable:
                update.compare(replace(made, outcomes=()))


def _with_group(episode: Episode) -> Episode:
    """Put an original into the group of its negatives."""
    return replace(episode, origin=replace(episode.origin, group=episode.origin.group or episode.id))


def _count_frames(episode: Episode) -> Episode:
    """Count the frames of every video once; raise if one is unreadable."""
    views = {
        camera: replace(frames, source=replace(frames.source, length=len(frames.source)))
        if isinstance(frames.source, VideoClip)
        else frames
        for camera, frames in episode.views.items()
    }
    return replace(episode, views=views)


def _count_length(episode: Episode, outcome: Outcome | None, progress: NegativesProgress) -> None:
    if outcome is not None and outcome.success is not None:
        progress.lengths[outcome.success, len(episode)] += 1


def _write(writer: StoreWriter, episode: Episode) -> int:
    if episode.id in writer:
        return 0
    if episode.edits and is_generator(episode.edits[-1].name):  # its pictures are in no file
        views = {camera: copy_frames(frames, writer.root, episode.id) for camera, frames in episode.views.items()}
        episode = replace(episode, views=views)
    writer.add(episode)
    return 1


def _grade(episode: Episode) -> int | None:
    """The grade of an original: as labelled, or 5 for an ungraded success."""
    outcome = trusted_outcome(episode)
    graded = next((label.grade for label in episode.labels if label.grade is not None), None)
    return graded if graded is not None or outcome is None or not outcome.success else DONE_GRADE


def _describe_job(dataset: Dataset, mix: Mix, keep_originals: bool, assume_success: str) -> str:
    """Everything that decides the result, in one line: the `source` of the folder."""
    originals = ", originals kept" if keep_originals else ""
    assumption = f", assumed: {assume_success}" if assume_success else ""
    limits = f"{mix.per_episode} an episode, {mix.per_dataset or 'all'} episodes a dataset"
    return f"negatives of {dataset.address}: {mix}, seed {mix.seed}, {limits}{originals}{assumption}"
