"""What is where the network is: the device, its random numbers, the corpus' pictures and the vectors of its words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from demerit.errors import BadInput, UnknownName
from demerit.models.compact.text import WIDTH, TextEncoder
from demerit.training.compact.augment import as_input
from demerit.training.compact.corpus import Corpus


def chosen_device(name: str | None) -> torch.device:
    """Find the device by its name; without one, a GPU when there is one."""
    there = torch.cuda.is_available()
    if name not in (None, "cpu", "cuda"):
        raise UnknownName("device", str(name), ["cpu", "cuda"])
    if name == "cuda" and not there:
        raise BadInput("device", "a GPU that torch can use (or cpu)", "cuda, and there is none")
    return torch.device(name or ("cuda" if there else "cpu"))


def get_random(device: torch.device) -> Tensor:
    """Return the state of torch's random numbers on a device."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def set_random(device: torch.device, state: Tensor) -> None:
    """Go back to a state of torch's random numbers."""
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


class Pictures:
    """The corpus' frames: on the GPU when there is one, otherwise read from the file as they are needed."""

    def __init__(self, corpus: Corpus, device: torch.device, size: int) -> None:
        """Load them if the device is no CPU."""
        side = corpus.frames.shape[1]
        if side < size:
            raise BadInput("recipe, size", f"at most the {side} pixels a side that the corpus was prepared with", size)
        self.device, self.file, self.size = device, corpus.frames, size
        self.loaded: Tensor | None = None
        if device.type != "cpu":
            parts = [_shrunk(torch.from_numpy(np.array(part)).to(device), size) for part in _parts(corpus.frames)]
            self.loaded = torch.cat(parts)

    def take(self, places: Tensor) -> Tensor:
        """Return (..., 3, height, width), about -1 to 1."""
        if self.loaded is not None:
            return as_input(self.loaded[places])
        return as_input(_shrunk(torch.from_numpy(self.file[places.numpy()]), self.size))


def _shrunk(pixels: Tensor, size: int) -> Tensor:
    """Make (..., height, width, 3) uint8 smaller; pictures of the right size are left alone."""
    if pixels.shape[-2] == size:
        return pixels
    flat = pixels.flatten(0, -4).permute(0, 3, 1, 2).float()
    small = torch.nn.functional.interpolate(flat, size=(size, size), mode="area")
    return small.round().to(torch.uint8).permute(0, 2, 3, 1).reshape(*pixels.shape[:-3], size, size, pixels.shape[-1])


def _parts(frames: npt.NDArray[np.uint8], size: int = 20_000) -> Iterator[npt.NDArray[np.uint8]]:
    return (frames[start : start + size] for start in range(0, len(frames), size))


class Vocabulary:
    """Word vectors of every instruction of the corpus."""

    def __init__(self, corpus: Corpus, words: TextEncoder, device: torch.device) -> None:
        """Compute them once."""
        said = sorted({row.instruction for row in corpus.rows if row.instruction})
        vectors = [words.vector(one) for one in said]
        self.place = {one: number for number, one in enumerate(said) if vectors[number] is not None}
        blank = np.zeros(WIDTH, dtype=np.float32)
        table = [blank if one is None else one for one in vectors] or [blank]
        self.table = torch.from_numpy(np.stack(table)).to(device)

    def take(self, said: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return vectors and whether anything was said."""
        places = torch.tensor([self.place.get(one, -1) for one in said], device=self.table.device)
        told = (places >= 0).float().unsqueeze(1)
        return self.table[places.clamp(min=0)] * told, told
