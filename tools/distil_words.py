"""Train the compact model's text tower: `python tools/distil_words.py TEACHER_FOLDER -o words.npz`.

TEACHER_FOLDER holds all-MiniLM-L6-v2 (config.json, vocab.txt, model.safetensors). The tower learns from sentences of a
grammar and from the real instructions of `--sentences`: the teacher's sentence vectors, the teacher's vectors of what
is moved and where it goes, and the opposites that the grammar knows. A fifth of the real instructions, chosen by a
hash, and all of `--unseen` are held out; the table printed at the end is about those. Needs PyTorch and about ten
minutes on one core. It uses one thread and fixed seeds, so the result is reproducible.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from demerit.data.arrays import Floats32
from demerit.data.episode import plain_words
from demerit.errors import BadInput, DemeritError, MissingExtra
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
from measure_words import THINGS, Encoder, report
from sentences import Grammar, known_words

if TYPE_CHECKING:
    import torch

    from minilm import MiniLM

SEED = 20
COMMON_WORDS, ALL_WORDS, ENDINGS = 6000, 11500, 1800
TAUGHT, DRAWN = 24_000, 60_000  # sentences that the teacher reads; sentences of which only the meaning is taught
EPOCHS, BATCH, RATE = 10, 256, 2e-3
SIGN = 3  # most of the twenty signs are 0: at 3 their mean square is nearly that of the other parts' components
ABOUT = {
    "licence": "Apache-2.0",
    "made_from": [
        "sentence-transformers/all-MiniLM-L6-v2, Apache-2.0",
        "the uncased vocabulary of BERT (google-research/bert), Apache-2.0",
    ],
}


class PieceVocabulary:
    """The tower's pieces and the teacher's vector of each."""

    def __init__(self, pieces: list[str], alone: Floats32) -> None:
        """Number the pieces."""
        self.pieces, self.alone = pieces, alone
        self._index = {piece: i for i, piece in enumerate(pieces)}

    def cut(self, text: str) -> list[int]:
        """Return the numbers of a text's pieces, split as the tower splits it."""
        found = [piece for word in plain_words(text) for piece in split_word(word, self._index, len(word))]
        return [self._index[piece] for piece in found[:MOST_PIECES]]


@dataclass(frozen=True)
class DistillationSet:
    """Pieces of each sentence, target vectors (n, WIDTH), and whether sentence and meaning are known (n, 2)."""

    cut: list[list[int]]
    wanted: Floats32
    known: Floats32


def instructions(path: Path) -> list[str]:
    """Return the distinct instructions of a JSON or JSON-lines file: every text under `instruction(s)`."""
    try:
        text = path.read_text("utf-8")
        rows = [json.loads(text)] if path.suffix == ".json" else [json.loads(line) for line in text.splitlines()]
    except (OSError, ValueError) as error:
        raise BadInput(str(path), "a JSON or JSON-lines file with instructions", error) from error
    return sorted({text for row in rows for text in _texts(row)})


def _texts(node: Any, asked: bool = False) -> Iterator[str]:
    if isinstance(node, str) and asked:
        yield node
    for key, value in node.items() if isinstance(node, dict) else ():
        yield from _texts(value, key in {"instruction", "instructions"})
    for value in node if isinstance(node, list) else ():
        yield from _texts(value, asked)


def is_held_out(text: str) -> bool:
    """Whether a real instruction is held out: one in five, ignoring capitals and punctuation."""
    return hashlib.sha256(" ".join(plain_words(text)).encode()).digest()[0] % 5 == 0


def choose_pieces(teacher: MiniLM, wanted: Iterable[str]) -> PieceVocabulary:
    """Take the wanted words, the commonest words, those nearest in meaning to the wanted ones, and word endings.

    The file should be small, and most of BERT's vocabulary is names of people and places.
    """
    numbers = {piece: i for i, piece in enumerate(teacher.vocabulary) if re.fullmatch(r"(##)?[a-z0-9]+", piece)}
    alone = dict(zip(numbers, teacher.encode_tokens([_frame_tokens([i]) for i in numbers.values()]), strict=True))
    must = sorted(set(wanted))
    new = [word for word in must if word not in numbers]
    alone |= dict(zip(new, teacher.encode(new), strict=True))
    words = [piece for piece in numbers if not piece.startswith("##")]
    endings = [piece for piece in numbers if piece.startswith("##")]
    letters = [piece for piece in numbers if len(piece.removeprefix("##")) == 1]
    keep = dict.fromkeys([*letters, *must, *words[:COMMON_WORDS], *endings[:ENDINGS]])
    rest = [word for word in words if word not in keep]
    vectors = np.stack([alone[word] for word in [*rest, *must]])
    vectors -= vectors.mean(axis=0)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    nearness = (vectors[: len(rest)] @ vectors[len(rest) :].T).max(axis=1)
    nearest = [rest[i] for i in np.argsort(-nearness, kind="stable")]
    pieces = [*keep, *nearest[: max(0, ALL_WORDS + ENDINGS - len(keep))]]
    return PieceVocabulary(pieces, np.stack([alone[piece] for piece in pieces]))


