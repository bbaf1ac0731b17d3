"""docs/fidelity.md against the code: the counts, and for every row a function that its command really reaches."""

from __future__ import annotations

import ast
import re
import shlex
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from demerit.cli import COMMANDS, load_command
from demerit.cli.listing import LISTS
from demerit.cli.train import MODELS as TRAINED
from demerit.data.formats import SOURCES
from demerit.evaluate.benchmarks import BENCHMARKS
from demerit.models.loading import MODELS
from demerit.training.corpus.config import shipped_configs

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "fidelity.md"
COLUMNS = ["the paper", "demerit", "state", "function", "command"]
STATES = ("faithful", "answered", "partly", "left")
LOADERS = ("demerit.", "demerit.cli.", "demerit.models.vlm.", "demerit.people.", "demerit.training.", "")
"""what `load_attribute` and the registries put before a relative address"""
ADDRESS = re.compile(r"([a-z_][\w.]*):([A-Za-z_][\w.]*)")
ROOTS = ("demerit", "demerit.cli")
"""the tables of all commands and names lead everywhere: a command is followed from its own module"""


@dataclass(frozen=True)
class Row:
    paper: str
    demerit: str
    state: str
    function: str
    command: str


def read_rows(text: str) -> list[Row]:
    lines = [line for line in text.splitlines() if line.startswith("|") and not set(line) <= set("|- ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [row for row in cells if len(row) != len(COLUMNS)] == []
    return [Row(*row) for row in cells if row != COLUMNS]


# The static graph of modules


@cache
def find_modules() -> dict[str, Path]:
    found = {}
    for path in (ROOT / "src" / "demerit").rglob("*.py"):
        parts = path.relative_to(ROOT / "src").with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def parse(path: Path) -> ast.Module:
    """Parse a file, without what only type checkers see."""

    class Runs(ast.NodeTransformer):
        def visit_If(self, node: ast.If) -> Any:
            return [] if ast.unparse(node.test) == "TYPE_CHECKING" else self.generic_visit(node)

    tree: ast.Module = Runs().visit(ast.parse(path.read_text("utf-8")))
    return tree


def resolve(module: str, name: str = "") -> str:
    """Return the module of an import: a name imported from a package may be a module itself."""
    known = find_modules()
    return f"{module}.{name}" if f"{module}.{name}" in known else module if module in known else ""


@cache
def find_edges(path: Path) -> frozenset[str]:
    """Return the modules that a file imports, also inside functions, and those that its addresses name."""
    found: set[str] = set()
    is_table = path in (find_modules()[name] for name in ROOTS)
    registered = set(MODELS._built_in.values()) if path == find_modules()["demerit.models.loading"] else set()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            found |= {resolve(alias.name) or find_script(path, alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            script = find_script(path, node.module)
            found |= {resolve(node.module, alias.name) or script for alias in node.names}
            if node.module == "demerit":
                found |= {find_home(alias.name) for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "demerit":
            found.add(find_home(node.attr))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not is_table:
            if f"demerit.{node.value}" in registered:  # followed only where a command names the model
                continue
            address = ADDRESS.fullmatch(node.value)
            names = [address[1]] if address else [node.value] if node.value.startswith("demerit.") else []
            found |= {resolve(f"{before}{name}") for name in names for before in LOADERS}
    return frozenset(found - {""})


def find_home(name: str) -> str:
    """Return the module of a name that `demerit` exports."""
    homes = next(
        node.value
        for node in parse(find_modules()["demerit"]).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOMES"
    )
    home = ast.literal_eval(homes).get(name)
    return f"demerit.{home}" if home else ""


def find_script(path: Path, name: str) -> str:
    """Return the path of a script beside another one that imports it."""
    beside = path.with_name(f"{name}.py")
    return str(beside) if beside.is_file() and ROOT / "src" not in path.parents else ""


@cache
def close(*starts: str) -> frozenset[str]:
    """Return every module that modules, or scripts by their paths, reach; themselves included."""
    reached, todo = set[str](), list(starts)
    while todo:
        name = todo.pop()
        if name not in reached:
            reached.add(name)
            todo += find_edges(locate(name))
    return frozenset(reached)


def locate(name: str) -> Path:
    return find_modules().get(name) or Path(name)


@cache
def find_definition(address: str) -> ast.stmt | None:
    """Return the statement that defines `module:name` or `module:Class.name`; None if there is none."""
    module, _, names = address.partition(":")
    body: list[ast.stmt] = parse(find_modules()[module]).body if module in find_modules() else []
    found: ast.stmt | None = None
    for name in names.split("."):
        found = next((node for node in body if name in names_of(node)), None)
        body = getattr(found, "body", [])
    return found


def names_of(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


@cache
def count_uses(name: str) -> Counter[str]:
    """Count in every module or script how often names, attributes, imports and addresses name something."""
    return count_names(parse(locate(name)))


def count_names(tree: ast.AST) -> Counter[str]:
    used: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            used[node.id] += 1
        elif isinstance(node, ast.Attribute):
            used[node.attr] += 1
        elif isinstance(node, ast.alias):
            used[node.name] += 1
        elif isinstance(node, ast.keyword) and node.arg:
            used[node.arg] += 1
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            address = ADDRESS.fullmatch(node.value)
            used.update(address[2].split(".") if address else [node.value])
    return used


def find_fault(function: str, starts: list[str]) -> str:
    """Say why a function is not reached from the modules of a command; empty if it is."""
    definition = find_definition(function)
    if definition is None:
        return "there is no such function"
    module, _, names = function.partition(":")
    if module not in close(*starts):
        return f"{module} is not reached from {', '.join(starts)}"
    name = names.rpartition(".")[2]
    if sum(count_uses(reached)[name] for reached in close(*starts)) <= count_names(definition)[name]:
        return f"nothing that {', '.join(starts)} reaches uses {name}"
    return ""


# Commands


def find_starts(command: str) -> list[str]:
    """Return the modules or the script that a command begins with; raise AssertionError if it does not exist."""
    words = shlex.split(command)
    if words[0] == "demerit":
        return check_command(*words[1:])
    if words[0] == "python":
        script = ROOT / words[1]
        assert script.is_file(), command
        text = script.read_text("utf-8")
        assert [word for word in words[2:] if word.startswith("-") and f'"{word}"' not in text] == [], command
        return [str(script)]
    module, _, name = words[0].rpartition(".")
    home = find_home(name) if module == "demerit" else resolve(module)
    assert home and (count_uses(home)[name] or find_definition(f"{home}:{name}")), command
    return [home]


def check_command(name: str, *words: str) -> list[str]:
    assert name in COMMANDS, name
    command, rest, starts = (
        load_command(COMMANDS, name),
        list(words),
        [f"demerit.cli.{COMMANDS[name][0].split(':')[0]}"],
    )
    if hasattr(command, "list_commands"):
        assert rest[0] in command.table, words
        command = load_command(command.table, rest.pop(0))
    options = {option: param for param in command.params for option in (*param.opts, *param.secondary_opts)}
    positions: list[str] = []
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            positions.append(word)
            continue
        assert word in options, f"{name}: no option {word}"
        if not getattr(options[word], "is_flag", False):
            starts += check_value([name, *positions], word, rest.pop(0))
    if name == "bench" and "--leaderboard" not in words:
        assert positions[0].removeprefix("own:") in BENCHMARKS, positions
    if name == "serve":
        starts += [start for model in positions for start in check_model(model)]
    tables = {"train": TRAINED, "list": LISTS, "build-corpus": shipped_configs()}
    assert name not in tables or positions[0] in tables[name], positions
    assert name != "import" or positions[0].partition(":")[0] in SOURCES, positions
    return starts


def check_value(command: list[str], option: str, value: str) -> list[str]:
    """Check the names that a value holds: models and their options, recipes, settings; return the models' modules."""
    if option == "--model":
        return check_model(value)
    if option == "--recipe":
        assert (ROOT / "src/demerit/assets/train" / f"{value}.yaml").is_file(), value
    if option == "--set":
        homes = {"bench": "cli.bench", "relabel": "negatives.relabel.config", "train": "training.vlm.config"}
        homes["distil"] = "models.gvl.config"
        home = "training.rewind.data" if command == ["train", "rewind"] else homes[command[0]]
        assert value.partition("=")[0].replace("-", "_") in list_fields(f"demerit.{home}"), value
    return []


def check_model(name: str) -> list[str]:
    """Check a model's name and its options; return its modules, none for a folder."""
    model, _, given = name.partition(":")
    if name.startswith("./"):
        return []
    assert model in MODELS, name
    module = MODELS._built_in[model].partition(":")[0]
    if model in ("ensemble", "min"):
        return [module, *(start for part in given.split("+") for start in check_model(part))]
    known = {
        *list_fields("demerit.llm.options"),
        *list_fields(module),
        *list_fields(f"{module.rpartition('.')[0]}.config"),
    }
    for reached in (module, f"{module.rpartition('.')[0]}.config"):
        known |= {*count_uses(reached)} if reached in find_modules() else set()
    data = ROOT / "src/demerit/assets/vlm" / f"{model}.yaml"
    known |= set(re.findall(r"^ +(\w+):", data.read_text("utf-8"), re.M)) if data.is_file() else set()
    options = [] if model == "rule" else [part.partition("=")[0] for part in given.split(",") if part]
    assert [option for option in options if option not in known] == [], name
    return [module]


def list_fields(module: str) -> set[str]:
    """Return the annotated names of a module: the fields of its dataclasses."""
    tree = parse(find_modules()[module]) if module in find_modules() else ast.Module([], [])
    found = (node.target for node in ast.walk(tree) if isinstance(node, ast.AnnAssign))
    return {target.id for target in found if isinstance(target, ast.Name)}


def find_row_fault(row: Row) -> str:
    """Say what is wrong with the function and the command of a row; empty if nothing is."""
    function, command = (re.fullmatch(r"`([^`]+)`", cell) for cell in (row.function, row.command))
    if not (function and command):
        return "function and command are not one piece of code each"
    try:
        starts = find_starts(command[1])
    except AssertionError as wrong:
        return f"{command[1]}: {wrong}"
    is_entry = function[1].replace(":", ".") == command[1]  # a user calls the function itself
    return "" if is_entry else find_fault(function[1], starts)


# Tests

TEXT = PAGE.read_text("utf-8")
ROWS = read_rows(TEXT)


def test_the_counts_are_those_of_the_rows() -> None:
    printed = {
        state: int(count) for count, state in re.findall(rf"(\d+) ({'|'.join(STATES)})", TEXT.partition("\n|")[0])
    }
    counted = Counter(row.state for row in ROWS)
    assert printed == dict(counted) and list(printed) == list(STATES)
    assert re.search(r"\*\*(\d+) points", TEXT)[1] == str(len(ROWS))  # type: ignore[index]


def test_rows_are_complete_and_differ() -> None:
    assert len(ROWS) > 100
    assert max(Counter(row.paper for row in ROWS).values()) == 1
    for row in ROWS:
        assert row.paper and row.demerit and row.state in STATES, row
        assert bool(row.function and row.command) or row.state == "left", row


def test_every_row_names_a_function_that_its_command_reaches() -> None:
    faults = {row.paper: find_row_fault(row) for row in ROWS if row.function}
    assert {paper: fault for paper, fault in faults.items() if fault} == {}


def test_links_of_the_page_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", TEXT)
    assert [target for target in targets if not (PAGE.parent / target).exists()] == []


# Negative controls: what the checks above must find


def test_an_unreachable_module_is_found() -> None:
    trials = "demerit.people.arena.trials:Trials.judge"
    assert find_fault(trials, find_starts("demerit arena serve DIR --policies FILE")) == ""
    assert "is not reached" in find_fault(trials, find_starts("demerit score DATASET --model clock"))
    assert "is not reached" in find_fault("demerit.use.retrieve:merge_hits", ["demerit.cli.bench"])
    gvl = "demerit.models.gvl.model:GVL.score"
    assert find_fault(gvl, find_starts("demerit score DATASET --model gvl")) == ""
    assert "is not reached" in find_fault(gvl, find_starts("demerit score DATASET --model robometer"))


def test_a_function_that_nothing_uses_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    unused = tmp_path / "unused.py"
    unused.write_text("def used():\n    pass\n\n\ndef dead():\n    return dead()\n")
    user = tmp_path / "user.py"
    user.write_text("from demerit.unused import used\n")
    modules = {**find_modules(), "demerit.unused": unused}
    monkeypatch.setitem(globals(), "find_modules", lambda: modules)
    assert find_fault("demerit.unused:used", [str(user)]) == ""
    assert "uses dead" in find_fault("demerit.unused:dead", [str(user)])
    assert find_fault("demerit.unused:absent", [str(user)]) == "there is no such function"


@pytest.mark.parametrize(
    "command",
    [
        "demerit score DATASET --modle clock",
        "demerit score DATASET --model nobody",
        "demerit score DATASET --model gvl:nothing=1",
        "demerit bench nothing@1 --data DIR",
        "demerit train robometer -o OUT --set nothing=1",
        "demerit train robometer -o OUT --recipe nothing",
        "demerit arena nothing",
        "demerit nothing",
        "demerit list nothing",
        "demerit build-corpus nothing DEST",
        "demerit import nothing:DIR DEST",
        "python benchmarks/nothing.py",
        "python benchmarks/ablation.py --nothing",
        "demerit.Nothing",
    ],
)
def test_a_command_that_does_not_exist_is_found(command: str) -> None:
    with pytest.raises(AssertionError):
        find_starts(command)
