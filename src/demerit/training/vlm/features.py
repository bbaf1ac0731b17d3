"""Pixels of the images of a corpus, and features of a frozen vision tower, kept in memory until the run ends.

If the layers behind the tower are trained, the features are the tower's patch states; otherwise they are the tokens
that the language model reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from demerit.data.frames import Frames, Images
from demerit.models.vlm.config import VisionShape
from demerit.models.vlm.images import How, cut_image_patches, cut_pair_patches, resize_frames
from demerit.models.vlm.kernels import Pointwise
from demerit.models.vlm.vision import Vision
from demerit.training.prepared import PreparedCorpus
from demerit.training.vlm.objectives import ImageInput

GIB = 1 << 30
ENCODED_TOGETHER = {"cpu": 1, "cuda": 64}
"""on a CPU one at a time, so that a result never depends on the batch"""
Pixels = dict[ImageInput, Images]
ImagesByRow = dict[int, list[ImageInput]]


class FrozenTower(Vision):
    """A vision tower that can stop before the layers that merge patches into tokens."""

    def __init__(self, shape: VisionShape, weights: Mapping[str, Tensor], *, merged: bool, compiled: bool) -> None:
        """Take weights by their names within `visual.`; `merged` includes the merging layers."""
        super().__init__(shape, weights, Pointwise(compiled))
        self.merges = merged

    def _merge_patches(self, x: Tensor, name: str, *, norm_after: bool) -> Tensor:
        if self.merges:
            return super()._merge_patches(x, name, norm_after=norm_after)
        return x.reshape(-1, self.shape.hidden)


class ImageEncoder:
    """A frozen tower that remembers the features of images it has encoded. Without a tower it returns pixels."""

    def __init__(
        self, tower: FrozenTower | None, corpus: PreparedCorpus, device: torch.device, cache_bytes: float = 0.0
    ) -> None:
        """Encode images of a corpus; keep features until `cache_bytes` are used."""
        self.tower, self.corpus, self.device, self.cache_bytes = tower, corpus, device, cache_bytes
        self.used_bytes = 0
        self._kept: dict[ImageInput, Tensor] = {}

    def load_pixels(self, images: Sequence[ImageInput]) -> Pixels:
        """Read the images whose features are not kept."""
        wanted = self.find_new(images)
        return cut_pixels(wanted, [frames.all() for frames in view_rows(self.corpus, wanted)])

    def find_new(self, images: Sequence[ImageInput]) -> ImagesByRow:
        """Return the images whose features are not kept, by their row in the corpus. Any thread may call this."""
        by_row: ImagesByRow = {}
        for image in dict.fromkeys(images):
            if image not in self._kept:
                by_row.setdefault(image.row, []).append(image)
        return by_row

    def encode(self, images: Sequence[ImageInput], pixels: Pixels) -> list[Tensor]:
        """Return the (1 + deep, rows, width) features of each image on the device, or its pixels."""
        if self.tower is None:
            return [torch.from_numpy(pixels[image]).to(self.device) for image in images]
        new = self._encode_new(self.tower, [image for image in dict.fromkeys(images) if image in pixels], pixels)
        for image, features in new.items():
            self._keep(image, features)
        return [
            new[image] if image in new else self._kept[image].to(self.device, non_blocking=True) for image in images
        ]

    def _keep(self, image: ImageInput, features: Tensor) -> None:
        size = features.numel() * features.element_size()
        if image in self._kept or self.used_bytes + size > self.cache_bytes:
            return  # nothing is evicted: every image is needed equally often
        self.used_bytes += size
        # pinned memory is copied to a GPU while that computes
        self._kept[image] = features.cpu().pin_memory() if features.is_cuda else features

    @torch.no_grad()
    def _encode_new(self, tower: FrozenTower, images: Sequence[ImageInput], pixels: Pixels) -> dict[ImageInput, Tensor]:
        by_size: dict[tuple[int, int, int], list[ImageInput]] = {}
        for image in images:
            by_size.setdefault((image.height, image.width, len(image.frames)), []).append(image)
        encoded: dict[ImageInput, Tensor] = {}
        count = ENCODED_TOGETHER[self.device.type]
        for group in by_size.values():
            for start in range(0, len(group), count):
                batch = group[start : start + count]
                stacked = torch.from_numpy(np.stack([pixels[image] for image in batch])).to(self.device)
                encoded |= dict(zip(batch, encode_batch(tower, stacked), strict=True))
        return encoded


def encode_batch(tower: FrozenTower, images: Tensor) -> list[Tensor]:
    """Encode (images, frames, height, width, 3)."""
    features = tower.features(cut_patches(images, tower.shape), *tower.shape.grid(*images.shape[2:4]))
    levels = torch.stack([features.rows, *features.deep])
    return list(levels.reshape(len(levels), len(images), -1, levels.shape[-1]).unbind(1))


def view_rows(corpus: PreparedCorpus, images: ImagesByRow) -> list[Frames]:
    """Return the frames of each row that its images need, in order; nothing is read yet."""
    return [corpus.frames(row).select(_frame_numbers(group)) for row, group in images.items()]


def cut_pixels(images: ImagesByRow, read: Sequence[Images]) -> Pixels:
    """Return the resized (frames, height, width, 3) pixels of each image, from what `view_rows` names."""
    pixels: Pixels = {}
    for group, frames in zip(images.values(), read, strict=True):
        place = {number: at for at, number in enumerate(_frame_numbers(group))}
        resized: dict[tuple[int, int, How], Images] = {}
        for image in group:
            size = (image.height, image.width, image.how)
            if size not in resized:
                resized[size] = resize_frames(frames, size[:2], image.how)
            pixels[image] = resized[size][[place[number] for number in image.frames]]
    return pixels


def _frame_numbers(images: Sequence[ImageInput]) -> list[int]:
    return sorted({number for image in images for number in image.frames})


def cut_patches(images: Tensor, shape: VisionShape) -> Tensor:
    """Cut (images, frames, height, width, 3) into patches; one or two frames per image."""
    if images.shape[1] == 1:
        return cut_image_patches(images[:, 0], patch=shape.patch, merge=shape.merge, temporal=shape.temporal)
    return cut_pair_patches(*images.unbind(1), patch=shape.patch, merge=shape.merge)
