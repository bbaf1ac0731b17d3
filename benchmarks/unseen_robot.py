"""How well teaching works on a robot or camera that the shipped network has never seen.

    python benchmarks/unseen_robot.py DATASET [DATASET ...] [--each 5,15] [--draws 4] [--labels flags|all] [--no-reader]
        [--tower none] [--filters] [--variants]
    python benchmarks/unseen_robot.py --small
    python benchmarks/unseen_robot.py --draw FIGURE.png NAME=OUTPUT [NAME=OUTPUT ...]

For each draw, k successes and k failures are taught and all other episodes of the same task are tested: AUROC of
the final values for the closed form, the reader, and the one that `teach` chooses by left-out episodes; the same for
the controls, and the shares of successes and of failures above one half. Draws of the same few episodes say little of
other episodes, so the last line has an interval that resamples the episodes. With `--labels all` (curves, where a
dataset has them) also the mean distance of the value to the true progress, and the share of failures above the median
success. With `--filters` also causal filters in time over the values of the closed form: AUROC of the filtered final
value, mean distance between neighbouring frames, and delay (the shift in frames at which the curve fits best).
With `--variants` it teaches again with variants of the failures (`demerit negatives --mix variants`, one of each kind),
and with variants of all.
`--draw` makes a figure of saved outputs.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import demerit
from demerit.data.arrays import Floats
from demerit.data.episode import normalize_instruction
from demerit.data.files import make_folder
from demerit.data.splits import seed_of
from demerit.evaluate.metrics import Resampling
from demerit.evaluate.metrics.success import auroc
from demerit.models.taught.features import SHIPPED_TOWER, Reader, load_network
from demerit.models.taught.head import TaughtHead
from demerit.negatives import load_negative
from demerit.negatives.negative import VARIANTS
from demerit.training.teach import TeachConfig
from demerit.training.teach.data import TeachData, TeachLabel, label_of
from demerit.training.teach.features import (
    EmbeddedEpisode,
    FeatureSpec,
    common_cameras,
    extract_features,
    images_to_keep,
    open_tower,
)
from demerit.training.teach.training_set import TrainingSet, build_training_set

WIDE, HIGH, LOWEST = 1500, 640, 0.5
STYLES = ("best control", "#9aa1ab"), ("without torch", "#7aa6c2"), ("with the extra train", "#1f6f8b")
FURTHEST = 8
"""longest delay looked for, in frames"""
RESAMPLES = 2000
SAMPLE = Path(demerit.__file__).parent / "assets" / "sample"


def area(values: list[float], flags: list[bool]) -> float:
    return auroc(np.array(values), np.array(flags, dtype=float)).measure(Resampling(resamples=1)).value


def median_of(count: int) -> Callable[[Floats], Floats]:
    """A running median of the last frames; at the start, of those there are."""
    return lambda value: np.array([np.median(value[max(0, i + 1 - count) : i + 1]) for i in range(len(value))])


def mean_of(share: float) -> Callable[[Floats], Floats]:
    """An exponential mean, in which the newest frame counts `share`."""
    return lambda value: np.array(list(accumulate(value.tolist(), lambda old, new: old + share * (new - old))))


FILTERS: dict[str, Callable[[Floats], Floats]] = {
    "none": lambda value: value,
    "median of 3": median_of(3),
    "median of 5": median_of(5),
    "exponential 1/2": mean_of(1 / 2),
    "exponential 1/4": mean_of(1 / 4),
}


def find_delay(filtered: Floats, value: Floats) -> int:
    """The shift at which a filtered curve fits best."""
    apart = [np.abs(filtered[FURTHEST:] - value[FURTHEST - by : len(value) - by]).mean() for by in range(FURTHEST)]
    return int(np.argmin(apart))


class Lesson:
    """The episodes of one instruction: features, images and labels."""

    def __init__(self, episodes: list[demerit.Episode], cache: Path, given: argparse.Namespace) -> None:
        self.small, self.filters, labels = given.small, given.filters, given.labels
        cameras = tuple(name for name in given.cameras.split(",") if name)
        network, config = load_network(None, open_tower(given.tower)), TeachConfig(reader=not given.no_reader)
        names = cameras or common_cameras(episodes)
        # as many images as a lesson of ten episodes keeps
        self.spec = FeatureSpec(network, names, 1, config, images_to_keep(network, config, 10 * len(names)))
        found = extract_features(episodes, self.spec, cache, workers=2)
        self.episodes = [one for one in found if isinstance(one, EmbeddedEpisode)]
        known = [label_of(one.episode) for one in self.episodes]
        self.labels = [TeachLabel(success=one.verdict) if labels == "flags" else one for one in known]
        edits = [load_negative(name) for name in VARIANTS] if given.variants else []
        varied = [edit.make_with_seed(one.episode, seed_of(one.id)) for one in self.episodes for edit in edits]
        self.variants = defaultdict(list)
        for one in extract_features(varied, self.spec, cache, workers=2):
            self.variants[one.episode.origin.parent].append(one)
        self.curves = [one.curve if labels == "all" else None for one in known]
        self.flags = np.array([bool(one.verdict) for one in known])
        self.final: dict[int, list[Floats]] = defaultdict(list)
        """by lesson size and draw: the final value of each episode; NaN where it was taught"""

    def teach(
        self, episodes: list[EmbeddedEpisode], labels: dict[str, TeachLabel]
    ) -> tuple[TrainingSet, dict[str, TaughtHead], Reader | None]:
        """The training set, the heads by name, the one that is used last, and the reader if there is one."""
        data = TeachData("lesson", "lesson", tuple(one.episode for one in episodes), labels, (), ())
        plain, _ = build_training_set(data, self.spec, episodes)
        chosen = plain.fit()
        heads = {"closed form": chosen}
        if not self.spec.config.reader:
            return plain, heads, None
        from demerit.training.teach import torch_reader  # torch is an extra

        if self.small:
            torch_reader.STEPS = (4, 0, 4)
        content, read = torch_reader.teach_reader(plain)
        chosen = replace(plain, read=read).fit()
        heads |= {"mean": replace(chosen, mix=0.5), "reader": replace(chosen, mix=1.0), "chosen": chosen}
        return plain, heads, Reader(content, Path("reader"))

    def measure_draw(self, each: int, draw: int) -> dict[str, float]:
        rng = np.random.default_rng([draw, each])
        taught = np.concatenate([rng.permutation(np.flatnonzero(self.flags == flag))[:each] for flag in (True, False)])
        tested = np.setdiff1d(np.arange(len(self.flags)), taught)
        episodes = [self.episodes[i] for i in taught]
        labels = {self.episodes[i].id: self.labels[i] for i in taught}
        started = time.perf_counter()
        plain, heads, reader = self.teach(episodes, labels)
        chosen, readers = next(reversed(heads.values())), dict.fromkeys(heads, reader)
        seconds, found = time.perf_counter() - started, defaultdict(list)
        for name, varied in (("failures", taught[each:]), ("all", taught)) if self.variants else ():
            more = [(variant, self.episodes[i].id) for i in varied for variant in self.variants[self.episodes[i].id]]
            known = labels | {variant.id: labels[original] for variant, original in more}
            _, others, reader_too = self.teach([*episodes, *(variant for variant, _ in more)], known)
            last = list(others)[-1]
            for head in dict.fromkeys(("closed form", last)):
                heads[f"{head}, variants of {name}"] = others[head]
                readers[f"{head}, variants of {name}"] = reader_too
        flags = [bool(self.flags[i]) for i in tested]
        distances, steps = defaultdict(list), defaultdict(list)
        for i in tested:
            one, x = self.episodes[i], self.spec.features(self.episodes[i])
            task = plain.tasks.get(one.instruction, "")
            needs_all = self.filters or self.curves[i] is not None
            rows = np.arange(len(x)) if needs_all else np.array([len(x) - 1])
            said = {None: None}
            for model in {*readers.values()} - {None}:
                kept = np.mean([model(images, images[0]) for images in one.images.values()], axis=0)
                said[model] = np.stack([np.interp(rows, one.kept, column) for column in kept.T], axis=1)
            for name, head in heads.items():
                value = head.value(head.outputs(x[rows], task, said[readers[name]]))
                found[name].append(float(value[-1]))
                if self.curves[i] is not None:
                    distances[name].append(float(np.abs(value - self.curves[i][one.at]).mean()))
            if self.filters:
                value = heads["closed form"].value(heads["closed form"].outputs(x, task))
                for name, smooth in FILTERS.items():
                    filtered = smooth(value)
                    found[f"filter {name}"].append(float(filtered[-1]))
                    steps[f"step, {name}"].append(float(np.abs(np.diff(filtered)).mean()))
                    steps[f"delay, {name}"].append(float(find_delay(filtered, value)))
            for control in one.controls:
                found[control.model].append(control.final)
            found["length"].append(float(one.length))
        table = {f"AUROC, {name}": area(values, flags) for name, values in found.items()}
        table |= {name: float(np.mean(values)) for name, values in steps.items()}
        final = np.array(found["chosen" if reader is not None else "closed form"])
        self.final[each].append(np.full(len(self.flags), np.nan))
        self.final[each][-1][tested] = final
        table["successes above 0.5"] = float((final[np.array(flags)] > 0.5).mean())
        table["failures above 0.5"] = float((final[~np.array(flags)] > 0.5).mean())
        for name, values in distances.items():
            table[f"MAE, {name}"] = float(np.mean(values))
            ends = np.array(found[name])
            typical = np.median(ends[np.array(flags)])
            table[f"over-reward, {name}"] = float((ends[~np.array(flags)] >= typical).mean())
        return table | {"weight of the reader": chosen.mix, "seconds": seconds}

    def resample(self, each: int) -> Floats:
        """The AUROC over all draws with the episodes of either outcome drawn again, RESAMPLES times."""
        final, rng = np.array(self.final[each]), np.random.default_rng(each)
        good, bad = final[:, self.flags, None], final[:, None, ~self.flags]
        wins = np.where(np.isnan(good + bad), 0.0, (good > bad) + (good == bad) / 2)
        there = (~np.isnan(good + bad)).astype(float)
        counts = [rng.multinomial(n, np.full(n, 1 / n), RESAMPLES) for n in (wins.shape[1], wins.shape[2])]
        won, asked = (np.einsum("dgb,rg,rb->rd", pairs, *counts) for pairs in (wins, there))
        return won.sum(axis=1) / asked.sum(axis=1)


def draw_figure(path: Path, outputs: list[str]) -> None:
    """Draw the mean AUROC over tasks of the best control, the closed form and the taught model, as printed earlier."""
    bars: dict[str, list[tuple[float, float]]] = {}
    for given in outputs:
        name, _, file = given.partition("=")
        lines = [line for line in Path(file).read_text().splitlines() if ": AUROC, " in line]
        tasks = [{key: float(value) for key, value in re.findall(r"AUROC, ([\w ]+) ([\d.]+)", line)} for line in lines]
        of_tasks = {key: [task[key] for task in tasks] for key in tasks[0]}
        controls = max((of_tasks[key] for key in ("change", "motion", "length")), key=np.mean)
        groups = (controls, of_tasks["closed form"], of_tasks["chosen"])
        errors = [np.std(one, ddof=1) / len(one) ** 0.5 if len(one) > 1 else 0.0 for one in groups]
        label = f"{name}\n{len(tasks)} tasks"
        bars[label] = [(float(np.mean(one)), float(error)) for one, error in zip(groups, errors, strict=True)]
    image = Image.new("RGB", (WIDE, HIGH), "white")
    canvas, text = ImageDraw.Draw(image), ImageFont.load_default(26)
    bottom, top, left = HIGH - 90, 90, 90

    def height(area: float) -> float:
        return bottom - (bottom - top) * (area - LOWEST) / (1 - LOWEST)

    for area in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        canvas.line([(left, height(area)), (WIDE - 20, height(area))], "#999" if area == LOWEST else "#e4e4e4", 2)
        canvas.text((left - 12, height(area)), f"{area:.1f}", "#555", text, "rm")
    for number, (name, colour) in enumerate(STYLES):
        canvas.rectangle((left + 330 * number, 26, left + 330 * number + 26, 52), colour)
        canvas.text((left + 330 * number + 38, 39), name, "#222", text, "lm")
    step = (WIDE - left - 20) / len(bars)
    for place, (label, group) in enumerate(bars.items()):
        middle = left + step * (place + 0.5)
        for number, ((mean, error), (_, colour)) in enumerate(zip(group, STYLES, strict=True)):
            at = middle + (number - 1) * 110
            canvas.rectangle((at - 48, height(mean), at + 48, bottom), colour)
            canvas.line([(at, height(mean - error)), (at, height(mean + error))], "#333", 3)
            canvas.text((at, height(mean + error) - 20), f"{mean:.2f}", "#222", text, "mm")
        canvas.multiline_text((middle, bottom + 44), label, "#222", text, "mm", align="center")
    image.save(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="*", metavar="DATASET")
    parser.add_argument("--each", default="5,15", help="successes, and as many failures, to teach on")
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--labels", choices=("flags", "all"), default="flags")
    parser.add_argument("--cameras", default="", help="cameras to use, e.g. main (default: all)")
    parser.add_argument(
        "--tower", default=SHIPPED_TOWER, help="the second tower, as in demerit teach: droid, none, FILE or FOLDER"
    )
    parser.add_argument("--no-reader", action="store_true", help="the closed form alone, without torch")
    parser.add_argument("--filters", action="store_true", help="measure filters in time, too")
    parser.add_argument("--variants", action="store_true", help="teach again with variants of failures, and of all")
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
    resampled: dict[str, list[Floats]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        cache = make_folder(given.cache or folder)
        for address in addresses:
            tasks = defaultdict(list)
            for episode in demerit.open_dataset(address):
                if label_of(episode).verdict is not None:
                    words = normalize_instruction(episode.instruction)
                    task = "all" if given.small else episode.origin.tags.get("task", words)
                    tasks[task].append(episode)
            for task, episodes in tasks.items():
                lesson = Lesson(episodes, cache, given)
                for each in sizes:
                    if min(lesson.flags.sum(), (~lesson.flags).sum()) < each + 3:
                        continue
                    rows = [lesson.measure_draw(each, draw) for draw in range(draws)]
                    means = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
                    print(f"{Path(address).name}, {task!r}, {each}+{each}: " +
                          ", ".join(f"{name} {value:.3f}" for name, value in means.items()), flush=True)  # fmt: skip
                    for name in rows[0]:
                        table[f"{each}+{each}"][name].append([row[name] for row in rows])
                    resampled[f"{each}+{each}"].append(lesson.resample(each))
    for size, measures in table.items():
        print(f"\n| {size}, {len(measures['seconds'])} tasks, {draws} draws | mean | standard error | worst tenth |")
        print("|---|---|---|---|")
        for name, values in measures.items():
            by_task = np.mean(values, axis=1)
            error = by_task.std(ddof=1) / np.sqrt(len(by_task)) if len(by_task) > 1 else np.std(values) / draws**0.5
            worst = np.mean([np.sort(rows)[: max(1, len(rows) // 10)].mean() for rows in values])
            print(f"| {name} | {by_task.mean():.3f} | {error:.3f} | {worst:.3f} |")
        low, high = np.quantile(np.mean(resampled[size], axis=0), [0.025, 0.975])
        print(f"\nAUROC of what was taught, 95% interval over episodes of these tasks: {low:.3f} to {high:.3f}")


if __name__ == "__main__":
    main()
