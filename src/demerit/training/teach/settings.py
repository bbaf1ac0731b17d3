"""Everything about teaching that can be tuned, in one place. Defaults were chosen on tasks that no test uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from demerit.errors import BadInput
from demerit.models.taught.features import checked_parts

LOOKS = ("tower", "change", "places", "moved")
"""of the network's parts, what a new task is best read from; what it has learned of other tasks only misleads"""
MOST_ROWS, FEWEST_ROWS = 4000, 6
"""frames that are fitted in all, where there are many episodes, and of each at least"""
Kind = Literal["auto", "linear", "rbf", "both"]


@dataclass(frozen=True)
class Weights:
    """How much one episode's labels count, by where they come from; 1 is an episode whose every frame is measured."""

    measured: float = 1.0
    """a curve that somebody measured"""
    marked: float = 0.7
    """a few frames that somebody marked, together"""
    between: float = 0.5
    """straight lines between marked frames: made up"""
    end: float = 0.7
    """the last frames, where the verdict was given"""
    start: float = 0.15
    """the first frame: nothing is done yet"""
    made_up: float = 0.3
    """the way from start to end, straight: made up"""
    capped: float = 0.5
    """"this failed": the last frames are worth less than done, nobody says how much"""
    event: float = 0.3
    """what follows a failure event is capped as well"""
    pair: float = 0.7
    """"this one is better": a difference between two last frames"""
    view: float = 0.3
    """a negative made from a success, where order or words count"""
    words: float = 0.3
    """a success shown under another task's words"""


@dataclass(frozen=True)
class Settings:
    """How a head is fitted."""

    parts: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(LOOKS, 1.0))
    """which numbers the head sees (see `demerit.models.taught.features`), and how much each part counts"""
    kind: Kind = "auto"
    """auto: linear for a few episodes; from `rbf_from` groups on, what left-out groups like best"""
    grid: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
    """penalties to choose from; the unit is one episode"""
    prior: float = 0.02
    """the penalty where there are too few groups to choose by"""
    choose_from: int = 4
    """so many groups are needed to choose a penalty"""
    prior_groups: float = 10.0
    """how many groups' worth of evidence the prior is: a penalty far from it has to be that much better"""
    rbf_from: int = 16
    landmarks: int = 256
    """remembered frames of the rbf part, at most"""
    widths: tuple[float, ...] = (1.0,)
    """widths of the rbf part, in median distances"""
    rows: int = 32
    """frames of an episode that are fitted, spread evenly; the last few are always among them"""
    last: int = 3
    """how many last frames a verdict is about, at least"""
    tail: float = 0.15
    """and which share of all frames, at least: a long video's last three frames are one moment"""
    cap: float = 0.5
    """what a failed episode's last frames are worth at most, where nobody says"""
    blend: float = 0.25
    """how much of a frame's value is whether the task is done, and not how far it is: fewer failures are rewarded"""
    belief: float = 0.2
    """how many episodes' worth of belief there is in values as they are fitted (see `scale`)"""
    margin: float = 0.3
    """by how much the better of two is better, at least"""
    damping: float = 0.25
    """how much of the typical deviation every column is given: few episodes show few of the ways in which it moves"""
    rounds: int = 4
    """how often caps and margins are looked at again"""
    views: int = 2
    """negatives made of each success, where order or words count"""
    folds: int = 10
    seed: int = 0
    weights: Weights = field(default_factory=Weights)

    def __post_init__(self) -> None:
        """Refuse settings that mean nothing."""
        checked_parts(list(self.parts))
        if self.kind not in get_args(Kind):
            raise BadInput("kind of head", f"one of {', '.join(get_args(Kind))}", repr(self.kind))
        if not self.grid or min(self.grid) <= 0 or self.prior <= 0:
            raise BadInput("penalties", "numbers above 0", (self.grid, self.prior))
        for name, least in (("rows", 2), ("last", 1), ("landmarks", 1), ("folds", 2), ("rounds", 1), ("views", 0)):
            if getattr(self, name) < least:
                raise BadInput(name, f"a number from {least} on", getattr(self, name))
        for name in ("cap", "margin", "blend", "tail"):
            if not 0 <= getattr(self, name) <= 1:
                raise BadInput(name, "a number from 0 to 1", getattr(self, name))

    def ending(self, length: int) -> int:
        """How many last frames a verdict is about, of so many."""
        return max(self.last, round(self.tail * length))

    def thinned(self, episodes: int) -> Settings:
        """Take fewer frames of each of many episodes: five hundred are fitted in minutes; their frames are alike."""
        return replace(self, rows=min(self.rows, max(FEWEST_ROWS, MOST_ROWS // episodes)))

    @property
    def follows(self) -> bool:
        """Whether the head sees anything that depends on order or words."""
        return bool({"hidden", "outputs", "recent"} & set(self.parts))

    def as_facts(self) -> dict[str, Any]:
        """Write them as plain values."""
        facts = asdict(self)
        return {**facts, "parts": dict(self.parts), "grid": list(self.grid), "widths": list(self.widths)}
