"""Recognises which episode and frame an image shows, for the simulated judge.

Each JPEG of a request is reduced to a few grey squares, which survive compression and resizing, and looked up in a
dataset. The first frames of all attempts in one scene look the same, so the images of one rollout are looked up
together: the episode that explains all of them best is the match.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from demerit.data.episode import Episode
from demerit.data.frames import Images
from demerit.errors import BadInput, UnreadableVideo

Floats = npt.NDArray[np.float32]

SIDE = 16
"""an image is remembered as so many grey squares a side"""
PROBES = 8
"""so many scenes, the nearest by their mean image, are looked through frame by frame"""
STRANGE = 8.0
"""grey levels (of 255, root mean square) beyond which an image is none of the remembered ones. Measured on simulated
scenes: 64 pixels at JPEG quality 80 cost 1, 32 pixels at quality 30 cost 5, another scene is at least 17 away."""


def signature(image: Image.Image) -> Floats:
    """Reduce an image to the mean grey of SIDE x SIDE squares, 0 to 255."""
    small = image.convert("L").convert("F").resize((SIDE, SIDE), Image.Resampling.BOX)
    return np.asarray(small, dtype=np.float32).reshape(-1)


def signatures(images: Images) -> Floats:
    """Reduce (n, height, width, 3) RGB images: (n, SIDE * SIDE)."""
    return np.stack([signature(Image.fromarray(one)) for one in images])


def signature_of_bytes(data: bytes) -> Floats:
    """Reduce an encoded image (JPEG, PNG)."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            return signature(image)
    except (UnidentifiedImageError, OSError) as error:
        raise BadInput("image", "a JPEG or PNG file", error) from error


@dataclass(frozen=True, eq=False)
class RecognisedRollout:
    """A rollout that was recognised."""

    episode: Episode
    frames: tuple[int, ...]
    """the frame that each image shows"""
    distance: float
    """root mean square difference in grey levels, over all images"""


@dataclass(frozen=True, eq=False)
class _Page:
    """One scene: the episodes that share it, their frames one below the other."""

    episodes: list[Episode]
    starts: npt.NDArray[np.intp]
    """the row of each episode's first frame"""
    frames: Floats

    @classmethod
    def of(cls, held: Sequence[tuple[Episode, Floats]]) -> _Page:
        starts = np.cumsum([0, *(len(frames) for _, frames in held[:-1])])
        return cls([episode for episode, _ in held], starts, np.concatenate([frames for _, frames in held]))

    def best(self, asked: Floats) -> RecognisedRollout:
        apart = _squares(asked, self.frames)
        nearest = np.minimum.reduceat(apart, self.starts, axis=1).mean(axis=0)
        chosen = int(nearest.argmin())
        own = np.split(apart, self.starts[1:], axis=1)[chosen]
        return RecognisedRollout(
            self.episodes[chosen], tuple(own.argmin(axis=1).tolist()), float(np.sqrt(nearest[chosen]))
        )


class Album:
    """Remembers every frame of every episode that the simulator measured."""

    def __init__(self, episodes: Iterable[Episode]) -> None:
        held: dict[str, list[tuple[Episode, Floats]]] = {}
        self.left_out: list[str] = []
        for episode, frames in self._remembered(episodes):
            held.setdefault(episode.origin.group or episode.id, []).append((episode, frames))
        if not held:
            raise BadInput("dataset of the simulated judge", "episodes with progress measured by a simulator", "none")
        self.pages = [_Page.of(one) for one in held.values()]
        self.middles = np.stack([page.frames.mean(axis=0) for page in self.pages])

    def __len__(self) -> int:
        return sum(len(page.episodes) for page in self.pages)

    def recognise(self, images: Sequence[Floats]) -> RecognisedRollout | None:
        """Find the episode that explains all images of one rollout best; None when none of them does.

        Args:
            images: signatures of the images, in any order.
        """
        if not images:
            return None
        asked = np.stack(images)
        nearest = np.argsort(_squares(asked, self.middles).mean(axis=0))[:PROBES]
        best = min((self.pages[page].best(asked) for page in nearest), key=lambda seen: seen.distance)
        return best if best.distance <= STRANGE else None

    def _remembered(self, episodes: Iterable[Episode]) -> Iterator[tuple[Episode, Floats]]:
        for episode in episodes:
            outcome = episode.outcome
            if outcome is None or outcome.source != "simulator" or outcome.curve is None:
                self.left_out.append(episode.id)
                continue
            try:
                yield episode, signatures(episode.main.all())
            except UnreadableVideo:
                self.left_out.append(episode.id)


def _squares(ours: Floats, theirs: Floats) -> Floats:
    cross = ours @ theirs.T
    apart = (ours**2).sum(axis=1)[:, None] + (theirs**2).sum(axis=1)[None, :] - 2 * cross
    return np.asarray(np.maximum(apart, 0) / ours.shape[1], dtype=np.float32)
