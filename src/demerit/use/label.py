"""Labels by a rule: whether each episode of a dataset folder fulfils it, with the source `rule`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from demerit.data.labels import Outcome
from demerit.data.store import Store
from demerit.models.rule import Rule


@dataclass
class RuleLabels:
    """How many episodes fulfil a rule, and why others have no label."""

    holds: int = 0
    fails: int = 0
    unlabelled: Counter[str] = field(default_factory=Counter)


def label_by_rule(folder: str | Path, rule: Rule) -> RuleLabels:
    """Label the episodes of a dataset folder, in one commit; earlier labels by this rule are replaced, others stay."""
    store, counts = Store(folder), RuleLabels()
    labels: dict[str, list[Outcome]] = {}
    for episode in store.episodes():
        kept = [one for one in episode.outcomes if (one.source, one.by) != ("rule", rule.card.name)]
        (reward,) = rule.score([episode])
        if np.isnan(reward.final):
            counts.unlabelled[reward.why_missing] += 1
        else:
            note = f"robustness {reward.final:.4g}, rule {rule.card.weights_hash[:8]}"
            kept.append(Outcome("rule", success=reward.final > 0, note=note, by=rule.card.name))
            counts.holds, counts.fails = counts.holds + (reward.final > 0), counts.fails + (reward.final <= 0)
        if len(kept) != len(episode.outcomes) or kept != list(episode.outcomes):
            labels[episode.id] = kept
    with store.writer() as writer:
        writer.relabel(labels)
    return counts
