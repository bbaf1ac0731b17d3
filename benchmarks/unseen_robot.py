"""How well teaching works on a robot or camera that the shipped network has never seen.

    python benchmarks/unseen_robot.py DATASET [DATASET ...] [--each 5,15] [--draws 4] [--labels flags|all]
    python benchmarks/unseen_robot.py --small
    python benchmarks/unseen_robot.py --draw FIGURE.png NAME=OUTPUT [NAME=OUTPUT ...]

For each draw, k successes and k failures are taught and all other episodes of the same task are tested: AUROC of
the final values for the closed form, the reader, and the one that `teach` chooses by left-out episodes; the same for
the controls. With `--labels all` (curves, where a dataset has them) also the mean distance of the value to the true
progress, and the share of failures above the median success. `--draw` makes a figure of saved outputs.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

import demerit
from demerit.data.instructions import normalize_instruction
from demerit.evaluate.metrics import Resampling
from demerit.evaluate.metrics.success import auroc
from demerit.models.compact import Engine
from demerit.models.taught.reader import Reader
from demerit.training.teach import TeachConfig
from demerit.training.teach.data import TeachData, TeachLabel, label_of
from demerit.training.teach.features import (
    EmbeddedEpisode,
    FeatureCache,
    FeatureSpec,
    common_cameras,
    extract_features,
    images_to_keep,
)
from demerit.training.teach.training_set import build_training_set

SAMPLE = Path(demerit.__file__).parent / "assets" / "sample"


def area(values: list[float], flags: list[bool]) -> float:
    return auroc(np.array(values), np.array(flags, dtype=float)).measure(Resampling(resamples=1)).value


class Lesson:
    """The episodes of one instruction: features, images and labels."""

    def __init__(
        self, episodes: list[demerit.Episode], cache: Path, labels: str, cameras: tuple[str, ...], small: bool
    ) -> None:
        self.small = small
        network, config = Engine.load_shipped(), TeachConfig()
        names = cameras or common_cameras(episodes)
        # as many images as a lesson of ten episodes keeps
        self.spec = FeatureSpec(network, names, 1, config, images_to_keep(network, config, 10 * len(names)))
        found = extract_features(episodes, self.spec, FeatureCache(cache, self.spec), workers=2)
        self.episodes = [one for one in found if isinstance(one, EmbeddedEpisode)]
        known = [label_of(one.episode) for one in self.episodes]
        self.labels = [TeachLabel(success=one.verdict) if labels == "flags" else one for one in known]
        self.curves = [one.curve if labels == "all" else None for one in known]
        self.flags = np.array([bool(one.verdict) for one in known])

    def measure_draw(self, each: int, draw: int) -> dict[str, float]:
        from demerit.training.teach import torch_reader  # torch is an extra

        if self.small:
            torch_reader.STEPS = (4, 0, 4)
        rng = np.random.default_rng([draw, each])
        taught = np.concatenate([rng.permutation(np.flatnonzero(self.flags == flag))[:each] for flag in (True, False)])
        tested = np.setdiff1d(np.arange(len(self.flags)), taught)
        episodes = [self.episodes[i] for i in taught]
        labels = {self.episodes[i].id: self.labels[i] for i in taught}
        data = TeachData("lesson", "lesson", tuple(one.episode for one in episodes), labels, (), ())
        started = time.perf_counter()
        plain, _ = build_training_set(data, self.spec, episodes)
        content, read = torch_reader.teach_reader(plain)
        chosen = replace(plain, read=read).fit()
        seconds = time.perf_counter() - started
        heads = {"closed form": plain.fit(), "mean": replace(chosen, mix=0.5), "reader": replace(chosen, mix=1.0)}
        heads["chosen"] = chosen
        reader, found = Reader(content, Path("reader")), defaultdict(list)
        flags = [bool(self.flags[i]) for i in tested]
        distances = defaultdict(list)
        for i in tested:
            one, x = self.episodes[i], self.spec.features(self.episodes[i])
            kept = np.mean([reader(images, images[0]) for images in one.images.values()], axis=0)
            rows = np.arange(len(x)) if self.curves[i] is not None else np.array([len(x) - 1])
            said = np.stack([np.interp(rows, one.kept, column) for column in kept.T], axis=1)
            for name, head in heads.items():
                value = head.value(head.outputs(x[rows], "", said))
                found[name].append(float(value[-1]))
                if self.curves[i] is not None:
                    distances[name].append(float(np.abs(value - self.curves[i][one.at]).mean()))
            for control in one.controls:
                found[control.model].append(control.final)
            found["length"].append(float(one.length))
        table = {f"AUROC, {name}": area(values, flags) for name, values in found.items()}
        for name, values in distances.items():
            table[f"MAE, {name}"] = float(np.mean(values))
            ends = np.array(found[name])
            typical = np.median(ends[np.array(flags)])
            table[f"over-reward, {name}"] = float((ends[~np.array(flags)] >= typical).mean())
        return table | {"weight of the reader": chosen.mix, "seconds": seconds}


def draw_figure(path: Path, outputs: list[str]) -> None:
    """Draw the AUROC of the best control, the closed form and the taught model, from what earlier runs printed."""
    import matplotlib  # takes a second, and only the figure needs it

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    bars: dict[str, list[tuple[float, float]]] = {}
    for given in outputs:
        name, _, file = given.partition("=")
        for table in Path(file).read_text().split("\n\n|")[1:]:
            rows = dict(re.findall(r"\| AUROC, ([\w ]+) \| ([\d.]+ \| [\d.]+) \|", table))
            found = {key: tuple(float(number) for number in value.split(" | ")) for key, value in rows.items()}
            controls = max(found[key] for key in ("change", "motion", "length"))
            label = f"{name}\n{table.split(',')[0].strip()}"
            bars[label] = [controls, found["closed form"], found["chosen"]]
    figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
    styles = (("best control", "#b9bec7"), ("without torch", "#7aa6c2"), ("with the extra train", "#1f6f8b"))
    for number, (name, colour) in enumerate(styles):
        heights = [(group[number][0], group[number][1]) for group in bars.values()]
        at = np.arange(len(bars)) + (number - 1) * 0.27
        drawn = axes.bar(at, [mean for mean, _ in heights], 0.25, color=colour, label=name,
                         yerr=[error for _, error in heights], error_kw={"lw": 0.8, "ecolor": "#444"})  # fmt: skip
        axes.bar_label(drawn, fmt="%.2f", fontsize=8, padding=2)
    axes.axhline(0.5, color="#666", lw=0.8, ls=":")
    axes.set(ylim=(0.3, 1.08), ylabel="AUROC on the other episodes", xticks=np.arange(len(bars)))
    axes.set_xticklabels(bars)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=3, loc="upper left", bbox_to_anchor=(0, 1.14), fontsize=9)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="*", metavar="DATASET")
    parser.add_argument("--each", default="5,15", help="successes, and as many failures, to teach on")
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--labels", choices=("flags", "all"), default="flags")
    parser.add_argument("--cameras", default="", help="cameras to use, e.g. main (default: all)")
    parser.add_argument("--cache", type=Path, help="a folder for features; kept")
    parser.add_argument("--draw", type=Path, metavar="FIGURE", help="draw saved outputs, NAME=FILE each")
    parser.add_argument("--small", action="store_true", help="the shipped sample, one draw")
    given = parser.parse_args()
    if given.draw:
        draw_figure(given.draw, given.datasets)
        return
    addresses, sizes, draws = (given.datasets, [int(each) for each in given.each.split(",")], given.draws)
    if given.small:
        addresses, sizes, draws = [str(SAMPLE)], [3], 1
    table: dict[str, dict[str, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
    with tempfile.TemporaryDirectory() as folder:
        for address in addresses:
            tasks = defaultdict(list)
            for episode in demerit.open_dataset(address):
                if label_of(episode).verdict is not None:
                    words = normalize_instruction(episode.instruction)
                    task = "all" if given.small else episode.origin.tags.get("task", words)
                    tasks[task].append(episode)
            for task, episodes in tasks.items():
                cameras = tuple(name for name in given.cameras.split(",") if name)
                lesson = Lesson(episodes, given.cache or Path(folder), given.labels, cameras, given.small)
                for each in sizes:
                    if min(lesson.flags.sum(), (~lesson.flags).sum()) < each + 3:
                        continue
                    rows = [lesson.measure_draw(each, draw) for draw in range(draws)]
                    means = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
                    print(f"{Path(address).name}, {task!r}, {each}+{each}: " +
                          ", ".join(f"{name} {value:.3f}" for name, value in means.items()), flush=True)  # fmt: skip
                    for name in rows[0]:
                        table[f"{each}+{each}"][name].append([row[name] for row in rows])
    for size, measures in table.items():
        print(f"\n| {size}, {len(measures['seconds'])} tasks, {draws} draws | mean | standard error |\n|---|---|---|")
        for name, values in measures.items():
            by_task = np.mean(values, axis=1)
            error = by_task.std(ddof=1) / np.sqrt(len(by_task)) if len(by_task) > 1 else np.std(values) / draws**0.5
            print(f"| {name} | {by_task.mean():.3f} | {error:.3f} |")


if __name__ == "__main__":
    main()
