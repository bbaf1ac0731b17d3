"""Prompts, answer schemas and requests of relabelling.

The prompts are text files in `assets/prompts/relabel`. After editing one, give it the next number, in its name and in
VERSIONS. `prompt_version` covers all of them and is stored with every label.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from string import Template

import numpy as np
from pydantic import BaseModel, Field

from demerit.data.episode import Episode
from demerit.data.frames import Frames, Indices, short_hash, spread
from demerit.data.taxonomy import RUBRIC_VERSION
from demerit.llm import ChatImage, ChatRequest, Message
from demerit.models.gvl.config import encode_frames
from demerit.negatives.relabel.config import RelabelConfig

FOLDER = files("demerit") / "assets" / "prompts" / "relabel"
VERSIONS = {"system": 2, "rubric": RUBRIC_VERSION, "analyse": 2, "plan": 2, "command": 2, "validate": 2, "verbs": 1}
MAX_TOKENS = {"analyse": 1500, "plan": 2500, "command": 200, "validate": 800}
"""longest answers; models that reason before they answer need more (`RelabelConfig.more_tokens`)"""
HASH_DIGITS = 8
DECODING = threading.Lock()
"""threads share one decoder"""

PromptParts = tuple[str | ChatImage, ...]


class Analysis(BaseModel):
    """What a video shows."""

    objects: list[str]
    start: str
    actions: list[str]
    end: str


class FailureIdea(BaseModel):
    """One way in which the video would fail a command."""

    grade: int
    idea: str
    failure: str
    closeness: float = Field(ge=0, le=100)
    """how much of it the end of the video fulfils, in percent"""


class FailurePlan(BaseModel):
    """An idea for each grade."""

    thoughts: str
    ideas: list[FailureIdea]


class WrittenCommand(BaseModel):
    """One command."""

    command: str


class ValidatorAnswer(BaseModel):
    """What the validator says of a command and a video, without knowing the intended grade."""

    reasons: str
    sound: bool
    already_true: bool
    grade: int = Field(ge=1, le=5)
    closeness: float = Field(ge=0, le=100)
    entailed: bool


# Requests: equal arguments give equal requests, hence the same cached answer.


def ask_analysis(config: RelabelConfig, task: str, images: PromptParts, sample: int) -> ChatRequest:
    """Ask what a video shows."""
    return _request(config, "analyse", Analysis, sample, fill_prompt("analyse", task=task), *images)


def ask_plan(config: RelabelConfig, task: str, analysis: Analysis, sample: int) -> ChatRequest:
    """Ask for an idea for each grade."""
    text = fill_prompt(
        "plan",
        task=task,
        grades=", ".join(map(str, config.grades)),
        start=analysis.start,
        actions=_bullets(analysis.actions),
        end=analysis.end,
        objects="; ".join(analysis.objects),
    )
    return _request(config, "plan", FailurePlan, sample, text)


def ask_command(
    config: RelabelConfig,
    task: str,
    analysis: Analysis,
    idea: FailureIdea,
    accepted: Iterable[tuple[int, str]],
    rejected: Iterable[tuple[str, str]],
    sample: int,
) -> ChatRequest:
    """Ask for one command, given the accepted ones (grade, command) and the rejected ones (command, reason)."""
    text = fill_prompt(
        "command",
        task=task,
        grade=idea.grade,
        objects="; ".join(analysis.objects),
        end=analysis.end,
        idea=idea.idea,
        failure=idea.failure,
        history=_bullets(f"grade {grade}: {command}" for grade, command in sorted(accepted)),
        rejected=_bullets(f"{command} (rejected: {reason})" for command, reason in rejected),
    )
    return _request(config, "command", WrittenCommand, sample, text)


def ask_verdict(config: RelabelConfig, task: str, command: str, images: PromptParts, sample: int) -> ChatRequest:
    """Ask the validator to grade the video under a command. The intended grade is not in the prompt."""
    text = fill_prompt("validate", command=command, task=task)
    return _request(config, "validate", ValidatorAnswer, sample, text, *images)


def _request(
    config: RelabelConfig, stage: str, schema: type[BaseModel], sample: int, *parts: str | ChatImage
) -> ChatRequest:
    creative = stage in ("plan", "command") or config.temperature is None
    return ChatRequest(
        (Message.system(read_prompt("system")), Message.user(*parts)),
        schema,
        temperature=config.temperature if creative else 0.0,
        sample=sample,
        max_tokens=MAX_TOKENS[stage] + config.more_tokens,
        tag=stage,
    )


def sample_frames(episode: Episode, size: int) -> PromptParts:
    """Return the images of an episode, at most `size` pixels long, each after a text with its number and time."""
    with DECODING:
        places = choose_frames(episode.main)
        times = episode.main.times()[places]
        images = encode_frames(episode, places, size)
    parts: list[str | ChatImage] = []
    for number, (time, image) in enumerate(zip(times, images, strict=True), 1):
        last = ", the last" if number == len(images) else ""
        parts += [f"Image {number}{last}, at {time:.1f} s:", image]
    return tuple(parts)


def choose_frames(frames: Frames, fps: float = 1.0, most: int = 32) -> Indices:
    """Choose the first frame at or after each tick 0, 1/fps, 2/fps ... and the last frame; at most `most`, spread."""
    times = frames.times()
    ticks = np.arange(0, float(times[-1]) + 1e-9, 1 / fps)
    places = np.unique(np.append(np.searchsorted(times, ticks - 1e-9), len(times) - 1))
    return np.asarray(places[spread(len(places), most)], dtype=np.int32)


def fill_prompt(name: str, **values: object) -> str:
    """Read a prompt and fill in its values; `$rubric` fills itself."""
    return Template(read_prompt(name)).substitute(values, rubric=read_prompt("rubric"))


def prompt_version() -> str:
    """Name the prompts: `relabel-2.` and a hash of every file."""
    digits = short_hash(*(f"{name}-{VERSIONS[name]}\0{read_prompt(name)}".encode() for name in sorted(VERSIONS)))
    return f"relabel-{max(VERSIONS.values())}.{digits[:HASH_DIGITS]}"


@cache
def read_prompt(name: str) -> str:
    """Read one prompt file."""
    return (FOLDER / f"{name}-{VERSIONS[name]}.txt").read_text(encoding="utf-8").strip()


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines) or "(none)"
