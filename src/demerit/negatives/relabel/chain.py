"""The stages for one original: repair the words, look, plan, write, check, and write anew what was turned down.

Nothing is drawn at random and nothing depends on other originals: with the same answers the same record comes out. An
answer that says nothing usable (a refusal, nonsense) is turned down like a bad command, and another sample is asked
for; a question that got no answer at all raises `Unanswered`, and the original is left for the next run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import BaseModel

from demerit.data.episode import Episode
from demerit.data.splits import seed_of
from demerit.errors import DemeritError, NotApplicable
from demerit.llm import ChatRequest, ChatResponse
from demerit.negatives import load_negative
from demerit.negatives.relabel import rules
from demerit.negatives.relabel.answers import Analysis, Cleaned, Command, Idea, Plan, Verdict
from demerit.negatives.relabel.asking import Asking, Pictures
from demerit.negatives.relabel.looking import Looker
from demerit.negatives.relabel.record import Candidate, Checker, Record, Stage
from demerit.negatives.relabel.repairs import wrong_repair
from demerit.negatives.relabel.settings import RelabelSettings

NO_ANSWER = ("failed", "not asked")
Answer = TypeVar("Answer", bound=BaseModel)


class Unanswered(DemeritError):
    """A question got no answer; whoever asked again later might get one."""


@dataclass(eq=False)
class Chain:
    """One original on its way through the stages."""

    episode: Episode
    ask: Callable[[ChatRequest], ChatResponse]
    looker: Looker
    settings: RelabelSettings
    asking: Asking
    model: str
    prompts: str
    candidates: list[Candidate] = field(default_factory=list)

    def run(self) -> Record:
        """Go through all stages."""
        words = self._words()
        analysis = plan = None
        if self.settings.grades:
            seen = self.looker.look(self.episode)
            analysis = self._first("analyse", Analysis, lambda n: self.asking.analyse(words, seen, n))
            if analysis is not None:
                plan = self._commands(words, analysis, seen)
        self._clips(words)
        return Record(
            original=self.episode.id,
            fingerprint=self.episode.fingerprint(),
            instruction=self.episode.instruction,
            words=words,
            model=self.model,
            prompts=self.prompts,
            analysis=None if analysis is None else analysis.model_dump(),
            plan=None if plan is None else plan.model_dump(),
            candidates=tuple(self.candidates),
        )

    def _words(self) -> str:
        """Repair the instruction; what cannot be repaired safely stays as it was."""
        task = self.episode.instruction
        for number in range(self.settings.rounds if self.settings.clean_up else 0):
            cleaned = self._answered("clean", Cleaned, self.asking.clean(task, number), number)
            if cleaned is None:
                continue
            text = " ".join(cleaned.text.split())
            reason = wrong_repair(task, text)
            self._keep("clean", text, 0, number, reason, "code" if reason else "")
            if not reason:
                return text
        return task

    def _commands(self, words: str, analysis: Analysis, seen: Pictures) -> Plan | None:
        """Write and check a command for each grade; where a plan leads nowhere, make another."""
        plan: Plan | None = None
        found: dict[int, str] = {}
        closeness: dict[int, float] = {}
        turned_down: list[tuple[str, str]] = []
        for number in range(self.settings.rounds):
            due = [grade for grade in self.settings.grades if grade not in found]
            if not due:
                break
            if plan is None or not found:
                plan = self._plan(words, analysis, number) or plan
            if plan is None:
                continue
            ideas = {idea.grade: idea for idea in plan.ideas}
            for grade in due:
                made = self._command(words, analysis, seen, ideas[grade], found, closeness, turned_down, number)
                if made is not None:
                    found[grade], closeness[grade] = made
        return plan

    def _plan(self, words: str, analysis: Analysis, number: int) -> Plan | None:
        ask = self.asking.plan(words, analysis, self.settings.grades, number)
        plan = self._answered("plan", Plan, ask, number)
        if plan is None:
            return None
        reason = rules.wrong_plan(plan, self.settings.grades)
        if reason:
            self._keep("plan", "; ".join(idea.idea for idea in plan.ideas), 0, number, reason, "code")
        return None if reason else plan

    def _command(
        self,
        words: str,
        analysis: Analysis,
        seen: Pictures,
        idea: Idea,
        found: dict[int, str],
        closeness: dict[int, float],
        turned_down: list[tuple[str, str]],
        number: int,
    ) -> tuple[str, float] | None:
        """Write one command and have it checked: by code first, because that costs nothing."""
        grade = idea.grade
        ask = self.asking.command(words, analysis, idea, list(found.items()), turned_down, number)
        answer = self._answered("command", Command, ask, number, grade)
        if answer is None:
            return None
        command = answer.command.strip()
        reason = rules.wrong_command(command, grade, words, found)
        by: Checker = "code" if reason else ""
        verdict = None
        if not reason:
            verdict, reason, by = self._judged(words, command, grade, seen, closeness)
        self._keep("command", command, grade, number, reason, by, verdict)
        if reason:
            turned_down.append((command, reason))
            return None
        assert verdict is not None
        return command, verdict.closeness

    def _judged(
        self, words: str, command: str, grade: int, seen: Pictures, closeness: dict[int, float]
    ) -> tuple[Verdict | None, str, Checker]:
        """Have a strict reader grade the video under the command, without telling him the grade."""
        verdict, why_not = self._verdict(words, command, seen)
        if verdict is None:
            return None, why_not, "answer"
        return verdict, *_objection(verdict, grade, closeness, is_clip=False)

    def _verdict(self, words: str, command: str, seen: Pictures) -> tuple[Verdict | None, str]:
        """Ask the strict reader until his answer can be read."""
        why_not = ""
        for number in range(self.settings.rounds):
            verdict, why_not = self._said(self.asking.validate(words, command, seen, number), Verdict)
            if verdict is not None:
                return verdict, ""
        return None, f"the strict reader gave no usable answer ({why_not})"

    def _clips(self, words: str) -> None:
        """Cut the video early, at each grade, and have every cut checked as a command is; another cut is tried."""
        clip, closeness = load_negative("clip"), dict[int, float]()
        for grade in self.settings.clips:
            cuts: set[str] = set()
            for number in range(self.settings.rounds):
                seed = seed_of(self.settings.seed, self.episode.id, grade, number)
                try:
                    made = clip.seeded(self.episode, seed, grade=grade)
                except NotApplicable as no:
                    self._keep("clip", "", grade, number, no.reason, "code")
                    break
                last = str(made.edits[-1].params["last"])
                if last in cuts:
                    continue
                cuts.add(last)
                verdict, reason = self._verdict(words, words, self.looker.look(made))
                by: Checker = "answer"
                if verdict is not None:
                    reason, by = _objection(verdict, grade, closeness, is_clip=True)
                self._keep("clip", last, grade, number, reason, by, verdict)
                if not reason and verdict is not None:
                    closeness[grade] = verdict.closeness
                    break

    def _first(self, stage: Stage, schema: type[Answer], ask: Callable[[int], ChatRequest]) -> Answer | None:
        """Ask until an answer can be read, each time for another sample."""
        for number in range(self.settings.rounds):
            answer = self._answered(stage, schema, ask(number), number)
            if answer is not None:
                return answer
        return None

    def _answered(
        self, stage: Stage, schema: type[Answer], ask: ChatRequest, number: int, grade: int = 0
    ) -> Answer | None:
        """Ask once; an answer that cannot be used is kept with its reason."""
        answer, why_not = self._said(ask, schema)
        if answer is None:
            self._keep(stage, "", grade, number, why_not, "answer")
        return answer

    def _said(self, ask: ChatRequest, schema: type[Answer]) -> tuple[Answer | None, str]:
        said = self.ask(ask)
        if said.kind in NO_ANSWER:
            raise Unanswered(said.why_not)
        if isinstance(said.parsed, schema):
            return said.parsed, ""
        return None, said.why_not or "the answer is not what was asked for"

    def _keep(
        self,
        stage: Stage,
        text: str,
        grade: int,
        number: int,
        reason: str,
        by: Checker,
        verdict: Verdict | None = None,
    ) -> None:
        fresh = not any(one.stage == stage and one.grade == grade for one in self.candidates)
        told = None if verdict is None else verdict.model_dump()
        self.candidates.append(Candidate(stage, text, grade, number, reason, by if reason else "", told, fresh))


def _objection(verdict: Verdict, grade: int, closeness: dict[int, float], is_clip: bool) -> tuple[str, Checker]:
    """Say why a verdict turns a label down, and who does; empty when it does not."""
    for reason in _model_objections(verdict, grade, is_clip):
        return reason, "model"
    reason = rules.wrong_ladder(closeness, grade, verdict.closeness)
    return reason, "code" if reason else ""


def _model_objections(verdict: Verdict, grade: int, is_clip: bool) -> Iterator[str]:
    if not verdict.sound:
        yield "the strict reader calls it unsound"
    if verdict.grade != grade:
        yield f"the strict reader gives it grade {verdict.grade}, not {grade}"
    if verdict.already_true:
        yield "the strict reader says that it was true at the start already"
    # A clip keeps the original's words: there is nothing that they could be entailed by.
    if verdict.entailed and not is_clip:
        yield "the strict reader says that the original entails it"
