"""What is a bad example worth? Teach with few labelled episodes, more or fewer of them failures, on unseen tasks.

    demerit simulate STORE --benchmark metaworld-bad@1 --split test
    OPENBLAS_NUM_THREADS=1 python benchmarks/what_a_bad_example_is_worth.py STORE [--cache DIR] [--draws 8] [--out DIR]
    python benchmarks/what_a_bad_example_is_worth.py --small

Prints tables and writes tables.md and bad_example_worth.png. Each task is taught by itself many times; test scenes (and
their cameras) are never taught. Heads are fitted with the defaults. `--small` uses the sample that comes with demerit.
"""

from __future__ import annotations

import argparse
import itertools
import math
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import demerit
from demerit.models.baselines import Clock, Constant, Length
from demerit.models.compact import Engine
from demerit.models.taught.features import FeatureLayout
from demerit.models.taught.head import TaughtHead
from demerit.negatives.sim.splits import matched_pairs
from demerit.training.teach import TeachConfig
from demerit.training.teach.data import FrameTargets, TeachLabel, start_targets, targets_of
from demerit.training.teach.features import EmbeddedEpisode, FeatureSpec, extract_features
from demerit.training.teach.fit import FitExample, fit_head

SAMPLE = Path(demerit.__file__).parent / "assets" / "sample"
BUDGETS = (2, 4, 8, 16, 40)
SHARES = {"100:0": 0.0, "75:25": 0.25, "50:50": 0.5, "25:75": 0.75}
"""successes to failures, and the share of failures"""
LABELS = {
    "dense": "progress at every frame",
    "moments": "four marked moments",
    "outcome": "success or failure only",
    "preferences": "preferences only (each success over each failure)",
}
METRICS = {"auroc": "AUROC", "pairs": "pairs", "mae": "MAE", "over": "over-reward"}
LOWER_IS_BETTER = ("mae", "over")
CONTROLS = ("untaught", "clock", "constant", "change", "motion", "length")
WANTED = ((16, 0), (10, 0), (12, 4), (8, 8), (4, 12), (20, 20))
"""lessons that the untested scenes should have enough episodes for"""
FEWEST, MARKS, MOST_SUBSETS, RESAMPLES, CUE_FRAMES = 2, 4, 5000, 10_000, 100.0
Curves = dict[str, np.ndarray]
"""a value per frame, by episode id"""


@dataclass(frozen=True, eq=False)
class Recording:
    """One simulated episode with its features and the rewards of models that are not taught."""

    id: str
    task: str
    scene: str
    success: bool
    truth: np.ndarray
    features: np.ndarray
    rewards: Curves
    """by model"""


@dataclass(frozen=True)
class Lesson:
    """What is taught: numbers of successes and failures, the kind of label, and the features used."""

    good: int
    bad: int
    label: str = "dense"
    cues: bool = False
    """features are only change, motion and elapsed time"""

    @property
    def name(self) -> str:
        return f"{self.good}+{self.bad}"


@dataclass(frozen=True, eq=False)
class Draw:
    """One split of a task: test episodes, and the others in random order."""

    task: str
    number: int
    test: tuple[Recording, ...]
    good: tuple[Recording, ...]
    bad: tuple[Recording, ...]


FEW, ALL_GOOD = Lesson(5, 5), Lesson(10, 0)


def budget_lessons(budgets: Sequence[int]) -> dict[tuple[int, str], Lesson]:
    """Every budget at every share of failures that gives whole numbers."""
    return {
        (budget, name): Lesson(round(budget * (1 - share)), round(budget * share))
        for budget in budgets
        for name, share in SHARES.items()
        if (budget * share).is_integer()
    }


# Data


