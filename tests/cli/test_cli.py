"""The command line on real files, mostly as real processes."""

import inspect
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
from PIL import Image

from demerit.cli import COMMANDS, load_command
from demerit.cli.people import ArenaGroup
from demerit.cli.renamed import translate_words
from demerit.data.formats import open_dataset
from demerit.registry import EXTRA_OF_MODULE, load_attribute
from fakes.command import COMMAND, demerit, demerit_here, error_sentence
from fakes.processes import running


@pytest.fixture
def folder(tmp_path: Path, sample: Path) -> Path:
    shutil.copytree(sample, tmp_path / "blocks")
    return tmp_path


ARENA = {f"arena {name}": entry for name, entry in ArenaGroup.table.items()}
LEAVES = {name: entry for name, entry in COMMANDS.items() if name != "arena"} | ARENA
"""every command that does something: its address and help line"""


@pytest.mark.parametrize("command", [[], ["arena"], *(name.split() for name in LEAVES)])
def test_help_has_examples(command: list[str]) -> None:
    run = demerit_here(*command, "--help")
    assert run.returncode == 0
    if command:
        assert "Examples" in run.stdout
        assert f"demerit {' '.join(command)}" in run.stdout
    assert not re.search(r"<bool>|<list\[|…", run.stdout)


def examples(name: str) -> list[list[str]]:
    """The command lines in the help of a command."""
    address = (LEAVES | COMMANDS)[name][0]
    command = load_attribute(f"demerit.cli.{address}", name)
    text = command.info.help if isinstance(command, typer.Typer) else inspect.getdoc(command)
    lines = re.findall(r"^ +demerit (.*?)(?: {2,}[(\[].*)?$", str(text).partition("Examples")[2], flags=re.M)
    return [shlex.split(line) for line in lines]


@pytest.mark.parametrize("name", [*LEAVES, "arena"])
def test_examples_have_options_that_exist(name: str) -> None:
    lines = examples(name)
    assert lines
    for words in lines:
        table, rest = (ArenaGroup.table, words[1:]) if words[0] == "arena" else (COMMANDS, words)
        load_command(table, rest[0]).make_context(rest[0], rest[1:])  # raises for what does not exist


def test_an_example_with_an_option_that_does_not_exist_is_found() -> None:
    with pytest.raises(Exception, match="No such option"):
        load_command(ArenaGroup.table, "results").make_context("results", ["my_arena", "--nothing"])


def test_version() -> None:
    run = demerit_here("--version")
    assert (run.returncode, run.stdout) == (0, f"demerit {version('demerit')}\n")


def test_python_runs_the_package() -> None:
    run = subprocess.run([sys.executable, "-m", "demerit", "--version"], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, f"demerit {version('demerit')}\n")


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["scor", "blocks"], "score"),
        (["arena", "reslts"], "results"),
        (["score", "blocks", "--modle", "clock"], "--model"),
        (["bench", "own", "--dta", "blocks"], "--data"),
    ],
)
def test_a_typo_names_the_nearest(arguments: list[str], meant: str) -> None:
    run = demerit_here(*arguments)
    assert run.returncode == 2 and meant in run.stderr.partition("Error")[2]


@pytest.mark.parametrize("name", [*LEAVES, "arena"])
def test_docstring_begins_with_the_help_line(name: str) -> None:
    address, line = (LEAVES | COMMANDS)[name]
    command = load_attribute(f"demerit.cli.{address}", f"demerit {name}")
    text = command.info.help if isinstance(command, typer.Typer) else inspect.getdoc(command)
    assert str(text).splitlines()[0] == line


def test_commands_are_listed_in_five_panels_with_a_line_each() -> None:
    with_width = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    run = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, check=True, env=with_width)
    assert re.findall(r"^╭─ (\w+)", run.stdout, flags=re.M) == ["Options", "Start", "Data", "Models", "Measure", "Use"]
    listed = run.stdout.partition("╭─ Start")[2]
    lines = re.findall(r"^│ ([a-z-]+) +(.*?) +│$", listed, flags=re.M)
    assert lines == [(name, line) for name, (_, line) in COMMANDS.items()]
    assert listed.count("\n│ ") == len(COMMANDS)


MODULES = sorted(EXTRA_OF_MODULE.keys() - {"pydantic"})  # which some versions of typer need
WITHOUT_EXTRAS = f"""
import sys
for name in {MODULES}:
    sys.modules[name] = None  # as if it were not installed
from demerit.cli import app, main
"""


