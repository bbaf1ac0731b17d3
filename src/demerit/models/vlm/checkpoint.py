"""A checkpoint of the Qwen3-VL family, whatever its layout: one set of names, read strictly, a tensor at a time."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from demerit.errors import BadInput, WeightsMismatch
from demerit.models.vlm import adapters
from demerit.models.vlm.adapters import AdapterRules, Source, pairs_in, stored_adapter, with_pairs
from demerit.models.vlm.hub import located, revision_of
from demerit.models.vlm.layouts import (
    CONFIG,
    EMBEDDING,
    HEAD,
    READ_OUT,
    UNUSED_HEAD,
    YAML,
    Layout,
    RobometerFacts,
    canonical,
    is_tied,
    read_config,
)
from demerit.models.vlm.made_for import check_made_for
from demerit.models.vlm.stored import (
    Reader,
    Stored,
    differing,
    file_hash,
    has_weights,
    read_json,
    stored_in,
    stored_model,
)

SPARE = (READ_OUT, UNUSED_HEAD)
"""tensors that may be in a file without anybody asking for them"""
TOKENIZER = "tokenizer.json"


@dataclass(frozen=True)
class Checkpoint:
    """Weights on disk under our names, and what the files beside them say."""

    folder: Path
    layout: Layout
    config: Mapping[str, Any]
    """the backbone's config.json; its vocabulary is the one that the weights have"""
    sources: Mapping[str, Source]
    facts: RobometerFacts | None
    """what a Robometer checkpoint says of itself; None for a plain one"""
    places: tuple[str, ...]
    """folders and hub ids that may have the tokenizer, nearest first"""
    revision: str | None
    """the hub's commit, if it came from there"""
    base_revision: str | None = None
    adapters: tuple[Path, ...] = ()
    """folders of the adapters that are merged while reading"""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the backbone's weights."""
        return tuple(name for name in self.sources if not HEAD.match(name))

    @property
    def heads(self) -> tuple[str, ...]:
        """Names of the heads' weights; empty for a plain Qwen3-VL."""
        return tuple(name for name in self.sources if HEAD.match(name))

    @property
    def commits(self) -> str:
        """The hub's commits of the model and of its adapters; `local` where one did not come from there."""
        beside = [folder for folder in self.adapters if folder != self.folder]
        return "+".join([self.revision or "local", *(revision_of(folder) or "local" for folder in beside)])

    def check(
        self, expected: Mapping[str, Sequence[int]], *, gaps: Collection[str] = (), spare: Collection[str] = SPARE
    ) -> None:
        """Refuse the checkpoint unless it has exactly the expected weights.

        Args:
            expected: every weight that is wanted, with its shape.
            gaps: wanted weights that may be missing.
            spare: other weights that may be there.
        """
        missing = [name for name in expected if name not in self.sources and name not in gaps]
        unexpected = [name for name in self.sources if name not in expected and name not in spare]
        for name, shape in expected.items():
            if name in self.sources and self.sources[name].shape != tuple(shape):
                unexpected.append(f"{name} of shape {self.sources[name].shape} instead of {tuple(shape)}")
        if missing or unexpected:
            hint = f"Looked in {self.folder} (layout {self.layout}): give the checkpoint of this model, whole."
            raise WeightsMismatch(missing, unexpected, hint)

    def tensors(
        self,
        device: torch.device | str,
        dtype: torch.dtype,
        expected: Mapping[str, Sequence[int]] | None = None,
        *,
        gaps: Collection[str] = (),
        spare: Collection[str] = SPARE,
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each weight with its name, adapters merged; only one at a time is in memory.

        With `expected`, the checkpoint is checked first (see `check`), and just those weights come.
        """
        if expected is not None:
            self.check(expected, gaps=gaps, spare=spare)
        wanted = [name for name in self.sources if expected is None or name in expected]
        return self._read(wanted, torch.device(device), dtype)

    def _read(self, names: list[str], device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        with Reader() as reader:
            for name in sorted(names, key=lambda name: (self.sources[name].stored.file, name)):
                # moved before it is converted: what is on disk is seldom larger than what is asked for
                yield name, self.sources[name].read(reader).to(device).to(dtype)

    def fingerprint(self) -> str:
        """Hash everything that makes the weights: the files, and how strongly adapters count.

        Files that the hub's cache holds are named after their hash and are not read again.
        """
        files, scales = set[Path](), set[float]()
        for source in self.sources.values():
            files |= {source.stored.file, *(one.file for delta in source.deltas for one in (delta.a, delta.b))}
            scales |= {delta.scale for delta in source.deltas}
        # by name, not by place: folders that were moved hold the same weights
        lines = [*sorted(f"{file.name} {file_hash(file)}" for file in files), *map(repr, sorted(scales))]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def read_checkpoint(
    name_or_path: str,
    revision: str | None = None,
    *,
    adapter: str | None = None,
    adapter_revision: str | None = None,
    base_revision: str | None = None,
) -> Checkpoint:
    """Find a checkpoint, tell its layout and list its weights; nothing large is read yet.

    Args:
        name_or_path: a folder or a hub id; a folder with only an adapter brings the model that it names.
        revision: on the hub.
        adapter: folder or hub id of a LoRA adapter to merge.
        adapter_revision: on the hub.
        base_revision: of the base model that a Robometer takes its tokenizer from, if that is on the hub.
    """
    folder = located(name_or_path, revision)
    if not has_weights(folder) and (folder / adapters.CONFIG).is_file():
        checkpoint = _of_adapter(folder, base_revision)
    else:
        checkpoint = _whole(folder, base_revision)
    if adapter is None:
        return checkpoint
    beside = located(adapter, adapter_revision)
    adapted = _with_adapter(checkpoint, beside)
    check_made_for(beside, checkpoint, AdapterRules.from_folder(beside).base)
    return adapted


def tokenizer_path(checkpoint: Checkpoint) -> Path:
    """Find tokenizer.json: in the checkpoint, or in the model that it was trained from."""
    for place in checkpoint.places:
        path = _beside(place, checkpoint.base_revision) / TOKENIZER
        if path.is_file():
            return path
    raise BadInput(f"The tokenizer of {checkpoint.folder}", f"{TOKENIZER} in one of {list(checkpoint.places)}", "none")


def _of_adapter(folder: Path, base_revision: str | None) -> Checkpoint:
    rules = AdapterRules.from_folder(folder)
    if not rules.base or Path(rules.base).expanduser().resolve() == folder.resolve():
        raise BadInput(rules.where, "base_model_name_or_path, the model under the adapter", repr(rules.base))
    base = located(rules.base, rules.revision)
    if not has_weights(base) and (base / adapters.CONFIG).is_file():
        raise BadInput(rules.where, "a whole model under the adapter", f"another adapter ({base})")
    whole = _whole(base, base_revision)
    adapted = _with_adapter(whole, folder)
    check_made_for(
        folder, whole, None
    )  # it is the one that is named; whether it is still the same, a fingerprint tells
    return adapted


def _with_adapter(checkpoint: Checkpoint, folder: Path) -> Checkpoint:
    rules = AdapterRules.from_folder(folder)
    plain, pairs = pairs_in(stored_adapter(folder), str(folder))
    if not pairs and not plain:
        raise BadInput(str(folder), "an adapter with weights", "none")
    sources = with_pairs(checkpoint.sources, pairs, rules)
    for name, stored in plain.items():
        # heads alone do not make a Robometer: the rows of its five tokens are in no adapter either
        if name not in sources or sources[name].shape != stored.shape:
            got = f"{name} of shape {stored.shape}"
            raise BadInput(str(folder), f"adapters and whole weights that fit {checkpoint.folder}", got)
        sources[name] = Source(stored)
    if is_tied(checkpoint.config) and READ_OUT in {*plain, *(f"{module}.weight" for module in pairs)}:
        raise BadInput(str(folder), f"no change of {READ_OUT}, which is tied to the embedding", "one")
    places = (str(folder), *checkpoint.places)
    return replace(checkpoint, sources=sources, places=places, adapters=(*checkpoint.adapters, folder))


def _whole(folder: Path, base_revision: str | None) -> Checkpoint:
    layout, config, facts = read_config(folder)
    stored = stored_model(folder)
    names = canonical(stored, str(folder))
    plain, pairs = pairs_in({names[name]: one for name, one in stored.items()}, str(folder))
    sources = {name: Source(one) for name, one in plain.items()}
    if pairs:
        sources = with_pairs(sources, pairs, _rules_inside(folder, facts))
    _check_leftovers(folder, plain, {f"{m}.{part}": one for m, p in pairs.items() for part, one in _halves(p)})
    if config is None and facts is not None:
        config = read_json(_beside(facts.base, base_revision) / CONFIG)
    if config is None or not isinstance(config.get("text_config"), dict):
        raise BadInput(str(folder), f"the shape of its network in {CONFIG}, its own or its base model's", "neither")
    config = copy.deepcopy(config)
    if "lm_head" in pairs and is_tied(config):
        raise BadInput(str(folder), f"no adapter of {READ_OUT}, which is tied to the embedding", "one")
    if EMBEDDING not in sources and READ_OUT in sources and is_tied(config):
        sources[EMBEDDING] = sources[READ_OUT]  # of two names for one tensor, the file kept the other
    if facts is not None and EMBEDDING in sources:
        # five tokens were added and the table cut to fit; configs of before that still tell the old number
        config["text_config"]["vocab_size"] = sources[EMBEDDING].shape[0]
    places = (str(folder), *((facts.base,) if facts else ()))
    inside = (folder,) if pairs else ()
    return Checkpoint(folder, layout, config, sources, facts, places, revision_of(folder), base_revision, inside)


def _rules_inside(folder: Path, facts: RobometerFacts | None) -> AdapterRules:
    if (folder / adapters.CONFIG).is_file():
        return AdapterRules.from_folder(folder, weights_are_with_it=True)
    if facts is not None and facts.adapter is not None:
        return AdapterRules.from_section(str(folder / YAML), facts.adapter)
    raise BadInput(str(folder), f"{adapters.CONFIG}, which says how strongly its adapters count", "none")


def _check_leftovers(folder: Path, plain: Mapping[str, Stored], factors: Mapping[str, Stored]) -> None:
    """Refuse a folder whose adapter or heads are there a second time and differ, or may not be merged yet."""
    if any((folder / name).is_file() for name in (adapters.CONFIG, adapters.WEIGHTS, "adapter_model.bin")):
        if not factors:
            advice = "move them to a folder of their own, and give that as the adapter if they are not merged yet"
            raise BadInput(str(folder), f"a model without adapter files beside it ({advice})", "both")
        if (folder / adapters.WEIGHTS).is_file():
            _, pairs = pairs_in(
                {name: one for name, one in stored_adapter(folder).items() if not HEAD.match(name)}, str(folder)
            )
            _same(folder / adapters.WEIGHTS, factors, {f"{m}.{k}": s for m, p in pairs.items() for k, s in _halves(p)})
    if (folder / adapters.HEADS).is_file():
        _same(folder / adapters.HEADS, plain, stored_in(folder / adapters.HEADS))


def _same(file: Path, inside: Mapping[str, Stored], beside: Mapping[str, Stored]) -> None:
    odd = sorted(set(beside) - set(inside)) or list(differing(dict(inside), dict(beside), beside))
    if odd:
        got = f"{len(odd)} others, such as {odd[0]}"
        raise BadInput(str(file), "the same numbers as in the model's own file (move away the stale one)", got)


def _halves(pair: adapters.Pair) -> tuple[tuple[str, Stored], tuple[str, Stored]]:
    return ("lora_A", pair.a), ("lora_B", pair.b)


def _beside(place: str, revision: str | None) -> Path:
    local = Path(place).expanduser()
    return local if local.is_dir() else located(place, revision, weights=False)
