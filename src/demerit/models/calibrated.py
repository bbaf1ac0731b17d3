"""A calibrated model: another model, and maps that turn its numbers into progress and probabilities of success.

    demerit calibrate my_set --model change -o my-calibrated
    demerit score new_set --model calibrated:my-calibrated        (or --model ./my-calibrated)

The folder holds `model.json` alone: the inner model by name and by the hash of its card, the fitted maps, the threshold
with its promise, and marks of the episodes that it was fitted to. The inner model is not in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from demerit.data.episode import Episode
from demerit.data.frames import Images, short_hash
from demerit.data.reward import Reward
from demerit.errors import BadInput
from demerit.models import MODELS, load_model
from demerit.models.calibrated_maps import Floats, Map, Same, Shift, read_map
from demerit.models.loading import DESCRIPTION, name_of, only_these, read_description
from demerit.models.protocol import ModelCard, Online, RewardModel

KIND = "calibrated"
Method = Literal["isotonic", "conformal"]
METHODS: tuple[Method, ...] = get_args(Method)
Evidence = Literal["value", "success"]
"""which of the inner model's numbers tells success: its value, or its own probability of success"""
LENT = ("prefer", "prepare", "looks_at")
"""what else an inner model may be able to do, and a rising map does not change"""


@dataclass(frozen=True, eq=False)
class Recipe:
    """What a calibrated model is: the fields of model.json."""

    inner: str
    """the model's name; one that begins with ./ or ../ is a folder, as seen from this one"""
    inner_card: str
    """hash of its card: another model, or another version, was not calibrated"""
    method: Method
    risk: float
    evidence: Evidence
    progress: Map
    success: Map
    threshold: float | None
    """success is said when the evidence at the last frame reaches it; None: nothing is promised"""
    promise: str
    """what the threshold promises, as a sentence"""
    calibrated_on: Mapping[str, Any]
    """the dataset, how many episodes, and `marks`: hashes of them and of their videos"""

    @classmethod
    def read(cls, folder: Path) -> Recipe:
        """Read a folder's model.json strictly."""
        facts, where = read_description(folder), folder / DESCRIPTION
        if facts["kind"] != KIND:
            raise BadInput(str(where), f"a model of kind {KIND!r}", f"one of kind {facts['kind']!r}")
        names = tuple(cls.__dataclass_fields__)
        only_these(folder, facts, *names)
        missing = [name for name in names if name not in facts]
        if missing:
            raise BadInput(str(where), f"the fields {', '.join(names)}", f"none of {missing}")
        kept = {name: facts[name] for name in names}
        for name in ("progress", "success"):
            kept[name] = read_map(f"{where}, {name}", kept[name])
        return cls(**kept).checked(str(where))

    def checked(self, where: str) -> Recipe:
        """Refuse fields that mean nothing."""
        for name, allowed in (("method", METHODS), ("evidence", get_args(Evidence))):
            if getattr(self, name) not in allowed:
                raise BadInput(f"{where}, {name}", f"one of {', '.join(allowed)}", repr(getattr(self, name)))
        for name in ("inner", "inner_card", "promise"):
            if not isinstance(getattr(self, name), str):
                raise BadInput(f"{where}, {name}", "text", repr(getattr(self, name)))
        if not _is_number(self.risk) or not 0 < self.risk < 1:
            raise BadInput(f"{where}, risk", "a number between 0 and 1", repr(self.risk))
        if self.threshold is not None and not _is_number(self.threshold):
            raise BadInput(f"{where}, threshold", "a number, or null", repr(self.threshold))
        on = self.calibrated_on
        if not isinstance(on, Mapping) or not isinstance(on.get("marks"), list):
            raise BadInput(f"{where}, calibrated_on", "an object with a list of marks", repr(on)[:80])
        return self

    def as_facts(self) -> dict[str, Any]:
        """Write the fields as plain values."""
        maps = {"progress": self.progress.as_facts(), "success": self.success.as_facts()}
        return {**vars(self), **maps, "calibrated_on": dict(self.calibrated_on)}


