"""The shape of the package: layers, public names, what an import costs."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import demerit

ROOT = Path(demerit.__file__).parent

# Imports go down only. A package's own modules may import each other; two names on one level may not.
LEVELS: dict[str, int] = {
    "errors": 0,
    "taxonomy": 1,
    "registry": 1,
    "recipe": 1,
    "chatting": 1,
    "chat": 2,
    "frames": 2,
    "outcome": 2,
    "video_index": 2,
    "video": 3,
    "video_writer": 3,
    "episode": 3,
    "decode_worker": 4,
    "reward": 4,
    "dataset": 4,
    "read_ahead": 5,
    "model": 5,
    "prefetch": 6,
    "store": 6,
    "prompting": 6,
    "sources": 7,
    "metrics": 7,
    "negatives": 7,
    "sim": 7,
    "contact_sheet": 7,
    "sample": 7,
    "check": 8,
    "score": 8,
    "ingest": 8,
    "negate": 8,
    "bundling": 8,
    "materialize": 8,
    "simulate": 8,
    "overview": 8,
    "compact": 8,
    "vlm": 8,
    "models": 9,
    "relabelling": 9,
    "judge": 10,
    "bench": 10,
    "vlm_training": 10,
    "calibrating": 11,
    "teaching": 11,
    "releasing": 11,
    "corpora": 11,
    "demo": 12,
    "cli": 13,
    "__init__": 14,
}


def top(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def imports(path: Path) -> set[str]:
    """Names of demerit's own parts that a file imports, also inside functions; strings are not imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("demerit"):
            module = node.module or ""
            found |= {top(f"demerit.{name.name}") for name in node.names} if module == "demerit" else {top(module)}
        elif isinstance(node, ast.Import):
            found |= {top(name.name) for name in node.names if name.name.startswith("demerit")}
    return found


def test_imports_go_down_only() -> None:
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        own = path.relative_to(ROOT).parts[0].removesuffix(".py")
        assert own in LEVELS, f"{own} has no level yet"
        for other in imports(path) - {own}:
            # frames.from_video opens videos lazily: the one call upwards, inside a function, said there.
            if LEVELS[other] >= LEVELS[own] and (own, other) != ("frames", "video"):
                wrong.append(f"{path.relative_to(ROOT)} imports {other}")
    assert not wrong


PUBLIC = """
Comparer Dataset DemeritError Edit Episode Event Frames ModelCard Online Origin Outcome Preference Problem Reward
RewardModel RewardStore Store __version__ check_model import_dataset load_model open_dataset teach
""".split()


def test_public_names_are_these_and_all_exist() -> None:
    assert sorted(demerit.__all__) == sorted(PUBLIC)
    for name in PUBLIC:
        assert getattr(demerit, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        demerit.nothing  # noqa: B018


def loaded_by(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*sys.modules)"
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )


def test_importing_demerit_is_light() -> None:
    heavy = {"torch", "transformers", "onnxruntime", "pyarrow", "pyarrow.dataset", "av", "numpy", "PIL", "rich"}
    assert not loaded_by("import demerit") & heavy
    assert not loaded_by("import demerit.cli") & (heavy - {"rich"})


def test_reading_and_scoring_need_no_heavy_machinery() -> None:
    code = "import demerit; demerit.Episode; demerit.load_model('clock'); demerit.open_dataset; demerit.Store"
    assert not loaded_by(code) & {"torch", "transformers", "onnxruntime", "pyarrow.dataset", "pandas", "scipy"}


def test_every_module_says_what_it_holds() -> None:
    for path in ROOT.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path
        assert not {"utils", "common", "helpers", "misc", "base", "manager"} & set(path.stem.split("_")), path


def test_built_in_parts_use_the_public_extension_path() -> None:
    for home, attribute, names in (
        ("demerit.models", "MODELS", {"clock", "constant", "default", "random"}),
        ("demerit.models.folder", "KINDS", {"compact"}),
        (
            "demerit.dataset",
            "SOURCES",
            {"demerit", "hdf5", "lerobot", "rbm", "rlds", "roboarena", "roboreward", "videos"},
        ),
        ("demerit.frames", "FRAME_KINDS", {"video", "hdf5", "tfrecord", "lerobot-images"}),
    ):
        registry = getattr(importlib.import_module(home), attribute)
        assert set(registry) >= names
        for name in registry:
            assert callable(registry.factory(name))
