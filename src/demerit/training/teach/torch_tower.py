"""Convert the folder of a vision model for `transformers` to a second tower: an ONNX graph, scored without torch.

The graph takes images as they are, normalises them as the model's preprocessor says, and gives the model's pooled
vector (or first token, or mean) and the mean of its patches in each of 4 x 4 regions. The images are resized to
squares of the preprocessor's size and not cropped: what happens may happen at the border.

Of a Qwen3-VL, such as a Robometer, the vision tower with its merger is taken: the tokens that its language model is
given for an image. Its checkpoint is read and checked as for scoring, and computed by the engine's own layers.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import torch
import transformers
from torch import Tensor, nn
from transformers.utils import logging as transformers_logging

from demerit.data.formats.lerobot.metadata import read_card_licence
from demerit.data.frames import RGB
from demerit.errors import BadInput, DemeritError, WeightsMismatch
from demerit.models.compact.engine import load_session
from demerit.models.loading import checkpoint_hint
from demerit.models.taught.features import REGIONS
from demerit.models.vlm.checkpoint import UNUSED_HEAD, read_checkpoint
from demerit.models.vlm.config import QWEN3, VisionShape, VLMShape
from demerit.models.vlm.images import MIDDLE, cut_image_patches
from demerit.models.vlm.layers import EagerOps, Vision
from demerit.models.vlm.robometer import expected_heads
from demerit.training.loop import export_graph

CLASSES = {
    "clip": "CLIPVisionModel",
    "clip_vision_model": "CLIPVisionModel",
    "dinov2": "Dinov2Model",
    "dinov2_with_registers": "Dinov2WithRegistersModel",
    "dinov3_vit": "DINOv3ViTModel",
    "ijepa": "IJepaModel",
    "siglip": "SiglipVisionModel",
    "siglip_vision_model": "SiglipVisionModel",
    "vit": "ViTModel",
}
"""the class for each `model_type` of config.json; a SigLIP 2 of fixed image size has the type siglip"""
WITHOUT_POOLING = {"ijepa", "vit"}
"""types whose pooling layer is trained for another task, or not at all: the first token or the mean is used"""
CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"
QWEN_PIXELS = {"size": 256, "image_mean": [0.5] * RGB, "image_std": [0.5] * RGB}
"""of a Qwen3-VL, whose own `size` counts pixels of a whole image of any proportions"""
MOST_BYTES = 2**31 - 2**24
"""of weights: an ONNX file holds 2 GiB"""
CLOSE = 1e-3
"""how far the graph's features may be from the model's, in deviations of all features"""


Encode: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]
"""images (n, side, side, 3) uint8 to pooled vectors (n, width) and patches (n, grid², width)"""


class TowerGraph(nn.Module):
    """Images (n, side, side, 3) uint8 to features: the pooled vector, then the mean of the patches in each region."""

    def __init__(self, encode: Encode, grid: int, model: nn.Module | None = None) -> None:
        """`model` has the weights of `encode`, unless they are plain tensors."""
        super().__init__()
        self.encode, self.model = encode, model
        self.regions = torch.from_numpy(average_regions(grid))

    def forward(self, frames: Tensor) -> Tensor:
        """Return (n, features)."""
        pooled, patches = self.encode(frames)
        return torch.cat([pooled, (self.regions @ patches).flatten(1)], dim=1)


def encode_with_model(model: Any, mean: Tensor, deviation: Tensor, grid: int) -> Encode:
    """Return how a model of transformers encodes; `mean` and `deviation` are of pixels from 0 to 255."""
    options = {}
    if hasattr(model.embeddings, "interpolate_pos_encoding"):
        keep_positions(model.embeddings)
        options = {} if "dino" in model.config.model_type else {"interpolate_pos_encoding": True}

    def encode(frames: Tensor) -> tuple[Tensor, Tensor]:
        pixels = ((frames.float() - mean) / deviation).permute(0, 3, 1, 2)
        out = model(pixel_values=pixels, **options)
        tokens = out.last_hidden_state
        others = tokens.shape[1] - grid**2
        patches = tokens[:, others:]
        pooled = getattr(out, "pooler_output", None)
        if pooled is None:
            pooled = tokens[:, 0] if others else patches.mean(dim=1)
        return pooled, patches

    return encode


def encode_with_merger(vision: Vision, grid: int) -> Encode:
    """Return how a Qwen3-VL encodes: its patches are the tokens for the language model, and pooled their mean."""
    shape = vision.shape

    def encode(frames: Tensor) -> tuple[Tensor, Tensor]:
        patches = cut_image_patches(frames, patch=shape.patch, merge=shape.merge, temporal=shape.temporal)
        tokens = vision.features(patches, grid, grid).rows.view(-1, grid**2, shape.out)
        return tokens.mean(dim=1), tokens

    return encode


def average_regions(grid: int) -> Any:
    """Return (regions, patches): the weights of the mean of each of 4 x 4 regions; no region of a coarser grid."""
    if grid < REGIONS:
        return np.zeros((0, grid**2), np.float32)
    rows = np.array([np.isin(np.arange(grid), part) for part in np.array_split(np.arange(grid), REGIONS)])
    cells = np.einsum("iy,jx->ijyx", rows, rows).reshape(REGIONS**2, grid**2).astype(np.float32)
    return cells / cells.sum(axis=1, keepdims=True)


def keep_positions(embeddings: Any) -> None:
    """Compute the position embeddings once: they do not depend on the image, and ONNX lacks one way to resize them."""
    compute: Callable[..., Tensor] = embeddings.interpolate_pos_encoding
    kept: list[Tensor] = []

    def positions(*arguments: Any) -> Tensor:
        if not kept:
            kept.append(compute(*arguments))
        return kept[0]

    embeddings.interpolate_pos_encoding = positions


def convert_tower(folder: Path) -> bytes:
    """Return the ONNX graph of a folder: config.json, preprocessor_config.json, safetensors. Its code is not run."""
    with torch.no_grad(), tempfile.TemporaryDirectory() as temporary:
        graph, side, licence = _open_merged(folder) if _has_merger(folder) else _open_model(folder)
        images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, side, side, RGB), dtype=np.uint8))
        with _refusing(folder):
            features = graph.eval()(images).numpy()
        path = Path(temporary) / "tower.onnx"
        export_graph(graph, (images[:2],), path, ["frames"], ["features"], {"frames": {0: "n"}, "features": {0: "n"}})
        model = onnx.load(str(path))
        pooled = graph.encode(images[:1])[0].shape[1]
    onnx.helper.set_model_props(model, {"licence": licence, "pooled": str(pooled)})
    content = bytes(model.SerializeToString())
    outputs = load_session(content, folder).run(None, {"frames": images.numpy()})[0]
    if not np.abs(outputs - features).max() <= CLOSE * features.std():
        raise BadInput(str(folder), "a model that ONNX computes as torch does", "other features")
    return content


@contextmanager
def _refusing(folder: Path) -> Iterator[None]:
    """Turn what transformers, safetensors and torch raise, a dozen kinds, into one sentence."""
    try:
        yield
    except DemeritError:
        raise
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise BadInput(str(folder), f"weights in safetensors files that fit {CONFIG}", reason) from error


def _open_model(folder: Path) -> tuple[TowerGraph, int, str]:
    """Return the graph of a vision model, the side of its images, and its licence."""
    kind = str(_read_json(folder / CONFIG).get("model_type", ""))
    if kind not in CLASSES:
        expected = (
            f"a vision model of the type {', '.join((*CLASSES, QWEN3))} (export others to ONNX: docs/teaching.md)"
        )
        raise BadInput(str(folder), expected, kind or f"a {CONFIG} without model_type")
    side, mean, deviation = _read_preprocessor(folder / PREPROCESSOR, _read_json(folder / PREPROCESSOR))
    with _refusing(folder):
        model = _load_model(folder, kind)
        grid = side // model.config.patch_size
        graph = TowerGraph(encode_with_model(model, mean, deviation, grid), grid, model)
    return graph, side, f"{read_card_licence(folder) or 'not stated'} ({kind})"


def _has_merger(folder: Path) -> bool:
    """Whether a folder has a vision-language model, or an adapter of one."""
    kind = _read_json(folder / CONFIG).get("model_type") if (folder / CONFIG).is_file() else ""
    return str(kind) not in CLASSES and bool(checkpoint_hint(folder))


def _open_merged(folder: Path) -> tuple[TowerGraph, int, str]:
    """Return the graph of a Qwen3-VL's tower, the side of its images, and its licence."""
    checkpoint = read_checkpoint(str(folder))
    shape, facts = VLMShape.from_config(checkpoint.config), checkpoint.facts
    if not isinstance(shape.vision, VisionShape):
        raise BadInput(str(folder), f"a vision tower of the family {QWEN3}", shape.family)
    heads = expected_heads(shape.text.hidden, facts.bins) if facts else {}
    checkpoint.check(shape.expected_weights(read_out=facts is None) | heads, gaps=(UNUSED_HEAD,))
    side = _read_side(folder / PREPROCESSOR, shape.vision.factor)
    tower = replace(shape.vision, deep=())  # what is added in the first layers of the language model is not taken
    names = [name for name in replace(shape, vision=tower).expected_weights(read_out=False) if "visual." in name]
    sources = {name: checkpoint.sources[name] for name in names}
    _check_size(folder, 4 * sum(math.prod(source.shape) for source in sources.values()))
    weights = replace(checkpoint, sources=sources).tensors("cpu", torch.float32)
    named = {name.removeprefix("visual."): weight for name, weight in weights}
    grid = side // tower.factor
    graph = TowerGraph(encode_with_merger(Vision(tower, named, EagerOps()), grid), grid)
    licences = [read_card_licence(place) or "not stated" for place in (checkpoint.folder, *checkpoint.adapters)]
    return graph, side, f"{' and '.join(dict.fromkeys(licences))} ({'robometer' if facts else shape.family})"


