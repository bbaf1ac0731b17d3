"""Frames of several sources, one part after another."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from demerit.data.frames import FrameSource, Images, Times, frame_source, short_hash
from demerit.errors import BadInput, UnreadableVideo


@dataclass(frozen=True)
class SplicedFrames:
    """Parts of sources in a row; each is a source, its first frame and the frame after its last."""

    parts: tuple[tuple[FrameSource, int, int], ...]

    def __post_init__(self) -> None:
        """Refuse parts that are empty or turned round."""
        for source, start, stop in self.parts:
            if not 0 <= start < stop:
                raise BadInput(f"part of {source!r}", "0 <= start < stop", (start, stop))
        if not self.parts:
            raise BadInput("spliced frames", "at least one part", "none")

    @classmethod
    def rebuilt(cls, path: str, first: Mapping[str, Any], rest: Sequence[Mapping[str, Any]]) -> SplicedFrames:
        """Undo `describe`."""
        folder = Path(path).parent
        places = [path, *(os.path.normpath(folder / str(part["path"])) for part in rest)]
        return cls(
            tuple(
                (frame_source(part["kind"], {"path": place, **part["fields"]}), part["start"], part["stop"])
                for place, part in zip(places, [first, *rest], strict=True)
            )
        )

    @property
    def kind(self) -> str:
        """The name under which the store knows spliced frames."""
        return "splice"

    def __len__(self) -> int:
        """How many frames there are."""
        return sum(stop - start for _, start, stop in self.parts)

    def times(self) -> Times:
        """Each part keeps its own clock and begins one of its steps after the part before it ended."""
        found: list[Times] = []
        end = 0.0
        for source, start, stop in self.parts:
            clock = source.times()
            step = float(np.median(np.diff(clock))) if len(clock) > 1 else 0.0
            times = clock[start:stop] - clock[start] + (end + step if found else 0.0)
            found.append(times)
            end = float(times[-1])
        return np.concatenate(found)

    def take(self, indices: Sequence[int]) -> Images:
        """Decode from each part what is wanted of it."""
        wanted = np.asarray(indices, dtype=np.int64)
        if not len(wanted):
            return np.empty((0, 0, 0, 3), dtype=np.uint8)
        out: Images | None = None
        offset = 0
        for source, start, stop in self.parts:
            here = np.flatnonzero((wanted >= offset) & (wanted < offset + stop - start))
            if len(here):
                images = source.take((wanted[here] - offset + start).tolist())
                out = np.empty((len(wanted), *images.shape[1:]), dtype=np.uint8) if out is None else out
                if images.shape[1:] != out.shape[1:]:
                    raise UnreadableVideo(repr(source), "its pictures have another size than those before the splice")
                out[here] = images
            offset += stop - start
        if out is None or wanted.min() < 0 or wanted.max() >= offset:
            raise BadInput("frame indices", f"0 to {offset - 1}", f"{wanted.min()} to {wanted.max()}")
        return out

    def identity(self) -> str:
        """Hash what each part is and which of its frames are shown."""
        parts = [f"{source.identity()} {start} {stop}" for source, start, stop in self.parts]
        return short_hash(*(part.encode() for part in parts))

    def describe(self) -> dict[str, Any]:
        """The first part's file is the path; the others are named relative to its folder, so all can move together."""
        described: list[dict[str, Any]] = []
        for source, start, stop in self.parts:
            fields = {name: value for name, value in source.describe().items() if value is not None}
            described.append({"kind": source.kind, "fields": fields, "start": start, "stop": stop})
        path = described[0]["fields"].pop("path")
        folder = os.path.dirname(path)
        for part in described[1:]:
            part["path"] = Path(os.path.relpath(part["fields"].pop("path"), folder)).as_posix()
        return {"path": path, "first": described[0], "rest": described[1:]}
