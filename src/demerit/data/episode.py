"""An episode: one attempt at one instruction, recorded by cameras, and the labels that say what happened in it.

A command or recipe names the label sources it takes, e.g. `human, simulator, model:validated`:

    human simulator rule edit    labels of that source
    model:validated              labels of models that were confirmed: `Outcome.by` contains `, validated by WHO` or the
                                 prompts' name of `demerit relabel` (`, relabel-2.1a2b3c`), which writes no others
    model                        every label of a model, confirmed or not
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from demerit.data.arrays import Floats32
from demerit.data.frames import Frames, short_hash
from demerit.data.notebook import episode_html
from demerit.data.stages import StageSpan, check_stages
from demerit.errors import BadEpisode, BadInput, UnknownName

LabelSource = Literal["human", "simulator", "rule", "edit", "model"]
"""The source of a label, most trusted first: a person, measured physics, a rule (demonstrations are successes), an edit
(a video cut in half is half done), a model."""

LABEL_SOURCES: tuple[LabelSource, ...] = get_args(LabelSource)

VALIDATED = "model:validated"
SOURCE_NAMES: tuple[str, ...] = (*LABEL_SOURCES[:-1], VALIDATED, "model")
"""what a recipe or `--label-sources` may name"""
NOT_A_MODEL: tuple[str, ...] = LABEL_SOURCES[:-1]
"""the sources that models are measured by"""
TRAINED_SOURCES: tuple[str, ...] = (*NOT_A_MODEL, VALIDATED)
"""the sources that models are trained on by default"""
_CONFIRMED = re.compile(r"(?:^|, )(?:relabel-\d+\.[0-9a-f]+|validated by \S)")

Preferred = Literal["a", "b", "tie"]

Check = Literal["", "due", "accepted", "corrected", "rejected"]
CHECK = "human_check"
"""the tag that says how far people have checked an episode's labels"""


@dataclass(frozen=True)
class Event:
    """A failure visible from frame `first` to frame `last` (inclusive); `kind` is a name of the failure taxonomy."""

    kind: str
    first: int
    last: int
    note: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last:
            raise BadInput(f"event {self.kind!r}", "0 <= first <= last", (self.first, self.last))


@dataclass(frozen=True, eq=False)
class Outcome:
    """The label of an episode by one source. None and NaN mean unknown; nothing is filled in."""

    source: LabelSource
    success: bool | None = None
    progress: float | None = None
    """progress at the end, 0 to 1"""
    grade: int | None = None
    """1 (nothing done) to 5 (done as asked)"""
    curve: Floats32 | None = None
    """progress at every frame, 0 to 1, NaN where unknown"""
    events: tuple[Event, ...] = ()
    note: str = ""
    """free text; never shown to a model under evaluation"""
    by: str = ""
    """name of the person, simulator, rule or model"""
    stages: tuple[StageSpan, ...] = ()
    """the parts of the work, one after another"""

    def __post_init__(self) -> None:
        if self.source not in LABEL_SOURCES:
            raise BadInput("outcome source", f"one of {', '.join(LABEL_SOURCES)}", repr(self.source))
        if self.progress is not None and not 0 <= self.progress <= 1:
            raise BadInput("progress", "a number from 0 to 1", self.progress)
        if self.grade is not None and self.grade not in (1, 2, 3, 4, 5):
            raise BadInput("grade", "a whole number from 1 to 5", self.grade)
        if self.curve is not None:
            object.__setattr__(self, "curve", _check_curve(self.curve))
        object.__setattr__(self, "stages", check_stages(self.stages))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Outcome):
            return NotImplemented
        if self.curve is None or other.curve is None:
            same_curve = self.curve is other.curve
        else:
            same_curve = np.array_equal(self.curve, other.curve, equal_nan=True)
        return same_curve and self._facts() == other._facts()

    __hash__ = None  # type: ignore[assignment]  # curves are arrays

    def __str__(self) -> str:
        """The label in a few words: 'human Ada: success, grade 5'."""
        parts = {None: [], True: ["success"], False: ["failure"]}[self.success]
        parts += [f"progress {self.progress:g}"] if self.progress is not None else []
        parts += [f"grade {self.grade}"] if self.grade is not None else []
        parts += ["a curve"] if self.curve is not None else []
        parts += [f"{event.kind} at {event.first}" for event in self.events]
        parts += [f"stages {' '.join(map(str, self.stages))}"] if self.stages else []
        parts += ["a note"] if self.note else []
        return f"{self.source} {self.by}".strip() + f": {', '.join(parts) or 'nothing'}"

    def _facts(self) -> tuple[object, ...]:
        return (self.source, self.success, self.progress, self.grade, self.events, self.note, self.by, self.stages)


