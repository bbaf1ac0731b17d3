"""The relabel job over real HTTP: labels, rejections, faults, budget, kill -9, splits, the command line."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from demerit.cli import app
from demerit.data.dataset import Dataset
from demerit.data.episode import Episode
from demerit.data.importing import import_dataset
from demerit.data.store import Store
from demerit.errors import BadInput, StoreError
from demerit.llm import ChatClient, Endpoint
from demerit.negatives import apply_edit
from demerit.negatives.relabel import RelabelConfig, RelabelSummary, estimate, read_records, relabel
from demerit.negatives.relabel.prompts import prompt_version
from fakes.chat_server import Faults, Request, ScriptedServer
from fakes.coded_episodes import Listed
from fakes.paths import REPO, TESTS
from fakes.processes import running
from fakes.relabel_author import (
    COMMANDS,
    SloppyAuthor,
    author,
    command_for,
    originals,
    originals_apart,
    parse_request,
    true_grade,
    verdict,
)

SMALL = RelabelConfig(size=32)
COMMANDS_ONLY = RelabelConfig(size=32, clips=())
ONE_COMMAND = RelabelConfig(size=32, clips=(), grades=(1,))


def make_client(server: ScriptedServer, folder: Path, prices: float | None = None, **more: Any) -> ChatClient:
    endpoint = Endpoint(server.url, "simulated", key_env="", price_in=prices, price_out=prices)
    return ChatClient(endpoint, folder / "answers.sqlite", **{"timeout": 5.0, **more})


def run(
    folder: Path, server: ScriptedServer, count: int = 3, name: str = "made", config: RelabelConfig = SMALL, **more: Any
) -> RelabelSummary:
    """Relabel into folder/name; the answers are cached per name."""
    (folder / f"{name}.cache").mkdir(exist_ok=True)
    with make_client(server, folder / f"{name}.cache", **more) as client:
        return relabel(originals(folder, count), folder / name, client, config)


def rows(root: Path) -> dict[str, tuple[object, ...]]:
    return {e.id: (e.instruction, e.fingerprint(), e.outcomes, e.edits, e.origin) for e in Store(root).episodes()}


def reasons(root: Path) -> list[tuple[str, str, str]]:
    return [(one.stage, one.checked_by, one.reason) for record in read_records(root) for one in record.rejected]


def test_every_grade_gets_a_command_and_a_clip(tmp_path: Path) -> None:
    with ScriptedServer(author) as server:
        summary = run(tmp_path, server, config=replace(SMALL, keep_originals=True))
        assert set(server.billed.values()) == {1}
    assert (summary.originals, summary.settled, summary.unfinished) == (3, 3, Counter())
    assert summary.commands == {1: 3, 2: 3, 3: 3, 4: 3} and summary.clips == {2: 3, 3: 3, 4: 3}
    source = {episode.id: episode for episode in originals(tmp_path, 3)}
    made = list(Store(tmp_path / "made").episodes())
    assert len(made) == summary.added == 3 * (4 + 3 + 1)
    for episode in made:
        parent = source[episode.origin.parent or episode.id]
        assert episode.origin.group == parent.id and episode.origin.tags["prompts"] == prompt_version()
        assert episode.main.source.identity() == parent.main.source.identity()  # a view: nothing was copied
        again = parent
        for edit in episode.edits:
            again = apply_edit(again, edit)
        assert (again.fingerprint(), again.instruction) == (episode.fingerprint(), episode.instruction)
        if not episode.edits:
            assert (episode.instruction, episode.outcomes) == (parent.instruction, parent.outcomes)
        elif episode.edits[-1].name == "counterfactual":
            (outcome,) = episode.outcomes
            assert episode.instruction == command_for(outcome.grade or 0, parent.instruction)
            assert (outcome.source, outcome.success, outcome.progress) == ("model", False, None)
            assert prompt_version() in outcome.by
        else:
            built, confirmed = episode.outcomes
            assert (built.source, confirmed.source, built.grade) == ("edit", "model", confirmed.grade)
            assert episode.instruction == parent.instruction and prompt_version() in confirmed.by
    assert not list((tmp_path / "made").rglob("*.mp4"))


def test_the_validator_does_not_see_the_grade(tmp_path: Path) -> None:
    seen: list[Request] = []

    def look(request: Request) -> dict[str, Any]:
        seen.append(request)
        return author(request)

    with ScriptedServer(look) as server:
        run(tmp_path, server, 1)
    stages = [parse_request(request)[0] for request in seen]
    assert Counter(stages) == {"analyse": 1, "plan": 1, "command": 4, "validate": 7}
    (analysis,) = (request for request, stage in zip(seen, stages, strict=True) if stage == "analyse")
    assert len(analysis.images) == 5 and "Image 5, the last, at 4.0 s:" in analysis.text
    for request, stage in zip(seen, stages, strict=True):
        assert bool(request.images) == (stage in ("analyse", "validate"))
        if stage == "validate":
            assert set(parse_request(request)[1]) == {"command", "task"}
    history = [parse_request(one)[1]["history"] for one, stage in zip(seen, stages, strict=True) if stage == "command"]
    assert [text.count("- grade") for text in history] == [0, 1, 2, 3]


def test_rejected_candidates_are_kept_and_written_again(tmp_path: Path) -> None:
    """The first commands break a rule each, the second attempt is right; one verdict rejects a well-formed command."""
    bad = [
        "",
        "The lamp turns around",
        "Tip it over " + "very slowly " * 12,
        "Kick the lamp",
        "Place the cup onto shelf 0",
    ]

    def answer(request: Request) -> dict[str, Any]:
        stage, found = parse_request(request)
        if stage == "command" and request.seed == 0:
            return {"command": bad[int(found["grade"])]}
        if stage == "validate" and found["command"] == COMMANDS[3][0]:
            return verdict(2)
        return author(request)

    with ScriptedServer(answer) as server:
        summary = run(tmp_path, server, 1, config=replace(COMMANDS_ONLY, rounds=4), concurrency=1)
    assert len({reason for _, _, reason in reasons(tmp_path / "made")}) == 5
    assert summary.commands == {1: 1, 2: 1, 4: 1} and summary.rejected["command", "code"] == 4
    (record,) = read_records(tmp_path / "made")
    assert [one.fresh for one in record.candidates if one.stage == "command" and one.grade == 1] == [True, False]


@pytest.mark.parametrize("change", [{"sound": False}, {"already_true": True}, {"entailed": True}, {"closeness": 30}])
def test_what_the_validator_rejects(tmp_path: Path, change: dict[str, Any]) -> None:
    def answer(request: Request) -> dict[str, Any]:
        stage, found = parse_request(request)
        is_third = stage == "validate" and found["command"] == COMMANDS[3][0]
        return {**author(request), **change} if is_third else author(request)

    with ScriptedServer(answer) as server:
        assert run(tmp_path, server, 1, config=COMMANDS_ONLY).commands == {1: 1, 2: 1, 4: 1}


@pytest.mark.parametrize("misjudged", [0.05, 1.0])
def test_validation_catches_most_wrong_commands(tmp_path: Path, misjudged: float) -> None:
    """The control: a validator that is always wrong accepts no right command."""
    with ScriptedServer(SloppyAuthor(0.4, 0.1, misjudged)) as server:
        run(tmp_path, server, 10, config=COMMANDS_ONLY)
    first, accepted = [], []
    for record in read_records(tmp_path / "made"):
        for candidate in record.candidates:
            right = true_grade(candidate.text, record.instruction) == candidate.grade
            if candidate.stage == "command":
                first += [right] if candidate.fresh else []
                accepted += [] if candidate.reason else [right]
    if misjudged == 1:
        assert not any(accepted)
    else:
        assert sum(first) < 0.7 * len(first) and sum(accepted) > 0.95 * len(accepted) and len(accepted) > 20


def test_unusable_answers_are_kept_and_another_sample_is_requested(tmp_path: Path) -> None:
    with ScriptedServer(author, Faults(script=("refusal", "nonsense"))) as server:
        summary = run(tmp_path, server, 1, config=COMMANDS_ONLY, concurrency=1)
    assert summary.commands.total() == 4
    assert [(stage, by) for stage, by, _ in reasons(tmp_path / "made")] == [("analyse", "answer")] * 2
    with ScriptedServer(lambda request: "I cannot say.") as server:
        summary = run(tmp_path, server, 2, "mute")
    assert (summary.settled, summary.labels, summary.unfinished) == (2, 0, Counter())
    assert summary.rejected.keys() == {("analyse", "answer"), ("clip", "answer")}


def test_the_same_call_again_sends_nothing(tmp_path: Path) -> None:
    faults = Faults.everything(0.05, retry_after=0.02, delay=0.05)
    with ScriptedServer(author, faults) as server:
        summary = run(tmp_path, server, 8, config=COMMANDS_ONLY, concurrency=16)
        before, made = server.asked.total(), rows(tmp_path / "made")
        again = run(tmp_path, server, 8, config=COMMANDS_ONLY, concurrency=16)
        assert server.asked.total() == before and max(server.billed.values()) == 1
    assert summary.settled == again.settled == 8 and not summary.unfinished
    assert (again.added, again.commands, rows(tmp_path / "made")) == (0, summary.commands, made)


# Imports once, then forks a child for every line that it reads: the job is killed, not the imports.
SCRIPT = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import openai, pyarrow.parquet
from fakes.relabel_author import originals
from demerit.llm import ChatClient, Endpoint
from demerit.negatives.relabel import RelabelConfig, relabel
folder, endpoint = Path(sys.argv[2]), Endpoint(sys.argv[3], "simulated", key_env="")
for _ in sys.stdin:
    child = os.fork()
    if not child:
        try:
            with ChatClient(endpoint, folder / "killed.sqlite", timeout=5.0) as client:
                relabel(originals(folder, int(sys.argv[4])), folder / "killed", client, RelabelConfig(size=32))
            os._exit(0)
        except KeyboardInterrupt:
            os._exit(130)
        except BaseException as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(1)
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_killed_at_random_points_it_ends_with_the_same_labels(tmp_path: Path, how: signal.Signals) -> None:
    rng, count, kills = random.Random(1), 10, 3
    faults = Faults({"nonsense": 0.1, "refusal": 0.1, "500": 0.05})
    originals(tmp_path, 1)
    with ScriptedServer(author, faults, latency=0.01) as server:
        command = [sys.executable, "-c", SCRIPT, str(TESTS), str(tmp_path), server.url, str(count)]
        with running(command, stdin=subprocess.PIPE) as killer:
            assert killer.stdin is not None and killer.stdout is not None
            for number in range(kills + 1):
                before = server.billed.total()
                print("go", file=killer.stdin, flush=True)
                child = int(killer.stdout.readline())
                if number < kills:
                    while server.billed.total() < before + 3:
                        time.sleep(0.005)
                    time.sleep(rng.uniform(0, 0.15))
                    os.kill(child, how)
                assert (int(killer.stdout.readline()) == 0) == (number == kills), "the last run must end by itself"
            killer.stdin.close()
        twice = sum(count - 1 for count in server.billed.values())
        assert twice <= (kills * 8 if how == signal.SIGKILL else 0), "only what was in flight at a kill"
    with ScriptedServer(author, faults) as server:
        run(tmp_path, server, count, "whole")
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")
    assert sorted(map(str, read_records(tmp_path / "killed"))) == sorted(map(str, read_records(tmp_path / "whole")))


def test_another_job_is_refused(tmp_path: Path) -> None:
    with ScriptedServer(author) as server:
        run(tmp_path, server, 1)
        with pytest.raises(StoreError, match="choose another"):
            run(tmp_path, server, 1, config=COMMANDS_ONLY)
    with pytest.raises(StoreError, match="relabelled"):
        next(read_records(tmp_path))


def test_the_budget_stops_it_and_a_larger_one_resumes(tmp_path: Path) -> None:
    with ScriptedServer(author) as server:
        poor = run(tmp_path, server, 6, config=COMMANDS_ONLY, prices=1.0, budget=0.03, concurrency=2)
        assert 0 < sum(poor.unfinished.values()) == 6 - poor.settled
        assert poor.spent.cost is not None and poor.spent.cost <= 0.03
        rich = run(tmp_path, server, 6, config=COMMANDS_ONLY, prices=1.0, budget=1.0)
        assert rich.settled == 6 and not rich.unfinished and set(server.billed.values()) == {1}
        with make_client(server, tmp_path, prices=1.0) as client:
            count, costs = estimate(originals(tmp_path, 6), client, COMMANDS_ONLY)
        assert count == 6 and costs.requests == 6 * 10 == server.billed.total()
        real = (poor.spent.cost or 0) + (rich.spent.cost or 0)
        assert costs.cost is not None and real <= costs.cost < 20 * real


def relabel_listed(folder: Path, episodes: list[Episode], config: RelabelConfig = ONE_COMMAND) -> RelabelSummary:
    with ScriptedServer(author) as server, make_client(server, folder) as client:
        return relabel(Dataset(Listed(episodes), "listed"), folder / "made", client, config)


@pytest.mark.parametrize("by", ["task", "source"])
def test_test_labels_need_a_human_check(tmp_path: Path, by: Any) -> None:
    episodes, names = originals_apart(tmp_path, 20), ["Test", "held_out", *["training"] * 18]
    if by == "source":
        pairs = zip(episodes, names, strict=True)
        episodes = [replace(one, origin=replace(one.origin, split=name)) for one, name in pairs]
    summary = relabel_listed(tmp_path, episodes, replace(ONE_COMMAND, split=by))
    made = list(Store(tmp_path / "made").episodes())
    expected = {"Test": 1, "held_out": 1, "training": 18} if by == "source" else {"train": 16, "val": 2, "test": 2}
    assert Counter(e.origin.split for e in made) == expected and summary.to_check == 2
    for episode in made:
        is_test = episode.origin.split in ("test", "Test", "held_out")
        assert episode.origin.tags.get("human_check") == ("due" if is_test else None)


def test_written_labels_keep_their_split_when_episodes_are_added(tmp_path: Path) -> None:
    episodes = originals_apart(tmp_path, 20)
    relabel_listed(tmp_path, episodes)
    before = rows(tmp_path / "made")
    later = [replace(one, id=f"{one.id}b", instruction=f"a cup for shelf {n}") for n, one in enumerate(episodes)]
    relabel_listed(tmp_path, [*episodes, *later])
    splits = {e.origin.parent: e.origin.split for e in Store(tmp_path / "made").episodes()}
    assert len(splits) == 40 and all(splits[id.removesuffix("b")] == split for id, split in splits.items())
    assert {id: rows(tmp_path / "made")[id] for id in before} == before
    one, other = (next(e for e in episodes if splits[e.id] == split) for split in ("train", "test"))
    both = replace(one, id="both", views={**one.views, "wrist": other.main})
    with pytest.raises(BadInput, match="test and train"):
        relabel_listed(tmp_path, [*episodes, both])


@pytest.mark.parametrize(
    "changes",
    [{"grades": (0, 1)}, {"clips": (3, 2)}, {"grades": (), "clips": ()}, {"rounds": 0}, {"split": "scene"},
     {"shares": {}}, {"temperature": -1}],
)  # fmt: skip
def test_wrong_configs_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        RelabelConfig(**changes)


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_dataset(originals(tmp_path, 3), tmp_path / "set")
    for name in ("URL", "MODEL", "KEY_ENV", "CACHE"):
        monkeypatch.delenv(f"DEMERIT_CHAT_{name}", raising=False)

    def invoke(dest: str, *options: str, **environment: str) -> Any:
        for name, value in environment.items():
            monkeypatch.setenv(f"DEMERIT_CHAT_{name}", value)
        command = ["relabel", str(tmp_path / "set"), str(tmp_path / dest), "--size", "32", *options]
        return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, command)

    nowhere = invoke("made")
    assert nowhere.exit_code == 1 and "DEMERIT_CHAT_URL" in nowhere.output
    with ScriptedServer(author) as server:
        dry = invoke("made", "--dry-run", URL=server.url, MODEL="simulated", CACHE=str(tmp_path / "a.sqlite"))
        assert "39 requests" in dry.output and not server.asked
        done = invoke("made", "--keep-originals")
        assert done.exit_code == 0 and "21 labels of 3 originals" in done.output
    assert invoke("other", "--grades", "7").exit_code == 1
    with ScriptedServer(author, key="secret") as server:
        assert invoke("other", URL=server.url, CACHE=str(tmp_path / "b.sqlite")).exit_code == 3


@pytest.mark.slow
def test_the_blocks_of_the_page_run(tmp_path: Path) -> None:
    page = (REPO / "docs" / "counterfactuals.md").read_text("utf-8")
    import_dataset(originals(tmp_path, 2), tmp_path / "my_set")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "DEMERIT_CHAT_CACHE": str(tmp_path / "answers.sqlite")}
    with ScriptedServer(author) as server:
        page = page.replace("http://localhost:8000/v1", server.url)
        for language, command in (("bash", ["bash", "-ec"]), ("python", [sys.executable, "-c"])):
            for block in re.findall(rf"^```{language}\n(.*?)^```$", page, flags=re.M | re.S):
                subprocess.run([*command, block], cwd=tmp_path, env=env, check=True)
    assert len(Store(tmp_path / "counterfactuals")) == len(Store(tmp_path / "my_counterfactuals")) == 2 * (4 + 3 + 1)


def test_a_second_model_validates_what_the_first_one_wrote(tmp_path: Path) -> None:
    """A validator that grades everything 1 accepts only grade 1, whatever the author thinks."""
    authors, checks = [], []

    def write(request: Request) -> Any:
        authors.append(request)
        return author(request)

    def check(request: Request) -> Any:
        checks.append(request)
        return verdict(1)

    with ScriptedServer(write) as first, ScriptedServer(check) as second:
        endpoint = Endpoint(second.url, "strict", key_env="")
        with make_client(first, tmp_path) as client, ChatClient(endpoint, tmp_path / "checks.sqlite") as validator:
            summary = relabel(originals(tmp_path, 2), tmp_path / "made", client, COMMANDS_ONLY, validator=validator)
    assert set(summary.commands) == {1}
    assert authors and checks and summary.validator_spent is not None and summary.validator_spent.answers == len(checks)
    assert {record.validator for record in read_records(tmp_path / "made")} == {"strict"}