def _frame_tokens(ids: list[int]) -> list[int]:
    return [101, *ids, 102]  # [CLS] and [SEP] of BERT's vocabulary


def prepare(teacher: MiniLM, words: PieceVocabulary, real: Sequence[str]) -> tuple[DistillationSet, Floats32]:
    """Return the training set, and the initial vectors of the pieces (the teacher's, projected and weighted)."""
    grammar = Grammar([one for one in words.pieces if len(one) > 3 and one.isalpha() and one not in THINGS], SEED)
    drawn = [grammar.sentence() for _ in range(TAUGHT + DRAWN)]
    taught = drawn[:TAUGHT]
    phrases = sorted({phrase for one in taught for phrase in (one.what, one.where) if phrase})
    meaning = dict(zip(phrases, _principal_parts(teacher.encode(phrases)), strict=True)) | {
        "": np.zeros(30, np.float32)
    }
    further = [one for one in drawn[TAUGHT:] if one.what in meaning and one.where in meaning]
    said = teacher.encode([*(one.text for one in taught), *real])
    moment = np.concatenate([said, words.alone])
    basis = np.linalg.eigh((moment.T @ moment).astype(np.float64))[1][:, ::-1][:, :PIECE].astype(np.float32)
    rows = [*taught, *further]
    cut = [words.cut(one.text) for one in rows] + [words.cut(text) for text in real] * 4
    cut += [[i] for i in range(len(words.pieces))]
    wanted, known = np.zeros((len(cut), WIDTH), np.float32), np.zeros((len(cut), 2), np.float32)
    known[:TAUGHT, 0], known[len(rows) :, 0], known[: len(rows), 1] = 1, 1, 1
    sentence = _normalise(
        np.concatenate([said[:TAUGHT], *[said[TAUGHT:]] * 4, words.alone]) @ basis[:, PARTS["sentence"]]
    )
    wanted[known[:, 0] == 1, PARTS["sentence"]] = sentence
    for row, one in enumerate(rows):
        wanted[row, PARTS["sentence"].stop :] = [*meaning[one.what], *meaning[one.where], *one.signs]
    counts = Counter(i for one in cut[: len(rows)] for i in one)
    share = np.array([counts[i] for i in range(len(words.pieces))]) / sum(counts.values())
    first = words.alone @ basis * (0.01 / (0.01 + share))[:, None].astype(np.float32)
    return DistillationSet(cut, wanted, known), first


def _principal_parts(vectors: Floats32) -> Floats32:
    """Project phrases onto their 30 principal components, with a mean square of 1."""
    centred = vectors - vectors.mean(axis=0)
    basis = np.linalg.eigh((centred.T @ centred).astype(np.float64))[1][:, ::-1][:, :30]
    return _normalise((centred @ basis).astype(np.float32)) * np.float32(np.sqrt(30))


def _normalise(rows: Floats32) -> Floats32:
    unit: Floats32 = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6)
    return unit


