"""A person as the reward of RewardEnv, and the sparse rewards of models beside it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from demerit.data.episode import Episode
from demerit.errors import BadInput, BadReward
from demerit.models.grader import ChatGrader
from demerit.use.gym import PersonModel, RewardEnv, RewardVectorEnv, ask_in_terminal, relabel
from fakes.chat_server import ScriptedServer
from fakes.lamp_env import EpisodeLamp, LampEnv

UP = np.array([1], np.float32)


def play(env: Any, steps: int = 3) -> list[Any]:
    env.reset()
    return [env.step(UP) for _ in range(steps)]


def lamp(limit: int = 3, **options: Any) -> Any:
    return TimeLimit(LampEnv(**options), limit)


def bright(episode: Episode) -> bool:
    return bool(episode.main.all()[-1].mean() > 100)


def test_a_person_is_asked_once_when_an_episode_ends(tmp_path: Path) -> None:
    asked: list[Episode] = []

    def ask(episode: Episode) -> bool:
        asked.append(episode)
        return bright(episode)

    person = PersonModel(ask, log=tmp_path / "answers.jsonl", by="anna")
    env = RewardEnv(lamp(), person, "light it", mode="final")
    steps = play(env)
    assert [step[1] for step in steps] == [0.0, 0.0, 1.0] and len(asked) == 1
    assert asked[0].instruction == "light it" and asked[0].main.all()[:, 0, 0, 0].tolist() == [0, 51, 102, 153]
    told = steps[-1][4]["demerit"]
    assert (told["value"], told["verdict"], told["rewards"]) == (1.0, "success", (0.0, 0.0, 1.0))
    assert [step[1] for step in play(RewardEnv(lamp(1), person, "light it", mode="final"), 1)] == [0.0]
    assert [reward.given["source"] for reward in person.rewards] == ["human"] * 2
    assert [reward.verdict.success for reward in person.rewards] == [True, False]
    lines = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [(line["answer"], line["by"], line["frames"], line["verdict"]) for line in lines] == [
        (1.0, "anna", 4, "success"),
        (0.0, "anna", 2, "failure"),
    ]


def test_no_answer_is_no_reward_and_an_interruption_keeps_the_answers(tmp_path: Path) -> None:
    said: Iterator[Any] = iter([0.25, None, KeyboardInterrupt])

    def ask(episode: Episode) -> Any:
        answer = next(said)
        if answer is KeyboardInterrupt:
            raise KeyboardInterrupt
        return answer

    person = PersonModel(ask, log=tmp_path / "answers.jsonl")
    env = RewardEnv(lamp(), person, "light it", mode="final")
    last = play(env)[-1]
    assert last[1] == 0.25 and last[4]["demerit"]["verdict"] == "unknown"  # a number has no threshold
    with pytest.raises(BadReward, match="no answer"):
        play(env)
    with pytest.raises(KeyboardInterrupt):
        play(env)
    lines = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [line["answer"] for line in lines] == [0.25, None]
    assert [reward.scored for reward in person.rewards] == [True, False]


def test_the_terminal_asks_until_it_has_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = iter(["maybe", "7", "Y", "n", "0.5", ""])
    monkeypatch.setattr("builtins.input", lambda question: next(typed))
    episode = Episode.from_array(np.zeros((2, 4, 4, 3), np.uint8), "light it")
    assert [ask_in_terminal(episode) for _ in range(4)] == [True, False, 0.5, None]

    def closed(question: str) -> str:
        raise EOFError

    monkeypatch.setattr("builtins.input", closed)
    assert ask_in_terminal(episode) is None


def test_a_person_works_wherever_a_model_does() -> None:
    env = SyncVectorEnv([lambda: LampEnv(ends_at=2), lambda: LampEnv(ends_at=2, start=100)])
    vector = RewardVectorEnv(env, PersonModel(bright), "light it", mode="final")
    vector.reset()
    assert [vector.step(np.stack([UP, UP]))[1].tolist() for _ in range(2)] == [[0.0, 0.0], [1.0, 1.0]]
    frames = np.stack([np.full((4, 4, 3), level, np.uint8) for level in (0, 60, 90)])
    assert relabel(frames, PersonModel(bright), "light it", mode="final").tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "options", [{}, {"mode": "potential"}, {"mode": "final", "success": 0.5}, {"mode": "final", "delay": 1}]
)
def test_what_would_ask_at_every_step_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="asked once"):
        RewardEnv(lamp(), PersonModel(bright), "light it", **options)


def test_answers_and_logs_are_checked(tmp_path: Path) -> None:
    for wrong in ("yes", 2, float("nan")):
        with pytest.raises(BadInput, match="answer"):
            play(RewardEnv(lamp(), PersonModel(lambda episode, said=wrong: said), "", mode="final"))  # type: ignore[misc]
    with pytest.raises(BadInput, match="log"):
        PersonModel(log=tmp_path / "nowhere" / "answers.jsonl")


def test_sparse_rewards_of_a_person_a_grader_and_a_model_of_whole_episodes(tmp_path: Path) -> None:
    """The three rewards of RoboReward, section 5.2: 0 before the end, then 0 or 1, or a grade."""
    with ScriptedServer(lambda request: "It is half bright. ANSWER: 3") as server:
        grader = ChatGrader(url=server.url, model="simulated", cache=str(tmp_path / "answers.sqlite"))
        for model, last in ((PersonModel(bright), 1.0), (grader, 3.0), (EpisodeLamp(), 76.5 / 255)):
            rewards = [step[1] for step in play(RewardEnv(lamp(), model, "light it", mode="final"))]
            assert rewards == [0.0, 0.0, pytest.approx(last)]
        grader.close()
