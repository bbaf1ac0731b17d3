"""What a model has to answer at each stage, as schemas; the same for every server."""

from __future__ import annotations

from pydantic import BaseModel, Field


class Cleaned(BaseModel):
    """An instruction with its spelling and grammar repaired."""

    text: str


class Analysis(BaseModel):
    """What a video shows."""

    objects: list[str]
    start: str
    actions: list[str]
    end: str


class Idea(BaseModel):
    """One way in which the video would fail a command."""

    grade: int
    idea: str
    failure: str
    closeness: float = Field(ge=0, le=100)
    """how much of it the end of the video fulfils, in percent"""


class Plan(BaseModel):
    """An idea for each grade."""

    thoughts: str
    ideas: list[Idea]


class Command(BaseModel):
    """One command."""

    command: str


class Verdict(BaseModel):
    """What a strict reader says of a command and a video, without being told the grade that it should have."""

    reasons: str
    sound: bool
    already_true: bool
    grade: int = Field(ge=1, le=5)
    closeness: float = Field(ge=0, le=100)
    entailed: bool
