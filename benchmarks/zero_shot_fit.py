"""Train the zero-shot ablation: eight mixes of supervision, three seeds each, and keep what each network says.

    python benchmarks/zero_shot_fit.py CORPUS OUT --imagenet WEIGHTS --set steps=300 size=96

CORPUS is what `demerit train compact --prepare-only` writes. A seed is also a fold: a third of the demonstrations'
sites and a third of the teacher's instructions are held out with it, so that the three seeds together cover them all.
Needs torch, and a GPU to be quick; what is done already is not done again, and a run that was stopped goes on.
`zero_shot_tables.py` makes the tables.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from demerit.config import parse_changes
from demerit.models.compact.text import TextEncoder
from demerit.training.compact.clips import is_in_fold
from demerit.training.compact.corpus import Corpus, Row
from demerit.training.compact.fit import Fitting, Told
from demerit.training.compact.predict import Order, in_order, predict
from demerit.training.compact.recipe import Recipe, load_recipe
from demerit.training.compact.train import in_words, load_weights, shipped_words

NOTHING = {"failures": False, "rewind": 0.0, "wrong_words": 0.0, "preference": 0.0}
FULL = load_recipe()
PIECES = {name: getattr(FULL, name) for name in ("rewind", "wrong_words", "preference", "failures")}


def mixes() -> dict[str, dict[str, object]]:
    """Each piece added to the ones before it, and each taken from the whole."""
    added: dict[str, dict[str, object]] = {"successes only": dict(NOTHING)}
    so_far = dict(NOTHING)
    for name, value in PIECES.items():
        so_far = {**so_far, name: value}
        added[f"+ {name.replace('_', ' ')}"] = so_far
    without = {f"all but {name.replace('_', ' ')}": {name: NOTHING[name]} for name in PIECES if name != "failures"}
    return {**added, **without}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--imagenet", type=Path)
    parser.add_argument("--words", type=Path, default=shipped_words())
    parser.add_argument("--only", nargs="*", help="mixes, by name")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="changes every recipe")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    corpus, words = Corpus.load(asked.corpus), TextEncoder.load(asked.words)
    imagenet = load_weights(asked.imagenet) if asked.imagenet else None
    changes = parse_changes(asked.set)
    pictures = None
    for seed in asked.seeds:
        for mix, change in mixes().items():
            path = asked.out / f"{mix.replace(' ', '_')}-{seed}.npz"
            if (asked.only and mix not in asked.only) or path.exists():
                continue
            recipe = FULL.changed({**changes, **change, "seed": seed, "fold": seed})
            started = time.monotonic()
            folder = asked.out / "runs" / path.stem
            fitting = Fitting(corpus, recipe, words, folder, imagenet, pictures=pictures)
            pictures = fitting.pictures
            fitting.run(show, every=250)
            print(f"{mix}, seed {seed}: trained in {time.monotonic() - started:.0f} s", flush=True)
            keep(fitting, recipe, path)
            shutil.rmtree(folder)


def show(told: Told) -> None:
    print(f"  {told.step}/{told.steps} {in_words(told)}", flush=True)


def keep(fitting: Fitting, recipe: Recipe, path: Path) -> None:
    """Predict everything that was held out and write it down."""
    rows = fitting.corpus.rows
    simulated = [row for row in rows if row.kind == "measured" and row.split not in ("train", "")]
    shown = [row for row in rows if row.kind == "demonstration" and is_in_fold(row, recipe.fold)]
    judged = [row for row in rows if row.kind == "model" and is_in_fold(row, recipe.fold)]
    columns: dict[str, np.ndarray] = {}
    add(columns, "simulated", fitting, simulated)
    add(columns, "demonstrations", fitting, shown)
    add(columns, "shuffled", fitting, shown, order=shuffled)
    add(columns, "wrong", fitting, shown, told=other_words(shown))
    add(columns, "judged", fitting, judged)
    partial = path.with_suffix(".partial.npz")
    np.savez_compressed(partial, **columns)
    os.replace(partial, path)


def add(
    columns: dict[str, np.ndarray],
    name: str,
    fitting: Fitting,
    rows: Sequence[Row],
    told: Callable[[Row], str] | None = None,
    order: Order = in_order,
) -> None:
    predicted = predict(fitting, rows, told, order)
    columns[f"{name}/ids"] = np.array([one.row.id for one in predicted])
    columns[f"{name}/lengths"] = np.array([len(one.progress) for one in predicted])
    for column in ("progress", "success", "rank"):
        values = [getattr(one, column) for one in predicted]
        columns[f"{name}/{column}"] = np.concatenate(values).astype(np.float16) if values else np.empty(0)


def shuffled(row: Row) -> np.ndarray:
    return np.random.default_rng(abs(sum(row.id.encode())) * 7919 + row.frames).permutation(row.frames)


def other_words(rows: Sequence[Row]) -> Callable[[Row], str]:
    """Tell each what the next one of another wording was told."""
    said = [row.instruction for row in rows]
    turned = {row.id: said[(number + len(said) // 2) % len(said)] for number, row in enumerate(rows)}
    return lambda row: turned[row.id]


if __name__ == "__main__":
    main()
