"""VLAC's protocol: pairs of frames, a signed percentage for each, added up to progress.

The published checkpoint is an InternVL2, which the engine here has not got; a Qwen3-VL that was trained to answer in
the same way runs.

    demerit score my_set --model vlac:path=./my-qwen3-vl-critic
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from demerit.data.episode import Episode
from demerit.data.frames import Images, spread
from demerit.data.reward import Reward
from demerit.errors import BadEpisode, BadInput
from demerit.models.listing import Listing
from demerit.models.protocol import ModelCard
from demerit.models.published.hop_values import added_up, of_the_rest, unread
from demerit.models.published.naming import filed_under
from demerit.models.published.options import at_least, need_extra, placed, read_options, together
from demerit.models.published.scoring import each, told, unscored
from demerit.models.vlm.words import words

if TYPE_CHECKING:
    from demerit.models.vlm.hops import Critic

FRAMES = 16
OWN = {"frames": int}
LICENCE = "that of the checkpoint (MIT for the published one, as its repository says; not verified here)"
MISSING = (
    "the published VLAC is an InternVL2 (InternViT vision tower, InternLM2 language model, pictures in tiles of 448 "
    "pixels), and none of the three is in this engine"
)
VERIFIED = (
    "Verified here on random weights of a Qwen3-VL: prompt tokens, decoding, sums. Not verified here: any published "
    "weights; InternVL2 checkpoints, the published VLAC among them, are refused. Without the authors' reference video."
)
ABOUT = (
    "VLAC's pair critic on a Qwen3-VL: signed percentages between neighbours of {frames} frames spread over the "
    "episode, each a share of what remained, added up; it may fall below 0. "
)


class VLAC:
    """Progress that adds up from pairs."""

    listing = Listing(
        quantity="progress",
        low=None,
        high=1.0,
        causal=False,
        licence="the checkpoint's (VLAC: MIT)",
        frames=str(FRAMES),
        extra="vlm",
        verified="the protocol, on a Qwen3-VL with random weights; the published InternVL2 checkpoint is refused",
        about="VLAC's pair critic, for a Qwen3-VL trained to its protocol (path=); the published InternVL2 is refused.",
    )

    def __init__(self, options: str = "", **changes: Any) -> None:
        """Find and check the checkpoint; weights are loaded when the first episode comes.

        Args:
            options: a folder or a hub id, and options with = between name and value, commas between them.
            **changes: options by name: path (a folder or a hub id), revision, adapter, device, dtype, frames;
                at_once (tokens computed together: less memory, a little slower).
        """
        need_extra("vlac")
        from demerit.models.vlm.backbone import Backbone  # noqa: PLC0415  torch, only now

        given = read_options("vlac", options, changes, OWN, "path")
        self._at_once = together(given)
        self._words = words("vlac")
        self.frames = at_least("frames", given.get("frames", FRAMES), 2)
        path = given.get("path")
        if not path or path == self._words["checkpoint"]:
            got = f"{path or 'none'} ({MISSING})"
            raise BadInput("vlac", "path=CHECKPOINT of the Qwen3-VL family, trained to VLAC's protocol", got)
        self.backbone = Backbone.open(path, **placed(given), missing=MISSING)
        self.card = self._card(filed_under(path, given.get("adapter"), {}, "vlac-"))

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Compare neighbours and add up; from an unreadable answer on, progress is unknown."""
        return each(self.card.name, episodes, self._look, self._judged)

    @cached_property
    def _critic(self) -> Critic:
        from demerit.models.vlm.hops import Critic  # noqa: PLC0415

        return Critic(self.backbone, self._words["prompt"], self._words["system"], self._at_once)

    def _look(self, episode: Episode) -> Images:
        told(episode)
        if len(episode) < 2:  # noqa: PLR2004
            raise BadEpisode(episode.id, "at least two frames to compare", len(episode))
        return _squared(episode.main.take(spread(len(episode), self.frames)), int(self._words["side"]))

    def _judged(self, episode: Episode, pictures: Images) -> Reward:
        from demerit.models.vlm.hops import percent_in  # noqa: PLC0415

        pairs = [(at - 1, at) for at in range(1, len(pictures))]
        said = self._critic.answers(pairs, told(episode), dict(enumerate(pictures)))
        hops = [percent_in(text) for text in said]
        given = {
            "camera": episode.main_camera,
            "views": 1,
            "goal image": "none",
            "reference video": "none",
            "start image": "the first frame, 0 by definition",
            "instruction": True,
            "frames": len(pictures),
            "image size": f"{pictures.shape[1]} x {pictures.shape[2]}",
            "hops": hops,
            "prompt": self._words["version"],
            **self.backbone.facts,
        }
        why = unread(said, hops)
        if all(hop is None for hop in hops):
            return unscored(self.card.name, episode, why, given)
        value = added_up(hops, of_the_rest).astype(np.float32)
        return Reward(self.card.name, episode.id, spread(len(episode), self.frames), value, None, why, given)

    def _card(self, name: str) -> ModelCard:
        return ModelCard(
            name=name,
            revision=f"{self.backbone.revision} {self._words['version']}",
            licence=LICENCE,
            quantity="progress",
            low=None,
            high=1.0,
            causal=False,
            comparable=True,
            frame_budget=self.frames,
            weights_hash=self.backbone.identity(),
            about=ABOUT.format(frames=self.frames) + VERIFIED,
        )


def _squared(frames: Images, side: int) -> Images:
    """Resize to a square, as the authors do, whatever the shape was."""
    from PIL import Image  # noqa: PLC0415

    small = [Image.fromarray(frame).resize((side, side), Image.Resampling.LANCZOS) for frame in frames]
    return np.stack([np.array(one) for one in small])
