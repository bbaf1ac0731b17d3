"""`grader`: any vision-language model behind an OpenAI-compatible server grades episodes from 1 to 5.

This is how RoboRewardBench asks models that were not trained for it: task, frames at one a second with the true final
frame, the rubric, and an answer line. The prompt is RoboReward's own unless the user gives a file.

demerit score my_set --model grader:model=gpt-5
demerit score my_set --model grader:prefixes=8           a grade for each of 8 beginnings: dense values
demerit score my_set --model grader:describe=yes         the model describes the video first; kept with the reward
demerit score my_set --model grader:prompt=mine.txt      a prompt of your own, with {task} where the task goes
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from demerit.data.episode import Episode, safe_name
from demerit.data.frames import Indices, short_hash, spread
from demerit.data.reward import GENERATIONS, Reward
from demerit.errors import BadInput, DemeritError
from demerit.llm import ChatClient, ChatImage, ChatOptions, ChatRequest, Message, ScoringEstimate, Spending
from demerit.llm.template import fill_placeholders, name_prompt, read_template
from demerit.models.by_time import ByTime
from demerit.models.loading import Listing
from demerit.models.protocol import ModelCard, ShownModel
from demerit.models.published.roboreward import parse_grade
from demerit.models.published.scoring import read_instruction
from demerit.models.vlm.prompt import load_prompts
from demerit.registry import load_attribute

DESCRIBE = "Describe the video in detail: the scene at the start, what the robot does, and the state at the end."
FRAME = "Frame at {seconds:.1f} s:"
ANSWER_TOKENS, REASONING_TOKENS, DESCRIPTION_TOKENS = 256, 8192, 1024
REASONING = re.compile(r"gpt-5|^o[1-9]|gemini-(2\.5|3)|thinking|reason|qwq|-r1", re.IGNORECASE)
"""families that think before they answer: more tokens, and only their own temperature"""
ESTIMATED_FROM = 8
IDENTITY = ("frames", "fps", "size", "prefixes", "describe", "temperature", "max_tokens", "model")
"""options that change the answers; they are part of the card's hash"""


@dataclass(frozen=True, kw_only=True)
class GraderConfig(ChatOptions):
    """Every option of `grader`."""

    WHO: ClassVar[str] = "grader"

    frames: int = 32
    """frames per question, at most"""
    fps: float = 1.0
    size: int = 512
    """longer side of an image in pixels, at most"""
    prefixes: int = 1
    """beginnings of the episode that are graded, the whole one included; each is a question of its own"""
    describe: bool = False
    """have the model describe the video before it grades it"""
    prompt: str = ""
    """a text file with {task} in it; the answer must hold `ANSWER: 1` to `ANSWER: 5`"""
    family: str = ""
    """'reasoning' or 'plain'; empty = by the model's name"""
    temperature: float | None = 0.0
    """'none' leaves it to the server; never sent to a reasoning model"""
    max_tokens: int = 0
    """longest answer; 0 = 256, for a reasoning model 8192"""

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name, least in {"frames": 2, "size": 16, "prefixes": 1, "max_tokens": 0}.items():
            if getattr(self, name) < least:
                raise BadInput(f"option {name} of grader", f"a number from {least} on", getattr(self, name))
        if not 0 < self.fps <= 1000:  # noqa: PLR2004
            raise BadInput("option fps of grader", "a number above 0", self.fps)
        if self.family not in ("", "plain", "reasoning"):
            raise BadInput("option family of grader", "plain or reasoning", repr(self.family))

    @property
    def reasons(self) -> bool:
        """Whether the model thinks before it answers."""
        return self.family == "reasoning" or (not self.family and bool(REASONING.search(self.model)))

    @property
    def answer_tokens(self) -> int:
        """The longest answer in tokens."""
        return self.max_tokens or (REASONING_TOKENS if self.reasons else ANSWER_TOKENS)

    def read_prompt(self) -> str:
        """Return the prompt with a place for the task."""
        return read_template(self.prompt, ["task"]) if self.prompt else str(load_prompts("roboreward")["prompt"])

    def name_prompt(self, prompt: str) -> str:
        """Name the prompt that `read_prompt` returned, on the card and with the reward."""
        return name_prompt(self.prompt, prompt) if self.prompt else str(load_prompts("roboreward")["version"])


