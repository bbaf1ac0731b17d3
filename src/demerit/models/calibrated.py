"""A calibrated model: another model, and maps from its numbers to progress and probabilities of success.

    demerit calibrate my_set --model change -o my-calibrated
    demerit score new_set --model calibrated:my-calibrated        (or --model ./my-calibrated)

The folder holds `model.json` alone: the inner model by name and card hash, the fitted maps, the threshold with its
guarantee, and marks of the episodes that it was fitted to. The inner model is not in it.

    isotonic     increasing line through knots: mean label of the calibration episodes at that number
    shift        the number minus a constant, clipped to 0..1: a lower bound on progress
    confidence   share of calibration failures below the number: 1 - a conformal p-value
    same         unchanged: there were no labels to calibrate it on
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt

from demerit.data.arrays import Floats
from demerit.data.episode import Episode
from demerit.data.frames import short_hash
from demerit.data.reward import Reward
from demerit.data.splits import SeenEpisodes, seen_by
from demerit.errors import BadInput
from demerit.models import MODELS, load_model
from demerit.models.live import CombinedEpisode
from demerit.models.loading import DESCRIPTION, name_of, only_these, read_description
from demerit.models.protocol import LiveEpisode, LiveReward, ModelCard, Online, RewardModel, ShownModel

KIND = "calibrated"
CalibrationMethod = Literal["isotonic", "conformal"]
METHODS: tuple[CalibrationMethod, ...] = get_args(CalibrationMethod)
EvidenceKind = Literal["value", "success"]
"""which of the inner model's numbers decides success: its value, or its own probability of success"""
PASSED_ON = ("prefer", "prepare", "looks_at", "wanted", "thread_safe")
"""further attributes of an inner model, which an increasing map does not change"""


# Maps


@dataclass(frozen=True, eq=False)
class CalibrationMap:
    """A non-decreasing function of one number; NaN stays NaN."""

    name: ClassVar[str]

    def __call__(self, values: npt.ArrayLike) -> Floats:
        """Map each number."""
        numbers = np.array(values, dtype=np.float64)
        return np.where(np.isnan(numbers), np.nan, self._map(numbers))

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        facts = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(self).items()}
        return {"map": self.name, **facts}

    def _map(self, values: Floats) -> Floats:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Same(CalibrationMap):
    """The identity."""

    name = "same"

    def _map(self, values: Floats) -> Floats:
        return values


@dataclass(frozen=True, eq=False)
class Isotonic(CalibrationMap):
    """Straight lines between knots, constant outside them."""

    name = "isotonic"
    x: Floats
    """increasing"""
    y: Floats
    """0 to 1, non-decreasing"""

    def __post_init__(self) -> None:
        """Check the knots."""
        for name in ("x", "y"):
            object.__setattr__(self, name, _finite_column(f"knots {name} of an isotonic map", getattr(self, name)))
        if not len(self.x) or len(self.x) != len(self.y):
            raise BadInput("an isotonic map", "as many x as y, at least one", (len(self.x), len(self.y)))
        if (np.diff(self.x) <= 0).any() or (np.diff(self.y) < 0).any() or self.y[0] < 0 or self.y[-1] > 1:
            raise BadInput("an isotonic map", "increasing x and, from 0 to 1, y that never falls", "other knots")

    def _map(self, values: Floats) -> Floats:
        return np.interp(values, self.x, self.y)


@dataclass(frozen=True, eq=False)
class Shift(CalibrationMap):
    """v becomes v - by, clipped to 0..1."""

    name = "shift"
    by: float

    def __post_init__(self) -> None:
        """Check the amount."""
        if not _is_number(self.by):
            raise BadInput("a shift", "a finite number", repr(self.by))

    def _map(self, values: Floats) -> Floats:
        return np.clip(values - self.by, 0.0, 1.0)


@dataclass(frozen=True, eq=False)
class Confidence(CalibrationMap):
    """s becomes #{failures below s} / (n + 1) = 1 - p, with p = (1 + #{failures at or above s}) / (n + 1).

    A new failure that is exchangeable with the n reaches 1 - a or more with a probability of at most a, for any a.
    """

    name = "confidence"
    failures: Floats
    """scores of the calibration failures"""

    def __post_init__(self) -> None:
        """Sort the scores."""
        object.__setattr__(self, "failures", np.sort(_finite_column("scores of failures", self.failures)))

    def _map(self, values: Floats) -> Floats:
        return np.searchsorted(self.failures, values, side="left") / (len(self.failures) + 1)


MAPS: dict[str, type[CalibrationMap]] = {kind.name: kind for kind in (Same, Isotonic, Shift, Confidence)}


