"""The conformance check passes what is honest and catches what is not."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

import numpy as np
import pytest

from demerit.data.episode import Episode
from demerit.data.frames import short_hash
from demerit.data.reward import Reward
from demerit.errors import BadInput, ContractBroken
from demerit.models import MODELS, load_model
from demerit.models.check import check_model
from demerit.models.protocol import LiveEpisode, LiveFrame, LiveReward, ModelCard, example_card


class Honest:
    """Distance of each frame to the first one: causal, deterministic, looks at what it scores."""

    card = example_card(name="honest")

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        return [self._one(episode) for episode in episodes]

    def at(self, episode: Episode) -> np.ndarray:
        return self.card.wanted(len(episode))

    def raw(self, episode: Episode) -> np.ndarray:
        images = episode.main.take(self.at(episode)).astype(np.float32)
        return np.abs(images - images[:1]).mean(axis=(1, 2, 3)) / 255

    def _one(self, episode: Episode) -> Reward:
        return Reward(self.card.name, episode.id, self.at(episode), self.raw(episode))


class MinMax(Honest):
    """Scaled by the whole episode, and claims to be causal."""

    def raw(self, episode: Episode) -> np.ndarray:
        value = super().raw(episode)
        return (value - value.min()) / max(float(np.ptp(value)), 1e-9)


class Interpolates(Honest):
    """Looks at every third frame and invents the rest."""

    def raw(self, episode: Episode) -> np.ndarray:
        seen = np.unique([*range(0, len(episode), 3), len(episode) - 1])
        images = episode.main.take(seen).astype(np.float32)
        return np.interp(np.arange(len(episode)), seen, np.abs(images - images[:1]).mean(axis=(1, 2, 3)) / 255)


class Guesses(Honest):
    """Answers 0 where it cannot see."""

    def _one(self, episode: Episode) -> Reward:
        try:
            return super()._one(episode)
        except Exception:
            return Reward(self.card.name, episode.id, np.arange(len(episode)), np.zeros(len(episode)))


class Drifts(Honest):
    """Remembers earlier calls."""

    calls = 0

    def raw(self, episode: Episode) -> np.ndarray:
        self.calls += 1
        return super().raw(episode) * 0.5 + 0.001 * self.calls


class NeedsCompany(Honest):
    """Scores an episode by the batch it is in."""

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        rewards = super().score(episodes)
        return [replace(reward, value=reward.value / len(episodes)) for reward in rewards]


class TooRounded(Honest):
    """Its values change with the length of the episode, which its card does not say."""

    def raw(self, episode: Episode) -> np.ndarray:
        return np.clip(super().raw(episode) + 0.001 * (len(episode) % 2), 0, 1)


class TooHigh(Honest):
    def raw(self, episode: Episode) -> np.ndarray:
        return super().raw(episode) + 2


class LosesOne(Honest):
    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        return super().score(episodes)[:-1]


class Modest(MinMax):
    """Scaled by the whole episode, and says so."""

    card = example_card(name="modest", causal=False, comparable=False)


class Spread(Honest):
    """Eight frames over the whole episode: which ones depends on the future, so prefixes share few frames."""

    card: ModelCard = example_card(name="spread", frame_budget=8)


class LastFrameOnly(Honest):
    """Scores the last frame alone: nothing to compare a prefix by."""

    def at(self, episode: Episode) -> np.ndarray:
        return np.array([len(episode) - 1])


class Silent(Honest):
    def _one(self, episode: Episode) -> Reward:
        return Reward.unscored(self.card.name, episode.id, "it is dark")


class Rounded(TooRounded):
    card = example_card(name="rounded", rounding=0.01)


class Follows(Honest):
    """Also live, with a probability of success that is half of the value."""

    def _one(self, episode: Episode) -> Reward:
        said = super()._one(episode)
        return replace(said, success=said.value / 2)

    def start(self, instruction: str) -> LiveEpisode:
        return Change(self.say)

    def say(self, values: list[float]) -> LiveReward:
        return LiveReward(values[-1], values[-1] / 2)


class Change:
    """A live episode: the change since the first frame, said as the model says it."""

    def __init__(self, say: Callable[[list[float]], LiveReward]) -> None:
        self.say, self.frames, self.values = say, list[np.ndarray](), list[float]()

    def step(self, frame: LiveFrame) -> LiveReward:
        assert isinstance(frame, np.ndarray)
        self.frames.append(frame.astype(np.float32))
        self.values.append(float(np.abs(self.frames[-1] - self.frames[0]).mean() / 255))
        return self.say(self.values)


class Lags(Follows):
    """Live, each frame has the value of the one before."""

    def say(self, values: list[float]) -> LiveReward:
        return super().say([0.0, *values][:-1])


class OverSure(Follows):
    """Live, success is said twice as high."""

    def say(self, values: list[float]) -> LiveReward:
        return LiveReward(values[-1], values[-1])


class KeepsSuccess(Follows):
    """Live, no success is said."""

    def say(self, values: list[float]) -> LiveReward:
        return LiveReward(values[-1])


class SaysNumbers(Follows):
    """Live, plain numbers."""

    def say(self, values: list[float]) -> LiveReward:
        return values[-1]  # type: ignore[return-value]


class MixesEpisodes(Follows):
    """Live, all episodes are one: the model holds it."""

    def start(self, instruction: str) -> LiveEpisode:
        self.run = super().start(instruction)
        return self

    def step(self, frame: LiveFrame) -> LiveReward:
        return self.run.step(frame)


class TakesTogether(Change):
    """A live episode whose frames are taken with those of others."""

    def step_together(self, runs: Sequence[LiveEpisode], frames: Sequence[LiveFrame]) -> list[LiveReward | Exception]:
        return [run.step(frame) for run, frame in zip(runs, frames, strict=True)]


class SwapsEpisodes(TakesTogether):
    """Answers come in another order."""

    def step_together(self, runs: Sequence[LiveEpisode], frames: Sequence[LiveFrame]) -> list[LiveReward | Exception]:
        return super().step_together(runs, frames)[::-1]


class Together(Follows):
    """Live, frames of several episodes are taken in one call."""

    def __init__(self, kind: type[TakesTogether] = TakesTogether) -> None:
        self.kind = kind

    def start(self, instruction: str) -> LiveEpisode:
        return self.kind(self.say)


def test_an_honest_model_passes() -> None:
    report = check_model(Honest())
    assert [clause.status for clause in report.clauses] == ["kept"] * 7 + ["not checkable"]  # it is not live
    for live in (Follows(), Together()):
        assert [clause.status for clause in check_model(live).clauses] == ["kept"] * 8
    report.raise_if_broken()
    for model in (Modest(), Spread(), Rounded()):
        assert not check_model(model).broken


@pytest.mark.parametrize(
    ("model", "clause"), [(LastFrameOnly(), "is causal if it says so"), (Silent(), "keeps its range")]
)
def test_what_cannot_be_checked_is_not_called_kept(model: Honest, clause: str) -> None:
    assert {found.name: found.status for found in check_model(model).clauses}[clause] == "not checkable"


@pytest.mark.parametrize(
    ("model", "clause"),
    [
        (MinMax(), "is causal if it says so"),
        (TooRounded(), "is causal if it says so"),
        (Interpolates(), "scores only what it saw"),
        (Guesses(), "admits what it cannot see"),
        (Drifts(), "is deterministic"),
        (NeedsCompany(), "batch = single"),
        (TooHigh(), "keeps its range"),
        (LosesOne(), "answers every episode"),
        (Lags(), "live = offline"),
        (OverSure(), "live = offline"),
        (SaysNumbers(), "live = offline"),
        (MixesEpisodes(), "live = offline"),
        (KeepsSuccess(), "live = offline"),
        (Together(SwapsEpisodes), "live = offline"),
    ],
    ids=lambda case: type(case).__name__ if not isinstance(case, str) else "",
)
def test_each_violation_breaks_its_clause(model: Honest, clause: str) -> None:
    report = check_model(model)
    assert clause in [broken.name for broken in report.broken]
    with pytest.raises(ContractBroken, match=clause):
        report.raise_if_broken()


# a folder, other models, a server, gigabytes of weights: each of these is checked in a file of its own
NEED_MORE_THAN_A_NAME = {
    "calibrated",
    "ensemble",
    "gvl",
    "grader",
    "robometer",
    "roboreward",
    "topreward",
    "dopamine",
    "vlac",
    "min",
    "rule",
}


@pytest.mark.parametrize("name", sorted(set(MODELS) - NEED_MORE_THAN_A_NAME))
def test_built_in_models_pass(name: str) -> None:
    assert check_model(load_model(name)).broken == []


def test_later_fields_that_are_not_set_keep_the_old_hash() -> None:
    card = example_card()
    facts = {name: value for name, value in asdict(card).items() if name not in ("rounding", "reads_signals")}
    assert card.hash() == short_hash(json.dumps(facts, sort_keys=True).encode())
    assert len({card.hash(), example_card(rounding=0.1).hash(), example_card(reads_signals=True).hash()}) == 3
    with pytest.raises(BadInput, match="rounding"):
        example_card(rounding=-1.0)
