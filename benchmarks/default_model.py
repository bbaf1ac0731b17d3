"""How fast the default model scores videos, decoding included, beside the same network in torch (eager).

    python benchmarks/default_model.py                     the shipped network
    python benchmarks/default_model.py --network DIR       another one
    python benchmarks/default_model.py --layouts           also: decoding processes against threads of the network
    python benchmarks/default_model.py --int8              also: the tower quantised to whole numbers, and what it loses

H.264 videos of 240x320 and of 128x128 are written, then scored as `demerit score` does it: every frame, rewards on
disk, start-up included. Contenders alternate, and each figure is the median of the rounds. Beside the frames a second
of this run stands what a frame costs in processor time: that hardly changes on a machine that is busy otherwise.
The bar is 250 frames a second on two cores.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from decode import scene
from demerit.data.formats import open_dataset
from demerit.data.video import write_video
from demerit.errors import BadInput
from demerit.models.compact.engine import Engine, Followed, shipped_folder
from demerit.models.compact.model import Compact
from demerit.models.compact.resize import resize_square
from demerit.models.score import ScoreJob, score

BAR = 250
SIZES = {"240x320": (240, 320), "128x128": (128, 128)}
EPISODES, FRAMES, ROUNDS, KINDS = 12, 100, 3, 4
TORCH_BATCH = 32


@dataclass(frozen=True)
class Cost:
    """What scoring all videos took."""

    frames_per_second: float
    milliseconds: float
    """of processor time a frame, all processes together"""


def write_videos(folder: Path, size: tuple[int, int]) -> Path:
    """Write a few different videos; the others are the same files under other names, decoded like any other."""
    folder.mkdir(parents=True)
    for i in range(KINDS):
        stretched = np.concatenate([_to_size(one[None], size) for one in scene(i)[:FRAMES]])
        write_video(folder / f"{i:03d}.mp4", stretched, 30)
    for i in range(KINDS, EPISODES):
        os.link(folder / f"{i % KINDS:03d}.mp4", folder / f"{i:03d}.mp4")
    return folder


def _to_size(images: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    square = resize_square(images, max(size))
    return square[:, : size[0], : size[1]]


def processor_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def measure(model: Compact, videos: Path, out: Path, workers: int) -> Cost:
    """Score once, from opening the dataset to the last reward on disk."""
    start, used = time.perf_counter(), processor_seconds()
    done = score(ScoreJob(model, open_dataset(f"videos:{videos}"), out, workers=workers))
    seconds, spent = time.perf_counter() - start, processor_seconds() - used
    assert done.frames == EPISODES * FRAMES, done.reasons
    return Cost(done.frames / seconds, 1000 * spent / done.frames)


def compare(
    contenders: dict[str, Callable[[], Compact]], videos: Path, scratch: Path, workers: dict[str, int]
) -> dict[str, Cost]:
    models = {title: make() for title, make in contenders.items()}
    costs: dict[str, list[Cost]] = {title: [] for title in models}
    for number in range(ROUNDS):
        for title, model in models.items():
            out = scratch / f"{videos.name}-{title}-{number}".replace(" ", "-").replace(",", "")
            costs[title].append(measure(model, videos, out, workers.get(title, os.cpu_count() or 1)))
    return {
        title: Cost(
            statistics.median(one.frames_per_second for one in all_of_it),
            statistics.median(one.milliseconds for one in all_of_it),
        )
        for title, all_of_it in costs.items()
    }


class Eager(Engine):
    """The same network in torch, as one would run it without ONNX: same shapes, random weights, all cores."""

    def __init__(self, engine: Engine) -> None:
        import torch

        from demerit.training.compact.network import CompactNetwork, CompactShape

        self.info, self._words = engine.info, engine._words
        info = engine.info
        shape = CompactShape(info.size, info.features, info.words, info.state, info.hidden, info.bins)
        self.network = CompactNetwork(shape).eval().to(memory_format=torch.channels_last)
        self.torch = torch

    def features(self, images: np.ndarray, first: np.ndarray) -> np.ndarray:
        torch = self.torch
        begun = self._pixels(first[None])
        with torch.inference_mode():
            parts = [
                self.network.tower(some, begun.expand_as(some)).numpy()
                for some in (self._pixels(images[i : i + TORCH_BATCH]) for i in range(0, len(images), TORCH_BATCH))
            ]
        return np.concatenate(parts)

    def follow(self, features: np.ndarray, instruction: str, state: np.ndarray | None = None) -> Followed:
        from demerit.training.compact.network import progress

        torch = self.torch
        words = self.vector(instruction)
        with torch.inference_mode():
            answer = self.network.head(
                torch.from_numpy(features)[None],
                torch.zeros(1, self.info.words) if words is None else torch.from_numpy(words)[None],
                torch.full((1, 1), float(words is not None)),
                torch.zeros(1, self.info.state) if state is None else torch.from_numpy(state),
            )
            rows = (
                progress(answer.bins),
                answer.bins.softmax(-1),
                answer.success.sigmoid(),
                answer.rank,
                answer.hidden,
            )
            return Followed(*(one[0].numpy() for one in rows), answer.memory[:, -1].numpy())

    def _pixels(self, images: np.ndarray) -> object:
        small = np.ascontiguousarray(resize_square(images, self.info.size))
        return (
            self.torch.from_numpy(small).permute(0, 3, 1, 2).float() - 127.0
        ) / 128.0  # channels last, the quicker way


def quantised(network: Path, folder: Path, samples: list[np.ndarray]) -> Path:
    """Quantise the tower statically, by what it sees in some videos; the rest of the network is copied."""
    import hashlib
    import json
    import shutil

    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):
        """Hands out chunks of frames."""

        def __init__(self) -> None:
            self._left = [{"frames": images[i::12], "first": images[:1]} for images in samples for i in range(2)]

        def get_next(self) -> dict[str, np.ndarray] | None:
            return self._left.pop() if self._left else None

    shutil.copytree(network, folder)
    quant_pre_process(str(network / "tower.onnx"), str(folder / "pre.onnx"))
    quantize_static(
        str(folder / "pre.onnx"),
        str(folder / "tower.onnx"),
        Reader(),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
        op_types_to_quantize=["Conv", "Add", "Clip"],
    )
    (folder / "pre.onnx").unlink()
    facts = json.loads((folder / "network.json").read_text())
    facts["sha256"]["tower.onnx"] = hashlib.sha256((folder / "tower.onnx").read_bytes()).hexdigest()
    (folder / "network.json").write_text(json.dumps(facts))
    return folder


def lost(plain: Engine, whole: Engine, samples: list[np.ndarray]) -> str:
    """Say what quantising changed: in the features and in what comes out."""
    angles, gaps = [], []
    for images in samples:
        a, b = (engine.features(images, images[0]) for engine in (plain, whole))
        angles.append((a * b).sum(1) / np.maximum(np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1), 1e-9))
        gaps.append(np.abs(plain.follow(a, "push").progress - whole.follow(b, "push").progress))
    cosine, gap = np.concatenate(angles), np.concatenate(gaps)
    return (
        f"features' cosine {cosine.mean():.4f} (worst {cosine.min():.4f}), "
        f"progress off by {gap.mean():.4f} on average, {gap.max():.4f} at worst"
    )


def _torch_side(engine: Engine) -> dict[str, Callable[[], Compact]]:
    try:
        Eager(engine)
    except ImportError as missing:
        print(f"torch's side is left out: {missing}")
        return {}
    return {"torch, eager": lambda: Compact(engine=Eager(engine), name="eager")}


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", type=Path, help="a trained network's folder (default: the shipped one)")
    parser.add_argument("--layouts", action="store_true")
    parser.add_argument("--int8", action="store_true")
    chosen = parser.parse_args()
    try:
        network = chosen.network or shipped_folder()
    except BadInput as nothing_shipped:
        print(f"nothing to measure: {nothing_shipped}")
        return
    cores = os.cpu_count() or 1
    engine = Engine.load(network)
    contenders: dict[str, Callable[[], Compact]] = {"demerit": lambda: Compact(engine=engine), **_torch_side(engine)}
    workers: dict[str, int] = {}
    if chosen.layouts:
        for decoders in (1, cores):
            for threads in (1, cores):
                title = f"{decoders} decoding, {threads} threads"
                workers[title] = decoders
                contenders[title] = lambda threads=threads: Compact(engine=Engine.load(network, threads))
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        if chosen.int8:
            # set by some scenes, judged on others
            samples = [resize_square(scene(i)[:48], engine.info.size) for i in range(8)]
            small = quantised(network, scratch / "int8", samples[:4])
            contenders["int8"] = lambda: Compact(engine=Engine.load(small))
        print(f"{EPISODES} episodes of {FRAMES} frames, {cores} cores, median of {ROUNDS} rounds")
        for title, size in SIZES.items():
            videos = write_videos(scratch / title, size)
            costs = compare(contenders, videos, scratch, workers)
            print(f"{title} H.264")
            for contender, cost in costs.items():
                ceiling = 1000 * cores / cost.milliseconds
                print(f"  {contender:24s} {cost.frames_per_second:6.0f} frames/s   ", end="")
                print(f"{cost.milliseconds:5.2f} ms of processor a frame (idle: at most {ceiling:.0f} frames/s)")
            verdict = "above" if costs["demerit"].frames_per_second >= BAR else "BELOW"
            print(f"  {verdict} the bar of {BAR} frames/s")
        if chosen.int8:
            print(f"int8: {lost(engine, Engine.load(small), samples[4:])}")


if __name__ == "__main__":
    main()
