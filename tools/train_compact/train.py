"""Train the compact network on a prepared corpus and export it: two ONNX graphs, the text tower, and their facts."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path

import onnx  # noqa: F401 - torch.onnx needs it, and a run without it should not start
import torch
from torch import Tensor, nn

from demerit.data.splits import SEEN, SeenEpisodes
from demerit.errors import BadInput
from demerit.models.compact.engine import FILES, FORMAT, INFO, TEMPORAL, TOWER, WORDS, TextEncoder, shipped_folder
from demerit.training.loop import LoopReport, choose_device, export_graph, write_folder
from demerit.training.prepared import PreparedCorpus, collect_seen
from demerit.training.rewind.train import list_credits
from train_compact.config import CompactTrainConfig
from train_compact.fit import CompactTrainer
from train_compact.inputs import MIDDLE, SCALE
from train_compact.network import CompactHead, CompactNetwork, ImageTower, load_imagenet, progress

IMAGENET_CREDIT = "EfficientNet-Lite0 (Apache-2.0), trained on ImageNet: the image tower began there"
WORDS_CREDIT = "all-MiniLM-L6-v2 (Apache-2.0): the text tower was distilled from it"
SHIPPED_WORDS = shipped_folder() / WORDS
REPORT_EVERY = 10
"""steps; every report waits for the GPU"""
MODEL, KIND = "model.json", {"format": 1, "kind": "compact"}
"""what makes the folder one that `--model` takes"""
PLACES_STRIDE = 64
"""only images of a multiple of it have a middle layer that divides into 4 x 4 places"""


def train_compact(
    corpus: PreparedCorpus,
    out: str | Path,
    config: CompactTrainConfig,
    words: str | Path | None = None,
    imagenet: str | Path | None = None,
    report: LoopReport | None = None,
    device: str | None = None,
) -> Path:
    """Train, export and return the network's folder, `out/network`. Checkpoints are in `out/run`.

    Args:
        corpus: What `prepare` wrote.
        out: Where everything goes. The same call resumes a run that was stopped.
        config: Every number.
        words: The text tower; the shipped one by default.
        imagenet: EfficientNet-Lite0's weights; without them the image tower starts at random.
        report: Called every ten steps.
        device: `cpu` or `cuda`; by default a GPU if there is one.
    """
    check_compact_options(config, words, imagenet, device)
    out, words = Path(out), Path(words or SHIPPED_WORDS)
    start = None if imagenet is None else load_imagenet(imagenet)
    trainer = CompactTrainer(corpus, config, TextEncoder.load(words), out / "run", start, device)
    network = trainer.run(report, REPORT_EVERY)
    rows = trainer.sampler.rows
    is_shipped = words.read_bytes() == SHIPPED_WORDS.read_bytes()
    credits = [*list_credits(rows), WORDS_CREDIT if is_shipped else f"text tower: {words.name}"]
    if imagenet is not None:
        credits.append(IMAGENET_CREDIT)
    described = json.dumps([config.as_dict(), [row.id for row in rows]], sort_keys=True)
    revision = hashlib.sha256(described.encode()).hexdigest()[:12]
    folder = export_compact(network, out / "network", words, revision, credits, collect_seen(rows))
    facts = {"recipe": config.as_dict(), "episodes": dict(sorted(Counter(row.source for row in rows).items()))}
    (folder / "training.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return folder


def check_compact_options(
    config: CompactTrainConfig, words: str | Path | None, imagenet: str | Path | None, device: str | None
) -> None:
    """Refuse options that could not be trained with, before anything is computed; arguments as in `train_compact`."""
    check_size(config.size)
    choose_device(device)
    if words is not None:
        TextEncoder.load(Path(words))
    if imagenet is not None:
        load_imagenet(imagenet)


def check_size(size: int) -> None:
    """Refuse an image size that cannot be exported."""
    if size % PLACES_STRIDE:
        raise BadInput("size", f"a multiple of {PLACES_STRIDE} for a network that is exported", size)


def export_compact(
    network: CompactNetwork,
    folder: str | Path,
    words: Path,
    revision: str,
    trained_on: Sequence[str],
    seen: SeenEpisodes,
) -> Path:
    """Write the folder of a trained network, which `load_model` takes; it appears when it is complete."""
    folder, shape = Path(folder), network.shape
    check_size(shape.size)
    network = deepcopy(network).cpu().float().eval()
    with write_folder(folder, "The last checkpoint is kept: rerun to export the network.") as partial:
        _export_tower(network, partial / TOWER)
        _export_head(network, partial / TEMPORAL)
        shutil.copyfile(words, partial / WORDS)
        (partial / SEEN).write_bytes(seen.content())
        info = {
            "format": FORMAT,
            "size": shape.size,
            "features": shape.features + shape.places,
            "vector": shape.features,
            "words": shape.words,
            "state": shape.memory,
            "hidden": shape.hidden,
            "bins": shape.bins,
            "licence": "Apache-2.0",
            "revision": revision,
            "trained_on": list(trained_on),
            "sha256": {name: hashlib.sha256((partial / name).read_bytes()).hexdigest() for name in FILES},
        }
        for name, facts in ((INFO, info), (MODEL, KIND)):
            (partial / name).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return folder


class _TowerGraph(nn.Module):
    """Takes pixels as they come from a video."""

    def __init__(self, tower: ImageTower) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, frames: Tensor, first: Tensor) -> Tensor:
        now, before = ((pixels.permute(0, 3, 1, 2).float() - MIDDLE) / SCALE for pixels in (frames, first))
        return torch.cat(self.tower.features_and_map(now, before.expand_as(now)), dim=1)


class _HeadGraph(nn.Module):
    """Reads the tower's vector; the middle layer's map, which comes with it, is for teaching."""

    def __init__(self, head: CompactHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, features: Tensor, words: Tensor, instructed: Tensor, state: Tensor) -> tuple[Tensor, ...]:
        output = self.head(features[:, :, : self.head.shape.features], words, instructed, state)
        bins = output.bins.softmax(-1)
        success = output.success.sigmoid()
        return (progress(output.bins), bins, success, output.rank, output.hidden, output.memory[:, -1])


def _export_tower(network: CompactNetwork, path: Path) -> None:
    size = network.shape.size
    pixels = torch.zeros(2, size, size, 3, dtype=torch.uint8)
    dynamic = {name: {0: "n"} for name in ("frames", "features")}
    export_graph(_TowerGraph(network.tower), (pixels, pixels[:1]), path, ["frames", "first"], ["features"], dynamic)


def _export_head(network: CompactNetwork, path: Path) -> None:
    shape = network.shape
    features = torch.zeros(1, 3, shape.features + shape.places)
    example = (features, torch.zeros(1, shape.words), torch.ones(1, 1), torch.zeros(1, shape.memory))
    outputs = ["progress", "bins", "success", "rank", "hidden", "state_after"]
    dynamic = {name: {1: "t"} for name in ["features", *outputs[:-1]]}
    inputs = ["features", "words", "told", "state"]
    export_graph(_HeadGraph(network.head), example, path, inputs, outputs, dynamic)
