"""Files of a release: the demerit folder or LeRobot v3.0, ORIGINS.csv and SHA256SUMS.

A LeRobot release is both layouts at once. LeRobot's tools read meta/, data/ and videos/; demerit reads dataset.json and
episodes/, whose views are clips of the same videos. Labels, edits and origins are complete either way.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from demerit.data.episode import Episode
from demerit.data.files import make_folder, write_atomic
from demerit.data.formats.lerobot.metadata import NOT_SIGNALS
from demerit.data.formats.lerobot.reader import LeRobotReader
from demerit.data.formats.lerobot.writer import DTYPES, MATRIX, plan_dataset, write_lerobot
from demerit.data.labels import Preference
from demerit.data.parts import Manifest, write_manifest
from demerit.data.store import FORMAT_NAME, MANIFEST, Store
from demerit.errors import BadInput, StoreError
from demerit.use.release.video import VideoSource

SUMS, ORIGINS = "SHA256SUMS", "ORIGINS.csv"
ORIGIN_COLUMNS = (
    *("episode", "licence", "dataset", "revision", "embodiment", "site", "split", "recorded_with", "made_from"),
    *("edits", "success", "vouched_by", "video", "fingerprint", "instruction"),
)
SUCCESS_TEXT = {True: "yes", False: "no", None: ""}


def write_as_lerobot(
    episodes: Sequence[Episode], root: Path, cover: Callable[[Episode], Episode], fps: float | None
) -> list[Episode]:
    """Write a LeRobot dataset of covered episodes; return the episodes as clips of its videos."""
    write_lerobot(map(cover, episodes), root, fps=fps, signals=_shared_signals(episodes))
    clips = [record for record in LeRobotReader(root).records() if isinstance(record, Episode)]
    cameras = dict(zip(episodes[0].views, clips[0].views, strict=True))
    # The instruction as LeRobot's metadata returns it, so that both readings have one fingerprint.
    return [
        replace(
            episode,
            instruction=clip.instruction,
            views={cameras[name]: clip.views[cameras[name]] for name in episode.views},
        )
        for episode, clip in zip(episodes, clips, strict=True)
    ]


def check_lerobot(episodes: Iterable[Episode], fps: float | None) -> None:
    """Refuse episodes that one LeRobot dataset cannot hold, such as two frame rates. Decodes one image."""
    ordered = order_by_split(episodes)
    plan = plan_dataset(ordered[0], fps, None, [], False)
    for episode in ordered:
        plan.check(episode)
        if episode.views.keys() != ordered[0].views.keys():
            raise BadInput(f"cameras of {episode.id!r}", ", ".join(ordered[0].views), ", ".join(episode.views))


def order_by_split(episodes: Iterable[Episode]) -> list[Episode]:
    """Put the episodes of each split together, because LeRobot's splits are ranges."""
    listed = list(episodes)
    order = {split: place for place, split in enumerate(dict.fromkeys(episode.origin.split for episode in listed))}
    return sorted(listed, key=lambda episode: order[episode.origin.split])


def _shared_signals(episodes: Sequence[Episode]) -> list[str]:
    """Find signals that LeRobot's tables can hold: numbers of one type and shape in every episode."""
    forms: dict[str, set[object]] = {}
    for episode in episodes:
        for name in {*forms, *episode.signals}:
            values = episode.signals.get(name, np.empty(0, dtype=str))
            fits = len(values) == len(episode) and values.dtype.kind in DTYPES and 1 <= values.ndim <= MATRIX
            forms.setdefault(name, set()).add((DTYPES[values.dtype.kind], values.shape[1:]) if fits else None)
    allowed = [name for name in episodes[0].signals if name not in NOT_SIGNALS and "/" not in name]
    return [name for name in allowed if len(forms[name]) == 1 and None not in forms[name]]


def write_rows(
    root: Path, name: str, licence: str, episodes: Iterable[Episode], preferences: Iterable[Preference]
) -> None:
    """Write dataset.json and its parts; the path of the source is not recorded."""
    make_folder(root)
    write_manifest(root / MANIFEST, FORMAT_NAME, Manifest({"name": name, "licence": licence, "source": ""}))
    with Store(root).writer() as writer:
        for episode in episodes:
            writer.add(episode)
        for preference in preferences:
            writer.add(preference)
    (root / ".lock").unlink(missing_ok=True)  # names the machine and the command


def write_origins(root: Path, episodes: Iterable[Episode], made: Mapping[str, VideoSource]) -> None:
    """Write ORIGINS.csv: licence and origin of every episode, a row each."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(ORIGIN_COLUMNS)
    for episode in episodes:
        origin, outcome = episode.origin, episode.outcome
        edits = "; ".join(edit.name for edit in episode.edits)
        success = SUCCESS_TEXT[outcome.success if outcome else None]
        writer.writerow(
            [
                *(episode.id, origin.licence, origin.dataset, origin.revision, origin.embodiment, origin.site),
                *(origin.split, origin.group, origin.parent, edits, success, outcome.source if outcome else ""),
                *(made[episode.id], episode.fingerprint(), episode.instruction),
            ]
        )
    write_atomic(root / ORIGINS, text.getvalue().encode())


def list_files(root: Path) -> list[Path]:
    """List every file of a release but SHA256SUMS, by name."""
    return sorted(path for path in root.rglob("*") if path.is_file() and path.name != SUMS)


def write_sums(root: Path) -> None:
    """Write SHA256SUMS in the form that `sha256sum -c` reads."""
    lines = [f"{_sum(path)}  {path.relative_to(root).as_posix()}\n" for path in list_files(root)]
    write_atomic(root / SUMS, "".join(lines).encode())


def verify(root: str | Path, *, extra: bool = True) -> list[str]:
    """Compare a release with its SHA256SUMS; return one line per difference, empty when all is unchanged.

    Args:
        root: the release.
        extra: whether files that are not listed count as differences.
    """
    root = Path(root)
    try:
        lines = (root / SUMS).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(root, f"{SUMS} cannot be read ({error})") from error
    listed = {name: digest for digest, space, name in (line.partition("  ") for line in lines) if space}
    there = {path.relative_to(root).as_posix(): path for path in list_files(root)}
    return [
        *(f"{name} is missing" for name in listed if name not in there),
        *(f"{name} is not listed" for name in there if extra and name not in listed),
        *(f"{name} has changed" for name in listed if name in there and _sum(there[name]) != listed[name]),
    ]


def _sum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
