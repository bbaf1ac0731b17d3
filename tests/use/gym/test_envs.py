"""RewardEnv and RewardVectorEnv on a lamp that gets brighter."""

import subprocess
import sys
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from demerit import RemoteModel
from demerit.errors import BadInput, BadReward, DemeritWarning
from demerit.models.rule import Rule, RuleConfig
from demerit.use.gym import RewardEnv, RewardVectorEnv, Threshold, relabel
from demerit.use.serve.server import serve_models
from fakes.lamp_env import EpisodeLamp, LampEnv, LampModel

pytestmark = pytest.mark.filterwarnings("ignore:mode='dense'")
UP, STAY, DOWN = (np.array([a], np.float32) for a in (1, 0, -1))


def play(env: gymnasium.Env[Any, Any], actions: list[Any]) -> list[Any]:
    """Return what every step gave, up to the end of the episode."""
    env.reset()
    steps = []
    for action in actions:
        steps.append(env.step(action))
        if steps[-1][2] or steps[-1][3]:
            break
    return steps


def lamp(limit: int = 5, **options: Any) -> Any:
    return TimeLimit(LampEnv(**options), limit)


def values(bright: list[int]) -> list[float]:
    """Return what the model says about these frames."""
    return [level / 255 * 0.999**t for t, level in enumerate(bright)]


def rewards(steps: list[Any]) -> list[float]:
    return [step[1] for step in steps]


def test_dense_is_the_value_of_the_newest_frame_and_a_time_limit_truncates() -> None:
    steps = play(RewardEnv(lamp(3), LampModel(), "light it"), [UP] * 9)
    assert rewards(steps) == values([0, 51, 102, 153])[1:]
    assert [step[2:4] for step in steps] == [(False, False), (False, False), (False, True)]
    told = steps[-1][4]["demerit"]
    assert told["env_reward"] == 7.0 and told["value"] == steps[-1][1] and not told["succeeded"]
    assert told["rewards"] == tuple(rewards(steps))
    assert steps[-1][4]["t"] == 3 and "rewards" not in steps[0][4]["demerit"]


def test_final_is_the_value_at_the_end_only() -> None:
    steps = play(RewardEnv(lamp(3), LampModel(), "", mode="final"), [UP] * 9)
    assert rewards(steps) == [0.0, 0.0, values([0, 51, 102, 153])[-1]]


def test_potential_sums_to_the_discounted_final_value() -> None:
    steps = play(RewardEnv(lamp(4, start=100), LampModel(), "", mode="potential", gamma=0.9), [UP, DOWN, UP, UP])
    phi = values([100, 151, 100, 151, 202])
    assert rewards(steps) == [0.9 * new - old for old, new in pairwise(phi)]
    total = sum(0.9**t * reward for t, reward in enumerate(rewards(steps)))
    assert total == pytest.approx(0.9**4 * phi[-1] - phi[0])


def test_potential_beside_the_environments_reward_changes_every_return_by_the_first_potential_alone() -> None:
    env = RewardEnv(LampEnv(ends_at=3, start=100), LampModel(), "", mode="potential", gamma=0.9, add_env_reward=True)
    for actions in ([UP, UP, UP], [DOWN, STAY, UP]):
        steps = play(env, actions)
        assert steps[-1][2]
        total = sum(0.9**t * (reward - 7.0) for t, reward in enumerate(rewards(steps)))
        assert total == pytest.approx(-100 / 255)


def test_levels() -> None:
    five = play(RewardEnv(lamp(5), LampModel(), "", levels="five"), [UP] * 5)
    assert rewards(five) == [1 + min(4, int(value * 5)) for value in values([0, 51, 102, 153, 204, 255])[1:]]
    binary = play(RewardEnv(lamp(5), LampModel(), "", levels="binary", success=0.7), [UP] * 5)
    assert rewards(binary) == [0, 0, 0, 1]
    full = play(RewardEnv(lamp(1, start=255), EpisodeLamp(), "", levels="five"), [STAY])
    assert rewards(full) == [5.0]


