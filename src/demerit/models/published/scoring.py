"""Options and names of the models that run on the Qwen3-VL engine.

    roboreward:4b,path=./my-checkpoint,device=cuda:1,dtype=bfloat16

Rewards are stored under the name of the checkpoint that was asked for:

    robometer                              robometer              a published checkpoint: its published name
    robometer:path=runs/ra/model           ra                     a folder: its own name, or its parent's
    robometer:path=someone/Robometer-ft    someone-Robometer-ft   another one on the hub
    roboreward:8b,adapter=runs/mine/model  roboreward-8b+mine     with an adapter

Goal images come from a dataset: the last frame of one success of each instruction. The successes that are used leave
every evaluation: they are unscored, and `bench` leaves them out for all models.

Episodes are scored one by one: the next one is decoded while the device works on this one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from demerit.data.episode import Episode, most_trusted, normalize_instruction, safe_name
from demerit.data.formats import open_dataset
from demerit.data.frames import Images, short_hash
from demerit.data.reward import Reward
from demerit.data.splits import SeenEpisodes, mark_episode
from demerit.errors import BadEpisode, BadInput, DemeritError, MissingExtra, NonFiniteOutput, UnknownName
from demerit.models import MODELS
from demerit.models.loading import LOCAL
from demerit.models.vlm.hub import hub_id
from demerit.models.vlm.prompt import is_plain_text
from demerit.registry import load_attribute

PLACEMENT: Mapping[str, Callable[[str], Any]] = {"revision": str, "adapter": str, "device": str, "dtype": str}
"""which weights, and where they run"""
SHARED: Mapping[str, Callable[[str], Any]] = {"path": str, **PLACEMENT, "at_once": int}
NEEDED = ("torch", "transformers", "safetensors", "tokenizers")
OUTPUT = "model"
"""the folder that every training writes; its parent has the name that the user chose"""
GENERIC = re.compile(r"(checkpoint|step|epoch)s?[-_]?\d*|ckpt|best|last|latest|final|merged|adapter|weights")
"""generic folder names; the parent's name is put first"""


def load_engine(model: str, attribute: str) -> Any:
    """Import `module:attribute` of demerit.models.vlm; raise MissingExtra if the extra is not installed."""
    try:
        for module in NEEDED:
            load_attribute(f"{module}:__name__", f"the model {model!r}")
        return load_attribute(f"demerit.models.vlm.{attribute}", f"the model {model!r}")
    except (ModuleNotFoundError, MissingExtra) as missing:
        raise MissingExtra(f"The model {model!r}", "vlm") from missing


def read_options(
    model: str, text: str, changes: Mapping[str, Any], own: Mapping[str, Callable[[str], Any]], word: str
) -> dict[str, Any]:
    """Read a model's options.

    Args:
        model: the model's name, for errors.
        text: what stands after the colon: `4b,device=cpu`.
        changes: options by name; they override the text.
        own: the model's own options and how to parse each.
        word: the option that a word without = sets.
    """
    kinds = {**SHARED, **own}
    settings: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            name, value = word, part
        if name not in kinds:
            raise UnknownName(f"option of {model}", name, kinds)
        if name in settings:
            raise BadInput(f"{model}:{name}", "one value", f"two ({settings[name]!r} and {value!r})")
        try:
            settings[name] = kinds[name](value)
        except ValueError as error:
            raise BadInput(f"{model}:{name}", f"a value of type {kinds[name].__name__}", repr(value)) from error
    unknown = sorted(set(changes) - set(kinds))
    if unknown:
        raise UnknownName(f"option of {model}", unknown[0], kinds)
    settings |= {name: value for name, value in changes.items() if value is not None}
    if "at_once" in settings:
        check_at_least("at_once", settings["at_once"], 1)
    return settings


