"""Tiny random checkpoints of the families that run on transformers' own networks, in the layouts of the real ones.

    tiny_internvl2(folder)   InternVL2-2B: vision_model.*, mlp1.*, language_model.* (InternLM2, fused wqkv);
                             tokenizer.model; <|im_start|> in the place of an unused piece, <img> after the last one
    tiny_qwen25(folder)      Qwen2.5-VL-3B: model.layers.*, visual.*, flat config.json, tied

Images of the tiny InternVL2 are 448 x 448 as in the real one; its patches are larger, so that they make 16 tokens.
"""

import json
import shutil
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from demerit.models.vlm.prompt import PromptTokenizer, read_piece_tokenizer
from fakes.tiny_vlm import ID, random_weights, write_tokenizer

PIECES = Path(__file__).parents[1] / "models" / "vlm" / "pieces" / "tokenizer.model"
"""made by the sentencepiece package: 420 pieces, BPE, byte fallback, no dummy prefix, six [UNUSED_TOKEN_n]"""
LAST = 420
RENAMED = "<unk> <s> </s> <|plugin|> <|interpreter|> <|action_end|> <|action_start|> <|im_end|> <|im_start|>".split()
APPENDED = "<img> </img> <IMG_CONTEXT> <quad> </quad> <ref> </ref> <box> </box>".split()
ADDED = dict(enumerate(RENAMED)) | {LAST + at: token for at, token in enumerate(APPENDED)}
INTERNVL2: dict[str, Any] = {
    "architectures": ["InternVLChatModel"], "downsample_ratio": 0.5, "dynamic_image_size": True,
    "force_image_size": 448, "max_dynamic_patch": 12, "min_dynamic_patch": 1, "model_type": "internvl_chat",
    "ps_version": "v2", "select_layer": -1, "template": "internlm2-chat", "torch_dtype": "bfloat16",
    "use_backbone_lora": 0, "use_llm_lora": 0, "use_thumbnail": True,
    "llm_config": {
        "architectures": ["InternLM2ForCausalLM"], "attn_implementation": "flash_attention_2", "bias": False,
        "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 32, "intermediate_size": 48,
        "max_position_embeddings": 32768, "model_type": "internlm2", "num_attention_heads": 4,
        "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-05,
        "rope_scaling": {"factor": 2.0, "type": "dynamic"}, "rope_theta": 1000000, "tie_word_embeddings": False,
        "vocab_size": LAST + len(APPENDED),
    },
    "vision_config": {
        "architectures": ["InternVisionModel"], "attention_dropout": 0.0, "drop_path_rate": 0.0,
        "hidden_act": "gelu", "hidden_size": 16, "image_size": 448, "initializer_factor": 1.0,
        "intermediate_size": 24, "layer_norm_eps": 1e-06, "model_type": "intern_vit_6b", "norm_type": "layer_norm",
        "num_attention_heads": 2, "num_channels": 3, "num_hidden_layers": 2, "patch_size": 56,
        "qk_normalization": False, "qkv_bias": True, "use_flash_attn": True,
    },
}  # fmt: skip
QWEN25: dict[str, Any] = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"], "attention_dropout": 0.0,
    "bos_token_id": ID["<|endoftext|>"], "eos_token_id": ID["<|im_end|>"], "hidden_act": "silu", "hidden_size": 32,
    "image_token_id": ID["<|image_pad|>"], "initializer_range": 0.02, "intermediate_size": 48,
    "max_position_embeddings": 128000, "max_window_layers": 70, "model_type": "qwen2_5_vl", "num_attention_heads": 2,
    "num_hidden_layers": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-06,
    "rope_scaling": {"mrope_section": [2, 3, 3], "type": "mrope"}, "rope_theta": 1000000.0, "sliding_window": 32768,
    "tie_word_embeddings": True, "use_cache": True, "use_sliding_window": False,
    "video_token_id": ID["<|video_pad|>"], "vision_end_token_id": ID["<|vision_end|>"],
    "vision_start_token_id": ID["<|vision_start|>"], "vision_token_id": ID["<|vision_pad|>"], "vocab_size": 384,
    "vision_config": {
        "depth": 2, "fullatt_block_indexes": [1], "hidden_act": "silu", "hidden_size": 16, "in_chans": 3,
        "intermediate_size": 20, "num_heads": 1, "out_hidden_size": 32, "patch_size": 14, "spatial_merge_size": 2,
        "spatial_patch_size": 14, "temporal_patch_size": 2, "tokens_per_second": 2, "window_size": 56,
    },
}  # fmt: skip


