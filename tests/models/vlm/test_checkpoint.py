"""Checkpoints: three public layouts under one set of names, adapters merged as peft merges them, the rest refused."""

import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import Qwen3VLForConditionalGeneration

from demerit.errors import AmbiguityWarning, BadInput, WeightsMismatch
from demerit.models.vlm.checkpoint import Checkpoint, read_checkpoint, tokenizer_path
from fakes.tiny_vlm import (
    ROWS,
    TOKENS,
    Layout,
    backbone_shapes,
    head_shapes,
    tiny_adapter,
    tiny_checkpoint,
    tiny_config,
    tiny_weights,
)

LAYOUTS: list[Layout] = ["qwen", "robometer", "robometer-lerobot"]


def expected(layout: Layout, tied: bool = True) -> dict[str, tuple[int, ...]]:
    """What the engine would ask for; tiny_vlm has the names from transformers."""
    shapes = backbone_shapes(tiny_config(ROWS[layout], tied=tied))
    if tied or layout != "qwen":
        shapes.pop("lm_head.weight")
    if layout != "qwen":
        shapes |= {name: shape for name, shape in head_shapes().items() if name != "frame_pool_attn.weight"}
    return shapes


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_bytes()) | changes))


def same_weights(checkpoint: Checkpoint, weights: dict[str, torch.Tensor]) -> bool:
    read = dict(checkpoint.tensors("cpu", torch.float32))
    return all(torch.equal(read[name], weights[name]) for name in read)


# --- layouts ---


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_has_the_same_names(tmp_path: Path, layout: Layout) -> None:
    folder = tiny_checkpoint(tmp_path / "it", layout, seed=3)
    checkpoint = read_checkpoint(str(folder))
    weights = tiny_weights(layout, seed=3)
    read = dict(checkpoint.tensors("cpu", torch.float32, expected(layout)))
    assert set(read) == set(expected(layout))
    assert all(torch.equal(read[name], weights[name]) for name in read)
    assert checkpoint.layout == layout
    assert checkpoint.config["text_config"]["vocab_size"] == ROWS[layout]
    assert checkpoint.revision is None
    holder = folder if layout == "qwen" else folder.with_name("it-base")
    assert tokenizer_path(checkpoint) == holder / "tokenizer.json"
    (holder / "tokenizer.json").unlink()
    with pytest.raises(BadInput, match=holder.name):
        tokenizer_path(checkpoint)


def test_a_tied_table_may_be_stored_under_either_name(tmp_path: Path) -> None:
    embedding = "model.model.language_model.embed_tokens.weight"
    folder = tiny_checkpoint(tmp_path / "it", "robometer-lerobot", drop=(embedding,))
    read = dict(read_checkpoint(str(folder)).tensors("cpu", torch.float32, expected("robometer-lerobot")))
    name = "language_model.embed_tokens.weight"
    assert torch.equal(read[name], tiny_weights("robometer-lerobot")[name])
    untied = tiny_checkpoint(tmp_path / "untied", "robometer-lerobot", tied=False, drop=(embedding,))
    with pytest.raises(WeightsMismatch) as caught:
        read_checkpoint(str(untied)).tensors("cpu", torch.float32, expected("robometer-lerobot"))
    assert (caught.value.missing, caught.value.unexpected) == ([name], [])


def test_a_robometer_without_a_config_takes_its_base_models(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "it", "robometer", config_from_base=True, frames=5)
    checkpoint = read_checkpoint(str(folder))
    assert checkpoint.facts is not None
    assert (checkpoint.facts.bins, checkpoint.facts.frames, checkpoint.facts.base) == (10, 5, f"{folder}-base")
    assert checkpoint.config["model_type"] == "qwen3_vl"
    # the base has room for more words than the tuned one kept
    assert json.loads((tmp_path / "it-base/config.json").read_text())["text_config"]["vocab_size"] == 384
    assert checkpoint.config["text_config"]["vocab_size"] == TOKENS + 5
    checkpoint.check(expected("robometer"))


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("loss", "progress_loss_type", "l2"),
        ("data", "use_multi_image", False),
        ("loss", "progress_discrete_bins", None),
        ("data", "max_frames", "eight"),
        ("model", "base_model_id", None),
    ],
)
def test_other_variants_of_robometer_are_refused(tmp_path: Path, section: str, name: str, value: object) -> None:
    folder = tiny_checkpoint(tmp_path / "it", "robometer")
    said = yaml.safe_load((folder / "config.yaml").read_text())
    said[section][name] = value
    (folder / "config.yaml").write_text(yaml.safe_dump(said))
    with pytest.raises(BadInput, match=name) as caught:
        read_checkpoint(str(folder))
    assert caught.value.got == repr(value)


