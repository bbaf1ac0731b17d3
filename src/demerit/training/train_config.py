"""TrainConfig: what the configurations of all training runs have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from demerit.config import change_config, need
from demerit.data.episode import TRAINED_SOURCES, check_sources
from demerit.negatives.negative import check_edits

SEEDS = 2**32


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The seed, and which episodes and labels are taken."""

    seed: int = 0
    sources: tuple[str, ...] = TRAINED_SOURCES
    """label sources that are trained on (see `demerit.data.episode`)"""
    without: tuple[str, ...] = ()
    """edits whose episodes are left out: counterfactual, clip ..."""

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be trained with."""
        check_sources(self.sources)
        check_edits(self.without)
        need("seed", 0 <= self.seed < SEEDS, f"a whole number from 0 to {SEEDS - 1}", self.seed)

    def change(self, changes: Mapping[str, Any]) -> Self:
        """Return a copy with other numbers; an unknown name is refused."""
        return change_config(self, changes)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)
