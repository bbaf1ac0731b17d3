"""The context ablation end to end, over real HTTP, against the simulated judge."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from demerit.cli import app
from demerit.cli.demo.job import shipped_sample
from demerit.data.formats import open_dataset
from demerit.data.labels import Preference
from demerit.data.store import Store
from demerit.errors import BadInput
from demerit.evaluate.benchmarks.ablation import Ablation, Contexts, chosen_pairs, read_contexts, run_options
from demerit.evaluate.benchmarks.benchmark import load_benchmark
from demerit.evaluate.benchmarks.evidence import Settings
from demerit.evaluate.benchmarks.run import Gathered, RunOptions, gather, run_benchmark
from demerit.evaluate.metrics import Resampling
from demerit.evaluate.reports.page import write_page
from demerit.evaluate.reports.report import Report
from demerit.llm import ChatClient, ChatRequest, Endpoint, Message
from demerit.models.score import ScoreProgress
from fakes.judge.faults import Faults
from fakes.judge.server import ScriptedServer
from fakes.judge.truth import NAME, NOT_ASKED, SimulatedJudge

FOUR = ("none", "text", "video", "dense")
OPTIONS = RunOptions(controls=False, showings=False, workers=0, settings=Settings(Resampling(resamples=50)))


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve of the simulated episodes that ship, and a preference for each failure beside a success."""
    folder = tmp_path_factory.mktemp("rollouts")
    shipped = list(open_dataset(f"videos:{shipped_sample(folder / 'videos')}"))
    good_ones = [one for one in shipped if one.outcome is not None and one.outcome.success]
    episodes = [*good_ones[:5], *[one for one in shipped if one not in good_ones][:7]]
    store = Store.create(folder / "set", "shipped", "Apache-2.0")
    with store.writer() as writer:
        for episode in episodes:
            writer.add(episode)
        for task in sorted({episode.origin.tags["task"] for episode in episodes}):
            good, *others = [one for one in episodes if one.origin.tags["task"] == task]
            for bad in others:
                if bad.outcome is not None and not bad.outcome.success:
                    writer.add(Preference(good.id, bad.id, "a", "simulator"))
    return folder / "set"


@pytest.fixture(scope="module")
def judge(rollouts: Path) -> SimulatedJudge:
    return SimulatedJudge(open_dataset(str(rollouts)))


@pytest.fixture
def server(judge: SimulatedJudge) -> Iterator[ScriptedServer]:
    with ScriptedServer(judge, models=(NAME,)) as running:
        yield running


def named(server: ScriptedServer, folder: Path, **more: object) -> str:
    options = {"url": server.url, "model": NAME, "frames": 6, "size": 64, "timeout": 2, "key_env": "NO_SUCH_KEY"}
    options |= {"cache": folder / "answers.sqlite", **more}
    return "gvl:" + ",".join(f"{name}={value}" for name, value in options.items())


def gathered(rollouts: Path) -> Gathered:
    return gather(load_benchmark("own"), str(rollouts), OPTIONS)


def run(name: str, data: Gathered, out: Path, **more: object) -> tuple[Report, Contexts]:
    contexts = Contexts(name, Ablation(FOUR), data)
    try:
        models = contexts.models(out)
        options = replace(run_options(OPTIONS, contexts, data.episodes), batch=4)
        report = run_benchmark(load_benchmark("own"), models, data, out, options, **more)  # type: ignore[arg-type]
        return contexts.told(report), contexts
    finally:
        contexts.chat.close()


def test_four_contexts_are_four_models_in_one_report(rollouts: Path, server: ScriptedServer, tmp_path: Path) -> None:
    report, _ = run(named(server, tmp_path), gathered(rollouts), tmp_path / "out")
    names = [card.name for card in report.cards]
    assert names[:4] == ["gvl", "gvl+text", "gvl+video", "gvl+dense"]
    for name in names[:4]:
        assert all(reward.scored for reward in report.rewards_of(name).values())
        assert len(report.rewards_of(name)) == 12
    assert {(one.first, one.second) for one in report.comparisons} >= {("gvl", "gvl+dense"), ("gvl", "gvl+text")}
    assert any(line.part.startswith("category: ") for line in report.lines)
    assert report.warnings[0].startswith(f"A SIMULATION: {NAME} is no model")
    assert all(card.about.startswith("SIMULATED") for card in report.cards[:4])
    assert report.about.claim.startswith("Nothing about a real model")
    given = [reward.given for reward in report.rewards_of("gvl+dense").values()]
    assert any(one.get("references") for one in given)
    assert any(one.get("failure descriptions") for one in given)
    page = write_page(report, tmp_path / "report.html", {}).read_text()
    assert "What the prompts showed of bad behaviour" in page
    assert next(one["failure descriptions"][0] for one in given if one.get("failure descriptions")) in page


