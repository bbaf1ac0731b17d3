"""Pages of docs/ whose blocks run as printed, in order, in an empty folder."""

import json
import pkgutil
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mcap.reader import make_reader

from demerit.data.formats import open_dataset
from demerit.data.store import Store
from demerit.data.video import write_video
from demerit.training.teach.job import CACHE_SUFFIX, WRITTEN
from fakes.command import COMMAND, demerit_here
from fakes.policy_server import serve_policy
from fakes.terminal import in_terminal

DOCS = Path(__file__).parents[1] / "docs"


def blocks(page: str) -> list[tuple[str, str]]:
    return re.findall(r"^```(\w*)\n(.*?)^```$", (DOCS / page).read_text("utf-8"), flags=re.M | re.S)


def test_the_index_links_every_page() -> None:
    linked = re.findall(r"\]\(([^)#]+)\)", (DOCS / "README.md").read_text("utf-8"))
    assert {path.name for path in DOCS.glob("*.md")} - {"README.md"} <= set(linked)
    assert [target for target in linked if not (DOCS / target).exists()] == []


def test_no_page_tells_to_install_from_an_index() -> None:
    """There is no package on an index: only `pip install -e '.[EXTRA]'` and a git address work."""
    for path in (*DOCS.glob("*.md"), DOCS.parent / "README.md"):
        assert not re.search(r"pip install '?demerit(?!\[\w+\] @ )", path.read_text("utf-8")), path


def test_the_limits_of_the_security_page_are_those_of_the_code() -> None:
    rows = re.findall(r"^\|.*?\| ([\d,]+)(?: \w+)? \| `([\w.]+)` \|$", (DOCS / "security.md").read_text("utf-8"), re.M)
    assert len(rows) == 18
    for number, name in rows:
        home, _, last = name.rpartition(".")
        found: Any = pkgutil.resolve_name(f"demerit.{home}")
        assert int(number.replace(",", "")) == (found[last] if isinstance(found, dict) else getattr(found, last)), name


def test_the_teaching_page_lists_every_file_of_a_model_folder() -> None:
    page = (DOCS / "teaching.md").read_text().partition("## The folder")[2]
    assert all(f"| `{name}*." in page for name in WRITTEN) and f"my-model{CACHE_SUFFIX}" in page


def test_rules_live_example_prints_what_the_page_says() -> None:
    found = dict(reversed(blocks("rules.md")))
    run = subprocess.run([sys.executable, "-c", found["python"]], capture_output=True, text=True, check=False)
    assert run.stdout == found["text"], run.stderr


def test_the_model_of_the_page_passes_the_check() -> None:
    code = dict(blocks("own_model.md"))["python"]
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    broken = code.replace("/ 255", "/ 25")  # beyond the range of the card
    assert subprocess.run([sys.executable, "-c", broken], capture_output=True, check=False).returncode != 0


@pytest.mark.slow
def test_rules_commands_run_and_find_what_the_page_says(tmp_path: Path) -> None:
    found = dict(blocks("rules.md"))
    (tmp_path / "safe.yaml").write_text(found["yaml"])
    for line in found["bash"].splitlines():
        said = demerit_here(*line.split("#")[0].split()[1:], cwd=tmp_path)
        assert said.returncode == 0, said.stderr
    holds = {
        one.origin.tags["behaviour"]: [label.success for label in one.outcomes if label.source == "rule"]
        for one in Store(tmp_path / "rollouts").episodes()
    }
    assert holds == {"expert": [True], "slam": [False], "undo": [True], "never-closes": [False]}


@pytest.mark.slow
def test_gym_example_learns_what_the_page_says(tmp_path: Path) -> None:
    code = "\n".join(block for language, block in blocks("gym.md") if language == "python")
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    promise, *printed = run.stdout.splitlines()
    assert "5.0%" in promise and "90%" in promise
    assert printed == re.findall(r"^print\(.*\)  # (.+)$", code, flags=re.M)


