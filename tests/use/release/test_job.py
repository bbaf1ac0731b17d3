"""Releases as a whole: what comes back, what is gone, what is refused, what a kill leaves behind."""

import csv
import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from demerit.data.dataset import Dataset, ListReader, Record
from demerit.data.episode import Edit, Episode, Origin, Outcome, Preference
from demerit.data.files import lock_folder
from demerit.data.formats import open_dataset
from demerit.data.formats.lerobot.writer import write_lerobot
from demerit.data.importing import import_dataset
from demerit.data.store import Store
from demerit.data.video import write_video
from demerit.errors import BadInput, MissingExtra, RemoteError, StoreBusy, StoreError, UnknownName
from demerit.use.release import Mask, ReleaseConfig, hub, open_release, release, verify
from fakes.command import demerit_here, error_sentence
from fakes.processes import running
from fakes.release_fixture import SECRETS, messy_rollouts

MakeEpisode = Callable[..., Episode]
MIT = ReleaseConfig(licence="MIT")
LAYOUTS: Any = ("folder", "lerobot")


def dataset(*records: Record) -> Dataset:
    return Dataset(ListReader("listed", list(records)), "listed")


@pytest.fixture(scope="session")
def messy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return messy_rollouts(tmp_path_factory.mktemp("messy") / "rollouts")