def test_what_transformers_saves_is_read_back(tmp_path: Path) -> None:
    """What transformers itself saves is read back, tensor by tensor."""
    folder = tiny_checkpoint(tmp_path / "it", "qwen")
    model = Qwen3VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    model.save_pretrained(tmp_path / "again", max_shard_size="300KB")
    assert (tmp_path / "again/model.safetensors.index.json").is_file()
    checkpoint = read_checkpoint(str(tmp_path / "again"))
    checkpoint.check(expected("qwen"))
    assert same_weights(checkpoint, tiny_weights())


# --- strictness ---


def test_missing_unexpected_and_misshapen_weights_are_listed(tmp_path: Path) -> None:
    gone = tuple(f"model.visual.blocks.{at}.attn.proj.bias" for at in range(4))
    more = {"model.visual.blocks.9.attn.proj.bias": torch.zeros(3), "similarity_head.0.bias": torch.zeros(2)}
    folder = tiny_checkpoint(tmp_path / "it", "robometer", drop=gone, extra=more)
    wanted = expected("robometer") | {"progress_head.4.bias": (12,)}
    with pytest.raises(WeightsMismatch, match="layout robometer") as caught:
        read_checkpoint(str(folder)).check(wanted)
    assert caught.value.missing == [name.removeprefix("model.") for name in gone]
    assert set(caught.value.unexpected) == {
        "visual.blocks.9.attn.proj.bias",
        "similarity_head.0.bias",
        "progress_head.4.bias of shape (10,) instead of (12,)",
    }
    gone = ("success_head.4.bias", "success_head.4.weight")
    checkpoint = read_checkpoint(str(tiny_checkpoint(tmp_path / "gaps", "robometer", drop=gone)))
    with pytest.raises(WeightsMismatch) as caught:
        checkpoint.check(expected("robometer"), gaps=gone[:1])
    assert caught.value.missing == ["success_head.4.weight"]
    checkpoint.check(expected("robometer"), gaps=gone)


def move_weights(name: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / "model.safetensors").rename(folder / name)


def save_weights(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Callable[[Path], None]:
    return lambda folder: save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors")


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (move_weights("pytorch_model.bin"), "pickles"),
        (move_weights("model-00001-of-00002.safetensors"), "index"),
        (move_weights("elsewhere"), "no weights"),
        (lambda folder: os.truncate(folder / "model.safetensors", 100_000), "complete"),
        (save_weights(lambda given: {name: value.to(torch.uint8) for name, value in given.items()}), "U8"),
        (save_weights(lambda given: {**given, "visual.pos_embed.weight": torch.ones(64, 32)}), "one tensor"),
        (save_weights(lambda _: {"model.layers.0.mlp.weight": torch.zeros(2)}), "Qwen3-VL"),
        (lambda folder: change_json(folder / "config.json", quantization_config={"bits": 4}), "quantised"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "llama"}'), "llama"),
        (lambda folder: (folder / "config.json").write_text("{"), "JSON"),
        (lambda folder: (folder / "config.json").write_text("[]"), "list"),
    ],
)
def test_unreadable_files_are_refused(tmp_path: Path, spoil: Callable[[Path], None], word: str) -> None:
    folder = tiny_checkpoint(tmp_path / "it", "qwen")
    spoil(folder)
    with pytest.raises(BadInput, match=word):
        read_checkpoint(str(folder))


@pytest.mark.parametrize(
    ("change", "word"), [("copy", "one tensor"), ("elsewhere", "same folder"), ("gone", "incomplete")]
)
def test_an_index_that_does_not_match_its_shards_is_refused(tmp_path: Path, change: str, word: str) -> None:
    folder = tiny_checkpoint(tmp_path / "it", "qwen", shards=2)
    index, shards = folder / "model.safetensors.index.json", sorted(folder.glob("model-*.safetensors"))
    where = json.loads(index.read_text())["weight_map"]
    if change == "copy":
        shutil.copy(*shards)
    elif change == "gone":
        shards[0].unlink()
    else:
        change_json(index, weight_map={**where, min(where): "../elsewhere.safetensors"})
    with pytest.raises(BadInput, match=word):
        read_checkpoint(str(folder))


# --- adapters ---


