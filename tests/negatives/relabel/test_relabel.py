"""The relabel job over real HTTP: labels, rejections, faults, budget, kill -9, the command line."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from demerit.cli import app
from demerit.data.dataset import Dataset
from demerit.data.episode import Episode
from demerit.data.store import Store
from demerit.errors import BadInput, StoreError
from demerit.llm import Endpoint, pacing
from demerit.negatives import apply_edit
from demerit.negatives.relabel import RelabelSettings, RelabelSummary, estimate, relabel
from demerit.negatives.relabel.journal import FILE, Journal, read_records
from demerit.negatives.relabel.wording import prompt_version
from fakes.judge.faults import Faults
from fakes.judge.server import Request, ScriptedServer
from fakes.paths import TESTS
from fakes.processes import running
from fakes.relabel_author import COMMANDS, Listed, apart, author, command_for, originals, stage_of, verdict

SMALL = RelabelSettings(size=32)
COMMANDS_ONLY = RelabelSettings(size=32, clips=())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "FIRST_WAIT", 0.02)


def run(folder: Path, server: ScriptedServer, count: int = 3, name: str = "made", **more: Any) -> RelabelSummary:
    given: dict[str, Any] = {"settings": SMALL, "timeout": 5.0, **more}
    endpoint = given.pop("endpoint", None) or Endpoint(server.url, "simulated", key_env="")
    return relabel(originals(folder, count), folder / name, endpoint=endpoint, **given)


def rows(root: Path) -> dict[str, tuple[object, ...]]:
    return {e.id: (e.instruction, e.fingerprint(), e.outcomes, e.edits, e.origin) for e in Store(root).episodes()}


def rejected(root: Path) -> list[tuple[str, str, str]]:
    return [(one.stage, one.checked_by, one.reason) for record in read_records(root) for one in record.rejected]


def test_a_ladder_of_commands_and_clips(tmp_path: Path) -> None:
    settings = RelabelSettings(size=32, keep_originals=True)
    with ScriptedServer(author) as server:
        summary = run(tmp_path, server, settings=settings)
        assert set(server.billed.values()) == {1}
    assert (summary.originals, summary.settled, summary.unfinished) == (3, 3, Counter())
    assert summary.commands == {1: 3, 2: 3, 3: 3, 4: 3} and summary.clips == {2: 3, 3: 3, 4: 3}
    source = {episode.id: episode for episode in originals(tmp_path, 3)}
    made = list(Store(tmp_path / "made").episodes())
    assert len(made) == summary.added == 3 * (4 + 3 + 1)
    for episode in made:
        parent = source[episode.origin.parent]
        assert episode.origin.group == parent.id and episode.origin.tags["prompts"] == prompt_version()
        assert episode.main.source.identity() == parent.main.source.identity()  # a view: nothing was copied
        again = parent
        for edit in episode.edits:
            again = apply_edit(again, edit)
        assert (again.fingerprint(), again.instruction) == (episode.fingerprint(), episode.instruction)
        last = episode.edits[-1]
        if last.name == "counterfactual":
            (outcome,) = episode.outcomes
            assert episode.instruction == command_for(outcome.grade or 0, parent.instruction)
            assert (outcome.source, outcome.success, outcome.progress) == ("model", False, None)
            assert last.params["prompts"] == prompt_version() and prompt_version() in outcome.by
        elif last.name == "clip":
            built, confirmed = episode.outcomes
            assert (built.source, confirmed.source, built.grade) == ("edit", "model", confirmed.grade)
            assert episode.instruction == parent.instruction.capitalize() and prompt_version() in confirmed.by
        else:
            assert last.name == "reworded" and episode.outcomes == parent.outcomes
    assert not list((tmp_path / "made").rglob("*.mp4"))


def test_pictures_are_one_a_second_and_the_true_last_frame(tmp_path: Path) -> None:
    seen: list[Request] = []

    def look(request: Request) -> dict[str, Any]:
        seen.append(request)
        return author(request)

    with ScriptedServer(look) as server:
        run(tmp_path, server, 1)
    stages = [stage_of(request)[0] for request in seen]
    assert Counter(stages) == {"clean": 1, "analyse": 1, "plan": 1, "command": 4, "validate": 7}
    (analysis,) = (request for request in seen if stage_of(request)[0] == "analyse")
    assert len(analysis.images) == 5 and "Picture 5, the last, at 4.0 s:" in analysis.text
    for request in seen:
        assert ("image_url" in str(request.parts)) == (stage_of(request)[0] in ("analyse", "validate"))
        if stage_of(request)[0] == "validate":  # the strict reader is not told the grade
            assert "grade 4" not in request.text.split("Find out")[1]
    told = [stage_of(request)[1] for request in seen if stage_of(request)[0] == "command"]
    assert [one["history"].count("- grade") for one in told] == [0, 1, 2, 3]


def test_every_rejected_candidate_is_kept_and_written_anew(tmp_path: Path) -> None:
    """The first commands break a rule each, the second try is right; one verdict turns a well-formed one down."""
    bad = {
        1: "The lamp turns around",
        2: "Tip the cup over " + "very slowly " * 12,
        3: "Kick the lamp off the table",
        4: "Place the cup onto shelf 0",
    }

    def answer(request: Request) -> dict[str, Any]:
        stage, found = stage_of(request)
        if stage == "command" and request.seed == 0:
            return {"command": bad[int(found["grade"])]}
        if stage == "validate" and found["command"] == COMMANDS[3]:
            return verdict(2)
        return author(request)

    with ScriptedServer(answer) as server:
        summary = run(tmp_path, server, 1, settings=RelabelSettings(size=32, clips=(), rounds=4), concurrency=1)
    reasons = {reason for _, _, reason in rejected(tmp_path / "made")}
    assert {
        "it does not begin with a verb, but with 'The'",
        "it has 28 words, and 2 to 24 are allowed",
        "it is not about the thing of the original (0, cup, shelf)",
        "the original entails it: it asks for nothing that the original does not ask for",
        "the strict reader gives it grade 2, not 3",
    } == reasons
    assert summary.commands == {1: 1, 2: 1, 4: 1} and summary.rejected["command", "code"] == 4
    (record,) = read_records(tmp_path / "made")
    assert [one.fresh for one in record.candidates if one.stage == "command" and one.grade == 1] == [True, False]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sound": False}, "the strict reader calls it unsound"),
        ({"already_true": True}, "the strict reader says that it was true at the start already"),
        ({"entailed": True}, "the strict reader says that the original entails it"),
        ({"closeness": 30}, "the grades are not in order"),
    ],
)
def test_what_the_strict_reader_turns_down(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    def answer(request: Request) -> dict[str, Any]:
        stage, found = stage_of(request)
        said = author(request)
        is_second = stage == "validate" and found["command"] == COMMANDS[3]
        return {**said, **change} if is_second else said

    with ScriptedServer(answer) as server:
        summary = run(tmp_path, server, 1, settings=COMMANDS_ONLY)
    assert summary.commands == {1: 1, 2: 1, 4: 1}
    assert all(reason in told for _, _, told in rejected(tmp_path / "made"))


@pytest.mark.parametrize(
    "kind", ["429", "429-bare", "500", "503", "cut", "drop", "garbage", "gateway", "slow", "timeout"]
)
def test_troubles_on_the_way_change_nothing(tmp_path: Path, kind: str) -> None:
    with ScriptedServer(author) as server:
        run(tmp_path, server, 2, "plain", settings=COMMANDS_ONLY)
    with ScriptedServer(author, Faults(script=(kind, "", kind, kind), retry_after=0.05, delay=0.1)) as server:
        summary = run(tmp_path, server, 2, "troubled", settings=COMMANDS_ONLY, timeout=0.5)
        assert server.faulted[kind] == 3 and set(server.billed.values()) == {1}
    assert summary.settled == 2 and rows(tmp_path / "plain") == rows(tmp_path / "troubled")


@pytest.mark.parametrize(("kind", "why"), [("refusal", "refused"), ("nonsense", "unreadable"), ("length", "cut off")])
def test_useless_answers_are_kept_with_their_reason_and_asked_for_again(tmp_path: Path, kind: str, why: str) -> None:
    with ScriptedServer(author, Faults(script=("", kind, kind))) as server:
        summary = run(tmp_path, server, 1, settings=COMMANDS_ONLY, concurrency=1)
    assert summary.commands.total() == 4
    first, second = rejected(tmp_path / "made")
    assert first[:2] == second[:2] == ("analyse", "answer") and first[2].startswith(why)


def test_a_model_that_never_answers_usefully_is_told_by_reasons(tmp_path: Path) -> None:
    with ScriptedServer(lambda request: "I cannot say.") as server:
        summary = run(tmp_path, server, 2)
    assert (summary.settled, summary.labels, summary.unfinished) == (2, 0, Counter())
    assert summary.rejected["clean", "answer"] == summary.rejected["analyse", "answer"] == 6
    assert summary.rejected.keys() == {("clean", "answer"), ("analyse", "answer"), ("clip", "answer")}


def test_a_hundred_originals_with_faults_lose_none_and_bill_none_twice(tmp_path: Path) -> None:
    """The same with a thousand: benchmarks/relabel.py."""
    faults = Faults.everything(0.05, retry_after=0.02, delay=0.05)
    with ScriptedServer(author, faults) as server:
        summary = run(tmp_path, server, 100, settings=COMMANDS_ONLY, timeout=4.0, concurrency=16)
        assert len(server.faulted) > 10 and max(server.billed.values()) == 1
        before = server.asked.total()
        again = run(tmp_path, server, 100, settings=COMMANDS_ONLY, timeout=0.6, concurrency=16)
        assert server.asked.total() == before, "nothing is asked again"
    assert summary.settled == again.settled == 100 and not summary.unfinished
    assert (again.added, again.asked_now, again.commands) == (0, 0, summary.commands)
    assert summary.commands.total() == 400  # three rounds are enough for 5%


# Imports once, then forks a child for every line that it reads: what is killed is the job, not the imports.
SCRIPT = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import openai, pyarrow.parquet
from fakes.relabel_author import originals
from demerit.llm import Endpoint
from demerit.llm import pacing
from demerit.negatives.relabel import RelabelSettings, relabel
pacing.FIRST_WAIT = 0.02
folder, endpoint = Path(sys.argv[2]), Endpoint(sys.argv[3], "simulated", key_env="")
for _ in sys.stdin:
    child = os.fork()
    if not child:
        try:
            relabel(originals(folder, int(sys.argv[4])), folder / "killed", endpoint=endpoint,
                    settings=RelabelSettings(size=32), timeout=5.0)
            os._exit(0)
        except KeyboardInterrupt:
            os._exit(130)
        except BaseException as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(1)
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_killed_at_random_points_it_ends_with_the_same_labels(tmp_path: Path, how: signal.Signals) -> None:
    rng, count, kills = random.Random(1), 14, 4
    faults = Faults({"nonsense": 0.1, "refusal": 0.1, "500": 0.05})
    originals(tmp_path, 1)
    with ScriptedServer(author, faults, latency=0.01) as server:
        command = [sys.executable, "-c", SCRIPT, str(TESTS), str(tmp_path), server.url, str(count)]
        with running(command, stdin=subprocess.PIPE) as killer:
            assert killer.stdin is not None and killer.stdout is not None
            for _ in range(kills):
                before, child = server.billed.total(), begin(killer)
                while server.billed.total() < before + 3:
                    time.sleep(0.005)
                time.sleep(rng.uniform(0, 0.15))
                os.kill(child, how)
                assert int(killer.stdout.readline()) != 0, "it must be hit at work"
            begin(killer)
            assert int(killer.stdout.readline()) == 0
            killer.stdin.close()
        twice = sum(count - 1 for count in server.billed.values())
        assert twice <= (kills * 8 if how == signal.SIGKILL else 0), "only what was under way at a kill"
    with ScriptedServer(author, faults) as server:
        run(tmp_path, server, count, "whole")
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")
    assert sorted(map(str, read_records(tmp_path / "killed"))) == sorted(map(str, read_records(tmp_path / "whole")))


def begin(killer: subprocess.Popen[str]) -> int:
    assert killer.stdin is not None and killer.stdout is not None
    print("go", file=killer.stdin, flush=True)
    return int(killer.stdout.readline())


def test_a_half_written_line_is_cut_off_and_a_lost_episode_made_again(tmp_path: Path) -> None:
    with ScriptedServer(author) as server:
        run(tmp_path, server)
        whole = rows(tmp_path / "made")
        journal = tmp_path / "made" / FILE
        lines = journal.read_bytes().splitlines(keepends=True)
        journal.write_bytes(b"".join(lines[:2]) + lines[2][:100])
        for part in (tmp_path / "made" / "episodes").glob("*.parquet"):
            part.unlink()
        manifest = json.loads((tmp_path / "made" / "dataset.json").read_text())
        manifest["tables"] = {}
        (tmp_path / "made" / "dataset.json").write_text(json.dumps(manifest))
        before = server.billed.total()
        again = run(tmp_path, server)
        assert (again.asked_now, again.settled, server.billed.total()) == (1, 3, before)
    assert rows(tmp_path / "made") == whole
    journal.write_bytes(b"{}\n" + journal.read_bytes())
    with pytest.raises(StoreError, match="the line at byte 0 is damaged"), Journal(tmp_path / "made"):
        pass


def test_another_job_or_another_video_is_refused(tmp_path: Path) -> None:
    with ScriptedServer(author) as server:
        run(tmp_path, server)
        with pytest.raises(StoreError, match=r"it holds counterfactuals of listed by simulated.*; choose another"):
            run(tmp_path, server, settings=COMMANDS_ONLY)
        grey = np.zeros((41, 32, 32, 3), np.uint8)
        from demerit.data.video import write_video

        write_video(tmp_path / "rising.mp4", grey, 10.0)
        with pytest.raises(StoreError, match="episode 'e0' has changed since it was relabelled"):
            run(tmp_path, server)


def test_the_budget_stops_it_and_more_money_goes_on(tmp_path: Path) -> None:
    with ScriptedServer(author) as server:
        paid = Endpoint(server.url, "simulated", key_env="", price_in=1.0, price_out=1.0)
        poor = run(tmp_path, server, 6, settings=COMMANDS_ONLY, endpoint=paid, budget=0.03, concurrency=2)
        assert poor.stopped and 0 < sum(poor.unfinished.values()) == 6 - poor.settled
        assert poor.spent.cost is not None and poor.spent.cost <= 0.03
        rich = run(tmp_path, server, 6, settings=COMMANDS_ONLY, endpoint=paid, budget=1.0)
        assert rich.settled == 6 and not rich.unfinished and set(server.billed.values()) == {1}
        costs = estimate(originals(tmp_path, 6), endpoint=paid, settings=COMMANDS_ONLY)
    real = (poor.spent.cost or 0) + (rich.spent.cost or 0)
    assert costs.originals == 6 and costs.least.asks == 6 * 11 == server.billed.total()
    assert costs.least.cost is not None and costs.most.cost is not None
    assert real <= costs.least.cost < 20 * real and costs.most.cost > 3 * costs.least.cost


@pytest.mark.parametrize("clips", [(), (2, 3, 4)])
def test_no_run_takes_more_than_the_estimate_says(tmp_path: Path, clips: tuple[int, ...]) -> None:
    """The worst that can be: nothing is usable before the last round, and the strict reader never is."""
    settings, numbers = RelabelSettings(size=32, clips=clips), itertools.count()

    def worst(request: Request) -> dict[str, Any] | str:
        stage = stage_of(request)[0]
        if stage == "clean":
            return {"text": "Do something else"}
        if stage == "command":
            return {"command": f"Put the cup {'very ' * 17}near lamp {next(numbers)}"}
        usable = stage == "plan" or (stage == "analyse" and request.seed == settings.rounds - 1)
        return author(request) if usable else "I cannot say."

    with ScriptedServer(worst) as server:
        paid = Endpoint(server.url, "simulated", key_env="", price_in=1.0, price_out=1.0)
        costs = estimate(originals(tmp_path, 2), endpoint=paid, settings=settings)
        summary = run(tmp_path, server, 2, settings=settings, endpoint=paid)
        asked = server.billed.total()
    assert summary.settled == 2 and not summary.labels
    assert costs.most.asks == 2 * (3 * (1 + 1 + 1 + 4) + 9 * (4 + len(clips)))
    if clips:  # two cuts of a grade may fall on one frame
        assert costs.most.asks - 2 * 3 * 2 * len(clips) <= asked <= costs.most.asks
    else:
        assert asked == costs.most.asks
    spent = summary.spent
    assert spent.cost is not None and costs.most.cost is not None and spent.cost <= costs.most.cost
    assert spent.tokens_in <= costs.most.tokens_in


def test_progress_counts_what_is_finished(tmp_path: Path) -> None:
    """A dead server and fewer originals than may be under way: all are read at once, and none is done yet."""
    told = [*apart(tmp_path, 6), replace(originals(tmp_path, 1).reader.episodes[0], id="mute", instruction=" ")]  # type: ignore[attr-defined]
    seen: list[tuple[int, int, int]] = []

    def look(now: RelabelSummary) -> None:
        seen.append((now.finished, now.settled + sum(now.unfinished.values()) + sum(now.skipped.values()), now.seen))

    endpoint = Endpoint("http://127.0.0.1:9/v1", "nobody", key_env="")
    summary = relabel(
        Dataset(Listed(told), "listed"), tmp_path / "made", endpoint=endpoint, concurrency=2, tries=2, progress=look
    )
    assert sum(summary.unfinished.values()) == 6 and summary.finished == 7
    assert [done for done, _, _ in seen][:-1] == list(range(1, 8)) and all(done == told for done, told, _ in seen)
    assert seen[0][2] > seen[0][0], "reading is ahead"


ONE_COMMAND = RelabelSettings(size=32, clips=(), grades=(1,), clean_up=False)


def relabelled(folder: Path, episodes: list[Episode], name: str = "made", **more: Any) -> RelabelSummary:
    with ScriptedServer(author) as server:
        endpoint = Endpoint(server.url, "simulated", key_env="")
        given = {"settings": ONE_COMMAND, **more}
        return relabel(Dataset(Listed(episodes), "listed"), folder / name, endpoint=endpoint, timeout=5.0, **given)


def test_test_labels_are_due_for_a_person(tmp_path: Path) -> None:
    summary = relabelled(tmp_path, apart(tmp_path, 30))
    made = list(Store(tmp_path / "made").episodes())
    assert {e.origin.tags.get("human_check") for e in made if e.origin.split == "test"} == {"due"}
    assert {e.origin.tags.get("human_check") for e in made if e.origin.split != "test"} == {None}
    assert summary.to_check == sum(e.origin.split == "test" for e in made) > 0


def test_a_source_may_call_its_test_split_otherwise(tmp_path: Path) -> None:
    names = ("Test", "held_out", "training")
    told = [
        replace(one, origin=replace(one.origin, split=name))
        for one, name in zip(originals(tmp_path, 3), names, strict=True)
    ]
    summary = relabelled(tmp_path, told, settings=replace(ONE_COMMAND, split="source"))
    assert summary.to_check == 2 and "e0" in summary.leaks[0]
    found = {e.origin.split: e.origin.tags.get("human_check") for e in Store(tmp_path / "made").episodes()}
    assert found == {"Test": "due", "held_out": "due", "training": None}


def sides(root: Path, parts: dict[str, str]) -> dict[str, set[str]]:
    """The splits in which each part is found; `parts` says which part an original belongs to."""
    found: dict[str, set[str]] = {}
    for episode in Store(root).episodes():
        found.setdefault(parts[episode.origin.parent], set()).add(episode.origin.split)
    return found


def test_no_video_or_recording_is_on_two_sides(tmp_path: Path) -> None:
    """Every video is told in two wordings, and every third one is a recording with the next: chains of ties."""
    first = apart(tmp_path, 24)
    again = [replace(one, id=f"{one.id}b", instruction=f"place a cup at shelf {n}") for n, one in enumerate(first)]
    grouped = [
        replace(one, origin=replace(one.origin, group=f"session {n // 2}")) if n % 6 < 2 else one
        for n, one in enumerate(again)
    ]
    summary = relabelled(tmp_path, [*first, *grouped])
    assert summary.settled == 48 and len(summary.splits) == 3
    videos = {one.id: one.main.source.identity() for one in [*first, *grouped]}
    recordings = {one.id: one.origin.group or videos[one.id] for one in [*first, *grouped]}
    for parts in (videos, recordings):
        assert all(len(splits) == 1 for splits in sides(tmp_path / "made", parts).values())
    relabelled(tmp_path, [*grouped, *first][::-1], "reversed")
    assert {k: v[-1] for k, v in rows(tmp_path / "made").items()} == {
        k: v[-1] for k, v in rows(tmp_path / "reversed").items()
    }


def test_what_is_written_stays_where_it_is_and_takes_along_what_comes_later(tmp_path: Path) -> None:
    told = apart(tmp_path, 30)
    relabelled(tmp_path, told)
    before = rows(tmp_path / "made")
    where = {e.origin.parent: e.origin.split for e in Store(tmp_path / "made").episodes()}
    # "a ..." sorts first: by lot alone the bundle would be drawn anew under this name.
    later = [replace(one, id=f"{one.id}b", instruction=f"a cup for shelf {n}") for n, one in enumerate(told)]
    relabelled(tmp_path, [*told, *later])
    now = {e.origin.parent: e.origin.split for e in Store(tmp_path / "made").episodes()}
    assert len(now) == 60 and all(now[id.removesuffix("b")] == split for id, split in now.items())
    assert {id: rows(tmp_path / "made")[id] for id in before} == before
    one, other = (next(e for e in told if where[e.id] == split) for split in ("train", "test"))
    both = replace(one, id="both", views={**one.views, "wrist": other.main})
    with pytest.raises(BadInput, match="test and train"):
        relabelled(tmp_path, [*told, *later, both])


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from demerit.data.importing import import_dataset

    import_dataset(originals(tmp_path, 3), tmp_path / "set")
    runner = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert "Examples" in runner.invoke(app, ["relabel", "--help"]).output
    arguments = ["relabel", str(tmp_path / "set"), str(tmp_path / "made"), "--size", "32"]
    monkeypatch.delenv("DEMERIT_CHAT_URL", raising=False)
    nowhere = runner.invoke(app, arguments)
    assert nowhere.exit_code == 1 and "set DEMERIT_CHAT_URL" in nowhere.output
    with ScriptedServer(author) as server:
        for name, value in {"URL": server.url, "MODEL": "simulated", "CACHE": str(tmp_path / "a.sqlite")}.items():
            monkeypatch.setenv(f"DEMERIT_CHAT_{name}", value)
        dry = runner.invoke(app, [*arguments, "--dry-run"])
        assert "3 originals\nif everything passes at once: 42 asks" in dry.output and not server.asked
        said = runner.invoke(app, [*arguments, "--keep-originals"])
        assert said.exit_code == 0 and "21 labels of 3 originals, 3 originals kept (24 episodes new)" in said.output
    refused = runner.invoke(app, [*arguments[:2], str(tmp_path / "other"), "--grades", "7"])
    assert refused.exit_code == 1 and "different grades from 1 to 4" in refused.output
    monkeypatch.setenv("DEMERIT_CHAT_URL", "http://127.0.0.1:9/v1")
    monkeypatch.delenv("DEMERIT_CHAT_CACHE")
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "within"))
    nowhere = runner.invoke(app, [*arguments[:2], str(tmp_path / "other"), "--size", "32"])
    assert nowhere.exit_code == 1 and "answers.sqlite: answers cannot be kept there (Not a directory)" in nowhere.output
    monkeypatch.setenv("DEMERIT_CHAT_CACHE", str(tmp_path / "b.sqlite"))
    dead = runner.invoke(app, [*arguments[:2], str(tmp_path / "other"), "--size", "32"])
    assert dead.exit_code == 3 and "the same command asks again" in dead.output
