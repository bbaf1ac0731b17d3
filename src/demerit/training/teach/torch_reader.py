"""Train a reader: a small network on two maps of the tower, from larger images, which still know where things are.

The closed-form head sees pooled features of small images and misses relations between small things, such as a gripper
at a ball. The reader mixes neighbouring places of the maps (a fine one, and a coarse one that knows more) and reads
where its channels are highest (soft positions) and how high. It is trained in seconds on a CPU, on a few frames per
episode, each shifted and recoloured a few times before the tower sees it. The layers of the tower below the maps are
not trained; they become part of the reader's file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx.compose
import onnxruntime
import torch
from torch import Tensor, nn
from torch.nn import functional

from demerit.data.arrays import Bools, Floats
from demerit.data.frames import Images
from demerit.models.compact.engine import ERRORS_ONLY, count_cores
from demerit.models.taught.features import LAYERS, READ, SIDE, find_engine
from demerit.training.loop import export_graph
from demerit.training.teach.data import ORIGINS, FrameTargets
from demerit.training.teach.training_set import TrainingSet
from demerit.training.teach.validate import assign_folds

WIDTH, POINTS, HIDDEN, MIXING = 32, 16, 64, 3
DROPOUT = 0.3
BATCH, RATE, DECAY = 48, 2e-3, 0.05
STEPS = (150, 2.5, 400)
"""training steps: at least, more per episode, at most"""
SHIFT = 1 / 16
"""share of the image that a copy is shifted by, at most"""
COPIES = 3
MOST_MAPS = 4500
"""pairs of maps in memory: 350 MB"""
FOLDS = 5
SMOOTH = 0.05
"""targets lie between this and 1 minus this"""
EARLY = 0.3
"""in the first frames, up to this share, no task is finished yet"""
TRUST = {"measured": 1.0, "marked": 1.0, "between": 0.5, "end": 1.0, "capped": 1.0, "event": 1.0, "made_up": 0.3}
"""weight of a progress target by its origin; others count 1"""
Maps = tuple[npt.NDArray[np.float16], npt.NDArray[np.float16]]
"""the fine and the coarse map of frames, (frames, channels, places, places) each"""
INPUTS = "fine", "coarse"


@dataclass(frozen=True, eq=False)
class ReaderExample:
    """The kept frames of one episode: maps of several views (cameras and copies), and targets."""

    views: Sequence[Maps]
    """per view: the maps of all kept frames"""
    plain: Sequence[int]
    """the views that are not shifted or recoloured: one per camera"""
    progress: Floats
    """0 to 1; an upper bound where `capped`"""
    progress_weight: Floats
    capped: Bools
    done: Floats
    done_weight: Floats
    draw: Floats
    """probability of drawing each frame"""
    success: bool | None


def make_example(
    views: Sequence[Maps],
    plain: Sequence[int],
    targets: FrameTargets,
    kept: npt.NDArray[np.integer],
    success: bool | None,
    ending: int,
) -> ReaderExample:
    """Turn an episode's targets into what the reader is trained on.

    Args:
        views: maps of its kept frames, by view.
        plain: the views that were not changed.
        targets: targets at all frames used.
        kept: which of the frames used were kept.
        success: the verdict.
        ending: how many of the last frames used a verdict is about.
    """
    origin = targets.origin[kept]
    names = np.array(["", *ORIGINS])[origin]
    weight = np.array([TRUST.get(name, 1.0) if name else 0.0 for name in names])
    # whether the task is done is unknown on an interpolated way; never at its start, and nowhere in a failure
    is_known = (origin > 0) & ~np.isin(names, ("made_up", "between"))
    early = (kept < EARLY * len(targets)) & (names != "measured")
    failed = (origin == 0) & (success is False)
    done = np.where(is_known & ~early, np.nan_to_num(targets.done[kept]), 0.0)
    draw = ((weight > 0) | early | failed).astype(np.float64)
    draw /= max(draw.sum(), 1.0)
    last = (kept >= len(targets) - ending) & (weight > 0)
    if last.any():
        draw = draw / 2 + last / last.sum() / 2
    return ReaderExample(
        views,
        plain,
        np.nan_to_num(targets.value[kept]),
        weight,
        targets.capped[kept],
        done,
        (is_known | early | failed).astype(np.float64),
        draw / max(draw.sum(), 1e-9),
        success,
    )


class ReaderNetwork(nn.Module):
    """A fine and a coarse map in; progress and `done` out."""

    down: Tensor
    right: Tensor

    def __init__(self, channels: Sequence[int], side: int) -> None:
        """Start with random weights, for maps of `channels`, the fine one with `side` x `side` places."""
        super().__init__()
        self.standard = nn.ModuleList(nn.BatchNorm2d(count, affine=False) for count in channels)
        self.enter = nn.ModuleList(nn.Conv2d(count, WIDTH, 1) for count in channels)
        self.mix = nn.ModuleList(nn.Conv2d(WIDTH, WIDTH, 3, padding=1) for _ in range(MIXING))
        self.look = nn.Conv2d(WIDTH, POINTS, 1)
        self.decide = nn.Sequential(
            nn.Dropout(DROPOUT),
            nn.Linear(2 * POINTS + 2 * WIDTH, HIDDEN),
            nn.ReLU(),
            nn.Dropout(DROPOUT),
            nn.Linear(HIDDEN, 2),
        )
        place = torch.linspace(-1, 1, side)
        self.register_buffer("down", place.repeat_interleave(side))
        self.register_buffer("right", place.repeat(side))

    def standardize(self, examples: Sequence[ReaderExample]) -> None:
        """Take the channels' means and deviations from examples."""
        for number, normal in enumerate(self.standard):
            maps = [example.views[0][number].astype(np.float32) for example in examples]
            mean = np.mean([x.mean(axis=(0, 2, 3)) for x in maps], axis=0)
            square = np.mean([(x**2).mean(axis=(0, 2, 3)) for x in maps], axis=0)
            assert isinstance(normal, nn.BatchNorm2d)
            normal.running_mean = torch.from_numpy(mean)
            normal.running_var = torch.from_numpy(np.maximum(square - mean**2, 1e-6))

    def train(self, mode: bool = True) -> ReaderNetwork:
        """Switch dropout on or off; means and deviations stay those of the examples."""
        super().train(mode)
        self.standard.eval()
        return self

    def forward(self, fine: Tensor, coarse: Tensor) -> Tensor:
        """Compute (n, 2) outputs from 0 to 1."""
        return ((self.logits(fine, coarse).sigmoid() - SMOOTH) / (1 - 2 * SMOOTH)).clamp(0, 1)

    def logits(self, fine: Tensor, coarse: Tensor) -> Tensor:
        """Compute (n, 2) logits, which are trained."""
        entered = [enter(normal(x)) for enter, normal, x in zip(self.enter, self.standard, (fine, coarse), strict=True)]
        # a 1 x 1 convolution of both maps together, without enlarging the coarse one first
        h = functional.relu(entered[0] + functional.interpolate(entered[1], scale_factor=2.0))
        for layer in self.mix:
            h = h + functional.relu(layer(h))
        where, flat = self.look(h).flatten(2).softmax(-1), h.flatten(2)
        parts = [(where * self.down).sum(-1), (where * self.right).sum(-1), flat.amax(-1), flat.mean(-1)]
        logits: Tensor = self.decide(torch.cat(parts, dim=1))
        return logits


