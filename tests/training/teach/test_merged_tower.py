"""Vision towers of Qwen3-VL checkpoints as second towers, from the folder to rewards without torch."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import demerit
from demerit.data.frames import Images
from demerit.errors import BadInput, DemeritError, WeightsMismatch
from demerit.models.reward_store import RewardStore, scored_fingerprint
from demerit.models.taught.features import Tower
from demerit.training.teach import TeachConfig
from demerit.training.teach.features import open_tower

torch = pytest.importorskip("torch", reason="towers are converted with torch")
pytest.importorskip("transformers", reason="it is the second computation")
from safetensors.torch import load_file, save_file  # noqa: E402 - it needs torch

from demerit.models.vlm.config import VLMShape  # noqa: E402
from demerit.models.vlm.network import VLMNetwork, transformers_network  # noqa: E402
from demerit.training.teach import torch_tower  # noqa: E402
from fakes.tiny_vlm import ROWS, tiny_adapter, tiny_checkpoint, tiny_config, tiny_weights  # noqa: E402

SAMPLE = Path(demerit.__file__).parent / "assets" / "sample"
PATCH, MERGE, WIDTH = 16, 2, 64
LAYOUTS = ("qwen", "robometer", "robometer-lerobot")


def opened(folder: Path, side: int | None = None) -> Tower:
    if side is not None:
        write_json(folder / "preprocessor_config.json", crop_size={"height": side, "width": side})
    tower = open_tower(folder)
    assert tower is not None
    return tower


def write_json(path: Path, **facts: Any) -> None:
    before = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(before | facts))


def noise(count: int, side: int) -> Images:
    return np.random.default_rng(1).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def cut_patches(image: Images) -> list[npt.NDArray[np.float64]]:
    """The patches of an image in -1..1, in blocks of 2 x 2; each is colour by colour, shown at two moments."""
    patches, pixels = [], image / 127.5 - 1
    for block in range(0, image.shape[0], PATCH * MERGE):
        for beside in range(0, image.shape[1], PATCH * MERGE):
            for y in (block, block + PATCH):
                for x in (beside, beside + PATCH):
                    patch = pixels[y : y + PATCH, x : x + PATCH]
                    patches.append(np.concatenate([patch[..., c].ravel() for c in (0, 0, 1, 1, 2, 2)]))
    return patches


def compute_features(config: dict[str, Any], weights: dict[str, Any], images: Images) -> npt.NDArray[np.float32]:
    """The mean of the merged tokens of transformers' own network, and of each sixteenth of the image."""
    side = images.shape[1] // PATCH
    network, grid = transformers_network(config, weights), torch.tensor([[1, side, side]])
    rows = []
    for image in images:
        pixels = torch.from_numpy(np.stack(cut_patches(image))).float()
        with torch.no_grad():
            tokens = network.visual(pixels, grid_thw=grid).pooler_output.numpy()
        whole = tokens.reshape(side // MERGE, side // MERGE, WIDTH)
        parts = [half for row in np.array_split(whole, 4) for half in np.array_split(row, 4, axis=1)]
        regions = [part.mean(axis=(0, 1)) for part in parts] if len(whole) >= 4 else []
        rows.append(np.concatenate([tokens.mean(axis=0), *regions]))
    return np.array(rows)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("side", [None, 64, 160])
def test_the_graph_gives_what_transformers_and_the_engine_give(tmp_path: Path, layout: Any, side: int | None) -> None:
    tower = opened(tiny_checkpoint(tmp_path / "model", layout), side)
    images, config = noise(5, side or 256), tiny_config(ROWS[layout])
    weights = {name: weight for name, weight in tiny_weights(layout).items() if name.startswith(("lang", "visual"))}
    expected = compute_features(config, weights, images)
    assert np.abs(tower(images) - expected).max() < 1e-4 * expected.std()
    engine = VLMNetwork(VLMShape.from_config(config), weights)
    tokens = engine.encode([torch.from_numpy(images)], range(5)).features.rows.reshape(5, -1, WIDTH)
    assert np.abs(tower(images)[:, :WIDTH] - tokens.mean(dim=1).numpy()).max() < 1e-5 * expected.std()
    assert (tower.pooled, tower.side) == (WIDTH, side or 256)


def test_layouts_are_one_tower_and_other_weights_are_another(tmp_path: Path) -> None:
    """A Robometer whose tower was not trained gives the features of the Qwen3-VL that it was trained from."""
    towers = {layout: opened(tiny_checkpoint(tmp_path / layout, layout), 64) for layout in LAYOUTS}
    images = noise(3, 64)
    assert towers["robometer"].content == towers["robometer-lerobot"].content
    assert np.array_equal(towers["qwen"](images), towers["robometer"](images))
    other = opened(tiny_checkpoint(tmp_path / "other", "robometer", seed=1), 64)
    assert np.abs(other(images) - towers["qwen"](images)).max() > 0.1


def test_the_licence_is_that_of_the_checkpoint_and_its_adapters(tmp_path: Path) -> None:
    base = tiny_checkpoint(tmp_path / "base", "robometer")
    adapter = tiny_adapter(tmp_path / "adapter", base)
    (base / "README.md").write_text("---\nlicense: mit\n---\n")
    assert opened(base, 64).licence == "mit (robometer)"
    assert opened(adapter, 64).licence == "mit and not stated (robometer)"


def test_an_adapter_of_the_tower_is_merged(tmp_path: Path) -> None:
    base = tiny_checkpoint(tmp_path / "base")
    adapter = tiny_adapter(tmp_path / "adapter", base)
    images, plain = noise(3, 64), opened(base, 64)
    assert np.array_equal(opened(adapter, 64)(images), plain(images))  # it changes the language model alone
    file, name = adapter / "adapter_model.safetensors", "visual.blocks.1.attn.qkv.weight"
    a, b = torch.randn(2, 32), torch.randn(96, 2)
    module = f"base_model.model.model.{name.removesuffix('.weight')}"
    save_file(load_file(file) | {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}, file)
    weights = {name: weight for name, weight in tiny_weights().items() if name.startswith(("lang", "visual"))}
    expected = compute_features(tiny_config(), weights | {name: weights[name] + 2 * b @ a}, images)
    assert np.abs(opened(adapter, 64)(images) - expected).max() < 1e-4 * expected.std()
    assert np.abs(expected - plain(images)).max() > 0.01


def change_tensors(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def leave_pickle(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def set_pixels(**facts: Any) -> Callable[[Path], object]:
    return lambda folder: write_json(folder / "preprocessor_config.json", **facts)


def set_vision(**facts: Any) -> Callable[[Path], object]:
    config = tiny_config(vision=facts)
    return lambda folder: write_json(folder / "config.json", vision_config=config["vision_config"])


NORM, LAYER = "model.visual.merger.norm.weight", "model.language_model.layers.0.mlp.up_proj.weight"
BROKEN: dict[str, Callable[[Path], object]] = {
    "tensor of the tower missing": lambda folder: change_tensors(folder, lambda tensors: tensors.pop(NORM)),
    "tensor of the language model missing": lambda folder: change_tensors(folder, lambda tensors: tensors.pop(LAYER)),
    "tensor too many": lambda folder: change_tensors(
        folder, lambda some: some.update({"model.visual.a": some[NORM].clone()})
    ),
    "tensor of another shape": lambda folder: change_tensors(
        folder, lambda tensors: tensors.update({NORM: tensors[NORM][:3].clone()})
    ),
    "other depth": set_vision(depth=3, deepstack_visual_indexes=[0, 1, 2]),
    "other activation": set_vision(hidden_act="gelu"),
    "heads of a Robometer missing": lambda folder: write_json(
        folder / "config.json",
        vlm_config=json.loads((folder / "config.json").read_text()),
        base_model_id="base",
        progress_discrete_bins=10,
        max_frames=8,
    ),
    "half a token": set_pixels(crop_size={"height": 80, "width": 80}),
    "other pixels": set_pixels(image_mean=[0.48, 0.45, 0.4]),
    "no pixels": set_pixels(image_std=[0, 0, 0]),
    "Qwen3": lambda folder: (folder / "config.json").write_text('{"model_type": "qwen3"}'),
    "Qwen2.5": lambda folder: write_json(folder / "config.json", model_type="qwen2_5_vl"),
    "quantised": lambda folder: write_json(folder / "config.json", quantization_config={"bits": 4}),
    "pickle": leave_pickle,
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path: Path, name: str) -> None:
    folder = tiny_checkpoint(tmp_path / "model")
    BROKEN[name](folder)
    with pytest.raises(DemeritError) as refused:
        open_tower(folder)
    is_mismatch = "tensor" in name or name in ("other depth", "heads of a Robometer missing")
    assert isinstance(refused.value, WeightsMismatch if is_mismatch else BadInput)
    assert "\n" not in str(refused.value)


def test_a_tower_that_no_file_holds_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_tower, "MOST_BYTES", 100_000)
    with pytest.raises(BadInput, match="2 GiB"):
        open_tower(tiny_checkpoint(tmp_path / "model"))


def test_the_published_size_of_a_whole_image_is_no_side(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "model")
    set_pixels(size={"shortest_edge": 65536, "longest_edge": 16777216}, crop_size=None, image_mean=[0.5] * 3)(folder)
    assert opened(folder).side == 256


SCORE = """
import json, sys
sys.modules.update(torch=None, transformers=None, safetensors=None)
import demerit
rewards = demerit.load_model(sys.argv[1]).score(list(demerit.open_dataset(sys.argv[2]))[:2])
print(json.dumps([reward.value.tolist() for reward in rewards]))
"""


def test_from_a_checkpoint_to_rewards_without_torch(tmp_path: Path) -> None:
    """Teach, forget the checkpoint, score in a process without torch; another tower makes stored rewards stale."""
    config, episodes = TeachConfig(reader=False), list(demerit.open_dataset(SAMPLE))[:2]
    out, store = tmp_path / "model", tmp_path / "rewards"

    def teach(seed: int) -> Any:
        folder = tiny_checkpoint(tmp_path / "checkpoint", "robometer", seed=seed)
        write_json(folder / "preprocessor_config.json", crop_size={"height": 64, "width": 64})
        (folder / "README.md").write_text("---\nlicense: mit\n---\n")
        taught = demerit.teach(SAMPLE, out, tower=folder, config=config, limit=8, workers=0).model
        shutil.rmtree(folder)
        return taught

    model = teach(seed=0)
    rewards = model.score(episodes)
    process = subprocess.run(
        [sys.executable, "-c", SCORE, str(out), str(SAMPLE)], capture_output=True, text=True, check=True
    )
    assert json.loads(process.stdout) == [reward.value.tolist() for reward in rewards]
    assert "mit (robometer)" in model.card.licence
    assert [path.name for path in out.glob("tower-*")] == [f"tower-{model.config.second_tower[:12]}.onnx"]
    kept, card = RewardStore.open_or_create(store, model.card, {}), model.card
    with kept.writer(card) as writer:
        writer.commit((reward, scored_fingerprint(one, card)) for one, reward in zip(episodes, rewards, strict=True))
    assert all(kept.is_fresh(episode, demerit.load_model(str(out)).card) for episode in episodes)
    again = teach(seed=1)
    assert again.card.weights_hash != model.card.weights_hash
    assert not any(kept.is_fresh(episode, demerit.load_model(str(out)).card) for episode in episodes)