def read_map(where: str, facts: object) -> CalibrationMap:
    """Read what `as_dict` wrote, strictly."""
    if not isinstance(facts, Mapping) or facts.get("map") not in tuple(MAPS):  # it may be a list
        raise BadInput(where, f"an object with a map of {', '.join(MAPS)}", repr(facts)[:80])
    kind, values = MAPS[facts["map"]], {name: value for name, value in facts.items() if name != "map"}
    names = {column.name for column in fields(kind)}
    if set(values) != names:
        raise BadInput(where, f"the fields {sorted(names)} of the map {facts['map']!r}", sorted(map(str, values)))
    return kind(**values)


def _finite_column(name: str, values: npt.ArrayLike) -> Floats:
    try:
        column = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise BadInput(name, "a list of numbers", error) from error
    if column.ndim != 1 or not np.isfinite(column).all():
        raise BadInput(name, "a list of finite numbers", "something else")
    return column


# The model


@dataclass(frozen=True, eq=False)
class CalibrationRecipe:
    """The fields of model.json."""

    inner: str
    """the model's name; one that begins with ./ or ../ is a folder relative to this one"""
    inner_card: str
    """hash of its card: the calibration is valid for this version only"""
    method: CalibrationMethod
    risk: float
    evidence: EvidenceKind
    progress: CalibrationMap
    success: CalibrationMap
    threshold: float | None
    """an episode is a success if the evidence at the last frame reaches it; None = no guarantee"""
    promise: str
    """the guarantee of the threshold, as text"""
    calibrated_on: Mapping[str, Any]
    """the dataset, counts, and `marks` of the episodes (see `demerit.data.splits`)"""

    @classmethod
    def read(cls, folder: Path) -> CalibrationRecipe:
        """Read a folder's model.json, strictly."""
        facts, where = read_description(folder), folder / DESCRIPTION
        if facts["kind"] != KIND:
            raise BadInput(str(where), f"a model of kind {KIND!r}", f"one of kind {facts['kind']!r}")
        names = [column.name for column in fields(cls)]
        only_these(folder, facts, *names)
        missing = [name for name in names if name not in facts]
        if missing:
            raise BadInput(str(where), f"the fields {', '.join(names)}", f"none of {missing}")
        maps = {name: read_map(f"{where}, {name}", facts[name]) for name in ("progress", "success")}
        threshold, on = facts["threshold"], facts["calibrated_on"]
        for name, is_valid, expected in (
            ("inner", isinstance(facts["inner"], str), "text"),
            ("inner_card", isinstance(facts["inner_card"], str), "text"),
            ("promise", isinstance(facts["promise"], str), "text"),
            ("method", facts["method"] in METHODS, f"one of {', '.join(METHODS)}"),
            ("evidence", facts["evidence"] in get_args(EvidenceKind), "one of value, success"),
            ("risk", _is_number(facts["risk"]) and 0 < facts["risk"] < 1, "a number between 0 and 1"),
            ("threshold", threshold is None or _is_number(threshold), "a number, or null"),
            ("calibrated_on", isinstance(on, dict) and isinstance(on.get("marks"), list), "a list of marks"),
        ):
            if not is_valid:
                raise BadInput(f"{where}, {name}", expected, repr(facts[name])[:80])
        return cls(**{**{name: facts[name] for name in names}, **maps})

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        maps = {"progress": self.progress.as_dict(), "success": self.success.as_dict()}
        return {**vars(self), **maps, "calibrated_on": dict(self.calibrated_on)}


