"""The compare command."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from demerit.cli.bars import err, out, print_table, print_verdicts
from demerit.cli.bundles import (
    DatasetArgument,
    DatasetOptions,
    JsonOption,
    ModelOption,
    parse_sources,
    split_names,
)
from demerit.cli.score import score_with_bar
from demerit.data.dataset import Dataset, distinct_names
from demerit.data.episode import NOT_A_MODEL
from demerit.data.reward import VerdictCounts
from demerit.data.splits import SeenEpisodes, seen_by
from demerit.decide.interval import Share
from demerit.errors import BadInput
from demerit.evaluate.metrics.verdict import round_up
from demerit.models import load_model
from demerit.models.reward_store import ScoredDataset
from demerit.use.compare import FEWEST, PolicyComparison, PolicyRollouts, extend_sheet, read_sheet
from demerit.use.compare import compare as compare_rollouts

MANY = 1000
"""no larger number of episodes to record is named"""
Policies = tuple[PolicyRollouts, PolicyRollouts]


def compare(
    a: DatasetArgument,
    reading: DatasetOptions,
    b: Annotated[str | None, typer.Argument(metavar="[DATASET]", help="The rollouts of the other policy.")] = None,
    model: ModelOption = "default",
    by: Annotated[
        str, typer.Option("--by", metavar="TAG", help="Of one dataset: the tag that names the policy; or TAG=OLD,NEW.")
    ] = "",
    sheet: Annotated[
        Path | None,
        typer.Option("--labels", metavar="CSV", help="Labels by hand: filled rows are read, rows to fill are added."),
    ] = None,
    label_sources: Annotated[
        str, typer.Option("--label-sources", metavar="NAMES", help=f"Labels to trust: {', '.join(NOT_A_MODEL)}.")
    ] = "human",
    as_json: JsonOption = False,
) -> None:
    """Compare two policies with a model and a few labels.

    The model predicts every episode; labels of some of them, chosen at random, correct it. The interval holds whatever
    the model, and a good model makes it narrower than the labels alone. If nothing is decided, the command says how
    many more labels would probably decide it, and chooses them.

    [bold]Examples[/bold]

      demerit compare runs/old runs/new --model ./my-model --labels labels.csv
      demerit compare runs --by policy --model ./my-model
      demerit compare runs --by policy=act,diffusion --json
    """
    sources = parse_sources(label_sources, ("human",))
    if not set(sources) <= set(NOT_A_MODEL):
        raise BadInput("--label-sources", f"some of {', '.join(NOT_A_MODEL)} (a model cannot judge itself)", sources)
    if (b is None) == (not by):
        raise BadInput("policies", "two datasets, or one dataset and --by TAG", "both" if by else "one dataset")
    if sheet is not None and sheet.suffix.lower() != ".csv":
        raise BadInput("--labels", "a file that ends in .csv", sheet.name)
    rows = {} if sheet is None else read_sheet(sheet)
    loaded, say = load_model(model), err if as_json else out
    datasets, tag = [reading.open(address) for address in (a, b) if address is not None], by.partition("=")[0]
    names = _name_policies(datasets, by)
    scored = [score_with_bar(dataset, loaded, None, say) for dataset in datasets]
    verdicts = VerdictCounts.of(
        reward for part in scored for episode, reward in part if not by or episode.origin.tags.get(tag) in names
    )
    policies = _collect(scored, seen_by(loaded), names, tag, sources, rows)
    result = compare_rollouts(*policies)
    needed = None if result.sign else result.labels_needed()
    next_rows = [row for policy, count in zip(policies, needed or (0, 0), strict=True) for row in policy.choose(count)]
    notes = _note(result, policies, seen_by(loaded).complete)
    counted = {(policy.name, id) for policy in policies for id in policy.ids}
    if unused := [row for row, label in rows.items() if label is not None and row not in counted]:
        notes.append(f"{sheet}: {len(unused)} labels are of no episode that counts, e.g. {' '.join(unused[0])}")
    if sheet is not None and next_rows:
        extend_sheet(sheet, [row for row in next_rows if row[:2] not in rows])
    if as_json:
        _print_json(result, policies, needed, next_rows, notes, verdicts)
        return
    out.print(f"[bold]{escape(_verdict(result, policies))}[/bold]")
    table = Table("policy", "success", "by labels alone", "labels", "episodes")
    for policy, rate in zip(policies, (result.a, result.b), strict=True):
        cells = str(rate.interval) if result.has_enough else "–", str(rate.by_labels) if rate.labels else "–"
        table.add_row(escape(policy.name), *cells, str(rate.labels), str(rate.episodes))
    print_table(table)
    print_verdicts(verdicts)
    if result.has_enough:
        out.print(f"Difference by labels alone: {result.by_labels}.")
    if not result.sign:
        filled = f"They are in {sheet}: write yes or no, and run this again."
        where = "" if needed is None else " --labels labels.csv lists them." if sheet is None else f" {filled}"
        out.print(escape(_advise(result, policies, needed) + where))
    for note in notes:
        out.print(f"  [yellow]note[/yellow] {escape(note)}")


def _name_policies(datasets: list[Dataset], by: str) -> list[str]:
    """Name the two policies, old and new, before anything is scored."""
    if not by:
        return distinct_names([dataset.address for dataset in datasets])
    tag, _, wanted = by.partition("=")
    values = list(dict.fromkeys(filter(None, (episode.origin.tags.get(tag) for episode in datasets[0]))))
    names = split_names(wanted) if wanted else values
    if len(set(names)) != len(("old", "new")) or not set(names) <= set(values):
        got = ", ".join(values) or "no episode with that tag"
        raise BadInput(f"--by {by}", "a tag with two values, or two of its values: TAG=OLD,NEW", got)
    return list(names)


def _collect(
    scored: list[ScoredDataset],
    seen: SeenEpisodes,
    names: list[str],
    tag: str,
    sources: tuple[str, ...],
    rows: dict[tuple[str, str], bool | None],
) -> Policies:
    """Sort the episodes by policy: by their tag, or by their dataset."""
    policies = {name: PolicyRollouts(name) for name in names}
    for place, dataset in enumerate(scored):
        for episode, reward in dataset:
            name = episode.origin.tags.get(tag, "") if tag else names[place]
            if name in policies:
                policies[name].add(episode, reward, sources, seen, rows.get((name, episode.id)))
    first, second = policies.values()
    return first, second


def _verdict(result: PolicyComparison, policies: Policies) -> str:
    if not result.has_enough:
        return f"Not decided: {result.a.labels} and {result.b.labels} labels, and each policy needs {FEWEST} or more."
    (a, b), gap = policies, result.difference
    rates = [f"{100 * policy.interval.value:.0f}%" for policy in (result.a, result.b)]
    if not result.sign:
        return f"Not decided: {b.name} {rates[1]}, {a.name} {rates[0]}, difference {gap}."
    if result.sign < 0:
        a, b, rates, gap = b, a, rates[::-1], Share.difference(-gap.value, -gap.high, -gap.low)
    return f"{b.name} is better: {rates[1]} vs {rates[0]}, difference {gap}, decided."


def _advise(result: PolicyComparison, policies: Policies, needed: tuple[int, int] | None) -> str:
    if needed is None:
        count = result.episodes_needed()
        many = f"more than {MANY}" if count > MANY else f"about {round_up(math.ceil(count))}"
        is_all = result.a.is_counted and result.b.is_counted
        why = "Every episode has a label" if is_all else "Labelling all would probably not decide it"
        return f"{why}: record {many} episodes of each policy, or call it a tie."
    parts = " and ".join(f"{count} of {policy.name}" for count, policy in zip(needed, policies, strict=True))
    begin = f"Label about {sum(needed)} more (decides with 80%, if the difference is as estimated)"
    how = "chosen at random (labels of the odd ones alone would bend the rate)"
    return f"{begin if result.has_enough else 'Label'}: {parts}, {how}."


def _note(result: PolicyComparison, policies: Policies, is_complete: bool) -> list[str]:
    """Say what was left out, and what makes the interval doubtful."""
    notes = [] if is_complete else ["the model does not record all that it learned from: leave such episodes out"]
    for policy, rate in zip(policies, (result.a, result.b), strict=True):
        unscored = sum(math.isnan(value) for value in policy.predictions)
        for count, text in (
            (policy.taught, f"{policy.taught} left out, because the model learned from them"),
            (unscored, f"{unscored} without a prediction: only their labels count"),
            (policy.of_models, f"{policy.of_models} have no label but a model's, which is not used"),
            (rate.is_odd, "labelled episodes have other predictions than the rest: were they chosen at random?"),
        ):
            notes += [f"{policy.name}: {text}"] if count else []
    return notes


def _print_json(
    result: PolicyComparison,
    policies: Policies,
    needed: tuple[int, int] | None,
    chosen: list[tuple[str, str, str]],
    notes: list[str],
    verdicts: VerdictCounts,
) -> None:
    def show(share: Share, is_known: bool) -> dict[str, Any] | None:
        return share.as_dict() if is_known else None

    rates = zip(policies, (result.a, result.b), strict=True)
    episodes = result.episodes_needed() if result.has_enough and not result.sign and needed is None else math.inf
    facts = {
        "sentence": _verdict(result, policies),
        "better": {1: policies[1].name, -1: policies[0].name, 0: None}[result.sign],
        "difference": show(result.difference, result.has_enough),
        "difference_by_labels": show(result.by_labels, result.has_enough),
        "policies": [
            {
                "name": policy.name,
                "success": show(rate.interval, result.has_enough),
                "by_labels": show(rate.by_labels, rate.labels > 0),
                "labels": rate.labels,
                "episodes": rate.episodes,
                "left_out": policy.taught,
                "lambda": round(rate.slope * (1 - rate.labels / rate.episodes), 6),
            }
            for policy, rate in rates
        ],
        "labels_needed": None if needed is None else sum(needed),
        "episodes_needed": None if math.isinf(episodes) else math.ceil(episodes),
        "to_label": [dict(zip(("policy", "episode", "video"), row, strict=True)) for row in chosen],
        "verdicts": verdicts.as_dict(),
        "notes": notes,
    }
    print(json.dumps(facts, ensure_ascii=False, allow_nan=False))
