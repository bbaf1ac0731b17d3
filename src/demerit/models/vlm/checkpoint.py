"""Read Qwen3-VL checkpoints: every public layout under one set of names, checked strictly, LoRA adapters merged.

    qwen               model.language_model.*        model.visual.*        lm_head.weight (or tied)
    qwen, 2.5          model.*                       visual.*              lm_head.weight (or tied); flat config.json
    robometer          model.language_model.*        model.visual.*        heads; config.yaml; maybe the base's config
    robometer-lerobot  model.model.language_model.*  model.model.visual.*  model.lm_head.weight; heads; vlm_config
    our names          language_model.*              visual.*              lm_head.weight; heads

Other families (`read_other_family`) keep the names that their own module gives them.

Names and shapes come from the safetensors headers, so a wrong checkpoint is refused before any weight is read, and a
model's identity (which includes every adapter's scale) is known before a GPU is touched. Pickles are never opened.
An adapter is merged in float32, weight + scale * B @ A, and rounded once.
"""

from __future__ import annotations

import copy
import hashlib
import math
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
import yaml
from safetensors import SafetensorError, safe_open

from demerit.config import read_yaml
from demerit.data.files import parse_json, read_json
from demerit.errors import AmbiguityWarning, BadInput, DemeritError, WeightsMismatch
from demerit.models.vlm.config import QWEN25
from demerit.models.vlm.hub import INCOMPLETE, hub_id, hub_revision, locate_checkpoint

CONFIG, YAML, TOKENIZER = "config.json", "config.yaml", "tokenizer.json"
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
ADAPTER_CONFIG, ADAPTER_WEIGHTS, ADAPTER_HEADS = (
    "adapter_config.json",
    "adapter_model.safetensors",
    "custom_heads.safetensors",
)
TRAINING = "training.json"
"""written next to a trained model; holds the fingerprint of the weights that training started from"""
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
DTYPES = ("F32", "BF16", "F16")
"""allowed dtypes of weights; others are quantised"""

PREFIXES = ("", "model.", "model.model.")
PARTS = ("language_model.", "visual.")
READ_OUT = "lm_head.weight"
EMBEDDING = "language_model.embed_tokens.weight"
HEAD = re.compile(r"(progress_head|success_head|preference_head|frame_pool_attn)\.")
UNUSED_HEAD = "frame_pool_attn.weight"
"""stored with every Robometer and never read"""
SPARE = (READ_OUT, UNUSED_HEAD)
"""tensors that may be in a file without being asked for"""
SHARED = ("architectures", "dtype", "model_type", "tie_word_embeddings", "torch_dtype", "vision_config")
"""settings of a whole network; the other ones of an older Qwen2.5-VL are the language model's"""
SPARE_OF: Mapping[str, tuple[str, ...]] = {"internvl2": (), "qwen2.5": (READ_OUT,)}
"""the same for other families; a tied output matrix may be stored"""
PEFT_PREFIX = "base_model.model."
PEFT_NAMES = ("lora_", "base_layer", "modules_to_save", "original_module", "token_adapter")
"""parts of names in a network that peft has wrapped"""
MERGE_FIRST = "merge it with peft's merge_and_unload and give the merged checkpoint"
LORA = re.compile(r"(?P<module>.+)\.(?P<part>lora_A|lora_B)\.weight")
LORA_READ = "r lora_alpha rank_pattern alpha_pattern use_rslora base_model_name_or_path revision init_lora_weights"
LORA_HARMLESS = (
    "peft_type task_type auto_mapping peft_version inference_mode target_modules exclude_modules lora_dropout "
    "modules_to_save layers_to_transform layers_pattern megatron_core qalora_group_size loftq_config eva_config "
    "runtime_config"
)
"""options that do not change what the saved factors mean"""
OFF: tuple[Any, ...] = (None, False, "none", "", {}, [])
BASE_UNCHANGED = (True, False, "gaussian", "orthogonal", "eva")
"""values of init_lora_weights that leave the base weights as they are"""
MATRIX = 2
BLOB = re.compile(r"[0-9a-f]{64}")
CHUNK = 1 << 24

Layout = Literal["qwen", "robometer", "robometer-lerobot", "internvl2", "qwen2.5"]


