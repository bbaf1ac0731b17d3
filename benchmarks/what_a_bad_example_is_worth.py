"""What a bad example is worth: a few labelled episodes, more or fewer of them failures, on tasks never trained on.

    demerit simulate STORE --benchmark metaworld-bad@1 --split test
    OPENBLAS_NUM_THREADS=1 python benchmarks/what_a_bad_example_is_worth.py STORE [--cache FILE] [--draws 8]

Writes docs/results/teaching.md and docs/images/bad_example_worth.png. Every held-out task of the benchmark is taught by
itself, many times; scenes (and with them cameras) that are tested on are never taught. Nothing is tuned here: heads are
fitted with the defaults. Without STORE it says where to get one.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from demerit.models.taught.network import Network

from _taught_tasks import (
    CONTROLS,
    METRICS,
    MOMENTS,
    TEST_SCENES,
    UNTAUGHT,
    Columns,
    Curve,
    Draw,
    EpisodeLabels,
    Lesson,
    Test,
    draws_of,
    look,
    over_tasks,
    teach,
)
from _worth_figure import Line, Panel, draw_figure
from demerit.evaluate.metrics.bootstrap import Measure

DOCS = Path(__file__).resolve().parent.parent / "docs"
BUDGETS = (2, 4, 8, 16, 40)
SHARES = {"100:0": 0.0, "75:25": 0.25, "50:50": 0.5, "25:75": 0.75}
"""successes to failures, and the share of failures"""
LABELS = {
    "dense": "progress at every frame",
    "moments": "four marked moments",
    "time": "straight in time (successes), the verdict (failures)",
    "outcome": "the verdict alone",
    "preferences": "preferences alone (each success over each failure)",
}
FEW, MANY, ALL_GOOD = Lesson(5, 5), Lesson(20, 20), Lesson(10, 0)
GOALS: dict[Lesson, dict[str, float]] = {
    FEW: {"auroc": 0.92, "pairs": 0.90, "mae": 0.09, "over": 0.06},
    MANY: {"auroc": 0.96, "pairs": 0.94, "mae": 0.06, "over": 0.03},
    replace(FEW, label="outcome"): {"auroc": 0.88},
}
TITLES = {"auroc": "AUROC", "pairs": "pairs", "mae": "MAE", "over": "over-reward"}
LOWER_IS_BETTER = ("mae", "over")


def budget_lessons() -> dict[tuple[int, str], Lesson]:
    """Every budget at every share of failures that gives whole numbers."""
    return {
        (budget, name): Lesson(round(budget * (1 - share)), round(budget * share))
        for budget in BUDGETS
        for name, share in SHARES.items()
        if (budget * share).is_integer()
    }


def lessons() -> list[Lesson]:
    listed = [*budget_lessons().values(), FEW, ALL_GOOD]
    listed += [replace(size, label=label) for size in (FEW, MANY) for label in LABELS]
    listed += [replace(size, eyes=eyes) for size in (FEW, MANY) for eyes in ("pixels", "cues")]
    return list(dict.fromkeys(listed))


@dataclass(frozen=True, eq=False)
class Asked:
    """What the worker processes share; they are forked, so nothing is copied."""

    draws: list[Draw]
    columns: Columns


_asked: list[Asked] = []


def _one_draw(place: int) -> tuple[int, dict[Lesson, dict[str, Curve]], dict[str, Curve]]:
    """Give all lessons of one draw; the small one is also tested on other episodes of the scenes it was taught on."""
    draw, columns = _asked[0].draws[place], _asked[0].columns
    kinds = sorted({one.behaviour for one in draw.test if not one.success})
    wanted = [*lessons(), *(replace(FEW, without=kind) for kind in kinds)]
    found = {lesson: judged for lesson in wanted if (judged := teach(draw, lesson, columns)) is not None}
    taught = draw.taught(FEW) or []
    scenes, ids = {one.scene for one in taught}, {one.id for one in taught}
    near = tuple(one for one in (*draw.good, *draw.bad) if one.scene in scenes and one.id not in ids)
    return place, found, teach(replace(draw, test=near), FEW, columns) or {}


@dataclass(frozen=True, eq=False)
class Results:
    """What every lesson said, and the tests to hold it against."""

    test: Test
    said: dict[Lesson, EpisodeLabels]
    near: EpisodeLabels
    """5+5 on other episodes of the scenes that were taught"""

    def tasks(self, lesson: Lesson) -> set[str]:
        """Tasks that had enough episodes for it in every draw."""
        draws = max(draw.number for draw in self.test.draws) + 1
        found = [task for task, _ in self.said.get(lesson, {})]
        return {task for task in found if found.count(task) == draws}

    def of(self, lesson: Lesson, tasks: set[str] | None = None) -> EpisodeLabels:
        kept = self.tasks(lesson) if tasks is None else tasks
        return {key: judged for key, judged in self.said[lesson].items() if key[0] in kept}

    @property
    def all_tasks(self) -> list[str]:
        return sorted({draw.task for draw in self.test.draws})


def give_lessons(test: Test, processes: int) -> Results:
    _asked[:] = [Asked(test.draws, Columns(Network.shipped()))]
    said: dict[Lesson, EpisodeLabels] = {}
    near: EpisodeLabels = {}
    started = time.monotonic()
    with get_context("fork").Pool(processes) as pool:
        for count, (place, found, beside) in enumerate(pool.imap_unordered(_one_draw, range(len(test.draws))), 1):
            key = (test.draws[place].task, test.draws[place].number)
            for lesson, judged in found.items():
                said.setdefault(lesson, {})[key] = judged
            near[key] = beside
            print(
                f"{count} of {len(test.draws)} draws, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True
            )
    ordered = {lesson: dict(sorted(judged.items())) for lesson, judged in said.items()}
    return Results(test, ordered, dict(sorted(near.items())))


# Tables


def number(found: Measure) -> str:
    """The value and its interval, short."""
    if not found.known:
        return "-"
    value = f"{found.value:.3f}"
    return value if math.isnan(found.low) else f"{value} ({found.low:.2f}-{found.high:.2f})"


def row(test: Test, title: str, judged: EpisodeLabels, goals: Mapping[str, float] | None = None) -> str:
    """One line of a table of the four metrics."""
    by_task = test.by_task(judged)
    cells = []
    for name in METRICS:
        found = over_tasks({task: values[name] for task, values in by_task.items()})
        goal = (goals or {}).get(name)
        cells.append(number(found) + ("" if goal is None else f"; goal {goal:g} {verdict(name, found.value, goal)}"))
    worst = min(by_task, key=lambda task: by_task[task]["auroc"])
    pooled = f"{test.pooled(judged):.3f}"
    return line(title, cells[0], pooled, *cells[1:], f"{worst} {by_task[worst]['auroc']:.2f}", str(len(by_task)))


def verdict(name: str, value: float, goal: float) -> str:
    return "**met**" if (value <= goal if name in LOWER_IS_BETTER else value >= goal) else "**missed**"


def line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


HEAD = [
    line(
        "taught on (successes+failures)",
        "AUROC",
        "pooled",
        "pairs",
        "MAE",
        "over-reward",
        "worst task (AUROC)",
        "tasks",
    ),
    "|---|---|---|---|---|---|---|---|",
]


def name_of(lesson: Lesson) -> str:
    return f"{lesson.good}+{lesson.bad}"


def control_rows(results: Results, size: Lesson, tasks: set[str] | None = None) -> list[str]:
    """Everything that a row has to beat, on the same test parts."""
    test = results.test
    kept = results.tasks(size) if tasks is None else tasks
    keys = {key for key in test.truth() if key[0] in kept}
    pixels, cues = (replace(size, eyes=eyes) for eyes in ("pixels", "cues"))
    told = name_of(size)
    return [
        row(test, UNTAUGHT, test.of_model(UNTAUGHT, keys)),
        row(test, f"16 x 16 raw pixels, the same head, {told}", results.of(pixels, kept)),
        row(test, f"change, motion and time, the same head, {told}", results.of(cues, kept)),
        *(row(test, name, test.of_model(name, keys)) for name in CONTROLS),
    ]


def budget_table(results: Results) -> list[str]:
    lines = ["## Budgets and shares of failures", "", *HEAD]
    missing = []
    for (budget, share), lesson in budget_lessons().items():
        tasks = results.tasks(lesson)
        title = f"{name_of(lesson)} ({budget} at {share})"
        lines.append(row(results.test, title, results.of(lesson)) if tasks else line(title, *["-"] * 6, "0"))
        short = [task for task in results.all_tasks if task not in tasks]
        missing += [f"- {name_of(lesson)}: {', '.join(short)}"] if short else []
    lines += [row(results.test, name_of(FEW), results.of(FEW), GOALS[FEW]), *control_rows(results, FEW), ""]
    lines += ["Tasks with too few successes or failures outside of the tested scenes, left out of these rows:", ""]
    return [*lines, *missing, ""]


def many_table(results: Results) -> list[str]:
    kept = results.tasks(MANY)
    lines = ["## 20+20, on the tasks that have so many", "", f"Only {', '.join(sorted(kept))}.", "", *HEAD]
    lines.append(row(results.test, name_of(MANY), results.of(MANY), GOALS[MANY]))
    lines.append(row(results.test, f"{name_of(FEW)}, same tasks", results.of(FEW, kept)))
    return [*lines, *control_rows(results, MANY), ""]


def exchange_table(results: Results) -> list[str]:
    """Failures instead of successes, everything else equal: differences within tasks."""
    lines = [
        "## Failures instead of successes, at the same number of labels",
        "",
        "Differences within the same tasks and draws (taught with failures less taught on successes alone). Every",
        "interval stands for itself: of so many, one in twenty leaves 0 out by chance.",
        "",
        line("taught on", "instead of", "AUROC", "pairs", "MAE", "over-reward", "tasks"),
        "|---|---|---|---|---|---|---|",
    ]
    listed = budget_lessons()
    pairs = [(one, listed[budget, "100:0"]) for (budget, share), one in listed.items() if share != "100:0"]
    for lesson, plain in [*pairs, (FEW, ALL_GOOD)]:
        kept = results.tasks(lesson) & results.tasks(plain)
        if not kept:
            continue
        after, before = (results.test.by_task(results.of(one, kept)) for one in (lesson, plain))
        cells = []
        for name in METRICS:
            found = over_tasks({task: after[task][name] - before[task][name] for task in sorted(kept)})
            span = "" if math.isnan(found.low) else f" ({found.low:+.2f} to {found.high:+.2f})"
            cells.append(f"{found.value:+.3f}{span}")
        lines.append(line(name_of(lesson), name_of(plain), *cells, str(len(kept))))
    return [*lines, ""]


def label_table(results: Results, size: Lesson) -> list[str]:
    kept = results.tasks(size)
    lines = [f"## Kinds of label, {name_of(size)}", "", *HEAD]
    for label, title in LABELS.items():
        lesson = replace(size, label=label)
        lines.append(row(results.test, title, results.of(lesson, kept), GOALS.get(lesson)))
    return [*lines, *control_rows(results, size), ""]


@dataclass(frozen=True)
class Kind:
    """One behaviour's failures in one test part, judged by one row."""

    task: str
    behaviour: str
    auroc: float
    over: float