def load_recordings(address: str, cache: Path) -> tuple[list[Recording], list[demerit.Preference], FeatureLayout]:
    """Read every episode with a measured curve and extract its features."""
    episodes = [e for e in demerit.open_dataset(address) if e.outcome is not None and e.outcome.curve is not None]
    spec = FeatureSpec(Engine.load_shipped(), (episodes[0].main_camera,), 1, TeachConfig())
    found, layout = [], None
    for embedded in extract_features(episodes, spec, cache, workers=2):
        assert isinstance(embedded, EmbeddedEpisode), embedded
        layout = layout or spec.layout(embedded)
        episode, frames = embedded.episode, np.arange(embedded.length)
        outcome = episode.outcome
        assert outcome is not None and outcome.curve is not None
        scored = [*embedded.controls, *(model.score([episode])[0] for model in (Clock(), Constant(), Length()))]
        rewards = {reward.model: np.interp(frames, reward.at, reward.value) for reward in scored}
        tower = np.asarray(next(iter(embedded.tower.values())), np.float32)
        rewards["untaught"] = np.clip(spec.network.follow(tower, episode.instruction).progress, 0, 1)
        names = (episode.id, episode.origin.tags["task"], episode.origin.group)
        found.append(Recording(*names, bool(outcome.success), outcome.curve, spec.features(embedded), rewards))
    assert layout is not None
    matched = matched_pairs(episodes) if "motion" in episodes[0].origin.tags else []  # the sample has no such tag
    return found, matched, layout


def make_draws(
    recordings: Sequence[Recording], pairs: Sequence[demerit.Preference], count: int, held: int
) -> list[Draw]:
    """Split every task `count` times by labels alone: `held` test scenes, many matched pairs in them."""
    found = []
    for task in sorted({one.task for one in recordings}):
        mine = [one for one in recordings if one.task == task]
        rng = np.random.default_rng([sum(task.encode()), 1])
        subsets = _usable_subsets(mine, held, rng)
        some = [subsets[i] for i in rng.permutation(len(subsets))[: 4 * count]]
        inside = [{one.id for one in mine if one.scene in scenes} for scenes in some]
        matched = [sum(pair.a in ids and pair.b in ids for pair in pairs) for ids in inside]
        for number, place in enumerate(np.argsort([-n for n in matched], kind="stable")[:count].tolist()):
            rest = [mine[i] for i in rng.permutation(len(mine)) if mine[i].id not in inside[place]]
            sides = (tuple(one for one in rest if one.success == side) for side in (True, False))
            found.append(Draw(task, number, tuple(one for one in mine if one.id in inside[place]), *sides))
    return found


def _usable_subsets(mine: Sequence[Recording], held: int, rng: np.random.Generator) -> list[tuple[str, ...]]:
    """Sets of scenes with both outcomes to test on, and the rest enough for as many wanted lessons as possible."""
    scenes = sorted({one.scene for one in mine})
    good = {scene: sum(one.success for one in mine if one.scene == scene) for scene in scenes}
    bad = {scene: sum(not one.success for one in mine if one.scene == scene) for scene in scenes}
    subsets: list[tuple[str, ...]]
    if math.comb(len(scenes), held) <= MOST_SUBSETS:
        subsets = list(itertools.combinations(scenes, held))
    else:
        subsets = [tuple(rng.choice(scenes, held, replace=False).tolist()) for _ in range(MOST_SUBSETS)]
    by_number: dict[int, list[tuple[str, ...]]] = defaultdict(list)
    for chosen in subsets:
        a, b = sum(good[scene] for scene in chosen), sum(bad[scene] for scene in chosen)
        if min(a, b) >= FEWEST:
            left = (sum(good.values()) - a, sum(bad.values()) - b)
            by_number[sum(left[0] >= g and left[1] >= f for g, f in WANTED)].append(chosen)
    return by_number[max(by_number)]


# Teaching


def teach_lesson(draw: Draw, lesson: Lesson, layout: FeatureLayout) -> Curves | None:
    """Fit a head and score the draw's test episodes; None when the task has too few episodes."""
    head = fit_lesson(draw, lesson, layout)
    return None if head is None else {one.id: head.value(head.outputs(columns_of(one, lesson))) for one in draw.test}


def fit_lesson(draw: Draw, lesson: Lesson, layout: FeatureLayout) -> TaughtHead | None:
    """Fit a head; None when the task has too few episodes."""
    if len(draw.good) < lesson.good or len(draw.bad) < lesson.bad:
        return None
    taught = [*draw.good[: lesson.good], *draw.bad[: lesson.bad]]
    config = TeachConfig(kind="linear") if lesson.cues else TeachConfig()
    examples = [FitExample(columns_of(one, lesson), _targets(one, lesson.label, config), one.scene) for one in taught]
    pairs = []
    if lesson.label == "preferences":
        sides = [[i for i, one in enumerate(taught) if one.success == side] for side in (True, False)]
        pairs = [(a, b, False) for a, b in itertools.product(*sides)]
    return fit_head(examples, config, pairs=pairs, layout=None if lesson.cues else layout)


