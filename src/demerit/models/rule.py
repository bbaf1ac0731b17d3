"""A rule as a reward model: `rule:safe.yaml`.

    formula: eventually(height > 0.1 m) and never(force > 20 N)
    signals:
      height: {signal: object, column: 2, relative: true, scale: 0.1}
      force: {signal: object_force, scale: 20}

The value of a frame is the robustness of the formula over the frames up to it, in scales; success is whether it holds.

Formulas of signal temporal logic: parse one, and measure by how much signals fulfil it.

    formula    = either ["implies" formula]
    either     = both {"or" both}
    both       = pair {"and" pair}
    pair       = single ["until" [window] single]
    single     = "not" single | ("always" | "eventually" | "never") [window] single | "(" formula ")" | comparison
    comparison = NAME ("<" | "<=" | ">" | ">=") NUMBER [UNIT]
    window     = "[" NUMBER "," NUMBER "]"      in seconds from the moment that is looked at

Robustness is the smallest change of a signal that changes the answer: positive if the formula holds, else negative.
For a comparison it is the distance to the limit; `and` and `always` take the smallest, `or` and `eventually` the
largest. A window is cut at the last frame. A moment whose window begins later is undecided (NaN): `always`,
`eventually` and `until` leave it out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.config import build_config, read_yaml
from demerit.data.arrays import Floats
from demerit.data.episode import Episode, safe_name
from demerit.data.frames import short_hash
from demerit.data.reward import Reward
from demerit.errors import BadInput, DemeritError
from demerit.models.loading import Listing
from demerit.models.protocol import LiveReward, ModelCard, ShownModel
from demerit.models.signals import read_columns

NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
WORD = r"[A-Za-z_%°µ][\w.%°/^*²-]*"
TOKEN = re.compile(rf"\s*(?:({NUMBER})|({WORD})|(<=|>=|[<>()\[\],]))")
TIMED = ("always", "eventually", "never", "until")
WORDS = (*TIMED, "not", "and", "or", "implies")
LONGEST = 300
"""words of a formula: it is parsed and measured by recursion"""
DEEPEST = 16
"""always, eventually, never and until inside one another"""
ON_THE_LIMIT = 1e-12
"""the robustness of a value that equals its limit: positive for <= and >=, negative for < and >"""
SLACK = 1e-6
"""seconds by which a frame may miss a window: times are rounded"""


@dataclass(frozen=True)
class Limit:
    """A signal compared with a number."""

    name: str
    sign: str
    limit: float
    unit: str = ""

    def margin(self, values: Floats, scale: float) -> Floats:
        """Return the distance to the limit in scales, positive where the comparison holds."""
        distance = (values - self.limit if self.sign[0] == ">" else self.limit - values) / scale
        return np.where(distance == 0, ON_THE_LIMIT if "=" in self.sign else -ON_THE_LIMIT, distance)


@dataclass(frozen=True)
class Operation:
    """not, and, or, always, eventually or until, of one or two formulas."""

    operator: str
    parts: tuple[Formula, ...]
    window: tuple[float, float] | None = None
    """seconds; None = from now to the end"""


Formula = Limit | Operation


def parse_formula(text: str) -> Formula:
    """Parse a formula; raise BadInput with the place of an error."""
    parser = _Parser(text)
    formula = parser.formula()
    if parser.position < len(parser.tokens):
        parser.fail("the end, or one of and, or, implies, until")
    _check_timed(formula, text)
    if _count_nested(formula) > DEEPEST:
        raise BadInput("formula", f"at most {DEEPEST} of {', '.join(TIMED)} inside one another", "more")
    return formula


def list_limits(formula: Formula) -> list[Limit]:
    """List the comparisons, from left to right."""
    if isinstance(formula, Limit):
        return [formula]
    return [limit for part in formula.parts for limit in list_limits(part)]


def has_windows(formula: Formula) -> bool:
    """Whether the formula depends on seconds."""
    return isinstance(formula, Operation) and (formula.window is not None or any(map(has_windows, formula.parts)))


def measure(formula: Formula, margins: Mapping[Limit, Floats], times: Floats, frames: int, moments: int = 1) -> Floats:
    """Return the robustness at the first `moments` frames, when only the first `frames` frames are known."""
    if isinstance(formula, Limit):
        return margins[formula][:moments]
    if formula.operator not in TIMED:
        parts = [measure(part, margins, times, frames, moments) for part in formula.parts]
        if formula.operator == "not":
            return -parts[0]
        return (np.minimum if formula.operator == "and" else np.maximum)(*parts)
    parts = [measure(part, margins, times, frames, frames) for part in formula.parts]
    choose = np.fmin if formula.operator == "always" else np.fmax
    if formula.window is None and formula.operator != "until":
        return np.asarray(choose.accumulate(parts[0][::-1])[::-1][:moments])
    first, stop = np.arange(moments), np.full(moments, frames)
    if formula.window is not None:
        seconds, (begin, end) = times[:frames], formula.window
        first = np.searchsorted(seconds, seconds[:moments] + begin - SLACK)
        stop = np.searchsorted(seconds, seconds[:moments] + end + SLACK, side="right")
    spans = zip(first.tolist(), stop.tolist(), strict=True)
    if formula.operator == "until":
        return np.array([_until(parts[0], parts[1], now, *span) for now, span in enumerate(spans)])
    return np.array([choose.reduce(parts[0][begin:end]) if begin < end else np.nan for begin, end in spans])


def _until(left: Floats, right: Floats, now: int, first: int, stop: int) -> float:
    """Measure that `right` holds at some frame from `first` on, and `left` from `now` to the frame before."""
    if first >= stop:
        return float("nan")
    before = np.concatenate([[np.inf], np.fmin.accumulate(left[now : stop - 1])])
    return float(np.fmax.reduce(np.minimum(right[first:stop], before[first - now :])))


def _check_timed(formula: Formula, text: str) -> None:
    if isinstance(formula, Limit):
        word = f"{formula.name} {formula.sign} {formula.limit:g}"
        expected = "every comparison inside always, eventually, never or until (the first frame is always[0,0])"
        raise BadInput(f"formula {text!r}", expected, f"{word!r} outside")
    if formula.operator not in TIMED:
        for part in formula.parts:
            _check_timed(part, text)


def _count_nested(formula: Formula) -> int:
    if isinstance(formula, Limit):
        return 0
    return max(map(_count_nested, formula.parts)) + (formula.operator in TIMED)


class _Parser:
    """Parses by recursive descent: a method per line of the grammar."""

    def __init__(self, text: str) -> None:
        self.text, self.position = text, 0
        self.tokens: list[str] = []
        self.starts: list[int] = []
        place, end = 0, len(text.rstrip())
        while place < end:
            match = TOKEN.match(text, place)
            if match is None:
                raise BadInput(
                    f"formula {text!r}", "names, numbers, < <= > >= ( ) [ ]", repr(text[place:].strip()[:20])
                )
            self.tokens.append(match.group(match.lastindex or 0))
            self.starts.append(match.start(match.lastindex or 0))
            place = match.end()
        if len(self.tokens) > LONGEST:
            raise BadInput("formula", f"at most {LONGEST} words and signs", len(self.tokens))

    def fail(self, expected: str) -> None:
        rest = self.text[self.starts[self.position] :] if self.position < len(self.tokens) else "the end"
        raise BadInput(f"formula {self.text!r}", expected, rest if rest == "the end" else repr(rest[:20]))

    def peek(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def take(self, *wanted: str) -> bool:
        """Move past the next token if it is a wanted one."""
        is_wanted = self.peek() in wanted
        self.position += is_wanted
        return is_wanted

    def need(self, pattern: str, expected: str) -> str:
        """Take a token of this pattern."""
        token = self.peek()
        if not re.fullmatch(pattern, token) or token in WORDS:
            self.fail(expected)
        self.position += 1
        return token

    def formula(self) -> Formula:
        left = self.join("or", lambda: self.join("and", self.pair))
        if not self.take("implies"):
            return left
        return Operation("or", (Operation("not", (left,)), self.formula()))

    def join(self, word: str, parse: Callable[[], Formula]) -> Formula:
        left = parse()
        while self.take(word):
            left = Operation(word, (left, parse()))
        return left

    def pair(self) -> Formula:
        left = self.single()
        if not self.take("until"):
            return left
        window = self.window()
        return Operation("until", (left, self.single()), window)

    def single(self) -> Formula:
        word = self.peek()
        if self.take("not"):
            return Operation("not", (self.single(),))
        if self.take("always", "eventually", "never"):
            window, inside = self.window(), self.single()
            if word == "never":
                word, inside = "always", Operation("not", (inside,))
            return Operation(word, (inside,), window)
        if self.take("("):
            inside = self.formula()
            self.need(r"\)", "')'")
            return inside
        name = self.need(WORD, "a signal, (, not, always, eventually or never")
        sign = self.need("[<>]=?", "<, <=, > or >=")
        limit = float(self.need(NUMBER, "a number"))
        if not np.isfinite(limit):
            raise BadInput(f"formula {self.text!r}", "finite numbers", f"{name} {sign} {limit:g}")
        is_unit = re.fullmatch(WORD, self.peek()) and self.peek() not in WORDS
        return Limit(name, sign, limit, self.need(WORD, "a unit") if is_unit else "")

    def window(self) -> tuple[float, float] | None:
        if not self.take("["):
            return None
        begin = float(self.need(NUMBER, "seconds"))
        self.need(",", "','")
        end = float(self.need(NUMBER, "seconds"))
        self.need(r"\]", "']'")
        if not 0 <= begin <= end < np.inf:
            raise BadInput(f"formula {self.text!r}", "a window [a,b] with 0 <= a <= b", f"[{begin:g},{end:g}]")
        return begin, end


UNIT_TAG = "unit:"
"""the tag of an episode that gives a signal's unit, e.g. unit:object_force"""
UNDECIDED = "the time windows of the formula have not begun"


