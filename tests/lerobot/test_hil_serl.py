"""LeRobot's own HIL-SERL loops with rewards of demerit. Run with: make test-lerobot."""

import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import demerit
from demerit.data.episode import Episode
from demerit.data.frames import Frames, Images
from demerit.decide.threshold import failures_needed
from demerit.errors import BadInput
from demerit.models import load_model
from demerit.use.gym import RewardEnv, Threshold
from demerit.use.lerobot_reward import LeRobotReward, make_step, put_reward
from fakes.command import demerit_here
from fakes.lamp_env import LampModel
from fakes.lesson_data import WORDS, course, draw_images

torch = pytest.importorskip("torch", reason="LeRobot's environment: make test-lerobot")
pytest.importorskip("lerobot.__version__", reason="LeRobot is not installed in this environment: make test-lerobot")
pytest.importorskip("grpc", reason="LeRobot's HIL-SERL is not installed in this environment: make test-lerobot")
os.environ["HF_HUB_OFFLINE"] = "1"

from fakes.lerobot_itself import DECLARE  # noqa: E402
from fakes.replayed_robot import Gamepad, ReplayedRobot, act, configure_robot, record_episodes  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs/hil_serl.md"
EDIT = DECLARE + "\nfrom lerobot.scripts.lerobot_edit_dataset import main\nmain()"


def draw(successes: Sequence[bool], seed: int) -> list[Images]:
    return [draw_images(course(success, seed + i), seed + i, 64) for i, success in enumerate(successes)]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what LeRobot's own recorder wrote, and a model taught with it."""
    folder = tmp_path_factory.mktemp("hil")
    for name, successes, seed in (("my_recording", [True, False] * 6, 0), ("my_failures", [False] * 10, 100)):
        record_episodes(draw(successes, seed), successes, WORDS, folder / name)
    for line in blocks("bash"):
        said = demerit_here(*shlex.split(line, comments=True)[1:], cwd=folder)
        assert said.returncode == 0, said.stderr
    return folder


def blocks(language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text("utf-8"), flags=re.M | re.S)
    return [line for block in found for line in block.splitlines()] if language == "bash" else found


@pytest.fixture(scope="module")
def loop() -> Any:
    """A module of LeRobot's that makes its own processors again in every test."""
    from lerobot.rl import actor

    return actor


def steps_of_reward_env(episodes: Sequence[Images], model: Any, success: Any) -> list[list[tuple[bool, bool]]]:
    """Success and time limit of each step, up to the end of each episode."""
    env = RewardEnv(
        ReplayedRobot(episodes), model, WORDS, camera={"front": "pixels/front"}, mode="final", success=success
    )
    found = []
    for _ in episodes:
        env.reset()
        steps = []
        while not steps or not any(steps[-1]):
            _, _, terminated, truncated, info = env.step(None)
            assert terminated == info["demerit"]["succeeded"]
            steps.append((terminated, truncated))
        found.append(steps)
    return found


SUCCESSES = [True, False, True, False, False, True]


@pytest.mark.parametrize("success", [0.5, Threshold(0.3, "success", 0.1, None, 9, in_a_row=2)])
def test_what_the_actor_sends_to_the_learner_is_what_reward_env_decides(
    success: Any, workplace: Path, loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "make_processors", loop.make_processors)  # put back afterwards, and the robot too
    monkeypatch.setattr(loop, "make_robot_env", None)
    episodes, model = draw(SUCCESSES, 300), load_model(str(workplace / "my-model"))
    expected = steps_of_reward_env(episodes, model, success)
    ends = [steps[-1] for steps in expected]
    assert (True, False) in ends or (True, True) in ends, "a success must be among them"
    assert (False, True) in ends
    put_reward(loop, LeRobotReward(model, WORDS, success))
    sent = act(loop, episodes, steps=sum(map(len, expected)))
    assert [[one[1:] for one in episode] for episode in sent] == expected
    assert [[one[0] for one in episode] for episode in sent] == [
        [2.0 * succeeded for succeeded, _ in steps] for steps in expected
    ]


def test_without_a_threshold_it_is_the_verdict_of_the_same_frames(workplace: Path) -> None:
    from lerobot.processor import TransitionKey
    from lerobot.rl.gym_manipulator import make_processors, step_env_and_process_transition

    model = load_model(str(workplace / "my-model"))
    recorded = demerit.open_dataset(str(workplace / "my_recording"))
    episodes = [recorded[place].main.all() for place in range(3)]
    robot, gamepad = ReplayedRobot(episodes), Gamepad()
    cfg = configure_robot((64, 64))
    env_processor, action_processor = make_processors(robot, gamepad, cfg)
    env_processor.steps.append(make_step(LeRobotReward(model, WORDS), terminate_on_success=False))
    said, expected = [], []
    for images in episodes:
        observation, _ = robot.reset()
        env_processor.reset()
        transition = env_processor(first_transition(observation))
        for t in range(1, len(images)):
            transition = step_env_and_process_transition(
                robot, transition, torch.zeros(4), env_processor, action_processor
            )
            said.append(transition[TransitionKey.REWARD])
            assert not transition[TransitionKey.DONE]
            so_far = Episode("so-far", WORDS, {"front": Frames.from_array(images[: t + 1])})
            expected.append(float(model.score([so_far])[0].verdict.success is True))
    assert said == expected and set(said) == {0.0, 1.0}


