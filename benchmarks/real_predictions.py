"""The metrics on real predictions of published models, beside controls that know nothing.

    python benchmarks/real_predictions.py --data DIR        (--small: invented predictions, in seconds)

DIR holds gvl_site/ (GVL's percentages for 126 episodes) and roboarena/ (Robometer's curves for 188 rollouts). Neither
has human outcomes, so nothing here says how good a model is: VOC is measured on demonstrations, and elsewhere only
whom Robometer agrees with.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from demerit.data.episode import Episode
from demerit.data.video import write_video
from demerit.evaluate.benchmarks.scores import SHUFFLED, frame_order
from demerit.evaluate.metrics import Measure, Tally, compare
from demerit.evaluate.metrics.bootstrap import mean_tally
from demerit.evaluate.metrics.ranking import (
    Method,
    episode_returns,
    order_correlations,
    preference_ordering,
    value_order_correlation,
)
from demerit.models import load_model

METHODS: tuple[Method, ...] = ("pearson", "spearman")
CONTROLS = ("clock", "random", "change", "motion", "length", "constant")
TWO = 2


def show(measure: Measure, name: str) -> str:
    if not measure.known:
        return f"| {name} | undefined | 0 | {measure.undefined} | {measure.unscored} |"
    return (
        f"| {name} | {measure.value:.3f} ({measure.low:.3f} to {measure.high:.3f}) | {measure.n} "
        f"| {measure.undefined} | {measure.unscored} |"
    )


def table(title: str, unit: str) -> None:
    print(f"\n{title}\n\n| model | value (95% interval) | {unit} | undefined | unscored |\n|---|---|---|---|---|")


def scored(name: str, episodes: Sequence[Episode]) -> list[Any]:
    return load_model(name).score(episodes)


def shuffled(name: str, episodes: Sequence[Episode]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Show a control shuffled frames after the first, which is not counted; return values and true times."""
    orders = [frame_order(SHUFFLED, episode.id, len(episode)) for episode in episodes]
    rewards = scored(name, [episode.select(order) for episode, order in zip(episodes, orders, strict=True)])
    values = [reward.value[reward.at > 0] for reward in rewards]
    times = [order[reward.at[reward.at > 0]] for reward, order in zip(rewards, orders, strict=True)]
    return values, times


def gvl(folder: Path) -> None:
    """GVL saw the frames shuffled; its VOC is therefore comparable with the controls on shuffled frames."""
    rows = json.loads((folder / "gvl_predictions.json").read_text())
    predictions = [np.array(row["pred_percent"], dtype=np.float64) for row in rows]
    sets = [row["id"].rpartition("_")[0] for row in rows]
    episodes = [Episode.from_video(folder / f"{row['id']}.mp4", row["task_description"], row["id"]) for row in rows]
    short = sum(len(episode) != len(values) for episode, values in zip(episodes, predictions, strict=True))
    print(f"## GVL's published percentages: {len(rows)} episodes of {len(set(sets))} sets and tasks")
    print(f"Intervals are clustered by these. Videos with another number of frames than percentages: {short}.")
    position = [np.array(row["prompt_position"]) for row in rows]
    shown = {name: (scored(name, episodes), shuffled(name, episodes)) for name in CONTROLS}
    for method in METHODS:
        table(f"### VOC by {method.capitalize()}", "episodes")
        later = [values[1:] for values in predictions]
        found = order_correlations(later, method=method).value

        def count(values: np.ndarray) -> Tally:
            return mean_tally("", "episodes", values, sets)

        print(
            show(
                value_order_correlation(predictions, method=method, clusters=sets).measure(),
                "GVL (frames were shuffled)",
            )
        )
        name = "GVL (frames were shuffled), first frame not counted"
        print(show(value_order_correlation(later, method=method, clusters=sets).measure(), name))
        place = count(order_correlations(position, method=method).value).measure()
        print(show(place, "the frame's place in GVL's prompt, as if it were a value"))
        for name, (rewards, (seen, true_times)) in shown.items():
            values, times = [reward.value for reward in rewards], [reward.at for reward in rewards]
            print(
                show(
                    value_order_correlation(values, times, method=method, clusters=sets).measure(), f"{name}, in order"
                )
            )
            mixed = value_order_correlation(seen, true_times, method=method, shown="shuffled", clusters=sets).measure()
            print(show(mixed, f"{name}, shuffled"))
        seen, true_times = shown["change"][1]
        versus = compare(count, found, order_correlations(seen, true_times, method).value)
        span = f"{versus.difference:+.3f} ({versus.low:+.3f} to {versus.high:+.3f})"
        print(f"\nGVL minus change, both shuffled and without the first frame: {span}.")


