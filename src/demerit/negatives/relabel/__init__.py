"""Counterfactual relabelling: a chat model writes commands that a successful video fails, with a grade for each.

For every success the model describes the video, plans an idea per grade, writes a command per idea, and grades the
video under each command without knowing the intended grade. Code checks every step (`rules`). What is accepted becomes
an episode: the same video, another instruction. `demerit relabel` is the command.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from demerit.negatives.relabel.config import RelabelConfig

if TYPE_CHECKING:
    from demerit.negatives.relabel.chain import RelabelRecord as RelabelRecord
    from demerit.negatives.relabel.job import RelabelSummary as RelabelSummary
    from demerit.negatives.relabel.job import estimate as estimate
    from demerit.negatives.relabel.job import read_records as read_records
    from demerit.negatives.relabel.job import relabel as relabel

__all__ = ["RelabelConfig", "RelabelRecord", "RelabelSummary", "estimate", "read_records", "relabel"]


def __getattr__(name: str) -> Any:
    if name not in __all__:  # loaded on first use: the job needs the extra `chat`
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("demerit.negatives.relabel.job"), name)