def columns_of(one: Recording, lesson: Lesson) -> np.ndarray:
    """The features that a lesson uses."""
    if not lesson.cues:
        return one.features
    return np.stack([one.rewards["change"], one.rewards["motion"], np.arange(len(one.truth)) / CUE_FRAMES], axis=1)


def _targets(one: Recording, label: str, config: TeachConfig) -> FrameTargets:
    if label == "preferences":
        return start_targets(len(one.truth), config)
    curve = {"dense": one.truth, "moments": _mark(one.truth)}.get(label)
    progress = None if curve is None else float(one.truth[-1])
    return targets_of(TeachLabel(success=one.success, progress=progress, curve=curve), len(one.truth), config)


def _mark(truth: np.ndarray) -> np.ndarray:
    """Keep the start, the end and two turning points: each the frame farthest from the lines between the others."""
    at = [0, len(truth) - 1]
    while len(at) < min(MARKS, len(truth)):
        away = np.abs(truth - np.interp(np.arange(len(truth)), sorted(at), truth[sorted(at)]))
        away[at] = -1
        at.append(int(away.argmax()))
    known = np.full(len(truth), np.nan, dtype=np.float32)
    known[at] = truth[at]
    return known


_shared: list[tuple[list[Draw], list[Lesson], FeatureLayout]] = []
"""what the forked worker processes share"""


def _teach_draw(place: int) -> tuple[int, dict[Lesson, Curves]]:
    draws, lessons, layout = _shared[0]
    found = {lesson: curves for lesson in lessons if (curves := teach_lesson(draws[place], lesson, layout)) is not None}
    return place, found


# Measuring


@dataclass(frozen=True, eq=False)
class Results:
    """Scores of every lesson on every draw."""

    recordings: dict[str, Recording]
    pairs: list[demerit.Preference]
    draws: list[Draw]
    scores: dict[Lesson, dict[tuple[str, int], Curves]]

    def tasks(self, lesson: Lesson) -> set[str]:
        """Tasks with enough episodes for the lesson in every draw."""
        count = max(draw.number for draw in self.draws) + 1
        names = [task for task, _ in self.scores.get(lesson, {})]
        return {task for task in names if names.count(task) == count}

    def of_control(self, name: str) -> dict[tuple[str, int], Curves]:
        return {(d.task, d.number): {one.id: one.rewards[name] for one in d.test} for d in self.draws}

    def by_task(self, scores: dict[tuple[str, int], Curves], tasks: set[str]) -> dict[str, dict[str, float]]:
        """The metrics of each task, averaged over its draws."""
        parts: dict[str, list[dict[str, float]]] = defaultdict(list)
        for (task, _), curves in scores.items():
            if task in tasks:
                parts[task].append(self._measure(curves))
        return {
            task: {name: _mean([part[name] for part in found]) for name in METRICS}
            for task, found in sorted(parts.items())
        }

    def _measure(self, curves: Curves) -> dict[str, float]:
        final = {id: float(curve[-1]) for id, curve in curves.items()}
        good = np.array([value for id, value in final.items() if self.recordings[id].success])
        bad = np.array([value for id, value in final.items() if not self.recordings[id].success])
        won = [
            np.sign(final[pair.a] - final[pair.b]) * (1 if pair.better == pair.a else -1) / 2 + 0.5
            for pair in self.pairs
            if pair.a in final and pair.b in final
        ]
        return {
            "auroc": float((np.sign(good[:, None] - bad[None, :]) / 2 + 0.5).mean()),
            "pairs": _mean(won),
            "mae": float(np.concatenate([np.abs(c - self.recordings[id].truth) for id, c in curves.items()]).mean()),
            "over": float((bad >= np.median(good)).mean()),
        }


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan


def interval(by_task: dict[str, float]) -> tuple[float, float, float]:
    """The mean over tasks and its 95% interval (bootstrap of tasks); no interval for one task."""
    values = np.array([value for value in by_task.values() if not math.isnan(value)])
    if len(values) < 2:
        return (float(values.mean()) if len(values) else math.nan), math.nan, math.nan
    draws = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.quantile(values[draws].mean(axis=1), (0.025, 0.975))
    return float(values.mean()), float(low), float(high)


def spans(by_task: dict[str, dict[str, float]]) -> dict[str, tuple[float, float, float]]:
    return {name: interval({task: values[name] for task, values in by_task.items()}) for name in METRICS}


# Tables


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(span: tuple[float, float, float], sign: str = "") -> str:
    value, low, high = span
    if math.isnan(value):
        return "-"
    text = f"{value:{sign}.3f}"
    return text if math.isnan(low) else f"{text} ({low:{sign}.2f} to {high:{sign}.2f})"


def _table(
    results: Results, rows: dict[str, dict[tuple[str, int], Curves]], tasks: set[str] | None = None
) -> list[str]:
    lines = [_row("taught on", *METRICS.values(), "tasks"), "|---" * (len(METRICS) + 2) + "|"]
    for title, scores in rows.items():
        kept = {task for task, _ in scores} if tasks is None else tasks
        found = spans(results.by_task(scores, kept))
        lines.append(_row(title, *(_cell(found[name]) for name in METRICS), str(len(kept))))
    return lines


def _of(results: Results, lesson: Lesson) -> dict[tuple[str, int], Curves]:
    kept = results.tasks(lesson)
    return {key: curves for key, curves in results.scores[lesson].items() if key[0] in kept}


def make_tables(results: Results, budgets: Sequence[int]) -> str:
    listed = {key: lesson for key, lesson in budget_lessons(budgets).items() if results.tasks(lesson)}
    controls = {"change, motion and time, 5+5": _of(results, replace(FEW, cues=True))}
    controls |= {name: results.of_control(name) for name in CONTROLS}
    rows = {f"{lesson.name} ({n} at {share})": _of(results, lesson) for (n, share), lesson in listed.items()}
    lines = ["## Budgets and shares of failures", "", *_table(results, {**rows, "5+5": _of(results, FEW), **controls})]
    lines += ["", "## Kinds of label, 5+5", ""]
    labels = {title: _of(results, replace(FEW, label=label)) for label, title in LABELS.items()}
    lines += [*_table(results, labels, results.tasks(FEW)), "", "## Failures instead of successes", ""]
    lines += [_row("taught on", "instead of", *METRICS.values(), "tasks"), "|---" * (len(METRICS) + 3) + "|"]
    pairs = [(one, listed.get((n, "100:0"))) for (n, share), one in listed.items() if share != "100:0"]
    for lesson, plain in [*pairs, (FEW, ALL_GOOD)]:
        kept = results.tasks(lesson) & results.tasks(plain) if plain is not None else set()
        if plain is None or not kept:
            continue
        after, before = (results.by_task(results.scores[one], kept) for one in (lesson, plain))
        change = {task: {name: after[task][name] - before[task][name] for name in METRICS} for task in after}
        cells = [_cell(span, "+") for span in spans(change).values()]
        lines.append(_row(lesson.name, plain.name, *cells, str(len(kept))))
    return "\n".join([*lines, ""])


# The figure: drawn with Pillow, in points, four times as large, and averaged down

WIDTH, HEIGHT, UNIT = 900, 360, 4
TOP, BOTTOM, LEFT, GAP, RIGHT = 106, 50, 40, 48, 16
INK, FAINT, GRID = (34, 34, 38), (110, 110, 116), (232, 232, 234)
# Okabe and Ito's colours, for colour-blind readers
COLOURS = {"100:0": (86, 180, 233), "75:25": (0, 158, 115), "50:50": (213, 94, 0), "25:75": (0, 0, 0)}
LEGEND = {"100:0": "successes only", "75:25": "1/4 failures", "50:50": "half failures", "25:75": "3/4 failures"}
BANDS = ("100:0", "50:50")
Point = tuple[float, float]


