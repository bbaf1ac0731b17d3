"""The relabel command: graded commands that a success fails, written and checked by a chat model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from demerit.cli.bars import bar, out, print_grades, print_problems
from demerit.cli.options import CameraOption, DatasetArgument, SourceOptions, StrictOption, reader_options
from demerit.data.formats import open_dataset
from demerit.errors import BadInput
from demerit.llm import ChatOptions
from demerit.llm.options import VALIDATOR
from demerit.negatives.relabel.config import RelabelConfig
from demerit.negatives.relabel.job import RelabelSummary, estimate
from demerit.negatives.relabel.job import relabel as run_relabel

UNFINISHED = 3
"""exit code when some episodes got no answer: the same command asks again"""
REJECTED_BY = {"code": "by the rules", "model": "by the validator", "answer": "for an unusable answer"}


def relabel(
    source: DatasetArgument,
    dest: Annotated[Path, typer.Argument(help="The folder to make. Run the same command again to resume.")],
    grades: Annotated[str, typer.Option(help="Grades to write commands for; '' for none.")] = "1,2,3,4",
    clips: Annotated[str, typer.Option(help="Grades to cut the video early at; '' for none.")] = "2,3,4",
    rounds: Annotated[int, typer.Option(help="Attempts per command until one is accepted.")] = 3,
    per_dataset: Annotated[int, typer.Option(help="Use at most N episodes of one dataset; 0 = all.")] = 1200,
    keep_originals: Annotated[bool, typer.Option("--keep-originals", help="Write the originals too.")] = False,
    split: Annotated[
        str, typer.Option(help="'task': new splits (train, val, test) by task; 'source': as the dataset has it.")
    ] = "task",
    assume_success: Annotated[
        str, typer.Option(metavar="WHY", help="Treat episodes without an outcome as successes; WHY is stored.")
    ] = "",
    size: Annotated[int, typer.Option(help="Pixels of a frame's longer side, at most.")] = 256,
    seed: Annotated[int, typer.Option(help="Seed for the choice of episodes, cuts and splits.")] = 0,
    more_tokens: Annotated[
        int, typer.Option(help="Add N tokens to the limit of every answer, for models that reason first.")
    ] = 0,
    validator_url: Annotated[
        str | None, typer.Option(help="Server of a second model that validates (or DEMERIT_VALIDATOR_URL).")
    ] = None,
    validator_model: Annotated[str | None, typer.Option(help="Its model (or DEMERIT_VALIDATOR_MODEL).")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Estimate the cost; send nothing.")] = False,
    budget: Annotated[
        float | None, typer.Option(help="Spend at most N dollars (needs DEMERIT_CHAT_PRICE_IN and _OUT).")
    ] = None,
    concurrency: Annotated[int | None, typer.Option(help="Number of concurrent requests.")] = None,
    camera: CameraOption = None,
    strict: StrictOption = False,
    options: SourceOptions = None,
) -> None:
    """Write graded instructions that a success does not fulfil, with a chat model.

    The model is the one at DEMERIT_CHAT_URL and DEMERIT_CHAT_MODEL (any OpenAI-compatible server). Each command is
    checked by rules and graded blindly by the model, or by a second one (--validator-model), which shares fewer errors
    with it; rejected ones are in relabelled.jsonl with their reasons. Labels
    of the test split get the tag human_check. Exit code 3: some episodes got no answer; run the command again.

    [bold]Examples[/bold]

      demerit relabel my_set my_counterfactuals --dry-run
      demerit relabel my_set my_counterfactuals --keep-originals --budget 20
      demerit relabel droid/ ladder --assume-success demonstrations --clips "" --grades 1,2,3,4
    """
    config = RelabelConfig(
        grades=_parse_grades("--grades", grades),
        clips=_parse_grades("--clips", clips),
        rounds=rounds,
        size=size,
        more_tokens=more_tokens,
        per_dataset=per_dataset,
        seed=seed,
        keep_originals=keep_originals,
        assume_success=assume_success,
        split=split,
    )
    chat = ChatOptions.read("", {"budget": budget, "concurrency": concurrency})
    second = ChatOptions.read("", {"url": validator_url, "model": validator_model}, VALIDATOR)
    validated_apart = bool(second.model or second.url)
    second = replace(second, url=second.url or chat.url, cache=second.cache or chat.cache, concurrency=chat.concurrency)
    dataset = open_dataset(source, strict=strict, camera=camera, **reader_options(options, False))
    with chat.client() as client:
        if dry_run:
            originals, costs = estimate(dataset, client, config)
            out.print(f"{originals} originals; if every first answer is accepted: {costs}")
            out.print(f"Rejected answers cost more: up to {rounds} attempts per command.")
            return
        with bar("relabelling", dataset.expected()) as shown:
            summary = run_relabel(
                dataset,
                dest,
                client,
                config,
                validator=second.client() if validated_apart else None,
                on_progress=lambda now: shown.update(now.finished, f"{now.labels} labels"),
            )
    _print_summary(summary, dest)
    if summary.unfinished:
        raise typer.Exit(UNFINISHED)


def _parse_grades(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(piece) for piece in text.replace(" ", "").split(",") if piece)
    except ValueError:
        raise BadInput(option, "grades from 1 to 4, separated by commas", repr(text)) from None


def _print_summary(summary: RelabelSummary, dest: Path) -> None:
    kept = f", {summary.kept} originals kept" if summary.kept else ""
    out.print(
        f"[bold]{escape(str(dest))}[/bold]: {summary.labels} labels of {summary.settled} originals{kept} "
        f"({summary.added} episodes new)"
    )
    if summary.labels:
        print_grades("made by", {"counterfactual": summary.commands, "clip": summary.clips})
    if summary.splits:
        listed = ", ".join(f"{name or '(none)'} {count}" for name, count in summary.splits.items())
        out.print(escape(f"  splits: {listed}"))
    if summary.to_check:
        out.print(f"  [bold]{summary.to_check} episodes need a person's check[/bold] (tag human_check)")
    for (stage, by), count in summary.rejected.most_common():
        out.print(f"  {stage}: {count} rejected {REJECTED_BY[by]}")
    for reason, count in summary.skipped.most_common():
        out.print(f"  [yellow]{count} not used[/yellow]: {escape(reason)}")
    if summary.over:
        out.print(f"  {summary.over} successes not used: their dataset has enough (--per-dataset)")
    for leak in summary.leaks:
        out.print(f"  [yellow]{escape(str(leak))}[/yellow] (--split task makes new splits)")
    for reason, count in summary.unfinished.most_common():
        out.print(f"  [yellow]{count} without an answer[/yellow]: {escape(reason)}; run the same command again")
    out.print(f"  {summary.spent}")
    if summary.validator_spent is not None:
        out.print(f"  validator: {summary.validator_spent}")
    print_problems(summary.problems.rows())
