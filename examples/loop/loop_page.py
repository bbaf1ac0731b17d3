"""One page, one figure and one table of all rounds that have finished."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from demerit.data.arrays import Floats
from demerit.evaluate.metrics.bootstrap import Tally, compare, mean_tally
from page import HALF, draw_chart, draw_clip, fill_templates

COLOURS = {"loop": "var(--s0)", "stock": "var(--s1)"}
WORDS = {"loop": "verdicts on the policy's failures, and variants", "stock": "as many verdicts on other recordings"}
JUDGED = ("auroc", "failures above a half", "successes above a half")
COMPARED = ("success", "fooled", "over-reward")
Round = dict[str, Any]


def read_rounds(out: Path) -> list[Round]:
    """Read the results of all finished rounds."""
    return [json.loads(path.read_text()) for path in sorted((out / "runs").glob("*/*/result.json"))]


def pick(rounds: Sequence[Round], way: str, number: int, task: str = "") -> list[Round]:
    """Choose rounds; round 0 belongs to every way."""
    return [
        one
        for one in rounds
        if one["round"] == number and task in ("", one["task"]) and (not number or one["way"] == way)
    ]


def draw_rounds(rounds: Sequence[Round], name: str, last: int) -> str:
    """Draw a figure by round: each task and seed thin, the mean of a way thick."""
    lines: list[tuple[list[tuple[float, float]], str]] = []
    for way, colour in COLOURS.items():
        chains = sorted({(one["task"], one["seed"]) for one in rounds})
        for task, seed in chains:
            found = [one for n in range(last + 1) for one in pick(rounds, way, n, task) if one["seed"] == seed]
            lines.append(([(one["round"], one[name]) for one in found], f'stroke="{colour}" opacity=".3"'))
        means = [(n, [one[name] for one in pick(rounds, way, n)]) for n in range(last + 1)]
        points = [(float(n), float(np.mean(values))) for n, values in means if values]
        lines.append((points, f'stroke="{colour}" stroke-width="2.6"'))
    return draw_chart(lines, (0, last, "round"), name, steps=range(last + 1))


def summarize(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """List, by task, way and round, every seed and the means."""
    rows = []
    for task in dict.fromkeys(one["task"] for one in rounds):
        for way in ("start", "loop", "stock", "none"):
            for number in range(max(one["round"] for one in rounds) + 1):
                found = pick(rounds, way, number, task) if bool(number) == (way != "start") else []
                if found:
                    facts = {name: float(np.mean([one[name] for one in found])) for name in ("fooled", "over-reward")}
                    seeds = [one["success"] for one in sorted(found, key=lambda one: one["seed"])]
                    policies = sum(one["fooled"] >= HALF for one in found)
                    rows.append({"task": task, "way": way, "round": number, "seeds": seeds, **facts})
                    rows[-1] |= {"labels": found[0]["labels"], "policies": policies, "mean": float(np.mean(seeds))}
    return rows


def summarize_models(out: Path) -> list[dict[str, Any]]:
    """List, by task, way and round, how a model judges policies that no model was taught anything of."""
    chains = [json.loads(path.read_text()) for path in sorted((out / "runs").glob("*/models.json"))]
    models = [{"task": chain["task"], **model} for chain in chains for model in chain["models"]]
    rows = []
    for task in dict.fromkeys(model["task"] for model in models):
        for way, number in sorted(
            {(model["way"], model["round"]) for model in models}, key=lambda key: (key[1], key[0])
        ):
            of_task = [m for m in models if (m["task"], m["way"], m["round"]) == (task, way, number)]
            if way != "none" and of_task:
                means = {name: float(np.mean([m[name] for m in of_task])) for name in JUDGED}
                rows.append({"task": task, "way": way if number else "start", "round": number, **means})
                rows[-1]["each"] = [m["auroc"] for m in of_task]
    return rows


def compare_ways(rounds: Sequence[Round], last: int) -> list[dict[str, Any]]:
    """Compare the last round of `loop` with its start and with the other ways: paired, tasks and seeds resampled."""
    rows = []
    for name in COMPARED:
        ends = {way: values_by_chain(pick(rounds, way, last), name) for way in ("loop", "stock", "none")}
        ends["start"] = values_by_chain(pick(rounds, "loop", 0), name)
        for other in ("start", "stock", "none"):
            chains = sorted(set(ends["loop"]) & set(ends[other]))
            if chains:
                a, b = ([ends[way][chain] for chain in chains] for way in ("loop", other))
                rows.append({"other": other, **vars(compare(partial(tally_chains, name, chains), a, b))})
    return rows


def tally_chains(name: str, chains: list[str], values: Floats) -> Tally:
    """Tally a mean over chains, each a cluster."""
    return mean_tally(name, "chains", values, chains)


def values_by_chain(rounds: Sequence[Round], name: str) -> dict[str, float]:
    """Return a figure of each task and seed."""
    return {f"{one['task']} {one['seed']}": one[name] for one in rounds}


def write_page(out: Path) -> str:
    """Write page.html and results.md."""
    rounds = read_rounds(out)
    last = max([1, *(one["round"] for one in rounds)])
    pairs = []
    for task in dict.fromkeys(one["task"] for one in rounds):
        seed = max(pick(rounds, "loop", 0, task), key=lambda one: one["fooled"] * one["over-reward"])["seed"]
        ends = [one for number in (0, last) for one in pick(rounds, "loop", number, task) if one["seed"] == seed]
        pairs.append([{**one, **draw_clip(one["clips"][0])} for one in ends])
    variants = [one for one in rounds if "variants" in one]
    facts = {
        "words": [(WORDS[way], colour) for way, colour in COLOURS.items()],
        "charts": {
            "True success in the second world": draw_rounds(rounds, "success", last),
            "Trials in which the reward model is fooled": draw_rounds(rounds, "fooled", last),
        },
        "rows": summarize(rounds),
        "models": summarize_models(out),
        "compared": compare_ways(rounds, last),
        "pairs": [pair for pair in pairs if len(pair) > 1],
        "last": last,
        "variants": sum(one["variants"] for one in variants),
        "failing": sum(one["failing variants"] for one in variants),
        "flagged": [sum(one[f"flagged {kind}"] for one in rounds) for kind in ("failures", "successes")],
        "rounds": len(rounds),
    }
    fill_templates(Path(__file__).parent, out, facts)
    return f"{len(rounds)} rounds: {out / 'page.html'}, {out / 'results.md'}"
