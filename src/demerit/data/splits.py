"""Splits that never part what belongs together, and the check that they did not: the one place for both.

Episodes belong together when they share a task, an instruction, a video or a recording (`origin.group`). Instructions
that differ by typos are one. Anything made from an episode (a clip, a counterfactual) belongs to it too.

    normalize_split  what a split's name means: train, validation or test
    group_typos      instructions that are the same but for typos
    SplitAssigner    gives every episode a split, whole bundles at a time
    find_leaks       tasks, wordings, videos, recordings and originals that stand in two splits
    find_overlap     what a dataset shares with a held-out set
    check_leaks      both of these and duplicates, as sentences
    SeenEpisodes     what a model learned from, so that it is not measured on it unnoticed
    LabelSelection   what a model may learn from

A model that learned has an attribute `seen`, and keeps it beside its weights:

    seen.json    {"format": 1, "complete": true, "marks": "<base64 of the sorted marks>"}

A mark is eight bytes of a hash: of a whole video's content (see `videos_of`), or of the task, behaviour, setting and
seed that a simulated episode follows from. Ids, paths, instructions and labels do not count, so copies, renamed files,
imports and edits of an episode have its marks. A re-encoded video has another mark. No frame is decoded here.
"""

from __future__ import annotations

import base64
import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, Literal

from demerit.data.episode import (
    NOT_A_MODEL,
    Episode,
    SourceCounts,
    check_sources,
    count_episodes,
    differ_by_typo,
    is_typo,
    normalize_instruction,
    plain_words,
    select_labels,
    typed_words,
)
from demerit.data.files import plain, read_json
from demerit.data.frames import list_recordings, short_hash
from demerit.errors import BadInput, UnreadableVideo

Split = Literal["train", "validation", "test"]
USE_TEST_SPLIT = "--use-test-split"
TO_CHECK = "demerit annotate DATASET --tasks verify"
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
    videos = []
    for frames in episode.views.values():
        for recording in list_recordings(frames.source):
            try:
                videos.append(recording.identity())
            except UnreadableVideo:
                continue
    return videos


def recording_of(episode: Episode) -> str:
    """Return what counts as one for a guarantee: the id of an edited episode's original, or its own.

    A retrieved moment has an original too, but is another attempt.
    """
    return (episode.edits and episode.origin.parent) or episode.id


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
        self._instructions: dict[str, str] = {}
        self._datasets: dict[str, str] = {}

    def add(self, episode: Episode) -> None:
        """Remember what an episode must not be parted from."""
        self._ties[episode.id] = list(dict.fromkeys(_ties(episode)))
        self._instructions[episode.id] = normalize_instruction(episode.instruction)
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
        spelled = group_typos(self._instructions[id] for id in ids)
        members = bundle_ids({id: [*self._ties[id], f"task {spelled[self._instructions[id]]}"] for id in ids})
        by_dataset: dict[str, dict[str, int]] = defaultdict(dict)
        for name, bundle in members.items():
            by_dataset[min(self._datasets[id] for id in bundle)][name] = len(bundle)
        assignment: dict[str, str] = {}
        for sizes in by_dataset.values():
            for name, split in deal(sizes, shares, seed).items():
                fixed = sorted({kept[id] for id in members[name] if kept.get(id)})
                if len(fixed) > 1:
                    expected = "originals that share no task, video or recording across splits"
                    raise BadInput("splits", expected, f"{members[name][0]!r} in {' and '.join(fixed)}")
                assignment |= dict.fromkeys(members[name], fixed[0] if fixed else split)
        return assignment


def deal(sizes: Mapping[str, int], shares: Mapping[str, float], seed: int) -> dict[str, str]:
    """Deal bundles to splits in a random order, each to the split that is furthest behind its share.

    With s the size of the bundle, d what was dealt before and g what a split got, it goes where share * (d + s) - g is
    largest: a bundle of most of the episodes goes to the largest split, and the others come out near their shares.
    """
    total = sum(shares.values())
    totals = dict.fromkeys(shares, 0)
    splits: dict[str, str] = {}
    dealt = 0
    for bundle in sorted(sizes, key=lambda name: (seed_of(seed, "split", name), name)):
        dealt += sizes[bundle]
        split = max(shares, key=lambda name: shares[name] / total * dealt - totals[name])
        totals[split] += sizes[bundle]
        splits[bundle] = split
    return splits


