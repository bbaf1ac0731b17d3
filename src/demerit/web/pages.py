"""Every page of demerit is rendered here: what a template prints is escaped, and an undefined name is an error.

Pages that make no request (reports, cards, `view` and `watch`) are in `assets/pages`; pages of people are in
`assets/people`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from demerit.data.files import make_folder
from demerit.errors import BadInput


def keep_options(text: str) -> Markup:
    """Escape a sentence: what stands in backticks is code, and no line ends inside an option such as `--risk 0.1`."""
    code = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    return Markup(re.sub(r"--[a-z][\w-]*(?: [\d.]*\d)?", r'<span class="option">\g<0></span>', code))


TEMPLATES = Environment(
    loader=ChoiceLoader([PackageLoader("demerit", f"assets/{folder}") for folder in ("pages", "people")]),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters["keep_options"] = keep_options


def fill(template: str, **parts: Any) -> str:
    """Render a template, or a part of a page."""
    return TEMPLATES.get_template(template).render(parts)


def check_page(path: Path | None, command: str) -> None:
    """Raise if a page cannot be written, or would overwrite what is not a page of this command; None = no page."""
    if path is None:
        return
    make_folder(path.parent)
    mark = f'<meta name="generator" content="demerit {command}">'.encode()
    if path.exists() and (path.is_dir() or mark not in path.read_bytes()):
        raise BadInput(str(path), f"a new file, or a page of `demerit {command}`", "something else")


def render(template: str, *, scripts: Sequence[str] = ("tables.js",), **parts: Any) -> str:
    """Render a page with the shared style sheet, and scripts that the page's content policy allows by hash."""
    script = Markup("").join(["\n", *(asset(name) for name in scripts)])
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    shared = {"style": asset("style.css"), "script": script, "script_hash": f"sha256-{digest}"}
    return fill(template, **shared, **parts)


@cache
def asset(name: str) -> Markup:
    """Return the text of a file in `assets/pages`, unescaped."""
    return Markup((files("demerit") / "assets" / "pages" / name).read_text("utf-8"))
