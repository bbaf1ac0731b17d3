"""Corpora: strict recipes, caps, grades, splits, leaks, the whole job over real HTTP, kill -9, the command line."""

from __future__ import annotations

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

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from demerit.cli import app
from demerit.data.episode import Episode, Origin
from demerit.data.frames import Frames
from demerit.data.labels import Outcome
from demerit.data.splits import find_leaks
from demerit.data.store import Store
from demerit.errors import BadInput, DemeritError, MissingExtra, NotApplicable, StoreError
from demerit.negatives import apply_edit
from demerit.training.corpus import Source, build_corpus, dry_run, load_recipe, make_plan, read_recipe
from demerit.training.corpus.drawing import drawn
from demerit.training.corpus.labelling import labelled
from demerit.training.corpus.recipe import Score
from demerit.training.corpus.recipe_file import written
from fakes.corpus_fixture import RECIPE, folders, put, videos
from fakes.judge.server import ScriptedServer
from fakes.paths import REPO
from fakes.processes import running
from fakes.relabel_author import author

ONE = "name: x\nsources: [{folder: .}]\n"
ASKED = RECIPE + "clean_up: true\ncounterfactuals: {grades: [1, 2, 3, 4], size: 32}\n"
FEW = ASKED.replace("cap: 10", "cap: 5")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders; do not write into them."""
    return folders(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("DEMERIT_CHAT_")]:
        monkeypatch.delenv(name)


def rows(root: Path) -> dict[str, tuple[object, ...]]:
    return {e.id: (e.instruction, e.fingerprint(), e.outcomes, e.edits, e.origin) for e in Store(root).episodes()}


def chat(server: ScriptedServer, folder: Path) -> dict[str, Any]:
    return {"url": server.url, "model": "simulated", "key_env": "", "cache": str(folder / "answers.sqlite")}


# recipes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a", "recipe: expected names with a value each"),
        ("name: x", "sources: expected at least one, got none"),
        ("sources: [{folder: .}]", "expected the key 'name', got none"),
        (ONE + "negative: {}", "There is no key in recipe named 'negative'. Did you mean 'negatives'?"),
        (ONE + "name: y", "the key 'name' is there twice"),
        (
            "name: x\nsources: [{folder: ., licens: MIT}]",
            "key in recipe, sources 1 named 'licens'. Did you mean 'licence'",
        ),
        ("name: x\nsources: [{folder: ., role: sucesses}]", "role named 'sucesses'. Did you mean 'successes'?"),
        ("name: x\nsources: [{folder: .}, {folder: .}]", "a name for each"),
        ("name: x\nsources: [{folder: nothing/*}]", "folders that exist"),
        ("name: x\nsources: [{folder: ., score: {column: a}}]", "score: expected a source of role graded"),
        ("name: x\nsources: [{folder: ., role: graded, vouched_by: edit}]", "no voucher named 'edit'"),
        (ONE + "cap: many", "recipe, cap: expected a whole number, got 'many'"),
        (ONE + "cap: true", "recipe, cap: expected a whole number, got True"),
        (ONE + "negatives: {mix: clap=1}", "no negative named 'clap'. Did you mean 'clip'?"),
        (ONE + "splits: {shares: {train: 0}}", "a share above 0 for each"),
        (ONE + "splits: {by: tasks}", "Did you mean 'task'?"),
        (ONE + "counterfactuals: {grades: [5]}", "different grades from 1 to 4, growing"),
        (ONE + "counterfactuals: {clips: [2]}\nnegatives: {mix: clip=1}", "clips from one of the two"),
        (ONE + "chat: {uri: x}", "no key in recipe, chat named 'uri'. Did you mean 'url'?"),
        (ONE + "leaks: ignore", "no answer to leaks named 'ignore'"),
        ("name: [", "recipe: expected YAML"),
    ],
)
def test_a_recipe_is_read_strictly(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DemeritError, match=re.escape(said)):
        read_recipe(text, tmp_path)


def test_a_recipe_reads_back_and_its_digest_is_of_what_is_made(data: Path) -> None:
    recipe = read_recipe(RECIPE, data)
    assert [source.name for source in recipe.sources] == ["blocks", "kitchen", "droid", "roboarena", "scored"]
    assert [source.is_augmented for source in recipe.sources] == [True, True, True, False, False]
    assert read_recipe(written(recipe), data / "elsewhere") == recipe
    elsewhere = read_recipe(RECIPE + "leaks: report\nchat: {url: 'http://x/v1', model: m}\n", data)
    assert elsewhere.digest == recipe.digest != read_recipe(RECIPE + "seed: 1\n", data).digest
    assert load_recipe("example").name == "example"
    with pytest.raises(BadInput, match="one that ships \\(example\\)"):
        load_recipe("exmaple")


# pure parts


@given(st.lists(st.integers(0, 6), max_size=60), st.integers(0, 40), st.integers(0, 3))
def test_a_cap_is_spread_over_the_tasks(tasks: list[int], cap: int, seed: int) -> None:
    episodes = [(f"e{number}", f"t{task}") for number, task in enumerate(tasks)]
    chosen = drawn(episodes, cap, seed)
    assert len(chosen) == (min(cap, len(tasks)) if cap else len(tasks))
    assert chosen == drawn(episodes[::-1], cap, seed)
    there, taken = Counter(task for _, task in episodes), Counter(task for id, task in episodes if id in chosen)
    unfilled = [taken[task] for task in there if taken[task] < there[task]]
    if unfilled:  # a task that has more to give is at most one behind any other
        assert max(taken.values()) - min(unfilled) <= 1
    # Another way: fill one by one, always a task that has fewest so far.
    level: Counter[str] = Counter()
    for _ in range(len(chosen)):
        level[min((task for task in there if level[task] < there[task]), key=lambda task: level[task])] += 1
    assert sorted(level.values()) == sorted(taken.values())


def told(id: str, words: str, pixels: int = 0, group: str = "", task: str = "") -> Episode:
    images = np.full((2, 8, 8, 3), pixels, dtype=np.uint8)
    tags = {"task": task} if task else {}
    return Episode(id, words, {"main": Frames.from_array(images)}, origin=Origin("d", group=group, tags=tags))


@given(st.integers(0, 1000))
def test_a_score_of_100_becomes_a_grade_of_a_person(tenths: int) -> None:
    episode = told("e", "do it")
    tags = {"stars": str(tenths / 10)}
    episode = Episode("e", "do it", episode.views, origin=Origin("d", tags=tags))
    (said,) = labelled(episode, Source(".", role="graded", score=Score("stars"))).outcomes
    wanted = 1 + sum(tenths / 10 >= cut for cut in (12.5, 37.5, 62.5, 87.5))
    assert (said.source, said.by, said.grade) == ("human", "stars", wanted)
    assert said.progress == pytest.approx(tenths / 1000)


def test_a_role_never_invents_a_label() -> None:
    bare, graded = told("e", "do it"), Source(".", role="graded")
    (assumed,) = labelled(bare, Source(".", because="demonstrations")).outcomes
    assert (assumed.source, assumed.grade, assumed.by) == ("rule", 5, "assumed: demonstrations")
    for source, why in ((Source(".", because=""), "nobody trusted"), (graded, "no person says")):
        with pytest.raises(NotApplicable, match=why):
            labelled(bare, source)

    def said(*outcomes: Outcome) -> Episode:
        return Episode("e", "do it", bare.views, outcomes)

    with pytest.raises(NotApplicable, match="did not succeed"):
        labelled(said(Outcome("human", success=False)), Source("."))
    person, rule = labelled(said(Outcome("human", success=True, by="Ada")), Source(".")).outcomes
    assert (person.grade, rule.source, rule.grade) == (None, "rule", 5)
    simulator = Source(".", role="graded", vouched_by="simulator")
    undone = labelled(said(Outcome("simulator", success=False, progress=1.0)), simulator)
    assert undone.outcomes[0].grade == 4  # physics says that it is not done
    model = said(Outcome("human", success=True), Outcome("model", curve=np.array([0.0, 0.4], np.float32), by="m"))
    first, second = labelled(model, Source(".", role="graded", vouched_by="model")).outcomes
    assert first.grade is None and (second.source, second.grade, second.by) == ("model", 3, "m")
    with pytest.raises(NotApplicable, match="no person says"):
        labelled(model, graded)  # a model's curve is no person's grade, and yes or no is no grade
    for empty in (told("e", " "), told("e", "")):
        with pytest.raises(NotApplicable, match="no instruction"):
            labelled(empty, Source("."))


# the job


def test_a_corpus_without_a_model(data: Path, tmp_path: Path) -> None:
    recipe, dest = read_recipe(RECIPE, data), tmp_path / "corpus"
    summary = build_corpus(recipe, dest)
    episodes = list(Store(dest).episodes())
    facts = json.loads((dest / "composition.json").read_text())
    assert len(episodes) == summary.added == facts["total"]["examples"] and not summary.missing
    # A second count of the table, from the rows alone.
    counted: dict[str, Counter[str]] = defaultdict(Counter)
    for one in episodes:
        kind = (
            one.edits[-1].name
            if one.edits
            else {"roboarena": "human", "scored": "human"}.get(one.origin.dataset, "own")
        )
        counted[one.origin.dataset][kind] += 1
        counted[one.origin.dataset][f"split {one.origin.split}"] += 1
        (grade,) = {said.grade for said in one.outcomes if said.grade}
        counted[one.origin.dataset][f"grade {grade}"] += 1
    for name, told_of in facts["sources"].items():
        mine = counted[name]
        kinds = {"originals": mine["own"], "human-graded": mine["human"], "clips": mine["clip"]}
        kinds["other negatives"] = mine["wrong-instruction"]
        assert told_of["kinds"] == {kind: count for kind, count in kinds.items() if count}
        assert told_of["splits"] == {s: mine[f"split {s}"] for s in ("test", "train", "val") if mine[f"split {s}"]}
        assert told_of["grades"] == {str(g): mine[f"grade {g}"] for g in range(1, 6) if mine[f"grade {g}"]}
    assert (counted["kitchen"]["own"], counted["droid"]["own"], counted["roboarena"]["human"]) == (10, 10, 8)
    assert facts["sources"]["kitchen"]["over_the_cap"] == 14
    assert facts["sources"]["scored"]["left_out"] == {"its stars is no score from 0 to 100": 1}
    assert facts["leak_check"] == {"leaks": [], "remarks": [], "held_out": []} and find_leaks(episodes) == []
    assert not list(dest.rglob("*.mp4"))  # nothing is copied


def test_labels_say_who_vouches_and_originals_keep_theirs(data: Path, tmp_path: Path) -> None:
    dest = tmp_path / "corpus"
    build_corpus(read_recipe(RECIPE, data), dest)
    found = {one.id: one for one in Store(dest).episodes()}
    arena = {id: one for id, one in found.items() if one.origin.dataset == "roboarena"}
    grades = {id.removeprefix("roboarena/"): one.outcomes[0].grade for id, one in arena.items()}
    assert grades == dict(
        zip(("s00/A s00/B s01/A s01/B s02/A s02/B s03/A s03/B").split(), (5, 2, 3, 1, 5, 1, 3, 4), strict=True)
    )
    assert {(one.outcomes[0].source, one.outcomes[0].by) for one in arena.values()} == {("human", "Ada")}
    assert {one.origin.licence for one in arena.values()} == {"MIT"}
    assert {(p.a, p.b, p.source) for p in Store(dest).preferences()} == {
        (f"roboarena/s0{n}/A", f"roboarena/s0{n}/B", "human") for n in range(4)
    }
    for one in found.values():
        if one.edits:
            again = found[one.origin.parent]
            for edit in one.edits:
                again = apply_edit(again, edit)
            assert again.fingerprint() == one.fingerprint() and {said.source for said in one.outcomes} == {"edit"}
            assert one.origin.split == found[one.origin.parent].origin.split
    assert {one.origin.tags.get("place") for one in found.values() if one.origin.dataset == "droid"} == {
        "office",
        "kitchen",
    }


def test_again_changes_nothing_and_nothing_is_overwritten(data: Path, tmp_path: Path) -> None:
    own = tmp_path / "data"
    videos(own / "set", [{"instruction": f"do {n}"} for n in range(6)], 1)
    text = "name: x\nsources: [{folder: set}]\nnegatives: {mix: clip=1, per_episode: 2}\n"
    dest = tmp_path / "corpus"
    build_corpus(read_recipe(text, own), dest)
    before, page = rows(dest), (dest / "composition.json").read_bytes()
    assert build_corpus(load_recipe(dest / "recipe.yaml"), dest).added == 0
    assert rows(dest) == before and (dest / "composition.json").read_bytes() == page
    with pytest.raises(StoreError, match=r"it holds corpus x.*choose another folder"):
        build_corpus(read_recipe(text + "seed: 1\n", own), dest)
    with pytest.raises(StoreError, match="nothing is overwritten"):
        build_corpus(read_recipe(text, own), own / "set")
    put(own / "set" / "late.mp4", 99)
    with open(own / "set" / "labels.jsonl", "a") as file:
        file.write(json.dumps({"file": "late.mp4", "instruction": "come late"}) + "\n")
    with pytest.raises(StoreError, match="the sources hold other episodes now"):
        build_corpus(read_recipe(text, own), dest)
    assert rows(dest) == before


def test_a_broken_video_is_counted_and_costs_nobody_else(tmp_path: Path) -> None:
    videos(tmp_path / "set", [{"instruction": f"do {n}"} for n in range(5)], 1)
    whole = (tmp_path / "set" / "3.mp4").read_bytes()
    (tmp_path / "set" / "3.mp4").write_bytes(whole[: len(whole) // 3])
    recipe = read_recipe("name: x\nsources: [{folder: set}]\nnegatives: {mix: clip=1, per_episode: 1}\n", tmp_path)
    summary = build_corpus(recipe, tmp_path / "corpus")
    facts = json.loads((tmp_path / "corpus" / "composition.json").read_text())
    assert facts["sources"]["set"]["left_out"] == {"its video cannot be read": 1} and summary.problems
    assert facts["total"]["kinds"] == {"clips": 4, "originals": 4}


def leaky(root: Path) -> str:
    splits = ("train", "validation", "test")
    videos(root / "set", [{"instruction": f"do {n // 2}", "split": splits[n % 3]} for n in range(6)], 1)
    return "name: x\nsources: [{folder: set}]\nsplits: {by: source}\n"


def test_leaks_are_refused_before_anything_is_written_or_said(tmp_path: Path) -> None:
    text, dest = leaky(tmp_path), tmp_path / "corpus"
    with pytest.raises(BadInput, match="3 tasks stand in more than one of test, train, val"):
        build_corpus(read_recipe(text, tmp_path), dest)
    assert not dest.exists()
    summary = build_corpus(read_recipe(text + "leaks: report\n", tmp_path), dest)
    assert summary.composition is not None and "3 tasks stand" in summary.composition.leaks.leaks[0]
    assert "**Splits leak: 3 tasks" in (dest / "composition.md").read_text()
    by_task = build_corpus(read_recipe(text.replace("source}", "task}"), tmp_path), tmp_path / "other")
    assert by_task.composition is not None and not by_task.composition.leaks.leaks
    tags = {one.origin.tags["source_split"] for one in Store(tmp_path / "other").episodes()}
    assert tags == {"train", "validation", "test"}  # what the source said is kept


def test_a_held_out_set_must_not_be_in_it(data: Path, tmp_path: Path) -> None:
    videos(tmp_path / "bench", [{"instruction": "Move mug 3."}, {"instruction": "never seen"}], 1)
    held = f"held_out: [{{name: mine@1, folder: {tmp_path / 'bench'}}}]\n"
    recipe = read_recipe(RECIPE.replace("cap: 10", "cap: 0") + held, data)
    only_words = make_plan(recipe).leaks
    assert only_words.leaks == ()
    assert only_words.remarks[0] == "Shared with mine@1 (2 episodes): 1 tasks by instruction (move mug 3)."
    (tmp_path / "bench" / "1.mp4").write_bytes((data / "droid" / "5.mp4").read_bytes())
    with pytest.raises(BadInput, match=r"mine@1 \(2 episodes\): 1 episodes by video \(droid/5\)"):
        build_corpus(recipe, tmp_path / "corpus")
    assert not (tmp_path / "corpus").exists()


# with a model


def test_words_and_counterfactuals_through_a_model(data: Path, tmp_path: Path) -> None:
    recipe, dest = read_recipe(ASKED, data), tmp_path / "corpus"
    with pytest.raises(BadInput, match="clean_up: expected a chat model"):
        build_corpus(recipe, dest)
    with ScriptedServer(author) as server:
        plan, costs = dry_run(recipe, chat=chat(server, tmp_path))
        assert not server.asked and not dest.exists()
        assert plan.successes == 30 and plan.most_negatives == 90 and plan.most_counterfactuals == 120
        assert (
            any("30 originals" in line for line in costs) and "clean-up: 27 asks" in costs[0]
        )  # 8 + 8 + 10, and a rollout that a person says succeeded
        summary = build_corpus(recipe, dest, chat=chat(server, tmp_path))
        assert not summary.missing and set(server.billed.values()) == {1}
        sent = server.billed.total()
        assert build_corpus(recipe, dest, chat=chat(server, tmp_path)).added == 0 and server.billed.total() == sent
    found = list(Store(dest).episodes())
    made = [one for one in found if one.edits and one.edits[-1].name == "counterfactual"]
    assert len(made) > 60 and {said.source for one in made for said in one.outcomes} == {"model"}
    assert {one.origin.tags.get("human_check") for one in made if one.origin.split == "test"} == {"due"}
    own = [one for one in found if one.edits and one.edits[-1].name == "reworded"]
    assert {one.instruction.split()[0] for one in own} == {"Put", "Move", "Arena"}
    assert all(said.source in ("rule", "human") for one in own for said in one.outcomes)
    clips = [one for one in found if one.edits and one.edits[-1].name == "clip"]
    assert clips and all(one.edits[0].name == "reworded" for one in clips)  # negatives come after the repair
    assert find_leaks(one for one in found if one not in made) == []
    ids = {one.id for one in found}
    assert all({p.a, p.b} <= ids for p in Store(dest).preferences())
    assert (dest / "stages" / "counterfactuals" / "relabelled.jsonl").stat().st_size > 0


def test_without_a_model_the_rest_is_composed_and_said(data: Path, tmp_path: Path) -> None:
    recipe, dest = read_recipe(FEW.replace("clean_up: true", ""), data), tmp_path / "corpus"
    summary = build_corpus(recipe, dest)
    assert summary.composition is not None and "no chat model is set" in summary.missing[0]
    rest = rows(dest)
    assert "**Not done yet:** counterfactuals" in (dest / "composition.md").read_text()
    with ScriptedServer(author) as server:
        later = build_corpus(recipe, dest, chat=chat(server, tmp_path))
        assert not later.missing and later.added > 20
        whole = tmp_path / "whole"
        build_corpus(recipe, whole, chat=chat(server, tmp_path))
    found = rows(dest)
    assert found == rows(whole) and all(found[id] == row for id, row in rest.items())
    assert (dest / "composition.json").read_bytes() == (whole / "composition.json").read_bytes()


def test_unanswered_words_hold_everything_up(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from demerit.llm import pacing

    monkeypatch.setattr(pacing, "FIRST_WAIT", 0.01)
    dead = {
        "url": "http://127.0.0.1:9/v1",
        "model": "simulated",
        "key_env": "",
        "tries": 1,
        "cache": str(tmp_path / "a"),
    }
    recipe = read_recipe(FEW, data)
    summary = build_corpus(recipe, tmp_path / "corpus", chat=dead)
    assert summary.composition is None and "the same command asks again" in summary.missing[0]
    assert len(Store(tmp_path / "corpus")) == 0
    with ScriptedServer(author) as server:
        assert not build_corpus(recipe, tmp_path / "corpus", chat=chat(server, tmp_path)).missing


def test_a_missing_extra_is_one_sentence(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)
    for name in [
        name
        for name in sys.modules
        if name.startswith(
            ("demerit.negatives.relabel", "demerit.training.corpus.with_model", "demerit.training.corpus.repairing")
        )
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("demerit.training.corpus.with_model", raising=False)
    with pytest.raises(MissingExtra, match=r"pip install 'demerit\[chat\]'"):
        build_corpus(read_recipe(ASKED, data), tmp_path / "corpus")


# Imports once, then forks a child for every line that it reads: what is killed is the job, not the imports.
SCRIPT = """
import os, sys
import openai, pyarrow.parquet
import demerit.training.corpus.with_model, demerit.cli.data, rich.table
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


