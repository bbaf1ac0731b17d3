"""Text from data on the terminal: control characters are shown, not obeyed."""

from __future__ import annotations

import re

# C0 without tab and newline, DEL, C1, direction overrides, lone surrogates (undecodable file names).
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def escape_controls(text: str) -> str:
    r"""Write control characters as escapes such as `\u001b`, which JSON reads back; other Unicode stays."""
    return CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def shorten(text: str, most: int = 300) -> str:
    """Cut a long text from data."""
    return text if len(text) <= most else f"{text[:most]}..."
