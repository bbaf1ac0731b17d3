"""A site's trial in a real browser: from the invitation to the ranking, over cut connections; axe."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from demerit.data.formats import open_dataset
from demerit.data.video import write_video
from demerit.people.arena.app import ArenaApp
from demerit.people.arena.results import export_roboarena
from demerit.people.database import Database
from demerit.web.server import WebServer
from fakes.people import PASSWORD

pytestmark = pytest.mark.slow

PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1280, "height": 800}
ATTACK = "<img src=x onerror='window.ran = 1'>\"'</script><script>window.ran = 1</script>{{7*7}}'; DROP TABLE trials;--"
Visit = Callable[..., Any]
SEEDS = count()


@pytest.fixture
def arena(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ArenaApp, str]]:
    monkeypatch.setattr("demerit.people.arena.app.LARGEST_PIECE", 5_000)
    monkeypatch.setattr("demerit.people.arena.trials.FASTEST", 0.0)
    database = Database(f"sqlite:///{tmp_path}/arena.db")
    app = ArenaApp(database, tmp_path / "uploads")
    app.trials.set_policies({ATTACK[:100]: "maple", "beta": "tulip", "gamma": "onion"})
    with WebServer(app.guard.app) as server:
        yield app, server.url
    database.close()


@pytest.fixture
def visit(browser: Any, arena: tuple[ArenaApp, str]) -> Iterator[Visit]:
    problems: list[str] = []
    contexts = []

    def visit(path: str, viewport: dict[str, int] = DESKTOP) -> Any:
        context = browser.new_context(viewport=viewport)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(arena[1] + path)
        return page

    yield visit
    for context in contexts:
        problems += [page.url for page in context.pages if page.evaluate("window.ran")]
        context.close()
    assert not problems


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A photo, and where two videos are to be."""
    Image.new("RGB", (320, 240), "tan").save(tmp_path / "scene.jpg")
    return {"photo": f"{tmp_path}/scene.jpg", **{name: f"{tmp_path}/{name}.mp4" for name in ("first", "second")}}


def write_noise(path: str) -> None:
    """Write another video each time."""
    noise = np.random.default_rng(next(SEEDS)).integers(0, 255, (12, 64, 96, 3), dtype=np.uint8)
    write_video(path, noise)


def enter_owner(app: ArenaApp, visit: Visit) -> Any:
    return visit("/enter/" + app.accounts.make_link("owner", app.accounts.ensure_owner("me")))


def join(owner: Any, url: str, visit: Visit, name: str, viewport: dict[str, int] = DESKTOP) -> Any:
    """Invite a site, and come in by the link."""
    owner.goto(f"{url}/check")
    owner.click("text=Invite a site")
    page = visit(owner.inner_text("section code").removeprefix(url), viewport)
    page.fill("input[name=name]", name)
    page.fill("input[name=password]", PASSWORD)
    page.click("main button")
    page.click("text=Evaluate a pair")
    return page


def send_file(page: Any, part: str, path: str) -> None:
    page.wait_for_selector("body[data-ready]")
    box = f".upload[data-part={part}][data-camera=left]"
    page.set_input_files(f"{box} input", path)
    page.wait_for_selector(f"{box} .said:text-is('arrived')")


def go_on(page: Any, button: str, step: str) -> None:
    page.click(button)
    page.wait_for_selector(f"#trial[data-step={step}]")


def walk(page: Any, files: dict[str, str], verdict: str, text: str, look: Callable[[Any], None]) -> None:
    """Go through a trial with new videos of several pieces each; look at the page of every step."""
    for part in ("first", "second"):
        write_noise(files[part])
    look(page)
    page.fill("#instruction", text)
    send_file(page, "photo", files["photo"])
    for box in page.query_selector_all("input[name=safety]"):
        box.check()
    go_on(page, "#describe", "first")
    for part, button, step in (("first", "[data-reload]", "reset"), ("second", "[data-reload]", "judge")):
        look(page)
        send_file(page, part, files[part])
        go_on(page, button, step)
        look(page)
        if step == "reset":
            go_on(page, "#reset", "second")
    page.check(f"input[name=verdict][value={verdict}]")
    page.fill("textarea[name=feedback]", text)
    page.click("text=End the trial")  # an untouched form is not sent
    assert page.locator("#judgement:invalid").count() == 1 and page.locator("video").count() == 2
    page.check("input[name=first_success][value=true]")
    page.check("input[name=second_success][value=false]")
    page.fill("input[name=first_progress]", "100")
    page.fill("input[name=second_progress]", "80")
    go_on(page, "text=End the trial", "done")
    look(page)