def test_distilled_curves_are_kept_as_a_models_opinion(rollouts: Path, server: ScriptedServer, tmp_path: Path) -> None:
    report, contexts = run(named(server, tmp_path), gathered(rollouts), tmp_path / "out")
    (folder,) = (tmp_path / "out").glob("distilled-*")
    kept = list(Store(folder).episodes())
    assert kept
    for episode in kept:
        curves = [one for one in episode.outcomes if one.source == "model" and one.curve is not None]
        assert [one.by for one in curves] == [f"gvl {NAME}"]
        assert np.any(~np.isnan(curves[0].curve))
    assert any(str(folder) in warning for warning in report.warnings)
    assert contexts.pairs


def test_with_faults_nothing_is_lost_nothing_billed_twice_and_every_gap_explained(
    rollouts: Path, judge: SimulatedJudge, tmp_path: Path
) -> None:
    faults = Faults.everything(0.3, seed=3, retry_after=0.05, delay=0.1)
    with ScriptedServer(judge, faults, models=(NAME,)) as server:
        report, _ = run(named(server, tmp_path, timeout=0.7, concurrency=16), gathered(rollouts), tmp_path / "out")
        billed = server.billed.copy()
    assert server.faulted.total() > 10
    assert max(billed.values()) == 1
    gaps = 0
    for card in report.cards[:4]:
        rewards = report.rewards_of(card.name)
        assert set(rewards) == {one.id for one in report.episodes}
        for reward in rewards.values():
            missing = not reward.scored or bool(np.isnan(reward.value).any())
            assert bool(reward.why_missing) == missing
            gaps += missing
    assert gaps
    assert any("unscored or partly so" in warning for warning in report.warnings)


def test_an_interrupted_ablation_goes_on_and_asks_nothing_twice(
    rollouts: Path, server: ScriptedServer, tmp_path: Path
) -> None:
    def stop(what: str, progress: ScoreProgress) -> None:
        if what == "gvl+text":
            raise KeyboardInterrupt

    data = gathered(rollouts)
    with pytest.raises(KeyboardInterrupt):
        run(named(server, tmp_path), data, tmp_path / "out", on_progress=stop)
    asked = server.asked.total()
    first, _ = run(named(server, tmp_path), data, tmp_path / "out")
    assert asked < server.asked.total()
    assert max(server.asked.values()) == 1
    asked = server.asked.total()
    again, contexts = run(named(server, tmp_path), data, tmp_path / "out")
    assert server.asked.total() == asked
    assert contexts.chat.spent.requests == 0
    assert [line.measure for line in first.lines] == [line.measure for line in again.lines]


def test_what_was_not_asked_for_want_of_money_is_asked_by_the_next_run(
    rollouts: Path, server: ScriptedServer, tmp_path: Path
) -> None:
    name, data = named(server, tmp_path, price_in=1, price_out=1), gathered(rollouts)
    ablation = Ablation(("none",), budget=0.02)
    contexts = Contexts(name, ablation, data)
    poor = run_benchmark(load_benchmark("own"), contexts.models(tmp_path), data, tmp_path, OPTIONS)
    contexts.chat.close()
    reasons = {reward.why_missing for reward in poor.rewards_of("gvl").values()}
    assert any("budget" in reason for reason in reasons)
    assert contexts.chat.spent.cost is not None
    assert contexts.chat.spent.cost <= 0.02
    contexts = Contexts(name, Ablation(("none",)), data)
    options = run_options(OPTIONS, contexts, data.episodes)
    rich = run_benchmark(load_benchmark("own"), contexts.models(tmp_path), data, tmp_path, options)
    contexts.chat.close()
    assert all(reward.scored for reward in rich.rewards_of("gvl").values())
    assert max(server.asked.values()) == 1