def test_killed_anywhere_it_ends_with_the_same_corpus(data: Path, tmp_path: Path) -> None:
    """Killed with -9 in every stage, in one by Ctrl-C; the last run ends as one that was left alone."""
    file, dest, whole = tmp_path / "recipe.yaml", tmp_path / "corpus", tmp_path / "whole"
    recipe = read_recipe(FEW, data)
    file.write_text(written(recipe))
    stages = dest / "stages"
    begun = [
        stages / "gathered" / "dataset.json",
        stages / "words.json",
        stages / "counterfactuals" / "relabelled.jsonl",
    ]
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
                    late = time.monotonic() + 60
                    # Ctrl-C comes while answers do, so that it is the job that hears it and not the start of Python.
                    wanted = before + 3 if number == 2 else 0
                    while not (marker.exists() and server.billed.total() >= wanted) and time.monotonic() < late:
                        time.sleep(0.001)
                    time.sleep(rng.uniform(0, 0.02))
                    os.kill(child, signal.SIGINT if number == 2 else signal.SIGKILL)
                ends.append(int(killer.stdout.readline()))
                assert len(list(Store(dest).episodes())) == len(Store(dest))  # readable at any time
            killer.stdin.close()
        build_corpus(recipe, whole, chat=options)
    assert ends[2] == 130 and ends[-1] == 0 and ends.count(-9) >= 3, ends
    assert rows(dest) == rows(whole)
    assert (dest / "composition.json").read_bytes() == (whole / "composition.json").read_bytes()


