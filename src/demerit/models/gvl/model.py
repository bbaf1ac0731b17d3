"""GVL: any vision-language model behind an OpenAI-compatible server, asked how far each shuffled frame has come.

The frames of an episode are shown in random order, the first one as an anchor that is worth 0, and the model gives a
percentage for each; so it cannot simply count upwards. Examples of bad behaviour in the prompt (`gvl:text`,
`gvl:video`, `gvl:dense`) tell it what failure is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from demerit.data.episode import Episode
from demerit.data.frames import short_hash, spread
from demerit.data.reward import Reward
from demerit.errors import BadInput
from demerit.llm import ChatClient, Estimate, Spending
from demerit.models.gvl.distil import DistillationConfig, Distilled, distil
from demerit.models.gvl.examples import Examples, open_library
from demerit.models.gvl.query import Asked, Prompter, Sample, grouped, mean_and_spread
from demerit.models.gvl.retrieval import Library
from demerit.models.gvl.settings import GVLConfig
from demerit.models.gvl.wording import words_hash
from demerit.models.protocol import ModelCard
from demerit.registry import load_attribute

LOOKED_AT = 8
"""episodes that an estimate looks at"""
DIGITS = 4


@dataclass(frozen=True)
class Outlook:
    """What scoring would take."""

    estimate: Estimate
    episodes: int
    looked_at: int
    """the estimate is scaled up from so many episodes"""

    def __str__(self) -> str:
        """Say it in a line."""
        scaled = "" if self.looked_at == self.episodes else f", from a look at {self.looked_at} of them"
        return f"{self.episodes} episodes{scaled}: {self.estimate}"


class GVL:
    """Progress of shuffled frames, as a vision-language model sees it."""

    def __init__(
        self, options: str = "", *, examples: Examples | None = None, chat: ChatClient | None = None, **changes: Any
    ) -> None:
        """Prepare; nothing is sent.

        Args:
            options: as in `gvl:dense,samples=3,examples=my_set` (see `demerit.models.gvl.settings.GVLConfig`).
            examples: where examples of bad behaviour come from; needed for every context but none.
            chat: a client to use, instead of one made from the settings (url, model, cache ...).
            **changes: settings by name.
        """
        load_attribute("openai:OpenAI", "the model 'gvl'")  # one sentence now is better than one per episode later
        if chat is not None:
            changes = {**changes, "model": chat.endpoint.model}
        self.settings = GVLConfig.read(options, changes)
        self.library: Library | None = None
        if self.settings.context != "none":
            self.library = open_library(self._required(examples if examples is not None else self.settings.examples))
        self.chat = self.settings.chat() if chat is None else chat
        self.prompter = Prompter(self.chat, self.settings, self.library)
        self.card = _card(self.settings, self.library)

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Ask about each episode; what was not answered, or not readably, is unscored with the reason."""
        return [self._reward(asked) for asked in self.prompter.ask(episodes)]

    def estimate(self, episodes: Iterable[Episode]) -> Outlook:
        """Say what scoring would take, without sending anything: looks at a few episodes and scales up."""
        given = list(episodes)
        looked = [given[index] for index in spread(len(given), LOOKED_AT)]
        prompter, asks = self.prompter, []
        for episode, context in zip(looked, prompter.contexts(looked, offline=True), strict=True):
            places: list[Any] = []
            asked = Asked(episode, context, [None] * self.settings.samples)
            asks += list(prompter.stream([asked], self.settings.temperature, places))
        found = self.chat.estimate([*asks, *prompter.feedback_asks(looked)])
        return Outlook(_scaled(found, len(given) / max(len(looked), 1)), len(given), len(looked))

    def distil(self, records: Iterable[Any], plan: DistillationConfig | None = None) -> Distilled:
        """Make values per step for rejected rollouts, by preference-guided self-distillation (without examples)."""
        plain = Prompter(self.chat, self.settings.with_context("none"))
        return distil(plain, records, plan)

    def close(self) -> None:
        """Hang up; a client that was given is somebody else's too, so close the last model that uses it."""
        self.chat.close()

    @property
    def spent(self) -> Spending:
        """What was asked and paid so far."""
        return self.chat.spent

    def _required(self, examples: Examples) -> Examples:
        if isinstance(examples, str) and not examples:
            context = self.settings.context
            raise BadInput(
                f"gvl:{context}", f"a demerit folder with failed rollouts: gvl:{context},examples=FOLDER", "none"
            )
        return examples

    def _reward(self, asked: Asked) -> Reward:
        name, episode = self.card.name, asked.episode
        given = self._given(asked)
        samples = [sample for sample in asked.answered() if sample.answered]
        if asked.error or not samples:
            reason = asked.error or _nothing(asked.answered())
            return Reward.unscored(name, episode.id, reason, given)
        mean, deviation, count = mean_and_spread(samples)
        given |= {"answers": len(samples), "ignored entries": sum(sample.ignored for sample in samples)}
        if len(samples) < len(asked.samples):
            given["unanswered"] = [_nothing([one]) for one in asked.answered() if not one.answered]
        if self.settings.samples > 1:
            given |= _consistency(deviation, count, len(samples))
        at = samples[0].at
        missing = {int(index): _why(samples, int(index)) for index in at[np.isnan(mean)]}
        return Reward(name, episode.id, at, mean.astype(np.float32), None, grouped(missing) if missing else "", given)

    def _given(self, asked: Asked) -> dict[str, Any]:
        sample = next(iter(asked.answered()), None)
        return {
            "camera": asked.episode.main_camera,
            "frames": 0 if sample is None else len(sample.at),
            "instruction": bool(asked.episode.instruction.strip()),
            "pixels": True,
            "image size": self.settings.size,
            "anchor": "the first frame, 0 by definition",
            "model": self.chat.endpoint.model,
            "temperature": self.settings.temperature,
            "samples": self.settings.samples,
            **asked.context.given,
        }


