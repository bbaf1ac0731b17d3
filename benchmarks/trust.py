"""Is `demerit teach` right when it says "trust it"? Lessons of 3 to 20 successes and as many failures, and the rest.

    python benchmarks/trust.py DATASET [DATASET ...] [--each 3,5,10,20] [--draws 5] [--cache DIR] [--rows FILE]
    python benchmarks/trust.py DATASET [DATASET ...] --flips [--draws 20] [--camera NAME] [--cache DIR] [--rows FILE]
    python benchmarks/trust.py --small [--flips]

Every task of every dataset is taught from the flags of k successes and k failures, drawn at random; the AUROC on the
episodes that were not taught is the truth. A lesson with shuffled labels stands for a camera that cannot see it. With
--rows, lessons that are in the file are not repeated. With --flips, 0, 1 or 2 of the ten labels of a 5 + 5 lesson are
flipped, and the labels that the report would name are counted, by today's rule and by the one before. `--small` uses
the sample that comes with demerit.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np

import demerit
from demerit.data.arrays import Floats
from demerit.data.dataset import Dataset
from demerit.data.episode import Outcome
from demerit.evaluate.metrics import Resampling
from demerit.evaluate.metrics.success import auroc
from demerit.models.compact import Engine
from demerit.training.teach import TeachConfig, TeachOutcome
from demerit.training.teach.data import TeachData, TeachLabel, label_of
from demerit.training.teach.features import EmbeddedEpisode, FeatureSpec, common_cameras, extract_features
from demerit.training.teach.training_set import MOST_DOUBTFUL, build_training_set, doubt_labels
from demerit.training.teach.trust import BAR, GOOD, TrustKind
from demerit.training.teach.validate import CrossValidation, cross_validate

SAMPLE = Path(demerit.__file__).parent / "assets" / "sample"
SMALL_SIZES, SHUFFLED_FROM, FEWEST_LEFT = (3, 5), 10, 4
FLIPS, FLIPPED_EACH = (0, 1, 2), 5
Row = dict[str, Any]


def split_tasks(address: str) -> dict[str, list[demerit.Episode]]:
    """Return the flagged episodes of each task, with nothing but the flag."""
    tasks: dict[str, list[demerit.Episode]] = defaultdict(list)
    for episode in demerit.open_dataset(address):
        flag = label_of(episode).verdict
        if flag is not None:
            task = episode.origin.tags.get("task") or f"{Path(address).name}: {episode.instruction}"
            tasks[task].append(replace(episode, outcomes=(Outcome("human", success=flag),)))
    return tasks


def flag_of(episode: demerit.Episode) -> bool:
    return bool(episode.outcomes[0].success)


def run_lesson(episodes: list[demerit.Episode], each: int, draw: int, shuffled: bool, cache: Path) -> Row | None:
    """Teach one lesson and measure the rest; None if too few are left."""
    rng = np.random.default_rng([each, draw])
    sides = [[episode for episode in episodes if flag_of(episode) is flag] for flag in (True, False)]
    if min(map(len, sides)) < each + FEWEST_LEFT:
        return None
    lesson = [side[i] for side in sides for i in rng.permutation(len(side))[:each]]
    if shuffled:
        flags = rng.permutation([flag_of(episode) for episode in lesson]).tolist()
        lesson = [replace(e, outcomes=(Outcome("human", success=f),)) for e, f in zip(lesson, flags, strict=True)]
    given = Dataset.from_episodes(lesson)
    config = TeachConfig(seed=draw, reader=False)  # the closed form alone: its features are all that is cached
    outcome = demerit.teach(given, config=config, use_test_split=True, cache=cache, workers=0)
    taught = {episode.id for episode in lesson}
    rest = [episode for episode in episodes if episode.id not in taught]
    answer = outcome.results.answer
    return {
        "each": each,
        "draw": draw,
        "shuffled": shuffled,
        "kind": answer.kind,
        "auroc": answer.auroc,
        "low": answer.low,
        "more": answer.more,
        "true": measure_rest(outcome, rest, cache),
    }


def measure_rest(outcome: TeachOutcome, rest: list[demerit.Episode], cache: Path) -> float:
    config, head = outcome.model.config, outcome.model.head
    spec = FeatureSpec(outcome.model.network, config.cameras, config.stride, TeachConfig())
    final, success = [], []
    for embedded in extract_features(rest, spec, cache, 0):
        if isinstance(embedded, EmbeddedEpisode):
            final.append(float(head.value(head.outputs(spec.features(embedded)[-1:], "")[-1])))
            success.append(flag_of(embedded.episode))
    return auroc(final, success).measure(Resampling(resamples=1)).value


def run_lessons(addresses: list[str], sizes: tuple[int, ...], draws: int, cache: Path, rows: Path) -> Iterator[Row]:
    """Yield the rows of all lessons, those in the file first; one draw after the other, to cover all tasks early."""
    known = [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []
    yield from known
    done = {(row["task"], row["each"], row["draw"], row["shuffled"]) for row in known}
    tasks = {task: found for address in addresses for task, found in split_tasks(address).items()}
    for draw in range(draws):
        for task, episodes in tasks.items():
            for each in sizes:
                for shuffled in (False, True) if draw == 0 and each >= SHUFFLED_FROM else (False,):
                    if (task, each, draw, shuffled) in done:
                        continue
                    row = run_lesson(episodes, each, draw, shuffled, cache)
                    if row is not None:
                        with rows.open("a") as file:
                            file.write(json.dumps({"task": task, **row}) + "\n")
                        yield {"task": task, **row}


def name_before(values: Floats, success: Floats) -> list[int]:
    """The labels that were named until 2026-11-17: beyond the median of the other label, with five of each."""
    good, bad = values[success == 1], values[success == 0]
    if min(len(good), len(bad)) < FLIPPED_EACH or np.median(good) <= np.median(bad):
        return []
    beyond = np.where(success == 1, np.median(bad) - values, values - np.median(good))
    return [int(i) for i in np.argsort(-beyond)[:MOST_DOUBTFUL] if beyond[i] >= 0]


def flip_labels(lesson: list[EmbeddedEpisode], spec: FeatureSpec, flips: int, rng: np.random.Generator) -> Row:
    """Teach a lesson with some labels flipped, and count the labels named and the flipped ones among them."""
    success = np.array([float(flag_of(one.episode)) for one in lesson])
    wrong = rng.permutation(len(lesson))[:flips]
    success[wrong] = 1 - success[wrong]
    labels = {one.id: TeachLabel(success=bool(flag)) for one, flag in zip(lesson, success, strict=True)}
    data = TeachData("lesson", "lesson", tuple(one.episode for one in lesson), labels, (), ())
    training_set, _ = build_training_set(data, spec, lesson)
    held_out = CrossValidation(np.full(len(lesson), -1))
    cross_validate(training_set, held_out)
    head, ids = training_set.fit(), [one.id for one in lesson]
    values = np.array([float(head.value(held_out.outputs[i])[-1]) for i in range(len(lesson))])
    named = [ids.index(id) for id in doubt_labels(values, training_set.success, training_set.copies, ids)]
    before = name_before(values, training_set.success)
    counts = {
        name: [len(some), len(set(some) & set(wrong.tolist()))] for name, some in (("now", named), ("before", before))
    }
    return {"flips": flips, **counts}


def run_flips(addresses: list[str], draws: int, camera: str, cache: Path, rows: Path) -> None:
    """Print how often labels are named, and how often rightly, by task and number of flipped labels."""
    known = [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []
    done = {(row["task"], row["draw"], row["flips"]) for row in known}
    tasks = {task: found for address in addresses for task, found in split_tasks(address).items()}
    for task, episodes in tasks.items():
        cameras = (camera,) if camera in episodes[0].views else common_cameras(episodes)
        spec = FeatureSpec(Engine.load_shipped(), cameras, 1, TeachConfig(reader=False))
        embedded = [one for one in extract_features(episodes, spec, cache, 0) if isinstance(one, EmbeddedEpisode)]
        sides = [[one for one in embedded if flag_of(one.episode) is flag] for flag in (True, False)]
        for draw, flips in product(range(draws), FLIPS):
            rng = np.random.default_rng([draw, FLIPPED_EACH])
            lesson = [side[i] for side in sides for i in rng.permutation(len(side))[:FLIPPED_EACH]]
            if (task, draw, flips) not in done:
                known.append({"task": task, "draw": draw, **flip_labels(lesson, spec, flips, rng)})
                with rows.open("a") as file:
                    file.write(json.dumps(known[-1]) + "\n")
    print(
        "| task | rule | lessons | " + " | ".join(f"{flips} flipped: speaks, right of named" for flips in FLIPS) + " |"
    )
    print("|---|---|---|" + "---|" * len(FLIPS))
    for task, rule in product([*tasks, "all"], ("before", "now")):
        some = [row for row in known if task in ("all", row["task"])]
        cells = []
        for flips in FLIPS:
            counts = np.array([row[rule] for row in some if row["flips"] == flips])
            cells.append(f"{(counts[:, 0] > 0).sum()}, {counts[:, 1].sum()} of {counts[:, 0].sum()}")
        print(f"| {task} | {rule} | {len(some)} | {' | '.join(cells)} |")


def share(part: int, whole: int) -> str:
    return f"{part} of {whole}" + (f" ({part / whole:.0%})" if whole else "")


def print_tables(rows: list[Row]) -> None:
    fair = [row for row in rows if not row["shuffled"]]
    kinds = get_args(TrustKind)
    heads = (*kinds, f"trusted: AUROC >= {BAR} on the rest, as it says", f"AUROC >= {GOOD}", f"those >= {GOOD} trusted")
    print(f"| labels | lessons | {' | '.join(heads)} |")
    print("|---|---|" + "---|" * len(heads))
    for each in (*sorted({row["each"] for row in fair}), None):
        some = [row for row in fair if each in (None, row["each"])]
        trusted = [row for row in some if row["kind"] == kinds[0]]
        good = [row for row in some if row["true"] >= GOOD]
        both = [row for row in trusted if row["true"] >= GOOD]
        counts = Counter(row["kind"] for row in some)
        cells = [str(counts[kind]) for kind in kinds]
        name = f"{each} + {each}" if each else "all"
        cells.append(share(sum(row["true"] >= BAR for row in trusted), len(trusted)))
        cells += [share(len(both), len(trusted)), share(len(both), len(good))]
        print(f"| {name} | {len(some)} | {' | '.join(cells)} |")
    wrong = [f"{row['task']} {row['each']}: {row['true']:.2f}" for row in fair
             if row["kind"] == kinds[0] and row["true"] < GOOD]  # fmt: skip
    print(f"\nTrusted wrongly: {'; '.join(wrong) or 'none'}.")
    counts = Counter(row["kind"] for row in rows if row["shuffled"])
    print(f"Shuffled labels: {', '.join(f'{kind} {count}' for kind, count in counts.items()) or 'none'}.\n")
    sizes = sorted({row["each"] for row in fair})
    print("| task | " + " | ".join(f"{each} + {each}: AUROC on the rest, label more" for each in sizes) + " |")
    print("|---|" + "---|" * len(sizes))
    for task in sorted({row["task"] for row in fair}):
        cells = [[row for row in fair if (row["task"], row["each"]) == (task, each)] for each in sizes]
        print(f"| {task} | " + " | ".join(map(describe_cell, cells)) + " |")


def describe_cell(rows: list[Row]) -> str:
    if not rows:
        return "-"
    more = [row["more"] for row in rows if row["more"]]
    trusts = sum(row["kind"] == "trust it" for row in rows)
    asked = f", {np.median(more):.0f}" if more else ""
    return f"{np.mean([row['true'] for row in rows]):.2f}{asked}" + (f", {trusts} trust" if trusts else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="*", metavar="DATASET")
    parser.add_argument("--each", default="3,5,10,20", help="successes, and as many failures, to teach on")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--cache", type=Path, help="folder for features")
    parser.add_argument("--rows", type=Path, help="file with a line per lesson")
    parser.add_argument("--flips", action="store_true", help="flip labels, and count which are named")
    parser.add_argument("--camera", default="", help="with --flips, the only camera to use (default: all)")
    parser.add_argument("--small", action="store_true", help="the shipped sample, one draw")
    given = parser.parse_args()
    addresses, draws = ([str(SAMPLE)], 1) if given.small else (given.datasets, given.draws)
    with tempfile.TemporaryDirectory() as folder:
        cache, rows = given.cache or Path(folder) / "cache", given.rows or Path(folder) / "rows.jsonl"
        cache.mkdir(parents=True, exist_ok=True)
        if given.flips:
            run_flips(addresses, draws, given.camera, cache, rows)
            return
        sizes = SMALL_SIZES if given.small else tuple(int(each) for each in given.each.split(","))
        print_tables(list(run_lessons(addresses, sizes, draws, cache, rows)))


if __name__ == "__main__":
    main()
