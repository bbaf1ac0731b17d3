"""The annotation pages in a real browser: exact frames, keys alone, drafts, lost connections, hostile texts, axe."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demerit.data.episode import Episode, Outcome
from demerit.data.store import Store
from demerit.data.video import Encoding, write_video
from demerit.people.annotate.work import NewItem, make_items
from demerit.people.database import Database
from fakes.people import PASSWORD, ServedApp, make_folder, run_app

pytestmark = pytest.mark.slow

PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1280, "height": 800}
BITS = 10
RARE_KEYS = Encoding(gop=250, options={"crf": "20", "preset": "veryfast", "bf": "3"})
MANY_KEYS = Encoding(gop=2, options={"crf": "20", "preset": "veryfast", "bf": "0"})
AV1 = Encoding("libsvtav1", gop=120, options={"crf": "30", "preset": "10"})
READ = """(frame) => new Promise((resolve) => {
  const { stage } = window.demerit, video = stage.leader.element;
  const read = () => {
    const canvas = new OffscreenCanvas(160, 64), pen = canvas.getContext('2d');
    pen.drawImage(video, 0, 0, 160, 64);
    let number = 0;
    for (let bit = 0; bit < 10; bit++) number = 2 * number + (pen.getImageData(16 * bit + 8, 32, 1, 1).data[0] > 127);
    resolve(number);
  };
  if (stage.frame === frame) { read(); return; }
  video.requestVideoFrameCallback(read); // when the new frame is on the screen: 'seeked' can come before
  stage.show(frame);
})"""
Visit = Callable[..., Any]
REJECTED = {"verdict": "reject", "note": "x"}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedApp]:
    database = Database(f"sqlite:///{tmp_path}/work.db")
    with run_app(database, tmp_path / "cache") as found:
        yield found
    database.close()


@pytest.fixture
def visit(browser: Any, served: ServedApp) -> Iterator[Visit]:
    """Open the app as its owner; an error in a page or a request elsewhere fails the test."""
    problems: list[str] = []
    contexts = []

    def visit(path: str = "/", viewport: dict[str, int] = DESKTOP) -> Any:
        context = browser.new_context(viewport=viewport)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on(
            "request", lambda one: problems.append(one.url) if not one.url.startswith((served.url, "data:")) else None
        )
        page.on("pageerror", lambda error: problems.append(f"page error: {error}"))
        link = served.app.accounts.make_link("owner", served.app.accounts.ensure_owner("me"))
        page.goto(f"{served.url}/enter/{link}")
        page.goto(served.url + path)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert not problems


def wait_until(page: Any, expression: str) -> None:
    """Wait until an expression is true. Playwright's own way needs eval, which the pages forbid."""
    for _ in range(600):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(25)
    raise AssertionError(f"never true: {expression}")


def open_item(page: Any, served: ServedApp, kind: str) -> int:
    page.goto(f"{served.url}/work/{kind}")
    page.wait_for_selector("body[data-ready]")
    return int(page.url.rpartition("/")[2])


def write_numbered(path: Path, frames: int, encoding: Encoding, is_steady: bool = False) -> None:
    """Write a video whose frames show their number as black and white bars."""
    steps = np.random.default_rng(0).choice([0.05] if is_steady else [0.02, 0.04, 0.1], frames)

    def draw() -> Iterator[np.ndarray]:
        for number in range(frames):
            bars = [255 * (number >> (BITS - 1 - bit) & 1) for bit in range(BITS)]
            yield np.repeat(np.repeat(np.uint8(bars), 16)[None, :, None], 64, axis=0).repeat(3, axis=2)

    write_video(path, draw(), encoding=encoding, times=(np.cumsum(steps) - steps[0]).tolist())


