"""Rewards for Gymnasium: environments whose reward comes from a model that watches the frames."""

from demerit.errors import MissingExtra

try:
    from demerit.use.gym.envs import RewardEnv, RewardVectorEnv
    from demerit.use.gym.gate import RuleEnv
except ModuleNotFoundError as missing:
    if missing.name != "gymnasium":
        raise
    raise MissingExtra("The Gymnasium wrapper", "gym") from missing
from demerit.use.gym.scheme import EpisodeThreshold, RewardScheme
from demerit.use.gym.thresholds import find_failure_threshold, find_success_threshold
from demerit.use.gym.watch import relabel

__all__ = [
    "EpisodeThreshold",
    "RewardEnv",
    "RewardScheme",
    "RewardVectorEnv",
    "RuleEnv",
    "find_failure_threshold",
    "find_success_threshold",
    "relabel",
]
