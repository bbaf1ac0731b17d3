"""What counterfactuals and clips add (RoboReward's table 3): trained with both, without one of them, without both.

demerit relabel successes corpus --clips 2,3,4 --keep-originals                # or: demerit build-corpus
python benchmarks/ablation.py corpus --out runs --model rewind --seeds 0 1 2   # on the corpus's own test split
python benchmarks/ablation.py corpus --out runs --test other_set               # on other episodes
python benchmarks/ablation.py --small                       # the shipped sample: only shows that the script runs

Trains each variant with every seed (`tools/train_compact`, or `demerit train` with another --model), then measures the
final values: over-reward rate, AUROC and the error in grades. Intervals are over tasks, with the mean over seeds in
each resample. The seeds of a variant share its prepared corpus and, with `rewind`, the features of its frames.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np

VARIANTS = {
    "full": (),
    "without counterfactuals": ("counterfactual",),
    "without clips": ("clip",),
    "without both": ("counterfactual", "clip"),
}
SMALL = {"compact": ["steps=2", "groups=1", "clips=2", "frames=4"], "rewind": ["steps=2", "clips=2", "frames=4"]}
BATCH = 8
RESAMPLES = 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="?", help="a dataset with the splits train and test")
    parser.add_argument("--out", type=Path, help="folder of the runs; the same command resumes (default: temporary)")
    parser.add_argument("--test", help="measure on these episodes instead of the corpus's test split")
    parser.add_argument("--model", default="compact", help="compact, or what demerit train trains")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="changes of the recipe")
    parser.add_argument("--option", action="append", default=[], help="further words for demerit train, one at a time")
    parser.add_argument("--label-sources", default="", help="to measure by (default: no labels of models)")
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    if not given.small and given.corpus is None:
        parser.error("expected a corpus, or --small")
    with tempfile.TemporaryDirectory() as temporary:
        out = given.out or Path(temporary)
        if given.small:
            given.corpus, given.seeds = str(write_small(Path(temporary) / "small")), [0]
            given.set, given.option = SMALL[given.model], ["--device", "cpu", "--workers", "0"]
        models = {
            (name, seed): train(given, out / name.replace(" ", "-"), seed, without)
            for name, without in VARIANTS.items()
            for seed in given.seeds
        }
        print_table(models, given)


def train(given: argparse.Namespace, folder: Path, seed: int, without: tuple[str, ...]) -> str:
    """Train one variant with one seed, or resume; return the model's address."""
    out = folder / f"seed-{seed}"
    (out / "run").mkdir(parents=True, exist_ok=True)
    for features in folder.glob("seed-*/run/features-*.npy"):
        if not (out / "run" / features.name).exists():
            (out / "run" / features.name).hardlink_to(features)
    trainer = ["-c", "from demerit.cli import main; main()", "train", given.model]
    if given.model == "compact":
        trainer = [str(Path(__file__).parents[1] / "tools" / "train_compact")]
    command = [sys.executable, *trainer, "-o", str(out)]
    command += ["--data", f"corpus={given.corpus}", "--prepared", str(folder / "corpus")]
    for change in (*given.set, f"seed={seed}", f"without={json.dumps(without)}"):
        command += ["--set", change]
    subprocess.run([*command, *given.option], check=True, stdout=sys.stderr)
    if (out / "network").exists():
        return str(out / "network")
    how = ",how=decode" if given.model == "roboreward" else ""  # the whole number that it writes, as in the paper
    return f"{given.model}:path={out / 'model'}{how}"


