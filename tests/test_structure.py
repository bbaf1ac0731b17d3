"""The structure of the package: import direction, public names, what an import loads, unique class names."""

import ast
import importlib
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import demerit
from demerit.cli import COMMANDS, LazyGroup, load_command

ROOT = Path(demerit.__file__).parent

# A room imports only rooms that stand before it here.
ORDER = """
errors registry config data web llm models decide negatives evaluate training use people cli __main__ __init__
""".split()
LEVELS = {name: level for level, name in enumerate(ORDER)}


def top(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def imports(tree: ast.Module) -> set[str]:
    """Return the rooms that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("demerit"):
            module = node.module or ""
            found |= {top(f"demerit.{name.name}") for name in node.names} if module == "demerit" else {top(module)}
        elif isinstance(node, ast.Import):
            found |= {top(name.name) for name in node.names if name.name.startswith("demerit")}
    return found


def test_imports_go_one_way() -> None:
    wrong = []
    for path, tree in sources():
        own = Path(path).parts[0].removesuffix(".py")
        assert own in LEVELS, f"{own} is not in ORDER"
        for other in imports(tree) - {own}:
            if LEVELS[other] >= LEVELS[own]:
                wrong.append(f"{path} imports {other}")
    assert not wrong


PUBLIC = """
Comparer Dataset DemeritError Detector Edit Episode Event Frames LiveEpisode LiveReward ModelCard Online Origin Outcome
Preference Problem RemoteModel Reward RewardEnv RewardModel RewardStore Store __version__ check_model import_dataset
load_model open_dataset pick teach
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
    for path, tree in sources():
        assert ast.get_docstring(tree), path
        assert not {"utils", "common", "helpers", "misc", "base", "manager"} & set(Path(path).stem.split("_")), path


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
    "accelerate", "gymnasium_robotics", "h5py", "huggingface_hub", "lerobot", "matplotlib", "metaworld", "mujoco",
    "onnx", "openai", "peft", "pydantic", "rerun", "safetensors", "tensorboard", "tokenizers", "torch", "transformers",
    "vlm.kernels", "wandb",
}  # fmt: skip


@cache
def sources() -> list[tuple[str, ast.Module]]:
    return [(str(path.relative_to(ROOT)), ast.parse(path.read_text())) for path in sorted(ROOT.rglob("*.py"))]


def test_class_names_are_unique() -> None:
    homes: dict[str, list[str]] = {}
    for path, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(path)
    assert not {name: paths for name, paths in homes.items() if len(paths) > 1}


ONLY_IN = {
    "web": {"uvicorn", "http.server", "socketserver", "jinja2"},
    "web/uploads.py": {"demerit.data.decode.WorkerProcess"},
    "web/pages.py": {"jinja2"},
}
"""what only one room or file imports: the server, the templates, the process that opens files of strangers"""


def imported_names(tree: ast.Module) -> set[str]:
    """Return `a.b` for `import a.b`, and `a.b` and `a.b.c` for `from a.b import c`."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {str(node.module), *(f"{node.module}.{name.name}" for name in node.names)}
    return names


def test_server_templates_and_the_decoder_of_uploads_are_in_one_place() -> None:
    for place, names in ONLY_IN.items():
        homes = [path for path, tree in sources() if names & imported_names(tree)]
        assert homes and all(path.startswith(place) for path in homes), (place, homes)


def test_the_arena_and_the_server_open_no_file_of_a_stranger() -> None:
    """They pass paths and bytes on to the decoder of uploads."""
    opening = {"PIL", "av", "demerit.data.video.open_video", "demerit.data.export.shrink"}
    for path, tree in sources():
        if path.startswith(("people/arena/", "use/serve/server", "use/serve/requests")):
            attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
            assert not opening & imported_names(tree) and not {"from_video", "take_prepared"} & attributes, path


def test_csv_is_written_in_one_place() -> None:
    """So that no text of a stranger reaches a spreadsheet as a formula."""
    writers = {
        path
        for path, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("csv.writer", "csv.DictWriter")
    }
    assert writers == {"data/files.py"}


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


VERDICT_KEYS = {"succeeds", "task", "missing cameras", "familiarity", "caution"}
"""what a reward's `given` says about its verdict"""


