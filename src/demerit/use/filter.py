"""A view of a dataset without the episodes that fail a condition. Nothing is copied or deleted.

A view is a demerit folder that refers to the videos of its source. It also holds

    decisions.jsonl         a line per episode of the source: kept or dropped, and why
    filter.json             the source, the model, the conditions and their counts
    rewards/MODEL/          the model's rewards of the kept episodes
    episodes_kept.json, episodes_dropped.json   LeRobot's episode indices, where the source is a LeRobot dataset
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from demerit.data.dataset import Dataset, Record
from demerit.data.episode import Episode, count_episodes
from demerit.data.files import atomic_folder, write_atomic, write_json
from demerit.data.importing import import_dataset
from demerit.data.instructions import normalize_instruction
from demerit.data.labels import Preference
from demerit.data.reward import Reward
from demerit.data.store import Store
from demerit.data.taxonomy import kind as find_kind
from demerit.errors import BadInput
from demerit.models.reward_store import RewardStore
from demerit.models.rule import Rule
from demerit.models.score_summary import EpisodeScore, SeenEpisode
from demerit.use.scored import ScoredDataset

DECISIONS, SUMMARY, KEPT, DROPPED = "decisions.jsonl", "filter.json", "episodes_kept.json", "episodes_dropped.json"
LEROBOT_ID = re.compile(r"(?:^|/)episode_(\d+)$")
NO_MODEL = Reward.unscored("none", "none", "no model was given")
NO_LABEL = "no label"
AT_ONCE = 5000
"""rewards written at once"""

Unscored = Literal["keep", "drop", "fail"]
Judgement = tuple[bool | None, str]
"""whether an episode passes, None = it cannot be judged; and why not"""


@dataclass(frozen=True)
class FilterCondition:
    """What is dropped, in words, and how an episode is judged."""

    drops: str
    judge: Callable[[Episode, Reward], Judgement]


@dataclass(frozen=True)
class FilterDecision:
    """What happens to an episode, and why."""

    score: EpisodeScore
    kept: bool
    reasons: Mapping[str, str]
    """why it fails, by condition; empty for one that is dropped because it cannot be judged"""
    undecided: Mapping[str, str]
    """why it cannot be judged, by condition"""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values; None = unknown."""
        decided = {"kept": self.kept, "reasons": list(self.reasons.values()), "undecided": dict(self.undecided)}
        shown = ("instruction", "label", "label_source", "final", "success", "familiarity", "unscored")
        score = self.score.as_dict()
        return {"episode": self.score.id, **decided, **{name: score[name] for name in shown}}


@dataclass(frozen=True)
class FilterOutcome:
    """The decisions about all episodes, in the order of the dataset, and their counts."""

    decisions: Sequence[FilterDecision]
    conditions: Sequence[str]
    """what each drops, in words"""

    @property
    def kept(self) -> list[str]:
        """The ids of the kept episodes."""
        return [one.score.id for one in self.decisions if one.kept]

    def dropped_by(self) -> dict[str, int]:
        """Count the episodes that fail each condition; one may fail several."""
        failed = Counter(name for one in self.decisions for name in one.reasons)
        return {name: failed[name] for name in self.conditions} | failed

    def undecided(self) -> Counter[tuple[str, bool]]:
        """Count the episodes whose fate depended on the rule for unscored ones, by reason and whether kept."""
        unclear = (one for one in self.decisions if one.undecided and not one.reasons)
        return Counter((next(iter(one.undecided.values())), one.kept) for one in unclear)

    def as_dict(self) -> dict[str, Any]:
        """Return counts, and LeRobot's episode indices (None for another dataset), as plain values."""
        unclear = [{"reason": why, "kept": kept, "episodes": n} for (why, kept), n in self.undecided().most_common()]
        found = [(LEROBOT_ID.search(one.score.id), one.kept) for one in self.decisions]
        indices: dict[str, list[int]] = {"kept": [], "dropped": []}
        for match, kept in found:
            indices["kept" if kept else "dropped"] += [int(match[1])] if match else []
        return {
            "episodes": len(self.decisions),
            "kept": len(self.kept),
            "dropped": len(self.decisions) - len(self.kept),
            "dropped_by": self.dropped_by(),
            "undecided": unclear,
            "lerobot": indices if all(match for match, _ in found) else None,
        }


# Conditions


