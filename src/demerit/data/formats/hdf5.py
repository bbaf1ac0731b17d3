"""robomimic and LIBERO datasets: demonstrations in HDF5 files.

    data/demo_7/{actions, rewards, dones, states}    one row per step; attribute num_samples
    data/demo_7/obs/<key>                            images (n, height, width, 3) uint8, and numbers
    mask/<filter>                                    names of demos; the filters train, valid and test are splits

A file is LIBERO's when `data` carries its attributes (problem_info, bddl_file_name), or when the file is named
*_demo.hdf5 and its cameras *_rgb. LIBERO stores what OpenGL rendered, bottom row first: its images are turned the right
way up unless `upside_down` is given. It also writes a reward of 1 on the last step of every demonstration, so
there the label source is a rule; robomimic's sparse rewards are the simulator's.

Nothing outside the file is followed: external links, external storage and virtual datasets are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
from h5py import Group, h5l

from demerit.data.arrays import Ints
from demerit.data.dataset import NO_INSTRUCTION, Problem, Record
from demerit.data.episode import Episode, Origin, Outcome, safe_name
from demerit.data.frames import IMAGES_DIMENSIONS, RGB, Frames, Images, Times, file_identity, short_hash
from demerit.errors import BadInput, UnreadableVideo

NOMINAL_FPS = 20.0
"""robosuite's default control rate, used if env_args has none"""
SUFFIXES = (".hdf5", ".h5")
LARGEST_SIGNAL = 2**30
SIGNALS = ("actions", "rewards", "dones", "states")
CAMERA_ENDINGS = ("_image", "_rgb")


@dataclass(frozen=True)
class Hdf5Frames:
    """The images of a dataset in an HDF5 file; `count` is its length, None = read it from the file."""

    kind = "hdf5"
    path: str
    key: str
    upside_down: bool = False
    fps: float = NOMINAL_FPS
    count: int | None = None

    def __post_init__(self) -> None:
        if not self.fps > 0:
            raise BadInput("fps", "a positive number", self.fps)

    def __len__(self) -> int:
        if self.count is not None:
            return self.count
        with open_hdf5(self.path) as file:
            return int(self._dataset(file).shape[0])

    def times(self) -> Times:
        """Evenly spaced seconds."""
        return np.arange(len(self)) / self.fps

    def take(self, indices: Sequence[int]) -> Images:
        """Read the given rows, or their whole span if most of it is wanted."""
        rows, places = np.unique(np.asarray(indices, dtype=np.int64), return_inverse=True)
        with open_hdf5(self.path) as file:
            dataset = self._dataset(file)
            if rows.size and (rows[0] < 0 or rows[-1] >= dataset.shape[0]):
                raise BadInput(
                    f"frame indices of {self.key}", f"0 to {dataset.shape[0] - 1}", f"{rows[0]} to {rows[-1]}"
                )
            images = self._read(dataset, rows)
        return np.ascontiguousarray((images[:, ::-1] if self.upside_down else images)[places])

    def identity(self) -> str:
        """Hash the file's identity, the dataset's key and the orientation."""
        way = b"flipped" if self.upside_down else b"as stored"
        return short_hash(file_identity(self.path).encode(), self.key.encode(), way)

    def describe(self) -> dict[str, Any]:
        """The arguments that rebuild it."""
        return asdict(self)

    def _read(self, dataset: Any, rows: Ints) -> Images:
        try:
            if not rows.size:
                return np.asarray(dataset[:0])
            first, last = int(rows[0]), int(rows[-1])
            if last - first < 2 * len(rows):  # scattered rows are one read each
                return np.asarray(dataset[first : last + 1][rows - first])
            return np.asarray(dataset[rows])
        except HDF5_FAILURES as failure:
            raise UnreadableVideo(self.path, f"{self.key} cannot be read ({message_of(failure)})") from None

    def _dataset(self, file: Any) -> Any:
        try:
            dataset = resolve(file, self.key)
        except (LinkRefused, *HDF5_FAILURES) as failure:
            raise UnreadableVideo(self.path, message_of(failure)) from None
        if not _is_camera(dataset):
            raise UnreadableVideo(self.path, f"{self.key} is not a uint8 dataset of shape (n, height, width, 3)")
        return dataset