def _ties(episode: Episode) -> Iterator[str]:
    yield f"task {task_of(episode)}"
    yield f"task {normalize_instruction(episode.instruction)}"
    yield from (f"video {video}" for video in videos_of(episode))
    if episode.origin.group:
        yield f"recording {episode.origin.group}"


def group_typos(instructions: Iterable[str]) -> dict[str, str]:
    """Map normalized instructions that differ by typos, directly or through others, to the least of them.

    Words that may be typos of each other are found by leaving out a letter, and only instructions that agree in such
    words are compared, so thousands of instructions take a second.
    """
    texts = sorted(set(instructions))
    words = {word for text in texts for word in typed_words(text)}
    shortened: dict[str, set[str]] = defaultdict(set)
    for word in words:
        for shorter in (word, *(word[:place] + word[place + 1 :] for place in range(len(word)))):
            shortened[shorter].add(word)
    spelled = _name_groups(words, (pair for those in shortened.values() for pair in combinations(those, 2)), is_typo)
    alike: dict[object, list[str]] = defaultdict(list)
    for text in texts:
        alike[tuple(spelled[word] for word in typed_words(text))].append(text)
        alike["".join(plain_words(text))].append(text)
    return _name_groups(texts, (pair for those in alike.values() for pair in combinations(those, 2)), differ_by_typo)


def _name_groups(
    names: Iterable[str], pairs: Iterable[tuple[str, str]], are_tied: Callable[[str, str], bool]
) -> dict[str, str]:
    """Map names to the least name that they are tied to, directly or through others."""
    ties = {name: [name] for name in names}
    for name, other in pairs:
        if are_tied(name, other):
            ties[name].append(other)
    return {name: least for least, group in bundle_ids(ties).items() for name in group}


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


def find_leaks(episodes: Iterable[Episode]) -> list[Leak]:
    """Find every task, wording, video, recording and original that stands in two splits.

    An episode made from another one counts as that one. Instructions that differ by typos are one. An instruction that
    an edit wrote (a counterfactual) is a wording, not a task: a wording in two splits shares no video and no task.
    Episodes without a split are ignored.
    """
    places: dict[str, dict[str, list[tuple[str, str]]]]
    places = {kind: defaultdict(list) for kind in ("task", "wording", "video", "recording", "original")}
    texts: set[str] = set()
    for episode in episodes:
        if episode.origin.split:
            texts.add(normalize_instruction(episode.instruction))
            for kind, name in _names(episode):
                places[kind][name].append((episode.origin.split, episode.id))
    spelled = _list_spellings(texts)
    for kind in ("task", "wording"):
        joined: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for name, episodes_with_it in places[kind].items():
            joined[spelled.get(name, name)] += episodes_with_it
        places[kind] = joined
    for name, episodes_with_it in places["wording"].items():
        episodes_with_it.extend(places["task"].get(name, []))
    leaks = []
    for kind, by_name in places.items():
        for name, episodes_with_it in by_name.items():
            splits, ids = (tuple(sorted(set(values))) for values in zip(*episodes_with_it, strict=True))
            if len(splits) > 1:
                leaks.append(Leak(kind, episodes_with_it[0][1] if kind == "video" else name, splits, ids))
    tasks = {leak.what for leak in leaks if leak.kind == "task"}
    return [leak for leak in leaks if leak.kind != "wording" or leak.what not in tasks]


