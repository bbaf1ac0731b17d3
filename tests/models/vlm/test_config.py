"""Reading config.json: another family or an odd value is an error that names it."""

from typing import Any

import pytest

from demerit.errors import BadInput
from demerit.models.vlm.config import VLMShape
from fakes.tiny_vlm import ROWS, tiny_config

CONFIG = tiny_config(ROWS["qwen"])


@pytest.mark.parametrize(
    ("part", "changes", "said"),
    [
        ("text", {"vocab_size": None}, "vocab_size.*None"),
        ("text", {"num_attention_heads": "four"}, "num_attention_heads.*'four'"),
        ("text", {"num_hidden_layers": True}, "num_hidden_layers.*True"),
        ("text", {"num_key_value_heads": 3}, "num_key_value_heads.*4 and 3"),
        ("text", {"rope_scaling": "x"}, "rope_scaling"),
        *(("text", {"rope_scaling": {"mrope_section": odd}}, "mrope_section") for odd in ([24], [4, 2, "2"], 8)),
        ("text", {"rope_scaling": {"mrope_section": [4, 2, 2], "mrope_interleaved": False}}, "mrope_interleaved"),
        ("text", {"rope_theta": float("inf")}, "rope_theta.*inf"),
        ("text", {"rms_norm_eps": "small"}, "rms_norm_eps.*'small'"),
        ("vision", {"num_heads": 5}, "num_heads.*32 and 5"),
        ("vision", {"num_position_embeddings": 63}, "square.*63"),
        ("vision", {"deepstack_visual_indexes": [0, 9]}, r"\[0, 9\]"),
    ],
)
def test_odd_values_are_refused_by_name(part: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        VLMShape.from_config(tiny_config(**{part: changes}))


@pytest.mark.parametrize("name", ["text_config", "vision_config", "image_token_id", "vision_end_token_id"])
@pytest.mark.parametrize("value", [None, -1])
def test_entries_of_another_type_are_refused(name: str, value: Any) -> None:
    with pytest.raises(BadInput, match=name):
        VLMShape.from_config({**CONFIG, name: value})


def test_another_family_is_refused() -> None:
    with pytest.raises(BadInput, match="qwen3_vl"):
        VLMShape.from_config({**CONFIG, "model_type": "llava"})
