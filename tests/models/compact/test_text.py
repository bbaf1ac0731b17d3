"""The text encoder: word pieces, order and opposites, strict loading."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import demerit
from demerit.data.arrays import Floats32
from demerit.errors import BadInput
from demerit.models.compact.engine import (
    HEADS,
    MOST_PIECES,
    PARTS,
    PIECE,
    SPAN,
    WEIGHTS,
    WIDTH,
    TextEncoder,
    save_text_encoder,
    split_word,
)

SHIPPED = Path(demerit.__file__).parent / "assets" / "compact" / "words.npz"


@pytest.fixture(scope="module")
def words() -> TextEncoder:
    return TextEncoder.load(SHIPPED)


def vector(words: TextEncoder, text: str) -> Floats32:
    found = words.vector(text)
    assert found is not None
    return found


def small(path: Path, pieces: list[str], seed: int = 0) -> Path:
    """Write a tower with random weights."""
    draw = np.random.default_rng(seed)
    weights = {name: draw.normal(0, 0.1, shape).astype(np.float32) for name, shape in WEIGHTS.items()}
    save_text_encoder(
        path, pieces, draw.normal(size=(len(pieces), PIECE)).astype(np.float32), weights, {"licence": "none"}
    )
    return path


# Cutting


def naive(word: str, known: set[str], first: bool = True) -> list[str] | None:
    """Greedy, longest first, written as a recursion over the known pieces instead of over the word's ends."""
    if not word:
        return []
    heads = [one if first else one.removeprefix("##") for one in known if one.startswith("##") != first]
    fitting = sorted((head for head in heads if head and word.startswith(head)), key=len)
    if not fitting:
        return None
    rest = naive(word[len(fitting[-1]) :], known, False)
    return None if rest is None else [fitting[-1] if first else "##" + fitting[-1], *rest]


letters = st.text("abc", min_size=1, max_size=4)


@given(st.text("abcd", max_size=12), st.sets(letters), st.sets(letters))
def test_splitting_equals_a_naive_recursion(word: str, starts: set[str], ends: set[str]) -> None:
    known = starts | {"##" + end for end in ends}
    longest = max((len(one.removeprefix("##")) for one in known), default=0)
    assert split_word(word, known, longest) == (naive(word, known) or [])


@given(st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=1, max_size=40))
def test_pieces_spell_the_word(words: TextEncoder, word: str) -> None:
    assert "".join(piece.removeprefix("##") for piece in words.pieces(word)) == word


@given(st.text(max_size=60))
def test_any_text_gives_a_finite_vector_or_none(words: TextEncoder, text: str) -> None:
    found = words.vector(text)
    if found is None:
        assert not re.search("[a-z0-9]", text.lower()) or any(ord(one) > 127 for one in text)
    else:
        assert found.shape == (WIDTH,) and found.dtype == np.float32 and np.isfinite(found).all()


def test_capitals_accents_and_punctuation_do_not_matter(words: TextEncoder) -> None:
    plain = vector(words, "put the cup on the table")
    for text in ("Put the CUP on the table.", "  püt thé cup -- on\tthe\ntable!", "Ｐut the cup on the table"):
        assert np.array_equal(vector(words, text), plain)
    for text in ("", "  \n\t", "...", "___", "漢字", "подними чашку"):
        assert words.vector(text) is None


def test_long_text_is_truncated(words: TextEncoder) -> None:
    text = "put the cup on the table " * 100
    assert len(words.pieces(text)) == MOST_PIECES
    assert np.array_equal(vector(words, text), vector(words, text + "left"))


# The vector


