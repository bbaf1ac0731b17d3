"""Cheap quality: every column against a second computation, and no value where nothing can be measured."""

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demerit.data.dataset import Dataset
from demerit.data.episode import Episode
from demerit.data.quality import (
    MEASURES,
    count_clock_jumps,
    count_dropped_frames,
    measure_duration,
    measure_end_poses,
    measure_jerk,
    measure_quality,
    measure_stalls,
    summarise_quality,
)
from demerit.data.store import Store
from demerit.use.view import ViewIndex
from fakes.command import demerit_here, error_sentence
from fakes.lerobot_fixture import write_v21
from fakes.tiny_video import put_video

RNG = np.random.default_rng(0)
LINE = np.linspace(0, 1, 60)[:, None]


def test_jerk_is_third_differences_over_first() -> None:
    path = RNG.normal(size=(40, 3)).cumsum(axis=0)
    ratios = []
    for column in path.T.tolist():
        first = [b - a for a, b in pairwise(column)]
        third = [d - 3 * c + 3 * b - a for a, b, c, d in zip(column, column[1:], column[2:], column[3:], strict=False)]
        ratios.append(math.sqrt(sum(x * x for x in third) / len(third) / (sum(x * x for x in first) / len(first))))
    assert measure_jerk(path) == pytest.approx(sorted(ratios)[1])


def test_jerk_has_known_ends_no_unit_and_ignores_a_gripper_and_dimensions_at_rest() -> None:
    zigzag = (np.arange(60) % 2).astype(float)[:, None]
    assert measure_jerk(LINE) == pytest.approx(0, abs=1e-9) and measure_jerk(zigzag) == pytest.approx(4)
    smooth = np.sin(np.linspace(0, 3, 60))[:, None] * [1.0, 2.0, 3.0]
    gripper = (np.arange(60) > 30).astype(float)[:, None]
    shakes = measure_jerk(smooth)
    assert shakes is not None and shakes < 0.01
    assert measure_jerk(1000 * smooth) == pytest.approx(shakes)
    assert measure_jerk(np.hstack([smooth, gripper, np.full((60, 3), 7.0)])) == pytest.approx(shakes, rel=0.5)
    assert measure_jerk(np.ones((60, 2))) is None and measure_jerk(LINE[:3]) is None


@pytest.mark.parametrize("noise", [0.0, 0.001])
def test_stalls_are_the_frames_at_rest(noise: float) -> None:
    """20 frames of motion, 30 of rest, 20 of motion; a little noise of the sensor is no motion."""
    path = np.concatenate([np.linspace(0, 1, 20), np.ones(30), np.linspace(1, 0, 20)])[:, None] * [1.0, 2.0]
    noisy = path + noise * np.random.default_rng(1).uniform(-1, 1, path.shape)
    assert measure_stalls(noisy, 5) == pytest.approx(32 / 70)  # with the frames at both ends of the rest
    assert measure_stalls(LINE, 5) == 0 and measure_stalls(np.ones((60, 2)), 5) == 1
    assert measure_stalls(path[:20], 5) == 0 and measure_stalls(path[:5], 5) is None


def test_the_clock() -> None:
    even = np.arange(20) / 10
    assert (measure_duration(even), count_dropped_frames(even), count_clock_jumps(even)) == (1.9, 0, 0)
    jitter = even + RNG.uniform(-0.02, 0.02, 20)
    assert (count_dropped_frames(jitter), count_clock_jumps(jitter)) == (0, 0)
    holes = np.delete(even, [3, 9, 10])
    assert (count_dropped_frames(holes), count_clock_jumps(holes)) == (3, 0)
    leap, back = even.copy(), even.copy()
    leap[10:] += 60
    back[10:] -= 0.5
    stopped = np.concatenate([even[:10], [even[9]], even[10:]])
    for clock in (leap, back, stopped, 1e9 * leap):  # also in nanoseconds
        assert (count_dropped_frames(clock), count_clock_jumps(clock)) == (0, 1)
    assert count_clock_jumps(np.zeros(5)) == 4