def kinds_of(results: Results, judged: EpisodeLabels) -> list[Kind]:
    """Split a row by the behaviour of the failures: each kind against all successes of the same test part."""
    found = []
    seen = results.test.seen
    for (task, _), each in judged.items():
        good = {id: curve for id, curve in each.items() if seen[id].success}
        for behaviour in sorted({seen[id].behaviour for id in each if not seen[id].success}):
            bad = {id: curve for id, curve in each.items() if not seen[id].success and seen[id].behaviour == behaviour}
            values = results.test.one({**good, **bad})
            found.append(Kind(task, behaviour, values["auroc"], values["over"]))
    return found


def kind_table(results: Results) -> list[str]:
    """Failures of a behaviour that was not taught, against the same number of failures of all kinds."""
    test, without = results.test, sorted({lesson.without for lesson in results.said if lesson.without})
    keys = {kind: set(results.said[replace(FEW, without=kind)]) for kind in without}

    def arm(judged: EpisodeLabels) -> list[Kind]:
        return [
            one for kind in without for one in kinds_of(results, _only(judged, keys[kind])) if one.behaviour == kind
        ]

    arms = {
        "5+5, failures of other behaviours": [
            one
            for kind in without
            for one in kinds_of(results, results.said[replace(FEW, without=kind)])
            if one.behaviour == kind
        ],
        "5+5, failures of all behaviours": arm(results.said[FEW]),
        "10+0, no failures": arm(results.said[ALL_GOOD]),
        UNTAUGHT: arm(test.of_model(UNTAUGHT)),
        "16 x 16 raw pixels, 5+5": arm(results.said[replace(FEW, eyes="pixels")]),
        "change, motion and time, 5+5": arm(results.said[replace(FEW, eyes="cues")]),
        **{name: arm(test.of_model(name)) for name in CONTROLS},
    }
    head = ["taught on", "AUROC", "over-reward", "worst behaviour (AUROC)", "worst task (AUROC)"]
    lines = [
        "## Kinds of failure that were not taught",
        "",
        "Each behaviour's failures against the successes of the same test part; the lesson had none of that behaviour.",
        "",
        line(*head),
        "|---|---|---|---|---|",
        *(_kind_row(title, found) for title, found in arms.items()),
        "",
        line(
            "behaviour",
            "left out: AUROC",
            "all kinds: AUROC",
            "left out: over-reward",
            "all kinds: over-reward",
            "tasks",
        ),
        "|---|---|---|---|---|---|",
    ]
    left, every = list(arms.values())[:2]
    for kind in without:
        pair = [[one for one in found if one.behaviour == kind] for found in (left, every)]
        cells = [number(over_tasks(_mean(found, name, "task"))) for name in ("auroc", "over") for found in pair]
        lines.append(line(kind, *cells, str(len({one.task for one in pair[0]}))))
    return [*lines, ""]


