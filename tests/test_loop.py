"""The loop example: failures in a second world are flagged, asked about, varied and taught; it goes on after a kill."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from demerit.data.episode import Episode, Outcome
from demerit.data.frames import Frames
from demerit.data.reward import Reward
from demerit.data.store import Store
from demerit.decide.detector import Detection
from demerit.negatives.sim.job import plan_variants, simulate
from fakes.paths import REPO

LOOP = REPO / "examples" / "loop"
for name in ("gymnasium", "mujoco", "metaworld", "stable_baselines3"):
    if find_spec(name) is None:  # importing mujoco here would choose a renderer too early
        pytest.skip(f"{name} is not installed", allow_module_level=True)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    for folder in ("rl", "loop"):
        monkeypatch.syspath_prepend(str(REPO / "examples" / folder))
    import loop
    import loop_page
    import rounds
    import worlds

    return {"loop": loop, "page": loop_page, "rounds": rounds, "worlds": worlds}


def make_rollout(number: int, success: bool) -> Episode:
    frames = Frames.from_array(np.zeros((2, 8, 8, 3), np.uint8))
    return Episode(f"e{number}", "close it", {"main": frames}, outcomes=(Outcome("simulator", success=success),))


def test_asks_about_flagged_and_about_highly_valued_rollouts(loop: dict[str, ModuleType]) -> None:
    rollouts = [make_rollout(number, False) for number in range(6)]
    ends = [0.9, 0.1, 0.8, 0.2, 0.7, 0.3]
    rewards = [Reward("m", one.id, [0, 1], [0.0, end]) for one, end in zip(rollouts, ends, strict=True)]
    behind = [0.0, 0.7, 0.0, 0.9, 0.0, 0.8]

    def judge(threshold: float) -> list[Detection]:
        pairs = zip(rollouts, behind, strict=True)
        return [Detection(one.id, 1 if worst > threshold else None, worst, threshold) for one, worst in pairs]

    choose = loop["rounds"].choose
    assert choose(rollouts, rewards, judge(0.5), 4) == ["e3", "e5", "e0", "e2"]
    assert choose(rollouts, rewards, judge(0.95), 4) == ["e0", "e2", "e4", "e5"]  # nothing flagged


def test_second_world_differs_and_its_rollouts_can_be_done_again(loop: dict[str, ModuleType], tmp_path: Path) -> None:
    worlds = loop["worlds"]
    simulated, real = (worlds.World("window-open", real) for real in (False, True))
    try:
        act = worlds.make_wanderer(simulated, 3, 0)
        first = simulated.record(act, "wanderer", 3, tmp_path)
        again = simulated.record(worlds.make_wanderer(simulated, 3, 0), "wanderer", 3, tmp_path)
        other = real.record(worlds.make_wanderer(real, 3, 0), "wanderer", 3, tmp_path)
        expert = real.record(worlds.make_demonstrator(real, 0), "expert", 5, tmp_path)
    finally:
        simulated.close()
        real.close()
    assert first.outcome and again.outcome and other.outcome and expert.outcome
    np.testing.assert_array_equal(first.main.all(), again.main.all())
    assert first.origin.tags["seed"] == other.origin.tags["seed"]  # the same scene, in another world
    assert np.abs(first.main.all()[0].astype(int) - other.main.all()[0]).mean() > 10
    assert expert.outcome.success and not first.outcome.success
    specs, skipped = plan_variants([first, expert], 1, (), 128)
    assert len(specs) == 1 and sum(skipped.values()) == 1
    simulate(tmp_path / "variants", specs, workers=1)
    (repeated,) = Store(tmp_path / "variants").episodes()
    assert repeated.outcome and repeated.outcome.curve is not None and first.outcome.curve is not None
    np.testing.assert_allclose(repeated.outcome.curve, first.outcome.curve, atol=0.05)
    assert repeated.origin.group == first.origin.group


def test_a_person_says_yes_or_no_and_the_simulator_measures(loop: dict[str, ModuleType]) -> None:
    label = loop["rounds"].label
    measured = Outcome("simulator", success=False, progress=0.4, curve=np.array([0, 0.4], np.float32))
    rollout = dataclasses.replace(make_rollout(0, False), outcomes=(measured,))
    assert label(rollout).outcome.curve is not None
    real = dataclasses.replace(rollout, origin=dataclasses.replace(rollout.origin, tags={"world": "real"}))
    assert label(real).outcome.curve is None and label(real).outcome.progress is None
    assert label(real).outcome.success is False


def write_round(out: Path, way: str, number: int, success: float) -> None:
    folder = out / "runs" / "window-close--0" / (f"{way}-{number}" if number else "start")
    folder.mkdir(parents=True)
    clip = {"values": [0.0, 0.9], "progress": [0.0, success], "video": ""}
    facts: dict[str, Any] = {"success": success, "fooled": 1 - success, "over-reward": 0.5, "clips": [clip]}
    facts |= {"task": "window-close", "seed": 0, "way": way, "round": number, "labels": 20 + 6 * number}
    facts |= {"flagged failures": 2, "flagged successes": 1, "variants": 4, "failing variants": 3}
    (folder / "result.json").write_text(json.dumps(facts))


def test_page_shows_every_round_and_pairs_the_first_with_the_last(loop: dict[str, ModuleType], tmp_path: Path) -> None:
    write_round(tmp_path, "loop", 0, 0.0)
    write_round(tmp_path, "loop", 1, 0.75)
    write_round(tmp_path, "stock", 1, 0.25)
    loop["page"].write_page(tmp_path)
    html, table = (tmp_path / "page.html").read_text(), (tmp_path / "results.md").read_text()
    assert html.count("<video") == 2 and "http" not in html.replace("http://www.w3.org", "")
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("| window")
    ]
    assert [(row[1], row[2], row[3], row[4], row[6], row[8]) for row in rows] == [
        ("start", "0", "20", "0%", "100%", "1 of 1"),
        ("loop", "1", "26", "75%", "25%", "0 of 1"),
        ("stock", "1", "26", "25%", "75%", "1 of 1"),
    ]
    assert "12, of which 9 failed too" in table


def test_page_of_the_first_round_alone(loop: dict[str, ModuleType], tmp_path: Path) -> None:
    write_round(tmp_path, "loop", 0, 0.25)
    loop["page"].write_page(tmp_path)
    assert "| window-close | start | 0 | 20 | 25% |" in (tmp_path / "results.md").read_text()


def test_a_chain_that_fails_is_named(
    loop: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "false")
    assert loop["loop"].run_all(tmp_path, 1, True, "") == ["window-close:0"]


@pytest.mark.slow
def test_loop_runs_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    command = [sys.executable, str(LOOP / "loop.py"), str(tmp_path / "out"), "--small", "--jobs", "1"]
    runs = tmp_path / "out" / "runs" / "window-close--0"
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (runs / "start" / "result.json").exists():
        assert process.poll() is None, (tmp_path / "out" / "window-close--0.log").read_text()[-2000:]
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = (runs / "start" / "result.json").stat().st_mtime_ns
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "done" in done.stdout and "failed" not in done.stdout
    assert (runs / "start" / "result.json").stat().st_mtime_ns == before
    results = {path.parent.name: json.loads(path.read_text()) for path in runs.glob("*/result.json")}
    assert set(results) == {"start", "loop-1", "stock-1", "none-1"}
    start, after = results["start"], results["loop-1"]
    assert start["learned from"] == 10 and len(start["asked next"]) == 2
    assert after["learned from"] == 10 + 2 + start["variants"] and after["labels"] == 12
    assert (tmp_path / "out" / "page.html").exists()
