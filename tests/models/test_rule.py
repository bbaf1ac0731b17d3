"""Rules as models: values, success, what is left unscored, live, combined with other models."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demerit.data.dataset import Dataset, ListReader
from demerit.data.episode import Episode, Origin
from demerit.errors import BadInput, UnknownName
from demerit.models import load_model
from demerit.models.check import check_model
from demerit.models.protocol import Online
from demerit.models.rule import Rule, RuleConfig, RuleSignal
from demerit.models.score import ScoreJob, score

SAFE = """
formula: eventually(height > 0.1 m) and never(force > 20 N)
signals:
  height: {signal: object, column: 2, relative: true, scale: 0.1}
  force: {signal: object_force, scale: 20}
"""
HEIGHTS = [0.02, 0.05, 0.1, 0.2, 0.2, 0.2]
FORCES = [0.0, 5.0, 5.0, 19.0, 10.0, 25.0]
VALUES = [-1.0, -0.7, -0.2, 0.05, 0.05, -0.25]


def make_episode(id: str = "one", instruction: str = "lift the cup", **signals: Any) -> Episode:
    known = {"object": np.array([[9.0, 9.0, z] for z in HEIGHTS]), "object_force": np.array(FORCES)} | signals
    episode = Episode.from_array(np.zeros((6, 4, 4, 3), np.uint8), instruction, id, fps=10)
    return replace(episode, signals={name: values for name, values in known.items() if values is not None})


@pytest.fixture
def safe(tmp_path: Path) -> str:
    """The address of a rule."""
    (tmp_path / "safe.yaml").write_text(SAFE)
    return f"rule:{tmp_path / 'safe.yaml'}"


def make_rule(formula: str, instructions: tuple[str, ...] = (), **signals: RuleSignal) -> Rule:
    return Rule(RuleConfig(formula, signals, instructions))


def test_a_value_is_the_robustness_of_the_frames_so_far(safe: str) -> None:
    (reward,) = load_model(safe).score([make_episode()])
    np.testing.assert_allclose(reward.value, VALUES, atol=1e-6)
    assert reward.success is not None and reward.success.tolist() == [0, 0, 0, 1, 1, 0]
    assert reward.model == "rule-safe"


def test_it_keeps_the_contract_of_a_model(safe: str) -> None:
    model = load_model(safe)
    calm = make_episode("calm", object_force=np.zeros(6))
    check_model(model, [make_episode(), calm, make_episode("blind", object=None)]).raise_if_broken()
    assert not isinstance(model, Online)  # it is fed signals, not frames
    assert not check_model(model).broken  # the made-up episodes have no signals


def test_live_equals_offline() -> None:
    rule = make_rule("always[0.1,0.3](x < 5 implies eventually[0,0.2](x > 6))")
    episode = make_episode(x=np.array([1.0, 7.0, 2.0, 3.0, 8.0, 1.0]))
    (reward,) = rule.score([episode])
    run, times = rule.watch("lift"), episode.main.times()
    live = [run.step({"x": episode.signals["x"][t], "other": "ignored"}, times[t]) for t in range(6)]
    np.testing.assert_allclose([one.value for one in live], reward.value, rtol=1e-6)
    np.testing.assert_equal([one.success for one in live], reward.success)
    assert np.isnan(live[0].value) and live[-1].value == 2


def test_a_number_that_is_missing_ends_the_values() -> None:
    rule = make_rule("never(x > 5)")
    episode = make_episode(x=np.array([1.0, 2.0, np.nan, 2.0, 2.0, 2.0]))
    (reward,) = rule.score([episode])
    assert reward.value[:2].tolist() == [4, 3] and np.isnan(reward.value[2:]).all()
    assert reward.success is not None and np.isnan(reward.success[2:]).all()
    assert "frame 2" in reward.why_missing
    run = rule.watch()
    live = [run.step({"x": value}).value for value in episode.signals["x"]]
    np.testing.assert_equal(np.array(live, np.float32), reward.value)


@pytest.mark.parametrize(
    ("changes", "mentions"),
    [
        ({"object_force": None}, "object_force"),
        ({"object_force": np.zeros(5)}, "object_force"),
        ({"object_force": np.array(["a"] * 6)}, "object_force"),
        ({"object_force": np.zeros((6, 3))}, "object_force"),
        ({"object": np.zeros((6, 2))}, "object"),
        ({"object_force": np.full(6, np.nan)}, "force"),
    ],
)
def test_a_signal_that_does_not_fit_leaves_the_episode_unscored(
    safe: str, changes: Mapping[str, Any], mentions: str
) -> None:
    (reward,) = load_model(safe).score([make_episode(**changes)])
    assert not reward.scored and mentions in reward.why_missing


def test_another_unit_leaves_the_episode_unscored(safe: str) -> None:
    rule = load_model(safe)
    newton, pounds = (replace(make_episode(), origin=Origin(tags={"unit:object_force": unit})) for unit in ("N", "lbf"))
    good, bad = rule.score([newton, pounds])
    assert good.scored and not bad.scored and "lbf" in bad.why_missing


def test_a_rule_for_some_instructions_leaves_others_unscored() -> None:
    rule = make_rule("never(object_force > 20 N)", ("lift *", "raise *"))
    lift, push = rule.score([make_episode(), make_episode("two", "push the cup")])
    assert lift.scored and not push.scored and "push the cup" in push.why_missing
    with pytest.raises(BadInput):
        rule.watch("push the cup")


def test_a_norm_takes_all_numbers_of_a_signal() -> None:
    rule = make_rule("never(force > 6)", force=RuleSignal("wrench", norm=True))
    (reward,) = rule.score([make_episode(wrench=np.array([[3.0, 4.0]] * 6))])
    assert reward.final == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "formula: never(force > 20 N) and eventually(height > 0.1 m)",  # no scale, two units
        "formula: never(force > 20 N) and never(push > 9 N)\nsignals: {force: {scale: 20}}",
        "formula: never(force > 20 N)\nsignals: {force: {unit: lbf}}",
        "formula: never(force > 20)\nsignals: {torque: {}}",
        "formula: never(force > 20)\nsignals: {force: {scale: 0}}",
        "formula: never(force > 20)\nsignals: {force: {column: 1, norm: true}}",
        "formula: never(force > 20)\nlimits: {}",
        "signals: {}",
        "- formula",
    ],
)
def test_a_rule_file_that_cannot_be_used_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises((BadInput, UnknownName)):
        load_model(f"rule:{tmp_path / 'bad.yaml'}")


def test_rewards_are_computed_again_when_signals_or_the_rule_change(tmp_path: Path, safe: str) -> None:
    def run(episode: Episode, address: str = safe) -> tuple[int, int]:
        dataset = Dataset(ListReader("list:x", [episode]), "list:x")
        progress = score(ScoreJob(load_model(address), dataset, tmp_path / "rewards"))
        return progress.scored, progress.kept

    assert run(make_episode()) == (1, 0)
    assert run(make_episode()) == (0, 1)
    assert run(make_episode(object_force=np.zeros(6))) == (1, 0)
    Path(safe.removeprefix("rule:")).write_text(SAFE.replace("20 N", "30 N"))
    assert run(make_episode(object_force=np.zeros(6))) == (1, 0)


def test_a_rule_is_not_scored_on_some_frames_only(tmp_path: Path, safe: str) -> None:
    dataset = Dataset(ListReader("list:x", [make_episode()]), "list:x")
    with pytest.raises(BadInput):
        ScoreJob(load_model(safe), dataset, tmp_path / "rewards", frames=3)


def test_min_closes_the_reward_of_a_model_while_a_rule_is_broken(tmp_path: Path) -> None:
    (tmp_path / "soft.yaml").write_text("formula: never(object_force > 20 N)")
    model = load_model(f"min:rule:{tmp_path / 'soft.yaml'}+clock")
    assert (model.card.low, model.card.high, model.card.reads_signals) == (0.0, 1.0, True)
    (reward,) = model.score([make_episode()])
    np.testing.assert_allclose(reward.value, [1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 0], rtol=1e-6)
    (missing,) = model.score([make_episode(object_force=None)])
    assert not missing.scored and "object_force" in missing.why_missing


def test_min_of_two_rules_is_their_smaller_robustness(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("formula: never(object_force > 20 N)")
    (tmp_path / "b.yaml").write_text("formula: eventually(object_force > 3 N)")
    model = load_model(f"min:rule:{tmp_path / 'a.yaml'}+rule:{tmp_path / 'b.yaml'}")
    (reward,) = model.score([make_episode()])
    assert reward.value.tolist() == [-3, 2, 2, 1, 1, -5]
    assert reward.success is not None and reward.success.tolist() == [0, 1, 1, 1, 1, 0]
