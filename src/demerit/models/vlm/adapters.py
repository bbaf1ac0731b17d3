"""LoRA adapters: merged into the weights exactly, or refused with the reason; never left out in silence.

    merged = weight + scale * B @ A      scale = alpha / rank, or alpha / sqrt(rank) with rank-stabilised LoRA

The product is taken in float32 and the sum is rounded once, to the kind that was asked for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from demerit.errors import BadInput
from demerit.models.vlm.layouts import HEAD, PARTS, READ_OUT, WRAPPER
from demerit.models.vlm.stored import Reader, Stored, read_json, stored_in

CONFIG, WEIGHTS, HEADS, TARGET = (
    "adapter_config.json",
    "adapter_model.safetensors",
    "custom_heads.safetensors",
    "peft_target_module.json",
)
PAIR = re.compile(r"(?P<module>.+)\.(?P<part>lora_A|lora_B)(\.(?P<adapter>[^.]+))?\.weight")
OTHER = ("lora_", "modules_to_save", "original_module", "token_adapter")
"""what else peft may have put into a wrapped network, none of which a plain product undoes"""
READ = "r lora_alpha rank_pattern alpha_pattern use_rslora base_model_name_or_path revision init_lora_weights".split()
HARMLESS = (
    "peft_type task_type auto_mapping peft_version inference_mode target_modules exclude_modules lora_dropout "
    "modules_to_save layers_to_transform layers_pattern megatron_core qalora_group_size loftq_config eva_config"
).split()
"""options that do not change what the saved numbers mean"""
NOTHING: tuple[Any, ...] = (None, False, "none", "", {}, [])
KEEPS_THE_WEIGHTS = (True, False, "gaussian", "orthogonal", "eva")
"""ways to begin an adapter that leave the weights under it alone"""
MATRIX = 2


@dataclass(frozen=True)
class Delta:
    """One adapter of one weight."""

    a: Stored
    b: Stored
    scale: float


@dataclass(frozen=True)
class Source:
    """A weight on disk and the adapters to add to it."""

    stored: Stored
    deltas: tuple[Delta, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the weight; adapters do not change it."""
        return self.stored.shape

    def read(self, reader: Reader) -> torch.Tensor:
        """Read the weight as it is on disk; in float32 with its adapters added, if it has any."""
        weight = reader.tensor(self.stored)
        if self.deltas:
            weight = weight.float()
        for delta in self.deltas:
            weight = weight + (reader.tensor(delta.b).float() @ reader.tensor(delta.a).float()) * delta.scale
        return weight


@dataclass(frozen=True)
class AdapterRules:
    """How strongly adapters count, as their config says."""

    where: str
    rank: int
    alpha: float
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]
    stabilised: bool
    base: str | None = None
    revision: str | None = None

    @classmethod
    def from_folder(cls, folder: Path, *, weights_are_with_it: bool = False) -> AdapterRules:
        """Read adapter_config.json; what this loader cannot do exactly is refused by name.

        Args:
            folder: where it is.
            weights_are_with_it: the weights under the adapter come from the same folder, so it does not matter if
                beginning the adapter changed them.
        """
        path = folder / CONFIG
        facts = read_json(path)
        if facts.get("peft_type") != "LORA":
            raise BadInput(str(path), "a LoRA adapter (others cannot be merged here)", repr(facts.get("peft_type")))
        odd = [name for name in sorted(set(facts) - {*READ, *HARMLESS, "runtime_config"}) if facts[name] not in NOTHING]
        if odd:
            advice = "merge it with peft's merge_and_unload and give the merged checkpoint"
            raise BadInput(str(path), f"plain LoRA ({advice})", ", ".join(f"{name}={facts[name]!r}" for name in odd))
        begun = facts.get("init_lora_weights", True)
        if begun not in KEEPS_THE_WEIGHTS and not weights_are_with_it:
            expected = "an adapter that was begun without changing the weights under it (merge it with peft)"
            raise BadInput(str(path), expected, f"init_lora_weights={begun!r}")
        return cls._from_facts(str(path), facts)

    @classmethod
    def from_section(cls, where: str, facts: Mapping[str, Any]) -> AdapterRules:
        """Read the `peft` section of a Robometer's config.yaml."""
        odd = [f"{name}={facts[name]!r}" for name in ("use_dora", "bias") if facts.get(name) not in NOTHING]
        if odd:
            raise BadInput(where, "plain LoRA", ", ".join(odd))
        return cls._from_facts(where, facts)

    @classmethod
    def _from_facts(cls, where: str, facts: Mapping[str, Any]) -> AdapterRules:
        rank, alpha = facts.get("r"), facts.get("lora_alpha")
        if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float):
            raise BadInput(where, "r and lora_alpha, as numbers", f"r={rank!r}, lora_alpha={alpha!r}")
        ranks, alphas = facts.get("rank_pattern") or {}, facts.get("alpha_pattern") or {}
        stabilised = bool(facts.get("use_rslora"))
        named = (facts.get(name) for name in ("base_model_name_or_path", "revision"))
        base, revision = (one if isinstance(one, str) else None for one in named)
        return cls(where, rank, float(alpha), ranks, alphas, stabilised, base, revision)

    def scale(self, module: str, rank: int) -> float:
        """Return the factor of B @ A for a module, by its name in the network that the adapter was made for."""
        said = _matching(self.ranks, module, self.rank)
        if said != rank:
            raise BadInput(self.where, f"rank {rank} for {module}, as its adapter has", said)
        alpha = float(_matching(self.alphas, module, self.alpha))
        return alpha / (math.sqrt(rank) if self.stabilised else rank)


