"""One session of RoboArena on disk: its metadata, its policies' folders and the pickled signals."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from demerit.data.dataset import Problem
from demerit.data.formats.manifest import sentence, shown, text
from demerit.errors import BadInput

POLICY_FOLDER = re.compile(r"([A-Z])_(.+)")


@dataclass(frozen=True)
class Session:
    """What metadata.yaml says about one session."""

    folder: Path
    metadata: Mapping[str, Any]
    index: Mapping[str, Any]
    """what the dump's global_metadata.yaml says about each policy, by name"""

    @property
    def id(self) -> str:
        """The session's uuid, which is the folder's name."""
        return self.folder.name

    @cached_property
    def entries(self) -> dict[str, Any]:
        """What was judged, by the policy's letter; an entry may be null."""
        return {str(letter): entry for letter, entry in self.metadata["policies"].items()}

    @property
    def feedback(self) -> str:
        """The evaluator's free text on all of the session's rollouts."""
        return text(self.metadata.get("longform_feedback"))

    @property
    def evaluator(self) -> str:
        """Who judged."""
        return text(self.metadata.get("evaluator_name"))


@dataclass(frozen=True)
class PickledSignals(Mapping[str, npt.NDArray[Any]]):
    """State and action of one rollout, unpickled when first read. Unpickling runs code that the file brings along."""

    path: str

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Return one signal, a row per control step."""
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._arrays)

    def __len__(self) -> int:
        """How many signals there are."""
        return len(self._arrays)

    @cached_property
    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        try:
            with np.load(self.path, allow_pickle=True) as archive:
                steps = list(archive["data"])
            names = [name for name in steps[0] if all(name in step for step in steps)] if steps else []
            columns = {name: np.stack([np.atleast_1d(step[name]) for step in steps]) for name in names}
        except Exception as error:  # a pickle runs foreign code, which raises whatever it likes
            raise BadInput(self.path, "an npz whose 'data' is an array of dicts of arrays", shown(error)) from None
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
    except (yaml.YAMLError, ValueError, RecursionError, OSError) as error:  # a date such as 2025-13-45 is a ValueError
        raise BadInput(path.name, "YAML", shown(" ".join(str(error).split()))) from None


def load_metadata(path: Path) -> dict[str, Any]:
    """Load a session's metadata.yaml; refuse one that does not list policies."""
    metadata = _load_yaml(path)
    if not isinstance(metadata, dict) or not isinstance(metadata.get("policies"), dict):
        got = "none" if isinstance(metadata, dict) and metadata.get("policies") is None else "something else"
        raise BadInput(path.name, "a mapping with policies by letter", got)
    return metadata


def policy_index(path: Path) -> tuple[Mapping[str, Any], Problem | None]:
    """Load what the dump says about each policy, by name."""
    # The index only adds tags, so that a dump without it is whole.
    if not path.is_file():
        return {}, None
    try:
        loaded = _load_yaml(path)
    except BadInput as bad:
        return {}, Problem("malformed metadata", path.name, sentence(bad), kept=True)
    index = loaded.get("policy_index") if isinstance(loaded, dict) else None
    return (index if isinstance(index, dict) else {}), None
