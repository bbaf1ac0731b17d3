"""Tokenizer files, and prompts as blocks of tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from demerit.errors import BadInput
from demerit.models.vlm.config import VLMShape
from demerit.models.vlm.prompt import CUT, BlockEnd, ImageSlot, PromptTokenizer, build_blocks
from demerit.models.vlm.robometer import RobometerProtocol
from fakes.tiny_vlm import ROBOMETER_TOKENS, ROWS, tiny_config, write_tokenizer

TASK = "pick up the cup and put it on the plate"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path)
    return tmp_path / "tokenizer.json"


def test_a_broken_tokenizer_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", bytes(range(256)) * 4, b"{}"):
        path.write_bytes(content)
        with pytest.raises(BadInput):
            PromptTokenizer.read(path)
    path.unlink()
    with pytest.raises(BadInput, match="readable"):
        PromptTokenizer.read(path)


def test_blocks_have_the_tokens_of_the_whole_text(path: Path) -> None:
    shape = VLMShape.from_config(tiny_config(ROWS["robometer"]))
    tokens = PromptTokenizer.read(path, ROBOMETER_TOKENS)
    slots = [ImageSlot(at, 2, 3) for at in range(8)]
    for pieces in (
        RobometerProtocol().progress_pieces(TASK, slots),
        RobometerProtocol().preference_pieces(TASK, slots, slots),
    ):
        text = "".join(
            piece if isinstance(piece, str) else "<|vision_start|>" + "<|image_pad|>" * 6 + "<|vision_end|>"
            for piece in pieces
            if not isinstance(piece, BlockEnd)
        )
        assert [token for block in build_blocks(pieces, tokens, shape) for token in block.ids] == tokens.ids(text)
        assert CUT in pieces