def _list_spellings(instructions: Iterable[str]) -> dict[str, str]:
    """Map instructions to themselves and all that differ from them by typos: `open the drawer / open the drawr`."""
    least = group_typos(instructions)
    groups: dict[str, list[str]] = defaultdict(list)
    for text, name in least.items():
        groups[name].append(text)
    return {text: " / ".join(groups[name]) for text, name in least.items()}


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
        examples = name_some([repr(leak.what) for leak in those])
        lines.append(
            f"Splits leak: {len(those)} {noun} stand in more than one of {splits} ({count} episodes), e.g. "
            f"{examples}; a model trained on one split has seen part of the other."
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
    """the dataset's normalized instructions that both have, but for typos"""

    def __str__(self) -> str:
        """Describe it in one line."""
        parts = [f"{len(self.videos)} episodes by video ({name_some(self.videos)})"] if self.videos else []
        parts += [f"{len(self.tasks)} tasks by instruction ({name_some(self.tasks)})"] if self.tasks else []
        return f"Shared with {self.name} ({self.episodes} episodes): {' and '.join(parts) or 'nothing'}."


def find_overlap(name: str, held_out: Iterable[Episode], episodes: Iterable[Episode]) -> Overlap:
    """Find the videos and instructions of a held-out set among episodes.

    Videos are compared by their bytes; instructions that differ by typos are one.
    """
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
    spelled = group_typos(words | tasks)
    spellings = {spelled[task] for task in tasks}
    both = (word for word in words if word and spelled[word] in spellings)
    return Overlap(name, count, tuple(sorted(shared)), tuple(sorted(both)))


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
        return {"leaks": list(self.leaks), "remarks": list(self.remarks), "held_out": plain(self.overlaps)}


def check_leaks(episodes: Sequence[Episode], held_out: Iterable[tuple[str, Iterable[Episode]]] = ()) -> LeakReport:
    """Find everything that two splits share, duplicates, and what is shared with held-out sets (name, episodes)."""
    leaks = find_leaks(episodes)
    wordings = [leak.what for leak in leaks if leak.kind == "wording"]
    remarks = []
    if wordings:
        examples = name_some(wordings)
        remarks.append(f"{len(wordings)} commands for one split's videos also occur in another split ({examples}).")
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
    doubles = []
    for episode in episodes:
        if not episode.edits and len(videos_of(episode)) == len(episode.views):
            fingerprint = episode.fingerprint()
            if fingerprint in seen:
                doubles.append(episode.id)
            seen.add(fingerprint)
    return doubles


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


# What a model learned from

SEEN = "seen.json"
FORMAT = 1
EXPECTED = "a record of seen episodes (copy the model again)"
MARK_BYTES = 8
SIMULATED = ("task", "behaviour", "setting", "seed")
"""tags of a simulated episode, which follows from them"""


@dataclass(frozen=True)
class SeenEpisodes:
    """The episodes that a model learned from."""

    marks: frozenset[str] = frozenset()
    """16 hexadecimal digits each"""
    complete: bool = True
    """False: it also learned from episodes that were not recorded"""
    are_goals: bool = False
    """they are not training data: it is shown their last frames as goals"""

    @classmethod
    def of(cls, episodes: Iterable[Episode]) -> SeenEpisodes:
        """Record episodes."""
        return cls(frozenset(mark for episode in episodes for mark in mark_episode(episode)))

    @classmethod
    def from_hashes(cls, hashes: Iterable[str], complete: bool = True) -> SeenEpisodes:
        """Take hexadecimal hashes of 8 bytes or more, which are shortened."""
        return cls(frozenset(text[: 2 * MARK_BYTES] for text in hashes), complete)

    @classmethod
    def read(cls, path: Path) -> SeenEpisodes:
        """Read a file; without it, what the model learned from is unknown."""
        if not path.is_file():
            return cls(complete=False)
        return cls.from_dict(read_json(path, EXPECTED), str(path))

    @classmethod
    def from_dict(cls, facts: dict[str, Any], where: str) -> SeenEpisodes:
        """Take what `as_dict` returned; `where` is for messages."""
        try:
            marks = base64.b64decode(facts["marks"], validate=True)
            if facts["format"] != FORMAT or len(marks) % MARK_BYTES:
                raise ValueError(f"format {facts['format']}, {len(marks)} bytes of marks")
            return cls(_split_marks(marks), facts["complete"] is True)
        except (ValueError, KeyError, TypeError) as error:
            raise BadInput(where, EXPECTED, error) from error

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        marks = base64.b64encode(bytes.fromhex("".join(sorted(self.marks)))).decode()
        return {"format": FORMAT, "complete": self.complete, "marks": marks}

    def content(self) -> bytes:
        """Return what `read` reads."""
        return (json.dumps(self.as_dict(), indent=1) + "\n").encode()

    def has(self, episode: Episode) -> bool:
        """Whether an episode, or what it was made from, is among them."""
        return bool(self.marks) and not self.marks.isdisjoint(mark_episode(episode))

    def __or__(self, other: SeenEpisodes) -> SeenEpisodes:
        goals = self.are_goals and other.are_goals
        return SeenEpisodes(self.marks | other.marks, self.complete and other.complete, goals)

    def __repr__(self) -> str:
        return f"SeenEpisodes({len(self.marks)} marks{'' if self.complete else ', and others not recorded'})"


def mark_episode(episode: Episode) -> list[str]:
    """Return the marks of an episode: one per video, and one if it was simulated."""
    tags = episode.origin.tags
    simulated = [hash_simulated(*(tags[name] for name in SIMULATED))] if all(name in tags for name in SIMULATED) else []
    return [mark[: 2 * MARK_BYTES] for mark in (*videos_of(episode), *simulated)]


def hash_simulated(task: str, behaviour: str, setting: str, seed: int | str) -> str:
    """Return the hash of a simulated episode, whatever its image size and encoding."""
    return short_hash("/".join(["simulated", task, behaviour, setting, str(seed)]).encode())


def seen_by(model: object) -> SeenEpisodes:
    """Return what a model or network learned from; nothing if it does not say."""
    record = getattr(model, "seen", None)
    return record if isinstance(record, SeenEpisodes) else SeenEpisodes()


def _split_marks(marks: bytes) -> frozenset[str]:
    return frozenset(marks[start : start + MARK_BYTES].hex() for start in range(0, len(marks), MARK_BYTES))


@dataclass
class LabelSelection:
    """What a model may learn from or be measured by; counts the rest.

    It leaves out episodes whose labels a person rejected or has yet to check, and labels of sources that were not
    chosen. For learning it also leaves out test splits; `use_test_split` takes them, to measure.
    """

    sources: tuple[str, ...] = NOT_A_MODEL
    use_test_split: bool = False
    use_unchecked: bool = False
    """also take episodes whose labels nobody has checked, although their split needs it"""
    labels: SourceCounts = field(default_factory=SourceCounts)
    of_test: int = 0
    """episodes of a test split that were left out"""
    unchecked: int = 0
    """episodes that a person has yet to check; left out, unless they are used"""
    rejected: int = 0
    """episodes that a person rejected, left out"""

    def __post_init__(self) -> None:
        """Refuse unknown sources."""
        check_sources(self.sources)

    def take(self, episode: Episode) -> Episode | None:
        """Return the episode with the labels of the chosen sources; None where it is left out."""
        if normalize_split(episode.origin.split) == "test" and not self.use_test_split:
            self.of_test += 1
            return None
        self.rejected += episode.check == "rejected"
        self.unchecked += episode.check == "due"
        if episode.check == "rejected" or (episode.check == "due" and not self.use_unchecked):
            return None
        self.labels.add(episode.labels, self.sources)
        return replace(episode, outcomes=select_labels(episode.labels, self.sources))

    def notes(self) -> Iterator[str]:
        """Say what was left out, and that labels of models were used."""
        if self.of_test:
            yield f"{self.of_test} episodes of a test split were left out ({USE_TEST_SPLIT} takes them)."
        yield from self.describe_checks()
        if self.labels.dropped or self.labels.taken.keys() - set(NOT_A_MODEL):
            yield f"Labels: {self.labels}."

    def describe_checks(self) -> Iterator[str]:
        """Say what was left out because people rejected it, or have yet to check it."""
        if self.rejected:
            yield f"{count_episodes(self.rejected)} left out: a person rejected the labels."
        if self.unchecked and not self.use_unchecked:
            yield f"{count_episodes(self.unchecked)} left out: no person has checked the labels yet ({TO_CHECK})."