def test_batches_keep_connections_busy_as_far_as_memory_goes(
    rollouts: Path, server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = gathered(rollouts)
    contexts = Contexts(named(server, tmp_path, concurrency=32), Ablation(("none",)), data)
    assert run_options(OPTIONS, contexts, data.episodes).batch == 32 * 4
    monkeypatch.setattr("demerit.evaluate.benchmarks.ablation.MOST_BYTES", 2 * 6 * 128 * 128 * 3 * 20)
    chosen = run_options(OPTIONS, contexts, data.episodes)
    assert (chosen.batch, chosen.retry, chosen.at_once) == (20, True, 1)
    contexts.chat.close()
    contexts = Contexts(named(server, tmp_path, concurrency=32), Ablation(("none", "text")), data)
    chosen = run_options(OPTIONS, contexts, data.episodes)
    assert (chosen.batch, chosen.at_once) == (10, 2)
    contexts.chat.close()


def test_pairs_are_of_different_sessions_first_and_never_ties_or_models_opinions(rollouts: Path) -> None:
    records = list(open_dataset(str(rollouts)).records())
    four = chosen_pairs(records, 4)
    assert len(four) == 4, "seven failures of one task are there"
    one_each = chosen_pairs(records, 1)
    assert len(one_each) == 1
    assert set(map(str, one_each)) <= set(map(str, four))
    pair = one_each[0]
    for changed in (replace(pair, verdict="tie"), replace(pair, source="model"), replace(pair, a="somebody")):
        assert chosen_pairs([*[one for one in records if not isinstance(one, Preference)], changed], 4) == []


@pytest.mark.parametrize("text", ["", "none,none", "none,words"])
def test_contexts_that_do_not_exist_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"some of none,text,video,dense, each once"):
        Ablation(read_contexts(text))


def test_context_needs_a_prompted_model(rollouts: Path) -> None:
    result = CliRunner().invoke(app, ["bench", "own", "--data", str(rollouts), "-m", "clock", "--context", "none"])
    assert result.exit_code == 1
    assert "one --model gvl" in result.output


def test_a_dry_run_says_what_it_would_take_and_sends_nothing(
    rollouts: Path, server: ScriptedServer, tmp_path: Path
) -> None:
    command = ["bench", "own", "--data", str(rollouts), "-m", named(server, tmp_path), "--dry-run"]
    result = CliRunner().invoke(app, [*command, "--context", "none,text,video,dense"])
    assert result.exit_code == 0, result.output
    for start in ("self-distillation of", "gvl: 12 episodes", "gvl+text: ", "gvl+video: ", "gvl+dense: "):
        assert start in result.output
    assert server.asked.total() == 0


@pytest.mark.slow
def test_the_commands_of_the_docs_run(rollouts: Path, tmp_path: Path) -> None:
    """The judge as a process of its own, and the ablation against it, as `docs/prompted.md` tells."""
    command = [sys.executable, "-m", "demerit.cli", "judge", str(rollouts), "--port", "0"]
    start = "from demerit.cli import main; main()"
    command[1:3] = ["-c", start]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        lines = [server.stdout.readline() for _ in range(3)]
        assert "12 episodes known" in lines[0]
        assert "A simulation, no model" in lines[1]
        settings = dict(pair.split("=", 1) for pair in lines[2].removeprefix("export ").split())
        with ChatClient(Endpoint(settings["DEMERIT_CHAT_URL"], settings["DEMERIT_CHAT_MODEL"])) as chat:
            assert chat.ask(ChatRequest((Message.user("Hello?"),))).text == NOT_ASKED
        out = tmp_path / "out"
        bench = ["bench", "own", "--data", str(rollouts), "--model", "gvl", "--context", "none,dense"]
        bench += ["--as-recorded", "--resamples", "50", "--workers", "0", "--out", str(out)]
        env = {**os.environ, **settings, "DEMERIT_CHAT_CACHE": str(tmp_path / "answers.sqlite")}
        done = subprocess.run(
            [sys.executable, "-c", start, *bench], env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "A SIMULATION" in done.stdout
        assert "Asked: " in done.stdout
        facts = json.loads((out / "report.json").read_text())
        assert [card["name"] for card in facts["cards"][:2]] == ["gvl", "gvl+dense"]
    finally:
        server.send_signal(signal.SIGINT)
        rest = server.communicate(timeout=20)[0]
    assert server.returncode == 0
    assert "answers to" in rest


def test_shares_of_blindness_are_read_or_refused(rollouts: Path) -> None:
    for wrong in ("dropped", "dropped=much", "=0.5"):
        result = CliRunner().invoke(app, ["judge", str(rollouts), "--port", "0", "--blind", wrong])
        assert result.exit_code == 1
        assert "KIND=SHARE" in result.output


def test_a_budget_is_kept_without_a_context_too(rollouts: Path, server: ScriptedServer, tmp_path: Path) -> None:
    """Money is never spent because an option was meant for another mode."""
    command = ["bench", "own", "--data", str(rollouts), "--out", str(tmp_path / "out"), "--budget", "0.000001"]
    priced = named(server, tmp_path, price_in=100, price_out=100)
    result = CliRunner().invoke(app, [*command, "-m", priced, "--as-recorded", "--no-controls"])
    assert server.asked.total() == 0, result.output
    refused = CliRunner().invoke(app, [*command, "-m", "clock"])
    assert refused.exit_code == 1
    assert "one --model gvl" in refused.output
