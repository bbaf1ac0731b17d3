"""The report page in a real browser: it plays, seeks, sorts and filters, without errors and without requests."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demerit.data.dataset import Dataset, ListReader
from demerit.data.episode import Episode
from demerit.data.formats import open_dataset
from demerit.data.frames import Frames
from demerit.evaluate.reports import Report, build_leaderboard, write_page
from demerit.evaluate.reports.player import pick_examples
from demerit.models.score import score_missing
from demerit.training.teach import teach
from demerit.use.filter import decide, need_at_least, write_filter_page
from demerit.use.release import ReleaseConfig, release
from fakes import lesson_data as data
from fakes.fake_network import FakeNetwork
from fakes.named_values import Named
from fakes.page_fixture import make_large_report, make_report, shading_frames

pytestmark = pytest.mark.slow

PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True, "device_scale_factor": 2}
EVIL = "</script><script>window.evil = 1</script><img src=x onerror='window.evil = 2'>"
CONTRAST = """(selector) => {
  const light = (colour) => { const [r, g, b] = colour.match(/[\\d.]+/g).map((part) => part / 255)
    .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ink = light(getComputedStyle(document.querySelector(selector)).color);
  const paper = light(getComputedStyle(document.body).backgroundColor);
  return [paper, (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05)]; }"""
GREY = """() => { const video = document.getElementById('player-video');
  const canvas = new OffscreenCanvas(8, 8); const pen = canvas.getContext('2d');
  pen.drawImage(video, 0, 0, 8, 8); return pen.getImageData(4, 4, 1, 1).data[0]; }"""
BROKEN_WORDS = """() => {
  const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (const part of document.querySelectorAll('section')) part.style.contentVisibility = 'visible';
  for (const part of document.querySelectorAll('details')) part.open = true;
  while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement;
    if (!parent.checkVisibility() || parent.closest('script, svg, .unseen, .id, dd code')) continue;
    for (const match of node.data.matchAll(/[^\\s-]+/g)) {
      const range = document.createRange();
      range.setStart(node, match.index); range.setEnd(node, match.index + match[0].length);
      const boxes = [...range.getClientRects()].filter((box) => box.width > 0);
      if (new Set(boxes.map((box) => Math.round(box.top))).size > 1) found.push(match[0]);
    }
  }
  return found; }"""
"""words that stand on two lines; paths and ids may"""
LOADED = "document.getElementById('player-video').readyState >= 2"

Made = tuple[Report, dict[str, Frames]]
Visit = Callable[..., Any]


@pytest.fixture
def visit(browser: Any) -> Iterator[Visit]:
    """Open a file; any console error, page error or request outside the file fails the test."""
    problems: list[str] = []
    contexts = []

    def on_request(request: Any) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            problems.append(f"requested {request.url}")

    def on_console(message: Any) -> None:
        if message.type in ("error", "warning"):
            problems.append(f"{message.type}: {message.text}")

    def visit(path: Path, **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("request", on_request)
        page.on("console", on_console)
        page.on("pageerror", lambda error: problems.append(f"page error: {error}"))
        page.goto(path.as_uri())
        until(page, "!document.getElementById('player') || performance.getEntriesByName('ready').length")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert not problems


@pytest.fixture(scope="module")
def made() -> Made:
    return make_report(2)


@pytest.fixture(scope="module")
def path(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(made[0], tmp_path_factory.mktemp("page") / "report.html", made[1], 12)


def now(page: Any) -> int:
    return int(page.locator("#player-chart").get_attribute("aria-valuenow"))


def click_at(page: Any, share: float) -> None:
    """Click on the curves, at a share of the episode's length."""
    box = page.locator("#player-chart").bounding_box()
    page.locator("#player-chart").click(position={"x": 30 + share * (box["width"] - 40), "y": 90})


def until(page: Any, truth: str) -> None:
    """Wait for an expression to be true, from outside: the page's policy forbids eval."""
    while not page.evaluate(truth):
        page.wait_for_timeout(30)


def test_click_on_the_curve_shows_that_frame(made: Made, visit: Visit, tmp_path: Path) -> None:
    """Every frame of this video has its own grey, so the pixels tell which one is on the screen."""
    report, _ = made
    first = pick_examples(report, 1)[0]
    others = [row for row in report.episodes if row.id != first.episode.id]
    long = replace(first.episode, frames=64, seconds=8.0, curve=None, events=())
    report = replace(report, episodes=(long, *others))
    page = visit(write_page(report, tmp_path / "grey.html", {long.id: shading_frames(64)}, 1))
    page.locator("#picks button:has(img)").first.click()
    until(page, LOADED)
    for share in (0.0, 0.5, 1.0):
        click_at(page, share)
        until(page, "!document.getElementById('player-video').seeking")
        page.wait_for_timeout(120)
        frame = now(page)
        assert abs(frame - share * 63) <= 1
        assert abs(page.evaluate(GREY) - (2 + 3.5 * frame)) < 1.75 + 1.5


