"""The stages for one original: analyse, plan, write commands, validate; rejected commands are written again.

Nothing is random and nothing depends on other originals: the same answers give the same record. An unusable answer (a
refusal, nonsense) is rejected like a bad command, and another sample is requested. A request without any answer raises
`Unanswered`; the next run asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from pydantic import BaseModel

from demerit.data.episode import Episode
from demerit.data.splits import seed_of
from demerit.errors import DemeritError, NotApplicable
from demerit.llm import ChatRequest, ChatResponse
from demerit.negatives import load_negative
from demerit.negatives.relabel import prompts, rules
from demerit.negatives.relabel.config import RelabelConfig
from demerit.negatives.relabel.prompts import (
    Analysis,
    FailureIdea,
    FailurePlan,
    PromptParts,
    ValidatorAnswer,
    WrittenCommand,
    prompt_version,
    sample_frames,
)

NO_ANSWER = ("failed", "not asked")
Answer = TypeVar("Answer", bound=BaseModel)
Stage = Literal["analyse", "plan", "command", "clip"]
CheckedBy = Literal["", "code", "model", "answer"]
"""who rejected a candidate: a rule in code, the validator, or none because the answer was unusable"""


class Unanswered(DemeritError):
    """A request got no answer; asking again later may help."""


@dataclass(frozen=True)
class Candidate:
    """A proposed label and its fate."""

    stage: Stage
    text: str
    """the command; for a clip the index of its last frame"""
    grade: int = 0
    round: int = 0
    reason: str = ""
    """why it was rejected; empty when it was accepted"""
    checked_by: CheckedBy = ""
    verdict: Mapping[str, Any] | None = None
    """the validator's answer, where it was asked"""
    fresh: bool = True
    """whether it is the first of its stage and grade: the label that would exist without any check"""

    @property
    def reasons(self) -> str:
        """Why the validator gave it its grade; empty where it was not asked."""
        return str((self.verdict or {}).get("reasons", ""))


@dataclass(frozen=True)
class RelabelRecord:
    """Everything that came of one original: a line of relabelled.jsonl."""

    original: str
    """its id"""
    fingerprint: str
    instruction: str
    model: str
    prompts: str
    """`prompt_version()`"""
    analysis: Mapping[str, Any] | None = None
    plan: Mapping[str, Any] | None = None
    candidates: tuple[Candidate, ...] = ()
    split: str = ""
    validator: str = ""
    """the model that validated; empty = the author"""

    def accepted(self, stage: Stage) -> dict[int, Candidate]:
        """The accepted commands (stage 'command') or clips (stage 'clip') by grade."""
        return {
            candidate.grade: candidate
            for candidate in self.candidates
            if candidate.stage == stage and not candidate.reason
        }

    @property
    def rejected(self) -> list[Candidate]:
        """Everything that was rejected."""
        return [candidate for candidate in self.candidates if candidate.reason]


