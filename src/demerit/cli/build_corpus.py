"""The build-corpus command: a recipe becomes a corpus with graded failures, splits and a composition table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from demerit.cli.options import StrictOption

if TYPE_CHECKING:
    from demerit.cli.bars import Bar
    from demerit.training.corpus import CorpusSummary, Plan, Recipe
    from demerit.training.corpus.composition import Composition
    from demerit.training.corpus.planning import Progress

NOT_ALL = 3
"""exit code when something is left that a model has to answer: the same command asks again"""


def build_corpus(
    recipe: Annotated[str, typer.Argument(help="A recipe (YAML), or the name of one that ships: example.")],
    dest: Annotated[
        Path | None, typer.Argument(help="The folder to make; run again to go on after an interruption.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be made and what it would cost; write and ask nothing.")
    ] = False,
    budget: Annotated[
        float | None,
        typer.Option(help="Dollars to spend on a chat model at most (needs prices in recipe or environment)."),
    ] = None,
    concurrency: Annotated[int | None, typer.Option(help="Requests to a chat model under way at once.")] = None,
    strict: StrictOption = False,
) -> None:
    """Compose a corpus like RoboReward's: sources, caps, negatives, counterfactuals, people's grades, splits.

    One dataset folder whose labels say who vouches for each, with a composition table (composition.md, .json) and a
    check that no task or video is in two splits. No video is copied. Counterfactuals and the clean-up of instructions
    need a chat model (in the recipe or DEMERIT_CHAT_...). Exit code 3: something waits for its answer; the same command
    asks again.

    [bold]Examples[/bold]

      demerit build-corpus example my_corpus
      demerit build-corpus recipe.yaml --dry-run
      demerit build-corpus recipe.yaml my_corpus --budget 20
    """
    from demerit.errors import BadInput  # noqa: PLC0415
    from demerit.training.corpus import build_corpus as build  # noqa: PLC0415
    from demerit.training.corpus import dry_run as plan_only  # noqa: PLC0415
    from demerit.training.corpus import load_recipe  # noqa: PLC0415

    found = load_recipe(recipe)
    chat = {"budget": budget, "concurrency": concurrency}
    if dry_run:
        with _stages() as shown:
            plan, costs = plan_only(found, chat=chat, strict=strict, progress=shown)
        _print_plan(plan, costs)
        return
    if dest is None:
        raise BadInput("DEST", "the folder to make (or --dry-run)", "none")
    with _stages() as shown:
        summary = build(found, dest, chat=chat, strict=strict, progress=shown)
    _print(summary, found, dest)
    if summary.missing:
        raise typer.Exit(NOT_ALL)


@contextmanager
def _stages() -> Iterator[Progress]:
    """Show a bar for each stage, one after the other."""
    from demerit.cli.bars import bar  # noqa: PLC0415

    with ExitStack() as all_of_them:
        now: dict[str, Any] = {"stage": None}

        def show(stage: str, done: int, expected: int | None, note: str) -> None:
            if stage != now["stage"]:
                all_of_them.close()
                now["stage"], now["bar"] = stage, all_of_them.enter_context(bar(stage, expected))
            shown: Bar = now["bar"]
            shown.update(done, note)

        yield show


def _print_plan(plan: Plan, costs: list[str]) -> None:
    from rich.table import Table  # noqa: PLC0415

    from demerit.cli.bars import out  # noqa: PLC0415

    splits = list(dict.fromkeys([*plan.recipe.splits.shares, *sorted({split for _, split in plan.counts})]))
    if plan.recipe.splits.by == "source":
        splits = sorted({split for _, split in plan.counts})
    out.print(f"[bold]{plan.recipe.name}[/bold]: the plan; nothing was written")
    table = Table("source", "role", "found", "usable", "tasks", "drawn", *(split or "no split" for split in splits))
    for one in plan.drawn:
        name = one.source.name
        role = one.source.role if one.source.role == "successes" else f"graded, {one.source.vouched_by}"
        counts = [str(plan.counts[name, split]) for split in splits]
        table.add_row(name, role, str(one.found), str(one.usable), str(one.tasks), str(len(one.ids)), *counts)
    out.print(table)
    for one in plan.drawn:
        for reason, count in one.left_out.most_common():
            out.print(f"  [yellow]{one.source.name}[/yellow]: {count} left out, {reason}")
        if one.over:
            out.print(f"  {one.source.name}: {one.over} not drawn, because there are enough (cap)")
    if plan.recipe.negatives is not None:
        out.print(
            f"  negatives: at most {plan.most_negatives} of {plan.successes} successes, {plan.recipe.negatives.mix}"
        )
    if plan.recipe.counterfactuals is not None:
        out.print(f"  counterfactuals: at most {plan.most_counterfactuals} of {plan.successes} successes")
    for line in costs:
        out.print(f"  {line}")
    _print_leaks(plan.leaks.leaks, plan.leaks.remarks)
    if plan.leaks.leaks and plan.recipe.leaks == "refuse":
        out.print("  [bold]this recipe would be refused[/bold] (leaks: report builds it and says so)")


def _print(summary: CorpusSummary, recipe: Recipe, dest: Path) -> None:
    from demerit.cli.bars import out  # noqa: PLC0415
    from demerit.cli.data import _print_problems  # noqa: PLC0415

    one = summary.composition
    if one is not None:
        out.print(
            f"[bold]{dest}[/bold]: {one.total.all} examples of {len(recipe.sources)} sources ({summary.added} new)"
        )
        _print_tables(one)
        for drawn in one.drawn:
            for reason, count in drawn.left_out.most_common():
                out.print(f"  [yellow]{drawn.source.name}[/yellow]: {count} left out, {reason}")
        _print_leaks(one.leaks.leaks, one.leaks.remarks)
        if one.due:
            out.print(f"  [bold]{one.due} of the test split are due for a person to confirm[/bold] (human_check)")
    for said in summary.missing:
        out.print(f"  [yellow]not done[/yellow]: {said}")
    for said in summary.notes:
        out.print(f"  {said}")
    _print_problems(summary.problems)
    if one is not None:
        out.print(f"  {dest / 'composition.md'} and composition.json say what it is made of")


def _print_tables(one: Composition) -> None:
    """Two narrow tables, where the page beside the corpus has a wide one."""
    from rich.table import Column, Table  # noqa: PLC0415

    from demerit.cli.bars import out  # noqa: PLC0415
    from demerit.training.corpus.composition import grade_name  # noqa: PLC0415
    from demerit.training.corpus.composition_table import grades_in, kinds_in  # noqa: PLC0415

    kinds, grades = kinds_in(one), grades_in(one)
    heads = ["source", *kinds, "all", *(split or "no split" for split in one.split_names)]
    made = Table(*(Column(head, overflow="fold") for head in heads))
    graded = Table("source", *(f"grade {grade_name(grade)}" if grade else "ungraded" for grade in grades))
    for name, counts in (*one.sources.items(), ("all", one.total)):
        if name == "all":
            made.add_section()
            graded.add_section()
        numbers = [*(counts.kinds[kind] for kind in kinds), counts.all, *(counts.splits[s] for s in one.split_names)]
        made.add_row(name, *map(str, numbers))
        graded.add_row(name, *(str(counts.grades[grade]) for grade in grades))
    out.print(made)
    out.print(graded)


def _print_leaks(leaks: tuple[str, ...], remarks: tuple[str, ...]) -> None:
    from demerit.cli.bars import out  # noqa: PLC0415

    for said in leaks:
        out.print(f"  [yellow]leak[/yellow]: {said}")
    if not leaks:
        out.print("  no task, video, recording or original is in two splits")
    for said in remarks:
        out.print(f"  {said}")