def test_play_keys_and_dragging_move_the_cursor(path: Path, visit: Visit) -> None:
    page = visit(path)
    until(page, LOADED)
    chart = page.locator("#player-chart")
    chart.focus()
    for key, frame in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", 31), ("Home", 0)):
        page.keyboard.press(key)
        assert now(page) == frame
    page.locator("#player-play").click()
    until(page, "Number(document.getElementById('player-chart').getAttribute('aria-valuenow')) > 3")
    assert float(page.locator("#player-chart .cursor").get_attribute("x1")) > 30
    page.locator("#player-play").click()
    until(page, "document.getElementById('player-video').paused")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + 80)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 60, box["y"] + 80, steps=6)
    page.mouse.up()
    assert 25 <= now(page) <= 31


def test_curves_are_drawn_and_another_example_can_be_chosen(path: Path, visit: Visit) -> None:
    page = visit(path)
    curves = page.locator("#player-chart path.curve[data-model]")
    assert set(curves.evaluate_all("all => all.map((curve) => curve.dataset.model)")) >= {"eager", "grades", "clock"}
    assert page.locator("#player-chart path.truth").count() == 1
    assert page.locator("#player-chart .event").count() == 1
    before = curves.count()
    eager = page.locator("#player-legend button", has_text="eager")
    eager.click()
    assert curves.count() == before - 1
    assert eager.get_attribute("aria-pressed") == "false"
    buttons = page.locator("#picks button")
    source = page.locator("#player-video").get_attribute("src")
    buttons.nth(2).click()
    assert buttons.nth(2).get_attribute("aria-pressed") == "true"
    assert page.locator("#player-video").get_attribute("src") != source
    assert page.locator("#player-title").inner_text() == buttons.nth(2).locator(".pick-name").inner_text()
    buttons.nth(23).click()  # beyond the embedded ones
    assert page.locator("#player-video").is_hidden()
    assert page.locator("#player-none").inner_text()


def test_episodes_sort_filter_and_open(path: Path, made: Made, visit: Visit) -> None:
    page = visit(path)
    rows = page.locator("#episodes-table tbody tr")
    assert rows.count() == len(made[0].episodes) == 50
    header = page.locator("#episodes-table th", has_text="eager")
    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "descending"
    column = 1 + [card.name for card in made[0].cards].index("eager") + 4
    values = page.locator(f"#episodes-table tbody td:nth-child({column})").all_inner_texts()
    numbers = [-1.0 if text.startswith("unscored") else float(text.split()[0]) for text in values]
    assert numbers == sorted(numbers, reverse=True)  # the unscored come last
    page.locator("#filter-words").fill("stack red")
    assert page.locator("#episodes-count").inner_text() == "5 of 50 episodes"
    page.locator("#filter-success").select_option("yes")
    assert rows.count() == 1
    page.locator("#filter-words").fill("")
    page.locator("#filter-category").select_option("push/pull")
    assert rows.count() == 2
    rows.first.locator("button.open").click()
    assert page.locator("#player-title").inner_text().startswith("push the")
    page.locator("#filter-category").select_option("")
    page.locator("#filter-success").select_option("")
    page.locator("#filter-unscored").check()
    assert 0 < rows.count() < 50


def test_tables_sort_with_controls_apart(path: Path, made: Made, visit: Visit, tmp_path: Path) -> None:
    page = visit(path)
    rates = {name: made[0].line(name, "over_reward_rate") for name in ("careful", "eager", "grades")}
    rising = sorted(rates, key=lambda name: rates[name].value if rates[name] else 0.0)
    page.locator("table.headline th", has_text="relative to the median success").locator("button").click()
    names = page.locator("table.headline tbody th[scope=row] .model").all_inner_texts()
    assert names[:3] == rising and set(names[3:]) == {"clock", "constant", "random"}
    details = page.locator("table.headline .details").first
    assert details.is_hidden()
    page.locator("button[data-details]").click()
    assert details.is_visible()
    page = visit(build_leaderboard([made[0]], tmp_path))
    table = page.locator("#roboreward_table_10 table")
    table.locator("th", has_text="RoboArena").locator("button").click()
    values = [float(text) for text in table.locator("tbody td:nth-child(3)").all_inner_texts()]
    assert values == sorted(values)


def test_keyboard_reaches_everything_in_order(path: Path, visit: Visit) -> None:
    page = visit(path)
    seen = []
    for _ in range(60):
        page.keyboard.press("Tab")
        name = "document.activeElement.id || document.activeElement.textContent.trim().slice(0, 20)"
        seen.append(page.evaluate(name))
    assert seen[0] == "Skip to the numbers"
    assert seen.index("Headline") < seen.index("AUROC") < seen.index("player-play") < seen.index("player-chart")
    unnamed = page.evaluate(
        """[...document.querySelectorAll('button, a, input, select, [role=slider]')].filter((part) =>
        !(part.textContent.trim() || part.getAttribute('aria-label') || part.labels?.length)).length"""
    )
    assert unnamed == 0


