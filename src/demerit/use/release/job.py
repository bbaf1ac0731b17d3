"""The release job: everything is made in a hidden folder beside the destination and renamed when it is whole.

.NAME.release/plan.json    what this is going to be; a run with the same plan goes on, another begins anew
.NAME.release/notes/       how each video came about
.NAME.release/tree/        the release; becomes DEST in one rename
NAME-private.json          beside DEST: who is behind which stand-in, and what to look at; for the owner alone
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from demerit.data.dataset import Dataset
from demerit.data.episode import Episode, safe_name
from demerit.data.files import lock_folder, sync_path, write_atomic
from demerit.data.parts import FORMAT_VERSION
from demerit.data.splits import describe_leaks
from demerit.data.store import Store
from demerit.errors import StoreError
from demerit.use.release.card import write_card
from demerit.use.release.checksums import damage, files_of, write_sums
from demerit.use.release.cleaned import Cleaner
from demerit.use.release.composition import compose
from demerit.use.release.layouts import (
    in_order_of_splits,
    words_are_the_same,
    write_as_lerobot,
    write_folder,
    write_rows,
)
from demerit.use.release.origins import write_origins
from demerit.use.release.owners_file import kept_in, private_facts, refuse_other, salt_for, salted
from demerit.use.release.places import refuse_place
from demerit.use.release.privacy import Removal, write_privacy
from demerit.use.release.settings import CAME_AS, RULES, Settings
from demerit.use.release.shown import unseen_frames
from demerit.use.release.survey import Survey, survey
from demerit.use.release.videos import Videos

FORMAT_NAME, RELEASE_VERSION = "demerit-release", 2
FACTS = "release.json"
MOST_NAMED = 5
"""files that an error names"""

Told = Callable[[str, int, int], None]
"""called with what is being done, how much of it is done and how much there is"""


@dataclass(frozen=True)
class Released:
    """A release that is whole."""

    folder: Path
    facts: dict[str, Any]
    """what release.json says"""
    seconds: dict[str, float] = field(default_factory=dict)
    """how long each step took; empty when it was there already"""
    key: Path | None = None
    """the owner's private file, where this run wrote one"""

    @property
    def bytes(self) -> int:
        """How much there is."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())


def release(
    dataset: Dataset,
    dest: str | Path,
    settings: Settings | None = None,
    on_progress: Told = lambda what, done, all: None,
) -> Released:
    """Make a release. Run it again after an interruption and it goes on; done twice, it is left as it is.

    Args:
        dataset: what to release; it is only read.
        dest: the folder to make; one that holds anything else is left alone.
        settings: what it is to be.
        on_progress: told how far it is.
    """
    settings = settings or Settings()
    dest = Path(dest).expanduser().absolute()
    refuse_place(dataset, dest)
    started = time.monotonic()
    on_progress("reading", 0, dataset.expected() or 0)
    found = survey(dataset, settings)
    stage = dest.with_name(f".{dest.name}.release")
    key = dest.with_name(f"{dest.name}-private.json")
    there = _already(dest, key, found.plan, on_progress)
    if there is not None:
        if stage.is_dir() and not (stage / "tree").exists():  # killed right after the last rename
            shutil.rmtree(stage, ignore_errors=True)
        return there
    refuse_other(key, {found.plan, kept_in(stage / "plan.json", "plan")})
    try:
        stage.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(stage, f"the folder cannot be made ({error.strerror})") from error
    with lock_folder(stage):
        seconds = {"reading": time.monotonic() - started}
        _begin(stage, found.plan, settings)
        facts = _make(stage, found, settings, _name(dataset, settings), seconds, on_progress, key)
        _finish(stage, dest)
    shutil.rmtree(stage, ignore_errors=True)
    return Released(dest, facts, seconds, key)


def opened(folder: str | Path) -> Released:
    """Open a release that is there."""
    path = Path(folder) / FACTS
    try:
        facts = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(folder, f"it is no release ({error})") from error
    if facts.get("format") != FORMAT_NAME or not isinstance(facts.get("version"), int):
        raise StoreError(path, "it is not the description of a release")
    if facts["version"] > RELEASE_VERSION:
        raise StoreError(path, f"it is of version {facts['version']}, and this demerit knows up to {RELEASE_VERSION}")
    return Released(Path(folder), facts)


def _make(
    stage: Path, found: Survey, settings: Settings, name: str, seconds: dict[str, float], told: Told, key: Path
) -> dict[str, Any]:
    """Write everything below stage/tree but the sums; return what release.json says."""
    started = time.monotonic()
    tree, cleaner = stage / "tree", Cleaner(found.names, settings.notes)
    chosen = in_order_of_splits(found.episodes) if settings.layout == "lerobot" else list(found.episodes)
    # In the source's order first, so that ids are the same in both layouts.
    for one in found.episodes:
        cleaner.id(one.id)
    clean = {one.id: cleaner.episode(one) for one in found.episodes}
    preferences = [cleaner.preference(one) for one in found.preferences]
    episodes, sources = [clean[one.id] for one in chosen], {one.id: one.fingerprint() for one in chosen}
    before = [sources[one.id] if words_are_the_same(one, clean[one.id]) else "" for one in chosen]
    # Masks are told by the names that cameras have, and found by those that they got.
    masks = tuple(replace(one, camera=cleaner.camera(one.camera)) for one in settings.masks)
    videos = Videos(tree, stage / "notes", replace(settings, masks=masks))
    salt = salt_for(key, found.plan)

    def watched(done: int) -> None:
        told("writing videos", done, len(episodes))

    if settings.layout == "lerobot":
        written = write_as_lerobot(episodes, before, tree, videos, settings, watched)
    else:
        written = write_folder(episodes, before, tree, videos, watched)
    write_rows(tree, cleaner.names.in_name(name, Counter()), found.licence, written, preferences)
    seconds["videos and rows"] = time.monotonic() - started
    started = time.monotonic()
    told("writing the card", 0, 1)
    store = Store(tree)
    released = list(store.episodes())
    warnings = describe_leaks(found.leaks)
    removal = Removal(cleaner.report(), videos.written, unseen_frames(released), settings, len(cleaner.suspects))
    facts = {**_facts(store, found, settings, released, warnings), "plan": salted(found.plan, salt)}
    write_atomic(tree / FACTS, (json.dumps(facts, indent=1, ensure_ascii=False) + "\n").encode())
    write_origins(tree, released)
    write_privacy(tree, removal, released)
    write_card(tree, compose(store.name, released, preferences), facts, removal, released)
    write_atomic(key, private_facts(found.plan, salt, cleaner, sources))
    os.chmod(key, 0o600)
    seconds["card"] = time.monotonic() - started
    started = time.monotonic()
    write_sums(tree)
    seconds["sums"] = time.monotonic() - started
    return facts


def _facts(
    store: Store, found: Survey, settings: Settings, released: list[Episode], warnings: list[str]
) -> dict[str, Any]:
    pixels = Counter(one.origin.tags.get(CAME_AS, "same file") for one in released)
    return {
        "format": FORMAT_NAME,
        "version": RELEASE_VERSION,
        "dataset_version": FORMAT_VERSION,
        "layout": settings.layout,
        "name": store.name,
        "licence": found.licence,
        "licence_doubts": list(found.doubts),
        "episodes": len(released),
        "preferences": len(found.preferences),
        "left_out": found.left_out,
        "videos": dict(pixels),
        "materialized": settings.materialize,
        "masks": len(settings.masks),
        "blurred": bool(settings.blur),
        "notes": settings.notes,
        "dates": settings.dates,
        "leaks": warnings,
        "made_with": f"demerit {version('demerit')}",
        "rules": RULES,
    }


def _name(dataset: Dataset, settings: Settings) -> str:
    return settings.name or safe_name(dataset.name)


def _already(dest: Path, key: Path, plan: str, told: Told) -> Released | None:
    """What is at the destination: nothing, the very same release, or something that is left alone."""
    if not dest.exists() or (dest.is_dir() and not any(dest.iterdir())):
        return None
    try:
        there = opened(dest)
    except StoreError:
        raise StoreError(dest, "it exists and is not an empty folder; nothing is overwritten") from None
    if there.facts.get("rules") != RULES:
        rules = there.facts.get("rules")
        which = "newer" if isinstance(rules, int) and rules > RULES else "older"
        said = f"a release by {which} rules of cleaning; nothing is overwritten (choose another folder)"
        raise StoreError(dest, f"it holds {said}")
    where = dest.resolve()  # a link to a release: the owner's file lies beside the release
    salt = kept_in(key if key.exists() else where.with_name(f"{where.name}-private.json"), "salt")
    if salt is None:
        said = f"without {key.name} beside it, which cannot be read, nobody can tell whether it is this very one"
        raise StoreError(
            dest, f"it holds a release; {said}; nothing is overwritten (bring that file back, or choose another folder)"
        )
    if there.facts.get("plan") != salted(plan, salt):
        what = "another release (other episodes, labels or settings)"
        raise StoreError(dest, f"it holds {what}; nothing is overwritten")
    told("checking what is there", 0, 0)
    lost = damage(dest)
    if lost:
        more = f", and {len(lost) - MOST_NAMED} more" if len(lost) > MOST_NAMED else ""
        said = f"{', '.join(lost[:MOST_NAMED])}{more}"
        raise StoreError(
            dest, f"this release is there, but not as it was made: {said}; move it away and run this again"
        )
    return there


def _begin(stage: Path, plan: str, settings: Settings) -> None:
    """Keep what an earlier run with this plan has finished; throw away what it left half done."""
    # LeRobot keeps many episodes in one video: half of it is worth nothing.
    if kept_in(stage / "plan.json", "plan") != plan or settings.layout == "lerobot":
        for path in stage.iterdir():
            if path.name != ".lock":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        write_atomic(stage / "plan.json", json.dumps({"plan": plan}).encode())
    (stage / "notes").mkdir(exist_ok=True)
    tree = stage / "tree"
    for path in [*tree.iterdir()] if tree.is_dir() else []:
        if path.name != "videos":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in stage.rglob(".*.part"):
        path.unlink(missing_ok=True)


def _finish(stage: Path, dest: Path) -> None:
    tree = stage / "tree"
    folders = {tree}
    for path in files_of(tree):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        folders.add(path.parent)
    for folder in folders:
        sync_path(folder)
    try:
        tree.rename(dest)
        sync_path(dest.parent)
    except OSError as error:
        raise StoreError(dest, f"the release cannot be put there ({error.strerror}); nothing is overwritten") from error
