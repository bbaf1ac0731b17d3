"""The pages of `demerit view` as a folder: complete or absent, without private paths, and the same in a browser."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import av
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from demerit.data.dataset import Dataset
from demerit.data.formats import open_dataset
from demerit.errors import StoreError
from demerit.models.score import rewards_folder
from demerit.use.view import ViewIndex
from demerit.use.view_folder import FOLDERS, write_view
from demerit.web.server import WebServer, make_app
from fakes.command import demerit_here, error_sentence
from fakes.tiny_video import put_video
from fakes.viewed_dataset import EVIL, LENGTH, make_recording, make_viewed

COUNT, SECRET = 6, "ada's private runs"
KILLED = """
import os, signal, sys
from demerit.data.formats import open_dataset
from demerit.registry import load_attribute
write = load_attribute(sys.argv[1], "a test")
write(open_dataset(sys.argv[2]), sys.argv[3], lambda written: written == 3 and os.kill(os.getpid(), signal.SIGKILL))
"""


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return make_viewed(tmp_path / SECRET / "set", COUNT)


def read(folder: Path, address: str) -> Any:
    """What the page receives."""
    text = (folder / "data" / f"{address[1:]}.js").read_text("utf-8")
    start = f'receive("{address}", '
    assert text.startswith(start) and text.endswith(");\n")
    return json.loads(text[len(start) : -3])


def test_the_folder_has_what_the_server_answers(dataset: Dataset, tmp_path: Path) -> None:
    assert write_view(dataset, tmp_path / "page") == (COUNT, ["careful", "eager", "clock"])
    assert [(row["problem"], row["kept"]) for row in dataset.problems.rows()] == [("unreadable video", True)]
    index = ViewIndex(dataset)
    assert read(tmp_path / "page", "/index.json") == json.loads(json.dumps(index.as_dict()))
    assert read(tmp_path / "page", "/stale.json") == [{}, {}, {}]
    assert read(tmp_path / "page", "/quality.json") == index.measure_quality()
    for place in range(COUNT):
        found, served = read(tmp_path / "page", f"/episodes/{place}.json"), index.episode_json(place)
        assert (found["curves"], found["notes"], found["verdicts"]) == tuple(
            json.loads(json.dumps(served[name])) for name in ("curves", "notes", "verdicts")
        )
        if place == 2:  # lost its video
            assert found["episode"]["problem"].startswith("lost.mp4: ") and "link" not in found["episode"]
            continue
        with av.open(str(tmp_path / "page" / found["episode"]["link"])) as video:
            assert sum(1 for _ in video.decode(video=0)) == LENGTH == len(found["episode"]["times"])
        assert (tmp_path / "page" / "media" / f"{place}.jpg").is_file()
    assert len(list((tmp_path / "page" / "media").glob("*.mp4"))) == 2  # the recording once, and the view backwards


def test_every_camera_is_there_and_no_metadata_of_the_recordings(tmp_path: Path) -> None:
    for name in ("0_left.mp4", "0_right.mp4"):
        path = put_video(tmp_path / SECRET / "videos" / name)
        with av.open(str(path)) as whole, av.open(str(path.with_suffix(".mov")), "w") as tagged:
            tagged.metadata["comment"] = SECRET
            stream = tagged.add_stream_from_template(whole.streams.video[0])
            for packet in whole.demux(video=0):
                if packet.dts is not None:
                    packet.stream = stream
                    tagged.mux(packet)
        path.with_suffix(".mov").replace(path)
    write_view(open_dataset(str(tmp_path / SECRET / "videos")), tmp_path / "page")
    facts = read(tmp_path / "page", "/episodes/0.json")["episode"]
    links = [camera["link"] for camera in facts["cameras"]]
    assert facts["link"] == links[0] and all((tmp_path / "page" / link).is_file() for link in links)
    assert not find_secret(tmp_path / "page")


def find_secret(folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 4
    return [path for path in files if b"private runs" in path.read_bytes()]


def test_no_file_holds_a_private_path(dataset: Dataset, tmp_path: Path) -> None:
    write_view(dataset, tmp_path / "page")
    assert not find_secret(tmp_path / "page")
    assert str(tmp_path) in json.dumps(ViewIndex(dataset).episode_json(2))  # which the page of the server shows


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("/home/ada/my runs/1.mp4: there is no such file", "1.mp4: there is no such file"),
        ("model: /a/b.mp4: it is empty; other: /a/c d/e.mp4: too", "model: b.mp4: it is empty; other: e.mp4: too"),
        ("~ada/x.mp4 and ~/y.mp4", "y.mp4"),
        ("file:///home/ada/a.mp4", "file:a.mp4"),
        ("'/data/2026-01-01T10:30:00/a.mp4'", "'a.mp4'"),
        ("see https://example.org/a/b", "see https://example.org/a/b"),
        ("turn the on/off switch, 1/2 or a / b", "turn the on/off switch, 1/2 or a / b"),
        ("set/a/003", "set/a/003"),
        ("../set/003", "../set/003"),
        (EVIL, EVIL),
    ],
)
def test_folders_are_removed_and_other_texts_stay(text: str, kept: str) -> None:
    assert FOLDERS.sub("", text) == kept


@given(st.lists(st.text("ab .-_'é", min_size=1).filter(lambda name: name[0] != " "), min_size=2, max_size=5))
def test_of_any_path_the_name_alone_is_left(names: list[str]) -> None:
    assert FOLDERS.sub("", f"cannot read /{'/'.join(names)}") == f"cannot read {names[-1]}"


def test_nothing_is_overwritten_and_unreadable_rewards_are_refused(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "mine.txt").write_text("mine")
    for to in ("html", "video"):
        said = demerit_here("export", tmp_path / SECRET / "set", tmp_path / "page", "--to", to)
        assert "not an empty folder" in error_sentence(said)
    assert [path.name for path in (tmp_path / "page").iterdir()] == ["mine.txt"]
    (rewards_folder(dataset, "eager") / "rewards.json").write_text("{")
    said = demerit_here("export", tmp_path / SECRET / "set", tmp_path / "new", "--to", "html")
    assert "rewards.json" in error_sentence(said) and not (tmp_path / "new").exists()


@pytest.mark.slow
@pytest.mark.parametrize("write", ["view_folder:write_view", "curve_videos:write_curve_videos"])
def test_a_killed_export_leaves_no_folder_and_the_next_one_is_complete(
    write: str, dataset: Dataset, tmp_path: Path
) -> None:
    words = [f"demerit.use.{write}", tmp_path / SECRET / "set", tmp_path / "page"]
    run = subprocess.run([sys.executable, "-c", KILLED, *map(os.fspath, words)], check=False)
    assert run.returncode == -signal.SIGKILL
    assert (tmp_path / ".page.part").is_dir() and not (tmp_path / "page").exists()
    to = "html" if "view" in write else "video"
    said = demerit_here("export", tmp_path / SECRET / "set", tmp_path / "page", "--to", to)
    assert said.returncode == 0, said.stderr
    assert not list(tmp_path.glob(".*.part")) and not list((tmp_path / "page").rglob("*.part"))
    with pytest.raises(StoreError):
        write_view(dataset, tmp_path / "page")


@pytest.mark.slow
def test_the_folder_opens_from_the_disk(browser: Any, dataset: Dataset, tmp_path: Path) -> None:
    make_recording(tmp_path / SECRET / "pair" / "0_left.mp4")
    make_recording(tmp_path / SECRET / "pair" / "0_right.mp4", gop=5)
    write_view(dataset, tmp_path / SECRET / "page #1?")
    write_view(open_dataset(str(tmp_path / SECRET / "pair")), tmp_path / "pair")
    problems: list[str] = []
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.on("request", lambda one: None if one.url.startswith("file:") else problems.append(one.url))
    page.on("console", lambda one: None if "2.jpg" in one.location["url"] else problems.append(one.text))
    page.on("pageerror", lambda error: problems.append(str(error)))

    def shows(frame: int) -> bool:
        """Whether the video shows a frame; a page from a disk may not read its pixels."""
        page.wait_for_selector("#player[aria-busy=false]")
        shot = page.locator("#player-video").screenshot()
        return abs(_grey(shot) - (2 + 3.5 * frame)) < 3

    page.goto(f"file://{quote(str(tmp_path / SECRET / 'page #1?' / 'index.html'))}")
    page.get_by_text(f"{COUNT} episodes").wait_for()
    page.locator("#player-title", has_text=EVIL).wait_for()
    assert page.evaluate("window.evil") is None
    assert page.locator(".row").first.locator(".finals strong").all_inner_texts() == ["unknown"] * 3
    page.locator(".row", has_text="set/003").click()
    page.locator("#more-facts dd", has_text="human Ada: failure").first.wait_for()
    assert page.locator("#player-chart path.curve").count() == 4 and page.locator("#player-chart .event").count() == 1
    page.locator("#player-chart").press("End")
    wait_until(page, lambda: shows(LENGTH - 1))
    page.locator("#player-chart").press("ArrowLeft")
    wait_until(page, lambda: shows(LENGTH - 2))
    page.locator(".row", has_text="set/002").click()
    page.locator("#player-none", has_text="lost.mp4: there is no such file").wait_for()
    page.locator("[name=success]").select_option("no")
    assert page.locator("#count").inner_text() == f"2 of {COUNT} episodes"
    page.reload()
    page.get_by_text(f"2 of {COUNT} episodes").wait_for()
    page.goto(f"file://{quote(str(tmp_path / 'pair' / 'index.html'))}")
    page.locator("#camera").select_option("right")
    wait_until(page, lambda: page.evaluate("player.video.readyState >= 2 && player.episode.name === 'right'"))
    assert page.evaluate("player.episode.link").startswith("media/")
    page.context.close()
    assert not problems


@pytest.mark.slow
def test_the_folder_can_be_hosted_below_any_address(browser: Any, dataset: Dataset, tmp_path: Path) -> None:
    write_view(dataset, tmp_path / "page")
    hosted = Mount("/some/where", StaticFiles(directory=tmp_path / "page", html=True))
    page, problems = browser.new_context().new_page(), list[str]()
    page.on("console", lambda one: problems.append(one.text) if "2.jpg" not in one.location["url"] else None)
    with WebServer(make_app([hosted])) as server:
        page.goto(f"{server.url}/some/where/?episode=set%2F003")
        page.locator("#more-facts dd", has_text="human Ada: failure").first.wait_for()
        wait_until(page, lambda: page.evaluate("player.video.readyState >= 2"))
        page.context.close()
    assert not problems


def wait_until(page: Any, holds: Any) -> None:
    """Wait from outside: the page's policy forbids eval."""
    for _ in range(600):
        if holds():
            return
        page.wait_for_timeout(30)
    raise AssertionError("it never held")


def _grey(png: bytes) -> float:
    image = Image.open(io.BytesIO(png)).convert("L")
    return float(image.getpixel((image.width // 2, image.height // 2)))  # type: ignore[arg-type]