class Canvas:
    """An image with coordinates in points."""

    def __init__(self) -> None:
        self.image = Image.new("RGB", (WIDTH * UNIT, HEIGHT * UNIT), (255, 255, 255))
        self.draw = ImageDraw.Draw(self.image)

    def line(self, points: Sequence[Point], colour: tuple[int, int, int], width: float) -> None:
        self.draw.line([(x * UNIT, y * UNIT) for x, y in points], colour, round(width * UNIT), joint="curve")

    def dot(self, x: float, y: float, colour: tuple[int, int, int]) -> None:
        for radius, fill in ((4.2, (255, 255, 255)), (3.2, colour)):
            box = (x - radius, y - radius, x + radius, y + radius)
            self.draw.ellipse([value * UNIT for value in box], fill)

    def band(self, points: Sequence[Point], colour: tuple[int, int, int]) -> None:
        mask = Image.new("L", self.image.size, 0)
        ImageDraw.Draw(mask).polygon([(x * UNIT, y * UNIT) for x, y in points], 33)
        self.image.paste(Image.new("RGB", self.image.size, colour), (0, 0), mask)

    def text(self, at: Point, text: str, colour: tuple[int, int, int], size: float, anchor: str = "ls") -> float:
        font = ImageFont.load_default(size * UNIT)
        self.draw.text((at[0] * UNIT, at[1] * UNIT), text, colour, font, anchor=anchor)
        return float(font.getlength(text)) / UNIT


def draw_figure(results: Results, budgets: Sequence[int], path: Path) -> None:
    """Draw AUROC, MAE and over-reward against the number of labels, on the tasks that have every point."""
    listed = {key: lesson for key, lesson in budget_lessons(budgets).items() if results.tasks(lesson)}
    kept = set.intersection(*(results.tasks(lesson) for lesson in listed.values()))
    points = {key: spans(results.by_task(results.scores[lesson], kept)) for key, lesson in listed.items()}
    levels = {name: spans(results.by_task(results.of_control(name), kept)) for name in ("untaught", "clock", "change")}
    canvas = Canvas()
    canvas.text((LEFT - 24, 24), "What a bad example is worth", INK, 17)
    every = len({draw.task for draw in results.draws})
    canvas.text((LEFT - 24, 43), f"{len(kept)} of {every} simulated tasks that were never trained on", FAINT, 11.5)
    canvas.text((LEFT - 24, 64), "taught on", INK, 11.5)
    x = LEFT + 38.0
    for share in SHARES:
        canvas.line([(x, 60), (x + 20, 60)], COLOURS[share], 2.2)
        canvas.dot(x + 10, 60, COLOURS[share])
        x += 44 + canvas.text((x + 26, 64), LEGEND[share], INK, 11.5)
    canvas.text((WIDTH - RIGHT, 64), "bands: 95% over tasks; new scenes, new cameras", FAINT, 11.5, "rs")
    panels = {"auroc": "AUROC", "mae": "progress error (MAE)", "over": "rewarded failures"}
    width = (WIDTH - LEFT - RIGHT - GAP * 2) / 3
    for place, (name, title) in enumerate(panels.items()):
        lines = {share: [(n, *points[n, s][name]) for n, s in listed if s == share] for share in SHARES}
        values = {model: found[name][0] for model, found in levels.items()}
        _draw_panel(canvas, title, name in LOWER_IS_BETTER, lines, values, LEFT + place * (width + GAP), width)
    canvas.image.resize((WIDTH * 2, HEIGHT * 2), Image.Resampling.BOX).save(path, optimize=True)


