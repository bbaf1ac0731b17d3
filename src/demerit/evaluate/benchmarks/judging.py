"""From an episode to a row of a benchmark: what is known about it, and who says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Episode
from demerit.data.labels import LABEL_SOURCES, Event, Outcome
from demerit.errors import UnreadableVideo
from demerit.evaluate.metrics.categories import category
from demerit.evaluate.reports.report import Judged

QUALITY = {
    "failure": "failed",
    "failed": "failed",
    "suboptimal": "suboptimal",
    "successful": "successful",
    "success": "successful",
}
"""words that datasets use for how well it went, and ours"""

Judge = Callable[[Episode], Judged]


def judge(episode: Episode) -> Judged:
    """Take the labels of an episode, each from the most trusted voucher that has it.

    What a model said about an episode is no label to measure models by, so a model's account is left out.
    Episodes of one instruction are one task; those of one session (`Origin.group`) among them may be ranked.
    """
    accounts = [one for one in episode.outcomes if one.source != "model"]
    accounts.sort(key=lambda one: LABEL_SOURCES.index(one.source))
    origin, words = episode.origin, plain(episode.instruction)
    frames, seconds = _extent(episode)
    alone = origin.group or episode.id
    curve: npt.NDArray[np.float32] | None = _first(accounts, "curve")
    events: tuple[Event, ...] = next((one.events for one in accounts if one.events), ())
    return Judged(
        id=episode.id,
        instruction=episode.instruction,
        category=str(category(episode.instruction)),
        context=f"{words} ({origin.group})" if words and origin.group else words or alone,
        task=words or alone,
        dataset=origin.dataset,
        subset=origin.tags.get("subset") or origin.tags.get("data_source") or origin.dataset,
        split=origin.split,
        embodiment=origin.embodiment,
        frames=frames,
        seconds=seconds,
        success=_first(accounts, "success"),
        progress=_first(accounts, "progress"),
        grade=_first(accounts, "grade"),
        quality=QUALITY.get(origin.tags.get("quality", "").lower(), ""),
        vouched_by=", ".join(dict.fromkeys(_voucher(one) for one in accounts)),
        note=next((one.note for one in accounts if one.note), ""),
        events=events,
        curve=curve,
    )


def plain(instruction: str) -> str:
    """Write an instruction as the name of its task: case, spaces and the full stop do not make another task."""
    return " ".join(instruction.lower().split()).rstrip(".!")


def _first(accounts: list[Outcome], name: str) -> Any:
    return next((value for one in accounts if (value := getattr(one, name)) is not None), None)


def _voucher(account: Outcome) -> str:
    return f"{account.source} ({account.by})" if account.by else account.source


def _extent(episode: Episode) -> tuple[int, float]:
    try:
        times = episode.main.times()
    except UnreadableVideo:
        return 0, 0.0  # the models will say why they could not score it
    return len(times), float(times[-1] - times[0]) if len(times) else 0.0