@dataclass(frozen=True)
class RuleSignal:
    """Where a number of the formula comes from, and what it is measured in."""

    signal: str = ""
    """the episode's signal; empty = the name in the formula"""
    column: int | None = None
    """which number, of a signal with several"""
    norm: bool = False
    """the Euclidean norm, of a signal with several numbers"""
    relative: bool = False
    """minus the value at the first frame"""
    unit: str = ""
    scale: float | None = None
    """how much of the unit counts as a robustness of 1; for each signal, or for none if all have one unit"""


@dataclass(frozen=True)
class RuleConfig:
    """A rule file."""

    formula: str
    signals: Mapping[str, RuleSignal] = field(default_factory=dict)
    instructions: tuple[str, ...] = ()
    """patterns such as `lift *`: other episodes are left unscored; empty = all episodes"""


class Rule(ShownModel):
    """The robustness of a formula over an episode's signals."""

    listing = Listing(
        quantity="robustness",
        low=None,
        high=None,
        causal=True,
        licence="that of the rule file",
        about="A formula over signals such as forces: rule:safe.yaml. Sees no pixels; knows only what is measured.",
        frames="none",
    )

    def __init__(self, file: str | Path | RuleConfig = "", name: str = "rule") -> None:
        """Read a rule file, or take its content and a name."""
        if not isinstance(file, RuleConfig):
            if not file:
                raise BadInput("rule", "a file, as in rule:safe.yaml", "none")
            name = safe_name(f"rule-{Path(file).stem}")
            file = build_config(RuleConfig, read_yaml(Path(file), expected="a rule (YAML)"), str(file))
        self.config, self.formula = file, parse_formula(file.formula)
        self.limits = list_limits(self.formula)
        self.signals = _complete_signals(file, name, self.limits)
        self.needs_times = has_windows(self.formula)
        units = {signal.unit for signal in self.signals.values() if signal.scale is None}
        self.card = ModelCard(
            name=name,
            revision="1",
            licence=self.listing.licence,
            quantity=" in ".join(filter(None, ["robustness", *units])),
            low=None,
            high=None,
            causal=True,
            comparable=True,
            sees_pixels=False,
            reads_instruction=bool(file.instructions),
            reads_signals=True,
            weights_hash=short_hash(repr(asdict(file)).encode()),
            about=f"Robustness of {file.formula!r}. It knows nothing else.",
        )

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Measure each episode; one without the signals is unscored, with the reason."""
        return [self._score_episode(episode) for episode in episodes]

    def watch(self, instruction: str = "") -> LiveRule:
        """Start a live episode. It is fed signals, not frames as `start` of other models is."""
        if not self._is_meant(instruction):
            raise BadInput(self.card.name, f"an instruction like {self.config.instructions}", repr(instruction))
        return LiveRule(self)

    def read(self, signals: Mapping[str, npt.NDArray[Any]], frames: int) -> dict[str, Floats]:
        """Take the numbers of the formula by name, one per frame; raise an error for a signal that does not fit."""
        return {name: _read_numbers(signals, source, frames) for name, source in self.signals.items()}

    def measure(self, numbers: Mapping[str, Floats], times: Floats, prefixes: Sequence[int]) -> Floats:
        """Return the robustness of the first n frames for each n; NaN = undecided."""
        columns = {name: column - column[:1] * self.signals[name].relative for name, column in numbers.items()}
        margins = {
            limit: limit.margin(columns[limit.name], self.signals[limit.name].scale or 1.0) for limit in self.limits
        }
        return np.array([measure(self.formula, margins, times, frames)[0] for frames in prefixes])

    def _score_episode(self, episode: Episode) -> Reward:
        facts: dict[str, Any] = {"signals": {name: signal.signal for name, signal in self.signals.items()}}
        try:
            numbers = self._read_episode(episode)
            times = episode.main.times() if self.needs_times else np.empty(0)
        except DemeritError as error:
            return Reward.unscored(self.card.name, episode.id, str(error), facts)
        frames = len(episode)
        bad = {name: int(np.argmin(np.isfinite(column))) for name, column in numbers.items() if not _is_finite(column)}
        usable = min(bad.values(), default=frames)
        value = np.full(frames, np.nan)
        value[:usable] = self.measure(numbers, times, range(1, usable + 1))
        why = [f"{name} is {numbers[name][frame]} at frame {frame}" for name, frame in bad.items()]
        why += [UNDECIDED] if np.isnan(value[:usable]).any() else []
        success = np.where(np.isnan(value), np.nan, value > 0)
        why += [] if frames else ["it has no frames"]
        if frames and not np.isnan(value[-1]):
            facts["succeeds"] = bool(value[-1] > 0)
        at = np.arange(frames, dtype=np.int32)
        return Reward(self.card.name, episode.id, at, value, success, "; ".join(why), facts)

    def _read_episode(self, episode: Episode) -> dict[str, Floats]:
        if not self._is_meant(episode.instruction):
            expected = f"an instruction like {' or '.join(self.config.instructions)}"
            raise BadInput(self.card.name, expected, repr(episode.instruction))
        for source in self.signals.values():
            unit = episode.origin.tags.get(UNIT_TAG + source.signal, source.unit)
            if unit != source.unit:
                raise BadInput(f"signal {source.signal!r}", f"the unit {source.unit or 'none'}", unit)
        return self.read(episode.signals, len(episode))

    def _is_meant(self, instruction: str) -> bool:
        patterns = self.config.instructions
        return not patterns or any(fnmatch(instruction.lower(), pattern.lower()) for pattern in patterns)


class RuleGate:
    """A rule with two values: `high` while it holds, `low` while it does not."""

    def __init__(self, rule: Rule, low: float, high: float) -> None:
        """`low` and `high` are the range of the models that it is combined with."""
        self.rule, self.low, self.high = rule, low, high
        self.card = replace(rule.card, quantity="whether the rule holds", low=low, high=high)

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Score each episode with the rule, and keep only whether it holds."""
        scored = [(reward, reward.success) for reward in self.rule.score(episodes)]
        return [
            reward if success is None else replace(reward, value=self.low + (self.high - self.low) * success)
            for reward, success in scored
        ]


