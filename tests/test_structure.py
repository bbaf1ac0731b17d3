"""The structure of the package: import direction, public names, what an import loads, unique class names."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import demerit

ROOT = Path(demerit.__file__).parent

# A room imports only rooms that stand before it here.
ORDER = "errors registry config data llm models negatives evaluate training use cli __main__ __init__".split()
LEVELS = {name: level for level, name in enumerate(ORDER)}


def top(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def imports(path: Path) -> set[str]:
    """Return the rooms that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("demerit"):
            module = node.module or ""
            found |= {top(f"demerit.{name.name}") for name in node.names} if module == "demerit" else {top(module)}
        elif isinstance(node, ast.Import):
            found |= {top(name.name) for name in node.names if name.name.startswith("demerit")}
    return found


def test_imports_go_one_way() -> None:
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        own = path.relative_to(ROOT).parts[0].removesuffix(".py")
        assert own in LEVELS, f"{own} is not in ORDER"
        for other in imports(path) - {own}:
            if LEVELS[other] >= LEVELS[own]:
                wrong.append(f"{path.relative_to(ROOT)} imports {other}")
    assert not wrong


PUBLIC = """
Comparer Dataset DemeritError Edit Episode Event Frames LiveEpisode LiveReward ModelCard Online Origin Outcome
Preference Problem RemoteModel Reward RewardModel RewardStore Store __version__ check_model import_dataset load_model
open_dataset teach
""".split()


def test_public_names_exist() -> None:
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


def test_every_module_has_a_docstring_and_a_telling_name() -> None:
    for path in ROOT.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path
        assert not {"utils", "common", "helpers", "misc", "base", "manager"} & set(path.stem.split("_")), path


def test_every_built_in_name_can_be_loaded() -> None:
    for home, attribute in (
        ("demerit.models", "MODELS"),
        ("demerit.models.loading", "KINDS"),
        ("demerit.data.dataset", "SOURCES"),
        ("demerit.data.frames", "FRAME_KINDS"),
        ("demerit.negatives.negative", "NEGATIVES"),
        ("demerit.negatives.sim.behaviours", "BEHAVIOURS"),
        ("demerit.evaluate.benchmarks.benchmark", "BENCHMARKS"),
    ):
        registry = getattr(importlib.import_module(home), attribute)
        assert registry.names()
        for name in registry:
            assert callable(registry.factory(name))


HEAVY = {
    "accelerate", "gymnasium_robotics", "h5py", "huggingface_hub", "matplotlib", "metaworld", "mujoco", "onnx",
    "openai", "peft", "pydantic", "rerun", "safetensors", "tensorboard", "tokenizers", "torch", "transformers", "wandb",
}  # fmt: skip


def sources() -> list[tuple[str, ast.Module]]:
    return [(str(path.relative_to(ROOT)), ast.parse(path.read_text())) for path in sorted(ROOT.rglob("*.py"))]


def test_class_names_are_unique() -> None:
    homes: dict[str, list[str]] = {}
    for path, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(path)
    assert not {name: paths for name, paths in homes.items() if len(paths) > 1}


def test_only_heavy_extras_are_imported_inside_functions() -> None:
    inner = []
    for path, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                found = [child for child in ast.walk(node) if isinstance(child, ast.Import | ast.ImportFrom)]
                inner += [(path, ast.unparse(child)) for child in found]
    light = [line for line in inner if not any(name in line[1] for name in HEAVY)]
    assert not light
    assert len(inner) <= 40
