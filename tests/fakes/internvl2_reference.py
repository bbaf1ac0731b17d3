"""A second InternVL2, written from the authors' description with their names: for comparison with transformers'."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class ReferenceInternVL2:
    """Computes logits from weights as on disk, one prompt at a time, float64."""

    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
        self.config = config
        self.weights = {name: weight.double() for name, weight in weights.items()}

    def see(self, pixels: Tensor) -> Tensor:
        """Return the features of images, bytes of shape (images, 448, 448, 3), one after the other."""
        return torch.cat([self._see(image) for image in pixels])

    def logits(self, ids: list[int], features: Tensor, image_token: int) -> Tensor:
        """Return (tokens, vocabulary)."""
        states = self.weights["language_model.model.tok_embeddings.weight"][torch.tensor(ids)].clone()
        states[torch.tensor(ids) == image_token] = features
        for at in range(self.config["llm_config"]["num_hidden_layers"]):
            states = self._think(states, f"language_model.model.layers.{at}.")
        states = self._rms(states, "language_model.model.norm")
        return states @ self.weights["language_model.output.weight"].T

    def _see(self, image: Tensor) -> Tensor:
        vision, w = self.config["vision_config"], self.weights
        mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
        x = ((image / 255 - mean) / deviation).double()
        patch = vision["patch_size"]
        side = 448 // patch
        kernel = w["vision_model.embeddings.patch_embedding.weight"]
        rows = []
        for line in range(side):
            for column in range(side):
                block = x[line * patch : (line + 1) * patch, column * patch : (column + 1) * patch]
                rows.append(torch.einsum("hwc,ochw->o", block, kernel))
        patches = torch.stack(rows) + w["vision_model.embeddings.patch_embedding.bias"]
        states = torch.cat([w["vision_model.embeddings.class_embedding"][0], patches])
        states = states + w["vision_model.embeddings.position_embedding"][0]
        for at in range(vision["num_hidden_layers"]):
            name = f"vision_model.encoder.layers.{at}."
            states = states + self._attend_all(self._norm(states, name + "norm1", 1e-6), name) * w[name + "ls1"]
            inner = F.gelu(self._linear(self._norm(states, name + "norm2", 1e-6), name + "mlp.fc1"))
            states = states + self._linear(inner, name + "mlp.fc2") * w[name + "ls2"]
        grid = states[1:].view(side, side, -1)
        tokens = [
            torch.cat([grid[i + a, j + b] for a in (0, 1) for b in (0, 1)])
            for i in range(0, side, 2)
            for j in range(0, side, 2)
        ]
        joined = self._norm(torch.stack(tokens), "mlp1.0", 1e-5)
        return self._linear(F.gelu(self._linear(joined, "mlp1.1")), "mlp1.3")

    def _attend_all(self, x: Tensor, name: str) -> Tensor:
        heads = self.config["vision_config"]["num_attention_heads"]
        q, k, v = self._linear(x, name + "attn.qkv").view(len(x), 3, heads, -1).permute(1, 2, 0, 3)
        mixed = torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, -1) @ v
        return self._linear(mixed.transpose(0, 1).flatten(1), name + "attn.proj")

    def _think(self, x: Tensor, name: str) -> Tensor:
        text, w = self.config["llm_config"], self.weights
        heads, groups = text["num_attention_heads"], text["num_key_value_heads"]
        size, queries = text["hidden_size"] // heads, heads // groups
        fused = self._rms(x, name + "attention_norm") @ w[name + "attention.wqkv.weight"].T
        mixed = []
        for head in range(heads):
            group, place = divmod(head, queries)
            start = group * (queries + 2) * size
            q, k, v = (fused[:, start + at * size : start + (at + 1) * size] for at in (place, queries, queries + 1))
            scores = self._rotate(q) @ self._rotate(k).T / size**0.5
            hidden = torch.triu(torch.ones_like(scores, dtype=torch.bool), 1)
            mixed.append(torch.softmax(scores.masked_fill(hidden, -torch.inf), -1) @ v)
        x = x + torch.cat(mixed, -1) @ w[name + "attention.wo.weight"].T
        normed = self._rms(x, name + "ffn_norm")
        gate, up = (normed @ w[f"{name}feed_forward.w{at}.weight"].T for at in (1, 3))
        return x + (F.silu(gate) * up) @ w[name + "feed_forward.w2.weight"].T

    def _rotate(self, x: Tensor) -> Tensor:
        half = x.shape[1] // 2
        rates = self.config["llm_config"]["rope_theta"] ** (-torch.arange(half).double() / half)
        angles = torch.arange(len(x)).double()[:, None] * rates
        a, b = x[:, :half], x[:, half:]
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], 1)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]

    def _norm(self, x: Tensor, name: str, epsilon: float) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weights[name + ".weight"], self.weights[name + ".bias"], epsilon)

    def _rms(self, x: Tensor, name: str) -> Tensor:
        epsilon = self.config["llm_config"]["rms_norm_eps"]
        return x / (x.pow(2).mean(-1, keepdim=True) + epsilon).sqrt() * self.weights[name + ".weight"]