class LiveRule:
    """A live episode of a rule; a safety gate stops the robot when `success` is 0."""

    def __init__(self, rule: Rule) -> None:
        """Begin with no frames."""
        self.rule, self.times = rule, list[float]()
        self.numbers: dict[str, list[float]] = {name: [] for name in rule.signals}

    def step(self, signals: Mapping[str, npt.ArrayLike], seconds: float | None = None) -> LiveReward:
        """Take the signals of the next moment; return the value and success that `score` gives it.

        `seconds` since the first moment are needed if the formula has windows. A missing signal raises UnknownName.
        """
        if self.rule.needs_times and (seconds is None or (self.times and not seconds > self.times[-1])):
            raise BadInput("seconds", "a later time than before, for the windows of the formula", seconds)
        columns = self.rule.read({name: np.asarray(value)[None] for name, value in signals.items()}, 1)
        for name, column in columns.items():
            self.numbers[name].append(float(column[0]))
        self.times.append(0.0 if seconds is None else seconds)
        numbers = {name: np.array(column) for name, column in self.numbers.items()}
        if not all(map(_is_finite, numbers.values())):
            return LiveReward(float("nan"), float("nan"))
        value = float(self.rule.measure(numbers, np.array(self.times), [len(self.times)])[0])
        return LiveReward(value, value if np.isnan(value) else float(value > 0), given={"succeeds": value > 0})


