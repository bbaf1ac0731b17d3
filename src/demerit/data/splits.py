"""Splits that never part what belongs together, and the check that they did not: the one place for both.

Episodes belong together when they share a task, an instruction, a video or a recording (`origin.group`). Anything
made from an episode (a clip, a counterfactual) belongs to it too.

    normalize_split  what a split's name means: train, validation or test
    SplitAssigner    gives every episode a split, whole bundles at a time
    find_leaks       tasks, wordings, videos, recordings and originals that stand in two splits
    find_overlap     what a dataset shares with a held-out set
    check_leaks      both of these and duplicates, as sentences

No frame is decoded here.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from itertools import pairwise
from typing import Literal

from demerit.data.episode import Episode
from demerit.data.frames import list_recordings
from demerit.data.instructions import normalize_instruction
from demerit.errors import BadInput, UnreadableVideo

Split = Literal["train", "validation", "test"]
USE_TEST_SPLIT = "--use-test-split"
MOST_NAMED = 3
REWRITTEN_BY = ("counterfactual", "wrong-instruction")
"""edits after which the instruction is not that of the video's own task"""
_EVALUATION_NAMES = frozenset(
    "test tests testing testset tested eval evals evaluation evaluate evalset heldout holdout unseen ood benchmark "
    "challenge".split()
)
_EVALUATION_PAIRS = frozenset({("held", "out"), ("hold", "out"), ("out", "of"), ("never", "seen")})
_VALIDATION_NAMES = frozenset("val vals valid validation validate dev devel".split())


def task_of(episode: Episode) -> str:
    """The task: the tag `task` where the source has one, else the normalized instruction."""
    return episode.origin.tags.get("task") or normalize_instruction(episode.instruction)


def videos_of(episode: Episode) -> list[str]:
    """Identities of the whole videos behind the cameras; unreadable ones are skipped.

    A clip has its original's, a splice those of both originals.
    """
    found = []
    for frames in episode.views.values():
        for recording in list_recordings(frames.source):
            try:
                found.append(recording.identity())
            except UnreadableVideo:
                continue
    return found


def normalize_split(split: str) -> Split:
    """Return what a split's name means, the same for every command and format.

    `val`, `valid`, `dev`, `eval` and `val_seen` are validation; other names for evaluation (`is_evaluation_split`) are
    test; any other name, and none, is train.
    """
    words = _split_words(split)
    if words in (["eval"], ["evaluation"]):
        return "validation"
    if is_evaluation_split(split):
        return "test"
    return "train" if _VALIDATION_NAMES.isdisjoint(words) else "validation"


def same_split(one: str, other: str) -> bool:
    """Whether two names are equal, or two words for one split: `val` and `validation`, `training` and `train`."""
    alike = _plain_split(one) == _plain_split(other)
    return one == other or (alike and _plain_split(one) != "")


def _plain_split(split: str) -> str:
    words = _split_words(split)
    meaning = normalize_split(split)
    return meaning if len(words) == 1 and (meaning != "train" or words[0] in ("train", "training")) else ""


def is_evaluation_split(split: str) -> bool:
    """Whether a split's name marks it as for evaluation: `test`, `Test_2`, `held_out`, `valTest`, `eval-unseen` ...

    Validation splits and splits without a name are not. A name that may be either counts as one.
    """
    words = _split_words(split)
    return not _EVALUATION_NAMES.isdisjoint(words) or not _EVALUATION_PAIRS.isdisjoint(pairwise(words))


def _split_words(split: str) -> list[str]:
    return re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", split).casefold())


def seed_of(*facts: object) -> int:
    """Turn facts into 63 bits that look random and are the same everywhere."""
    text = "\x1f".join(map(str, facts))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


class SplitAssigner:
    """Assigns splits: add every episode, then `assign`."""

    def __init__(self) -> None:
        """Start empty."""
        self._ties: dict[str, list[str]] = {}
        self._datasets: dict[str, str] = {}

    def add(self, episode: Episode) -> None:
        """Remember what an episode must not be parted from."""
        self._ties[episode.id] = list(dict.fromkeys(_ties(episode)))
        self._datasets[episode.id] = episode.origin.dataset

    def assign(
        self,
        shares: Mapping[str, float],
        seed: int,
        *,
        only: Collection[str] | None = None,
        kept: Mapping[str, str] | None = None,
    ) -> dict[str, str]:
        """Return a split for every episode id. The order in which episodes were added does not matter.

        Bundles of each dataset are dealt in a random order, each to the split that is furthest behind its share.

        Args:
            shares: splits and their shares of each dataset's episodes, as near as whole bundles allow.
            seed: of the order.
            only: ids to use; default: all that were added.
            kept: ids with splits that must stay; everything tied to them goes to the same split.
        """
        kept = kept or {}
        ids = sorted(self._ties if only is None else {id for id in (*only, *kept) if id in self._ties})
        members = bundle_ids({id: self._ties[id] for id in ids})
        by_dataset: dict[str, dict[str, int]] = defaultdict(dict)
        for name, bundle in members.items():
            by_dataset[min(self._datasets[id] for id in bundle)][name] = len(bundle)
        found: dict[str, str] = {}
        for sizes in by_dataset.values():
            for name, split in deal(sizes, shares, seed).items():
                fixed = sorted({kept[id] for id in members[name] if kept.get(id)})
                if len(fixed) > 1:
                    expected = "originals that share no task, video or recording across splits"
                    raise BadInput("splits", expected, f"{members[name][0]!r} in {' and '.join(fixed)}")
                found |= dict.fromkeys(members[name], fixed[0] if fixed else split)
        return found