def _draw_panel(
    canvas: Canvas,
    title: str,
    lower: bool,
    lines: dict[str, list[tuple[float, float, float, float]]],
    levels: dict[str, float],
    left: float,
    width: float,
) -> None:
    shown = [v for share, line in lines.items() for p in line for v in (p[1:] if share in BANDS else p[1:2])]
    shown = [value for value in shown if not math.isnan(value)] + [levels["untaught"]]
    step = 0.1 if max(shown) - min(shown) > 0.3 else 0.05
    low = 0.0 if lower else math.floor((min(shown) - 0.01) / step) * step
    high = math.ceil((max(shown) + 0.01) / step) * step if lower else 1.0
    bottom, height = HEIGHT - BOTTOM, HEIGHT - BOTTOM - TOP
    budgets = sorted({point[0] for line in lines.values() for point in line})
    first, last = math.log(budgets[0]), math.log(budgets[-1])

    def at(budget: float, value: float) -> Point:
        x = left + 10 + (width - 20) * (math.log(budget) - first) / max(last - first, 1e-9)
        return x, bottom - height * (min(max(value, low), high) - low) / (high - low)

    used = canvas.text((left - 24, TOP - 14), title, INK, 13)
    better = "lower is better" if lower else "higher is better"
    canvas.text((left - 16 + used, TOP - 14), better, FAINT, 10.5)
    for tick in (low + step * i for i in range(round((high - low) / step) + 1)):
        y = at(budgets[0], tick)[1]
        canvas.line([(left, y), (left + width, y)], GRID, 1)
        canvas.text((left - 5, y), f"{round(tick, 3):g}", FAINT, 10.5, "rm")
    for budget in budgets:
        canvas.text((at(budget, low)[0], bottom + 15), f"{budget:g}", FAINT, 10.5, "ms")
    canvas.text((left + width / 2, bottom + 34), "labelled episodes", FAINT, 11, "ms")
    for share in BANDS:
        edges = [[at(p[0], p[i]) for p in lines[share] if not math.isnan(p[i])] for i in (3, 2)]
        if edges[0]:
            canvas.band([*edges[0], *reversed(edges[1])], COLOURS[share])
    off = [f"{name} {level:.2f}" for name, level in levels.items() if not low <= level <= high]
    if off:
        edge = at(budgets[0], high)[1] + 13 if lower else at(budgets[0], low)[1] - 5
        canvas.text((left + 4, edge), f"off the scale: {', '.join(off)}", FAINT, 10.5)
    for name, level in levels.items():
        if low <= level <= high:
            y = at(budgets[0], level)[1]
            for dash in range(int(width / 7) + 1):
                canvas.line([(left + 7 * dash, y), (min(left + 7 * dash + 4, left + width), y)], FAINT, 1)
            canvas.text((left + width, y - 4), name, FAINT, 10.5, "rs")
    for place, (share, line) in enumerate(lines.items()):
        placed = [(x + (place - 1.5) * 2, y) for x, y in (at(point[0], point[1]) for point in line)]
        if placed:
            canvas.line(placed, COLOURS[share], 2.2)
        for x, y in placed:
            canvas.dot(x, y, COLOURS[share])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", nargs="?", help="a dataset with measured curves (see above)")
    parser.add_argument("--cache", type=Path, help="keep the features here for the next run")
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, help="folder for tables.md and the figure (default: a temporary one)")
    parser.add_argument(
        "--small", action="store_true", help="one task of 28 episodes: the sample that comes with demerit"
    )
    given = parser.parse_args()
    if given.store is None and not given.small:
        parser.error("needs a STORE, or --small")
    with tempfile.TemporaryDirectory() as scratch:
        cache, out = given.cache or Path(scratch) / "cache", given.out or Path(scratch) / "out"
        for folder in (cache, out):
            folder.mkdir(parents=True, exist_ok=True)
        recordings, pairs, layout = load_recordings(f"videos:{SAMPLE}" if given.small else given.store, cache)
        draws, budgets = (2, BUDGETS[:3]) if given.small else (given.draws, BUDGETS)
        listed = [*budget_lessons(budgets).values(), FEW, ALL_GOOD, replace(FEW, cues=True)]
        listed += [replace(FEW, label=label) for label in LABELS]
        split = make_draws(recordings, pairs, draws, held=8 if given.small else 3)
        _shared[:] = [(split, list(dict.fromkeys(listed)), layout)]
        scores: dict[Lesson, dict[tuple[str, int], Curves]] = defaultdict(dict)
        with get_context("fork").Pool(1 if given.small else given.processes) as pool:
            for place, found in pool.imap(_teach_draw, range(len(split))):
                for lesson, curves in found.items():
                    scores[lesson][split[place].task, split[place].number] = curves
        results = Results({one.id: one for one in recordings}, pairs, split, scores)
        tables = make_tables(results, budgets)
        (out / "tables.md").write_text(tables)
        draw_figure(results, budgets[: max(len(budgets) - 1, 3)], out / "bad_example_worth.png")
        print(tables)


if __name__ == "__main__":
    main()
