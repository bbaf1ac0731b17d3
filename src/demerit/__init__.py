"""Robot rewards that recognise bad behaviour.

import demerit

episode = demerit.Episode.from_video("rollout.mp4", instruction="put the cup on the plate")
dataset = demerit.open_dataset("lerobot:/data/my_robot")
model = demerit.load_model("clock")
print(model.score([episode])[0].verdict)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from demerit.data.dataset import Dataset as Dataset
    from demerit.data.dataset import Problem as Problem
    from demerit.data.episode import Edit as Edit
    from demerit.data.episode import Episode as Episode
    from demerit.data.episode import Event as Event
    from demerit.data.episode import Origin as Origin
    from demerit.data.episode import Outcome as Outcome
    from demerit.data.episode import Preference as Preference
    from demerit.data.formats import open_dataset as open_dataset
    from demerit.data.frames import Frames as Frames
    from demerit.data.importing import import_dataset as import_dataset
    from demerit.data.reward import Reward as Reward
    from demerit.data.store import Store as Store
    from demerit.decide.detector import Detector as Detector
    from demerit.errors import DemeritError as DemeritError
    from demerit.models import load_model as load_model
    from demerit.models.check import check_model as check_model
    from demerit.models.protocol import Comparer as Comparer
    from demerit.models.protocol import LiveEpisode as LiveEpisode
    from demerit.models.protocol import LiveReward as LiveReward
    from demerit.models.protocol import ModelCard as ModelCard
    from demerit.models.protocol import Online as Online
    from demerit.models.protocol import RewardModel as RewardModel
    from demerit.models.reward_store import RewardStore as RewardStore
    from demerit.training.teach.job import teach as teach
    from demerit.use.gym import RewardEnv as RewardEnv
    from demerit.use.select import pick as pick
    from demerit.use.serve.client import RemoteModel as RemoteModel

__version__ = "0.1.0"

# The module of each public name. Names are imported when they are first used, so `import demerit` is fast.
_HOMES = {
    "Comparer": "models.protocol",
    "Dataset": "data.dataset",
    "DemeritError": "errors",
    "Detector": "decide.detector",
    "Edit": "data.episode",
    "Episode": "data.episode",
    "Event": "data.episode",
    "Frames": "data.frames",
    "LiveEpisode": "models.protocol",
    "LiveReward": "models.protocol",
    "ModelCard": "models.protocol",
    "Online": "models.protocol",
    "Origin": "data.episode",
    "Outcome": "data.episode",
    "Preference": "data.episode",
    "Problem": "data.dataset",
    "RemoteModel": "use.serve.client",
    "Reward": "data.reward",
    "RewardEnv": "use.gym",
    "RewardModel": "models.protocol",
    "RewardStore": "models.reward_store",
    "Store": "data.store",
    "check_model": "models.check",
    "import_dataset": "data.importing",
    "load_model": "models",
    "open_dataset": "data.formats",
    "pick": "use.select",
    "teach": "training.teach.job",
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