@pytest.mark.parametrize(
    ("encoding", "is_steady"),
    [(RARE_KEYS, True), (RARE_KEYS, False), (MANY_KEYS, False), (AV1, False)],
    ids=["a key frame in 250 with B-frames", "the same at a varying rate", "a key frame in 2", "AV1"],
)
def test_every_seek_shows_exactly_the_frame_that_was_asked_for(
    served: ServedApp, visit: Visit, tmp_path: Path, encoding: Encoding, is_steady: bool
) -> None:
    frames = 600
    write_numbered(tmp_path / "numbered.mp4", frames, encoding, is_steady)
    store = Store.create(tmp_path / "set", "set")
    with store.writer() as writer:
        writer.add(Episode.from_video(tmp_path / "numbered.mp4", "count", "numbered"))
    served.app.work.add_items([NewItem("mark", str(store.root), "numbered")])
    page = visit()
    open_item(page, served, "mark")
    asked = np.random.default_rng(1).integers(0, frames, 250).tolist()  # four videos: 1,000 seeks
    shown = [page.evaluate(READ, frame) for frame in asked]
    assert [pair for pair in zip(asked, shown, strict=True) if pair[0] != pair[1]] == []


def test_keys_alone_label_an_episode_of_each_kind(served: ServedApp, visit: Visit, tmp_path: Path) -> None:
    store = make_folder(tmp_path, count=2)
    served.app.work.add_items(make_items(store, ["verify", "compare", "mark"]))
    page = visit()
    strokes = {
        "verify": ["2", "f", "Enter"],
        "compare": ["1", "Enter"],
        "mark": ["0", "End", "3", "e", "k", "d", "Enter", "e", "Home", "e", "e", "f", "Enter"],  # d is "dropped"
    }
    for kind, keys in strokes.items():
        item = open_item(page, served, kind)
        for key in keys[:-1]:
            page.keyboard.press(key)
        with page.expect_response(f"**/items/{item}/answer") as answer:
            page.keyboard.press(keys[-1])
        assert answer.value.status == 200
        page.wait_for_url(lambda url, item=item: not url.endswith(f"/items/{item}"))  # it goes on by itself
    served.app.stop()
    humans = [one for episode in Store(store.root).episodes() for one in episode.outcomes if one.source == "human"]
    assert any(one.grade == 2 and one.success is False for one in humans)
    marked = next(one for one in humans if one.curve is not None)
    assert marked.curve[0] == 0 and marked.curve[-1] == np.float32(0.3) and marked.success is False
    assert [(event.kind, event.first) for event in marked.events] == [("dropped", 7), ("unknown", 0)]  # not named
    assert [one.verdict in ("a", "b") for one in Store(store.root).preferences()] == [True]


def test_the_model_speaks_when_it_is_asked_and_one_key_accepts(served: ServedApp, visit: Visit, tmp_path: Path) -> None:
    served.app.work.add_items(make_items(make_folder(tmp_path), ["verify"]))
    page = visit()
    open_item(page, served, "verify")
    assert not page.is_visible("#reasons blockquote")
    page.click("#reasons summary")
    assert "stays on the table" in page.inner_text("#reasons blockquote")
    first = page.url
    page.keyboard.press("a")
    page.wait_for_url(lambda url: "/items/" in url and url != first)


def test_a_draft_survives_a_reload_and_a_lost_connection(served: ServedApp, visit: Visit, tmp_path: Path) -> None:
    served.app.work.add_items(make_items(make_folder(tmp_path), ["mark"]))
    page = visit()
    item = open_item(page, served, "mark")
    page.keyboard.press("End")
    page.keyboard.press("5")
    wait_until(page, "document.getElementById('status').textContent === 'Draft saved.'")
    page.reload()
    page.wait_for_selector("body[data-ready]")
    page.context.set_offline(True)
    page.keyboard.press("s")
    page.keyboard.press("Enter")
    wait_until(page, "document.getElementById('status').textContent.startsWith('Not saved yet')")
    page.context.set_offline(False)
    page.wait_for_url(lambda url: not url.endswith(f"/items/{item}"))
    owner = next(one for one in served.app.accounts.list_people())
    with served.app.database.begin() as db:
        (body,) = db.exec_driver_sql(f"SELECT body FROM answers WHERE item = {item} AND person = {owner.id}").scalars()
    found = json.loads(body)
    assert found["points"] == [[7, 0.5]] and found["success"] is True


