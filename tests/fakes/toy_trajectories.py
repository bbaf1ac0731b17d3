"""Drawn trajectories and a tiny network for tests of vision-language training."""

import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from demerit.training.frame_storage import FILES, Storage, pack_episode
from demerit.training.prepared import EPISODES, PREFERENCES, PREPARED, CorpusRow, PreparedCorpus
from demerit.training.vlm.checkpoints import VLMStart
from demerit.training.vlm.config import VLMCorpusPlan, VLMTrainConfig
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


def draw_bar(done: float, colour: tuple[int, int, int], shade: int = 40) -> np.ndarray:
    image = np.full((SIZE, SIZE, 3), shade, np.uint8)
    image[8:56, : round(SIZE * done)] = colour
    return image


def curve(success: bool, frames: int) -> np.ndarray:
    way = np.linspace(0, 1, frames, dtype=np.float32)
    return way if success else np.minimum(way, 0.3 * (1 - way)).astype(np.float32)


def vlm_corpus(lengths: Sequence[int] = (8, 10, 12), *, measured: bool = True, seed: int = 0) -> PreparedCorpus:
    """Per task and length a success and a failure, each on another shade of grey."""
    rows: list[CorpusRow] = []
    images: list[np.ndarray] = []
    rng = np.random.default_rng(seed)
    for instruction, colour in TASKS.items():
        for success in (True, False):
            for length in lengths:
                done = curve(success, length)
                shade = int(rng.integers(20, 90))
                row = CorpusRow(
                    id=f"{instruction.split()[-1]}-{success}-{length}",
                    source="drawn",
                    instruction=instruction,
                    kind="measured" if measured else "demonstration" if success else "outcome",
                    success=success,
                    progress=done if measured or success else np.full_like(done, np.nan),
                    times=np.arange(length, dtype=np.float32),
                    grade=5 if success else 1,
                    split="train",
                )
                rows.append(row)
                images.append(np.stack([draw_bar(float(value), colour, shade) for value in done]))
    return PreparedCorpus.from_arrays(rows, images)


def write_corpus(corpus: PreparedCorpus, folder: Path, config: VLMTrainConfig, storage: Storage = "raw") -> Path:
    """Write a corpus as `prepare` does."""
    folder.mkdir(parents=True)
    (folder / PREPARED).write_text(json.dumps({**VLMCorpusPlan(config).facts, "storage": storage}))
    rows: list[CorpusRow] = []
    with (folder / FILES[storage]).open("wb") as file:
        for number, row in enumerate(corpus.rows):
            content, facts = pack_episode(corpus.frames(number), np.asarray, storage)
            rows.append(replace(row, start=file.tell(), **facts))
            file.write(content)
    (folder / EPISODES).write_text("".join(json.dumps(row.as_dict()) + "\n" for row in rows))
    (folder / PREFERENCES).write_text("".join(choice.line() + "\n" for choice in corpus.choices))
    return folder


class WordTokens:
    """One token per word: prompts are a third as long as with a byte tokenizer."""

    special: ClassVar[dict[str, int]] = {**ID, **{name: TOKENS + at for at, name in enumerate(ROBOMETER_TOKENS)}}

    def ids(self, text: str) -> list[int]:
        words = re.findall(r"<\|\w+\|>|\w+|[^\w\s]|\n", text)
        return [self.special.get(word, zlib.crc32(word.encode()) % PLAIN) for word in words]

    def id(self, special: str) -> int:
        return self.special[special]


def tiny_start(seed: int = 0, *, robometer: bool = True) -> VLMStart:
    """Start with random weights of a network of two layers."""
    text = {"num_hidden_layers": 2, "intermediate_size": 64}
    config = tiny_config(TOKENS + 5, text=text, vision={"depth": 2, "deepstack_visual_indexes": [0]})
    weights = random_weights(backbone_shapes(config), seed)
    weights = {name: value for name, value in weights.items() if "lm_head" not in name}
    if robometer:
        weights |= random_weights(head_shapes(), seed)
    tokens: Any = WordTokens()
    return VLMStart(config, weights, tokens, None, "toy", "toy", f"toy {seed}")
