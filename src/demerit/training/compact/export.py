"""From trained weights to the files that run anywhere: two ONNX graphs, the words, and what they are."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from demerit.errors import BadInput
from demerit.models.compact.engine import FILES, FORMAT, INFO, TEMPORAL, TOWER, WORDS
from demerit.training.compact.augment import MIDDLE, SCALE
from demerit.training.compact.network import Head, Network, Shape, Tower, progress

OPSET = 17
MODEL, KIND = "model.json", {"format": 1, "kind": "compact"}
"""what makes the folder one that `--model` takes"""
PLACES_STRIDE = 64
"""only pictures of a multiple of it have a middle layer that divides into four by four places"""


class _TowerGraph(nn.Module):
    """Pixels in, as they come from a video."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, frames: Tensor, first: Tensor) -> Tensor:
        seen, begun = ((one.permute(0, 3, 1, 2).float() - MIDDLE) / SCALE for one in (frames, first))
        return torch.cat(self.tower.both(seen, begun.expand_as(seen)), dim=1)


class _TemporalGraph(nn.Module):
    """The head reads the tower's vector; the middle layer's map, which comes with it, is for teaching."""

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.head = head

    def forward(self, features: Tensor, words: Tensor, told: Tensor, state: Tensor) -> tuple[Tensor, ...]:
        said = self.head(features[:, :, : self.head.shape.features], words, told, state)
        bins = said.bins.softmax(-1)
        return (progress(said.bins), bins, said.success.sigmoid(), said.rank, said.hidden, said.memory[:, -1])


def check_size(size: int) -> None:
    """Refuse a size of pictures that a network can be trained with but not taught later."""
    if size % PLACES_STRIDE:
        raise BadInput("recipe, size", f"a multiple of {PLACES_STRIDE} for a network that is exported", size)


def export(network: Network, folder: str | Path, words: Path, revision: str, trained_on: Sequence[str]) -> Path:
    """Write the folder of a trained network, which is a model's folder too; it appears when it is whole."""
    folder = Path(folder)
    check_size(network.shape.size)
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    network = deepcopy(network).cpu().float().eval()
    _write_tower(network, partial / TOWER)
    _write_temporal(network, partial / TEMPORAL)
    shutil.copyfile(words, partial / WORDS)
    told = {**_facts(network.shape), "revision": revision, "trained_on": list(trained_on)}
    told["sha256"] = {name: hashlib.sha256((partial / name).read_bytes()).hexdigest() for name in FILES}
    for name, facts in ((INFO, told), (MODEL, KIND)):
        (partial / name).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    if folder.exists():
        shutil.rmtree(folder)
    os.replace(partial, folder)
    return folder


def _facts(shape: Shape) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "size": shape.size,
        "features": shape.features + shape.places,
        "vector": shape.features,
        "words": shape.words,
        "state": shape.memory,
        "hidden": shape.hidden,
        "bins": shape.bins,
        "licence": "Apache-2.0",
    }


def _write_tower(network: Network, path: Path) -> None:
    size = network.shape.size
    pixels = torch.zeros(2, size, size, 3, dtype=torch.uint8)
    grows = {name: {0: "n"} for name in ("frames", "features")}
    _write(_TowerGraph(network.tower), (pixels, pixels[:1]), path, ["frames", "first"], ["features"], grows)


def _write_temporal(network: Network, path: Path) -> None:
    shape = network.shape
    features = torch.zeros(1, 3, shape.features + shape.places)
    given = (features, torch.zeros(1, shape.words), torch.ones(1, 1), torch.zeros(1, shape.memory))
    named = ["progress", "bins", "success", "rank", "hidden", "state_after"]
    grows = {name: {1: "t"} for name in ["features", *named[:-1]]}
    _write(_TemporalGraph(network.head), given, path, ["features", "words", "told", "state"], named, grows)


def _write(
    graph: nn.Module,
    given: tuple[Tensor, ...],
    path: Path,
    inputs: list[str],
    outputs: list[str],
    grows: dict[str, dict[int, str]],
) -> None:
    with warnings.catch_warnings():
        # The older exporter is the one that needs no further package; that it is older is known.
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", torch.jit._trace.TracerWarning)
        torch.onnx.export(
            graph.eval(),
            given,
            str(path),
            input_names=inputs,
            output_names=outputs,
            dynamic_axes=grows,
            opset_version=OPSET,
            dynamo=False,
        )