# the command line and the page


def test_the_command_line(data: Path, tmp_path: Path) -> None:
    runner = CliRunner(env={"COLUMNS": "220", "NO_COLOR": "1"})
    assert "demerit build-corpus example my_corpus" in runner.invoke(app, ["build-corpus", "--help"]).output
    (tmp_path / "recipe.yaml").write_text(written(read_recipe(RECIPE + "counterfactuals: {size: 32}\n", data)))
    arguments = ["build-corpus", str(tmp_path / "recipe.yaml")]
    dry = runner.invoke(app, [*arguments, "--dry-run"])
    assert dry.exit_code == 0 and "at most 90 of 30 successes" in dry.output and "costs are unknown" in dry.output
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]
    nowhere = runner.invoke(app, arguments)
    assert nowhere.exit_code == 1 and "the folder to make" in nowhere.output
    rest = runner.invoke(app, [*arguments, str(tmp_path / "corpus")])
    assert rest.exit_code == 3 and "no chat model is set" in rest.output
    assert "| human-graded" in (tmp_path / "corpus" / "composition.md").read_text("utf-8")
    wrong = runner.invoke(app, ["build-corpus", str(tmp_path / "none.yaml"), str(tmp_path / "x")])
    assert wrong.exit_code == 1 and "one that ships (example)" in wrong.output
    leaky(tmp_path)
    (tmp_path / "leaky.yaml").write_text("name: x\nsources: [{folder: set}]\nsplits: {by: source}\n")
    told_so = runner.invoke(app, ["build-corpus", str(tmp_path / "leaky.yaml"), "--dry-run"])
    assert "would be refused" in told_so.output and told_so.exit_code == 0


