"""What a scoring job found: a row per episode, and the figures over them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from demerit.data.episode import Episode
from demerit.data.files import atomic_file, make_folder, plain, write_csv
from demerit.data.reward import Reward, Verdict, VerdictCounts
from demerit.errors import BadInput
from demerit.models.protocol import ModelCard

NAN = float("nan")
WORST = 5
PATH = re.compile(r"^(Episode (['\"]).*?\2|.*?\.(mp4|mkv|webm|mov|avi|hdf5|h5|parquet)): ", re.IGNORECASE)
"""the episode or file that an unscored one's reason begins with; without it, equal reasons are counted together"""


@dataclass(frozen=True)
class ShownEpisode:
    """What is shown of an episode beside its reward."""

    instruction: str
    label: str = ""
    """success, failure, 'grade 3' or 'progress 0.4'; empty = no label"""
    label_source: str = ""
    taught: bool = False
    """whether the model learned from it"""

    @classmethod
    def of(cls, episode: Episode, taught: bool = False) -> ShownEpisode:
        """Take instruction and most trusted label of an episode."""
        outcome = episode.outcome
        if outcome is None:
            return cls(episode.instruction, taught=taught)
        label = ""
        if outcome.success is not None:
            label = "success" if outcome.success else "failure"
        elif outcome.grade is not None:
            label = f"grade {outcome.grade}"
        elif outcome.progress is not None:
            label = f"progress {outcome.progress:g}"
        return cls(episode.instruction, label, outcome.source if label else "", taught)


@dataclass(frozen=True)
class EpisodeScore:
    """One row: an episode and its reward."""

    model: str
    dataset: str
    """`format:path`"""
    id: str
    instruction: str
    label: str
    label_source: str
    final: float
    """value at the last scored frame; NaN = unscored"""
    max: float
    verdict: Verdict
    success_probability: float
    unscored: str
    """why it, or its last frame, has no value"""
    taught: bool
    """whether the model learned from it: then its value says little"""
    familiarity: float
    """how much it looks like what the model learned from, 0 to 1; NaN = unknown"""
    caution: str = ""
    """why the model is not trusted yet; empty where nothing was said"""

    @classmethod
    def of(cls, reward: Reward, seen: ShownEpisode, dataset: str) -> EpisodeScore:
        """Make the row of a reward."""
        return cls(
            model=reward.model,
            dataset=dataset,
            id=reward.episode,
            instruction=seen.instruction,
            label=seen.label,
            label_source=seen.label_source,
            final=reward.final,
            max=float(np.nanmax(reward.value)) if reward.scored else NAN,
            verdict=reward.verdict,
            success_probability=NAN if reward.success is None or not len(reward.success) else float(reward.success[-1]),
            unscored="" if not math.isnan(reward.final) else reward.why_missing,
            taught=seen.taught,
            familiarity=NAN if reward.familiarity is None else reward.familiarity,
            caution=reward.caution,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain values by the columns of the CSV file; None = unknown."""
        facts = {**plain(self), "success": self.verdict.success, **self.verdict.as_dict()}
        return {name: facts[name] for name in COLUMNS}


COLUMNS = (
    "model dataset id instruction label label_source final max success success_probability unscored taught familiarity "
    "verdict why_unknown caution"
).split()
FEWEST_COLUMNS = 11
"""of the first version's tables"""


@dataclass(frozen=True)
class ScoreSummary:
    """The figures of one model over the episodes of a call."""

    card: ModelCard
    rows: Sequence[EpisodeScore]

    @property
    def finals(self) -> list[float]:
        """The final values that are known."""
        return [row.final for row in self.rows if not math.isnan(row.final)]

    @property
    def verdicts(self) -> VerdictCounts:
        """The verdicts of all episodes, with the warnings that belong to them."""
        return VerdictCounts.of_verdicts(
            (row.verdict for row in self.rows), dict.fromkeys(row.caution for row in self.rows)
        )

    def reasons(self) -> dict[str, list[str]]:
        """Return the ids of unscored episodes by reason (without the file's name), most frequent first."""
        by_reason: dict[str, list[str]] = {}
        for row in self.rows:
            if row.unscored:
                by_reason.setdefault(PATH.sub("", row.unscored).removesuffix("."), []).append(row.id)
        return dict(sorted(by_reason.items(), key=lambda item: -len(item[1])))

    def by_doubt(self) -> list[EpisodeScore]:
        """Return all episodes: unknown verdicts first, then failures, the lowest values first."""
        order = {None: 0, False: 1, True: 2}
        return sorted(
            self.rows, key=lambda row: (order[row.verdict.success], math.inf if math.isnan(row.final) else row.final)
        )

    def worst(self, most: int = WORST) -> list[EpisodeScore]:
        """Return the episodes with the lowest final values; none where all are equal or cannot be compared."""
        return self._ranked()[:most]

    def highest_failures(self, most: int = WORST) -> list[EpisodeScore]:
        """Return the labelled failures with the highest final values; none where values cannot be compared."""
        return [row for row in reversed(self._ranked()) if row.label == "failure"][:most]

    def _ranked(self) -> list[EpisodeScore]:
        if not self.card.comparable or len(set(self.finals)) == 1 < len(self.rows):
            return []
        return sorted((row for row in self.rows if not math.isnan(row.final)), key=lambda row: row.final)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        finals, verdicts = self.finals, self.verdicts
        return {
            "model": self.card.name,
            "quantity": self.card.quantity,
            "low": self.card.low,
            "high": self.card.high,
            "episodes": len(self.rows),
            "final": {"mean": fmean(finals), "median": median(finals)} if finals else None,
            "success_rate": verdicts.successes / verdicts.judged if verdicts.judged else None,
            "verdicts": verdicts.as_dict(),
            "unscored": [
                {"reason": reason, "episodes": len(ids), "ids": ids} for reason, ids in self.reasons().items()
            ],
            "worst": [row.id for row in self.worst()],
            "highest_failures": [row.id for row in self.highest_failures()],
            "taught": sum(row.taught for row in self.rows),
            "guesses": verdicts.unknown.get("unfamiliar", 0),
            "scores": [row.as_dict() for row in self.rows],
        }


def match_scores(rewards: Iterable[Reward], seen: Mapping[str, ShownEpisode], dataset: str) -> list[EpisodeScore]:
    """Return the rows of the episodes that a job has seen, in its order."""
    scores = {
        reward.episode: EpisodeScore.of(reward, seen[reward.episode], dataset)
        for reward in rewards
        if reward.episode in seen
    }
    return [scores[id] for id in seen if id in scores]


def check_table_file(path: Path) -> None:
    """Raise if the file cannot be written, or is not a table of scores and would be overwritten."""
    make_folder(path.parent)
    if path.is_dir():
        raise BadInput(str(path), "a file to write", "a folder")
    if path.exists():
        with path.open(encoding="utf-8", errors="replace") as file:
            header = file.readline().rstrip("\r\n").split(",")
            if header != COLUMNS[: len(header)] or len(header) < FEWEST_COLUMNS:  # earlier versions had fewer columns
                raise BadInput(str(path), "a new file, or one that `demerit score --csv` wrote", "another file")


def write_table(rows: Iterable[EpisodeScore], path: Path) -> None:
    """Write a CSV file with a row per episode; empty cells are unknown."""
    check_table_file(path)
    with atomic_file(path) as part, part.open("w", encoding="utf-8", newline="") as file:
        write_csv(file, [COLUMNS])
        write_csv(file, (row.as_dict().values() for row in rows))