def roboarena(folder: Path) -> None:
    """Whom does Robometer agree with? No person judged these rollouts, so agreement is all there is."""
    rows = json.loads((folder / "index.json").read_text())
    episodes = [Episode.from_video(folder / f"{row['id']}.mp4", row["instruction"], row["id"]) for row in rows]
    curves = [np.array(row["robometer_progress"], dtype=np.float64) for row in rows]
    tasks = [row["instruction"] for row in rows]
    lengths = np.array([len(curve) for curve in curves])
    print(
        f"\n## Robometer's curves on RoboArena: {len(rows)} rollouts, {len(set(tasks))} instructions, no human outcome"
    )
    print(f"Frames per rollout: {lengths.min()} to {lengths.max()}, median {np.median(lengths):.0f}.")
    rewards = {name: scored(name, episodes) for name in CONTROLS}
    for method in METHODS:
        table(f"### VOC by {method.capitalize()} (rollouts, many of them failures: a high VOC is no merit)", "episodes")
        print(show(value_order_correlation(curves, method=method, clusters=tasks).measure(), "Robometer"))
        for name in ("clock", "change", "motion"):
            values, times = [reward.value for reward in rewards[name]], [reward.at for reward in rewards[name]]
            print(show(value_order_correlation(values, times, method=method, clusters=tasks).measure(), name))
    twice = np.array([tasks.count(task) == TWO for task in tasks])
    kept = [task for task, is_kept in zip(tasks, twice, strict=True) if is_kept]
    for how in ("final", "mean", "sum"):
        theirs = episode_returns(curves, how)[twice]
        ours = {name: episode_returns([reward.value for reward in rewards[name]], how)[twice] for name in CONTROLS}
        _agreement(how, theirs, ours, kept)


def _agreement(how: str, robometer: np.ndarray, controls: dict[str, np.ndarray], tasks: list[str]) -> None:
    """Take Robometer's order of the two rollouts of one instruction as given, and ask who repeats it."""
    table(
        f"### Who orders the two rollouts of one instruction as Robometer does, by {how}? (agreement, 0.5 = chance)",
        "pairs",
    )

    def count(values: np.ndarray) -> Tally:
        return preference_ordering(values, robometer, tasks)

    for name, values in controls.items():
        print(show(count(values).measure(), name))
    versus = compare(count, controls["change"], controls["constant"])
    span = f"{versus.difference:+.3f} ({versus.low:+.3f} to {versus.high:+.3f}), p {versus.p:.4f}"
    print(f"\nchange minus constant: {span}.")


def make_small(folder: Path) -> None:
    """Write noise videos with invented predictions in the two formats."""
    rng = np.random.default_rng(0)
    for name in ("gvl_site", "roboarena"):
        rows: list[dict[str, Any]] = []
        (folder / name).mkdir()
        for number in range(6):
            id = f"set{number // 2}_{number}"
            write_video(folder / name / f"{id}.mp4", rng.integers(0, 255, (8, 32, 32, 3), dtype=np.uint8))
            row = {"id": id, "task_description": f"task {number // 2}", "instruction": f"task {number // 2}"}
            row |= {"pred_percent": rng.random(8).tolist(), "prompt_position": rng.permutation(8).tolist()}
            rows.append({**row, "robometer_progress": rng.random(8).tolist()})
        file = "gvl_predictions.json" if name == "gvl_site" else "index.json"
        (folder / name / file).write_text(json.dumps(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="DIR")
    parser.add_argument("--small", action="store_true", help="noise videos and invented predictions")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.data or Path(temporary)
        if given.small:
            folder = Path(temporary)
            make_small(folder)
        for name, report in (("gvl_site", gvl), ("roboarena", roboarena)):
            if (folder / name).is_dir():
                report(folder / name)
            else:
                print(f"\n## {name}: not in {folder.name}, skipped")


if __name__ == "__main__":
    main()
