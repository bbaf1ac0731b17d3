"""Releases as a whole: what comes back, what is gone, what is refused, and what a kill leaves behind."""

from __future__ import annotations

import csv
import importlib
import inspect
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from demerit.cli import app
from demerit.data.dataset import Dataset, Record
from demerit.data.episode import Edit, Episode, Origin
from demerit.data.files import lock_folder
from demerit.data.formats import open_dataset
from demerit.data.frames import Frames
from demerit.data.importing import import_dataset
from demerit.data.labels import Outcome, Preference
from demerit.data.store import Store
from demerit.data.video import VideoClip, write_video
from demerit.errors import BadInput, MissingExtra, RemoteError, StoreBusy, StoreError, UnknownName
from demerit.use.release import Released, Settings, hub, release, verify
from demerit.use.release.job import opened
from demerit.use.release.settings import RULES, Mask
from fakes.release_fixture import SECRETS, messy_rollouts


class Listed:
    """Episodes in memory, as a reader."""

    name = "listed"

    def __init__(self, *records: Record) -> None:
        self.all = records

    def records(self) -> Any:
        return iter(self.all)

    def expected(self) -> int:
        return len(self.all)


def dataset(*records: Record) -> Dataset:
    return Dataset(Listed(*records), "listed")


@pytest.fixture(scope="session")
def messy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return messy_rollouts(tmp_path_factory.mktemp("messy") / "rollouts")


