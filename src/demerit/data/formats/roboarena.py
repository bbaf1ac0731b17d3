"""RoboArena: pairs of policies tried on real robots, judged by the person who stood beside them.

    global_metadata.yaml                                  policy_index: {policy name: {open_source, action_space}}
    evaluation_sessions/<uuid>/metadata.yaml              the instruction, the judgements, the preference
    evaluation_sessions/<uuid>/<LETTER>_<policy name>/    a video per camera and one npz

The videos are `*_video_{left,right,wrist}.mp4` in the dump of 2025, `{left_shoulder,right_shoulder,wrist}.mp4` in 2026.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy.typing as npt

from demerit.data.dataset import Problem, Record
from demerit.data.episode import Episode, Origin
from demerit.data.formats.manifest import (
    checked,
    dataset_folder,
    dataset_name,
    find_video,
    inside,
    read_fraction,
    read_success,
    sentence,
    shown,
    text,
)
from demerit.data.formats.roboarena_session import PickledSignals, Session, load_metadata, policy_folders, policy_index
from demerit.data.frames import Frames
from demerit.data.labels import Outcome, Preference, Verdict
from demerit.data.video import VideoClip
from demerit.errors import BadEpisode, BadInput

SESSIONS = "evaluation_sessions"
CAMERA_FILE = re.compile(r"(?:.*_)?(left|right|wrist)(?:_shoulder)?\.mp4", re.IGNORECASE)
TURN = {"left": 0, "right": 0, "wrist": 180}
"""Degrees that upright each camera, in the order of the views: the wrist camera records upside down."""
SESSION_NAMES = (
    "preference",
    "longform_feedback",
    "evaluator_name",
    "evaluation_location",
    "session_creation_timestamp",
    "session_completion_timestamp",
)
POLICY_NAMES = ("policy_name", "binary_success", "partial_success")
VERDICTS: dict[str, Verdict] = {"A": "a", "B": "b", "TIE": "tie"}


@dataclass(frozen=True)
class RoboArenaReader:
    """Reads a RoboArena dump, session by session.

    An evaluator's binary and partial success are one "human" outcome per rollout, with the session's feedback as its
    note. The preference is between A and B only. A session is a group: splits never cut through it.

    The npz beside the videos is a pickle, and loading a pickle runs whatever code it holds. It is never opened unless
    `allow_pickle` says that you trust where the dump came from; without it episodes have no signals.

    A problem with a preference is counted as kept: it costs the preference, and an episode it names is either in the
    stream or counted as left out already.
    """

    path: str | Path
    allow_pickle: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse a folder without sessions."""
        if not self._sessions_folder.is_dir():
            raise BadInput("the RoboArena dataset", f"a folder with {SESSIONS} in it", str(self.root))

    @cached_property
    def root(self) -> Path:
        """The dataset's folder."""
        folder = dataset_folder(self.path, "RoboArena")
        return folder.parent if folder.name == SESSIONS else folder

    @property
    def name(self) -> str:
        """The folder's name."""
        return dataset_name(self.root, "roboarena")

    def expected(self) -> int:
        """As many episodes as there are policy folders."""
        return sum(len(policy_folders(session)) for session in self._sessions())

    def records(self) -> Iterator[Record]:
        """Stream the sessions by name: problems, episodes by letter, then the preference."""
        index, problem = policy_index(self.root / "global_metadata.yaml")
        if problem is not None:
            yield problem
        for folder in self._sessions():
            try:
                session = Session(folder, load_metadata(folder / "metadata.yaml"), index)
            except BadInput as bad:
                kind = "malformed metadata" if (folder / "metadata.yaml").is_file() else "missing metadata"
                for letter in policy_folders(folder) or ("",):
                    place = f"{folder.name}/{letter}".rstrip("/")
                    yield Problem(kind, shown(place), sentence(bad), kept=False)
            else:
                yield from self._session(session)

    @property
    def _sessions_folder(self) -> Path:
        return self.root / SESSIONS

    def _sessions(self) -> list[Path]:
        return sorted(path for path in self._sessions_folder.iterdir() if path.is_dir() and path.name[0] != ".")

    def _session(self, session: Session) -> Iterator[Record]:
        for name in SESSION_NAMES:
            if session.metadata.get(name) is None:
                yield Problem(f"absent {name}", shown(session.id), "metadata.yaml does not say it", kept=True)
        folders = policy_folders(session.folder)
        streamed = set()
        for letter in sorted({*session.entries, *folders}):
            for record in self._rollout(session, letter, folders.get(letter)):
                if isinstance(record, Episode):
                    streamed.add(letter)
                yield record
        yield from _preference(session, streamed)

    def _rollout(self, session: Session, letter: str, folder: Path | None) -> Iterator[Record]:
        episode, entry = f"{session.id}/{letter}", session.entries.get(letter)
        if folder is None:
            what = "null" if entry is None else "there"
            detail = f"no folder {shown(letter)}_... in the session; its entry in metadata.yaml is {what}"
            yield Problem("missing video", shown(episode), detail, kept=False)
            return
        problems: list[Problem] = []
        views = self._views(folder, shown(episode), problems)
        if not views:
            yield from problems
            return
        if not isinstance(entry, dict):
            detail = (
                f"policies.{letter} in metadata.yaml is {'null' if entry is None else 'no mapping'}: outcome unknown"
            )
            problems.append(Problem("null policy entry", shown(episode), detail, kept=True))
        outcomes = _outcomes(session, entry, shown(episode), problems) if isinstance(entry, dict) else ()
        instruction = text(session.metadata.get("language_instruction"))
        if not instruction:
            detail = "metadata.yaml has no language_instruction"
            problems.append(Problem("empty instruction", shown(episode), detail, kept=True))
        signals = self._signals(folder, shown(episode), problems)
        yield from problems
        origin = _origin(self.name, session, letter, folder)
        try:
            yield Episode(episode, instruction, views, outcomes, origin, signals)
        except BadEpisode as bad:
            yield Problem("unusable id", shown(episode), sentence(bad), kept=False)

    def _views(self, folder: Path, episode: str, problems: list[Problem]) -> dict[str, Frames]:
        files: dict[str, str] = {}
        for path in sorted(folder.iterdir()):
            match = None if path.name.startswith(".") else CAMERA_FILE.fullmatch(path.name)
            if match is not None:
                files.setdefault(match[1].lower(), path.relative_to(self.root).as_posix())
        views: dict[str, Frames] = {}
        refused: list[Problem] = []
        for camera, turn in TURN.items():
            if camera not in files:
                continue
            video = find_video(self.root, files[camera], episode)
            if isinstance(video, Path):
                views[camera] = Frames(VideoClip(str(video), rotate=turn))
            else:
                refused.append(video)
        if not views:
            none = Problem("missing video", episode, "no left, right or wrist video in its folder", kept=False)
            problems.append(refused[0] if refused else none)
            return {}
        problems += [Problem(problem.kind, episode, problem.detail, kept=True) for problem in refused]
        for camera in TURN:
            if camera not in files:
                detail = f"no {camera} video; the main camera is {next(iter(views))}"
                problems.append(Problem(f"missing {camera} camera", episode, detail, kept=True))
        return views

    def _signals(self, folder: Path, episode: str, problems: list[Problem]) -> Mapping[str, npt.NDArray[Any]]:
        if not self.allow_pickle:
            return {}
        for path in sorted(folder.glob("*.npz")):
            if inside(self.root, path.relative_to(self.root).as_posix()) is not None:
                return PickledSignals(str(path))
        problems.append(Problem("missing signals", episode, "no npz in its folder", kept=True))
        return {}


