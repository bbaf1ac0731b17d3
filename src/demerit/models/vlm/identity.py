"""What decides a network's answers, as one short name: rewards of anything else are stale.

Weights by their files' hashes, how strongly each adapter counts, what of config.json the network is built from, the
tokenizer, the pictures' settings, and the kind of number that is computed with. All but the weights are small files.
"""

from __future__ import annotations

import hashlib

import torch

from demerit.data.frames import short_hash
from demerit.models.vlm.checkpoint import Checkpoint
from demerit.models.vlm.config import VLMShape
from demerit.models.vlm.prompt import Tokens

PICTURES = "preprocessor_config.json"
"""the protocols here have bounds of their own; who edits a checkpoint's all the same means another model"""


def identity(checkpoint: Checkpoint, shape: VLMShape, tokens: Tokens, dtype: torch.dtype, *more: str) -> str:
    """Identify a network with everything that it is asked with; `more` is the caller's own."""
    scales = sorted(f"{name} {delta.scale!r}" for name, source in checkpoint.sources.items() for delta in source.deltas)
    settings = checkpoint.folder / PICTURES
    pictures = hashlib.sha256(settings.read_bytes()).hexdigest() if settings.is_file() else ""
    parts = (checkpoint.fingerprint(), repr(shape), tokens.fingerprint, pictures, str(dtype), *scales, *more)
    return short_hash("\n".join(parts).encode())
