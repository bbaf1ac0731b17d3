"""The annotation app for tests: a small dataset folder, a running server, browsers that are logged in."""

import re
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from demerit.data.episode import Episode, Outcome
from demerit.data.store import Store
from demerit.data.video import write_video
from demerit.people.annotate.app import AnnotateApp
from demerit.people.database import Database
from demerit.web.server import WebServer

PASSWORD = "correct horse"


def make_folder(folder: Path, count: int = 4, frames: int = 8, instruction: str = "lift the cup") -> Store:
    """Write a dataset folder: episodes e0, e1 ... whose labels by a model are to be checked."""
    store = Store.create(folder / "set", "set")
    with store.writer() as writer:
        for i in range(count):
            write_video(folder / f"{i}.mp4", np.full((frames, 48, 64, 3), 255 * i // count, np.uint8))
            video = Episode.from_video(folder / f"{i}.mp4", instruction, f"e{i}")
            due = replace(video.origin, tags={"human_check": "due", "policy": "p"})
            proposed = Outcome("model", success=i % 2 == 0, grade=2, by="m", note="the cup stays on the table")
            writer.add(replace(video, outcomes=(proposed,), origin=due))
    return Store(folder / "set")


class Browser:
    """Somebody's browser: keeps cookies, sends the CSRF token of the page it saw last."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, headers={"accept": "text/html"}, timeout=30)
        self.csrf = ""

    def get(self, path: str) -> httpx.Response:
        """Open a page; follow redirects."""
        answer = self.http.get(path, follow_redirects=True)
        if found := re.search('<meta name="csrf" content="([^"]+)">', answer.text):
            self.csrf = found[1]
        return answer

    def send(self, method: str, path: str, **sent: Any) -> httpx.Response:
        """Send JSON as a page's script does."""
        return self.http.request(method, path, json=sent, headers={"x-csrf": self.csrf, "accept": "application/json"})

    def post(self, path: str, **form: str) -> httpx.Response:
        """Send a form."""
        return self.http.post(path, data={"csrf": self.csrf, **form}, follow_redirects=True)

    def answer(self, item: int, **body: Any) -> httpx.Response:
        """Answer an item."""
        return self.send("POST", f"/items/{item}/answer", id=str(uuid.uuid4()), body=body, seconds=2.5)

    def next_item(self, kind: str) -> int | None:
        """Go to the next item of a kind; return its number."""
        found = re.search(r"/items/(\d+)$", str(self.get(f"/work/{kind}").url))
        return int(found[1]) if found else None


@dataclass
class ServedApp:
    """The app at an address, and the browsers of those who use it."""

    app: AnnotateApp
    url: str
    browsers: ExitStack

    def visit(self) -> Browser:
        """Return the browser of a stranger."""
        browser = Browser(self.url)
        self.browsers.enter_context(browser.http)
        return browser

    def enter_owner(self, name: str = "me") -> Browser:
        """Return the browser of an owner."""
        browser = self.visit()
        browser.get("/enter/" + self.app.accounts.make_link("owner", self.app.accounts.ensure_owner(name)))
        return browser

    def join_rater(self, name: str) -> Browser:
        """Return the browser of somebody who was invited."""
        browser, link = self.visit(), self.app.accounts.make_link("rater")
        browser.post(f"/join/{link}", name=name, password=PASSWORD)
        browser.get("/")
        return browser


@contextmanager
def run_app(database: Database, cache: Path) -> Iterator[ServedApp]:
    """Serve the app."""
    app = AnnotateApp(database, cache)
    with WebServer(app.guard.app) as server, ExitStack() as browsers:
        app.start()
        try:
            yield ServedApp(app, server.url, browsers)
        finally:
            app.stop()