def test_phone_scrolls_only_downwards_and_seeks_by_touch(path: Path, made: Made, visit: Visit, tmp_path: Path) -> None:
    for file in (build_leaderboard([made[0]], tmp_path), path):
        page = visit(file, **PHONE)
        page.wait_for_timeout(200)
        assert page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [390, 390]
    until(page, LOADED)
    page.locator("#picks button").nth(1).tap()
    chart = page.locator("#player-chart")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + 60)
    assert 13 <= now(page) <= 19


@pytest.mark.parametrize("width", [360, 1280])
def test_no_word_is_broken(width: int, path: Path, made: Made, visit: Visit, tmp_path: Path) -> None:
    lesson = [replace(one, id=f"{one.id}-{'recorded_' * 9}") for one in data.episodes(3, 3)]
    rest = data.episodes(2, 2, data.unlabelled, first=20)
    teach(data.dataset([*lesson, *rest]), tmp_path / "coffee-model", network=FakeNetwork(), workers=0)
    videos = open_dataset(f"videos:{data.write_videos(tmp_path / 'videos', 2, 2)}")
    licensed = [replace(one, origin=replace(one.origin, licence="MIT")) for one in videos]
    release(Dataset(ListReader("squares", licensed), "squares"), tmp_path / "shared", ReleaseConfig())
    pages = (
        path,
        build_leaderboard([made[0]], tmp_path),
        tmp_path / "coffee-model/report.html",
        tmp_path / "shared/card.html",
    )
    for file in pages:
        page = visit(file, viewport={"width": width, "height": 800}, is_mobile=width < 600)
        page.wait_for_timeout(200)
        assert page.evaluate(BROKEN_WORDS) == [], file
        assert page.evaluate("document.documentElement.scrollWidth") == width, file


@pytest.mark.parametrize(("scheme", "is_dark"), [("dark", True), ("light", False)])
def test_text_is_readable_in_light_and_dark_mode(scheme: str, is_dark: bool, path: Path, visit: Visit) -> None:
    page = visit(path, color_scheme=scheme)
    for selector in ("h1", "h1 em", ".muted", ".tag.good", ".tag.bad", "#episodes-table .no", ".direction"):
        paper, ratio = page.evaluate(CONTRAST, selector)
        assert (paper < 0.1) is is_dark
        assert ratio >= 4.5, (scheme, selector, ratio)


def test_texts_from_a_dataset_do_not_run(made: Made, visit: Visit, tmp_path: Path) -> None:
    bad = tuple(replace(row, instruction=EVIL, note=EVIL, category=EVIL) for row in made[0].episodes)
    page = visit(write_page(replace(made[0], episodes=bad, warnings=(EVIL,)), tmp_path / "evil.html"))
    assert page.locator("#episodes-table tbody button.open").first.inner_text() == EVIL
    assert page.locator("#player-title").inner_text() == EVIL
    page.wait_for_timeout(200)
    assert page.evaluate("window.evil") is None


def test_rows_of_a_large_report_are_drawn_on_demand(visit: Visit, tmp_path: Path) -> None:
    file = write_page(make_large_report(), tmp_path / "large.html")
    assert file.stat().st_size < 6_000_000
    page = visit(file)
    assert page.locator("#episodes-table tbody tr").count() == 50
    page.locator("#episodes-scroller").evaluate("box => { box.scrollTop = box.scrollHeight; }")
    until(page, "document.querySelectorAll('#episodes-table tbody tr').length > 50")


def test_the_page_of_a_filter_sorts_turns_pages_and_runs_no_text(visit: Visit, tmp_path: Path) -> None:
    images = np.zeros((4, 8, 8, 3), np.uint8)
    words = [f"{EVIL} 0.{i % 10}{i}" for i in range(70)]
    dataset = Dataset.from_episodes([Episode.from_array(images, text, f"e{i}") for i, text in enumerate(words)])
    outcome = decide(score_missing(dataset, Named(), tmp_path / "r"), [need_at_least("value", 0.5, lambda r: r.final)])
    write_filter_page(outcome, dataset, tmp_path / "filter.html", pictures=5)
    page = visit(tmp_path / "filter.html", **PHONE)
    cards = page.locator("#grid li")
    assert cards.count() == 60 and page.locator("#grid img").count() == 5
    assert cards.first.get_attribute("class") == "goes" and EVIL in cards.first.inner_text()
    page.select_option("#show", "stays")
    page.select_option("#sort", "-value")
    assert page.locator("#count").inner_text() == f"{len(outcome.kept)} of 70 episodes"
    values = [float(text) for text in page.locator("#grid .head span:first-child").all_inner_texts()]
    assert values == sorted(values, reverse=True) and min(values) >= 0.5
    page.select_option("#show", "")
    page.locator("#next").click()
    assert cards.count() == 10 and page.locator("#next").is_disabled()
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["viewport"]["width"]
    assert page.evaluate("window.evil") is None
