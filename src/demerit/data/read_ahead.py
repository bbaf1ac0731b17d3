"""Frames that are decoded already, in the place of their source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from demerit.data.decode_worker import Decoded
from demerit.data.frames import Frames, FrameSource, Images, Prepare, Times


@dataclass(frozen=True, eq=False)
class ReadAhead:
    """A source of which some frames are decoded, and prepared, already; the others still can be."""

    source: FrameSource
    length: int
    places: dict[int, int] = field(repr=False)
    images: Images = field(repr=False)
    prepare: Prepare | None = field(default=None, repr=False)

    @property
    def kind(self) -> str:
        """What it is underneath."""
        return self.source.kind

    def __len__(self) -> int:
        """How many frames there are, as found while decoding."""
        return self.length

    def times(self) -> Times:
        """The source's times."""
        return self.source.times()

    def take(self, indices: Sequence[int]) -> Images:
        """Copy frames that are here; decode when one is not."""
        if all(index in self.places for index in indices):
            return self.images[[self.places[index] for index in indices]]
        late = self.source.take(indices)
        return late if self.prepare is None else self.prepare(late)

    def identity(self) -> str:
        """The source's identity."""
        return self.source.identity()

    def describe(self) -> dict[str, Any]:
        """The source's address."""
        return self.source.describe()


def read_ahead(frames: Frames, decoded: Decoded, images: Images, prepare: Prepare | None) -> Frames:
    """Put decoded frames in the place of the source that they come from."""
    of_source = decoded.indices if frames.indices is None else frames.indices[decoded.indices]
    places = {int(index): place for place, index in enumerate(of_source)}
    length = decoded.length if frames.indices is None else len(frames.source)
    return Frames(ReadAhead(frames.source, length, places, images, prepare), frames.indices)