def print_table(models: dict[tuple[str, int], str], given: argparse.Namespace) -> None:
    """Score the test episodes with every model and print each variant's measures, and their differences to `full`."""
    from demerit.evaluate.benchmarks.scores import labels_of
    from demerit.evaluate.metrics import Resampling
    from demerit.evaluate.metrics.bootstrap import by_row_if_alone, percentiles, replicates, values_of
    from demerit.evaluate.metrics.grades import grade_by_range, grade_error
    from demerit.evaluate.metrics.success import auroc, over_reward

    episodes = test_episodes(given)
    labels = [labels_of(episode) for episode in episodes]
    success = np.array([np.nan if row.success is None else float(row.success) for row in labels])
    ends = np.array([np.nan if row.progress is None else row.progress for row in labels])
    grades = np.array([np.nan if row.grade is None else float(row.grade) for row in labels])
    grades = np.where(np.isnan(grades), grade_by_range(ends, 0.0, 1.0), grades)
    known: dict[str, np.ndarray] = {}
    answers = {key: score(address, episodes, known) for key, address in models.items()}
    finals = {key: final for key, (final, _) in answers.items()}
    scored = ~np.isnan(np.stack(list(finals.values()))).any(axis=0)
    tasks = [row.task for row, kept in zip(labels, scored, strict=True) if kept]
    how = Resampling(resamples=100 if given.small else RESAMPLES, alone="rows")  # one task: over its episodes
    measures = {
        "over-reward rate": lambda key: over_reward(finals[key][scored], success[scored], clusters=tasks),
        "AUROC": lambda key: auroc(finals[key][scored], success[scored], clusters=tasks),
        "error in grades": lambda key: grade_error(
            grade_by_range(finals[key][scored], *answers[key][1]), grades[scored], clusters=tasks
        ),
    }
    counted = f"{int(scored.sum())} of {len(episodes)} test episodes scored by all, {len(set(tasks))} tasks"
    print(f"{counted}, {len(given.seeds)} seeds\n\n| variant | measure | mean | 95% interval | full minus it |")
    print("| --- " * 5 + "|")
    for measure, tally_of in measures.items():
        tallies = {key: tally_of(key) for key in finals}
        first = next(iter(tallies.values()))
        if not first.n:
            print(f"| all | {measure} | undefined: {first.note or 'no labels'} | | |")
            continue
        codes, size = by_row_if_alone(first.codes, len(first.clusters), how)
        drawn = dict(zip(tallies, replicates([t.statistic for t in tallies.values()], codes, size, how), strict=True))
        whole = {key: values_of(t.statistic, codes, np.ones((1, size)))[0] for key, t in tallies.items()}
        mean = {name: np.mean([whole[name, seed] for seed in given.seeds]) for name in VARIANTS}
        draws = {name: np.mean([drawn[name, seed] for seed in given.seeds], axis=0) for name in VARIANTS}
        for name in VARIANTS:
            low, high = percentiles(draws[name], how.level)
            apart = percentiles(draws["full"] - draws[name], how.level)
            difference = (
                f"{mean['full'] - mean[name]:+.3f} ({apart[0]:+.3f} to {apart[1]:+.3f})" if name != "full" else ""
            )
            print(f"| {name} | {measure} | {mean[name]:.3f} | {low:.3f} to {high:.3f} | {difference} |")


def test_episodes(given: argparse.Namespace) -> list:
    """Read the episodes to measure on, with labels of the chosen sources."""
    from demerit.cli.bundles import parse_sources
    from demerit.data.episode import NOT_A_MODEL
    from demerit.data.formats import open_dataset
    from demerit.data.splits import LabelSelection, normalize_split

    selection = LabelSelection(parse_sources(given.label_sources, NOT_A_MODEL), use_test_split=True)
    found = [
        taken
        for episode in open_dataset(given.test or given.corpus)
        if (given.test or normalize_split(episode.origin.split) == "test") and (taken := selection.take(episode))
    ]
    left_out = " ".join(selection.describe_checks())
    if not found:
        raise SystemExit(f"{given.corpus}: expected episodes of a test split (or --test), got none. {left_out}")
    if left_out:
        print(left_out)
    return found


def score(address: str, episodes: list, known: dict[str, np.ndarray]) -> tuple[np.ndarray, tuple[float, float]]:
    """Return every episode's final value, NaN where it is unscored, and the range of such values on the model's card.

    ReWiNDs share `known` features by video.
    """
    from demerit.data.frames import Frames
    from demerit.data.splits import seen_by
    from demerit.models import load_model
    from demerit.models.rewind import ReWiND

    model = load_model(address)
    seen = [episode.id for episode in episodes if seen_by(model).has(episode)]
    if seen:
        raise SystemExit(f"{address} has learned from {len(seen)} of the test episodes, e.g. {seen[0]}")
    if isinstance(model, ReWiND):
        compute = model._reader.features

        def take(frames: Frames) -> np.ndarray:
            if (key := frames.identity()) not in known:
                known[key] = compute(frames)
            return known[key]

        model._reader.features = take
    hidden = [replace(episode, outcomes=()) for episode in episodes]
    starts = range(0, len(hidden), BATCH)
    finals = np.array([reward.final for at in starts for reward in model.score(hidden[at : at + BATCH])])
    return finals, (model.card.low, model.card.high)


def write_small(folder: Path) -> Path:
    """Write the shipped sample with a clip and a counterfactual of each success in its train split."""
    from demerit.data.formats import open_dataset
    from demerit.data.store import open_or_create
    from demerit.negatives import load_negative
    from demerit.negatives.relabel.prompts import prompt_version

    rng = np.random.default_rng(0)
    author = {"model": "none", "prompts": prompt_version()}
    with open_or_create(folder, "small", "MIT", "sample").writer() as writer:
        for episode in open_dataset(str(files("demerit") / "assets" / "sample")):
            writer.add(episode)
            if episode.origin.split == "train" and episode.outcome.success:
                writer.add(load_negative("clip")(episode, rng))
                other = load_negative("counterfactual")
                writer.add(other(episode, rng, words="put the block onto the wall", grade=2, **author))
    return folder


if __name__ == "__main__":
    main()
