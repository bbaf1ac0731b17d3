"""One page and one table of all runs that have finished."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment

from demerit.data.files import write_atomic
from prepare import BINARY, CLOCK, CONTINUOUS, FIVE, TRUE
from train import read_results

KINDS = {
    TRUE: ("the environment's own reward", "var(--ink)"),
    CONTINUOUS: ("learned, continuous", "var(--s0)"),
    FIVE: ("learned, five bins", "var(--s2)"),
    BINARY: ("learned, binary", "var(--s4)"),
    CLOCK: ("clock: time alone", "var(--s3)"),
}
COLOURS = ("var(--s0)", "var(--s1)", "var(--s2)")
WIDTH, HEIGHT, LEFT, BOTTOM, MARGIN = 460, 260, 46, 40, 18
LAST = 3
"""the success of a run is the mean of its last evaluations"""
HALF = 0.5
Run = dict[str, Any]
Points = Sequence[tuple[float, float]]


def draw_chart(lines: Sequence[tuple[Points, str]], x: tuple[float, float, str], y: str, dots: str = "") -> str:
    """Draw lines, each points and attributes, from 0 to 1 over `x` (its ends and its name); `dots` is drawn on top."""
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{y} against {x[2]}">']
    for share in (0, 0.25, 0.5, 0.75, 1):
        place = x[0] + share * (x[1] - x[0])
        across, up = locate((place, share), x)
        parts += [
            f'<line x1="{LEFT}" x2="{WIDTH - MARGIN}" y1="{up}" y2="{up}" stroke="var(--line)"/>',
            f'<text x="{LEFT - 5}" y="{up + 4}" text-anchor="end">{share:g}</text>',
            f'<text x="{across}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{place:g}</text>',
        ]
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


def draw_quality(points: list[Run], tasks: list[str]) -> str:
    """Draw success by AUROC, a dot per model: filled if it was taught failures."""
    axis, dots = (0.5, 1.0, "AUROC of the reward model on held-out episodes"), ""
    for point in points:
        across, up = locate((max(axis[0], point["auroc"]), point["success"]), axis)
        colour = COLOURS[tasks.index(point["task"])]
        dots += f'<circle cx="{across}" cy="{up}" r="4.5" stroke="{colour}" stroke-width="2"'
        dots += f' fill="{colour if point["failures"] else "none"}"><title>{point["name"]}</title></circle>'
    return draw_chart([], axis, "success", dots)


def success_of(run: Run) -> float:
    """The success of a run: the mean of its last evaluations."""
    return float(np.mean([point["ever"] for point in run["curve"][-LAST:]]))


def at_end(runs: Sequence[Run], name: str) -> float:
    """The mean of `values` (what the model believes) or `progress` (what is true) at the end of the trials."""
    return float(np.mean([clip[name][-1] for run in runs for clip in run["clips"]]))


def correlate(points: list[Run], resamples: int = 4000) -> tuple[float, float, float, int] | None:
    """Correlate quality with success among the models of the same task; the interval is by resampling models."""
    groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for point in points:
        groups[point["task"]].append((point["auroc"], point["success"]))
    pairs = [np.array(group) for group in groups.values() if len(group) > 2]
    rng, draws = np.random.default_rng(0), []
    for number in range(resamples + 1):
        taken = [group[rng.integers(len(group), size=len(group))] if number else group for group in pairs]
        centred = np.concatenate([np.zeros((1, 2)), *(group - group.mean(axis=0) for group in taken)])[1:]
        if len(centred) and centred.std(axis=0).min() > 0:
            draws.append(float(np.corrcoef(centred.T)[0, 1]))
    if len(draws) < resamples / 2:
        return None
    return draws[0], *np.percentile(draws[1:], [2.5, 97.5]).tolist(), sum(map(len, pairs))


def fooled(runs: Sequence[Run]) -> float:
    """The share of trials at whose end the task is not done and the model's value is at least one half."""
    ends = [(clip["values"][-1], clip["progress"][-1]) for run in runs for clip in run["clips"]]
    return float(np.mean([value >= HALF and progress < 1 for value, progress in ends]))


