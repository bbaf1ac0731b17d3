"""Frames made ready while the device works: the next batch is fetched, sent and resized in the background."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

from demerit.data.frames import Images
from demerit.models.vlm.images import How, resized
from demerit.models.vlm.resize import pillow_resized
from demerit.models.vlm.sending import ready

PICTURES = 64
"""pictures that go through the vision tower together"""


def parts(frames: Images, count: int = PICTURES) -> Iterator[Images]:
    """Cut frames into batches."""
    for start in range(0, len(frames), count):
        yield frames[start : start + count]


def prepared(
    batches: Iterable[Images], size: tuple[int, int], how: How, device: torch.device
) -> Iterator[torch.Tensor]:
    """Yield batches of (n, height, width, 3) at their size and on the device, one made ready ahead of the reader."""
    fetch = iter(batches)

    def following() -> torch.Tensor | None:
        batch = next(fetch, None)
        if batch is None:
            return None
        later = device.type == "cuda" and how == "pil"  # then the device resizes
        return ready(batch if later else resized(batch, size, how), device)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(following)
        while (batch := waiting.result()) is not None:
            waiting = pool.submit(following)
            yield pillow_resized(batch.to(device, non_blocking=True), size)  # does nothing where the size is right
