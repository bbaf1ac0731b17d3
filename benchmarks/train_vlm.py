"""Updates of Robometer's training on one GPU: seconds, memory and tokens per second, with random weights.

    python benchmarks/train_vlm.py             # the shape of Qwen3-VL-4B, on a GPU, about three minutes
    python benchmarks/train_vlm.py --small     # a toy on the CPU: only shows that the script runs

Adapters and all weights, each with and without the cache of the frozen tower's features. Pairs of 2 x 8 frames of
240 x 320 pixels. The second half of the updates is timed, when most features are kept.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--part", type=int, default=8)
    parser.add_argument("--updates", type=int, default=8)
    OPTIONS = parser.parse_args()  # before the imports that need extras: --help works without them

import numpy as np
import torch
from accelerate import Accelerator

from _vlm_networks import WordTokenizer, network_config, random_weights
from demerit.models.vlm.config import VLMShape
from demerit.models.vlm.robometer import expected_heads
from demerit.training.prepared import CorpusRow, PreparedCorpus
from demerit.training.vlm.checkpoints import VLMStart, choose_dtype
from demerit.training.vlm.config import RobometerTrainConfig
from demerit.training.vlm.fit import VLMProgress, VLMTrainer

TASKS = ("pick up the red mug and put it on the plate", "close the top drawer of the cabinet")


class EnoughUpdatesError(Exception):
    """Ends a run without a checkpoint."""


def make_corpus(count: int, frames: int, height: int, width: int) -> PreparedCorpus:
    """Successes and failures at two tasks; the images are noise."""
    rng = np.random.default_rng(0)
    rows, images = [], []
    for number in range(count):
        success = number % 4 < 2
        progress = np.linspace(0, 1, frames, dtype=np.float32) * (1.0 if success else 0.3)
        times = np.arange(frames, dtype=np.float32)
        task = TASKS[number % 2]
        rows.append(CorpusRow(str(number), "noise", task, "measured", success, progress, times, split="train"))
        images.append(rng.integers(0, 255, (frames, height, width, 3), dtype=np.uint8))
    return PreparedCorpus.from_arrays(rows, images)


def make_start(model: dict[str, Any], config: RobometerTrainConfig, device: str) -> VLMStart:
    shape = VLMShape.from_config(model)
    expected = shape.expected_weights(read_out=False) | expected_heads(shape.text.hidden, config.bins)
    weights = random_weights(expected, device, torch.bfloat16)
    for name in list(weights):
        weights[name] = weights[name].to(choose_dtype(name, config))
    tokens: Any = WordTokenizer(shape.text.vocabulary)
    return VLMStart(model, weights, tokens, None, "random", "random", "random")


def measure(config: RobometerTrainConfig, corpus: PreparedCorpus, model: dict[str, Any], device: str) -> dict[str, Any]:
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    precision = "bf16" if config.precision == "bfloat16" else "no"
    accelerator = Accelerator(cpu=device == "cpu", mixed_precision=precision)
    ends = [time.perf_counter()]
    told: list[VLMProgress] = []

    def report(progress: VLMProgress) -> None:
        ends.append(time.perf_counter())
        told.append(progress)
        if progress.step == config.steps:
            raise EnoughUpdatesError

    with tempfile.TemporaryDirectory() as folder:
        trainer = VLMTrainer(accelerator, corpus, config, make_start(model, config, device), Path(folder), report)
        try:
            trainer.run()
        except EnoughUpdatesError:
            pass
    seconds = float(np.median(np.diff(ends)[config.steps // 2 :]))
    result = {
        "trains": "adapters" if config.lora else "all weights",
        "cache": config.cache,
        "million trained weights": round(sum(value.numel() for value in trainer._trained_weights().values()) / 1e6, 1),
        "seconds per update": round(seconds, 3),
        "tokens per second": round(told[-1].tokens / seconds),
        "features found": round(told[-1].features_found or 0.0, 2),
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
    corpus = make_corpus(8, 8, 64, 96) if options.small else make_corpus(12, 24, 240, 320)
    changes: dict[str, Any] = {"steps": options.updates, "batch": options.batch, "part": options.part}
    if options.small:
        changes = {"steps": 2, "batch": 2, "part": 1, "frames": 4, "precision": "float32"}
    for lora in (32, 0):
        for cache in ("none", "memory"):
            config = RobometerTrainConfig().change({**changes, "lora": lora, "cache": cache})
            print(json.dumps(measure(config, corpus, model, device)), flush=True)


if __name__ == "__main__":
    main(OPTIONS)
