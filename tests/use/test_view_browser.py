"""The page of `demerit view` in a real browser: filters, keys, exact frames, hostile texts, missing videos."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from demerit.data.formats import open_dataset
from demerit.data.store import Store
from demerit.use.view import ViewIndex, view_app
from demerit.web.media import EpisodeMedia
from demerit.web.server import WebServer
from fakes.viewed_dataset import EVIL, LENGTH, make_recording, make_viewed

pytestmark = pytest.mark.slow

GREY = """() => { const video = document.getElementById('player-video');
  const canvas = new OffscreenCanvas(8, 8); const pen = canvas.getContext('2d');
  pen.drawImage(video, 0, 0, 8, 8); return pen.getImageData(4, 4, 1, 1).data[0]; }"""
LOADED = "document.getElementById('player-video').readyState >= 2 && !document.getElementById('player-video').seeking"
Visit = Callable[..., Any]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WebServer]:
    make_viewed(tmp_path / "set", 60)

    def open_index() -> ViewIndex:
        return ViewIndex(open_dataset(str(tmp_path / "set")))

    with WebServer(view_app(open_index(), open_index, EpisodeMedia(tmp_path / "cache"))) as running:
        yield running


@pytest.fixture
def visit(browser: Any, server: WebServer) -> Iterator[Visit]:
    """Open the page; an error in it or a request elsewhere fails the test. Pictures of lost videos may be missing."""
    problems: list[str] = []
    contexts = []

    def visit(query: str = "", **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("request", lambda one: problems.append(one.url) if not one.url.startswith(server.url) else None)
        page.on("console", lambda one: problems.append(one.text) if "404" not in one.text else None)
        page.on("pageerror", lambda error: problems.append(f"page error: {error}"))
        page.goto(server.url + query)
        is_open(page)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert not problems


def until(page: Any, truth: str) -> None:
    """Wait for an expression to be true, from outside: the page's policy forbids eval."""
    end = time.monotonic() + 20
    while not page.evaluate(truth):
        assert time.monotonic() < end, truth
        page.wait_for_timeout(30)


def is_open(page: Any) -> None:
    until(page, "performance.getEntriesByName('ready').length && (player.episode || !view.shown.length)")


def count(page: Any) -> str:
    return str(page.locator("#count").inner_text())


def selected(page: Any) -> str:
    return str(page.locator(".row[aria-selected=true] .id").inner_text())


def test_verdicts_are_at_the_top_and_a_camera_can_be_chosen(visit: Visit, server: WebServer, tmp_path: Path) -> None:
    page = visit()
    assert page.locator("#verdicts p").all_inner_texts() == [
        "careful 0 success, 0 failure, 60 unknown (no threshold)",
        "eager 0 success, 0 failure, 60 unknown (59 no threshold, 1 not scored)",
    ]  # clock is a control
    page.evaluate("byId('verdicts').append(...byId('list').innerText.split('\\n').map((line) => `${line}\\n`))")
    page.evaluate("byId('verdicts').style.whiteSpace = 'pre-line'")
    assert page.evaluate("byId('verdicts').scrollHeight <= byId('verdicts').clientHeight")  # all can be seen
    assert page.locator(".row").first.locator(".finals strong").all_inner_texts() == ["unknown"] * 3
    assert "careful says" in page.inner_text("#more-facts") and page.is_hidden("#camera-box")
    for name in ("left", "right"):
        make_recording(tmp_path / "pair" / f"0_{name}.mp4", is_negative=name == "left")

    def open_index() -> ViewIndex:
        return ViewIndex(open_dataset(str(tmp_path / "pair")))

    with WebServer(view_app(open_index(), open_index, EpisodeMedia(tmp_path / "pictures"))) as other:
        context = page.context.browser.new_context()
        pair = context.new_page()
        pair.goto(other.url)
        is_open(pair)
        until(pair, LOADED)
        with pair.expect_response("**/cameras/0/1.mp4"):
            pair.locator("#camera").select_option("right")
        until(pair, LOADED)
        assert pair.evaluate("player.episode.link") == "/cameras/0/1.mp4"
        pair.evaluate("moveTo(17)")
        for camera in (0, 1):  # the key goes round, and the frame stays
            pair.locator("#list").press("c")
            until(pair, f"player.episode.link === '/cameras/0/{camera}.mp4' && {LOADED}")
            assert pair.locator("#player-chart").get_attribute("aria-valuenow") == "17"
            shade = 2 + 3.5 * 17
            until(pair, f"Math.abs(({GREY})() - {shade if camera else 255 - shade}) < 3")
        context.close()


def test_filters_and_the_open_episode_survive_a_reload(visit: Visit) -> None:
    page = visit()
    assert count(page) == "60 episodes"
    page.locator("[name=success]").select_option("no")
    page.locator("[name=q]").fill("red")
    page.locator("[name=sort]").select_option("value")
    page.locator("[name=desc]").check()
    page.locator("[name=min]").fill("0.5")
    assert count(page) == "15 of 60 episodes"  # odd ones from 31 on
    page.locator("#list").press("j")
    assert selected(page) == "set/059"
    page.locator("#list").press("j")
    page.reload()
    is_open(page)
    assert count(page) == "15 of 60 episodes" and selected(page) == "set/057"
    assert page.locator("[name=min]").input_value() == "0.5" and page.locator("[name=desc]").is_checked()


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("?kind=collision", "20 of 60"),
        ("?kind=none&success=yes", "20 of 60"),  # even, not a multiple of 3
        ("?label=none", "1 of 60"),
        ("?success=unknown", "1 of 60"),
        ("?state=unscored", "1 of 60"),
        ("?apart=0.89", "6 of 60"),  # |1 - 2 i / 60|; the last is not scored by both
        ("?model=eager&max=0.1", "5 of 60"),
        ("?q=%3Cimg", "1 of 60"),
        ("?model=of+another+dataset&success=no", "29 of 60"),  # 5 has no label
        ("?q=nothing+like+this", "0 of 60"),
    ],
)
def test_filters_of_an_address(query: str, shown: str, visit: Visit) -> None:
    page = visit("/" + query)
    assert count(page) == f"{shown} episodes"