def most_trusted(outcomes: Iterable[Outcome]) -> Outcome | None:
    """Return the outcome with the most trusted source; the first of equals."""
    return min(outcomes, key=lambda outcome: LABEL_SOURCES.index(outcome.source), default=None)


def read_check(tags: Mapping[str, str]) -> Check:
    """Read how far people have checked an episode's labels from its tags."""
    state: Any = tags.get(CHECK, "")
    return state if state in get_args(Check) else "due"  # a word of somebody else: nobody here has checked it


def choose_labels(outcomes: Iterable[Outcome], check: Check) -> tuple[Outcome, ...]:
    """Return the labels that hold: none of a rejected episode, people's alone of a corrected one, otherwise all."""
    if check == "rejected":
        return ()
    return tuple(outcome for outcome in outcomes if outcome.source == "human" or check != "corrected")


@dataclass(frozen=True)
class Preference:
    """A choice between two episodes."""

    a: str
    b: str
    verdict: Preferred
    """the better episode, or a tie"""
    source: LabelSource
    why: str = ""
    by: str = ""

    def __post_init__(self) -> None:
        if self.a == self.b:
            raise BadInput("preference", "two different episodes", f"{self.a!r} twice")
        if self.verdict not in get_args(Preferred):
            raise BadInput("preference verdict", "'a', 'b' or 'tie'", repr(self.verdict))
        if self.source not in LABEL_SOURCES:
            raise BadInput("preference source", f"one of {', '.join(LABEL_SOURCES)}", repr(self.source))

    @property
    def better(self) -> str | None:
        """The id of the better episode, None for a tie."""
        return {"a": self.a, "b": self.b, "tie": None}[self.verdict]


# The choice of sources


Label = TypeVar("Label", Outcome, Preference)


def name_source(label: Outcome | Preference) -> str:
    """Return the label's source: one of `SOURCE_NAMES`."""
    return VALIDATED if label.source == "model" and _CONFIRMED.search(label.by) else label.source


def is_taken(label: Outcome | Preference, sources: Sequence[str]) -> bool:
    """Whether a label's source is among the given ones; `model` includes `model:validated`."""
    return label.source in sources or name_source(label) in sources


def select_labels(labels: Iterable[Label], sources: Sequence[str]) -> tuple[Label, ...]:
    """Keep the labels of these sources."""
    return tuple(label for label in labels if is_taken(label, sources))


def check_sources(sources: Sequence[str], what: str = "label source") -> tuple[str, ...]:
    """Return the names without repetitions; an unknown name is refused, and so is no name at all."""
    for name in sources:
        if name not in SOURCE_NAMES:
            raise UnknownName(what, str(name), SOURCE_NAMES)
    if not sources:
        raise BadInput(f"{what}s", f"some of {', '.join(SOURCE_NAMES)}", "none")
    return tuple(dict.fromkeys(sources))


@dataclass
class SourceCounts:
    """How many labels were taken and dropped, by source."""

    taken: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)

    def add(self, labels: Iterable[Outcome | Preference], sources: Sequence[str]) -> None:
        """Count labels."""
        for label in labels:
            (self.taken if is_taken(label, sources) else self.dropped)[name_source(label)] += 1

    def as_dict(self) -> dict[str, dict[str, int]]:
        """Return plain values."""
        return {"taken": dict(self.taken), "dropped": dict(self.dropped)}

    def __str__(self) -> str:
        """List both: `12 human, 3 model:validated; not used: 4 model (--label-sources takes them)`."""
        taken, dropped = (
            ", ".join(f"{counts[name]} {name}" for name in SOURCE_NAMES if counts[name])
            for counts in (self.taken, self.dropped)
        )
        more = f"; not used: {dropped} (--label-sources takes them)" if dropped else ""
        return (taken or "none") + more


def _check_curve(curve: npt.ArrayLike) -> Floats32:
    values = np.array(curve, dtype=np.float32)
    if values.ndim != 1:
        raise BadInput("curve", "one number per frame", f"an array of shape {values.shape}")
    numbers = values[~np.isnan(values)]
    if numbers.size and (numbers.min() < 0 or numbers.max() > 1):
        raise BadInput("curve", "progress from 0 to 1 (NaN where unknown)", f"{numbers.min():g} to {numbers.max():g}")
    values.setflags(write=False)
    return values


