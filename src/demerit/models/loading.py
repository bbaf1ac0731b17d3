"""Load models: by registered name, from a folder, or from an import path.

A model folder holds `model.json`, which names the kind of model; the kind's loader reads the rest:

    {"format": 1, "kind": "compact"}

The file never names code, so opening a folder from a stranger runs none of their code.

`describe_model` says what `demerit list models` shows about a model, without loading it.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from demerit.data.episode import safe_name
from demerit.data.files import read_json, write_atomic
from demerit.errors import BadInput, DemeritError, StoreError, UnknownName
from demerit.models.protocol import ModelCard, RewardModel
from demerit.registry import Registry, load_attribute

DESCRIPTION = "model.json"
FORMAT = 1
OUTPUT = "network"
"""the folder that training of small networks writes; the user named its parent, which may stand for it"""
LOCAL = "-local"
"""suffix for a local model with a registered model's name"""
MODELS = Registry(
    "model",
    {
        "default": "models.compact.model:Compact",
        "clock": "models.baselines:Clock",
        "constant": "models.baselines:Constant",
        "random": "models.baselines:Noise",
        "change": "models.baselines:Change",
        "motion": "models.baselines:Motion",
        "length": "models.baselines:Length",
        "gvl": "models.gvl.model:GVL",
        "grader": "models.grader:ChatGrader",
        "robometer": "models.published.robometer:Robometer",
        "roboreward": "models.published.roboreward:RoboReward",
        "topreward": "models.published.topreward:TOPReward",
        "dopamine": "models.published.pairwise:Dopamine",
        "vlac": "models.published.pairwise:VLAC",
        "ensemble": "models.ensemble:Ensemble",
        "min": "models.ensemble:Smallest",
        "rule": "models.rule:Rule",
        "calibrated": "models.calibrated:calibrated",
    },
    "demerit.models",
)
KINDS = Registry(
    "kind of model",
    {
        "calibrated": "models.calibrated:Calibrated.from_folder",
        "compact": "models.compact.model:Compact.from_folder",
        "rewind": "models.rewind:ReWiND.from_folder",
        "taught": "models.taught.model:TaughtModel.from_folder",
    },
)


def load_model(name: str, **options: Any) -> RewardModel:
    """Load a model by name.

    Args:
        name: a registered name (`default`), a name with an argument (`constant:0.3`), a model folder (`./my-model`),
            the import path of your own class (`my_package.rewards:MyModel`), or the address of a reward server
            (`http://127.0.0.1:8000`).
        **options: passed to the model's class.
    """
    model = find_model(name)(**options)
    if not isinstance(model, RewardModel) or not isinstance(model.card, ModelCard):
        raise BadInput(name, "a model with `card` (a ModelCard) and `score`", f"a {type(model).__name__}")
    return model


def find_model(name: str) -> Callable[..., Any]:
    """Return the factory behind a name; raises for an unknown name before anything is loaded."""
    base, colon, argument = name.partition(":")
    arguments = [argument] if colon else []
    if base in ("http", "https"):
        return partial(load_attribute("demerit.use.serve.client:RemoteModel", "a remote model"), name)
    if base in MODELS:
        return partial(MODELS.factory(base), *arguments)
    for folder in (Path(base), Path(base) / OUTPUT):
        if (folder / DESCRIPTION).is_file():
            return partial(load_folder, folder, *arguments)
    if colon and all(map(str.isidentifier, base.split("."))) and _is_importable(base):
        return partial(_call_factory, name, _load_class(base, argument))
    if Path(name).exists():
        got = checkpoint_hint(Path(name)) or "another path"
        raise BadInput(name, f"the name of a model, or its folder with {DESCRIPTION} in it", got)
    if "/" in base:
        raise BadInput(name, f"a model folder with {DESCRIPTION} in it", "a path that does not exist")
    if colon and argument.isidentifier() and not difflib.get_close_matches(base, MODELS):
        expected = "a registered model, or MODULE:CLASS of an installed package or this folder"
        raise BadInput(name, expected, f"the module {base!r}, which does not exist")
    raise UnknownName("model", name, MODELS)


def _call_factory(name: str, factory: Any, **options: Any) -> Any:
    try:
        return factory(**options)
    except TypeError as error:
        raise BadInput(name, "a model class that accepts these options", error) from error


def _is_importable(module: str) -> bool:
    if "" not in sys.path:
        sys.path.append("")  # the module may be in the current folder; what is installed goes first
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _load_class(module: str, attribute: str) -> Any:
    try:
        return load_attribute(f"{module}:{attribute}", f"the model {module}:{attribute}")
    except AttributeError as error:
        raise BadInput(f"{module}:{attribute}", f"a class in {module}", f"a module without {attribute!r}") from error
    except (ImportError, SyntaxError) as error:
        raise BadInput(f"{module}:{attribute}", f"a module {module} that can be imported", error) from error


def load_folder(folder: Path, *argument: str, **options: Any) -> Any:
    """Load the model in a folder; `argument` is the text after the colon in `./my-model:argument`."""
    kind = read_description(folder)["kind"]
    if kind not in KINDS:
        raise UnknownName(f"kind of model (in {folder / DESCRIPTION})", kind, KINDS)
    loader = KINDS.factory(kind)
    try:
        return loader(folder, *argument, **options)
    except TypeError as error:
        if not argument and not options:
            raise
        raise BadInput(str(folder), f"options of a model of kind {kind!r}", error) from error


