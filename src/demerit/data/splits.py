"""What must not be parted by splits: episodes that share a task, words, a video or a recording."""

from __future__ import annotations

from collections.abc import Iterator

from demerit.data.episode import Episode
from demerit.data.instructions import normalize_instruction
from demerit.errors import UnreadableVideo


class Bundles:
    """Names that belong together, found by following each to its first."""

    def __init__(self) -> None:
        """Begin with every name by itself."""
        self._above: dict[str, str] = {}

    def first(self, name: str) -> str:
        """The name that leads the bundle which a name is in."""
        above = self._above.setdefault(name, name)
        while above != self._above[above]:
            self._above[above] = self._above[self._above[above]]
            above = self._above[above]
        self._above[name] = above
        return above

    def join(self, one: str, other: str) -> None:
        """Say that two belong together, and all that belongs to either."""
        # The lesser name leads, so that the order of the episodes does not matter.
        low, high = sorted((self.first(one), self.first(other)))
        self._above[high] = low


def task_of(episode: Episode) -> str:
    """The original task: as the source names it, else the words of the instruction."""
    return episode.origin.tags.get("task") or normalize_instruction(episode.instruction)


def videos_of(episode: Episode) -> list[str]:
    """Identify the whole video behind each camera: a clip of it shows the same scene. No frame is decoded."""
    found = []
    for frames in episode.views.values():
        try:
            found.append(frames.source.identity())
        except UnreadableVideo:
            continue
    return found


def ties(episode: Episode) -> Iterator[str]:
    """What an episode shares with others that it must not be parted from; its task is first."""
    yield f"task {task_of(episode)}"
    yield f"task {normalize_instruction(episode.instruction)}"
    yield from (f"video {video}" for video in videos_of(episode))
    if episode.origin.group:
        yield f"recording {episode.origin.group}"
