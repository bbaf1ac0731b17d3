"""A tiny Qwen3-VL that always answers with one sentence, whatever it sees.

Its layers add nothing to the states, so the last token alone decides, and every token points to the next one of the
sentence. No token may occur twice.
"""

from itertools import pairwise
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from demerit.models.vlm.prompt import PromptTokenizer
from fakes.tiny_vlm import ID, tiny_checkpoint


def talking_checkpoint(folder: Path, sentence: str) -> Path:
    """Write a checkpoint that answers with the sentence and then ends."""
    tiny_checkpoint(folder, tied=False)
    tokens = PromptTokenizer.read(folder / "tokenizer.json")
    chain = [*tokens.ids("\n"), *tokens.ids(sentence), ID["<|im_end|>"]]
    assert len(set(chain)) == len(chain), "no token may occur twice"
    weights = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        if "language_model" in name and name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.zero_()
    table, out = weights["model.language_model.embed_tokens.weight"], weights["lm_head.weight"]
    weights["model.language_model.norm.weight"].fill_(1.0)
    out.zero_()
    for place, (word, following) in enumerate(pairwise(chain)):
        direction = torch.zeros(table.shape[1])
        direction[place] = 1.0
        table[word] = direction
        out[following] = 4 * direction
    save_file(weights, folder / "model.safetensors")
    return folder
