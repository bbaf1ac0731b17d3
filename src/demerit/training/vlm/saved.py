"""A run's checkpoint: everything that the next update depends on, in one file that is always whole.

Which examples come and what is dropped is drawn from the recipe's seed and the number of the update, so there is no
state of random numbers to keep: step, weights and the optimiser's moments are all there is.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from demerit.errors import BadInput
from demerit.training.vlm.network import Learner
from demerit.training.vlm.ranks import Ranks, gathered, spread_like

CHECKPOINT, BEST = "checkpoint.pt", "best.pt"
ANEW = "remove it to begin anew"
MOMENTS = {"step", "exp_avg", "exp_avg_sq"}
"""what the optimiser keeps of every weight from its first update on"""


@dataclass(frozen=True)
class Best:
    """The update after which the held-out error was least."""

    step: int
    error: float


def save(folder: Path, learner: Learner, optimiser: torch.optim.Optimizer, ranks: Ranks, facts: dict[str, Any]) -> None:
    """Write the checkpoint; a crash leaves the last one whole. All machines must call together."""
    weights = gathered(learner.learning(), keep=ranks.is_first)
    moments: dict[str, dict[str, Tensor]] = {}
    for name, one in learner.learning():
        state = optimiser.state.get(one, {})
        moments[name] = gathered(state.items(), keep=ranks.is_first)
    if ranks.is_first:
        _write(folder / CHECKPOINT, {**facts, "weights": weights, "moments": moments})
    ranks.wait()


def save_best(folder: Path, learner: Learner, ranks: Ranks, best: Best) -> None:
    """Write the weights that did best on what was held out."""
    weights = gathered(learner.learning(), keep=ranks.is_first)
    if ranks.is_first:
        _write(folder / BEST, {"step": best.step, "error": best.error, "weights": weights})
    ranks.wait()


def resume(folder: Path, learner: Learner, optimiser: torch.optim.Optimizer, identity: str) -> dict[str, Any] | None:
    """Go on from a checkpoint of the same run; None where there is none, an error where it is another's."""
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    state = read(path)
    if state.get("identity") != identity:
        expected = "a checkpoint of this recipe, these episodes and this start (choose another folder)"
        raise BadInput(str(path), expected, "one of others")
    _check_weights(state.get("weights"), learner, path)
    _check_moments(state, learner, path)
    put(learner, state.pop("weights"))
    moments = state.pop("moments")
    for name, one in learner.learning():
        optimiser.state[one] = {key: _placed(key, value, one) for key, value in moments[name].items()}
    return state


def put_best(folder: Path, learner: Learner, best: Best) -> None:
    """Set what learns to the weights that did best; those of another update are refused."""
    path = folder / BEST
    advice = f"put back that of this run, or remove {folder} to begin anew"
    if not path.exists():
        raise BadInput(str(path), f"the weights of update {best.step}, which did best ({advice})", "no such file")
    state = read(path, advice)
    _check_weights(state.get("weights"), learner, path, advice)
    if state.get("step") != best.step:
        expected = f"the weights of update {best.step}, which did best (train in another folder to have them again)"
        raise BadInput(str(path), expected, f"those of update {state.get('step')}")
    put(learner, state["weights"])


def put(learner: Learner, weights: dict[str, Tensor]) -> None:
    """Set what learns to saved weights."""
    with torch.no_grad():
        for name, one in learner.learning():
            one.copy_(spread_like(weights[name], one))


def read(path: Path, advice: str = ANEW) -> dict[str, Any]:
    """Read tensors and plain values; never anything else. The advice is for a file that is something else."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch has a dozen of them
        raise BadInput(str(path), f"a checkpoint ({advice})", f"something else ({type(error).__name__})") from error
    if not isinstance(state, dict):
        raise BadInput(str(path), f"a checkpoint ({advice})", "something else")
    return state


def _check_weights(weights: Any, learner: Learner, path: Path, advice: str = ANEW) -> None:
    """Refuse weights that are not all there, each of its shape."""
    found = weights if isinstance(weights, dict) else {}
    for name, one in learner.learning():
        if not isinstance(found.get(name), Tensor) or found[name].shape != one.shape:
            raise BadInput(str(path), f"a whole checkpoint ({advice})", f"one without the right weights of {name}")


def _check_moments(state: dict[str, Any], learner: Learner, path: Path) -> None:
    """Refuse moments that are not all there, each of its weight's shape, and a step or a best that is none."""
    best, moments = state.get("best"), state.get("moments")
    has_best = best is None or (isinstance(best, tuple | list) and len(best) == len(fields(Best)))
    if not isinstance(state.get("step"), int) or not has_best:
        raise BadInput(str(path), f"a whole checkpoint ({ANEW})", "one without its step or its best")
    for name, one in learner.learning():
        kept = moments.get(name) if isinstance(moments, dict) else None
        found = kept if isinstance(kept, dict) else {"none": None}
        whole = set(found) == (MOMENTS if state["step"] else set())
        if not whole or not all(_fits(value, one) for value in found.values()):
            raise BadInput(str(path), f"a whole checkpoint ({ANEW})", f"one without the right moments of {name}")


def _fits(moment: Any, like: Tensor) -> bool:
    return isinstance(moment, Tensor) and (not moment.ndim or moment.shape == like.shape)


def _placed(key: str, value: Tensor, like: Tensor) -> Tensor:
    """Moments lie where their weight lies; the count of updates stays a plain number."""
    if value.ndim or like.ndim == 0:
        return spread_like(value, like)
    return value.to(like.device) if like.is_cuda else value


def _write(path: Path, state: dict[str, Any]) -> None:
    """Write a file beside it, and give it its name when it is whole; half a file is never left."""
    partial = path.with_suffix(".partial")
    try:
        with partial.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        # where a write fails within torch.save, it raises an error of its own in front of the system's
        reason = error if isinstance(error, OSError) else error.__context__
        if isinstance(error, Exception) and isinstance(reason, OSError):
            raise OSError(reason.errno, reason.strerror, str(path)) from error
        raise
