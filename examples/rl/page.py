"""One page and one table of all runs that have finished."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment

from demerit.data.files import write_atomic
from prepare import BINARY, CLOCK, CONTINUOUS, ENDS, EXACT, FIVE, SPARSE, TRUE
from train import read_results

KINDS = {
    TRUE: ("the environment's own reward", "var(--ink)"),
    CONTINUOUS: ("learned, continuous", "var(--s0)"),
    FIVE: ("learned, five bins", "var(--s2)"),
    BINARY: ("learned, binary", "var(--s4)"),
    SPARSE: ("learned, last step alone", "var(--s1)"),
    CLOCK: ("clock: time alone", "var(--s3)"),
    EXACT: ("measured progress", "var(--s5)"),
    ENDS: ("success at the last step alone", "var(--s6)"),
}
NAMES = {"mae": "1 - MAE of the reward on held-out episodes", "auroc": "AUROC of the reward on held-out episodes"}
COLOURS = ("var(--s0)", "var(--s1)", "var(--s2)")
WIDTH, HEIGHT, LEFT, BOTTOM, MARGIN = 460, 260, 46, 40, 18
LAST = 3
"""the success of a run is the mean of its last evaluations"""
HALF = 0.5
Run = dict[str, Any]
Points = Sequence[tuple[float, float]]


def draw_chart(
    lines: Sequence[tuple[Points, str]],
    x: tuple[float, float, str],
    y: str,
    dots: str = "",
    steps: Sequence[float] | None = None,
) -> str:
    """Draw lines, each points and attributes, from 0 to 1 over `x` (its ends and its name); `dots` is drawn on top.

    `steps` are the numbers under the axis.
    """
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{y} against {x[2]}">']
    shares = (0, 0.25, 0.5, 0.75, 1)
    for share in shares:
        _, up = locate((x[0], share), x)
        parts += [
            f'<line x1="{LEFT}" x2="{WIDTH - MARGIN}" y1="{up}" y2="{up}" stroke="var(--line)"/>',
            f'<text x="{LEFT - 5}" y="{up + 4}" text-anchor="end">{share:g}</text>',
        ]
    for place in steps or [x[0] + share * (x[1] - x[0]) for share in shares]:
        across, _ = locate((place, 0), x)
        parts.append(f'<text x="{across}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{place:g}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 6}" text-anchor="middle">{x[2]}</text>')
    for points, look in lines:
        spots = " ".join(f"{across},{up}" for across, up in (locate(point, x) for point in points))
        parts.append(f'<polyline fill="none" {look} points="{spots}"/>')
    return "".join([*parts, dots, "</svg>"])


def locate(point: tuple[float, float], x: tuple[float, float, str]) -> tuple[float, float]:
    """Return a point's place in the picture."""
    across = LEFT + (point[0] - x[0]) / (x[1] - x[0]) * (WIDTH - LEFT - MARGIN)
    return round(across, 1), round(HEIGHT - BOTTOM - point[1] * (HEIGHT - BOTTOM - MARGIN), 1)


def draw_learning(found: dict[str, list[Run]]) -> str:
    """Draw the success of each seed thin and their mean thick, by kind of reward."""
    lines: list[tuple[Points, str]] = []
    for reward, (_, colour) in KINDS.items():
        curves = [[(0, 0.0), *((p["step"], p["ever"]) for p in run["curve"])] for run in found.get(reward, [])]
        lines += [(curve, f'stroke="{colour}" opacity=".3"') for curve in curves if len(curves) > 1]
        if curves:
            mean = [(at[0][0], float(np.mean([y for _, y in at]))) for at in zip(*curves, strict=True)]
            lines.append((mean, f'stroke="{colour}" stroke-width="2.4"'))
    return draw_chart(lines, (0, max(points[-1][0] for points, _ in lines), "steps"), "success")


