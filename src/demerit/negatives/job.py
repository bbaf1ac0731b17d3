"""The negatives job: a dataset and a mix become a folder of views, with everything that was not made counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from demerit.data.dataset import Dataset, Problem, Problems
from demerit.data.episode import Episode
from demerit.data.labels import Outcome
from demerit.data.store import Store, StoreWriter
from demerit.data.video import VideoClip
from demerit.errors import NotApplicable, StoreError, UnreadableVideo
from demerit.negatives.mix import Mix, Originals, Pool, Skipped
from demerit.negatives.negative import DONE_GRADE, succeeded, trusted_account

ANY = "every negative"


@dataclass
class NegativesProgress:
    """How far the job is, and what came of it. Counts include what an earlier run of the same job made."""

    expected: int | None
    seen: int = 0
    """episodes looked at"""
    originals: int = 0
    """episodes that negatives were made from"""
    over: int = 0
    """successes left unused because their dataset has enough"""
    kept: int = 0
    """episodes of the source that are in the folder as they were"""
    added: int = 0
    """episodes that this run wrote"""
    made: Counter[str] = field(default_factory=Counter)
    """negatives by name"""
    grades: Counter[tuple[str, int | None]] = field(default_factory=Counter)
    """by name ('original' for what was kept) and grade; None is ungraded"""
    skipped: Counter[tuple[str, str]] = field(default_factory=Counter)
    """by name and reason"""
    lengths: Counter[tuple[bool, int]] = field(default_factory=Counter)
    """by success, where it is known, and number of frames"""
    durable: int = 0
    """episodes in the folder that survive a crash"""
    problems: Problems = field(default_factory=Problems)

    def ladder(self) -> dict[int | None, int]:
        """How many there are of each grade, 1 to 5 and ungraded."""
        grades: dict[int | None, int] = dict.fromkeys((1, 2, 3, 4, 5, None), 0)
        for (_, grade), count in self.grades.items():
            grades[grade] += count
        return grades

    def length_auroc(self) -> float:
        """How well length alone tells success from failure: P(longer) + 1/2 P(equal); NaN without both."""
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
    """Make negatives of a dataset's successes. Run it again after an interruption and it goes on where it was.

    Args:
        dataset: what to read; it is read twice, the first time for the words that it offers.
        dest: the folder to make, or one that an earlier run of the same job made.
        mix: how many of which.
        keep_originals: write the source's episodes too, except successes over the limit per dataset.
        assume_success: what makes it right to take an episode without an outcome for a success, for instance
            "demonstrations"; empty = such episodes are not used.
        on_progress: called after every episode of the second reading.
    """
    pool, originals = Pool(mix.needs_partners), Originals(mix)
    for episode in dataset:
        told = assumed(episode, assume_success)
        pool.add(told)
        originals.add(told)
    chosen = originals.ids
    store = _folder(dataset, dest, _recipe(dataset, mix, keep_originals, assume_success))
    progress = NegativesProgress(dataset.expected(), problems=dataset.problems)
    with store.writer() as writer:
        dataset.on_problem = writer.add
        for episode in dataset:
            told = assumed(episode, assume_success)
            try:
                _add(told, writer, mix, pool if told.id in chosen else None, keep_originals, progress)
            except UnreadableVideo as error:
                dataset.report(Problem("unreadable video", episode.id, f"{error.path}: {error.reason}", kept=False))
            progress.seen += 1
            on_progress(progress)
    progress.durable = len(Store(store.root))
    on_progress(progress)
    return progress


def assumed(episode: Episode, why: str) -> Episode:
    """Add the assumption that an episode whose outcome nobody trusted knows is a success, in so many words."""
    if not why or trusted_account(episode) is not None or episode.edits:
        return episode
    success = Outcome("rule", success=True, progress=1.0, grade=DONE_GRADE, by=f"assumed: {why}")
    return replace(episode, outcomes=(*episode.outcomes, success))


def _add(
    episode: Episode,
    writer: StoreWriter,
    mix: Mix,
    pool: Pool | None,
    keep: bool,
    progress: NegativesProgress,
) -> None:
    """Add one episode's negatives (none when it was not chosen, `pool` is None then) and perhaps itself."""
    if pool is not None or keep:
        episode = _measured(episode)
    if pool is None:
        try:
            succeeded(episode)
            progress.over += 1
            return
        except NotApplicable as no:
            progress.skipped[ANY, no.reason] += 1
    else:
        progress.originals += 1
        for made in mix.make(episode, pool):
            if isinstance(made, Skipped):
                progress.skipped[made.name, made.reason] += 1
                continue
            name = made.edits[-1].name
            progress.made[name] += 1
            progress.grades[name, made.outcomes[0].grade] += 1
            _count_length(made, made.outcomes[0], progress)
            progress.added += _write(writer, made)
    if keep:
        progress.kept += 1
        progress.grades["original", _grade(episode)] += 1
        _count_length(episode, trusted_account(episode), progress)
        origin = replace(episode.origin, group=episode.origin.group or episode.id)  # as its negatives have it
        progress.added += _write(writer, replace(episode, origin=origin))


def _measured(episode: Episode) -> Episode:
    """Count the frames of every video once, before anything is made of them or counted; an unreadable one raises."""
    views = {
        camera: replace(frames, source=replace(frames.source, length=len(frames.source)))
        if isinstance(frames.source, VideoClip)
        else frames
        for camera, frames in episode.views.items()
    }
    return replace(episode, views=views)


def _count_length(episode: Episode, said: Outcome | None, progress: NegativesProgress) -> None:
    if said is not None and said.success is not None:
        progress.lengths[said.success, len(episode)] += 1


def _write(writer: StoreWriter, episode: Episode) -> int:
    if episode.id in writer:
        return 0
    writer.add(episode)
    return 1


def _grade(episode: Episode) -> int | None:
    """The grade that an original counts as: its own, or 5 where it succeeded and nobody graded it."""
    said = trusted_account(episode)
    graded = next((account.grade for account in episode.outcomes if account.grade is not None), None)
    return graded if graded is not None or said is None or not said.success else DONE_GRADE


def _recipe(dataset: Dataset, mix: Mix, keep_originals: bool, assume_success: str) -> str:
    """All that decides what is in the folder, in one line: a run that differs in any of it is another job."""
    originals = ", originals kept" if keep_originals else ""
    assumption = f", assumed: {assume_success}" if assume_success else ""
    limits = f"{mix.per_episode} an episode, {mix.per_dataset or 'all'} episodes a dataset"
    return f"negatives of {dataset.address}: {mix}, seed {mix.seed}, {limits}{originals}{assumption}"


def _folder(dataset: Dataset, dest: str | Path, recipe: str) -> Store:
    if not Store.is_at(dest):
        licence = dataset.reader.manifest.header.get("licence", "") if isinstance(dataset.reader, Store) else ""
        return Store.create(dest, f"{dataset.name}-negatives", licence, source=recipe)
    store = Store(dest)
    if store.manifest.header.get("source") != recipe:
        raise StoreError(dest, f"it holds {store.manifest.header.get('source') or 'something else'}; choose another")
    return store
