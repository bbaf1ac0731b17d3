"""RoboArena: policies compared on real robots, labelled by the evaluator on site.

    global_metadata.yaml                                  policy_index: {policy name: {open_source, action_space}}
    evaluation_sessions/<uuid>/metadata.yaml              the instruction, the judgements, the preference
    evaluation_sessions/<uuid>/<LETTER>_<policy name>/    a video per camera and one npz

Videos are `*_video_{left,right,wrist}.mp4` in the 2025 dump, `{left_shoulder,right_shoulder,wrist}.mp4` in 2026.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from demerit.data.dataset import NO_INSTRUCTION, Problem, Record
from demerit.data.episode import Episode, Origin, Outcome, Preference, Preferred
from demerit.data.files import path_inside
from demerit.data.formats.label_file import check_label, detail_of, printable, read_fraction, read_success, text
from demerit.data.formats.videos import FolderReader, build_episode, find_video
from demerit.data.video import VideoClip
from demerit.errors import BadInput

SESSIONS = "evaluation_sessions"
CAMERA_FILE = re.compile(r"(?:.*_)?(left|right|wrist)(?:_shoulder)?\.mp4", re.IGNORECASE)
TURN = {"left": 0, "right": 0, "wrist": 180}
"""rotation of each camera in degrees, in the order of the views: the wrist camera is mounted upside down"""
SESSION_NAMES = (
    "preference",
    "longform_feedback",
    "evaluator_name",
    "evaluation_location",
    "session_creation_timestamp",
    "session_completion_timestamp",
)
POLICY_NAMES = ("policy_name", "binary_success", "partial_success")
VERDICTS: dict[str, Preferred] = {"A": "a", "B": "b", "TIE": "tie"}


@dataclass(frozen=True)
class RoboArenaReader(FolderReader):
    """Reads a RoboArena dump, session by session.

    The evaluator's binary and partial success are a "human" outcome per rollout, with the session's feedback as its
    note. The preference is between A and B. A session is a group.

    The npz next to the videos is a pickle, and loading a pickle runs its code. It is opened only with `allow_pickle`,
    for dumps that you trust; otherwise episodes have no signals.
    """

    format = "RoboArena"
    allow_pickle: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if not self._sessions_folder.is_dir():
            raise BadInput("the RoboArena dataset", f"a folder with {SESSIONS} in it", str(self.root))

    @cached_property
    def root(self) -> Path:
        """The dataset's folder."""
        folder = super().root
        return folder.parent if folder.name == SESSIONS else folder

    def expected(self) -> int:
        """The number of policy folders."""
        return sum(len(policy_folders(session)) for session in self._sessions())

    def records(self) -> Iterator[Record]:
        """Stream the sessions by name: problems, episodes, preference."""
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
                    yield Problem(kind, printable(place), detail_of(bad), kept=False)
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
                yield Problem(f"absent {name}", printable(session.id), "not in metadata.yaml", kept=True)
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
            detail = f"no folder {printable(letter)}_... in the session; its entry in metadata.yaml is {what}"
            yield Problem("missing video", printable(episode), detail, kept=False)
            return
        problems: list[Problem] = []
        views = self._views(folder, printable(episode), problems)
        if not views:
            yield from problems
            return
        if not isinstance(entry, dict):
            detail = (
                f"policies.{letter} in metadata.yaml is {'null' if entry is None else 'not a mapping'}: outcome unknown"
            )
            problems.append(Problem("null policy entry", printable(episode), detail, kept=True))
        outcomes = _outcomes(session, entry, printable(episode), problems) if isinstance(entry, dict) else ()
        instruction = text(session.metadata.get("language_instruction"))
        if not instruction:
            detail = "metadata.yaml has no language_instruction"
            problems.append(Problem(NO_INSTRUCTION, printable(episode), detail, kept=True))
        signals = self._signals(folder, printable(episode), problems)
        yield from problems
        origin = _origin(self.name, session, letter, folder, next(iter(views)))
        yield build_episode(episode, instruction, views, outcomes, origin, signals)

    def _views(self, folder: Path, episode: str, problems: list[Problem]) -> dict[str, VideoClip]:
        files: dict[str, str] = {}
        for path in sorted(folder.iterdir()):
            match = None if path.name.startswith(".") else CAMERA_FILE.fullmatch(path.name)
            if match is not None:
                files.setdefault(match[1].lower(), path.relative_to(self.root).as_posix())
        views: dict[str, VideoClip] = {}
        refused: list[Problem] = []
        for camera, turn in TURN.items():
            if camera not in files:
                continue
            video = find_video(self.root, files[camera], episode)
            if isinstance(video, Path):
                views[camera] = VideoClip(str(video), rotate=turn)
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
            if path_inside(self.root, path.relative_to(self.root).as_posix()) is not None:
                return PickledSignals(str(path))
        problems.append(Problem("missing signals", episode, "no npz in its folder", kept=True))
        return {}