def _matching(patterns: Mapping[str, Any], module: str, default: Any) -> Any:
    """Look a module up by the end of its name, the first pattern that fits, as peft does."""
    for pattern, value in patterns.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default


@dataclass(frozen=True)
class Pair:
    """The two factors of one module's adapter, and what the module was called when it was made."""

    a: Stored
    b: Stored
    called: str


def pairs_in(named: Mapping[str, Stored], where: str) -> tuple[dict[str, Stored], dict[str, Pair]]:
    """Part tensors into plain ones and adapters, the latter by module."""
    plain, halves = {}, dict[str, dict[str, Stored]]()
    adapters = set()
    for name, stored in named.items():
        match = PAIR.fullmatch(name)
        if match:
            adapters.add(match["adapter"])
            halves.setdefault(match["module"], {})[match["part"]] = stored
        elif any(other in name for other in OTHER):
            raise BadInput(where, "plain LoRA factors only (merge it with peft's merge_and_unload)", stored.name)
        else:
            plain[name] = stored
    if len(adapters) > 1:
        raise BadInput(where, "one adapter", f"{len(adapters)}: {', '.join(sorted(str(each) for each in adapters))}")
    single = sorted(module for module, both in halves.items() if len(both) != 2)  # noqa: PLR2004
    if single:
        raise BadInput(where, "both factors of each adapter", f"only one of {len(single)}, such as {single[0]}")
    pairs = {m: Pair(both["lora_A"], both["lora_B"], _called(both["lora_A"].name)) for m, both in halves.items()}
    return plain, pairs


def _called(name: str) -> str:
    inside = name.partition(WRAPPER)[2] or name
    match = PAIR.fullmatch(inside)
    return match["module"] if match else inside


def with_pairs(sources: Mapping[str, Source], pairs: Mapping[str, Pair], rules: AdapterRules) -> dict[str, Source]:
    """Add adapters to the weights they belong to; one that belongs to none is an error."""
    merged = dict(sources)
    homeless = sorted(module for module in pairs if f"{module}.weight" not in sources)
    if homeless:
        raise BadInput(
            rules.where, "adapters of weights of this model", f"{len(homeless)} others, such as {homeless[0]}"
        )
    for module, pair in pairs.items():
        source = merged[f"{module}.weight"]
        rank = pair.a.shape[0]
        fits = len(source.shape) == MATRIX and pair.a.shape == (rank, source.shape[1])
        if not fits or pair.b.shape != (source.shape[0], rank):
            got = f"A {pair.a.shape} and B {pair.b.shape}"
            raise BadInput(rules.where, f"factors of a matrix {source.shape} for {module}", got)
        delta = Delta(pair.a, pair.b, rules.scale(pair.called, rank))
        merged[f"{module}.weight"] = Source(source.stored, (*source.deltas, delta))
    return merged


def stored_adapter(folder: Path) -> dict[str, Stored]:
    """List an adapter folder's tensors under our names, with heads that were trained beside it."""
    if not (folder / WEIGHTS).is_file() and any(folder.glob("adapter_model.bin")):
        raise BadInput(str(folder), f"{WEIGHTS} (pickles can run code and are not opened)", "adapter_model.bin")
    target = read_json(folder / TARGET).get("target_module") if (folder / TARGET).is_file() else None
    found = {_at_home(name, target): stored for name, stored in stored_in(folder / WEIGHTS).items()}
    if (folder / HEADS).is_file():
        found |= stored_in(folder / HEADS)
    return found


def _at_home(name: str, target: object) -> str:
    """Name a tensor of an adapter by its place in the whole network, whichever part of it was wrapped."""
    name = name.replace(WRAPPER, "").replace(".base_layer.", ".")
    while name.startswith("model."):
        name = name.removeprefix("model.")
    if name.startswith((*PARTS, READ_OUT.partition(".")[0])) or HEAD.match(name):
        return name
    # the language model alone has `layers`, the vision tower alone `blocks`: no need to be told which was wrapped
    part = {"layers": "language_model", "blocks": "visual"}.get(name.partition(".")[0], target)
    return f"{part}.{name}" if part in {"language_model", "visual"} else name
