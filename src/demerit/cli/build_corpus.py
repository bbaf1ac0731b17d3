"""The build-corpus command: a config becomes a corpus with graded failures, splits and a composition table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Column, Table

from demerit.cli.bars import out, print_grades, print_problems, print_table, stage_bars
from demerit.cli.bundles import BudgetOption, ConcurrencyOption, DryRunOption
from demerit.data.splits import LeakReport
from demerit.errors import BadInput
from demerit.training.corpus import CorpusPlan, CorpusSummary, estimate_cost, load_config, make_plan
from demerit.training.corpus import build_corpus as run_build
from demerit.training.corpus.config import DrawnSource, shipped_configs

UNFINISHED = 3
"""exit code when some originals got no answer: the same command asks again"""


def build_corpus(
    recipe: Annotated[str, typer.Argument(help=f"A config (YAML), or one that ships: {', '.join(shipped_configs())}.")],
    dest: Annotated[
        Path | None, typer.Argument(help="The folder to make. Run the same command again to resume.")
    ] = None,
    root: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the recipe's folders are (default: beside the recipe).")
    ] = None,
    dry_run: DryRunOption = False,
    budget: BudgetOption = None,
    concurrency: ConcurrencyOption = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first problem instead of counting it.")] = False,
) -> None:
    """Build a training corpus from many datasets.

    The result is one dataset folder whose labels name their source, with a composition table (composition.md, .json).
    No task or video is in two splits, and no video is copied. Counterfactuals need a chat model (`chat` in the config,
    or DEMERIT_CHAT_...). Exit code 3: some originals got no answer; run the command again.

    [bold]Examples[/bold]

      demerit build-corpus example my_corpus
      demerit build-corpus recipe.yaml --dry-run
      demerit build-corpus roboreward my_corpus --root ~/data
      demerit build-corpus recipe.yaml my_corpus --budget 20
      demerit train robometer -o mine --data corpus=my_corpus
    """
    config = load_config(recipe, root)
    chat = {"budget": budget, "concurrency": concurrency}
    if dry_run:
        with stage_bars() as on_progress:
            plan = make_plan(config, strict, on_progress)
        _print_plan(plan, estimate_cost(plan, chat, strict))
        return
    if dest is None:
        raise BadInput("DEST", "the folder to make (or --dry-run)", "none")
    with stage_bars() as on_progress:
        summary = run_build(config, dest, chat=chat, strict=strict, on_progress=on_progress)
    _print_summary(summary, dest)
    if summary.missing:
        raise typer.Exit(UNFINISHED)


def _print_plan(plan: CorpusPlan, cost: str) -> None:
    config, splits = plan.config, sorted({split for _, split in plan.counts})
    if config.splits.by == "task":
        splits = list(config.splits.shares)
    out.print(f"[bold]{escape(config.name)}[/bold]: the plan; nothing was written")
    table = Table("source", "role", "found", "usable", "tasks", "drawn", *(split or "no split" for split in splits))
    for draw in plan.drawn:
        role = f"graded, {draw.source.vouched_by}" if draw.source.role == "graded" else draw.source.role
        numbers = [draw.found, draw.usable, draw.tasks, len(draw.ids)]
        numbers += [plan.counts[draw.source.name, split] for split in splits]
        table.add_row(escape(draw.source.name), role, *map(str, numbers))
    print_table(table)
    _print_skipped(plan.drawn)
    if config.negatives is not None:
        most = plan.successes * config.negatives.per_episode
        out.print(f"  negatives: at most {most} of {plan.successes} successes, {config.negatives.mix}")
    if config.counterfactuals is not None:
        most = plan.successes * len((*config.counterfactuals.grades, *config.counterfactuals.clips))
        out.print(f"  counterfactuals: at most {most} of {plan.successes} successes")
    out.print(f"  {cost}")
    _print_leaks(plan.leaks)
    if plan.leaks.leaks and config.leaks == "refuse":
        out.print("  [bold]this recipe would be refused[/bold] (`leaks: report` builds it anyway)")


def _print_summary(summary: CorpusSummary, dest: Path) -> None:
    counts = summary.counts
    place, sources = escape(str(dest)), len(counts.drawn)
    out.print(f"[bold]{place}[/bold]: {counts.total} examples of {sources} sources ({summary.added} new)")
    header, rows = counts.table()
    table = Table(*(Column(title, overflow="fold") for title in header))
    for row in rows:
        table.add_row(*map(escape, row))
    print_table(table)
    print_grades("episodes", counts.grades())
    _print_skipped(counts.drawn)
    _print_leaks(counts.leaks)
    if counts.due:
        out.print(f"  [bold]{counts.due} examples need a person's check[/bold] (tag human_check)")
    for sentence in summary.missing:
        out.print(f"  [yellow]not done[/yellow]: {escape(sentence)}")
    for sentence in summary.notes:
        out.print(escape(f"  {sentence}"))
    print_problems(summary.problems)
    out.print(escape(f"  composition: {dest / 'composition.md'}"))


def _print_skipped(drawn: Sequence[DrawnSource]) -> None:
    for draw in drawn:
        for reason, count in draw.skipped.most_common():
            out.print(f"  [yellow]{escape(draw.source.name)}[/yellow]: {count} skipped, {escape(reason)}")
        if draw.over:
            out.print(escape(f"  {draw.source.name}: {draw.over} not drawn (cap)"))


def _print_leaks(leaks: LeakReport) -> None:
    for sentence in leaks.leaks:
        out.print(f"  [yellow]leak[/yellow]: {escape(sentence)}")
    if not leaks.leaks:
        out.print("  no task, video, recording or original is in two splits")
    for sentence in leaks.remarks:
        out.print(escape(f"  {sentence}"))
