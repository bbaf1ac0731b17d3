"""A person as the reward: asked about every episode when it ends, as a model would be."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from demerit.data.episode import Episode
from demerit.data.reward import Reward
from demerit.errors import BadInput
from demerit.models.protocol import ModelCard, ShownModel

PersonAnswer = bool | float | None
"""success or failure, progress from 0 to 1, or None: the person does not say"""
ANSWERS: dict[str, PersonAnswer] = {"y": True, "n": False, "": None}


def ask_in_terminal(episode: Episode) -> PersonAnswer:
    """Ask in the terminal: `y`, `n`, a number from 0 to 1, or nothing."""
    question = f"{episode.instruction!r}, {len(episode)} frames: success? [y/n, 0 to 1, Enter = no answer] "
    while True:
        try:
            word = input(question).strip().lower()
        except EOFError:  # nobody is there
            return None
        if word in ANSWERS:
            return ANSWERS[word]
        try:
            return _check_answer(float(word))
        except (ValueError, BadInput):
            print("Expected y, n or a number from 0 to 1.")


class PersonModel(ShownModel):
    """Asks a person: 1 for a success, 0 for a failure, or their progress; an episode without an answer is unscored.

    It scores whole episodes, so `RewardEnv` needs `mode="final"`, and asks once, when an episode ends.
    """

    card = ModelCard(
        name="person",
        revision="1",
        licence="",
        quantity="progress as a person sees it",
        low=0.0,
        high=1.0,
        causal=False,
        comparable=True,
        about="A person's answer at the end of an episode: 1 for a success, 0 for a failure. Nothing is computed.",
    )

    def __init__(
        self, ask: Callable[[Episode], PersonAnswer] = ask_in_terminal, log: str | Path | None = None, by: str = ""
    ) -> None:
        """Choose how to ask.

        Args:
            ask: gets the episode, with its frames and instruction; returns the answer.
            log: a file to which every answer is appended at once, as a line of JSON.
            by: who answers.
        """
        if log is not None and not Path(log).absolute().parent.is_dir():
            raise BadInput("log", "a file in a folder that exists", log)
        self.ask, self.log, self.by = ask, None if log is None else Path(log), by
        self.rewards: list[Reward] = []
        """every answer so far"""

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Ask about each episode."""
        return [self._ask(episode) for episode in episodes]

    def _ask(self, episode: Episode) -> Reward:
        reply = self.ask(episode)
        answer: PersonAnswer = reply.item() if isinstance(reply, np.generic) else reply
        facts = {"source": "human", "by": self.by, "instruction": episode.instruction, "frames": len(episode)}
        if answer is None:
            reward = Reward.unscored(self.card.name, episode.id, "the person gave no answer", facts)
        else:
            value = _check_answer(answer)
            facts |= {"succeeds": answer} if isinstance(answer, bool) else {}
            reward = Reward(self.card.name, episode.id, np.array([len(episode) - 1]), np.array([value]), given=facts)
        self.rewards.append(reward)
        if self.log is not None:
            line = {"answer": None if answer is None else reward.final, **reward.verdict.as_dict(), **facts}
            with self.log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        return reward


def _check_answer(answer: bool | float) -> float:
    if not isinstance(answer, bool | int | float) or not 0 <= answer <= 1:  # NaN is not
        raise BadInput("a person's answer", "true, false, a number from 0 to 1, or None", repr(answer))
    return float(answer)