def deal(sizes: Mapping[str, int], shares: Mapping[str, float], seed: int) -> dict[str, str]:
    """Deal bundles to splits in a random order, each to the split that is furthest behind its share.

    With s the size of the bundle, d what was dealt before and g what a split got, it goes where share * (d + s) - g is
    largest: a bundle of most of the episodes goes to the largest split, and the others come out near their shares.
    """
    total = sum(shares.values())
    got = dict.fromkeys(shares, 0)
    found: dict[str, str] = {}
    dealt = 0
    for bundle in sorted(sizes, key=lambda name: (seed_of(seed, "split", name), name)):
        dealt += sizes[bundle]
        split = max(shares, key=lambda name: shares[name] / total * dealt - got[name])
        got[split] += sizes[bundle]
        found[bundle] = split
    return found


def _ties(episode: Episode) -> Iterator[str]:
    yield f"task {task_of(episode)}"
    yield f"task {normalize_instruction(episode.instruction)}"
    yield from (f"video {video}" for video in videos_of(episode))
    if episode.origin.group:
        yield f"recording {episode.origin.group}"


def bundle_ids(ties: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Group ids that are tied to each other, directly or through others, under the least of their ties."""
    above: dict[str, str] = {}

    def root(tie: str) -> str:
        while above.setdefault(tie, tie) != tie:
            above[tie] = above[above[tie]]
            tie = above[tie]
        return tie

    for first, *others in ties.values():
        for other in others:
            low, high = sorted((root(first), root(other)))
            above[high] = low
    bundles: dict[str, list[str]] = defaultdict(list)
    for id, (first, *_) in ties.items():
        bundles[root(first)].append(id)
    return bundles


@dataclass(frozen=True)
class Leak:
    """Something that stands in more than one split."""

    kind: str
    """'task', 'wording', 'video', 'recording' or 'original'"""
    what: str
    splits: tuple[str, ...]
    episodes: tuple[str, ...]
    """ids of all episodes concerned"""

    def __str__(self) -> str:
        """Describe it in one line."""
        return f"the {self.kind} {self.what!r} stands in {', '.join(self.splits)} ({len(self.episodes)} episodes)"


@dataclass
class _Places:
    """Where one name was found."""

    splits: set[str] = field(default_factory=set)
    ids: set[str] = field(default_factory=set)
    first: str = ""


def find_leaks(episodes: Iterable[Episode]) -> list[Leak]:
    """Find every task, wording, video, recording and original that stands in two splits.

    An episode made from another one counts as that one. An instruction that an edit wrote (a counterfactual) is a
    wording, not a task: a wording in two splits shares no video and no task. Episodes without a split are ignored.
    """
    found: dict[str, dict[str, _Places]] = {kind: {} for kind in ("task", "wording", "video", "recording", "original")}
    for episode in episodes:
        if not episode.origin.split:
            continue
        for kind, name in _names(episode):
            places = found[kind].setdefault(name, _Places(first=episode.id))
            places.splits.add(episode.origin.split)
            places.ids.add(episode.id)
    for name, places in found["wording"].items():
        if name in found["task"]:
            places.splits |= found["task"][name].splits
            places.ids |= found["task"][name].ids
    leaks = []
    for kind, by_name in found.items():
        for name, places in by_name.items():
            if len(places.splits) > 1:
                what = places.first if kind == "video" else name
                leaks.append(Leak(kind, what, tuple(sorted(places.splits)), tuple(sorted(places.ids))))
    known = {leak.what for leak in leaks if leak.kind == "task"}
    return [leak for leak in leaks if leak.kind != "wording" or leak.what not in known]


def describe_leaks(leaks: Iterable[Leak]) -> list[str]:
    """Describe each kind of leak, with the first few named."""
    by_kind: dict[str, list[Leak]] = {}
    for leak in leaks:
        by_kind.setdefault(leak.kind, []).append(leak)
    lines = []
    for kind, those in by_kind.items():
        splits = ", ".join(sorted({split for leak in those for split in leak.splits}))
        count = sum(len(leak.episodes) for leak in those)
        noun = f"{kind}s" if len(those) > 1 else kind
        named = name_some([repr(leak.what) for leak in those])
        lines.append(
            f"Splits leak: {len(those)} {noun} stand in more than one of {splits} ({count} episodes), e.g. "
            f"{named}; a model trained on one split has seen part of the other."
        )
    return lines


@dataclass(frozen=True)
class Overlap:
    """What a dataset shares with a held-out set."""

    name: str
    episodes: int
    """in the held-out set"""
    videos: tuple[str, ...]
    """ids of the dataset's episodes whose video is in the held-out set"""
    tasks: tuple[str, ...]
    """normalized instructions that both have"""

    def __str__(self) -> str:
        """Describe it in one line."""
        parts = [f"{len(self.videos)} episodes by video ({name_some(self.videos)})"] if self.videos else []
        parts += [f"{len(self.tasks)} tasks by instruction ({name_some(self.tasks)})"] if self.tasks else []
        return f"Shared with {self.name} ({self.episodes} episodes): {' and '.join(parts) or 'nothing'}."


def find_overlap(name: str, held_out: Iterable[Episode], episodes: Iterable[Episode]) -> Overlap:
    """Find the videos and instructions of a held-out set among episodes. Videos are compared by their bytes."""
    videos: set[str] = set()
    tasks: set[str] = set()
    count = 0
    for episode in held_out:
        count += 1
        videos.update(videos_of(episode))
        tasks.add(normalize_instruction(episode.instruction))
    shared: set[str] = set()
    words: set[str] = set()
    for episode in episodes:
        if not videos.isdisjoint(videos_of(episode)):
            shared.add(episode.id)
        if has_own_instruction(episode):
            words.add(normalize_instruction(episode.instruction))
    return Overlap(name, count, tuple(sorted(shared)), tuple(sorted((words & tasks) - {""})))


@dataclass(frozen=True)
class LeakReport:
    """The result of a leak check, as sentences."""

    leaks: tuple[str, ...] = ()
    """a task, video, recording or original in two splits; a held-out video"""
    remarks: tuple[str, ...] = ()
    """wordings in two splits, held-out tasks, duplicates"""
    overlaps: tuple[Overlap, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """Return it as JSON values."""
        return {"leaks": list(self.leaks), "remarks": list(self.remarks), "held_out": list(map(asdict, self.overlaps))}


def check_leaks(episodes: Sequence[Episode], held_out: Iterable[tuple[str, Iterable[Episode]]] = ()) -> LeakReport:
    """Find everything that two splits share, duplicates, and what is shared with held-out sets (name, episodes)."""
    leaks = find_leaks(episodes)
    wordings = [leak.what for leak in leaks if leak.kind == "wording"]
    remarks = []
    if wordings:
        named = name_some(wordings)
        remarks.append(f"{len(wordings)} commands for one split's videos also occur in another split ({named}).")
    doubles = _find_doubles(episodes)
    if doubles:
        remarks.append(f"{len(doubles)} episodes repeat the video and instruction of another ({name_some(doubles)}).")
    overlaps = tuple(find_overlap(name, those, episodes) for name, those in held_out)
    grave = describe_leaks(leak for leak in leaks if leak.kind != "wording")
    return LeakReport(
        (*grave, *(str(overlap) for overlap in overlaps if overlap.videos)),
        (*remarks, *(str(overlap) for overlap in overlaps if not overlap.videos)),
        overlaps,
    )


def _find_doubles(episodes: Iterable[Episode]) -> list[str]:
    """Ids of unedited episodes that repeat an earlier one."""
    seen: set[str] = set()
    found = []
    for episode in episodes:
        if not episode.edits and len(videos_of(episode)) == len(episode.views):
            fingerprint = episode.fingerprint()
            if fingerprint in seen:
                found.append(episode.id)
            seen.add(fingerprint)
    return found


def has_own_instruction(episode: Episode) -> bool:
    """Whether the instruction is that of the video's own task; no edit replaced it."""
    return not episode.edits or episode.edits[-1].name not in REWRITTEN_BY


def name_some(names: Sequence[str]) -> str:
    """List the first few names and how many more there are."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return "; ".join(names[:MOST_NAMED]) + more


def _names(episode: Episode) -> Iterator[tuple[str, str]]:
    """Under which names an episode may be found in another split."""
    words = normalize_instruction(episode.instruction)
    if has_own_instruction(episode):
        yield from (("task", name) for name in {task_of(episode): None, words: None} if name)
    elif words:
        yield "wording", words
    yield from (("video", video) for video in videos_of(episode))
    if episode.origin.group:
        yield "recording", episode.origin.group
    yield "original", episode.origin.parent or episode.id  # the original itself may be in a split as well