def _card(settings: GVLConfig, library: Library | None) -> ModelCard:
    context = settings.context
    identity = [settings.facts(), words_hash(), library.identity if library is not None else ""]
    several = f"the mean of {settings.samples} answers" if settings.samples > 1 else "one answer"
    shown = {
        "none": "no examples",
        "text": "descriptions of failures",
        "video": "descriptions and pictures of failures",
        "dense": "descriptions and pictures of failures and values per step",
    }[context]
    return ModelCard(
        name="gvl" if context == "none" else f"gvl+{context}",
        revision=f"{settings.model} prompt 1",
        licence="that of the model behind the server",
        quantity="progress",
        low=0.0,
        high=1.0,
        causal=False,
        comparable=True,
        frame_budget=settings.frames,
        weights_hash=short_hash(json.dumps(identity, sort_keys=True).encode()),
        about=(
            f"Percentages by a vision-language model for {settings.frames} shuffled frames of at most {settings.size} "
            f"pixels, {several}, {shown}. Not causal: all frames are in one prompt. Comparable between episodes, as "
            "0 is the first frame and 100 the task done in each; an episode that starts half done is misjudged."
        ),
    )


def _nothing(samples: Sequence[Sample]) -> str:
    """Say why no sample has a value."""
    reasons = dict.fromkeys(
        reason
        for sample in samples
        for reason in (
            dict.fromkeys(sample.why.values()) if len(set(sample.why.values())) == 1 else [grouped(sample.why)]
        )
    )
    return "; ".join(reasons) or "nothing was asked"


def _why(samples: Sequence[Sample], index: int) -> str:
    return "; ".join(dict.fromkeys(sample.why[index] for sample in samples if index in sample.why))


def _consistency(deviation: Any, count: Any, samples: int) -> dict[str, Any]:
    """How far the samples are apart: standard deviation per frame (None where fewer than two have it) and its mean."""
    judged = deviation[1:]
    known = judged[~np.isnan(judged)]
    found: dict[str, Any] = {
        "spread": round(float(known.mean()), DIGITS) if known.size else None,
        "spread per frame": [None if np.isnan(one) else round(float(one), DIGITS) for one in deviation],
    }
    if bool(np.any(count < samples)):
        found["answers per frame"] = count.tolist()
    return found


def _scaled(estimate: Estimate, factor: float) -> Estimate:
    def times(number: int) -> int:
        return round(number * factor)

    return replace(
        estimate,
        asks=times(estimate.asks),
        cached=times(estimate.cached),
        images=times(estimate.images),
        tokens_in=times(estimate.tokens_in),
        tokens_out=times(estimate.tokens_out),
        cost=None if estimate.cost is None else estimate.cost * factor,
    )