def test_success_terminates_and_wins_over_a_time_limit() -> None:
    steps = play(RewardEnv(lamp(4), LampModel(), "", success=0.7), [UP] * 9)
    assert len(steps) == 4 and steps[-1][2] and steps[-1][3] and steps[-1][4]["demerit"]["succeeded"]
    by_probability = play(RewardEnv(lamp(9), LampModel(gives_success=True), "", success=0.7), [UP] * 9)
    assert [step[2] for step in by_probability] == [False] * 4 + [True]
    assert by_probability[-1][4]["demerit"]["success"] > 0.7


def test_some_looks_in_a_row_must_reach_the_threshold() -> None:
    threshold = Threshold(0.55, "value", 0.05, None, 100, in_a_row=2)
    env = RewardEnv(lamp(20), LampModel(), "", success=threshold)
    assert [step[2] for step in play(env, [UP, UP, UP, DOWN, UP, UP, UP])] == [False] * 5 + [True]
    looks = RewardEnv(lamp(20), LampModel(), "", success=threshold, stride=3)
    assert len(play(looks, [UP] * 9)) == 6  # bright from step 3 on, seen at 3 and 6


def test_a_fall_ends_it_as_failed() -> None:
    fall = Threshold(0.3, "drop", 0.05, None, 100)
    steps = play(RewardEnv(lamp(9), LampModel(), "", failure=fall), [UP, UP, DOWN, STAY, DOWN, UP])
    assert [step[2] for step in steps] == [False] * 4 + [True]
    assert steps[-1][4]["demerit"]["failed"] and not steps[-1][4]["demerit"]["succeeded"]


def test_stride_looks_at_some_frames_and_the_last_and_holds_the_value_between() -> None:
    inner = LampEnv()
    steps = play(RewardEnv(TimeLimit(inner, 5), LampModel(), "", stride=2), [UP] * 5)
    seen = values([0, 102, 204, 255])
    assert rewards(steps) == [seen[0], seen[1], seen[1], seen[2], seen[3]]
    assert inner.renders == 4


@pytest.mark.parametrize("mode", ["dense", "final", "potential"])
@pytest.mark.parametrize("levels", ["continuous", "five", "binary"])
@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("delay", [0, 2])
def test_live_and_relabelled_rewards_are_the_same_numbers(mode: str, levels: str, stride: int, delay: int) -> None:
    options = {"mode": mode, "levels": levels, "stride": stride, "success": 0.7}
    env = RewardEnv(lamp(7), LampModel(), "", delay=delay, **options)
    actions = [np.array([a], np.float32) for a in (0.3, -0.1, 0.8, 0.5, 0.9, 1, 0.2)]
    env.reset()
    frames, total, is_over = [env.render()], 0.0, False
    while not is_over:
        _, reward, terminated, truncated, info = env.step(actions[len(frames) - 1])
        frames.append(env.render())
        total, is_over = total + reward, terminated or truncated
    found = relabel(np.stack(frames), LampModel(), "", **options)
    assert found.tolist() == list(info["demerit"]["rewards"])
    assert total == pytest.approx(found.sum())
    env.close()


def test_delay_brings_each_reward_later_and_nothing_is_lost() -> None:
    sync = rewards(play(RewardEnv(lamp(5), LampModel(), ""), [UP] * 5))
    env = RewardEnv(lamp(5), LampModel(), "", delay=2)
    late = play(env, [UP] * 5)
    assert rewards(late) == [0.0, 0.0, sync[0], sync[1], pytest.approx(sum(sync[2:]))]
    assert late[-1][4]["demerit"]["rewards"] == tuple(sync)
    env.close()
    ending = RewardEnv(lamp(20), LampModel(), "", delay=2, success=0.7)
    steps = play(ending, [UP] * 20)
    assert len(steps) == 6 and steps[-1][2]  # success is in the frame of step 4
    ending.close()


def test_success_that_has_not_arrived_counts_at_a_time_limit() -> None:
    env = RewardEnv(lamp(5), LampModel(), "", delay=3, success=0.7)
    steps = play(env, [UP] * 5)
    assert len(steps) == 5 and steps[-1][2:4] == (True, True) and steps[-1][4]["demerit"]["succeeded"]
    env.close()


