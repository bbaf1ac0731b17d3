"""Checkpoints: three public layouts under one set of names, adapters merged as peft merges them, the rest refused."""

from __future__ import annotations

import errno
import gc
import json
import shutil
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import yaml
from huggingface_hub import errors as hub_errors
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import Qwen3VLForConditionalGeneration

from demerit.errors import BadInput, DemeritError, MissingExtra, OutOfMemory, StoreError, WeightsMismatch
from demerit.models.vlm.checkpoint import Checkpoint, read_checkpoint, tokenizer_path
from demerit.models.vlm.heads import expected_heads
from demerit.models.vlm.hub import located, revision_of
from demerit.models.vlm.memory import within_memory
from fakes.tiny_vlm import (
    ROWS,
    TOKENS,
    Layout,
    backbone_shapes,
    head_shapes,
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


def same(checkpoint: Checkpoint, weights: dict[str, torch.Tensor]) -> bool:
    read = dict(checkpoint.tensors("cpu", torch.float32))
    return all(torch.equal(read[name], weights[name]) for name in read)


# layouts


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_comes_out_under_the_same_names(tmp_path: Path, layout: Layout) -> None:
    checkpoint = read_checkpoint(str(tiny_checkpoint(tmp_path / "it", layout, seed=3)))
    weights = tiny_weights(layout, seed=3)
    read = dict(checkpoint.tensors("cpu", torch.float32, expected(layout)))
    assert set(read) == set(expected(layout))
    assert all(torch.equal(read[name], weights[name]) for name in read)
    assert checkpoint.layout == layout
    assert checkpoint.config["text_config"]["vocab_size"] == ROWS[layout]
    assert bool(checkpoint.heads) == (layout != "qwen")
    assert checkpoint.revision is None


def test_the_engines_heads_are_the_files(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(str(tiny_checkpoint(tmp_path / "it", "robometer")))
    assert {name: checkpoint.sources[name].shape for name in checkpoint.heads} == expected_heads(64, 10)


def test_an_untied_model_brings_its_own_read_out(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(str(tiny_checkpoint(tmp_path / "it", "qwen", tied=False, shards=3)))
    read = dict(checkpoint.tensors("cpu", torch.float32, expected("qwen", tied=False)))
    assert torch.equal(read["lm_head.weight"], tiny_weights("qwen", tied=False)["lm_head.weight"])
    assert not torch.equal(read["lm_head.weight"], read["language_model.embed_tokens.weight"])


def test_weights_come_in_the_kind_that_was_asked_for(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "it", "qwen", dtype=torch.bfloat16)
    weights = tiny_weights()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for name, value in read_checkpoint(str(folder)).tensors("cpu", dtype):
            assert value.dtype == dtype
            assert torch.equal(value, weights[name].to(torch.bfloat16).to(dtype))


def test_a_tied_table_may_be_stored_under_either_name(tmp_path: Path) -> None:
    embedding = "model.model.language_model.embed_tokens.weight"
    folder = tiny_checkpoint(tmp_path / "it", "robometer-lerobot", drop=(embedding,))
    assert embedding not in load_file(folder / "model.safetensors")
    checkpoint = read_checkpoint(str(folder))
    read = dict(checkpoint.tensors("cpu", torch.float32, expected("robometer-lerobot")))
    name = "language_model.embed_tokens.weight"
    assert torch.equal(read[name], tiny_weights("robometer-lerobot")[name])
    # of an untied one, it is simply missing
    untied = tiny_checkpoint(tmp_path / "untied", "robometer-lerobot", tied=False, drop=(embedding,))
    with pytest.raises(WeightsMismatch, match=r"1 missing: language_model\.embed_tokens\.weight; nothing unexpected"):
        read_checkpoint(str(untied)).tensors("cpu", torch.float32, expected("robometer-lerobot"))


def test_a_robometer_without_a_shape_takes_its_base_models(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "it", "robometer", config_from_base=True)
    checkpoint = read_checkpoint(str(folder))
    assert checkpoint.config["model_type"] == "qwen3_vl"
    # the base has room for more words than the tuned one kept
    assert json.loads((tmp_path / "it-base/config.json").read_text())["text_config"]["vocab_size"] == 384
    assert checkpoint.config["text_config"]["vocab_size"] == TOKENS + 5
    checkpoint.check(expected("robometer"))


def test_a_config_may_be_written_as_text_but_must_be_somewhere(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "it", "robometer-lerobot")
    inner = json.loads((folder / "config.json").read_text())["vlm_config"]
    change_json(folder / "config.json", vlm_config=json.dumps(inner))
    assert read_checkpoint(str(folder)).config["text_config"] == inner["text_config"]
    change_json(folder / "config.json", vlm_config="{")
    assert read_checkpoint(str(folder)).config["text_config"] == inner["text_config"]  # the base model's
    (tmp_path / "it-base/config.json").write_text("{}")
    with pytest.raises(BadInput, match=r"the shape of its network in config\.json, its own or its base model's"):
        read_checkpoint(str(folder))


@pytest.mark.parametrize("layout", ["robometer", "robometer-lerobot"])
def test_robometers_facts_are_read(tmp_path: Path, layout: Layout) -> None:
    facts = read_checkpoint(str(tiny_checkpoint(tmp_path / "it", layout, bins=7, frames=5))).facts
    assert facts is not None
    assert (facts.bins, facts.frames, facts.base) == (7, 5, str(tmp_path / "it-base"))


@pytest.mark.parametrize(
    ("section", "name", "value", "sentence"),
    [
        (
            "loss",
            "progress_loss_type",
            "l2",
            "progress_loss_type = discrete, as the published Robometer has it, got 'l2'",
        ),
        ("data", "use_multi_image", False, "use_multi_image = True"),
        ("loss", "progress_discrete_bins", None, "progress_discrete_bins, a whole number of at least 1, got None"),
        ("data", "max_frames", "eight", "max_frames, a whole number of at least 1, got 'eight'"),
        ("model", "base_model_id", None, "base_model_id, the model that this one was trained from, got None"),
    ],
)
def test_other_kinds_of_robometer_are_refused(
    tmp_path: Path, section: str, name: str, value: object, sentence: str
) -> None:
    folder = tiny_checkpoint(tmp_path / "it", "robometer")
    said = yaml.safe_load((folder / "config.yaml").read_text())
    said[section][name] = value
    (folder / "config.yaml").write_text(yaml.safe_dump(said))
    with pytest.raises(BadInput, match=sentence):
        read_checkpoint(str(folder))


def test_the_real_checkpoints_of_transformers_have_our_names(tmp_path: Path) -> None:
    """What transformers itself saves is read back, tensor by tensor."""
    folder = tiny_checkpoint(tmp_path / "it", "qwen")
    model = Qwen3VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    model.save_pretrained(tmp_path / "again", max_shard_size="300KB")
    assert (tmp_path / "again/model.safetensors.index.json").is_file()
    checkpoint = read_checkpoint(str(tmp_path / "again"))
    checkpoint.check(expected("qwen"))
    assert same(checkpoint, tiny_weights())


# strictness


def test_missing_unexpected_and_misshapen_weights_are_listed(tmp_path: Path) -> None:
    gone = tuple(f"model.visual.blocks.{at}.attn.proj.bias" for at in range(4))
    more = {"model.visual.blocks.9.attn.proj.bias": torch.zeros(3), "similarity_head.0.bias": torch.zeros(2)}
    folder = tiny_checkpoint(tmp_path / "it", "robometer", drop=gone, extra=more)
    wanted = expected("robometer") | {"progress_head.4.bias": (12,)}
    with pytest.raises(WeightsMismatch) as caught:
        read_checkpoint(str(folder)).check(wanted)
    assert caught.value.missing == [name.removeprefix("model.") for name in gone]
    assert set(caught.value.unexpected) == {
        "visual.blocks.9.attn.proj.bias",
        "similarity_head.0.bias",
        "progress_head.4.bias of shape (10,) instead of (12,)",
    }
    assert "4 missing: visual.blocks.0.attn.proj.bias" in str(caught.value)
    assert f"Looked in {folder} (layout robometer): give the checkpoint of this model, whole." in str(caught.value)


def test_gaps_are_allowed_by_name_only(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "it", "robometer", drop=("success_head.4.bias", "success_head.4.weight"))
    checkpoint = read_checkpoint(str(folder))
    with pytest.raises(WeightsMismatch, match=r"1 missing: success_head\.4\.weight"):
        checkpoint.check(expected("robometer"), gaps=("success_head.4.bias",))
    checkpoint.check(expected("robometer"), gaps=("success_head.4.bias", "success_head.4.weight"))
    with pytest.raises(WeightsMismatch, match=r"1 unexpected: frame_pool_attn\.weight"):
        checkpoint.check(expected("robometer"), gaps=("success_head.4.bias", "success_head.4.weight"), spare=())


def test_the_check_comes_before_the_first_tensor(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(str(tiny_checkpoint(tmp_path / "it", "qwen")))
    with pytest.raises(WeightsMismatch, match=r"1 missing: progress_head\.0\.weight"):
        checkpoint.tensors("cpu", torch.float32, {**expected("qwen"), "progress_head.0.weight": (1, 1)})


def test_another_family_is_refused(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "it", "qwen")
    save_file({"model.layers.0.mlp.weight": torch.zeros(2)}, folder / "model.safetensors")
    with pytest.raises(BadInput, match=r"a Qwen3-VL checkpoint .* got names such as model\.layers\.0\.mlp\.weight"):
        read_checkpoint(str(folder))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(BadInput, match=r"text_config and vision_config, as Qwen3-VL has, got config\.json for llama"):
        read_checkpoint(str(folder))


def test_two_tensors_for_one_weight_are_refused(tmp_path: Path) -> None:
    extra = {"model.language_model.base_model.model.norm.weight": torch.ones(64)}
    folder = tiny_checkpoint(tmp_path / "it", "qwen", extra=extra)
    with pytest.raises(BadInput, match="one tensor for each weight, got several, such as"):
        read_checkpoint(str(folder))


def _only_pickles(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _cut(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])


def _no_index(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")


def _bytes(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file({name: value.to(torch.uint8) for name, value in weights.items()}, folder / "model.safetensors")


def _quantised(folder: Path) -> None:
    change_json(folder / "config.json", quantization_config={"bits": 4})


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (_only_pickles, r"weights as safetensors \(pickles can run code .* got only pytorch_model\.bin"),
        (_cut, "a whole safetensors file; fetch or copy it again"),
        (_no_index, r"got shards without their index \(model-00001-of-00002\.safetensors\)"),
        (_bytes, "weights of kind F32, BF16, F16 .* got U8"),
        (_quantised, "a checkpoint that is not quantised"),
        (lambda folder: (folder / "model.safetensors").unlink(), "got no weights"),
        (lambda folder: (folder / "config.json").write_text("{"), "expected JSON"),
        (lambda folder: (folder / "config.json").write_text("[]"), "expected an object, got a list"),
    ],
)
def test_what_cannot_be_read_is_a_sentence(tmp_path: Path, spoil: Callable[[Path], None], sentence: str) -> None:
    folder = tiny_checkpoint(tmp_path / "it", "qwen")
    spoil(folder)
    with pytest.raises(BadInput, match=sentence):
        read_checkpoint(str(folder))


def test_an_index_that_does_not_fit_its_shards_is_refused(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "it", "qwen", shards=2)
    index = folder / "model.safetensors.index.json"
    good = json.loads(index.read_text())["weight_map"]
    first = min(good)
    change_json(index, weight_map={name: file for name, file in good.items() if name != first})
    with pytest.raises(BadInput, match=rf"1 names in only one of the two, such as {first}"):
        read_checkpoint(str(folder))
    change_json(index, weight_map={**good, first: "../elsewhere.safetensors"})
    with pytest.raises(BadInput, match=r"names of files in the same folder, got '\.\./elsewhere\.safetensors'"):
        read_checkpoint(str(folder))
    change_json(index, weight_map=good)
    (folder / good[first]).unlink()
    with pytest.raises(BadInput, match=r"a download that was cut off is finished by fetching again"):
        read_checkpoint(str(folder))


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel how much memory is not a mapped file")
def test_tensors_are_read_one_at_a_time(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "it", "qwen")
    size = 16 << 20
    big = {f"model.language_model.layers.{at}.big": torch.zeros(size // 4) for at in range(8)}
    save_file({**load_file(folder / "model.safetensors"), **big}, folder / "model.safetensors")
    script = """if True:
        import sys, torch
        from demerit.models.vlm.checkpoint import read_checkpoint
        def held():
            lines = open("/proc/self/status").read().splitlines()
            return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
        for _ in read_checkpoint(sys.argv[1]).tensors("cpu", torch.bfloat16):
            pass  # what is imported and kept at the first use is not asked about
        before, most, total = held(), 0, 0
        for _, value in read_checkpoint(sys.argv[1]).tensors("cpu", torch.bfloat16):
            most, total = max(most, held()), total + value.nbytes
            del value
        print(total, most - before)
    """
    run = subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=True)
    total, held = map(int, run.stdout.split())
    assert total > 8 * size // 2
    assert held < 2 * size  # one tensor as it is on disk, and as it was asked for


# adapters


def adapted(base: Path, to: Path, wrap: str = "whole", **options: Any) -> dict[str, torch.Tensor]:
    """Put a random adapter on a tiny model with peft, save it, and return peft's own merged weights by our names."""
    torch.manual_seed(0)
    model = Qwen3VLForConditionalGeneration.from_pretrained(base, dtype=torch.float32)
    where = r".*language_model.*\.(q|k|v|o|gate|up|down)_proj" if wrap == "whole" else r".*\.(q|k|v|up)_proj"
    config = LoraConfig(**{"r": 4, "lora_alpha": 6, "target_modules": where, **options})
    part = model if wrap == "whole" else model.model.language_model
    wrapped = get_peft_model(part, config)
    for name, value in wrapped.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value, std=0.3)
    wrapped.save_pretrained(to, save_embedding_layers=False)
    if wrap != "whole":
        model.model.language_model = wrapped
        to.with_name(to.name + "-full").mkdir()
        full = {name: value.contiguous() for name, value in model.state_dict().items() if name != "lm_head.weight"}
        save_file(full, to.with_name(to.name + "-full") / "model.safetensors")
        model.model.language_model = wrapped.merge_and_unload()
    else:
        model = wrapped.merge_and_unload()
    return {name.removeprefix("model."): value for name, value in model.state_dict().items()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `base` and an `adapter` of it; copy the adapter before changing it."""
    home = tmp_path_factory.mktemp("made")
    adapted(tiny_checkpoint(home / "base", "qwen"), home / "adapter")
    return home


def all_equal(checkpoint: Checkpoint, merged: dict[str, torch.Tensor]) -> None:
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
        {"rank_pattern": {"q_proj": 2, r"layers\.1\.mlp\.up_proj": 3}, "alpha_pattern": {"down_proj": 1}},
        {"target_modules": r".*visual.*\.(qkv|linear_fc1)"},
    ],
)
def test_adapters_are_merged_as_peft_merges_them(tmp_path: Path, options: dict[str, Any]) -> None:
    base = tiny_checkpoint(tmp_path / "base", "qwen")
    merged = adapted(base, tmp_path / "adapter", **options)
    given = read_checkpoint(str(base), adapter=str(tmp_path / "adapter"))
    all_equal(given, merged)
    assert given.adapters == (tmp_path / "adapter",)
    # the adapter's folder alone brings the model that it names
    alone = read_checkpoint(str(tmp_path / "adapter"))
    all_equal(alone, merged)
    assert alone.fingerprint() == given.fingerprint() != read_checkpoint(str(base)).fingerprint()
    assert tokenizer_path(alone) == base / "tokenizer.json"


def test_a_wrapped_network_is_unwrapped(tmp_path: Path) -> None:
    """A snapshot with base_layer and lora names inside, as trainers write it, and the adapter's files beside."""
    base = tiny_checkpoint(tmp_path / "base", "qwen")
    merged = adapted(base, tmp_path / "adapter", wrap="language_model", use_rslora=True)
    all_equal(read_checkpoint(str(base), adapter=str(tmp_path / "adapter")), merged)
    full = tmp_path / "adapter-full"
    names = load_file(full / "model.safetensors")
    assert "model.language_model.base_model.model.layers.0.self_attn.q_proj.base_layer.weight" in names
    shutil.copy(base / "config.json", full)
    with pytest.raises(BadInput, match=r"adapter_config\.json, which says how strongly its adapters count, got none"):
        read_checkpoint(str(full))
    for path in (tmp_path / "adapter").glob("adapter_*"):
        shutil.copy(path, full)
    all_equal(read_checkpoint(str(full)), merged)
    stale = load_file(full / "adapter_model.safetensors")
    save_file({name: value + 1 for name, value in stale.items()}, full / "adapter_model.safetensors")
    with pytest.raises(BadInput, match="the same numbers as in the model's own file"):
        read_checkpoint(str(full))


def test_a_robometer_with_adapters_inside_takes_their_strength_from_its_yaml(tmp_path: Path) -> None:
    module = "model.language_model.layers.0.self_attn.q_proj"
    a, b = torch.randn(32, 64), torch.randn(64, 32)
    folder = tiny_checkpoint(
        tmp_path / "it",
        "robometer",
        drop=(f"{module}.weight",),
        extra={
            f"{module}.base_layer.weight": torch.ones(64, 64),
            f"{module}.lora_A.default.weight": a,
            f"{module}.lora_B.default.weight": b,
        },
    )
    read = dict(read_checkpoint(str(folder)).tensors("cpu", torch.float32, expected("robometer")))
    name = f"{module}.weight".removeprefix("model.")
    torch.testing.assert_close(read[name], 1 + 2 * torch.einsum("or,ri->oi", b, a), rtol=0, atol=1e-4)
    heads = {name: value for name, value in tiny_weights("robometer").items() if name in head_shapes(64, 10)}
    save_file(heads, folder / "custom_heads.safetensors")
    read_checkpoint(str(folder))
    save_file({**heads, "success_head.4.bias": torch.ones(1)}, folder / "custom_heads.safetensors")
    with pytest.raises(BadInput, match=r"custom_heads\.safetensors: .* got 1 others, such as success_head\.4\.bias"):
        read_checkpoint(str(folder))


def test_whole_weights_in_an_adapter_replace_those_below(tmp_path: Path) -> None:
    base = tiny_checkpoint(tmp_path / "base", "qwen", tied=False)
    adapted(base, tmp_path / "adapter", modules_to_save=["lm_head"])
    file = tmp_path / "adapter/adapter_model.safetensors"
    weights = load_file(file)
    save_file({**weights, "base_model.model.lm_head.weight": torch.ones(384, 64)}, file)
    read = dict(read_checkpoint(str(tmp_path / "adapter")).tensors("cpu", torch.float32))
    assert torch.equal(read["lm_head.weight"], torch.ones(384, 64))
    save_file({**weights, "base_model.model.lm_head.weight": torch.ones(385, 64)}, file)
    with pytest.raises(BadInput, match=r"whole weights that fit .* got lm_head\.weight of shape \(385, 64\)"):
        read_checkpoint(str(tmp_path / "adapter"))
    tied = tiny_checkpoint(tmp_path / "tied", "robometer-lerobot")
    save_file({"base_model.model.lm_head.weight": torch.ones(TOKENS + 5, 64)}, file)
    with pytest.raises(BadInput, match=r"no change of lm_head\.weight, which is tied to the embedding"):
        read_checkpoint(str(tied), adapter=str(tmp_path / "adapter"))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"use_dora": True}, "plain LoRA .* got use_dora=True"),
        ({"peft_type": "IA3"}, r"a LoRA adapter \(others cannot be merged here\), got 'IA3'"),
        ({"bias": "all"}, "got bias='all'"),
        ({"fan_in_fan_out": True}, "got fan_in_fan_out=True"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights='pissa'"),
        ({"a_new_option": 3}, "got a_new_option=3"),
        ({"r": 8}, r"rank 4 for .*, as its adapter has, got 8"),
        ({"lora_alpha": None}, "r and lora_alpha, as numbers, got r=4, lora_alpha=None"),
        ({"base_model_name_or_path": None}, "base_model_name_or_path, the model under the adapter, got None"),
    ],
)
def test_adapters_that_cannot_be_merged_exactly_are_refused(
    made: Path, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    shutil.copytree(made / "adapter", tmp_path / "adapter")
    change_json(tmp_path / "adapter/adapter_config.json", **changes)
    with pytest.raises(BadInput, match=sentence):
        read_checkpoint(str(tmp_path / "adapter"))


def test_odd_factors_are_refused(made: Path, tmp_path: Path) -> None:
    base = made / "base"
    shutil.copytree(made / "adapter", tmp_path / "adapter")
    file = tmp_path / "adapter/adapter_model.safetensors"
    weights = load_file(file)
    module = "base_model.model.model.language_model.layers.0.self_attn.q_proj"
    for changed, sentence in (
        ({f"{module}.lora_magnitude_vector": torch.ones(3)}, "plain LoRA factors only .* got .*lora_magnitude_vector"),
        ({f"{module}.lora_A.weight": torch.ones(4, 3)}, r"factors of a matrix \(64, 64\) .* got A \(4, 3\)"),
        ({"base_model.model.elsewhere.lora_A.weight": torch.ones(4, 3)}, "only one of 1, such as elsewhere"),
        (
            {f"base_model.model.elsewhere.lora_{part}.weight": torch.ones(4, 4) for part in "AB"},
            "adapters of weights of this model, got 1 others, such as elsewhere",
        ),
    ):
        save_file({**weights, **changed}, file)
        with pytest.raises(BadInput, match=sentence):
            read_checkpoint(str(base), adapter=str(tmp_path / "adapter"))
    file.rename(file.with_suffix(".bin"))
    with pytest.raises(BadInput, match=r"pickles can run code and are not opened\), got adapter_model\.bin"):
        read_checkpoint(str(base), adapter=str(tmp_path / "adapter"))


def test_an_adapter_beside_a_whole_model_is_never_skipped(made: Path, tmp_path: Path) -> None:
    base = tiny_checkpoint(tmp_path / "base", "qwen")
    shutil.copy(made / "adapter/adapter_model.safetensors", base)
    with pytest.raises(BadInput, match=r"a model without adapter files beside it .* got both"):
        read_checkpoint(str(base))


def test_heads_over_a_plain_model_are_refused(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "adapter", tmp_path / "adapter")
    save_file({"success_head.4.bias": torch.ones(1)}, tmp_path / "adapter/custom_heads.safetensors")
    with pytest.raises(BadInput, match=r"whole weights that fit .* got success_head\.4\.bias of shape \(1,\)"):
        read_checkpoint(str(tmp_path / "adapter"))


# places


def test_the_tokenizer_is_found_in_the_checkpoint_or_its_base(tmp_path: Path) -> None:
    plain = tiny_checkpoint(tmp_path / "plain", "qwen")
    assert tokenizer_path(read_checkpoint(str(plain))) == plain / "tokenizer.json"
    for layout in ("robometer", "robometer-lerobot"):
        folder = tiny_checkpoint(tmp_path / layout, layout)  # type: ignore[arg-type]
        assert tokenizer_path(read_checkpoint(str(folder))) == tmp_path / f"{layout}-base/tokenizer.json"
    (plain / "tokenizer.json").unlink()
    with pytest.raises(BadInput, match=r"expected tokenizer\.json in one of \[.*plain'\], got none"):
        tokenizer_path(read_checkpoint(str(plain)))


def test_the_fingerprint_is_of_the_numbers(tmp_path: Path) -> None:
    one, same_again, other = (
        read_checkpoint(str(tiny_checkpoint(tmp_path / name, "robometer", seed=seed))).fingerprint()
        for name, seed in (("one", 0), ("two", 0), ("three", 1))
    )
    assert one == same_again != other


def test_a_fetched_checkpoint_knows_its_commit_and_its_hash(tmp_path: Path) -> None:
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
    assert checkpoint.fingerprint() != read_checkpoint(str(made)).fingerprint()  # the name was believed, not read
    assert same(checkpoint, tiny_weights())
    assert revision_of(made) is None


def test_folders_are_taken_as_they_are(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "it", "qwen")
    assert located(str(folder)) == folder
    with pytest.raises(BadInput, match="no revision, because a folder has none, got 'main'"):
        located(str(folder), "main")
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        BadInput, match=r"a checkpoint with config\.json \(or adapter_config\.json\) in it, got neither"
    ):
        located(str(tmp_path / "empty"))
    for odd in ("robometer", "a/b/c", str(tmp_path / "none"), "./none", ""):
        with pytest.raises(BadInput, match="a folder, or the owner/name of a model on the hub"):
            located(odd)


def hub_error(kind: type[Exception]) -> Exception:
    error = kind.__new__(kind)
    Exception.__init__(error, "the hub's own words")
    return error


@pytest.mark.parametrize(
    ("error", "kind", "sentence"),
    [
        (hub_error(hub_errors.GatedRepoError), BadInput, "accept its terms on its hub page, then log in with `hf auth"),
        (hub_error(hub_errors.RepositoryNotFoundError), BadInput, "a public model on the hub, got none of that name"),
        (
            hub_error(hub_errors.RevisionNotFoundError),
            BadInput,
            "'a/b' at revision 'v9': expected a branch, tag or com",
        ),
        (hub_error(hub_errors.LocalEntryNotFoundError), BadInput, "copy it from another machine .* got neither"),
        (hub_errors.OfflineModeIsEnabled("offline"), BadInput, "connect once to fetch it"),
        (TimeoutError("slow"), BadInput, r"connect once to fetch it.* got neither \(slow\)"),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            StoreError,
            "the disk is full; the checkpoint .*HF_HOME chooses",
        ),
        (RuntimeError("xet: No space left on device"), StoreError, "the disk is full"),
        (PermissionError(errno.EACCES, "denied"), BadInput, "got PermissionError"),
    ],
)
def test_every_way_the_hub_fails_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[DemeritError], sentence: str
) -> None:
    def fail(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(kind, match=sentence):
        located("a/b", "v9")


def test_without_a_connection_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The hub client itself, told to stay offline, with an empty cache."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    script = "import sys; from demerit.models.vlm.hub import located; located('robometer/Robometer-4B', 'abc')"
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PATH": "/usr/bin"}
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False)
    assert (
        "demerit.errors.BadInput: The checkpoint 'robometer/Robometer-4B' at revision 'abc': expected it on"
        in run.stderr
    )
    assert "give the folder's path), got neither" in run.stderr


