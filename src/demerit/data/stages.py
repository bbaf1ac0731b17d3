"""Stages: the named parts of an episode's work, one after another, such as reach, grasp, place.

Progress is a straight line through each stage. Where a source does not say how much of the task a stage is, the stages
of the task share it equally.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from demerit.data.arrays import Floats32
from demerit.errors import BadInput

StagePlan = Mapping[str, tuple[float, float]]
"""progress where a stage begins and where it is done, by name, in order"""


@dataclass(frozen=True)
class StageSpan:
    """A part of the work from frame `first` to frame `last` (inclusive), where it is done."""

    name: str
    first: int
    last: int
    start: float | None = None
    """progress where it begins; None = the stages of the task share progress equally"""
    stop: float | None = None
    """progress where it is done"""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise BadInput("a stage's name", "some text", repr(self.name))
        if not 0 <= self.first <= self.last:
            raise BadInput(f"stage {self.name!r}", "0 <= first <= last", (self.first, self.last))
        share = (self.start, self.stop)
        if share != (None, None) and (None in share or not 0 <= share[0] <= share[1] <= 1):  # type: ignore[operator]
            raise BadInput(f"progress of stage {self.name!r}", "0 <= start <= stop <= 1, or neither", share)
        for end in ("start", "stop"):  # 0 and 0.0 are the same label, and have the same hash
            object.__setattr__(self, end, None if share == (None, None) else float(getattr(self, end)))

    def __str__(self) -> str:
        return f"{self.name}:{self.first}-{self.last}"


def check_stages(stages: Iterable[StageSpan]) -> tuple[StageSpan, ...]:
    """Return the stages in order of time; two that share a frame are refused."""
    spans = tuple(sorted(stages, key=lambda stage: stage.first))
    for stage, other in pairwise(spans):
        if other.first <= stage.last:
            raise BadInput("stages", "one after another", f"{stage} and {other}")
    return spans


def trim_stages(stages: Iterable[StageSpan], length: int | None) -> tuple[StageSpan, ...]:
    """Make the spans of a tool fit: one that ends where the next begins, or after the last frame, ends before it."""
    ordered = sorted(stages, key=lambda stage: stage.first)
    stops = [*(stage.first for stage in ordered[1:]), max(stage.last for stage in ordered) + 1] if ordered else []
    pairs = (
        (stage, min(stage.last, stop - 1, stage.last if length is None else length - 1))
        for stage, stop in zip(ordered, stops, strict=True)
    )
    return check_stages(replace(stage, last=last) for stage, last in pairs if last >= stage.first)


def share_progress(shares: Mapping[str, float]) -> StagePlan:
    """Return the plan of stages that each are a share of the task, in order."""
    stops = np.cumsum(list(shares.values())) / max(sum(shares.values()), 1e-9)
    edges = [0.0, *np.minimum(stops, 1.0).tolist()]
    return dict(zip(shares, pairwise(edges), strict=True))


def plan_task(finished: Iterable[Sequence[StageSpan]]) -> StagePlan:
    """Return the plan of a task whose episodes were finished: equal shares, by the episode with the most stages."""
    names = [dict.fromkeys((stage.name for stage in stages), 1.0) for stages in finished]
    return share_progress(max(names, key=len, default={}))


def place_stages(stages: Sequence[StageSpan], plan: StagePlan, is_finished: bool) -> tuple[StageSpan, ...]:
    """Say how far each stage goes: as its source says, or by the plan; () if that is unknown.

    A finished episode whose stages are not all in the plan has a plan of its own.
    """
    if all(stage.stop is not None for stage in stages):
        return tuple(stages)
    if not plan.keys() >= {stage.name for stage in stages}:
        if not is_finished:
            return ()
        plan = plan_task([stages])
    return tuple(replace(stage, start=plan[stage.name][0], stop=plan[stage.name][1]) for stage in stages)


def mark_stages(stages: Sequence[StageSpan], length: int) -> Floats32:
    """Return progress where placed stages begin and are done, NaN at the other of `length` frames."""
    marks = np.full(length, np.nan, dtype=np.float32)
    for stage in stages:
        if stage.first < length:
            marks[stage.first], marks[min(stage.last, length - 1)] = stage.start, stage.stop
    return marks