class Calibrated:
    """Another model's numbers, calibrated; it looks where that one looks and is causal where that one is."""

    reset: Callable[[str], None]
    step: Callable[[Images], float]

    def __init__(self, recipe: Recipe, inner: RewardModel, name: str = KIND) -> None:
        """Put the parts together; `from_folder` reads them."""
        if inner.card.hash() != recipe.inner_card:
            raise BadInput(
                f"the calibrated model {name!r}",
                f"{recipe.inner!r} as it was when it was calibrated (card {recipe.inner_card})",
                f"another version of it (card {inner.card.hash()}): calibrate again",
            )
        self.recipe, self.inner = recipe, inner
        self.card = _card(recipe, inner.card, name)
        for lent in LENT:
            if hasattr(inner, lent):
                setattr(self, lent, getattr(inner, lent))
        if isinstance(inner, Online):
            self.reset, self.step = inner.reset, self._step

    @classmethod
    def from_folder(cls, folder: Path, inner: str | RewardModel | None = None) -> Calibrated:
        """Load a model folder of kind `calibrated`; `inner` is the model itself where the folder may not name it."""
        recipe = Recipe.read(folder)
        if inner is None:
            inner = _named_model(recipe.inner, folder)
        return cls(recipe, load_model(inner) if isinstance(inner, str) else inner, name_of(folder))

    @property
    def seen(self) -> frozenset[str]:
        """Marks of the episodes that this, or the inner model, was fitted to."""
        return frozenset(map(str, self.recipe.calibrated_on["marks"])) | frozenset(getattr(self.inner, "seen", ()))

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Score with the inner model and map its numbers."""
        return [self._mapped(reward) for reward in self.inner.score(episodes)]

    def _mapped(self, reward: Reward) -> Reward:
        value = self.recipe.progress(reward.value).astype(np.float32)
        evidence = _evidence(reward, self.recipe.evidence)
        success = self.recipe.success(evidence).astype(np.float32)
        # a model that gives no probability, and has none calibrated, goes on giving none
        given_none = isinstance(self.recipe.success, Same) and reward.success is None
        return replace(
            reward,
            model=self.card.name,
            value=value,
            success=None if given_none else success,
            given={**reward.given, **self._given(reward, evidence)},
        )

    def _given(self, reward: Reward, evidence: Floats) -> dict[str, Any]:
        end = float(evidence[-1]) if len(evidence) else float("nan")
        threshold = self.recipe.threshold
        return {
            "inner": reward.model,
            "inner final": None if np.isnan(reward.final) else reward.final,
            "risk": None if threshold is None else self.recipe.risk,
            "succeeds": None if threshold is None or np.isnan(end) else end >= threshold,
        }

    def _step(self, frame: Images) -> float:
        assert isinstance(self.inner, Online)
        return float(self.recipe.progress([self.inner.step(frame)])[0])


def calibrated(address: str = "") -> Calibrated:
    """Load `calibrated:FOLDER`, or `calibrated:FOLDER:MODEL` where the inner model must be named by whoever uses it."""
    folder, _, inner = address.partition(":")
    if not folder:
        raise BadInput("calibrated", "the folder that demerit calibrate wrote, as in calibrated:my-model", "none")
    return Calibrated.from_folder(Path(folder), inner or None)


def evidence_of(reward: Reward, kind: Evidence) -> float:
    """Return the number that tells success, at the last frame; NaN when there is none."""
    found = _evidence(reward, kind)
    return float(found[-1]) if len(found) else float("nan")


def seen_from(folder: Path, name: str) -> str:
    """Write a model's name so that it is found again from a folder: another folder is named as seen from there."""
    known, colon, argument = name.partition(":")
    if known in MODELS or not (Path(known) / DESCRIPTION).is_file():
        return name
    path = Path(os.path.relpath(Path(known).resolve(), folder.resolve())).as_posix()
    return f"./{path}{colon}{argument}"


def _named_model(name: str, folder: Path) -> RewardModel:
    if not _is_harmless(name):
        raise BadInput(
            str(folder / DESCRIPTION),
            "an inner model that a file may name (code and addresses run or reach what you have not seen)",
            f"{name!r}; if you trust it, name it yourself: calibrated:{folder}:{name}",
        )
    if name.startswith(("./", "../")):
        known, colon, argument = name.partition(":")
        name = f"{(folder / known).resolve()}{colon}{argument}"
    try:
        return load_model(name)
    except RecursionError as error:
        raise BadInput(str(folder / DESCRIPTION), "an inner model", "a model that is its own inner model") from error


def _is_harmless(name: str) -> bool:
    """Whether loading by this name runs only what is installed and reads only folders; see `demerit.models.loading`."""
    known, _, argument = name.partition(":")
    if known == "ensemble":
        return all(_is_harmless(member) for member in argument.split("+"))
    return ":" not in argument and (known in MODELS or known.startswith((".", "/")))


def _evidence(reward: Reward, kind: Evidence) -> Floats:
    if kind == "value":
        return reward.value.astype(np.float64)
    nothing = np.full(len(reward.at), np.nan)
    return nothing if reward.success is None else reward.success.astype(np.float64)


def _card(recipe: Recipe, inner: ModelCard, name: str) -> ModelCard:
    facts = json.dumps(recipe.as_facts(), sort_keys=True).encode()
    changes: dict[str, Any] = {}
    if not isinstance(recipe.progress, Same):
        quantity = "lower bound of progress" if isinstance(recipe.progress, Shift) else "progress"
        changes = {"quantity": quantity, "low": 0.0, "high": 1.0}
    episodes = recipe.calibrated_on.get("episodes", "?")
    return replace(
        inner,
        name=name,
        revision=short_hash(facts)[:12],
        weights_hash=short_hash(inner.hash().encode(), facts),
        about=f"{inner.name}, calibrated ({recipe.method}) on {episodes} episodes. {recipe.promise}",
        **changes,
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))
