"""Whether the splits of a corpus share anything, and whether a held-out set is in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from demerit.data.episode import Episode
from demerit.data.instructions import normalize_instruction
from demerit.data.splits import task_of
from demerit.evaluate.benchmarks.leaks import KINDS, Leak, find_leaks, sentences
from demerit.training.corpus.gathering import opened
from demerit.training.corpus.recipe import HeldOut

MOST_NAMED = 3
OTHER_WORDS = ("counterfactual", "wrong-instruction")
"""edits after which the words are not those of the video's own task"""


@dataclass(frozen=True)
class Overlap:
    """What a corpus shares with a held-out set."""

    name: str
    episodes: int
    """in the held-out set"""
    videos: tuple[str, ...]
    """ids of the corpus's episodes whose video is in it"""
    tasks: tuple[str, ...]
    """words that are a task of both"""

    def __str__(self) -> str:
        """Say it in a sentence."""
        if not self.videos and not self.tasks:
            return f"Nothing is shared with {self.name} ({self.episodes} episodes)."
        said = [f"{len(self.videos)} episodes whose video is in it{_some(self.videos)}"] if self.videos else []
        said += [f"{len(self.tasks)} tasks by their words{_some(self.tasks)}"] if self.tasks else []
        return f"Shared with {self.name} ({self.episodes} episodes): {' and '.join(said)}."


@dataclass(frozen=True)
class LeakReport:
    """What was found."""

    leaks: tuple[str, ...] = ()
    """sentences: a task, video, recording or original in two splits, a held-out video"""
    remarks: tuple[str, ...] = ()
    """sentences: commands of one split that are a task or a command of another; held-out tasks"""
    overlaps: tuple[Overlap, ...] = ()

    def facts(self) -> dict[str, object]:
        """Write it as JSON can hold it."""
        overlaps = [
            {"name": one.name, "episodes": one.episodes, "videos": list(one.videos), "tasks": list(one.tasks)}
            for one in self.overlaps
        ]
        return {"leaks": list(self.leaks), "remarks": list(self.remarks), "held_out": overlaps}


def check(episodes: Iterable[Episode], held_out: Sequence[HeldOut] = ()) -> LeakReport:
    """Look for everything that two splits share, and at the held-out sets. No frame is decoded."""
    all_of_them = list(episodes)
    own_words = [one for one in all_of_them if not one.edits or one.edits[-1].name not in OTHER_WORDS]
    tasks = _tasks(own_words)
    found = find_leaks(all_of_them)
    shown = [leak for leak in found if leak.kind != "task"]
    of_tasks = {episode for leak in tasks for episode in leak.episodes}
    words = [leak for leak in found if leak.kind == "task" and not of_tasks >= set(leak.episodes)]
    overlaps = tuple(_overlap(one, own_words) for one in held_out)
    remarks = [_said_twice(words)] if words else []
    doubles = _doubles(own_words)
    if doubles:
        told = f"{len(doubles)} episodes are in the corpus twice, the same video under the same words"
        remarks.append(f"{told}{_some(doubles)}.")
    return LeakReport(
        leaks=(*sentences([*tasks, *shown]), *(str(one) for one in overlaps if one.videos)),
        remarks=(*remarks, *(str(one) for one in overlaps if not one.videos)),
        overlaps=overlaps,
    )


def _tasks(episodes: Iterable[Episode]) -> list[Leak]:
    """Tasks in two splits, by their names and by their words."""
    by_name: dict[str, dict[str, Episode]] = defaultdict(dict)
    for one in episodes:
        if one.origin.split:
            for name in (task_of(one), normalize_instruction(one.instruction)):
                by_name[name][one.id] = one
    found = []
    for name, those in by_name.items():
        splits = tuple(sorted({one.origin.split for one in those.values()}))
        if len(splits) > 1:
            found.append(Leak("task", name, splits, tuple(sorted(those))))
    return found


def _doubles(episodes: Iterable[Episode]) -> list[str]:
    """Ids of originals that are another one's double: a folder that two sources read, or a copy."""
    seen: set[str] = set()
    found = []
    for one in episodes:
        if not one.edits and len(KINDS["video"](one)) == len(one.views):
            fingerprint = one.fingerprint()
            if fingerprint in seen:
                found.append(one.id)
            seen.add(fingerprint)
    return found


def _said_twice(words: Sequence[Leak]) -> str:
    named = _some([leak.what for leak in words])
    count = sum(len(leak.episodes) for leak in words)
    through = "through commands written for other videos"
    return f"{len(words)} wordings stand in more than one split {through}{named}: {count} episodes, no video or task."


def _overlap(held_out: HeldOut, episodes: Iterable[Episode]) -> Overlap:
    videos: set[str] = set()
    tasks: set[str] = set()
    count = 0
    dataset = opened(held_out)
    for one in dataset:
        count += 1
        videos.update(KINDS["video"](one))
        tasks.add(normalize_instruction(one.instruction))
    shared, words = set(), set()
    for one in episodes:
        if not videos.isdisjoint(KINDS["video"](one)):
            shared.add(one.id)
        if normalize_instruction(one.instruction) in tasks - {""}:
            words.add(normalize_instruction(one.instruction))
    return Overlap(held_out.name or dataset.name, count, tuple(sorted(shared)), tuple(sorted(words)))


def _some(names: Sequence[str]) -> str:
    more = " ..." if len(names) > MOST_NAMED else ""
    return f" ({'; '.join(names[:MOST_NAMED])}{more})" if names else ""
