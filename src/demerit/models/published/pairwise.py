"""Pairwise critics: Robo-Dopamine and VLAC. A signed percentage ("hop") per pair of moments, accumulated to progress.

    demerit score my_set --model dopamine:goal=done.png,cameras=front+left_wrist+right_wrist
    demerit score my_set --model dopamine:goals=my_successes
    demerit score my_set --model dopamine:4b,mode=forward
    demerit score my_set --model dopamine:grm-3b
    demerit score my_set --model vlac
    demerit score my_set --model vlac:path=./my-qwen3-vl-critic

The published VLAC (InternVL2) and the first Robo-Dopamine models (Qwen2.5-VL) run on transformers' own networks, exact
but not fast; a Qwen3-VL of either protocol runs on the fast engine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from demerit.data.arrays import Floats
from demerit.data.episode import Episode
from demerit.data.frames import Images, Indices, short_hash, spread
from demerit.data.reward import Reward
from demerit.data.splits import SeenEpisodes
from demerit.errors import BadEpisode, BadInput, UnknownName
from demerit.models.loading import Listing
from demerit.models.protocol import ModelCard, ShownModel
from demerit.models.published.scoring import (
    TaskGoals,
    check_at_least,
    check_choice,
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
    from demerit.models.vlm.pairwise import PairwiseCritic, PlainBackbone, PlainCritic

Hops = Sequence[float | None]
"""fractions in -1..1, None for an unreadable answer"""

FRAMES = 16
HUNDRED = 100.0
TAGGED = re.compile(r"<score>\s*([+-]?\d+(?:\.\d+)?)\s*%?\s*(?:</score>|$)")
BARE = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*%?\s*(?:</score>)?\s*")

VIEWS = ("front", "left wrist", "right wrist")
INCREMENTAL, FORWARD, BACKWARD, MEAN = "incremental", "forward", "backward", "mean"
RANGES = {INCREMENTAL: (0.0, 1.0), FORWARD: (-1.0, 1.0), BACKWARD: (0.0, 2.0), MEAN: (-1 / 3, 4 / 3)}
GOAL = "goal"
UNSCORED, GREY = "unscored", "grey"
NO_GOAL = "none: a grey picture stands for it"
BLANK = 128
"""grey level of the image that stands for a missing goal, as in Robometer's evaluation (there 224 x 224, here as large
as a frame)"""
DOPAMINE_LICENCE = "Apache-2.0 (as its hub card is quoted; not verified here)"
DOPAMINE_FAMILY = "Robo-Dopamine's GRM 2.0 is a Qwen3-VL, and the first GRM models are a Qwen2.5-VL (qwen2_5_vl)"
DOPAMINE_ALSO = "qwen2_5_vl"
DOPAMINE_VERIFIED = (
    "Verified here on random weights: prompt tokens, decoding, sums. Not verified here: the published weights, that "
    "the GRM 2.0 checkpoints are plain Qwen3-VL (public code loads them so) and the first ones plain Qwen2.5-VL, the "
    "blank picture for a missing goal; answers are decoded greedily where the authors sample at temperature 0.1."
)
DOPAMINE_ABOUT = (
    "Progress from signed hops between {frames} frames spread over the episode, mode {mode}; wants three views and a "
    "picture of the goal, and says what it really had. "
)
VLAC_LICENCE = (
    "that of the checkpoint (CC-BY-NC-SA-4.0 for the published one, as a copy of its hub card says; not verified here)"
)
VLAC_FAMILY = "the published VLAC is an InternVL2 (internvl_chat); a Qwen3-VL trained to its protocol runs too"
VLAC_ALSO = "internvl_chat"
VLAC_VERIFIED = (
    "Verified here on random weights: names, shapes, prompt tokens, logits, decoding, sums. Not verified here: the "
    "published weights. Without the authors' reference video."
)
VLAC_ABOUT = (
    "VLAC's pair critic: signed percentages between neighbours of {frames} frames spread over the "
    "episode, each a share of what remained, added up; it may fall below 0. "
)


def parse_percent(text: str) -> float | None:
    """Return a signed percentage as a fraction in -1..1; None if the answer is anything else."""
    tagged = TAGGED.findall(text)
    bare = BARE.fullmatch(text)
    number = tagged[-1] if tagged else bare.group(1) if bare else None
    return None if number is None else min(max(float(number), -HUNDRED), HUNDRED) / HUNDRED


def dopamine_step(before: float, hop: float) -> float:
    """Gain a fraction of what remains, or lose a fraction of what there is: p + (1 - p) h, or p + p h for h < 0.

    Robo-Dopamine's public code takes a negative first hop unchanged, so that progress starts below 0; here there is
    nothing to lose at the start.
    """
    return before + (1 - before) * hop if hop >= 0 else before + before * hop


def vlac_step(before: float, hop: float) -> float:
    """Gain or lose a fraction of what remains: p + (1 - p) h, also for h < 0, so it may fall below 0."""
    return before + (1 - before) * hop


def accumulate(hops: Hops, step: Callable[[float, float], float]) -> Floats:
    """Return progress at every frame, from 0 at the first; NaN from the first unreadable hop on."""
    values = [0.0]
    for hop in hops:
        values.append(float("nan") if hop is None else step(values[-1], hop))
    return np.array(values)


def _describe_unreadable(answers: Sequence[str], hops: Hops) -> str:
    """Quote the answers that could not be read; empty if all could."""
    odd = [f"hop {at}: {text!r}" for at, (text, hop) in enumerate(zip(answers, hops, strict=True), 1) if hop is None]
    if not odd:
        return ""
    more = f" and {len(odd) - 2} more" if len(odd) > 2 else ""  # noqa: PLR2004
    return f"no signed percentage in the answer to {', '.join(odd[:2])}{more}"


def _check_two_frames(episode: Episode) -> None:
    if len(episode) < 2:  # noqa: PLR2004
        raise BadEpisode(episode.id, "at least two frames to compare", len(episode))


@dataclass(frozen=True, eq=False)
class _DopamineInput:
    """The frames of an episode, the camera in each of the three views, and the images by key."""

    at: Indices
    cameras: tuple[str, ...]
    images: Mapping[Hashable, Images]
    goal: str
    """where the goal image is from"""


class Dopamine(ShownModel):
    """Robo-Dopamine: progress accumulated from hops between moments, given a start and a goal."""

    listing = Listing(
        quantity="progress",
        low=0.0,
        high=1.0,
        causal=False,
        licence="Apache-2.0, as quoted from its card",
        frames=str(FRAMES),
        extra="vlm",
        verified="random weights of the same layouts; not the published weights",
        about="Robo-Dopamine (8b, 4b, grm-3b): signed hops between frames add up; wants three views and a goal, "
        "and is shown a grey picture (128) where none is given.",
    )

    def __init__(self, options: str = "", **changes: Any) -> None:
        """Find and check the checkpoint; weights are loaded at the first episode.

        Args:
            options: `8b`, `4b` (GRM 2.0) or `grm-3b` (the first one), then name=value options, separated by commas.
            **changes: options by name: path (a folder or a hub id), revision, adapter, device, dtype; at_once (tokens
                computed together; fewer take less memory); frames; mode (incremental, forward, backward, or the mean of
                the three); cameras (front+left+right, or one for all three views; default: the main camera); goal (an
                image of the completed task), or goals (a dataset: the last frame of one success with the episode's
                instruction is the goal, and that success is not scored); no_goal (`unscored`, the default, or `grey`
                for episodes whose instruction has no success there). Without goal and goals, a grey picture (128).
        """
        opener = load_engine("dopamine", "pairwise:open_backbone")
        own = {"size": str, "mode": str, "frames": int, "cameras": str, "goal": str, "goals": str, "no_goal": str}
        settings = read_options("dopamine", options, changes, own, "size")
        self._at_once = settings.get("at_once")
        self._prompts = load_prompts("dopamine")
        checkpoints: Mapping[str, str] = self._prompts["checkpoints"]
        size = check_choice("dopamine", str(settings.get("size", "8b")), tuple(checkpoints))
        self.mode = check_choice("mode", settings.get("mode", INCREMENTAL), tuple(RANGES))
        self.frames = check_at_least("frames", settings.get("frames", FRAMES), 2)
        self._cameras = _split_cameras(settings.get("cameras", ""))
        self._goal = _read_image(settings["goal"]) if settings.get("goal") else None
        self._goal_path = settings.get("goal", "")
        self._goals = TaskGoals(settings["goals"], (*self._cameras, "")[0]) if settings.get("goals") else None
        if self._goal is not None and self._goals is not None:
            raise BadInput("dopamine", "goal=IMAGE or goals=DATASET", "both")
        self._no_goal = check_choice("no_goal", settings.get("no_goal", UNSCORED), (UNSCORED, GREY))
        shows_none = (self._goal is None and self._goals is None) or (self._goals and self._no_goal == GREY)
        if shows_none and self.mode in (BACKWARD, MEAN):
            expected = "goal=IMAGE or goals=DATASET, which every frame is compared with (and no grey picture)"
            raise BadInput(f"mode={self.mode}", expected, "none")
        path = settings.get("path") or checkpoints[size]
        self.backbone: Backbone | PlainBackbone = opener(
            path, also=DOPAMINE_ALSO, **placement(settings), other_family=DOPAMINE_FAMILY
        )
        published = {place: f"dopamine-{size}" for size, place in checkpoints.items()}
        self.card = self._card(reward_name(path, settings.get("adapter"), published, "dopamine-"))

    @property
    def seen(self) -> SeenEpisodes:
        """The successes that are shown as goals; what the weights were trained on is unknown."""
        return SeenEpisodes(complete=False) if self._goals is None else self._goals.seen

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Compare moments and accumulate; from an unreadable answer on, progress is NaN."""
        return score_each(self.card.name, episodes, self._read_images, self._score)

    @cached_property
    def _critic(self) -> PairwiseCritic | PlainCritic:
        make = load_engine("dopamine", self.backbone.critic)
        critic: PairwiseCritic | PlainCritic = make(self.backbone, self._prompts["prompt"], at_once=self._at_once)
        return critic

    def _read_images(self, episode: Episode) -> _DopamineInput:
        read_instruction(episode)
        cameras = self._cameras or (episode.main_camera,)
        for name in cameras:
            if name not in episode.views:
                raise UnknownName(f"camera in episode {episode.id!r}", name, episode.views)
        lengths = {name: len(episode.views[name]) for name in (episode.main_camera, *cameras)}
        if len(set(lengths.values())) > 1:
            raise BadEpisode(episode.id, "cameras of one length", lengths)
        _check_two_frames(episode)
        picture, source = self._find_goal(episode)
        at = spread(len(episode), self.frames)
        images: dict[Hashable, Images] = {}
        for name in dict.fromkeys(cameras):
            taken = self._resize(episode.views[name].take(at))
            images |= {(name, place): taken[place] for place in range(len(at))}
        front = images[cameras[0], 0]
        goal = np.full_like(front, BLANK) if picture is None else self._resize(picture[None])[0]
        return _DopamineInput(at, cameras if len(cameras) > 1 else cameras * len(VIEWS), {**images, GOAL: goal}, source)

    def _find_goal(self, episode: Episode) -> tuple[Images | None, str]:
        """Return the goal image and where it is from; None stands for a grey picture."""
        if self._goals is None:
            return self._goal, self._goal_path or NO_GOAL
        task = self._goals.find(episode)
        if task:
            return self._goals.image(task), self._goals.describe(task)
        if self._no_goal == UNSCORED:
            raise BadEpisode(episode.id, f"a success with its instruction in {self._goals.address}", "no goal image")
        return None, NO_GOAL

    def _resize(self, images: Images) -> Images:
        low, high = self._prompts["pixels"]
        grid_size = load_engine("dopamine", "images:grid_size")
        size = grid_size(*images.shape[1:3], factor=self.backbone.factor, low=low, high=high)
        resized: Images = load_engine("dopamine", "images:resize_frames")(images, size, "torch")
        return resized

    def _score(self, episode: Episode, inputs: _DopamineInput) -> Reward:
        modes = (INCREMENTAL, FORWARD, BACKWARD) if self.mode == MEAN else (self.mode,)
        # moment by moment through all modes, so that each image is encoded once and dropped early
        asked = [keys for moment in zip(*(_questions(inputs, mode) for mode in modes), strict=True) for keys in moment]
        answers = self._critic.answers(asked, read_instruction(episode), inputs.images)
        values, reasons, hops_of = [], [], {}
        for at, mode in enumerate(modes):
            texts = answers[at :: len(modes)]
            hops = [parse_percent(text) for text in texts]
            values.append(_progress(hops, mode))
            reasons.append(_describe_unreadable(texts, hops))
            hops_of[mode] = hops
        facts = self._given(inputs) | {"hops": hops_of}
        value: Floats = np.mean(values, axis=0)
        why = "; ".join(filter(None, reasons))
        if all(hop is None for hops in hops_of.values() for hop in hops):
            return Reward.unscored(self.card.name, episode.id, why, facts)
        return Reward(self.card.name, episode.id, inputs.at, value.astype(np.float32), None, why, facts)

    def _given(self, inputs: _DopamineInput) -> dict[str, Any]:
        front = inputs.images[inputs.cameras[0], 0]
        return {
            "camera": inputs.cameras[0],
            "views": dict(zip(VIEWS, inputs.cameras, strict=True)),
            "different views": len(set(inputs.cameras)),
            "goal image": inputs.goal,
            "start image": "the first frame, 0 by definition",
            "instruction": True,
            "frames": len(inputs.at),
            "image size": f"{front.shape[0]} x {front.shape[1]}",
            "mode": self.mode,
            "prompt": self._prompts["version"],
            **self.backbone.facts,
        }

    def _card(self, name: str) -> ModelCard:
        low, high = RANGES[self.mode]
        # the goal by its pixels: another image under the same file name is another question
        goal = "no goal image"
        if self._goal is not None:
            goal = f"goal {short_hash(repr(self._goal.shape).encode(), self._goal.tobytes())}"
        if self._goals is not None:
            goal = f"goals {self._goals.hash}, {self._no_goal} without"
        views = f"{'+'.join(self._cameras) or 'main camera'}, {goal}"
        return ModelCard(
            name=name + ("" if self.mode == INCREMENTAL else f"-{self.mode}"),
            revision=f"{self.backbone.revision} {self._prompts['version']} {views}",
            licence=DOPAMINE_LICENCE,
            quantity="progress",
            low=low,
            high=high,
            causal=False,
            comparable=True,
            frame_budget=self.frames,
            weights_hash=self.backbone.identity(),
            about=DOPAMINE_ABOUT.format(frames=self.frames, mode=self.mode) + DOPAMINE_VERIFIED,
        )


