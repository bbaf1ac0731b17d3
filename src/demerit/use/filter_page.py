"""The page of a filter: a grid of pictures of what goes and what stays, with value, label and reason. One HTML file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from markupsafe import Markup

from demerit.data.dataset import Dataset
from demerit.data.episode import Episode
from demerit.data.files import make_folder, write_atomic
from demerit.errors import BadInput, DemeritError
from demerit.evaluate.reports.page import render
from demerit.evaluate.reports.player import make_film, script_json
from demerit.use.filter import FilterDecision, FilterOutcome

MARK = b'<meta name="generator" content="demerit filter">'
PICTURE_HEIGHT = 84


def check_page(path: str | Path) -> None:
    """Raise if the page cannot be written, or would overwrite another file."""
    path = Path(path)
    make_folder(path.parent)
    if path.exists() and (path.is_dir() or MARK not in path.read_bytes()):
        raise BadInput(str(path), "a new file, or a page of `demerit filter`", "something else")


def write_filter_page(
    outcome: FilterOutcome,
    dataset: Dataset,
    path: str | Path,
    model: str = "",
    pictures: int = 600,
    on_picture: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Write the page atomically.

    Args:
        outcome: the decisions.
        dataset: their episodes.
        path: the file.
        model: the name of the model whose final values are shown.
        pictures: most episodes with a picture; dropped ones come first.
        on_picture: called after each picture with their number and the total.
    """
    check_page(path)
    dropped_first = sorted(outcome.decisions, key=lambda one: one.kept)
    wanted = {one.score.id for one in dropped_first[:pictures]}
    films: dict[str, str] = {}
    for episode in dataset:
        if episode.id in wanted:
            films[episode.id] = _draw(episode)
            on_picture(len(films), len(wanted))
    rows = [_row(one, films.get(one.score.id, "")) for one in outcome.decisions]
    facts = outcome.as_dict()
    text = render(
        "filter.html.j2",
        scripts=("filter.js",),
        rows=Markup(script_json(rows)),
        name=dataset.name,
        address=dataset.address,
        model=model,
        pictures=len(wanted),
        **{name: facts[name] for name in ("episodes", "kept", "dropped", "dropped_by", "undecided", "lerobot")},
    )
    write_atomic(path, text.encode())


def _draw(episode: Episode) -> str:
    try:
        return make_film(episode.main, 2, PICTURE_HEIGHT)
    except DemeritError:
        return ""  # the grid says that there is no picture


def _row(one: FilterDecision, film: str) -> dict[str, Any]:
    facts = one.as_dict()
    value = None if facts["final"] is None else round(facts["final"], 4)
    reason = "; ".join([*facts["reasons"], *dict.fromkeys(f"not judged: {why}" for why in one.undecided.values())])
    shown = {name: facts[name] for name in ("episode", "instruction", "label", "kept")}
    return {**shown, "value": value, "reason": reason, "film": film}
