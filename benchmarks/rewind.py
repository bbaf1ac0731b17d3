"""ReWiND with and without failures, and RoboReward's table 3 on its network, on unseen simulated tasks.

demerit simulate stores/train --benchmark metaworld-bad@1 --split train
demerit simulate stores/test --benchmark metaworld-bad@1 --split test
python benchmarks/rewind.py features stores/train train.npz        # every frame once
python benchmarks/rewind.py features stores/test test.npz
python benchmarks/rewind.py failures train.npz test.npz                     # docs/results/rewind.md
demerit negatives stores/train stores/edits --mix clip=1,wrong-instruction=1 --per-episode 2 --per-dataset 0
python benchmarks/rewind.py edits stores/edits edits.json
python benchmarks/rewind.py table3 train.npz test.npz --edits edits.json    # docs/results/ablation.md
python benchmarks/rewind.py --small                                         # drawn episodes

`--network DIR` takes the features of another compact network. Three seeds of each row: values are means over them,
intervals are bootstraps over the tasks (the same tasks for all seeds and rows), differences are paired.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from demerit.data.frames import spread
from demerit.models.compact.engine import WORDS, Engine, TextEncoder, shipped_folder
from demerit.training.prepared import CorpusRow
from demerit.training.rewind import RewindTrainConfig

if TYPE_CHECKING:
    from demerit.training.rewind.train import RewindTrainer

SEEDS = (0, 1, 2)
RESAMPLES = 2000
HALF = 0.5
Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Cached:
    """Features of every frame of some episodes, and their labels."""

    features: npt.NDArray[np.float16]
    rows: list[CorpusRow]
    pairs: list[tuple[str, str]]
    """ids of a success and a failure, matched"""

    @classmethod
    def load(cls, *paths: str | Path) -> Cached:
        parts = [np.load(path) for path in paths]
        features = np.concatenate([part["features"] for part in parts])
        rows = [CorpusRow.from_dict(row) for part in parts for row in json.loads(str(part["rows"]))]
        pairs = [tuple(pair) for part in parts for pair in json.loads(str(part["pairs"]))]
        return cls(features, place_rows(rows), pairs)

    def of(self, row: CorpusRow) -> npt.NDArray[np.float32]:
        return self.features[row.first : row.first + row.frames].astype(np.float32)


def place_rows(rows: Iterable[CorpusRow]) -> list[CorpusRow]:
    """Number the frames as if each were one pixel."""
    placed: list[CorpusRow] = []
    for row in rows:
        placed.append(replace(row, start=placed[-1].end if placed else 0, height=1, width=1))
    return placed


def save_features(store: str, out: Path, network: Path | None, demonstrations: bool) -> None:
    from demerit.data.formats import open_dataset
    from demerit.models.compact.model import Compact
    from demerit.negatives.sim.splits import matched_pairs
    from demerit.training.prepared import CorpusPart
    from demerit.training.rewind.data import CompactCorpusPlan

    engine = Engine.load(network or shipped_folder())
    model, plan = Compact(engine=engine), CompactCorpusPlan(engine.info.size)
    data = open_dataset(store)
    part = CorpusPart(Path(store).name, data, "demonstrations" if demonstrations else "data")
    rows, features, episodes = [], [], []
    for episode in data:
        row = plan.label(episode, np.arange(len(episode), dtype=np.int32), part)
        if isinstance(row, CorpusRow):
            rows.append(row)
            features.append(model.features(episode.main)[:, : engine.info.vector].astype(np.float16))
            episodes.append(episode)
    simulated = all("motion" in episode.origin.tags for episode in episodes)
    pairs = [(p.a, p.b) if p.verdict == "a" else (p.b, p.a) for p in (matched_pairs(episodes) if simulated else [])]
    np.savez(
        out,
        features=np.concatenate(features),
        rows=json.dumps([row.as_dict() for row in rows]),
        pairs=json.dumps(pairs),
    )


Curves = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Trial:
    """One training run and what it is tested on."""

    data: Cached
    test: Cached
    config: RewindTrainConfig
    words: TextEncoder
    device: str | None

    def __call__(self) -> Curves:
        import torch

        torch.set_num_threads(1)
        trainer = train(self.data, self.config, self.words, self.device)
        return {row.id: follow(trainer, self.test, row) for row in self.test.rows}


TRIALS: list[Trial] = []
"""read by forked processes, so that nothing large is sent to them"""


def run_all(trials: Mapping[str, list[Trial]], jobs: int) -> dict[str, list[Curves]]:
    """Run every trial, `jobs` of them at a time."""
    TRIALS[:] = [trial for seeds in trials.values() for trial in seeds]
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("fork")) as pool:
        done = iter(list(pool.map(_run_trial, range(len(TRIALS)))))
    return {name: [next(done) for _ in seeds] for name, seeds in trials.items()}


def _run_trial(number: int) -> Curves:
    return TRIALS[number]()


def train(data: Cached, config: RewindTrainConfig, words: TextEncoder, device: str | None) -> RewindTrainer:
    from demerit.training.rewind.train import RewindTrainer

    with tempfile.TemporaryDirectory() as folder:
        trainer = RewindTrainer(data.rows, data.features, config, words, folder, device)
        trainer.run()
    return trainer


def follow(trainer: RewindTrainer, data: Cached, row: CorpusRow) -> npt.NDArray[np.float32]:
    """Score every frame of an episode as `demerit.models.rewind.ReWiND.follow` does."""
    import torch

    features, most = torch.from_numpy(data.of(row)).to(trainer.device), trainer.config.frames
    words, _ = trainer.instructions.take([row.instruction])
    with torch.no_grad():
        parts = [trainer.averaged(features[None, :most], words)[0]]
        late = range(most, row.frames)
        if late:
            windows = torch.stack([features[torch.from_numpy(spread(at + 1, most).astype(np.int64))] for at in late])
            parts.append(trainer.averaged(windows, words.expand(len(late), -1))[:, -1])
    return torch.cat(parts).cpu().numpy()


def measure(curves: Curves, data: Cached, tasks: Sequence[Sequence[int]]) -> dict[str, Values]:
    """Return the measures of each resample of tasks; the first is the sample itself."""
    rows = data.rows
    names = sorted({row.task for row in rows})
    final = np.array([curves[row.id][-1] for row in rows])
    good = np.array([bool(row.success) for row in rows])
    task = np.array([names.index(row.task) for row in rows])
    places = {row.id: number for number, row in enumerate(rows)}
    pairs = np.array([[places[a], places[b]] for a, b in data.pairs if a in places and b in places]).reshape(-1, 2)
    right = (final[pairs[:, 0]] > final[pairs[:, 1]]) + HALF * (final[pairs[:, 0]] == final[pairs[:, 1]])
    errors = [np.abs(curves[row.id] - row.progress) for row in rows]
    error_sum, error_count = (
        np.array([f(error) for error in errors]) for f in (np.nansum, lambda e: (~np.isnan(e)).sum())
    )
    members = [np.flatnonzero(task == number) for number in range(len(names))]
    pairs_of = [np.flatnonzero(task[pairs[:, 0]] == number) for number in range(len(names))]
    found: dict[str, list[float]] = {"auroc": [], "pairs": [], "over_reward": [], "mae": []}
    for chosen in tasks:
        at = np.concatenate([members[number] for number in chosen])
        score, success = final[at], good[at]
        found["auroc"].append(_auroc(score, success))
        found["over_reward"].append(float((score[~success] >= np.median(score[success])).mean()))
        found["mae"].append(float(error_sum[at].sum() / error_count[at].sum()))
        which = np.concatenate([pairs_of[number] for number in chosen]) if len(pairs) else np.empty(0, int)
        found["pairs"].append(float(right[which].mean()) if len(which) else float("nan"))
    return {name: np.array(values) for name, values in found.items()}


def _auroc(score: npt.NDArray[Any], success: npt.NDArray[Any]) -> float:
    good, bad = score[success], np.sort(score[~success])
    below, upto = np.searchsorted(bad, good, "left"), np.searchsorted(bad, good, "right")
    return float((below + upto).mean() / 2 / len(bad))


def compare(rows: Mapping[str, list[Curves]], data: Cached, pairs: Iterable[tuple[str, str]]) -> None:
    """Print a table of the rows (a name and the curves of each seed), and the differences of pairs of rows."""
    count = len({row.task for row in data.rows})
    rng = np.random.default_rng(0)
    tasks = [list(range(count)), *rng.integers(count, size=(RESAMPLES, count)).tolist()]
    each = {name: [measure(curves, data, tasks) for curves in seeds] for name, seeds in rows.items()}
    means = {n: {m: np.mean([s[m] for s in seeds], axis=0) for m in seeds[0]} for n, seeds in each.items()}
    columns = list(next(iter(means.values())))
    print("| row | " + " | ".join(columns) + f" |\n|{' --- |' * (len(columns) + 1)}")
    for name, found in means.items():
        print(f"| {name} | " + " | ".join(_interval(found[m]) for m in columns) + " |")
    print("\nmeans of single seeds:\n| row | " + " | ".join(columns) + f" |\n|{' --- |' * (len(columns) + 1)}")
    for name, seeds in each.items():
        print(f"| {name} | " + " | ".join(", ".join(f"{s[m][0]:.3f}" for s in seeds) for m in columns) + " |")
    print("\npaired differences:\n| rows | " + " | ".join(columns) + f" |\n|{' --- |' * (len(columns) + 1)}")
    for more, less in pairs:
        if {more, less} <= set(means):
            found = {m: means[more][m] - means[less][m] for m in columns}
            print(f"| {more} - {less} | " + " | ".join(_interval(found[m], "+") for m in columns) + " |")


def _interval(values: Values, sign: str = "") -> str:
    low, high = np.nanpercentile(values[1:], [2.5, 97.5])
    return f"{values[0]:{sign}.3f} ({low:{sign}.2f} to {high:{sign}.2f})"


FAILURES = {
    "successes only": {"rewind": 0.0, "mismatched": 0.0, "failures": 0.0},
    "+ rewound": {"mismatched": 0.0, "failures": 0.0},
    "+ mismatched": {"rewind": 0.0, "mismatched": 1.0, "failures": 0.0},
    "ReWiND (both)": {"mismatched": 1.0, "failures": 0.0},
    "ReWiND + failures": {"mismatched": 1.0, "failures": 0.5},
    "rewound + failures": {"mismatched": 0.0, "failures": 0.5},
    "measured targets, rewound": {"mismatched": 0.0, "failures": 0.0, "targets": "measured"},
    "measured targets, rewound + failures": {"mismatched": 0.0, "failures": 0.5, "targets": "measured"},
}
DIFFERENCES = [
    ("+ rewound", "successes only"),
    ("+ mismatched", "successes only"),
    ("ReWiND (both)", "+ rewound"),
    ("ReWiND + failures", "ReWiND (both)"),
    ("rewound + failures", "+ rewound"),
    ("measured targets, rewound + failures", "measured targets, rewound"),
    ("rewound + failures", "*change of features*"),
]


def controls(data: Cached) -> dict[str, list[Curves]]:
    rng = np.random.default_rng(0)
    change = {}
    for row in data.rows:
        features = data.of(row)
        change[row.id] = np.linalg.norm(features - features[0], axis=1)
    highest = max(float(curve.max()) for curve in change.values())
    return {
        "*clock*": [{row.id: np.arange(1, row.frames + 1) / row.frames for row in data.rows}],
        "*constant*": [{row.id: np.full(row.frames, HALF) for row in data.rows}],
        "*random*": [{row.id: rng.random(row.frames) for row in data.rows}],
        "*change of features*": [{id: curve / highest for id, curve in change.items()}],
    }


def ablate_failures(options: argparse.Namespace, words: TextEncoder) -> None:
    data, test = Cached.load(*options.train), Cached.load(options.test)
    trials = {
        name: [
            Trial(data, test, RewindTrainConfig(seed=seed, **{**options.set, **changes}), words, options.device)
            for seed in SEEDS
        ]
        for name, changes in FAILURES.items()
        if not options.rows or name in options.rows
    }
    made = run_all(trials, options.jobs)
    compare({**made, **controls(test)}, test, DIFFERENCES)


TABLE_3 = {
    "full": ("counterfactual", "clip"),
    "no counterfactuals": ("clip",),
    "no clips": ("counterfactual",),
    "neither": (),
}


def ablate_table_3(options: argparse.Namespace, words: TextEncoder) -> None:
    """Graded at the end only, as RoboReward is: successes 1, clips and counterfactuals (grade - 1) / 4."""
    data, test = Cached.load(*options.train), Cached.load(options.test)
    edits = json.loads(options.edits.read_text("utf-8"))
    for background in ("successes", "successes and failures"):
        trials = {}
        for name, kinds in TABLE_3.items():
            corpus = graded_corpus(data, edits, kinds, failures=background != "successes")
            share = HALF if any(not row.success for row in corpus.rows) else 0.0
            changes = {"rewind": 0.0, "mismatched": 0.0, "targets": "measured", "failures": share, **options.set}
            trials[name] = [
                Trial(corpus, test, RewindTrainConfig(seed=seed, **changes), words, options.device) for seed in SEEDS
            ]
            print(background, name, len(corpus.rows), "episodes", flush=True)
        made = run_all(trials, options.jobs)
        print(f"\n### {background}\n")
        compare({**made, **controls(test)}, test, [(name, "full") for name in TABLE_3 if name != "full"])


def graded_corpus(data: Cached, edits: Sequence[Mapping[str, Any]], kinds: Sequence[str], failures: bool) -> Cached:
    """Put together originals and edits of these kinds, each with a label at its last frame alone."""
    rows, features = [], []
    originals = {row.id: row for row in data.rows}
    for row in data.rows:
        if row.success or failures:
            rows.append(
                _graded(row, row.frames, 1.0 if row.success else min(float(row.progress[-1]), 0.75), row.instruction)
            )
            features.append(data.of(row).astype(np.float16))
    for edit in edits:
        row = originals.get(edit["of"])
        if row is not None and edit["kind"] in kinds:
            rows.append(_graded(row, edit["frames"], (edit["grade"] - 1) / 4, edit["instruction"]))
            features.append(data.of(row)[: edit["frames"]].astype(np.float16))
    return Cached(np.concatenate(features), place_rows(rows), [])


def _graded(row: CorpusRow, frames: int, value: float, instruction: str) -> CorpusRow:
    progress = np.full(frames, np.nan, np.float32)
    progress[-1] = value
    done = value == 1.0
    return replace(row, progress=progress, times=row.times[:frames], success=done, instruction=instruction, facts=None)


def save_edits(store: str, out: Path) -> None:
    """Write down which clips and instructions `demerit negatives` made: the frames are those of the originals."""
    from demerit.data.formats import open_dataset

    edits = []
    for episode in open_dataset(store):
        last = episode.edits[-1]
        kind = {"clip": "clip", "wrong-instruction": "counterfactual"}[last.name]
        facts = {"kind": kind, "of": episode.origin.parent, "frames": len(episode), "grade": episode.outcome.grade}
        edits.append({**facts, "instruction": episode.instruction})
    out.write_text(json.dumps(edits), encoding="utf-8")


def draw_cached(seed: int, tasks: int = 3, episodes: int = 6) -> Cached:
    """Make up features whose first number is the progress."""
    rng = np.random.default_rng(seed)
    rows, features = [], []
    for number in range(tasks * episodes):
        task, done = f"task {number % tasks}", number % 2 == 0
        progress = np.linspace(0, 1 if done else HALF, 12, dtype=np.float32)
        instruction = ("press the button", "lift the lid", "fold the towel")[number % tasks]
        rows.append(CorpusRow(str(number), "drawn", instruction, "measured", done, progress, progress, task=task))
        features.append(np.concatenate([progress[:, None], rng.normal(size=(12, 7))], axis=1).astype(np.float16))
    return Cached(np.concatenate(features), place_rows(rows), [("0", "3")])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["features", "edits", "failures", "table3"])
    parser.add_argument("files", nargs="*", help="input and output; the last is the output, or the test set")
    parser.add_argument("--network", type=Path)
    parser.add_argument("--demonstrations", action="store_true")
    parser.add_argument("--edits", type=Path)
    parser.add_argument("--set", type=json.loads, default={}, help="changes of the recipe, as JSON")
    parser.add_argument("--rows", nargs="*", help="only these rows")
    parser.add_argument("--device")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    words = TextEncoder.load((options.network or shipped_folder()) / WORDS)
    if options.small:
        data = draw_cached(0)
        trainer = train(data, RewindTrainConfig(steps=2, clips=4, failures=HALF), words, "cpu")
        compare(
            {"ReWiND": [{row.id: follow(trainer, data, row) for row in data.rows}], **controls(data)},
            data,
            [("ReWiND", "*clock*")],
        )
        return
    if options.what is None or len(options.files) < 2:
        parser.error("expected what to do, input and output files, or --small")
    *options.train, options.test = options.files
    if options.what == "features":
        save_features(options.train[0], Path(options.test), options.network, options.demonstrations)
    elif options.what == "edits":
        save_edits(options.train[0], Path(options.test))
    elif options.what == "failures":
        ablate_failures(options, words)
    else:
        ablate_table_3(options, words)


if __name__ == "__main__":
    main()
