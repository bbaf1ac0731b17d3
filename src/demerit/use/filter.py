"""A view of a dataset without the episodes that fail a condition. Nothing is copied or deleted.

A view is a demerit folder that refers to the videos of its source. It also holds

    decisions.jsonl         a line per episode of the source: kept or dropped, and why
    filter.json             the source, the model, the conditions and their counts
    rewards/MODEL/          the model's rewards of the kept episodes
    episodes_kept.json, episodes_dropped.json   LeRobot's episode indices, where the source is a LeRobot dataset

Its page is a grid of pictures of what goes and what stays, with value, label and reason, in one HTML file.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from markupsafe import Markup

from demerit.data.dataset import Dataset, DatasetReader
from demerit.data.episode import Episode, count_episodes, normalize_instruction
from demerit.data.files import atomic_folder, write_atomic, write_json
from demerit.data.formats.lerobot.reader import LeRobotReader
from demerit.data.importing import import_dataset
from demerit.data.quality import COMPARE, MEASURES, EpisodeQuality
from demerit.data.reward import Reward, VerdictCounts
from demerit.data.store import Store
from demerit.data.taxonomy import kind as find_kind
from demerit.errors import BadInput, DemeritError, UnknownName
from demerit.evaluate.reports.player import make_film, script_json
from demerit.models.reward_store import RewardStore, ScoredDataset
from demerit.models.rule import Rule
from demerit.models.score_summary import EpisodeScore, ShownEpisode
from demerit.web.pages import check_page, render

DECISIONS, SUMMARY, KEPT, DROPPED = "decisions.jsonl", "filter.json", "episodes_kept.json", "episodes_dropped.json"
LEROBOT_ID = re.compile(r"(?:^|/)episode_(\d+)$")
NO_MODEL = Reward.unscored("none", "none", "no model was given")
NO_LABEL = "no label"
AT_ONCE = 5000
"""rewards written at once"""

Unscored = Literal["keep", "drop", "fail"]
Judgement = tuple[bool | None, str]
"""whether an episode passes, None = it cannot be judged; and why not"""


FilterCondition = tuple[str, Callable[[Episode, Reward], Judgement]]
"""what is dropped, in words, and how an episode is judged"""
RankCondition = tuple[str, Callable[[Sequence[EpisodeScore]], list[Judgement]]]
"""the same for all episodes together"""


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
        shown = "instruction label label_source final success verdict why_unknown familiarity unscored".split()
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
        return [decision.score.id for decision in self.decisions if decision.kept]

    @property
    def verdicts(self) -> VerdictCounts:
        """The model's verdicts, with the warnings that belong to them."""
        scores = [decision.score for decision in self.decisions]
        return VerdictCounts.of_verdicts(
            (score.verdict for score in scores), dict.fromkeys(score.caution for score in scores)
        )

    def dropped_by(self) -> dict[str, int]:
        """Count the episodes that fail each condition; one may fail several."""
        counts = Counter(name for decision in self.decisions for name in decision.reasons)
        return {name: counts[name] for name in self.conditions} | counts

    def undecided(self) -> Counter[tuple[str, bool]]:
        """Count the episodes whose fate depended on the rule for unscored ones, by reason and whether kept."""
        unclear = (decision for decision in self.decisions if decision.undecided and not decision.reasons)
        return Counter((next(iter(decision.undecided.values())), decision.kept) for decision in unclear)

    def as_dict(self) -> dict[str, Any]:
        """Return counts, and LeRobot's episode indices (None for another dataset), as plain values."""
        unclear = [{"reason": why, "kept": kept, "episodes": n} for (why, kept), n in self.undecided().most_common()]
        matches = [(LEROBOT_ID.search(decision.score.id), decision.kept) for decision in self.decisions]
        indices: dict[str, list[int]] = {"kept": [], "dropped": []}
        for match, kept in matches:
            indices["kept" if kept else "dropped"] += [int(match[1])] if match else []
        return {
            "episodes": len(self.decisions),
            "kept": len(self.kept),
            "dropped": len(self.decisions) - len(self.kept),
            "dropped_by": self.dropped_by(),
            "undecided": unclear,
            "lerobot": indices if all(match for match, _ in matches) else None,
        }


# Conditions


def need_at_least(name: str, least: float, value: Callable[[Reward], float | None]) -> FilterCondition:
    """Drop episodes whose reward has a lower value of this name."""
    if not math.isfinite(least):
        raise BadInput(f"least {name}", "a finite number", least)

    def judge(_: Episode, reward: Reward) -> Judgement:
        number = None if math.isnan(reward.final) else value(reward)
        if number is None:
            return None, reward.why_missing or f"the model gives no {name}"
        return number >= least, f"{name} {number:.4g} < {least:g}"

    return f"{name} < {least:g}", judge