def test_the_blocks_of_the_page_run(data: Path, tmp_path: Path) -> None:
    page = (REPO / "docs" / "corpora.md").read_text("utf-8")
    found = re.findall(r"^```(\w+)\n(.*?)^```$", page, flags=re.M | re.S)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "NO_COLOR": "1"}
    script = "set -e\n" + "".join(text for language, text in found if language == "bash")
    given_to = {"cwd": tmp_path, "env": env, "timeout": 120}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, **given_to)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "80 examples of 1 sources (80 new)" in done.stdout
    for language, text in found:
        if language == "python":
            subprocess.run([sys.executable, "-c", text], cwd=tmp_path, env=env, check=True)
    (recipe,) = (text for language, text in found if language == "yaml")
    told = yaml.safe_load(recipe)
    assert {source["folder"] for source in told["sources"]} == {"oxe/*", "droid", "roboarena"}
    del told["held_out"]  # names a set that is not here
    told["cap"] = 4
    with ScriptedServer(author) as server:
        told["chat"] |= {"url": server.url, "key_env": "", "cache": str(tmp_path / "answers.sqlite")}
        summary = build_corpus(read_recipe(yaml.safe_dump(told), data), tmp_path / "corpus")
    assert summary.composition is not None and not summary.missing
    kinds = summary.composition.total.kinds
    assert all(kinds[kind] for kind in ("originals", "human-graded", "clips", "counterfactuals"))


def test_real_demonstrations_and_rollouts(real_data: Path, tmp_path: Path) -> None:
    text = f"""
name: real
cap: 20
sources:
  - {{folder: {real_data / "droid"}, licence: CC-BY-4.0, groups: false}}
  - {{folder: {real_data / "roboarena"}, licence: MIT, role: graded, vouched_by: model}}
negatives: {{mix: clip=1, per_episode: 2}}
"""
    summary = build_corpus(read_recipe(text, tmp_path), tmp_path / "corpus")
    assert summary.composition is not None
    assert summary.composition.total.kinds == {"originals": 20, "model-graded": 20, "clips": 40}
    people = make_plan(read_recipe(text.replace(", vouched_by: model", ""), tmp_path))
    assert people.drawn[1].left_out == {"no person says how far it got": 188}  # no person's score is in this copy
