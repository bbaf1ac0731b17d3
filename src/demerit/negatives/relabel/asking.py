"""The question of each stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from demerit.llm import ChatImage, ChatRequest, Message
from demerit.negatives.relabel.answers import Analysis, Cleaned, Command, Idea, Plan, Verdict
from demerit.negatives.relabel.wording import words

NOTHING = "(none)"
MAX_TOKENS = {"clean": 200, "analyse": 1500, "plan": 2500, "command": 200, "validate": 800}
"""longest answers; models that think before they answer need more: `Asking.more_tokens`"""

Pictures = tuple[str | ChatImage, ...]


@dataclass(frozen=True)
class Asking:
    """Writes questions; the same arguments give the same question, and so the same cached answer."""

    temperature: float | None = 0.7
    more_tokens: int = 0
    """added to every answer's limit"""

    def clean(self, task: str, sample: int) -> ChatRequest:
        """Ask for an instruction with its spelling repaired."""
        return self._ask("clean", Cleaned, sample, words("clean", task=task))

    def analyse(self, task: str, seen: Pictures, sample: int) -> ChatRequest:
        """Ask what a video shows."""
        return self._ask("analyse", Analysis, sample, words("analyse", task=task), *seen)

    def plan(self, task: str, analysis: Analysis, grades: Sequence[int], sample: int) -> ChatRequest:
        """Ask for an idea for each grade."""
        blanks = {
            "task": task,
            "grades": ", ".join(map(str, grades)),
            "start": analysis.start,
            "actions": listed(analysis.actions),
            "end": analysis.end,
            "objects": "; ".join(analysis.objects),
        }
        return self._ask("plan", Plan, sample, words("plan", **blanks))

    def command(
        self,
        task: str,
        analysis: Analysis,
        idea: Idea,
        history: Sequence[tuple[int, str]],
        rejected: Sequence[tuple[str, str]],
        sample: int,
    ) -> ChatRequest:
        """Ask for one command, given those that there are and those that were turned down."""
        blanks = {
            "task": task,
            "grade": idea.grade,
            "objects": "; ".join(analysis.objects),
            "end": analysis.end,
            "idea": idea.idea,
            "failure": idea.failure,
            "history": listed(f"grade {grade}: {command}" for grade, command in sorted(history)),
            "rejected": listed(f"{command} (turned down: {reason})" for command, reason in rejected),
        }
        return self._ask("command", Command, sample, words("command", **blanks))

    def validate(self, task: str, command: str, seen: Pictures, sample: int) -> ChatRequest:
        """Ask a strict reader, who is not told the grade that the command should have."""
        return self._ask("validate", Verdict, sample, words("validate", command=command, task=task), *seen)

    def _ask(self, stage: str, schema: type, sample: int, text: str, *seen: str | ChatImage) -> ChatRequest:
        free = stage in ("plan", "command") or self.temperature is None
        return ChatRequest(
            (Message.system(words("system")), Message.user(text, *seen)),
            schema,
            temperature=self.temperature if free else 0.0,
            sample=sample,
            max_tokens=MAX_TOKENS[stage] + self.more_tokens,
            tag=stage,
        )


def listed(lines: Iterable[str]) -> str:
    """Write lines as a list; none of them is said, too."""
    found = [f"- {line}" for line in lines]
    return "\n".join(found) or NOTHING
