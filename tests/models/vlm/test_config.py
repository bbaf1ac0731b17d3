"""Reading config.json: another family or an odd value is an error that names it."""

from __future__ import annotations

from typing import Any

import pytest

from demerit.errors import BadInput
from demerit.models.vlm.config import VLMShape
from fakes.tiny_vlm import ROWS, tiny_config

CONFIG = tiny_config(ROWS["qwen"])


@pytest.mark.parametrize(
    ("part", "changes", "said"),
    [
        ("text", {"vocab_size": None}, "vocab_size, a whole number >= 1, got None"),
        ("text", {"num_attention_heads": "four"}, "num_attention_heads, a whole number >= 1, got 'four'"),
        ("text", {"num_attention_heads": 0}, "num_attention_heads, a whole number >= 1, got 0"),
        ("text", {"num_hidden_layers": True}, "num_hidden_layers, a whole number >= 1, got True"),
        ("text", {"num_key_value_heads": 3}, "a multiple of num_key_value_heads, got 4 and 3"),
        ("text", {"rope_scaling": "x"}, "rope_scaling"),
        ("text", {"rope_theta": None}, "rope_theta, a positive number, got None"),
        ("text", {"rope_theta": float("inf")}, "rope_theta, a positive number, got inf"),
        ("text", {"rms_norm_eps": "small"}, "rms_norm_eps, a positive number, got 'small'"),
        ("vision", {"depth": 2.5}, "depth, a whole number >= 1, got 2.5"),
        ("vision", {"num_heads": 5}, "a multiple of its num_heads, got 32 and 5"),
        ("vision", {"num_position_embeddings": 63}, "a square number, got 63"),
        ("vision", {"deepstack_visual_indexes": [0, 9]}, r"a list of blocks from 0 to 3, got \[0, 9\]"),
        ("vision", {"deepstack_visual_indexes": 3}, "a list of blocks from 0 to 3, got 3"),
    ],
)
def test_odd_values_are_refused_by_name(part: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=rf"config\.json: .*{said}"):
        VLMShape.from_config(tiny_config(**{part: changes}))


@pytest.mark.parametrize("sections", [[24], [24, 20, 20], [4, 2, "2"], "4,2,2", [8, 0, -0.5], 8])
def test_rope_sections_sum_to_half_a_head(sections: Any) -> None:
    rope = {"mrope_section": sections, "rope_type": "default"}
    with pytest.raises(BadInput, match="mrope_section"):
        VLMShape.from_config(tiny_config(text={"rope_scaling": rope}))
    with pytest.raises(BadInput, match="mrope_interleaved"):
        VLMShape.from_config(tiny_config(text={"rope_scaling": {**rope, "mrope_interleaved": False}}))


@pytest.mark.parametrize("name", ["text_config", "vision_config", "image_token_id", "vision_end_token_id"])
@pytest.mark.parametrize("value", [None, "x", [1], -1])
def test_entries_of_another_type_are_refused(name: str, value: Any) -> None:
    with pytest.raises(BadInput, match=name):
        VLMShape.from_config({**CONFIG, name: value})


def test_another_family_is_refused() -> None:
    with pytest.raises(BadInput, match="qwen3_vl"):
        VLMShape.from_config({**CONFIG, "model_type": "llava"})
    text = {name: value for name, value in CONFIG["text_config"].items() if name != "rope_theta"}
    with pytest.raises(BadInput, match="rope_theta"):
        VLMShape.from_config({**CONFIG, "text_config": text})
