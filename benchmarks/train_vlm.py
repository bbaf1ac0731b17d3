"""Preparing a corpus and training Robometer from it on one GPU: does the GPU wait for frames? Random weights.

    python benchmarks/train_vlm.py                            # the shape of Qwen3-VL-4B, on a GPU, about five minutes
    accelerate launch --config_file FILE benchmarks/train_vlm.py --workers 2    # the same as accelerate shards it
    python benchmarks/train_vlm.py --small                    # a toy on the CPU: only shows that the script runs

Draws camera-like originals (200 frames of 480 x 640), prepares them as `demerit train` does (64 frames of 240 x 320 in
small videos), and trains adapters, then all weights. Pairs of 2 x 8 frames, no cached features: in a large corpus no
image comes twice. For each number of decoding processes: seconds per update, the share of the time in which the GPU's
process did not wait for data, and the cores that decoding and everything else took. The second half of updates counts.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--part", type=int, default=8)
    parser.add_argument("--updates", type=int, default=12)
    parser.add_argument("--episodes", type=int, default=48)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--adapters-only", action="store_true")
    OPTIONS = parser.parse_args()  # before the imports that need extras: --help works without them

import numpy as np
import torch
from accelerate import Accelerator

from _vlm_networks import WordTokenizer, network_config, random_weights
from demerit.data.dataset import Dataset
from demerit.data.episode import Episode, Origin, Outcome
from demerit.data.frames import Frames
from demerit.data.video import VideoClip, write_video
from demerit.models.vlm.config import VLMShape
from demerit.models.vlm.robometer import expected_heads
from demerit.training.prepared import CorpusPart, PreparedCorpus, prepare
from demerit.training.vlm.checkpoints import VLMStart, choose_dtype
from demerit.training.vlm.config import RobometerTrainConfig, VLMCorpusPlan
from demerit.training.vlm.fit import VLMProgress, VLMTrainer

TASKS = ("pick up the red mug and put it on the plate", "close the top drawer of the cabinet")


class EnoughUpdatesError(Exception):
    """Ends a run without a checkpoint."""


def draw_frames(seed: int, frames: int, height: int, width: int) -> Iterator[np.ndarray]:
    """A still scene with texture and camera noise; a block is carried across it."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(40, 200, (height // 16 + 1, width // 16 + 1, 3)).astype(np.float32)
    scene = np.kron(coarse, np.ones((16, 16, 1), np.float32))[:height, :width] + rng.normal(0, 6, (height, width, 1))
    noise = rng.normal(0, 2, (2 * height, 2 * width, 1)).astype(np.float32)
    side = height // 6
    for number in range(frames):
        top, left = rng.integers(0, height), rng.integers(0, width)
        image = scene + noise[top : top + height, left : left + width]
        x, y = int((width - side) * number / frames), int(height / 2 + height / 4 * np.sin(number / 9))
        image[y : y + side, x : x + side] = (210, 60, 50)
        yield np.clip(image, 0, 255).astype(np.uint8)


def draw_episode(folder: Path, number: int, frames: int, height: int, width: int) -> Episode:
    path = folder / f"{number}.mp4"
    write_video(path, draw_frames(number, frames, height, width), fps=10)
    success = number % 4 < 2
    curve = np.linspace(0, 1, frames) * (1.0 if success else 0.3)
    outcome = Outcome("simulator", success=success, curve=curve)
    views = {"main": Frames(VideoClip(str(path), length=frames))}
    return Episode(str(number), TASKS[number % 2], views, (outcome,), Origin())


class DrawnReader:
    """Reads episodes from memory."""

    name = "drawn"

    def __init__(self, episodes: list[Episode]) -> None:
        self.episodes = episodes

    def expected(self) -> int:
        return len(self.episodes)

    def records(self) -> Iterator[Episode]:
        return iter(self.episodes)


