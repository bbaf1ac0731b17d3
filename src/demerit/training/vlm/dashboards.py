"""Places beside the file of metrics where a run can be watched: TensorBoard and wandb.

A run that goes on is the same run there: what a killed run told of updates behind its checkpoint is told again, and
counts once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from demerit.errors import BadInput, UnknownName

TENSORBOARD = "tensorboard"
"""the folder of its events"""
RUN_ID = "wandb.id"
"""the name of the run there, so that the same one goes on"""


class Dashboard(Protocol):
    """Somewhere to watch a run."""

    def tell(self, step: int, facts: Mapping[str, float]) -> None:
        """Show the numbers of an update."""

    def close(self, *, whole: bool) -> None:
        """End; `whole` says that the run came to its end and was not stopped before."""


def check_dashboards(names: Sequence[str]) -> None:
    """Refuse a name that nobody knows and a library that is missing, before anything is computed."""
    for name in names:
        if name not in DASHBOARDS:
            raise UnknownName("place for metrics", name, DASHBOARDS)
        found = find_spec(name)
        if (
            found is None or found.origin is None
        ):  # a folder of that name, which both libraries leave behind, is no library
            raise _missing(name)


def _missing(name: str) -> BadInput:
    return BadInput("--metrics", f"{name} to be installed (pip install {name})", "none")


class TensorBoard:
    """Event files in a folder of the run: tensorboard --logdir OUT/run/tensorboard."""

    def __init__(self, folder: Path, step: int, facts: Mapping[str, Any]) -> None:
        """Open a new file; what older ones say of later updates than `step` no longer counts."""
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415
        except ImportError as missing:
            raise _missing("tensorboard") from missing
        self._writer: Any = SummaryWriter(str(folder / TENSORBOARD), purge_step=step + 1)

    def tell(self, step: int, facts: Mapping[str, float]) -> None:
        """Write the numbers at once: an update takes seconds, and a killed run should show what its file shows."""
        for name, value in facts.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, *, whole: bool) -> None:
        """Close the file."""
        self._writer.close()


class Wandb:
    """A run of wandb's, in the project that WANDB_PROJECT names or `demerit`; WANDB_MODE=offline keeps it here."""

    def __init__(self, folder: Path, step: int, facts: Mapping[str, Any]) -> None:
        """Begin a run, or go on with the one that this folder began."""
        try:
            import wandb  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415
        except ImportError as missing:
            raise _missing("wandb") from missing
        project = os.environ.get("WANDB_PROJECT", "demerit")
        known = folder / RUN_ID
        id = known.read_text("utf-8").strip() if known.is_file() else None
        try:
            self._run = wandb.init(project=project, dir=str(folder), config=dict(facts), id=id, resume="allow")
        except wandb.errors.Error as error:
            expected = "a wandb that answers (wandb login, or WANDB_MODE=offline to keep everything here)"
            raise BadInput("--metrics wandb", expected, f"an error ({' '.join(str(error).split())})") from error
        partial = known.with_suffix(".partial")
        partial.write_text(f"{self._run.id}\n", encoding="utf-8")
        partial.replace(known)

    def tell(self, step: int, facts: Mapping[str, float]) -> None:
        """Send the numbers."""
        self._run.log(dict(facts), step=step)

    def close(self, *, whole: bool) -> None:
        """Wait until everything is sent; a run that was stopped is shown as one."""
        self._run.finish(exit_code=0 if whole else 1)


DASHBOARDS: dict[str, Callable[[Path, int, Mapping[str, Any]], Dashboard]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
}
"""by the names that --metrics takes"""
