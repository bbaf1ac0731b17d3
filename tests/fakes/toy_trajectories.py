"""Episodes that are drawn, not filmed: how far a bright bar reaches is how far the task is done. For tiny VLMs."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from demerit.training.compact.made_from import PREPARED
from demerit.training.vlm.corpus import EPISODES, PICTURES, PREFERENCES, Corpus, Row
from demerit.training.vlm.frames_kept import frames_kept
from demerit.training.vlm.recipe import Recipe
from demerit.training.vlm.start import Start
from fakes.tiny_vlm import (
    ID,
    PLAIN,
    ROBOMETER_TOKENS,
    TOKENS,
    backbone_shapes,
    head_shapes,
    random_weights,
    tiny_config,
)

SIZE = 64
TASKS = {"press the red button": (230, 40, 30), "lift the blue lid": (30, 60, 230)}


def picture(done: float, colour: tuple[int, int, int], shade: int = 40) -> np.ndarray:
    image = np.full((SIZE, SIZE, 3), shade, np.uint8)
    image[8:56, : round(SIZE * done)] = colour
    return image


def curve(success: bool, frames: int) -> np.ndarray:
    way = np.linspace(0, 1, frames, dtype=np.float32)
    return way if success else np.minimum(way, 0.3 * (1 - way)).astype(np.float32)


def toy(lengths: Sequence[int] = (8, 10, 12), *, measured: bool = True, seed: int = 0) -> Corpus:
    """Per task and length a success and a failure, each before another shade of grey."""
    rows: list[Row] = []
    images: list[np.ndarray] = []
    start = 0
    rng = np.random.default_rng(seed)
    for words, colour in TASKS.items():
        for success in (True, False):
            for length in lengths:
                done = curve(success, length)
                shade = int(rng.integers(20, 90))
                known = done if measured or success else np.full_like(done, np.nan)
                row = Row(
                    id=f"{words.split()[-1]}-{success}-{length}",
                    source="drawn",
                    instruction=words,
                    success=success,
                    progress=known,
                    measured=measured,
                    final=1.0 if success else float(known[-1]),
                    grade=5 if success else 1,
                    times=np.arange(length, dtype=np.float32),
                    start=start,
                    height=SIZE,
                    width=SIZE,
                    split="train",
                )
                rows.append(row)
                images.append(np.stack([picture(float(one), colour, shade) for one in done]))
                start = row.end
    return Corpus.of(rows, images)


def written(corpus: Corpus, folder: Path, recipe: Recipe) -> Path:
    """Write a corpus as `prepare` does."""
    folder.mkdir(parents=True)
    (folder / PREPARED).write_text(json.dumps(frames_kept(recipe)))
    (folder / PICTURES).write_bytes(corpus.pictures.tobytes())
    (folder / EPISODES).write_text("".join(json.dumps(row.facts()) + "\n" for row in corpus.rows))
    (folder / PREFERENCES).write_text("".join(choice.line() + "\n" for choice in corpus.choices))
    return folder


class WordTokens:
    """A word a token: prompts of a third of the length that a tiny byte tokenizer makes of them."""

    special: ClassVar[dict[str, int]] = {**ID, **{name: TOKENS + at for at, name in enumerate(ROBOMETER_TOKENS)}}

    def ids(self, text: str) -> list[int]:
        words = re.findall(r"<\|\w+\|>|\w+|[^\w\s]|\n", text)
        return [self.special[one] if one in self.special else zlib.crc32(one.encode()) % PLAIN for one in words]

    def id(self, special: str) -> int:
        return self.special[special]


def tiny_start(seed: int = 0, *, robometer: bool = True) -> Start:
    """Begin with random weights of a network of two layers."""
    text = {"num_hidden_layers": 2, "intermediate_size": 64}
    config = tiny_config(TOKENS + 5, text=text, vision={"depth": 2, "deepstack_visual_indexes": [0]})
    weights = {
        name: one for name, one in random_weights(backbone_shapes(config), seed).items() if "lm_head" not in name
    }
    if robometer:
        weights |= random_weights(head_shapes(), seed)
    tokens: Any = WordTokens()
    return Start(config, weights, tokens, None, "toy", "toy", f"toy {seed}")