@pytest.fixture(scope="module")
def blocks(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The drawn sample as a folder, with signals, two labels an episode, a negative and a preference."""
    place = tmp_path_factory.mktemp("blocks")
    store = Store.create(place / "set", "blocks", "MIT")
    with store.writer() as writer:
        for number, episode in enumerate(open_dataset(f"videos:{sample}")):
            if number == 0:
                first = episode
            signals = {"state": np.arange(64, dtype=np.float32).reshape(32, 2) + number}
            outcomes = (*episode.outcomes, Outcome("human", success=number % 2 == 0, grade=3, by="Anna Schmidt"))
            origin = replace(episode.origin, licence="MIT", split="test" if number % 5 == 0 else "train")
            writer.add(replace(episode, signals=signals, outcomes=outcomes, origin=replace(origin, group=f"g{number}")))
        half = replace(
            first.select(np.arange(16)), id="half", edits=(Edit("clip", {"frames": 16}, 3),),
            origin=Origin(licence="MIT", split="test", group="g0", parent=first.id),
        )  # fmt: skip
        writer.add(half)
        writer.add(Preference(first.id, "half", "a", "human", why="Anna likes it", by="Anna Schmidt"))
    return Store(store.root)


def facts_of(episode: Episode) -> tuple[Any, ...]:
    return episode.id, episode.instruction, episode.outcomes, episode.origin, episode.edits, episode.fingerprint()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_release_opens_again_with_the_same_episodes(blocks: Store, tmp_path: Path, layout: Any) -> None:
    out = tmp_path / "out"
    made = release(Dataset(blocks, "x"), out, ReleaseConfig(layout=layout))
    numbers = json.loads((tmp_path / "out-private.json").read_text())["episodes"]
    ids = {number: id for id, number in numbers.items()}
    released = list(open_dataset(out))
    assert len(released) == made.facts["episodes"] == 16
    for episode in released:
        source = blocks.episode(ids[episode.id])
        before, after = ([replace(o, note="", by="") for o in one.outcomes] for one in (source, episode))
        assert before == after and episode.edits == source.edits
        assert (episode.instruction, episode.origin.split) == (source.instruction, source.origin.split)
        if "state" in source.signals:
            np.testing.assert_array_equal(episode.signals["state"], source.signals["state"])
        difference = np.abs(episode.main.all().astype(int) - source.main.all())
        assert difference.max() == 0 if layout == "folder" else difference.mean() < 6
    import_dataset(open_dataset(out), tmp_path / "again")
    assert [facts_of(e) for e in Store(tmp_path / "again").episodes()] == [facts_of(e) for e in released]
    (pair,) = Store(out).preferences()
    assert (pair.why, pair.by, ids[pair.a], ids[pair.b]) == ("", "annotator_1", next(iter(ids.values())), "half")
    half = next(episode for episode in released if ids[episode.id] == "half")
    assert half.origin.parent == pair.a
    if layout == "lerobot":
        for ours, theirs in zip(released, open_dataset(f"lerobot:{out}"), strict=True):
            assert ours.fingerprint() == theirs.fingerprint() and ours.origin.split == theirs.origin.split
            assert ours.outcome and theirs.outcome and ours.outcome.success == theirs.outcome.success
    else:  # the negative is still a view of its original's video, and a release of the release is the same
        release(open_dataset(out), tmp_path / "second")
        assert [facts_of(e) for e in Store(tmp_path / "second").episodes()] == [facts_of(e) for e in released]
        assert made.facts["videos"] == {"remuxed": 16}
        assert half.main.indices is not None and len(list((out / "videos").iterdir())) == 15


def every_byte(folder: Path) -> bytes:
    """Everything that somebody could read in a release, also what parquet keeps compressed."""
    found = b""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found += path.relative_to(folder).as_posix().encode() + path.read_bytes()
        if path.suffix == ".parquet":
            found += repr(pq.read_table(path).to_pylist()).encode() + repr(pq.read_schema(path).metadata).encode()
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_private_is_in_any_byte(messy: Path, tmp_path: Path, layout: Any) -> None:
    replacements = {"hand the cup to Anna": "hand over the cup"}
    config = ReleaseConfig(licence="CC-BY-4.0", layout=layout, replacements=replacements, keep=("tags.policy",))
    made = release(open_dataset(messy), tmp_path / "out", config)
    everything = every_byte(tmp_path / "out")
    plan = json.loads((tmp_path / "out-private.json").read_text())["plan"]
    for secret in (*SECRETS, "anna", "Juan", str(messy.parent), plan):
        assert secret.encode() not in everything, secret
    assert not list((tmp_path / "out").rglob(".*"))
    for path in (tmp_path / "out" / "videos").rglob("*.mp4"):
        with av.open(str(path)) as video:
            assert [stream.type for stream in video.streams] == ["video"]
    released = list(Store(tmp_path / "out").episodes())
    assert {episode.instruction for episode in released} == {"hand over the cup", "put the cup on the tray"}
    assert {tuple(episode.origin.tags.items()) for episode in released} == {(("policy", "pi-zero"),)}
    assert {outcome.by for episode in released for outcome in episode.outcomes} == {"annotator_1"}
    assert made.private == tmp_path / "out-private.json"
    assert oct(made.private.stat().st_mode)[-3:] == "600"
    assert {"notes", "site", "tags.hostname"} < set(made.dropped)


def test_a_part_of_a_lerobot_dataset_holds_no_other_episode(sample: Path, tmp_path: Path) -> None:
    write_lerobot(open_dataset(f"videos:{sample}"), tmp_path / "lerobot")
    whole = release(open_dataset(tmp_path / "lerobot"), tmp_path / "whole", MIT)
    assert whole.facts["videos"] == {"remuxed": 15}
    config = replace(MIT, where={"success": "yes"})
    part = release(open_dataset(tmp_path / "lerobot"), tmp_path / "part", config)
    assert part.facts["videos"] == {"re-encoded": 3}
    frames = 0
    for path in (tmp_path / "part" / "videos").iterdir():
        with av.open(str(path)) as video:
            frames += sum(1 for _ in video.decode(video=0))
    assert frames == sum(len(episode) for episode in open_dataset(tmp_path / "part")) == 3 * 32


def test_masks_cover_pixels_in_a_release_that_starts_again(messy: Path, tmp_path: Path) -> None:
    """The first run is interrupted; the second has other options, so no video of the first is used."""

    def stop(step: str, done: int, total: int) -> None:
        if step == "writing videos" and done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        release(open_dataset(messy), tmp_path / "folder", MIT, stop)
    stage = tmp_path / ".folder.release"
    assert len(list((stage / "tree" / "videos").iterdir())) >= 3 and not (tmp_path / "folder").exists()
    for layout in LAYOUTS:
        config = replace(MIT, layout=layout, masks=(Mask("main", 0, 0, 40, 30),), replacements={"main": "front"})
        made = release(open_dataset(messy), tmp_path / layout, config)
        assert made.facts["videos"] == {"re-encoded": 6}
        for episode in open_dataset(tmp_path / layout):
            assert list(episode.views) == ["front"]
            assert episode.main.all()[:, 2:28, 2:38].max() < 20
            assert episode.main.all()[:, 32:].max() > 30
    assert not stage.exists()


def test_the_files_of_a_release(messy: Path, tmp_path: Path) -> None:
    made = release(open_dataset(messy), tmp_path / "out", replace(MIT, name="cups"))
    folder = tmp_path / "out"
    assert {path.name for path in folder.iterdir()} == {
        "README.md", "card.html", "ORIGINS.csv", "SHA256SUMS", "release.json", "dataset.json", "card", "episodes",
        "videos",
    }  # fmt: skip
    front = yaml.safe_load((folder / "README.md").read_text().split("---")[1])
    assert (front["license"], front["pretty_name"], front["size_categories"]) == ("mit", "cups", ["n<1K"])
    rows = list(csv.DictReader((folder / "ORIGINS.csv").read_text().splitlines()))
    assert [row["episode"] for row in rows] == [f"episode_{number:06d}" for number in range(1, 7)]
    assert {(row["licence"], row["video"]) for row in rows} == {("MIT", "remuxed")}
    assert open_release(folder).facts == made.facts
    assert not verify(folder)
    checked = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=folder, capture_output=True, check=False)
    assert checked.returncode == 0
    (folder / "README.md").write_text("x")
    (folder / "more").write_text("x")
    (folder / "ORIGINS.csv").unlink()
    assert verify(folder) == ["ORIGINS.csv is missing", "more is not listed", "README.md has changed"]


def test_what_is_refused_before_anything_is_written(make_episode: MakeEpisode, tmp_path: Path) -> None:
    def one(id: str, **origin: str) -> Episode:
        return replace(make_episode(id), origin=Origin(**{"licence": "MIT", **origin}))

    write_video(tmp_path / "slow.mp4", make_episode("b").main.all(), fps=5)
    slow = replace(Episode.from_video(tmp_path / "slow.mp4", id="slow"), origin=Origin(licence="MIT"))
    two = replace(one("two"), views={"main": one("two").main, "wrist": one("two").main})
    mixed = dataset(one("a", licence="CC-BY-SA-4.0"), one("b", licence="CC-BY-NC-4.0"))
    leaking = dataset(one("a", split="train", group="g"), one("b", split="test", group="g"))
    lerobot = ReleaseConfig(layout="lerobot")
    for source, config in (
        (dataset(), MIT),
        (dataset(make_episode("x")), ReleaseConfig()),
        (dataset(one("a", licence="TBD")), MIT),
        (mixed, MIT),
        (leaking, MIT),
        (dataset(one("a")), replace(MIT, masks=(Mask("wrist", 0, 0, 1, 1),))),
        (dataset(one("a", licence="CC-BY-ND-4.0")), lerobot),
        (dataset(one("a"), slow), lerobot),
        (dataset(one("a"), two), lerobot),
    ):
        with pytest.raises((BadInput, UnknownName)):
            release(source, tmp_path / "out", config)
        assert not list(tmp_path.glob("*out*"))
    made = release(leaking, tmp_path / "leaks", replace(MIT, allow_leaks=True))
    assert any("1 recording" in line for line in made.facts["leaks"])
    part = release(mixed, tmp_path / "part", ReleaseConfig(where={"licence": "CC-BY-NC-4.0"}))
    assert (part.facts["episodes"], part.facts["licence"]) == (1, "CC-BY-NC-4.0")


def test_nothing_is_overwritten(make_episode: MakeEpisode, tmp_path: Path) -> None:
    source = dataset(make_episode("a"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("years")
    (tmp_path / "new-private.json").write_text("{}")
    (tmp_path / ".busy.release").mkdir()
    first = release(source, tmp_path / "out", MIT)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    (tmp_path / "link").symlink_to(tmp_path / "out")
    for name in ("out", "link"):
        assert not release(source, tmp_path / name, MIT).seconds, "up to date"
    labelled = dataset(replace(make_episode("a"), outcomes=(Outcome("human", True),)))
    for records, name, config in (
        (source, "full", MIT),
        (source, "out", ReleaseConfig(licence="CC0-1.0")),
        (labelled, "out", MIT),
        (source, "new", MIT),
    ):
        with pytest.raises(StoreError):
            release(records, tmp_path / name, config)
    with lock_folder(tmp_path / ".busy.release"), pytest.raises(StoreBusy):
        release(source, tmp_path / "busy", MIT)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before
    # Without the private file nobody can tell which release this is; brought back, it is up to date again.
    assert first.private is not None
    first.private.rename(tmp_path / "elsewhere.json")
    with pytest.raises(StoreError, match="private"):
        release(source, tmp_path / "out", MIT)
    (tmp_path / "elsewhere.json").rename(first.private)
    (tmp_path / "out" / "notes.txt").write_text("the owner's own")
    assert not release(source, tmp_path / "out", MIT).seconds
    video = tmp_path / "out" / "videos" / "000000.mp4"
    for damage in (lambda: video.write_bytes(b"x"), video.unlink, (tmp_path / "out" / "SHA256SUMS").unlink):
        damage()
        with pytest.raises(StoreError, match=r"000000.mp4|SHA256SUMS"):
            release(source, tmp_path / "out", MIT)


def test_a_destination_inside_or_around_the_source_is_refused(messy: Path, tmp_path: Path) -> None:
    before = sorted(messy.rglob("*"))
    (tmp_path / "way").symlink_to(messy)
    (tmp_path / "nowhere").symlink_to(tmp_path / "none")
    inside = (messy / "out", messy / "deep" / "out", tmp_path / "way" / "out")
    for dest in (*inside, messy, messy.parent, tmp_path / "nowhere"):
        with pytest.raises(BadInput, match="destination"):
            release(open_dataset(messy), dest, MIT)
    assert sorted(messy.rglob("*")) == before


SLOW = """
import sys, time
from demerit.use.release import ReleaseConfig, release, video
from demerit.data.formats import open_dataset
remux = video.remux
def slow(source, target):
    print(target.name, flush=True)
    time.sleep(0.05)
    return remux(source, target)
video.remux = slow
release(open_dataset(sys.argv[1]), sys.argv[2], ReleaseConfig(licence="MIT", layout=sys.argv[3]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_killed_it_leaves_nothing_that_looks_complete_and_resumes(messy: Path, tmp_path: Path, layout: Any) -> None:
    dest, written = tmp_path / "out", list[list[str]]()
    for stop_after in (2, 5, 99):
        command = [sys.executable, "-c", SLOW, str(messy), str(dest), layout]
        with running(command) as run:
            assert run.stdout is not None
            names: list[str] = []
            if layout == "lerobot" and stop_after < 99:
                while not list(tmp_path.glob(".out.release/.tree.part/tree/videos")) and run.poll() is None:
                    time.sleep(0.005)
            else:
                for line in run.stdout:
                    names.append(line.strip())
                    if sum(map(len, written)) + len(names) >= stop_after:
                        break
            if stop_after < 99:
                run.kill()
            assert (run.wait() == 0) == dest.exists() == (stop_after == 99)
        written.append(names)
    if layout == "folder":  # finished videos are not written again
        finished = {name for names in written[:-1] for name in names[:-1]}
        assert len(finished) >= 2 and not finished & set(written[-1])
    assert not verify(dest)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out-private.json"]
    release(open_dataset(messy), tmp_path / "clean", replace(MIT, layout=layout))
    killed, clean = (list(Store(place).episodes()) for place in (dest, tmp_path / "clean"))
    whole = -1 if layout == "lerobot" else None  # the encoder may differ in a bit
    assert [facts_of(e)[:whole] for e in killed] == [facts_of(e)[:whole] for e in clean]


def test_unreadable_videos_are_left_out_and_counted(make_episode: MakeEpisode, tmp_path: Path) -> None:
    good, bad = make_episode("good"), make_episode("bad")
    Path(bad.main.source.describe()["path"]).write_bytes(b"not a video")
    source = dataset(good, bad, Preference("good", "bad", "a", "rule"))
    made = release(source, tmp_path / "out", MIT)
    assert (made.facts["episodes"], made.facts["left_out"], made.facts["preferences"]) == (1, 1, 0)
    assert source.problems.rows()[0]["problem"] == "unreadable video"


class FakeApi:
    """Takes what the hub's client takes, and records it."""

    calls: list[str] = []  # noqa: RUF012
    status = 0

    def create_repo(self, *, repo_id: str, repo_type: str, private: bool, exist_ok: bool) -> str:
        assert private and not exist_ok
        if self.status:
            error = RuntimeError("You may not.\nmore")
            error.response = type("Response", (), {"status_code": self.status})()  # type: ignore[attr-defined]
            raise error
        self.calls.append(repo_id)
        return "hub.example/datasets/me/cups"

    def upload_folder(self, *, repo_id: str, repo_type: str, folder_path: str, commit_message: str) -> None:
        self.calls.append(folder_path)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> type[FakeApi]:
    monkeypatch.setattr(FakeApi, "calls", [])
    monkeypatch.setattr(hub, "_client", lambda: type("Client", (), {"HfApi": FakeApi}))
    return FakeApi


def test_pushes(make_episode: MakeEpisode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: type[FakeApi]) -> None:
    made = release(dataset(make_episode("a")), tmp_path / "out", MIT)
    plan = hub.plan_push(made, "me/cups")
    assert f"send {len([path for path in made.folder.rglob('*') if path.is_file()])} files" in plan[1]
    assert not api.calls
    assert hub.push(made, "me/cups") == "hub.example/datasets/me/cups"
    assert api.calls == ["me/cups", str(made.folder)]
    for status, error in ((409, BadInput), (403, RemoteError)):
        monkeypatch.setattr(FakeApi, "status", status)
        with pytest.raises(error):
            hub.push(made, "me/cups")
    with pytest.raises(BadInput, match="OWNER/NAME"):
        hub.plan_push(made, "cups")
    (made.folder / "README.md").write_text("changed")
    with pytest.raises(StoreError, match=r"README.md"):
        hub.plan_push(made, "me/cups")
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtra):
        hub._client()


def test_the_command(messy: Path, tmp_path: Path, api: type[FakeApi]) -> None:
    (tmp_path / "texts.csv").write_text("hand the cup to Anna,hand over the cup\nnowhere,x\n")
    options = ["--licence", "CC-BY-4.0", "--replace", "texts.csv", "--where", "success=no", "--keep", "notes, site"]
    first = demerit_here("release", messy, "out", *options, cwd=tmp_path)
    for words in ("3 episodes", "3 remuxed", "'nowhere'", "out-private.json", "tags.hostname"):
        assert words in first.stdout, first.stderr
    assert {e.origin.site for e in Store(tmp_path / "out").episodes()} == {"Rosenheim"}
    dry = demerit_here("release", messy, "out", *options, "--push", "me/cups", cwd=tmp_path)
    assert "up to date" in dry.stdout and "nothing was sent" in dry.stdout and not api.calls
    sent = demerit_here("release", messy, "out", *options, "--push", "me/cups", "--yes", cwd=tmp_path)
    assert sent.returncode == 0 and api.calls == ["me/cups", str(tmp_path / "out")]
    for wrong, word in (
        (["out", "--licence", "MIT"], "another release"),
        (["x", "--yes"], "--push"),
        (["x"], "--licence"),
        (["x", "--where", "split"], "--where"),
        (["x", "--to", "zip"], "lerobot"),
        (["x", "--keep", "names"], "--keep"),
    ):
        assert word in error_sentence(demerit_here("release", messy, *wrong, cwd=tmp_path))


def test_a_licence_that_was_not_applied_is_counted(tmp_path: Path, make_episode: Any) -> None:
    licences = {"a": "MIT", "b": "MIT", "c": ""}
    episodes = [replace(make_episode(id), origin=Origin(licence=licence)) for id, licence in licences.items()]
    with Store.create(tmp_path / "set", "set").writer() as writer:
        for episode in episodes:
            writer.add(episode)
    for licence, kept in (("Apache-2.0", {"MIT": 2}), ("MIT", {})):
        out = tmp_path / licence
        for _ in range(2):  # made, then found
            assert release(open_dataset(tmp_path / "set"), out, ReleaseConfig(licence=licence)).own_licences == kept
        said = demerit_here("release", tmp_path / "set", out, "--licence", licence).stdout
        assert ("2 of 3 episodes" in said) == bool(kept)


def test_a_full_disk_says_whether_a_release_resumes(
    blocks: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(*given: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("demerit.use.release.job.sync_tree", fill)
    said = {
        layout: error_sentence(demerit_here("release", blocks.root, tmp_path / layout, "--to", layout))
        for layout in LAYOUTS
    }
    assert "resume" in said["folder"] and "resume" not in said["lerobot"]
    assert "starts over" in said["lerobot"] and not (tmp_path / "lerobot").exists()
