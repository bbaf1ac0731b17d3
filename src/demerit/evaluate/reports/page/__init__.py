"""The report as one HTML file.

writing.py       write_page: everything put together and inlined
words.py         names, numbers and the headline in words
tables.py        the headline table, the chart by category, comparisons, what is unscored
reliability.py   reliability diagrams
picks.py         the episodes worth looking at: failures rewarded, successes doubted
clips.py         small videos of them
data.py          what the scripts need, as JSON that is safe inside a page
assets/          templates, style sheet and scripts
"""

from demerit.evaluate.reports.page.writing import (
    Look,
    asset,
    asset_script,
    environment,
    looks,
    render_page,
    script_hash,
    shared,
    write_page,
)

__all__ = [
    "Look",
    "asset",
    "asset_script",
    "environment",
    "looks",
    "render_page",
    "script_hash",
    "shared",
    "write_page",
]