def _only(judged: EpisodeLabels, keys: set[tuple[str, int]]) -> EpisodeLabels:
    return {key: each for key, each in judged.items() if key in keys}


def _mean(found: Sequence[Kind], value: str, by: str) -> dict[str, float]:
    names = sorted({getattr(one, by) for one in found})
    return {name: float(np.mean([getattr(one, value) for one in found if getattr(one, by) == name])) for name in names}


def _kind_row(title: str, found: Sequence[Kind]) -> str:
    cells = [number(over_tasks(_mean(found, name, "task"))) for name in ("auroc", "over")]
    for by in ("behaviour", "task"):
        values = _mean(found, "auroc", by)
        worst = min(values, key=lambda name: values[name])
        cells.append(f"{worst} {values[worst]:.2f}")
    return line(title, *cells)


def moment_table(results: Results) -> list[str]:
    test = results.test
    distinct = {(id, event) for each in test.truth().values() for id in each for event in test.seen[id].events}
    lines = [
        "## The failure moment",
        "",
        f"{len(distinct)} events ({', '.join(MOMENTS)}) in test parts. Caught: the value falls by a tenth within a",
        "fifth of the episode from the event on. Placebo: the same question at other frames of the same episode. The",
        "simulator's own progress does not fall at every event (a knock may cost nothing): its row is what a perfect",
        "curve reaches, and to catch more than that is to fall where nothing was lost.",
        "",
        line(
            "model",
            "caught",
            "placebo",
            "less placebo",
            *MOMENTS,
            "latency of the caught (frames)",
            "worst task (caught)",
        ),
        "|---|---|---|---|---|---|---|---|---|",
    ]
    kept = results.tasks(MANY)
    of_kept = {key for key in test.truth() if key[0] in kept}
    rows = {
        "the simulator's own progress": test.truth(),
        "taught 5+5": results.of(FEW),
        "taught 10+0": results.of(ALL_GOOD),
        "taught 5+5, verdicts alone": results.of(replace(FEW, label="outcome")),
        UNTAUGHT: test.of_model(UNTAUGHT),
        "16 x 16 raw pixels, 5+5": results.of(replace(FEW, eyes="pixels")),
        "change, motion and time, 5+5": results.of(replace(FEW, eyes="cues")),
        **{name: test.of_model(name) for name in CONTROLS},
        f"taught 20+20 ({len(kept)} tasks)": results.of(MANY),
        f"taught 5+5 ({len(kept)} tasks)": results.of(FEW, kept),
        f"the simulator's own progress ({len(kept)} tasks)": _only(test.truth(), of_kept),
    }
    return [*lines, *(_moment_row(test, title, judged) for title, judged in rows.items()), ""]


