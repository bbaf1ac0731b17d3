"""The relabel command: counterfactual commands for successes, written and checked by a chat model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from demerit.cli.options import CameraOption, DatasetArgument, SourceOptions, StrictOption, reader_options

if TYPE_CHECKING:
    from demerit.data.dataset import Dataset
    from demerit.models.gvl import GVLConfig
    from demerit.negatives.relabel import RelabelSettings, RelabelSummary

MOST_NAMED = 20
NOT_ALL = 3
"""exit code when originals are left that got no answer: the same command asks for them again"""


def relabel(
    source: DatasetArgument,
    dest: Annotated[Path, typer.Argument(help="The folder to make; run again to go on after an interruption.")],
    grades: Annotated[str, typer.Option(help="Grades to write commands for; '' for none.")] = "1,2,3,4",
    clips: Annotated[str, typer.Option(help="Grades of the clip ladder; '' for none.")] = "2,3,4",
    rounds: Annotated[int, typer.Option(help="How often a command is written at most, until one is accepted.")] = 3,
    per_dataset: Annotated[int, typer.Option(help="Episodes used of one dataset at most; 0 = all.")] = 1200,
    keep_originals: Annotated[
        bool, typer.Option("--keep-originals", help="Write the originals too, with repaired words: grade 5.")
    ] = False,
    clean_up: Annotated[bool, typer.Option(help="Repair the spelling of instructions first.")] = True,
    split: Annotated[
        str, typer.Option(help="'task': train, val, test by original task; 'source': as the dataset has it.")
    ] = "task",
    assume_success: Annotated[
        str,
        typer.Option(metavar="WHY", help="Take episodes without an outcome for successes; WHY goes on record."),
    ] = "",
    size: Annotated[int, typer.Option(help="Pixels of a picture's longer side, at most.")] = 256,
    seed: Annotated[int, typer.Option(help="Chooses episodes, cuts and splits.")] = 0,
    more_tokens: Annotated[
        int, typer.Option(help="Longer answers by so much: for models that think before they answer.")
    ] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would take; ask nothing.")] = False,
    budget: Annotated[
        float | None, typer.Option(help="Dollars to spend at most (needs DEMERIT_CHAT_PRICE_IN and _OUT).")
    ] = None,
    concurrency: Annotated[int | None, typer.Option(help="Requests under way at once.")] = None,
    camera: CameraOption = None,
    strict: StrictOption = False,
    options: SourceOptions = None,
) -> None:
    """Let a model write commands that a success fails, with grades, and check each: the same video, other words.

    The model is the one behind DEMERIT_CHAT_URL and DEMERIT_CHAT_MODEL. Answers are cached as they arrive, every
    rejected candidate is kept with its reason in relabelled.jsonl, and labels of the test split are marked for a person
    to confirm. Exit code 3: some episodes got no answer; the same command asks for them again.

    [bold]Examples[/bold]

      demerit relabel my_set my_counterfactuals --dry-run
      demerit relabel my_set my_counterfactuals --keep-originals --budget 20
      demerit relabel droid/ ladder --assume-success demonstrations --clips "" --grades 1,2,3,4
    """
    from demerit.data.formats import open_dataset  # noqa: PLC0415
    from demerit.errors import BadInput  # noqa: PLC0415
    from demerit.models.gvl import GVLConfig  # noqa: PLC0415
    from demerit.negatives.relabel import RelabelSettings  # noqa: PLC0415

    server = GVLConfig.read("", {"budget": budget, "concurrency": concurrency})
    if not server.url or not server.model:
        expected = "an OpenAI-compatible server with a model that sees: set DEMERIT_CHAT_URL and DEMERIT_CHAT_MODEL"
        raise BadInput("relabel", expected, "none")
    settings = RelabelSettings(
        grades=_grades("--grades", grades),
        clips=_grades("--clips", clips),
        clean_up=clean_up,
        rounds=rounds,
        size=size,
        per_dataset=per_dataset,
        seed=seed,
        keep_originals=keep_originals,
        assume_success=assume_success,
        split=split,
    )
    dataset = open_dataset(source, strict=strict, camera=camera, **reader_options(options, False))
    if dry_run:
        _estimate(dataset, server, settings, more_tokens)
        return
    summary = _run(dataset, dest, server, settings, more_tokens)
    _print(summary, dest)
    if summary.unfinished:
        raise typer.Exit(NOT_ALL)


def _estimate(dataset: Dataset, server: GVLConfig, settings: RelabelSettings, more_tokens: int) -> None:
    from demerit.cli.bars import bar, out  # noqa: PLC0415
    from demerit.negatives.relabel import estimate  # noqa: PLC0415

    with bar("counting", dataset.expected()) as shown:
        costs = estimate(
            dataset, endpoint=_endpoint(server), more_tokens=more_tokens, settings=settings, progress=shown.update
        )
    out.print(str(costs))


def _run(
    dataset: Dataset, dest: Path, server: GVLConfig, settings: RelabelSettings, more_tokens: int
) -> RelabelSummary:
    from demerit.cli.bars import bar  # noqa: PLC0415
    from demerit.negatives.relabel import relabel as make  # noqa: PLC0415

    with bar("relabelling", dataset.expected()) as shown:
        return make(
            dataset,
            dest,
            endpoint=_endpoint(server),
            cache=server.cache_file(),
            concurrency=server.concurrency,
            budget=server.budget,
            timeout=server.timeout,
            tries=server.tries,
            more_tokens=more_tokens,
            settings=settings,
            progress=lambda summary: shown.update(summary.finished, f"{summary.labels} labels"),
        )


def _endpoint(server: GVLConfig) -> Any:
    from demerit.llm import Endpoint  # noqa: PLC0415

    return Endpoint(server.url, server.model, server.key_env, server.price_in, server.price_out, server.schema_mode)


def _grades(option: str, text: str) -> tuple[int, ...]:
    from demerit.errors import BadInput  # noqa: PLC0415

    try:
        return tuple(int(piece) for piece in text.replace(" ", "").split(",") if piece)
    except ValueError:
        raise BadInput(option, "grades from 1 to 4 with commas between them", repr(text)) from None


def _print(summary: RelabelSummary, dest: Path) -> None:
    from rich.table import Table  # noqa: PLC0415

    from demerit.cli.bars import out  # noqa: PLC0415
    from demerit.cli.data import _print_problems  # noqa: PLC0415

    kept = f", {summary.kept} originals kept" if summary.kept else ""
    new = f"({summary.added} episodes new)"
    out.print(f"[bold]{dest}[/bold]: {summary.labels} labels of {summary.settled} originals{kept} {new}")
    table = Table("made by", *(f"grade {grade}" for grade in (1, 2, 3, 4)), "all")
    for name, counts in (("counterfactual", summary.commands), ("clip", summary.clips)):
        table.add_row(name, *(str(counts[grade] or "") for grade in (1, 2, 3, 4)), str(counts.total()))
    if summary.labels:
        out.print(table)
    if summary.splits:
        out.print("  splits: " + ", ".join(f"{name or '(none)'} {count}" for name, count in summary.splits.items()))
    if summary.to_check:
        out.print(f"  [bold]{summary.to_check} of the test split are due for a person to confirm[/bold] (human_check)")
    for (stage, by), count in summary.rejected.most_common():
        who = {"code": "the rules", "model": "the strict reader", "answer": "no usable answer"}[by]
        out.print(f"  {stage}: {count} turned down, {who}")
    for reason, count in summary.skipped.most_common():
        out.print(f"  [yellow]{count} not used[/yellow]: {reason}")
    if summary.over:
        out.print(f"  {summary.over} successes not used: their dataset has enough (--per-dataset)")
    for what in summary.leaks[:MOST_NAMED]:
        out.print(f"  [yellow]in more than one split[/yellow]: {what} (--split task keeps it together)")
    if len(summary.leaks) > MOST_NAMED:
        out.print(f"  [yellow]in more than one split[/yellow]: {len(summary.leaks) - MOST_NAMED} more like these")
    for reason, count in summary.unfinished.most_common():
        out.print(f"  [yellow]{count} without an answer[/yellow]: {reason}; the same command asks again")
    for note in summary.notes:
        out.print(f"  {note}")
    out.print(f"  {summary.spent}")
    _print_problems(summary.problems.rows())
