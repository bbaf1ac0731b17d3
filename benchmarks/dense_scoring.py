"""Dense Robometer scoring: the engine, the straightforward way, and a LeRobot-like way; random weights.

    python benchmarks/dense_scoring.py            # Qwen3-VL-4B shape on a GPU, about three minutes, no download
    python benchmarks/dense_scoring.py --small    # a small network on the CPU, seconds

Frames are given as arrays; resizing and patches are inside every timing, and all ways see the same frames and weights.
The share of the matrix rate is the number of operations that exact scoring needs, divided by the engine's time and by
the rate of an 8192³ bfloat16 product measured in the same run. Needs torch, transformers and Pillow.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a small network on the CPU")
    parser.add_argument("--frames", type=int, nargs="+", default=None)
    parser.add_argument("--ours-only", action="store_true")
    parser.add_argument("--eager", action="store_true", help="also the engine without compiled kernels")
    parser.add_argument("--check", action="store_true", help="first compare with the reference in float32")
    parser.add_argument("--stream", action="store_true", help="also time live steps")
    parser.add_argument("--profile", action="store_true", help="also say where the GPU's time goes")
    parser.add_argument("--disk", action="store_true", help="also score videos on disk, with all that it takes")
    parser.add_argument("--robots", type=int, default=0, help="also time so many live episodes at 5 Hz each")
    parser.add_argument("--fp8", action="store_true", help="also the engine with eight-bit products")
    parser.add_argument("--json", type=Path)
    OPTIONS = parser.parse_args()  # before the imports that need extras: --help works without them

import numpy as np
import torch

from _vlm_networks import TASK, WordTokenizer, network_config, random_weights, time_best
from demerit import open_dataset
from demerit.data.video import write_video
from demerit.evaluate.metrics.ranking import spearman
from demerit.models.protocol import example_card
from demerit.models.published.robometer import Robometer, RobometerRun
from demerit.models.score import ScoreJob, score
from demerit.models.vlm.backbone import TokenBudget
from demerit.models.vlm.config import TextShape, VisionShape, VLMShape
from demerit.models.vlm.network import VLMNetwork, transformers_network
from demerit.models.vlm.prefix_tree import PackedTree, pack, shared_tree, windows
from demerit.models.vlm.robometer import (
    RobometerEngine,
    RobometerProtocol,
    WindowPrompt,
    expected_heads,
    image_size,
)
from demerit.models.vlm.robometer_live import LiveRobometer
from demerit.use.serve.model_threads import ModelThreads
from fakes.vlm_reference import RobometerReference

COPY_RATE = 4.3e12
"""bytes per second that an H200 copies"""


class LeRobotLike(RobometerReference):
    """Windows of four frames, and unused logits over the whole vocabulary."""

    def _forward(self, prompts: Any, shown: Any) -> Any:
        ids, states = super()._forward(prompts, shown)
        table = self._network.get_input_embeddings().weight
        for row in states:  # one window at a time: all together would not fit
            row @ table.T
        return ids, states


def measure_matrix_rate(device: str, dtype: torch.dtype, repeats: int = 20) -> float:
    side = 8192 if device == "cuda" else 512
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    out = a @ b

    def multiply() -> None:
        for _ in range(repeats):
            torch.mm(a, b, out=out)

    took, _ = time_best(multiply, 3, device)
    return 2 * side**3 * repeats / took


@dataclass(frozen=True)
class Cost:
    """Operations of matrix products and attention, and the fewest bytes to move (every weight and image once)."""

    operations: float
    bytes: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.operations + other.operations, self.bytes + other.bytes)


def image_cost(shape: VisionShape, count: int, rows: int, columns: int) -> Cost:
    """Count the vision tower over images of rows x columns tokens."""
    patches, tokens = rows * columns * shape.merge**2, rows * columns
    wide = shape.hidden * shape.merge**2
    block = 4 * shape.hidden**2 + 2 * shape.hidden * shape.inner
    linear = patches * (shape.pixels * shape.hidden + shape.depth * block)
    mergers = tokens * (1 + len(shape.deep)) * (wide * wide + wide * shape.out)
    attention = 2 * shape.depth * patches**2 * shape.hidden
    weights = shape.depth * block + (1 + len(shape.deep)) * (wide * wide + wide * shape.out)
    moved = 2.0 * weights + count * patches * shape.pixels / shape.temporal
    return Cost(2.0 * count * (linear + mergers + attention), moved)


def token_cost(shape: TextShape, packed: PackedTree) -> Cost:
    """Count the language model over a packed tree; in the last layer only what the wanted states need."""
    wide, narrow = shape.heads * shape.head, shape.groups * shape.head
    layer = _layer_operations(shape)
    keys_alone = 2 * shape.hidden * narrow
    wanted = len(packed.wanted)
    linear = packed.tokens * ((shape.layers - 1) * layer + keys_alone) + wanted * (layer - keys_alone)
    # a token sees all that came before its segment, and half of the segment
    pairs = sum(
        group.count * (group.length * (group.sees.shape[1] - group.length) + group.length * (group.length + 1) // 2)
        for group in packed.groups
    )
    last = sum(reading.sees.size for reading in packed.readings)
    attention = 2 * wide * ((shape.layers - 1) * pairs + last)
    return Cost(2.0 * (linear + attention), 2.0 * shape.layers * layer + 4.0 * wanted)


def _layer_operations(text: TextShape) -> int:
    wide, narrow = text.heads * text.head, text.groups * text.head
    return text.hidden * (2 * wide + 2 * narrow) + 3 * text.hidden * text.inner


def required_cost(engine: RobometerEngine, frames: int, grid: tuple[int, int]) -> Cost:
    """Count what the windows of all frames need, shared prefixes once."""
    prompt = WindowPrompt(engine, TASK, grid)
    total = image_cost(engine.network.shape.vision, frames, *grid)
    every = windows(frames, engine.protocol.frames)
    portions = TokenBudget(engine.budget.tokens).run("Counting", [prompt.length] * frames, lambda some: some)
    for some in portions:
        tree = shared_tree([prompt.blocks(chosen) for chosen in every[some]])
        packed = pack(tree, {("", at): at for at in range(frames)}, tree.last_tokens())
        total += token_cost(engine.network.shape.text, packed)
    return total


def compare_ways(ways: dict[str, Any], frames: Any, rate: float, device: str) -> list[dict[str, Any]]:
    """Time every way on the same frames and print a table."""
    count, shape = len(frames), ways["ours"].network.shape
    grid = shape.vision.grid(*image_size(*frames.shape[1:3], shape.vision.factor))
    need = required_cost(ways["ours"], count, grid)
    floor = max(need.operations / rate, need.bytes / COPY_RATE)
    print(f"\n{count} frames: needs {need.operations / 1e12:.1f} TFLOP, {need.bytes / 1e9:.1f} GB; floor {floor:.3f} s")
    rows, answers = {}, {}
    for name, way in ways.items():
        if count > 300 and "1 window" in name:
            continue
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        took, answers[name] = time_best(lambda way=way: way.dense(frames, TASK), 3 if "ours" in name else 1, device)
        peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
        share = need.operations / took / rate if "ours" in name else None
        rows[name] = {"frames": count, "way": name, "seconds": took, "peak_gib": peak, "share": share}
        print(f"  {name:32s} {took:8.3f} s {count / took:8.1f} frames/s  peak {peak:5.1f} GiB", end="")
        print(f"  {share:.1%} of the matrix rate" if share else "")
    ours = answers["ours"].progress
    for name in [name for name in answers if name != "ours" and "LeRobot" not in name]:
        gaps = np.abs(answers[name].progress - ours)
        times = rows[name]["seconds"] / rows["ours"]["seconds"]
        print(f"  {name}: ours is {times:.2f} times as fast, largest difference {gaps.max():.1e}, ", end="")
        ranks = spearman(answers[name].progress, ours)
        print(f"mean {gaps.mean():.1e} (std {ours.std():.1e}), rank correlation {ranks:.4f}")
    return list(rows.values())


def check_float32(config: dict[str, Any], device: str, size: tuple[int, int]) -> None:
    """Compare the engine with the reference in float32, for several windows and lengths."""
    torch.backends.cudnn.allow_tf32 = False  # otherwise the reference's first convolution is rounded
    shape = VLMShape.from_config(config)
    weights = random_weights(shape.expected_weights(read_out=False), device, torch.float32)
    heads = random_weights(expected_heads(shape.text.hidden, 10), device, torch.float32)
    library, tokens = transformers_network(config, weights), WordTokenizer(shape.text.vocabulary)
    for count, shown in ((1, 8), (9, 8), (20, 8), (12, 4)):
        frames, protocol = random_frames(count, size, count), RobometerProtocol(shown)
        ours = RobometerEngine(VLMNetwork(shape, weights), heads, tokens, protocol).dense(frames, TASK)
        theirs, alone = (
            RobometerReference(shape, library, heads, tokens, protocol, at_once=batch).dense(frames, TASK)
            for batch in (4, 1)
        )
        for name, found in (("engine against reference", ours), ("reference in another batch size", alone)):
            gaps = [np.abs(getattr(found, part) - getattr(theirs, part)).max() for part in ("progress", "success")]
            print(f"float32, {count} frames by {shown}, {name}: progress {gaps[0]:.1e}, success {gaps[1]:.1e} at most")


def time_live_steps(engine: RobometerEngine, size: tuple[int, int], steps: int) -> None:
    frames, took = random_frames(16, size, 1), []
    live = LiveRobometer(engine, TASK)
    for at in range(steps):
        start = time.perf_counter()
        live.step(frames[at % len(frames)])
        took.append(time.perf_counter() - start)
    part = steps // 6
    for start in range(0, steps, part):
        some = took[start : start + part]
        print(f"live steps from {start}: median {np.median(some) * 1e3:.1f} ms, worst {max(some) * 1e3:.1f} ms")


def profile(engine: RobometerEngine, frames: np.ndarray) -> None:
    """Print where the GPU's time goes: matrix products, attention, the functions between them, and gaps."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    kinds = {"products": ("nvjet", "gemm", "cutlass"), "attention": ("_attend", "flash", "sdpa")}
    with record(activities=[ProfilerActivity.CUDA]) as seen:
        engine.dense(frames, TASK)
        torch.cuda.synchronize()
    events = [event for event in seen.events() if event.device_type == DeviceType.CUDA]
    spent: Counter[str] = Counter()
    for event in events:
        kind = [kind for kind, names in kinds.items() if any(name in event.name for name in names)]
        spent[kind[0] if kind else event.name.partition("(")[0][:40]] += event.time_range.elapsed_us()
    span = max(event.time_range.end for event in events) - min(event.time_range.start for event in events)
    spent["nothing runs"] = span - sum(spent.values())
    print(f"{len(frames)} frames, {span / 1e6:.3f} s:", end=" ")
    print(", ".join(f"{name} {time / span:.1%}" for name, time in spent.most_common(9)))


