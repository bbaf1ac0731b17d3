"""What stages teach about progress, beside success flags alone, four marked moments and progress at every frame.

    python benchmarks/stages.py [DATASET] [--each 6] [--draws 6]
    python benchmarks/stages.py --small

DATASET has a simulator's progress at every frame; without one, the sample that comes with demerit. Taught on k
successes and k failures in the closed form and tested on the other episodes: the mean distance of a frame's value to
the simulator's progress. Stages are marked as a person would who sees the object move: `reach` until it does, `carry`
until it is where it belongs, or given up.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

import demerit
from demerit.data.dataset import Dataset
from demerit.data.stages import StageSpan
from demerit.training.teach import TeachConfig

SAMPLE = Path(demerit.__file__).parent / "assets" / "sample"
MOVES = 0.35
"""progress at which the simulator's object has moved; reaching it is 0.3"""
KINDS = ("flags", "stages", "four moments", "every frame")


def mark_stages(curve: np.ndarray) -> tuple[StageSpan, ...]:
    last, moves, done = len(curve) - 1, np.flatnonzero(curve >= MOVES), np.flatnonzero(curve >= 1)
    if not len(moves) or moves[0] < 1:
        return (StageSpan("reach", 0, last),)
    end = int(done[0]) if len(done) else last
    return StageSpan("reach", 0, int(moves[0]) - 1), StageSpan("carry", int(moves[0]), end)


def relabel(episode: demerit.Episode, kind: str) -> demerit.Episode:
    """Leave an episode the labels of one kind."""
    label = episode.outcome
    curve = np.array(label.curve)
    some = np.full(len(curve), np.nan, dtype=np.float32)
    at = np.linspace(0, len(curve) - 1, 4).round().astype(int)
    some[at] = curve[at]
    flag = replace(label, source="human", events=(), progress=None, grade=None, curve=None)
    more = {"stages": {"stages": mark_stages(curve)}, "four moments": {"curve": some}, "every frame": {"curve": curve}}
    # the test episodes' split must not keep them out of another draw
    origin = replace(episode.origin, split="")
    return replace(episode, outcomes=(replace(flag, **more.get(kind, {})),), origin=origin)


def measure_draw(episodes: list[demerit.Episode], each: int, draw: int, cache: str) -> dict[str, float]:
    rng = np.random.default_rng([draw, each])
    flags = np.array([bool(episode.outcome.success) for episode in episodes])
    taught = {i for flag in (True, False) for i in rng.permutation(np.flatnonzero(flags == flag))[:each]}
    tested = [episode for i, episode in enumerate(episodes) if i not in taught]
    errors = {}
    for kind in KINDS:
        lesson = Dataset.from_episodes([relabel(episodes[i], kind) for i in sorted(taught)], "lesson")
        model = demerit.teach(lesson, None, config=TeachConfig(reader=False), cache=cache).model
        found = zip(tested, model.score(tested), strict=True)
        errors[kind] = float(np.mean([np.abs(r.value - e.outcome.curve[r.at]).mean() for e, r in found]))
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", default=str(SAMPLE))
    parser.add_argument("--each", type=int, default=6, help="successes, and as many failures, to teach on")
    parser.add_argument("--draws", type=int, default=6)
    parser.add_argument("--small", action="store_true", help="one draw of three of each")
    given = parser.parse_args()
    each, draws = (3, 1) if given.small else (given.each, given.draws)
    episodes = list(demerit.open_dataset(given.dataset))
    with tempfile.TemporaryDirectory() as cache:
        found = [measure_draw(episodes, each, draw, cache) for draw in range(draws)]
    print(f"| taught on {each} + {each} | distance to progress, {draws} draws | worst draw |\n|---|---|---|")
    for kind in KINDS:
        errors = np.array([one[kind] for one in found])
        print(f"| {kind} | {errors.mean():.3f} ± {errors.std() / np.sqrt(draws):.3f} | {errors.max():.3f} |")


if __name__ == "__main__":
    main()