def need_success(by: Literal["model", "labels"]) -> FilterCondition:
    """Drop episodes that the model calls a failure, or whose most trusted label is a failure."""

    def ask_label(episode: Episode, _: Reward) -> Judgement:
        succeeded = None if episode.outcome is None else episode.outcome.success
        return succeeded, NO_LABEL if succeeded is None else "labelled a failure"

    def ask_model(_: Episode, reward: Reward) -> Judgement:
        verdict = reward.verdict
        return verdict.success, str(verdict) if verdict.success is None else "the model calls it a failure"

    return f"a failure by the {by}", ask_label if by == "labels" else ask_model


def need_no_kind(name: str) -> FilterCondition:
    """Drop episodes with a labelled failure of a kind of the taxonomy."""

    def judge(episode: Episode, _: Reward) -> Judgement:
        kinds = {event.kind for label in episode.labels for event in label.events}
        if not kinds and (episode.outcome is None or episode.outcome.success is not True):
            return None, NO_LABEL if episode.outcome is None else "a label that names no kind of failure"
        return name not in kinds, f"failure kind {name}"

    return f"failure kind {find_kind(name).name}", judge


def need_rule(rule: Rule) -> FilterCondition:
    """Drop episodes at whose end the rule does not hold."""

    def judge(episode: Episode, _: Reward) -> Judgement:
        (reward,) = rule.score([episode])
        if math.isnan(reward.final):
            return None, reward.why_missing
        return reward.final > 0, f"{rule.card.name} broken: robustness {reward.final:.3g}"

    return f"{rule.card.name} broken", judge


def parse_quality(text: str) -> tuple[str, str, float]:
    """Read a condition on a column of quality: `stalls<0.5` is its name, the comparison and the limit."""
    match = re.fullmatch(r"\s*(\w+)\s*(<=|>=|<|>)\s*(-?[0-9]*[.]?[0-9]+)\s*", text)
    if match is None:
        raise BadInput("--quality", f"a condition such as 'stalls<0.5', on {', '.join(MEASURES)}", repr(text))
    if match[1] not in MEASURES:
        raise UnknownName("column of quality", match[1], MEASURES)
    return match[1], match[2], float(match[3])


def need_quality(name: str, comparison: str, limit: float, rows: Mapping[str, EpisodeQuality]) -> FilterCondition:
    """Drop episodes whose column of quality does not compare so with the limit."""

    def judge(episode: Episode, _: Reward) -> Judgement:
        value = rows[episode.id][name] if episode.id in rows else None
        if value is None:
            return None, f"no {name}: it lacks the signal or the clock"
        return COMPARE[comparison](value, limit), f"{name} {value:.4g}, not {comparison} {limit:g}"

    return f"{name} not {comparison} {limit:g}", judge


def need_best(most: str, per_task: bool = False) -> RankCondition:
    """Keep a share (`50%`) or a number of the scored episodes, highest final values first, of each task or of all.

    It looks at all scored episodes, also at those that another condition drops; of equal ones the first are kept.
    """
    is_number, is_share = re.fullmatch(r"\d+(\.\d+)?%|\d+", most.strip()), "%" in most
    number = float(most.strip().rstrip("%")) if is_number else 0.0
    if not 0 < number <= (100 if is_share else math.inf):
        raise BadInput("--keep-best", "a share such as 50%, or a number of episodes", repr(most))

    def judge_all(scores: Sequence[EpisodeScore]) -> list[Judgement]:
        judged: list[Judgement] = [(None, score.unscored) for score in scores]
        groups: dict[str, list[int]] = {}
        for i, score in enumerate(scores):
            if not math.isnan(score.final):
                groups.setdefault(normalize_instruction(score.instruction) if per_task else "", []).append(i)
        for group in groups.values():
            count = math.ceil(len(group) * number / 100 - 1e-9) if is_share else int(number)
            for place, i in enumerate(sorted(group, key=lambda i: -scores[i].final), 1):
                why = f"final value {scores[i].final:.4g} is number {place} of {len(group)}; the best {count} stay"
                judged[i] = place <= count, why
        return judged

    return f"not among the best {most.strip()}{' of its task' * per_task}", judge_all


# The decision


