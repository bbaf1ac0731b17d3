"""Names that people type, mapped to factories that are imported when they are used.

Built-in names are in plain dictionaries. Other packages add theirs with entry points: a package that declares

    [project.entry-points."demerit.models"]
    mine = "my_package.reward:MyModel"

appears in `demerit list models` and works with `demerit score --model mine`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any

from demerit.errors import MissingExtra, UnknownName

# module: the extra that installs it. A failed import becomes the install line.
EXTRA_OF_MODULE = {
    "h5py": "hdf5",
    "torch": "train",
    "onnx": "train",
    "transformers": "vlm",
    "safetensors": "vlm",
    "tokenizers": "vlm",
    "huggingface_hub": "vlm",
    "peft": "vlm-train",
    "accelerate": "vlm-train",
    "openai": "chat",
    "pydantic": "chat",
    "fastapi": "serve",
    "sqlalchemy": "annotate",
    "psycopg": "annotate",
    "argon2": "annotate",
    "metaworld": "sim",
    "gymnasium_robotics": "sim",
    "gymnasium": "gym",
    "minari": "minari",
    "ray": "ray",
    "rosbags": "ros",
    "mcap": "ros",
    "zstandard": "ros",
}


class Registry:
    """One kind of named thing."""

    def __init__(self, kind: str, built_in: Mapping[str, str], group: str | None = None) -> None:
        """Create a registry.

        Args:
            kind: The word used in messages.
            built_in: Our own parts: name to `module:attribute`, where the module is relative to `demerit`.
            group: The entry point group in which other packages register theirs; None where they cannot.
        """
        self.kind, self.group = kind, group
        self._built_in = {name: f"demerit.{address}" for name, address in built_in.items()}
        self._added: dict[str, Callable[..., Any]] = {}
        self._found: dict[str, str] | None = None

    def add(self, name: str, factory: Callable[..., Any]) -> None:
        """Register a factory in this process only (notebooks and tests)."""
        self._added[name] = factory

    def names(self) -> list[str]:
        """Every known name, sorted."""
        return sorted({*self._addresses(), *self._added})

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        """Whether the name is known."""
        return name in self._added or name in self._addresses()

    def factory(self, name: str) -> Callable[..., Any]:
        """Return the factory behind a name, importing it now."""
        if name in self._added:
            return self._added[name]
        found = self._addresses()
        if name not in found:
            raise UnknownName(self.kind, name, self.names())
        return load_attribute(found[name], f"the {self.kind} {name!r}")

    def _addresses(self) -> dict[str, str]:
        if self._found is None:
            others = entry_points(group=self.group) if self.group else ()
            self._found = {point.name: point.value for point in others} | self._built_in
        return self._found


def load_attribute(address: str, feature: str, extra: str = "") -> Callable[..., Any]:
    """Import `module:attribute`; a missing optional dependency is named with its install line.

    `extra` is the one to install where several have that dependency; by default the first of them.
    """
    module, _, attribute = address.partition(":")
    try:
        loaded: Any = importlib.import_module(module)
    except ModuleNotFoundError as missing:
        first = EXTRA_OF_MODULE.get((missing.name or "").partition(".")[0])
        if first is None:
            raise
        start = feature if feature.startswith("demerit ") else feature[0].upper() + feature[1:]
        raise MissingExtra(start, extra or first) from missing
    for part in attribute.split("."):
        loaded = getattr(loaded, part)
    factory: Callable[..., Any] = loaded
    return factory
