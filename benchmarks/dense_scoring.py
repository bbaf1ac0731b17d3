"""Dense Robometer scoring on a GPU: the straightforward way, a LeRobot-like way, and ours; random weights, true shape.

    python benchmarks/dense_scoring.py                       # true Qwen3-VL-4B shape on a GPU, about three minutes
    python benchmarks/dense_scoring.py --tiny                # a toy on the CPU: whether the script runs

Frames are given as arrays; resizing and cutting into patches is inside every timing. All ways see the same frames and
weights in one run. The share of the matrix rate divides the operations that exactness requires by the time ours took,
and that by the rate of an 8192³ bf16 product measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from _true_shape import TRUE, WordTokens, random_weights, seconds, small
from demerit.models.vlm import cost
from demerit.models.vlm.config import VLMShape
from demerit.models.vlm.heads import expected_heads
from demerit.models.vlm.network import Network
from demerit.models.vlm.online import Following
from demerit.models.vlm.packed import pack
from demerit.models.vlm.reference import RobometerReference, transformers_network
from demerit.models.vlm.robometer import Asked, Protocol, RobometerEngine, picture_size
from demerit.models.vlm.tree import shared
from demerit.models.vlm.windows import window

COPIED = 4.3e12
"""bytes a second that an H200 copies"""
TASK = "pick up the red mug and put it on the plate next to the sink"


def matrix_rate(device: str, dtype: torch.dtype) -> float:
    side = 8192 if device == "cuda" else 512
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    repeats = 20
    seconds(lambda: a @ b, 3, device)
    took, _ = seconds(lambda: [a @ b for _ in range(repeats)], 3, device)
    return 2 * side**3 * repeats / took


class LeRobotLike(RobometerReference):
    """Windows of four frames, and logits over the whole vocabulary that nobody reads."""

    def _forward(self, prompts: Any, shown: Any) -> Any:
        ids, states = super()._forward(prompts, shown)
        table = self._network.get_input_embeddings().weight
        for row in states:  # a window at a time: all at once would not fit
            row @ table.T
        return ids, states


def required(engine: RobometerEngine, frames: int, grid: tuple[int, int]) -> cost.Cost:
    """Count what the windows of all frames need, shared once."""
    asked = Asked(engine, TASK, grid)
    total = cost.of_pictures(engine.network.shape.vision, frames, *grid)
    windows = [window(last, engine.protocol.frames) for last in range(frames)]
    for some in engine.room.portions([asked.length] * frames):
        tree = shared([asked.blocks(each) for each in windows[some]])
        last = [sum(len(block) for block in tree.segments[end].blocks) - 1 for end in tree.ends]
        rows = {("", at): at for at in range(frames)}
        packed = pack(tree, rows, list(zip(tree.ends, last, strict=True)))
        total += cost.of_tokens(engine.network.shape.text, packed)
    return total


def compared(ways: dict[str, Any], frames: Any, rate: float, device: str) -> list[dict[str, Any]]:
    """Time every way on the same frames and print how they stand."""
    count, shape = len(frames), ways["ours"].network.shape
    need = required(ways["ours"], count, shape.vision.grid(*picture_size(*frames.shape[1:3], shape.vision.factor)))
    floor = max(need.operations / rate, need.bytes / COPIED)
    print(f"\n{count} frames: needs {need.operations / 1e12:.1f} TFLOP, {need.bytes / 1e9:.1f} GB; floor {floor:.3f} s")
    rows, answers = {}, {}
    for name, way in ways.items():
        if count > 300 and "1 window" in name:
            continue
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        took, answers[name] = seconds(lambda way=way: way.dense(frames, TASK), 3 if "ours" in name else 1, device)
        peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
        share = need.operations / took / rate if "ours" in name else None
        rows[name] = {"frames": count, "way": name, "seconds": took, "peak_gib": peak, "share": share}
        print(f"  {name:32s} {took:8.3f} s {count / took:8.1f} frames/s  peak {peak:5.1f} GiB", end="")
        print(f"  {share:.1%} of the matrix rate" if share else "")
    ours = answers["ours"].progress
    for name in [name for name in answers if name != "ours" and "LeRobot" not in name]:
        gap = np.abs(answers[name].progress - ours).max()
        times = rows[name]["seconds"] / rows["ours"]["seconds"]
        print(f"  {name}: ours {times:.2f} times as fast, {gap:.2e} apart (progress varies by {ours.std():.2e})")
    return list(rows.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--frames", type=int, nargs="+", default=None)
    parser.add_argument("--ours-only", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--eager", action="store_true", help="also ours without compiling")
    parser.add_argument("--check", action="store_true", help="first compare both ways in float32 on 20 frames")
    parser.add_argument("--fp8", action="store_true", help="also ours in eight bits, an approximation")
    parser.add_argument("--stream", action="store_true", help="also the time of a live step, early and late")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = "cpu" if options.tiny else "cuda"
    dtype = torch.float32 if options.tiny else torch.bfloat16
    counts = options.frames or ([6, 20] if options.tiny else [50, 300, 1000])
    height, width = (64, 96) if options.tiny else (240, 320)
    config = small() if options.tiny else TRUE

    shape = VLMShape.from_config(config)
    if options.check:
        checked(config, device, (height, width))
    weights = random_weights(shape.expected(read_out=False), device, dtype)
    heads = random_weights(expected_heads(shape.text.hidden, 10), device, dtype)
    tokens: Any = WordTokens()
    engine = RobometerEngine(Network(shape, weights), heads, tokens)
    ways: dict[str, Any] = {"ours": engine}
    if options.eager:
        ways["ours, not compiled"] = RobometerEngine(Network(shape, weights, compiled=False), heads, tokens)
    if options.fp8:
        network = Network(shape, weights, in_eight_bits=True)
        ways["ours in eight bits"] = RobometerEngine(network, heads, tokens)
    if not options.ours_only:
        library = transformers_network(config, weights)
        ways["reference, 1 window at a time"] = RobometerReference(shape, library, heads, tokens)
        ways["reference, 32 at a time"] = RobometerReference(shape, library, heads, tokens, at_once=32)
        ways["LeRobot-like, 32 at a time"] = LeRobotLike(shape, library, heads, tokens, Protocol(frames=4), at_once=32)

    rate = matrix_rate(device, dtype)
    print(f"matrix rate {rate / 1e12:.1f} TFLOP/s in {dtype}")
    rng = np.random.default_rng(0)
    start = time.perf_counter()
    engine.dense(rng.integers(0, 256, (40, height, width, 3), dtype=np.uint8), TASK)
    print(f"first call of ours, compiling included: {time.perf_counter() - start:.1f} s")
    results = []
    for count in counts:
        frames = rng.integers(0, 256, (count, height, width, 3), dtype=np.uint8)
        results += compared(ways, frames, rate, device)
    if options.stream:
        streamed(engine, (height, width), 60 if options.tiny else 600)
    if options.profile:
        profiled(engine, frames)
    if options.json:
        options.json.write_text(json.dumps({"rate": rate, "results": results}, indent=1))


def checked(config: dict[str, Any], device: str, size: tuple[int, int]) -> None:
    """Compare ours with the reference in float32, several windows and lengths."""
    torch.backends.cudnn.allow_tf32 = False  # or the library's first convolution is rounded to ten digits
    shape = VLMShape.from_config(config)
    weights = random_weights(shape.expected(read_out=False), device, torch.float32)
    heads = random_weights(expected_heads(shape.text.hidden, 10), device, torch.float32)
    library, tokens = transformers_network(config, weights), WordTokens()
    for count, shown in ((1, 8), (9, 8), (20, 8), (12, 4)):
        frames = np.random.default_rng(count).integers(0, 256, (count, *size, 3), dtype=np.uint8)
        ours = RobometerEngine(Network(shape, weights), heads, tokens, Protocol(shown)).dense(frames, TASK)
        theirs = RobometerReference(shape, library, heads, tokens, Protocol(shown), at_once=4).dense(frames, TASK)
        alone = RobometerReference(shape, library, heads, tokens, Protocol(shown), at_once=1).dense(frames, TASK)
        for name, one in (
            ("ours against the reference", ours),
            ("the reference against itself, batched otherwise", alone),
        ):
            gaps = [np.abs(getattr(one, each) - getattr(theirs, each)).max() for each in ("progress", "success")]
            print(f"float32, {count} frames by {shown}, {name}: progress {gaps[0]:.1e}, success {gaps[1]:.1e} at most")


def streamed(engine: RobometerEngine, size: tuple[int, int], steps: int) -> None:
    """Time live steps: every one waits for its answer."""
    frames = np.random.default_rng(1).integers(0, 256, (16, *size, 3), dtype=np.uint8)
    live, took = Following(engine, TASK), []
    for at in range(steps):
        start = time.perf_counter()
        live.step(frames[at % len(frames)])
        took.append(time.perf_counter() - start)
    part = steps // 6
    for start in range(0, steps, part):
        some = took[start : start + part]
        print(f"live steps from {start}: median {np.median(some) * 1e3:.1f} ms, worst {max(some) * 1e3:.1f} ms")


def profiled(engine: RobometerEngine, frames: Any) -> None:
    """Print where the device's time goes, and the vision tower's part of it."""
    from torch.profiler import ProfilerActivity, profile

    took, _ = seconds(lambda: engine.look(frames), 3, "cuda")
    print(f"vision alone: {took:.3f} s for {len(frames)} frames")
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        engine.dense(frames, TASK)
        torch.cuda.synchronize()
    kernels = sorted(seen.key_averages(), key=lambda each: -each.self_device_time_total)
    for each in kernels[:30]:
        print(f"{each.self_device_time_total / 1e3:9.1f} ms {each.count:6d}  {each.key[:110]}")


if __name__ == "__main__":
    main()
