"""The counts as drawings: SVG that stands alone in a README and takes the page's colours inside the HTML card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup, escape

from demerit.releasing.composition import BINS, Composition

WIDTH, LABEL, ROW, THICK = 680, 240, 28, 18
NUMBER = 56
"""room for the number behind a bar"""
MOST_ROWS = 16
LONGEST_LABEL = 27
INKS = {
    "success": "var(--good, #006b4e)",
    "failure": "var(--bad, #a63c00)",
    "unknown": "var(--control, #7b7f86)",
    "kind": "var(--bad, #a63c00)",
}
TEXT = "fill: var(--ink, #57606a); font: 13px system-ui, sans-serif"
SOFT = "fill: var(--soft, #57606a); font: 12px system-ui, sans-serif"

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
    return _drawn(rows, "Final progress, 0 to 1", _legend(rows), 0)


def _legend(rows: Bars) -> list[str]:
    return [name for name in INKS if any(parts.get(name) for _, parts in rows)]


def _drawn(rows: Bars, title: str, legend: Sequence[str], left_out: int) -> Markup:
    """Draw stacked horizontal bars on one scale."""
    top = 26 if legend else 4
    height = top + len(rows) * ROW + (20 if left_out else 4)
    longest = max([sum(parts.values()) for _, parts in rows] or [1]) or 1
    scale = (WIDTH - LABEL - NUMBER) / longest
    words = "; ".join(
        f"{label}: " + ", ".join(f"{count}" if name == "kind" else f"{count} {name}" for name, count in parts.items())
        for label, parts in rows
    )
    out = [
        Markup('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
            WIDTH, height, f"{title}. {words}"
        )
    ]
    x = LABEL
    for name in legend:
        out.append(
            Markup('<rect x="{}" y="4" width="12" height="12" rx="2" style="fill: {}"/>').format(x, Markup(INKS[name]))
        )
        out.append(_text(x + 18, 15, name, SOFT))
        x += 100
    for number, (label, parts) in enumerate(rows):
        out.append(_row(label, parts, top + number * ROW, scale))
    if left_out:
        out.append(_text(LABEL, height - 6, f"and {left_out} more", SOFT))
    return Markup("").join([*out, Markup("</svg>")])


def _row(label: str, parts: Mapping[str, int], y: int, scale: float) -> Markup:
    short = label if len(label) <= LONGEST_LABEL else label[: LONGEST_LABEL - 1] + "…"
    out = [_text(LABEL - 10, y + THICK - 4, short, TEXT, "end")]
    x = float(LABEL)
    for name, ink in INKS.items():
        count = parts.get(name, 0)
        if count:
            out.append(
                Markup(
                    '<rect x="{:.1f}" y="{}" width="{:.1f}" height="{}" style="fill: {}"><title>{}</title></rect>'
                ).format(x, y, max(1.0, count * scale), THICK, Markup(ink), f"{label}: {count} {name}")
            )
            x += max(1.0, count * scale)
    out.append(_text(x + 6, y + THICK - 4, str(sum(parts.values())), SOFT))
    return Markup("").join(out)


def _text(x: float, y: float, words: str, style: str, anchor: str = "start") -> Markup:
    return Markup('<text x="{:g}" y="{:g}" text-anchor="{}" style="{}">{}</text>').format(
        x, y, anchor, style, escape(words)
    )
