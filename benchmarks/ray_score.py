"""How much of the plain job's rate `score` on a local Ray cluster reaches, with the default model.

    python benchmarks/ray_score.py [--small] [--episodes N] [--rounds N]

Both score the same videos with one model process and one decoding process per core. The two alternate. "with start":
the whole job; Ray's then starts its actor, which loads the model. "running": from the first rewards to the last.
Ray itself is started once, before.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from decode import scene
from demerit.data.formats import open_dataset
from demerit.data.video import Encoding, write_video
from demerit.models import load_model
from demerit.models.reward_store import RewardStore
from demerit.models.score import ScoreJob, ScoreProgress, score
from demerit.use.on_ray import RayCluster, RayScorer

MODEL, FRAMES, EPISODES, ROUNDS, VIDEOS = "default", 64, 600, 3, 8


def run(folder: Path, out: Path, scorer: RayScorer | None) -> tuple[float, float]:
    """Return episodes a second with the start and without."""
    seen: list[tuple[int, float]] = []

    def note(progress: ScoreProgress) -> None:
        seen.append((progress.seen, time.perf_counter()))

    job = ScoreJob(load_model(MODEL), open_dataset(f"videos:{folder}"), out)
    start = time.perf_counter()
    if scorer is None:
        score(job, note)
    else:
        score(job, note, scorer=scorer, commit_seconds=0)
    done, end = seen[-1]
    first, begun = next(pair for pair in seen if pair[0])
    return done / (end - start), (done - first) / (end - begun) if done > first else done / (end - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="16 episodes of 8 frames, one round")
    parser.add_argument("--episodes", type=int, default=EPISODES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    episodes, rounds, frames = (16, 1, 8) if given.small else (given.episodes, given.rounds, FRAMES)
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "videos"
        folder.mkdir()
        for number in range(VIDEOS):
            write_video(folder / f"{number:05d}.mp4", scene(number, frames), 30, Encoding(gop=8))
        for number in range(VIDEOS, episodes):
            (folder / f"{number:05d}.mp4").hardlink_to(folder / f"{number % VIDEOS:05d}.mp4")
        rates: dict[str, list[tuple[float, float]]] = {"plain": [], "ray": []}
        start = time.perf_counter()
        with RayCluster():
            print(f"Ray started in {time.perf_counter() - start:.1f} s")
            for turn in range(rounds):
                for kind, scorer in (("plain", None), ("ray", RayScorer(MODEL, actors=1, workers=cores))):
                    rates[kind].append(run(folder, Path(name) / f"{kind}{turn}", scorer))
        same = [{r.episode: r.value.tolist() for r in RewardStore(Path(name) / f"{kind}0")} for kind in rates]
        print(f"{episodes} episodes of {frames} frames, model {MODEL}, {cores} cores, load {os.getloadavg()[0]:.1f}")
    for place, what in enumerate(("with start", "running")):
        plain, on_ray = ([pair[place] for pair in rates[kind]] for kind in ("plain", "ray"))
        ratios = [ray / alone for alone, ray in zip(plain, on_ray, strict=True)]
        print(
            f"{what}: plain {statistics.median(plain):.1f}/s, on Ray {statistics.median(on_ray):.1f}/s, "
            f"Ray/plain {statistics.median(ratios):.1%} (rounds: {', '.join(f'{ratio:.1%}' for ratio in ratios)})"
        )
    print(f"the rewards are {'the same' if same[0] == same[1] else 'DIFFERENT'}")


if __name__ == "__main__":
    main()