def test_help_needs_no_extra() -> None:
    asked = [[*name.split(), "--help"] for name in (*LEAVES, "arena")]
    code = f"{WITHOUT_EXTRAS}\nfor words in {asked}:\n    print(app(words, 'demerit', standalone_mode=False))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("Usage: ") == len(asked)


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["annotate", "blocks"], "annotate"),
        (["serve", "clock"], "serve"),
        (["arena", "results", "nothing"], "annotate"),
        (["train", "rewind", "-o", "m", "--data", "a=blocks"], "train"),
        (["train", "robometer", "-o", "m", "--data", "a=blocks"], "vlm-train"),
        (["score", "blocks", "--on", "ray"], "ray"),
        (["simulate", "s", "--tasks", "fetch-push"], "sim"),
    ],
)
def test_a_missing_extra_names_its_install_line(folder: Path, arguments: list[str], extra: str) -> None:
    command = [sys.executable, "-c", f"{WITHOUT_EXTRAS}\nmain()", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert f"pip install -e '.[{extra}]'" in error_sentence(run)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("materialize a b", "export --to mp4 a b"),
        ("rewards write a -m clock -o b --gamma 0.9", "export a -m clock --set gamma=0.9 b"),
        ("rewards write a --to npz", "export --model default a --to npz"),
        ("label a safe.yaml", "score a --write-labels --model rule:safe.yaml"),
        ("leaderboard a b --out site", "bench --leaderboard a b --out site"),
        (
            "score a --strict --trust-pickles --out=r",
            "score a --with strict=true --with trust-pickles=true --rewards r",
        ),
        ("teach a -o b --cameras top,wrist", "teach a -o b --camera top --camera wrist"),
        ("detect a --false-alarms 0.1", "detect a --risk 0.1"),
        ("filter a b --pictures 9 --strict", "filter a b --with strict=true"),
        ("label --help", "score --help"),
    ],
)
def test_old_spellings_work_and_say_the_new_one(old: str, new: str) -> None:
    sentences: list[str] = []
    assert translate_words(old.split(), sentences.append) == new.split()
    assert sentences and all(sentence.count("\n") == 0 for sentence in sentences)


def test_todays_spelling_is_left_alone() -> None:
    for name in LEAVES:
        for words in examples(name):
            assert translate_words(words, pytest.fail) == words
    hidden = ["score", "a", "--", "--strict"]
    assert translate_words(hidden, pytest.fail) == hidden


def test_an_old_command_says_its_new_name_on_stderr(folder: Path) -> None:
    run = demerit_here("materialize", "blocks", "videos", cwd=folder)
    assert run.returncode == 0 and "is now: demerit export --to mp4 blocks videos" in run.stderr
    assert "15 episodes as mp4" in run.stdout


def test_import_inspect_score(folder: Path) -> None:
    run = demerit_here("import", "blocks", "set", cwd=folder)
    assert "15 episodes (15 new)" in run.stdout, run.stderr
    shown = demerit_here("inspect", "set", cwd=folder).stdout
    assert "15 episodes, 480 frames" in shown
    demerit_here("inspect", "set", "--sheet", "look.png", "--episode", "drops-1", cwd=folder)
    with Image.open(folder / "look.png") as sheet:
        assert sheet.width > 1000
    facts = json.loads(demerit_here("inspect", "set", "--json", cwd=folder).stdout)
    assert facts["outcomes"] == {
        "rule": {"episodes": 15, "success": 3, "failure": 12, "graded": 0, "with progress": 15, "with curve": 15}
    }
    in_place = json.loads(demerit_here("inspect", "videos:blocks", "--json", cwd=folder).stdout)
    assert {k: v for k, v in in_place.items() if k != "name"} == {k: v for k, v in facts.items() if k != "name"}
    scored = demerit_here("score", "set", "--model", "clock", "--model", "constant:0.2", cwd=folder).stdout
    assert "clock: 15 scored (480 frames)" in scored
    assert "constant-0.2: 15 scored" in scored
    assert "15 were scored already" in demerit_here("score", "set", "-m", "clock", cwd=folder).stdout
    beside = demerit_here("score", "videos:blocks", "-m", "clock", "--frames", "4", cwd=folder)
    assert (folder / "blocks.demerit" / "rewards" / "clock+4frames" / "rewards.json").is_file(), beside.stderr


def test_brackets_in_a_reason_are_printed(folder: Path) -> None:
    """Rich would take them for markup."""
    (folder / "[red]bad").mkdir()
    (folder / "[red]bad" / "clip.mp4").write_text("no video")
    run = demerit_here("score", "videos:[red]bad", "-m", "change", cwd=folder)
    assert "it cannot be opened as a video" in run.stdout, run.stdout + run.stderr
    assert "[red]bad.demerit" in run.stdout