class Hdf5Reader:
    """A robomimic or LIBERO file, or a folder of them."""

    def __init__(self, path: str | Path, *, upside_down: bool | None = None) -> None:
        """`upside_down` None flips only LIBERO's images."""
        self.path, self.upside_down = Path(path), upside_down
        self.files = _files(self.path)
        self._name = _id_part(self.path.resolve().name if self.path.is_dir() else self.path.stem)

    @property
    def name(self) -> str:
        """The file's or folder's name."""
        return self._name

    def expected(self) -> int | None:
        """The number of demos in readable files."""
        summaries = [self._summarize(path) for path in self.files]
        return sum(len(summary.names) for summary in summaries if isinstance(summary, Hdf5Summary))

    def records(self) -> Iterator[Record]:
        """Stream the demos of every file, demo_2 before demo_10."""
        for path in self.files:
            summary = self._summarize(path)
            if isinstance(summary, Problem):
                yield summary
                continue
            yield from summary.problems
            for demo in summary.names:
                yield from self._read_demo(summary, demo)

    def _summarize(self, path: Path) -> Hdf5Summary | Problem:
        inside = path.relative_to(self.path).with_suffix("") if self.path.is_dir() else Path()
        place = "/".join([self.name, *map(_id_part, inside.parts)])
        try:
            with open_hdf5(path) as file:
                return summarize_file(file, path, place)
        except UnreadableVideo as failure:
            return Problem("unreadable file", place, failure.reason, kept=False)
        except (LinkRefused, *HDF5_FAILURES) as failure:
            return Problem("unreadable file", place, message_of(failure), kept=False)

    def _read_demo(self, summary: Hdf5Summary, demo: str) -> Iterator[Record]:
        episode = f"{summary.place}/{_id_part(demo)}"
        records: list[Record]
        try:
            with open_hdf5(summary.path) as file:
                records = list(self._demo_records(file, summary, demo, episode))
        except LinkRefused as reason:
            records = [Problem("refused link", episode, str(reason), kept=False)]
        except (UnreadableVideo, *HDF5_FAILURES) as failure:
            records = [Problem("unreadable demo", episode, message_of(failure), kept=False)]
        # The file is closed before the episode is yielded: a stream can be abandoned anywhere.
        yield from records

    def _demo_records(self, file: Any, summary: Hdf5Summary, demo: str, episode: str) -> Iterator[Record]:
        group = resolve(file, f"data/{demo}")
        refused: list[str] = []
        datasets = _find_datasets(file, f"data/{demo}", refused)
        images = sorted((name for name in datasets if _is_camera(datasets[name][1])), key=_scene_first)
        problems = [Problem("refused link", episode, reason, kept=True) for reason in refused]
        if not images:
            detail = "; ".join(refused) or "obs holds no uint8 images of shape (n, height, width, 3)"
            yield Problem("no camera", episode, detail, kept=False)
            return
        steps = int(datasets[images[0]][1].shape[0])
        if not steps:
            yield Problem("no steps", episode, "its images have no rows", kept=False)
            return
        cameras: dict[str, str] = {}
        signals: dict[str, npt.NDArray[Any]] = {}
        numbers = [name for name in datasets if name not in images and _is_numbers(datasets[name][1])]
        for name in (*images, *numbers):
            key, dataset = datasets[name]
            if dataset.shape[0] != steps:
                misfit = f"{name} has {dataset.shape[0]} rows, the main camera {steps}"
                problems.append(Problem("another length", episode, misfit, kept=True))
            elif name in images:
                short = _camera_name(name)
                cameras[name if short in cameras else short] = key
            else:
                signals[name] = np.asarray(dataset[()])
        declared = group.attrs.get("num_samples")
        if declared is not None and not np.array_equal(declared, steps):
            detail = f"the attribute says {declared}, there are {steps} rows"
            problems.append(Problem("wrong num_samples", episode, detail, kept=True))
        if not summary.instruction:
            problems.append(Problem(NO_INSTRUCTION, episode, "the file has none", kept=True))
        yield from problems
        flip = summary.libero if self.upside_down is None else self.upside_down
        path, fps = str(summary.path.resolve()), summary.fps
        yield Episode(
            episode,
            summary.instruction,
            {name: Frames(Hdf5Frames(path, key, flip, fps, steps)) for name, key in cameras.items()},
            _outcomes(signals.get("rewards"), summary.libero),
            Origin(self.name, embodiment=summary.embodiment, split=summary.splits.get(demo, ""), tags=summary.tags),
            signals,
        )


def _find_datasets(file: Any, demo: str, refused: list[str]) -> dict[str, tuple[str, Any]]:
    """Find the signals and observations of a demo: name to (key, dataset)."""
    keys = {name: f"{demo}/{name}" for name in SIGNALS}
    keys |= {name: f"{demo}/obs/{name}" for name in children(file, f"{demo}/obs")}
    datasets = {}
    for name, key in keys.items():
        try:
            dataset = resolve(file, key)
        except LinkRefused as reason:
            refused.append(str(reason))
            continue
        except KeyError:
            continue
        if hasattr(dataset, "shape"):
            datasets[name] = (key, dataset)
    return datasets


