"""The leaderboard: a static page of measured reports and, apart from them, tables that others have published."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from demerit.data.episode import count_episodes, safe_name
from demerit.data.files import write_atomic
from demerit.errors import StoreError
from demerit.evaluate.reports.headline import headline, label, lead
from demerit.evaluate.reports.page import model_styles
from demerit.evaluate.reports.published import published_tables
from demerit.evaluate.reports.report import Report
from demerit.web.pages import render


def build_leaderboard(reports: Sequence[Report], out: Path) -> Path:
    """Write the leaderboard as a static site, to be served from anywhere or opened as a file.

    Args:
        reports: the measured reports, in display order.
        out: the folder of the site; it is created if needed.

    Returns:
        The page, `index.html` in that folder.
    """
    out = Path(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(out, f"the folder cannot be made ({error.strerror or error})") from error
    boards = [_board(report, i) for i, report in enumerate(reports)]
    page = out / "index.html"
    html = render("leaderboard.html.j2", boards=boards, tables=published_tables(), label=label)
    write_atomic(page, html.encode())
    return page


def _board(report: Report, number: int) -> dict[str, Any]:
    data = f" of {report.about.data}" if report.about.data else ""
    versions = ", ".join(f"{name} {value}" for name, value in report.environment.items() if value)
    source = f"measured by demerit on {count_episodes(len(report.episodes))}{data}" + (
        f" ({versions})" if versions else ""
    )
    # Two reports of one benchmark may rest on different data, so each has its own table.
    anchor = f"measured-{number}-{safe_name(report.about.name)}"
    parts = {"lead": lead(report), "table": headline(report), "styles": model_styles(report)}
    return {"report": report, "anchor": anchor, "source": source, **parts}
