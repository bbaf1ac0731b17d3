"""What a LeRobot dataset says about itself in meta/info.json: version, cameras, signals, splits, where files are."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demerit.errors import BadInput

VERSIONS = ("v2.0", "v2.1", "v3.0")
IMAGES_PREFIX = "observation.images."
FRAME_SUCCESS = "next.success"
# Columns that every data file has or that say how an episode ended: neither is a signal.
NOT_SIGNALS = frozenset(
    {"timestamp", "frame_index", "episode_index", "index", "task_index", "next.done", FRAME_SUCCESS}
)
NUMBERS = re.compile(r"(float|int|uint)\d+|bool")
CARD_LICENCE = re.compile(r"^license:[ \t]*['\"]?([^\s'\"\[]+)", re.MULTILINE)
CARD_LICENCE_NAME = re.compile(r"^license_name:[ \t]*['\"]?([^\n'\"]+?)['\"]?[ \t]*$", re.MULTILINE)
"""what cards say instead, where the licence is `other`"""
CARD_BYTES = 65536


@dataclass(frozen=True)
class Info:
    """The checked content of meta/info.json."""

    root: Path
    version: str
    fps: float
    features: Mapping[str, Mapping[str, Any]]
    """column or video key to its dtype, shape and names"""
    data_path: str
    video_path: str
    """templates of paths below the root"""
    chunks_size: int
    robot_type: str
    total_episodes: int | None
    splits: Mapping[str, range]
    """split to its episode indices"""
    unread_splits: tuple[str, ...] = ()
    """splits whose episodes could not be understood"""

    def cameras(self) -> dict[str, str]:
        """Camera name to feature key, in the file's order; depth maps are not pictures and are left out."""
        keys = [key for key, feature in self.features.items() if _is_camera(feature)]
        short = [key.removeprefix(IMAGES_PREFIX) for key in keys]
        return {name if short.count(name) == 1 else key: key for name, key in zip(short, keys, strict=True)}

    def signals(self) -> dict[str, str]:
        """Signal name to column: every numeric feature that is neither bookkeeping nor a verdict."""
        keys = [key for key, feature in self.features.items() if key not in NOT_SIGNALS and _is_numeric(feature)]
        return {("state" if key == "observation.state" and "state" not in keys else key): key for key in keys}

    def is_video(self, key: str) -> bool:
        """Whether a camera's frames are in video files (else inside the data files)."""
        return self.features[key].get("dtype") == "video"

    def split_of(self, episode: int) -> str:
        """The first split that holds the episode, empty when none does."""
        return next((name for name, indices in self.splits.items() if episode in indices), "")


def read_info(path: str | Path) -> Info:
    """Read and check meta/info.json."""
    root = Path(path).expanduser().absolute()
    raw = _read_object(root)
    version = raw.get("codebase_version")
    if version not in VERSIONS:
        known = f"{', '.join(VERSIONS[:-1])} or {VERSIONS[-1]}"
        raise BadInput(f"codebase_version in {root / 'meta/info.json'}", known, repr(version))
    fps = _field(raw, root, "fps", (int, float))
    if not fps > 0:
        raise BadInput(f"fps in {root / 'meta/info.json'}", "a positive number", fps)
    features = _field(raw, root, "features", dict)
    for key, feature in features.items():
        if not isinstance(feature, dict):
            raise BadInput(f"feature {key!r} in {root / 'meta/info.json'}", "an object with a dtype", repr(feature))
    splits, unread = _splits(raw.get("splits"))
    chunks_size, total = whole(raw.get("chunks_size")), whole(raw.get("total_episodes"))
    return Info(
        root=root,
        version=version,
        fps=float(fps),
        features=features,
        data_path=_template(raw, root, "data_path", version),
        # A dataset of images has no videos, and its template may be null.
        video_path=_template(raw, root, "video_path", version) if raw.get("video_path") else "",
        chunks_size=chunks_size if chunks_size and chunks_size > 0 else 1000,
        robot_type=str(raw.get("robot_type") or ""),
        total_episodes=total,
        splits=splits,
        unread_splits=unread,
    )


