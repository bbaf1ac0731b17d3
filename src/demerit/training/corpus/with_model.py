"""The stages that a chat model answers, and what they would cost: repaired words, counterfactuals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from demerit.data.dataset import Dataset
from demerit.llm import ChatClient, Endpoint, Spending
from demerit.models.gvl import GVLConfig
from demerit.negatives.relabel import RelabelSettings, RelabelSummary, estimate, relabel
from demerit.negatives.relabel.asking import Asking
from demerit.training.corpus.preparing import Prepared, Words, can_be_reworded
from demerit.training.corpus.recipe import Counterfactuals, Recipe
from demerit.training.corpus.repairing import repair

WORDS, COUNTERFACTUALS = "words.json", "counterfactuals"


def chat_settings(recipe: Recipe, changes: Mapping[str, Any]) -> GVLConfig:
    """Where the model answers: `changes` before the recipe, the recipe before the environment."""
    told = {name: value for name, value in changes.items() if value is not None}
    return GVLConfig.read("", {**recipe.chat, **told})


def endpoint_of(server: GVLConfig) -> Endpoint | None:
    """The model behind the settings; None where they name none."""
    if not server.url or not server.model:
        return None
    return Endpoint(server.url, server.model, server.key_env, server.price_in, server.price_out, server.schema_mode)


def repaired(
    recipe: Recipe,
    prepared: Prepared,
    stages: Path,
    server: GVLConfig,
    endpoint: Endpoint,
    progress: Callable[[int, int], None],
) -> tuple[Words | None, str, Spending]:
    """Repair the words of every success; see `repairing.repair`."""
    words = instructions_of(prepared)
    more = more_tokens(recipe)
    return repair(words, stages / WORDS, server, endpoint, more, lambda done: progress(done, len(words)))


def instructions_of(prepared: Prepared) -> set[str]:
    """The words that may be repaired."""
    return {one.instruction for one in prepared.prepared_episodes() if can_be_reworded(one)}


def counterfactuals(
    recipe: Recipe,
    part: Counterfactuals,
    dataset: Dataset,
    stages: Path,
    server: GVLConfig,
    endpoint: Endpoint,
    spent: float,
    progress: Callable[[RelabelSummary], None],
) -> RelabelSummary:
    """Have commands written for every success, within what is left of the budget."""
    budget = None if server.budget is None else max(0.0, server.budget - spent)
    return relabel(
        dataset,
        stages / COUNTERFACTUALS,
        endpoint=endpoint,
        cache=server.cache_file(),
        concurrency=server.concurrency,
        budget=budget,
        timeout=server.timeout,
        tries=server.tries,
        more_tokens=part.more_tokens,
        settings=settings_of(recipe, part),
        progress=progress,
    )


def settings_of(recipe: Recipe, part: Counterfactuals) -> RelabelSettings:
    """What relabelling is told: words, cap and splits are settled already."""
    return RelabelSettings(
        grades=part.grades,
        clips=part.clips,
        clean_up=False,
        rounds=part.rounds,
        size=part.size,
        per_dataset=0,
        seed=recipe.seed,
        split="source",
    )


def costs(recipe: Recipe, prepared: Prepared, dataset: Dataset, server: GVLConfig) -> list[str]:
    """Say what the model's stages would take, without asking anything."""
    endpoint = endpoint_of(server)
    if endpoint is None:
        return ["no chat model is set (recipe, chat, or DEMERIT_CHAT_URL and DEMERIT_CHAT_MODEL): costs are unknown"]
    said = []
    if recipe.clean_up:
        asking = Asking(more_tokens=more_tokens(recipe))
        with ChatClient(endpoint, server.cache_file(), server.concurrency) as chat:
            said.append(f"clean-up: {chat.estimate(asking.clean(one, 0) for one in instructions_of(prepared))}")
    part = recipe.counterfactuals
    if part is not None:
        told = estimate(dataset, endpoint=endpoint, more_tokens=part.more_tokens, settings=settings_of(recipe, part))
        said += [f"counterfactuals: {line}" for line in str(told).splitlines()]
    return said


def more_tokens(recipe: Recipe) -> int:
    """How much longer answers may be, for models that think first."""
    return 0 if recipe.counterfactuals is None else recipe.counterfactuals.more_tokens
