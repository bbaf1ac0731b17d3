"""Options of `gvl`, from Python, from the name (`gvl:dense,samples=3`) or from the environment.

The text and images of the prompts: prompt files, and which frames are shown in which order.

A prompt file holds placeholders. A line with one of `REPEATED` is written once for each thing to show:

    {task} {count}               the instruction, and the number of frames to rate; anywhere
    {first_frame}                the first frame, which has the value 0 by definition
    {frame}                      a frame to rate, with its {number}
    {failure}                    a way in which such tasks fail, in words, with its {number}
    {failure_frame}              a frame of a failed rollout, with {example} and {number}
    {reference_frame}            a frame of a rejected rollout, with {example}, {number} and {percent}, its value

A line `---` separates sections; one for which there is nothing to show is left out. The first section is the system
message if it starts with `System:`.

A changed prompt is another model: a hash of the prompt files is on the card. After editing a file in
`assets/prompts/gvl`, give it the next number, in its name and in `VERSIONS`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from demerit.data.episode import Episode, safe_name
from demerit.data.frames import Indices, short_hash, spread
from demerit.errors import BadInput
from demerit.llm import ChatImage, ChatOptions, Message
from demerit.llm.template import fill_placeholders, find_placeholders, list_placeholders, name_prompt, read_template

CONTEXT_KINDS = ("none", "text", "video", "dense")
"""bad behaviour in the prompt; each kind includes the one before it"""
IDENTITY = (
    *("context", "samples", "frames", "size", "temperature", "max_tokens"),
    *("shown_examples", "example_frames", "same_task", "measured", "model"),
)
"""options that change the answers; they are part of the card's hash, so their names must not change"""
TOKENS_PER_FRAME, TOKENS_BASE = 80, 1000
_MINIMUM = {"samples": 1, "frames": 2, "size": 16, "max_tokens": 0, "shown_examples": 1, "example_frames": 1}


@dataclass(frozen=True, kw_only=True)
class GVLConfig(ChatOptions):
    """Every option of a prompted model."""

    WHO: ClassVar[str] = "gvl"
    BARE: ClassVar[str] = "context"

    context: str = "none"
    """bad behaviour in the prompt: none, text, video or dense"""
    samples: int = 1
    """answers per episode; several give a mean and a spread"""
    frames: int = 16
    """frames of an episode, the anchor included"""
    size: int = 256
    """longer side of an image in pixels, at most"""
    temperature: float | None = 0.6
    """'none' leaves it to the server: some models accept only their own"""
    max_tokens: int = 0
    """longest answer; 0 = 1000 plus 80 per frame. Models that think before they answer need more"""
    examples: str = ""
    """a demerit folder with the episodes and preferences that examples come from"""
    shown_examples: int = 2
    """other rollouts shown as images, and as many with values"""
    example_frames: int = 4
    """images of each example"""
    same_task: bool = False
    """take examples and remarks from the evaluated task, as the position paper does: they tell about the pair itself"""
    measured: bool = False
    """dense only: use values per step from people or a simulator instead of self-distillation"""
    prompt: str = ""
    """a file with a prompt of your own, with placeholders; empty = the shipped one"""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.context not in CONTEXT_KINDS:
            raise BadInput("context", f"one of {', '.join(CONTEXT_KINDS)}", repr(self.context))
        for name, least in _MINIMUM.items():
            if getattr(self, name) < least:
                raise BadInput(name, f"a number from {least} on", getattr(self, name))
        if self.temperature is not None and not self.temperature >= 0:
            raise BadInput("temperature", "0 or more", self.temperature)

    @property
    def answer_tokens(self) -> int:
        """The longest answer in tokens."""
        return self.max_tokens or TOKENS_BASE + TOKENS_PER_FRAME * self.frames

    @property
    def identity(self) -> dict[str, Any]:
        """The options that change the answers."""
        return {name: getattr(self, name) for name in IDENTITY}

    @property
    def name(self) -> str:
        """The name of the model: `gvl`, and what sets it apart."""
        parts = ["" if self.context == "none" else self.context, "same-task" * self.same_task, Path(self.prompt).stem]
        return safe_name("+".join(["gvl", *filter(None, parts)]))

    def name_prompt(self, prompt: str) -> str:
        """Name the prompt that `read_prompt` returned, on the card and with the reward."""
        return name_prompt(self.prompt, prompt) if self.prompt else f"prompt {VERSIONS['template']}"

    def read_prompt(self) -> str:
        """Return the prompt with its placeholders."""
        if not self.prompt:
            return _read_shipped("template")
        needed = ["task", "first_frame", "frame", *CONTEXT_NEEDS[self.context]]
        text = read_template(self.prompt, needed, [*REPEATED, "count", "number", "example", "percent"])
        _check_places(f"the prompt {self.prompt}", text)
        return text


FOLDER = Path(__file__).parents[2] / "assets" / "prompts" / "gvl"
VERSIONS = {"template": 1, "feedback": 1}
SYSTEM = "System:"
SECTION_END = "---"
ANYWHERE = ("task", "count")
REPEATED: Mapping[str, tuple[str, ...]] = {
    "first_frame": (),
    "frame": ("number",),
    "failure": ("number",),
    "failure_frame": ("example", "number"),
    "reference_frame": ("example", "number", "percent"),
}
"""placeholders whose line is repeated, and those that may stand in the same line"""
CONTEXT_NEEDS = {
    "none": (),
    "text": ("failure",),
    "video": ("failure", "failure_frame"),
    "dense": ("failure", "failure_frame", "reference_frame"),
}

