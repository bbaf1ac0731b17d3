"""Robo-Dopamine: how far each hop from one moment to the next went towards the goal, added up to progress.

demerit score my_set --model dopamine:goal=done.png,cameras=front+left_wrist+right_wrist
demerit score my_set --model dopamine:4b,mode=forward
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from demerit.data.episode import Episode
from demerit.data.frames import Images, short_hash, spread
from demerit.data.reward import Reward
from demerit.errors import BadEpisode, BadInput, UnknownName
from demerit.models.listing import Listing
from demerit.models.protocol import ModelCard
from demerit.models.published.hop_values import Floats, added_up, each_by_itself, of_what_remains, unread
from demerit.models.published.naming import filed_under
from demerit.models.published.options import at_least, need_extra, one_of, placed, read_options, together
from demerit.models.published.scoring import each, told, unscored
from demerit.models.vlm.words import words

if TYPE_CHECKING:
    from demerit.models.vlm.hops import Critic

FRAMES = 16
VIEWS = ("front", "left wrist", "right wrist")
INCREMENTAL, FORWARD, BACKWARD, MEAN = "incremental", "forward", "backward", "mean"
RANGES = {INCREMENTAL: (0.0, 1.0), FORWARD: (-1.0, 1.0), BACKWARD: (0.0, 2.0), MEAN: (-1 / 3, 4 / 3)}
START, GOAL = "start", "goal"
BLANK = 128
"""a grey picture stands for a goal that nobody gave; the authors' own blank picture could not be seen from here"""
OWN = {"size": str, "mode": str, "frames": int, "cameras": str, "goal": str}
LICENCE = "Apache-2.0 (as its hub card is quoted; not verified here)"
MISSING = (
    "the first Robo-Dopamine models (GRM-3B, GRM-8B) are built on RoboBrain 2.0, a Qwen2.5-VL, which this engine has "
    "not got; the GRM 2.0 ones are built on Qwen3-VL"
)
VERIFIED = (
    "Verified here on random weights: prompt tokens, decoding, sums. Not verified here: the published weights, that "
    "the GRM 2.0 checkpoints are plain Qwen3-VL (public code loads them so), the blank picture for a missing goal; "
    "answers are decoded greedily where the authors sample at temperature 0.1."
)
ABOUT = (
    "Progress from signed hops between {frames} frames spread over the episode, mode {mode}; wants three views and a "
    "picture of the goal, and says what it really had. "
)


@dataclass(frozen=True, eq=False)
class _Look:
    """What is shown of an episode: which frames, which camera in which place, and the pictures."""

    at: Any
    cameras: tuple[str, ...]
    pictures: Mapping[Hashable, Images]


