"""What signals such as forces add to a taught model, and that shuffled signals add nothing.

    demerit simulate INSERT --tasks fetch-insert --episodes 15
    python benchmarks/signals.py INSERT [DATASET ...] [--signals object_force,scene_force] [--each 5,15] [--draws 6]
    python benchmarks/signals.py --small

In each draw, half of the groups (scenes) are for teaching k successes and k failures, by success flags alone; the other
half is the test: AUROC of the final value of the closed form, mean and standard error over draws. *Shuffled*: every
episode, taught or tested, has the signals of another one. *Signals alone*: the pictures count nothing. Controls need no
teaching. `--against press-hard` tests against the failures of one simulated behaviour alone. `--small` invents a force
for the sample that comes with demerit.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

import demerit
from demerit.data.files import make_folder
from demerit.data.frames import spread
from demerit.evaluate.metrics import Resampling
from demerit.evaluate.metrics.success import auroc
from demerit.models.signals import fit_scales
from demerit.models.taught.features import NO_TOWER, SHIPPED_TOWER, load_network
from demerit.training.teach import TeachConfig
from demerit.training.teach.data import TeachData, TeachLabel, label_of
from demerit.training.teach.features import (
    EmbeddedEpisode,
    FeatureSpec,
    common_cameras,
    extract_features,
    open_tower,
)
from demerit.training.teach.training_set import build_training_set

SAMPLE = Path(demerit.__file__).parent / "assets" / "sample"


def area(values: list[float], flags: np.ndarray) -> float:
    return auroc(np.array(values), flags.astype(float)).measure(Resampling(resamples=1)).value


def describe(areas: list[float]) -> str:
    """Return the mean over draws and its standard error, s / sqrt(n) with s of n - 1; of one draw no error."""
    error = f" ± {np.std(areas, ddof=1) / np.sqrt(len(areas)):.3f}" if len(areas) > 1 else ""
    return f"{np.mean(areas):.3f}{error}"


def shuffle_signals(episodes: list[demerit.Episode], names: list[str]) -> list[demerit.Episode]:
    """Give every episode the signals of another one, stretched to its length."""
    order = np.random.default_rng(0).permutation(len(episodes))
    others = [episodes[i] for i in np.roll(order, 1)[np.argsort(order)]]
    return [
        replace(one, signals={name: np.asarray(other.signals[name])[spread_to(len(other), len(one))] for name in names})
        for one, other in zip(episodes, others, strict=True)
    ]


def spread_to(have: int, want: int) -> np.ndarray:
    return spread(have, want) if want <= have else np.linspace(0, have - 1, want).round().astype(int)


class Lesson:
    """The features of a dataset's episodes."""

    def __init__(
        self, episodes: list[demerit.Episode], names: list[str], cache: Path, tower: str, against: str
    ) -> None:
        network, self.names = load_network(None, open_tower(tower)), names
        episodes = [one for one in episodes if label_of(one).verdict is not None and set(names) <= set(one.signals)]
        self.spec = FeatureSpec(network, common_cameras(episodes), 1, TeachConfig(reader=False))
        found = extract_features(episodes, self.spec, cache, workers=1)
        self.real = [one for one in found if isinstance(one, EmbeddedEpisode)]
        wrong = shuffle_signals([one.episode for one in self.real], names)
        self.wrong = [replace(one, episode=other) for one, other in zip(self.real, wrong, strict=True)]
        self.flag = np.array([bool(label_of(one.episode).verdict) for one in self.real])
        behaviours = [one.episode.origin.tags.get("behaviour", "") for one in self.real]
        self.is_asked = np.array([against in ("", behaviour) for behaviour in behaviours])
        self.group = np.array([one.episode.origin.group or one.id for one in self.real])

    def measure_draw(self, each: int, draw: int) -> dict[str, float] | None:
        """Teach each kind of model once; None where half of the groups have too few episodes."""
        rng = np.random.default_rng([draw, each])
        groups = rng.permutation(np.unique(self.group))
        is_taught = np.isin(self.group, groups[len(groups) // 2 :])
        is_test = ~is_taught & (self.flag | self.is_asked)
        pools = [rng.permutation(np.flatnonzero(is_taught & (self.flag == flag))) for flag in (True, False)]
        flags = self.flag[is_test]
        if min(map(len, pools)) < each or flags.all() or not flags.any():
            return None
        taught, tested = np.concatenate([pool[:each] for pool in pools]), np.flatnonzero(is_test)
        table = {}
        for name, episodes, names in (
            ("pictures (without signals)", self.real, []),
            ("pictures and signals", self.real, self.names),
            ("pictures and shuffled signals", self.wrong, self.names),
        ):
            chosen = [episodes[i] for i in taught]
            spec = replace(self.spec, signals=fit_scales([one.episode for one in chosen], names))
            labels = {one.id: TeachLabel(success=label_of(one.episode).verdict) for one in chosen}
            data = TeachData("lesson", "lesson", tuple(one.episode for one in chosen), labels, (), ())
            lesson, _ = build_training_set(data, spec, chosen)
            heads = {name: lesson.fit()}
            if names:
                # parts of weight 0 do not count
                config = replace(spec.config, parts=dict.fromkeys(spec.parts, 0.0))
                heads[name.replace("pictures and ", "") + " alone"] = replace(
                    lesson, spec=replace(spec, config=config)
                ).fit()
            ends = [spec.features(episodes[i])[-1:] for i in tested]
            for kind, head in heads.items():
                tasks = [lesson.tasks.get(episodes[i].instruction, "") for i in tested]
                values = [float(head.value(head.outputs(x, task))[-1]) for x, task in zip(ends, tasks, strict=True)]
                table[kind] = area(values, flags)
        found = defaultdict(list)
        for one in (self.real[i] for i in tested):
            for control in one.controls:
                found[f"control: {control.model}"].append(control.final)
            found["control: length"].append(float(one.length))
            for name in self.names:
                found[f"control: minus the largest {name}"].append(-float(np.max(one.episode.signals[name])))
        return table | {name: area(values, flags) for name, values in found.items()}


def invent_force(episodes: list[demerit.Episode]) -> list[demerit.Episode]:
    rng = np.random.default_rng(0)
    return [replace(one, signals={"force": rng.uniform(0, 1, len(one))}) for one in episodes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="*", metavar="DATASET")
    parser.add_argument("--signals", default="object_force,scene_force")
    parser.add_argument("--each", default="5,15", help="successes, and as many failures, to teach on")
    parser.add_argument("--draws", type=int, default=6)
    parser.add_argument("--tower", default=SHIPPED_TOWER, help=f"the second tower; {NO_TOWER} is faster")
    parser.add_argument("--cache", type=Path, help="a folder that keeps the features")
    parser.add_argument("--against", default="", metavar="BEHAVIOUR", help="test against these failures alone")
    parser.add_argument("--small", action="store_true", help="the shipped sample, one draw")
    given = parser.parse_args()
    addresses, names = given.datasets, given.signals.split(",")
    sizes, draws, tower = [int(each) for each in given.each.split(",")], given.draws, given.tower
    if given.small:
        addresses, names, sizes, draws, tower = [str(SAMPLE)], ["force"], [2], 1, NO_TOWER
    columns, table = [], defaultdict(dict)
    with tempfile.TemporaryDirectory() as folder:
        for address in addresses:
            episodes = list(demerit.open_dataset(address))
            episodes = invent_force(episodes) if given.small else episodes
            lesson = Lesson(episodes, names, make_folder(given.cache or Path(folder)), tower, given.against)
            for each in sizes:
                made = []
                for draw in range(draws):
                    if (one := lesson.measure_draw(each, draw)) is not None:
                        made.append(one)
                        areas = ", ".join(f"{name} {value:.3f}" for name, value in one.items())
                        print(f"{Path(address).name} {each}+{each}, draw {draw}: {areas}", flush=True)
                columns.append(f"{Path(address).name} {each}+{each} ({len(made)} draws)")
                for name in made[0] if made else ():
                    table[name][columns[-1]] = describe([one[name] for one in made])
    print(f"| AUROC on held-out scenes | {' | '.join(columns)} |")
    print("|---" * (len(columns) + 1) + "|")
    for name, row in table.items():
        print(f"| {name} | {' | '.join(row.get(column, 'too few episodes') for column in columns)} |")


if __name__ == "__main__":
    main()