def train_reader(examples: Sequence[ReaderExample], seed: int) -> ReaderNetwork:
    """Train on examples, on a GPU if there is one; the same examples and seed give the same network on one machine."""
    rng = np.random.default_rng(seed)
    least, more, most = STEPS
    steps = int(min(least + more * len(examples), most))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fine, coarse = examples[0].views[0]
        network = ReaderNetwork((fine.shape[1], coarse.shape[1]), fine.shape[2])
        network.standardize(examples)
        network.to("cuda" if torch.cuda.is_available() else "cpu")
        optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=DECAY)
        rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, steps, pct_start=0.1)
        by_verdict = [[e for e in examples if e.success is verdict] for verdict in (True, False, None)]
        classes = [some for some in by_verdict if some]
        network.train()
        for _ in range(steps):
            optimizer.zero_grad()
            _batch_loss(network, classes, rng).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            rate.step()
    return network.cpu().eval()


def _batch_loss(network: ReaderNetwork, classes: Sequence[Sequence[ReaderExample]], rng: np.random.Generator) -> Tensor:
    """Successes and failures are drawn equally often."""
    fine, coarse, rows = [], [], []
    for _ in range(BATCH):
        some = classes[int(rng.integers(len(classes)))]
        example = some[int(rng.integers(len(some)))]
        frame = int(rng.choice(len(example.draw), p=example.draw))
        view = example.views[int(rng.integers(len(example.views)))]
        fine.append(view[0][frame])
        coarse.append(view[1][frame])
        progress, done = example.progress[frame], example.done[frame]
        row = (progress, example.progress_weight[frame], example.capped[frame], done, example.done_weight[frame])
        rows.append(row)
    device = network.down.device
    progress, progress_weight, capped, done, done_weight = torch.tensor(np.array(rows, dtype=np.float32)).T.to(device)
    logits = network.logits(*(torch.from_numpy(np.stack(maps)).to(device).float() for maps in (fine, coarse)))
    # a satisfied upper bound pulls nowhere
    reached = (logits[:, 0].detach().sigmoid() - SMOOTH) / (1 - 2 * SMOOTH)
    progress = torch.where(capped > 0, torch.minimum(progress, reached), progress)
    wanted = torch.stack([progress, done], dim=1).clamp(0, 1) * (1 - 2 * SMOOTH) + SMOOTH
    loss = functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    return (loss * torch.stack([progress_weight, done_weight], dim=1)).mean()


def read_example(network: ReaderNetwork, example: ReaderExample) -> list[Floats]:
    """Return the outputs at the kept frames by camera: (frames, 2) each."""
    with torch.no_grad():
        outputs = [network(*(torch.from_numpy(maps).float() for maps in example.views[view])) for view in example.plain]
    return [read.numpy().astype(np.float64) for read in outputs]


