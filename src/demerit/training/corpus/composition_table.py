"""The composition of a corpus as a page: a row a source, who vouches for what, what was left out, the leak check."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from demerit.training.corpus.composition import GRADES, HUMAN_CHECK, KINDS, MADE, Composition, Counts, grade_name
from demerit.training.corpus.gathering import Drawn


def table(composition: Composition) -> tuple[list[str], list[list[str]]]:
    """Lay out the main table: its heads, and a row a source with the sum as the last."""
    kinds = kinds_in(composition)
    grades = grades_in(composition)
    heads = [
        "source",
        "embodiment",
        "tasks",
        *kinds,
        "all",
        *(split or "no split" for split in composition.split_names),
    ]
    heads += [f"grade {grade_name(grade)}" if grade else "ungraded" for grade in grades]
    rows = []
    for name, counts in (*composition.sources.items(), ("all", composition.total)):
        who = ", ".join(sorted(counts.embodiments)) if name != "all" else ""
        numbers = [len(counts.tasks), *(counts.kinds[kind] for kind in kinds), counts.all]
        numbers += [counts.splits[split] for split in composition.split_names]
        numbers += [counts.grades[grade] for grade in grades]
        rows.append([name, who, *(f"{number:,}" for number in numbers)])
    return heads, rows


def kinds_in(composition: Composition) -> list[str]:
    """Kinds of examples that there are."""
    return [kind for kind in (*KINDS, *MADE) if composition.total.kinds[kind]]


def grades_in(composition: Composition) -> list[int | None]:
    """The five grades, and None where something is ungraded."""
    return [grade for grade in GRADES if grade is not None or composition.total.grades[None]]


def markdown(composition: Composition) -> str:
    """Write the page that lies beside the corpus."""
    one = composition
    heads, rows = table(one)
    lines = [f"# {one.name}: what it is made of", ""]
    lines += [*_missing(one.missing), f"{one.total.all:,} examples, of which {_split_words(one)}.", ""]
    lines += [*_rows(heads, rows), "", "## Who vouches for the grades", ""]
    heads = ["vouched for by", *(split or "no split" for split in one.split_names)]
    vouchers = one.facts()["vouched_by"]
    lines += _rows(heads, [[who, *(f"{count:,}" for count in counts.values())] for who, counts in vouchers.items()])
    if one.due:
        lines += ["", f"{one.due:,} of the test split are due for a person to confirm (tag `{HUMAN_CHECK}`)."]
    lines += ["", "## Where it comes from", ""]
    heads = ["source", "role", "licence", "found", "usable", "drawn", "left out", "about"]
    lines += _rows(heads, [_origin_row(one, drawn) for drawn in one.drawn])
    if one.not_made:
        lines += ["", "## Not made", ""]
        told = sorted(one.not_made.items(), key=lambda item: (-item[1], item[0]))
        lines += _rows(["what", "why", "times"], [[name, why, f"{count:,}"] for (name, why), count in told])
    lines += ["", "## Leak check", ""]
    lines += [f"- **{said}**" for said in one.leaks.leaks] or [
        "- No task, video, recording or original is in two splits."
    ]
    lines += [f"- {said}" for said in one.leaks.remarks]
    return "\n".join(lines) + "\n"


def _missing(missing: Sequence[str]) -> list[str]:
    return [line for said in missing for line in (f"**Not done yet:** {said}", "")]


def _split_words(one: Composition) -> str:
    words = [
        f"{one.total.splits[split]:,} {split or 'in no split'} ({len(one.split_tasks.get(split, ()))} tasks)"
        for split in one.split_names
    ]
    return ", ".join(words)


def _origin_row(one: Composition, drawn: Drawn) -> list[str]:
    counts = one.sources.get(drawn.source.name, Counts())
    facts = one.facts()["sources"][drawn.source.name]
    reasons = [f"{count:,} {reason}" for reason, count in facts["left_out"].items()]
    reasons += [f"{drawn.over:,} over the cap"] if drawn.over else []
    role = drawn.source.role if drawn.source.role == "successes" else f"graded by {drawn.source.vouched_by}"
    licences = ", ".join(name or "not said" for name in sorted(counts.licences))
    numbers = [f"{number:,}" for number in (drawn.found, drawn.usable, len(drawn.ids))]
    return [drawn.source.name, role, licences, *numbers, "; ".join(reasons), drawn.source.about]


def _rows(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [heads, ["---"] * len(heads), *rows]
    return ["| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in line) + " |" for line in lines]