def first_transition(observation: Any) -> Any:
    from lerobot.processor.converters import create_transition

    return create_transition(observation=observation, info={})


def test_the_recording_has_the_labels_that_the_person_gave(workplace: Path) -> None:
    for name, successes in (("my_recording", [True, False] * 6), ("my_failures", [False] * 10)):
        dataset = demerit.open_dataset(str(workplace / name), outcome_key="next.reward")
        assert [one.outcome.success for one in dataset] == successes
        assert {one.instruction for one in dataset} == {WORDS} and set(dataset[0].views) == {"front"}


def test_the_page_runs_to_the_actor(
    workplace: Path, loop: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find, run = blocks("python")
    monkeypatch.chdir(workplace)
    exec(find, {})
    assert "10.0%" in capsys.readouterr().out
    for name in ("make_processors", "make_robot_env"):
        monkeypatch.setattr(loop, name, getattr(loop, name))
    episodes = draw(SUCCESSES, 300)
    sent: list[Any] = []
    monkeypatch.setattr(loop, "actor_cli", lambda: sent.extend(act(loop, episodes, steps=80)))
    (workplace / "hil_serl.py").write_text(run)
    runpy.run_path("hil_serl.py", run_name="__main__")
    endings = [episode[-1] for episode in sent]
    assert (2.0, True, False) in endings, "a success was recognised"
    assert all(reward == 0.0 for episode in sent for reward, done, _ in episode if not done)


def test_the_failures_of_the_page_are_those_of_the_guarantee() -> None:
    rows = re.findall(r"^\| (\d+)% \| (\d+) \| (\d+) \|$", PAGE.read_text("utf-8"), re.M)
    assert len(rows) == 3
    for percent, average, confident in rows:
        risk = int(percent) / 100
        assert (failures_needed(risk), failures_needed(risk, 0.9)) == (int(average), int(confident))


def test_lerobots_own_classifier_is_what_the_page_says() -> None:
    from lerobot.policies.sac.reward_model.modeling_classifier import Classifier

    assert "normalize_inputs" in Classifier.predict_reward.__code__.co_names
    assert not hasattr(Classifier, "normalize_inputs")


def test_a_classifier_beside_it_is_refused(loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "make_processors", loop.make_processors)
    put_reward(loop, LeRobotReward(LampModel(), WORDS, 0.5))
    with pytest.raises(BadInput, match="pretrained_path"):
        loop.make_processors(ReplayedRobot(draw([True], 0)), Gamepad(), configure_robot((64, 64), classifier="x/y"))


def test_success_may_leave_the_episode_running(loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "make_processors", loop.make_processors)
    monkeypatch.setattr(loop, "make_robot_env", None)
    put_reward(loop, LeRobotReward(LampModel(), WORDS, 0.5))
    bright = np.concatenate([np.full((1, 64, 64, 3), level, np.uint8) for level in (0, 200, 20, 220)])
    ((*steps, last),) = act(loop, [bright], steps=3, terminate_on_success=False)
    assert steps == [(2.0, False, False), (0.0, False, False)] and last == (2.0, False, True)


def test_lerobots_recorder_ends_episodes_where_the_reward_says_success(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from lerobot.rl import gym_manipulator

    monkeypatch.setattr(gym_manipulator, "make_processors", gym_manipulator.make_processors)
    put_reward(gym_manipulator, LeRobotReward(LampModel(), WORDS, 0.5))
    levels = ((0, 20, 200, 220, 240), (0, 10, 20, 10, 0))
    episodes = [np.stack([np.full((64, 64, 3), level, np.uint8) for level in some]) for some in levels]
    record_episodes(episodes, [False, False], WORDS, tmp_path / "recorded")
    dataset = demerit.open_dataset(str(tmp_path / "recorded"))
    assert [len(one) for one in dataset] == [2, 4]
    assert [one.signals["next.reward"].reshape(-1).tolist() for one in dataset] == [[0.0, 2.0], [0.0] * 4]


def test_the_printed_edit_line_removes_the_episodes(workplace: Path, tmp_path: Path) -> None:
    """`demerit filter` prints a command of LeRobot's: it runs as printed."""
    source = workplace / "my_recording"
    run = demerit_here(
        "filter",
        source,
        "--with",
        "outcome-key=next.reward",
        "--success",
        "labels",
        "--dry-run",
        "--page",
        tmp_path / "filter.html",
    )
    assert run.returncode == 0, run.stderr
    (line,) = re.findall(r"HF_LEROBOT_HOME=.* lerobot-edit-dataset .*", run.stdout)
    tool = tmp_path / "lerobot-edit-dataset"
    tool.write_text(f"#!{sys.executable}\n{EDIT}")
    tool.chmod(0o755)
    shell = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    edited = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, env=shell)
    assert edited.returncode == 0, edited.stderr[-3000:]
    old = list(demerit.open_dataset(str(source), outcome_key="next.reward"))
    new = list(demerit.open_dataset(str(source) + "_kept", outcome_key="next.reward"))
    assert len(old) == 12 and [one.outcome.success for one in new] == [True] * 6
    for before, after in zip(old[::2], new, strict=True):
        difference = np.abs(before.main.all().astype(int) - after.main.all())
        assert difference.mean() < 6  # encoded once more