def test_quality_filters_orders_and_is_listed(visit: Visit) -> None:
    page = visit("/?quality=dropped_frames&low=0&sort=quality")
    page.get_by_text("58 of 60 episodes").wait_for()  # one is edited, one lost
    page.locator("#more-facts dd", has_text="3.875").wait_for()
    page.locator("[name=low]").fill("1")
    assert count(page) == "0 of 60 episodes"


def test_keys(visit: Visit) -> None:
    page = visit()
    keyboard = page.keyboard
    assert selected(page) == "set/000"
    for key, id in (("j", "001"), ("ArrowDown", "002"), ("j", "003"), ("k", "002"), ("ArrowUp", "001")):
        keyboard.press(key)
        assert selected(page) == f"set/{id}"
    # the first answer about 001 may have come before the last: it is open when nothing is awaited any more
    until(page, f"player.box.getAttribute('aria-busy') === 'false' && player.episode.id === 'set/001' && {LOADED}")
    for key, frame in (("ArrowRight", 1), ("Shift+ArrowRight", 11), ("ArrowLeft", 10)):
        keyboard.press(key)
        assert page.locator("#player-chart").get_attribute("aria-valuenow") == str(frame)
    keyboard.press(" ")
    until(page, "!document.getElementById('player-video').paused")
    keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "q"
    keyboard.type("jk")
    assert page.locator("[name=q]").input_value() == "jk"  # letters in a field are letters
    keyboard.press("Escape")
    keyboard.press("?")
    assert page.locator("#help").is_visible()
    keyboard.press("Escape")
    assert not page.locator("#help").is_visible()


def test_an_answer_that_comes_late_does_not_open_an_episode_again(visit: Visit) -> None:
    page = visit()
    waiting: list[Any] = []
    page.route("**/episodes/1.json", lambda route: waiting.append(route))  # noqa: PLW0108 (Playwright marks handlers)
    for key in ("j", "k", "j"):
        page.keyboard.press(key)
    while len(waiting) < 2:
        page.wait_for_timeout(30)
    waiting[1].continue_()
    until(page, f"player.episode.id === 'set/001' && {LOADED}")
    page.keyboard.press("ArrowRight")
    with page.expect_response("**/episodes/1.json"):
        waiting[0].continue_()
    page.wait_for_timeout(300)
    assert page.locator("#player-chart").get_attribute("aria-valuenow") == "1"


@pytest.mark.parametrize("place", [3, 1])
def test_the_frame_under_the_cursor_is_on_the_screen(place: int, visit: Visit) -> None:
    """Episode 3 is the recording itself, with B-frames and one key frame; 1 is cut from it, backwards."""
    page = visit(f"/?episode=set%2F{place:03d}")
    until(page, LOADED)
    assert place == 3 or page.evaluate("document.getElementById('player-video').videoWidth") == 64
    for frame in (0, 17, 5, 31, 30, 1, 16, 29):
        page.evaluate(f"moveTo({frame})")
        until(page, LOADED)
        k = frame if place == 3 else LENGTH - 1 - frame
        assert abs(page.evaluate(GREY) - (2 + 3.5 * k)) < 3, frame  # half a step is 1.75; colour conversion adds one


def test_html_in_an_instruction_does_not_run(visit: Visit) -> None:
    page = visit("/?q=img")
    assert page.locator("#player-title").inner_text() == EVIL
    assert page.locator(".row b").inner_text() == EVIL
    assert page.evaluate("window.evil") is None and page.locator("#list img[src=x]").count() == 0


def test_lost_video_says_why_and_keeps_its_curves(visit: Visit) -> None:
    page = visit("/?episode=set%2F002")
    assert "there is no such file" in page.locator("#player-none").inner_text()
    assert page.locator("#player-chart path.curve").count() == 4  # three models and the truth
    until(page, "document.querySelector('#row-2 .thumb').textContent === 'no video'")


def test_stale_rewards_are_marked(visit: Visit, tmp_path: Path) -> None:
    with Store(tmp_path / "set").writer() as writer:
        writer.update({"set/006": {"instruction": "pull"}})
    page = visit("/?episode=set%2F006")
    until(page, "document.querySelectorAll('.row .tag.alarm').length === 1")
    assert page.locator("#more-facts .alarm").count() == 3
    page.locator("[name=state]").select_option("stale")
    assert count(page) == "1 of 60 episodes"


def test_a_phone_scrolls_only_down(visit: Visit) -> None:
    page = visit("/?kind=collision", viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.locator("#more-filters summary").click()
    page.locator("[name=grid]").check()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.locator(".list.grid .row").count() > 3


def test_only_visible_rows_exist(visit: Visit) -> None:
    page = visit()
    assert page.locator(".row").count() < 20
    page.locator("#list").evaluate("list => { list.scrollTop = 1e6; }")
    until(page, "document.querySelector('#row-59')")
    assert page.locator(".row").count() < 20