def _outcomes(session: Session, entry: Mapping[str, Any], episode: str, problems: list[Problem]) -> tuple[Outcome, ...]:
    for name in POLICY_NAMES:
        if entry.get(name) is None:
            problems.append(Problem(f"absent {name}", episode, "not in its entry of metadata.yaml", kept=True))
    success = check_label(read_success, "binary_success", entry.get("binary_success"), episode, problems)
    progress = check_label(read_fraction, "partial_success", entry.get("partial_success"), episode, problems)
    if success is None and progress is None:
        return ()
    return (Outcome("human", success=success, progress=progress, note=session.feedback, by=session.evaluator),)


def _origin(dataset: str, session: Session, letter: str, folder: Path, camera: str) -> Origin:
    entry = session.entries.get(letter)
    entry = entry if isinstance(entry, dict) else {}
    policy = text(entry.get("policy_name")) or folder.name.partition("_")[2]
    about = session.index.get(policy)
    about = about if isinstance(about, dict) else {}
    tags = {
        "policy": policy,
        "letter": letter,
        "perspective": "egocentric" if camera == "wrist" else "exocentric",
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
    answer = session.metadata.get("preference")
    if answer is None:
        return  # reported already
    verdict = VERDICTS.get(text(answer).upper())
    if verdict is None:
        detail = f"preference: expected A, B or TIE, got {printable(repr(answer))}"
        yield Problem("bad preference", printable(session.id), detail, kept=True)
    elif not {"A", "B"} <= streamed:
        letters = " and ".join(letter for letter in ("A", "B") if letter not in streamed)
        yield Problem("dangling preference", printable(session.id), f"it needs {letters}, which was skipped", kept=True)
    else:
        a, b = f"{session.id}/A", f"{session.id}/B"
        yield Preference(a, b, verdict, "human", why=session.feedback, by=session.evaluator)


POLICY_FOLDER = re.compile(r"([A-Z])_(.+)")


@dataclass(frozen=True)
class Session:
    """The metadata of a session."""

    folder: Path
    metadata: Mapping[str, Any]
    index: Mapping[str, Any]
    """policies by name, from global_metadata.yaml"""

    @property
    def id(self) -> str:
        """The session's uuid: the folder's name."""
        return self.folder.name

    @cached_property
    def entries(self) -> dict[str, Any]:
        """The policies' entries by letter; an entry may be null."""
        return {str(letter): entry for letter, entry in self.metadata["policies"].items()}

    @property
    def feedback(self) -> str:
        """The evaluator's free text on the session."""
        return text(self.metadata.get("longform_feedback"))

    @property
    def evaluator(self) -> str:
        """The evaluator's name."""
        return text(self.metadata.get("evaluator_name"))


@dataclass(frozen=True)
class PickledSignals(Mapping[str, npt.NDArray[Any]]):
    """State and action of a rollout, unpickled on first access. Unpickling runs the file's code."""

    path: str

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Return a signal, a row per control step."""
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    @cached_property
    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        try:
            with np.load(self.path, allow_pickle=True) as archive:
                steps = list(archive["data"])
            names = [name for name in steps[0] if all(name in step for step in steps)] if steps else []
            columns = {name: np.stack([np.atleast_1d(step[name]) for step in steps]) for name in names}
        except Exception as error:  # a pickle can raise anything
            raise BadInput(self.path, "an npz whose 'data' is an array of dicts of arrays", printable(error)) from None
        return {name: values for name, values in columns.items() if values.dtype.kind in "fiub"}


def policy_folders(session: Path) -> dict[str, Path]:
    """Find the folder of each policy by its letter."""
    matches = ((POLICY_FOLDER.fullmatch(path.name), path) for path in sorted(session.iterdir()) if path.is_dir())
    folders: dict[str, Path] = {}
    for match, path in matches:
        if match is not None:
            folders.setdefault(match[1], path)
    return folders


def _load_yaml(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(path.name, "a file", "none") from None
    except (yaml.YAMLError, ValueError, RecursionError, OSError) as error:  # bad dates are ValueErrors
        raise BadInput(path.name, "YAML", printable(" ".join(str(error).split()))) from None


def load_metadata(path: Path) -> dict[str, Any]:
    """Load a session's metadata.yaml; it must list policies."""
    metadata = _load_yaml(path)
    if not isinstance(metadata, dict) or not isinstance(metadata.get("policies"), dict):
        got = "none" if isinstance(metadata, dict) and metadata.get("policies") is None else "something else"
        raise BadInput(path.name, "a mapping with policies by letter", got)
    return metadata


def policy_index(path: Path) -> tuple[Mapping[str, Any], Problem | None]:
    """Load the policies of the dump by name. They only add tags, so the file is optional."""
    if not path.is_file():
        return {}, None
    try:
        loaded = _load_yaml(path)
    except BadInput as bad:
        return {}, Problem("malformed metadata", path.name, detail_of(bad), kept=True)
    index = loaded.get("policy_index") if isinstance(loaded, dict) else None
    return (index if isinstance(index, dict) else {}), None
