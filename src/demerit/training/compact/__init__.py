"""Training of the compact reward model: a small network for any CPU that reads frames and an instruction.

`demerit.training.compact.train.train_compact` trains and exports; it needs the extra `train`.
"""

from demerit.training.compact.config import CompactTrainConfig, load_compact_config
from demerit.training.compact.corpus import CompactCorpusPlan

__all__ = ["CompactCorpusPlan", "CompactTrainConfig", "load_compact_config"]