def verdict_reads(tree: ast.AST) -> list[str]:
    """Return the places that read a verdict's key of a `given`; writing one is fine."""
    reads: list[tuple[ast.expr, ast.expr]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            reads.append((node.value, node.slice))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            reads += [(node.func.value, node.args[0])] if node.func.attr in ("get", "pop", "setdefault") else []
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            reads.append((node.comparators[0], node.left))
    return [
        f"{ast.unparse(mapping)}: {key.value}"
        for mapping, key in reads
        if ast.unparse(mapping).split(".")[-1] == "given"
        and isinstance(key, ast.Constant)
        and key.value in VERDICT_KEYS
    ]


def test_only_data_reward_reads_what_a_verdict_rests_on() -> None:
    readers = {path: verdict_reads(tree) for path, tree in sources()}
    assert len(readers.pop("data/reward.py")) >= len(VERDICT_KEYS) - 1
    assert not {path: reads for path, reads in readers.items() if reads}


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ('reward.given["succeeds"]', 1),
        ('given.get("missing cameras", ())', 1),
        ('"caution" in live.reward.given', 1),
        ('given["succeeds"] = True', 0),
        ('reward.given["note"]', 0),
        ('config["task"]', 0),
    ],
)
def test_the_check_of_verdict_reads_finds_them(code: str, count: int) -> None:
    assert len(verdict_reads(ast.parse(code))) == count


def test_only_those_who_keep_labels_see_the_ones_that_people_rejected() -> None:
    """Everybody else reads `Episode.labels`: the labels that hold."""
    keepers = ("data/", "people/annotate/", "negatives/", "use/label.py", "use/view.py", "decide/measure.py")
    readers = {
        path
        for path, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "outcomes" and ast.unparse(node.value) != "summary"
    }
    assert {path for path in readers if not path.startswith(keepers)} <= {
        "models/gvl/distil.py",  # adds a label
        "training/corpus/config.py",  # adds a label
        "training/prepared.py",  # of an episode whose labels were chosen
        "training/teach/training_set.py",  # of a negative that it has just made
    }


# Room for what is there. To add more, raise a number here on purpose, and say in the pull request what it is for.
BUDGET = {"modules": 277, "classes": 603, "options": 269, "leaf commands": 29}


def leaf_commands() -> dict[str, Any]:
    leaves, groups = {}, {"": COMMANDS}
    while groups:
        prefix, table = groups.popitem()
        for name in table:
            command = load_command(table, name)
            if isinstance(command, LazyGroup):
                groups[f"{prefix}{name} "] = command.table
            else:
                leaves[f"{prefix}{name}"] = command
    return leaves


def test_the_package_stays_within_its_budget() -> None:
    options = [
        param
        for command in leaf_commands().values()
        for param in command.params
        if param.param_type_name == "option" and param.name != "help"
    ]
    sizes = {
        "modules": len(sources()),
        "classes": sum(isinstance(node, ast.ClassDef) for _, tree in sources() for node in ast.walk(tree)),
        "options": len(options),
        "leaf commands": len(leaf_commands()),
    }
    assert {name: size for name, size in sizes.items() if size > BUDGET[name]} == {}, sizes


def test_an_option_has_one_meaning_everywhere() -> None:
    """A letter stands for one option, and each option of a kind has its letter."""
    letters = {"--out": ["-o"], "--model": ["-m"]}
    for name, command in leaf_commands().items():
        for param in command.params:
            long = [spelling for spelling in param.opts if spelling.startswith("--")]
            short = [spelling for spelling in param.opts if not spelling.startswith("--")]
            if param.param_type_name == "option":
                assert short == letters.get(long[0], []), f"demerit {name} {param.opts}"
