"""The part of the train command that trains vision-language models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from demerit.vlm_training.corpus import Corpus
    from demerit.vlm_training.prepare import Part
    from demerit.vlm_training.recipe import Recipe
    from demerit.vlm_training.reports import Told


@dataclass(frozen=True)
class Asked:
    """What the command line says."""

    what: str
    out: Path
    given: dict[str, list[str] | None]
    corpus: Path | None
    prepare_only: bool
    recipe: Path | None
    changes: list[str] | None
    device: str | None
    workers: int


def train_vlm(asked: Asked, begun: str | None, save: str, metrics: list[str]) -> None:
    """Prepare the corpus, train and say where the model is."""
    from rich.markup import escape  # noqa: PLC0415

    from demerit.cli.bars import bar, out  # noqa: PLC0415
    from demerit.recipe import read_changes  # noqa: PLC0415
    from demerit.vlm_training.recipe import load_recipe  # noqa: PLC0415
    from demerit.vlm_training.train import STARTS, begin, check_installed, objective_for, train  # noqa: PLC0415

    recipe = load_recipe(asked.what, asked.recipe).changed(read_changes(asked.changes or []))
    if not asked.prepare_only:
        check_installed(recipe)
    corpus = _prepared(asked, recipe)
    if asked.prepare_only:
        return
    start = begin(asked.what, begun or STARTS[asked.what], recipe)
    with bar("training", objective_for(corpus, recipe, start).updates) as shown:

        def report(told: Told) -> None:
            shown.update(told.step, told.in_words())

        folder = train(corpus, asked.out, recipe, start, report, device=asked.device, save=save, metrics=metrics)
    out.print(f"The model: [bold]{escape(str(folder))}[/bold]")
    out.print(f"Next: demerit score DATASET --model {asked.what}:path={escape(str(folder))}")


def _prepared(asked: Asked, recipe: Recipe) -> Corpus:
    from rich.markup import escape  # noqa: PLC0415

    from demerit.cli.bars import bar, out  # noqa: PLC0415
    from demerit.compact.made_from import left_out  # noqa: PLC0415
    from demerit.errors import BadInput  # noqa: PLC0415
    from demerit.vlm_training.corpus import Corpus  # noqa: PLC0415
    from demerit.vlm_training.prepare import prepare  # noqa: PLC0415

    folder = asked.corpus or asked.out / "corpus"
    parts = _parts(asked)
    if not parts:
        if not folder.exists():
            raise BadInput("training data", "--data, --demonstrations or a prepared --corpus", "none of them")
        return Corpus.load(folder)
    counts = [part.data.expected() for part in parts]
    total = None if None in counts else sum(count or 0 for count in counts)
    with bar("preparing", total) as shown:
        made = prepare(parts, folder, recipe, lambda done: shown.update(done.episodes), asked.workers)
    frames = sum(row.frames for row in made.rows)
    chosen = f", {len(made.choices)} preferences" if made.choices else ""
    out.print(f"The corpus: [bold]{escape(str(folder))}[/bold], {len(made.rows)} episodes, {frames} frames{chosen}")
    for why, count in left_out(folder).items():
        out.print(f"  [yellow]left out[/yellow] {count}: {escape(why)}")
    return made


def _parts(asked: Asked) -> list[Part]:
    """Open the datasets: all of them are looked for before any is read."""
    from demerit.errors import BadInput  # noqa: PLC0415
    from demerit.sources import open_dataset  # noqa: PLC0415
    from demerit.vlm_training.prepare import Part  # noqa: PLC0415

    refused = {"robometer": "held-out", "roboreward": "demonstrations"}[asked.what]
    if asked.given.get(refused):
        why = {"held-out": "its last weights are taken", "demonstrations": "they have no grades"}[refused]
        raise BadInput(f"--{refused}", f"no such option for {asked.what}: {why}", asked.given[refused])
    parts = []
    for use, pairs in asked.given.items():
        for pair in pairs or []:
            name, equals, address = pair.partition("=")
            if not (name and equals and address):
                raise BadInput(f"--{use}", "NAME=DATASET", repr(pair))
            split = "validation" if use == "held-out" else "train"
            parts.append(Part(name, open_dataset(address), split, use == "demonstrations"))
    return parts