def placement(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that choose the weights and the device."""
    return {name: given.get(name) for name in PLACEMENT}


def check_choice(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """Return the value if it is allowed."""
    if value not in allowed:
        raise BadInput(name, f"one of {', '.join(allowed)}", repr(value))
    return value


def check_at_least(name: str, value: int, least: int) -> int:
    """Return the number if it is large enough."""
    if value < least:
        raise BadInput(name, f"a number >= {least}", value)
    return value


def reward_name(place: str, adapter: str | None, published: Mapping[str, str], prefix: str = "") -> str:
    """Return the name to store rewards under.

    Args:
        place: a folder or a hub id.
        adapter: a folder or a hub id.
        published: names of published checkpoints by their hub ids.
        prefix: put before the name of any other checkpoint.
    """
    id = _hub_id(place)
    if id is not None and id in published:
        name = published[id]
    else:
        name = prefix + _checkpoint_name(place)
        if name.lower() in {taken.lower() for taken in (*published.values(), *MODELS)}:
            name += LOCAL
    return name if not adapter else f"{name}+{_checkpoint_name(adapter)}"


def _checkpoint_name(place: str) -> str:
    id = _hub_id(place)
    if id:
        owner, _, name = id.partition("/")
        return safe_name(name if name.lower().startswith(owner.lower()) else f"{owner}-{name}")
    folder = Path(os.path.abspath(Path(place).expanduser()))
    if folder.name == OUTPUT and folder.parent.name:
        return safe_name(folder.parent.name)
    if GENERIC.fullmatch(folder.name) and folder.parent.name:
        return safe_name(f"{folder.parent.name}-{folder.name}")
    return safe_name(folder.name)


def _hub_id(place: str) -> str | None:
    """Return the hub id, also of a folder in the hub's cache; None for any other folder."""
    folder = Path(place).expanduser()
    return hub_id(folder) if folder.is_dir() else place


USED = "one used as goal image"


class TaskGoals:
    """The first success of each instruction in a dataset, by a label that is not a model's."""

    def __init__(self, address: str, camera: str = "") -> None:
        """Read labels; no frame is decoded. `camera` is the one that is shown (default: an episode's main camera)."""
        self.address, self._camera = address, camera
        self.by_task: dict[str, Episode] = {}
        for episode in open_dataset(address):
            task = normalize_instruction(episode.instruction)
            if task and task not in self.by_task and len(episode) and _is_success(episode):
                self.by_task[task] = episode
        if not self.by_task:
            raise BadInput("goals", "a dataset with successes that have an instruction", f"none in {address}")
        self._images: dict[str, Images] = {}

    @cached_property
    def seen(self) -> SeenEpisodes:
        """The successes that are used."""
        return SeenEpisodes(SeenEpisodes.of(self.by_task.values()).marks, complete=False, are_goals=True)

    @property
    def hash(self) -> str:
        """Hash of what is shown for which instruction."""
        marks = (f"{task} {' '.join(mark_episode(episode))}" for task, episode in sorted(self.by_task.items()))
        return short_hash(*(mark.encode() for mark in marks))

    def find(self, episode: Episode) -> str:
        """Return the task whose goal an episode has, empty if it has none; refuse an episode that is a goal itself."""
        if self.seen.has(episode):
            raise BadEpisode(episode.id, "an episode that is not shown as goal", USED)
        task = normalize_instruction(episode.instruction)
        return task if task in self.by_task else ""

    def image(self, task: str) -> Images:
        """Return the (height, width, 3) last frame of the task's success."""
        if task not in self._images:
            success = self.by_task[task]
            camera = self._camera or success.main_camera
            if camera not in success.views:
                raise UnknownName(f"camera in the goal episode {success.id!r}", camera, success.views)
            self._images[task] = success.views[camera].take([len(success) - 1])[0]
        return self._images[task]

    def describe(self, task: str) -> str:
        """Say which picture it is."""
        return f"the last frame of {self.by_task[task].id} in {self.address}"


def _is_success(episode: Episode) -> bool:
    label = most_trusted(label for label in episode.labels if label.success is not None and label.source != "model")
    return label is not None and bool(label.success)


NON_FINITE = str(NonFiniteOutput())
"""why a value is missing where the network's output is NaN"""
Made = TypeVar("Made")
Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class ScoringFailure:
    """Why an episode could not be decoded or answered."""

    reason: str


def prefetch(items: Iterable[Item], make: Callable[[Item], Made]) -> Iterator[tuple[Item, Made | ScoringFailure]]:
    """Yield each item with what `make` returns, computed one ahead in the background."""
    with ThreadPoolExecutor(1) as pool:
        waiting: tuple[Item, Future[Made | ScoringFailure]] | None = None
        for item in items:
            following = (item, pool.submit(_make_or_fail, make, item))
            if waiting is not None:
                yield waiting[0], waiting[1].result()
            waiting = following
        if waiting is not None:
            yield waiting[0], waiting[1].result()


def _make_or_fail(make: Callable[[Item], Made], item: Item) -> Made | ScoringFailure:
    try:
        return make(item)
    except DemeritError as error:
        return ScoringFailure(str(error))


def score_each(
    name: str, episodes: Sequence[Episode], make: Callable[[Episode], Made], score: Callable[[Episode, Made], Reward]
) -> list[Reward]:
    """Score episodes one by one; an error leaves only its own episode unscored."""
    rewards = []
    for episode, inputs in prefetch(episodes, make):
        try:
            if isinstance(inputs, ScoringFailure):
                reward = Reward.unscored(name, episode.id, inputs.reason)
            else:
                reward = score(episode, inputs)
        except DemeritError as error:
            reward = Reward.unscored(name, episode.id, str(error))
        rewards.append(reward)
    return rewards


def read_instruction(episode: Episode) -> str:
    """Return the instruction; raise BadEpisode without one, with a special token in it, or without frames."""
    instruction = episode.instruction.strip()
    if not instruction:
        raise BadEpisode(episode.id, "an instruction", "none")
    if not is_plain_text(instruction):
        raise BadEpisode(episode.id, "an instruction without special tokens", repr(instruction))
    if not len(episode):
        raise BadEpisode(episode.id, "at least one frame", "none")
    return instruction
