"""A folder that a robot writes to: what is new is scored, once per fingerprint, and stored as `demerit score` does.

An episode is scored when its files have kept size and time for `settle` seconds and open. One that does not open, or
may get another camera, is waited for until it has not changed for `patience` seconds. One that still does not open is
stored as unscored, with the reason, and tried again when it changes. Whatever goes wrong with the folder or the disk is
said and tried again at the next look: the recordings are there, and what was scored is stored.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from demerit.data.dataset import SOURCES, Dataset, ListReader
from demerit.data.episode import Episode
from demerit.data.formats.videos import split_camera
from demerit.data.frames import list_recordings
from demerit.data.reward import Reward, Verdict
from demerit.data.store import Store
from demerit.decide.detector import Detector
from demerit.errors import BadInput, DemeritError, UnreadableVideo
from demerit.models.protocol import RewardModel
from demerit.models.reward_store import MANIFEST, RewardStore
from demerit.models.score import ScoreJob, rewards_folder, score

BATCH = 8
"""episodes scored between two looks, the newest first"""
OLD = 60.0
"""seconds after which an unchanged file counts as complete at first sight"""
FileState = tuple[str, int, int]
"""path, size, modification time in nanoseconds; -1 for a file that is not there"""
EpisodeKey = tuple[str, tuple[FileState, ...]]
"""instruction and files: while it stays the same, nothing is read again"""


@dataclass(frozen=True)
class WatchedEpisode:
    """A row of the page: an episode and what was said about it."""

    id: str
    instruction: str
    place: int
    """in `Watcher.episodes`"""
    recorded: float
    """when its newest file was written, in seconds since 1970"""
    value: float | None
    """final value; None = unscored"""
    verdict: Verdict
    familiarity: float | None
    unscored: str
    """why it has no value"""
    kind: str = ""
    """of its failure, where it is known"""
    frame: int | None = None
    """where a detector saw it go wrong"""
    caution: str = ""
    """why the model is not trusted yet"""

    @property
    def success(self) -> bool | None:
        """Whether it succeeded; None = unknown."""
        return self.verdict.success


@dataclass(frozen=True)
class WatchState:
    """What a watch knows at one moment; replaced as a whole, so that other threads can read it."""

    rows: tuple[WatchedEpisode, ...] = ()
    """by the time of recording"""
    waiting: tuple[tuple[str, str], ...] = ()
    """episodes that are not scored yet, and why"""
    problem: str = ""
    """why the last look failed"""
    failures: int = 0
    """looks that failed"""
    skipped: tuple[str, ...] = ()
    """problems of the dataset"""
    scored: int = 0
    """episodes that this process has scored"""
    scored_at: float | None = None
    """when the newest of them was stored"""
    notes: tuple[str, ...] = ()
    """what its reader recognised by itself"""


class Watcher:
    """Looks at a folder and scores what is new. One thread calls `look`; others may read `state` and `episodes`."""

    def __init__(
        self,
        address: str,
        model: RewardModel,
        open_dataset: Callable[[str], Dataset],
        *,
        out: Path | None = None,
        detector: Detector | None = None,
        settle: float = 1.0,
        patience: float = 30.0,
        now: Callable[[], float] = time.time,
        on_scored: Callable[[WatchedEpisode], None] = lambda row: None,
    ) -> None:
        """Watch `address`, a folder or `FORMAT:FOLDER` that exists and may be empty; `open_dataset` opens it each time.

        The folder of rewards is made in `out`, or next to the dataset, as `demerit score` does. Without a detector, the
        model's own verdict says what went wrong. A file is complete after `settle` seconds without a change; one that
        does not open is waited for `patience` seconds. `on_scored` is called with every episode scored now.
        """
        kind, colon, rest = address.partition(":")
        self.root = Path(rest if colon and kind in SOURCES else address).expanduser().resolve()
        if not self.root.is_dir():
            raise BadInput(str(self.root), "an existing folder", "something else" if self.root.exists() else "none")
        self.address, self.model, self.state, self.episodes = address, model, WatchState(), list[Episode]()
        self._open, self._out, self._detector = open_dataset, out, detector
        self.outcome = "success" if detector is None else "failure"
        """what a rate counts: a detector finds failures, and no alarm is no success"""
        self._settle, self._patience, self._now, self._on_scored = settle, patience, now, on_scored
        self._files: dict[str, FileState] = {}
        self._dataset: Dataset | None = None
        self._since: dict[FileState, float] = {}
        self._places: dict[str, int] = {}
        self._paths: dict[str, list[str]] = {}
        self._done: dict[str, EpisodeKey] = {}
        self._rows: dict[str, WatchedEpisode] = {}
        self._store: RewardStore | None = None
        self._rewards: dict[str, Reward] = {}

    def look(self) -> int:
        """Look once and score up to BATCH episodes; return how many more are ready. An error is kept in `state`."""
        try:
            return self._look()
        except (DemeritError, OSError) as error:
            where = getattr(error, "filename", None) or self.folder or self.root
            text = str(error) if isinstance(error, DemeritError) else f"{where}: {error.strerror}"
            self._dataset = None  # open it again
            self.state = replace(self.state, problem=text, failures=self.state.failures + 1)
            return 0

    @property
    def folder(self) -> Path | None:
        """The folder of the rewards; None = not known before there is a dataset."""
        if self._dataset is None:
            return None
        folder = rewards_folder(self._dataset, self.model.card.name)
        return folder if self._out is None else self._out / folder.name

    def _look(self) -> int:
        self._refresh()
        ready, waiting = list[tuple[Episode, EpisodeKey]](), list[tuple[str, str]]()
        for episode in self.episodes:
            if episode.id not in self._paths:
                continue
            key = (episode.instruction, self._states(episode.id))
            if self._done.get(episode.id) == key:
                continue
            if reason := self._why_wait(episode, key[1]):
                waiting.append((episode.id, reason))
            elif not self._take_stored(episode, key):
                ready.append((episode, key))
        ready.sort(key=lambda item: -recorded_at(item[1][1]))
        batch = ready[:BATCH]
        waiting += [(episode.id, "its turn comes") for episode, _ in ready[BATCH:]]
        if batch:
            self._score(batch)
        rows = sorted((row for id, row in self._rows.items() if id in self._paths), key=lambda row: row.recorded)
        self.state = replace(self.state, rows=tuple(rows), waiting=tuple(waiting), problem="")
        return len(ready) - len(batch)

    def _refresh(self) -> None:
        """Read the dataset again if a file of the folder has changed."""
        if not self.root.is_dir():
            raise BadInput(str(self.root), "the folder to watch", "nothing: it is gone; it is looked for again")
        files = {path: state_of(path) for path in _walk(self.root)}
        if self._dataset is not None and files == self._files:
            return
        self._files, self._paths = files, {}
        if not files:
            return
        dataset = self._open(self.address)
        for episode in dataset:
            place = self._places.setdefault(episode.id, len(self._places))
            self.episodes[place : place + 1] = [episode]
            self._paths[episode.id] = files_of(episode)
        self._dataset = dataset
        skipped = tuple(f"{row['problem']}: {row['episodes']}, e.g. {row['first']}" for row in dataset.problems.rows())
        self.state = replace(self.state, skipped=skipped, notes=tuple(dataset.notes()))

    def _states(self, id: str) -> tuple[FileState, ...]:
        return tuple(self._files.get(path) or state_of(path) for path in self._paths[id])

    def _why_wait(self, episode: Episode, files: tuple[FileState, ...]) -> str:
        now = self._now()
        since = max((self._since.setdefault(state, now) for state in files), default=0.0)
        age = max(now - since, OLD if now - recorded_at(files) > OLD else 0.0)
        if age < self._settle:
            return "still being written"
        if age < self._patience:
            if self._lacks_camera(episode):
                return "another camera may come"
            try:
                for view in episode.views.values():
                    len(view)
            except UnreadableVideo as error:
                return f"does not open yet: {error.reason}"
        return ""

    def _lacks_camera(self, episode: Episode) -> bool:
        """Whether another episode here has more cameras; of the first one, whether its name is that of a camera."""
        views = [set(other.views) for other in self.episodes if other.id in self._paths]
        is_first = not self._done and len(episode.views) == 1
        is_camera = is_first and any(split_camera(self.root, Path(path)) for path in self._paths[episode.id])
        return is_camera or any(set(episode.views) < others for others in views)

    def _take_stored(self, episode: Episode, key: EpisodeKey) -> bool:
        """Take the reward of an earlier run, unless the episode or the model has changed."""
        if self._store is None and self.folder is not None and (self.folder / MANIFEST).exists():
            self._store = RewardStore(self.folder)
            self._rewards = {reward.episode: reward for reward in self._store}
        if self._store is None or not self._store.is_fresh(episode, self.model.card):
            return False
        self._rows[episode.id], self._done[episode.id] = self._judge(episode, self._rewards[episode.id]), key
        return True

    def _score(self, batch: list[tuple[Episode, EpisodeKey]]) -> None:
        dataset, folder = self._dataset, self.folder
        if dataset is None or folder is None:
            return
        by_id = {episode.id: (episode, key) for episode, key in batch}

        def take(reward: Reward) -> None:
            episode, key = by_id.pop(reward.episode)
            row = self._rows[episode.id] = self._judge(episode, reward)
            self._done[episode.id] = key
            self.state = replace(self.state, scored=self.state.scored + 1, scored_at=self._now())
            self._on_scored(row)

        part = Dataset(ListReader(dataset.name, [episode for episode, _ in batch]), dataset.address)
        score(ScoreJob(self.model, part, folder, workers=0), on_stored=take)
        if by_id:  # another process has scored them, or they were scored before
            self._store = None

    def _judge(self, episode: Episode, reward: Reward) -> WatchedEpisode:
        detection = None
        if self._detector is not None and reward.scored:
            detection = self._detector.judge(reward, int(reward.at[-1]) + 1, episode.instruction)
        labelled = next((event.kind for outcome in episode.labels for event in outcome.events), "")
        return WatchedEpisode(
            id=episode.id,
            instruction=episode.instruction,
            place=self._places[episode.id],
            recorded=recorded_at(self._states(episode.id)),
            value=None if math.isnan(reward.final) else round(reward.final, 6),
            verdict=reward.verdict if detection is None else detection.verdict,
            familiarity=reward.familiarity,
            unscored=reward.why_missing if math.isnan(reward.final) else "",
            kind=(detection.kind if detection is not None else "") or labelled,
            frame=None if detection is None else detection.flagged_at,
            caution=reward.caution,
        )


def files_of(episode: Episode) -> list[str]:
    """Return the paths of an episode's recordings."""
    recordings = (recording for view in episode.views.values() for recording in list_recordings(view.source))
    paths = (
        path for recording in recordings for path in getattr(recording, "files", [str(getattr(recording, "path", ""))])
    )
    return list(dict.fromkeys(paths))


def state_of(path: str) -> FileState:
    """Return size and time of a file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return path, -1, -1
    return path, status.st_size, status.st_mtime_ns


def recorded_at(files: tuple[FileState, ...]) -> float:
    """Return when the newest of some files was written."""
    return max((moment for _, _, moment in files), default=0) / 1e9


def _walk(root: Path) -> Iterator[str]:
    is_own = Store.is_at(root)
    for folder, inner, names in os.walk(root):
        own = is_own and folder == str(root)  # a demerit folder holds the rewards that are written here
        inner[:] = [name for name in inner if not name.startswith(".") and not (own and name == "rewards")]
        yield from (os.path.join(folder, name) for name in names if not name.startswith("."))
