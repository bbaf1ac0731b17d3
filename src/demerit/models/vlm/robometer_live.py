"""Live Robometer: episodes scored frame by frame, many at once, exactly as dense scoring, at a constant cost per step.

A window shares its first frames with the one before. Their keys and values stay in slots on the device, and a step
encodes one image per episode and runs at most one window's tokens, of all episodes together. Past frames are kept as
features while a window can show them.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np
import torch
from torch import Tensor

from demerit.data.arrays import Ints
from demerit.data.frames import RGB, Images
from demerit.errors import BadInput
from demerit.models.vlm.backbone import within_memory
from demerit.models.vlm.layers import VisionFeatures
from demerit.models.vlm.network import join_features
from demerit.models.vlm.prefix_tree import PastTokens, PrefixTree, TreeSegment, pack, window
from demerit.models.vlm.prompt import TokenBlock
from demerit.models.vlm.robometer import RobometerEngine, WindowPrompt, image_size

FEATURE_MEMORY = 1 << 29
"""bytes of past frames that an episode keeps on the device: about 340 frames of 240x320 for a 4B network"""
WHAT = "Scoring live frames"
NUMBERS = count()
NONE = np.empty(0, np.int64)


@dataclass
class FeatureMemory:
    """Features of past frames: the newest on the device, older ones in main memory."""

    device: torch.device
    limit: int = FEATURE_MEMORY
    """bytes on the device"""
    _near: dict[int, VisionFeatures] = field(default_factory=dict)
    _far: dict[int, VisionFeatures] = field(default_factory=dict)

    def __len__(self) -> int:
        """Count the frames."""
        return len(self._near) + len(self._far)

    def put(self, frame: int, features: VisionFeatures) -> None:
        """Keep the newest frame."""
        self._near[frame] = features
        if len(self._near) * features.nbytes > self.limit:
            oldest = next(iter(self._near))
            self._far[oldest] = self._near.pop(oldest).to(torch.device("cpu"))

    def get(self, frame: int) -> VisionFeatures:
        """Return a frame's features, on the device."""
        return self._near[frame] if frame in self._near else self._far[frame].to(self.device)

    def forget(self, before: int) -> None:
        """Drop the frames before this one, except the first."""
        for kept in (self._near, self._far):
            for frame in [frame for frame in kept if 0 < frame < before]:
                del kept[frame]


@dataclass(eq=False)
class LiveRobometer:
    """One live episode."""

    engine: RobometerEngine
    instruction: str
    limit: int = FEATURE_MEMORY
    """bytes of past frames kept on the device"""
    frames: int = 0
    _prompt: WindowPrompt | None = None
    _size: tuple[int, ...] = ()
    _features: FeatureMemory = field(init=False)
    _last_blocks: tuple[TokenBlock, ...] = ()
    _slots: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """of the last window's tokens"""
    _name: str = field(default_factory=lambda: f"live {next(NUMBERS)}")

    def __post_init__(self) -> None:
        """Start with no frames."""
        self._features = FeatureMemory(self.engine.network.device, self.limit)

    def step(self, frame: Images) -> tuple[float, float]:
        """Take the next (height, width, 3) frame; return progress and the probability of success."""
        return step_together([self], [frame])[0]

    def check(self, frame: Images) -> None:
        """Raise BadInput for a frame that is none, or of another size than those before; nothing has changed then."""
        wanted = f"uint8 of shape {self._size}, as before" if self._size else "uint8 of shape (height, width, 3)"
        fits = frame.shape == self._size if self._size else frame.ndim == RGB and frame.shape[-1] == RGB
        if frame.dtype != np.uint8 or not fits:
            raise BadInput("frame", wanted, f"{frame.dtype} of shape {frame.shape}")
        image_size(frame.shape[0], frame.shape[1], self.engine.network.shape.vision.factor)

    def take(self, features: VisionFeatures, size: tuple[int, ...], grid: tuple[int, int]) -> None:
        """Take the next frame's features. The first frame decides the size, and takes slots until this object ends."""
        if self._prompt is None:
            prompt = WindowPrompt(self.engine, self.instruction, grid, self._name)
            self._slots = self.engine.slots.take(prompt.length)  # may run out of memory
            weakref.finalize(self, self.engine.slots.give_back, self._slots)
            self._prompt, self._size = prompt, size
        self._features.put(self.frames, features)

    def next_window(self) -> LiveWindow:
        """Return what the newest frame's window needs: blocks that are new since the last step, and their images."""
        assert self._prompt is not None
        frames = window(self.frames, self.engine.protocol.frames)
        blocks = self._prompt.blocks(frames)
        same = 0  # shared with the last window; the last block is always run, because it is read
        while same < min(len(self._last_blocks), len(blocks) - 1) and self._last_blocks[same] == blocks[same]:
            same += 1
        images = {(self._name, frame): self._features.get(frame) for frame in frames[same:]}
        return LiveWindow(blocks, same, images, self._slots)

    def advance(self, shown: LiveWindow) -> None:
        """Go on to the next frame; drop frames that no later window shows: its second frame only moves forward."""
        self._last_blocks = shown.blocks
        self.frames += 1
        frames = self.engine.protocol.frames
        second = window(self.frames, frames)[1] if frames > 1 else self.frames
        self._features.forget(second)
        if self._prompt is not None:
            self._prompt.forget(second)