def cpu_seconds() -> tuple[float, float]:
    """Of this process, and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return used[0].ru_utime + used[0].ru_stime, used[1].ru_utime + used[1].ru_stime


def make_corpus(folder: Path, count: int, size: tuple[int, int, int], config: RobometerTrainConfig) -> PreparedCorpus:
    """Draw originals and prepare them; print what that took."""
    folder.mkdir()
    cores = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(cores) as pool:
        episodes = list(pool.map(lambda number: draw_episode(folder, number, *size), range(count)))
    workers = min(cores, 8)
    before, started = sum(cpu_seconds()), time.perf_counter()
    part = CorpusPart("drawn", Dataset(DrawnReader(episodes), address="drawn:here"))
    corpus = prepare([part], folder / "corpus", VLMCorpusPlan(config), workers=workers, storage="video")
    seconds, used = time.perf_counter() - started, sum(cpu_seconds()) - before
    frames = sum(row.frames for row in corpus.rows)
    stored = (folder / "corpus" / "frames.video").stat().st_size
    print(
        json.dumps(
            {
                "prepared": count,
                "original": f"{size[0]} frames of {size[1]} x {size[2]}",
                "processes": workers,
                "episodes per second": round(count / seconds, 1),
                "core seconds per episode": round(used / count, 2),
                "bytes per episode": stored // count,
                "bytes of labels per episode": (folder / "corpus" / "episodes.jsonl").stat().st_size // count,
                "raw bytes per episode": sum(row.frames * row.frame_bytes for row in corpus.rows) // count,
                "frames": frames,
            }
        ),
        flush=True,
    )
    return corpus


def make_start(model: dict[str, Any], config: RobometerTrainConfig, device: str) -> VLMStart:
    shape = VLMShape.from_config(model)
    expected = shape.expected_weights(read_out=False) | expected_heads(shape.text.hidden, config.bins)
    weights = random_weights(expected, device, torch.bfloat16)
    for name in list(weights):
        weights[name] = weights[name].to(choose_dtype(name, config))
    tokens: Any = WordTokenizer(shape.text.vocabulary)
    return VLMStart(model, weights, tokens, None, "random", "random", "random")


def measure(
    config: RobometerTrainConfig, corpus: PreparedCorpus, model: dict[str, Any], device: str, workers: int
) -> dict[str, Any]:
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    precision = "bf16" if config.precision == "bfloat16" else "no"
    accelerator = Accelerator(cpu=device == "cpu", mixed_precision=precision)
    ends = [time.perf_counter()]
    told: list[VLMProgress] = []
    used: list[float] = []

    def report(progress: VLMProgress) -> None:
        ends.append(time.perf_counter())
        told.append(progress)
        used.append(cpu_seconds()[0])
        if progress.step == config.steps:
            raise EnoughUpdatesError

    with tempfile.TemporaryDirectory() as folder:
        start = make_start(model, config, device)
        trainer = VLMTrainer(accelerator, corpus, config, start, Path(folder), report, workers)
        children, began = cpu_seconds()[1], time.perf_counter()
        try:
            trainer.run()
        except EnoughUpdatesError:
            pass
        decoding = (cpu_seconds()[1] - children) / (ends[-1] - began)
    half = config.steps // 2
    seconds = float(np.median(np.diff(ends)[half:]))
    wall = ends[-1] - ends[half]
    result = {
        "trains": "adapters" if config.lora else "all weights",
        "processes": accelerator.num_processes,
        "how": str(accelerator.distributed_type.value),
        "decoders": workers,
        "million trained weights": round(sum(value.numel() for value in trainer._trained_weights().values()) / 1e6, 1),
        "seconds per update": round(seconds, 3),
        "tokens per second": round(told[-1].tokens / seconds),
        "pairs per second": round(config.batch / seconds, 2),
        "busy": round(1 - sum(progress.waited for progress in told[half:]) / wall, 4),
        "cores of the decoders": round(decoding, 2),
        "cores of the trainer": round((used[-1] - used[half - 1]) / wall, 2),
        "GPU GiB": told[-1].gpu_gib and round(told[-1].gpu_gib, 1),
        "loss": round(told[-1].loss, 3),
    }
    accelerator.free_memory()
    del trainer, accelerator
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    return result


def main(options: argparse.Namespace) -> None:
    if not options.small and not torch.cuda.is_available():
        raise SystemExit("there is no GPU here; --small shows that the script runs")
    device = "cpu" if options.small else "cuda"
    model = network_config(small=options.small)
    changes: dict[str, Any] = {"steps": options.updates, "batch": options.batch, "part": options.part, "cache": "none"}
    count, size, crew = options.episodes, (200, 480, 640), options.workers
    if options.small:
        changes |= {"steps": 2, "batch": 2, "part": 1, "frames": 4, "precision": "float32", "shorter_side": 64}
        count, size, crew = 8, (8, 96, 128), [0, 1]
    with tempfile.TemporaryDirectory() as folder:
        prepared = RobometerTrainConfig().change({**changes, "lora": 32})
        corpus = make_corpus(Path(folder) / f"originals-{os.getpid()}", count, size, prepared)
        for lora in (32,) if options.adapters_only else (32, 0):
            config = RobometerTrainConfig().change({**changes, "lora": lora})
            for workers in crew if lora else crew[-1:]:
                print(json.dumps(measure(config, corpus, model, device, workers)), flush=True)


if __name__ == "__main__":
    main(OPTIONS)