def internvl2_shapes() -> dict[str, tuple[int, ...]]:
    """List names and shapes as the authors' modules would have them."""
    wide, inner, hidden, rows = 16, 24, 32, LAST + len(APPENDED)
    shapes: dict[str, tuple[int, ...]] = {
        "vision_model.embeddings.class_embedding": (1, 1, wide),
        "vision_model.embeddings.position_embedding": (1, 65, wide),
        "vision_model.embeddings.patch_embedding.weight": (wide, 3, 56, 56),
        "vision_model.embeddings.patch_embedding.bias": (wide,),
        "mlp1.0.weight": (64,), "mlp1.0.bias": (64,), "mlp1.1.weight": (hidden, 64), "mlp1.1.bias": (hidden,),
        "mlp1.3.weight": (hidden, hidden), "mlp1.3.bias": (hidden,),
        "language_model.model.tok_embeddings.weight": (rows, hidden),
        "language_model.model.norm.weight": (hidden,), "language_model.output.weight": (rows, hidden),
    }  # fmt: skip
    for at in range(2):
        layer = f"vision_model.encoder.layers.{at}."
        linears = {
            "attn.qkv": (48, wide),
            "attn.proj": (wide, wide),
            "mlp.fc1": (inner, wide),
            "mlp.fc2": (wide, inner),
        }
        for name, shape in linears.items():
            shapes |= {f"{layer}{name}.weight": shape, f"{layer}{name}.bias": shape[:1]}
        for name in ("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias", "ls1", "ls2"):
            shapes[layer + name] = (wide,)
        layer = f"language_model.model.layers.{at}."
        shapes |= {f"{layer}attention.wqkv.weight": (64, hidden), f"{layer}attention.wo.weight": (hidden, hidden)}
        shapes |= {f"{layer}feed_forward.w{n}.weight": (48, hidden) for n in (1, 3)}
        shapes |= {f"{layer}feed_forward.w2.weight": (hidden, 48)}
        shapes |= {f"{layer}{name}.weight": (hidden,) for name in ("attention_norm", "ffn_norm")}
    return shapes


def tiny_internvl2(folder: Path, seed: int = 0, **config: Any) -> Path:
    """Write a checkpoint in the authors' layout; `config` changes the top of config.json."""
    folder.mkdir(parents=True)
    save_file(random_weights(internvl2_shapes(), seed), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({**INTERNVL2, **config}))
    shutil.copy(PIECES, folder / "tokenizer.model")
    added = {str(at): {"content": token, "special": True} for at, token in ADDED.items()}
    facts = {"added_tokens_decoder": added, "tokenizer_class": "InternLM2Tokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(facts))
    return folder


def tiny_qwen25(folder: Path, seed: int = 0, *, new_names: bool = False, **config: Any) -> Path:
    """Write a checkpoint in the layout of the hub, or of newer versions of transformers."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    folder.mkdir(parents=True)
    said = {**QWEN25, **config}
    with torch.device("meta"):
        names = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(**json.loads(json.dumps(said)))).state_dict()
    drawn = random_weights({name: tuple(weight.shape) for name, weight in names.items()}, seed)
    if said["tie_word_embeddings"]:
        del drawn["lm_head.weight"]
    if not new_names:
        drawn = {n.replace("model.visual.", "visual.").replace(".language_model.", "."): w for n, w in drawn.items()}
    save_file(drawn, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(said))
    write_tokenizer(folder)
    return folder


def change_weights(folder: Path, changes: Mapping[str, torch.Tensor | None]) -> None:
    """Replace or add tensors of a checkpoint; None removes one."""
    weights = {**load_file(folder / "model.safetensors"), **changes}
    save_file({name: w for name, w in weights.items() if w is not None}, folder / "model.safetensors")


def make_talk(folder: Path, sentence: str) -> Path:
    """Change a checkpoint so that it always answers with the sentence; no token may occur twice in it."""
    pieces = (folder / "tokenizer.model").is_file()
    tokens = read_piece_tokenizer(folder) if pieces else PromptTokenizer.read(folder / "tokenizer.json")
    chain = [*tokens.ids("\n"), *tokens.ids(sentence), tokens.id("<|im_end|>")]
    assert len(set(chain)) == len(chain)
    weights = load_file(folder / "model.safetensors")
    silent = ("attention.wo.weight", "feed_forward.w2.weight", "o_proj.weight", "down_proj.weight")
    changes = {n: torch.zeros_like(w) for n, w in weights.items() if n.endswith(silent) and "vis" not in n}
    first = "language_model.model.tok_embeddings" if pieces else "model.embed_tokens"
    last = "language_model.output" if pieces else "lm_head"
    table = weights[f"{first}.weight"].clone()
    out = torch.zeros_like(table)
    for place, (word, following) in enumerate(pairwise(chain)):
        direction = torch.zeros(table.shape[1])
        direction[place] = 1.0
        table[word] = direction
        out[following] = 4 * direction
    norm = "language_model.model.norm.weight" if pieces else "model.norm.weight"
    changes |= {f"{first}.weight": table, f"{last}.weight": out, norm: torch.ones(table.shape[1])}
    change_weights(folder, changes)
    return folder
