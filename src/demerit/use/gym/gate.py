"""A safety gate for Gymnasium: an episode ends when a rule over its signals is broken."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy.typing as npt

from demerit.errors import BadInput, BadReward
from demerit.models.rule import LiveRule, Rule

RULE_INFO = "demerit_rule"
"""the key in `info`: robustness, and whether the rule is broken"""


class RuleEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment watched by a rule: where the rule is broken, the episode terminates with a fixed reward."""

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        rule: str | Path | Rule,
        signals: Callable[[Any, dict[str, Any]], Mapping[str, npt.ArrayLike]],
        instruction: str = "",
        reward: float = 0.0,
        step_seconds: float | None = None,
    ) -> None:
        """Wrap an environment, outside of `RewardEnv`.

        Args:
            env: the environment.
            rule: a rule or its file, with a formula that holds from the start: `never(force > 20 N)`.
            signals: takes the observation and the info; returns the signals that the rule reads.
            instruction: the task, for a rule that is restricted to some.
            reward: of the step that breaks the rule, in place of the environment's.
            step_seconds: the duration of a step, for a formula with windows.
        """
        super().__init__(env)
        self.rule = rule if isinstance(rule, Rule) else Rule(rule)
        self.signals, self.instruction = signals, instruction
        self.reward, self.step_seconds = reward, step_seconds
        self._live: LiveRule | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset; the rule must hold at the first moment."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._live = self.rule.watch(self.instruction)
        found = self._check(self._live, observation, info)
        if found["broken"]:
            expected = f"that {self.rule.config.formula!r} holds at the start (a gate has no goals)"
            raise BadInput(self.rule.card.name, expected, f"robustness {found['robustness']:g}")
        return observation, {**info, RULE_INFO: found}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step; the episode terminates if the rule is broken."""
        if self._live is None:
            raise BadInput("step", "reset() before the first step", "none")
        observation, reward, terminated, truncated, info = self.env.step(action)
        found = self._check(self._live, observation, info)
        if found["broken"]:
            reward, terminated = self.reward, True
        return observation, float(reward), terminated, truncated, {**info, RULE_INFO: found}

    def _check(self, live: LiveRule, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        seconds = None if self.step_seconds is None else len(live.times) * self.step_seconds
        answer = live.step(self.signals(observation, info), seconds)
        if math.isnan(answer.value):
            raise BadReward(self.rule.card.name, "live", "a signal is not a number, or no window has begun")
        return {"robustness": answer.value, "broken": answer.success != 1}
