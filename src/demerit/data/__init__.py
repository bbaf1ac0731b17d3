"""Datasets: episodes, frames and labels, readers of foreign formats, and the dataset folder on disk.

The nouns are `Episode` (with `Frames`, `Outcome`, `Origin`), `Preference`, `Reward`, `Dataset` and `Store`;
`open_dataset` opens a dataset in any format and `import_dataset` copies it into a store. Names load on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from demerit.data.dataset import Dataset as Dataset
    from demerit.data.episode import Episode as Episode
    from demerit.data.episode import Origin as Origin
    from demerit.data.formats import open_dataset as open_dataset
    from demerit.data.frames import Frames as Frames
    from demerit.data.importing import import_dataset as import_dataset
    from demerit.data.labels import Outcome as Outcome
    from demerit.data.labels import Preference as Preference
    from demerit.data.reward import Reward as Reward
    from demerit.data.store import Store as Store

_HOMES = {
    "Dataset": "dataset",
    "Episode": "episode",
    "Frames": "frames",
    "Origin": "episode",
    "Outcome": "labels",
    "Preference": "labels",
    "Reward": "reward",
    "Store": "store",
    "import_dataset": "importing",
    "open_dataset": "formats",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'demerit.data' has no attribute {name!r}")
    return getattr(importlib.import_module(f"demerit.data.{_HOMES[name]}"), name)
