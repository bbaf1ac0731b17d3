"""Pictures with regions covered: masks that the owner names, and a mosaic over what a detector of theirs finds.

demerit ships no detector. `--blur module:function` names one's own: it gets a picture (height, width, 3) uint8 RGB and
returns boxes (x, y, width, height) in pixels, or a (height, width) array of truth values.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.frames import Frames, Images, Times, short_hash
from demerit.errors import BadInput
from demerit.use.release.settings import EVERY_CAMERA, Mask

TILES = 4
"""a mosaic has at most so many tiles along the longer side of what it hides: no face survives that"""
MARGIN = 0.15
"""detectors cut close: their boxes are widened by this share on every side"""
AT_ONCE = 32
COORDINATES = 4

Detector = Callable[[Images], Any]


@dataclass(frozen=True, eq=False)
class Painted:
    """Frames with regions covered. Lives in this process: it is written to a file, never stored as a view."""

    whole: Frames
    masks: tuple[Mask, ...]
    detector: Detector | None
    name: str
    """what to call it in messages"""
    hidden: set[int] = field(default_factory=set)
    """frames in which the detector found something, of those that were taken so far"""

    @property
    def kind(self) -> str:
        """It cannot be rebuilt from a description."""
        return "array"

    def __len__(self) -> int:
        """How many frames there are."""
        return len(self.whole)

    def times(self) -> Times:
        """The same moments."""
        return self.whole.times()

    def take(self, indices: Sequence[int]) -> Images:
        """Decode and cover."""
        images = self.whole.take(indices)
        for mask in self.masks:
            cover(images, mask, self.name)
        if self.detector is not None:
            found = [hide(image, self.detector, self.name) for image in images]
            self.hidden.update(index for index, was in zip(indices, found, strict=True) if was)
        return images

    def identity(self) -> str:
        """Hash the frames and what covers them."""
        return short_hash(self.whole.identity().encode(), repr(self.masks).encode(), repr(self.detector).encode())

    def describe(self) -> dict[str, Any]:
        """Refuse: what covers the pictures may be anybody's code."""
        raise BadInput("frames", "frames that live in a file", "covered ones (write them to a video first)")


def masks_of(masks: Sequence[Mask], camera: str) -> tuple[Mask, ...]:
    """Choose the masks of a camera."""
    return tuple(mask for mask in masks if mask.camera in (camera, EVERY_CAMERA))


def cover(images: Images, mask: Mask, name: str) -> None:
    """Paint a region black in every picture; one that leaves the picture is refused, as it was meant for another."""
    height, width = images.shape[1:3]
    if mask.x + mask.width > width or mask.y + mask.height > height:
        got = f"{mask.x},{mask.y},{mask.width},{mask.height}"
        raise BadInput(f"mask of {name}", f"a region inside its {width}x{height} pixels", got)
    images[:, mask.y : mask.y + mask.height, mask.x : mask.x + mask.width] = 0


def hide(image: Images, detector: Detector, name: str) -> bool:
    """Put a mosaic over what the detector finds in a picture; say whether it found anything."""
    try:
        answer = detector(image.copy())
    except Exception as error:  # somebody's own code: whatever it raises becomes a sentence
        raise BadInput(f"detector on {name}", "boxes or a mask", f"{type(error).__name__}: {error}") from error
    regions = list(_regions(answer, image, name))
    for region in regions:
        _mosaic(image, *region)
    return bool(regions)


def _regions(answer: Any, image: Images, name: str) -> Iterator[tuple[slice, slice, npt.NDArray[np.bool_] | None]]:
    height, width = image.shape[:2]
    if answer is None:
        return
    values = np.asarray(answer)
    if values.dtype == np.bool_ and values.shape == (height, width):
        if values.any():
            rows, columns = np.flatnonzero(values.any(axis=1)), np.flatnonzero(values.any(axis=0))
            box = (slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1))
            yield (*box, values[box])
        return
    if not values.size:
        return
    if values.dtype.kind not in "fiu" or values.ndim > 2 or values.shape[-1] != COORDINATES:  # noqa: PLR2004
        expected = f"boxes (x, y, width, height), or {height}x{width} truth values"
        raise BadInput(f"detector on {name}", expected, f"{values.dtype} of shape {values.shape}")
    for x, y, wide, high in values.reshape(-1, COORDINATES).astype(float):
        if not np.isfinite([x, y, wide, high]).all() or wide < 0 or high < 0:
            raise BadInput(f"detector on {name}", "boxes of finite numbers, width and height from 0", values.tolist())
        top, bottom = max(0, int(y - MARGIN * high)), min(height, int(np.ceil(y + high + MARGIN * high)))
        left, right = max(0, int(x - MARGIN * wide)), min(width, int(np.ceil(x + wide + MARGIN * wide)))
        if top < bottom and left < right:
            yield slice(top, bottom), slice(left, right), None


def _mosaic(image: Images, rows: slice, columns: slice, inside: npt.NDArray[np.bool_] | None) -> None:
    """Give every tile its mean colour; what is lost is lost, unlike with a blur, which can be undone in part."""
    region = image[rows, columns]
    side = max(1, -(-max(region.shape[:2]) // TILES))
    coarse = np.empty_like(region)
    for top in range(0, region.shape[0], side):
        for left in range(0, region.shape[1], side):
            tile = region[top : top + side, left : left + side]
            coarse[top : top + side, left : left + side] = tile.reshape(-1, 3).mean(axis=0)
    image[rows, columns] = coarse if inside is None else np.where(inside[..., None], coarse, region)


def load_detector(address: str) -> Detector:
    """Import `module:function`, also from the folder that the command runs in."""
    module, colon, attribute = address.partition(":")
    if not colon or not module or not attribute:
        raise BadInput("--blur", "MODULE:FUNCTION", repr(address))
    added = [] if "" in sys.path else [""]
    sys.path[:0] = added
    try:
        loaded: Any = importlib.import_module(module)
        for part in attribute.split("."):
            loaded = getattr(loaded, part)
    except (ImportError, AttributeError) as error:
        raise BadInput("--blur", "a function that can be imported", f"{address!r} ({error})") from error
    finally:
        del sys.path[: len(added)]
    if not callable(loaded):
        raise BadInput("--blur", "a function", f"{type(loaded).__name__} {address!r}")
    detector: Detector = loaded
    return detector