def _files(path: Path) -> list[Path]:
    if path.is_file() and path.suffix.lower() in SUFFIXES:
        return [path]
    inside = path.rglob("*") if path.is_dir() else []
    files = [file for file in inside if file.suffix.lower() in SUFFIXES and file.is_file()]
    if not files:
        got = "a folder without any" if path.is_dir() else "another file" if path.exists() else "nothing at that path"
        raise BadInput(str(path), "an .hdf5 or .h5 file, or a folder of them", got)
    return sorted(files, key=lambda file: natural(file.relative_to(path).as_posix()))


def _id_part(text: str) -> str:
    try:
        return safe_name(text)
    except BadInput:  # no character is safe: use a stable hash
        return short_hash(text.encode("utf-8", "surrogateescape"))[:8]


def _is_camera(dataset: Any) -> bool:
    shape: tuple[int, ...] = getattr(dataset, "shape", None) or ()
    return len(shape) == IMAGES_DIMENSIONS and shape[-1] == RGB and min(shape[1:]) > 0 and dataset.dtype == np.uint8


def _is_numbers(dataset: Any) -> bool:
    # Checked before reading: a few bytes of HDF5 can declare a dataset of any size.
    is_short = dataset.shape and len(dataset.shape) < IMAGES_DIMENSIONS - 1 and dataset.nbytes <= LARGEST_SIGNAL
    return bool(is_short and dataset.dtype.kind in "fiub")


def _scene_first(key: str) -> tuple[bool, list[tuple[int, int, str]]]:
    return ("hand" in key or "wrist" in key, natural(key))


def _camera_name(key: str) -> str:
    for ending in CAMERA_ENDINGS:
        if key.endswith(ending) and key != ending:
            return key.removesuffix(ending)
    return key


def _outcomes(rewards: npt.NDArray[Any] | None, libero: bool) -> tuple[Outcome, ...]:
    """Success by sparse rewards (0 and 1) only; other rewards do not define success."""
    if rewards is None or not rewards.size or not np.isin(rewards, (0, 1)).all():
        return ()
    success = bool(rewards.reshape(-1)[-1] == 1)
    if libero:
        return (Outcome("rule", success=success, by="LIBERO rewards the end of every demonstration"),)
    return (Outcome("simulator", success=success, by="rewards dataset (sparse)"),)


SPLITS = ("train", "valid", "test")
LIBERO_ATTRIBUTES = ("problem_info", "bddl_file_name")
LIBERO_FILE_ENDING = "_demo.hdf5"
SCENE = re.compile(r"^[A-Z]+(_[A-Z]+)*_SCENE\d+_")


@dataclass(frozen=True)
class Hdf5Summary:
    """The facts that all demos of a file share."""

    path: Path
    place: str
    """the prefix of its episodes' ids"""
    names: tuple[str, ...]
    splits: Mapping[str, str]
    libero: bool
    instruction: str
    fps: float
    embodiment: str
    tags: Mapping[str, str]
    problems: tuple[Problem, ...]


def summarize_file(file: Any, path: Path, place: str) -> Hdf5Summary:
    """Read the facts that all demos of an open file share."""
    attributes = resolve(file, "data").attrs
    names = tuple(children(file, "data"))
    problems = [] if names else [Problem("no demos", place, "the data group is empty", kept=False)]
    libero = any(name in attributes for name in LIBERO_ATTRIBUTES) or _looks_like_libero(file, path, names)
    environment = _json_attribute(attributes, "env_args")
    options = environment.get("env_kwargs")
    options = options if isinstance(options, dict) else {}
    rate, robots = options.get("control_freq"), options.get("robots", "")
    splits, of_mask = _splits(file, place, names)
    return Hdf5Summary(
        path,
        place,
        names,
        splits,
        libero,
        _instruction(attributes, path) if libero else "",
        float(rate) if isinstance(rate, int | float) and rate > 0 else NOMINAL_FPS,
        "+".join(map(str, robots)) if isinstance(robots, list) else str(robots),
        {"environment": str(environment["env_name"])} if environment.get("env_name") else {},
        (*problems, *of_mask),
    )


def instruction_of_name(stem: str) -> str:
    """LIBERO's instruction, from a file name.

    >>> instruction_of_name("KITCHEN_SCENE3_turn_on_the_stove_demo")
    'turn on the stove'
    """
    return SCENE.sub("", stem.removesuffix("_demo")).replace("_", " ").strip()


def _looks_like_libero(file: Any, path: Path, names: tuple[str, ...]) -> bool:
    if not names or not path.name.endswith(LIBERO_FILE_ENDING):
        return False
    try:
        return any(key.endswith("_rgb") for key in children(file, f"data/{names[0]}/obs"))
    except LinkRefused:  # reported with the demo
        return False