@pytest.fixture(scope="module")
def blocks(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The drawn sample as a folder, with signals, a preference, two vouchers and views among it."""
    place = tmp_path_factory.mktemp("blocks")
    import_dataset(open_dataset(f"videos:{sample}"), place / "set", licence="MIT")
    store = Store.create(place / "whole", "blocks", "MIT")
    with store.writer() as writer:
        for number, one in enumerate(Store(place / "set").episodes()):
            signals = {
                "state": np.arange(64, dtype=np.float32).reshape(32, 2),
                "timestamp": 1746282730 + np.arange(32.0),
            }
            judged = (*one.outcomes, Outcome("human", success=number % 2 == 0, grade=3, by="Anna Schmidt"))
            origin = replace(one.origin, split="test" if number % 5 == 0 else "train", group=f"scene {number}")
            writer.add(replace(one, signals=signals, outcomes=judged, origin=origin))
        first = next(iter(Store(place / "set").episodes()))
        half = replace(
            first.select(np.arange(16)), id="half", edits=(Edit("clip", {"of": first.id, "frames": 16}, 3),),
            origin=Origin(licence="MIT", split="test", group="scene 0", parent=first.id), signals={},
        )  # fmt: skip
        writer.add(half)
        writer.add(Preference(first.id, "half", "a", "human", why="Anna likes it", by="Anna Schmidt"))
    return Store(store.root)


def facts_of(episode: Episode) -> tuple[Any, ...]:
    return episode.id, episode.instruction, episode.outcomes, episode.origin, episode.edits, episode.fingerprint()


def test_a_folder_comes_back_as_it_was(blocks: Store, tmp_path: Path) -> None:
    made = release(Dataset(blocks, "x"), tmp_path / "out")
    before = {one.id: one for one in blocks.episodes()}
    after = {one.id: one for one in Store(tmp_path / "out").episodes()}
    assert list(before) == list(after)
    for id, one in after.items():
        assert one.fingerprint() == before[id].fingerprint()  # same bytes, same words, also for the view
        assert one.origin == before[id].origin
        assert one.edits == before[id].edits
        human = [outcome.by for outcome in one.outcomes if outcome.source == "human"]
        assert human == ["person-1"] * len(human)
        assert tuple(replace(outcome, by="") for outcome in one.outcomes) == tuple(
            replace(outcome, by="") for outcome in before[id].outcomes
        )
    np.testing.assert_array_equal(
        next(iter(after.values())).signals["state"], next(iter(before.values())).signals["state"]
    )
    assert next(iter(after.values())).signals["timestamp"].tolist() == list(range(32))
    assert made.facts["videos"] == {"same file": 16}
    (better,) = Store(tmp_path / "out").preferences()
    assert (better.a, better.b, better.why, better.by) == (next(iter(before)), "half", "person-1 likes it", "person-1")


@pytest.mark.parametrize("layout", ["folder", "lerobot"])
def test_importing_gives_back_episodes_labels_and_fingerprints(blocks: Store, tmp_path: Path, layout: Any) -> None:
    plain = Dataset(Listed(*(one for one in blocks.episodes() if not one.edits)), "x")
    release(plain, tmp_path / "out", Settings(layout=layout))
    import_dataset(open_dataset(tmp_path / "out"), tmp_path / "again")
    released, again = ([facts_of(one) for one in Store(tmp_path / name).episodes()] for name in ("out", "again"))
    assert released == again
    assert len(released) == 15
    before = {one.id: one for one in blocks.episodes()}
    for one in Store(tmp_path / "again").episodes():
        assert one.instruction == before[one.id].instruction
        assert [(o.source, o.success, o.progress, o.grade, o.events, o.note) for o in one.outcomes] == [
            (o.source, o.success, o.progress, o.grade, o.events, o.note) for o in before[one.id].outcomes
        ]
        if layout == "lerobot":  # pixels were encoded anew: the fingerprint is another, and where it came from is said
            assert one.origin.tags["released_from"] == before[one.id].fingerprint() != one.fingerprint()
            assert one.origin.tags["released_as"] == "encoded anew"
            assert np.abs(one.main.take([7]).astype(int) - before[one.id].main.take([7])).mean() < 6
        else:
            assert one.fingerprint() == before[one.id].fingerprint()
        np.testing.assert_array_equal(one.signals["state"], before[one.id].signals["state"])


def test_lerobots_own_reading_agrees(blocks: Store, tmp_path: Path) -> None:
    """Whichever way the folder is read: the same fingerprints, words, verdicts, splits and signals."""
    release(Dataset(blocks, "x"), tmp_path / "out", Settings(layout="lerobot"))
    ours, theirs = list(open_dataset(tmp_path / "out")), list(open_dataset(f"lerobot:{tmp_path / 'out'}"))
    assert len(ours) == len(theirs) == 16
    for one, other in zip(ours, theirs, strict=True):
        assert one.fingerprint() == other.fingerprint()
        assert (one.instruction, one.origin.split) == (other.instruction, other.origin.split)
        assert one.outcome is not None and other.outcome is not None
        for name in ("success", "progress", "grade", "source"):
            assert getattr(one.outcome, name) == getattr(other.outcome, name)
    assert {one.origin.split for one in theirs} == {"train", "test"}
    assert theirs[0].origin.licence == "mit"
    import_dataset(open_dataset(f"lerobot:{tmp_path / 'out'}"), tmp_path / "again")
    assert [one.fingerprint() for one in Store(tmp_path / "again").episodes()] == [one.fingerprint() for one in ours]


def every_byte(folder: Path) -> bytes:
    """Everything that somebody could read in a release: bytes of files, and what parquet keeps compressed."""
    found = b""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found += path.relative_to(folder).as_posix().encode() + path.read_bytes()
        if path.suffix == ".parquet":
            found += repr(pq.read_table(path).to_pylist()).encode() + repr(pq.read_schema(path).metadata).encode()
    return found


@pytest.mark.parametrize("settings", [Settings(licence="CC-BY-4.0"), Settings(licence="CC-BY-4.0", layout="lerobot")])
def test_no_secret_is_left_in_any_byte(messy: Path, tmp_path: Path, settings: Settings) -> None:
    source = open_dataset(messy)
    assert b"Schmidt" in (messy / "labels.jsonl").read_bytes()
    made = release(source, tmp_path / "out", settings)
    everything = every_byte(tmp_path / "out")
    for secret in (*SECRETS, "anna", "Juan", str(messy.parent)):
        assert secret.encode() not in everything, secret
    assert not list((tmp_path / "out").rglob(".*")), "a lock names the machine and the command"
    report = (tmp_path / "out" / "PRIVACY.md").read_text()
    assert "6" in re.findall(r"\| streams of sound \| (\d+) \|", report)
    assert "| who judged | name or place, replaced | 6 |" in report
    assert "| tag hostname | field about machines or addresses, removed | 6 |" in report
    kept = next(one for one in Store(tmp_path / "out").episodes() if one.outcome and not one.outcome.success)
    assert kept.instruction == "hand the cup to person-1"
    assert kept.outcome is not None
    assert kept.outcome.note == "person-1 said the gripper slipped; ask [name]. [name] saw it too."
    assert kept.outcome.events[0].note == "on 2025-05"
    assert kept.origin.site == kept.origin.tags["city"] == "site-1"
    assert kept.origin.tags["recorded"] == "2025-05"
    assert kept.origin.tags["policy"] == "pi-zero"
    assert made.key is not None and made.key.parent == tmp_path
    assert oct(made.key.stat().st_mode)[-3:] == "600"
    assert json.loads(made.key.read_text())["stand_ins"]["anna schmidt"] == "person-1"


def test_notes_can_be_dropped_or_kept_and_names_can_be_told(messy: Path, tmp_path: Path) -> None:
    release(open_dataset(messy), tmp_path / "none", Settings(licence="MIT", notes="drop"))
    release(open_dataset(messy), tmp_path / "told", Settings(licence="MIT", names=("tray",)))
    assert {one.outcome.note for one in Store(tmp_path / "none").episodes() if one.outcome} == {""}
    told = {one.instruction for one in Store(tmp_path / "told").episodes()}
    assert told == {"hand the cup to person-1", "put the cup on the name-1"}


def test_two_ids_never_become_one(make_episode: Callable[..., Episode], tmp_path: Path) -> None:
    one, two = (make_episode(id) for id in ("run_2025-05-03", "run_2025-05-04"))
    child = replace(make_episode("child"), origin=Origin(parent="run_2025-05-04"))
    better = Preference("run_2025-05-03", "run_2025-05-04", "b", "rule")
    release(dataset(one, two, child, better), tmp_path / "out", Settings(licence="MIT"))
    store = Store(tmp_path / "out")
    assert store.ids() == ["run_2025-05", "run_2025-05-n2", "child"]
    assert store.episode("child").origin.parent == "run_2025-05-n2"
    assert [(one.a, one.b) for one in store.preferences()] == [("run_2025-05", "run_2025-05-n2")]


def test_cameras_groups_splits_and_tags_never_become_one(make_episode: Callable[..., Episode], tmp_path: Path) -> None:
    """Two addresses are two cameras and two days two groups, or a video and the apartness of splits would be lost."""
    one, two = make_episode("one", seed=1), make_episode("two", seed=2)
    both = {"192.168.1.10": one.main, "192.168.1.11": two.main}
    tags = {"at 192.168.1.10": "low", "at 192.168.1.11": "high"}
    listed = [
        replace(made, views=both if made is one else {"192.168.1.11": made.main}, origin=origin)
        for made, origin in (
            (one, Origin(group="2024-03-05", split="2024-03-01", tags=tags)),
            (two, Origin(group="2024-03-06", split="2024-03-01")),
            (make_episode("three"), Origin(group="2024-03-05", split="2024-03-01")),
            (make_episode("four", seed=4), Origin(group="2024-03-07", split="2024-03-02")),
        )
    ]
    masked = Settings(licence="MIT", masks=(Mask("192.168.1.11", 0, 0, 8, 8),))
    release(dataset(*listed), tmp_path / "out", Settings(licence="MIT"))
    release(dataset(*listed), tmp_path / "masked", masked)
    made = list(Store(tmp_path / "out").episodes())
    assert [list(each.views) for each in made] == [["[link]", "[link]-n2"], *[["[link]-n2"]] * 3]
    assert [each.origin.group for each in made] == ["2024-03", "2024-03-n2", "2024-03", "2024-03-n3"]
    assert [each.origin.split for each in made] == ["2024-03"] * 3 + ["2024-03-n2"]
    assert made[0].origin.tags == {"at [link]": "low", "at [link]-n2": "high", "released_as": "same file, other words"}
    # The mask was told by the name that the camera has, and is on the camera that is called otherwise now.
    first = next(iter(Store(tmp_path / "masked").episodes()))
    assert first.views["[link]-n2"].take([3])[0, :7, :7].max() < 24 < first.views["[link]"].take([3])[0, :7, :7].max()
    shown = CliRunner().invoke(app, ["inspect", str(tmp_path / "out")])
    assert "cameras: [link]-n2 (4), [link] (1)" in shown.output


def test_no_hash_in_a_release_lets_a_removed_name_be_guessed(
    make_episode: Callable[..., Episode], tmp_path: Path
) -> None:
    """Whoever has the release tries names: neither a fingerprint nor the plan tells them when one fits."""
    one = replace(make_episode("one"), instruction="hand the cup to Charlotte")
    other = replace(make_episode("other"), instruction="push the cup")
    made = release(dataset(one, other), tmp_path / "out", Settings(licence="MIT", names=("Zinsmeister",)))
    store = Store(tmp_path / "out")
    clean = store.episode("one")
    assert clean.instruction == "hand the cup to [name]"
    guess = replace(clean, instruction="hand the cup to Charlotte").fingerprint()
    assert guess == one.fingerprint()
    assert made.key is not None
    kept = json.loads(made.key.read_text())
    everything = every_byte(tmp_path / "out")
    assert kept["fingerprints_of_sources"] == {"one": guess, "other": other.fingerprint()}
    assert guess.encode() not in everything and kept["plan"].encode() not in everything
    assert kept["salt"].encode() not in everything
    rows = list(csv.DictReader((tmp_path / "out" / "ORIGINS.csv").read_text().splitlines()))
    assert [row["fingerprint_of_source"] for row in rows] == ["", other.fingerprint()]
    # The same release once more says another plan, and what an earlier release said of its source goes as well.
    again = release(dataset(one, other), tmp_path / "again", Settings(licence="MIT", names=("Zinsmeister",)))
    assert again.facts["plan"] != made.facts["plan"]
    told = replace(clean, origin=replace(clean.origin, tags={"released_from": guess}))
    release(dataset(told), tmp_path / "third", Settings(licence="MIT"))
    assert guess.encode() not in every_byte(tmp_path / "third")


def test_a_release_without_its_private_file_or_by_older_rules_is_left_alone(
    make_episode: Callable[..., Episode], tmp_path: Path
) -> None:
    source, settings = dataset(make_episode("a")), Settings(licence="MIT")
    made = release(source, tmp_path / "out", settings)
    assert made.key is not None and not release(source, tmp_path / "out", settings).seconds
    before = every_byte(tmp_path / "out")
    kept = made.key.read_bytes()
    for lost in (lambda: made.key.write_text("{"), made.key.unlink):  # type: ignore[union-attr]
        lost()
        with pytest.raises(StoreError, match=r"without out-private.json .* nothing is overwritten"):
            release(source, tmp_path / "out", settings)
    made.key.write_bytes(kept)
    # Moved away, made once more, and brought back: the private file is that of both.
    (tmp_path / "out").rename(tmp_path / "moved")
    again = release(source, tmp_path / "out", settings)
    assert again.facts == made.facts and made.key.read_bytes() == kept
    facts = {name: value for name, value in made.facts.items() if name not in ("rules", "licence_doubts")}
    for older in ({**facts, "version": 1}, {**facts, "rules": RULES - 1}):
        (tmp_path / "out" / "release.json").write_text(json.dumps(older))
        with pytest.raises(StoreError, match="older rules of cleaning; nothing is overwritten"):
            release(source, tmp_path / "out", settings)
    (tmp_path / "out" / "release.json").write_text(json.dumps(made.facts, indent=1, ensure_ascii=False) + "\n")
    assert every_byte(tmp_path / "out") == before
    assert not release(source, tmp_path / "out", settings).seconds


@pytest.mark.parametrize("fault", ["rate", "camera"])
def test_what_lerobot_cannot_hold_is_refused_before_the_work(
    make_episode: Callable[..., Episode], tmp_path: Path, fault: str
) -> None:
    slow = [number / 5 for number in range(12)]
    write_video(tmp_path / "slow.mp4", make_episode("b").main.all(), times=slow)
    odd = Episode.from_video(tmp_path / "slow.mp4", id="b")
    if fault == "camera":
        odd = replace(make_episode("b"), views={"wrist": make_episode("b").main})
    done: list[str] = []
    expected = "frames per second as in the first" if fault == "rate" else "as in the first episode, got wrist"
    with pytest.raises(BadInput, match=expected):
        release(
            dataset(make_episode("a"), odd),
            tmp_path / "out",
            Settings(licence="MIT", layout="lerobot"),
            lambda what, number, total: done.append(what),
        )
    assert set(done) == {"reading"}
    assert not (tmp_path / ".out.release").exists()


def test_the_files_of_a_release(messy: Path, tmp_path: Path) -> None:
    made = release(open_dataset(messy), tmp_path / "out", Settings(licence="cc by 4.0", name="cups"))
    folder = tmp_path / "out"
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "README.md", "card.html", "PRIVACY.md", "ORIGINS.csv", "SHA256SUMS", "release.json", "dataset.json",
        "card", "episodes", "videos",
    }  # fmt: skip
    front = yaml.safe_load((folder / "README.md").read_text().split("---")[1])
    assert (front["license"], front["pretty_name"], front["size_categories"]) == ("cc-by-4.0", "cups", ["n<1K"])
    rows = list(csv.DictReader((folder / "ORIGINS.csv").read_text().splitlines()))
    assert len(rows) == 6
    assert {row["licence"] for row in rows} == {"CC-BY-4.0"}
    assert {row["video"] for row in rows} == {"repacked"}
    assert all(row["fingerprint"] != row["fingerprint_of_source"] for row in rows)
    assert (made.facts["version"], made.facts["dataset_version"]) == (2, 1)
    assert opened(folder).facts == made.facts
    assert not verify(folder)
    checked = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=folder, capture_output=True, check=False)
    assert checked.returncode == 0
    (folder / "README.md").write_text("x")
    (folder / "more").write_text("x")
    (folder / "ORIGINS.csv").unlink()
    assert verify(folder) == ["ORIGINS.csv is missing", "more is not listed", "README.md has changed"]


def printed(folder: Path, *more: str) -> list[str]:
    """What the loaders on a card print, run as they stand there; given `more`, the last one and that."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (folder / "README.md").read_text(), flags=re.M | re.S)
    blocks = ["\n".join((blocks[-1], *more))] if more else blocks
    return [
        subprocess.run(
            [sys.executable, "-W", "error", "-c", block], cwd=folder, capture_output=True, text=True, check=True
        ).stdout
        for block in blocks
    ]


@pytest.mark.parametrize("settings", [Settings(licence="MIT"), Settings(licence="MIT", layout="lerobot")])
def test_the_cards_loaders_run_as_printed(messy: Path, tmp_path: Path, settings: Settings) -> None:
    release(open_dataset(messy), tmp_path / "out", settings)
    said = printed(tmp_path / "out")
    assert said[0].startswith("3 failures\n")
    assert "['dropped'] (2, 48, 64, 3)" in said[0]
    assert said[1].endswith("20 frames\n")
    assert not verify(tmp_path / "out"), "loading leaves nothing behind"


@pytest.mark.parametrize(
    ("part", "layout"),
    [
        *((part, "folder") for part in ("first", "middle", "last", "chosen", "chosen of a middle")),
        ("middle", "lerobot"),
    ],
)
def test_the_cards_loaders_show_a_part_of_a_file(make_video: Any, tmp_path: Path, part: str, layout: Any) -> None:
    """The very pictures of an episode that is a part of a longer file, and no others."""
    path = str(make_video(frames=30))
    rate = 1 / VideoClip(path).times()[1]
    start, stop = {"first": (None, 8), "last": (22, None), "chosen": (None, None)}.get(part, (10, 20))
    clip = VideoClip(path, None if start is None else start / rate, None if stop is None else stop / rate)
    frames = Frames(clip).select([7, 2, 2]) if "chosen" in part else Frames(clip)
    release(dataset(Episode("a", "do it", {"main": frames})), tmp_path / "out", Settings(licence="MIT", layout=layout))
    (said,) = printed(tmp_path / "out", "print([int(picture.astype(int).sum()) for picture in pictures])")
    assert said.splitlines()[-2].endswith(f" {len(frames)} frames")
    released = next(iter(Store(tmp_path / "out").episodes())).main.all()
    assert said.splitlines()[-1] == str([int(picture.astype(int).sum()) for picture in released])


def test_masks_and_materialized_views(blocks: Store, tmp_path: Path) -> None:
    settings = Settings(masks=(Mask("*", 0, 0, 40, 30),), materialize=True, where={"split": "test"})
    made = release(Dataset(blocks, "x"), tmp_path / "out", settings)
    released = list(Store(tmp_path / "out").episodes())
    assert {len(one) for one in released} == {16, 32}
    assert made.facts["videos"] == {"encoded anew": 4}
    for one in released:
        assert one.main.indices is None
        assert one.main.take([0, 9])[:, 2:28, 2:36].max() < 16
    lerobot = release(Dataset(blocks, "x"), tmp_path / "le", replace(settings, materialize=False, layout="lerobot"))
    assert lerobot.facts["masks"] == 1
    for one in open_dataset(f"lerobot:{tmp_path / 'le'}"):
        assert one.main.take([0, 9])[:, 2:28, 2:36].max() < 16
    assert "| frames with a region masked | 112 |" in (tmp_path / "le" / "PRIVACY.md").read_text()


def test_what_is_refused_before_anything_is_written(make_episode: Callable[..., Episode], tmp_path: Path) -> None:
    def one(id: str, **origin: str) -> Episode:
        return replace(make_episode(id), origin=Origin(**{"licence": "MIT", **origin}))

    mixed = dataset(one("a", licence="CC-BY-SA-4.0"), one("b", licence="CC-BY-NC-4.0"))
    leaking = dataset(one("a", split="train", group="g"), one("b", split="test", group="g"))
    for source, settings, error, said in (
        (dataset(), Settings(), BadInput, "at least one episode"),
        (dataset(make_episode("x")), Settings(), BadInput, "--licence NAME"),
        (mixed, Settings(), BadInput, "release each apart"),
        (leaking, Settings(), BadInput, "--allow-leaks"),
        (dataset(one("a")), Settings(masks=(Mask("wrist", 0, 0, 1, 1),)), UnknownName, "camera to mask"),
        (dataset(one("a", licence="CC-BY-ND-4.0")), Settings(layout="lerobot"), BadInput, "allows changes"),
        (dataset(one("a")), Settings(masks=(Mask("main", 40, 0, 20, 20),)), BadInput, "inside its 48x32 pixels"),
    ):
        with pytest.raises(error, match=re.escape(said)):
            release(source, tmp_path / "out", settings)
        assert not (tmp_path / "out").exists()
    release(leaking, tmp_path / "leaks", Settings(allow_leaks=True))
    assert "Splits leak: 1 recording" in (tmp_path / "leaks" / "README.md").read_text()
    apart = release(mixed, tmp_path / "apart", Settings(where={"licence": "CC-BY-NC-4.0"}))
    assert (apart.facts["episodes"], apart.facts["licence"]) == (1, "CC-BY-NC-4.0")
    for wrong in ({"layout": "zip"}, {"notes": "burn"}, {"dates": "hour"}, {"where": {"colour": "red"}}, {"fps": 5.0}):
        with pytest.raises((UnknownName, BadInput)):
            Settings(**wrong)  # type: ignore[arg-type]


def test_licences_on_the_card(make_episode: Callable[..., Episode], tmp_path: Path) -> None:
    def of(*licences: str) -> Dataset:
        return dataset(*(replace(make_episode(f"e{n}"), origin=Origin(licence=one)) for n, one in enumerate(licences)))

    release(of("MIT", "CC-BY-4.0", "Apache-2.0"), tmp_path / "mixed", Settings(layout="lerobot"))
    text = (tmp_path / "mixed" / "README.md").read_text()
    front = yaml.safe_load(text.split("---")[1])
    assert (front["license"], front["license_name"]) == ("other", "apache-2.0-and-cc-by-4.0-and-mit")
    assert "As a whole under Apache-2.0 AND CC-BY-4.0 AND MIT; every episode keeps its own" in text
    again = release(open_dataset(f"lerobot:{tmp_path / 'mixed'}"), tmp_path / "again", Settings())
    assert again.facts["licence"] == "Apache-2.0 AND CC-BY-4.0 AND MIT" and not again.facts["licence_doubts"]
    release(of("our own terms"), tmp_path / "own", Settings())
    for page in ("README.md", "card.html"):
        assert "none that demerit knows" in (tmp_path / "own" / page).read_text()


def test_nothing_is_overwritten(make_episode: Callable[..., Episode], tmp_path: Path) -> None:
    source, settings = dataset(make_episode("a")), Settings(licence="MIT")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("years")
    with pytest.raises(StoreError, match="nothing is overwritten"):
        release(source, tmp_path / "full", settings)
    first = release(source, tmp_path / "out", settings)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    again = release(source, tmp_path / "out", settings)
    assert first.seconds and not again.seconds
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before
    with pytest.raises(StoreError, match="another release"):
        release(source, tmp_path / "out", Settings(licence="CC0-1.0"))
    with pytest.raises(StoreError, match="another release"):
        release(dataset(replace(make_episode("a"), outcomes=(Outcome("human", True),))), tmp_path / "out", settings)
    (tmp_path / "new-private.json").write_text("{}")
    with pytest.raises(StoreError, match="would be lost"):
        release(source, tmp_path / "new", settings)
    (tmp_path / ".busy.release").mkdir()
    with lock_folder(tmp_path / ".busy.release"), pytest.raises(StoreBusy):
        release(source, tmp_path / "busy", settings)
    assert not [path for path in tmp_path.iterdir() if path.name in (".out.release", ".full.release")]


def test_a_damaged_release_is_not_done(make_episode: Callable[..., Episode], tmp_path: Path) -> None:
    source, settings = dataset(make_episode("a")), Settings(licence="MIT")
    release(source, tmp_path / "out", settings)
    (tmp_path / "out" / "notes.txt").write_text("somebody's own")
    assert not release(source, tmp_path / "out", settings).seconds
    video = tmp_path / "out" / "videos" / "000000.mp4"
    whole = video.read_bytes()
    for damage, said in (
        (lambda: video.write_bytes(whole[:-1]), "videos/000000.mp4 has changed"),
        (video.unlink, "videos/000000.mp4 is missing"),
        ((tmp_path / "out" / "SHA256SUMS").unlink, "SHA256SUMS cannot be read"),
    ):
        damage()
        with pytest.raises(StoreError, match=said):
            release(source, tmp_path / "out", settings)


def test_a_place_inside_the_source_or_around_it_is_refused(messy: Path, tmp_path: Path) -> None:
    before = sorted(messy.rglob("*"))
    (tmp_path / "way").symlink_to(messy)
    for dest in (messy / "out", messy / "deep" / "er" / "out", messy, messy.parent, tmp_path / "way" / "out"):
        with pytest.raises(BadInput, match=r"outside of|that the dataset"):
            release(open_dataset(messy), dest, Settings(licence="MIT"))
    assert sorted(messy.rglob("*")) == before
    assert release(open_dataset(messy), tmp_path / f"{messy.name}-2", Settings(licence="MIT")).seconds


def test_a_link_is_refused_before_the_work(make_episode: Callable[..., Episode], tmp_path: Path) -> None:
    source, settings = dataset(make_episode("a")), Settings(licence="MIT")
    (tmp_path / "empty").mkdir()
    for target, said in (("empty", "a link to a folder"), ("nowhere", "a link to nothing")):
        (tmp_path / f"to-{target}").symlink_to(tmp_path / target)
        with pytest.raises(BadInput, match=said):
            release(source, tmp_path / f"to-{target}", settings, lambda *told: pytest.fail("it has begun"))
    assert not list(tmp_path.glob(".*")) and not list(tmp_path.glob("*-private.json"))
    release(source, tmp_path / "out", settings)
    (tmp_path / "done").symlink_to(tmp_path / "out")
    assert not release(source, tmp_path / "done", settings).seconds


FULL = """
import errno, os, resource, sys
from demerit.cli import main
from demerit.data.formats.lerobot.writer import VideoFiles

def full(*_):
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

VideoFiles.add = VideoFiles.close = full
sys.argv = ["demerit", "release", *sys.argv[1:], "--licence", "MIT", "--format", "lerobot"]
main()
"""


def test_a_disk_that_fills_up_is_one_sentence(messy: Path, tmp_path: Path) -> None:
    """A table that cannot be finished is given up quietly, also when a video has failed before it."""
    command = [sys.executable, "-B", "-c", FULL, str(messy), str(tmp_path / "out")]  # -B: no half-written bytecode
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert len(run.stderr.strip().splitlines()) == 1, run.stderr
    assert "cannot be written (File too large)" in run.stderr


SLOW = """
import sys, time
from demerit.use.release import Settings, release, videos
from demerit.data.formats import open_dataset
wrapped = videos._wrapped
def slow(source, target):
    print(target.name, flush=True)
    time.sleep(0.05)
    return wrapped(source, target)
videos._wrapped = slow
release(open_dataset(sys.argv[1]), sys.argv[2], Settings(licence="MIT", layout=sys.argv[3]))
"""


@pytest.mark.parametrize("layout", ["folder", "lerobot"])
def test_killed_it_leaves_nothing_that_looks_whole_and_goes_on(messy: Path, tmp_path: Path, layout: Any) -> None:
    dest = tmp_path / "out"
    asked: list[list[str]] = []
    for stop_after in (2, 5, 99):
        command = [sys.executable, "-c", SLOW, str(messy), str(dest), layout]
        run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert run.stdout is not None
        names: list[str] = []
        if layout == "lerobot" and stop_after < 99:
            until = time.monotonic() + 60
            while not list(tmp_path.glob(".out.release/.tree.*.part/videos")) and time.monotonic() < until:
                time.sleep(0.005)
        else:
            for line in run.stdout:
                names.append(line.strip())
                if sum(map(len, asked)) + len(names) >= stop_after:
                    break
        if stop_after < 99:
            run.send_signal(signal.SIGKILL)
            assert run.wait() == -signal.SIGKILL
            assert not dest.exists()
        else:
            assert run.wait() == 0
        run.stdout.close()
        asked.append(names)
    if layout == "folder":  # what was finished is not done again
        finished = {name for names in asked[:-1] for name in names[:-1]}
        assert len(finished) >= 2
        assert not finished & set(asked[-1])
    assert not verify(dest)
    assert len(Store(dest)) == 6
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out-private.json"]
    clean = release(open_dataset(messy), tmp_path / "clean", Settings(licence="MIT", layout=layout))
    one, other = ([facts_of(e)[:-1] for e in Store(place).episodes()] for place in (dest, clean.folder))
    if layout == "folder":
        assert [e.fingerprint() for e in Store(dest).episodes()] == [
            e.fingerprint() for e in Store(clean.folder).episodes()
        ]
        assert one == other


def test_ctrl_c_and_another_plan_begin_anew(messy: Path, tmp_path: Path) -> None:
    calls = 0

    def stop(what: str, done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if what == "writing videos" and done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        release(open_dataset(messy), tmp_path / "out", Settings(licence="MIT"), stop)
    stage = tmp_path / ".out.release"
    assert len(list((stage / "tree" / "videos").iterdir())) >= 3
    assert not (tmp_path / "out").exists()
    made = release(open_dataset(messy), tmp_path / "out", Settings(licence="MIT", masks=(Mask("main", 0, 0, 8, 8),)))
    assert made.facts["videos"] == {"encoded anew": 6}
    assert not stage.exists()


def test_what_cannot_be_read_is_left_out_and_said(make_episode: Callable[..., Episode], tmp_path: Path) -> None:
    good, bad = make_episode("good"), make_episode("bad")
    Path(bad.main.source.describe()["path"]).write_bytes(b"no video at all")
    source = dataset(good, bad, Preference("good", "bad", "a", "rule"))
    made = release(source, tmp_path / "out", Settings(licence="MIT"))
    assert (made.facts["episodes"], made.facts["left_out"], made.facts["preferences"]) == (1, 1, 0)
    assert source.problems.rows()[0]["problem"] == "unreadable video"


def test_what_a_kill_at_the_very_end_leaves_is_swept_up(make_episode: Callable[..., Episode], tmp_path: Path) -> None:
    source, settings = dataset(make_episode("a")), Settings(licence="MIT")
    made = release(source, tmp_path / "out", settings)
    stage = tmp_path / ".out.release"
    (stage / "notes").mkdir(parents=True)  # killed between the rename and the sweeping
    assert not release(source, tmp_path / "out", settings).seconds
    assert not stage.exists()
    # Killed just before the rename, then asked for something else: the private file of no release may go.
    stage.mkdir()
    assert made.key is not None
    (stage / "plan.json").write_text(json.dumps({"plan": json.loads(made.key.read_text())["plan"]}))
    (tmp_path / "out").rename(stage / "tree")
    assert release(source, tmp_path / "out", Settings(licence="CC0-1.0")).facts["licence"] == "CC0-1.0"


class FakeApi:
    """Takes what the real client takes, and remembers it."""

    calls: list[tuple[str, dict[str, Any]]] = []  # noqa: RUF012
    fails: Exception | None = None

    def __getattr__(self, name: str) -> Callable[..., str]:
        real = getattr(importlib.import_module("huggingface_hub").HfApi, name)

        def call(**given: Any) -> str:
            inspect.signature(real).bind(None, **given)
            if self.fails is not None:
                raise self.fails
            self.calls.append((name, given))
            return "hub.example/datasets/me/cups"

        return call


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> type[FakeApi]:
    pytest.importorskip("huggingface_hub", reason="no hub client here: pip install 'demerit[hub]'")
    monkeypatch.setattr(FakeApi, "calls", [])
    monkeypatch.setattr(FakeApi, "fails", None)
    monkeypatch.setattr(hub, "_client", lambda: type("Client", (), {"HfApi": FakeApi}))
    return FakeApi


@pytest.fixture
def small(make_episode: Callable[..., Episode], tmp_path: Path) -> Released:
    return release(dataset(make_episode("a")), tmp_path / "out", Settings(licence="MIT"))


def test_a_push_says_what_it_would_do_and_does_it_when_told(small: Released, api: type[FakeApi]) -> None:
    planned = hub.prepared(small, "me/cups")
    assert "private dataset repository me/cups" in planned.plan()[0]
    count = len([path for path in small.folder.rglob("*") if path.is_file()])
    assert f"send {count} files" in planned.plan()[1]
    assert not api.calls
    assert hub.push(planned) == "hub.example/datasets/me/cups"
    (made, first), (sent, second) = api.calls
    assert (made, sent) == ("create_repo", "upload_folder")
    assert first == {"repo_id": "me/cups", "repo_type": "dataset", "private": True, "exist_ok": False}
    assert second["folder_path"] == str(small.folder)


def test_a_push_that_cannot_be(small: Released, api: type[FakeApi], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="OWNER/NAME"):
        hub.prepared(small, "cups")
    planned = hub.prepared(small, "me/cups")
    for status, error in ((409, BadInput), (403, RemoteError)):
        failure = RuntimeError("You may not.\nmore")
        failure.response = type("Response", (), {"status_code": status})()  # type: ignore[attr-defined]
        monkeypatch.setattr(FakeApi, "fails", failure)
        with pytest.raises(error, match="which does" if status == 409 else "answered 403: You may not"):
            hub.push(planned)
    (small.folder / "README.md").write_text("changed")
    with pytest.raises(StoreError, match="has changed"):
        hub.prepared(small, "me/cups")


def test_a_missing_client_is_a_sentence(small: Released, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtra, match=re.escape("pip install 'demerit[hub]'")):
        hub.prepared(small, "me/cups")


def test_the_command(messy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: type[FakeApi]) -> None:
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    (tmp_path / "people.txt").write_bytes("\ufeffJuan\n# who\n".encode())  # as some editors save it
    arguments = [
        "release",
        str(messy),
        "out",
        "--licence",
        "CC-BY-4.0",
        "--names",
        "people.txt",
        "--where",
        "success=no",
    ]
    first = runner.invoke(app, arguments)
    assert first.exit_code == 0, first.output
    assert "3 episodes as demerit folder" in first.output
    assert "3 repacked" in first.output
    assert "out-private.json" in first.output
    assert "juan" in json.loads((tmp_path / "out-private.json").read_text())["stand_ins"]
    dry = runner.invoke(app, [*arguments, "--push", "me/cups"])
    assert "is left as it is" in dry.output
    assert "nothing was sent" in dry.output
    assert not api.calls
    sent = runner.invoke(app, [*arguments, "--push", "me/cups", "--yes"])
    assert sent.exit_code == 0
    assert [name for name, _ in api.calls] == ["create_repo", "upload_folder"]
    for wrong, said in (
        (["release", str(messy), "out", "--licence", "MIT"], "another release"),
        (["release", str(messy), "x", "--yes"], "--push OWNER/NAME"),
        (["release", str(messy), "x"], "--licence NAME"),
        (["release", str(messy), "x", "--licence", "MIT", "--where", "split"], "COLUMN=VALUE"),
        (["release", str(messy), "x", "--licence", "MIT", "--format", "zip"], "folder, lerobot"),
        (["release", str(messy), "x", "--licence", "MIT", "--names", "nobody.txt"], "--names"),
    ):
        answer = runner.invoke(app, wrong)
        assert answer.exit_code == 1
        assert said in answer.stderr.replace("\n", " ")
    assert runner.invoke(app, ["inspect", "out"]).exit_code == 0
    doubted = runner.invoke(app, ["release", str(messy), "own", "--licence", "our own terms"])
    assert "note  The licence 'our own terms' (6 episodes) is none that demerit knows" in doubted.output
