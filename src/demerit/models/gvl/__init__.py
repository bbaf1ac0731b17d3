"""The prompted reward model `gvl`: a vision-language model rates shuffled frames. `GVLConfig` holds its options."""

from demerit.models.gvl.settings import GVLConfig

__all__ = ["GVLConfig"]