def test_undo_takes_back_the_last_mark(served: ServedApp, visit: Visit, tmp_path: Path) -> None:
    served.app.work.add_items(make_items(make_folder(tmp_path), ["mark"]))
    page = visit()
    open_item(page, served, "mark")
    page.select_option("#kind", "wrong object")
    for key in ("4", "ArrowRight", "8", "e"):
        page.keyboard.press(key)
    assert page.inner_text("#events li").startswith("wrong object")
    page.keyboard.press("z")
    page.keyboard.press("z")
    assert page.locator("#events li").count() == 0
    assert page.evaluate("JSON.parse(localStorage.getItem(`demerit draft ${demerit.facts.key}`)).points") == [[0, 0.4]]


def test_a_draft_in_the_browser_is_only_for_the_person_who_typed_it(
    served: ServedApp, visit: Visit, tmp_path: Path
) -> None:
    served.app.work.add_items(make_items(make_folder(tmp_path, count=1), ["mark"]), wanted=2)
    page = visit()
    item = open_item(page, served, "mark")
    page.context.set_offline(True)
    page.fill("#note", "mine")
    wait_until(page, "document.getElementById('status').textContent.startsWith('No connection')")
    page.context.set_offline(False)
    page.goto(f"{served.url}/join/{served.app.accounts.make_link('rater')}")
    page.fill("input[name=name]", "Ada")
    page.fill("input[name=password]", PASSWORD)
    page.click("main button")
    page.wait_for_url(f"{served.url}/")
    assert open_item(page, served, "mark") == item and page.input_value("#note") == ""


def test_recording_while_it_plays_paints_the_slider_over_time(served: ServedApp, visit: Visit, tmp_path: Path) -> None:
    served.app.work.add_items(make_items(make_folder(tmp_path, count=1, frames=40), ["mark"]))
    page = visit()
    open_item(page, served, "mark")
    page.evaluate("demerit.stage.addEventListener('frame', () => { document.getElementById('progress').value = "
                  "String(100 * demerit.stage.frame / 39); })")  # fmt: skip
    page.keyboard.press("p")
    wait_until(page, "!demerit.stage.isPlaying && demerit.stage.frame === 39")
    points = page.evaluate("JSON.parse(localStorage.getItem(`demerit draft ${demerit.facts.key}`)).points")
    at, progress = np.array(points).T
    assert set(range(2, 39)) <= set(at.tolist())
    assert np.abs(progress - at / 39).mean() < 0.05


def test_two_cameras_stay_in_step(served: ServedApp, visit: Visit, tmp_path: Path) -> None:
    for camera in ("left", "right"):
        write_numbered(tmp_path / f"{camera}.mp4", 200, MANY_KEYS)
    one = Episode.from_video(tmp_path / "left.mp4", "count", "both")
    other = Episode.from_video(tmp_path / "right.mp4", "count", "other")
    store = Store.create(tmp_path / "set", "set")
    with store.writer() as writer:
        writer.add(Episode("both", "count", {"left": one.main, "right": other.main}))
    served.app.work.add_items([NewItem("mark", str(store.root), "both")])
    page = visit()
    open_item(page, served, "mark")
    page.keyboard.press(" ")
    wait_until(page, "demerit.stage.frame > 80")
    page.keyboard.press(" ")
    times = page.evaluate("demerit.stage.videos.map(({ element }) => element.currentTime)")
    assert times[0] == times[1] > 1


def test_hostile_texts_do_not_run(served: ServedApp, visit: Visit, tmp_path: Path) -> None:
    attack = "</script><script>window.ran = 1</script><img src=x onerror='window.ran = 1'>\"'{{7*7}}"
    served.app.work.add_items(make_items(make_folder(tmp_path, instruction=attack), ["verify", "compare", "mark"]))
    page = visit()
    for kind in ("verify", "compare", "mark"):
        item = open_item(page, served, kind)
        assert page.inner_text("h1").strip() == attack and page.evaluate("window.ran") is None
        page.fill("#note", attack)
        wait_until(page, "document.getElementById('status').textContent === 'Draft saved.'")
        page.goto(f"{served.url}/items/{item}")
        page.wait_for_selector("body[data-ready]")
        assert page.input_value("#note") == attack and page.evaluate("window.ran") is None


