"""The conformance check: does a model do what its card and the protocol say?

Run `demerit check my_package.rewards:MyModel`, or `check_model(model)` in your own tests. Every clause is kept, broken,
or not checkable, with the facts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Episode
from demerit.data.frames import ArrayFrames, Frames, Images, Times
from demerit.data.reward import Reward
from demerit.errors import ContractBroken, DemeritError, UnreadableVideo
from demerit.models.live import can_step_together, step_together
from demerit.models.protocol import LiveFrame, LiveReward, ModelCard, Online, Prepares, RewardModel

Status = Literal["kept", "broken", "not checkable"]
# Batched matrix products differ in the last digits; a model that mixes up episodes differs by far more.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Clause:
    """One clause and its result."""

    name: str
    status: Status
    facts: str


@dataclass(frozen=True)
class CheckReport:
    """The results of all clauses for one model."""

    model: str
    clauses: tuple[Clause, ...]

    @property
    def broken(self) -> list[Clause]:
        """The broken clauses."""
        return [clause for clause in self.clauses if clause.status == "broken"]

    def raise_if_broken(self) -> None:
        """Raise ContractBroken when a clause is broken."""
        if self.broken:
            raise ContractBroken(self.model, [f"{clause.name} ({clause.facts})" for clause in self.broken])


def check_model(model: RewardModel, episodes: Sequence[Episode] | None = None) -> CheckReport:
    """Check a model on small synthetic episodes, or on given ones."""
    trial = _ModelTrial(model, model.card, list(episodes) if episodes is not None else make_episodes())
    clauses = tuple(_check_clause(name, clause, trial) for name, clause in CLAUSES.items())
    return CheckReport(model.card.name, clauses)


def make_episodes() -> list[Episode]:
    """Make synthetic episodes of different lengths and sizes in which a square moves, stops and comes back."""
    plans = {"steady": 24, "comes back": 40, "one frame": 1, "two frames": 2, "late burst": 33}
    return [
        Episode.from_array(_draw_images(count, seed), f"push the square number {seed}", id=name)
        for seed, (name, count) in enumerate(plans.items())
    ]


def _draw_images(count: int, seed: int) -> Images:
    rng = np.random.default_rng(seed)
    images = np.repeat(rng.integers(40, 90, (1, 48 + 8 * seed, 64, 3)), count, axis=0)
    # The peak is in the last third, which exposes values that were scaled by the whole episode.
    course = np.concatenate([np.linspace(0, 20, count - count // 3), np.linspace(44, 6, count // 3)])
    for image, x in zip(images, course.astype(int), strict=True):
        image[16:30, x : x + 14] = (230, 60 + 20 * seed, 40)
    return np.asarray(images, dtype=np.uint8)


@dataclass(frozen=True)
class _ModelTrial:
    """A model, the episodes it is checked on and its rewards."""

    model: RewardModel
    card: ModelCard
    episodes: list[Episode]
    cache: dict[str, list[Reward]] = field(default_factory=dict)

    @property
    def tolerance(self) -> float:
        """Largest difference between two rewards for the same input."""
        return max(TOLERANCE, self.card.rounding)

    def rewards(self) -> list[Reward]:
        """Score all episodes in one batch, once."""
        if "all" not in self.cache:
            self.cache["all"] = self.model.score(self.episodes)
        return self.cache["all"]

    def scored(self) -> Iterator[tuple[Episode, Reward]]:
        """Return the scored episodes with their rewards."""
        return ((e, reward) for e, reward in zip(self.episodes, self.rewards(), strict=True) if reward.scored)


Result = tuple[Status, str]


def _check_clause(name: str, clause: Callable[[_ModelTrial], Result], trial: _ModelTrial) -> Clause:
    try:
        return Clause(name, *clause(trial))
    except Exception as error:  # third-party code may raise anything
        return Clause(name, "broken", f"it raised {type(error).__name__}: {error}")


def _answers_every_episode(trial: _ModelTrial) -> Result:
    rewards = trial.rewards()
    if len(rewards) != len(trial.episodes):
        return "broken", f"{len(rewards)} rewards for {len(trial.episodes)} episodes"
    if trial.model.score([]) != []:
        return "broken", "no episodes should give no rewards"
    for reward, episode in zip(rewards, trial.episodes, strict=True):
        if not isinstance(reward, Reward):
            return "broken", f"a {type(reward).__name__} instead of a Reward"
        if reward.episode != episode.id or reward.model != trial.card.name:
            return "broken", f"the answer for {episode.id!r} names {reward.model!r} and {reward.episode!r}"
    unscored = [reward for reward in rewards if not reward.scored]
    if (
        len(unscored) == len(rewards)
        and trial.card.reads_signals
        and not any(episode.signals for episode in trial.episodes)
    ):
        return "not checkable", "it reads signals, and these episodes have none"
    if len(unscored) == len(rewards):
        return "broken", f"it scored none of them: {unscored[0].why_missing}"
    note = f", {len(unscored)} unscored with a reason" if unscored else ""
    return (
        "kept",
        f"{len(rewards)} episodes of {min(map(len, trial.episodes))} to {max(map(len, trial.episodes))} frames{note}",
    )


def _keeps_its_range(trial: _ModelTrial) -> Result:
    for episode, reward in trial.scored():
        trial.card.check(reward, episode)
    scored = [reward.value for _, reward in trial.scored()]
    if not scored:
        return (
            "not checkable",
            f"nothing was scored: {trial.rewards()[0].why_missing}" if trial.rewards() else "no episodes",
        )
    values = np.concatenate(scored)
    return "kept", f"{np.nanmin(values):.3g} to {np.nanmax(values):.3g} within [{trial.card.low}, {trial.card.high}]"


def _is_deterministic(trial: _ModelTrial) -> Result:
    again = trial.model.score(trial.episodes)
    for first, second in zip(trial.rewards(), again, strict=True):
        if not _same(first, second, 0.0):
            return "broken", f"two runs differ on {first.episode!r}"
    return "kept", "two runs agree to the last bit"


def _batch_is_single(trial: _ModelTrial) -> Result:
    for episode, together in zip(trial.episodes, trial.rewards(), strict=True):
        alone = trial.model.score([episode])[0]
        if not _same(together, alone, trial.tolerance):
            return "broken", f"{episode.id!r} scores differently alone and in a batch"
    backwards = trial.model.score(trial.episodes[::-1])[::-1]
    if not all(_same(a, b, trial.tolerance) for a, b in zip(trial.rewards(), backwards, strict=True)):
        return "broken", "the order of the batch changes the scores"
    return "kept", f"alone, together and in reverse order agree within {trial.tolerance:g}"


def _is_causal(trial: _ModelTrial) -> Result:
    """Score prefixes: the values of earlier frames must not change."""
    if not trial.card.causal:
        return "kept", "the card does not claim it"
    compared = 0
    for episode, whole in trial.scored():
        for cut in sorted({len(episode) // 3, len(episode) // 2, len(episode) - 1} - {0}):
            prefix = episode.select(np.arange(cut))
            part = trial.model.score([prefix])[0]
            shared, at_whole, at_part = np.intersect1d(whole.at, part.at, return_indices=True)
            before, after = whole.value[at_whole], part.value[at_part]
            compared += int(np.sum(shared > 0))
            gap = np.abs(before - after)
            if bool(np.any(gap > trial.tolerance)):
                worst = int(shared[np.nanargmax(gap)])
                return "broken", (
                    f"{episode.id!r}: frame {worst} was {before[np.nanargmax(gap)]:.3g} with {len(episode)} frames "
                    f"and {after[np.nanargmax(gap)]:.3g} with the first {cut}"
                )
    if compared == 0:
        return "not checkable", "no frame but the first is scored both with and without the future"
    clause = f", within the {trial.card.rounding:g} that its card allows for rounding" if trial.card.rounding else ""
    return "kept", f"{compared} values unchanged when the future is cut off{clause}"


def _scores_only_what_it_saw(trial: _ModelTrial) -> Result:
    """Every scored frame must have been read."""
    if not trial.card.sees_pixels:
        return "not checkable", "the card says that it looks at no pixels"
    for episode in trial.episodes:
        spy = _SpyFrames(episode.main)
        reward = trial.model.score([replace(episode, views={episode.main_camera: Frames(spy)})])[0]
        invented = sorted(set(reward.at[~np.isnan(reward.value)].tolist()) - spy.seen)
        if invented:
            return "broken", f"{episode.id!r}: {len(invented)} scored frames were never looked at, e.g. {invented[0]}"
    return "kept", "every scored frame was looked at"


def _admits_what_it_cannot_see(trial: _ModelTrial) -> Result:
    """An unreadable video must come back unscored with a reason, or raise a DemeritError."""
    if not trial.card.sees_pixels:
        return "not checkable", "the card says that it looks at no pixels"
    blind = replace(trial.episodes[0], views={"main": Frames(_SpyFrames(trial.episodes[0].main, broken=True))})
    try:
        reward = trial.model.score([blind])[0]
    except DemeritError as error:
        return "kept", f"it raised: {error}"
    if reward.scored:
        return "broken", "it gave values for a video that cannot be decoded"
    return "kept", f"unscored: {reward.why_missing}"


def _live_is_offline(trial: _ModelTrial) -> Result:
    """Step through two episodes at a time: value and success of each scored frame must be those of `score`."""
    model, compared = trial.model, 0
    if not isinstance(model, Online) or model.card.reads_signals:
        return "not checkable", "it does not score live"
    scored = list(trial.scored())
    answers: list[list[LiveReward]] = []
    for start in range(0, len(scored), 2):
        answers += _step_in_turns(model, [episode for episode, _ in scored[start : start + 2]])
    for (episode, whole), live in zip(scored, answers, strict=True):
        for answer in live:
            if not isinstance(answer, LiveReward):
                return "broken", f"step gives a {type(answer).__name__} instead of a LiveReward"
        columns = {
            "value": np.array([answer.value for answer in live]),
            "success": np.array([answer.success for answer in live]),
        }
        for name, column in (("value", whole.value), ("success", whole.success)):
            if (column is None) != all(number is None for number in columns[name]):
                where = "step gives" if column is None else "score gives"
                return "broken", f"{where} a {name} that the other one does not give"
            if column is None:
                continue
            gap = np.abs(columns[name].astype(np.float64)[whole.at] - column)
            if bool(np.any(gap > trial.tolerance) or np.any(np.isnan(gap) != np.isnan(column))):
                worst = int(np.argmax(np.where(np.isnan(gap), np.inf, gap)))
                clause = f"{columns[name][whole.at[worst]]:.3g} live, {column[worst]:.3g} by score"
                return "broken", f"{episode.id!r}: the {name} of frame {whole.at[worst]} is {clause}"
        compared += len(whole.at)
    return "kept", f"{compared} frames have the same value and success live"


def _step_in_turns(model: Online, episodes: list[Episode]) -> list[list[LiveReward]]:
    """Score episodes live, a frame of each in turn: a model that mixes them gives other values than alone.

    A model that takes frames of several episodes in one call is given every other one so.
    """
    frames = [_read_live_frames(model, episode) for episode in episodes]
    live = [model.start(episode.instruction) for episode in episodes]
    answers: list[list[LiveReward]] = [[] for _ in episodes]
    for at in range(max(map(len, frames))):
        there = [number for number, images in enumerate(frames) if at < len(images)]
        runs, shown = [live[number] for number in there], [frames[number][at] for number in there]
        together = at % 2 and can_step_together(runs[0])
        said = step_together(runs, shown) if together else [run.step(one) for run, one in zip(runs, shown, strict=True)]
        for number, answer in zip(there, said, strict=True):
            if isinstance(answer, Exception):
                raise answer
            answers[number].append(answer)
    return answers


def _read_live_frames(model: Online, episode: Episode) -> list[LiveFrame]:
    cameras = list(model.looks_at(episode)) if isinstance(model, Prepares) else [episode.main_camera]
    images = [episode.views[name].all() for name in cameras]
    if cameras == [episode.main_camera]:
        return list(images[0])
    return [dict(zip(cameras, each, strict=True)) for each in zip(*images, strict=True)]


CLAUSES: dict[str, Callable[[_ModelTrial], Result]] = {
    "answers every episode": _answers_every_episode,
    "keeps its range": _keeps_its_range,
    "is deterministic": _is_deterministic,
    "batch = single": _batch_is_single,
    "is causal if it says so": _is_causal,
    "scores only what it saw": _scores_only_what_it_saw,
    "admits what it cannot see": _admits_what_it_cannot_see,
    "live = offline": _live_is_offline,
}


def _same(a: Reward, b: Reward, tolerance: float) -> bool:
    if not np.array_equal(a.at, b.at):
        return False
    gaps: npt.NDArray[Any] = np.isnan(a.value) != np.isnan(b.value)
    return not bool(gaps.any()) and bool(np.all(np.abs(np.nan_to_num(a.value - b.value)) <= tolerance))


class _SpyFrames:
    """Frames that record which were read, or cannot be decoded."""

    kind = "array"

    def __init__(self, frames: Frames, broken: bool = False) -> None:
        self._frames, self._broken = frames, broken
        self.seen: set[int] = set()

    def __len__(self) -> int:
        return len(self._frames)

    def times(self) -> Times:
        return self._frames.times()

    def take(self, indices: Sequence[int]) -> Images:
        if self._broken:
            raise UnreadableVideo("made-up.mp4", "it is broken on purpose")
        self.seen |= {int(index) for index in indices}
        return self._frames.take(indices)

    def identity(self) -> str:
        return "broken" if self._broken else self._frames.identity()

    def describe(self) -> dict[str, Any]:
        return ArrayFrames(self._frames.all()).describe()