def decide(
    episodes: Iterable[tuple[Episode, Reward]],
    conditions: Sequence[FilterCondition],
    best: RankCondition | None = None,
    unscored: Unscored = "keep",
) -> FilterOutcome:
    """Keep the episodes that pass every condition; `unscored` says what happens to those that cannot be judged.

    Raises BadInput for a condition that can judge no episode, and at episodes that cannot be judged with `fail`.
    """
    names = [*(drops for drops, _ in conditions), *([] if best is None else [best[0]])]
    if not names:
        raise BadInput("conditions", "at least one, e.g. --min-final 0.5", "none")
    scores, judged = list[EpisodeScore](), list[list[Judgement]]()
    for episode, reward in episodes:
        scores.append(EpisodeScore.of(replace(reward, episode=episode.id), ShownEpisode.of(episode), ""))
        judged.append([judge(episode, reward) for _, judge in conditions])
    for row, ranked in zip(judged, [] if best is None else best[1](scores), strict=best is not None):
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

    `header` are facts for filter.json, `scored` are rewards to take along.
    """
    if not outcome.kept:
        counts = "; ".join(f"{count}: {name}" for name, count in outcome.dropped_by().items())
        raise BadInput("conditions", "some that keep an episode", f"all {len(outcome.decisions)} dropped ({counts})")
    kept = frozenset(outcome.kept)
    with atomic_folder(dest) as folder:
        import_dataset(dataset.where(lambda episode: episode.id in kept, f"filter:{dataset.address}"), folder)
        readable = set(Store(folder).ids())
        reasons = {"unreadable": "its video cannot be read"}
        decisions = [
            decision
            if not decision.kept or decision.score.id in readable
            else replace(decision, kept=False, reasons=reasons)
            for decision in outcome.decisions
        ]
        outcome = replace(outcome, decisions=decisions)
        lines = (json.dumps(decision.as_dict(), ensure_ascii=False, allow_nan=False) for decision in decisions)
        write_atomic(folder / DECISIONS, ("\n".join(lines) + "\n").encode())
        summary = outcome.as_dict()
        write_json(folder / SUMMARY, {"source": dataset.address, **header, **summary})
        for name, file in (("kept", KEPT), ("dropped", DROPPED)):
            if summary["lerobot"]:
                write_atomic(folder / file, json.dumps(summary["lerobot"][name], separators=(",", ":")).encode())
        if scored is not None:
            _copy_rewards(scored.store, readable, folder / "rewards" / scored.store.root.name)
    return outcome


def write_edit_line(reader: DatasetReader, indices: Sequence[int]) -> str:
    """Return the command of LeRobot's own tool that writes a copy without these episodes; empty for other formats.

    With `HF_LEROBOT_HOME` it reads and writes the same places in LeRobot 0.4 to 0.6.
    """
    if not isinstance(reader, LeRobotReader) or not indices:
        return ""
    root = reader.info.root.resolve()
    words = [f"--repo_id={root.name}", f"--new_repo_id={root.name}_kept", "--operation.type=delete_episodes"]
    words.append(f"--operation.episode_indices=[{', '.join(map(str, indices))}]")
    return f"HF_LEROBOT_HOME={shlex.quote(str(root.parent))} {shlex.join(['lerobot-edit-dataset', *words])}"


def _copy_rewards(source: RewardStore, ids: set[str], folder: Path) -> None:
    header = {name: source.manifest.header.get(name) for name in ("dataset", "address", "frames")}
    target, card, on_record = RewardStore.open_or_create(folder, source.card, header), source.card, source.on_record()
    rows = ((reward, on_record[reward.episode].fingerprint) for reward in source if reward.episode in ids)
    with target.writer(card) as writer:
        for batch in iter(lambda: list(islice(rows, AT_ONCE)), []):
            writer.commit(batch)


PICTURE_HEIGHT = 84


def write_filter_page(
    outcome: FilterOutcome,
    dataset: Dataset,
    path: str | Path,
    model: str = "",
    pictures: int = 600,
    on_picture: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Write the page atomically, with the final values of `model` (a name).

    At most so many episodes have a picture, the dropped ones first; `on_picture` is called after each with their number
    and the total.
    """
    check_page(Path(path), "filter")
    dropped_first = sorted(outcome.decisions, key=lambda decision: decision.kept)
    wanted = {decision.score.id for decision in dropped_first[:pictures]}
    films: dict[str, str] = {}
    for episode in dataset:
        if episode.id in wanted:
            films[episode.id] = _draw(episode)
            on_picture(len(films), len(wanted))
    rows = (_row(decision, films.get(decision.score.id, "")) for decision in outcome.decisions)
    facts = outcome.as_dict()
    text = render(
        "filter.html.j2",
        scripts=("filter.js",),
        rows=Markup(script_json(rows)),
        name=dataset.name,
        address=dataset.address,
        model=model,
        pictures=len(wanted),
        warnings=outcome.verdicts.warnings,
        **{name: facts[name] for name in ("episodes", "kept", "dropped", "dropped_by", "undecided", "lerobot")},
    )
    write_atomic(path, text.encode())


def _draw(episode: Episode) -> str:
    try:
        return make_film(episode.main, 2, PICTURE_HEIGHT)
    except DemeritError:
        return ""  # the grid says that there is no picture


def _row(one: FilterDecision, film: str) -> dict[str, Any]:
    facts = one.as_dict()
    value = None if facts["final"] is None else round(facts["final"], 4)
    reason = "; ".join([*facts["reasons"], *dict.fromkeys(f"not judged: {why}" for why in one.undecided.values())])
    shown = {name: facts[name] for name in ("episode", "instruction", "label", "kept")}
    return {**shown, "value": value, "reason": reason, "film": film}
