"""A frozen vision tower: every picture is encoded once and kept, in memory or on disk, until the run ends.

What is kept is what does not change. Where only the tower is frozen and the layers behind it learn, that is the state
of every patch before them; where those are frozen too, it is the tokens that the language model reads.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from demerit.data.frames import Images, short_hash
from demerit.models.vlm.config import VisionShape
from demerit.models.vlm.images import pair_patches, patches, resized
from demerit.models.vlm.pointwise import Pointwise
from demerit.models.vlm.vision import Vision
from demerit.training.vlm.corpus import Corpus
from demerit.training.vlm.laid import Shot

GIB = 1 << 30
AT_ONCE = {"cpu": 1, "cuda": 64}
"""pictures encoded together. On a processor one: sums then do not depend on what else is asked, and a run that goes on
after a stop is the same to the last bit"""
Pixels = dict[Shot, Images]


class Tower(Vision):
    """A vision tower that may stop before the layers that make tokens of patches."""

    def __init__(self, shape: VisionShape, weights: Mapping[str, Tensor], *, merged: bool, compiled: bool) -> None:
        """Take weights by their names within `visual.`; `merged`: go on to tokens."""
        super().__init__(shape, weights, Pointwise(compiled))
        self.merges = merged

    def _merged(self, x: Tensor, name: str, *, norm_after: bool) -> Tensor:
        if self.merges:
            return super()._merged(x, name, norm_after=norm_after)
        return x.reshape(-1, self.shape.hidden)


class Kept:
    """Features by the fingerprint of their pixels, as far as there is room."""

    def __init__(self, room: float, folder: Path | None = None, rank: int = 0) -> None:
        """Keep so many bytes, in memory or, with a folder, on disk; what other processes wrote there is read too."""
        self.room, self.folder = room, folder
        self.bytes = 0
        self.found = self.missed = 0
        self._here: dict[str, Tensor] = {}
        self._there: dict[str, tuple[Path, int, tuple[int, ...], str]] = {}
        self._mine = None if folder is None else folder / f"rank-{rank}.raw"
        if folder is not None:
            self._open(folder, rank)

    def get(self, key: str) -> Tensor | None:
        """Find one."""
        if key in self._here:
            return self._here[key]
        if key not in self._there:
            return None
        path, start, shape, kind = self._there[key]
        size = int(np.prod(shape)) * 2 if kind == "bfloat16" else int(np.prod(shape)) * 4
        with path.open("rb") as file:
            file.seek(start)
            raw = bytearray(file.read(size))
        return torch.frombuffer(raw, dtype=getattr(torch, kind)).reshape(shape)

    def __contains__(self, key: str) -> bool:
        """Tell whether it is kept."""
        return key in self._here or key in self._there

    def put(self, key: str, features: Tensor) -> None:
        """Keep one if there is room; nothing is thrown out for it, as every picture is asked for equally often."""
        size = features.numel() * features.element_size()
        if key in self or self.bytes + size > self.room:
            return
        self.bytes += size
        if self._mine is None:
            # what lies in memory that the system never moves is copied to a GPU while that computes
            self._here[key] = features.cpu().pin_memory() if features.is_cuda else features
            return
        kind = str(features.dtype).removeprefix("torch.")
        with self._mine.open("ab") as data:  # the line that names it comes last: what is named is whole
            start = data.tell()
            data.write(features.cpu().contiguous().view(torch.uint8).numpy().tobytes())
        with self._mine.with_suffix(".jsonl").open("ab") as index:
            index.write((json.dumps([key, start, list(features.shape), kind]) + "\n").encode())
        self._there[key] = self._mine, start, tuple(features.shape), kind

    def _open(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for index in sorted(folder.glob("*.jsonl")):
            mine = index.stem == f"rank-{rank}"
            self._read(index, index.with_suffix(".raw"), cut=mine)
        self.bytes = sum(path.stat().st_size for path in folder.glob("*.raw"))

    def _read(self, index: Path, raw: Path, *, cut: bool) -> None:
        """List what is whole; the rest of our own files, half written when a run was killed, is cut off."""
        whole = raw.stat().st_size if raw.exists() else 0
        end = kept = 0
        for line in index.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break
            key, start, shape, kind = json.loads(line)
            stop = start + int(np.prod(shape)) * (2 if kind == "bfloat16" else 4)
            if stop > whole:
                break
            self._there[key] = raw, start, tuple(shape), kind
            end, kept = stop, kept + len(line)
        if cut:
            os.truncate(index, kept)
            if raw.exists():
                os.truncate(raw, end)


class Eyes:
    """The frozen tower with its memory."""

    def __init__(self, tower: Tower, corpus: Corpus, kept: Kept | None, device: torch.device) -> None:
        """Look at a corpus' pictures; `kept` None encodes each anew."""
        self.tower, self.corpus, self.kept, self.device = tower, corpus, kept, device
        self._weights = weights_hash(tower._weights)
        self._keys: dict[Shot, str] = {}

    def key(self, shot: Shot) -> str:
        """Name a picture by its pixels, its size and the weights that look at it."""
        if shot not in self._keys:
            pixels = [self.corpus.fingerprint(shot.row, frame) for frame in shot.frames]
            facts = [*pixels, shot.height, shot.width, shot.how, self.tower.merges, self._weights]
            self._keys[shot] = short_hash(json.dumps(facts).encode())
        return self._keys[shot]

    def prepared(self, shots: Sequence[Shot]) -> Pixels:
        """Resize the pictures that are not kept yet; may run in another thread while the GPU works."""
        new = dict.fromkeys(shot for shot in shots if self.kept is None or self.key(shot) not in self.kept)
        return {shot: pixels_of(self.corpus, shot) for shot in new}

    def look(self, shots: Sequence[Shot], pixels: Pixels) -> list[Tensor]:
        """Return each picture's features on the device: (1 + deep, rows, width)."""
        fresh = [shot for shot in dict.fromkeys(shots) if shot in pixels]
        known = dict(zip(fresh, self._encoded(fresh, pixels), strict=True))
        if self.kept is not None:
            for shot, features in known.items():
                self.kept.put(self.key(shot), features)
        for shot in shots:
            if shot not in known:
                found = None if self.kept is None else self.kept.get(self.key(shot))
                if found is None:
                    raise KeyError(f"{shot} was neither prepared nor kept")
                known[shot] = found.to(self.device, non_blocking=True)
        return [known[shot] for shot in shots]

    @torch.no_grad()
    def _encoded(self, shots: Sequence[Shot], pixels: Pixels) -> list[Tensor]:
        made: dict[Shot, Tensor] = {}
        sizes = dict.fromkeys((shot.height, shot.width, len(shot.frames)) for shot in shots)
        for size in sizes:
            alike = [shot for shot in shots if (shot.height, shot.width, len(shot.frames)) == size]
            step = AT_ONCE[self.device.type]
            for start in range(0, len(alike), step):
                some = alike[start : start + step]
                images = torch.from_numpy(np.stack([pixels[shot] for shot in some])).to(self.device)
                made |= dict(zip(some, self._of(images), strict=True))
        return [made[shot] for shot in shots]

    def _of(self, images: Tensor) -> list[Tensor]:
        """Encode (pictures, frames, height, width, 3)."""
        features = self.tower.features(cut(images, self.tower.shape), *self.tower.shape.grid(*images.shape[2:4]))
        levels = torch.stack([features.rows, *features.deep])
        levels = levels.reshape(len(levels), len(images), -1, levels.shape[-1])
        return list(levels.unbind(1))


def pixels_of(corpus: Corpus, shot: Shot) -> Images:
    """Resize a picture: (frames, height, width, 3)."""
    images = np.stack([corpus.picture(shot.row, frame) for frame in shot.frames])
    return resized(images, (shot.height, shot.width), shot.how)


def cut(images: Tensor, shape: VisionShape) -> Tensor:
    """Cut (pictures, frames, height, width, 3) into patches, one frame a picture or two."""
    if images.shape[1] == 1:
        return patches(images[:, 0], patch=shape.patch, merge=shape.merge, temporal=shape.temporal)
    return pair_patches(*images.unbind(1), patch=shape.patch, merge=shape.merge)


def weights_hash(weights: Mapping[str, Tensor]) -> str:
    """Hash weights: the name, the sum and the first numbers of each tensor; training would move them all."""
    told = []
    for name in sorted(weights):
        flat = weights[name].detach().flatten()
        told.append([name, list(weights[name].shape), float(flat.double().sum()), flat[:8].double().tolist()])
    return short_hash(json.dumps(told).encode())