@dataclass(frozen=True)
class Origin:
    """Where an episode comes from. Empty means unknown."""

    dataset: str = ""
    revision: str = ""
    licence: str = ""
    embodiment: str = ""
    site: str = ""
    split: str = ""
    group: str = ""
    """episodes recorded together (a session, a scene, an original video); splits never separate a group"""
    parent: str = ""
    """the id of the episode that this one was made from"""
    tags: Mapping[str, str] = field(default_factory=dict)
    """anything else from the source: policy, subset, language, perspective (of the main camera: `egocentric`, on the
    robot, or `exocentric`, beside it) ..."""


@dataclass(frozen=True)
class Edit:
    """A recorded change. Name, parameters and seed are enough to repeat it."""

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None


@dataclass(frozen=True, eq=False)
class Episode:
    """One attempt at one instruction."""

    id: str
    instruction: str
    """the task given to the robot; empty when unknown"""
    views: Mapping[str, Frames]
    """cameras by name; the first is the main one"""
    outcomes: tuple[Outcome, ...] = ()
    """all that were given; those that hold are in `labels`, and `outcome` is the most trusted of them"""
    origin: Origin = field(default_factory=Origin)
    signals: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    """per-frame arrays such as state and action; may load on first access"""
    edits: tuple[Edit, ...] = ()

    def __post_init__(self) -> None:
        if not self.id or not self.id.isprintable():
            raise BadEpisode(self.id, "a printable, non-empty id", repr(self.id))
        if not isinstance(self.instruction, str):
            raise BadEpisode(self.id, "an instruction (empty when unknown)", repr(self.instruction))
        if not self.views:
            raise BadEpisode(self.id, "at least one camera", "none")

    @classmethod
    def from_video(cls, path: str | Path, instruction: str = "", id: str | None = None) -> Episode:
        """Make an episode of one video file."""
        frames = Frames.from_video(path)
        return cls(id or Path(path).stem, instruction, {"main": frames})

    @classmethod
    def from_array(cls, images: npt.ArrayLike, instruction: str = "", id: str = "array", fps: float = 10.0) -> Episode:
        """Make an episode of (n, height, width, 3) uint8 RGB images."""
        return cls(id, instruction, {"main": Frames.from_array(images, fps)})

    @property
    def check(self) -> Check:
        """Whether a person must check its labels, or has accepted, corrected or rejected them; empty = neither."""
        return read_check(self.origin.tags)

    @property
    def labels(self) -> tuple[Outcome, ...]:
        """The labels that hold (see `choose_labels`)."""
        return choose_labels(self.outcomes, self.check)

    @property
    def outcome(self) -> Outcome | None:
        """The most trusted of the labels that hold, None when there is none."""
        return most_trusted(self.labels)

    @property
    def main(self) -> Frames:
        """The main camera."""
        return next(iter(self.views.values()))

    @property
    def main_camera(self) -> str:
        """The main camera's name."""
        return next(iter(self.views))

    def __len__(self) -> int:
        return len(self.main)

    def __iter__(self) -> Iterator[NoReturn]:
        """Refuse: models score lists of episodes, and this is one."""
        raise BadInput("episodes", "a list, such as model.score([episode])", f"one Episode ({self.id})")

    def with_camera(self, name: str) -> Episode:
        """Make the named camera the main one; the tag `perspective` is dropped, as it is that of the former one."""
        if name not in self.views:
            raise UnknownName(f"camera in episode {self.id!r}", name, self.views)
        if name == self.main_camera:
            return self
        rest = {other: frames for other, frames in self.views.items() if other != name}
        tags = {tag: value for tag, value in self.origin.tags.items() if tag != "perspective"}
        return replace(self, views={name: self.views[name], **rest}, origin=replace(self.origin, tags=tags))

    def select(self, indices: Sequence[int] | npt.NDArray[np.integer[Any]]) -> Episode:
        """Keep only the given frames of every camera and signal. Labels of single frames are dropped, others stay."""
        lengths = {name: len(frames) for name, frames in self.views.items()}
        if len(set(lengths.values())) > 1:
            raise BadEpisode(self.id, "cameras of one length (choose one with with_camera)", lengths)
        places = np.asarray(indices, dtype=np.int64)
        return replace(
            self,
            views={name: frames.select(places) for name, frames in self.views.items()},
            outcomes=tuple(replace(outcome, curve=None, events=(), stages=()) for outcome in self.outcomes),
            signals={name: values[places] for name, values in self.signals.items() if len(values) == len(self)},
        )

    def fingerprint(self, with_signals: bool = False) -> str:
        """Hash what a model may see: the instruction, every camera's frames, perhaps the signals; never the labels."""
        views = [[name, frames.identity()] for name, frames in self.views.items()]
        content = json.dumps([self.instruction, views]).encode()
        if not with_signals:
            return short_hash(content)
        signals = {name: np.asarray(values) for name, values in self.signals.items()}
        parts = [f"{name} {array.dtype} {array.shape}".encode() + array.tobytes() for name, array in signals.items()]
        return short_hash(content, *parts)

    def __repr__(self) -> str:
        outcome = self.outcome
        label = "" if outcome is None else f", success={outcome.success} ({outcome.source})"
        return f"Episode({self.id!r}, {self.instruction!r}, cameras={list(self.views)}{label})"

    def _repr_html_(self) -> str:
        return episode_html(self)


