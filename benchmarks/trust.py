"""Is `demerit teach` right when it says "trust it"? Lessons of 3 to 20 successes and as many failures, and the rest.

    python benchmarks/trust.py DATASET [DATASET ...] [--draws 5] [--cache DIR] [--rows FILE]
    python benchmarks/trust.py --small

Every task of every dataset is taught from the flags of k successes and k failures, drawn at random; the AUROC on the
episodes that were not taught is the truth. A lesson with shuffled labels stands for a camera that cannot see it. With
--rows, lessons that are in the file are not repeated. `--small` uses the sample that comes with demerit.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import demerit
from demerit.data.dataset import Dataset
from demerit.data.labels import Outcome
from demerit.evaluate.metrics import Resampling
from demerit.evaluate.metrics.success import auroc
from demerit.models.compact import Engine
from demerit.training.teach import TeachConfig, TeachOutcome
from demerit.training.teach.data import label_of
from demerit.training.teach.features import EmbeddedEpisode, FeatureCache, FeatureSpec, extract_features
from demerit.training.teach.trust import GOOD

SAMPLE = Path(demerit.__file__).parent / "assets" / "sample"
SIZES, SHUFFLED_FROM, FEWEST_LEFT = (3, 5, 10, 20), 10, 4
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
    spec = FeatureSpec(Engine.load_shipped(), config.cameras, config.stride, TeachConfig())
    final, success = [], []
    for embedded in extract_features(rest, spec, FeatureCache(cache, spec), 0):
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


def share(part: int, whole: int) -> str:
    return f"{part} of {whole}" + (f" ({part / whole:.0%})" if whole else "")


def print_tables(rows: list[Row]) -> None:
    fair = [row for row in rows if not row["shuffled"]]
    kinds = ("trust it", "label more", "this camera cannot see it", "not yet measurable")
    print(f"| labels | lessons | {' | '.join(kinds)} | trusted: AUROC >= {GOOD} on the rest | good ones trusted |")
    print("|---|---|---|---|---|---|---|---|")
    for each in (*sorted({row["each"] for row in fair}), None):
        some = [row for row in fair if each in (None, row["each"])]
        trusted = [row for row in some if row["kind"] == kinds[0]]
        good = [row for row in some if row["true"] >= GOOD]
        both = [row for row in trusted if row["true"] >= GOOD]
        counts = Counter(row["kind"] for row in some)
        cells = [str(counts[kind]) for kind in kinds]
        name = f"{each} + {each}" if each else "all"
        right, kept = share(len(both), len(trusted)), share(len(both), len(good))
        print(f"| {name} | {len(some)} | {' | '.join(cells)} | {right} | {kept} |")
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
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--cache", type=Path, help="folder for features")
    parser.add_argument("--rows", type=Path, help="file with a line per lesson")
    parser.add_argument("--small", action="store_true", help="the shipped sample, one draw")
    given = parser.parse_args()
    addresses, draws = ([str(SAMPLE)], 1) if given.small else (given.datasets, given.draws)
    with tempfile.TemporaryDirectory() as folder:
        cache, rows = given.cache or Path(folder) / "cache", given.rows or Path(folder) / "rows.jsonl"
        sizes = SIZES[:2] if given.small else SIZES
        print_tables(list(run_lessons(addresses, sizes, draws, cache, rows)))


if __name__ == "__main__":
    main()
