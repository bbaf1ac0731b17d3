"""tokenizer.model against the sentencepiece package, whose ids are stored in pieces/cases.json."""

import json
from pathlib import Path

import pytest

from demerit.errors import BadInput
from demerit.models.vlm.prompt import PieceTable, read_piece_tokenizer
from fakes.tiny_plain import ADDED, PIECES, tiny_internvl2

CASES = json.loads((PIECES.parent / "cases.json").read_text())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_internvl2(tmp_path / "tiny")


def test_ids_are_those_of_sentencepiece(folder: Path) -> None:
    tokens = read_piece_tokenizer(folder)
    plain = [(text, ids) for text, ids in CASES if "UNUSED" not in text]
    assert len(plain) > 20
    for text, ids in plain:
        assert tokens.ids(text) == ids, text
        assert tokens.text(ids) == text


def test_added_tokens_take_the_places_that_the_config_gives_them(folder: Path) -> None:
    tokens = read_piece_tokenizer(folder)
    assert {at: tokens.id(token) for at, token in ADDED.items()} == {at: at for at in ADDED}
    assert tokens.ids("<s><|im_start|>the<img>") == [1, 8, *tokens.ids("the"), 420]
    assert tokens.has_special("put <img> down") and not tokens.has_special("put <it> down")
    assert len(tokens) == 429


def test_other_added_tokens_are_another_tokenizer(folder: Path, tmp_path: Path) -> None:
    other = tiny_internvl2(tmp_path / "other")
    facts = json.loads((other / "tokenizer_config.json").read_text())
    del facts["added_tokens_decoder"]["428"]
    (other / "tokenizer_config.json").write_text(json.dumps(facts))
    assert read_piece_tokenizer(folder).fingerprint != read_piece_tokenizer(other).fingerprint


@pytest.mark.parametrize("stored", [b"", b"\x80" * 20, b"PK\x03\x04 not a model", PIECES.read_bytes()[:3001]])
def test_a_broken_file_is_refused(folder: Path, stored: bytes) -> None:
    (folder / "tokenizer.model").write_bytes(stored)
    with pytest.raises(BadInput, match=r"tokenizer\.model"):
        read_piece_tokenizer(folder)


def test_merges_make_pieces(folder: Path) -> None:
    table = PieceTable.from_bytes(PIECES.read_bytes())
    known = {text for text, _, _ in table.pieces}
    assert all(first + second in known for first, second in table.merges())
    assert not table.prefix
