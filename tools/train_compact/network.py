"""The compact network in torch, for training: an image tower that sees each frame together with the first, and a head.

The head's memory is a running maximum of non-negative activations: a repeated frame changes nothing, so the frame rate
does not matter, no clock can hide in it, and every frame costs the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from demerit.errors import BadInput
from demerit.training.loop import load_tensors
from demerit.training.rewind.data import SIMULATOR_FACTS

# EfficientNet-Lite0 (Tan and Le 2019; the Lite variants have no squeeze-and-excitation): kernel, stride, expansion,
# width, depth of each stage.
STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
STEM_WIDTH, HEAD_WIDTH = 32, 1280
MIDDLE_BLOCK, PLACES = 10, 4
"""the last block of the fifth stage (112 channels), and the places per side that its map is averaged to"""


@dataclass(frozen=True)
class CompactShape:
    """Sizes of a network."""

    size: int = 128
    features: int = 384
    words: int = 192
    memory: int = 128
    hidden: int = 256
    bins: int = 21

    @property
    def places(self) -> int:
        """Size of the middle layer's map."""
        return STAGES[4][3] * PLACES**2


def _normal(width: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(width, eps=1e-3, momentum=0.03)


class InvertedResidual(nn.Module):
    """An inverted residual block."""

    def __init__(self, inside: int, kernel: int, stride: int, expansion: int, width: int) -> None:
        """Make the layers."""
        super().__init__()
        wide = inside * expansion
        layers: list[nn.Module] = []
        if expansion != 1:
            layers += [nn.Conv2d(inside, wide, 1, bias=False), _normal(wide), nn.ReLU6()]
        deep = nn.Conv2d(wide, wide, kernel, stride, kernel // 2, groups=wide, bias=False)
        layers += [deep, _normal(wide), nn.ReLU6()]
        layers += [nn.Conv2d(wide, width, 1, bias=False), _normal(width)]
        self.layers = nn.Sequential(*layers)
        self.adds = stride == 1 and inside == width

    def forward(self, x: Tensor) -> Tensor:
        """Compute the block."""
        y: Tensor = self.layers(x)
        return x + y if self.adds else y


class ImageTower(nn.Module):
    """Turns a frame and the episode's first frame into a vector."""

    def __init__(self, shape: CompactShape) -> None:
        """Start with random weights."""
        super().__init__()
        self.stem = nn.Conv2d(6, STEM_WIDTH, 3, 2, 1, bias=False)
        self.stem_normal = _normal(STEM_WIDTH)
        blocks, inside = [], STEM_WIDTH
        for kernel, stride, expansion, width, depth in STAGES:
            for number in range(depth):
                blocks.append(InvertedResidual(inside, kernel, stride if number == 0 else 1, expansion, width))
                inside = width
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Sequential(nn.Conv2d(inside, HEAD_WIDTH, 1, bias=False), _normal(HEAD_WIDTH), nn.ReLU6())
        side = shape.size // 32
        # Where things are matters (is the lid on the pot or next to it?), so a narrow map that keeps places is added to
        # the average over the image.
        self.places = nn.Conv2d(inside, 32, 1)
        self.project = nn.Linear(HEAD_WIDTH + 32 * side * side, shape.features)
        self.settle = nn.LayerNorm(shape.features)

    def forward(self, frames: Tensor, first: Tensor) -> Tensor:
        """Compute the (n, features) vector of each frame.

        Args:
            frames: (n, 3, size, size), -1 to 1.
            first: the first frame of each one's episode, of the same shape.
        """
        return self.features_and_map(frames, first)[0]

    def features_and_map(self, frames: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the vector, and a middle layer's map over 4 x 4 places, which teaching uses too."""
        x = torch.cat([frames, frames - first], dim=1)
        x = functional.relu6(self.stem_normal(self.stem(x)))
        for number, block in enumerate(self.blocks):
            x = block(x)
            if number == MIDDLE_BLOCK:
                middle = functional.avg_pool2d(x, x.shape[-1] // PLACES).flatten(1)
        average = self.head(x).mean(dim=(2, 3))
        joined = torch.cat([average, self.places(x).flatten(1)], dim=1)
        return self.settle(self.project(joined)), middle


@dataclass(frozen=True, eq=False)
class HeadOutput:
    """What the head computes, (n, frames, ...)."""

    bins: Tensor
    """logits of progress"""
    success: Tensor
    """logits"""
    rank: Tensor
    hidden: Tensor
    memory: Tensor
    """the running maxima after each frame"""


class CompactHead(nn.Module):
    """Turns vectors of frames and an instruction into progress, success and rank. Causal."""

    def __init__(self, shape: CompactShape) -> None:
        """Start with random weights."""
        super().__init__()
        self.shape = shape
        width = 64
        self.unsaid = nn.Parameter(torch.zeros(width))
        self.read = nn.Sequential(nn.Linear(shape.words, width), nn.GELU(), nn.Linear(width, width))
        self.film = nn.Linear(width, 2 * shape.features)
        nn.init.zeros_(self.film.weight)
        nn.init.zeros_(self.film.bias)
        self.notice = nn.Linear(shape.features, shape.memory)
        self.trunk = nn.Sequential(
            nn.Linear(shape.features + shape.memory + width, 384),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(384, shape.hidden),
            nn.GELU(),
        )
        self.bins = nn.Linear(shape.hidden, shape.bins)
        self.success = nn.Linear(shape.hidden, 1)
        self.rank = nn.Linear(shape.hidden, 1)

    def forward(self, features: Tensor, words: Tensor, instructed: Tensor, state: Tensor) -> HeadOutput:
        """Compute the outputs of every frame.

        Args:
            features: (n, frames, features).
            words: (n, words), the instruction's vector.
            instructed: (n, 1), 1 where there is an instruction.
            state: (n, memory), the running maxima so far; zeros at the start.
        """
        meaning = instructed * self.read(words) + (1 - instructed) * self.unsaid
        scale, shift = self.film(meaning).unsqueeze(1).chunk(2, dim=-1)
        seen = features * (1 + scale) + shift
        memory = running_maximum(functional.relu(self.notice(seen)), state)
        around = meaning.unsqueeze(1).expand(-1, features.shape[1], -1)
        hidden = self.trunk(torch.cat([seen, memory, around], dim=-1))
        success, rank = self.success(hidden).squeeze(-1), self.rank(hidden).squeeze(-1)
        return HeadOutput(self.bins(hidden), success, rank, hidden, memory)


def running_maximum(values: Tensor, state: Tensor) -> Tensor:
    """Return the largest value so far at each frame, the state included: (n, frames, width)."""
    frames = values.shape[1]
    place = torch.arange(frames, device=values.device)
    later = (place.unsqueeze(0) > place.unsqueeze(1)).unsqueeze(0).unsqueeze(-1)
    # frames x frames x width is small for a clip, and these operations export to ONNX
    so_far = values.unsqueeze(1).masked_fill(later, 0.0).amax(dim=2)
    return torch.maximum(so_far, state.unsqueeze(1))


class CompactNetwork(nn.Module):
    """ImageTower, head, and what is asked of the tower in training only."""

    def __init__(self, shape: CompactShape, tasks: int = 0) -> None:
        """Start with random weights; each of `tasks` has its own linear output while training."""
        super().__init__()
        self.shape = shape
        self.tower = ImageTower(shape)
        self.head = CompactHead(shape)
        # teaching fits a linear model to the vector later, so it is trained for that
        self.by_task = nn.Linear(shape.features, max(tasks, 1))
        self.facts = nn.Linear(shape.features, len(SIMULATOR_FACTS))
        self.stiffness = nn.Parameter(torch.tensor(0.0))


def progress(bins: Tensor) -> Tensor:
    """Turn logits of bins into progress: the expected bin centre."""
    centres = torch.linspace(0, 1, bins.shape[-1], device=bins.device, dtype=bins.dtype)
    return (bins.softmax(dim=-1) * centres).sum(dim=-1)


def start_from_imagenet(tower: ImageTower, weights: dict[str, Tensor]) -> None:
    """Copy EfficientNet-Lite0's weights into the tower; the channels of the difference to the first frame start at 0.

    The reference port to torch names its layers differently but has them in the same order, so the two lists are
    matched in order and every shape is checked.
    """
    new = ("places", "project", "settle")
    ours = [(name, value) for name, value in tower.state_dict().items() if not name.startswith(new)]
    theirs = [(name, value) for name, value in weights.items() if not name.startswith("_fc")]
    if len(ours) != len(theirs):
        raise BadInput("the image network's weights", f"EfficientNet-Lite0's {len(ours)} tensors", f"{len(theirs)}")
    loaded = {}
    for (name, mine), (other, value) in zip(ours, theirs, strict=True):
        begun = torch.cat([value, torch.zeros_like(value)], dim=1) if name == "stem.weight" else value
        if mine.shape != begun.shape:
            expected = f"EfficientNet-Lite0's, of shape {tuple(mine.shape)} for {name}"
            raise BadInput(f"the image network's weights, {other}", expected, f"shape {tuple(value.shape)}")
        loaded[name] = begun
    tower.load_state_dict({**tower.state_dict(), **loaded})


def load_imagenet(path: str | Path) -> dict[str, Tensor]:
    """Read EfficientNet-Lite0's weights as float32."""
    expected = "a file of tensors (EfficientNet-Lite0's weights for torch)"
    weights = load_tensors(path, expected)
    if not weights or any(not isinstance(value, Tensor) for value in weights.values()):
        raise BadInput(str(path), expected, "other values")
    return {name: value.float() if value.is_floating_point() else value for name, value in weights.items()}