def time_from_disk(engine: RobometerEngine, size: tuple[int, int], count: int, frames: int) -> None:
    """Score a folder of videos into stored rewards, and the same frames from memory."""
    model = object.__new__(Robometer)
    protocol = SimpleNamespace(protocol=engine.protocol, facts={})
    model.card, model.stride, model.checkpoint = example_card(name="robometer"), 1, protocol
    model.engine = engine
    with tempfile.TemporaryDirectory() as folder:
        videos = Path(folder) / "videos"
        videos.mkdir()
        rows, columns = np.mgrid[: size[0], : size[1]]
        for number in range(count):
            waves = [np.sin((rows + columns * (number + 2) + 9 * at) / 40) for at in range(frames)]
            write_video(
                videos / f"{number}.mp4",
                np.stack([np.uint8(127 * wave + 128) for wave in waves])[..., None].repeat(3, -1),
            )
        (videos / "labels.csv").write_text("file,instruction\n" + "".join(f"{n}.mp4,{TASK}\n" for n in range(count)))
        dataset = open_dataset(str(videos))
        clips = [episode.main.all() for episode in dataset]
        engine.dense(clips[0], TASK)
        start = time.perf_counter()
        for clip in clips:
            engine.dense(clip, TASK)
        memory = time.perf_counter() - start
        start = time.perf_counter()
        progress = score(ScoreJob(model, dataset, Path(folder) / "rewards"))
        disk = time.perf_counter() - start
    assert progress.frames == count * frames
    print(f"{count} videos of {frames} frames: from memory {count * frames / memory:.1f} frames/s, ", end="")
    print(f"from disk to stored rewards {count * frames / disk:.1f} frames/s, {memory / disk:.1%}")