def adapt_with_peft(base: Path, to: Path, wrap: str = "whole", **options: Any) -> dict[str, torch.Tensor]:
    """Save a random adapter made by peft; return peft's own merged weights by our names."""
    torch.manual_seed(0)
    model = Qwen3VLForConditionalGeneration.from_pretrained(base, dtype=torch.float32)
    where = r".*language_model.*\.(q|k|v|o|gate|up|down)_proj" if wrap == "whole" else r".*\.(q|k|v|up)_proj"
    config = LoraConfig(**{"r": 4, "lora_alpha": 6, "target_modules": where, **options})
    wrapped = get_peft_model(model if wrap == "whole" else model.model.language_model, config)
    for name, value in wrapped.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value, std=0.3)
    wrapped.save_pretrained(to, save_embedding_layers=False)
    if wrap == "whole":
        model = wrapped.merge_and_unload()
    else:
        model.model.language_model = wrapped
        inside = {name: value.contiguous() for name, value in model.state_dict().items() if name != "lm_head.weight"}
        to.with_name("wrapped").mkdir()
        save_file(inside, to.with_name("wrapped") / "model.safetensors")
        model.model.language_model = wrapped.merge_and_unload()
    return {name.removeprefix("model."): value for name, value in model.state_dict().items()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `base` and an `adapter` of it; copy the adapter before changing it."""
    home = tmp_path_factory.mktemp("made")
    adapt_with_peft(tiny_checkpoint(home / "base", "qwen"), home / "adapter")
    return home


def check_merged(checkpoint: Checkpoint, merged: dict[str, torch.Tensor]) -> None:
    read = dict(checkpoint.tensors("cpu", torch.float32, expected("qwen")))
    before = tiny_weights()
    for name, value in read.items():
        torch.testing.assert_close(value, merged[name], rtol=0, atol=1e-6)
    assert any(not torch.equal(value, before[name]) for name, value in read.items())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_rslora": True},
        {"wrap": "language_model"},
        {"rank_pattern": {"q_proj": 2, r"layers\.1\.mlp\.up_proj": 3}, "alpha_pattern": {"down_proj": 1}},
        {"target_modules": r".*visual.*\.(qkv|linear_fc1)"},
    ],
)
def test_adapters_are_merged_as_peft_merges_them(tmp_path: Path, options: dict[str, Any]) -> None:
    base = tiny_checkpoint(tmp_path / "base", "qwen")
    merged = adapt_with_peft(base, tmp_path / "adapter", **options)
    given = read_checkpoint(str(base), adapter=str(tmp_path / "adapter"))
    check_merged(given, merged)
    assert given.adapters == (tmp_path / "adapter",)
    if "wrap" in options:  # a snapshot of the wrapped network has to be merged first
        shutil.copy(base / "config.json", tmp_path / "wrapped")
        with pytest.raises(BadInput, match="merge_and_unload"):
            read_checkpoint(str(tmp_path / "wrapped"))
        return
    alone = read_checkpoint(str(tmp_path / "adapter"))  # loads the base model that it names
    check_merged(alone, merged)
    assert alone.fingerprint() == given.fingerprint() != read_checkpoint(str(base)).fingerprint()


def test_whole_weights_in_an_adapter_replace_those_below(tmp_path: Path) -> None:
    base = tiny_checkpoint(tmp_path / "base", "qwen", tied=False)
    adapt_with_peft(base, tmp_path / "adapter", modules_to_save=["lm_head"])
    file = tmp_path / "adapter/adapter_model.safetensors"
    weights = load_file(file)
    save_file({**weights, "base_model.model.lm_head.weight": torch.ones(384, 64)}, file)
    read = dict(read_checkpoint(str(tmp_path / "adapter")).tensors("cpu", torch.float32))
    assert torch.equal(read["lm_head.weight"], torch.ones(384, 64))
    save_file({**weights, "base_model.model.lm_head.weight": torch.ones(385, 64)}, file)
    with pytest.raises(BadInput, match=r"lm_head\.weight of shape \(385, 64\)"):
        read_checkpoint(str(tmp_path / "adapter"))
    tied = tiny_checkpoint(tmp_path / "tied", "robometer-lerobot")
    save_file({"base_model.model.lm_head.weight": torch.ones(TOKENS + 5, 64)}, file)
    with pytest.raises(BadInput, match="tied"):
        read_checkpoint(str(tied), adapter=str(tmp_path / "adapter"))


MODULE = "base_model.model.model.language_model.layers.0.self_attn.q_proj"
ELSEWHERE = "base_model.model.elsewhere"


@pytest.mark.parametrize(
    ("facts", "factors", "word"),
    [
        ({"use_dora": True}, {}, "use_dora"),
        ({"peft_type": "IA3"}, {}, "IA3"),
        ({"bias": "all"}, {}, "bias"),
        ({"fan_in_fan_out": True}, {}, "fan_in_fan_out"),
        ({"init_lora_weights": "pissa"}, {}, "pissa"),
        ({"a_new_option": 3}, {}, "a_new_option"),
        ({"r": 8}, {}, "rank 4"),
        ({"lora_alpha": None}, {}, "lora_alpha"),
        ({"base_model_name_or_path": None}, {}, "base_model_name_or_path"),
        ({}, {f"{MODULE}.lora_magnitude_vector": torch.ones(3)}, "lora_magnitude_vector"),
        ({}, {f"{MODULE}.lora_A.second.weight": torch.ones(4, 64)}, "second"),
        ({}, {f"{MODULE}.lora_A.weight": torch.ones(4, 3)}, r"\(4, 3\)"),
        ({}, {f"{ELSEWHERE}.lora_A.weight": torch.ones(4, 3)}, "both factors"),
        ({}, {f"{ELSEWHERE}.lora_{part}.weight": torch.ones(4, 4) for part in "AB"}, "elsewhere"),
    ],
)
def test_adapters_that_cannot_be_merged_exactly_are_refused(
    made: Path, tmp_path: Path, facts: dict[str, Any], factors: dict[str, torch.Tensor], word: str
) -> None:
    shutil.copytree(made / "adapter", tmp_path / "adapter")
    change_json(tmp_path / "adapter/adapter_config.json", **facts)
    file = tmp_path / "adapter/adapter_model.safetensors"
    save_file({**load_file(file), **factors}, file)
    with pytest.raises(BadInput, match=word):
        read_checkpoint(str(tmp_path / "adapter"))


def test_an_adapter_of_another_base_is_refused(tmp_path: Path) -> None:
    plain, other = tiny_checkpoint(tmp_path / "plain"), tiny_checkpoint(tmp_path / "other", seed=5)
    fingerprint = read_checkpoint(str(plain)).fingerprint()
    fine, bare = tiny_adapter(tmp_path / "fine", plain, fingerprint), tiny_adapter(tmp_path / "bare", plain)
    shutil.copytree(plain, tmp_path / "copy")
    assert read_checkpoint(str(tmp_path / "copy")).fingerprint() == fingerprint
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for base in (plain, tmp_path / "copy"):
            for adapter in (fine, bare):
                read_checkpoint(str(base), adapter=str(adapter))
        read_checkpoint(str(other), adapter=str(tiny_adapter(tmp_path / "same name", "/elsewhere/other")))
        read_checkpoint(str(other), adapter=str(tiny_adapter(tmp_path / "no name", "")))
    for adapter, word in ((fine, "training"), (bare, "adapter_config")):
        with pytest.raises(BadInput, match=word):
            read_checkpoint(str(other), adapter=str(adapter))
    # the model that it names has changed since
    with pytest.raises(BadInput, match="training"):
        read_checkpoint(str(tiny_adapter(tmp_path / "stale", other, fingerprint)))
    with pytest.warns(AmbiguityWarning, match="Qwen3-VL-8B"):
        read_checkpoint(str(other), adapter=str(tiny_adapter(tmp_path / "unknown", "Qwen/Qwen3-VL-8B-Instruct")))


def test_an_adapter_beside_a_whole_model_and_heads_over_a_plain_one_are_refused(made: Path, tmp_path: Path) -> None:
    base = tiny_checkpoint(tmp_path / "base", "qwen")
    shutil.copy(made / "adapter/adapter_model.safetensors", base)
    with pytest.raises(BadInput, match="both"):
        read_checkpoint(str(base))
    shutil.copytree(made / "adapter", tmp_path / "adapter")
    save_file({"success_head.4.bias": torch.ones(1)}, tmp_path / "adapter/custom_heads.safetensors")
    with pytest.raises(BadInput, match="success_head"):
        read_checkpoint(str(tmp_path / "adapter"))


def test_a_downloaded_checkpoint_knows_its_commit_and_hash(tmp_path: Path) -> None:
    """The hub's cache: snapshots/<commit>/ holds links to blobs/<sha256>."""
    made = tiny_checkpoint(tmp_path / "made", "qwen")
    snapshot, blobs = tmp_path / "models--a--b/snapshots/0123abcd", tmp_path / "models--a--b/blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for path in made.iterdir():
        shutil.copy(path, blobs / ("f" * 64 if path.suffix == ".safetensors" else path.name))
        (snapshot / path.name).symlink_to(blobs / ("f" * 64 if path.suffix == ".safetensors" else path.name))
    checkpoint = read_checkpoint(str(snapshot))
    assert checkpoint.revision == "0123abcd"
    assert checkpoint.fingerprint() != read_checkpoint(str(made)).fingerprint()  # not read
    assert same_weights(checkpoint, tiny_weights())
