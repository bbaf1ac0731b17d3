"""What leaves an arena: a dump that anybody can rank again, agreement of reward models with people, a dataset.

The rewards of each model are in a folder as `demerit score` writes it. Only fresh ones count: given by the model as it
is now to the rollouts as they are now. A model that was taught again scores every trial again.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import sqlalchemy as sa
import yaml

from demerit.data.episode import Episode, Preferred, safe_name
from demerit.data.files import atomic_folder, read_json
from demerit.data.formats.roboarena import SESSIONS
from demerit.data.frames import Frames
from demerit.data.reward import Reward, UnknownReason, Verdict, VerdictCounts
from demerit.decide.interval import Share
from demerit.errors import BadInput, UnreadableVideo
from demerit.evaluate.metrics.policy_ranking import PairedComparison, rank_policies
from demerit.evaluate.metrics.ranking import judgement_agreement
from demerit.models.protocol import ModelCard, Prepares, RewardModel
from demerit.models.reward_store import MANIFEST, RewardStore, scored_fingerprint
from demerit.models.score import score_together
from demerit.people.arena.trials import ROLLOUTS, Trials
from demerit.people.arena.uploads import LOG

VERSION = 1
VERDICTS: Mapping[str, Preferred] = {"first": "a", "second": "b", "tie": "tie"}
DUMPED: tuple[str, ...] = ("id", "verdict", "instruction", "excluded")
DUMPED += tuple(f"{part}_{name}" for part in ROLLOUTS for name in ("progress", "success"))
"""columns of a trial that are in a dump as they are"""
ROW: Mapping[str, type] = {**dict.fromkeys(("site", "excluded", *ROLLOUTS), str), "models": dict}
"""what the results are computed from, besides the verdict"""
MOST = {"policies": 100, "sites": 1000, "bytes": 100_000_000}
"""of a dump"""
FEWEST = 10
"""decided trials; the share of fewer says nothing"""


# Scores of reward models


def score_trials(trials: Trials, model: RewardModel) -> Iterator[Reward]:
    """Score the rollouts of ended trials that have no fresh reward; yield each reward when it is stored."""
    card = model.card
    header = {"dataset": "arena", "address": str(trials.uploads.folder), "frames": None}
    store = RewardStore.open_or_create(trials.rewards / safe_name(card.name), card, header)
    stale = [episode for episode in trials.episodes() if not store.is_fresh(episode, card)]
    if not stale:
        return
    with store.writer(card) as writer:
        for episode in stale:
            reward = _score(trials, model, episode)
            writer.commit([(reward, scored_fingerprint(episode, card))])
            yield reward


def _score(trials: Trials, model: RewardModel, episode: Episode) -> Reward:
    """Score a rollout. Its videos are a stranger's: only the decoder of uploads opens them."""
    prepare = model.prepare if isinstance(model, Prepares) else None
    try:
        views = {
            camera: Frames(trials.uploads.decoder.decode(path, model.card.frame_budget, prepare))
            for camera, path in trials.uploads.files(*episode.id.split("/")).items()
        }
    except UnreadableVideo as error:
        return Reward.unscored(model.card.name, episode.id, str(error).rstrip("."))
    (reward,) = score_together(model, [replace(episode, views=views)])
    return reward


def read_rewards(trials: Trials, cards: Sequence[ModelCard] = ()) -> Iterator[tuple[str, dict[str, Reward]]]:
    """Yield each model's name and its fresh rewards by episode. `cards` are those of the models that score now."""
    now, episodes = {card.name: card for card in cards}, trials.episodes()
    for path in sorted(trials.rewards.glob(f"*/{MANIFEST}")):
        store = RewardStore(path.parent)
        card = now.get(store.card.name, store.card)
        fresh = {episode.id for episode in episodes if store.is_fresh(episode, card)}
        yield card.name, {reward.episode: reward for reward in store if reward.episode in fresh}


# Results


