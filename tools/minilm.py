"""The teacher of the text tower: all-MiniLM-L6-v2 (Apache-2.0), read from a folder and run with PyTorch alone."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from demerit.errors import BadInput
from demerit.models.compact.engine import split_word

_TOKEN = re.compile(r"[\u3400-\u9fff]|[^\W_\u3400-\u9fff]+|[^\w\s]|_")
BATCH = 512


class MiniLM:
    """The teacher; `encode` returns one unit vector per sentence."""

    def __init__(self, folder: Path) -> None:
        """Read `config.json`, `vocab.txt` and `model.safetensors` of the folder."""
        self.vocabulary = _read(folder, "vocab.txt").decode("utf-8").rstrip("\n").split("\n")
        self._config = json.loads(_read(folder, "config.json"))
        self._index = {piece: i for i, piece in enumerate(self.vocabulary)}
        self._weights = _tensors(_read(folder, "model.safetensors"))

    def tokens(self, text: str) -> list[int]:
        """Return BERT's token numbers, with [CLS] and [SEP]."""
        bare = "".join(one for one in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(one) != "Mn")
        pieces = ["[CLS]"]
        for word in _TOKEN.findall(bare):
            pieces += split_word(word, self._index, len(word)) or ["[UNK]"]
        return [self._index[piece] for piece in [*pieces[:255], "[SEP]"]]

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return unit vectors, one row per text."""
        return self.encode_tokens([self.tokens(text) for text in texts])

    @torch.inference_mode()
    def encode_tokens(self, tokens: Sequence[list[int]]) -> npt.NDArray[np.float32]:
        """Return unit vectors; sentences of one length are computed together, without padding."""
        found = np.zeros((len(tokens), self._config["hidden_size"]), np.float32)
        by_length: dict[int, list[int]] = defaultdict(list)
        for row, one in enumerate(tokens):
            by_length[len(one)].append(row)
        for rows in by_length.values():
            for start in range(0, len(rows), BATCH):
                some = rows[start : start + BATCH]
                hidden = self._layers(torch.tensor([tokens[row] for row in some]))
                found[some] = functional.normalize(hidden.mean(dim=1), dim=1).numpy()
        return found

    def _layers(self, ids: torch.Tensor) -> torch.Tensor:
        table = "embeddings.{}_embeddings.weight".format
        hidden = self._weights[table("word")][ids]
        hidden = hidden + self._weights[table("position")][: ids.shape[1]] + self._weights[table("token_type")][0]
        hidden = self._norm("embeddings", hidden)
        for layer in range(self._config["num_hidden_layers"]):
            name = f"encoder.layer.{layer}"
            mixed = self._line(f"{name}.attention.output.dense", self._attention(f"{name}.attention.self", hidden))
            hidden = self._norm(f"{name}.attention.output", hidden + mixed)
            inner = functional.gelu(self._line(f"{name}.intermediate.dense", hidden))
            hidden = self._norm(f"{name}.output", hidden + self._line(f"{name}.output.dense", inner))
        return hidden

    def _attention(self, name: str, hidden: torch.Tensor) -> torch.Tensor:
        count, length, width = hidden.shape
        heads = self._config["num_attention_heads"]
        query, key, value = (
            self._line(f"{name}.{part}", hidden).view(count, length, heads, -1).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return mixed.transpose(1, 2).reshape(count, length, width)

    def _line(self, name: str, hidden: torch.Tensor) -> torch.Tensor:
        return functional.linear(hidden, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])

    def _norm(self, name: str, hidden: torch.Tensor) -> torch.Tensor:
        weight, bias = (self._weights[f"{name}.LayerNorm.{part}"] for part in ("weight", "bias"))
        return functional.layer_norm(hidden, hidden.shape[-1:], weight, bias, self._config["layer_norm_eps"])


def _read(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise BadInput(str(folder), "the folder of all-MiniLM-L6-v2", f"no readable {name}") from error


def _tensors(data: bytes) -> dict[str, torch.Tensor]:
    """Read the safetensors format: the header's length, the header (JSON), the numbers."""
    size = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8 : 8 + size])
    found = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        first, last = (8 + size + offset for offset in entry["data_offsets"])
        numbers = np.frombuffer(data[first:last], "<f4").reshape(entry["shape"])
        found[name] = torch.from_numpy(numbers.copy())
    return found