def test_end_poses_are_compared_within_a_task() -> None:
    ends = {f"a{i}": ("push", np.array([float(i), 0.0]), 2.0) for i in (0, 1, 2)}
    ends |= {"a9": ("push", np.array([1.0, 6.0]), 2.0), "b": ("pull", np.array([9.0, 9.0]), 2.0)}
    ends["short"] = ("push", np.array([1.0]), 2.0)
    # the median last state is (1, 0), the unit 2; one `pull` has no usual end, and `short` another size
    assert measure_end_poses(ends) == {"a0": 0.5, "a1": 0.0, "a2": 0.5, "a9": 3.0}


def make(id: str, **signals: Any) -> Episode:
    return replace(Episode.from_array(np.zeros((60, 8, 8, 3), np.uint8), "push", id), signals=signals)


def test_without_the_signal_there_is_no_value() -> None:
    nothing, words = make("nothing"), make("words", action=np.array(["up"] * 60), state=np.full((60, 2), np.nan))
    rows = measure_quality([nothing, words, make("actions", actions=np.sin(LINE * 9))])
    assert rows["nothing"] == rows["words"] == dict.fromkeys(MEASURES)
    assert {name for name, value in rows["actions"].items() if value is not None} == {"jerk"}
    assert list(summarise_quality(rows)) == ["jerk"]
    clock = np.delete(np.arange(61.0), 5)
    timed = measure_quality([make("timed", **{"obs/timestamp": clock})])["timed"]
    assert (timed["dropped_frames"], timed["clock_jumps"], timed["duration"], timed["stalls"]) == (1, 0, None, None)


def test_every_column_of_lerobot_and_of_its_import(tmp_path: Path) -> None:
    write_v21(tmp_path / "lr", [12, 12, 30])
    said = json.loads(demerit_here("inspect", tmp_path / "lr", "--quality", "--json").stdout)["quality"]
    assert set(said) == set(MEASURES) - {"jerk"}  # its actions never change
    assert {facts["episodes"] for facts in said.values()} == {3}
    assert said["duration"]["highest"] == pytest.approx(2.9)
    assert said["duration"]["highest_episode"].endswith("episode_000002")
    assert "highest" in demerit_here("inspect", tmp_path / "lr", "--quality").stdout
    assert "quality" not in json.loads(demerit_here("inspect", tmp_path / "lr", "--json").stdout)
    demerit_here("import", tmp_path / "lr", tmp_path / "set")
    assert json.loads(demerit_here("inspect", tmp_path / "set", "--quality", "--json").stdout)["quality"] == said


def test_filter_by_columns(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "set", "set")
    with store.writer() as writer:
        for id, state in {"moves": LINE, "rests": LINE * (LINE < 0.2), "blind": None}.items():
            episode = Episode.from_video(put_video(tmp_path / f"{id}.mp4"), "push", id=id)
            writer.add(replace(episode, signals={} if state is None else {"state": state}))

    def kept(*options: str) -> dict[str, Any]:
        run = demerit_here("filter", store.root, "--dry-run", "--page", tmp_path / "p.html", "--json", *options)
        found: dict[str, Any] = json.loads(run.stdout)
        return found

    found = kept("--quality", "stalls<0.5")
    assert found["kept_ids"] == ["moves", "blind"] and found["dropped_by"] == {"stalls not < 0.5": 1}
    assert found["undecided"][0]["reason"] == "no stalls: it lacks the signal or the clock"
    assert kept("--quality", "stalls<0.5", "--unscored", "drop")["kept_ids"] == ["moves"]
    assert kept("--quality", "stalls >= 0.5", "--quality", "duration>0")["kept_ids"] == ["rests", "blind"]
    words = ("filter", store.root, "--dry-run", "--quality")
    assert "stalls" in error_sentence(demerit_here(*words, "stals<0.5"))
    assert "stalls<0.5" in error_sentence(demerit_here(*words, "stalls"))


def test_view_has_the_columns_in_the_order_of_the_episodes() -> None:
    dataset = Dataset.from_episodes([make("b", state=LINE), make("a"), make("c", state=LINE[::-1])])
    found = json.loads(json.dumps(ViewIndex(dataset).measure_quality(), allow_nan=False))
    assert list(found) == list(MEASURES) == list(ViewIndex(dataset).as_dict()["quality"])
    assert found["stalls"] == [0.0, None, 0.0] and found["duration"] == [None] * 3
