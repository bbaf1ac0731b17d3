"""RoboReward: a Qwen3-VL that was trained to grade whole episodes from 1 (nothing done) to 5 (perfect).

demerit score my_set --model roboreward              the 8B from the hub, the grade's distribution from its logits
demerit score my_set --model roboreward:4b,how=decode
demerit score my_set --model roboreward:path=./my-checkpoint
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from demerit.data.episode import Episode
from demerit.data.reward import Reward
from demerit.errors import BadInput, DemeritError
from demerit.models.by_time import MOST_A_SECOND, ByTime
from demerit.models.listing import Listing
from demerit.models.protocol import ModelCard
from demerit.models.published.naming import filed_under
from demerit.models.published.options import at_least, need_extra, one_of, placed, read_options, together
from demerit.models.published.scoring import NO_NUMBER, Failed, each, one_ahead, told, unscored
from demerit.models.vlm.words import words

if TYPE_CHECKING:
    from demerit.models.vlm.grades import Graded, Grader
    from demerit.models.vlm.video import Clip

LOGITS, DECODE = "logits", "decode"
MOST_FRAMES = 64
TRUST = 0.5
DIGITS = 4
OWN = {"size": str, "how": str, "frames": int, "fps": float, "trust": float}
LICENCE = "CC-BY-4.0 (as its hub card says; not verified here)"
VERIFIED = (
    "Verified here on random weights of the same layout: prompt tokens, positions and states as transformers has them, "
    "decoding as its generate, both ways of grading against each other. Not verified here: the published weights and "
    "their benchmark figures, and the picture size that they were trained with (the checkpoint's own bounds are used)."
)
ABOUT = (
    "A grade from 1 to 5 for the whole episode, at its last frame, from task and video at {fps:g} frames a second with "
    "the true final frame (at most {frames}); {how}. "
)


class RoboReward:
    """An episode's grade, at its last frame."""

    listing = Listing(
        quantity="grade",
        low=1.0,
        high=5.0,
        causal=False,
        licence="CC-BY-4.0, as its card says",
        frames="1 a second",
        extra="vlm",
        verified="random weights of the same layout; not the published weights",
        about="Qwen3-VL trained to grade whole episodes from 1 to 5; 8b or 4b, grade from logits or decoded.",
    )

    def __init__(self, options: str = "", **changes: Any) -> None:
        """Find and check the checkpoint; weights are loaded when the first episode comes.

        Args:
            options: `8b` or `4b`, and options with = between name and value, commas between them.
            **changes: options by name: path (a folder or a hub id), revision, adapter, device, dtype; at_once (tokens
                computed together: less memory, a little slower); how (`logits` for the distribution of the grade,
                `decode` for the written answer), frames (at most so many), fps, trust (the least probability that must
                lie on the five grades; below it the answer is unreadable).
        """
        need_extra("roboreward")
        from demerit.models.vlm.backbone import Backbone  # noqa: PLC0415  torch, only now

        given = read_options("roboreward", options, changes, OWN, "size")
        self._at_once = together(given)
        self._words = words("roboreward")
        known: Mapping[str, str] = self._words["checkpoints"]
        size = one_of("roboreward", str(given.get("size", "8b")), tuple(known))
        self.how = one_of("how", given.get("how", LOGITS), (LOGITS, DECODE))
        self.trust = float(given.get("trust", TRUST))
        if not 0 <= self.trust <= 1:
            raise BadInput("trust", "a probability", self.trust)
        self.wanted = ByTime(
            1 / _positive(given.get("fps", 1.0)), at_least("frames", given.get("frames", MOST_FRAMES), 2)
        )
        path = given.get("path") or known[size]
        self.backbone = Backbone.open(path, **placed(given))
        published = {place: f"roboreward-{each}" for each, place in known.items()}
        self.card = self._card(filed_under(path, given.get("adapter"), published, "roboreward-"))

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Grade every episode; an answer that cannot be read is unscored with what was said."""
        if self.how == DECODE:
            return self._decoded(episodes)
        # one at a time, so that a grade never depends on what else was in the batch
        return each(self.card.name, episodes, self._clip, self._from_logits)

    def graded(self, episode: Episode) -> Graded:
        """Return the distribution of an episode's grade."""
        return self._grader.likely(self._clip(episode), told(episode))

    @cached_property
    def _grader(self) -> Grader:
        from demerit.models.vlm.grades import Grader  # noqa: PLC0415

        return Grader(self.backbone, self._words["prompt"], self._words["answer"], self._at_once)

    def _clip(self, episode: Episode) -> Clip:
        from demerit.models.vlm.video import Clip  # noqa: PLC0415

        told(episode)
        times = episode.main.times()
        at = self.wanted.by_time(times)
        return Clip(episode.main.take(at), times[at])

    def _from_logits(self, episode: Episode, clip: Clip) -> Reward:
        graded = self._grader.likely(clip, told(episode))
        if not np.isfinite([*graded.likely, graded.mass, graded.form]).all():
            return unscored(self.card.name, episode, NO_NUMBER, self._given(episode, clip))
        given = self._given(episode, clip) | {
            "grades": [round(float(one), DIGITS) for one in graded.likely],
            "deviation": round(graded.deviation, DIGITS),
            "likeliest grade": graded.top,
            "probability of a grade": round(graded.mass, DIGITS),
            "probability of the answer's form": round(graded.form, DIGITS),
        }
        if graded.mass < self.trust:
            reason = f"only {graded.mass:.1%} of the answer's probability is on a grade from 1 to 5"
            return unscored(self.card.name, episode, f"{reason} (trust={self.trust:g} is asked for)", given)
        return self._reward(episode, graded.expected, given)

    def _decoded(self, episodes: Sequence[Episode]) -> list[Reward]:
        made = [(episode, clip) for episode, clip in one_ahead(episodes, self._clip)]
        seen = [(episode, clip) for episode, clip in made if not isinstance(clip, Failed)]
        answers = iter(self._written(seen))
        return [
            unscored(self.card.name, episode, clip.reason)
            if isinstance(clip, Failed)
            else self._read(episode, clip, next(answers))
            for episode, clip in made
        ]

    def _written(self, seen: Sequence[tuple[Episode, Clip]]) -> list[str | Failed]:
        """Write answers side by side; what goes wrong with one is not the others' fault."""
        try:
            return [*self._grader.written([clip for _, clip in seen], [told(episode) for episode, _ in seen])]
        except DemeritError as error:
            if len(seen) == 1:
                return [Failed(str(error))]
        return [answer for one in seen for answer in self._written([one])]

    def _read(self, episode: Episode, clip: Clip, text: str | Failed) -> Reward:
        from demerit.models.vlm.grades import grade_in  # noqa: PLC0415

        if isinstance(text, Failed):
            return unscored(self.card.name, episode, text.reason)
        grade = grade_in(text)
        given = self._given(episode, clip) | {"answer": text}
        if grade is None:
            return unscored(self.card.name, episode, f"the answer has no grade from 1 to 5: {text!r}", given)
        return self._reward(episode, float(grade), given)

    def _reward(self, episode: Episode, grade: float, given: dict[str, Any]) -> Reward:
        value = np.clip([grade], self.card.low, self.card.high)  # rounding may step over an end
        return Reward(self.card.name, episode.id, np.array([len(episode) - 1]), value, None, "", given)

    def _given(self, episode: Episode, clip: Clip) -> dict[str, Any]:
        height, width = self._grader.size(clip)
        return {
            "camera": episode.main_camera,
            "instruction": True,
            "frames": len(clip),
            "fps": round((len(clip) - 1) / float(clip.seconds[-1]), DIGITS) if clip.seconds[-1] else None,
            "last frame": "the true final frame",
            "image size": f"{height} x {width}",
            "prompt": self._words["version"],
            "how": self.how,
            **self.backbone.facts,
        }

    def _card(self, name: str) -> ModelCard:
        ways = {LOGITS: "the mean of the grade's distribution, read off its logits", DECODE: "the grade that it writes"}
        settings = f"{self._words['version']} {self.how} {1 / self.wanted.step:g} fps trust {self.trust:g}"
        about = ABOUT.format(fps=1 / self.wanted.step, frames=self.wanted.most, how=ways[self.how])
        return ModelCard(
            name=name + ("" if self.how == LOGITS else f"-{self.how}"),
            revision=f"{self.backbone.revision} {settings}",
            licence=LICENCE,
            quantity="grade",
            low=1.0,
            high=5.0,
            causal=False,
            comparable=True,
            frame_budget=self.wanted.most,
            weights_hash=self.backbone.identity(),
            about=about + VERIFIED,
        )


def _positive(fps: float) -> float:
    if not (0 < fps <= MOST_A_SECOND and isfinite(1 / fps)):
        raise BadInput("fps", f"a positive number of frames a second, at most {MOST_A_SECOND:g}", fps)
    return float(fps)