@dataclass(eq=False)
class RelabelChain:
    """One original on its way through the stages."""

    episode: Episode
    ask: Callable[[ChatRequest], ChatResponse]
    model: str
    config: RelabelConfig
    check: Callable[[ChatRequest], ChatResponse] | None = None
    """asks the validator; None = the author validates"""
    validator: str = ""
    candidates: list[Candidate] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Name the task."""
        self.task = self.episode.instruction

    def run(self) -> RelabelRecord:
        """Go through all stages."""
        analysis = plan = None
        if self.config.grades:
            images = sample_frames(self.episode, self.config.size)
            for number in range(self.config.rounds):
                request = prompts.ask_analysis(self.config, self.task, images, number)
                analysis = self._request("analyse", Analysis, request, number)
                if analysis is not None:
                    plan = self._write_commands(analysis, images)
                    break
        self._cut_clips()
        return RelabelRecord(
            original=self.episode.id,
            fingerprint=self.episode.fingerprint(),
            instruction=self.task,
            model=self.model,
            prompts=prompt_version(),
            analysis=None if analysis is None else analysis.model_dump(),
            plan=None if plan is None else plan.model_dump(),
            candidates=tuple(self.candidates),
            validator=self.validator,
        )

    def _write_commands(self, analysis: Analysis, images: PromptParts) -> FailurePlan | None:
        """Write and validate a command for each grade; a plan that led to none is made again."""
        plan: FailurePlan | None = None
        accepted: dict[int, tuple[str, ValidatorAnswer]] = {}
        rejected: list[tuple[str, str]] = []
        for number in range(self.config.rounds):
            missing = [grade for grade in self.config.grades if grade not in accepted]
            if missing and not accepted:
                plan = self._make_plan(analysis, number) or plan
            if not missing or plan is None:
                continue
            ideas = {idea.grade: idea for idea in plan.ideas}
            for grade in missing:
                self._write_command(analysis, images, ideas[grade], accepted, rejected, number)
        return plan

    def _make_plan(self, analysis: Analysis, number: int) -> FailurePlan | None:
        request = prompts.ask_plan(self.config, self.task, analysis, number)
        plan = self._request("plan", FailurePlan, request, number)
        reason = rules.check_plan(plan, self.config.grades) if plan else ""
        if plan and reason:
            self._keep("plan", "; ".join(idea.idea for idea in plan.ideas), 0, number, reason, "code")
        return None if reason else plan

    def _write_command(
        self,
        analysis: Analysis,
        images: PromptParts,
        idea: FailureIdea,
        accepted: dict[int, tuple[str, ValidatorAnswer]],
        rejected: list[tuple[str, str]],
        number: int,
    ) -> None:
        """Write one command and check it: by code first, which costs nothing, then by the blind validator."""
        grade, commands = idea.grade, {grade: command for grade, (command, _) in accepted.items()}
        request = prompts.ask_command(self.config, self.task, analysis, idea, commands.items(), rejected, number)
        answer = self._request("command", WrittenCommand, request, number, grade)
        if answer is None:
            return
        by: CheckedBy = "code"
        command, verdict = answer.command.strip(), None
        reason = rules.check_command(command, grade, self.task, commands)
        if not reason:
            closeness = {other: candidate.closeness for other, (_, candidate) in accepted.items()}
            verdict, reason, by = self._validate(command, grade, images, closeness)
        self._keep("command", command, grade, number, reason, by, verdict)
        if reason or verdict is None:
            rejected.append((command, reason))
        else:
            accepted[grade] = (command, verdict)

    def _cut_clips(self) -> None:
        """Cut the video early at each grade and validate every cut as a command is; try another cut where it fails."""
        closeness: dict[int, float] = {}
        for grade in self.config.clips:
            tried: set[str] = set()
            for number in range(self.config.rounds):
                seed = seed_of(self.config.seed, self.episode.id, grade, number)
                try:
                    clip = load_negative("clip").make_with_seed(self.episode, seed, grade=grade)
                except NotApplicable as error:
                    self._keep("clip", "", grade, number, error.reason, "code")
                    break
                last = str(clip.edits[-1].params["last"])
                if last in tried:
                    continue
                tried.add(last)
                images = sample_frames(clip, self.config.size)
                verdict, reason, by = self._validate(self.task, grade, images, closeness)
                self._keep("clip", last, grade, number, reason, by, verdict)
                if not reason and verdict is not None:
                    closeness[grade] = verdict.closeness
                    break

    def _validate(
        self, command: str, grade: int, images: PromptParts, closeness: Mapping[int, float]
    ) -> tuple[ValidatorAnswer | None, str, CheckedBy]:
        """Have the video graded under a command, blindly. Returns the verdict, the objection, and whose it is."""
        verdict, problem = None, ""
        for number in range(self.config.rounds):
            request = prompts.ask_verdict(self.config, self.task, command, images, number)
            verdict, problem = self._send(request, ValidatorAnswer, self.check)
            if verdict is not None:
                break
        if verdict is None:
            return None, f"the validator gave no usable answer ({problem})", "answer"
        if not verdict.sound:
            return verdict, "the validator calls it unsound", "model"
        if verdict.grade != grade:
            return verdict, f"the validator gives it grade {verdict.grade}, not {grade}", "model"
        if verdict.already_true:
            return verdict, "the validator says that it was true at the start", "model"
        if verdict.entailed and command != self.task:  # a clip keeps the original instruction
            return verdict, "the validator says that the original entails it", "model"
        return verdict, rules.check_closeness(closeness, grade, verdict.closeness), "code"

    def _request(
        self, stage: Stage, schema: type[Answer], request: ChatRequest, number: int, grade: int = 0
    ) -> Answer | None:
        """Send one request; an unusable answer is kept with its reason."""
        answer, problem = self._send(request, schema)
        if answer is None:
            self._keep(stage, "", grade, number, problem, "answer")
        return answer

    def _send(
        self, request: ChatRequest, schema: type[Answer], ask: Callable[[ChatRequest], ChatResponse] | None = None
    ) -> tuple[Answer | None, str]:
        response = (ask or self.ask)(request)
        if response.kind in NO_ANSWER:
            raise Unanswered(response.why_not)
        if isinstance(response.parsed, schema):
            return response.parsed, ""
        return None, response.why_not or "the answer does not fit the schema"

    def _keep(
        self,
        stage: Stage,
        text: str,
        grade: int,
        number: int,
        reason: str,
        by: CheckedBy,
        verdict: ValidatorAnswer | None = None,
    ) -> None:
        fresh = not any(candidate.stage == stage and candidate.grade == grade for candidate in self.candidates)
        facts = None if verdict is None else verdict.model_dump()
        self.candidates.append(Candidate(stage, text, grade, number, reason, by if reason else "", facts, fresh))
