"""Simulated episodes: the same seed gives the same bytes, and labels are measured."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from demerit.errors import DemeritError
from demerit.negatives.sim.arena import load_mujoco
from fakes.paths import TESTS
from fakes.processes import running

try:
    load_mujoco()
except DemeritError as missing:
    pytest.skip(str(missing), allow_module_level=True)

from demerit.data.episode import Event
from demerit.data.store import Store
from demerit.data.taxonomy import kind
from demerit.negatives.sim.arena import Arena, SceneRenderer
from demerit.negatives.sim.job import simulate
from demerit.negatives.sim.measure import ENDS_BADLY, find_events
from demerit.negatives.sim.rollout import EpisodeSpec, Rollout, draw_length, random_numbers, record, rollout
from demerit.negatives.sim.tasks import task

SIZE = 32


class Studio:
    """Arenas and renderers, made once for all tests."""

    def __init__(self) -> None:
        self.renderers: dict[str, SceneRenderer] = {}

    def __call__(self, name: str, behaviour: str, seed: int, setting: str = "varied") -> Rollout:
        if name not in self.renderers:
            self.renderers[name] = SceneRenderer(Arena(task(name)), SIZE)
        renderer = self.renderers[name]
        return rollout(EpisodeSpec(name, behaviour, seed, setting, SIZE), renderer.arena, renderer)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def studio() -> Iterator[Studio]:
    made = Studio()
    yield made
    for renderer in made.renderers.values():
        renderer.close()


FRESH = """
import sys
from demerit.negatives.sim.arena import Arena, SceneRenderer
from demerit.negatives.sim.rollout import EpisodeSpec, record, rollout
from demerit.negatives.sim.tasks import task
with SceneRenderer(Arena(task("push")), 32) as renderer:
    record(rollout(EpisodeSpec("push", "noisy", 5, "varied", 32), renderer.arena, renderer), sys.argv[1])
