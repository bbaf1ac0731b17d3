"""The straightforward way, kept to compare with: each window through preprocessing and a whole forward pass.

This is how the published models are run elsewhere. It computes every frame of every window anew, through the network
of the transformers library, and must give the answers that the fast way gives.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from demerit.data.frames import Images
from demerit.models.vlm.config import VLMShape
from demerit.models.vlm.heads import Head, progress_of
from demerit.models.vlm.images import patches, resized
from demerit.models.vlm.prompt import IMAGE, Picture, Piece, Tokens
from demerit.models.vlm.robometer import Judged, Protocol, picture_size
from demerit.models.vlm.windows import windows


def transformers_network(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Any:
    """Make the library's own network around canonical weights (nothing is copied)."""
    from transformers import Qwen3VLConfig, Qwen3VLModel  # noqa: PLC0415  a part of the extra, slow to import

    given = copy.deepcopy(dict(config))  # the library writes into what it is given
    settings = Qwen3VLConfig(**{name: given[name] for name in given if name not in ("architectures", "model_type")})
    with torch.device("meta"):
        network: Any = Qwen3VLModel(settings)  # type: ignore[no-untyped-call]
    plain = {name: weight for name, weight in weights.items() if name.startswith(("language_model.", "visual."))}
    network.load_state_dict(plain, strict=True, assign=True)
    _with_angles(network, next(iter(plain.values())).device)
    return network.eval()


def _with_angles(network: Any, device: torch.device) -> None:
    """Make the rotary frequencies anew where the weights are: they are no weights and are in no file."""
    for module in network.modules():
        for name, buffer in list(module._buffers.items()):
            if buffer is not None and buffer.is_meta:
                axial = getattr(module, "compute_axial_rope_parameters", None)
                frequencies, _ = (axial or module.compute_default_rope_parameters)(module.config)
                module._buffers[name] = frequencies.to(device)


class RobometerReference:
    """Robometer, window by window."""

    def __init__(
        self,
        shape: VLMShape,
        network: Any,
        heads: Mapping[str, Tensor],
        tokens: Tokens,
        protocol: Protocol | None = None,
        at_once: int = 1,
    ) -> None:
        """Take a network of the library and the heads; `at_once` windows make a batch."""
        self.shape, self._network, self._tokens = shape, network, tokens
        self.protocol, self._at_once = protocol or Protocol(), at_once
        self._heads = {name: Head.named(name, heads) for name in ("progress", "success", "preference")}
        self._device = next(network.parameters()).device

    @torch.inference_mode()
    def dense(self, frames: Images, instruction: str) -> Judged:
        """Answer for every frame."""
        states = []
        every = windows(len(frames), self.protocol.frames)
        for start in range(0, len(every), self._at_once):
            states.append(
                self._windows([frames[list(each)] for each in every[start : start + self._at_once]], instruction)
            )
        all_states = torch.cat(states)
        progress = progress_of(self._heads["progress"](all_states))
        success = self._heads["success"](all_states).float().sigmoid().squeeze(-1)
        return Judged(np.arange(len(frames), dtype=np.int32), progress.cpu().numpy(), success.cpu().numpy())

    @torch.inference_mode()
    def compare(self, first: Images, second: Images, instruction: str) -> float:
        """Return the probability that the first video does better, asked in this order."""
        count = self.protocol.frames
        shown = [frames[list(windows(len(frames), count)[-1])] for frames in (first, second)]
        grids = [self._grid(frames) for frames in shown]
        places = [[Picture(at, *grid) for at in range(count)] for grid in grids]
        pieces = self.protocol.preference_pieces(instruction, *places)
        ids, states = self._forward([pieces], [list(shown)])
        at = int((ids[0] == self._tokens.id("<|pref_token|>")).nonzero()[-1])
        return float(self._heads["preference"](states[0, at][None]).float().sigmoid())

    def _grid(self, frames: Images) -> tuple[int, int]:
        size = picture_size(frames.shape[1], frames.shape[2], self.shape.vision.factor)
        return self.shape.vision.grid(*size)

    def _windows(self, shown: Sequence[Images], instruction: str) -> Tensor:
        pieces = []
        for frames in shown:
            places = [Picture(at, *self._grid(frames)) for at in range(len(frames))]
            pieces.append(self.protocol.progress_pieces(instruction, places))
        ids, states = self._forward(pieces, [[frames] for frames in shown])
        last = (ids[0] == self._tokens.id("<|prog_token|>")).nonzero()[-1]
        return states[:, int(last)]

    def _forward(self, prompts: Sequence[Sequence[Piece]], shown: Sequence[Sequence[Images]]) -> tuple[Tensor, Tensor]:
        """Tokenize, preprocess and run whole prompts of one length; return ids and the last states."""
        ids = torch.tensor([self._ids(pieces) for pieces in prompts], device=self._device)
        pixels, grids = zip(*(self._pixels(frames) for clips in shown for frames in clips), strict=True)
        image = ids == self.shape.image_token
        out = self._network(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values=torch.cat(pixels).to(self._device),
            image_grid_thw=torch.cat(grids).to(self._device),
            mm_token_type_ids=image.int(),
            use_cache=False,
        )
        return ids, out.last_hidden_state

    def _ids(self, pieces: Sequence[Piece]) -> list[int]:
        """Write the whole prompt out as text and read it in one go, as a processor does."""
        text = "".join(
            piece if isinstance(piece, str) else _spelled(piece) for piece in pieces if isinstance(piece, str | Picture)
        )
        return self._tokens.ids(text)

    def _pixels(self, frames: Images) -> tuple[Tensor, Tensor]:
        """Resize and cut every picture by itself."""
        vision = self.shape.vision
        size = picture_size(frames.shape[1], frames.shape[2], vision.factor)
        flat = [
            patches(
                torch.from_numpy(resized(frame[None], size, "pil")),
                patch=vision.patch,
                merge=vision.merge,
                temporal=vision.temporal,
            )
            for frame in np.asarray(frames)
        ]
        grid = torch.tensor([[1, size[0] // vision.patch, size[1] // vision.patch]]).expand(len(frames), 3)
        return torch.cat(flat).flatten(0, 1), grid


def _spelled(picture: Picture) -> str:
    return f"<|vision_start|>{IMAGE * (picture.rows * picture.columns)}<|vision_end|>"