class Calibrated(ShownModel):
    """Another model with calibrated numbers; it looks at the same frames and is causal if that one is."""

    start: Callable[[str], LiveEpisode]

    def __init__(self, recipe: CalibrationRecipe, inner: RewardModel, name: str = KIND) -> None:
        """Combine recipe and inner model; `from_folder` loads both."""
        if inner.card.hash() != recipe.inner_card:
            raise BadInput(
                f"the calibrated model {name!r}",
                f"{recipe.inner!r} as it was when it was calibrated (card {recipe.inner_card})",
                f"another version of it (card {inner.card.hash()}): calibrate again",
            )
        self.recipe, self.inner = recipe, inner
        self.card = _card(recipe, inner.card, name)
        for method in PASSED_ON:
            if hasattr(inner, method):
                setattr(self, method, getattr(inner, method))
        if isinstance(inner, Online):
            self.start = lambda instruction: CombinedEpisode([inner.start(instruction)], self._calibrate_live)

    @classmethod
    def from_folder(cls, folder: Path, inner: str | RewardModel | None = None) -> Calibrated:
        """Load a model folder of kind `calibrated`; `inner` overrides the model that the folder names."""
        recipe = CalibrationRecipe.read(folder)
        if inner is None:
            inner = _load_inner(recipe.inner, folder)
        return cls(recipe, load_model(inner) if isinstance(inner, str) else inner, name_of(folder))

    @property
    def cut(self) -> str:
        """When an episode is called a success; empty = never, as nothing could be guaranteed."""
        number = "value" if self.recipe.evidence == "value" else "probability of success"
        threshold = self.recipe.threshold
        return "" if threshold is None else f"the {number} of {self.inner.card.name} reaches {threshold:.3g}"

    @property
    def promise(self) -> str:
        """What is guaranteed of such a call, or why nothing is."""
        return self.recipe.promise

    @property
    def seen(self) -> SeenEpisodes:
        """The episodes that this model, or the inner one, was fitted to."""
        return SeenEpisodes.from_hashes(map(str, self.recipe.calibrated_on["marks"])) | seen_by(self.inner)

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Score with the inner model and map its numbers."""
        return [self.calibrate_reward(reward) for reward in self.inner.score(episodes)]

    def calibrate_reward(self, reward: Reward) -> Reward:
        """Map the numbers of a reward of the inner model."""
        evidence = _evidence(reward, self.recipe.evidence)
        success = self.recipe.success(evidence).astype(np.float32)
        has_none = isinstance(self.recipe.success, Same) and reward.success is None
        end, threshold = float(evidence[-1]) if len(evidence) else float("nan"), self.recipe.threshold
        facts = {
            "inner": reward.model,
            "inner final": None if np.isnan(reward.final) else reward.final,
            "risk": None if threshold is None else self.recipe.risk,
            "succeeds": None if threshold is None or np.isnan(end) else end >= threshold,
        }
        return replace(
            reward,
            model=self.card.name,
            value=self.recipe.progress(reward.value).astype(np.float32),
            success=None if has_none else success,
            given={**reward.given, **facts},
        )

    def _calibrate_live(self, answers: Sequence[LiveReward]) -> LiveReward:
        """Map the inner model's answer as a reward of one frame."""
        (live,) = answers
        value = np.array([live.value], np.float32)
        success = None if live.success is None else np.array([live.success], np.float32)
        why = "not scored" if np.isnan(live.value) else ""
        inner = Reward(self.inner.card.name, "live", np.zeros(1, np.int32), value, success, why, live.given)
        mapped = self.calibrate_reward(inner)
        mapped_success = None if mapped.success is None else float(mapped.success[0])
        return LiveReward(mapped.final, mapped_success, live.familiarity, mapped.given)


def calibrated(address: str = "") -> Calibrated:
    """Load `calibrated:FOLDER`, or `calibrated:FOLDER:MODEL` to name the inner model yourself."""
    folder, _, inner = address.partition(":")
    if not folder:
        raise BadInput("calibrated", "the folder that demerit calibrate wrote, as in calibrated:my-model", "none")
    return Calibrated.from_folder(Path(folder), inner or None)


def final_evidence(reward: Reward, kind: EvidenceKind) -> float:
    """Return the number that decides success, at the last frame; NaN if there is none."""
    evidence = _evidence(reward, kind)
    return float(evidence[-1]) if len(evidence) else float("nan")


def relative_name(folder: Path, name: str) -> str:
    """Return a model's name as it can be found from a folder: a model folder is named relative to it."""
    base, colon, argument = name.partition(":")
    if base in MODELS or not (Path(base) / DESCRIPTION).is_file():
        return name
    path = Path(os.path.relpath(Path(base).resolve(), folder.resolve())).as_posix()
    return f"./{path}{colon}{argument}"


def _load_inner(name: str, folder: Path) -> RewardModel:
    if not _is_harmless(name):
        raise BadInput(
            str(folder / DESCRIPTION),
            "an inner model that a file may name (code and addresses run or reach what you have not seen)",
            f"{name!r}; if you trust it, name it yourself: calibrated:{folder}:{name}",
        )
    if name.startswith(("./", "../")):
        base, colon, argument = name.partition(":")
        name = f"{(folder / base).resolve()}{colon}{argument}"
    try:
        return load_model(name)
    except RecursionError as error:
        raise BadInput(str(folder / DESCRIPTION), "an inner model", "a model that is its own inner model") from error


def _is_harmless(name: str) -> bool:
    """Whether loading by this name runs only installed code and reads only folders; see `demerit.models.loading`."""
    base, _, argument = name.partition(":")
    if base == "ensemble":
        return all(_is_harmless(member) for member in argument.split("+"))
    return ":" not in argument and (base in MODELS or base.startswith((".", "/")))


def _evidence(reward: Reward, kind: EvidenceKind) -> Floats:
    if kind == "value":
        return reward.value.astype(np.float64)
    return np.full(len(reward.at), np.nan) if reward.success is None else reward.success.astype(np.float64)


def _card(recipe: CalibrationRecipe, inner: ModelCard, name: str) -> ModelCard:
    facts = json.dumps(recipe.as_dict(), sort_keys=True).encode()
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