@dataclass(frozen=True)
class RobometerFacts:
    """Facts of a Robometer checkpoint beyond the backbone."""

    base: str
    """hub id or folder of the backbone it was trained from: has the tokenizer, and may have the config"""
    bins: int
    frames: int
    """frames in a window"""
    also_progress: bool = True
    """preference prompts also ask for the first video's progress, as in the published recipe"""


@dataclass(frozen=True)
class StoredTensor:
    """One tensor in a safetensors file, not read yet."""

    file: Path
    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class LoraDelta:
    """The factors of an adapter for one weight."""

    a: StoredTensor
    b: StoredTensor
    scale: float


@dataclass(frozen=True)
class WeightSource(StoredTensor):
    """A stored weight and the adapters to add to it."""

    deltas: tuple[LoraDelta, ...] = ()


@dataclass(frozen=True)
class Checkpoint:
    """Weights on disk under our names, and the facts stored with them."""

    folder: Path
    layout: Layout
    config: Mapping[str, Any]
    """the backbone's config.json, with the vocabulary size of the weights"""
    sources: Mapping[str, WeightSource]
    facts: RobometerFacts | None
    """None for a plain Qwen3-VL"""
    places: tuple[str, ...]
    """folders and hub ids that may have the tokenizer, nearest first"""
    revision: str | None
    """the hub's commit, if it came from there"""
    adapters: tuple[Path, ...] = ()
    """folders of the adapters to merge"""

    @property
    def commits(self) -> str:
        """The hub's commits of the model and its adapters; `local` for one that is not from the hub."""
        return "+".join([self.revision or "local", *(hub_revision(folder) or "local" for folder in self.adapters)])

    def check(self, expected: Mapping[str, Sequence[int]], *, gaps: Collection[str] = ()) -> None:
        """Raise WeightsMismatch unless the checkpoint has exactly the expected weights and shapes, except `gaps`."""
        missing = [name for name in expected if name not in self.sources and name not in gaps]
        spare = SPARE_OF.get(self.layout, SPARE)
        unexpected = [name for name in self.sources if name not in expected and name not in spare]
        for name, shape in expected.items():
            if name in self.sources and self.sources[name].shape != tuple(shape):
                unexpected.append(f"{name} of shape {self.sources[name].shape} instead of {tuple(shape)}")
        if missing or unexpected:
            raise WeightsMismatch(missing, unexpected, f"Checked {self.folder} (layout {self.layout}).")

    def tensors(
        self,
        device: torch.device | str,
        dtype: torch.dtype,
        expected: Mapping[str, Sequence[int]] | None = None,
        *,
        gaps: Collection[str] = (),
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each weight with its name, adapters merged, one at a time.

        With `expected`, the checkpoint is checked first (see `check`) and only those weights are read.
        """
        if expected is not None:
            self.check(expected, gaps=gaps)
        wanted = [name for name in self.sources if expected is None or name in expected]
        return self._read(wanted, torch.device(device), dtype)

    def _read(self, names: list[str], device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        with ExitStack() as stack:
            files: dict[Path, Any] = {}

            def read(stored: StoredTensor) -> torch.Tensor:
                if stored.file not in files:
                    files[stored.file] = stack.enter_context(safe_open(stored.file, framework="pt"))
                tensor: torch.Tensor = files[stored.file].get_tensor(stored.name)
                return tensor

            for name in sorted(names, key=lambda name: (self.sources[name].file, name)):
                source = self.sources[name]
                weight = read(source)
                for delta in source.deltas:
                    weight = weight.float() + (read(delta.b).float() @ read(delta.a).float()) * delta.scale
                # moved before it is converted: the dtype on disk is seldom the larger one
                yield name, weight.to(device).to(dtype)

    def fingerprint(self) -> str:
        """Hash the weight files and the adapters' scales; the same files in another folder hash the same."""
        files, scales = set[Path](), set[float]()
        for source in self.sources.values():
            files |= {source.file, *(part.file for delta in source.deltas for part in (delta.a, delta.b))}
            scales |= {delta.scale for delta in source.deltas}
        lines = [*sorted(f"{file.name} {_file_hash(file)}" for file in files), *map(repr, sorted(scales))]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def read_checkpoint(
    name_or_path: str,
    revision: str | None = None,
    *,
    adapter: str | None = None,
) -> Checkpoint:
    """Find a checkpoint, detect its layout and list its weights; no weights are read yet.

    Args:
        name_or_path: a folder or a hub id; an adapter's folder loads the base model that it names.
        revision: on the hub.
        adapter: folder or hub id of a LoRA adapter to merge.
    """
    folder = locate_checkpoint(name_or_path, revision)
    checkpoint = _read_adapter_alone(folder) if is_adapter(folder) else _read_whole(folder)
    if adapter is None:
        return checkpoint
    place = locate_checkpoint(adapter)
    merged = _add_adapter(checkpoint, place)
    check_adapter_base(place, checkpoint, LoraSettings.from_folder(place).base)
    return merged


def tokenizer_path(checkpoint: Checkpoint) -> Path:
    """Find tokenizer.json: in the checkpoint, or in the model it was trained from."""
    for place in checkpoint.places:
        path = _locate_small_files(place) / TOKENIZER
        if path.is_file():
            return path
    raise BadInput(f"tokenizer of {checkpoint.folder}", f"{TOKENIZER} in one of {list(checkpoint.places)}", "none")


def _locate_small_files(place: str) -> Path:
    local = Path(place).expanduser()
    return local if local.is_dir() else locate_checkpoint(place, weights=False)


# --- whole models -------------------------------------------------------------------------------------------------


def _read_whole(folder: Path) -> Checkpoint:
    layout, config, facts = _read_config(folder)
    stored = _list_model(folder)
    if config is not None and config.get("model_type") == QWEN25:
        stored = {name_in_newer_qwen25(name): source for name, source in stored.items()}
    sources = _rename(stored, str(folder))
    present = [name for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS, ADAPTER_HEADS) if (folder / name).is_file()]
    if present:
        advice = "move the adapter to its own folder; give that as the adapter if it is not merged yet"
        raise BadInput(str(folder), f"a whole model or an adapter ({advice})", f"both ({', '.join(present)})")
    if config is None and facts is not None:
        config = _nest_text_config(read_json(_locate_small_files(facts.base) / CONFIG))
    if config is None or not isinstance(config.get("text_config"), dict):
        raise BadInput(str(folder), f"the network's shape in {CONFIG}, its own or its base model's", "neither")
    config = copy.deepcopy(config)
    if EMBEDDING not in sources and READ_OUT in sources and _is_tied(config):
        sources[EMBEDDING] = sources[READ_OUT]  # two names for one tensor; the file has the other one
    if facts is not None and EMBEDDING in sources:
        # five tokens were added and the table was cut to fit; some configs still have the old size
        config["text_config"]["vocab_size"] = sources[EMBEDDING].shape[0]
    places = (str(folder), *((facts.base,) if facts else ()))
    return Checkpoint(folder, layout, config, sources, facts, places, hub_revision(folder))