"""


def test_same_seed_same_bytes(studio: Studio, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", FRESH, tmp_path / "fresh.mp4"], check=True)
    studio("push", "wrong-object", 8)
    studio("push", "slam", 9, "held-out")
    again = studio("push", "noisy", 5)
    record(again, tmp_path / "used.mp4")
    assert (tmp_path / "fresh.mp4").read_bytes() == (tmp_path / "used.mp4").read_bytes()
    for _ in range(8):  # a multi-threaded encoder fails this now and then
        record(again, tmp_path / "again.mp4")
        assert (tmp_path / "again.mp4").read_bytes() == (tmp_path / "used.mp4").read_bytes()
    assert not np.array_equal(studio("push", "noisy", 6).images[0], again.images[0])


def test_all_behaviours_have_the_same_start_and_length(studio: Studio) -> None:
    made = [studio("push", behaviour, 11) for behaviour in ("expert", "undo", "random", "early-stop")]
    for episode in made:
        assert np.array_equal(episode.images[0], made[0].images[0])
        assert len(episode.images) == draw_length(episode.spec)[0]
        assert (episode.ending, episode.instruction) == (made[0].ending, made[0].instruction)


@pytest.mark.parametrize("name", ["drawer-open", "push", "door-close", "handle-press", "bin-picking"])
def test_experts_succeed_and_their_progress_rises(studio: Studio, name: str) -> None:
    measured = studio(name, "expert", 1, "plain").measured
    assert measured.at_end
    assert measured.progress[0] < 0.1
    assert measured.progress[-1] == 1
    assert np.all(measured.progress[~measured.success] <= 0.95)
    until = int(np.argmax(measured.success)) + 1
    steps = np.diff(measured.progress[:until])
    assert np.mean(steps >= -0.02) > 0.85


def events(studio: Studio, name: str, behaviour: str, seeds: range) -> list[Event]:
    found = [event for seed in seeds for event in find_events(studio(name, behaviour, seed).measured)]
    assert all(kind(event.kind) for event in found)  # raises for a name that the taxonomy does not have
    return found


def test_undone(studio: Studio) -> None:
    measured = studio("drawer-open", "undo", 1).measured
    assert measured.ever and not measured.at_end
    undone = next(event for event in find_events(measured) if event.kind == "undone")
    assert (undone.first, undone.last) == (np.flatnonzero(measured.success)[-1] + 1, len(measured) - 1)


def test_dropped(studio: Studio) -> None:
    for seed in range(1, 6):
        measured = studio("pick-place", "drop", seed).measured
        dropped = [event for event in find_events(measured) if event.kind == "dropped"]
        if dropped:
            break
    height = np.array([facts.object[2] for facts in measured.steps[:: measured.stride]])
    assert height[dropped[0].first] - height[min(dropped[0].last + 1, len(height) - 1)] > 0.015
    assert not measured.at_end


def test_hesitation_collision_and_wrong_object(studio: Studio) -> None:
    assert "wrong object" in {event.kind for event in events(studio, "push", "wrong-object", range(3))}
    still = [event for event in events(studio, "drawer-open", "hesitate", range(3)) if event.kind == "hesitation"]
    assert still
    assert all(event.last - event.first >= 2 for event in still)
    forced = {event.kind for event in events(studio, "push", "slam", range(4))}
    assert forced & {"collision", "excessive force"}
    assert events(studio, "drawer-open", "expert", range(1, 3)) == []
    assert all(map(kind, ENDS_BADLY))


def specs() -> list[EpisodeSpec]:
    wanted = [("push", "expert"), ("push", "early-stop"), ("drawer-open", "expert"), ("drawer-open", "wrong-object")]
    return [EpisodeSpec(name, behaviour, seed, "plain", SIZE) for name, behaviour in wanted for seed in range(3)]


RUN = """
import sys
from demerit.negatives.sim.job import simulate
sys.path[:0] = sys.argv[2:]
from test_rollout import specs
simulate(sys.argv[1], specs(), 2, lambda progress: print(progress.made, flush=True))
"""


@pytest.mark.slow
def test_a_killed_run_resumes_with_the_same_bytes(tmp_path: Path) -> None:
    whole = simulate(tmp_path / "whole", specs(), workers=1)
    assert (whole.made, whole.not_applicable.total()) == (9, 3)
    assert len(list(Store(tmp_path / "whole").problems())) == 3
    command = [sys.executable, "-c", RUN, str(tmp_path / "set"), str(Path(__file__).parent), str(TESTS)]
    with running(command, stderr=subprocess.DEVNULL) as run:
        assert run.stdout is not None
        assert any(int(line) >= 2 for line in run.stdout)
    time.sleep(0.5)  # its workers notice and exit
    rest = simulate(tmp_path / "set", specs(), workers=2)
    assert rest.made + rest.kept == 9
    for name in ("whole", "set"):
        assert sorted(Store(tmp_path / name).ids()) == sorted(spec.id for spec in specs()[:9])
    for video in (tmp_path / "whole" / "videos").iterdir():
        assert video.read_bytes() == (tmp_path / "set" / "videos" / video.name).read_bytes()
    assert set(Store(tmp_path / "whole").preferences()) == set(Store(tmp_path / "set").preferences())
    again = simulate(tmp_path / "set", specs(), workers=2)
    assert (again.made, again.kept) == (0, 9)


def test_the_stored_actions_do_the_task_again(studio: Studio, tmp_path: Path) -> None:
    """Each action is held until the next frame; a policy that learned them by heart does what the expert did."""
    made = studio("window-close", "expert", 3, "plain")
    signals = record(made, tmp_path / "window.mp4").signals
    assert signals["action"].shape == (len(made.images), 4)
    assert np.abs(signals["action"]).max() <= 1
    arena, scene = studio.renderers["window-close"].arena, random_numbers(made.spec, "scene")
    facts = arena.reset(int(scene.integers(2**31)), scene)
    assert not arena.succeeded(facts)
    assert signals["goal"][0].tolist() == facts.target.astype(np.float32).tolist()
    for action in signals["action"][:-1]:
        for _ in range(made.measured.stride):
            facts = arena.step(action.astype(np.float64))
    assert made.measured.at_end
    assert arena.succeeded(facts)


def test_triton_can_be_imported_after_drawing() -> None:
    """Both contain an LLVM; loaded in the other order, the process ends with a segmentation fault."""
    pytest.importorskip("triton")
    code = (
        "import numpy as np; from demerit.negatives.sim.arena import *; from demerit.negatives.sim.tasks import task\n"
        "with SceneRenderer(Arena(task('window-close')), 32) as renderer:\n"
        "    rng = np.random.default_rng(0)\n"
        "    renderer.arena.reset(0, rng)\n"
        "    renderer.prepare('plain', rng)\n"
        "    renderer.render()\n"
        "    import triton"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