def test_stages_add_one_each_and_the_last_one_ends() -> None:
    model = LampModel()
    steps = play(RewardEnv(lamp(20), model, ["a", "b"], success=0.8), [UP] * 9)
    assert model.started == ["a", "b"] and [step[2] for step in steps] == [False] * 4 + [True]
    # the frame that finishes a stage is the first frame of the next one, which forgets what came before
    assert rewards(steps) == [*values([0, 51, 102, 153, 204])[1:], 1 + 1.0]
    assert [step[4]["demerit"]["stage"] for step in steps] == [0, 0, 0, 0, 1]


def test_a_frame_can_finish_several_stages() -> None:
    model = LampModel(gives_success=True)
    again = play(RewardEnv(lamp(9, start=255), model, ["a", "b"], success=0.99, levels="five"), [STAY] * 3)
    assert rewards(again) == [10.0] and again[0][2]


def test_stages_need_a_threshold() -> None:
    with pytest.raises(BadInput) as no_threshold:
        RewardEnv(lamp(), LampModel(), ["a", "b"])
    assert no_threshold.value.what == "several instructions"
    with pytest.raises(BadInput) as none:
        RewardEnv(lamp(), LampModel(), [])
    assert none.value.what == "instruction"


@pytest.mark.parametrize("delay", [0, 1])
def test_an_unscored_frame_is_never_a_number(delay: int) -> None:
    env = RewardEnv(lamp(), LampModel(nan_at=2), "", delay=delay)
    with pytest.raises(BadReward):
        play(env, [UP] * 5)
    env.close()


@pytest.mark.parametrize("delay", [0, 2])
def test_a_model_on_a_server_gives_the_same_rewards(delay: int) -> None:
    options: dict[str, Any] = {"success": 0.7, "delay": delay, "stride": 2}
    near = RewardEnv(lamp(6), LampModel(gives_success=True), ["a", "b"], **options)
    with serve_models([LampModel(gives_success=True)]) as server:
        far = RewardEnv(lamp(6), RemoteModel(server.url), ["a", "b"], **options)
        for actions in ([UP] * 6, [UP, STAY, DOWN, UP, UP, STAY]):
            here, there = play(near, actions), play(far, actions)
            assert rewards(here) == rewards(there)
            assert [step[2:4] for step in here] == [step[2:4] for step in there]
        far.close()
    near.close()


def test_a_model_of_whole_episodes_is_asked_once_at_the_end() -> None:
    model = EpisodeLamp()
    steps = play(RewardEnv(lamp(3), model, "", mode="final"), [UP] * 3)
    assert model.asked == 1 and rewards(steps) == [0, 0, pytest.approx(76.5 / 255)]
    dense = play(RewardEnv(lamp(3), model, ""), [UP] * 3)
    assert model.asked == 1 + 4 and rewards(dense) == pytest.approx([25.5 / 255, 51 / 255, 76.5 / 255])


def test_dense_rewards_that_success_cuts_off_are_warned_of() -> None:
    with pytest.warns(DemeritWarning, match="potential"):
        RewardEnv(lamp(), LampModel(), "", success=0.7)


@pytest.mark.filterwarnings("error")
def test_other_rewards_are_not_warned_of() -> None:
    wanted: list[dict[str, Any]] = [{"levels": "binary"}, {"mode": "final"}, {"mode": "potential"}]
    for options in wanted:
        RewardEnv(lamp(), LampModel(), "", success=0.7, **options)
    RewardEnv(lamp(), LampModel(), "")


def test_a_guess_is_said_once() -> None:
    env = RewardEnv(lamp(2), LampModel(familiarity=0.001), "")
    with pytest.warns(DemeritWarning, match="unfamiliar") as said:
        for _ in range(3):
            play(env, [UP] * 2)
    assert len(said) == 1


def test_cameras() -> None:
    env, expected = LampEnv(render_mode=None), values([0, 51, 102])[1:]
    for camera in ("image", {"top": "image", "wrist": "image"}):
        assert rewards(play(RewardEnv(TimeLimit(env, 2), LampModel(), "", camera=camera), [UP] * 2)) == expected
    for camera in ("level", "nothing", "image/deeper"):
        with pytest.raises(BadInput) as wrong:
            RewardEnv(env, LampModel(), "", camera=camera).reset()
        assert wrong.value.what == f"camera {camera!r}"
    with pytest.raises(BadInput) as no_images:
        RewardEnv(env, LampModel(), "")
    assert no_images.value.what == "the environment"


