"""Which chat model is at hand, looked for only where a recipe has any use for one: it needs the extra `chat`."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from demerit.errors import MissingExtra
from demerit.registry import EXTRA_OF_MODULE
from demerit.training.corpus.recipe import Recipe

if TYPE_CHECKING:
    from demerit.llm import Endpoint
    from demerit.models.gvl import GVLConfig


def chat_model(recipe: Recipe, changes: Mapping[str, Any]) -> tuple[GVLConfig | None, Endpoint | None]:
    """Find the chat model, where the recipe has any use for one."""
    if recipe.counterfactuals is None and not recipe.clean_up:
        return None, None
    module = with_model()
    server = module.chat_settings(recipe, changes)
    return server, module.endpoint_of(server)


def with_model() -> ModuleType:
    """Import what needs the extra `chat`, now that it is needed."""
    try:
        from demerit.training.corpus import with_model as stages  # noqa: PLC0415
    except ModuleNotFoundError as error:
        extra = EXTRA_OF_MODULE.get(str(error.name).partition(".")[0])
        if extra is None:
            raise
        raise MissingExtra("A chat model", extra) from error
    return stages