def _read_side(path: Path, factor: int) -> int:
    """Return the side of a Qwen3-VL's images: `crop_size`, if its preprocessor has one."""
    facts = _read_json(path) if path.is_file() else {}
    own = {name: setting for name, setting in facts.items() if name != "size"}
    side, *colours = _read_preprocessor(path, QWEN_PIXELS | own)
    if side % factor or any(not np.allclose(each, MIDDLE) for each in colours):
        expected = f"image_mean and image_std of 0.5, and a crop_size that is a multiple of {factor}"
        raise BadInput(str(path), expected, {name: own.get(name) for name in ("image_mean", "image_std", "crop_size")})
    return side


def _read_json(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(str(path), "a file of a vision model for transformers", error) from error
    if not isinstance(facts, dict):
        raise BadInput(str(path), "a JSON object", type(facts).__name__)
    return facts


def _read_preprocessor(path: Path, facts: Mapping[str, Any]) -> tuple[int, Tensor, Tensor]:
    """Return the side of the images, and mean and deviation of their pixels from 0 to 255."""
    size = facts.get("crop_size") or facts.get("size")
    side = size.get("height", size.get("shortest_edge")) if isinstance(size, dict) else size
    mean, deviation, scale = facts.get("image_mean"), facts.get("image_std"), facts.get("rescale_factor", 1 / 255)
    try:
        colours = torch.tensor([mean, deviation], dtype=torch.float64) / scale
        fits = isinstance(side, int) and side > 0 and colours.shape == (2, RGB) and bool((colours[1] > 0).all())
    except (TypeError, ValueError, RuntimeError, ZeroDivisionError):
        fits = False
    if not fits:
        got = f"{size}, {mean}, {deviation} and {scale}"
        raise BadInput(str(path), "size (or crop_size), image_mean, image_std and rescale_factor of RGB images", got)
    return side, *colours.float()


def _load_model(folder: Path, kind: str) -> Any:
    options = {"add_pooling_layer": False} if kind in WITHOUT_POOLING else {}
    with _quiet():
        model, about = getattr(transformers, CLASSES[kind]).from_pretrained(
            folder,
            local_files_only=True,
            use_safetensors=True,
            dtype=torch.float32,
            attn_implementation="eager",
            output_loading_info=True,
            **options,
        )
    if about["missing_keys"]:
        raise WeightsMismatch(sorted(about["missing_keys"]), [], f"{folder} cannot be a tower.")
    _check_size(folder, sum(weight.numel() * weight.element_size() for weight in model.parameters()))
    return model


def _check_size(folder: Path, size: int) -> None:
    if size > MOST_BYTES:
        raise BadInput(str(folder), "a vision model of at most 2 GiB (as 32-bit floats)", f"{size / 2**30:.1f} GiB")


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide bars, and reports about weights of other parts, such as a text tower."""
    level, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
