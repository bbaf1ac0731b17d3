"""An update of Robometer's training on one GPU: time, memory and tokens per second; random weights, true 4B shape.

    python benchmarks/train_vlm.py                     # true Qwen3-VL-4B shape on a GPU, about three minutes
    python benchmarks/train_vlm.py --tiny              # a toy on the CPU: whether the script runs

Adapters and the whole language model, each with the frozen tower's features computed anew at every update and with
features that were kept from the epoch before. Pairs of 2 x 8 frames of 240 x 320 from episodes in memory; an update is
everything from its pictures to the optimiser's step.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from _true_shape import TRUE, WordTokens, random_weights, small
from demerit.models.vlm.config import VLMShape
from demerit.models.vlm.heads import expected_heads
from demerit.training.vlm.corpus import Corpus, Row
from demerit.training.vlm.fit import Fitting
from demerit.training.vlm.network import Learner
from demerit.training.vlm.ranks import Ranks
from demerit.training.vlm.recipe import RobometerRecipe
from demerit.training.vlm.reports import Reports, Told
from demerit.training.vlm.start import Start, kind_of, resized_config
from demerit.training.vlm.train import eyes_for, objective_for

ROWS = 151_674
"""of Robometer's table of words"""
TASKS = ("pick up the red mug and put it on the plate", "close the top drawer of the cabinet")


def episodes(count: int, frames: int, height: int, width: int) -> Corpus:
    """Successes and failures at two tasks; what the pictures show does not matter for speed."""
    rng = np.random.default_rng(0)
    rows, images, start = [], [], 0
    for at in range(count):
        good = at % 4 < 2
        rise = np.linspace(0, 1, frames, dtype=np.float32) * (1.0 if good else 0.3)
        row = Row(
            id=str(at), source="noise", instruction=TASKS[at % 2], success=good, progress=rise, measured=True,
            final=float(rise[-1]), grade=None, times=np.arange(frames, dtype=np.float32), start=start,
            height=height, width=width, split="train",
        )  # fmt: skip
        rows.append(row)
        images.append(rng.integers(0, 255, (frames, height, width, 3), dtype=np.uint8))
        start = row.end
    return Corpus.of(rows, images)


def begun(config: dict[str, Any], recipe: RobometerRecipe, device: str) -> Start:
    shape = VLMShape.from_config(config)
    expected = shape.expected(read_out=False) | expected_heads(shape.text.hidden, recipe.bins)
    low = torch.bfloat16 if recipe.precision == "bfloat16" else torch.float32
    weights = random_weights(expected, device, low)
    for name in list(weights):
        weights[name] = weights[name].to(kind_of(name, recipe))
    tokens: Any = WordTokens()
    return Start(config, weights, tokens, None, "random", "random", "random")


def synchronised(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def measured(recipe: RobometerRecipe, corpus: Corpus, config: dict[str, Any]) -> dict[str, Any]:
    """Make some updates, go back to the first and time them: kept features are then found, as after an epoch.

    The next update is drawn, and its pictures resized, while one is computed, as in a real run.
    """
    ranks = Ranks()
    if ranks.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    start = begun(config, recipe, ranks.device.type)
    told: list[Told] = []
    with tempfile.TemporaryDirectory() as folder:
        fitting = Fitting(
            Learner(start, recipe), objective_for(corpus, recipe, start), recipe, corpus, Path(folder), ranks,
            lambda where: Reports(where, (), told.append, {}),
            eyes=eyes_for(corpus, recipe, start, ranks, Path(folder) / "features"), begun_from="random",
        )  # fmt: skip
        seconds: list[float] = []
        for _ in range(2):
            fitting.step = 0
            with fitting._drawn_ahead() as updates:
                before = synchronised(ranks.device)
                for drawn in updates:
                    fitting._one(drawn, asked_to_stop=False)
                    seconds.append(synchronised(ranks.device) - before)
                    before = synchronised(ranks.device)
    kept = fitting.eyes.kept.bytes if fitting.eyes is not None and fitting.eyes.kept is not None else 0
    mine = seconds[-recipe.steps :]
    learning = sum(one.numel() for _, one in fitting.learner.learning())
    result = {
        "trains": "adapters" if recipe.lora else "everything",
        "features": "kept" if recipe.cache != "none" else "computed anew",
        "million weights that learn": round(learning / 1e6, 1),
        "seconds an update": round(float(np.median(mine)), 3),
        "seconds of the first": round(seconds[0], 3),
        "tokens an update": told[-1].tokens,
        "tokens a second": round(told[-1].tokens / float(np.median(mine))),
        "pictures found": told[-1].found,
        "GiB of features": round(kept / 2**30, 2),
        "GiB at most": round(torch.cuda.max_memory_allocated() / 2**30, 1) if ranks.device.type == "cuda" else None,
        "loss": round(told[-1].loss, 3),
    }
    del fitting, start
    gc.collect()
    if ranks.device.type == "cuda":
        torch.cuda.empty_cache()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--part", type=int, default=8)
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--keep-layers", action="store_true", help="do not compute layers again on the way back")
    parser.add_argument("--only", choices=["lora", "full"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not options.tiny and not torch.cuda.is_available():
        raise SystemExit("there is no GPU here; --tiny shows whether the script runs")
    config = resized_config(small() if options.tiny else TRUE, ROWS)
    height, width = (64, 96) if options.tiny else (240, 320)
    corpus = episodes(8 if options.tiny else 24, 8 if options.tiny else 24, height, width)
    numbers: dict[str, Any] = {
        "steps": options.updates, "batch": options.batch, "part": options.part,
        "checkpointing": not options.keep_layers, "precision": "float32" if options.tiny else "bfloat16", "rate": 2e-5,
    }  # fmt: skip
    if options.tiny:
        numbers |= {"batch": 2, "part": 1, "frames": 4, "steps": 2}
    results = []
    for lora in {"lora": [32], "full": [0]}.get(options.only, [32, 0]):
        for cache in ("none", "memory"):
            recipe = RobometerRecipe().changed({**numbers, "lora": lora, "cache": cache})
            results.append(measured(recipe, corpus, config))
            print(json.dumps(results[-1]), flush=True)
        anew, kept = results[-2]["seconds an update"], results[-1]["seconds an update"]
        print(
            f"  kept features: an update takes {kept / anew:.2f} of the time ({anew:.2f} -> {kept:.2f} s)", flush=True
        )
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
