"""Train ReWiND on a prepared corpus and export it: the tower's folder, the transformer as ONNX, and their facts."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx  # noqa: F401 - torch.onnx needs it, and a run without it should not start
import torch
from torch import Tensor

from demerit.data.files import atomic_file, make_folder
from demerit.data.frames import short_hash
from demerit.data.seen import SEEN
from demerit.models.compact.engine import FILES, INFO, Engine, shipped_folder
from demerit.models.compact.text import TextEncoder
from demerit.models.loading import OUTPUT, write_description
from demerit.models.rewind import HEAD, KIND, TOWER_FOLDER, RewindInfo
from demerit.training.compact.inputs import InstructionTable
from demerit.training.compact.train import export_graph, list_credits
from demerit.training.loop import LoopReport, TrainingLoop
from demerit.training.prepared import CorpusRow, Floats, PreparedCorpus, collect_seen, hash_rows
from demerit.training.rewind.clips import RewindClip, RewindSampler
from demerit.training.rewind.config import RewindTrainConfig
from demerit.training.rewind.network import RewindNetwork, RewindShape, rewind_losses
from demerit.training.run_control import choose_device, write_folder

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
        features: Floats,
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
        identity = json.dumps([config.to_json(), hash_rows(self.sampler.rows), network], sort_keys=True)
        torch.manual_seed(config.seed)
        width = self.instructions.table.shape[1]
        shape = RewindShape(features.shape[1], width, config.hidden, config.layers, config.heads)
        made = RewindNetwork(shape).to(place)
        groups = [{"params": list(made.parameters()), "lr": config.rate}]
        super().__init__(config, made, groups, config.decay, Path(folder), identity)

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
        others, known = self.instructions.take([clip.other for clip in sample])
        return RewindBatch(frames, targets, words, others, known.squeeze(1) > 0)

    def compute_losses(self, batch: RewindBatch, generator: torch.Generator) -> dict[str, Tensor]:
        """Compute the objective; both terms in one pass."""
        seen, count = self.features[batch.frames].float(), len(batch.frames)
        apart = batch.mismatched
        if not self.config.mismatched or not bool(apart.any()):
            return rewind_losses(self.network(seen, batch.words), None, batch.targets, 0.0)
        both = self.network(torch.cat([seen, seen]), torch.cat([batch.words, batch.others]))
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
) -> Floats:
    """Compute the tower's vector of every frame, as float16; a stopped run continues behind the last save.

    Episodes that share frames, as an original and its counterfactuals and clips do, cost as much as one.
    """
    name = short_hash(engine.hash.encode(), corpus.identity.encode())
    path, partial = make_folder(folder) / f"features-{name}.npy", folder / f"features-{name}.partial"
    width = engine.info.vector
    if path.exists():
        found: Floats = np.load(path, mmap_mode="r")
        return found
    done = partial.stat().st_size // (2 * width) if partial.exists() else 0
    known: dict[bytes, Floats] = {}
    """by the hashes of the first frame and the frame"""
    with partial.open("ab") as file:
        file.truncate(done * 2 * width)
        first = 0
        for number, row in enumerate(corpus.rows):
            if first + row.frames > done:
                images = corpus.frames(number).all()
                hashes = [hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in images]
                keys = [hashes[0] + hash for hash in hashes]
                new = [place for place, key in enumerate(keys) if key not in known]
                if new:
                    vectors = engine.features(images[new], images[0])[:, :width].astype(np.float16)
                    known.update(zip([keys[place] for place in new], vectors, strict=True))
                file.write(np.stack([known[key] for key in keys])[max(0, done - first) :].tobytes())
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
    described = json.dumps([config.to_json(), [row.id for row in rows]], sort_keys=True)
    with write_folder(folder, "The last checkpoint is kept: rerun to export the model.") as partial:
        (partial / TOWER_FOLDER).mkdir()
        for name in (INFO, SEEN, *FILES):
            if (tower / name).exists():
                shutil.copyfile(tower / name, partial / TOWER_FOLDER / name)
        shape = network.shape
        example = (torch.zeros(2, 3, shape.features), torch.zeros(2, shape.words))
        dynamic = {"features": {0: "n", 1: "t"}, "words": {0: "n"}, "progress": {0: "n", 1: "t"}}
        export_graph(network, example, partial / HEAD, ["features", "words"], ["progress"], dynamic)
        (partial / SEEN).write_bytes(collect_seen(rows).content())
        facts = {"recipe": config.to_json(), "episodes": dict(sorted(Counter(row.source for row in rows).items()))}
        (partial / "training.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        info = RewindInfo(
            frames=config.frames,
            head=hashlib.sha256((partial / HEAD).read_bytes()).hexdigest(),
            revision=hashlib.sha256(described.encode()).hexdigest()[:12],
            licence="Apache-2.0",
            trained_on=tuple(list_credits(rows)),
        )
        write_description(partial, KIND, **info.as_facts())
    return folder
