"""Training of vision-language reward models: Robometer (preference, progress, success) and RoboReward (grades).

`demerit.training.vlm.fit.train_vlm` trains and exports on top of accelerate; it needs the extra `vlm-train`.
"""

from demerit.training.vlm.config import RobometerTrainConfig, RoboRewardTrainConfig, VLMTrainConfig, load_vlm_config

__all__ = ["RoboRewardTrainConfig", "RobometerTrainConfig", "VLMTrainConfig", "load_vlm_config"]
