"""Best of K: how good is the candidate that a model picks, as K grows, and where does picking more begin to hurt?

    demerit simulate STORE --benchmark metaworld-bad@1 --split test
    OPENBLAS_NUM_THREADS=1 python benchmarks/best_of_k.py STORE [--cache DIR] [--draws 8] [--out DIR]
    python benchmarks/best_of_k.py --small

Every task is taught by itself, with and without failures; candidates are its episodes in scenes that were not taught.
K candidates are drawn with replacement and the one with the highest final value is picked (`demerit.use.select`); of
equal values, the one with the highest probability of success. Its true progress at the end is the simulator's.
Expectations over the draws of candidates are exact, not sampled; equals in both are picked equally often. Regret is the
best true progress among the K minus that of the pick. Prints tables; writes tables.md and best_of_k.png.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from PIL import Image

from demerit.models.taught.features import FeatureLayout
from what_a_bad_example_is_worth import (
    BOTTOM,
    FAINT,
    GAP,
    GRID,
    HEIGHT,
    INK,
    LEFT,
    RIGHT,
    SAMPLE,
    WIDTH,
    Canvas,
    Draw,
    Lesson,
    Point,
    Recording,
    columns_of,
    fit_lesson,
    interval,
    load_recordings,
)

COUNTS = (1, 2, 4, 8, 16, 32, 64)
PLACES = range(1, len(COUNTS))
LESSONS = {
    "5 successes + 5 failures, curves": Lesson(5, 5),
    "10 successes, curves": Lesson(10, 0),
    "5 successes + 5 failures, flags": Lesson(5, 5, "outcome"),
    "10 successes, flags": Lesson(10, 0, "outcome"),
}
COLOURS = dict(zip(LESSONS, ((213, 94, 0), (86, 180, 233), (230, 159, 0), (0, 114, 178)), strict=True))
UNTAUGHT, ORACLE = "untaught (default)", "oracle"
ALONE = "value alone"
"""picked without the probability of success, which otherwise decides between equal values"""
COLOURS |= {UNTAUGHT: (150, 150, 156), ORACLE: (0, 0, 0)}
NEEDED = 10
"""successes and failures that the taught scenes have at least"""
FALL = 0.02
"""a fall of the true progress that counts"""
PROPOSALS = {"as recorded": None, "1 of 10 succeeds": 0.1, "none succeeds": 0.0}
"""who proposes the candidates: the share of successes among them"""


@dataclass(frozen=True, eq=False)
class PickCurve:
    """What the pick of one model among K candidates is expected to be, for every K."""

    truth: np.ndarray
    value: np.ndarray
    """what the model says"""
    regret: np.ndarray
    success: np.ndarray


def expect_pick(values: np.ndarray, quantity: np.ndarray, weights: np.ndarray, count: int) -> float:
    """The expected `quantity` of the highest of `count` values, drawn with replacement by `weights` (sum 1)."""
    values, quantity, weights = (column[weights > 0] for column in (values, quantity, weights))
    _, places = np.unique(values, return_inverse=True)
    shares = np.bincount(places, weights)
    means = np.bincount(places, weights * quantity) / shares
    return float(np.sum(np.diff(np.concatenate([[0.0], np.cumsum(shares)]) ** count) * means))


Ends = tuple[np.ndarray, np.ndarray]
"""the final value of each candidate, and what it is ranked by"""


def follow_picks(candidates: Sequence[Recording], ends: Ends, rate: float | None) -> PickCurve:
    """Measure the picks among these candidates, of which a share `rate` succeeds (None = as recorded)."""
    values, ranks = ends
    truth = np.array([float(one.truth[-1]) for one in candidates])
    success = np.array([float(one.success) for one in candidates])
    share = success.mean() if rate is None else rate
    weights = np.where(success > 0, share / success.sum(), (1 - share) / (1 - success).sum())

    def expect(by: np.ndarray, quantity: np.ndarray) -> np.ndarray:
        return np.array([expect_pick(by, quantity, weights, count) for count in COUNTS])

    found = expect(ranks, truth)
    return PickCurve(found, expect(ranks, values), expect(truth, truth) - found, expect(ranks, success))


def make_lessons(recordings: Sequence[Recording], count: int, needed: int) -> list[Draw]:
    """Split every task `count` times by scenes: enough scenes to teach, the others are candidates."""
    found = []
    for task in sorted({one.task for one in recordings}):
        mine = [one for one in recordings if one.task == task]
        scenes = sorted({one.scene for one in mine})
        for number in range(count):
            rng = np.random.default_rng([sum(task.encode()), number])
            taught: set[str] = set()
            for scene in rng.permutation(scenes).tolist():
                rest = [one for one in mine if one.scene in taught]
                if min(sum(one.success for one in rest), sum(not one.success for one in rest)) >= needed:
                    break
                taught.add(scene)
            rest = [mine[i] for i in rng.permutation(len(mine)).tolist() if mine[i].scene in taught]
            test = tuple(one for one in mine if one.scene not in taught)
            sides = (tuple(one for one in rest if one.success == side) for side in (True, False))
            if 0 < sum(one.success for one in test) < len(test):
                found.append(Draw(task, number, test, *sides))
    return found


_shared: list[tuple[list[Draw], FeatureLayout, int]] = []
"""what the forked worker processes share"""


def _measure_draw(place: int) -> dict[str, dict[str, PickCurve]]:
    draws, layout, part = _shared[0]
    draw = draws[place]
    lessons = {name: Lesson(one.good // part, one.bad // part, one.label) for name, one in LESSONS.items()}
    finals = {
        UNTAUGHT: [one.rewards["untaught"][-1] for one in draw.test],
        ORACLE: [one.truth[-1] for one in draw.test],
    }
    alone: dict[str, Ends] = {}
    scores: dict[str, Ends] = {}
    for name, lesson in lessons.items():
        head = fit_lesson(draw, lesson, layout)
        if head is not None:
            outputs = [head.outputs(columns_of(one, lesson))[-1:] for one in draw.test]
            values = np.array([head.value(one)[0] for one in outputs], np.float32)
            chances = np.array([head.success(one)[0] for one in outputs], np.float32)
            both = np.unique(np.stack([values, chances], axis=1), axis=0, return_inverse=True)[1].reshape(-1)
            scores[name], alone[f"{name}, {ALONE}"] = (values, both), (values, values)
    scores |= {name: (np.array(ends), np.array(ends)) for name, ends in finals.items()} | alone
    return {
        proposals: {name: follow_picks(draw.test, ends, rate) for name, ends in scores.items()}
        for proposals, rate in PROPOSALS.items()
    }


Results = dict[str, dict[str, list[PickCurve]]]
"""by model and task, a curve per draw"""


def spans(results: Results, model: str, quantity: str) -> list[tuple[float, float, float]]:
    """The mean over tasks and its 95% interval, for every K."""
    by_task = {
        task: np.mean([getattr(one, quantity) for one in curves], axis=0) for task, curves in results[model].items()
    }
    return [interval({task: float(column[i]) for task, column in by_task.items()}) for i in range(len(COUNTS))]


QUANTITIES = {
    "truth": "true progress of the pick",
    "success": "share of picks that succeeded",
    "regret": "regret",
    "value": "what the model says of its pick",
}


def make_tables(results: dict[str, Results], draws: Sequence[Draw]) -> str:
    sizes, tasks = [len(draw.test) for draw in draws], len({draw.task for draw in draws})
    lines = [f"{tasks} tasks, {len(draws)} draws, {min(sizes)} to {max(sizes)} candidates each.", ""]
    for proposals, found in results.items():
        for quantity, title in QUANTITIES.items():
            lines += [f"## Candidates {proposals}: {title}", ""]
            lines += ["| picked by | " + " | ".join(f"K = {count}" for count in COUNTS) + " |"]
            lines += ["|---" * (len(COUNTS) + 1) + "|"]
            for model in found:
                cells = [_cell(*one) for one in zip(spans(found, model, quantity), COUNTS, strict=True)]
                lines.append(f"| {model} | " + " | ".join(cells) + " |")
            lines.append("")
        lines += [f"## Candidates {proposals}: 5 failures instead of 5 successes", "", *_list_changes(found), ""]
        lines += [f"## Candidates {proposals}: where picking from more begins to hurt", "", *_list_falls(found), ""]
    return "\n".join([*lines, *_list_tasks(results["none succeeds"]), ""])


def _list_changes(results: Results) -> list[str]:
    lines = ["| labels | pick's | " + " | ".join(f"K = {count}" for count in COUNTS[1:]) + " |"]
    lines += ["|---" * (len(COUNTS) + 1) + "|"]
    for labels in ("curves", "flags"):
        mixed, plain = (results[f"{lesson}, {labels}"] for lesson in ("5 successes + 5 failures", "10 successes"))
        for quantity in ("truth", "success"):
            after, before = (
                {task: np.mean([getattr(one, quantity) for one in curves], axis=0) for task, curves in found.items()}
                for found in (mixed, plain)
            )
            changes = [interval({task: float(after[task][i] - before[task][i]) for task in after}) for i in PLACES]
            cells = [f"{value:+.3f} ({low:+.2f} to {high:+.2f})" for value, low, high in changes]
            lines.append(f"| {labels} | {quantity} | " + " | ".join(cells) + " |")
    return lines


def _list_falls(results: Results) -> list[str]:
    fell = f"draws in which truth falls by {FALL:g} or more after its best K"
    lines = [f"| picked by | best K of the mean | {fell} | mean fall |", "|---|---|---|---|"]
    for model, by_task in results.items():
        mean = [span[0] for span in spans(results, model, "truth")]
        falls = np.array([curve.truth.max() - curve.truth[-1] for curves in by_task.values() for curve in curves])
        best = COUNTS[int(np.argmax(np.round(mean, 3)))]
        lines.append(f"| {model} | {best} | {np.mean(falls >= FALL):.0%} | {falls.mean():.3f} |")
    return lines


def _list_tasks(results: Results) -> list[str]:
    shown = [model for model in COLOURS if model != ORACLE]
    lines = ["## Candidates none succeeds, by task: true progress at K = 1, its best K, K = 64", ""]
    lines += ["| task | " + " | ".join(shown) + " |", "|---" * (len(shown) + 1) + "|"]
    for task in sorted(results[ORACLE]):
        means = [np.mean([one.truth for one in results[model][task]], axis=0) for model in shown]
        cells = [f"{one[0]:.2f}, {one.max():.2f} ({COUNTS[int(one.argmax())]}), {one[-1]:.2f}" for one in means]
        lines.append(f"| {task} | " + " | ".join(cells) + " |")
    return lines


def _cell(span: tuple[float, float, float], count: int) -> str:
    value, low, high = (round(number, 3) + 0.0 for number in span)
    ends = count in (COUNTS[2], COUNTS[-1]) and not math.isnan(low)
    return f"{value:.3f} ({low:.2f} to {high:.2f})" if ends else f"{value:.3f}"


# The figure

TOP = 122
PANELS = (
    ("1 of 10 succeeds", "truth", "1 of 10 succeeds: true progress of the pick"),
    ("none succeeds", "truth", "none succeeds: true progress"),
    ("none succeeds", "value", "none succeeds: what the model says"),
)
BANDS = ("5 successes + 5 failures, flags", "10 successes, flags")


def draw_figure(results: dict[str, Results], path: Path) -> None:
    """Draw the truth of the picks and what the models say of them, against K."""
    canvas, models = Canvas(), list(COLOURS)
    canvas.text((LEFT - 24, 24), "Picking the best of K rollouts", INK, 17)
    said = (
        f"{len(results['none succeeds'][ORACLE])} simulated tasks that were never trained on; new scenes, new cameras"
    )
    canvas.text((LEFT - 24, 43), f"{said}; bands: 95% over tasks", FAINT, 11.5)
    for place, model in enumerate(models):
        x, y = LEFT - 24 + 270 * (place % 3), 64 + 18 * (place // 3)
        canvas.line([(x, y - 4), (x + 20, y - 4)], COLOURS[model], 2.2)
        canvas.text((x + 26, y), model, INK, 11.5)
    width = (WIDTH - LEFT - RIGHT - GAP * 2) / 3
    for place, (proposals, quantity, title) in enumerate(PANELS):
        shown = [model for model in models if model != ORACLE or quantity == "truth"]
        lines = {model: spans(results[proposals], model, quantity) for model in shown}
        _draw_panel(canvas, title, lines, LEFT + place * (width + GAP), width)
    canvas.image.resize((WIDTH * 2, HEIGHT * 2), Image.Resampling.BOX).save(path, optimize=True)


def _draw_panel(
    canvas: Canvas, title: str, lines: dict[str, list[tuple[float, float, float]]], left: float, width: float
) -> None:
    bottom, height = HEIGHT - BOTTOM, HEIGHT - BOTTOM - TOP

    def at(place: int, value: float) -> Point:
        return left + 8 + (width - 16) * place / (len(COUNTS) - 1), bottom - height * value

    canvas.text((left - 24, TOP - 14), title, INK, 13)
    for tick in (0, 0.2, 0.4, 0.6, 0.8, 1):
        y = at(0, tick)[1]
        canvas.line([(left, y), (left + width, y)], GRID, 1)
        canvas.text((left - 5, y), f"{tick:g}", FAINT, 10.5, "rm")
    for place, count in enumerate(COUNTS):
        canvas.text((at(place, 0)[0], bottom + 15), f"{count}", FAINT, 10.5, "ms")
    canvas.text((left + width / 2, bottom + 34), "candidates K", FAINT, 11, "ms")
    for model in BANDS:
        edges = [[at(place, point[i]) for place, point in enumerate(lines[model])] for i in (2, 1)]
        if not math.isnan(lines[model][0][1]):
            canvas.band([*edges[0], *reversed(edges[1])], COLOURS[model])
    for model, line in lines.items():
        placed = [at(place, point[0]) for place, point in enumerate(line)]
        canvas.line(placed, COLOURS[model], 2.2)
        for x, y in placed:
            canvas.dot(x, y, COLOURS[model])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", nargs="?", help="a dataset with measured curves (see above)")
    parser.add_argument("--cache", type=Path, help="keep the features here for the next run")
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, help="folder for tables.md and the figure (default: a temporary one)")
    parser.add_argument("--small", action="store_true", help="one task of 28 episodes, lessons of half the size")
    given = parser.parse_args()
    if given.store is None and not given.small:
        parser.error("needs a STORE, or --small")
    with tempfile.TemporaryDirectory() as scratch:
        cache, out = given.cache or Path(scratch) / "cache", given.out or Path(scratch) / "out"
        for folder in (cache, out):
            folder.mkdir(parents=True, exist_ok=True)
        recordings, _, layout = load_recordings(f"videos:{SAMPLE}" if given.small else given.store, cache)
        part = 2 if given.small else 1
        draws = make_lessons(recordings, 2 if given.small else given.draws, NEEDED // part)
        _shared[:] = [(draws, layout, part)]
        results: dict[str, Results] = {name: defaultdict(lambda: defaultdict(list)) for name in PROPOSALS}
        with get_context("fork").Pool(1 if given.small else given.processes) as pool:
            for draw, found in zip(draws, pool.imap(_measure_draw, range(len(draws))), strict=True):
                for proposals, curves in found.items():
                    for model, curve in curves.items():
                        results[proposals][model][draw.task].append(curve)
        tables = make_tables(results, draws)
        (out / "tables.md").write_text(tables)
        draw_figure(results, out / "best_of_k.png")
        print(tables)


if __name__ == "__main__":
    main()
