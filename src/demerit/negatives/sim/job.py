"""The simulation job: worker processes simulate a list of episodes into a dataset folder."""

from __future__ import annotations

import os
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from pathlib import Path

from demerit.data.dataset import Problem
from demerit.data.decode import WorkerDeath, WorkerPool, serve_tasks
from demerit.data.episode import Episode, Preference
from demerit.data.files import make_folder
from demerit.data.store import Store, StoreWriter, open_or_create
from demerit.errors import BadEpisode, BadInput, DemeritError, NotApplicable
from demerit.negatives.sim.arena import SceneRenderer, load_mujoco
from demerit.negatives.sim.rollout import (
    DATASETS,
    LICENCE,
    EpisodeSpec,
    check_applies,
    open_arena,
    record,
    rollout,
    vary,
    video_name,
)
from demerit.negatives.sim.tasks import task

CHUNK = 16
"""episodes sent to a worker at once: mostly of one task, as building a model takes half an episode's time"""
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "LP_NUM_THREADS": "0"}
"""one process per core: threads inside them only add waiting"""
CLEAR_GAP = 0.4
"""a difference in final progress that makes one of two failures better"""
NOT_NEARLY = 0.8
"""a failure with more progress than this is too close to a success to compare"""


@dataclass
class SimulateProgress:
    """The progress of a simulation."""

    expected: int
    made: int = 0
    kept: int = 0
    """episodes of an earlier run"""
    successes: int = 0
    """among those made now"""
    preferences: int = 0
    seconds: float = 0.0
    not_applicable: Counter[str] = field(default_factory=Counter)
    """skipped episodes by reason"""

    @property
    def seen(self) -> int:
        """The number of processed episodes."""
        return self.made + self.kept + self.not_applicable.total()


EpisodeSimulator = Callable[[Sequence[EpisodeSpec], Path], Generator[tuple[str, Episode | str], None, None]]
"""takes specs and the folder of videos; yields (id, episode or error) in any order"""


def plan_variants(
    episodes: Iterable[Episode], count: int, changes: Sequence[str], size: int
) -> tuple[list[EpisodeSpec], Counter[str]]:
    """List `count` variants of each episode that no label calls a success; count the others by reason."""
    if count < 1:
        raise BadInput("episodes", "at least one variant of each failure", count)
    specs, skipped = [], Counter[str]()
    for episode in episodes:
        try:
            if episode.check == "rejected" or (episode.outcome and episode.outcome.success):
                raise NotApplicable("no failure: labelled a success, or rejected by a person")
            specs += [vary(episode, number, changes, size) for number in range(count)]
        except NotApplicable as no:
            skipped[no.reason] += 1
    return specs, skipped


def simulate(
    dest: str | Path,
    specs: Sequence[EpisodeSpec],
    workers: int | None = None,
    on_progress: Callable[[SimulateProgress], None] = lambda progress: None,
    simulator: EpisodeSimulator | None = None,
) -> SimulateProgress:
    """Simulate episodes into a dataset folder. Run it again to resume.

    Args:
        dest: a new folder, or that of an earlier run.
        specs: what to simulate; `demerit.negatives.sim.splits.plan` lists the benchmark's episodes.
        workers: number of processes; None = number of cores.
        on_progress: called after every episode.
        simulator: who simulates; None = worker processes here.
    """
    workers = workers if workers is not None else os.cpu_count() or 1
    if workers < 1:
        raise BadInput("workers", "at least 1", workers)
    robots = sorted({task(spec.task).robot for spec in specs})
    for robot in robots:
        load_mujoco(robot)  # fail before anything is written
    source = "simulator:" + "+".join(DATASETS[robot][0] for robot in robots)
    store = open_or_create(dest, Path(dest).resolve().name, LICENCE, source)
    progress = SimulateProgress(len(specs))
    started = time.monotonic()
    with store.writer() as writer:
        todo = _select_todo(specs, writer, progress)
        on_progress(progress)
        answers = (simulator or partial(simulate_here, workers=workers))(todo, make_folder(store.root / "videos"))
        for episode in _in_order(todo, answers):
            writer.add(episode)
            progress.made += 1
            progress.successes += bool(episode.outcome and episode.outcome.success)
            progress.seconds = time.monotonic() - started
            on_progress(progress)
    progress.preferences = _add_preferences(store.root)
    progress.seconds = time.monotonic() - started
    on_progress(progress)
    return progress


