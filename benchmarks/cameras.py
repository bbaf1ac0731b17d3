"""What a second camera adds, how cameras are best combined, and what is lost when one is missing.

    python benchmarks/cameras.py DATASET [DATASET ...] [--each 5,8] [--draws 40]
    python benchmarks/cameras.py --small

Taught on k successes and k failures with success flags alone, tested on the other episodes: AUROC of the final values,
mean and standard error over draws. `--small` uses the sample that comes with demerit, its camera twice.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

import demerit
from demerit.evaluate.metrics import Resampling
from demerit.evaluate.metrics.success import auroc
from demerit.models.compact import Engine
from demerit.models.taught.head import TaughtHead
from demerit.training.teach import TeachConfig
from demerit.training.teach.data import TeachLabel, label_of, targets_of
from demerit.training.teach.features import (
    EmbeddedEpisode,
    FeatureSpec,
    common_cameras,
    extract_features,
)
from demerit.training.teach.fit import FitExample, fit_head

SAMPLE = Path(demerit.__file__).parent / "assets" / "sample"


class Lesson:
    """The features and flags of a dataset's episodes, and heads taught on some of them."""

    def __init__(self, episodes: list[demerit.Episode], cache: Path) -> None:
        flagged = [episode for episode in episodes if label_of(episode).verdict is not None]
        self.spec = FeatureSpec(Engine.load_shipped(), common_cameras(flagged), 1, TeachConfig())
        found = extract_features(flagged, self.spec, cache, workers=2)
        embedded = [one for one in found if isinstance(one, EmbeddedEpisode)]
        self.flag = np.array([bool(label_of(one.episode).verdict) for one in embedded])
        self.x = [self.spec.features(one) for one in embedded]
        self.layout = self.spec.layout(embedded[0])

    def show(self, x: np.ndarray, cameras: tuple[str, ...]) -> np.ndarray:
        """Hide all but some cameras."""
        blocks = x.reshape(len(x), len(self.spec.cameras), -1).copy()
        blocks[:, [name not in cameras for name in self.spec.cameras]] = np.nan
        return blocks.reshape(x.shape)

    def teach(
        self, taught: np.ndarray, cameras: tuple[str, ...], kind: str = "auto", lacking: np.ndarray | None = None
    ) -> TaughtHead:
        """Teach a head; the episodes `lacking` have the first camera alone."""
        config = replace(self.spec.config, kind=kind)
        examples = []
        for i in taught:
            targets = targets_of(TeachLabel(success=bool(self.flag[i])), len(self.x[i]), config)
            x = self.x[i] if lacking is None or i not in lacking else self.show(self.x[i], cameras[:1])
            examples.append(FitExample(self.cut(x, cameras), targets, str(i)))
        return fit_head(examples, config, layout=replace(self.layout, cameras=cameras))

    def cut(self, x: np.ndarray, cameras: tuple[str, ...]) -> np.ndarray:
        """Keep only the columns of some cameras."""
        blocks = x.reshape(len(x), len(self.spec.cameras), -1)
        return blocks[:, [name in cameras for name in self.spec.cameras]].reshape(len(x), -1)

    def measure_draw(self, each: int, draw: int) -> dict[str, float]:
        rng, names = np.random.default_rng([draw, each]), self.spec.cameras
        taught = np.concatenate([rng.permutation(np.flatnonzero(self.flag == flag))[:each] for flag in (True, False)])
        tested = np.setdiff1d(np.arange(len(self.flag)), taught)
        alone = {name: self.teach(taught, (name,)) for name in names}
        joint, kernel = self.teach(taught, names), self.teach(taught, names, "rbf")
        last = [self.x[i][-1:] for i in tested]
        values = {
            f"{name}, taught alone": [alone[name].progress(self.cut(x, (name,)))[0] for x in last] for name in names
        }
        values["both: one head on all columns (what teach does)"] = [joint.progress(x)[0] for x in last]
        values["both: kernel on all columns (a product over cameras)"] = [kernel.progress(x)[0] for x in last]
        values["both: mean value of a head per camera"] = list(
            np.mean([values[f"{n}, taught alone"] for n in names], 0)
        )
        raw = [[alone[n].raw(self.cut(x, (n,)))[0] @ [0.75, 0.25] for x in last] for n in names]
        values["both: mean output of a head per camera"] = list(np.mean(raw, axis=0))
        for name in names:
            values[f"taught on both, {name} alone at the test"] = [
                joint.progress(self.show(x, (name,)))[0] for x in last
            ]
        turns = [names, *((name,) for name in names)]
        mixed = [joint.progress(self.show(x, turns[i % len(turns)]))[0] for i, x in enumerate(last)]
        values["taught on both, each test episode lacks one camera or none"] = mixed
        partly = self.teach(taught, names, lacking=taught[::2])
        values[f"half of the lesson has {names[0]} alone; both at the test"] = [partly.progress(x)[0] for x in last]
        flag = self.flag[tested].astype(float)
        return {k: auroc(np.array(v), flag).measure(Resampling(resamples=1)).value for k, v in values.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="*", metavar="DATASET")
    parser.add_argument("--each", default="5,8", help="successes, and as many failures, to teach on")
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--small", action="store_true", help="the shipped sample, two draws")
    given = parser.parse_args()
    addresses, sizes, draws = (given.datasets, [int(each) for each in given.each.split(",")], given.draws)
    if given.small:
        addresses, sizes, draws = [str(SAMPLE)], [3], 2
    columns, table = [], {}
    with tempfile.TemporaryDirectory() as cache:
        for address in addresses:
            episodes = list(demerit.open_dataset(address))
            if given.small:
                episodes = [replace(one, views={"main": one.main, "other": one.main}) for one in episodes[:10]]
            lesson = Lesson(episodes, Path(cache))
            for each in sizes:
                found = [lesson.measure_draw(each, draw) for draw in range(draws)]
                columns.append(f"{Path(address).name} {each}+{each}")
                for name in found[0]:
                    areas = np.array([one[name] for one in found])
                    table.setdefault(name, []).append((areas.mean(), areas.std() / np.sqrt(len(areas))))
    print(f"| AUROC over {draws} draws | {' | '.join(columns)} | mean |")
    print("|---" * (len(columns) + 2) + "|")
    for name, row in table.items():
        cells = " | ".join(f"{mean:.3f} ± {error:.3f}" for mean, error in row)
        print(f"| {name} | {cells} | {np.mean([mean for mean, _ in row]):.3f} |")


if __name__ == "__main__":
    main()
