"""Formulas of signal temporal logic: parse one, and measure by how much signals fulfil it.

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from demerit.errors import BadInput

Floats = npt.NDArray[np.float64]
NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
WORD = r"[A-Za-z_%°µ][\w.%°/^*²-]*"
TOKEN = re.compile(rf"\s*(?:({NUMBER})|({WORD})|(<=|>=|[<>()\[\],]))")
TIMED = ("always", "eventually", "never", "until")
WORDS = (*TIMED, "not", "and", "or", "implies")
LONGEST = 300
"""words of a formula: it is parsed and measured by recursion"""
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
    return formula


def list_limits(formula: Formula) -> list[Limit]:
    """List the comparisons, from left to right."""
    if isinstance(formula, Limit):
        return [formula]
    return [found for part in formula.parts for found in list_limits(part)]


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
    first, stop = np.arange(moments), np.full(moments, frames)
    if formula.window is not None:
        known, (begin, end) = times[:frames], formula.window
        first = np.searchsorted(known, known[:moments] + begin - SLACK)
        stop = np.searchsorted(known, known[:moments] + end + SLACK, side="right")
    spans = zip(first.tolist(), stop.tolist(), strict=True)
    if formula.operator == "until":
        return np.array([_until(parts[0], parts[1], now, *span) for now, span in enumerate(spans)])
    choose = np.fmin if formula.operator == "always" else np.fmax
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


class _Parser:
    """Parses by recursive descent: a method per line of the grammar."""

    def __init__(self, text: str) -> None:
        self.text, self.position = text, 0
        self.tokens: list[str] = []
        self.starts: list[int] = []
        place, end = 0, len(text.rstrip())
        while place < end:
            found = TOKEN.match(text, place)
            if found is None:
                raise BadInput(
                    f"formula {text!r}", "names, numbers, < <= > >= ( ) [ ]", repr(text[place:].strip()[:20])
                )
            self.tokens.append(found.group(found.lastindex or 0))
            self.starts.append(found.start(found.lastindex or 0))
            place = found.end()
        if len(self.tokens) > LONGEST:
            raise BadInput("formula", f"at most {LONGEST} words and signs", len(self.tokens))

    def fail(self, expected: str) -> None:
        rest = self.text[self.starts[self.position] :] if self.position < len(self.tokens) else "the end"
        raise BadInput(f"formula {self.text!r}", expected, rest if rest == "the end" else repr(rest[:20]))

    def peek(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def take(self, *wanted: str) -> bool:
        """Move past the next token if it is a wanted one."""
        found = self.peek() in wanted
        self.position += found
        return found

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
