"""What kind of failure it was, by a chat model that looks at the frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pydantic import BaseModel

from demerit.data.episode import Episode
from demerit.data.frames import spread
from demerit.data.taxonomy import kinds
from demerit.decide.detector import Detection
from demerit.llm import ChatClient, ChatImage, ChatOptions, ChatRequest, Message

FRAMES, SIZE = 8, 256
ASKED = """A robot was told: "{instruction}". It failed; something seems to be wrong at frame {frame} of {length}.
Which of these kinds of failure is it? Answer with one name as it is written here, or with "unknown".

{kinds}

The frames follow, in order."""


class KindAnswer(BaseModel):
    """The answer."""

    kind: str


def ask_kinds(
    judged: Sequence[tuple[Episode, Detection]], client: ChatClient | None = None
) -> list[tuple[Episode, Detection]]:
    """Name the kind of each failure that was found; it stays empty where the model does not name a known kind.

    `client` None = the model that the environment names.
    """
    client, pairs = client or ChatOptions.read("", {}).client(), list(judged)
    places = [place for place, (_, detection) in enumerate(pairs) if detection.flagged_at is not None]
    definitions = {kind.name: kind.definition for kind in kinds()}
    for number, response in client.ask_all(_ask(*pairs[place], definitions) for place in places):
        episode, detection = pairs[places[number]]
        if isinstance(response.parsed, KindAnswer) and response.parsed.kind in definitions:
            pairs[places[number]] = (episode, replace(detection, kind=response.parsed.kind))
    return pairs


def _ask(episode: Episode, detection: Detection, definitions: dict[str, str]) -> ChatRequest:
    choices = "\n".join(f"{name}: {definition}" for name, definition in definitions.items())
    facts = {
        "instruction": episode.instruction,
        "frame": detection.went_wrong_at,
        "length": len(episode),
        "kinds": choices,
    }
    at = spread(len(episode), FRAMES)
    shown: list[str | ChatImage] = []
    for number, image in zip(at.tolist(), episode.main.take(at), strict=True):
        shown += [f"Frame {number}:", ChatImage.encode(image, SIZE)]
    return ChatRequest((Message.user(ASKED.format(**facts), *shown),), KindAnswer)