SHAPES = {"portrait": (160, 90, 3), "landscape": (90, 160, 3)}
COVERED = """(all) => [...document.querySelectorAll(all)].filter((one) => {
  const box = one.getBoundingClientRect();
  return !one.contains(document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2));
}).map((one) => one.id || one.value)"""
VISIBLE = "video, #timeline, #play, #back, #forward, [data-set], #send, #note, #place, #names"


@pytest.mark.parametrize("size", [(1400, 900), (1280, 720)], ids=["1400x900", "1280x720"])
def test_videos_timeline_and_answers_are_on_the_screen_without_scrolling(
    served: ServedApp, visit: Visit, tmp_path: Path, size: tuple[int, int]
) -> None:
    store = Store.create(tmp_path / "set", "set")
    with store.writer() as writer:
        for shape, pixels in SHAPES.items():
            write_video(tmp_path / f"{shape}.mp4", np.full((8, *pixels), 90, np.uint8))
            clip = Episode.from_video(tmp_path / f"{shape}.mp4").main
            label = Outcome("model", success=False, grade=2, progress=0.5, by="m", note="it stays on the table")
            for cameras in (("left",), ("left", "right")):
                views = dict.fromkeys(cameras, clip)
                writer.add(
                    Episode(f"{shape}-{len(cameras)}", "put the cup on the shelf beside the sink", views, (label,))
                )
    ids = [f"{shape}-{count}" for shape in SHAPES for count in (1, 2)]
    items = [NewItem(kind, str(store.root), id) for kind in ("verify", "mark") for id in ids]
    served.app.work.add_items(
        [*items, *(NewItem("compare", str(store.root), id, "portrait-2") for id in ids[:1] + ids[2:])]
    )
    width, height = size
    page, owner, shown = visit(viewport={"width": width, "height": height}), served.enter_owner(), []
    owner.get("/")
    for kind in ("verify", "mark", "compare"):
        for number in range(3 if kind == "compare" else 4):
            item = open_item(page, served, kind)
            wait_until(page, "demerit.stage.videos.every(({ element }) => element.readyState > 1)")
            boxes = page.evaluate(
                "(all) => [...document.querySelectorAll(all)].map((one) => [one.id || one.tagName + one.value, "
                "...Object.values(one.getBoundingClientRect().toJSON()).slice(0, 4)])", VISIBLE
            )  # fmt: skip
            outside = [
                box for box in boxes if box[1] < 0 or box[2] < 0 or box[1] + box[3] > width or box[2] + box[4] > height
            ]
            names, videos = page.inner_text("#names"), [box for box in boxes if box[0].startswith("VIDEO")]
            assert not outside, (kind, names)
            assert all(box[4] > height / 5 for box in videos), (kind, names, videos)
            assert page.evaluate("document.documentElement.scrollHeight") <= height
            assert page.inner_text("#place") == f"{number + 1} of {3 if kind == 'compare' else 4}"
            hidden = page.evaluate(COVERED, VISIBLE)
            assert not hidden, (kind, names)  # nothing covers them, and no scrolling part cuts them off
            page.screenshot(path=tmp_path / f"{width}-{kind}-{names.replace(' and ', '+')}.png")
            shown += names.split(" and ")
            body = {"verdict": "unknown"} if kind == "compare" else {"note": "x"} if kind == "mark" else REJECTED
            assert owner.answer(item, **body).status_code == 200
    assert {id: shown.count(id) for id in ids} == {"portrait-1": 3, "portrait-2": 5, "landscape-1": 3, "landscape-2": 3}