def time_robots(engine: RobometerEngine, size: tuple[int, int], robots: int, rate: float, seconds: float) -> None:
    """Let robots send frames at a fixed rate, each out of step with the others, to the threads of a reward server."""
    model = SimpleNamespace(card=example_card(name="robometer"))
    threads, frames, took = ModelThreads(model, 64, 30.0), random_frames(16, size, 1), []
    late: list[float] = []

    def drive(number: int) -> None:
        run = RobometerRun(LiveRobometer(engine, TASK))
        due = begin + number / robots / rate
        for at in range(int(seconds * rate)):
            time.sleep(max(0.0, due - time.perf_counter()))
            start = time.perf_counter()
            threads.step(run, frames[at % len(frames)]).result()
            if at >= seconds * rate / 4:  # before, kernels are compiled, windows fill and memory grows
                took.append(time.perf_counter() - start)
                late.append(start - due)
            due += 1 / rate

    begin = time.perf_counter() + 0.1
    clients = [threading.Thread(target=drive, args=(number,)) for number in range(robots)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    threads.stop()
    middle, most, worst = np.percentile(took, [50, 95, 100]) * 1e3
    print(f"{robots} robots at {rate:g} Hz for {seconds:g} s: {len(took)} frames, median {middle:.0f} ms, ", end="")
    print(f"p95 {most:.0f} ms, worst {worst:.0f} ms; p95 of lateness of sending {np.percentile(late, 95) * 1e3:.0f} ms")


def random_frames(count: int, size: tuple[int, int], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *size, 3), dtype=np.uint8)


