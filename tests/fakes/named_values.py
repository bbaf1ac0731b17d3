"""A model that reads its answer off the instruction, e.g. `lift the cup 0.3` or `lift the cup unscored`."""

from collections.abc import Sequence

import numpy as np

from demerit.data.episode import Episode
from demerit.data.reward import Reward
from demerit.models.protocol import example_card


class Named:
    """Rises evenly to the number that ends the instruction; from 0.5 on it is a success, below 0.1 unfamiliar."""

    card = example_card(name="named", sees_pixels=False)

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        return [self._score(one) for one in episodes]

    def _score(self, one: Episode) -> Reward:
        word = one.instruction.split()[-1]
        if word == "unscored":
            return Reward.unscored("named", one.id, "the sensor slept")
        value = float(word)
        given = {"succeeds": value >= 0.5, "familiarity": 0.0 if value < 0.1 else 0.5}
        return Reward("named", one.id, np.arange(4), np.linspace(0, value, 4), given=given)


class Alone(Named):
    """The same numbers, which cannot be compared between episodes."""

    card = example_card(name="alone", sees_pixels=False, comparable=False)