@dataclass(frozen=True)
class LiveWindow:
    """A window of a live episode."""

    blocks: tuple[TokenBlock, ...]
    same: int
    """so many blocks are those of the last window"""
    images: Mapping[tuple[str, int], VisionFeatures]
    """of the other blocks"""
    slots: Ints
    """of all tokens"""

    @property
    def kept(self) -> int:
        """Tokens whose keys are kept."""
        return sum(len(block) for block in self.blocks[: self.same])


@torch.inference_mode()
def step_together(lives: Sequence[LiveRobometer], frames: Sequence[Images]) -> list[tuple[float, float]]:
    """Take the next frame of different live episodes of one engine; return progress and success of each.

    Where it raises, no episode has taken its frame.
    """
    engine = lives[0].engine
    for live, frame in zip(lives, frames, strict=True):
        live.check(frame)
    by_size: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for number, frame in enumerate(frames):
        by_size[frame.shape].append(number)
    for size, numbers in by_size.items():
        with within_memory(WHAT):
            images, grid = engine.encode(np.stack([frames[number] for number in numbers]))
            for number, start in zip(numbers, images.rows.values(), strict=True):
                lives[number].take(images.features.copy_rows(start, grid[0] * grid[1]), size, grid)
    shown = [live.next_window() for live in lives]
    lengths = [len(part.slots) - part.kept for part in shown]
    states = torch.cat(engine.budget.run(WHAT, lengths, lambda some: _run_windows(engine, shown[some])))
    output = engine.read_heads(states, np.array([live.frames for live in lives], np.int32))
    for live, part in zip(lives, shown, strict=True):
        live.advance(part)
    return list(zip(output.progress.tolist(), output.success.tolist(), strict=True))


def _run_windows(engine: RobometerEngine, shown: Sequence[LiveWindow]) -> Tensor:
    """Return the states to read: the new blocks of all windows run together, on top of the kept keys of each."""
    kept = [TreeSegment(part.blocks[: part.same]) for part in shown if part.same]
    parents = iter(range(len(kept)))
    new = [TreeSegment(part.blocks[part.same :], next(parents) if part.same else -1, part.same) for part in shown]
    tree = PrefixTree((*kept, *new), tuple(range(len(kept), len(kept) + len(new))), len(kept))
    before = sum(part.kept for part in shown)
    features = {key: image for part in shown for key, image in part.images.items()}
    starts = np.cumsum([0, *(len(image) for image in features.values())]).tolist()
    rows: dict[Hashable, int] = dict(zip(features, starts, strict=False))
    packed = pack(tree, rows, tree.last_tokens(), PastTokens(before, NONE, 0))
    # in the tree kept tokens come first, one window after another, and then new ones, grouped by shape
    fresh = np.empty(packed.tokens, np.int64)
    for part, segment, last in zip(shown, new, packed.wanted, strict=True):
        fresh[last - segment.tokens + 1 : last + 1] = part.slots[part.kept :]
    slots = np.concatenate([*(part.slots[: part.kept] for part in shown), fresh])
    in_slots = replace(
        packed,
        groups=tuple(replace(group, sees=slots[group.sees]) for group in packed.groups),
        readings=tuple(replace(reading, sees=slots[reading.sees]) for reading in packed.readings),
    )
    return engine.network.language.states(in_slots, join_features(list(features.values())), engine.slots.at(fresh))