@dataclass(frozen=True, eq=False)
class _Question:
    """One beginning of an episode."""

    episode: Episode
    last: int
    """its last frame"""
    parts: tuple[str | ChatImage, ...]
    """task, rubric and frames"""
    answers: list[dict[str, str]] = field(default_factory=list)
    """what came back, as it is kept with the reward"""


class ChatGrader(ShownModel):
    """A grade from 1 to 5 for an episode, or for several of its beginnings."""

    listing = Listing(
        quantity="grade",
        low=1.0,
        high=5.0,
        causal=False,
        licence="that of the model behind the server",
        frames="1 a second",
        extra="chat",
        about="Any vision-language model behind an OpenAI-compatible server grades episodes from 1 to 5 by a rubric.",
    )

    def __init__(self, options: str = "", *, client: ChatClient | None = None, **changes: Any) -> None:
        """Prepare; nothing is sent.

        Args:
            options: name=value, separated by commas (see `GraderConfig`).
            client: the client to use; None makes or shares one by the options (url, model, cache ...).
            **changes: options by name.
        """
        load_attribute("openai:OpenAI", "the model 'grader'")
        if client is not None:
            changes = {**changes, "model": client.endpoint.model}
        self.config = GraderConfig.read(options, changes)
        self._prompt = self.config.read_prompt()
        self.client = self.config.client() if client is None else client
        self.card = self._card()

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Grade each episode; what is not answered with a grade is unscored with the reason."""
        failed: dict[str, str] = {}
        questions = list(self._questions(episodes, failed))
        grades: dict[str, dict[int, tuple[float, str]]] = {episode.id: {} for episode in episodes}
        descriptions = [""] * len(questions)
        if self.config.describe:
            for index, response in self.client.ask_all(map(self._description_request, questions)):
                question = questions[index]
                question.answers.append(response.record(f"description up to frame {question.last}"))
                descriptions[index] = "" if response.why_not else response.text.strip()
                if not descriptions[index]:
                    missing = f"no description ({response.why_not or 'empty'})"
                    grades[question.episode.id][question.last] = (np.nan, missing)
        asked = [index for index, question in enumerate(questions) if question.last not in grades[question.episode.id]]
        requests = (self._request(questions[index], descriptions[index]) for index in asked)
        for place, response in self.client.ask_all(requests):
            question = questions[asked[place]]
            grade = parse_grade(response.text) if not response.why_not else None
            missing = response.why_not or f"no grade from 1 to 5 in the answer {response.text[-80:]!r}"
            question.answers.append(
                response.record(f"grade at frame {question.last}", missing if grade is None else "")
            )
            grades[question.episode.id][question.last] = (np.nan, missing) if grade is None else (float(grade), "")
        # the longest beginning comes last
        described = {question.episode.id: text for question, text in zip(questions, descriptions, strict=True) if text}
        kept: dict[str, dict[str, Any]] = {id: {"description": text} for id, text in described.items()}
        for question in questions:
            kept.setdefault(question.episode.id, {}).setdefault(GENERATIONS, []).extend(question.answers)
        return [
            self._reward(episode, grades[episode.id], failed.get(episode.id, ""), kept.get(episode.id, {}))
            for episode in episodes
        ]

    def estimate(self, episodes: Iterable[Episode]) -> ScoringEstimate:
        """Estimate the cost of scoring without sending anything: looks at a few episodes and scales up."""
        batch = list(episodes)
        sample = [batch[index] for index in spread(len(batch), ESTIMATED_FROM)]
        questions = list(self._questions(sample, {}))
        text = "x" * 3 * DESCRIPTION_TOKENS if self.config.describe else ""
        requests = [self._request(question, text) for question in questions]
        requests += [self._description_request(question) for question in questions] if self.config.describe else []
        return ScoringEstimate.scaled(self.client.estimate(requests), len(batch), len(sample))

    def close(self) -> None:
        """Close the connections; the next request opens them again."""
        self.client.close()

    @property
    def spent(self) -> Spending:
        """What the client sent and paid so far; models may share a client."""
        return self.client.spent

    def _questions(self, episodes: Iterable[Episode], failed: dict[str, str]) -> Iterator[_Question]:
        for episode in episodes:
            try:
                task = read_instruction(episode)
                for last in spread(len(episode), self.config.prefixes + 1)[1:].tolist() or [len(episode) - 1]:
                    yield _Question(episode, last, self._show(episode, task, last))
            except DemeritError as error:
                failed[episode.id] = str(error)

    def _show(self, episode: Episode, task: str, last: int) -> tuple[str | ChatImage, ...]:
        times = episode.main.times()[: last + 1]
        at: Indices = ByTime(1 / self.config.fps, self.config.frames).by_time(times)
        parts: list[str | ChatImage] = []
        for index, image in zip(at.tolist(), episode.main.take(at), strict=True):
            parts += [FRAME.format(seconds=float(times[index])), ChatImage.encode(image, self.config.size)]
        return (*parts, fill_placeholders(self._prompt, {"task": task}))

    def _description_request(self, question: _Question) -> ChatRequest:
        config = self.config
        tokens = max(DESCRIPTION_TOKENS, config.answer_tokens)
        message = Message.user(*question.parts[:-1], DESCRIBE)
        return ChatRequest((message,), None, self._temperature, 0, tokens, "grader describes")

    def _request(self, question: _Question, described: str) -> ChatRequest:
        messages: tuple[Message, ...] = (Message.user(*question.parts),)
        if described:
            *frames, rubric = question.parts
            messages = (Message.user(*frames, DESCRIBE), Message("assistant", (described,)), Message.user(rubric))
        return ChatRequest(messages, None, self._temperature, 0, self.config.answer_tokens, "grader")

    @property
    def _temperature(self) -> float | None:
        return None if self.config.reasons else self.config.temperature

    def _reward(
        self, episode: Episode, grades: dict[int, tuple[float, str]], failed: str, kept: dict[str, Any]
    ) -> Reward:
        facts = {
            "camera": episode.main_camera,
            "instruction": bool(episode.instruction.strip()),
            "model": self.client.endpoint.model,
            "image size": self.config.size,
            "fps": self.config.fps,
            "last frame": "the true final frame",
            "prompt": self.config.name_prompt(self._prompt),
            **kept,
        }
        values = [grades[last][0] for last in sorted(grades)]
        if failed or not grades or np.isnan(values).all():
            reasons = dict.fromkeys(reason for _, reason in grades.values())
            return Reward.unscored(self.card.name, episode.id, failed or "; ".join(reasons) or "not asked", facts)
        why = "; ".join(f"frame {last}: {reason}" for last, (_, reason) in sorted(grades.items()) if reason)
        at = np.array(sorted(grades), dtype=np.int32)
        return Reward(self.card.name, episode.id, at, np.array(values, dtype=np.float32), None, why, facts)

    def _card(self) -> ModelCard:
        config = self.config
        identity = [{name: getattr(config, name) for name in IDENTITY}, self._prompt, config.reasons]
        parts = filter(None, [f"{config.prefixes}-prefixes" if config.prefixes > 1 else "", Path(config.prompt).stem])
        dense = f"a grade for each of {config.prefixes} beginnings" if config.prefixes > 1 else "a grade for the whole"
        return ModelCard(
            name=safe_name("-".join(["grader", config.model, *parts])),
            revision=f"{config.model} {config.name_prompt(self._prompt)}",
            licence="that of the model behind the server",
            quantity="grade",
            low=1.0,
            high=5.0,
            causal=config.prefixes > 1,
            comparable=True,
            frame_budget=config.frames,
            weights_hash=short_hash(json.dumps(identity, sort_keys=True).encode()),
            about=f"A grade from 1 to 5 that a chat model writes: {dense}, from task, rubric and frames"
            + (", after describing the video." if config.describe else "."),
        )
