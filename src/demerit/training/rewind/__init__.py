"""Training of ReWiND: a small causal transformer over the features of frames, taught by rewound and mismatched videos.

`demerit.training.rewind.train.train_rewind` trains and exports; it needs the extra `train`.
"""

from demerit.training.rewind.data import RewindTrainConfig, load_rewind_config

__all__ = ["RewindTrainConfig", "load_rewind_config"]
