"""`gvl`: any vision-language model behind an OpenAI-compatible server rates the shuffled frames of an episode.

The frames are shown in random order, the first one as an anchor with the value 0, and the model gives each a
percentage; so it cannot simply count upwards. Examples of bad behaviour in the prompt (`gvl:text`, `gvl:video`,
`gvl:dense`) show it what failure is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from demerit.data.dataset import Record
from demerit.data.episode import Episode
from demerit.data.frames import short_hash, spread
from demerit.data.reward import Reward
from demerit.errors import BadInput
from demerit.llm import ChatClient, ScoringEstimate, Spending
from demerit.models.gvl.config import GVLConfig
from demerit.models.gvl.distil import Distillation, DistillationConfig, distil
from demerit.models.gvl.library import Library
from demerit.models.gvl.prompt import prompts_hash
from demerit.models.gvl.query import EpisodeAnswers, Prompter, SampledCurve, group_reasons, mean_and_spread
from demerit.models.protocol import ModelCard
from demerit.registry import load_attribute

ESTIMATED_FROM = 8
"""episodes that an estimate looks at"""
DIGITS = 4
_EXAMPLES = {
    "none": "no examples",
    "text": "descriptions of failures",
    "video": "descriptions and pictures of failures",
    "dense": "descriptions and pictures of failures and values per step",
}


class GVL:
    """Progress of shuffled frames, as a vision-language model sees it."""

    def __init__(
        self,
        options: str = "",
        *,
        examples: Library | Iterable[Record] | str | Path | None = None,
        client: ChatClient | None = None,
        **changes: Any,
    ) -> None:
        """Prepare; nothing is sent.

        Args:
            options: as in `gvl:dense,samples=3,examples=my_set` (see `GVLConfig`).
            examples: where examples of bad behaviour come from; needed for every context but none.
            client: the client to use; None makes or shares one by the options (url, model, cache ...).
            **changes: options by name.
        """
        load_attribute("openai:OpenAI", "the model 'gvl'")  # one error now instead of one per episode
        if client is not None:
            changes = {**changes, "model": client.endpoint.model}
        self.config = config = GVLConfig.read(options, changes)
        self.library: Library | None = None
        if config.context != "none":
            examples = config.examples if examples is None else examples
            if examples == "":
                expected = f"a demerit folder with failed rollouts: gvl:{config.context},examples=FOLDER"
                raise BadInput(f"gvl:{config.context}", expected, "none")
            self.library = Library.open(examples)
        self.client = config.client() if client is None else client
        self.prompter = Prompter(self.client, config, self.library)
        self.card = _make_card(config, self.library)

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Ask about each episode; what is not answered, or not readably, is unscored with the reason."""
        return [self._make_reward(answers) for answers in self.prompter.ask(episodes)]

    def estimate(self, episodes: Iterable[Episode]) -> ScoringEstimate:
        """Estimate the cost of scoring without sending anything: looks at a few episodes and scales up."""
        given = list(episodes)
        looked = [given[index] for index in spread(len(given), ESTIMATED_FROM)]
        contexts = self.prompter.contexts(looked, offline=True)
        answers = [
            EpisodeAnswers(episode, context, [None] * self.config.samples)
            for episode, context in zip(looked, contexts, strict=True)
        ]
        requests = [*self.prompter.requests(answers, self.config.temperature, [])]
        found = self.client.estimate([*requests, *self.prompter.description_requests(looked)])
        return ScoringEstimate.scaled(found, len(given), len(looked))

    def distil(self, records: Iterable[Record], config: DistillationConfig | None = None) -> Distillation:
        """Make values per step for rejected rollouts by preference-guided self-distillation, without examples."""
        return distil(Prompter(self.client, replace(self.config, context="none")), records, config)

    def close(self) -> None:
        """Close the connections; the next request opens them again."""
        self.client.close()

    @property
    def spent(self) -> Spending:
        """What the client sent and paid so far; models may share a client."""
        return self.client.spent

    def _make_reward(self, answers: EpisodeAnswers) -> Reward:
        name, episode, received = self.card.name, answers.episode, answers.received_samples()
        samples = [sample for sample in received if sample.answered]
        given = self._given(answers)
        if answers.error or not samples:
            return Reward.unscored(name, episode.id, answers.error or _reasons(received), given)
        mean, deviation, count = mean_and_spread(samples)
        given |= {"answers": len(samples), "ignored entries": sum(sample.ignored for sample in samples)}
        if len(samples) < len(answers.samples):
            given["unanswered"] = [_reasons([sample]) for sample in received if not sample.answered]
        if self.config.samples > 1:
            given |= _describe_spread(deviation, count, len(samples))
        at = samples[0].at
        missing = {
            int(index): "; ".join(
                dict.fromkeys(sample.why[int(index)] for sample in samples if int(index) in sample.why)
            )
            for index in at[np.isnan(mean)]
        }
        return Reward(name, episode.id, at, mean.astype(np.float32), None, group_reasons(missing), given)

    def _given(self, answers: EpisodeAnswers) -> dict[str, Any]:
        received = answers.received_samples()
        return {
            "camera": answers.episode.main_camera,
            "frames": len(received[0].at) if received else 0,
            "instruction": bool(answers.episode.instruction.strip()),
            "pixels": True,
            "image size": self.config.size,
            "anchor": "the first frame, 0 by definition",
            "model": self.client.endpoint.model,
            "temperature": self.config.temperature,
            "samples": self.config.samples,
            **answers.context.given,
        }


def _make_card(config: GVLConfig, library: Library | None) -> ModelCard:
    identity = [config.identity, prompts_hash(), library.identity if library is not None else ""]
    several = f"the mean of {config.samples} answers" if config.samples > 1 else "one answer"
    return ModelCard(
        name="gvl" if config.context == "none" else f"gvl+{config.context}",
        revision=f"{config.model} prompt 1",
        licence="that of the model behind the server",
        quantity="progress",
        low=0.0,
        high=1.0,
        causal=False,
        comparable=True,
        frame_budget=config.frames,
        weights_hash=short_hash(json.dumps(identity, sort_keys=True).encode()),
        about=(
            f"Percentages by a vision-language model for {config.frames} shuffled frames of at most {config.size} "
            f"pixels, {several}, {_EXAMPLES[config.context]}. Not causal: all frames are in one prompt. Comparable "
            "between episodes, as 0 is the first frame and 100 the task done in each; an episode that starts half "
            "done is misjudged."
        ),
    )


def _reasons(samples: Sequence[SampledCurve]) -> str:
    """Return why no sample has a value."""
    reasons: dict[str, None] = {}
    for sample in samples:
        different = set(sample.why.values())
        reasons[different.pop() if len(different) == 1 else group_reasons(sample.why)] = None
    return "; ".join(reasons) or "nothing was asked"


def _describe_spread(deviation: Any, count: Any, samples: int) -> dict[str, Any]:
    """How far the samples are apart: standard deviation per frame (None with fewer than two) and its mean."""
    known = deviation[1:][~np.isnan(deviation[1:])]
    found: dict[str, Any] = {
        "spread": round(float(known.mean()), DIGITS) if known.size else None,
        "spread per frame": [None if np.isnan(value) else round(float(value), DIGITS) for value in deviation],
    }
    if bool(np.any(count < samples)):
        found["answers per frame"] = count.tolist()
    return found
