"""Goal images by task: the last frame of one success of each instruction in a dataset.

The successes that are used leave every evaluation: they are unscored, and `bench` leaves them out for all models.
"""

from __future__ import annotations

from functools import cached_property

from demerit.data.episode import Episode
from demerit.data.formats import open_dataset
from demerit.data.frames import Images, short_hash
from demerit.data.instructions import normalize_instruction
from demerit.data.labels import most_trusted
from demerit.data.seen import SeenEpisodes, mark_episode
from demerit.errors import BadEpisode, BadInput, UnknownName

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
    judged = most_trusted(one for one in episode.outcomes if one.success is not None and one.source != "model")
    return judged is not None and bool(judged.success)
