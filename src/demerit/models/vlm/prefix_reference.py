"""The straightforward way to ask after every frame, kept to compare with: each beginning a whole video of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from demerit.models.vlm.backbone import Backbone
from demerit.models.vlm.images import resized, video_patches
from demerit.models.vlm.prefixes import OPENING, Floats, Prefixes, Question, answer_tokens
from demerit.models.vlm.video import Clip, pairs_of, stamped


class PrefixReference:
    """Every beginning through preprocessing and a full forward pass of the transformers library's network."""

    def __init__(self, backbone: Backbone, question: Question, network: Any, table: Tensor) -> None:
        """Take the library's network (see `reference.transformers_network`) and the matrix that reads words out."""
        self._backbone, self._question = backbone, question
        self._network, self._table = network, table
        self._sizes = Prefixes(backbone, question)

    def likely(self, clip: Clip, task: str) -> Floats:
        """Return the log-probability of the answer after each frame."""
        size = self._sizes.size(clip)
        lengths = range(1, len(clip) + 1)
        return np.array([self._one(Clip(clip.frames[:n], clip.seconds[:n]), task, size) for n in lengths])

    @torch.inference_mode()
    def _one(self, clip: Clip, task: str, size: tuple[int, int]) -> float:
        shape = self._backbone.shape
        vision, device = shape.vision, self._table.device
        question, answer = answer_tokens(self._backbone, self._question, task)
        rows, columns = vision.grid(*size)
        picture = f"<|vision_start|>{'<|video_pad|>' * (rows * columns)}<|vision_end|>"
        video = "".join(stamped(pair, clip.seconds) + picture for pair in pairs_of(len(clip)))
        ids = torch.tensor([[*self._backbone.tokens.ids(OPENING + video), *question, *answer[:-1]]], device=device)
        frames = torch.from_numpy(resized(clip.frames, size, "torch")).to(device)
        flat = video_patches(frames, patch=vision.patch, merge=vision.merge, temporal=vision.temporal)
        grid = [len(flat), size[0] // vision.patch, size[1] // vision.patch]
        states = self._network(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values_videos=flat.flatten(0, 1).to(self._table.dtype),
            video_grid_thw=torch.tensor([grid], device=device),
            mm_token_type_ids=2 * (ids == shape.video_token).int(),
            use_cache=False,
        ).last_hidden_state[0]
        said = F.linear(states[-len(answer) :], self._table).float().log_softmax(-1)
        return float(said[torch.arange(len(answer)), list(answer)].double().sum())