def test_all_names_are_checked_before_anything_is_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "costly.py").write_text(
        "from dataclasses import replace\n"
        "from demerit.models.baselines import Clock\n"
        "def model():\n"
        "    raise SystemExit('loaded too early')\n"
        "class Other(Clock):\n"
        "    def __init__(self):\n"
        "        self.card = replace(Clock().card, revision='other')\n"
    )
    monkeypatch.syspath_prepend(folder)
    for models, words in ((("costly:model", "clokc"), "'clock'"), (("clock", "costly:Other"), "two called 'clock'")):
        options = [part for name in models for part in ("--model", name)]
        assert words in error_sentence(demerit_here("score", "blocks", *options, "--rewards", "r", cwd=folder))
    assert not (folder / "r").exists()


def test_export_and_read_back(folder: Path) -> None:
    assert demerit_here("export", "blocks", "robot", cwd=folder).returncode == 0
    facts = json.loads(demerit_here("inspect", "lerobot:robot", "--json", cwd=folder).stdout)
    assert (facts["episodes"], facts["frames"]) == (15, 480)
    assert "robot" in error_sentence(demerit_here("export", "blocks", "robot", cwd=folder))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_export_starts_over_and_leaves_nothing(folder: Path, how: signal.Signals) -> None:
    with running([*COMMAND, "export", "blocks", "robot"], cwd=folder, stderr=subprocess.PIPE) as run:
        while not list(folder.glob(".robot.part/tree/videos/**/*.mp4")):
            assert run.poll() is None
        run.send_signal(how)
        assert run.stderr is not None
        said = run.stderr.read()
        run.wait()
    left = [path.name for path in folder.iterdir()]
    if how == signal.SIGINT:
        assert run.returncode == 130 and "Nothing was written" in said and "resume" not in said
        assert left == ["blocks"]
    else:
        assert sorted(left) == [".robot.part", "blocks"]
    assert demerit_here("export", "blocks", "robot", cwd=folder).returncode == 0
    assert sorted(path.name for path in folder.iterdir()) == ["blocks", "robot"]
    assert not (folder / "robot/.lock").exists()


HOSTILE = "\x1b]0;owned\x07\x1b[2Jpick [/bold] \x9b31m\u202eup :apple: ü桌"


