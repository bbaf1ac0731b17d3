"""Rewards for Gymnasium: environments whose reward comes from a model that watches the frames."""

from demerit.errors import MissingExtra

try:
    from demerit.use.gym.envs import RewardEnv, RewardVectorEnv, RuleEnv
except ModuleNotFoundError as missing:
    if missing.name != "gymnasium":
        raise
    raise MissingExtra("The Gymnasium wrapper", "gym") from missing
from demerit.decide.detector import find_failure_threshold
from demerit.decide.threshold import Threshold, find_success_threshold
from demerit.use.gym.episode import RewardScheme, relabel
from demerit.use.gym.person import PersonModel, ask_in_terminal

__all__ = [
    "PersonModel",
    "RewardEnv",
    "RewardScheme",
    "RewardVectorEnv",
    "RuleEnv",
    "Threshold",
    "ask_in_terminal",
    "find_failure_threshold",
    "find_success_threshold",
    "relabel",
]