def draw_quality(points: list[Run], tasks: list[str], measure: str) -> str:
    """Draw success by a measure of quality, a dot per reward: filled if its model was taught failures."""
    values = [accuracy(point, measure) for point in points]
    axis = (min(0.9, math.floor(10 * min(values)) / 10), 1.0, NAMES[measure])
    dots = ""
    for point, value in zip(points, values, strict=True):
        across, up = locate((value, point["success"]), axis)
        colour = COLOURS[tasks.index(point["task"])]
        dots += f'<circle cx="{across}" cy="{up}" r="4.5" stroke="{colour}" stroke-width="2"'
        dots += f' fill="{colour if point.get("failures") else "none"}"><title>{point["name"]}</title></circle>'
    return draw_chart([], axis, "success", dots)


def accuracy(point: Run, measure: str) -> float:
    """The quality of a reward: AUROC, or 1 minus the mean absolute error."""
    return float(point["auroc"] if measure == "auroc" else 1 - point["mae"])


def success_of(run: Run) -> float:
    """The success of a run: the mean of its last evaluations."""
    return float(np.mean([point["ever"] for point in run["curve"][-LAST:]]))


def at_end(runs: Sequence[Run], name: str) -> float:
    """The mean of `values` (what the model believes) or `progress` (what is true) at the end of the trials."""
    return float(np.mean([clip[name][-1] for run in runs for clip in run["clips"]]))


def correlate(points: list[Run], measure: str, resamples: int = 4000) -> dict[str, Any] | None:
    """Correlate quality with success over all rewards, and within each task.

    The interval is by resampling rewards within tasks, and seeds within rewards.
    """
    groups: dict[str, list[Run]] = defaultdict(list)
    for point in points:
        groups[point["task"]].append(point)
    rng, draws = np.random.default_rng(0), []
    for _ in range(resamples):
        pairs = []
        for group in groups.values():
            for at in rng.integers(len(group), size=len(group)):
                seeds = np.array(group[at]["each"])
                pairs.append((accuracy(group[at], measure), seeds[rng.integers(len(seeds), size=len(seeds))].mean()))
        draws.append(pearson(pairs))
    within = {
        name: pearson([(accuracy(point, measure), point["success"]) for point in group])
        for name, group in groups.items()
    }
    r = pearson([(accuracy(point, measure), point["success"]) for point in points])
    if np.isnan(r) or np.isnan(draws).mean() > HALF:
        return None
    low, high = np.nanpercentile(draws, [2.5, 97.5]).tolist()
    return {"r": r, "low": low, "high": high, "within": within, "points": len(points), "name": NAMES[measure]}


def pearson(pairs: Sequence[tuple[float, float]]) -> float:
    """Return Pearson's correlation; NaN where one side does not vary."""
    table = np.array(pairs)
    return float(np.corrcoef(table.T)[0, 1]) if len(table) > 2 and table.std(axis=0).min() > 0 else math.nan


def fooled(runs: Sequence[Run]) -> float:
    """The share of trials at whose end the task is not done and the model's value is at least one half."""
    ends = [(clip["values"][-1], clip["progress"][-1]) for run in runs for clip in run["clips"]]
    return float(np.mean([value >= HALF and progress < 1 for value, progress in ends]))


def make_point(name: str, quality: Run, runs: list[Run]) -> Run:
    """Join the quality of a reward with the success of the policies that learned from it."""
    each = [success_of(run) for run in runs]
    point = {**quality, "name": name, "each": each, "seeds": len(each), "success": float(np.mean(each))}
    if runs[0].get("clips"):
        point |= {"believed": at_end(runs, "values"), "reached": at_end(runs, "progress"), "fooled": fooled(runs)}
    return point


def is_honest(quality: Run, failures: bool) -> bool:
    """Whether a model was taught true labels, with or without failures."""
    return quality.get("failures") == failures and not quality["shuffled"]