def whole(value: object) -> int | None:
    """Return the whole number that a metadata field holds, None when it holds anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return int(value) if value == int(value) else None


def stays_inside(relative: str) -> bool:
    """Whether a path from the metadata stays below the dataset's root.

    By its words only: links are followed, because download caches are made of links that point outside.
    """
    normal = os.path.normpath(relative.replace("\\", "/"))
    return not (os.path.isabs(normal) or normal == ".." or normal.startswith("../") or re.match(r"[A-Za-z]:", normal))


def card_licence(root: Path) -> str:
    """The licence that the dataset card (README.md) names, empty when it names none."""
    try:
        with open(root / "README.md", encoding="utf-8", errors="replace") as card:
            text = card.read(CARD_BYTES)
    except OSError:
        return ""
    front = text.split("\n---", 1)[0] if text.startswith("---") else ""
    found = CARD_LICENCE.search(front)
    named = CARD_LICENCE_NAME.search(front) if found and found.group(1) == "other" else None
    return named.group(1) if named else found.group(1) if found else ""


def _is_camera(feature: Mapping[str, Any]) -> bool:
    details = feature.get("info") or feature.get("video_info") or {}
    is_depth = isinstance(details, dict) and bool(details.get("video.is_depth_map"))
    return feature.get("dtype") in ("video", "image") and not is_depth


def _is_numeric(feature: Mapping[str, Any]) -> bool:
    return NUMBERS.fullmatch(str(feature.get("dtype"))) is not None


def _read_object(root: Path) -> dict[str, Any]:
    path = root / "meta" / "info.json"
    try:
        raw = json.loads(path.read_bytes())
    except OSError:
        raise BadInput(f"LeRobot dataset {root}", "a folder with meta/info.json in it", _what_is_there(root)) from None
    except (ValueError, RecursionError) as broken:
        raise BadInput(str(path), "JSON", f"something else ({broken})") from None
    if not isinstance(raw, dict):
        raise BadInput(str(path), "a JSON object", f"a {type(raw).__name__}")
    return raw


def _what_is_there(root: Path) -> str:
    if not root.is_dir():
        return "a file" if root.exists() else "a path that does not exist"
    if (root / "info.json").is_file():
        return f"its meta folder (did you mean {root.parent}?)"
    below = sorted(entry.name for entry in root.iterdir() if (entry / "meta" / "info.json").is_file())
    return f"a folder of datasets (did you mean {root / below[0]}?)" if below else "a folder without it"


def _field(raw: Mapping[str, Any], root: Path, name: str, kind: type | tuple[type, ...]) -> Any:
    value = raw.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        wanted = "an object" if kind is dict else "a text" if kind is str else "a number"
        raise BadInput(f"{name} in {root / 'meta/info.json'}", wanted, repr(value))
    return value


def _template(raw: Mapping[str, Any], root: Path, name: str, version: str) -> str:
    template = _field(raw, root, name, str)
    fields: dict[str, Any] = {"video_key": "k"}
    fields |= {"chunk_index": 0, "file_index": 0} if version == "v3.0" else {"episode_chunk": 0, "episode_index": 0}
    try:
        template.format(**fields)
    except (KeyError, IndexError, ValueError, AttributeError):
        allowed = f"a path with {', '.join('{' + field + '}' for field in fields)} in it"
        raise BadInput(f"{name} in {root / 'meta/info.json'}", allowed, repr(template)) from None
    return str(template)


def _splits(raw: object) -> tuple[dict[str, range], tuple[str, ...]]:
    splits: dict[str, range] = {}
    unread = []
    for name, text in raw.items() if isinstance(raw, dict) else ():
        bounds = re.fullmatch(r"\s*(\d+)\s*:\s*(\d+)\s*", str(text))
        if bounds:
            splits[str(name)] = range(int(bounds.group(1)), int(bounds.group(2)))
        else:
            unread.append(f"{name}: {text}")
    return splits, tuple(unread)
