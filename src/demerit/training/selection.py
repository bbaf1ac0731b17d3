"""What `teach` and `calibrate` may learn from: no episode of a test split, and labels of the chosen sources only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from demerit.data.episode import Episode
from demerit.data.labels import NOT_A_MODEL, SourceCounts, check_sources, select_labels
from demerit.data.splits import USE_TEST_SPLIT, normalize_split


@dataclass
class LabelSelection:
    """Selects episodes and labels, and counts what it drops."""

    sources: tuple[str, ...] = NOT_A_MODEL
    use_test_split: bool = False
    labels: SourceCounts = field(default_factory=SourceCounts)
    of_test: int = 0
    """episodes of a test split that were left out"""

    def __post_init__(self) -> None:
        """Refuse unknown sources."""
        check_sources(self.sources)

    def take(self, episode: Episode) -> Episode | None:
        """Return the episode with the labels of the chosen sources; None where it is of a test split."""
        if normalize_split(episode.origin.split) == "test" and not self.use_test_split:
            self.of_test += 1
            return None
        self.labels.add(episode.outcomes, self.sources)
        return replace(episode, outcomes=select_labels(episode.outcomes, self.sources))

    def notes(self) -> Iterator[str]:
        """Say what was dropped, and that labels of models were used."""
        if self.of_test:
            yield f"{self.of_test} episodes of a test split were left out ({USE_TEST_SPLIT} takes them)."
        if self.labels.dropped or self.labels.taken.keys() - set(NOT_A_MODEL):
            yield f"Labels: {self.labels}."
