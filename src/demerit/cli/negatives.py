"""Commands that make bad examples: negatives edits episodes, relabel writes other instructions, distil adds values."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from demerit.cli.bars import bar, out, print_grades, print_problems
from demerit.cli.bundles import (
    BudgetOption,
    ChangesOption,
    ConcurrencyOption,
    DatasetArgument,
    DatasetOptions,
    DryRunOption,
)
from demerit.config import change_config, parse_changes
from demerit.data.episode import Episode, count_episodes
from demerit.data.formats import open_dataset
from demerit.data.store import open_or_create
from demerit.errors import BadInput
from demerit.llm import ChatOptions
from demerit.llm.options import VALIDATOR
from demerit.models.gvl.distil import KEPT, SAMPLES, TEMPERATURE, add_curves, distil_curves
from demerit.models.gvl.model import GVL, Prompter
from demerit.negatives.job import NegativesProgress, make_negatives
from demerit.negatives.mix import DEFAULT_MIX, PER_DATASET, PER_EPISODE, Mix
from demerit.negatives.negative import DONE_GRADE, is_generator
from demerit.negatives.relabel.config import RelabelConfig
from demerit.negatives.relabel.job import RelabelSummary, estimate
from demerit.negatives.relabel.job import relabel as run_relabel

CUE = 0.15  # a model will use a cue whose AUROC is this far from one half
UNFINISHED = 3
"""exit code when some episodes got no answer: the same command asks again"""
REJECTED_BY = {"code": "by the rules", "model": "by the validator", "answer": "for an unusable answer"}
AssumeSuccessOption = Annotated[
    str, typer.Option(metavar="WHY", help="Treat episodes without an outcome as successes; WHY is recorded.")
]
KeepOriginalsOption = Annotated[
    bool, typer.Option("--keep-originals", help="Also write the dataset's own episodes; successes are grade 5.")
]
PerDatasetOption = Annotated[int, typer.Option(help="Most episodes to use from one dataset; 0 = all.")]


def negatives(
    source: DatasetArgument,
    dest: Annotated[Path, typer.Argument(help="The folder to create; run again to resume.")],
    reading: DatasetOptions,
    mix: Annotated[
        str,
        typer.Option(
            metavar="NAME=SHARE,...",
            help="What to make (demerit list negatives); variants: all edits that keep the label.",
            show_default=DEFAULT_MIX.replace(",", ", "),
        ),
    ] = DEFAULT_MIX,
    seed: Annotated[int, typer.Option(help="The same seed makes the same negatives.")] = 0,
    per_episode: Annotated[int, typer.Option(help="Most negatives from one episode.")] = PER_EPISODE,
    per_dataset: PerDatasetOption = PER_DATASET,
    keep_originals: KeepOriginalsOption = False,
    assume_success: AssumeSuccessOption = "",
) -> None:
    """Make failures of successes, and variants of failures.

    Not all are failures: slow, stall, jump and reworded still succeed (grade 5), so that speed alone tells nothing.
    Variants (crop, recolour, cover, pace, hold) keep the label of an episode, also of a failure. No video is copied,
    and every label names the edit that made it. A label follows the original's progress where it was marked or
    measured, and else assumes that it rises evenly with time. The command counts both. Clips of a generator (a plug-in)
    have no label: a person gives it.

    [bold]Examples[/bold]

      demerit negatives my_set my_negatives --keep-originals
      demerit negatives my_set graded --mix "clip=4,rewind=2,freeze=1,wrong-instruction=2" --per-episode 4
      demerit negatives droid/ bad --assume-success demonstrations --keep-originals
      demerit negatives my_set varied --mix variants --per-episode 5 --keep-originals
    """
    wanted = Mix.parse(mix, seed=seed, per_episode=per_episode, per_dataset=per_dataset)
    dataset = reading.open(source)
    with bar("making negatives", dataset.expected()) as shown:
        progress = make_negatives(
            dataset,
            dest,
            wanted,
            keep_originals=keep_originals,
            assume_success=assume_success,
            on_progress=lambda progress: shown.update(progress.seen),
        )
    total = sum(progress.made.values())
    kept = f", {progress.kept} originals" if progress.kept else ""
    place, originals = escape(str(dest)), progress.originals
    out.print(f"[bold]{place}[/bold]: {total} negatives of {count_episodes(originals)}{kept} ({progress.added} new)")
    successes = sorted(name for name in progress.made if progress.grades[name, DONE_GRADE])
    if successes:
        done = sum(progress.grades[name, DONE_GRADE] for name in successes)
        out.print(f"  {done} of them have grade {DONE_GRADE} and count as successes: {', '.join(successes)}")
    for change, count in progress.changes.items():
        out.print(f"  {change}, as in the source: {count_episodes(count)} of an earlier run")
    _print_made(progress)
    for basis, count in progress.bases.most_common():
        out.print(f"  labels {basis}: {count}")
    for (name, reason), count in progress.skipped.most_common():
        out.print(f"  [yellow]{name}[/yellow]: {count} not made, {escape(reason)}")
    if progress.over:
        out.print(f"  {progress.over} episodes not used: over the limit per dataset (--per-dataset)")
    unlabelled = sum(count for name, count in progress.made.items() if is_generator(name))
    if unlabelled:
        out.print(f"  {unlabelled} generated clips have no label until a person gives it: demerit annotate {place}")
    if not progress.originals and not assume_success:
        out.print("  No episode is known to be a success. For demonstrations: --assume-success demonstrations")
    print_problems(progress.problems.rows())


def _print_made(progress: NegativesProgress) -> None:
    ladder = progress.ladder()
    total = sum(ladder.values())
    if total:
        names = [*sorted(progress.made), *(["original"] if progress.kept else [])]
        rows = {name: {grade: progress.grades[name, grade] for grade in ladder} for name in names}
        print_grades("made by", {**rows, "all": ladder})
    if total > ladder[None] and not ladder[5]:
        out.print("  nothing has grade 5: keep the originals, or add stall, slow or jump to the mix")
    auroc = progress.length_auroc()
    if abs(auroc - 0.5) > CUE:
        out.print(f"  [yellow]length alone predicts success[/yellow] (AUROC {auroc:.2f}): add freeze, rewind or jump")


def relabel(
    source: DatasetArgument,
    dest: Annotated[Path, typer.Argument(help="The folder to make. Run the same command again to resume.")],
    reading: DatasetOptions,
    grades: Annotated[str, typer.Option(help="Grades to write commands for; '' for none.")] = "1,2,3,4",
    clips: Annotated[str, typer.Option(help="Grades to cut the video early at; '' for none.")] = "2,3,4",
    per_dataset: PerDatasetOption = RelabelConfig.per_dataset,
    keep_originals: KeepOriginalsOption = False,
    assume_success: AssumeSuccessOption = "",
    changes: ChangesOption = None,
    dry_run: DryRunOption = False,
    budget: BudgetOption = None,
    concurrency: ConcurrencyOption = None,
) -> None:
    """Write graded instructions that a success fails (chat model).

    The model is the one at DEMERIT_CHAT_URL and DEMERIT_CHAT_MODEL (any OpenAI-compatible server). Each command is
    checked by rules and graded blindly by the model, or by a second one (DEMERIT_VALIDATOR_MODEL and _URL), which
    shares fewer errors with it; rejected ones are in relabelled.jsonl with their reasons. Labels of the test split get
    the tag human_check. Exit code 3: some episodes got no answer; run the command again. --set takes rounds
    (attempts), size (pixels of a frame), seed, split (task, source), more-tokens and temperature.

    [bold]Examples[/bold]

      demerit relabel my_set my_counterfactuals --dry-run
      demerit relabel my_set my_counterfactuals --keep-originals --budget 20
      demerit relabel droid/ ladder --assume-success demonstrations --clips "" --grades 1,2,3,4
    """
    config = RelabelConfig(
        grades=_parse_grades("--grades", grades),
        clips=_parse_grades("--clips", clips),
        per_dataset=per_dataset,
        keep_originals=keep_originals,
        assume_success=assume_success,
    )
    config = change_config(config, parse_changes(changes or []), "--set")
    chat = ChatOptions.read("", {"budget": budget, "concurrency": concurrency})
    second = ChatOptions.read("", {}, VALIDATOR)
    validated_apart = bool(second.model or second.url)
    second = replace(second, url=second.url or chat.url, cache=second.cache or chat.cache, concurrency=chat.concurrency)
    dataset = reading.open(source)
    with chat.client() as client:
        if dry_run:
            originals, costs = estimate(dataset, client, config)
            out.print(f"{originals} originals; if every first answer is accepted: {costs}")
            out.print(f"Rejected answers cost more: up to {config.rounds} attempts per command.")
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
    _print_relabelled(summary, dest)
    if summary.unfinished:
        raise typer.Exit(UNFINISHED)


def distil(
    source: Annotated[str, typer.Argument(metavar="DATASET", help="Episodes, and people's preferences between them.")],
    dest: Annotated[Path, typer.Argument(help="The folder to make; it links to the same videos.")],
    changes: ChangesOption = None,
) -> None:
    """Make values per step of rejected rollouts (chat model).

    gvl:dense shows such values. The model at DEMERIT_CHAT_URL and DEMERIT_CHAT_MODEL is asked ten times about both
    rollouts of each pair; a sample that orders them as the person did gives the curve of the rejected one. Pairs that
    give none are counted. Answers are cached, so the same command resumes. --set takes the options of gvl: samples,
    temperature, frames, size, budget.

    [bold]Examples[/bold]

      demerit distil my_set distilled
      demerit distil my_set distilled --set frames=24 --set budget=20
      demerit score my_set --model gvl:dense,examples=distilled
    """
    model = GVL(**{"samples": SAMPLES, "temperature": TEMPERATURE, **parse_changes(changes or [])})
    dataset = open_dataset(source)
    records = list(dataset.records())
    store = open_or_create(dest, dest.resolve().name, "", f"self-distillation of {dataset.name}")
    prompter = Prompter(model.client, replace(model.config, context="none"))
    with closing(model):
        curves, became = distil_curves(prompter, records)
    with store.writer() as writer:
        for record in add_curves(records, curves):
            if not isinstance(record, Episode) or record.id not in writer.written:
                writer.add(record)
    kept, pairs = became.pop(KEPT, 0), became.total()
    out.print(f"[bold]{escape(str(dest))}[/bold]: {kept} of {kept + pairs} pairs gave an example")
    for reason, count in became.most_common():
        out.print(f"  [yellow]{count} gave none[/yellow]: {escape(reason)}")
    out.print(f"  {model.spent}")


def _parse_grades(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(piece) for piece in text.replace(" ", "").split(",") if piece)
    except ValueError:
        raise BadInput(option, "grades from 1 to 4, separated by commas", repr(text)) from None


def _print_relabelled(summary: RelabelSummary, dest: Path) -> None:
    kept = f", {summary.kept} originals kept" if summary.kept else ""
    out.print(
        f"[bold]{escape(str(dest))}[/bold]: {summary.labels} labels of {summary.settled} originals{kept} "
        f"({summary.added} episodes new)"
    )
    if summary.labels:
        print_grades("made by", {"counterfactual": summary.commands, "clip": summary.clips})
    if summary.splits:
        splits = ", ".join(f"{name or '(none)'} {count}" for name, count in summary.splits.items())
        out.print(escape(f"  splits: {splits}"))
    if summary.to_check:
        out.print(
            f"  [bold]{summary.to_check} episodes need a person's check[/bold] (demerit annotate {escape(str(dest))})"
        )
    for (stage, by), count in summary.rejected.most_common():
        out.print(f"  {stage}: {count} rejected {REJECTED_BY[by]}")
    for reason, count in summary.skipped.most_common():
        out.print(f"  [yellow]{count} not used[/yellow]: {escape(reason)}")
    if summary.over:
        out.print(f"  {summary.over} successes not used: their dataset has enough (--per-dataset)")
    for leak in summary.leaks:
        out.print(f"  [yellow]{escape(str(leak))}[/yellow] (--set split=task makes new splits)")
    for reason, count in summary.unfinished.most_common():
        out.print(f"  [yellow]{count} without an answer[/yellow]: {escape(reason)}; run the same command again")
    out.print(f"  {summary.spent}")
    if summary.validator_spent is not None:
        out.print(f"  validator: {summary.validator_spent}")
    print_problems(summary.problems.rows())