PromptPart = str | ChatImage
RepeatedParts = list[tuple[Mapping[str, object], PromptPart]]
"""what to show in the place of a placeholder of `REPEATED`, each with the values of its line"""
ShownParts = Mapping[str, RepeatedParts]
"""by placeholder"""


def write_prompt(prompt: str, values: Mapping[str, object], shown: ShownParts) -> tuple[Message, ...]:
    """Write the messages of a prompt with placeholders: text up to an image is one part."""
    sections = _split_sections(prompt)
    system = sections.pop(0).removeprefix(SYSTEM).strip() if sections[0].startswith(SYSTEM) else ""
    user = [part for section in sections for part in _write_section(section, values, shown)]
    return (*([Message.system(fill_placeholders(system, values))] if system else []), Message.user(*user))


def write_feedback(task: str, remarks: str, count: int) -> str:
    """Ask for at most `count` descriptions of failures."""
    return fill_placeholders(_read_shipped("feedback"), {"task": task, "remarks": remarks, "count": count})


def prompts_hash(prompt: str) -> str:
    """Hash a prompt and the shipped one that asks for descriptions of failures."""
    return short_hash(prompt.encode(), _read_shipped("feedback").encode())


def _split_sections(prompt: str) -> list[str]:
    return [section.strip() for section in re.split(rf"^{SECTION_END}\s*$", prompt, flags=re.MULTILINE)]


def _write_section(section: str, values: Mapping[str, object], shown: ShownParts) -> Iterator[PromptPart]:
    """Yield a section's texts and images; none if there is nothing to show in it."""
    if any(not shown.get(name) for name in find_placeholders(section) & REPEATED.keys()):
        return
    text = ""
    for line in section.splitlines():
        name = next(iter(find_placeholders(line) & REPEATED.keys()), "")
        for numbers, part in shown[name] if name else [({}, "")]:
            fields = {**values, **numbers}
            if isinstance(part, str):
                text += fill_placeholders(line, {**fields, name: part}) + "\n"
                continue
            label, _, rest = line.partition(f"{{{name}}}")
            yield from _skip_empty(text, fill_placeholders(label, fields))
            yield part
            text = fill_placeholders(rest, fields) + "\n"
    yield from _skip_empty(text)


def _skip_empty(*texts: str) -> Iterator[str]:
    return filter(None, (text.strip() for text in texts))


def _check_places(what: str, prompt: str) -> None:
    """Raise unless every placeholder stands where it has a value."""
    for number, line in enumerate(prompt.splitlines(), 1):
        placeholders = find_placeholders(line)
        shown = [name for name in REPEATED if name in placeholders][:1]
        fitting = [*ANYWHERE, *shown, *(beside for name in shown for beside in REPEATED[name])]
        if wrong := sorted(placeholders.difference(fitting)):
            expected = f"no other placeholders in this line than {list_placeholders(fitting)}"
            raise BadInput(f"{what}, line {number}", expected, list_placeholders(wrong))
        if "frame" in shown and "number" not in placeholders:
            expected = "{number} beside {frame}, because answers name frames by their number"
            raise BadInput(f"{what}, line {number}", expected, repr(line))
    first = _split_sections(prompt)[0]
    if first.startswith(SYSTEM) and find_placeholders(first) & REPEATED.keys():
        raise BadInput(what, f"frames and failures after the section {SYSTEM} and a line {SECTION_END}", "some in it")


@dataclass(frozen=True, eq=False)
class FrameOrder:
    """The frames of an episode that a prompt shows."""

    anchor: int
    """index of the first frame, which has the value 0 by definition"""
    order: Indices
    """indices of the other frames in the order shown; frame number n is order[n - 1]"""

    def __len__(self) -> int:
        """How many frames are rated."""
        return len(self.order)

    def at(self) -> Indices:
        """All indices shown, increasing, the anchor first."""
        return np.sort(np.append(self.order, np.int32(self.anchor))).astype(np.int32)


def choose_frames(length: int, budget: int, seed: str) -> FrameOrder:
    """Spread a budget of frames over an episode and shuffle all but the first, which is the anchor.

    Args:
        length: frames in the episode.
        budget: frames to show, the anchor included.
        seed: decides the order; the same text gives the same order on every machine.
    """
    if budget < 2:  # noqa: PLR2004  # the anchor alone asks nothing
        raise BadInput("frame budget", "at least 2 (the anchor and a frame to rate)", budget)
    if length < 1:
        raise BadInput("episode", "at least one frame", length)
    chosen = spread(length, budget)
    return FrameOrder(int(chosen[0]), shuffle(chosen[1:], seed))


def shuffle(indices: Indices, seed: str) -> Indices:
    """Sort indices by a hash of seed and index: random generators may change between versions."""
    order = sorted(indices.tolist(), key=lambda index: short_hash(seed.encode(), str(index).encode()))
    return np.array(order, dtype=np.int32)


def encode_frames(episode: Episode, indices: Indices, size: int) -> list[ChatImage]:
    """Decode frames of the main camera and encode each as a JPEG of at most `size` pixels a side."""
    return [ChatImage.encode(image, size) for image in episode.main.take(indices)]


@cache
def _read_shipped(name: str) -> str:
    return (FOLDER / f"{name}-{VERSIONS[name]}.txt").read_text(encoding="utf-8").strip()
