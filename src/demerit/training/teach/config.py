"""TeachConfig: everything about teaching that can be tuned. Defaults were chosen on tasks that no test uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from demerit.errors import BadInput
from demerit.models.taught.features import validate_parts

DEFAULT_PARTS = ("tower", "change", "places", "moved")
"""the feature parts that work best for a new task; what the network learned about other tasks misleads"""
MOST_ROWS, FEWEST_ROWS = 4000, 6
"""frames fitted in total when there are many episodes, and at least per episode"""
HeadKind = Literal["auto", "linear", "rbf", "both"]


@dataclass(frozen=True)
class LabelWeights:
    """How much one episode's labels count, by origin; 1 = an episode with every frame measured."""

    measured: float = 1.0
    """a measured curve"""
    marked: float = 0.7
    """a few marked frames, together"""
    between: float = 0.5
    """interpolation between marked frames"""
    end: float = 0.7
    """the last frames, which the verdict is about"""
    start: float = 0.15
    """the first frame: nothing is done yet"""
    made_up: float = 0.3
    """linear interpolation from start to end"""
    capped: float = 0.5
    """the last frames of a failure without a known final progress: an upper bound"""
    event: float = 0.3
    """frames after a failure event: an upper bound"""
    pair: float = 0.7
    """a preference: a difference between two last frames"""
    view: float = 0.3
    """a negative made from a success by reordering its frames"""
    words: float = 0.3
    """a success paired with another task's instruction"""


@dataclass(frozen=True)
class TeachConfig:
    """How a head is fitted."""

    parts: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(DEFAULT_PARTS, 1.0))
    """feature parts and their weights, see `demerit.models.taught.features`"""
    kind: HeadKind = "auto"
    """auto: linear; from `rbf_from` groups on, whichever predicts held-out groups best"""
    grid: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
    """ridge penalties to choose from; the unit is one episode"""
    prior: float = 0.02
    """the penalty when there are too few groups to choose by"""
    choose_from: int = 4
    """groups needed to choose a penalty"""
    prior_groups: float = 10.0
    """strength of the prior on the penalty, in groups"""
    reader: bool = True
    """also train a small network on larger images, where torch is installed, and use it where that is better"""
    rbf_from: int = 16
    landmarks: int = 256
    """stored frames of the rbf part, at most"""
    widths: tuple[float, ...] = (1.0,)
    """widths of the rbf part, in median distances"""
    rows: int = 32
    """frames fitted per episode, spread evenly; the last few are always included"""
    last: int = 3
    """number of last frames that a verdict is about, at least"""
    tail: float = 0.15
    """share of frames that a verdict is about, at least"""
    cap: float = 0.5
    """upper bound on the progress at the end of a failed episode, when unknown"""
    blend: float = 0.25
    """weight of `done` in a frame's value, against progress: fewer failures are rewarded"""
    belief: float = 0.2
    """strength of the prior on uncalibrated values, in episodes (see `fit_scale`)"""
    margin: float = 0.3
    """least difference between the two of a preference"""
    damping: float = 0.25
    """share of the typical deviation added to every column's, because few episodes show few ways of moving"""
    rounds: int = 4
    """iterations for bounds (caps and margins)"""
    views: int = 2
    """negatives made from each success, when the head can see order"""
    folds: int = 10
    seed: int = 0
    weights: LabelWeights = field(default_factory=LabelWeights)

    def __post_init__(self) -> None:
        """Validate."""
        validate_parts(list(self.parts))
        if self.kind not in get_args(HeadKind):
            raise BadInput("kind of head", f"one of {', '.join(get_args(HeadKind))}", repr(self.kind))
        if not self.grid or min(self.grid) <= 0 or self.prior <= 0:
            raise BadInput("penalties", "numbers above 0", (self.grid, self.prior))
        for name, least in (("rows", 2), ("last", 1), ("landmarks", 1), ("folds", 2), ("rounds", 1), ("views", 0)):
            if getattr(self, name) < least:
                raise BadInput(name, f"a number, {least} or more", getattr(self, name))
        for name in ("cap", "margin", "blend", "tail"):
            if not 0 <= getattr(self, name) <= 1:
                raise BadInput(name, "a number from 0 to 1", getattr(self, name))

    def ending(self, length: int) -> int:
        """Number of last frames, of `length`, that a verdict is about."""
        return max(self.last, round(self.tail * length))

    def for_episodes(self, episodes: int) -> TeachConfig:
        """Use fewer frames per episode when there are many: 500 episodes are then fitted in minutes."""
        return replace(self, rows=min(self.rows, max(FEWEST_ROWS, MOST_ROWS // episodes)))

    @property
    def sees_order(self) -> bool:
        """Whether any feature part depends on frame order or instruction."""
        return bool({"hidden", "outputs", "recent"} & set(self.parts))

    def as_facts(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        facts = asdict(self)
        return {**facts, "parts": dict(self.parts), "grid": list(self.grid), "widths": list(self.widths)}
