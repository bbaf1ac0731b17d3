"""The label command: labels by a rule."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from demerit.cli.bars import out
from demerit.data.store import Store
from demerit.errors import BadInput
from demerit.models.rule import Rule
from demerit.use.label import label_by_rule


def label(
    folder: Annotated[Path, typer.Argument(help="A demerit folder (demerit import or simulate makes one).")],
    rule: Annotated[Path, typer.Argument(help="A rule file (docs/rules.md).")],
) -> None:
    """Label episodes by a rule over their signals.

    An episode is a success if the rule holds at its last frame. The labels have the source `rule`; labels of other
    sources stay, and the most trusted one counts (human, simulator, rule).

    [bold]Examples[/bold]

      demerit label my_set safe.yaml
      demerit teach my_set -o my-model --label-sources rule
    """
    if not Store.is_at(folder):
        raise BadInput(str(folder), "a demerit folder (demerit import DATASET FOLDER makes one)", "something else")
    loaded = Rule(rule)
    counts = label_by_rule(folder, loaded)
    said = f"{counts.holds} fulfil it, {counts.fails} do not"
    out.print(f"[bold]{escape(loaded.card.name)}[/bold]: {said} (label source: rule)")
    for reason, count in counts.unlabelled.most_common():
        out.print(f"  [yellow]{count} without a label[/yellow]: {escape(reason)}")
