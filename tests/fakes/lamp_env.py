"""A lamp: actions make it brighter, its frames show how bright it is, and a model reads the brightness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from demerit.data.episode import Episode
from demerit.data.reward import Reward
from demerit.models.protocol import LiveFrame, LiveReward, example_card


class LampEnv(gymnasium.Env[Any, Any]):
    """Brightness 0 to 255; an action of -1 to 1 adds up to 51. Its own reward is 7."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, ends_at: int | None = None, render_mode: str | None = "rgb_array", start: int = 0) -> None:
        self.render_mode, self.ends_at, self.start = render_mode, ends_at, start
        self.action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        image = gymnasium.spaces.Box(0, 255, (4, 4, 3), np.uint8)
        level = gymnasium.spaces.Box(0, 1, (1,), np.float32)
        self.observation_space = gymnasium.spaces.Dict({"image": image, "level": level})
        self.renders = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.bright, self.t = self.start, 0
        return self._observation(), {"t": 0}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.bright = int(np.clip(self.bright + round(51 * float(action[0])), 0, 255))
        return self._observation(), 7.0, self.t == self.ends_at, False, {"t": self.t}

    def render(self) -> Any:
        self.renders += 1
        return np.full((4, 4, 3), self.bright, np.uint8)

    def _observation(self) -> dict[str, Any]:
        image = np.full((4, 4, 3), self.bright, np.uint8)
        return {"image": image, "level": np.array([self.bright / 255], np.float32)}


class LampModel:
    """The brightness as progress, minus a little for every frame before: it depends on all frames shown."""

    def __init__(
        self, gives_success: bool = False, familiarity: float | None = None, nan_at: int | None = None
    ) -> None:
        self.card = example_card(name="lamp")
        self.gives_success, self.familiarity, self.nan_at = gives_success, familiarity, nan_at
        self.started: list[str] = []

    def start(self, instruction: str) -> LampEpisode:
        self.started.append(instruction)
        return LampEpisode(self)

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        found = []
        for episode in episodes:
            live = [LampEpisode(self).step(frame) for frame in episode.main.all()]
            at = np.arange(len(live), dtype=np.int32)
            found.append(Reward("lamp", episode.id, at, np.array([one.value for one in live], np.float32)))
        return found


class LampEpisode:
    """A live episode of the model."""

    def __init__(self, model: LampModel) -> None:
        self.model, self.seen = model, 0

    def step(self, frame: LiveFrame) -> LiveReward:
        image = next(iter(frame.values())) if isinstance(frame, Mapping) else frame
        value = float(np.asarray(image).mean()) / 255 * 0.999**self.seen
        if self.seen == self.model.nan_at:
            value = float("nan")
        self.seen += 1
        return LiveReward(value, value**2 if self.model.gives_success else None, self.model.familiarity)


class EpisodeLamp:
    """A model that scores whole episodes only: the mean brightness of all frames."""

    def __init__(self) -> None:
        self.card = example_card(name="episode-lamp", causal=False, frame_budget=1)
        self.asked = 0

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        self.asked += 1
        return [
            Reward(
                "episode-lamp",
                one.id,
                np.array([len(one) - 1]),
                np.array([one.main.all().mean() / 255], np.float32),
            )
            for one in episodes
        ]