def with_check(episode: Episode, state: Check, by: str = "", at: str = "", why: str = "") -> Episode:
    """Record that a person must check the labels of an episode, or what a person said of them, when and why."""
    facts = {CHECK: state, f"{CHECK}_by": by, f"{CHECK}_at": at, f"{CHECK}_why": why}
    tags = {name: value for name, value in {**episode.origin.tags, **facts}.items() if value or name not in facts}
    return replace(episode, origin=replace(episode.origin, tags=tags))


def count_episodes(number: int) -> str:
    """Return "1 episode", "2 episodes" ..."""
    return f"{number} episode{'' if number == 1 else 's'}"


def safe_name(text: str) -> str:
    """Turn a name into a safe file name; raise if nothing is left."""
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "._-+=@") else "-" for c in text).strip(".-")
    if not safe:
        raise BadInput("name", "some letters or digits", repr(text))
    return safe


# Instructions: English words, word forms, objects, and whether two instructions may ask for the same task.
#
# A video of one task must never be labelled a failure at another task that it also completes. The video is not looked
# at here, so `same_task` is conservative: a missing negative is better than a wrong label. Two instructions may be the
# same task when
#
# - their content words are equal, or one set contains the other: "pick up the cup and put it on the shelf" includes
#   "pick up the cup";
# - the objects of one are all among those of the other and nothing contradicts: turning on the toaster may be pushing
#   its lever, but opening a drawer is not closing it;
# - they share an object and one of them is vague: "the golden object" may be the spoon;
# - they differ by typos.
#
# A word after an article is no action: shutting the open drawer is not opening it.

ARTICLES = frozenset("a an the teh hte th te thee tthe thhe thr thw tge rhe".split())
"""and their usual typos"""
SMALL_WORDS = frozenset("and then to of it its with up from at by for in into on onto out off".split())
FILLERS = frozenset(
    "a an the this that these those to of and then it its them one some please can you your robot arm gripper hand "
    "with up from at by for so is are be side using use first finally other slightly back".split()
)
# Each line is one meaning, named by its first word.
SYNONYMS = """
put place set lay position deposit move bring transfer shift drop leave
pick grab grasp take lift get fetch hold raise
close shut closed
open opened
push press
turn rotate twist spin
wipe clean
in into inside within
on onto upon atop over above
under below beneath underneath
near beside next closer
forward front ahead
backward behind
block cube brick
cup mug
pot pan
bin trash garbage
table counter countertop desk tabletop
marker pen
toy plush plushie plushy doll
cloth towel rag napkin
"""
_MEANING = {word: line.split()[0] for line in SYNONYMS.strip().splitlines() for word in line.split()}
ACTIONS = frozenset(
    "put pick lower remove open close push pull turn wipe pour stack unstack fold unfold slide flip stir insert".split()
)
RELATIONS = frozenset("in out on off under near left right forward backward between middle center down away".split())
OPPOSITES = (
    ("open", "close"),
    ("left", "right"),
    ("in", "out"),
    ("on", "off"),
    ("forward", "backward"),
    ("push", "pull"),
    ("put", "remove"),
    ("pick", "lower"),
    ("upper", "lower"),
    ("insert", "remove"),
    ("stack", "unstack"),
    ("fold", "unfold"),
)
VAGUE = frozenset("object thing item stuff something everything content".split())
_KNOWN = ACTIONS | RELATIONS | VAGUE | FILLERS | _MEANING.keys()
SHORTEST_PLURAL = 4
SHORTEST_TYPO, SHORTEST_SWAP = 4, 3
"""letters of the shorter word where one is wrong, or two are swapped: a cup is no cap"""
WORDS_PER_TYPO = 3


def normalize_instruction(instruction: str) -> str:
    """The words of an instruction: lower case, no punctuation, single spaces. Equal results mean the same text."""
    return " ".join(re.findall(r"\w+", instruction.casefold()))