def _complete_signals(config: RuleConfig, rule: str, limits: Sequence[Limit]) -> dict[str, RuleSignal]:
    """Fill in the signal and the unit of each name in the formula, and check the table."""
    signals = {limit.name: config.signals.get(limit.name, RuleSignal()) for limit in limits}
    unused = [name for name in config.signals if name not in signals]
    if unused:
        raise BadInput(f"{rule}, signals", f"names of the formula ({', '.join(signals)})", ", ".join(unused))
    for name, source in signals.items():
        units = sorted({source.unit, *(limit.unit for limit in limits if limit.name == name)} - {""})
        if len(units) > 1:
            raise BadInput(f"{rule}, {name}", "one unit", " and ".join(units))
        if source.norm and source.column is not None:
            raise BadInput(f"{rule}, {name}", "a column or norm", "both")
        if source.scale is not None and not 0 < source.scale < np.inf:
            raise BadInput(f"{rule}, {name}, scale", "a positive number", source.scale)
        signals[name] = replace(source, signal=source.signal or name, unit="".join(units))
    unscaled = [name for name, source in signals.items() if source.scale is None]
    if unscaled and (len(unscaled) < len(signals) or len({source.unit for source in signals.values()}) > 1):
        expected = "a scale for each, or for none if all have one unit"
        raise BadInput(f"{rule}, signals", expected, f"none for {', '.join(unscaled)}")
    return signals


def _read_numbers(signals: Mapping[str, npt.NDArray[Any]], source: RuleSignal, frames: int) -> Floats:
    what, flat = f"signal {source.signal!r}", read_columns(signals, source.signal, frames)
    if source.norm:
        return np.asarray(np.linalg.norm(flat, axis=1))
    if source.column is None and flat.shape[1] != 1:
        raise BadInput(what, "a column, or norm: true", f"{flat.shape[1]} numbers per frame")
    if not 0 <= (source.column or 0) < flat.shape[1]:
        raise BadInput(what, f"a column from 0 to {flat.shape[1] - 1}", source.column)
    return np.asarray(flat[:, source.column or 0])


def _is_finite(column: Floats) -> bool:
    return bool(np.isfinite(column).all())
