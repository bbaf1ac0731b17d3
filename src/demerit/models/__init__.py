"""Reward models: the protocol, loading by name, scoring datasets, and the models, one module or folder each."""

from demerit.models.loading import KINDS, MODELS, find_model, load_model
from demerit.models.protocol import Comparer, LiveEpisode, LiveReward, ModelCard, Online, RewardModel, example_card

__all__ = [
    "KINDS",
    "MODELS",
    "Comparer",
    "LiveEpisode",
    "LiveReward",
    "ModelCard",
    "Online",
    "RewardModel",
    "example_card",
    "find_model",
    "load_model",
]
