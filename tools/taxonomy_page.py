"""Render the built-in failure kinds as docs/taxonomy.md.

python tools/taxonomy_page.py > docs/taxonomy.md
"""

from __future__ import annotations

from demerit.data.taxonomy import OWN_FILE, FailureKind, load_kinds


def taxonomy_page() -> str:
    """Render the built-in kinds as the page `docs/taxonomy.md`."""
    lines = [
        "# Kinds of failure",
        "",
        "Generated from `src/demerit/assets/taxonomy.toml` (`python tools/taxonomy_page.py > docs/taxonomy.md`).",
        "",
        "An event has one of these kinds and the frames in which it is visible. The grades are the usual ones of an",
        "episode with this failure, from 1 (nothing done) to 5 (done as asked). They are a guide for people who label;",
        "nothing computes with them.",
        "",
        "To add your own kinds, set `DEMERIT_TAXONOMY` to a file of the same form, or call",
        "`demerit.data.taxonomy.register_kind`.",
        "",
        "The kinds that the simulator can produce, with its measurements; frames that show the failure have a border",
        "(`python tools/make_failure_pictures.py STORE`).",
        "",
        "![Eleven kinds of failure in simulation, a row each](images/failures.png)",
        "",
        "| kind | definition | grades |",
        "|---|---|---|",
    ]
    own = load_kinds(OWN_FILE)
    lines += [
        f"| [{known.name}](#{known.name.replace(' ', '-')}) | {known.definition} | {_range(known)} |" for known in own
    ]
    for known in own:
        lines += ["", f"## {known.name}", "", known.definition, ""]
        lines += [f"- {example}" for example in known.examples]
        lines += ["", f"Grade {_range(known)}. {known.guidance}"]
    return "\n".join(lines) + "\n"


def _range(known: FailureKind) -> str:
    low, high = known.grades
    return str(low) if low == high else f"{low} to {high}"


if __name__ == "__main__":
    print(taxonomy_page(), end="")