def need_at_least(name: str, least: float, value: Callable[[Reward], float | None]) -> FilterCondition:
    """Drop episodes whose reward has a lower value of this name."""
    if not math.isfinite(least):
        raise BadInput(f"least {name}", "a finite number", least)

    def judge(_: Episode, reward: Reward) -> Judgement:
        found = None if math.isnan(reward.final) else value(reward)
        if found is None:
            return None, reward.why_missing or f"the model gives no {name}"
        return found >= least, f"{name} {found:.4g} < {least:g}"

    return FilterCondition(f"{name} < {least:g}", judge)


def need_success(by: Literal["model", "labels"]) -> FilterCondition:
    """Drop episodes that the model calls a failure, or whose most trusted label is a failure."""

    def ask_label(episode: Episode, _: Reward) -> Judgement:
        succeeded = None if episode.outcome is None else episode.outcome.success
        return succeeded, NO_LABEL if succeeded is None else "labelled a failure"

    def ask_model(_: Episode, reward: Reward) -> Judgement:
        succeeded = reward.given.get("succeeds")
        if not isinstance(succeeded, bool):
            return None, reward.why_missing or "the model has no success threshold (see demerit calibrate)"
        return succeeded, "the model calls it a failure"

    return FilterCondition(f"a failure by the {by}", ask_label if by == "labels" else ask_model)


def need_no_kind(name: str) -> FilterCondition:
    """Drop episodes with a labelled failure of a kind of the taxonomy."""

    def judge(episode: Episode, _: Reward) -> Judgement:
        kinds = {event.kind for one in episode.outcomes for event in one.events}
        if not kinds and (episode.outcome is None or episode.outcome.success is not True):
            return None, NO_LABEL if episode.outcome is None else "a label that names no kind of failure"
        return name not in kinds, f"failure kind {name}"

    return FilterCondition(f"failure kind {find_kind(name).name}", judge)


def need_rule(rule: Rule) -> FilterCondition:
    """Drop episodes at whose end the rule does not hold."""

    def judge(episode: Episode, _: Reward) -> Judgement:
        (reward,) = rule.score([episode])
        if math.isnan(reward.final):
            return None, reward.why_missing
        return reward.final > 0, f"{rule.card.name} broken: robustness {reward.final:.3g}"

    return FilterCondition(f"{rule.card.name} broken", judge)


@dataclass(frozen=True)
class KeepBest:
    """Keep a share (`50%`) or a number of the scored episodes, highest final values first, of each task or of all.

    It looks at all scored episodes, also at those that another condition drops; of equal ones the first are kept.
    """

    most: str
    per_task: bool = False

    def __post_init__(self) -> None:
        """Validate."""
        number = re.fullmatch(r"(\d+(?:\.\d+)?)%|\d+", self.most.strip())
        if number is None or not 0 < float(self.most.strip().rstrip("%")) <= (100 if number[1] else math.inf):
            raise BadInput("--keep-best", "a share such as 50%, or a number of episodes", repr(self.most))

    @property
    def drops(self) -> str:
        """What is dropped, in words."""
        return f"not among the best {self.most.strip()}{' of its task' * self.per_task}"

    def judge_all(self, scores: Sequence[EpisodeScore]) -> list[Judgement]:
        """Judge every episode."""
        found: list[Judgement] = [(None, score.unscored) for score in scores]
        groups: dict[str, list[int]] = {}
        for i, score in enumerate(scores):
            if not math.isnan(score.final):
                groups.setdefault(normalize_instruction(score.instruction) if self.per_task else "", []).append(i)
        number = float(self.most.strip().rstrip("%"))
        for group in groups.values():
            count = math.ceil(len(group) * number / 100 - 1e-9) if "%" in self.most else int(number)
            for place, i in enumerate(sorted(group, key=lambda i: -scores[i].final), 1):
                why = f"final value {scores[i].final:.4g} is number {place} of {len(group)}; the best {count} stay"
                found[i] = place <= count, why
        return found


# The decision


