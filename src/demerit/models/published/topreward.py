"""TOPReward: how likely any Qwen3-VL finds it that the video so far completes the task; nothing is trained.

demerit score my_set --model topreward
demerit score my_set --model topreward:path=Qwen/Qwen3-VL-4B-Instruct,frames=32
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from demerit.data.episode import Episode
from demerit.data.frames import spread
from demerit.data.reward import Reward
from demerit.models.by_time import TimedClip
from demerit.models.loading import Listing
from demerit.models.protocol import ModelCard, ShownModel
from demerit.models.published.scoring import (
    NON_FINITE,
    check_at_least,
    load_engine,
    placement,
    read_instruction,
    read_options,
    reward_name,
    score_each,
)
from demerit.models.vlm.prompt import load_prompts

if TYPE_CHECKING:
    from demerit.models.vlm.backbone import Backbone
    from demerit.models.vlm.prefixes import PrefixScorer

FRAMES = 16
OWN = {"frames": int}
LICENCE = "that of the network (Apache-2.0 for Qwen3-VL, as its hub card says; not verified here)"
VERIFIED = (
    "Verified here on random weights: the values are those of a whole forward pass of transformers for each beginning. "
    "Not verified here: any published weights, and the authors' figures; their code shows frames of its own choosing "
    "and scales each episode from 0 to 1, which is not done here, as it would make every episode reach 1."
)
ABOUT = (
    "The raw log-probability of the answer 'True' after each of {frames} frames spread over the episode, to whether "
    "the video so far completes the task. Each value has seen only the frames up to its own; which frames those are "
    "depends on the episode's length. "
)


class TOPReward(ShownModel):
    """The log-probability that the task is done, after each frame."""

    listing = Listing(
        quantity="log-probability of success",
        low=None,
        high=0.0,
        causal=False,
        licence="the network's (Qwen3-VL: Apache-2.0)",
        frames=str(FRAMES),
        extra="vlm",
        verified="random weights of the same layout; not the published weights",
        about="Log-probability of 'True' on beginnings of the video, by any Qwen3-VL; raw, comparable, untrained.",
    )

    def __init__(self, options: str = "", **changes: Any) -> None:
        """Find and check the network; weights are loaded at the first episode.

        Args:
            options: a folder or a hub id, then name=value options, separated by commas.
            **changes: options by name: path (a folder or a hub id), revision, adapter, device, dtype, frames;
                at_once (tokens computed together; fewer take less memory).
        """
        opener = load_engine("topreward", "backbone:Backbone")
        settings = read_options("topreward", options, changes, OWN, "path")
        self._at_once = settings.get("at_once")
        self._prompts = load_prompts("topreward")
        self.frames = check_at_least("frames", settings.get("frames", FRAMES), 1)
        path = settings.get("path") or self._prompts["checkpoint"]
        self.backbone: Backbone = opener.open(path, **placement(settings))
        published = {self._prompts["checkpoint"]: "topreward"}
        self.card = self._card(reward_name(path, settings.get("adapter"), published, "topreward-"))

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Score the prefix up to each of the frames looked at."""
        return score_each(self.card.name, episodes, self._clip, self._score)

    @cached_property
    def engine(self) -> PrefixScorer:
        """The network and its question."""
        make: type[PrefixScorer] = load_engine("topreward", "prefixes:PrefixScorer")
        return make(self.backbone, self._prompts, self._at_once)

    def _clip(self, episode: Episode) -> TimedClip:
        read_instruction(episode)
        at = spread(len(episode), self.frames)
        return TimedClip(episode.main.take(at), episode.main.times()[at])

    def _score(self, episode: Episode, clip: TimedClip) -> Reward:
        value = self.engine.log_probabilities(clip, read_instruction(episode))
        height, width = self.engine.size(clip)
        facts = {
            "camera": episode.main_camera,
            "instruction": True,
            "frames": len(clip),
            "seconds": "as recorded",
            "image size": f"{height} x {width}",
            "prompt": self._prompts["version"],
            **self.backbone.facts,
        }
        why = "" if np.isfinite(value).all() else NON_FINITE
        value = np.where(np.isfinite(value), value, np.nan)
        at = spread(len(episode), self.frames)
        return Reward(self.card.name, episode.id, at, value.astype(np.float32), None, why, facts)

    def _card(self, name: str) -> ModelCard:
        return ModelCard(
            name=name,
            revision=f"{self.backbone.revision} {self._prompts['version']}",
            licence=LICENCE,
            quantity="log-probability of success",
            low=None,
            high=0.0,
            causal=False,
            comparable=True,
            frame_budget=self.frames,
            weights_hash=self.backbone.identity(),
            about=ABOUT.format(frames=self.frames) + VERIFIED,
        )