def plain_words(text: str) -> list[str]:
    """The words of a text in lower case and without accents; punctuation and underscores only separate."""
    if not text.isascii():
        text = "".join(c for c in unicodedata.normalize("NFKD", text.casefold()) if not unicodedata.combining(c))
    return re.findall(r"[^\W_]+", text.lower())


def word_forms(word: str) -> list[str]:
    """The word, then the words it may be inflected from: wiping -> wipe, cutting -> cut, pushes -> push."""
    forms = [word]
    for ending in ("ing", "ed", "es", "s"):
        if word.endswith(ending) and len(word) > len(ending) + 1:
            stem = word[: -len(ending)]
            forms += [stem, stem + "e"] + ([stem[:-1]] if stem[-1] == stem[-2:-1] else [])
    return forms


def task_name(instruction: str) -> str:
    """The instruction as a task name: case, spacing and final punctuation do not make another task."""
    return " ".join(instruction.lower().split()).rstrip(".!")


@lru_cache(maxsize=65_536)
def content_words(instruction: str) -> frozenset[str]:
    """The words that carry meaning, in the singular, one for all synonyms; `is open` in "the open drawer"."""
    words = normalize_instruction(instruction).replace("on top of", "on").split()
    meanings = set()
    for before, word in pairwise(["", *words]):
        if word not in FILLERS:
            meaning = _MEANING.get(_singular(word), _singular(word))
            meanings.add(f"is {meaning}" if before in ARTICLES and meaning in ACTIONS else meaning)
    return frozenset(meanings)


@lru_cache(maxsize=65_536)
def objects(instruction: str) -> frozenset[str]:
    """The content words that are neither an action nor a relation: objects and their looks."""
    return content_words(instruction) - ACTIONS - RELATIONS - VAGUE


def same_task(first: str, second: str) -> bool:
    """Whether a video of the first instruction might also show the second."""
    a, b = content_words(first), content_words(second)
    if a <= b or b <= a:
        return True
    objects_a, objects_b = objects(first), objects(second)
    if objects_a & objects_b and (a | b) & VAGUE:
        return True
    if (objects_a <= objects_b or objects_b <= objects_a) and not _contradict(a - b, b - a):
        return True
    return differ_by_typo(first, second)


def differ_by_typo(first: str, second: str) -> bool:
    """Whether two instructions are the same but for typos, spaces, accents, articles and plurals.

    Words are compared by their places (`is_typo`); at most every third may be mistyped.
    """
    a, b = typed_words(first), typed_words(second)
    if len(a) != len(b):
        return "".join(plain_words(first)) == "".join(plain_words(second))
    typos = [(x, y) for x, y in zip(a, b, strict=True) if x != y]
    return len(typos) <= max(1, len(a) // WORDS_PER_TYPO) and all(is_typo(x, y) for x, y in typos)


@lru_cache(maxsize=65_536)
def typed_words(instruction: str) -> tuple[str, ...]:
    """The words without accents and articles, in the singular, in order."""
    return tuple(_singular(word) for word in plain_words(instruction) if word not in ARTICLES)


def is_typo(first: str, second: str) -> bool:
    """Whether two different words differ by one letter or by two neighbours that are swapped.

    In a short word, or as the first one, another letter makes another word (cup, cap; fork, cork), unless one of the
    two is a small word (in, with). Two words that are both known here (left, lift) are no typos, nor are numbers and
    scripts without lower case, where a sign may be a word.
    """
    a, b = sorted((first, second), key=len)
    is_spelled = (a + b).isalpha() and (a + b).islower()
    if len(b) - len(a) > 1 or not is_spelled or (a in _KNOWN and b in _KNOWN):
        return False
    prefix = next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))
    rest, other = a[prefix:], b[prefix:]
    if len(a) == len(b) and rest[:2] == other[1::-1] and rest[2:] == other[2:]:
        return len(a) >= SHORTEST_SWAP
    is_long = prefix > 0 and len(a) >= SHORTEST_TYPO
    return (is_long or not SMALL_WORDS.isdisjoint((a, b))) and rest[len(a) == len(b) :] == other[1:]


def _contradict(only_a: frozenset[str], only_b: frozenset[str]) -> bool:
    return any((x in only_a and y in only_b) or (y in only_a and x in only_b) for x, y in OPPOSITES)


def _singular(word: str) -> str:
    return word[:-1] if len(word) >= SHORTEST_PLURAL and word.endswith("s") and not word.endswith("ss") else word