def cut(pieces: list[int], route: Any) -> None:
    """Count pieces of files; break the connection under the third."""
    pieces[0] += 1
    if pieces[0] == 3:
        route.abort()
    else:
        route.continue_()


def test_two_sites_rank_three_hidden_policies_over_cut_connections(
    arena: tuple[ArenaApp, str], visit: Visit, files: dict[str, str], tmp_path: Path
) -> None:
    app, url = arena
    owner = enter_owner(app, visit)
    sites = [join(owner, url, visit, name) for name in ("North", "South")]
    for page in sites:
        pieces = [0]

        page.route(re.compile("/uploads/.+/"), partial(cut, pieces))
        for verdict in ("first", "second", "tie"):
            walk(page, files, verdict, ATTACK, lambda page: None)
            page.click("text=Evaluate another pair")
        assert pieces[0] > 9
    owner.goto(f"{url}/check")
    assert owner.locator("video").count() == 12 and "the scores say the opposite" not in owner.inner_text("main")
    owner.fill("input[name=reason] >> nth=0", ATTACK)
    owner.click("button:text-is('Save') >> nth=0")
    owner.goto(url)
    assert owner.locator("tbody tr").count() == 0 and "6 trials at 2 sites so far" in owner.inner_text("main")
    owner.goto(f"{url}/check")
    owner.click("text=Close the evaluation")
    owner.goto(url)
    assert owner.locator("tbody tr").count() == 3 and "5 blind comparisons at 2 sites" in owner.inner_text("main")
    assert export_roboarena(app.trials, tmp_path / "dump") == 5
    dataset = open_dataset(f"roboarena:{tmp_path}/dump")
    assert len(list(dataset)) == 10 and {episode.instruction for episode in dataset} == {ATTACK}


def test_an_upload_waits_for_the_network_and_the_page_waits_for_it(
    arena: tuple[ArenaApp, str], visit: Visit, files: dict[str, str]
) -> None:
    page = join(enter_owner(arena[0], visit), arena[1], visit, "North")
    write_noise(files["first"])
    page.fill("#instruction", "lift the cup")
    send_file(page, "photo", files["photo"])
    for box in page.query_selector_all("input[name=safety]"):
        box.check()
    go_on(page, "#describe", "first")
    page.wait_for_selector("body[data-ready]")
    page.click("[data-reload]")
    page.wait_for_selector("#status:has-text('main camera')")
    page.context.set_offline(True)
    page.set_input_files(".upload[data-camera=left] input", files["first"])
    page.wait_for_selector(".said:has-text('no connection')")
    page.click("[data-reload]")  # does not cut the upload
    page.wait_for_selector("#status:has-text('Wait')")
    page.context.set_offline(False)
    page.wait_for_selector(".said:text-is('arrived')")
    go_on(page, "[data-reload]", "reset")


def test_what_was_typed_survives_a_reload_and_the_back_button_shows_the_step_of_now(
    arena: tuple[ArenaApp, str], visit: Visit, files: dict[str, str]
) -> None:
    page = join(enter_owner(arena[0], visit), arena[1], visit, "North")
    walk(page, files, "first", "lift the cup", lambda page: None)
    page.click("text=Evaluate another pair")
    page.wait_for_selector("#trial[data-step=describe]")
    page.go_back()
    page.wait_for_selector("#trial[data-step=done]")
    page.goto(f"{arena[1]}/trial")
    page.fill("#instruction", "lift the other cup")
    page.reload()
    assert page.input_value("#instruction") == "lift the other cup"


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_every_step_fits_the_screen_and_axe_finds_nothing_serious(
    arena: tuple[ArenaApp, str], visit: Visit, files: dict[str, str], viewport: dict[str, int]
) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="no axe: pip install axe-playwright-python"
    )

    def look(page: Any) -> None:
        page.wait_for_load_state()
        found = axe.Axe().run(page).response["violations"]
        serious = [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")]
        assert not serious, page.url
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"], page.url

    owner = enter_owner(arena[0], visit)
    owner.set_viewport_size(viewport)
    page = join(owner, arena[1], visit, "North", viewport)
    walk(page, files, "first", 60 * "word " + 200 * "x", look)
    for shown, path in ((page, "/"), (owner, "/"), (owner, "/check"), (visit("/", viewport), "/login")):
        shown.goto(arena[1] + path)
        look(shown)
