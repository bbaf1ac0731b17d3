"""A reward: one model's values for one episode, and its verdict: success, failure, or unknown with the reason.

No other module reads what a model wrote down about success (`given`): every command shows `Reward.verdict`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from demerit.data.arrays import Floats32
from demerit.data.notebook import RewardPlot, draw_reward
from demerit.errors import BadReward

UNFAMILIAR = 0.01
"""a value of an episode below this familiarity is a guess: of episodes like those learned from, 1% are"""
NOT_TAUGHT = "not among those taught"
"""`given["task"]` of an episode whose instruction the model was not taught"""
SAME_TASK_EXAMPLES = "of the same task"
"""`given["examples"]` of a prompt that shows examples of the evaluated task itself: the reward is unfairly good"""
GENERATIONS = "generations"
"""`given["generations"]`: the raw answers of a chat model, each with about, request, answer and why_not (see
`ChatResponse.record`); stored beside the rewards and in a benchmark's `generations.jsonl`, never shown to a model"""
UnknownReason = Literal["not scored", "camera missing", "task not taught", "unfamiliar", "no threshold", "no alarm"]
ADVICE: Mapping[UnknownReason, str] = {
    "not scored": "the model gave no value at the end",
    "camera missing": "a camera that the model was taught with is missing, and its threshold needs all of them",
    "task not taught": "the model was not taught this instruction; --instruction TEXT names one where there is none",
    "unfamiliar": "unlike everything that the model learned from, so its value is a guess",
    "no threshold": "the model has no success threshold; demerit calibrate sets one",
    "no alarm": "a detector finds failures; an episode without an alarm is not thereby a success",
}
WARNED: tuple[UnknownReason, ...] = ("camera missing", "task not taught", "unfamiliar")
"""reasons for which the value itself is doubtful"""


@dataclass(frozen=True)
class Verdict:
    """Whether an episode succeeded, as one model says it."""

    success: bool | None
    """None = unknown"""
    reason: UnknownReason | None = None
    """why it is unknown"""
    detail: str = ""
    """what belongs to the reason: the missing cameras, why it is not scored"""

    @property
    def word(self) -> str:
        """Say success, failure or unknown."""
        return {True: "success", False: "failure", None: "unknown"}[self.success]

    def __str__(self) -> str:
        """The word, with the reason of an unknown one: `unknown: camera missing (right)`."""
        detail = f" ({self.detail})" if self.detail else ""
        return self.word if self.reason is None else f"{self.word}: {self.reason}{detail}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"verdict": self.word, "why_unknown": self.reason, "detail": self.detail}


def judge(final: float, why_missing: str, given: Mapping[str, Any]) -> Verdict:
    """Return the verdict about an episode that ends with this value; see `Reward` for the parameters."""
    if missing := given.get("missing cameras"):  # also where no camera is there, so that nothing is scored
        return Verdict(None, "camera missing", ", ".join(map(str, missing)))
    if math.isnan(final):
        return Verdict(None, "not scored", why_missing)
    if given.get("task") == NOT_TAUGHT:
        return Verdict(None, "task not taught", str(given.get("instruction", "")))
    if is_unfamiliar(given):
        return Verdict(None, "unfamiliar", f"familiarity {read_familiarity(given):g}")
    succeeds = given.get("succeeds")
    return Verdict(succeeds) if isinstance(succeeds, bool) else Verdict(None, "no threshold")