def read_description(folder: Path) -> dict[str, Any]:
    """Read a folder's model.json; `format` and `kind` are checked, other fields belong to the kind."""
    path = folder / DESCRIPTION
    facts = read_json(path, "the description of a model (JSON)")
    if facts.get("format") != FORMAT:
        raise BadInput(str(path), f"format {FORMAT} (another may need a newer demerit)", repr(facts.get("format")))
    if not isinstance(facts.get("kind"), str):
        raise BadInput(str(path), "a kind of model, as text", repr(facts.get("kind")))
    return facts


def checkpoint_hint(folder: Path) -> str:
    """Return how to load a vision-language checkpoint folder; empty for any other folder."""
    for place in (folder, folder / "model"):
        try:
            config = read_json(place / "config.json")
        except BadInput:
            config = {}
        if (place / "config.yaml").is_file() or "vlm_config" in config or "RFM" in str(config.get("architectures")):
            return f"a Robometer checkpoint, which is robometer:path={place}"
        if str(config.get("model_type")).startswith("qwen"):
            return f"a checkpoint of a vision-language model, which is roboreward:path={place} (or topreward, ...)"
        if (place / "adapter_config.json").is_file():
            name = "robometer" if (place / "custom_heads.safetensors").is_file() else "roboreward"
            return f"an adapter of a vision-language model, which is {name}:path={place}"
    return ""


def check_out(out: Path, kind: str, left: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return model.json of the folder that a model will be written to; empty where there is none yet.

    Refuses a folder that holds a model of another kind, or anything else. A killed run may leave `*.part` and files
    whose names begin with one of `left`.
    """
    if not out.exists():
        return {}
    if not out.is_dir():
        raise StoreError(out, "it is a file; choose a folder for the model")
    if not (out / DESCRIPTION).exists():
        if not all(path.name.startswith(left) or path.suffix == ".part" for path in out.iterdir()):
            raise StoreError(out, "it holds something else; nothing is overwritten, choose another folder")
        return {}
    facts = read_description(out)
    if facts["kind"] != kind:
        reason = f"it holds a model of kind {facts['kind']!r}; nothing is overwritten, choose another folder"
        raise StoreError(out, reason)
    return facts


def write_description(folder: Path, kind: str, **more: Any) -> None:
    """Write a folder's model.json atomically; write it last, because it makes the folder a model."""
    text = json.dumps({"format": FORMAT, "kind": kind, **more}, indent=2) + "\n"
    write_atomic(folder / DESCRIPTION, text.encode())


def only_these(folder: Path, facts: dict[str, Any], *names: str) -> None:
    """Refuse a model.json with fields that the kind does not know."""
    extra = sorted(set(facts) - {"format", "kind", *names})
    if extra:
        raise BadInput(str(folder / DESCRIPTION), f"only the fields {['format', 'kind', *names]}", extra)


def read_listed(path: Path, sha256: str) -> bytes:
    """Read a file of a model folder; refuse another than the one that model.json lists."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StoreError(path, f"the file cannot be read ({error.strerror}): copy the folder again") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise StoreError(path, "the file is not the one listed in model.json: copy the folder again")
    return content


def name_of(folder: Path) -> str:
    """Return the model name for a folder: its own name, or its parent's when training named it `network`."""
    folder = folder.resolve()
    if folder.name != OUTPUT or not folder.parent.name:
        return safe_name(folder.name)
    name = safe_name(folder.parent.name)
    return name + LOCAL if name.lower() in {model.lower() for model in MODELS} else name


EVERY = "all"
"""shown when a model has no frame budget"""


@dataclass(frozen=True)
class Listing:
    """One model's entry."""

    quantity: str
    low: float | None
    high: float | None
    causal: bool
    licence: str
    about: str
    frames: str = EVERY
    """frames used per episode"""
    extra: str = ""
    """install demerit[extra] for it"""
    verified: str = ""
    """what was reproduced, and what was not"""

    @classmethod
    def of_card(cls, card: ModelCard) -> Listing:
        """Make an entry from the card of a loaded model."""
        frames = EVERY if card.frame_budget is None else str(card.frame_budget)
        return cls(
            card.quantity,
            card.low,
            card.high,
            card.causal,
            card.licence,
            card.about,
            frames if card.sees_pixels else "none",
        )

    @property
    def range(self) -> str:
        """The range as text."""
        return f"{'-∞' if self.low is None else f'{self.low:g}'} to {'∞' if self.high is None else f'{self.high:g}'}"


NOT_LOADED = {
    "calibrated": Listing(
        quantity="calibrated value of another model",
        low=0.0,
        high=1.0,
        causal=False,
        licence="that of the other model",
        about="A model with calibrated values. Needs a folder made by `demerit calibrate`: calibrated:DIR.",
        frames="as the other model",
    ),
    "gvl": Listing(
        quantity="progress",
        low=0.0,
        high=1.0,
        causal=False,
        licence="that of the model behind the server",
        about="Any vision-language model behind an OpenAI-compatible server (DEMERIT_CHAT_URL, DEMERIT_CHAT_MODEL) "
        "rates shuffled frames; with bad behaviour in the prompt: gvl:dense,examples=DIR; your words: gvl:prompt=FILE.",
        frames="16",
        extra="chat",
    ),
}
"""models that cannot be made without an argument, or imported without an extra"""


def describe_model(name: str) -> Listing | DemeritError:
    """Return a model's entry, or the error when it cannot be loaded.

    A class with a `listing` attribute is not instantiated: large models would have to load their weights.
    """
    if name in NOT_LOADED:
        return NOT_LOADED[name]
    try:
        factory: Callable[..., Any] = MODELS.factory(name)
        listing = getattr(factory, "listing", None)
        return listing if isinstance(listing, Listing) else Listing.of_card(load_model(name).card)
    except DemeritError as error:  # an extra or weights that are not installed
        return error
