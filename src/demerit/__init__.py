"""Robot rewards that know bad behaviour when they see it.

import demerit

episode = demerit.Episode.from_video("rollout.mp4", instruction="put the cup on the plate")
dataset = demerit.open_dataset("lerobot:/data/my_robot")
model = demerit.load_model("clock")
print(model.score([episode])[0].value)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from demerit.check import check_model as check_model
    from demerit.dataset import Dataset as Dataset
    from demerit.dataset import Problem as Problem
    from demerit.episode import Edit as Edit
    from demerit.episode import Episode as Episode
    from demerit.episode import Origin as Origin
    from demerit.errors import DemeritError as DemeritError
    from demerit.frames import Frames as Frames
    from demerit.ingest import import_dataset as import_dataset
    from demerit.model import Comparer as Comparer
    from demerit.model import ModelCard as ModelCard
    from demerit.model import Online as Online
    from demerit.model import RewardModel as RewardModel
    from demerit.models import load_model as load_model
    from demerit.outcome import Event as Event
    from demerit.outcome import Outcome as Outcome
    from demerit.outcome import Preference as Preference
    from demerit.reward import Reward as Reward
    from demerit.sources import open_dataset as open_dataset
    from demerit.store import RewardStore as RewardStore
    from demerit.store import Store as Store
    from demerit.teaching.job import teach as teach

__version__ = "0.1.0"

# Where each public name lives. They are imported when first used: `import demerit` itself costs nothing.
_HOMES = {
    "Comparer": "model",
    "Dataset": "dataset",
    "DemeritError": "errors",
    "Edit": "episode",
    "Episode": "episode",
    "Event": "outcome",
    "Frames": "frames",
    "ModelCard": "model",
    "Online": "model",
    "Origin": "episode",
    "Outcome": "outcome",
    "Preference": "outcome",
    "Problem": "dataset",
    "Reward": "reward",
    "RewardModel": "model",
    "RewardStore": "store",
    "Store": "store",
    "check_model": "check",
    "import_dataset": "ingest",
    "load_model": "models",
    "open_dataset": "sources",
    "teach": "teaching.job",
}

__all__ = sorted([*_HOMES, "__version__"])  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'demerit' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"demerit.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
