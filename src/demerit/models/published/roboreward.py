"""RoboReward: a Qwen3-VL trained to grade whole episodes from 1 (nothing done) to 5 (perfect).

demerit score my_set --model roboreward              the 8B from the hub, the grade's distribution from its logits
demerit score my_set --model roboreward:4b,how=decode   the whole number that it writes: the published protocol
demerit score my_set --model roboreward:how=dense    a grade after every frame that it looks at
demerit score my_set --model roboreward:how=certainty   how sure it is of what it writes: a baseline
demerit score my_set --model roboreward:path=./my-checkpoint
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import exp, isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from demerit.data.episode import Episode
from demerit.data.reward import Reward
from demerit.data.splits import SeenEpisodes
from demerit.errors import BadInput, DemeritError
from demerit.models.by_time import MOST_A_SECOND, ByTime, TimedClip
from demerit.models.loading import Listing
from demerit.models.protocol import ModelCard, ShownModel
from demerit.models.published.scoring import (
    NON_FINITE,
    ScoringFailure,
    check_at_least,
    check_choice,
    load_engine,
    placement,
    prefetch,
    read_instruction,
    read_options,
    reward_name,
    score_each,
)
from demerit.models.vlm.prompt import load_prompts

if TYPE_CHECKING:
    from demerit.models.vlm.backbone import Backbone
    from demerit.models.vlm.grades import GradeDistribution, VideoGrader

LOGITS, DECODE, DENSE, CERTAINTY = "logits", "decode", "dense", "certainty"
GRADE = re.compile(r"ANSWER\s*:\s*([1-5])(?![\d.])", re.IGNORECASE)
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
DENSE_ABOUT = (
    "A grade from 1 to 5 after each frame of the video at {fps:g} frames a second, and after the true final frame (at "
    "most {frames}), from task and the video up to there: the mean of the grade's distribution, read off its logits. "
    "The network was trained on whole episodes. Pictures have the size that the whole video gets. Which frames are "
    "looked at depends on later ones only where the episode is longer than that many frames. "
)
CERTAINTY_ABOUT = (
    "How sure the network is of its answer about the whole episode, whatever it says: the probability of the least "
    "likely token of the answer that it writes, from task and video at {fps:g} frames a second (at most {frames}). A "
    "baseline that calls an unsure answer a failure; Robometer's Table III reads the policy's own action tokens. "
)
ABOUT = (
    "A grade from 1 to 5 for the whole episode, at its last frame, from task and video at {fps:g} frames a second with "
    "the true final frame (at most {frames}); {how}. "
)


class RoboReward(ShownModel):
    """A grade for the whole episode, at its last frame."""

    listing = Listing(
        quantity="grade",
        low=1.0,
        high=5.0,
        causal=False,
        licence="CC-BY-4.0, as its card says",
        frames="1 a second",
        extra="vlm",
        verified="random weights of the same layout; not the published weights",
        about="Qwen3-VL trained to grade whole episodes from 1 to 5; 8b or 4b; expected, decoded or frame by frame.",
    )

    def __init__(self, options: str = "", **changes: Any) -> None:
        """Find and check the checkpoint; weights are loaded at the first episode.

        Args:
            options: `8b` or `4b`, then name=value options, separated by commas.
            **changes: options by name: path (a folder or a hub id), revision, adapter, device, dtype; at_once (tokens
                computed together; fewer take less memory); how (`logits`: the distribution of the grade, `decode`:
                the decoded answer, `dense`: the distribution after every frame that it looks at, `certainty`: no grade,
                but the probability of the answer's least likely token), frames (at most N), fps, trust (the least
                probability of the five grades together; below it the value is missing).
        """
        opener = load_engine("roboreward", "backbone:Backbone")
        settings = read_options("roboreward", options, changes, OWN, "size")
        self._at_once = settings.get("at_once")
        self._prompts = load_prompts("roboreward")
        checkpoints: Mapping[str, str] = self._prompts["checkpoints"]
        size = check_choice("roboreward", str(settings.get("size", "8b")), tuple(checkpoints))
        self.how = check_choice("how", settings.get("how", LOGITS), (LOGITS, DECODE, DENSE, CERTAINTY))
        self.trust = float(settings.get("trust", TRUST))
        if not 0 <= self.trust <= 1:
            raise BadInput("trust", "a probability", self.trust)
        self.wanted = ByTime(
            1 / _positive(settings.get("fps", 1.0)), check_at_least("frames", settings.get("frames", MOST_FRAMES), 2)
        )
        path = settings.get("path") or checkpoints[size]
        self.backbone: Backbone = opener.open(path, **placement(settings), trained=True)
        published = {place: f"roboreward-{size}" for size, place in checkpoints.items()}
        self.card = self._card(reward_name(path, settings.get("adapter"), published, "roboreward-"))

    @property
    def seen(self) -> SeenEpisodes:
        """The episodes that the weights were trained on; unknown for the published ones."""
        return self.backbone.seen

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Grade every episode; an answer without a grade leaves it unscored with the answer."""
        if self.how in (DECODE, CERTAINTY):
            return self._score_decoded(episodes)
        # one at a time, so that a grade never depends on the batch
        score = self._from_prefixes if self.how == DENSE else self._from_logits
        return score_each(self.card.name, episodes, self._clip, score)

    @cached_property
    def _grader(self) -> VideoGrader:
        make: type[VideoGrader] = load_engine("roboreward", "grades:VideoGrader")
        return make(self.backbone, self._prompts["prompt"], self._prompts["answer"], self._at_once)

    def _clip(self, episode: Episode) -> TimedClip:
        read_instruction(episode)
        times = episode.main.times()
        at = self.wanted.by_time(times)
        return TimedClip(episode.main.take(at), times[at])

    def _from_logits(self, episode: Episode, clip: TimedClip) -> Reward:
        graded = self._grader.distribution(clip, read_instruction(episode))
        if not np.isfinite([*graded.likely, graded.mass, graded.form]).all():
            return Reward.unscored(self.card.name, episode.id, NON_FINITE, self._given(episode, clip))
        facts = self._given(episode, clip) | {
            "grades": [round(float(likely), DIGITS) for likely in graded.likely],
            "deviation": round(graded.deviation, DIGITS),
            "likeliest grade": graded.top,
            "probability of a grade": round(graded.mass, DIGITS),
            "probability of the answer's form": round(graded.form, DIGITS),
        }
        if graded.mass < self.trust:
            return Reward.unscored(self.card.name, episode.id, self._doubt(graded), facts)
        return self._reward(episode, graded.expected, facts)

    def _from_prefixes(self, episode: Episode, clip: TimedClip) -> Reward:
        graded = self._grader.prefix_distributions(clip, read_instruction(episode))
        is_known = np.isfinite([[*answer.likely, answer.mass, answer.form] for answer in graded]).all(1)
        trusted = is_known & np.array([answer.mass >= self.trust for answer in graded])
        value = np.where(
            trusted, np.clip([answer.expected for answer in graded], self.card.low, self.card.high), np.nan
        )
        why = NON_FINITE if not is_known.all() else ""
        if not (why or trusted.all()):
            why = self._doubt(graded[int(np.argmin(trusted))])
        at = self.wanted.by_time(episode.main.times())
        facts = self._given(episode, clip)
        return Reward(self.card.name, episode.id, at, value.astype(np.float32), None, why, facts)

    def _doubt(self, graded: GradeDistribution) -> str:
        return f"the grades 1 to 5 have only {graded.mass:.1%} of the answer's probability (trust={self.trust:g})"

    def _score_decoded(self, episodes: Sequence[Episode]) -> list[Reward]:
        pairs = list(prefetch(episodes, self._clip))
        answers = iter(self._decode([(episode, clip) for episode, clip in pairs if isinstance(clip, TimedClip)]))
        return [
            self._read_answer(episode, clip, next(answers))
            if isinstance(clip, TimedClip)
            else Reward.unscored(self.card.name, episode.id, clip.reason)
            for episode, clip in pairs
        ]

    def _decode(self, asked: Sequence[tuple[Episode, TimedClip]]) -> list[tuple[str, float] | ScoringFailure]:
        """Decode answers side by side; after an error, one by one, so that only the failing ones are unscored."""
        try:
            clips, tasks = [clip for _, clip in asked], [read_instruction(episode) for episode, _ in asked]
            return [*self._grader.decode_surely(clips, tasks)]
        except DemeritError as error:
            if len(asked) == 1:
                return [ScoringFailure(str(error))]
        return [answer for pair in asked for answer in self._decode([pair])]

    def _read_answer(self, episode: Episode, clip: TimedClip, answer: tuple[str, float] | ScoringFailure) -> Reward:
        if isinstance(answer, ScoringFailure):
            return Reward.unscored(self.card.name, episode.id, answer.reason)
        text, least = answer
        facts = self._given(episode, clip) | {"answer": text}
        if self.how == CERTAINTY:
            return self._reward(episode, exp(least), facts)
        grade = parse_grade(text)
        if grade is None:
            return Reward.unscored(self.card.name, episode.id, f"no grade from 1 to 5 in the answer {text!r}", facts)
        return self._reward(episode, float(grade), facts)

    def _reward(self, episode: Episode, value: float, facts: dict[str, Any]) -> Reward:
        values = np.clip([value], self.card.low, self.card.high)  # rounding may leave the range
        return Reward(self.card.name, episode.id, np.array([len(episode) - 1]), values, None, "", facts)

    def _given(self, episode: Episode, clip: TimedClip) -> dict[str, Any]:
        height, width = self._grader.size(clip)
        return {
            "camera": episode.main_camera,
            "instruction": True,
            "frames": len(clip),
            "fps": round((len(clip) - 1) / float(clip.seconds[-1]), DIGITS) if clip.seconds[-1] else None,
            "last frame": "the true final frame",
            "image size": f"{height} x {width}",
            "prompt": self._prompts["version"],
            "how": self.how,
            **self.backbone.facts,
        }

    def _card(self, name: str) -> ModelCard:
        ways = {LOGITS: "the mean of the grade's distribution, read off its logits", DECODE: "the grade that it writes"}
        settings = f"{self._prompts['version']} {self.how} {1 / self.wanted.step:g} fps trust {self.trust:g}"
        how = {DENSE: DENSE_ABOUT, CERTAINTY: CERTAINTY_ABOUT}.get(self.how, ABOUT)
        is_grade = self.how != CERTAINTY
        about = how.format(fps=1 / self.wanted.step, frames=self.wanted.most, how=ways.get(self.how))
        return ModelCard(
            name=name + ("" if self.how == LOGITS else f"-{self.how}"),
            revision=f"{self.backbone.revision} {settings}",
            licence=LICENCE,
            quantity="grade" if is_grade else "certainty of the answer",
            low=1.0 if is_grade else 0.0,
            high=5.0 if is_grade else 1.0,
            causal=False,
            comparable=True,
            frame_budget=self.wanted.most,
            weights_hash=self.backbone.identity(),
            about=about + VERIFIED,
        )


def parse_grade(text: str) -> int | None:
    """Return the grade on the answer line; None if there is none (numbers elsewhere do not count)."""
    grades = GRADE.findall(text)
    return int(grades[-1]) if grades else None


def _positive(fps: float) -> float:
    if not (0 < fps <= MOST_A_SECOND and isfinite(1 / fps)):
        raise BadInput("fps", f"a positive number of frames a second, at most {MOST_A_SECOND:g}", fps)
    return float(fps)