def find_hacks(runs: list[Run], quality: dict[str, Any], most: int = 3) -> list[tuple[Run, Run]]:
    """Pair runs of models without failures with the same runs with them; the largest difference first."""
    learned = {(run["lesson"], run["seed"]): run for run in runs if run["reward"] == CONTINUOUS}
    pairs = [
        (run, other)
        for (lesson, seed), run in learned.items()
        if (other := learned.get((lesson.replace("without", "with"), seed))) and not quality[lesson]["failures"]
    ]
    return sorted(pairs, key=lambda pair: fooled(pair[:1]) - fooled(pair[1:]), reverse=True)[:most]


def draw_clip(clip: Run) -> dict[str, Any]:
    """The clip of a policy: what it does, what the model believes and what is true."""
    looks = {"values": 'stroke="var(--s1)" stroke-width="2.4"', "progress": 'stroke="var(--ink)" stroke-width="2.4"'}
    lines = [(list(enumerate(clip[name])), look) for name, look in looks.items()]
    chart = draw_chart(lines, (0, len(clip["values"]) - 1, "step"), "value")
    return {"video": clip["video"], "chart": chart}


def describe_clip(run: Run, facts: Run) -> dict[str, Any]:
    """The first clip of a run, and what is known of both."""
    return {**facts, **run, **draw_clip(run["clips"][0]), "fooled": fooled([run])}


def fill_templates(folder: Path, out: Path, facts: dict[str, Any]) -> None:
    """Write every template of a folder to `out`, in the style of demerit's pages."""
    env = Environment(autoescape=False, trim_blocks=True, lstrip_blocks=True)
    style = (files("demerit") / "assets" / "pages" / "style.css").read_text("utf-8")
    for path in folder.glob("*.j2"):
        text = env.from_string(path.read_text("utf-8")).render(facts, style=style)
        write_atomic(out / path.stem, text.encode())


def write_page(out: Path, say: Callable[[str], None]) -> None:
    """Write page.html, figure.html (to be photographed) and results.md from the finished runs."""
    runs = read_results(out)
    quality = json.loads((out / "models" / "quality.json").read_text())
    best = {facts["task"]: name for name, facts in quality.items() if facts.get("curves") and facts["failures"]}
    kinds: dict[str, dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    taught: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run["lesson"] in ("", best.get(run["task"])):
            kinds[run["task"]][run["reward"]].append(run)
        if run["reward"] in (CONTINUOUS, EXACT, CLOCK):
            taught[run["lesson"] or f"{run['task']}-{run['reward']}"].append(run)
    points = [make_point(name, quality[name], runs_of) for name, runs_of in taught.items() if name in quality]
    sides = {
        flag: [run for name in taught for run in taught[name] if is_honest(quality[name], flag)]
        for flag in (False, True)
    }
    tasks = list(dict.fromkeys(facts["task"] for facts in quality.values()))
    links = {measure: correlate(points, measure) for measure in NAMES}
    facts = {
        "kinds": KINDS.values(),
        "charts": {name: draw_learning(found) for name, found in kinds.items()},
        "rows": [
            (name, label, [success_of(run) for run in kinds[name][reward]])
            for name in kinds
            for reward, (label, _) in KINDS.items()
            if kinds[name][reward]
        ],
        "points": sorted(points, key=lambda p: (p["task"], -p["auroc"])),
        "scatters": [(draw_quality(points, tasks, name), links[name]) for name in NAMES] if points else [],
        "links": [link for link in links.values() if link],
        "tasks": list(zip(tasks, COLOURS, strict=False)),
        "hacks": [[describe_clip(run, quality[run["lesson"]]) for run in pair] for pair in find_hacks(runs, quality)],
        "fooled": [(fooled(side), len(side)) if side else None for side in sides.values()],
        "runs": len(runs),
    }
    fill_templates(Path(__file__).parent, out, facts)
    say(f"{len(runs)} runs: {out / 'page.html'}, {out / 'results.md'}")
