"""Tokenizer files."""

from pathlib import Path

import pytest

from demerit.errors import BadInput
from demerit.models.vlm.prompt import PromptTokenizer
from fakes.tiny_vlm import write_tokenizer


def test_a_broken_tokenizer_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", bytes(range(256)) * 4, b"{}"):
        path.write_bytes(content)
        with pytest.raises(BadInput):
            PromptTokenizer.read(path)
    path.unlink()
    with pytest.raises(BadInput, match="readable"):
        PromptTokenizer.read(path)
