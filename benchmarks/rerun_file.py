"""How fast and how large `demerit export --to rerun` is: 300-frame episodes of 240x320 with the curves of three models.

    python benchmarks/rerun_file.py        (--small: 3 episodes)

Needs the extra `rerun`; `make test-rerun` installs it in `.venv-rerun`.

`--data DATASET` writes a dataset of your own, with the rewards that are stored for it.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from demerit.data.dataset import Dataset
from demerit.data.episode import Episode, Event, Outcome
from demerit.data.formats import open_dataset
from demerit.data.frames import Frames
from demerit.data.reward import Reward
from demerit.data.store import Store
from demerit.data.video import write_video
from demerit.models.protocol import example_card
from demerit.models.reward_store import RewardStore
from demerit.models.score import rewards_folder, scored_fingerprint
from demerit.use.rerun_file import write_rerun

FRAMES, MODELS = 300, ("careful", "eager", "clock")


def make_dataset(root: Path, episodes: int) -> Dataset:
    """Write different videos of a moving square with camera noise, labels and rewards."""
    rng = np.random.default_rng(0)
    background = rng.integers(60, 120, (240, 320, 3), np.uint8)
    with Store.create(root, "set").writer() as writer:
        for i in range(episodes):
            images = background + rng.integers(0, 4, (FRAMES, 240, 320, 3), np.uint8)
            for k, image in enumerate(images):
                image[100:140, (k + 7 * i) % 280 :][:, :40] = 250
            write_video(root.parent / f"{i}.mp4", images)
            label = Outcome("human", success=bool(i % 2), events=(Event("collision", 30, 60),))
            writer.add(Episode(f"{i}", "push", {"main": Frames.from_video(root.parent / f"{i}.mp4")}, (label,)))
    dataset = open_dataset(str(root))
    for name in MODELS:
        card = example_card(name=name)
        with RewardStore.open_or_create(rewards_folder(dataset, name), card, {}).writer(card) as rewards:
            made = [(Reward(name, one.id, np.arange(FRAMES), rng.random(FRAMES)), one) for one in dataset]
            rewards.commit([(reward, scored_fingerprint(one, card)) for reward, one in made])
    return dataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--data")
    options = parser.parse_args()
    if importlib.util.find_spec("rerun") is None:
        print("not measured: the extra rerun is not installed")
        return
    with tempfile.TemporaryDirectory() as folder:
        small = 3 if options.small else 60
        dataset = open_dataset(options.data) if options.data else make_dataset(Path(folder) / "set", small)
        out = Path(folder) / "set.rrd"
        import rerun.blueprint  # noqa: F401  # half a second, whatever the dataset

        start, cpu = time.perf_counter(), time.process_time()
        models = write_rerun(dataset, out)
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu
        sources = {one.main.source.describe()["path"] for one in dataset}
        frames, video = sum(len(one) for one in dataset), sum(Path(path).stat().st_size for path in sources)
        print(f"{len(dataset)} episodes, {frames} frames, rewards of {', '.join(models)}")
        print(f"{frames / wall:.0f} frames/s ({frames / cpu:.0f} per CPU second)")
        print(f"{out.stat().st_size / 1e6:.2f} MB for {video / 1e6:.2f} MB of video: {out.stat().st_size / video:.3f}x")
        tool = Path(sys.executable).parent / "rerun"
        subprocess.run([tool, "rrd", "verify", out], check=True)


if __name__ == "__main__":
    main()