def _outcomes(session: Session, entry: Mapping[str, Any], episode: str, problems: list[Problem]) -> tuple[Outcome, ...]:
    for name in POLICY_NAMES:
        if entry.get(name) is None:
            problems.append(Problem(f"absent {name}", episode, "its entry in metadata.yaml does not say it", kept=True))
    success = checked(read_success, "binary_success", entry.get("binary_success"), episode, problems)
    progress = checked(read_fraction, "partial_success", entry.get("partial_success"), episode, problems)
    if success is None and progress is None:
        return ()
    return (Outcome("human", success=success, progress=progress, note=session.feedback, by=session.evaluator),)


def _origin(dataset: str, session: Session, letter: str, folder: Path) -> Origin:
    entry = session.entries.get(letter)
    entry = entry if isinstance(entry, dict) else {}
    policy = text(entry.get("policy_name")) or folder.name.partition("_")[2]
    about = session.index.get(policy)
    about = about if isinstance(about, dict) else {}
    tags = {
        "policy": policy,
        "letter": letter,
        "duration": text(entry.get("duration")),
        **{name: text(session.metadata.get(name)) for name in SESSION_NAMES if name.endswith("timestamp")},
        **{name: text(about.get(name)) for name in ("open_source", "action_space")},
    }
    return Origin(
        dataset=dataset,
        licence="MIT",
        embodiment="DROID (Franka)",
        site=text(session.metadata.get("evaluation_location")),
        group=session.id,
        tags={name: value for name, value in tags.items() if value},
    )


def _preference(session: Session, streamed: set[str]) -> Iterator[Preference | Problem]:
    given = session.metadata.get("preference")
    if given is None:
        return  # counted as absent already
    verdict = VERDICTS.get(text(given).upper())
    if verdict is None:
        detail = f"preference: expected A, B or TIE, got {shown(repr(given))}"
        yield Problem("bad preference", shown(session.id), detail, kept=True)
    elif not {"A", "B"} <= streamed:
        gone = " and ".join(letter for letter in ("A", "B") if letter not in streamed)
        yield Problem("dangling preference", shown(session.id), f"it needs {gone}, which was left out", kept=True)
    else:
        a, b = f"{session.id}/A", f"{session.id}/B"
        yield Preference(a, b, verdict, "human", why=session.feedback, by=session.evaluator)