class Dopamine:
    """Progress that adds up from hops."""

    listing = Listing(
        quantity="progress",
        low=0.0,
        high=1.0,
        causal=False,
        licence="Apache-2.0, as quoted from its card",
        frames=str(FRAMES),
        extra="vlm",
        verified="random weights of the same layout; not the published weights; GRM-3B and GRM-8B are refused",
        about="Robo-Dopamine GRM 2.0 (8b, 4b): signed hops between frames add up; wants three views and a goal.",
    )

    def __init__(self, options: str = "", **changes: Any) -> None:
        """Find and check the checkpoint; weights are loaded when the first episode comes.

        Args:
            options: `8b` or `4b`, and options with = between name and value, commas between them.
            **changes: options by name: path (a folder or a hub id), revision, adapter, device, dtype; at_once (tokens
                computed together: less memory, a little slower); frames; mode (incremental, forward, backward, mean of
                the three); cameras (front+left+right, or one that stands for all three, as for the main camera by
                default); goal (a picture of the task done).
        """
        need_extra("dopamine")
        from demerit.models.vlm.backbone import Backbone  # noqa: PLC0415  torch, only now

        given = read_options("dopamine", options, changes, OWN, "size")
        self._at_once = together(given)
        self._words = words("dopamine")
        known: Mapping[str, str] = self._words["checkpoints"]
        size = one_of("dopamine", str(given.get("size", "8b")), tuple(known))
        self.mode = one_of("mode", given.get("mode", INCREMENTAL), tuple(RANGES))
        self.frames = at_least("frames", given.get("frames", FRAMES), 2)
        self._cameras = _views(given.get("cameras", ""))
        self._goal = _picture(given["goal"]) if given.get("goal") else None
        self._goal_path = given.get("goal", "")
        if self._goal is None and self.mode in (BACKWARD, MEAN):
            raise BadInput(f"mode={self.mode}", "goal=PICTURE, which every frame is compared with", "none")
        path = given.get("path") or known[size]
        self.backbone = Backbone.open(path, **placed(given), missing=MISSING)
        published = {place: f"dopamine-{each}" for each, place in known.items()}
        self.card = self._card(filed_under(path, given.get("adapter"), published, "dopamine-"))

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Compare moments and add up; from an unreadable answer on, progress is unknown."""
        return each(self.card.name, episodes, self._look, self._judged)

    @cached_property
    def _critic(self) -> Critic:
        from demerit.models.vlm.hops import Critic  # noqa: PLC0415

        return Critic(self.backbone, self._words["prompt"], at_once=self._at_once)

    def _look(self, episode: Episode) -> _Look:
        told(episode)
        cameras = self._cameras or (episode.main_camera,)
        for name in cameras:
            if name not in episode.views:
                raise UnknownName(f"camera in episode {episode.id!r}", name, episode.views)
        lengths = {name: len(episode.views[name]) for name in (episode.main_camera, *cameras)}
        if len(set(lengths.values())) > 1:
            raise BadEpisode(episode.id, "cameras of one length", lengths)
        if len(episode) < 2:  # noqa: PLR2004
            raise BadEpisode(episode.id, "at least two frames to compare", len(episode))
        at = spread(len(episode), self.frames)
        shown: dict[Hashable, Images] = {}
        for name in dict.fromkeys(cameras):
            taken = self._resized(episode.views[name].take(at))
            shown |= {(name, place): taken[place] for place in range(len(at))}
        front = shown[cameras[0], 0]
        goal = np.full_like(front, BLANK) if self._goal is None else self._resized(self._goal[None])[0]
        return _Look(at, cameras if len(cameras) > 1 else cameras * len(VIEWS), {**shown, GOAL: goal})

    def _resized(self, pictures: Images) -> Images:
        from demerit.models.vlm.images import grid_size, resized  # noqa: PLC0415

        low, high = self._words["pixels"]
        factor = self.backbone.shape.vision.factor
        return resized(pictures, grid_size(*pictures.shape[1:3], factor=factor, low=low, high=high), "torch")

    def _judged(self, episode: Episode, look: _Look) -> Reward:
        from demerit.models.vlm.hops import percent_in  # noqa: PLC0415

        modes = (INCREMENTAL, FORWARD, BACKWARD) if self.mode == MEAN else (self.mode,)
        # moment by moment through all modes, so that each picture is encoded once and soon let go
        asked = [each for moment in zip(*(_questions(look, mode) for mode in modes), strict=True) for each in moment]
        answers = self._critic.answers(asked, told(episode), look.pictures)
        values, reasons, hops_of = [], [], {}
        for at, mode in enumerate(modes):
            said = answers[at :: len(modes)]
            hops = [percent_in(text) for text in said]
            values.append(_progress(hops, mode))
            reasons.append(unread(said, hops))
            hops_of[mode] = hops
        given = self._given(look) | {"hops": hops_of}
        value: Floats = np.mean(values, axis=0)
        why = "; ".join(filter(None, reasons))
        if all(hop is None for hops in hops_of.values() for hop in hops):
            return unscored(self.card.name, episode, why, given)
        return Reward(self.card.name, episode.id, look.at, value.astype(np.float32), None, why, given)

    def _given(self, look: _Look) -> dict[str, Any]:
        front = look.pictures[look.cameras[0], 0]
        return {
            "camera": look.cameras[0],
            "views": dict(zip(VIEWS, look.cameras, strict=True)),
            "different views": len(set(look.cameras)),
            "goal image": self._goal_path or "none: a grey picture stands for it",
            "start image": "the first frame, 0 by definition",
            "instruction": True,
            "frames": len(look.at),
            "image size": f"{front.shape[0]} x {front.shape[1]}",
            "mode": self.mode,
            "prompt": self._words["version"],
            **self.backbone.facts,
        }

    def _card(self, name: str) -> ModelCard:
        low, high = RANGES[self.mode]
        goal = "no goal image" if self._goal is None else f"goal {_seen_as(self._goal)}"
        shown = f"{'+'.join(self._cameras) or 'main camera'}, {goal}"
        return ModelCard(
            name=name + ("" if self.mode == INCREMENTAL else f"-{self.mode}"),
            revision=f"{self.backbone.revision} {self._words['version']} {shown}",
            licence=LICENCE,
            quantity="progress",
            low=low,
            high=high,
            causal=False,
            comparable=True,
            frame_budget=self.frames,
            weights_hash=self.backbone.identity(),
            about=ABOUT.format(frames=self.frames, mode=self.mode) + VERIFIED,
        )


def _questions(look: _Look, mode: str) -> list[list[Hashable]]:
    """List the pictures of every hop: start, goal, three views before, three after."""
    front = look.cameras[0]
    asked: list[list[Hashable]] = []
    for place in range(1, len(look.at)):
        before = {INCREMENTAL: place - 1, FORWARD: 0}.get(mode)
        then: list[Hashable] = [GOAL] * len(VIEWS) if before is None else [(name, before) for name in look.cameras]
        asked.append([(front, 0), GOAL, *then, *((name, place) for name in look.cameras)])
    return asked


def _progress(hops: Sequence[float | None], mode: str) -> Floats:
    if mode == INCREMENTAL:
        return added_up(hops, of_what_remains)
    if mode == FORWARD:
        return each_by_itself(hops, 0.0)
    return each_by_itself([None if hop is None else 1 + hop for hop in hops], 0.0)


def _views(cameras: str) -> tuple[str, ...]:
    names = tuple(one.strip() for one in cameras.split("+") if one.strip())
    if len(names) not in (0, 1, len(VIEWS)):
        raise BadInput("cameras", f"one camera, or {len(VIEWS)}: {'+'.join(VIEWS)}", repr(cameras))
    return names


def _seen_as(picture: Images) -> str:
    """Name a picture by its pixels: another one under the same file name is another question."""
    return short_hash(repr(picture.shape).encode(), picture.tobytes())


def _picture(path: str) -> Images:
    from PIL import Image, UnidentifiedImageError  # noqa: PLC0415

    try:
        with Image.open(path) as opened:
            return np.array(opened.convert("RGB"))
    except (OSError, UnidentifiedImageError) as error:
        raise BadInput("goal", "a picture that can be opened", f"{path} ({error})") from error