def find_hacks(runs: list[Run], quality: dict[str, Any], most: int = 3) -> list[tuple[Run, Run]]:
    """Pair runs of models without failures with the same runs with them; the largest difference first."""
    learned = {(run["lesson"], run["seed"]): run for run in runs if run["reward"] == CONTINUOUS}
    pairs = [
        (run, other)
        for (lesson, seed), run in learned.items()
        if (other := learned.get((lesson.replace("without", "with"), seed))) and not quality[lesson]["failures"]
    ]
    return sorted(pairs, key=lambda pair: fooled(pair[:1]) - fooled(pair[1:]), reverse=True)[:most]


def describe_clip(run: Run, facts: Run) -> dict[str, Any]:
    """The clip of a policy: what it does, what the model believes and what is true."""
    clip = run["clips"][0]
    looks = {"values": 'stroke="var(--s1)" stroke-width="2.4"', "progress": 'stroke="var(--ink)" stroke-width="2.4"'}
    lines = [(list(enumerate(clip[name])), look) for name, look in looks.items()]
    chart = draw_chart(lines, (0, len(clip["values"]) - 1, "step"), "value")
    return {**facts, **run, "video": clip["video"], "chart": chart, "fooled": fooled([run])}


def write_page(out: Path, say: Callable[[str], None]) -> None:
    """Write page.html, figure.html (to be photographed) and results.md from the finished runs."""
    runs = read_results(out)
    quality = json.loads((out / "models" / "quality.json").read_text())
    best = {facts["task"]: name for name, facts in quality.items() if facts["curves"] and facts["failures"]}
    kinds: dict[str, dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    taught: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run["lesson"] in ("", best.get(run["task"])):
            kinds[run["task"]][run["reward"]].append(run)
        if run["reward"] == CONTINUOUS:
            taught[run["lesson"]].append(run)
    points = [
        {**quality[name], "name": name, "seeds": len(found), "success": float(np.mean([success_of(r) for r in found]))}
        | {"believed": at_end(found, "values"), "reached": at_end(found, "progress"), "fooled": fooled(found)}
        for name, found in taught.items()
    ]
    sides = {
        flag: [run for name in taught for run in taught[name] if quality[name]["failures"] == flag]
        for flag in (False, True)
    }
    tasks = list(dict.fromkeys(facts["task"] for facts in quality.values()))
    facts = {
        "style": (files("demerit") / "assets" / "pages" / "style.css").read_text("utf-8"),
        "kinds": KINDS.values(),
        "charts": {name: draw_learning(found) for name, found in kinds.items()},
        "rows": [
            (name, label, [success_of(run) for run in kinds[name][reward]])
            for name in kinds
            for reward, (label, _) in KINDS.items()
            if kinds[name][reward]
        ],
        "points": sorted(points, key=lambda p: (p["task"], -p["auroc"])),
        "scatter": draw_quality(points, tasks),
        "link": correlate(points),
        "tasks": list(zip(tasks, COLOURS, strict=False)),
        "hacks": [[describe_clip(run, quality[run["lesson"]]) for run in pair] for pair in find_hacks(runs, quality)],
        "fooled": [(fooled(side), len(side)) if side else None for side in sides.values()],
        "runs": len(runs),
    }
    env = Environment(autoescape=False, trim_blocks=True, lstrip_blocks=True)
    for template in ("page.html.j2", "figure.html.j2", "results.md.j2"):
        text = env.from_string(Path(__file__).with_name(template).read_text("utf-8")).render(facts)
        write_atomic(out / template.removesuffix(".j2"), text.encode())
    say(f"{len(runs)} runs: {out / 'page.html'}, {out / 'results.md'}")