def read_other_family(folder: Path, layout: Layout, rename: Callable[[str], str]) -> Checkpoint:
    """List the weights of a whole model that is no Qwen3-VL.

    Args:
        folder: has config.json.
        layout: for errors.
        rename: returns our name of a name on disk; an unknown name stays, for the strict check to report.
    """
    config = read_json(folder / CONFIG)
    _refuse_quantised(folder, config)
    sources: dict[str, WeightSource] = {}
    for name, source in _list_model(folder).items():
        ours = rename(name)
        if ours in sources:
            raise BadInput(str(folder), "one tensor for each weight", f"{sources[ours].name} and {name}")
        sources[ours] = source
    return Checkpoint(folder, layout, config, sources, None, (str(folder),), hub_revision(folder))


def name_in_newer_qwen25(name: str) -> str:
    """Return the name that newer versions of transformers give a weight of a Qwen2.5-VL."""
    if name.startswith("visual."):
        return f"model.{name}"
    if name.startswith("model.") and not name.startswith(("model.visual.", "model.language_model.")):
        return name.replace("model.", "model.language_model.", 1)
    return name


def is_adapter(folder: Path) -> bool:
    """Whether a folder has an adapter and no whole model."""
    whole = (folder / INDEX).is_file() or (folder / SINGLE).is_file()
    return not whole and (folder / ADAPTER_CONFIG).is_file()


