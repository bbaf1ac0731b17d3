"""splice: the start of one attempt joined to the end of another attempt at the same task.

The label follows the frames: progress of the first attempt up to the cut, of the second after it, and the outcome of
the second. With a failed partner it is a good start that failed; with a successful one it is a success whose images do
not belong together.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Episode
from demerit.data.frames import Frames, FrameSource, Images, Times, frame_source, short_hash
from demerit.data.instructions import normalize_instruction
from demerit.data.labels import Outcome
from demerit.errors import BadInput, NotApplicable, UnreadableVideo
from demerit.negatives.edits.edit import build_edited, pick
from demerit.negatives.negative import DONE_GRADE, Targets, grade_of, negative, targets_of, trusted_outcome

if TYPE_CHECKING:
    from demerit.negatives.mix import Pool

FEWEST_FRAMES = 4


@negative("splice", uses_pool=True)
def splice(
    episode: Episode,
    rng: np.random.Generator,
    *,
    pool: Pool | None = None,
    partner: str | None = None,
    before: int | None = None,
    after: int | None = None,
) -> Episode:
    """Frames up to `before` of this episode, then frames from `after` on of the partner.

    The cut is drawn from the middle half; the partner continues at the same progress, as far as it is known.
    """
    targets = targets_of(episode, FEWEST_FRAMES)
    other = _find_partner(episode, rng, pool, partner)
    ending = trusted_outcome(other)
    if ending is None:
        raise NotApplicable("no trusted source says how the partner ended")
    length = len(targets)
    before = pick(np.arange(length // 4, length * 3 // 4, dtype=np.int32), rng, before, None, "the cut")
    rest = _partner_curve(other, ending)
    after = _next_frame(targets, before, rest) if after is None else after
    if not 0 < after < len(rest):
        raise NotApplicable("the partner has no frames after the cut")
    views = _join_views(episode, other, before + 1, after)
    curve = np.concatenate([targets.curve[: before + 1], rest[after:]]).astype(np.float32)
    last = float(curve[-1])
    progress = ending.progress if np.isnan(last) else last
    grade = DONE_GRADE if ending.success else ending.grade
    if grade is None and progress is not None:
        grade = grade_of(progress)
    outcome = Outcome("edit", success=ending.success, progress=progress, grade=grade, curve=curve, by="splice")
    params = {"partner": other.id, "before": before, "after": after}
    return build_edited(episode, "splice", params, outcome, views=views)


def _find_partner(episode: Episode, rng: np.random.Generator, pool: Pool | None, id: str | None) -> Episode:
    if pool is None:
        raise NotApplicable("there is no pool to find a partner in")
    if id is not None:
        other = pool.find(id)
        if normalize_instruction(other.instruction) != normalize_instruction(episode.instruction):
            raise NotApplicable("the partner has another instruction")
        return other
    ended = [(other, trusted_outcome(other)) for other in pool.partners(episode)]
    known = [(other, outcome) for other, outcome in ended if outcome is not None]
    if not known:
        raise NotApplicable("there is no other attempt at its task in its split or group")
    failed = [other for other, outcome in known if not outcome.success]
    found = failed or [other for other, _ in known]  # failures are rarer and more useful
    return found[rng.integers(len(found))]


def _partner_curve(other: Episode, outcome: Outcome) -> npt.NDArray[np.float32]:
    """The partner's progress; unknown for a failure without a curve."""
    if outcome.success:
        return targets_of(other, FEWEST_FRAMES).curve
    length = len(other)
    fits = outcome.curve is not None and len(outcome.curve) == length
    return outcome.curve if fits and outcome.curve is not None else np.full(length, np.nan, dtype=np.float32)


def _next_frame(targets: Targets, before: int, rest: npt.NDArray[np.float32]) -> int:
    reached = np.flatnonzero(rest > targets.curve[before])
    if len(reached) and reached[0] > 0:
        return int(reached[0])
    # It never gets as far, or its progress is unknown: continue at the same share of its time.
    return int(np.ceil((before + 1) / len(targets) * len(rest)))


def _join_views(episode: Episode, other: Episode, stop: int, start: int) -> dict[str, Frames]:
    """Join every camera that both attempts have."""
    views = {}
    for camera, frames in episode.views.items():
        if camera not in other.views:
            continue
        partner = other.views[camera]
        if frames.indices is not None or partner.indices is not None:
            raise NotApplicable("one of the two is not a whole recording")
        if len(partner) != len(other):
            raise NotApplicable("the partner's cameras have different numbers of frames")
        if frames.take([0]).shape != partner.take([0]).shape:
            raise NotApplicable("the two have images of different sizes")
        views[camera] = Frames(SplicedFrames(((frames.source, 0, stop), (partner.source, start, len(partner)))))
    if not views:
        raise NotApplicable("the two have no camera in common")
    return views


@dataclass(frozen=True)
class SplicedFrames:
    """Parts of frame sources in a row: (source, first frame, last frame + 1) each."""

    kind = "splice"
    parts: tuple[tuple[FrameSource, int, int], ...]

    def __post_init__(self) -> None:
        for source, start, stop in self.parts:
            if not 0 <= start < stop:
                raise BadInput(f"part of {source!r}", "0 <= start < stop", (start, stop))
        if not self.parts:
            raise BadInput("spliced frames", "at least one part", "none")

    @classmethod
    def rebuild(cls, path: str, first: Mapping[str, Any], rest: Sequence[Mapping[str, Any]]) -> SplicedFrames:
        """Rebuild from the arguments that `describe` returned."""
        folder = Path(path).parent
        places = [path, *(os.path.normpath(folder / str(part["path"])) for part in rest)]
        return cls(
            tuple(
                (frame_source(part["kind"], {**part["fields"], "path": place}), part["start"], part["stop"])
                for place, part in zip(places, [first, *rest], strict=True)
            )
        )

    def sources(self) -> list[FrameSource]:
        """The joined sources."""
        return [source for source, _, _ in self.parts]

    def __len__(self) -> int:
        return sum(stop - start for _, start, stop in self.parts)

    def times(self) -> Times:
        """Each part keeps its own clock and starts one of its steps after the end of the part before it."""
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
        """Decode the given frames from the parts."""
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
                    raise UnreadableVideo(repr(source), "its images have another size than those before the splice")
                out[here] = images
            offset += stop - start
        if out is None or wanted.min() < 0 or wanted.max() >= offset:
            raise BadInput("frame indices", f"0 to {offset - 1}", f"{wanted.min()} to {wanted.max()}")
        return out

    def identity(self) -> str:
        """Hash the parts and their frame ranges."""
        parts = [f"{source.identity()} {start} {stop}" for source, start, stop in self.parts]
        return short_hash(*(part.encode() for part in parts))

    def describe(self) -> dict[str, Any]:
        """The first part's file is the path; the others are relative to its folder, so all can move together."""
        described: list[dict[str, Any]] = []
        for source, start, stop in self.parts:
            fields = {name: value for name, value in source.describe().items() if value is not None}
            described.append({"kind": source.kind, "fields": fields, "start": start, "stop": stop})
        path = described[0]["fields"].pop("path")
        folder = os.path.dirname(path)
        for part in described[1:]:
            part["path"] = Path(os.path.relpath(part["fields"].pop("path"), folder)).as_posix()
        return {"path": path, "first": described[0], "rest": described[1:]}
