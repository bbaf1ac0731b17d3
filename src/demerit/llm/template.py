"""Prompts with placeholders, shipped or in a user's file: read, checked and filled in one way for every chat model.

A placeholder is a name in braces, such as {task}. JSON such as {"frame": 1} is none and stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from demerit.data.frames import short_hash
from demerit.errors import BadInput, StoreError

HASH_DIGITS = 12
PLACEHOLDER = re.compile(r"\{([A-Za-z_]+)\}")


def find_placeholders(text: str) -> set[str]:
    """Return the names of a text's placeholders."""
    return set(PLACEHOLDER.findall(text))


def fill_placeholders(text: str, values: Mapping[str, object]) -> str:
    """Fill placeholders; those without a value stay, and braces in the values are left alone."""
    return PLACEHOLDER.sub(lambda match: str(values.get(match[1], match[0])), text)


def read_template(file: str, needed: Collection[str], known: Collection[str] = ()) -> str:
    """Read a user's prompt.

    Args:
        file: a text file in UTF-8.
        needed: placeholders that it must have.
        known: placeholders that it may have.
    """
    what = f"the prompt {file}"
    try:
        text = Path(file).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, ValueError, RuntimeError) as error:  # also: not UTF-8, a NUL in the name, an unknown ~user
        raise StoreError(file, f"the prompt cannot be read ({error})") from error
    if not text:
        raise BadInput(what, f"a text with {list_placeholders(needed)}", "an empty file")
    names = find_placeholders(text)
    if missing := [name for name in needed if name not in names]:
        raise BadInput(what, f"a text with {list_placeholders(needed)}", f"one without {list_placeholders(missing)}")
    if unknown := sorted(names - {*needed, *known}):
        expected = f"no other placeholders than {list_placeholders([*needed, *known])}"
        raise BadInput(what, expected, list_placeholders(unknown))
    return text


def name_prompt(file: str, text: str) -> str:
    """Name a user's prompt by its file and content, for a card and a reward: `mine.txt 1f2e3d4c5b6a`."""
    return f"{Path(file).name} {short_hash(text.encode())[:HASH_DIGITS]}"


def list_placeholders(names: Collection[str]) -> str:
    """Write placeholders for a sentence: `{task}, {count}`."""
    return ", ".join(f"{{{name}}}" for name in names)