def _list_model(folder: Path) -> dict[str, WeightSource]:
    """List the tensors of a model: one file, or the shards that its index names."""
    if (folder / INDEX).is_file():
        where = read_json(folder / INDEX).get("weight_map")
        files = sorted(set(map(str, where.values()))) if isinstance(where, dict) else []
        if not files or any(Path(file).name != file for file in files):
            raise BadInput(str(folder / INDEX), "a weight_map from names to files in the same folder", repr(files))
    elif (folder / SINGLE).is_file():
        files = [SINGLE]
    else:
        raise BadInput(str(folder), f"{SINGLE}, or shards with {INDEX}", _describe_missing_weights(folder))
    sources: dict[str, WeightSource] = {}
    for file in files:
        inside = _list_tensors(folder / file)
        if twice := sorted(set(sources) & set(inside)):
            raise BadInput(
                str(folder), "one tensor for each name", f"{twice[0]} in {sources[twice[0]].file.name} and {file}"
            )
        sources |= inside
    return sources


def _describe_missing_weights(folder: Path) -> str:
    if pickles := sorted(path.name for pattern in PICKLES for path in folder.glob(pattern)):
        return f"only pickles, which can run code and are not opened ({', '.join(pickles[:3])})"
    shards = sorted(path.name for path in folder.glob("*.safetensors"))
    got = f"shards without their index ({', '.join(shards[:3])})" if shards else "no weights"
    return got if hub_revision(folder) is None else f"{got} ({INCOMPLETE})"


def _list_tensors(file: Path) -> dict[str, WeightSource]:
    """Read the header of a safetensors file."""
    if not file.is_file():
        raise BadInput(str(file), f"a file of weights ({INCOMPLETE})", "none")
    sources, dtypes = {}, set()
    try:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():
                part = opened.get_slice(name)
                sources[name] = WeightSource(file, name, tuple(part.get_shape()))
                dtypes.add(str(part.get_dtype()))
    except (SafetensorError, OSError) as error:
        raise BadInput(str(file), "a complete safetensors file (download or copy it again)", error) from error
    if odd := sorted(dtypes - set(DTYPES)):
        raise BadInput(str(file), f"weights of dtype {', '.join(DTYPES)}, not quantised", ", ".join(odd))
    return sources


def _rename(stored: Mapping[str, WeightSource], where: str) -> dict[str, WeightSource]:
    """Map the names on disk to ours; unknown names stay, for the strict check to report."""
    if names := sorted(name for name in stored if any(part in name for part in PEFT_NAMES)):
        raise BadInput(where, f"a model without adapters inside ({MERGE_FIRST})", names[0])
    prefixes = {name[: name.index(PARTS[0])] for name in stored if PARTS[0] in name}
    if len(prefixes) != 1 or not prefixes <= set(PREFIXES):
        got = f"names such as {', '.join(list(stored)[:3]) or 'none'}"
        raise BadInput(where, "a Qwen3-VL checkpoint (weights named model.language_model.* and model.visual.*)", got)
    prefix = prefixes.pop()
    renamed: dict[str, WeightSource] = {}
    for name, tensor in stored.items():
        ours = name
        if name.startswith(tuple(prefix + part for part in PARTS)):
            ours = name.removeprefix(prefix)
        elif name == prefix.removesuffix("model.") + READ_OUT:
            ours = READ_OUT
        if ours in renamed:
            raise BadInput(where, "one tensor for each weight", f"{renamed[ours].name} and {name}")
        renamed[ours] = tensor
    return renamed


