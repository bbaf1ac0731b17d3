"""The corpus job over real HTTP: composition, leaks, counterfactuals, kill -9, the command line, the docs page."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from demerit.data.splits import find_leaks
from demerit.data.store import Store
from demerit.errors import BadInput, StoreError
from demerit.negatives import apply_edit
from demerit.training.corpus import build_corpus, estimate_cost, load_config, make_plan, parse_config
from demerit.training.corpus.config import format_config
from fakes.chat_server import ScriptedServer
from fakes.command import demerit_here
from fakes.corpus_fixture import RECIPE, make_folders, write_clip, write_videos
from fakes.paths import REPO
from fakes.processes import running
from fakes.relabel_author import author

FEW = RECIPE.replace("cap: 10", "cap: 4") + "counterfactuals: {grades: [1, 2, 3, 4], size: 32}\n"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders; do not write into them."""
    return make_folders(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("DEMERIT_CHAT_")]:
        monkeypatch.delenv(name)


def rows(root: Path) -> dict[str, tuple[object, ...]]:
    return {e.id: (e.instruction, e.fingerprint(), e.outcomes, e.edits, e.origin) for e in Store(root).episodes()}


def chat(server: ScriptedServer, folder: Path) -> dict[str, Any]:
    return {"url": server.url, "model": "simulated", "key_env": "", "cache": str(folder / "answers.sqlite")}