def main(options: argparse.Namespace) -> None:
    device, dtype = ("cpu", torch.float32) if options.small else ("cuda", torch.bfloat16)
    counts = options.frames or ([5, 12] if options.small else [50, 300, 1000])
    size = (32, 64) if options.small else (240, 320)
    config = network_config(small=options.small)
    if options.small:
        torch.set_num_threads(1)
    if options.check:
        check_float32(config, device, size)

    shape = VLMShape.from_config(config)
    weights = random_weights(shape.expected_weights(read_out=False), device, dtype)
    heads = random_weights(expected_heads(shape.text.hidden, 10), device, dtype)
    tokens: Any = WordTokenizer(shape.text.vocabulary)
    engine = RobometerEngine(VLMNetwork(shape, weights), heads, tokens)
    ways: dict[str, Any] = {"ours": engine}
    if options.eager:
        ways["ours, not compiled"] = RobometerEngine(VLMNetwork(shape, weights, eager=True), heads, tokens)
    if options.fp8:
        ways["ours, fp8"] = RobometerEngine(VLMNetwork(shape, weights, eight_bits=True), heads, tokens)
    if not options.ours_only:
        library, four = transformers_network(config, weights), RobometerProtocol(frames=4)
        ways["reference, 1 window at a time"] = RobometerReference(shape, library, heads, tokens)
        ways["reference, 32 at a time"] = RobometerReference(shape, library, heads, tokens, at_once=32)
        ways["LeRobot-like, 32 at a time"] = LeRobotLike(shape, library, heads, tokens, four, at_once=32)

    rate = measure_matrix_rate(device, dtype)
    print(f"matrix rate {rate / 1e12:.1f} TFLOP/s in {dtype}", end="")
    steady = measure_matrix_rate(device, dtype, repeats=20 if options.small else 1500)
    print(f"; {steady / 1e12:.1f} for some seconds, when the card's power limits its clock")
    start = time.perf_counter()
    engine.dense(random_frames(40, size, 0), TASK)
    print(f"first call, compilation included: {time.perf_counter() - start:.1f} s")
    results = [row for count in counts for row in compare_ways(ways, random_frames(count, size, count), rate, device)]
    if options.stream:
        time_live_steps(engine, size, 60 if options.small else 600)
    if options.profile:
        profile(engine, random_frames(300, size, 300))
    if options.disk:
        for count, frames in ((3, 9),) if options.small else ((12, 300), (40, 50)):
            time_from_disk(engine, size, count, frames)
    if options.robots:
        time_robots(engine, size, options.robots, 5.0, 4 if options.small else 20)
    if options.json:
        options.json.write_text(json.dumps({"rate": rate, "results": results}, indent=1))


if __name__ == "__main__":
    main(OPTIONS)