def test_text_from_data_never_controls_the_terminal(folder: Path) -> None:
    rows = [json.loads(line) for line in (folder / "blocks/labels.jsonl").read_text().splitlines()]
    rows = [{**row, "instruction": HOSTILE, "success": HOSTILE, "source": "human"} for row in rows]
    (folder / "blocks/labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "blocks/\x1b[31m.mp4").write_bytes(b"")
    name = "\x1b[1m[/x]"
    (folder / name).mkdir(parents=True)
    commands = [["inspect", "blocks"], ["inspect", "blocks", "--json"], ["import", "blocks", f"{name}/set"]]
    commands += [
        ["inspect", f"{name}/set"],
        ["inspect", name],
        ["inspect", "blocks", "--episode", name, "--sheet", "x"],
    ]
    commands += [
        ["score", "blocks", "--model", "clock", "--rewards", f"{name}/r"],
        ["export", "blocks", f"{name}/robot"],
    ]
    commands += [["negatives", f"{name}/set", f"{name}/n"]]
    for command in commands:
        run = demerit_here(*command, cwd=folder)
        assert "Traceback" not in run.stderr
        assert not re.search(r"[^\n\t\x20-\x7e\xa0-\u2029\u202f-\ud7ff\ue000-\U0010ffff]", run.stdout + run.stderr)
        if command[0] == "inspect" and "ü桌" in run.stdout:
            assert ":apple: ü桌" in run.stdout
    facts = json.loads(demerit_here("inspect", "blocks", "--json", cwd=folder).stdout)
    assert list(facts["instructions"]["most"]) == [HOSTILE]


def test_a_huge_text_is_cut(folder: Path) -> None:
    (folder / "blocks/labels.jsonl").write_text(json.dumps({"file": "success-0", "instruction": "x" * 100_000}) + "\n")
    for command in (["inspect", "blocks"], ["score", "blocks", "--model", "clock", "--rewards", "r"]):
        run = demerit_here(*command, cwd=folder)
        assert run.returncode == 0 and len(run.stdout + run.stderr) < 10_000


def test_one_episode_is_singular_and_negatives_that_succeed_are_counted(folder: Path) -> None:
    assert " 1 episode," in demerit_here("inspect", "blocks/success-0.mp4", cwd=folder).stdout
    made = demerit_here("negatives", "blocks", "n", "--mix", "clip,stall", cwd=folder).stdout
    stalled = sum(bool(e.edits) and e.edits[-1].name == "stall" for e in open_dataset(folder / "n"))
    assert stalled and f"{stalled} of them have grade 5 and count as successes: stall\n" in made
    counts = re.findall(r"^  labels (?:from|of|that) .*: (\d+)$", made, re.MULTILINE)
    assert sum(map(int, counts)) == len(open_dataset(folder / "n"))


def test_a_sheet_comes_with_the_overview(folder: Path) -> None:
    run = demerit_here("inspect", "blocks", "--sheet", "look.png", cwd=folder)
    assert "15 episodes, 480 frames" in run.stdout and "look.png" in run.stdout
    run = demerit_here("inspect", "blocks", "--json", "--sheet", "more.png", cwd=folder)
    assert json.loads(run.stdout)["episodes"] == 15 and (folder / "more.png").is_file()


FAILURES = {
    ("inspect", "nowhere"): "nowhere",
    ("inspect", "lerbot:blocks"): "'lerobot'",
    ("inspect", "empty"): "empty folder",
    ("inspect", "lerobot:blocks"): "meta/info.json",
    ("score", "blocks", "--model", "clok"): "'clock'",
    ("score", "blocks", "--model", "constant:high"): "from 0 to 1",
    ("score", "blocks", "--model", "clock", "--frames", "0"): "frames",
    ("score", "blocks", "--model", "json:dumps"): "json:dumps",
    ("import", "blocks", "set"): "overwritten",
    ("import", "blocks", "new", "--with", "nonsense=1"): "videos",
    ("import", "blocks", "new", "--with", "nonsense"): "KEY=VALUE",
    ("list", "modls"): "'models'",
    ("check", "nobody"): "'nobody'",
    ("inspect", "blocks", "--sheet", "x.png", "--episode", "no"): "no",
}


def test_failures_are_one_sentence(folder: Path) -> None:
    (folder / "empty").mkdir()
    (folder / "set").mkdir()
    (folder / "set" / "thesis.tex").write_text("x")
    for arguments, word in FAILURES.items():
        assert word in error_sentence(demerit_here(*arguments, cwd=folder)), arguments


def test_check_and_list(folder: Path) -> None:
    (folder / "mine.py").write_text(
        "import numpy as np\n"
        "from demerit import Reward\n"
        "from demerit.models.protocol import example_card\n"
        "class Liar:\n"
        "    card = example_card(name='liar')\n"
        "    def score(self, episodes):\n"
        "        return [Reward('liar', e.id, np.arange(len(e)), np.linspace(0, 1, len(e))) for e in episodes]\n"
    )
    run = demerit("check", "mine:Liar", cwd=folder)
    assert run.returncode == 1
    assert "never looked at" in run.stdout
    assert "is causal if it says so" in run.stdout
    assert demerit_here("check", "clock").returncode == 0
    models, sources = demerit_here("list").stdout, demerit_here("list", "sources").stdout
    assert all(name in models for name in ("clock", "constant", "random"))
    assert all(name in sources for name in ("lerobot", "roboarena", "roboreward", "rbm", "rlds", "hdf5", "videos"))


FULL = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200)); from demerit.cli import main; main()"


def test_a_full_disk_is_one_sentence(folder: Path) -> None:
    """A limit on the file size stands in for a full disk."""
    commands = (["train", "rewind", "-o", "t", "--data", "x=blocks", "--prepare-only"], ["import", "blocks", "n"])
    for command in (*commands, ["score", "blocks", "--model", "change", "--rewards", "r"]):
        # -B: or half a compiled module stays behind for others
        python = [sys.executable, "-B", "-c", FULL, *command]
        run = subprocess.run(python, cwd=folder, capture_output=True, text=True, check=False)
        assert run.returncode == 1, run.stdout
        assert "Traceback" not in run.stderr and "File too large" in run.stderr


def test_a_warning_is_one_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "slow.py").write_text(
        "import warnings\n"
        "from demerit.errors import PerformanceWarning\n"
        "from demerit.models.baselines import Clock\n"
        "def model():\n"
        "    warnings.warn('This takes long.', PerformanceWarning)\n"
        "    return Clock()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(folder))
    run = demerit("score", "blocks", "--model", "slow:model", "--rewards", "r", cwd=folder)
    assert run.stderr.count("demerit: This takes long.\n") == 1 and "slow.py" not in run.stderr


@pytest.mark.parametrize(
    ("place", "command"),
    [
        ("demerit.cli.load_attribute", ["score", "blocks"]),
        ("demerit.cli.release.make_release", ["release", "blocks", "out", "--to", "lerobot", "--licence", "MIT"]),
    ],
)
def test_an_interruption_that_saves_nothing_does_not_promise_to_resume(
    folder: Path, monkeypatch: pytest.MonkeyPatch, place: str, command: list[str]
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(place, stop)
    run = demerit_here(*command, cwd=folder)
    assert run.returncode == 130 and "interrupted" in run.stderr and "resume" not in run.stderr
