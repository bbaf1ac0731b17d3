"""Taught models: features of a fixed network, a fitted head, and the reward model that combines them."""

from demerit.models.taught.features import FeatureNetwork, load_network
from demerit.models.taught.head import TaughtHead
from demerit.models.taught.model import TaughtConfig, TaughtModel

__all__ = ["FeatureNetwork", "TaughtConfig", "TaughtHead", "TaughtModel", "load_network"]
