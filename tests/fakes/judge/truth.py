"""The simulated judge: answers demerit's prompts from the simulator's truth, with errors on purpose.

It recognises the images of a request (`album`), looks up what was measured, bends it by `JudgeErrors`, and writes the
JSON that a model would. It shows that the machinery around a model works; it says nothing about any real model.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from demerit.data.episode import Episode
from demerit.data.taxonomy import kinds
from demerit.errors import BadInput
from fakes.judge.album import Album, RecognisedRollout, signature_of_bytes
from fakes.judge.error_model import Floats, JudgeErrors, ShownFailures, perceive
from fakes.judge.prompt_reader import ReadPrompt, read_prompt
from fakes.judge.server import Request

NAME = "simulated-judge"
"""the only model name that it answers to, so that no report takes it for a real one"""
UNKNOWN = "This simulated judge knows only the images of its own dataset."
NOT_ASKED = "This simulated judge answers only demerit's own prompts."
NOT_NAMED = f"This is a simulation; ask for the model {NAME}."
REMEMBERED = 2048
WORST_VALUES = 0.5
"""examples whose values are off by this much help no more than their images"""
USUAL_MOST = 5

HINTS: dict[str, tuple[str, ...]] = {
    "collision": ("collision", "collide", "bump", "knock", "hits the scene"),
    "dropped": ("drop", "let go", "slip", "falls", "fell", "fallen"),
    "excessive force": ("force", "slam", "crush", "press"),
    "hesitation": ("hesita", "pause", "without motion", "stands still"),
    "incomplete": ("incomplete", "stops at progress", "stops before", "not finished", "unfinished", "gives up"),
    "missed grasp": ("miss", "closed on nothing", "closes on nothing", "empty"),
    "not released": ("not released", "still in the gripper", "never lets go", "holds on"),
    "overshoot": ("overshoot", "goes past", "beyond the goal", "too far", "past the goal"),
    "undone": ("undone", "undo", "was done before", "done at some time", "taken back"),
    "wrong object": ("wrong object", "other object", "another object", "another thing"),
    "wrong place": ("wrong place", " m off", "beside the goal", "somewhere else", "elsewhere"),
}
"""words that name kinds of failure in a text"""


def kinds_in(text: str) -> list[str]:
    """Kinds of failure that a text names, the most frequent first."""
    low = text.lower()
    found = Counter({kind: sum(low.count(hint) for hint in hints) for kind, hints in HINTS.items()})
    return [kind for kind, count in found.most_common() if count]


def kinds_of(episode: Episode) -> frozenset[str]:
    """Kinds of failure that were measured in an episode, and the name of what it was made to do."""
    events = frozenset(event.kind for outcome in episode.outcomes for event in outcome.events)
    behaviour = episode.origin.tags.get("behaviour", "")
    return events | ({behaviour} if behaviour and behaviour != "expert" else frozenset())


class SimulatedJudge:
    """Answers the server's requests; the same question gets the same answer."""

    def __init__(self, episodes: Iterable[Episode], errors: JudgeErrors | None = None, seed: int = 0) -> None:
        """Remember the episodes (decodes every frame once).

        Args:
            episodes: simulated ones; their measured curves are the truth.
            errors: how wrong it is about rewards.
            seed: decides bias and noise.
        """
        self.album = Album(episodes)
        self.errors, self.seed = errors or JudgeErrors(), seed
        self._seen = lru_cache(maxsize=REMEMBERED)(self._recognise)

    def __call__(self, asked: Request) -> str:
        if asked.body.get("model") != NAME:
            return NOT_NAMED
        return self.answer(asked.body, asked.question)

    def answer(self, body: Mapping[str, Any], question: str = "") -> str:
        """Write the answer: JSON, or a sentence if the prompt is not demerit's. Another `question` has other noise."""
        prompt = read_prompt(body)
        if prompt.remarks:
            return _failures(prompt)
        if not prompt.frames:
            return NOT_ASKED
        anchor = () if prompt.anchor is None else (prompt.anchor,)
        seen = self._seen((*anchor, *prompt.frames.values()))
        if seen is None:
            return UNKNOWN
        return _frames(prompt, seen, self.values(seen.episode, self.shown_failures(prompt), question))

    def shown_failures(self, prompt: ReadPrompt) -> ShownFailures:
        """What the prompt's examples show; examples that did not fail are ignored."""
        rejected = [
            (self._seen(tuple(image for image, _ in shown)), [value for _, value in shown])
            for shown in prompt.rejected.values()
        ]
        graded = [(seen, values) for seen, values in rejected if seen is not None and _failed(seen.episode)]
        off = [float(np.mean(np.abs(_at(seen) - np.array(values)))) for seen, values in graded]
        return ShownFailures(
            text=frozenset(kinds_in(prompt.descriptions)),
            video=_shown([self._seen(tuple(shown)) for shown in prompt.failed.values()]),
            dense=_shown([seen for seen, _ in graded]),
            fidelity=max(0.0, 1 - float(np.mean(off)) / WORST_VALUES) if off else 1.0,
        )

    def values(self, episode: Episode, shown: ShownFailures, question: str = "") -> Floats:
        """Rate every frame of an episode, 0 to 1. Another `question` has other noise."""
        outcome = episode.outcome
        if outcome is None or outcome.curve is None:
            raise BadInput(f"episode {episode.id!r}", "one that the simulator measured", "none of those")
        values = perceive(outcome, kinds_of(episode), shown, self.errors)
        bias = self._random("bias", episode.id).normal(0, self.errors.bias)
        noise = self._random("noise", episode.id, question).normal(0, self.errors.noise, len(values))
        return np.clip(values + bias + noise, 0, 1)

    def _recognise(self, images: tuple[bytes, ...]) -> RecognisedRollout | None:
        try:
            return self.album.recognise([signature_of_bytes(image) for image in images])
        except BadInput:
            return None

    def _random(self, *purpose: str) -> np.random.Generator:
        text = "\0".join([str(self.seed), *purpose])
        return np.random.default_rng(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little"))


def _frames(prompt: ReadPrompt, seen: RecognisedRollout, values: Floats) -> str:
    at = zip(prompt.frames, seen.frames[len(seen.frames) - len(prompt.frames) :], strict=True)
    entries = [
        {"frame": number, "description": "simulated", "percent": round(100 * float(values[frame]))}
        for number, frame in at
    ]
    return json.dumps({"frames": entries})


def _failures(prompt: ReadPrompt) -> str:
    known = {kind.name: kind.definition for kind in kinds()}
    found = [known[kind] for kind in kinds_in(prompt.remarks) if kind in known]
    return json.dumps({"failures": found[: prompt.most or USUAL_MOST]})


def _failed(episode: Episode) -> bool:
    return episode.outcome is not None and episode.outcome.success is False


def _shown(examples: Sequence[RecognisedRollout | None]) -> frozenset[str]:
    failed = [example.episode for example in examples if example is not None and _failed(example.episode)]
    return frozenset().union(*(kinds_of(episode) or {"unnamed"} for episode in failed))


def _at(seen: RecognisedRollout) -> Floats:
    outcome = seen.episode.outcome
    curve = None if outcome is None else outcome.curve
    return np.array([np.nan if curve is None else curve[frame] for frame in seen.frames], dtype=np.float64)