def _read_config(folder: Path) -> tuple[Layout, dict[str, Any] | None, RobometerFacts | None]:
    """Return the layout, the backbone's config (None: it is in the base model) and a Robometer's facts."""
    config = _nest_text_config(read_json(folder / CONFIG))
    _refuse_quantised(folder, config)
    if "vlm_config" in config:
        facts = _robometer_facts(folder / CONFIG, config, config, config, {})
        return "robometer-lerobot", _backbone_config(config["vlm_config"]), facts
    architectures = config.get("architectures")
    if (isinstance(architectures, list) and "RFM" in architectures) or (folder / YAML).is_file():
        content = read_yaml(folder / YAML, expected="a Robometer's config.yaml", loader=yaml.SafeLoader)
        sections = (content.get(name) for name in ("model", "loss", "data", "training"))
        facts = _robometer_facts(folder / YAML, *(part if isinstance(part, dict) else {} for part in sections))
        return "robometer", _backbone_config(config), facts
    if _backbone_config(config) is None:
        got = f"config.json for {config.get('model_type') or config.get('architectures') or 'nothing in particular'}"
        raise BadInput(str(folder), "config.json with text_config and vision_config (Qwen3-VL)", got)
    return "qwen", config, None


def _nest_text_config(config: dict[str, Any]) -> dict[str, Any]:
    """Put the language model's settings of an older Qwen2.5-VL, which stand at the top, where newer ones have them."""
    if config.get("model_type") != QWEN25 or "text_config" in config:
        return config
    shared = {name: config[name] for name in config if name in SHARED or name.endswith("_token_id")}
    return {**shared, "text_config": {name: config[name] for name in config if name not in SHARED}}


def _refuse_quantised(folder: Path, config: Mapping[str, Any]) -> None:
    if config.get("quantization_config"):
        raise BadInput(str(folder), "a checkpoint that is not quantised", config["quantization_config"])


def _is_tied(config: Mapping[str, Any]) -> bool:
    return bool(config.get("tie_word_embeddings", config.get("text_config", {}).get("tie_word_embeddings", False)))


def _backbone_config(config: Any) -> dict[str, Any] | None:
    """Return a config that describes a network, also one stored as text; None for any other."""
    if isinstance(config, str):
        try:
            config = parse_json(config, "vlm_config")
        except BadInput:
            return None
    whole = isinstance(config, dict) and isinstance(config.get("text_config"), dict) and config.get("vision_config")
    return config if whole else None


