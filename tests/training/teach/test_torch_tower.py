"""Folders of vision models as second towers: the graph computes what the model does, and nothing else is opened."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import demerit
from demerit.data.frames import Images
from demerit.errors import BadInput, DemeritError, MissingExtra, WeightsMismatch
from demerit.training.teach import TeachConfig
from demerit.training.teach.features import open_tower

torch = pytest.importorskip("torch", reason="towers are converted with torch")
transformers = pytest.importorskip("transformers", reason="towers are opened with transformers")
from safetensors.torch import load_file, save_file  # noqa: E402 - it needs torch

from demerit.training.teach.torch_tower import CLASSES, average_regions  # noqa: E402 - it needs torch

SAMPLE = Path(demerit.__file__).parent / "assets" / "sample"
MEAN, DEVIATION, PATCH, WIDTH = [0.5, 0.4, 0.3], [0.2, 0.25, 0.5], 4, 8
SIZES = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "patch_size": PATCH,
    "image_size": 16,
}
TEXT = {"hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
CONFIGS: dict[str, Callable[[], Any]] = {
    "clip": lambda: transformers.CLIPConfig(text_config={**TEXT, "vocab_size": 20}, vision_config=SIZES),
    "clip_vision_model": lambda: transformers.CLIPVisionConfig(**SIZES),
    "dinov2": lambda: transformers.Dinov2Config(**SIZES),
    "dinov2_with_registers": lambda: transformers.Dinov2WithRegistersConfig(**SIZES),
    "dinov3_vit": lambda: transformers.DINOv3ViTConfig(**SIZES, num_register_tokens=4),
    "ijepa": lambda: transformers.IJepaConfig(**SIZES),
    "siglip": lambda: transformers.SiglipConfig(text_config={**TEXT, "vocab_size": 20}, vision_config=SIZES),
    "siglip_vision_model": lambda: transformers.SiglipVisionConfig(**SIZES),
    "vit": lambda: transformers.ViTConfig(**SIZES),
}


def write_model(folder: Path, kind: str, side: int = 20) -> Any:
    """Write a folder as the hub has it, with random weights; return the vision model."""
    torch.manual_seed(3)
    config = CONFIGS[kind]()
    whole = transformers.AutoModel.from_config(config).eval()
    with torch.no_grad():
        for weights in whole.parameters():
            weights.normal_(0, 0.4)
    whole.save_pretrained(folder)
    facts = {
        "size": {"height": side, "width": side},
        "image_mean": MEAN,
        "image_std": DEVIATION,
        "rescale_factor": 1 / 255,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(facts))
    (folder / "README.md").write_text("---\nlicense: other\nlicense_name: own-terms\n---\n# A model\n")
    return getattr(whole, "vision_model", whole)


def compute_features(model: Any, images: Images) -> npt.NDArray[np.float32]:
    """The pooled vector (or the first token, or the mean) and the mean of each sixteenth, computed by torch."""
    pixels = torch.from_numpy((images / 255 - MEAN) / DEVIATION).float().permute(0, 3, 1, 2)
    resizes = "dino" not in model.config.model_type
    with torch.no_grad():
        out = model(pixel_values=pixels, **({"interpolate_pos_encoding": True} if resizes else {}))
    side = images.shape[1] // PATCH
    tokens = out.last_hidden_state.numpy()
    grid = tokens[:, -side * side :].reshape(len(images), side, side, -1)
    edges = np.concatenate([[0], np.cumsum([len(part) for part in np.array_split(np.arange(side), 4)])])
    cells = [
        grid[:, edges[y] : edges[y + 1], edges[x] : edges[x + 1]].mean(axis=(1, 2)) for y in range(4) for x in range(4)
    ]
    if model.config.model_type == "ijepa":
        first = grid.mean(axis=(1, 2))
    else:
        first = tokens[:, 0] if model.config.model_type == "vit" else out.pooler_output.numpy()
    return np.concatenate([first, *cells], axis=1)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("side", [16, 20])
def test_the_graph_gives_what_the_model_gives(tmp_path: Path, kind: str, side: int) -> None:
    model = write_model(tmp_path, kind, side)
    (tmp_path / "config.yaml").write_text("a: 1\n")  # a Robometer has one too
    tower = open_tower(tmp_path)
    assert tower is not None
    images = np.random.default_rng(1).integers(0, 256, (11, side, side, 3), dtype=np.uint8)
    expected = compute_features(model, images)
    assert np.abs(tower(images) - expected).max() < 1e-4 * expected.std()
    assert tower.pooled == WIDTH and tower.side == side
    assert tower.licence == f"own-terms ({kind})"


def test_a_folder_gives_the_same_graph_each_time(tmp_path: Path) -> None:
    """So features are cached, and a model is the same wherever the folder was."""
    write_model(tmp_path / "a", "dinov2")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "c").mkdir()
    shutil.copytree(tmp_path / "a", tmp_path / "c", dirs_exist_ok=True)
    (tmp_path / "c" / "README.md").unlink()
    a, b, c = (open_tower(tmp_path / name) for name in "abc")
    assert a is not None and b is not None and c is not None
    assert a.content == b.content and a.sha256 != c.sha256
    assert c.licence == "not stated (dinov2)"


def test_code_in_a_folder_is_not_run(tmp_path: Path) -> None:
    write_model(tmp_path, "vit")
    config = json.loads((tmp_path / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert open_tower(tmp_path) is not None
    assert not (tmp_path / "ran").exists()


def change_json(path: Path, **facts: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))


def drop_tensor(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["layernorm.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def leave_pickle(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


BROKEN: dict[str, Callable[[Path], object]] = {
    "no config": lambda folder: (folder / "config.json").unlink(),
    "no JSON": lambda folder: (folder / "config.json").write_text("{"),
    "a list": lambda folder: (folder / "config.json").write_text("[]"),
    "text model": lambda folder: change_json(folder / "config.json", model_type="bert"),
    "a list as type": lambda folder: change_json(folder / "config.json", model_type=["dinov2"]),
    "timm": lambda folder: (folder / "config.json").write_text('{"architecture": "vit_small_patch14_dinov2"}'),
    "other width": lambda folder: change_json(folder / "config.json", hidden_size=16),
    "patch of two sizes": lambda folder: change_json(folder / "config.json", patch_size=[4, 8]),
    "grey images": lambda folder: change_json(folder / "config.json", num_channels=1),
    "a tensor is missing": drop_tensor,
    "pickle": leave_pickle,
    "cut off": lambda folder: cut(folder / "model.safetensors"),
    "no preprocessor": lambda folder: (folder / "preprocessor_config.json").unlink(),
    "no mean": lambda folder: change_json(folder / "preprocessor_config.json", image_mean=None),
    "deviation of 0": lambda folder: change_json(folder / "preprocessor_config.json", image_std=[0, 1, 1]),
    "scale of 0": lambda folder: change_json(folder / "preprocessor_config.json", rescale_factor=0),
    "no size": lambda folder: change_json(folder / "preprocessor_config.json", size={"longest_edge": 20}),
    "smaller than a patch": lambda folder: change_json(folder / "preprocessor_config.json", size=2),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_folder_that_is_no_vision_model_is_refused(tmp_path: Path, name: str) -> None:
    write_model(tmp_path, "dinov2")
    BROKEN[name](tmp_path)
    with pytest.raises(DemeritError) as refused:
        open_tower(tmp_path)
    assert isinstance(refused.value, WeightsMismatch if name == "a tensor is missing" else BadInput)
    assert "\n" not in str(refused.value)
    if name in ("text model", "timm"):
        assert all(kind in str(refused.value) for kind in CLASSES)


def test_without_transformers_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "demerit.training.teach.torch_tower", None)
    with pytest.raises(MissingExtra) as missing:
        open_tower(tmp_path)
    assert missing.value.extra == "vlm"


def test_a_model_taught_with_a_folder_needs_it_no_more(tmp_path: Path) -> None:
    write_model(tmp_path / "vision", "dinov2")
    out = tmp_path / "model"
    config = TeachConfig(reader=False)
    model = demerit.teach(SAMPLE, out, tower=tmp_path / "vision", config=config, limit=8, workers=0).model
    shutil.rmtree(tmp_path / "vision")
    loaded = demerit.load_model(str(out))
    episodes = list(demerit.open_dataset(SAMPLE))[:2]
    before, after = (one.score(episodes) for one in (model, loaded))
    assert all(np.array_equal(a.value, b.value) for a, b in zip(before, after, strict=True))
    assert "own-terms (dinov2)" in loaded.card.licence
    assert [path.name for path in out.glob("tower-*")] == [f"tower-{model.config.second_tower[:12]}.onnx"]


@pytest.mark.parametrize("grid", [3, 4, 5, 16])
def test_regions_share_the_patches_as_evenly_as_possible(grid: int) -> None:
    weights = average_regions(grid)
    if grid < 4:
        assert weights.shape == (0, grid * grid)
        return
    assert np.allclose(weights.sum(axis=1), 1) and ((weights > 0).sum(axis=0) == 1).all()
    sizes = (weights > 0).sum(axis=1)
    assert sizes.max() <= (grid // 4 + 1) ** 2 and sizes.min() >= (grid // 4) ** 2
