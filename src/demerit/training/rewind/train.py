"""ReWiND in torch: the network and its objective, training on a prepared corpus, and the export.

An instruction and frames in order give progress at every frame; causal. The folder that is written holds the tower, the
transformer as ONNX, and their facts.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx  # noqa: F401 - torch.onnx needs it, and a run without it should not start
import torch
from torch import Tensor, nn

from demerit.data.arrays import Floats32
from demerit.data.files import atomic_file, make_folder
from demerit.data.frames import short_hash
from demerit.data.splits import SEEN
from demerit.models.compact.engine import FILES, INFO, WIDTH, Engine, TextEncoder, shipped_folder
from demerit.models.loading import OUTPUT, write_description
from demerit.models.rewind import HEAD, KIND, TOWER_FOLDER, RewindInfo
from demerit.training.loop import LoopReport, TrainingLoop, choose_device, export_graph, write_folder
from demerit.training.prepared import CorpusRow, PreparedCorpus, collect_seen, hash_rows
from demerit.training.rewind.data import RewindClip, RewindSampler, RewindTrainConfig

DROPOUT = 0.1


class CausalBlock(nn.Module):
    """Attention to the tokens so far and a feed-forward layer, each normalised afterwards (as in the authors' code)."""

    def __init__(self, hidden: int, heads: int) -> None:
        """Start with random weights."""
        super().__init__()
        self.heads, self.scale = heads, (hidden // heads) ** -0.5
        self.ask = nn.Linear(hidden, 3 * hidden)
        self.join = nn.Linear(hidden, hidden)
        wide = 4 * hidden
        self.think = nn.Sequential(
            nn.Linear(hidden, wide), nn.ReLU(), nn.Dropout(DROPOUT), nn.Linear(wide, hidden), nn.Dropout(DROPOUT)
        )
        self.drop = nn.Dropout(DROPOUT)
        self.first_normal, self.second_normal = nn.LayerNorm(hidden), nn.LayerNorm(hidden)

    def forward(self, tokens: Tensor, later: Tensor) -> Tensor:
        """Compute (n, tokens, hidden); `later` (tokens, tokens) is True where a token may not look."""
        each = self.ask(tokens).reshape(tokens.shape[0], tokens.shape[1], 3 * self.heads, -1).transpose(1, 2)
        queries, keys, values = each.chunk(3, dim=1)
        match = queries @ keys.transpose(2, 3) * self.scale
        mixture = match.masked_fill(later, float("-inf")).softmax(dim=-1) @ values
        tokens = self.first_normal(tokens + self.drop(self.join(mixture.transpose(1, 2).flatten(2))))
        result: Tensor = self.second_normal(tokens + self.think(tokens))
        return result


class RewindNetwork(nn.Module):
    """Features of frames and an instruction's vector to progress. Only the first frame has a place of its own."""

    def __init__(self, features: int, words: int, hidden: int, layers: int, heads: int) -> None:
        """Start with random weights."""
        super().__init__()
        self.look, self.read = nn.Linear(features, hidden), nn.Linear(words, hidden)
        self.first = nn.Parameter(torch.randn(hidden) * 0.02)
        self.blocks = nn.ModuleList(CausalBlock(hidden, heads) for _ in range(layers))
        self.progress = nn.Sequential(
            nn.Linear(hidden, hidden // 2),
            nn.LayerNorm(hidden // 2),
            nn.GELU(),
            nn.Dropout(DROPOUT),
            nn.Linear(hidden // 2, 1),
            nn.Sigmoid(),
        )

    def forward(self, features: Tensor, words: Tensor) -> Tensor:
        """Compute (n, frames) from 0 to 1, of (n, frames, features) and (n, words)."""
        states = self.look(features)
        tokens = torch.cat([self.read(words).unsqueeze(1), states[:, :1] + self.first, states[:, 1:]], dim=1)
        place = torch.arange(tokens.shape[1], device=tokens.device)
        later = place.unsqueeze(0) > place.unsqueeze(1)
        for block in self.blocks:
            tokens = block(tokens, later)
        progress: Tensor = self.progress(tokens[:, 1:])
        return progress.squeeze(-1)


def rewind_losses(own: Tensor, other: Tensor | None, targets: Tensor, weight: float) -> dict[str, Tensor]:
    """Compute ReWiND's objective, (r_t - target)^2 + (r^-_t)^2, as means over the frames with a target.

    Args:
        own: (n, frames) progress under the clip's instruction.
        other: the same under another task's instruction, which is worth 0; None = not computed.
        targets: t / T, along the rewind where there is one; NaN where unknown or padded.
        weight: of the second term.
    """
    is_known = ~targets.isnan()
    losses = {"progress": known_mean((own - targets.nan_to_num()) ** 2, is_known)}
    if other is not None:
        losses["mismatched"] = weight * known_mean(other**2, is_known)
    return losses


def known_mean(values: Tensor, known: Tensor) -> Tensor:
    """Average the known values; 0 if there are none."""
    weights = known.to(values.dtype)
    return (values * weights).sum() / weights.sum().clamp(min=1)


CREDITS = {
    "metaworld": "Meta-World's scenes and robot (MIT), simulated by demerit",
    "droid": "DROID (CC-BY-4.0): Khazatsky et al. 2024, {count:,} demonstrations",
    "roboarena": "RoboArena (MIT) rollouts, with progress curves by Robometer as a teacher",
}
"""by the name of the dataset; other datasets are credited by their name"""
REPORT_EVERY = 10
"""steps"""


@dataclass(frozen=True, eq=False)
class RewindBatch:
    """The clips of one step on the device: n clips."""

    frames: Tensor
    targets: Tensor
    words: Tensor
    others: Tensor
    """(n, words): instructions of other tasks"""
    mismatched: Tensor
    """(n,), True where there is another instruction"""


class RewindTrainer(TrainingLoop[RewindNetwork, list[RewindClip], RewindBatch]):
    """One training run over features that were computed before."""

    def __init__(
        self,
        rows: Sequence[CorpusRow],
        features: Floats32,
        config: RewindTrainConfig,
        words: TextEncoder,
        folder: str | Path,
        device: str | None = None,
        network: str = "",
    ) -> None:
        """Set up, and resume from the folder's checkpoint if it is of the same configuration, episodes and network.

        Args:
            rows: Every episode of the corpus.
            features: (frames, features) of all of them, in order.
            config: Every number.
            words: The text tower.
            folder: Where checkpoints go.
            device: `cpu` or `cuda`; by default a GPU if there is one.
            network: Hash of the network that computed the features.
        """
        place = choose_device(device)
        self.config, self.sampler = config, RewindSampler(rows, config)
        self.instructions = InstructionTable((row.instruction for row in rows), words, place)
        self.features = torch.from_numpy(np.array(features)).to(place)
        identity = json.dumps([config.as_dict(), hash_rows(self.sampler.rows), network], sort_keys=True)
        torch.manual_seed(config.seed)
        width = self.instructions.table.shape[1]
        untrained = RewindNetwork(features.shape[1], width, config.hidden, config.layers, config.heads).to(place)
        super().__init__(
            untrained,
            [{"params": list(untrained.parameters()), "lr": config.rate}],
            Path(folder),
            identity,
            seed=config.seed,
            steps=config.steps,
            average=config.average,
            decay=config.decay,
        )

    def sample(self, rng: np.random.Generator) -> list[RewindClip]:
        """Sample the clips of one step."""
        return self.sampler.sample(rng)

    def to_batch(self, sample: list[RewindClip]) -> RewindBatch:
        """Move clips to the device."""
        frames, targets = (
            torch.from_numpy(np.stack(column)).to(self.device)
            for column in ([clip.frames for clip in sample], [clip.targets for clip in sample])
        )
        words, _ = self.instructions.take([clip.instruction for clip in sample])
        others, mask = self.instructions.take([clip.other for clip in sample])
        return RewindBatch(frames, targets, words, others, mask.squeeze(1) > 0)

    def compute_losses(self, batch: RewindBatch, generator: torch.Generator) -> dict[str, Tensor]:
        """Compute the objective; both terms in one pass."""
        features, count = self.features[batch.frames].float(), len(batch.frames)
        apart = batch.mismatched
        if not self.config.mismatched or not bool(apart.any()):
            return rewind_losses(self.network(features, batch.words), None, batch.targets, 0.0)
        both = self.network(torch.cat([features, features]), torch.cat([batch.words, batch.others]))
        other = both[count:] * apart.unsqueeze(1)  # a clip without another instruction adds nothing
        return rewind_losses(both[:count], other, batch.targets, self.config.mismatched)


def train_rewind(
    corpus: PreparedCorpus,
    out: str | Path,
    config: RewindTrainConfig,
    network: str | Path | None = None,
    report: LoopReport | None = None,
    device: str | None = None,
    on_features: Callable[[int], None] = lambda frames: None,
) -> Path:
    """Train, export and return the model's folder, `out/network`. Checkpoints and features are in `out/run`.

    Args:
        corpus: What `prepare` wrote with the compact model's plan.
        out: Where everything goes. The same call resumes a run that was stopped.
        config: Every number.
        network: Folder of another compact network for features and words; the shipped one by default.
        report: Called every ten steps.
        device: `cpu` or `cuda`; by default a GPU if there is one.
        on_features: Called with the number of frames whose features are computed.
    """
    choose_device(device)
    out, tower = Path(out), Path(network or shipped_folder())
    engine = Engine.load(tower)
    features = compute_features(corpus, engine, out / "run", on_features)
    words = TextEncoder.load(tower / FILES[-1])
    trainer = RewindTrainer(corpus.rows, features, config, words, out / "run", device, engine.hash)
    trained = trainer.run(report, REPORT_EVERY)
    return export_rewind(trained, out / OUTPUT, tower, config, trainer.sampler.rows)


def compute_features(
    corpus: PreparedCorpus, engine: Engine, folder: Path, on_features: Callable[[int], None] = lambda frames: None
) -> Floats32:
    """Compute the tower's vector of every frame, as float16; a stopped run continues behind the last save.

    Episodes that share frames, as an original and its counterfactuals and clips do, cost as much as one.
    """
    name = short_hash(engine.hash.encode(), corpus.identity.encode())
    path, partial = make_folder(folder) / f"features-{name}.npy", folder / f"features-{name}.partial"
    width = engine.info.vector
    if path.exists():
        features: Floats32 = np.load(path, mmap_mode="r")
        return features
    done = partial.stat().st_size // (2 * width) if partial.exists() else 0
    cache: dict[bytes, Floats32] = {}
    """by the hashes of the first frame and the frame"""
    with partial.open("ab") as file:
        file.truncate(done * 2 * width)
        first = 0
        for number, row in enumerate(corpus.rows):
            if first + row.frames > done:
                images = corpus.frames(number).all()
                hashes = [hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in images]
                keys = [hashes[0] + hash for hash in hashes]
                new = [place for place, key in enumerate(keys) if key not in cache]
                if new:
                    vectors = engine.features(images[new], images[0])[:, :width].astype(np.float16)
                    cache.update(zip([keys[place] for place in new], vectors, strict=True))
                file.write(np.stack([cache[key] for key in keys])[max(0, done - first) :].tobytes())
                file.flush()
                on_features(first + row.frames)
            first += row.frames
    with atomic_file(path) as whole, whole.open("wb") as file:
        np.save(file, np.fromfile(partial, np.float16).reshape(-1, width))
    partial.unlink()
    return compute_features(corpus, engine, folder, on_features)


def export_rewind(
    network: RewindNetwork, folder: Path, tower: Path, config: RewindTrainConfig, rows: Sequence[CorpusRow]
) -> Path:
    """Write a model folder of kind `rewind`; it appears when it is complete."""
    network = deepcopy(network).cpu().float().eval()
    described = json.dumps([config.as_dict(), [row.id for row in rows]], sort_keys=True)
    with write_folder(folder, "The last checkpoint is kept: rerun to export the model.") as partial:
        (partial / TOWER_FOLDER).mkdir()
        for name in (INFO, SEEN, *FILES):
            if (tower / name).exists():
                shutil.copyfile(tower / name, partial / TOWER_FOLDER / name)
        example = (torch.zeros(2, 3, network.look.in_features), torch.zeros(2, network.read.in_features))
        dynamic = {"features": {0: "n", 1: "t"}, "words": {0: "n"}, "progress": {0: "n", 1: "t"}}
        export_graph(network, example, partial / HEAD, ["features", "words"], ["progress"], dynamic)
        (partial / SEEN).write_bytes(collect_seen(rows).content())
        facts = {"recipe": config.as_dict(), "episodes": dict(sorted(Counter(row.source for row in rows).items()))}
        (partial / "training.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        info = RewindInfo(
            frames=config.frames,
            head=hashlib.sha256((partial / HEAD).read_bytes()).hexdigest(),
            revision=hashlib.sha256(described.encode()).hexdigest()[:12],
            licence="Apache-2.0",
            trained_on=tuple(list_credits(rows)),
        )
        write_description(partial, KIND, **info.as_dict())
    return folder


class InstructionTable:
    """Vectors of every instruction of a corpus."""

    def __init__(self, instructions: Iterable[str], words: TextEncoder, device: torch.device) -> None:
        """Compute them once; unknown instructions have no vector."""
        vectors = {text: words.vector(text) for text in sorted({text for text in instructions if text})}
        rows = {text: vector for text, vector in vectors.items() if vector is not None}
        self.numbers = {text: number for number, text in enumerate(rows)}
        table = list(rows.values()) or [np.zeros(WIDTH, dtype=np.float32)]
        self.table = torch.from_numpy(np.stack(table)).to(device)

    def take(self, instructions: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return (n, width) vectors, and (n, 1) with 1 where there is one."""
        numbers = torch.tensor([self.numbers.get(text, -1) for text in instructions], device=self.table.device)
        mask = (numbers >= 0).float().unsqueeze(1)
        return self.table[numbers.clamp(min=0)] * mask, mask


def list_credits(rows: Iterable[CorpusRow]) -> list[str]:
    """Credit the datasets as their licences ask."""
    counts = Counter(row.source for row in rows)
    return [CREDITS[name].format(count=n) if name in CREDITS else name for name, n in sorted(counts.items())]