def _robometer_facts(
    source: Path, model: dict[str, Any], loss: dict[str, Any], data: dict[str, Any], training: dict[str, Any]
) -> RobometerFacts:
    """Read the facts; raise BadInput for variants that are read out differently from the published one."""
    published = (loss, "progress_loss_type", "discrete"), (data, "use_multi_image", True)
    for section, name, needed in (*published, (data, "use_per_frame_progress_token", True)):
        setting = section.get(name, needed)
        if setting != needed and not str(setting).startswith("${"):  # a reference to another section
            raise BadInput(str(source), f"{name} = {needed}, as in the published Robometer", repr(setting))
    base = model.get("base_model_id")
    if not isinstance(base, str) or not base:
        raise BadInput(str(source), "base_model_id, the model it was trained from", repr(base))
    bins, frames = loss.get("progress_discrete_bins"), data.get("max_frames")
    for name, value in (("progress_discrete_bins", bins), ("max_frames", frames)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise BadInput(str(source), f"{name}, a whole number >= 1", repr(value))
    also_progress = training.get("predict_pref_progress", True) is not False
    return RobometerFacts(base, int(bins or 0), int(frames or 0), also_progress)


def _file_hash(file: Path) -> str:
    """Return the sha256 of a file; the hub's cache names its files after it, so those are not read."""
    blob = file.resolve()
    if blob.parent.name == "blobs" and BLOB.fullmatch(blob.name):
        return blob.name
    facts = file.stat()
    return _hash_contents(blob, facts.st_size, facts.st_mtime_ns)


@lru_cache(maxsize=256)
def _hash_contents(file: Path, _size: int, _changed: int) -> str:
    """Hash a file once per size and modification time."""
    total = hashlib.sha256()
    with file.open("rb") as opened:
        while chunk := opened.read(CHUNK):
            total.update(chunk)
    return total.hexdigest()


# --- LoRA adapters ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoraSettings:
    """An adapter's strength and base model, from adapter_config.json."""

    where: str
    rank: int
    alpha: float
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]
    rank_stabilised: bool
    base: str | None
    revision: str | None

    @classmethod
    def from_folder(cls, folder: Path) -> LoraSettings:
        """Read adapter_config.json; raise BadInput for anything but plain LoRA."""
        path = folder / ADAPTER_CONFIG
        facts = read_json(path)
        if facts.get("peft_type") != "LORA":
            raise BadInput(str(path), f"a LoRA adapter ({MERGE_FIRST})", repr(facts.get("peft_type")))
        names = {*LORA_READ.split(), *LORA_HARMLESS.split()}
        odd = [f"{name}={facts[name]!r}" for name in sorted(set(facts) - names) if facts[name] not in OFF]
        if facts.get("init_lora_weights", True) not in BASE_UNCHANGED:
            odd.append(f"init_lora_weights={facts['init_lora_weights']!r}")
        if odd:
            raise BadInput(str(path), f"plain LoRA ({MERGE_FIRST})", ", ".join(odd))
        rank, alpha = facts.get("r"), facts.get("lora_alpha")
        if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float):
            raise BadInput(str(path), "r and lora_alpha, as numbers", f"r={rank!r}, lora_alpha={alpha!r}")
        ranks, alphas = facts.get("rank_pattern") or {}, facts.get("alpha_pattern") or {}
        named = (facts.get(name) for name in ("base_model_name_or_path", "revision"))
        base, revision = (name if isinstance(name, str) else None for name in named)
        return cls(str(path), rank, float(alpha), ranks, alphas, bool(facts.get("use_rslora")), base, revision)

    def scale(self, name: str, rank: int) -> float:
        """Return the factor of B @ A: alpha / rank, or alpha / sqrt(rank) with rank-stabilised LoRA.

        Args:
            name: of the stored A; the patterns match the end of its module's name, as in peft.
            rank: of the stored factors.
        """
        module = (name.partition(PEFT_PREFIX)[2] or name).removesuffix(".lora_A.weight")

        def lookup(patterns: Mapping[str, Any], default: Any) -> Any:
            matches = (value for pattern, value in patterns.items() if re.match(rf"(.*\.)?({pattern})$", module))
            return next(matches, default)

        declared = lookup(self.ranks, self.rank)
        if declared != rank:
            raise BadInput(self.where, f"rank {rank} for {module}, as stored", declared)
        alpha = float(lookup(self.alphas, self.alpha))
        return alpha / (math.sqrt(rank) if self.rank_stabilised else rank)


def _read_adapter_alone(folder: Path) -> Checkpoint:
    """Read the base model that an adapter names, and merge the adapter."""
    settings = LoraSettings.from_folder(folder)
    if not settings.base or Path(settings.base).expanduser().resolve() == folder.resolve():
        raise BadInput(settings.where, "base_model_name_or_path, the adapter's base model", repr(settings.base))
    base = locate_checkpoint(settings.base, settings.revision)
    if is_adapter(base):
        raise BadInput(settings.where, "a whole model as the base", f"another adapter ({base})")
    whole = _read_whole(base)
    merged = _add_adapter(whole, folder)
    check_adapter_base(folder, whole, None)
    return merged


def _add_adapter(checkpoint: Checkpoint, folder: Path) -> Checkpoint:
    settings = LoraSettings.from_folder(folder)
    whole, factors = _list_adapter(folder)
    sources = dict(checkpoint.sources)
    for module, (a, b) in factors.items():
        name = f"{module}.weight"
        if name not in sources:
            raise BadInput(settings.where, f"adapters of weights in {checkpoint.folder}", module)
        shape, rank = sources[name].shape, a.shape[0]
        if len(shape) != MATRIX or a.shape != (rank, shape[1]) or b.shape != (shape[0], rank):
            raise BadInput(settings.where, f"factors of a {shape} matrix for {module}", f"A {a.shape}, B {b.shape}")
        delta = LoraDelta(a, b, settings.scale(a.name, rank))
        sources[name] = replace(sources[name], deltas=(*sources[name].deltas, delta))
    for name, stored in whole.items():
        # heads alone do not make a Robometer: its five token rows are in no adapter
        if name not in sources or sources[name].shape != stored.shape:
            expected = f"adapters and whole weights that fit {checkpoint.folder}"
            raise BadInput(str(folder), expected, f"{name} of shape {stored.shape}")
        sources[name] = stored
    if _is_tied(checkpoint.config) and (READ_OUT in whole or READ_OUT.removesuffix(".weight") in factors):
        raise BadInput(str(folder), f"no change of {READ_OUT}, which is tied to the embedding", "one")
    places = (str(folder), *checkpoint.places)
    return replace(checkpoint, sources=sources, places=places, adapters=(*checkpoint.adapters, folder))