def _select_todo(specs: Sequence[EpisodeSpec], writer: StoreWriter, progress: SimulateProgress) -> list[EpisodeSpec]:
    todo = []
    for spec in specs:
        try:
            check_applies(spec)
        except NotApplicable as no:
            progress.not_applicable[no.reason] += 1
            writer.add(Problem("not applicable", spec.id, no.reason, kept=False))
            continue
        if spec.id in writer:
            progress.kept += 1
        else:
            todo.append(spec)
    return todo


def clear_preferences(episodes: Iterable[Episode]) -> Iterator[Preference]:
    """Compare episodes of one task in one scene whose outcomes clearly differ.

    A success beats a failure that ended at progress 0.8 or less; of two failures, the one 0.4 or more ahead is better.
    A hash of the ids decides which of the two is `a`, so the order is not a cue.
    """
    groups: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        if episode.outcome is not None and episode.outcome.progress is not None:
            groups[episode.origin.group].append(episode)
    for group in groups.values():
        for pair in combinations(group, 2):
            good, bad = sorted(pair, key=_rank, reverse=True)
            why = _why_better(good, bad)
            if why:
                a, b = (good, bad) if zlib.crc32(f"{good.id} {bad.id}".encode()) % 2 else (bad, good)
                yield Preference(a.id, b.id, "a" if a is good else "b", "simulator", why, "mujoco")


def _rank(episode: Episode) -> tuple[bool, float]:
    assert episode.outcome is not None
    return bool(episode.outcome.success), episode.outcome.progress or 0.0


def _why_better(good: Episode, bad: Episode) -> str:
    (good_done, good_end), (bad_done, bad_end) = _rank(good), _rank(bad)
    if good_done and not bad_done and bad_end <= NOT_NEARLY:
        return f"done at the end, against progress {bad_end:.2f}"
    if not good_done and not bad_done and good_end - bad_end >= CLEAR_GAP:
        return f"progress {good_end:.2f} at the end, against {bad_end:.2f}"
    return ""


def _add_preferences(root: Path) -> int:
    """Add the preferences of all episodes in the folder; existing ones are ignored by the writer."""
    store = Store(root)
    preferences = list(clear_preferences(store.episodes()))
    with store.writer() as writer:
        for preference in preferences:
            writer.add(preference)
    return len(preferences)


def simulate_here(
    specs: Sequence[EpisodeSpec], videos: Path, workers: int
) -> Generator[tuple[str, Episode | str], None, None]:
    """Yield (id, episode or error) in any order, from worker processes."""
    call = f"from demerit.negatives.sim.job import simulate_worker; simulate_worker({{pipe}}, {str(videos)!r})"
    crew = min(workers, len(specs))
    queue = min(CHUNK, -(-len(specs) // max(crew, 1)))
    with WorkerPool(call, crew, env=ENVIRONMENT, refill=0, queue=queue) as pool:
        pool.submit((spec.id, spec) for spec in specs)
        while True:
            for id, answer in pool.receive():
                yield id, f"a process that died twice ({answer})" if isinstance(answer, WorkerDeath) else answer


def _in_order(
    specs: Sequence[EpisodeSpec], answers: Generator[tuple[str, Episode | str], None, None]
) -> Iterator[Episode]:
    """Yield the episodes in the order of the specs; raise BadEpisode at an error."""
    finished: dict[str, Episode] = {}
    with closing(answers):
        for spec in specs:
            while spec.id not in finished:
                id, answer = next(answers)
                if isinstance(answer, str):
                    raise BadEpisode(id, "a finished simulation", answer)
                finished[id] = answer
            yield finished.pop(spec.id)


class SimulatingProcess:
    """Simulates one episode after the other; the scene stays while the task does."""

    def __init__(self, videos: Path) -> None:
        """Write videos into this folder."""
        self.videos = videos
        self.renderer: SceneRenderer | None = None

    def __call__(self, spec: EpisodeSpec) -> Episode | str:
        """Return the episode, or why there is none."""
        try:
            if self.renderer is None or (self.renderer.arena.task.name, self.renderer.size) != (spec.task, spec.size):
                self.close()
                self.renderer = SceneRenderer(open_arena(task(spec.task)), spec.size)
            return record(rollout(spec, self.renderer.arena, self.renderer), self.videos / video_name(spec))
        except (DemeritError, ArithmeticError, ValueError, RuntimeError, MemoryError) as error:
            return str(error) or type(error).__name__

    def close(self) -> None:
        """Free the scene."""
        if self.renderer is not None:
            self.renderer.close()
            self.renderer = None


def simulate_worker(pipe: int, videos: str) -> None:
    """Run a simulating process."""
    simulating = SimulatingProcess(Path(videos))
    serve_tasks(pipe, simulating)
    simulating.close()
