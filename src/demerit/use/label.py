"""Labels by a rule: whether each episode of a dataset folder fulfils it, with the source `rule`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from demerit.data.episode import Outcome
from demerit.data.store import Store
from demerit.models.rule import Rule


def label_by_rule(folder: str | Path, rule: Rule) -> tuple[Counter[bool], Counter[str]]:
    """Label the episodes of a dataset folder, in one commit; earlier labels by this rule are replaced, others stay.

    Returns how many fulfil the rule and do not, and why others have no label.
    """
    store, verdicts, unlabelled = Store(folder), Counter[bool](), Counter[str]()
    labels: dict[str, list[Outcome]] = {}
    for episode in store.episodes():
        kept = [label for label in episode.outcomes if (label.source, label.by) != ("rule", rule.card.name)]
        (reward,) = rule.score([episode])
        if np.isnan(reward.final):
            unlabelled[reward.why_missing] += 1
        else:
            note = f"robustness {reward.final:.4g}, rule {rule.card.weights_hash[:8]}"
            kept.append(Outcome("rule", success=reward.final > 0, note=note, by=rule.card.name))
            verdicts[reward.final > 0] += 1
        if len(kept) != len(episode.outcomes) or kept != list(episode.outcomes):
            labels[episode.id] = kept
    with store.writer() as writer:
        writer.relabel(labels)
    return verdicts, unlabelled