def _list_adapter(folder: Path) -> tuple[dict[str, WeightSource], dict[str, tuple[StoredTensor, StoredTensor]]]:
    """List an adapter's whole weights by our names, and its (A, B) factors by module."""
    if not (folder / ADAPTER_WEIGHTS).is_file() and (folder / "adapter_model.bin").is_file():
        advice = "pickles can run code and are not opened"
        raise BadInput(str(folder), f"{ADAPTER_WEIGHTS} ({advice})", "adapter_model.bin")
    whole = _list_tensors(folder / ADAPTER_HEADS) if (folder / ADAPTER_HEADS).is_file() else {}
    halves: dict[str, dict[str, StoredTensor]] = {}
    for name, stored in _list_tensors(folder / ADAPTER_WEIGHTS).items():
        ours = _name_in_network(name)
        if match := LORA.fullmatch(ours):
            halves.setdefault(match["module"], {})[match["part"]] = stored
        elif any(part in ours for part in PEFT_NAMES):
            raise BadInput(str(folder), f"plain LoRA factors only ({MERGE_FIRST})", name)
        else:
            whole[ours] = stored
    if not halves and not whole:
        raise BadInput(str(folder), "an adapter with weights", "none")
    if single := sorted(module for module, parts in halves.items() if len(parts) == 1):
        raise BadInput(str(folder), "both factors of each adapter", f"one of {single[0]}")
    return whole, {module: (parts["lora_A"], parts["lora_B"]) for module, parts in halves.items()}


def _name_in_network(name: str) -> str:
    """Return our name of an adapter's tensor, whichever part of the network peft wrapped."""
    name = name.replace(PEFT_PREFIX, "")
    while name.startswith("model."):
        name = name.removeprefix("model.")
    # only the language model has `layers`, only the vision tower `blocks`
    part = {"layers": "language_model.", "blocks": "visual."}.get(name.partition(".")[0], "")
    return part + name


def check_adapter_base(folder: Path, checkpoint: Checkpoint, named: str | None) -> None:
    """Raise BadInput if an adapter was trained on other weights; warn if that cannot be determined.

    Args:
        folder: the adapter's.
        checkpoint: the model it is merged into.
        named: the base model in its config; None if that is the one it is merged into.
    """
    facts = read_json(folder / TRAINING, nan=True) if (folder / TRAINING).is_file() else {}
    wanted, source = facts.get("start_fingerprint"), f"{facts.get('start')} when {folder / TRAINING} was written"
    if not isinstance(wanted, str):
        if not named or _is_called(checkpoint, named):
            return
        wanted, source = _local_fingerprint(named), f"{named}, named in {folder / ADAPTER_CONFIG}"
    if wanted is None:
        message = f"The adapter {folder} names the base model {named} but is merged into {checkpoint.folder}: "
        message += "unless these are the same weights, its scores mean nothing."
        warnings.warn(message, AmbiguityWarning, stacklevel=3)
    elif wanted != checkpoint.fingerprint():
        expected = f"the weights of {source} (fingerprint {wanted[:12]})"
        got = f"{checkpoint.folder} (fingerprint {checkpoint.fingerprint()[:12]})"
        raise BadInput(f"adapter {folder}", expected, got)


def _is_called(checkpoint: Checkpoint, name: str) -> bool:
    """Whether a checkpoint has a name, as far as names and paths tell."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder.resolve() == checkpoint.folder.resolve()
    id = hub_id(checkpoint.folder)
    return name == id if id else folder.name == checkpoint.folder.resolve().name


def _local_fingerprint(name: str) -> str | None:
    """Return the fingerprint of a local checkpoint; None if there is none to compare with."""
    if not Path(name).expanduser().is_dir():
        return None
    try:
        return read_checkpoint(name).fingerprint()
    except DemeritError:
        return None
