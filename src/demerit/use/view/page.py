"""The page of `demerit view`: a template, and the routes that it asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from markupsafe import Markup

from demerit.data.dataset import Dataset
from demerit.evaluate.reports.page import render
from demerit.use.view.index import ViewIndex
from demerit.use.view.media import EpisodeMedia
from demerit.use.view.server import N, Reply, Route, json_reply, media_routes


class EpisodeViewer:
    """A dataset to look at. Every time the page is loaded, the dataset and the stored rewards are opened again."""

    def __init__(self, open_dataset: Callable[[], Dataset], cache: Path, rewards: Sequence[Path] = ()) -> None:
        """`cache` is for pictures and clips; `rewards` are folders beside those next to the dataset."""
        self._open, self._rewards, self.media = open_dataset, rewards, EpisodeMedia(cache)
        self.index = ViewIndex(open_dataset(), rewards)

    def routes(self) -> dict[str, Route]:
        """Return the routes for a `LocalServer`."""
        return {
            "/": lambda: Reply(render_view(self.index.dataset.name), "text/html"),
            "/index.json": self._list,
            "/stale.json": lambda: json_reply(self.index.find_stale()),
            f"/episodes/{N}[.]json": lambda place: json_reply(self.index.episode_json(place)),
            **media_routes(self.media, lambda place: self.index.dataset[place]),
        }

    def _list(self) -> Reply:
        before, self.index = self.index, ViewIndex(self._open(), self._rewards)
        before.is_replaced = True
        return json_reply(self.index.to_json())


def render_view(name: str) -> str:
    """Return the HTML of the page, without any episode."""
    nothing = {"data": Markup('{"models":[],"episodes":[]}'), "curves": Markup("{}"), "videos": {}}
    return render("view.html.j2", scripts=("tables.js", "player.js", "view.js"), name=name, **nothing)
