"""The folder that a lesson writes: usable at every moment, never another's."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

from demerit.data.files import write_atomic
from demerit.errors import StoreError
from demerit.models.folder import DESCRIPTION, FORMAT, read_description
from demerit.models.taught.head import Head
from demerit.models.taught.model import KIND, Recipe, head_file

BESIDE = ".teaching"
"""what is behind a model folder's name, for the folder with what the lesson has seen"""


def shelf_folder(out: Path) -> Path:
    """Where features are kept while, and after, a model is taught."""
    return out.with_name(out.name + BESIDE)


def check_out(out: Path, address: str) -> None:
    """Refuse a folder that holds anything but a model taught on the same dataset."""
    if not out.exists():
        return
    if not out.is_dir():
        raise StoreError(out, "it is a file; choose a folder for the model")
    if not (out / DESCRIPTION).exists():
        if any(
            path.name != ".lock" and not path.name.endswith(".part") and not _is_ours(path) for path in out.iterdir()
        ):
            raise StoreError(out, "it holds something else; nothing is overwritten, choose another folder")
        return
    facts = read_description(out)
    before = facts.get("taught_on", {}).get("address") if facts["kind"] == KIND else None
    if before is None:
        raise StoreError(
            out, f"it holds a model of kind {facts['kind']!r}; nothing is overwritten, choose another folder"
        )
    if before != address:
        raise StoreError(out, f"it holds a model taught on {before}, not on {address}; choose another folder")


def write_model(out: Path, recipe: Recipe, head: Head) -> Recipe:
    """Write the model in one step: the numbers under a name of their own first, then what makes them the model."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(out, f"the folder cannot be made ({error.strerror})") from error
    recipe, content = sealed(recipe, head)
    write_atomic(out / head_file(recipe.head), content)
    facts = {"format": FORMAT, "kind": KIND, **recipe.as_facts()}
    write_atomic(out / DESCRIPTION, (json.dumps(facts, indent=1, ensure_ascii=False) + "\n").encode())
    for path in out.glob("head-*.npz"):
        if path.name != head_file(recipe.head):
            path.unlink(missing_ok=True)
    return recipe


def sealed(recipe: Recipe, head: Head) -> tuple[Recipe, bytes]:
    """Write the numbers down and put their hash into the description."""
    content = head.content()
    return replace(recipe, head=hashlib.sha256(content).hexdigest()), content


def _is_ours(path: Path) -> bool:
    """What a lesson that was killed before its first model may leave."""
    return path.name.startswith(("head-", "report.")) or path.name.startswith(".")
