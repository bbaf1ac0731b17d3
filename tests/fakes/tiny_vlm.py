"""Checkpoints of a tiny Qwen3-VL with random weights, in every public layout: the real names, a thousandth of the size.

    tiny_checkpoint(folder, "qwen")               Qwen3-VL and RoboReward: model.language_model.*, lm_head or tied
    tiny_checkpoint(folder, "robometer")          the authors' Robometer: shards, config.yaml, heads; base model beside
    tiny_checkpoint(folder, "robometer-lerobot")  LeRobot's copy: one file, model.model.*, vlm_config inside config.json

The tokenizer is Qwen's kind (byte-level BPE, same splitting, same special tokens in the same order), only with a few
merges. As in the real ones, the plain model has more embedding rows than tokens, and Robometer's five tokens are the
last rows of its own, shorter table.
"""

import copy
import functools
import json
import zlib
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import yaml
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

torch.set_num_threads(1)  # tiny products gain nothing from more, and lose much where cores are shared

Layout = Literal["qwen", "robometer", "robometer-lerobot"]

PLAIN = 320  # ordinary tokens: 256 bytes and some merges
SPECIAL = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> "
    "<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> "
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> "
    "<tool_response> </tool_response> <think> </think>"
).split()
ID = {token: PLAIN + place for place, token in enumerate(SPECIAL)}
TOKENS = PLAIN + len(SPECIAL)  # 346: what the tokenizer knows
ROBOMETER_TOKENS = ("<|split_token|>", "<|reward_token|>", "<|pref_token|>", "<|sim_token|>", "<|prog_token|>")
ROWS = {"qwen": 384, "robometer": TOKENS + 5, "robometer-lerobot": TOKENS + 5}

