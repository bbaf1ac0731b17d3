"""The counts as drawings: SVG that stands alone in a README and takes the page's colours inside the HTML card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup, escape

from demerit.use.release.composition import BINS, Composition

WIDTH, ROW, LABEL, THICK = 380, 42, 18, 16
"""as wide as a phone, so that letters stay letters there: a row is a label and, below it, its bar"""
NUMBER, LEGEND, KEY = 56, 28, 100
"""room for the number behind a bar, for the legend and for one of its words"""
MOST_ROWS = 16
LONGEST_LABEL = 40
BESIDE = 86
"""room for labels that are short enough to stand beside their bars"""
INKS = {
    "success": "var(--good, #006b4e)",
    "failure": "var(--bad, #a63c00)",
    "unknown": "var(--control, #7b7f86)",
    "kind": "var(--bad, #a63c00)",
}
TEXT = "fill: var(--ink, #57606a); font: 14px system-ui, sans-serif"
SOFT = "fill: var(--soft, #57606a); font: 13px system-ui, sans-serif"

Bars = Sequence[tuple[str, Mapping[str, int]]]


def outcome_chart(found: Composition) -> Markup:
    """Draw successes, failures and unknown ones: all, then by dataset and split or, of one split, by instruction."""
    rows: list[tuple[str, Mapping[str, int]]] = [("all", found.all.verdicts)]
    if len(found.parts) > 1:
        rows += [(f"{dataset}, {split}", group.verdicts) for (dataset, split), group in found.parts.items()]
    elif len(found.tasks) > 1:
        rows = sorted(found.tasks.items(), key=lambda item: -sum(item[1].values()))
    rest = rows[MOST_ROWS:]
    return _drawn(rows[:MOST_ROWS], "How the episodes ended", _legend(rows), len(rest))


def failure_chart(found: Composition) -> Markup:
    """Draw how many episodes show which kind of failure."""
    named = found.failures.most_common()
    rows = [(name, {"kind": count}) for name, count in named[:MOST_ROWS]]
    if found.unexplained:
        rows.append(("failed, no kind given", {"unknown": found.unexplained}))
    return _drawn(rows, "Kinds of failure, episodes that show them", [], max(0, len(named) - MOST_ROWS))


def progress_chart(found: Composition) -> Markup:
    """Draw how far the episodes got."""
    if not found.progress:
        return Markup("")
    rows = []
    for place in range(BINS):
        counts = {name: bins[place] for name, bins in found.progress.items()}
        rows.append((f"{place / BINS:.1f} to {(place + 1) / BINS:.1f}", counts))
    return _drawn(rows, "Final progress, 0 to 1", _legend(rows), 0, BESIDE)


def _legend(rows: Bars) -> list[str]:
    return [name for name in INKS if any(parts.get(name) for _, parts in rows)]


def _drawn(rows: Bars, title: str, legend: Sequence[str], left_out: int, first: int = 0) -> Markup:
    """Draw stacked horizontal bars on one scale, below their labels or, from `first` on, beside them."""
    top = LEGEND if legend else 0
    row = ROW - LABEL if first else ROW
    height = top + len(rows) * row + (22 if left_out else 0)
    longest = max([sum(parts.values()) for _, parts in rows] or [1]) or 1
    scale = (WIDTH - first - NUMBER) / longest
    words = "; ".join(
        f"{label}: " + ", ".join(f"{count}" if name == "kind" else f"{count} {name}" for name, count in parts.items())
        for label, parts in rows
    )
    out = [
        Markup(
            '<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="img" '
            'aria-label="{2}">'
        ).format(WIDTH, height, f"{title}. {words}")
    ]
    for place, name in enumerate(legend):
        out.append(
            Markup('<rect x="{}" y="4" width="12" height="12" rx="2" style="fill: {}"/>').format(
                place * KEY, Markup(INKS[name])
            )
        )
        out.append(_text(place * KEY + 18, 15, name, SOFT))
    for number, (label, parts) in enumerate(rows):
        y = top + number * row
        out.append(_text(0, y + LABEL - 5, _short(label), TEXT))
        out.append(_bar(label, parts, first, y if first else y + LABEL, scale))
    if left_out:
        out.append(_text(0, height - 6, f"and {left_out} more", SOFT))
    return Markup("").join([*out, Markup("</svg>")])


def _bar(label: str, parts: Mapping[str, int], first: int, y: int, scale: float) -> Markup:
    out = []
    x = float(first)
    for name, ink in INKS.items():
        count = parts.get(name, 0)
        if count:
            out.append(
                Markup(
                    '<rect x="{:.1f}" y="{}" width="{:.1f}" height="{}" style="fill: {}"><title>{}</title></rect>'
                ).format(x, y, max(1.0, count * scale), THICK, Markup(ink), f"{label}: {count} {name}")
            )
            x += max(1.0, count * scale)
    out.append(_text(x + 6 if out else x, y + THICK - 3, str(sum(parts.values())), SOFT))
    return Markup("").join(out)


def _short(label: str) -> str:
    return label if len(label) <= LONGEST_LABEL else label[: LONGEST_LABEL - 1] + "…"


def _text(x: float, y: float, words: str, style: str) -> Markup:
    return Markup('<text x="{:g}" y="{:g}" style="{}">{}</text>').format(x, y, style, escape(words))