def test_the_start_page_says_where_to_begin_and_own_verdicts_count(
    served: ServedApp, visit: Visit, tmp_path: Path
) -> None:
    store = make_folder(tmp_path)
    with store.writer() as writer:
        writer.relabel({f"e{i}": [] for i in range(4)})  # nothing is labelled
    served.app.work.add_items(make_items(Store(store.root), ["verify", "compare", "mark"]))
    page = visit()
    assert page.locator(".queue a").all_inner_texts() == ["Mark", "Compare"]
    assert page.inner_text("#start").startswith("Start here: mark, 4 left")
    assert page.inner_text(".queue [aria-current=step] a") == "Mark"
    page.keyboard.press("Enter")  # the one clear next thing has the focus
    page.wait_for_selector("body[data-ready]")
    assert page.inner_text("nav [aria-current=page]") == "Mark 4"
    served.app.work.add_items(make_items(Store(store.root), ["verify"]))
    open_item(page, served, "verify")
    assert "There is no label yet" in page.inner_text(".asked") and page.locator("[data-key=a]").count() == 0
    named = page.inner_text("#names")
    for number in range(4):
        open_item(page, served, "mark")
        assert page.inner_text("#place") == f"{number + 1} of 4" and page.inner_text("#names") == f"e{number}"
        page.keyboard.press("f")
        assert page.get_attribute("[data-key=f]", "aria-pressed") == "true"
        with page.expect_navigation():
            page.keyboard.press("Enter")
    page.goto(served.url)
    assert named == "e0" and page.locator(".queue span:first-of-type").all_inner_texts() == [
        "4 of 4 done", "4 of 4 done", "0 of 2 done"
    ]  # fmt: skip
    for number in range(2):  # what is asked for is done: the queue goes on by itself, to its end
        page.goto(f"{served.url}/work{'' if number else '/verify'}")
        page.wait_for_selector("body[data-ready]")
        assert page.inner_text("#place") == f"{number + 1} of 2" and "Which one did it better?" in page.inner_text(
            ".asked"
        )
        page.keyboard.press("1")
        with page.expect_navigation():
            page.keyboard.press("Enter")
    assert "Nothing left to do here" in page.inner_text("main")
    page.goto(served.url)
    assert "Everything is answered" in page.inner_text("h1") and page.locator("#start").count() == 0


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_pages_fit_the_screen_and_axe_finds_nothing_serious(
    served: ServedApp, visit: Visit, tmp_path: Path, viewport: dict[str, int]
) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="no axe: pip install axe-playwright-python"
    )
    served.app.work.add_items(make_items(make_folder(tmp_path), ["verify", "compare", "mark"]), wanted=2)
    rater = served.join_rater("Ada")
    item = rater.next_item("verify")
    assert item is not None
    rater.answer(item, verdict="correct", grade=5)
    page = visit(viewport=viewport)
    for path in (
        "/",
        "/login",
        "/team",
        "/disagreements",
        "/audit",
        "/teach",
        "/work/verify",
        "/work/compare",
        "/work/mark",
    ):
        page.goto(served.url + path)
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= viewport["width"], path
        serious = [
            (found["id"], found["nodes"][0]["html"])
            for found in axe.Axe().run(page).response["violations"]
            if found["impact"] in ("serious", "critical")
        ]
        assert not serious, path


def test_stages_follow_one_another_and_their_names_are_offered_again(
    served: ServedApp, visit: Visit, tmp_path: Path
) -> None:
    store = make_folder(tmp_path, count=2, frames=30)
    served.app.work.add_items(make_items(store, ["mark"]))
    page = visit()

    def end_stage(frame: int, name: str) -> None:
        page.evaluate(f"demerit.stage.show({frame})")
        if page.input_value("#stage") == name:
            page.keyboard.press("w")
        else:
            page.fill("#stage", name)
            page.press("#stage", "Enter")

    for spans in ([(9, "reach"), (19, "grasp"), (29, "place it"), (4, "look")], [(7, "reach"), (12, "grasp")]):
        item = open_item(page, served, "mark")
        for frame, name in spans:
            end_stage(frame, name)
        page.keyboard.press("f")
        page.screenshot(path=str(tmp_path / "stages.png"))
        with page.expect_response(f"**/items/{item}/answer") as answer:
            page.keyboard.press("Enter")
        assert answer.value.status == 200
        page.wait_for_url(lambda url, item=item: not url.endswith(f"/items/{item}"))
    served.app.stop()
    found = [one for episode in Store(store.root).episodes() for one in episode.outcomes if one.source == "human"]
    assert {" ".join(map(str, one.stages)) for one in found} == {
        "look:0-4 reach:5-9 grasp:10-19 place it:20-29",
        "reach:0-7 grasp:8-12",
    }
