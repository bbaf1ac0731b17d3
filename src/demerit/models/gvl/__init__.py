"""The prompted reward model `gvl`: a vision-language model rates shuffled frames of an episode.

`load_model("gvl:dense,examples=my_set")` makes the model; `GVLConfig` holds its options.
"""

from demerit.models.gvl.config import GVLConfig

__all__ = ["GVLConfig"]
