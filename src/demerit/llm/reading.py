"""From what a model wrote to what the schema wants, or the reason why not.

Tried in this order: the whole text, fenced blocks, then every outermost {...} or [...] in the prose; within a group
the last that fits wins, because an answer follows its reasoning. A percentage where the schema has a number is the
number as written, or a hundredth of it where the schema allows at most 1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from demerit.llm import lenient
from demerit.llm.asks import rules_of

if TYPE_CHECKING:
    from pydantic import BaseModel

_THOUGHT = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
_FENCE = re.compile(r"```[\w-]*[ \t]*\n?(.*?)```", re.DOTALL)
_PERCENT = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+))\s*(?:%|percent)\s*", re.IGNORECASE)
_REFUSAL = re.compile(
    r"\W*(?:i(?:'|’)?m sorry|i am sorry|sorry,|i can(?:'|’)?t|i cannot|i(?:'|’)m (?:not able|unable)|i am (?:not able|"
    r"unable)|i won(?:'|’)t|as an ai)",
    re.IGNORECASE,
)
MOST_CANDIDATES = 50
_SHOWN = 80


def read(text: str, finish: str, refusal: str, schema: type[BaseModel] | None) -> tuple[BaseModel | None, str]:
    """Return what was meant and an empty reason, or nothing and the reason."""
    if refusal or finish == "content_filter":
        return None, f"refused: {_short(refusal or text or 'the server filtered the answer')}"
    if schema is None:
        if finish == "length":
            return None, "cut off: the answer reached max_tokens"
        return None, "" if text.strip() else "unreadable: the answer is empty"
    parsed, why_not = _fitting(text, schema)
    if parsed is not None:
        return parsed, ""
    if finish == "length":
        return None, "cut off: the answer reached max_tokens before its JSON was complete"
    if not text.strip():
        return None, "unreadable: the answer is empty"
    if not re.search(r"[{\[]", text) and _REFUSAL.match(text):
        return None, f"refused: {_short(text)}"
    return None, f"unreadable: {why_not} in {_short(text)}"


def _fitting(text: str, schema: type[BaseModel]) -> tuple[BaseModel | None, str]:
    """Find the value that fits the schema; the reason is that of the most promising candidate."""
    from pydantic import ValidationError  # noqa: PLC0415

    why_not = "no JSON"
    for group in _candidates(_THOUGHT.sub("", text).lstrip("\ufeff")):
        for candidate in reversed(group):
            try:
                value = _loads(candidate)
            except lenient.NotJson as error:
                why_not = str(error) if why_not == "no JSON" else why_not
                continue
            for shape in _shapes(value, schema):
                try:
                    return schema.model_validate(shape), ""
                except ValidationError as error:
                    why_not = _first(error)
    return None, why_not


def _candidates(text: str) -> Iterator[list[str]]:
    """Pieces that may be the answer, in groups: nearest first."""
    stripped = text.strip()
    if stripped[:1] in ("{", "["):
        yield [stripped]
    fenced = [piece.strip() for piece in _FENCE.findall(text)]
    yield [piece for piece in fenced if piece[:1] in ("{", "[")]
    yield list(_spans(text))[-MOST_CANDIDATES:]


def _spans(text: str) -> Iterator[str]:
    """Every outermost bracketed piece, brackets inside double-quoted strings not counted."""
    start, open_, quoted, at = -1, 0, False, 0
    while at < len(text):
        letter = text[at]
        if quoted:
            at += letter == "\\"
            quoted = letter != '"'
        elif letter == '"' and open_:
            quoted = True
        elif letter in "{[":
            start, open_ = (at, 1) if not open_ else (start, open_ + 1)
        elif letter in "}]" and open_:
            open_ -= 1
            if not open_:
                yield text[start : at + 1]
        at += 1


def _loads(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=lenient.pairs)
    except lenient.NotJson:
        raise
    except (ValueError, RecursionError):
        return lenient.loads(text)


def _shapes(value: Any, schema: type[BaseModel]) -> Iterator[Any]:
    """The value as it is, and the two ways in which servers without schemas mostly miss: wrapped, or not wrapped."""
    rules = rules_of(schema)
    yield _percentages(value, rules, rules)
    names = list(rules.get("properties", {}))
    if isinstance(value, dict) and len(value) == 1 and not set(value) & set(names):
        (inner,) = value.values()
        if isinstance(inner, dict | list):
            yield from _shapes(inner, schema)
    if isinstance(value, list) and len(names) == 1:
        yield _percentages({names[0]: value}, rules, rules)


def _percentages(value: Any, rules: Any, top: dict[str, Any]) -> Any:
    """Turn '45%' into a number wherever the schema has one; leave everything else alone."""
    options = _options(rules, top)
    if isinstance(value, str):
        found = _PERCENT.fullmatch(value)
        numbers = [option for option in options if option.get("type") in ("number", "integer")]
        if not found or not numbers:
            return value
        most = numbers[0].get("maximum", numbers[0].get("exclusiveMaximum"))
        return float(found.group(1)) / 100 if most is not None and most <= 1 else float(found.group(1))
    if isinstance(value, list):
        inner: Any = next((option["items"] for option in options if "items" in option), {})
        return [_percentages(each, inner, top) for each in value]
    if isinstance(value, dict):
        known = {name: rule for option in options for name, rule in option.get("properties", {}).items()}
        other: Any = next((option.get("additionalProperties") for option in options), {})
        return {key: _percentages(each, known.get(key, other), top) for key, each in value.items()}
    return value


def _options(rules: Any, top: dict[str, Any]) -> list[dict[str, Any]]:
    """The alternatives that a piece of JSON Schema allows, references followed."""
    if not isinstance(rules, dict):
        return [{}]
    if "$ref" in rules:
        return _options(top.get("$defs", {}).get(rules["$ref"].rsplit("/", 1)[-1], {}), top)
    if "anyOf" in rules:
        return [option for each in rules["anyOf"] for option in _options(each, top)]
    return [rules]


def _first(error: Any) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(step) for step in first["loc"]) or "the whole"
    return f"{where}: {first['msg'].lower()}"


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return repr(flat if len(flat) <= _SHOWN else flat[: _SHOWN - 3] + "...")