def make_dump(trials: Trials, cards: Sequence[ModelCard] = ()) -> dict[str, Any]:
    """Return everything that the results are computed from: verdicts, scores of models, no person but the sites."""
    scores: dict[str, dict[str, dict[str, Any]]] = {}
    verdicts: dict[str, dict[str, dict[str, Any]]] = {}
    for model, rewards in read_rewards(trials, cards):
        for id, reward in rewards.items():
            trial, _, part = id.rpartition("/")
            value = None if math.isnan(reward.final) else reward.final
            scores.setdefault(trial, {}).setdefault(model, {})[part] = value
            facts = {**reward.verdict.as_dict(), "caution": reward.caution}
            verdicts.setdefault(trial, {}).setdefault(model, {})[part] = facts
    rows = [
        {
            **{name: getattr(row, name) for name in DUMPED},
            **{name: getattr(row, f"{name}_name") for name in ("site", *ROLLOUTS)},
            "models": scores.get(row.id, {}),
            "model_verdicts": verdicts.get(row.id, {}),
        }
        for row in trials.rows()
    ]
    return {"format": "demerit-arena", "version": VERSION, "policies": trials.policies(), "trials": rows}


def write_dump(dump: Mapping[str, Any]) -> str:
    """Write a dump as text, always the same."""
    return json.dumps(dump, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def read_dump(path: Path) -> dict[str, Any]:
    """Read a dump that anybody may have written; raises BadInput."""
    if path.stat().st_size > MOST["bytes"]:
        raise BadInput(str(path), f"an arena's dump of at most {MOST['bytes']} bytes", path.stat().st_size)
    return read_json(path, "an arena's dump (JSON)")


def _check_dump(dump: Mapping[str, Any]) -> None:
    expected = f"format demerit-arena, version {VERSION}"
    if dump.get("format") != "demerit-arena" or dump.get("version") != VERSION:
        raise BadInput("arena dump", expected, (dump.get("format"), dump.get("version")))
    policies, rows = dump.get("policies"), dump.get("trials")
    if not isinstance(policies, list) or not isinstance(rows, list) or not all(isinstance(p, str) for p in policies):
        raise BadInput("arena dump", "lists of policies and trials", "something else")
    names = set(policies)
    for number, row in enumerate(rows, 1):
        if not _fits(row, names):
            raise BadInput(f"arena dump, trial {number}", "policies, site, verdict and scores as written", "others")
    for name, count in (("policies", len(policies)), ("sites", len({row["site"] for row in rows}))):
        if count > MOST[name]:
            raise BadInput("arena dump", f"at most {MOST[name]} {name}", count)


def _fits(row: Any, policies: Set[str]) -> bool:
    """Whether a trial has what the results are computed from."""
    try:
        scores = [value for parts in row["models"].values() for value in parts.values()]
        model_verdicts = [facts for parts in row.get("model_verdicts", {}).values() for facts in parts.values()]
        texts = [
            text
            for facts in model_verdicts
            for text in (facts["verdict"], facts.get("why_unknown"), facts.get("caution"))
        ]
        return (
            all(isinstance(row[name], kind) for name, kind in ROW.items())
            and row["first"] != row["second"]
            and {row["first"], row["second"]} <= policies
            and row["verdict"] in VERDICTS
            and all(value is None or type(value) in (int, float) for value in scores)
            and all(text is None or isinstance(text, str) for text in texts)
        )
    except (AttributeError, KeyError, TypeError):
        return False


def compute_results(dump: Mapping[str, Any]) -> dict[str, Any]:
    """Compute what is published from a dump alone.

    It is the `ranking` (None before the first comparison), the numbers of `trials` and `sites`, and how many trials are
    `excluded` for each reason. By reward model: `agreement`, how often it prefers what people preferred, and
    `verdicts`, what it says about the rollouts.
    """
    _check_dump(dump)
    rows = [row for row in dump["trials"] if not row["excluded"]]
    comparisons = [PairedComparison(row["first"], row["second"], _verdict(row), "a", row["site"]) for row in rows]
    return {
        "ranking": rank_policies(comparisons, dump["policies"]) if comparisons else None,
        "trials": len(rows),
        "sites": len({row["site"] for row in rows}),
        "excluded": dict(Counter(row["excluded"] for row in dump["trials"] if row["excluded"])),
        "agreement": _measure_agreement(rows),
        "verdicts": _count_verdicts(rows),
    }


def _measure_agreement(rows: Sequence[Mapping[str, Any]]) -> dict[str, Share]:
    """Measure, for each model, the share of decided trials in which it gives more to what people preferred.

    The interval is that of a share, and as wide as that of resampled sites where these differ in taste.
    """
    agreement = {}
    for model in sorted({model for row in rows for model in row["models"]}):
        values = [[_number(row["models"].get(model, {}).get(part)) for part in ROLLOUTS] for row in rows]
        verdicts = [_verdict(row) for row in rows]
        margin = [first - second for first, second in values]
        measure = judgement_agreement(margin, verdicts, clusters=[row["site"] for row in rows]).measure()
        share = Share.count(measure.value * measure.n, measure.n) if measure.known else Share.count(0, 0)
        if not math.isnan(measure.low):
            share = replace(share, low=min(share.low, measure.low), high=max(share.high, measure.high))
        agreement[model] = share
    return agreement


def tell_agreement(share: Share) -> str:
    """Return what can be said of a model's agreement with people."""
    return str(share) if share.n >= FEWEST else f"too few decided trials ({share.n} of {FEWEST})"


def _count_verdicts(rows: Sequence[Mapping[str, Any]]) -> dict[str, VerdictCounts]:
    verdicts: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        for model, parts in row.get("model_verdicts", {}).items():
            verdicts.setdefault(model, []).extend(parts.values())
    return {
        model: VerdictCounts.of_verdicts(
            map(read_verdict, facts), dict.fromkeys(fact["caution"] for fact in facts if fact.get("caution"))
        )
        for model, facts in sorted(verdicts.items())
    }


def read_verdict(facts: Mapping[str, Any]) -> Verdict:
    """Read what `Verdict.as_dict` returned."""
    success = {"success": True, "failure": False}.get(facts["verdict"])
    reason = facts.get("why_unknown")
    return Verdict(success, reason if reason in get_args(UnknownReason) else None, str(facts.get("detail", "")))


def _verdict(row: Mapping[str, Any]) -> Preferred:
    return VERDICTS[row["verdict"]]


def _number(value: float | None) -> float:
    return math.nan if value is None else value


# A RoboArena dataset


def export_roboarena(trials: Trials, dest: Path) -> int:
    """Write the trials that count, which `demerit import roboarena:FOLDER` reads back; return how many.

    A ran first. Videos are linked where the disk allows it.
    """
    rows = [row for row in trials.rows() if not row.excluded]
    with atomic_folder(dest) as folder:
        for row in rows:
            session = folder / SESSIONS / row.id
            for letter, part in (("A", "first"), ("B", "second")):
                place = session / f"{letter}_{safe_name(getattr(row, f'{part}_name'))}"
                place.mkdir(parents=True)
                for camera, path in trials.uploads.files(row.id, part).items():
                    _link(path, place / f"{camera}.mp4")
                if (log := trials.uploads.path(row.id, part, LOG)) is not None:
                    _link(log, place / LOG)
            _write(session / "metadata.yaml", _metadata(row))
        _write(folder / "global_metadata.yaml", {"policy_index": {name: {} for name in trials.policies()}})
    return len(rows)


def _metadata(row: sa.Row[Any]) -> dict[str, Any]:
    times = [datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds") for at in (row.started, row.ended)]
    return {
        "language_instruction": row.instruction,
        "preference": {"first": "A", "second": "B"}.get(row.verdict, "TIE"),
        "longform_feedback": row.feedback,
        "evaluator_name": row.site_name,
        "evaluation_location": row.site_name,
        "session_creation_timestamp": times[0],
        "session_completion_timestamp": times[1],
        "policies": {
            letter: {
                "policy_name": getattr(row, f"{part}_name"),
                "binary_success": int(getattr(row, f"{part}_success")),
                "partial_success": getattr(row, f"{part}_progress"),
            }
            for letter, part in (("A", "first"), ("B", "second"))
        },
    }


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk
        shutil.copyfile(source, target)


def _write(path: Path, facts: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(facts, allow_unicode=True, sort_keys=False), encoding="utf-8")