def decide(
    episodes: Iterable[tuple[Episode, Reward]],
    conditions: Sequence[FilterCondition],
    best: KeepBest | None = None,
    unscored: Unscored = "keep",
) -> FilterOutcome:
    """Keep the episodes that pass every condition; `unscored` says what happens to those that cannot be judged.

    Raises BadInput for a condition that can judge no episode, and at episodes that cannot be judged with `fail`.
    """
    names = [*(condition.drops for condition in conditions), *([] if best is None else [best.drops])]
    if not names:
        raise BadInput("conditions", "at least one, e.g. --min-final 0.5", "none")
    scores, judged = list[EpisodeScore](), list[list[Judgement]]()
    for episode, reward in episodes:
        scores.append(EpisodeScore.of(replace(reward, episode=episode.id), SeenEpisode.of(episode), ""))
        judged.append([condition.judge(episode, reward) for condition in conditions])
    for row, ranked in zip(judged, [] if best is None else best.judge_all(scores), strict=best is not None):
        row.append(ranked)
    for place, name in enumerate(names):
        if judged and all(row[place][0] is None for row in judged):
            got = f"none: {judged[0][place][1]}, e.g. {scores[0].id}"
            raise BadInput(f"condition {name!r}", f"some of {count_episodes(len(scores))} to judge", got)
    decisions = []
    for score, row in zip(scores, judged, strict=True):
        fails = {name: why for name, (passes, why) in zip(names, row, strict=True) if passes is False}
        unclear = {name: why for name, (passes, why) in zip(names, row, strict=True) if passes is None}
        decisions.append(FilterDecision(score, not fails and not (unclear and unscored == "drop"), fails, unclear))
    outcome = FilterOutcome(decisions, names)
    if unscored == "fail" and (unclear_counts := outcome.undecided()):
        (why, _), count = unclear_counts.most_common(1)[0]
        got = f"{unclear_counts.total()} that cannot be ({count}: {why})"
        raise BadInput("--unscored fail", "episodes that can all be judged", got)
    return outcome


def write_view(
    outcome: FilterOutcome,
    dataset: Dataset,
    dest: str | Path,
    header: Mapping[str, Any],
    scored: ScoredDataset | None = None,
) -> FilterOutcome:
    """Write the view: whole, or nothing. Return the decisions; a kept episode that cannot be read is dropped after all.

    Args:
        outcome: what to keep.
        dataset: the source.
        dest: a new folder.
        header: facts for filter.json.
        scored: rewards to take along.
    """
    if not outcome.kept:
        counts = "; ".join(f"{count}: {name}" for name, count in outcome.dropped_by().items())
        raise BadInput("conditions", "some that keep an episode", f"all {len(outcome.decisions)} dropped ({counts})")
    kept = frozenset(outcome.kept)
    with atomic_folder(dest) as folder:
        import_dataset(Dataset(_KeptReader(dataset, kept), address=f"filter:{dataset.address}"), folder)
        readable = set(Store(folder).ids())
        lost = {"unreadable": "its video cannot be read"}
        decisions = [
            one if not one.kept or one.score.id in readable else replace(one, kept=False, reasons=lost)
            for one in outcome.decisions
        ]
        outcome = replace(outcome, decisions=decisions)
        lines = (json.dumps(one.as_dict(), ensure_ascii=False, allow_nan=False) for one in decisions)
        write_atomic(folder / DECISIONS, ("\n".join(lines) + "\n").encode())
        found = outcome.as_dict()
        write_json(folder / SUMMARY, {"source": dataset.address, **header, **found})
        for name, file in (("kept", KEPT), ("dropped", DROPPED)):
            if found["lerobot"]:
                write_atomic(folder / file, json.dumps(found["lerobot"][name], separators=(",", ":")).encode())
        if scored is not None:
            _copy_rewards(scored.store, readable, folder / "rewards" / scored.store.root.name)
    return outcome


def _copy_rewards(source: RewardStore, ids: set[str], folder: Path) -> None:
    header = {name: source.manifest.header.get(name) for name in ("dataset", "address", "frames")}
    target, card, on_record = RewardStore.open_or_create(folder, source.card, header), source.card, source.on_record()
    rows = ((one, on_record[one.episode].fingerprint) for one in source if one.episode in ids)
    with target.writer(card) as writer:
        for some in iter(lambda: list(islice(rows, AT_ONCE)), []):
            writer.commit(some)


@dataclass(frozen=True)
class _KeptReader:
    """The kept episodes of a dataset, and the preferences between them. Satisfies `DatasetReader`."""

    dataset: Dataset
    kept: frozenset[str]

    @property
    def name(self) -> str:
        return self.dataset.name

    def expected(self) -> int:
        return len(self.kept)

    def records(self) -> Iterator[Record]:
        for record in self.dataset.records():
            wanted = {record.a, record.b} if isinstance(record, Preference) else {record.id}
            if wanted <= self.kept:
                yield record
