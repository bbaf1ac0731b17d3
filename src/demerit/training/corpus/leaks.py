"""The leak check of a corpus: what its splits share, and what it shares with held-out sets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from demerit.data.episode import Episode
from demerit.data.splits import (
    Overlap,
    describe_leaks,
    find_leaks,
    find_overlap,
    has_own_instruction,
    name_some,
    videos_of,
)
from demerit.training.corpus.gathering import opened
from demerit.training.corpus.recipe import HeldOut


@dataclass(frozen=True)
class LeakReport:
    """What was found."""

    leaks: tuple[str, ...] = ()
    """sentences: a task, video, recording or original in two splits; a held-out video"""
    remarks: tuple[str, ...] = ()
    """sentences: wordings in two splits, held-out tasks, duplicates"""
    overlaps: tuple[Overlap, ...] = ()

    def facts(self) -> dict[str, object]:
        """Return it as JSON values."""
        return {"leaks": list(self.leaks), "remarks": list(self.remarks), "held_out": list(map(asdict, self.overlaps))}


def check_leaks(episodes: Iterable[Episode], held_out: Sequence[HeldOut] = ()) -> LeakReport:
    """Look for everything that two splits share, and at the held-out sets. No frame is decoded."""
    episodes = list(episodes)
    leaks = find_leaks(episodes)
    wordings = [leak for leak in leaks if leak.kind == "wording"]
    remarks = []
    if wordings:
        named = name_some([leak.what for leak in wordings])
        remarks.append(f"{len(wordings)} commands for one split's videos also occur in another split ({named}).")
    doubles = _find_doubles(episodes)
    if doubles:
        remarks.append(f"{len(doubles)} episodes repeat the video and instruction of another ({name_some(doubles)}).")
    overlaps = []
    for part in held_out:
        dataset = opened(part)
        overlaps.append(find_overlap(part.name or dataset.name, dataset, episodes))
    return LeakReport(
        (
            *describe_leaks(leak for leak in leaks if leak.kind != "wording"),
            *(str(one) for one in overlaps if one.videos),
        ),
        (*remarks, *(str(one) for one in overlaps if not one.videos)),
        tuple(overlaps),
    )


def _find_doubles(episodes: Iterable[Episode]) -> list[str]:
    """Ids of unedited episodes that repeat an earlier one."""
    seen: set[str] = set()
    found = []
    for episode in episodes:
        if not episode.edits and has_own_instruction(episode) and len(videos_of(episode)) == len(episode.views):
            fingerprint = episode.fingerprint()
            if fingerprint in seen:
                found.append(episode.id)
            seen.add(fingerprint)
    return found
