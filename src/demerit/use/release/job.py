"""The release job: everything is written into a hidden folder, which becomes the release in one rename.

.NAME.release/plan.json    hash of the source and the config; a run with the same plan resumes
.NAME.release/records/     how each video was made
.NAME.release/tree/        the release; becomes DEST in one rename
NAME-private.json          next to DEST, for the owner alone: source ids, annotators, groups, dropped fields

The release is the demerit folder or LeRobot v3.0, with ORIGINS.csv and SHA256SUMS. A LeRobot release is both layouts at
once. LeRobot's tools read meta/, data/ and videos/; demerit reads dataset.json and episodes/, whose views are clips of
the same videos. Labels, edits and origins are complete either way.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from demerit.data.dataset import Dataset, Problem
from demerit.data.episode import Episode, Outcome, Preference
from demerit.data.files import (
    check_free,
    lock_folder,
    make_folder,
    sync_path,
    sync_tree,
    write_atomic,
    write_csv,
    write_json,
)
from demerit.data.formats.lerobot.metadata import NOT_SIGNALS
from demerit.data.formats.lerobot.reader import LeRobotReader
from demerit.data.formats.lerobot.writer import DTYPES, MATRIX, plan_dataset, write_lerobot
from demerit.data.importing import refuse_linked
from demerit.data.parts import FORMAT_VERSION, Manifest, write_manifest
from demerit.data.splits import describe_leaks, find_leaks, name_some
from demerit.data.store import FORMAT_NAME, MANIFEST, Store, episode_row
from demerit.errors import BadInput, StoreError, UnknownName, UnreadableVideo
from demerit.use.release.card import write_card
from demerit.use.release.config import (
    EVERY_CAMERA,
    ReleaseConfig,
    ReleaseFields,
    combine_licences,
    licence_doubts,
    parse_licence,
)
from demerit.use.release.video import ReleaseVideos, VideoSource

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
    all_episodes = list(episodes)
    order = {
        split: place for place, split in enumerate(dict.fromkeys(episode.origin.split for episode in all_episodes))
    }
    return sorted(all_episodes, key=lambda episode: order[episode.origin.split])


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
    rows: list[Sequence[object]] = [ORIGIN_COLUMNS]
    for episode in episodes:
        origin, outcome = episode.origin, episode.outcome
        edits = "; ".join(edit.name for edit in episode.edits)
        success = SUCCESS_TEXT[outcome.success if outcome else None]
        rows.append(
            [
                *(episode.id, origin.licence, origin.dataset, origin.revision, origin.embodiment, origin.site),
                *(origin.split, origin.group, origin.parent, edits, success, outcome.source if outcome else ""),
                *(made[episode.id], episode.fingerprint(), episode.instruction),
            ]
        )
    text = io.StringIO()
    write_csv(text, rows)
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

    With `extra`, a file that is not listed is a difference.
    """
    root = Path(root)
    try:
        lines = (root / SUMS).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(root, f"{SUMS} cannot be read ({error})") from error
    digests = {name: digest for digest, space, name in (line.partition("  ") for line in lines) if space}
    paths = {path.relative_to(root).as_posix(): path for path in list_files(root)}
    return [
        *(f"{name} is missing" for name in digests if name not in paths),
        *(f"{name} is not listed" for name in paths if extra and name not in digests),
        *(f"{name} has changed" for name in digests if name in paths and _sum(paths[name]) != digests[name]),
    ]


def _sum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


RELEASE_FORMAT, RELEASE_VERSION = "demerit-release", 3
FACTS = "release.json"
REFUSED_LEAKS = ("video", "recording", "original")
"""one task in two splits may be intended and is only noted"""

Progress = Callable[[str, int, int], None]
"""called with the step, how much of it is done and how much there is"""