def _moment_row(test: Test, title: str, judged: EpisodeLabels) -> str:
    found = test.moments(judged)
    by_task = {}
    for task in sorted({task for task, _ in judged}):
        mine = {key: each for key, each in judged.items() if key[0] == task}
        values = test.moments(mine)
        if "caught" in values and values["caught"].known:
            by_task[task] = values["caught"].value
    worst = min(by_task, key=lambda task: by_task[task])
    over = f"{found['caught'].value - found['placebo'].value:+.3f}"
    cells = [number(found[name]) for name in ("caught", "placebo")]
    kinds = [f"{found[kind].value:.2f}" for kind in MOMENTS]
    return line(title, *cells, over, *kinds, number(found["latency"]), f"{worst} {by_task[worst]:.2f}")


def near_table(results: Results) -> list[str]:
    lines = [
        "## What holding out scenes costs",
        "",
        "Every scene has its own layout and camera. Tested on other episodes of the very scenes that were taught, the",
        "same heads look better; everywhere else on this page scenes are held out.",
        "",
        *HEAD,
        row(results.test, "5+5, other scenes", results.of(FEW)),
        row(results.test, "5+5, the taught scenes (not a fair test)", results.near),
    ]
    return [*lines, ""]


def introduction(results: Results, command: str) -> list[str]:
    draws = max(draw.number for draw in results.test.draws) + 1
    inside = {
        frozenset((pair.a, pair.b))
        for each in results.test.truth().values()
        for pair in results.test.pairs
        if pair.a in each and pair.b in each
    }
    return [
        "# What a bad example is worth",
        "",
        f"Made by `{command}`; do not edit.",
        "",
        f"The {len(results.all_tasks)} held-out tasks of `metaworld-bad@1`, which the network that ships never saw,",
        f"each taught by itself with the default settings, {draws} draws each. In a draw {TEST_SCENES} of a task's 15",
        "scenes (15 of 75 episodes) are tested on and the lesson comes from the other scenes, so that layout and",
        "camera are new as well. All rows share the same test parts, and larger lessons contain the smaller ones.",
        "Which scenes are tested on is decided by labels alone: at least two successes and two failures, enough left",
        "to teach, many matched pairs inside. A lesson has at most 12 scenes, too few for the kernel: all heads",
        "are linear.",
        "",
        "AUROC: a success ends higher than a failure of its task, averaged over tasks; *pooled*: all tasks together.",
        f"Pairs: the benchmark's length- and motion-matched pairs that lie in a test part ({len(inside)} of",
        f"{len(results.test.pairs)} do). MAE: distance to the simulator's progress, over frames. Over-reward: share of",
        "failures that end at least as high as the median success. In brackets 95% intervals, resampling tasks, after",
        "averaging the draws of each: ten tasks are few, and other tasks may be harder.",
        "",
    ]