def test_wrong_options_are_refused() -> None:
    wrong: list[dict[str, Any]] = [{"mode": "sum"}, {"levels": "six"}, {"levels": "binary"}]
    for options in [*wrong, {"gamma": 2}, {"stride": 0}, {"delay": -1}]:
        with pytest.raises(BadInput):
            RewardEnv(lamp(), LampModel(), "", **options)
    with pytest.raises(BadInput):
        RewardEnv(lamp(), LampModel(), "").step(UP)


# Vector


def make_vector(kind: Any, limits: list[int], **options: Any) -> Any:
    return kind([lambda limit=limit: lamp(limit, start=limit) for limit in limits], **options)


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
@pytest.mark.parametrize("camera", [None, "image"])
@pytest.mark.parametrize("delay", [0, 1])
def test_the_vector_version_gives_what_single_environments_give(kind: Any, camera: str | None, delay: int) -> None:
    """Same rewards, ends and infos as a vector of RewardEnvs, also when the model ends an episode."""
    limits = [3, 9, 4]
    options: dict[str, Any] = {"success": 0.7, "camera": camera, "delay": delay}
    mine = RewardVectorEnv(make_vector(kind, limits), LampModel(), "", **options)
    theirs = SyncVectorEnv(
        [lambda limit=limit: RewardEnv(lamp(limit, start=limit), LampModel(), "", **options) for limit in limits]
    )
    first, second = mine.reset(seed=1), theirs.reset(seed=1)
    assert np.array_equal(first[0]["image"], second[0]["image"])
    rng, ends = np.random.default_rng(0), 0
    for _ in range(40):
        actions = rng.uniform(0, 1, (3, 1)).astype(np.float32)
        a, b = mine.step(actions), theirs.step(actions)
        for x, y in zip(a[1:4], b[1:4], strict=True):
            assert np.array_equal(x, y)
        assert np.array_equal(a[0]["image"], b[0]["image"])
        assert a[4].keys() == b[4].keys() and np.array_equal(a[4]["t"], b[4]["t"])
        if "demerit" in a[4]:
            assert a[4]["demerit"].keys() == b[4]["demerit"].keys()
            assert all(np.array_equal(a[4]["demerit"][name], b[4]["demerit"][name]) for name in a[4]["demerit"])
        ends += int((a[2] & ~a[3]).sum())
    assert ends > 3
    mine.close()
    theirs.close()


def test_a_vector_environment_without_autoreset_is_reset_by_mask() -> None:
    env = RewardVectorEnv(make_vector(SyncVectorEnv, [9, 2], autoreset_mode=AutoresetMode.DISABLED), LampModel(), "")
    up = np.ones((2, 1), np.float32)
    env.reset()
    env.step(up)
    assert env.step(up)[3].tolist() == [False, True]
    env.reset(options={"reset_mask": np.array([False, True])})
    assert env.step(up)[1].tolist() == [values([9, 60, 111, 162])[3], values([2, 53])[1]]
    with pytest.raises(BadInput) as same_step:
        RewardVectorEnv(make_vector(SyncVectorEnv, [2], autoreset_mode=AutoresetMode.SAME_STEP), LampModel(), "")
    assert same_step.value.what == "autoreset_mode"


def test_without_gymnasium_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['gymnasium'] = None\ntry:\n import demerit.use.gym\nexcept Exception as e: print(e)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "demerit[gym]" in run.stdout


def test_a_rule_which_frames_cannot_feed_is_refused_before_the_first_step() -> None:
    with pytest.raises(BadInput) as refused:
        RewardEnv(lamp(), Rule(RuleConfig("never(force > 20 N)")), "light it")
    assert refused.value.got == "one that reads signals"


def test_a_reason_that_is_a_sentence_gets_no_second_full_stop() -> None:
    for error in (BadReward("m", "e", "There is no signal."), BadInput("x", "episodes", "none. 3 were left out.")):
        assert not str(error).endswith("..")