def slow_vector(words: TextEncoder, text: str) -> Floats32:
    """Compute the docstring's network piece by piece, in float64."""
    table, weights = words._vectors, {name: value.astype(np.float64) for name, value in words._weights.items()}
    seen = [table[words._index[piece]].astype(np.float64) for piece in words.pieces(text)]
    whole = np.mean(seen, axis=0)

    def layer(rows: list[Any], weight: Any, bias: Any) -> list[Any]:
        nothing = np.zeros_like(rows[0])
        span = range(-(SPAN // 2), SPAN // 2 + 1)
        beside = [[rows[i + j] if 0 <= i + j < len(rows) else nothing for j in span] for i in range(len(rows))]
        return [np.maximum(np.concatenate(one) @ weight + bias, 0) for one in beside]

    near = layer(seen, weights["near"], whole @ weights["whole"] + weights["near_bias"])
    far = layer(near, weights["far"], weights["far_bias"])
    summary = [whole]
    for head in range(HEADS):
        share = np.exp([one @ weights["heads"][:, head] for one in far])
        summary.append(sum(s * one for s, one in zip(share / share.sum(), seen, strict=True)))
    found = np.concatenate([*summary, np.mean(far, axis=0)]) @ weights["out"] + weights["out_bias"]
    part = found[PARTS["sentence"]]
    found[PARTS["sentence"]] = part / np.linalg.norm(part) * np.sqrt(len(part))
    return np.asarray(found, np.float32)


@pytest.mark.parametrize("text", ["open", "put the red cup on the plate", "use the zyzzyva to poke it, then stop"])
def test_the_vector_equals_a_slow_computation(words: TextEncoder, text: str) -> None:
    assert np.allclose(vector(words, text), slow_vector(words, text), atol=1e-3)


# The file


def test_the_file_is_small_and_names_its_licences(words: TextEncoder) -> None:
    assert SHIPPED.stat().st_size <= 2_500_000
    assert words.about["licence"] == "Apache-2.0"
    assert [one.endswith("Apache-2.0") for one in words.about["made_from"]] == [True, True]


def test_a_saved_encoder_loads(tmp_path: Path) -> None:
    tower = TextEncoder.load(small(tmp_path / "words.npz", ["a", "b", "##b"]))
    assert tower.about == {"format": 1, "licence": "none"}
    assert tower.pieces("ab ba B") == ["a", "##b", "b"]
    again = small(tmp_path / "again.npz", ["a", "b", "##b"])
    assert again.read_bytes() == (tmp_path / "words.npz").read_bytes()


@pytest.mark.parametrize("cut", [None, 0, 10, 1000, -100])
def test_a_missing_or_short_file_is_refused(tmp_path: Path, cut: int | None) -> None:
    path = small(tmp_path / "words.npz", ["a", "b"])
    data = path.read_bytes()
    path.unlink()
    if cut is not None:
        path.write_bytes(data[:cut])
    with pytest.raises(BadInput):
        TextEncoder.load(path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small(tmp_path_factory.mktemp("whole") / "words.npz", ["a", "b"])


@settings(max_examples=40)
@given(st.integers(0, 10**9), st.integers(1, 255))
def test_a_changed_byte_never_loads_as_other_numbers(whole: Path, place: int, flips: int) -> None:
    before, data = vector(TextEncoder.load(whole), "a b"), bytearray(whole.read_bytes())
    data[-1 - place % min(len(data), 10 ** (place % 7))] ^= flips  # often near the end, where the directory is
    changed = whole.with_name("changed.npz")
    changed.write_bytes(data)
    try:
        after = vector(TextEncoder.load(changed), "a b")
    except BadInput:
        return
    assert np.array_equal(before, after)


@pytest.mark.parametrize(
    "changes",
    [
        {"heads": None},
        {"more": np.zeros(1)},
        {"out": np.zeros((3, 2), np.float16)},
        {"vectors": np.zeros((2, PIECE), np.float32)},
        {"vectors": np.zeros((3, PIECE), np.int8)},
        {"scales": np.array([np.nan, 1], np.float16)},
        {"pieces": np.frombuffer(b"a\na", np.uint8)},
        {"pieces": np.frombuffer(b"\xff", np.uint8)},
        {"about": np.frombuffer(b"{", np.uint8)},
        {"about": np.frombuffer(b"[]", np.uint8)},
        {"about": np.frombuffer(b'{"format": 2}', np.uint8)},
        {"heads": np.array([object()])},  # a pickle
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_wrong_arrays_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = small(tmp_path / "words.npz", ["a", "b"])
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files} | changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(BadInput):
        TextEncoder.load(path)