def _questions(inputs: _DopamineInput, mode: str) -> list[list[Hashable]]:
    """List the image keys of every hop: start, goal, three views before, three after."""
    front = inputs.cameras[0]
    asked: list[list[Hashable]] = []
    for place in range(1, len(inputs.at)):
        before = {INCREMENTAL: place - 1, FORWARD: 0}.get(mode)
        then: list[Hashable] = [GOAL] * len(VIEWS) if before is None else [(name, before) for name in inputs.cameras]
        asked.append([(front, 0), GOAL, *then, *((name, place) for name in inputs.cameras)])
    return asked


def _progress(hops: Hops, mode: str) -> Floats:
    if mode == INCREMENTAL:
        return accumulate(hops, dopamine_step)
    shift = 0 if mode == FORWARD else 1  # backward hops start from the goal
    return np.array([0.0, *(float("nan") if hop is None else shift + hop for hop in hops)])


def _split_cameras(cameras: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in cameras.split("+") if name.strip())
    if len(names) not in (0, 1, len(VIEWS)):
        raise BadInput("cameras", f"one camera, or {len(VIEWS)}: {'+'.join(VIEWS)}", repr(cameras))
    return names


def _read_image(path: str) -> Images:
    try:
        with Image.open(path) as opened:
            return np.array(opened.convert("RGB"))
    except (OSError, UnidentifiedImageError) as error:
        raise BadInput("goal", "a readable image", f"{path} ({error})") from error