@pytest.mark.slow
@pytest.mark.usefixtures("finished_demo")
def test_the_steering_examples_run(tmp_path: Path) -> None:
    for command in ("demo demo", "teach demo/lesson -o my-model --no-reader"):
        said = demerit_here(*command.split(), cwd=tmp_path)
        assert said.returncode == 0, said.stderr
    rollouts, chunks = (code for language, code in blocks("steering.md") if language == "python")
    run = subprocess.run([sys.executable, "-c", rollouts], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.stdout.startswith("bin-picking"), run.stderr
    curve, address = ", curve=np.array(path))", "ws://127.0.0.1:8000"
    assert curve in chunks and address in chunks
    taught_progress, taught_flags = (steer(code, address) for code in (chunks, chunks.replace(curve, ")")))
    assert taught_progress[1] > 0.5 > taught_progress[0]
    assert taught_flags[1] < taught_flags[0] == taught_progress[0]


def steer(code: str, address: str) -> list[float]:
    """Run the page's example with a policy that pushes at random; return where the ball is, the first and the best."""
    random = np.random.default_rng(0)
    with serve_policy(lambda observation: {"actions": random.uniform(-1, 1, (4, 1))}) as (server, url):
        command = [sys.executable, "-c", code.replace(address, url)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert len(server.asked) == 4 * (1 + 8) and server.asked[-1]["observation/image"].shape == (64, 64, 3)
    return [float(number) for number in re.findall(r"at ([\d.]+) of the way", run.stdout)]


@pytest.mark.slow
@pytest.mark.usefixtures("finished_demo")
def test_the_commands_of_compare_run(tmp_path: Path) -> None:
    for line in dict(blocks("compare.md"))["bash"].splitlines():
        said = demerit_here(*line.split("#")[0].split()[1:], cwd=tmp_path)
        assert said.returncode == 0, said.stderr
    assert len((tmp_path / "labels.csv").read_text().splitlines()) == 1 + 20


@pytest.mark.slow
@pytest.mark.usefixtures("finished_demo")
def test_the_filter_page_runs_and_finds_what_it_says(tmp_path: Path) -> None:
    found = blocks("filter.md")
    for line in (line for language, block in found if language == "bash" for line in block.splitlines()):
        said = demerit_here(*shlex.split(line)[1:], cwd=tmp_path)
        assert said.returncode == 0, said.stderr
    assert (tmp_path / "filter.html").is_file()
    code = next(block for language, block in found if language == "python")
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.stdout.startswith("False ['final value 0."), run.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("finished_demo")
def test_the_commands_of_quality_run(tmp_path: Path) -> None:
    for line in dict(blocks("quality.md"))["bash"].splitlines():
        said = demerit_here(*shlex.split(line)[1:], cwd=tmp_path)
        assert said.returncode == 0, said.stderr
    assert len(Store(tmp_path / "whole")) > 0


@pytest.mark.slow
@pytest.mark.usefixtures("finished_demo")
def test_the_commands_of_watch_run(tmp_path: Path) -> None:
    bash = "\n".join(block for language, block in blocks("watch.md") if language == "bash")
    shell = f'set -e; demerit() {{ {sys.executable} -m demerit "$@"; }}\n{bash}'
    run = subprocess.run(["bash", "-c", shell], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "28 episodes, 28 scored now, 0 waiting." in run.stdout
    assert "28 episodes, 0 scored now, 0 waiting." in run.stdout


def run_blocks(page: str, cwd: Path) -> str:
    """Run the Python and bash blocks of a page in their order; return what they print."""
    printed = ""
    for language, block in blocks(page):
        shell = ["bash", "-c", f'set -e; demerit() {{ {sys.executable} -m demerit "$@"; }}\n{block}']
        command = shell if language == "bash" else [sys.executable, "-W", "error", "-c", block]
        run = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr[-3000:]
        printed += run.stdout
    return printed


@pytest.mark.slow
@pytest.mark.usefixtures("finished_demo")
def test_the_page_about_bags_runs_and_its_layout_shows_what_is_written(tmp_path: Path) -> None:
    printed = run_blocks("ros.md", tmp_path)
    for topic in ("/front/video", "/side/image_raw/compressed", "/wrist/image_raw", "/joint_states", "/task"):
        assert topic in printed
    assert "4 scored" in printed and "4 episodes for Foxglove, rewards of my-model" in printed
    with (tmp_path / "rewards.mcap").open("rb") as file:
        summary = make_reader(file).get_summary()
    assert summary is not None
    written = {channel.topic for channel in summary.channels.values()} | {"/labels/progress"}  # new/ has no labels
    panels = json.loads((DOCS / "ros_layout.json").read_text("utf-8"))["configById"]
    paths = [path["value"].rpartition(".")[0] for panel in panels.values() for path in panel.get("paths", ())]
    assert len(paths) == 4
    assert {*paths, panels["Image!camera"]["imageMode"]["imageTopic"], panels["RosOut!log"]["topicToRender"]} <= written


@pytest.mark.slow
@pytest.mark.usefixtures("finished_demo")
def test_written_rewards_are_what_the_page_says(tmp_path: Path) -> None:
    found = dict(blocks("write_rewards.md"))
    for line in found["bash"].splitlines():
        said = demerit_here(*line.split("#")[0].split()[1:], cwd=tmp_path)
        assert said.returncode == 0, said.stderr
    assert (tmp_path / "robot-taught-lerobot/sarm_progress.parquet").exists()
    run = subprocess.run(
        [sys.executable, "-c", found["python"]], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.stdout == found["text"], run.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("finished_demo")
def test_the_detection_page_runs(tmp_path: Path) -> None:
    found = dict(blocks("detect.md"))
    for line in found["bash"].splitlines():
        said = demerit_here(*line.split()[1:], cwd=tmp_path)
        assert said.returncode == 0, said.stderr
    run = subprocess.run(
        [sys.executable, "-c", found["python"]], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "has an alarm at frame 1" in run.stdout, run.stderr


def test_the_stages_of_the_labels_page_are_imported_and_exported(tmp_path: Path) -> None:
    page = (DOCS / "labels.md").read_text("utf-8").partition("## Stages")[2].partition("## Several cameras")[0]
    found = dict(re.findall(r"^```(\w+)\n(.*?)^```$", page, flags=re.M | re.S))
    (tmp_path / "my_videos").mkdir()
    (tmp_path / "my_videos/labels.csv").write_text(found["csv"])
    for number, row in enumerate(found["csv"].splitlines()[1:]):
        images = np.full((61, 16, 16, 3), 60 * number, np.uint8)
        write_video(tmp_path / "my_videos" / row.split(",")[0], images, fps=10)
    for line in found["bash"].splitlines():
        run = demerit_here(*line.split()[1:], cwd=tmp_path)
        assert run.returncode == 0, run.stderr
    said = [" ".join(map(str, one.outcomes[0].stages)) for one in Store(tmp_path / "my_set").episodes()]
    assert said == [
        "reach:0-12 grasp:13-30 place:31-60",
        "reach:0-14 grasp:15-60",
        "reach:0-15 grasp:16-30 place:31-60",
    ]
    written = [episode.outcomes[-1] for episode in open_dataset(str(tmp_path / "my_lerobot"))]
    assert [(one.source, " ".join(map(str, one.stages))) for one in written] == [("human", text) for text in said]
    assert [(one.stages[0].start, one.stages[1].start) for one in written] == [(0, pytest.approx(1 / 3))] * 3


@pytest.mark.slow
@pytest.mark.usefixtures("finished_demo")
def test_the_commands_of_annotate_run(tmp_path: Path) -> None:
    first, second = (block for language, block in blocks("annotate.md") if language == "bash")
    for line in first.splitlines():
        command = line.split("#")[0].split()[1:]
        if command[-1] != "&":
            assert demerit_here(*command, cwd=tmp_path).returncode == 0
    with run_demerit(*command[:-1], "--no-teach", "--port", "0", cwd=tmp_path) as (server, said):
        link = re.search(r"http://\S+/enter/\S+", said)
        assert link is not None
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with browser.open(link[0], timeout=30) as answer:
            assert b"/work/verify" in answer.read()
    assert server.returncode == 0
    taught = demerit_here(*second.split()[1:], "--no-reader", cwd=tmp_path)
    assert taught.returncode == 0 and (tmp_path / "my-model").is_dir(), taught.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("finished_demo")
def test_the_commands_of_mark_run_with_keys_in_a_terminal(tmp_path: Path) -> None:
    (_, recorder), (_, commands) = blocks("mark.md")[:2]
    subprocess.run([sys.executable, "-c", recorder], cwd=tmp_path, check=True)
    # On a busy machine, the person is slow: the robot begins when the one before has its verdict.
    record, pause = tmp_path / "record.py", "    time.sleep(5)"
    wait = "    while len(open('marks.jsonl').readlines()) < number:\n        time.sleep(0.05)\n"
    assert record.read_text().count(pause) == 1
    record.write_text(record.read_text().replace(pause, wait + pause))
    demo, mark, *rest = (shlex.split(line, comments=True)[1:] for line in commands.splitlines())
    assert demerit_here(*demo, cwd=tmp_path).returncode == 0
    own = [sys.executable if word == "python" else word for word in mark]
    with in_terminal([*COMMAND, *own], cwd=tmp_path) as terminal:
        for number, (key, word) in enumerate([("s", "success"), ("f", "failure")]):
            assert terminal.run.stdout.readline() == f"run_{number} is saved\n"
            terminal.type(key)
            terminal.read_until(f"Ada: {word}")
        terminal.read_until("has ended with exit code 0")
        terminal.type("q")
        assert terminal.wait() == 0
    for command in rest:
        done = demerit_here(*command, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    found = {
        one.id: [(label.by, label.success) for label in one.labels] for one in Store(tmp_path / "my_set").episodes()
    }
    assert found == {"run_0": [("Ada", True)], "run_1": [("Ada", False)]}


@pytest.mark.slow
def test_the_commands_of_the_arena_run(tmp_path: Path) -> None:
    found = dict(blocks("arena.md"))
    (tmp_path / "policies.yaml").write_text(found["yaml"])
    serve, *rest = (line.split("#")[0].split()[1:] for line in found["bash"].splitlines())
    with run_demerit(*serve[:-1], "--port", "0", cwd=tmp_path) as (server, said):
        address = re.search(r"Results: (\S+)", said)
        assert address is not None
        with urllib.request.urlopen(address[1], timeout=30) as answer:
            assert b"The evaluation is running" in answer.read()
    assert server.returncode == 0
    for command in rest:
        done = demerit_here(*command, cwd=tmp_path)
        assert done.returncode == 0, done.stderr


@contextmanager
def run_demerit(*arguments: str, cwd: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a command until the block ends; yield it and the line with its address. It ends by SIGTERM."""
    command = [sys.executable, "-m", "demerit", *arguments]
    with subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, next(line for line in process.stdout if "http" in line)
        finally:
            process.terminate()
            process.wait(60)
