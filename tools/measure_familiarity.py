"""Record what the shipped network was trained on looks like, in assets/compact/familiar.npz: some frames' features.

    demerit simulate STORE --benchmark metaworld-bad@1 --split train
    python tools/measure_familiarity.py STORE

Only the simulated episodes count: there alone the network was shown failures, with measured progress. Of DROID it saw
demonstrations, of RoboArena another model's opinion, and on real video it does not tell success from failure.
Episodes are left out by task, since users have other tasks.
"""

import sys

import numpy as np

import demerit
from demerit.data.frames import spread
from demerit.models.compact.engine import FAMILIAR, Engine, shipped_folder
from demerit.models.familiarity import Familiarity, FeatureProjection, measure_left_out

EPISODES, FRAMES, EVERY, DIRECTIONS, DAMPING = 15, 10, 3, 24, 0.25
"""episodes per task and frames of each; two frames of every third episode are references; width of the projection"""


def main(store: str) -> None:
    """Write the file."""
    engine = Engine.load_shipped()
    tasks: dict[str, list[demerit.Episode]] = {}
    for episode in demerit.open_dataset(store):
        tasks.setdefault(episode.origin.tags["task"], []).append(episode)
    groups, features = [], []
    for task, episodes in tasks.items():
        for index in spread(len(episodes), EPISODES):
            images = episodes[index].main.take(spread(len(episodes[index]), FRAMES))
            features.append(engine.features(images, images[0]).astype(np.float64))
            groups.append(task)
    projection = fit_projection(np.concatenate(features), engine.pooled_width)
    measured = [projection.measured(rows) for rows in features]
    rng = np.random.default_rng(0)
    referred = [
        projection.referred(rows[rng.choice(len(rows), 0 if index % EVERY else 2, replace=False)])
        for index, rows in enumerate(features)
    ]
    references = [rows.astype(np.float16).astype(np.float32) for rows in referred]
    left_out = measure_left_out(measured, references, groups)
    familiarity = Familiarity(np.concatenate(references), *left_out, len(tasks), projection)
    with (shipped_folder() / FAMILIAR).open("wb") as file:
        np.savez_compressed(file, network=np.array([engine.hash]), **familiarity.arrays())  # type: ignore[arg-type]


def fit_projection(rows: np.ndarray, cut: int) -> FeatureProjection:
    """Standardise the columns, pooled ones and those by region counting the same; keep the main directions."""
    variance, scale = rows.var(axis=0), np.empty(rows.shape[1])
    for block in (slice(0, cut), slice(cut, None)):
        damped = variance[block] + DAMPING**2 * variance[block].mean()
        scale[block] = 1 / np.sqrt(damped * len(damped))
    centre, scale = (array.astype(np.float16).astype(np.float64) for array in (rows.mean(axis=0), scale))
    z = (rows - centre) * scale
    directions = np.linalg.eigh(z.T @ z)[1][:, ::-1][:, :DIRECTIONS]
    return FeatureProjection(centre, scale, directions.astype(np.float16).astype(np.float64))


if __name__ == "__main__":
    main(*sys.argv[1:])