def gather_doubts(givens: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what makes the verdicts of several models unknown, for the reward of a model that is made of them."""
    doubts: dict[str, Any] = {}
    for facts in givens:
        doubts |= {name: facts[name] for name in ("missing cameras", "caution") if facts.get(name)}
        if facts.get("task") == NOT_TAUGHT:
            doubts |= {"task": NOT_TAUGHT, "instruction": facts.get("instruction", "")}
        familiarity = read_familiarity(facts)
        if familiarity is not None:
            doubts["familiarity"] = min(familiarity, doubts.get("familiarity", 1.0))
    return doubts


def read_familiarity(given: Mapping[str, Any]) -> float | None:
    """Return how much an episode looks like what the model learned from, 0 to 1; None = unknown."""
    familiarity = given.get("familiarity")
    return float(familiarity) if isinstance(familiarity, int | float) and 0 <= familiarity <= 1 else None


def is_unfamiliar(given: Mapping[str, Any]) -> bool:
    """Whether an episode is unlike everything that the model learned from."""
    familiarity = read_familiarity(given)
    return familiarity is not None and familiarity < UNFAMILIAR


def read_caution(given: Mapping[str, Any]) -> str:
    """Return why the model is not trusted yet, as it was said when it was taught; empty where nothing was said."""
    return str(given.get("caution") or "")


@dataclass(frozen=True)
class VerdictCounts:
    """The verdicts over several episodes, and the warnings that belong to them."""

    successes: int
    failures: int
    unknown: Mapping[str, int]
    """episodes by reason, the most frequent first"""
    warnings: tuple[str, ...] = ()
    """a line each: cameras missing, tasks not taught, unfamiliar episodes, a model that is not trusted yet"""

    @classmethod
    def of(cls, rewards: Iterable[Reward]) -> VerdictCounts:
        """Count the verdicts of rewards."""
        verdicts, cautions = list[Verdict](), dict[str, None]()
        for reward in rewards:
            verdicts.append(reward.verdict)
            cautions |= dict.fromkeys(filter(None, [reward.caution]))
        return cls.of_verdicts(verdicts, cautions)

    @classmethod
    def of_verdicts(cls, verdicts: Iterable[Verdict], cautions: Iterable[str] = ()) -> VerdictCounts:
        """Count verdicts; `cautions` are what the models say against themselves."""
        kept = list(verdicts)
        unknown = Counter(verdict.reason for verdict in kept if verdict.reason is not None)
        warnings = [
            f"{reason}: {unknown[reason]} of {len(kept)} ({ADVICE[reason]})" for reason in WARNED if unknown[reason]
        ]
        warnings += [f"model not yet trusted: {caution}" for caution in cautions if caution]
        answers = Counter(verdict.success for verdict in kept)
        return cls(
            answers[True], answers[False], {str(name): count for name, count in unknown.most_common()}, tuple(warnings)
        )

    @property
    def judged(self) -> int:
        """Episodes with a verdict."""
        return self.successes + self.failures

    def __str__(self) -> str:
        """One line: `3 success, 2 failure, 1 unknown (camera missing)`."""
        reasons = ", ".join(
            name if len(self.unknown) == 1 else f"{count} {name}" for name, count in self.unknown.items()
        )
        unknown = f", {sum(self.unknown.values())} unknown ({reasons})" if self.unknown else ""
        return f"{self.successes} success, {self.failures} failure{unknown}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "success": self.successes,
            "failure": self.failures,
            "unknown": dict(self.unknown),
            "warnings": list(self.warnings),
        }


@lru_cache(maxsize=256)
def _every_frame(count: int) -> npt.NDArray[np.int32]:
    """Return 0 to count - 1. Rewards of equal length share it: a benchmark keeps a dozen of each episode."""
    indices = np.arange(count, dtype=np.int32)
    indices.setflags(write=False)
    return indices


@dataclass(frozen=True, eq=False, slots=True)
class Reward:
    """A model's values by frame. Unscored frames are NaN with a reason; nothing is filled in."""

    model: str
    episode: str
    at: npt.NDArray[np.int32]
    """indices of the scored frames, strictly increasing"""
    value: Floats32
    """a value per index, in the quantity and range of the model's card; NaN = unscored"""
    success: Floats32 | None = None
    """probability of success at each index, if the model predicts it; whether it succeeded is `verdict.success`"""
    why_missing: str = ""
    """why values are NaN, or why nothing was scored"""
    given: Mapping[str, Any] = field(default_factory=dict)
    """what the model was given: camera, number of frames, whether there was an instruction ..."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "at", self._column("at", self.at, np.int32))
        object.__setattr__(self, "value", self._column("value", self.value, np.float32))
        if self.success is not None:
            object.__setattr__(self, "success", self._column("success", self.success, np.float32))
        self._check()

    @classmethod
    def unscored(cls, model: str, episode: str, reason: str, given: Mapping[str, Any] | None = None) -> Reward:
        """Make a reward without values, with the reason."""
        nothing = np.empty(0)
        return cls(model, episode, nothing.astype(np.int32), nothing.astype(np.float32), None, reason, given or {})

    @property
    def scored(self) -> bool:
        """Whether at least one frame has a value."""
        return bool(np.any(~np.isnan(self.value)))

    @property
    def final(self) -> float:
        """The value at the last index; NaN when it is unscored."""
        return float(self.value[-1]) if len(self.value) else float("nan")

    @property
    def familiarity(self) -> float | None:
        """How much the episode looks like what the model learned from, 0 to 1; 0.5 = typical, None = unknown."""
        return read_familiarity(self.given)

    @property
    def is_guess(self) -> bool:
        """Whether the episode is unlike everything that the model learned from."""
        return is_unfamiliar(self.given)

    @property
    def verdict(self) -> Verdict:
        """Success or failure as the model says it; unknown, with the reason, where its threshold does not hold."""
        return judge(self.final, self.why_missing, self.given)

    @property
    def caution(self) -> str:
        """Why the model is not trusted yet, as it was said when it was taught; empty where nothing was said."""
        return read_caution(self.given)

    def plot(self) -> RewardPlot:
        """Draw values (and probabilities of success) over frames; unscored frames are gaps. Notebooks show it."""
        return RewardPlot(draw_reward(self))

    def __repr__(self) -> str:
        if not self.scored:
            return f"Reward({self.model!r}, {self.episode!r}, unscored: {self.why_missing})"
        missing = int(np.isnan(self.value).sum())
        note = f", {missing} unscored: {self.why_missing}" if missing else ""
        return f"Reward({self.model!r}, {self.episode!r}, {len(self.at)} frames, final={self.final:.3f}{note})"

    def _column(self, name: str, values: npt.ArrayLike, dtype: type[np.generic]) -> npt.NDArray[Any]:
        column = np.array(values)
        if column.ndim != 1:
            raise BadReward(self.model, self.episode, f"{name} has shape {column.shape} instead of one number a frame")
        if column.size and not np.issubdtype(column.dtype, np.number):
            raise BadReward(self.model, self.episode, f"{name} holds {column.dtype} instead of numbers")
        if dtype is np.int32 and column.size and not np.array_equal(column, column.astype(np.int32)):
            raise BadReward(self.model, self.episode, f"{name} holds numbers that are not frame indices")
        column = column.astype(dtype)
        column.setflags(write=False)
        every = _every_frame(len(column))
        return every if dtype is np.int32 and np.array_equal(column, every) else column

    def _check(self) -> None:
        def fail(reason: str) -> None:
            raise BadReward(self.model, self.episode, reason)

        if len(self.at) != len(self.value):
            fail(f"{len(self.at)} frame indices but {len(self.value)} values")
        if self.success is not None and len(self.success) != len(self.at):
            fail(f"{len(self.at)} frame indices but {len(self.success)} success probabilities")
        if len(self.at) and (self.at[0] < 0 or bool(np.any(np.diff(self.at) <= 0))):
            fail("frame indices are not increasing from 0")
        if bool(np.any(np.isinf(self.value))):
            fail("a value is infinite")
        answers = self.given.get(GENERATIONS, [])
        if not isinstance(answers, list | tuple) or not all(isinstance(answer, Mapping) for answer in answers):
            fail(f"given[{GENERATIONS!r}] is not a list of answers with about, request, answer and why_not")
        missing = not len(self.value) or bool(np.any(np.isnan(self.value)))
        if missing and not self.why_missing:
            fail("values are missing and no reason is given")
        if not missing and self.why_missing:
            fail(f"a reason for missing values ({self.why_missing!r}), but none is missing")