@pytest.fixture(scope="module")
def built(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus without a chat model; do not write into it."""
    dest = tmp_path_factory.mktemp("built") / "corpus"
    summary = build_corpus(parse_config(RECIPE, data), dest)
    assert summary.added == len(Store(dest)) and not summary.missing
    return dest


def test_the_composition_is_what_the_episodes_say(built: Path) -> None:
    """A second count, from the episodes alone."""
    facts = json.loads((built / "composition.json").read_text())
    counted: dict[str, Counter[str]] = defaultdict(Counter)
    for episode in Store(built).episodes():
        counts, own = counted[episode.origin.dataset], "own"
        if episode.origin.dataset in ("roboarena", "scored"):
            own = "human"
        (grade,) = {outcome.grade for outcome in episode.outcomes if outcome.grade}
        counts.update([episode.edits[-1].name if episode.edits else own, episode.origin.split, f"grade {grade}"])
    for name, source in facts["sources"].items():
        mine = counted[name]
        kinds = {"originals": mine["own"], "human-graded": mine["human"], "clips": mine["clip"]}
        kinds["other negatives"] = mine["wrong-instruction"]
        assert source["kinds"] == {kind: count for kind, count in kinds.items() if count}
        assert source["splits"] == {split: mine[split] for split in ("test", "train", "val") if mine[split]}
        assert source["grades"] == {str(g): mine[f"grade {g}"] for g in range(1, 6) if mine[f"grade {g}"]}
    assert (counted["kitchen"]["own"], counted["droid"]["own"], counted["roboarena"]["human"]) == (10, 10, 8)
    assert facts["total"]["examples"] == len(Store(built))
    before, after = facts["grades"]["drawn"], facts["grades"]["corpus"]
    assert sum(before.values()) == sum(source["drawn"] for source in facts["sources"].values())
    assert after == facts["total"]["grades"] and after["5"] == before["5"] and after["2"] > before["2"]
    assert sum(facts["grades"]["clips"].values()) == facts["total"]["kinds"]["clips"]
    assert facts["sources"]["kitchen"]["over_the_cap"] == 14
    assert facts["sources"]["scored"]["left_out"] == {"its stars is not a score from 0 to 100": 1}
    assert facts["leak_check"] == {"leaks": [], "remarks": [], "held_out": []}
    assert find_leaks(Store(built).episodes()) == [] and not list(built.rglob("*.mp4"))
    assert "| human-graded" in (built / "composition.md").read_text("utf-8")


def test_labels_name_their_source(built: Path) -> None:
    found = {episode.id: episode for episode in Store(built).episodes()}
    arena = {id: episode for id, episode in found.items() if episode.origin.dataset == "roboarena"}
    grades = {id.removeprefix("roboarena/"): episode.outcomes[0].grade for id, episode in arena.items()}
    names = "s00/A s00/B s01/A s01/B s02/A s02/B s03/A s03/B".split()
    assert grades == dict(zip(names, (5, 2, 3, 1, 4, 1, 3, 4), strict=True))  # a failure of 0.9 is grade 4
    assert {(one.outcomes[0].source, one.outcomes[0].by) for one in arena.values()} == {("human", "Ada")}
    assert {one.origin.licence for one in arena.values()} == {"MIT"}
    assert {(one.a, one.b, one.source) for one in Store(built).preferences()} == {
        (f"roboarena/s0{n}/A", f"roboarena/s0{n}/B", "human") for n in range(4)
    }
    for episode in found.values():
        if episode.edits:
            again = found[episode.origin.parent]
            for edit in episode.edits:
                again = apply_edit(again, edit)
            assert again.fingerprint() == episode.fingerprint()
            assert {outcome.source for outcome in episode.outcomes} == {"edit"}
            assert episode.origin.split == found[episode.origin.parent].origin.split
    places = {one.origin.tags.get("place") for one in found.values() if one.origin.dataset == "droid"}
    assert places == {"office", "kitchen"}


def test_again_changes_nothing_and_nothing_is_overwritten(tmp_path: Path) -> None:
    write_videos(tmp_path / "set", [{"instruction": f"do {n}"} for n in range(6)], 1)
    text = "name: x\nsources: [{folder: set}]\nnegatives: {mix: clip=1, per_episode: 2}\n"
    dest = tmp_path / "corpus"
    build_corpus(parse_config(text, tmp_path), dest)
    before, page = rows(dest), (dest / "composition.json").read_bytes()
    assert build_corpus(load_config(dest / "recipe.yaml"), dest).added == 0
    assert rows(dest) == before and (dest / "composition.json").read_bytes() == page
    with pytest.raises(StoreError, match="choose another folder"):
        build_corpus(parse_config(text + "seed: 1\n", tmp_path), dest)
    with pytest.raises(StoreError, match="overwritten"):
        build_corpus(parse_config(text, tmp_path), tmp_path / "set")
    write_clip(tmp_path / "set" / "late.mp4", 99)
    with open(tmp_path / "set" / "labels.jsonl", "a") as file:
        file.write(json.dumps({"file": "late.mp4", "instruction": "come late"}) + "\n")
    with pytest.raises(StoreError, match="choose another folder"):
        build_corpus(parse_config(text, tmp_path), dest)
    assert rows(dest) == before


def test_a_broken_video_is_counted(tmp_path: Path) -> None:
    write_videos(tmp_path / "set", [{"instruction": f"do {n}"} for n in range(5)], 1)
    whole = (tmp_path / "set" / "3.mp4").read_bytes()
    (tmp_path / "set" / "3.mp4").write_bytes(whole[: len(whole) // 3])
    config = parse_config("name: x\nsources: [{folder: set}]\nnegatives: {mix: clip=1, per_episode: 1}\n", tmp_path)
    summary = build_corpus(config, tmp_path / "corpus")
    facts = json.loads((tmp_path / "corpus" / "composition.json").read_text())
    assert facts["sources"]["set"]["left_out"] == {"its video cannot be read": 1} and summary.problems
    assert facts["total"]["kinds"] == {"clips": 4, "originals": 4}


def write_leaky(root: Path) -> str:
    splits = ("train", "validation", "test")
    write_videos(root / "set", [{"instruction": f"do {n // 2}", "split": splits[n % 3]} for n in range(6)], 1)
    return "name: x\nsources: [{folder: set}]\nsplits: {by: source}\n"


def test_leaks_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    text, dest = write_leaky(tmp_path), tmp_path / "corpus"
    with pytest.raises(BadInput, match="3 tasks"):
        build_corpus(parse_config(text, tmp_path), dest)
    assert not dest.exists()
    summary = build_corpus(parse_config(text + "leaks: report\n", tmp_path), dest)
    assert "3 tasks" in summary.counts.leaks.leaks[0] and "3 tasks" in (dest / "composition.md").read_text()
    by_task = build_corpus(parse_config(text.replace("source}", "task}"), tmp_path), tmp_path / "other")
    assert not by_task.counts.leaks.leaks
    tags = {episode.origin.tags["source_split"] for episode in Store(tmp_path / "other").episodes()}
    assert tags == {"train", "validation", "test"}  # the source's own names are kept


def test_a_held_out_video_must_not_be_in_the_corpus(data: Path, tmp_path: Path) -> None:
    write_videos(tmp_path / "bench", [{"instruction": "Move mug 3."}, {"instruction": "never seen"}], 1)
    held = f"held_out: [{{name: mine@1, folder: {tmp_path / 'bench'}}}]\n"
    config = parse_config(RECIPE.replace("cap: 10", "cap: 0") + held, data)
    found = make_plan(config).leaks
    assert found.leaks == () and found.overlaps[0].tasks == ("move mug 3",) and "mine@1" in found.remarks[0]
    (tmp_path / "bench" / "1.mp4").write_bytes((data / "droid" / "5.mp4").read_bytes())
    with pytest.raises(BadInput, match="droid/5"):
        build_corpus(config, tmp_path / "corpus")
    assert not (tmp_path / "corpus").exists()


def test_counterfactuals_through_a_model_now_or_later(data: Path, tmp_path: Path) -> None:
    config, dest, whole = parse_config(FEW, data), tmp_path / "corpus", tmp_path / "whole"
    summary = build_corpus(config, dest)
    assert "no chat model" in summary.missing[0] and "no chat model" in (dest / "composition.md").read_text()
    first = rows(dest)
    with ScriptedServer(author) as server:
        plan = make_plan(config)
        cost = estimate_cost(plan, chat(server, tmp_path))
        assert not server.asked and plan.successes == 12 and "12 originals" in cost and "120 requests" in cost
        later = build_corpus(config, dest, chat=chat(server, tmp_path))
        assert not later.missing and later.added > 20
        build_corpus(config, whole, chat=chat(server, tmp_path))
        assert build_corpus(config, dest, chat=chat(server, tmp_path)).added == 0
        assert set(server.billed.values()) == {1}
    assert rows(dest) == rows(whole) and all(rows(dest)[id] == row for id, row in first.items())
    assert (dest / "composition.json").read_bytes() == (whole / "composition.json").read_bytes()
    found = list(Store(dest).episodes())
    made = [episode for episode in found if episode.edits and episode.edits[-1].name == "counterfactual"]
    assert len(made) > 20 and {outcome.source for one in made for outcome in one.outcomes} == {"model"}
    assert {one.origin.tags.get("human_check") for one in made if one.origin.split == "test"} == {"due"}
    assert {leak.kind for leak in find_leaks(found)} <= {"wording"}
    assert (dest / "stages" / "counterfactuals" / "relabelled.jsonl").stat().st_size > 0


# Imports once, then forks a child for every line that it reads: the job is killed, not the imports.
SCRIPT = """
import os, sys
import openai, pyarrow.parquet
import demerit.negatives.relabel.job, demerit.cli.build_corpus
from demerit.cli import app
for _ in sys.stdin:
    child = os.fork()
    if not child:
        os.dup2(2, 1)
        try:
            app(["build-corpus", *sys.argv[1:]])
        except SystemExit as end:
            os._exit(end.code or 0)
        os._exit(99)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.slow
def test_killed_anywhere_it_ends_with_the_same_corpus(data: Path, tmp_path: Path) -> None:
    """Killed in every stage, in one of them by Ctrl-C; the last run ends like one that was never interrupted."""
    file, dest, whole = tmp_path / "recipe.yaml", tmp_path / "corpus", tmp_path / "whole"
    config = parse_config(FEW, data)
    file.write_text(format_config(config))
    stages = dest / "stages"
    begun = [stages / "gathered" / "dataset.json", stages / "counterfactuals" / "dataset.json"]
    begun += [stages / "negatives" / "dataset.json", dest / "episodes"]
    rng, ends = random.Random(7), []
    with ScriptedServer(author, latency=0.01) as server:
        options = chat(server, tmp_path)
        env = {**os.environ, **{f"DEMERIT_CHAT_{name.upper()}": value for name, value in options.items()}}
        command = [sys.executable, "-c", SCRIPT, str(file), str(dest)]
        with running(command, stdin=subprocess.PIPE, env=env) as killer:
            assert killer.stdin is not None and killer.stdout is not None
            for number, marker in enumerate([*begun, None]):
                before = server.billed.total()
                print("go", file=killer.stdin, flush=True)
                child = int(killer.stdout.readline())
                if marker is not None:
                    # Ctrl-C comes while answers do, so that the job is hit and not the start of Python.
                    expected = before + 3 if number == 1 else 0
                    while not (marker.exists() and server.billed.total() >= expected):
                        time.sleep(0.001)
                    time.sleep(rng.uniform(0, 0.02))
                    os.kill(child, signal.SIGINT if number == 1 else signal.SIGKILL)
                ends.append(int(killer.stdout.readline()))
                assert len(list(Store(dest).episodes())) == len(Store(dest))  # readable at any time
            killer.stdin.close()
        build_corpus(config, whole, chat=options)
    assert ends[1] == 130 and ends[-1] == 0 and ends.count(-9) >= 2, ends
    assert rows(dest) == rows(whole)
    assert (dest / "composition.json").read_bytes() == (whole / "composition.json").read_bytes()


def test_the_command_line(tmp_path: Path) -> None:
    write_leaky(tmp_path)
    (tmp_path / "good.yaml").write_text("name: x\nsources: [{folder: set}]\ncounterfactuals: {}\n")
    (tmp_path / "leaky.yaml").write_text("name: x\nsources: [{folder: set}]\nsplits: {by: source}\n")
    before = sorted(tmp_path.rglob("*"))
    for arguments, code, words in (
        (("good.yaml", "--dry-run"), 0, "at most 24 of 6 successes"),
        (("good.yaml",), 1, "--dry-run"),
        (("none.yaml", "x"), 1, "example"),
        (("leaky.yaml", "--dry-run"), 0, "would be refused"),
    ):
        run = demerit_here("build-corpus", *arguments, cwd=tmp_path)
        assert run.returncode == code and words in run.stdout + run.stderr
    assert sorted(tmp_path.rglob("*")) == before
    built = demerit_here("build-corpus", "good.yaml", "corpus", cwd=tmp_path)
    assert built.returncode == 3 and "6 examples of 1 sources" in built.stdout


@pytest.mark.slow
def test_the_blocks_of_the_page_run(data: Path, tmp_path: Path) -> None:
    page = (REPO / "docs" / "corpora.md").read_text("utf-8")
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", page, flags=re.M | re.S)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "NO_COLOR": "1"}
    script = "set -e\n" + "".join(text for language, text in blocks if language == "bash")
    options: dict[str, Any] = {"cwd": tmp_path, "env": env, "timeout": 120, "capture_output": True, "text": True}
    done = subprocess.run(["bash", "-c", script], check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "80 examples of 1 sources (80 new)" in done.stdout
    for language, text in blocks:
        if language == "python":
            subprocess.run([sys.executable, "-c", text], check=True, **options)
    (text,) = (text for language, text in blocks if language == "yaml")
    values = yaml.safe_load(text)
    del values["held_out"]  # a set that is not here
    values["cap"] = 4
    with ScriptedServer(author) as server:
        values["chat"] |= {"url": server.url, "key_env": "", "cache": str(tmp_path / "answers.sqlite")}
        summary = build_corpus(parse_config(yaml.safe_dump(values), data), tmp_path / "corpus")
    kinds = summary.counts.count("kind")
    assert not summary.missing
    assert all(kinds[kind] for kind in ("originals", "human-graded", "clips", "counterfactuals"))
