"""How much of the raw decoding rate the scoring pipeline reaches on this machine's cores.

    python benchmarks/score.py [--small]

Raw: one process per core decodes 16 frames per episode and drops them. Pipeline: `score` with a clock that reads 16
frames (and with the plain clock, which reads none), rewards written. The two alternate.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from decode import SAMPLES, scene
from demerit.data.episode import Episode
from demerit.data.formats import open_dataset
from demerit.data.video import Encoding, write_video
from demerit.models.baselines import Clock
from demerit.models.score import ScoreJob, score

EPISODES, ROUNDS = 1200, 3
RAW = """
import sys
from pathlib import Path
from demerit.data.frames import Frames, spread
sys.stdin.readline()
for path in sorted(Path(sys.argv[1]).glob("*.mp4"))[int(sys.argv[2])::int(sys.argv[3])]:
    frames = Frames.from_video(path)
    frames.take(spread(len(frames), int(sys.argv[4])))
"""


class LookingClock(Clock):
    """A clock that reads 16 frames of every episode."""

    def __init__(self) -> None:
        super().__init__()
        self.card = replace(self.card, name="looking-clock", sees_pixels=True, frame_budget=SAMPLES)

    def values(self, episode: Episode) -> np.ndarray:
        at = self.card.wanted(len(episode))
        assert len(episode.main.take(at)) == SAMPLES
        return (at + 1) / len(episode)


def raw_seconds(folder: Path, cores: int) -> float:
    """Time the decoding alone, after all processes have started."""
    command = [sys.executable, "-c", RAW, str(folder)]
    workers = [
        subprocess.Popen([*command, str(i), str(cores), str(SAMPLES)], stdin=subprocess.PIPE, text=True)
        for i in range(cores)
    ]
    time.sleep(1.5)
    start = time.perf_counter()
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.close()
    for worker in workers:
        worker.wait()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="16 episodes, one round")
    episodes, rounds, frames = (16, 1, 40) if parser.parse_args().small else (EPISODES, ROUNDS, 300)
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "videos"
        folder.mkdir()
        for i in range(8):
            write_video(folder / f"{i:04d}.mp4", scene(i, frames), 30, Encoding(gop=2, options={"crf": "23"}))
        for i in range(8, episodes):
            os.link(folder / f"{i % 8:04d}.mp4", folder / f"{i:04d}.mp4")
        rates: dict[str, list[float]] = {
            title: [] for title in ("raw", "pipeline", "pipeline, running", "clock", "clock, running")
        }
        for round_number in range(rounds):
            rates["raw"].append(episodes / raw_seconds(folder, cores))
            for title, model in (("pipeline", LookingClock()), ("clock", Clock())):
                job = ScoreJob(model, open_dataset(f"videos:{folder}"), Path(name) / f"{title}-{round_number}")
                marks: list[tuple[float, int]] = [(time.perf_counter(), 0)]
                score(job, lambda progress, marks=marks: marks.append((time.perf_counter(), progress.scored)))
                (start, _), (begun, first), (end, last) = marks[0], marks[1], marks[-1]
                rates[title].append(episodes / (end - start))
                rates[f"{title}, running"].append((last - first) / (end - begun))
                assert last == episodes
        medians = {title: statistics.median(values) for title, values in rates.items()}
        shares = {
            title: statistics.median(np.array(rates[title]) / np.array(rates["raw"]))
            for title in ("pipeline", "pipeline, running")
        }
        print(f"{episodes} episodes, {SAMPLES} frames each, {cores} cores, median of {rounds} rounds")
        print(f"raw decoding      {medians['raw']:7.1f} episodes/s")
        print(
            f"scoring pipeline  {medians['pipeline']:7.1f} episodes/s = {shares['pipeline']:.1%} of raw, with start-up"
        )
        running = shares["pipeline, running"]
        print(f"   once running   {medians['pipeline, running']:7.1f} episodes/s = {running:.1%} of raw")
        print(f"clock, no pixels  {medians['clock']:7.1f} episodes/s")


if __name__ == "__main__":
    main()