def test_only_what_is_read_is_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "it", "qwen")
    asked: dict[str, Any] = {}

    def fetch(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    assert located("Qwen/Qwen3-VL-4B-Instruct", "c0ffee") == folder
    assert (asked["name"], asked["revision"]) == ("Qwen/Qwen3-VL-4B-Instruct", "c0ffee")
    assert "model-*.safetensors" in asked["allow_patterns"]
    assert not any(pattern.endswith((".bin", "*")) for pattern in asked["allow_patterns"])
    located("Qwen/Qwen3-VL-4B-Instruct", weights=False)
    assert not any("safetensors" in pattern for pattern in asked["allow_patterns"])
    (folder / "config.json").unlink()
    with pytest.raises(BadInput, match="a checkpoint with config"):
        located("Qwen/Qwen3-VL-4B-Instruct")


def test_without_the_hub_client_the_install_line_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtra, match=r"pip install 'demerit\[vlm\]'"):
        located("a/b")


# memory


def test_running_out_of_memory_is_a_sentence_and_lets_go() -> None:
    class Held:
        pass

    kept: list[weakref.ref[Held]] = []

    def work() -> None:
        big = Held()
        kept.append(weakref.ref(big))
        said = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.81 GiB of which 3 is"
        raise torch.OutOfMemoryError(f"{said} free. If reserved memory is large try setting PYTORCH_ALLOC_CONF.")

    with pytest.raises(OutOfMemory) as caught, within_memory("Scoring 'a' with robometer"):
        work()
    said = str(caught.value)
    assert said.startswith(
        "Scoring 'a' with robometer ran out of memory (Tried to allocate 20.00 GiB. GPU 0 has a total"
    )
    assert said.endswith("Compute less at once, load it in bfloat16, take a smaller model, or end other work there.")
    assert "PYTORCH" not in said
    assert caught.value.__cause__ is None
    gc.collect()
    assert kept[0]() is None


def test_the_processors_memory_counts_too_and_other_errors_pass() -> None:
    with pytest.raises(OutOfMemory, match="Loading ran out of memory"), within_memory("Loading"):
        torch.empty(1 << 60, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="shapes"), within_memory("Loading"):
        raise RuntimeError("shapes do not fit")
    with within_memory("Nothing"):
        pass