@dataclass(frozen=True)
class Released:
    """A complete release."""

    folder: Path
    facts: dict[str, Any]
    """release.json"""
    seconds: float = 0.0
    """how long it took; 0 when the release existed already"""
    private: Path | None = None
    """the owner's private file, where this run wrote it"""
    dropped: tuple[str, ...] = ()
    """fields that were not released"""
    unused: tuple[str, ...] = ()
    """texts of --replace that occur nowhere"""
    own_licences: Counter[str] = field(default_factory=Counter)
    """licences of episodes that keep theirs, where the config names another one: licence to number of episodes"""

    @property
    def bytes(self) -> int:
        """Total size of the files."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())


@dataclass(frozen=True, eq=False)
class ReleaseSource:
    """The episodes to release as the source has them, after all checks."""

    episodes: tuple[Episode, ...]
    preferences: tuple[Preference, ...]
    licence: str
    doubts: list[str]
    left_out: int
    """episodes whose videos cannot be read"""
    own_licences: Counter[str]
    """of episodes to which the licence of the config does not apply"""
    plan: str
    """hash of episodes, labels and config. Private: it covers dropped fields, so guesses could be tested against it"""


def release(
    dataset: Dataset,
    dest: str | Path,
    config: ReleaseConfig | None = None,
    on_progress: Progress = lambda step, done, total: None,
) -> Released:
    """Make a release of a dataset, which is only read, in the new folder `dest`.

    After an interruption the same call resumes; nothing is ever overwritten.
    """
    dest = Path(dest).expanduser().absolute()
    config = config or ReleaseConfig()
    config = replace(config, name=config.name or dest.resolve().name)
    _check_destination(dataset, dest)
    refuse_linked(dataset)
    started = time.monotonic()
    on_progress("reading", 0, dataset.expected() or 0)
    source = _read_source(dataset, config)
    stage, private = dest.with_name(f".{dest.name}.release"), dest.with_name(f"{dest.name}-private.json")
    existing = _find_existing(dest, private, source.plan, on_progress)
    if existing is not None:
        if stage.is_dir() and not (stage / "tree").exists():  # killed right after the rename
            shutil.rmtree(stage, ignore_errors=True)
        return replace(existing, own_licences=source.own_licences)
    plans = {source.plan, _read_json(stage / "plan.json").get("plan", source.plan)}
    if private.exists() and _read_json(private).get("plan") not in plans:
        raise StoreError(private, "it belongs to another release and would be lost; move it or choose another folder")
    with lock_folder(make_folder(stage)):
        _prepare_stage(stage, source.plan, config)
        facts, fields = _write(stage, source, config, private, on_progress)
        sync_tree(stage / "tree")
        check_free(dest)
        (stage / "tree").rename(dest)
        sync_path(dest.parent)
    shutil.rmtree(stage, ignore_errors=True)
    seconds = time.monotonic() - started
    dropped, unused = tuple(sorted(+fields.dropped)), tuple(sorted(fields.unused))
    return Released(dest, facts, seconds, private, dropped, unused, source.own_licences)


def open_release(folder: str | Path) -> Released:
    """Open a release that exists."""
    facts = _read_json(Path(folder) / FACTS)
    if facts.get("format") != RELEASE_FORMAT or facts.get("version", 0) > RELEASE_VERSION:
        expected = f"expected {RELEASE_FORMAT} up to version {RELEASE_VERSION}"
        raise StoreError(folder, f"{FACTS}: {expected}, got {facts.get('format')} {facts.get('version')}")
    return Released(Path(folder), facts)


def _write(
    stage: Path, source: ReleaseSource, config: ReleaseConfig, private: Path, on_progress: Progress
) -> tuple[dict[str, Any], ReleaseFields]:
    """Write everything below stage/tree, and the private file."""
    tree, fields = stage / "tree", ReleaseFields(config, source.episodes)
    episodes = [fields.episode(episode) for episode in source.episodes]
    preferences = [fields.preference(preference) for preference in source.preferences]
    masks = tuple(replace(mask, camera=fields.name(mask.camera)) for mask in config.masks)
    videos = ReleaseVideos(tree, stage / "records", replace(config, masks=masks), episodes)
    sources: dict[str, VideoSource] = {}

    def write_videos(episode: Episode) -> Episode:
        on_progress("writing videos", len(sources), len(episodes))
        if config.layout == "lerobot":
            sources[episode.id] = "re-encoded"
            return videos.cover(episode)
        released, sources[episode.id] = videos.write(episode)
        return released

    written: Iterable[Episode] = map(write_videos, episodes)
    if config.layout == "lerobot":
        ordered = order_by_split(episodes)
        written = write_as_lerobot(ordered, tree, write_videos, config.fps)
    write_rows(tree, config.name, source.licence, written, preferences)
    on_progress("writing the card", 0, 1)
    # The same plan keeps its id: a release that was moved away and made again is still the private file's.
    owned = _read_json(private)
    release_id = owned.get("release_id") if owned.get("plan") == source.plan else None
    facts = {
        "format": RELEASE_FORMAT,
        "version": RELEASE_VERSION,
        "dataset_version": FORMAT_VERSION,
        "release_id": release_id or secrets.token_hex(16),
        "layout": config.layout,
        "name": config.name,
        "licence": source.licence,
        "licence_doubts": source.doubts,
        "episodes": len(episodes),
        "preferences": len(preferences),
        "left_out": source.left_out,
        "unchecked": sum(episode.check == "due" for episode in source.episodes),
        "videos": dict(Counter(sources.values())),
        "kept": list(config.keep),
        "replaced": len(config.replacements) - len(fields.unused),
        "scrubbed": bool(config.scrub),
        "masks": len(config.masks),
        "blurred": bool(config.blur),
        "blurred_frames": videos.hidden_frames,
        "leaks": describe_leaks(find_leaks(episodes)),
        "made_with": f"demerit {version('demerit')}",
    }
    released = list(Store(tree).episodes())
    write_json(tree / FACTS, facts)
    write_origins(tree, released, sources)
    write_card(tree, facts, released, preferences, fields, sources)
    owned = {
        "about": "PRIVATE: which source ids, people and recordings are behind the release. Do not share this file.",
        "plan": source.plan,
        "release_id": facts["release_id"],
        **fields.numbered,
        "dropped": dict(sorted((+fields.dropped).items())),
        "fingerprints_of_sources": {fields.id(episode.id): episode.fingerprint() for episode in source.episodes},
    }
    write_json(private, owned)
    os.chmod(private, 0o600)
    write_sums(tree)
    return facts, fields


def _read_source(dataset: Dataset, config: ReleaseConfig) -> ReleaseSource:
    """Read everything once and refuse what must not be released before a byte is written."""
    episodes: dict[str, Episode] = {}
    preferences, left_out = [], 0
    digest = hashlib.sha256(str(RELEASE_VERSION).encode() + config.digest())
    for record in dataset.records():
        if isinstance(record, Preference):
            preferences.append(record)
            continue
        if record.check == "rejected":
            left_out += 1
            continue
        columns = _columns(record, config)
        if any(columns[name] != value.lower() for name, value in config.where.items()):
            continue
        licence = parse_licence(record.origin.licence or config.licence)
        try:
            lengths = [len(frames.times()) for frames in record.views.values()]
            row = episode_row(replace(record, signals={}), Path("/"))
        except UnreadableVideo as error:
            dataset.report(Problem("unreadable video", record.id, f"{error.path}: {error.reason}", kept=False))
            left_out += 1
            continue
        digest.update(json.dumps([lengths, row], sort_keys=True, default=str).encode())
        episodes[record.id] = replace(record, origin=replace(record.origin, licence=licence))
    pairs = tuple(pair for pair in preferences if pair.a in episodes and pair.b in episodes)
    digest.update(json.dumps([vars(pair) for pair in pairs], sort_keys=True).encode())
    all_episodes = tuple(episodes.values())
    if not all_episodes:
        raise BadInput(dataset.address or dataset.name, "at least one episode to release", "none")
    cameras = {camera for episode in all_episodes for camera in episode.views}
    for mask in config.masks:
        if mask.camera not in (EVERY_CAMERA, *cameras):
            raise UnknownName("camera to mask", mask.camera, cameras)
    if config.layout == "lerobot":
        check_lerobot(all_episodes, config.fps)
    leak = next((leak for leak in find_leaks(all_episodes) if leak.kind in REFUSED_LEAKS), None)
    if leak and not config.allow_leaks:
        expected = "splits that share no video, recording or original (--allow-leaks releases them with a warning)"
        raise BadInput("splits", expected, str(leak))
    licences = Counter(episode.origin.licence for episode in all_episodes)
    is_changed = config.changes_pixels or config.layout == "lerobot" or any(episode.edits for episode in all_episodes)
    whole = combine_licences(licences, is_changed)
    own = Counter({name: count for name, count in licences.items() if name != parse_licence(config.licence)})
    doubts, plan = licence_doubts(licences), digest.hexdigest()[:32]
    return ReleaseSource(all_episodes, pairs, whole, doubts, left_out, own if config.licence else Counter(), plan)


def _columns(episode: Episode, config: ReleaseConfig) -> dict[str, str]:
    """Return what --where compares, in lower case; success is yes, no or empty."""
    outcome, origin = episode.outcome or Outcome("model"), episode.origin
    columns = {"id": episode.id, "instruction": episode.instruction, **vars(origin)}
    columns |= {"licence": origin.licence or config.licence, "success": SUCCESS_TEXT[outcome.success]}
    columns |= {"grade": outcome.grade or "", "vouched_by": outcome.source if episode.outcome else ""}
    return {name: str(value).lower() for name, value in columns.items()}


def _check_destination(dataset: Dataset, dest: Path) -> None:
    """Refuse a destination inside or around the source, and a link, which cannot be renamed to."""
    if dest.is_symlink() and not (dest / FACTS).is_file():
        raise BadInput(f"destination {dest}", "a folder that does not exist yet", "a link")
    _, colon, rest = dataset.address.partition(":")
    source = Path(rest)
    if not colon or not source.is_absolute() or not source.exists():
        return
    source, place = source.resolve(), dest.resolve()
    if (source.is_dir() and place.is_relative_to(source)) or source.is_relative_to(place):
        raise BadInput(f"destination {dest}", f"a folder outside of {source}", "one inside or around it")


def _find_existing(dest: Path, private: Path, plan: str, on_progress: Progress) -> Released | None:
    """Return the same release if it is there and complete, None if nothing is there; refuse anything else."""
    if not (dest / FACTS).exists():
        check_free(dest)
        return None
    existing = open_release(dest)
    place = dest.resolve()  # the private file is next to the release, not next to a link to it
    owned = _read_json(private if private.exists() else place.with_name(f"{place.name}-private.json"))
    if owned.get("release_id") != existing.facts.get("release_id"):
        raise StoreError(dest, f"it holds a release, but not the one of {private.name}; nothing is overwritten")
    if owned.get("plan") != plan:
        raise StoreError(dest, "it holds another release (other episodes, labels or options); nothing is overwritten")
    on_progress("verifying checksums", 0, 0)
    changes = verify(dest, extra=False)
    if changes:
        raise StoreError(dest, f"the release is damaged ({name_some(changes)}); move it away and run again")
    return existing


def _prepare_stage(stage: Path, plan: str, config: ReleaseConfig) -> None:
    """Keep the finished videos of an earlier run with this plan; delete everything else."""
    # A LeRobot video holds many episodes, so half of one cannot be reused.
    if _read_json(stage / "plan.json").get("plan") != plan or config.layout == "lerobot":
        _delete(path for path in stage.iterdir() if path.name != ".lock")
        write_json(stage / "plan.json", {"plan": plan})
    (stage / "records").mkdir(exist_ok=True)
    if (stage / "tree").is_dir():
        _delete(path for path in (stage / "tree").iterdir() if path.name != "videos")
    _delete(stage.rglob(".*.part"))


def _delete(paths: Iterable[Path]) -> None:
    for path in list(paths):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty if there is none that can be read."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