def fit(lesson: DistillationSet, first: Floats32) -> tuple[Floats32, dict[str, Floats32]]:
    """Train the vectors of the pieces and the network's weights."""
    import torch

    torch.manual_seed(SEED)
    table = torch.tensor(first, requires_grad=True)
    weights = {name: torch.randn(shape) * (2 / shape[0]) ** 0.5 for name, shape in WEIGHTS.items() if len(shape) > 1}
    weights |= {name: torch.zeros(shape) for name, shape in WEIGHTS.items() if len(shape) == 1}
    weights["heads"] *= 0.3
    weights["out"] *= 0.2
    weights["out"][:PIECE] = torch.eye(PIECE, WIDTH) * (torch.arange(WIDTH) < PARTS["sentence"].stop)
    parameters = [table, *(weight.requires_grad_() for weight in weights.values())]
    steps = EPOCHS * (len(lesson.cut) // BATCH)
    optimiser = torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.0)
    plan = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=steps, pct_start=0.05)
    draw = np.random.default_rng(SEED)
    for step in range(steps):
        if step % (steps // EPOCHS) == 0:
            order, total = draw.permutation(len(lesson.cut)), 0.0
        rows = order[step % (steps // EPOCHS) * BATCH :][:BATCH]
        found = _forward(table, weights, [lesson.cut[row] for row in rows])
        loss = _loss(found, torch.from_numpy(lesson.wanted[rows]), torch.from_numpy(lesson.known[rows]))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        plan.step()
        total += float(loss.detach())
        if (step + 1) % (steps // EPOCHS) == 0:
            print(
                f"epoch {(step + 1) // (steps // EPOCHS)} of {EPOCHS}: loss {total / (steps // EPOCHS):.4f}", flush=True
            )
    learned = {name: weight.detach().numpy() for name, weight in weights.items()}
    for name in ("out", "out_bias"):
        learned[name][..., PARTS["signs"]] *= SIGN
    return table.detach().numpy(), learned


def _forward(table: torch.Tensor, weights: dict[str, torch.Tensor], cut: list[list[int]]) -> torch.Tensor:
    """Compute `TextEncoder.vector` for many sentences at once, padded with zeros."""
    import torch
    from torch.nn import functional

    most = max(len(one) for one in cut)
    ids = torch.tensor([one + [0] * (most - len(one)) for one in cut])
    mask = (torch.arange(most) < torch.tensor([[len(one)] for one in cut])).float()[:, :, None]
    count = mask.sum(dim=1)

    def around(rows: torch.Tensor) -> torch.Tensor:
        padded = functional.pad(rows, (0, 0, SPAN // 2, SPAN // 2))
        return torch.cat([padded[:, i : i + most] for i in range(SPAN)], dim=2)

    seen = functional.embedding(ids, table) * mask
    whole = seen.sum(dim=1) / count
    near = around(seen) @ weights["near"] + (whole @ weights["whole"] + weights["near_bias"])[:, None]
    far = torch.relu(around(torch.relu(near) * mask) @ weights["far"] + weights["far_bias"]) * mask
    picks = torch.softmax((far @ weights["heads"]).masked_fill(mask == 0, -1e9), dim=1)
    picked = (picks.transpose(1, 2) @ seen).reshape(len(cut), HEADS * PIECE)
    return torch.cat([whole, picked, far.sum(dim=1) / count], dim=1) @ weights["out"] + weights["out_bias"]


def _loss(found: torch.Tensor, wanted: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    from torch.nn import functional

    taught, meant = known[:, 0] == 1, known[:, 1] == 1
    sentence = functional.normalize(found[taught, PARTS["sentence"]], dim=1)
    target = wanted[taught, PARTS["sentence"]]
    off = (sentence - target).square().sum(dim=1).mean() + 4 * (
        sentence @ sentence.T - target @ target.T
    ).square().mean()
    error = (found - wanted)[meant].square()
    slots = error[:, PARTS["what"]].mean() + error[:, PARTS["where"]].mean()
    return 2 * off + 0.5 * slots + 4 * error[:, PARTS["signs"]].mean()


def distil(
    folder: Path, real: Sequence[Path], unseen: Sequence[Path], output: Path, credit: Sequence[str] = ()
) -> None:
    """Choose pieces, train, write the file and measure it; `credit` names the source of `real`."""
    try:
        import torch

        from minilm import MiniLM
    except ImportError as error:
        raise MissingExtra("Making the text tower", "train") from error
    torch.set_num_threads(1)
    teacher = MiniLM(folder)
    groups = {path: instructions(path) for path in (*real, *unseen)}
    learned = [text for path in real for text in groups[path] if not is_held_out(text) and plain_words(text)]
    words = choose_pieces(teacher, [*known_words(), *_plain_words_of(learned)])
    lesson, first = prepare(teacher, words, learned)
    vectors, weights = fit(lesson, first)
    digest = hashlib.sha256("\n".join(learned).encode()).hexdigest()
    about = {**ABOUT, "learned_from": list(credit), "real_sentences": len(learned), "real_sentences_sha256": digest}
    save_text_encoder(output, words.pieces, vectors, weights, about)
    held = {path.stem: [text for text in groups[path] if is_held_out(text)] for path in real}
    held |= {path.stem: groups[path] for path in unseen}
    print(f"{output}: {output.stat().st_size:,} bytes, {len(words.pieces)} pieces")
    print(report(TextEncoder.load(output), teacher.encode, _static(words, first), held))


def _plain_words_of(texts: Sequence[str]) -> list[str]:
    """Return the words of two or more plain letters."""
    return [word for text in texts for word in plain_words(text) if re.fullmatch("[a-z]{2,}", word)]


def _static(words: PieceVocabulary, first: Floats32) -> dict[str, Encoder]:
    """Return the baselines: plain and weighted means of the teacher's vectors of the pieces."""

    def mean_of(table: Floats32) -> Encoder:
        return lambda texts: np.stack([table[words.cut(text)].mean(axis=0) for text in texts])

    return {"plain mean": mean_of(words.alone), "weighted mean": mean_of(first)}


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("teacher", type=Path, help="folder of all-MiniLM-L6-v2")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the file to write")
    parser.add_argument("--sentences", type=Path, action="append", default=[], help="real instructions to learn from")
    parser.add_argument("--unseen", type=Path, action="append", default=[], help="real instructions to measure on only")
    parser.add_argument("--credit", action="append", default=[], help="whose they are, for the file's own record")
    given = parser.parse_args()
    try:
        distil(given.teacher, given.sentences, given.unseen, given.output, given.credit)
    except DemeritError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
