"""The words that published checkpoints were trained with, one file a model with its source."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import yaml


@cache
def words(model: str) -> Mapping[str, Any]:
    """Return the prompts of a model and their version."""
    text = files("demerit").joinpath(f"assets/vlm/{model}.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))