def _instruction(attributes: Any, path: Path) -> str:
    value = _json_attribute(attributes, "problem_info").get("language_instruction") or ""
    joined = "".join(map(str, value)) if isinstance(value, list) else str(value)  # some files have a list of letters
    return joined.strip().strip('"') or instruction_of_name(path.stem)


def _json_attribute(attributes: Any, name: str) -> dict[str, Any]:
    try:
        value = attributes.get(name, "{}")
        loaded = json.loads(value)
    except (TypeError, RecursionError, *HDF5_FAILURES):  # not JSON
        return {}
    return loaded if isinstance(loaded, dict) else {}


def _splits(file: Any, place: str, names: tuple[str, ...]) -> tuple[dict[str, str], list[Problem]]:
    """Map demos to splits by the masks train, valid and test; a demo in two masks gets no split."""
    members: dict[str, list[str]] = {}
    problems = []
    try:
        for split in children(file, "mask"):
            if split in SPLITS:
                for name in np.asarray(resolve(file, f"mask/{split}")[()]).reshape(-1).tolist():
                    text = name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
                    members.setdefault(text, []).append(split)
    except (LinkRefused, *HDF5_FAILURES) as failure:
        return {}, [Problem("unreadable mask", place, f"{message_of(failure)}; no demo has a split", kept=True)]
    for name, splits in members.items():
        if name not in names:
            detail = f"mask/{splits[0]} names it and data has no such group"
            problems.append(Problem("missing demo", f"{place}/{name}", detail, kept=False))
        elif len(set(splits)) > 1:
            detail = f"{' and '.join(splits)} both name it, so it has no split"
            problems.append(Problem("several splits", f"{place}/{name}", detail, kept=True))
    return {name: splits[0] for name, splits in members.items() if len(set(splits)) == 1}, problems


MOST_SOFT_LINKS = 16

HDF5_FAILURES = (OSError, KeyError, RuntimeError, ValueError)
"""what h5py raises for a damaged file"""


class LinkRefused(Exception):
    """A link out of the file.

    External links, external storage and virtual datasets could read any file on the disk, so every object is reached
    through `resolve`, which checks each link before it follows it.
    """


@contextmanager
def open_hdf5(path: str | Path) -> Iterator[Any]:
    """Open a file for reading."""
    if not Path(path).is_file():
        raise UnreadableVideo(path, "there is no such file")
    try:
        file = h5py.File(path, "r")
    except OSError as failure:
        raise UnreadableVideo(path, f"not a readable HDF5 file ({failure})") from None
    with file:
        yield file


def resolve(file: Any, path: str) -> Any:
    """Return the group or dataset at a path; raise LinkRefused if it is in another file, KeyError if it is missing."""
    node, ahead, soft_links = file, _parts(path), 0
    while ahead:
        name = ahead.pop(0)
        if not isinstance(node, Group) or not node.id.links.exists(name):
            raise KeyError(f"there is no {path}")
        kind = node.id.links.get_info(name).type
        if kind == h5l.TYPE_HARD:
            node = node[name]
        elif kind == h5l.TYPE_SOFT:
            soft_links += 1
            if soft_links > MOST_SOFT_LINKS:
                raise KeyError(f"{path} goes through more than {MOST_SOFT_LINKS} soft links")
            target = node.id.links.get_val(name).decode("utf-8", errors="surrogateescape")
            node, ahead = (file if target.startswith("/") else node), _parts(target) + ahead
        else:
            raise LinkRefused(f"{path} is an external link, and links out of a file are not followed")
    if not isinstance(node, Group) and (getattr(node, "external", None) or getattr(node, "is_virtual", False)):
        raise LinkRefused(f"{path} keeps its data in other files, which are not followed")
    return node


def children(file: Any, path: str) -> list[str]:
    """List the names in a group, demo_2 before demo_10; empty if there is no such group."""
    try:
        group = resolve(file, path)
    except KeyError:
        return []
    if not isinstance(group, Group):
        return []
    # h5py returns bytes for names that are not UTF-8; they are listed and then not found.
    names = [name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else name for name in group.keys()]
    return sorted(names, key=natural)


def message_of(failure: BaseException) -> str:
    """The message of an error; str(KeyError) would add quotes."""
    return str(failure.args[0]) if isinstance(failure, KeyError) and failure.args else str(failure)


def natural(text: str) -> list[tuple[int, int, str]]:
    """Sort key that compares numbers in names by value."""
    parts = re.split(r"([0-9]+)", text)
    return [(1, int(part), "") if place % 2 else (0, 0, part) for place, part in enumerate(parts)]


def _parts(path: str) -> list[bytes]:
    return [part.encode("utf-8", "surrogateescape") for part in path.split("/") if part not in ("", ".")]