# The figure


def panels(results: Results) -> list[Panel]:
    """AUROC, MAE and over-reward against the number of labels: the tasks that have every point up to 16."""
    listed = {key: lesson for key, lesson in budget_lessons().items() if key[0] <= BUDGETS[-2]}
    kept = set.intersection(*(results.tasks(lesson) for lesson in listed.values()))
    keys = {key for key in results.test.truth() if key[0] in kept}
    drawn = []
    for name, title in (("auroc", "AUROC"), ("mae", "progress error (MAE)"), ("over", "rewarded failures")):
        lines = [
            Line(
                share,
                [(budget, *_span(results, lesson, kept, name)) for (budget, s), lesson in listed.items() if s == share],
            )
            for share in SHARES
        ]
        levels = {}
        for label, model in (("untaught", UNTAUGHT), ("clock", "clock"), ("change", "change")):
            by_task = results.test.by_task(results.test.of_model(model, keys))
            levels[label] = over_tasks({task: values[name] for task, values in by_task.items()}).value
        drawn.append(Panel(title, name in LOWER_IS_BETTER, lines, levels, (len(kept), len(results.all_tasks))))
    return drawn


def _span(results: Results, lesson: Lesson, tasks: set[str], name: str) -> tuple[float, float, float]:
    by_task = results.test.by_task(results.of(lesson, tasks))
    found = over_tasks({task: values[name] for task, values in by_task.items()})
    return found.value, found.low, found.high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, nargs="?")
    parser.add_argument("--cache", type=Path, help="keep what the network saw in this file, for the next time")
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    if given.store is None:
        print("needs a store: demerit simulate STORE --benchmark metaworld-bad@1 --split test")
        return
    seen, pairs = look(given.store, given.cache)
    test = Test({one.id: one for one in seen}, pairs, draws_of(seen, pairs, given.draws))
    results = give_lessons(test, given.processes)
    command = f"python benchmarks/what_a_bad_example_is_worth.py STORE --draws {given.draws}"
    parts = [introduction(results, command), budget_table(results), many_table(results), exchange_table(results)]
    parts += [label_table(results, FEW), label_table(results, MANY), kind_table(results), moment_table(results)]
    text = "\n".join([*(line for part in parts for line in part), *near_table(results)])
    (DOCS / "results").mkdir(exist_ok=True)
    (DOCS / "results" / "teaching.md").write_text(text)
    draw_figure(panels(results), DOCS / "images" / "bad_example_worth.png")
    print(text)


if __name__ == "__main__":
    main()