def cut_tower(tower: Path, side: int) -> onnx.ModelProto:
    """Return the lower layers of a tower, up to the reader's maps, for images of `side` x `side` pixels."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "lower.onnx")
        onnx.utils.extract_model(str(tower), path, ["frames", "first"], list(LAYERS))
        lower = onnx.load(path)
    del lower.graph.value_info[:]
    for image in lower.graph.input:
        for dimension in image.type.tensor_type.shape.dim[1:3]:
            dimension.dim_value = side
    for output in lower.graph.output:
        output.type.tensor_type.ClearField("shape")
    return lower


def export_reader(network: ReaderNetwork, lower: onnx.ModelProto) -> bytes:
    """Return one ONNX graph of the tower's lower layers and the reader."""
    side, dynamic = int(len(network.down) ** 0.5), {name: {0: "n"} for name in (*INPUTS, READ)}
    channels = [enter.in_channels for enter in network.enter if isinstance(enter, nn.Conv2d)]
    example = tuple(torch.zeros(2, count, size, size) for count, size in zip(channels, (side, side // 2), strict=True))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "reader.onnx"
        export_graph(network, example, path, list(INPUTS), [READ], dynamic)
        upper = onnx.compose.add_prefix(onnx.load(str(path)), "reader.", rename_inputs=False, rename_outputs=False)
    lower.ir_version = upper.ir_version
    joined = onnx.compose.merge_models(lower, upper, list(zip(LAYERS, INPUTS, strict=True)))
    return bytes(joined.SerializeToString())


def change_images(images: Images, rng: np.random.Generator) -> Images:
    """Shift and recolour the images of an episode, all in the same way."""
    side = images.shape[1]
    far = int(SHIFT * side)
    padded = np.pad(images, ((0, 0), (far, far), (far, far), (0, 0)), mode="edge")
    y, x = rng.integers(0, 2 * far + 1, 2)
    moved = padded[:, y : y + side, x : x + side].astype(np.float32)
    mean = moved.mean(axis=(1, 2), keepdims=True)
    contrast, gain, light = (
        rng.uniform(0.8, 1.2),
        rng.uniform(0.8, 1.2) * rng.uniform(0.8, 1.2, 3),
        rng.uniform(-20, 20),
    )
    changed: Images = np.clip(((moved - mean) * contrast + mean) * gain + light, 0, 255).astype(np.uint8)
    return changed


def teach_reader(
    training_set: TrainingSet, on_trained: Callable[[int, int], None] = lambda done, total: None
) -> tuple[bytes, dict[int, dict[str, Floats]]]:
    """Train a reader on a training set.

    Returns:
        The reader's ONNX graph, and by example and camera what a reader that was not trained on the example's group
        says at the frames used. Between the kept frames it is interpolated.
    """
    config, engine = training_set.spec.config, find_engine(training_set.spec.network)
    assert engine is not None
    lower = cut_tower(engine.tower_file, SIDE)
    examples = list(_make_examples(training_set, lower))
    groups = list(training_set.groups)
    fold = assign_folds(groups, training_set.success, min(FOLDS, len(set(groups))), config.seed)
    total = int(fold.max()) + 2
    outputs: dict[int, dict[str, Floats]] = {}
    for number in range(total - 1):
        on_trained(number, total)
        network = train_reader([examples[i] for i in np.flatnonzero(fold != number)], config.seed + number)
        for index in np.flatnonzero(fold == number).tolist():
            embedded = training_set.episodes[index]
            frames = np.arange(len(embedded.at))
            outputs[index] = {
                camera: np.stack([np.interp(frames, embedded.kept, column) for column in read.T], axis=1)
                for camera, read in zip(embedded.images, read_example(network, examples[index]), strict=True)
            }
    on_trained(total - 1, total)
    content = export_reader(train_reader(examples, config.seed + total), lower)
    on_trained(total, total)
    return content, outputs


def _make_examples(training_set: TrainingSet, lower: onnx.ModelProto) -> Iterator[ReaderExample]:
    """Run the tower's lower layers on every kept image as it is and on changed copies."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = count_cores()
    options.log_severity_level = ERRORS_ONLY
    session = onnxruntime.InferenceSession(lower.SerializeToString(), options, providers=["CPUExecutionProvider"])
    kept = sum(len(images) for embedded in training_set.episodes for images in embedded.images.values())
    copies = int(np.clip(MOST_MAPS // max(kept, 1) - 1, 1, COPIES))
    config = training_set.spec.config
    for index, embedded in enumerate(training_set.episodes):
        rng = np.random.default_rng([config.seed, index])
        views = list(embedded.images.values())
        views += [change_images(images, rng) for _ in range(copies) for images in embedded.images.values()]
        maps: list[Maps] = []
        for images in views:
            fine, coarse = session.run(LAYERS, {"frames": np.ascontiguousarray(images), "first": images[:1]})
            maps.append((fine.astype(np.float16), coarse.astype(np.float16)))
        targets, verdict = training_set.targets[index], training_set.labels[index].verdict
        plain = range(len(embedded.images))
        yield make_example(maps, plain, targets, embedded.kept, verdict, config.ending(len(targets)))
