"""How well moments of long recordings are found, and how fast.

    python benchmarks/retrieve.py DATASET [--draws 5] [--teach]
    python benchmarks/retrieve.py --small

DATASET holds simulated episodes of several tasks (`demerit simulate`). Some successes of each task are set aside as
examples; all other episodes, successes and failures of all tasks, are joined in random order to recordings of twelve,
so that every moment's task and outcome is known. A found segment is right if at least half of it lies in a success of
the task. Precision@20 of the instruction's words, of 1 and 5 examples, of both, and of segments at random; the base
rate is the share of windows that are right. With `--teach` also a model that was taught 5 + 5 of the
task: by it the best of five examples are ordered, and all windows.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import demerit
from demerit.data.dataset import Dataset
from demerit.data.episode import Episode
from demerit.data.formats import open_dataset
from demerit.data.video import write_video
from demerit.models.compact import Engine
from demerit.training.teach import TeachConfig
from demerit.use.retrieve import (
    PlaySegment,
    PlayWindows,
    WindowPlan,
    index_windows,
    list_windows,
    merge_gains,
    merge_hits,
    order_by_gain,
    score_by_examples,
    score_by_text,
)

SAMPLE = Path(demerit.__file__).parent / "assets" / "sample"
JOINED, EXAMPLES, TOP, CANDIDATES, MANY, AT_ONCE = 12, 10, 20, 60, 10_000, 64
STEP = 0.1125
"""seconds from a frame of the simulator to the next"""


@dataclass(frozen=True)
class KnownSegment:
    """A simulated episode in a recording."""

    first: int
    last: int
    task: str
    success: bool


def name_task(episode: Episode) -> str:
    return episode.origin.tags.get("task") or episode.instruction


def join_recordings(episodes: list[Episode], folder: Path) -> tuple[Dataset, dict[str, list[KnownSegment]]]:
    """Write recordings of twelve episodes each; return them and what they show."""
    made, truth = list[Episode](), dict[str, list[KnownSegment]]()
    for start in range(0, len(episodes), JOINED):
        images, known, id = list[np.ndarray](), list[KnownSegment](), f"play-{start // JOINED:03d}"
        for one in episodes[start : start + JOINED]:
            shown = one.main.all()
            first = sum(map(len, images))
            success = one.outcome is not None and one.outcome.success is True
            known.append(KnownSegment(first, first + len(shown) - 1, name_task(one), success))
            images.append(shown)
        write_video(folder / f"{id}.mp4", np.concatenate(images), 1 / STEP)
        made.append(Episode.from_video(folder / f"{id}.mp4", id=id))
        truth[id] = known
    return Dataset.from_episodes(made, "play"), truth


def is_right(id: str, first: int, last: int, task: str, truth: dict[str, list[KnownSegment]]) -> bool:
    shared = [min(last, one.last) - max(first, one.first) + 1 for one in truth[id] if one.task == task and one.success]
    return max(shared, default=0) >= (last - first + 1) / 2


def measure_precision(segments: list[PlaySegment], task: str, truth: dict[str, list[KnownSegment]]) -> float:
    return float(np.mean([is_right(one.episode.id, one.first, one.last, task, truth) for one in segments[:TOP]]))


def measure_base(windows: PlayWindows, task: str, truth: dict[str, list[KnownSegment]]) -> float:
    ids = [windows.episodes[owner].id for owner in windows.owner]
    return float(
        np.mean([is_right(id, *span, task, truth) for id, span in zip(ids, windows.spans.tolist(), strict=True)])
    )


def teach_gains(instruction: str, lesson: list[Episode], folder: Path) -> Callable[[list[PlaySegment]], np.ndarray]:
    """Teach a model the lesson; return what gives the gain of each segment by it."""
    same = [replace(one, instruction=instruction) for one in lesson]
    data, config = Dataset.from_episodes(same, "lesson"), TeachConfig(reader=False)
    demerit.teach(data, folder / "model", config=config, use_test_split=True)
    model = demerit.load_model(str(folder / "model"))

    def rate(segments: list[PlaySegment]) -> np.ndarray:
        some = [segments[i : i + AT_ONCE] for i in range(0, len(segments), AT_ONCE)]
        rewards = [reward for part in some for reward in model.score([one.cut(instruction) for one in part])]
        return np.array([reward.final - reward.value[0] for reward in rewards])

    return rate


def measure_speed(windows: PlayWindows, engine: Engine, instruction: str, examples: np.ndarray) -> dict[str, str]:
    """Time a query over many windows: the index in memory, repeated until it is long enough."""
    times = -(-MANY // len(windows))
    owner = np.concatenate([windows.owner + len(windows.episodes) * i for i in range(times)])[:MANY]
    spans, vectors = (np.concatenate([array] * times)[:MANY] for array in (windows.spans, windows.vectors))
    many = replace(windows, episodes=[*windows.episodes] * times, owner=owner, spans=spans, vectors=vectors)
    found = {}
    for name, score in (
        ("words", lambda: score_by_text(many, engine, instruction)),
        ("examples", lambda: score_by_examples(many, examples)),
    ):
        started, worked = time.perf_counter(), time.process_time()
        merge_hits(many, score(), 100)
        spent, worked = time.perf_counter() - started, time.process_time() - worked
        found[name] = f"{spent:.2f} s ({worked:.2f} s of a core)"
    return found


def read_tasks(address: str, small: bool, rng: np.random.Generator) -> dict[str, list[Episode]]:
    """Return shuffled episodes by task; the sample has one task."""
    by_task: dict[str, list[Episode]] = defaultdict(list)
    for episode in open_dataset(address):
        origin = replace(episode.origin, tags={**episode.origin.tags, "task": "sample"}) if small else episode.origin
        by_task[name_task(replace(episode, origin=origin))].append(replace(episode, origin=origin))
    return {task: [some[i] for i in rng.permutation(len(some))] for task, some in by_task.items()}


def split_task(episodes: list[Episode]) -> tuple[list[Episode], list[Episode], list[Episode]]:
    """Return examples, five successes and five failures to teach, and the rest."""
    good = [one for one in episodes if one.outcome is not None and one.outcome.success]
    bad = [one for one in episodes if one not in good]
    shown = min(EXAMPLES, len(good) // 2)
    return good[:shown], good[: min(5, shown)] + bad[:5], [*good[shown:], *bad[5:]]


@dataclass(frozen=True, eq=False)
class PlaySearch:
    """The index, what is true, and the examples."""

    engine: Engine
    windows: PlayWindows
    truth: dict[str, list[KnownSegment]]

    def precision(self, scores: np.ndarray, task: str) -> float:
        return measure_precision(merge_hits(self.windows, scores, TOP), task, self.truth)

    def measure_task(
        self, task: str, instructions: list[str], examples: np.ndarray, draws: int, rng: np.random.Generator
    ) -> dict[str, float]:
        row: dict[str, list[float]] = defaultdict(list)
        row["base"] = [measure_base(self.windows, task, self.truth)]
        texts = [score_by_text(self.windows, self.engine, words) for words in instructions]
        row["random"] = [self.precision(rng.random(len(self.windows)), task) for _ in range(draws)]
        row["words"] = [self.precision(text, task) for text in texts]
        for draw in range(draws):
            vectors = examples[rng.permutation(len(examples))]
            row["1 example"].append(self.precision(score_by_examples(self.windows, vectors[:1]), task))
            five = score_by_examples(self.windows, vectors[:5])
            row["5 examples"].append(self.precision(five, task))
            row["5 examples + words"].append(self.precision(five + texts[draw % len(texts)], task))
        return {name: float(np.mean(values)) for name, values in row.items()}

    def measure_taught(
        self, task: str, instruction: str, examples: np.ndarray, lesson: list[Episode]
    ) -> dict[str, float]:
        candidates = merge_hits(self.windows, score_by_examples(self.windows, examples), CANDIDATES)
        with tempfile.TemporaryDirectory() as place:
            rate = teach_gains(instruction, lesson, Path(place))
            found = {
                "5 of the lesson": candidates,
                "then by the taught model": order_by_gain(candidates, rate(candidates)),
                "every window by it": merge_gains(self.windows, rate(list_windows(self.windows)), TOP),
            }
        return {name: measure_precision(some, task, self.truth) for name, some in found.items()}


def print_table(rows: dict[str, dict[str, float]]) -> None:
    columns = list(next(iter(rows.values())))
    print(f"| task | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}")
    for task, row in rows.items():
        print(f"| {task} | {' | '.join(f'{row[name]:.2f}' for name in columns)} |")
    means = {name: float(np.mean([row[name] for row in rows.values()])) for name in columns}
    times = [f"{means[name] / means['base']:.1f}" for name in columns]
    print(f"| **mean** | {' | '.join(f'{means[name]:.3f}' for name in columns)} |")
    print(f"| **times the base rate** | {' | '.join(times)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", default=str(SAMPLE), help="simulated episodes of several tasks")
    parser.add_argument("--draws", type=int, default=5, help="draws of examples")
    parser.add_argument("--teach", action="store_true", help="also order by a taught model")
    parser.add_argument("--small", action="store_true", help="the shipped sample, one draw")
    given = parser.parse_args()
    rng, draws = np.random.default_rng(0), 1 if given.small else given.draws
    by_task = read_tasks(given.dataset, given.small, rng)
    parts = {task: split_task(some) for task, some in by_task.items()}
    rest = [one for _, _, some in parts.values() for one in some]
    engine, plan = Engine.load_shipped(), WindowPlan(3.0, 1.0)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        recordings, truth = join_recordings([rest[i] for i in rng.permutation(len(rest))], folder)
        started = time.perf_counter()
        windows = index_windows(recordings, plan, engine, folder / "index")
        indexed, started = time.perf_counter() - started, time.perf_counter()
        index_windows(recordings, plan, engine, folder / "index")
        loaded = time.perf_counter() - started
        search, rows = PlaySearch(engine, windows, truth), dict[str, dict[str, float]]()
        for task, (examples, lesson, _) in parts.items():
            instructions = sorted({one.instruction for one in by_task[task]})
            one_window = WindowPlan(math.inf, 1.0)
            shown = index_windows(Dataset.from_episodes(examples, task), one_window, engine, folder / "shown").vectors
            rows[task] = search.measure_task(task, instructions, shown, draws, rng)
            if given.teach:
                rows[task] |= search.measure_taught(task, instructions[0], shown[:5], lesson)
        speed = measure_speed(windows, engine, "open the drawer", shown[:5])
    print(f"{len(windows)} windows of {len(recordings)} recordings, {len(rest)} episodes, {draws} draws of examples\n")
    print_table(rows)
    print(f"\nindexing: {len(windows) / indexed:.0f} windows/s; loading {len(windows)} windows: {loaded:.2f} s")
    print(f"a query over {MANY} windows: {speed['words']} by words, {speed['examples']} by examples")


if __name__ == "__main__":
    main()
