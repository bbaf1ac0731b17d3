"""JSON as models write it: single quotes, bare keys, comments, trailing commas, NaN, Python's words, 45%.

Strict JSON never comes here (see `reading`). What is accepted beyond it is only spelling: nothing is filled in, no
bracket is closed that was left open, and a key written twice with two values is an error, not the last one.
"""

from __future__ import annotations

import re
from typing import Any

_SPACE = re.compile(r"(?:\s+|//[^\n]*|/\*.*?\*/|#[^\n]*)+", re.DOTALL)
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?:\s?%)?(?![\w.])")
_WORD = re.compile(r"[-+]?[A-Za-z_$][\w$-]*")
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None, "none": None, "undefined": None}
_WORDS |= {"nan": float("nan"), "infinity": float("inf"), "-infinity": float("-inf"), "inf": float("inf")}
_QUOTES = {'"': '"', "'": "'", "“": "”", "‘": "’", "`": "`"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\n": ""}
DEEPEST = 100
_HEX = 4


class NotJson(ValueError):
    """Not even leniently."""


def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object; a key that stands there with two different values has none."""
    out: dict[str, Any] = {}
    for key, value in items:
        if key in out and repr(out[key]) != repr(value):
            raise NotJson(f"the key {key[:40]!r} is written twice, with different values")
        out[key] = value
    return out


def loads(text: str) -> Any:
    """Read the whole text as one value."""
    reader = _Reader(text)
    value = reader.value(0)
    reader.space()
    if reader.at != len(text):
        raise NotJson(f"{text[reader.at : reader.at + 20]!r} stands after the end of the JSON")
    return value


class _Reader:
    """A position in a text, and one method per kind of value."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def space(self) -> str:
        """Skip blanks and comments; return the next character, empty at the end."""
        found = _SPACE.match(self.text, self.at)
        if found:
            self.at = found.end()
        return self.text[self.at : self.at + 1]

    def value(self, depth: int) -> Any:
        if depth > DEEPEST:
            raise NotJson(f"it is nested more than {DEEPEST} deep")
        first = self.space()
        if first == "{":
            return self.object(depth)
        if first == "[":
            return self.array(depth)
        if first in _QUOTES:
            return self.string()
        return self.bare()

    def object(self, depth: int) -> dict[str, Any]:
        items = []
        self.at += 1
        while self.space() != "}":
            key = self.key()
            if self.space() not in (":", "="):
                raise NotJson(f"a colon is missing after the key {key[:40]!r}")
            self.at += 1
            items.append((key, self.value(depth + 1)))
            self.comma("}")
        self.at += 1
        return pairs(items)

    def array(self, depth: int) -> list[Any]:
        items = []
        self.at += 1
        while self.space() != "]":
            items.append(self.value(depth + 1))
            self.comma("]")
        self.at += 1
        return items

    def comma(self, end: str) -> None:
        """Pass a comma, or stand before the end."""
        found = self.space()
        if found == ",":
            self.at += 1
        elif found != end:
            raise NotJson(
                f"a comma is missing before {self.text[self.at : self.at + 20]!r}" if found else "it is cut off"
            )

    def key(self) -> str:
        if self.space() in _QUOTES:
            return self.string()
        found = _WORD.match(self.text, self.at) or re.compile(r"\d+").match(self.text, self.at)
        if not found:
            raise NotJson(
                f"a key was expected at {self.text[self.at : self.at + 20]!r}" if self.space() else "it is cut off"
            )
        self.at = found.end()
        return found.group()

    def string(self) -> str:
        closing, out = _QUOTES[self.text[self.at]], list[str]()
        self.at += 1
        while True:
            here = self.text[self.at : self.at + 1]
            if not here:
                raise NotJson("it is cut off")
            self.at += 1
            if here == closing:
                # Characters beyond the first 65,536 are escaped as two halves, which belong together.
                return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            out.append(self.escape() if here == "\\" else here)

    def escape(self) -> str:
        letter = self.text[self.at : self.at + 1]
        self.at += 1
        if letter == "u":
            digits = self.text[self.at : self.at + _HEX]
            if not re.fullmatch(r"[0-9a-fA-F]{4}", digits):
                raise NotJson(f"\\u{digits} is no character")
            self.at += _HEX
            return chr(int(digits, 16))
        return _ESCAPES.get(letter, letter)

    def bare(self) -> Any:
        """Read a number, a percentage (kept as text for the schema to decide) or a word."""
        found = _NUMBER.match(self.text, self.at)
        if found:
            self.at = found.end()
            number = found.group()
            if number.endswith("%"):
                return number
            return int(number) if re.fullmatch(r"[-+]?\d{1,300}", number) else float(number)
        found = _WORD.match(self.text, self.at)
        if found and found.group().lower() in _WORDS:
            self.at = found.end()
            return _WORDS[found.group().lower()]
        rest = self.text[self.at : self.at + 20]
        raise NotJson(f"{rest!r} is no value" if rest else "it is cut off")
