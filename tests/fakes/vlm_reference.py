"""The published protocols computed the straightforward way, to compare the engine with.

Each window or prefix goes through preprocessing and a full forward pass of transformers' own network.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from demerit.data.arrays import Floats
from demerit.data.frames import Images
from demerit.models.by_time import TimedClip
from demerit.models.vlm.backbone import Backbone
from demerit.models.vlm.config import VLMShape
from demerit.models.vlm.images import cut_image_patches, cut_video_patches, resize_frames
from demerit.models.vlm.prefix_tree import windows
from demerit.models.vlm.prefixes import OPENING, PrefixScorer, frame_pairs, timestamp
from demerit.models.vlm.prompt import IMAGE, ImageSlot, Piece, PromptTokenizer
from demerit.models.vlm.robometer import (
    HEADS,
    RobometerHead,
    RobometerOutput,
    RobometerProtocol,
    expected_progress,
    image_size,
)


class RobometerReference:
    """Robometer, window by window."""

    def __init__(
        self,
        shape: VLMShape,
        network: Any,
        heads: dict[str, Tensor],
        tokens: PromptTokenizer,
        protocol: RobometerProtocol | None = None,
        at_once: int = 1,
    ) -> None:
        """Take transformers' network and the heads; `at_once` windows form a batch."""
        self.shape, self._network, self._tokens = shape, network, tokens
        self.protocol, self._at_once = protocol or RobometerProtocol(), at_once
        self._heads = {name: RobometerHead.from_weights(name, heads) for name in HEADS}
        self._device = next(network.parameters()).device

    @torch.inference_mode()
    def dense(self, frames: Images, instruction: str) -> RobometerOutput:
        """Score every frame."""
        every = windows(len(frames), self.protocol.frames)
        states = torch.cat(
            [
                self._windows([frames[list(shown)] for shown in every[start : start + self._at_once]], instruction)
                for start in range(0, len(every), self._at_once)
            ]
        )
        progress = expected_progress(self._heads["progress"](states))
        success = self._heads["success"](states).float().sigmoid().squeeze(-1)
        return RobometerOutput(np.arange(len(frames), dtype=np.int32), progress.cpu().numpy(), success.cpu().numpy())

    @torch.inference_mode()
    def compare(self, first: Images, second: Images, instruction: str) -> float:
        """Return the probability that the first video is better, asked in this order."""
        count = self.protocol.frames
        shown = [frames[list(windows(len(frames), count)[-1])] for frames in (first, second)]
        slots = [[ImageSlot(at, *self._grid(frames)) for at in range(count)] for frames in shown]
        ids, states = self._forward([self.protocol.preference_pieces(instruction, *slots)], [shown])
        at = int((ids[0] == self._tokens.id("<|pref_token|>")).nonzero()[-1])
        return float(self._heads["preference"](states[0, at][None]).float().sigmoid())

    def _grid(self, frames: Images) -> tuple[int, int]:
        return self.shape.vision.grid(*image_size(frames.shape[1], frames.shape[2], self.shape.vision.factor))

    def _windows(self, shown: Sequence[Images], instruction: str) -> Tensor:
        prompts = []
        for frames in shown:
            slots = [ImageSlot(at, *self._grid(frames)) for at in range(len(frames))]
            prompts.append(self.protocol.progress_pieces(instruction, slots))
        ids, states = self._forward(prompts, [[frames] for frames in shown])
        return states[:, int((ids[0] == self._tokens.id("<|prog_token|>")).nonzero()[-1])]

    def _forward(self, prompts: Sequence[Sequence[Piece]], shown: Sequence[Sequence[Images]]) -> tuple[Tensor, Tensor]:
        """Run whole prompts of one length; return ids and the last states."""
        ids = torch.tensor([self._ids(pieces) for pieces in prompts], device=self._device)
        pixels, grids = zip(*(self._pixels(frames) for clips in shown for frames in clips), strict=True)
        out = self._network(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values=torch.cat(pixels).to(self._device),
            image_grid_thw=torch.cat(grids).to(self._device),
            mm_token_type_ids=(ids == self.shape.image_token).int(),
            use_cache=False,
        )
        return ids, out.last_hidden_state

    def _ids(self, pieces: Sequence[Piece]) -> list[int]:
        """Tokenize the whole prompt as one text, as a processor does."""
        texts = [piece for piece in pieces if isinstance(piece, str | ImageSlot)]
        return self._tokens.ids("".join(text if isinstance(text, str) else _spell(text) for text in texts))

    def _pixels(self, frames: Images) -> tuple[Tensor, Tensor]:
        """Resize and cut every image by itself."""
        vision = self.shape.vision
        size = image_size(frames.shape[1], frames.shape[2], vision.factor)
        cut: dict[str, Any] = {"patch": vision.patch, "merge": vision.merge, "temporal": vision.temporal}
        cut["scale"] = vision.scale
        flat = [cut_image_patches(torch.from_numpy(resize_frames(frame[None], size, "pil")), **cut) for frame in frames]
        grid = torch.tensor([[1, size[0] // vision.patch, size[1] // vision.patch]]).expand(len(frames), 3)
        return torch.cat(flat).flatten(0, 1), grid


def _spell(image: ImageSlot) -> str:
    return f"<|vision_start|>{IMAGE * (image.rows * image.columns)}<|vision_end|>"


class PrefixReference:
    """TOPReward, prefix by prefix: each is a whole video of its own."""

    def __init__(self, scorer: PrefixScorer, network: Any, table: Tensor) -> None:
        """Take the scorer whose prompts are used, transformers' network, and the output matrix."""
        self._scorer, self._network, self._table = scorer, network, table

    def log_probabilities(self, clip: TimedClip, task: str) -> Floats:
        """Return the log-probability of the answer after each frame."""
        size = self._scorer.size(clip)
        lengths = range(1, len(clip) + 1)
        return np.array([self._score(TimedClip(clip.frames[:n], clip.seconds[:n]), task, size) for n in lengths])

    @torch.inference_mode()
    def _score(self, clip: TimedClip, task: str, size: tuple[int, int]) -> float:
        backbone: Backbone = self._scorer.backbone
        vision, device = backbone.shape.vision, self._table.device
        question, answer = self._scorer.tokenize(task)
        rows, columns = vision.grid(*size)
        image = f"<|vision_start|>{'<|video_pad|>' * (rows * columns)}<|vision_end|>"
        video = "".join(timestamp(pair, clip.seconds) + image for pair in frame_pairs(len(clip)))
        ids = torch.tensor([[*backbone.tokens.ids(OPENING + video), *question, *answer[:-1]]], device=device)
        frames = torch.from_numpy(resize_frames(clip.frames, size, "torch")).to(device)
        flat = cut_video_patches(frames, patch=vision.patch, merge=vision.merge, temporal=vision.temporal)
        grid = [len(flat), size[0] // vision.patch, size[1] // vision.patch]
        states = self._network(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values_videos=flat.flatten(0, 1).to(self._table.dtype),
            video_grid_thw=torch.tensor([grid], device=device),
            mm_token_type_ids=2 * (ids == backbone.shape.video_token).int(),
            use_cache=False,
        ).last_hidden_state[0]
        said = F.linear(states[-len(answer) :], self._table).float().log_softmax(-1)
        return float(said[torch.arange(len(answer)), list(answer)].double().sum())
