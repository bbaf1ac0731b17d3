"""Whether an adapter was trained on the weights that it is merged into: on any others its numbers mean nothing."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from demerit.errors import AmbiguityWarning, BadInput, DemeritError
from demerit.models.vlm.adapters import CONFIG
from demerit.models.vlm.hub import id_of
from demerit.models.vlm.stored import read_json

if TYPE_CHECKING:
    from demerit.models.vlm.checkpoint import Checkpoint

TRAINING = "training.json"
"""beside what was trained here: among other facts, the fingerprint of the weights that it began with"""


def check_made_for(folder: Path, checkpoint: Checkpoint, named: str | None) -> None:
    """Refuse an adapter that was trained on other weights; where nothing can prove that, say that it looks so.

    Args:
        folder: the adapter's.
        checkpoint: what it is merged into.
        named: the model under it, as its config says; None where that is the one taken.
    """
    facts = read_json(folder / TRAINING) if (folder / TRAINING).is_file() else {}
    wanted, source = facts.get("start_fingerprint"), f"{facts.get('start')} had when {folder / TRAINING} was written"
    if not isinstance(wanted, str):
        if not named or _goes_by(checkpoint, named):
            return
        wanted, source = _fingerprint_of(named), f"{named} has, which {folder / CONFIG} names"
    if wanted is None:
        said = f"The adapter {folder} was made for {named} and is merged into {checkpoint.folder}: if those are not the"
        warnings.warn(f"{said} same weights, its scores mean nothing.", AmbiguityWarning, stacklevel=3)
    elif wanted != checkpoint.fingerprint():
        expected = f"the weights that {source} (fingerprint {wanted[:12]})"
        got = f"{checkpoint.folder} with others (fingerprint {checkpoint.fingerprint()[:12]})"
        raise BadInput(f"The adapter {folder}", expected, got)


def _goes_by(checkpoint: Checkpoint, name: str) -> bool:
    """Whether a checkpoint is the one that goes by a name, as far as names and places tell."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder.resolve() == checkpoint.folder.resolve()
    known = id_of(checkpoint.folder)
    return name == known if known else folder.name == checkpoint.folder.resolve().name


def _fingerprint_of(name: str) -> str | None:
    """Return the fingerprint of a checkpoint in a folder here; None where there is none to compare with."""
    from demerit.models.vlm.checkpoint import read_checkpoint  # noqa: PLC0415  which asks this module

    if not Path(name).expanduser().is_dir():
        return None
    try:
        return read_checkpoint(name).fingerprint()
    except DemeritError:
        return None