TEXT: dict[str, Any] = {
    "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": ID["<|endoftext|>"],
    "eos_token_id": ID["<|im_end|>"], "head_dim": 16, "hidden_act": "silu", "hidden_size": 64,
    "initializer_range": 0.02, "intermediate_size": 96, "max_position_embeddings": 262144,
    "model_type": "qwen3_vl_text", "num_attention_heads": 4, "num_hidden_layers": 4, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6, "rope_theta": 5000000, "use_cache": True,
    "rope_scaling": {"mrope_interleaved": True, "mrope_section": [4, 2, 2], "rope_type": "default"},
}  # fmt: skip
VISION: dict[str, Any] = {
    "deepstack_visual_indexes": [0, 1, 2], "depth": 4, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 32,
    "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 48, "model_type": "qwen3_vl", "num_heads": 2,
    "num_position_embeddings": 64, "out_hidden_size": 64, "patch_size": 16, "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}  # fmt: skip
SENTENCES = [
    "pick up the cup and put it on the plate, then close the drawer",
    "the robot pushes the red block into the box; does this trajectory complete the task?",
    "a reward model watches every picture and answers with its progress from one to five",
]


def tiny_config(
    rows: int = 384, *, tied: bool = True, text: dict[str, Any] | None = None, vision: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return config.json of a tiny Qwen3-VL, written as the published ones are."""
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "image_token_id": ID["<|image_pad|>"],
        "model_type": "qwen3_vl",
        "text_config": {**copy.deepcopy(TEXT), "tie_word_embeddings": tied, "vocab_size": rows, **(text or {})},
        "tie_word_embeddings": tied,
        "transformers_version": "4.57.0.dev0",
        "video_token_id": ID["<|video_pad|>"],
        "vision_config": {**copy.deepcopy(VISION), **(vision or {})},
        "vision_end_token_id": ID["<|vision_end|>"],
        "vision_start_token_id": ID["<|vision_start|>"],
    }


@functools.cache
def _tokenizer_json() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    # Qwen's own splitting: contractions, words, single digits, punctuation, white space
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    split = words + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=PLAIN, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    assert tokenizer.get_vocab_size() == TOKENS
    assert all(tokenizer.token_to_id(token) == id for token, id in ID.items())
    return str(tokenizer.to_str(pretty=True))


def write_tokenizer(folder: Path) -> None:
    """Write tokenizer.json and the little that transformers wants beside it."""
    (folder / "tokenizer.json").write_text(_tokenizer_json(), encoding="utf-8")
    facts = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "tokenizer_class": "Qwen2TokenizerFast"}
    _write_json(folder / "tokenizer_config.json", facts)


@functools.cache
def _shapes(config: str) -> dict[str, tuple[int, ...]]:
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    with torch.device("meta"):
        model = Qwen3VLForConditionalGeneration(Qwen3VLConfig(**json.loads(config)))
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}


def backbone_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes as transformers has them, without the leading `model.`; a tied lm_head.weight is listed too."""
    return {name.removeprefix("model."): shape for name, shape in _shapes(json.dumps(config)).items()}


def head_shapes(hidden: int = 64) -> dict[str, tuple[int, ...]]:
    """Names and shapes of Robometer's heads."""
    shapes: dict[str, tuple[int, ...]] = {}
    for head, out in (("progress", 10), ("success", 1), ("preference", 1)):
        shapes[f"{head}_head.0.weight"] = (hidden // 2, hidden)
        shapes |= {f"{head}_head.{part}": (hidden // 2,) for part in ("0.bias", "1.weight", "1.bias")}
        shapes |= {f"{head}_head.4.weight": (out, hidden // 2), f"{head}_head.4.bias": (out,)}
    return {**shapes, "frame_pool_attn.weight": (1, hidden)}


def random_weights(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, torch.Tensor]:
    """Draw weights large enough that every part of the model changes the answer; each name has its own stream."""
    drawn = {}
    for name, shape in shapes.items():
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        noise = torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))
        if len(shape) == 1:
            scaled = 0.1 * noise + (1.0 if name.endswith("weight") else 0.0)
        elif "embed" in name:
            scaled = 0.5 * noise
        else:
            scaled = noise / float(torch.tensor(shape[1:]).prod()) ** 0.5
        drawn[name] = scaled
    return drawn


def tiny_checkpoint(
    folder: Path,
    layout: Layout = "qwen",
    seed: int = 0,
    *,
    text: dict[str, Any] | None = None,
    tied: bool = True,
    shards: int | None = None,
    frames: int = 8,
    config_from_base: bool = False,
    vision: dict[str, Any] | None = None,
    drop: tuple[str, ...] = (),
    extra: dict[str, torch.Tensor] | None = None,
) -> Path:
    """Write a checkpoint and return its folder. The same seed gives the same weights in every layout.

    Robometer's base model (config and tokenizer only) is written beside it as `<name>-base`. `text` changes the text
    config; `tied` is true of the 4B and false of the 8B; `drop` and `extra` are names and tensors as on disk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny_config(ROWS[layout], tied=tied, text=text, vision=vision)
    on_disk = _named(_weights(config, seed), layout, tied)
    on_disk = {name: value.contiguous() for name, value in on_disk.items() if name not in drop}
    _write_weights(folder, on_disk | (extra or {}), shards or (2 if layout == "robometer" else 1))
    if layout == "qwen":
        _write_json(folder / "config.json", config)
        write_tokenizer(folder)
        return folder
    base = folder.with_name(folder.name + "-base")
    base.mkdir(parents=True, exist_ok=True)
    _write_json(base / "config.json", tiny_config(tied=tied, text=text))
    write_tokenizer(base)
    if layout == "robometer":
        shape = {} if config_from_base else {name: config[name] for name in config if name != "architectures"}
        _write_json(folder / "config.json", {"architectures": ["RFM"], "dtype": "bfloat16", **shape})
        facts = {
            "model": {"base_model_id": str(base), "model_type": "default", "use_peft": False},
            "peft": {"r": 32, "lora_alpha": 64, "lora_dropout": 0.05, "bias": "none"},
            "data": {"max_frames": frames, "use_multi_image": True, "use_per_frame_progress_token": True},
            "loss": {"progress_loss_type": "discrete", "progress_discrete_bins": 10},
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(facts))
        return folder
    facts = {"type": "robometer", "base_model_id": str(base), "max_frames": frames, "progress_loss_type": "discrete"}
    facts |= {"progress_discrete_bins": 10, "use_multi_image": True, "use_per_frame_progress_token": True}
    _write_json(folder / "config.json", {**facts, "vlm_config": config})
    return folder


def tiny_adapter(folder: Path, base: Path | str, start: str | None = None, **changes: Any) -> Path:
    """Write a LoRA adapter of two modules; `start` is the fingerprint that training would have left."""
    folder.mkdir(parents=True)
    module, made = "base_model.model.model.language_model.layers.0.self_attn", {}
    for name, out in {"q_proj": 64, "k_proj": 32}.items():
        made[f"{module}.{name}.lora_A.weight"] = torch.ones(2, 64)
        made[f"{module}.{name}.lora_B.weight"] = torch.ones(out, 2)
    save_file(made, folder / "adapter_model.safetensors")
    facts = {"peft_type": "LORA", "base_model_name_or_path": str(base), "r": 2, "lora_alpha": 4, **changes}
    _write_json(folder / "adapter_config.json", facts)
    if start is not None:
        _write_json(folder / "training.json", {"start": str(base), "start_fingerprint": start})
    return folder


def tiny_weights(layout: Layout = "qwen", seed: int = 0, tied: bool = True) -> dict[str, torch.Tensor]:
    """Return the float32 weights that tiny_checkpoint writes, by canonical name: a second source for tests."""
    weights = _weights(tiny_config(ROWS[layout], tied=tied), seed)
    return weights if layout != "qwen" else {n: w for n, w in weights.items() if n not in head_shapes()}


def _weights(config: dict[str, Any], seed: int) -> dict[str, torch.Tensor]:
    backbone = random_weights(backbone_shapes(config), seed)
    if config["tie_word_embeddings"]:
        backbone["lm_head.weight"] = backbone["language_model.embed_tokens.weight"]
    return backbone | random_weights(head_shapes(config["text_config"]["hidden_size"]), seed)


def _named(weights: dict[str, torch.Tensor], layout: Layout, tied: bool) -> dict[str, torch.Tensor]:
    """Give every tensor the name that the layout has for it; leave out what the layout does not store."""
    heads, named = head_shapes(), {}
    for name, value in weights.items():
        if name in heads:
            if layout != "qwen":
                named[name] = value
        elif name == "lm_head.weight":
            if layout == "robometer-lerobot":
                named["model.lm_head.weight"] = value.clone()
            elif layout == "qwen" and not tied:
                named[name] = value
        else:
            named[("model.model." if layout == "robometer-lerobot" else "model.") + name] = value
    return named


def _write_weights(folder: Path, weights: dict[str, torch.Tensor], shards: int) -> None:
    if shards == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(weights)
    where = {
        name: f"model-{i * shards // len(names) + 1:05}-of-{shards:05}.safetensors" for i, name in enumerate(names)
    }
    for file in sorted(set(where.values())):
        part = {name: weights[name] for name in names if where[name] == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    size = sum(value.nbytes for value in weights.values())
    _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": size}, "weight_map": where})


def _write_json(path: Path, facts: dict[str, Any]) -> None:
    path.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