class VLAC(ShownModel):
    """VLAC's protocol: progress accumulated from pairs of neighbouring frames."""

    listing = Listing(
        quantity="progress",
        low=None,
        high=1.0,
        causal=False,
        licence="the checkpoint's (VLAC: CC-BY-NC-SA-4.0)",
        frames=str(FRAMES),
        extra="vlm",
        verified="random weights of the same layout; not the published weights",
        about="VLAC's pair critic: signed percentages between neighbouring frames add up; InternVL2 or a Qwen3-VL.",
    )
    seen = SeenEpisodes(complete=False)

    def __init__(self, options: str = "", **changes: Any) -> None:
        """Find and check the checkpoint; weights are loaded at the first episode.

        Args:
            options: a folder or a hub id, then name=value options, separated by commas.
            **changes: options by name: path (a folder or a hub id), revision, adapter, device, dtype, frames;
                at_once (tokens computed together; fewer take less memory).
        """
        opener = load_engine("vlac", "pairwise:open_backbone")
        settings = read_options("vlac", options, changes, {"frames": int}, "path")
        self._at_once = settings.get("at_once")
        self._prompts = load_prompts("vlac")
        self.frames = check_at_least("frames", settings.get("frames", FRAMES), 2)
        path = settings.get("path") or self._prompts["checkpoint"]
        self.backbone: Backbone | PlainBackbone = opener(
            path, also=VLAC_ALSO, **placement(settings), other_family=VLAC_FAMILY
        )
        published = {self._prompts["checkpoint"]: "vlac"}
        self.card = self._card(reward_name(path, settings.get("adapter"), published, "vlac-"))

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Compare neighbours and accumulate; from an unreadable answer on, progress is NaN."""
        return score_each(self.card.name, episodes, self._read_images, self._score)

    @cached_property
    def _critic(self) -> PairwiseCritic | PlainCritic:
        make = load_engine("vlac", self.backbone.critic)
        prompt, system = self._prompts["prompt"], self._prompts["system"]
        critic: PairwiseCritic | PlainCritic = make(self.backbone, prompt, system, self._at_once)
        return critic

    def _read_images(self, episode: Episode) -> Images:
        """Resize the frames to a square, as the authors do, from any shape."""
        read_instruction(episode)
        _check_two_frames(episode)
        size = (int(self._prompts["side"]),) * 2
        frames = episode.main.take(spread(len(episode), self.frames))
        return np.stack([np.array(Image.fromarray(frame).resize(size, Image.Resampling.LANCZOS)) for frame in frames])

    def _score(self, episode: Episode, images: Images) -> Reward:
        pairs = [(at - 1, at) for at in range(1, len(images))]
        answers = self._critic.answers(pairs, read_instruction(episode), dict(enumerate(images)))
        hops = [parse_percent(text) for text in answers]
        facts = {
            "camera": episode.main_camera,
            "views": 1,
            "goal image": "none",
            "reference video": "none",
            "start image": "the first frame, 0 by definition",
            "instruction": True,
            "frames": len(images),
            "image size": f"{images.shape[1]} x {images.shape[2]}",
            "hops": hops,
            "prompt": self._prompts["version"],
            **self.backbone.facts,
        }
        why = _describe_unreadable(answers, hops)
        if all(hop is None for hop in hops):
            return Reward.unscored(self.card.name, episode.id, why, facts)
        value = accumulate(hops, vlac_step).astype(np.float32)
        return Reward(self.card.name, episode.id, spread(len(episode), self.frames), value, None, why, facts)

    def _card(self, name: str) -> ModelCard:
        return ModelCard(
            name=name,
            revision=f"{self.backbone.revision} {self._prompts['version']}",
            licence=VLAC_LICENCE,
            quantity="progress",
            low=None,
            high=1.0,
            causal=False,
            comparable=True,
            frame_budget=self.frames,
            weights_hash=self.backbone.identity(),
            about=VLAC_ABOUT.format(frames=self.frames) + VLAC_VERIFIED,
        )
