"""Rerun itself opens what demerit writes. Run with: make test-rerun."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demerit.data.dataset import Dataset
from demerit.data.formats import open_dataset
from demerit.data.store import Store
from demerit.errors import StaleRewards
from demerit.use.rerun_file import AFTER, write_rerun
from fakes.command import demerit_here, error_sentence
from fakes.viewed_dataset import FPS, LENGTH, make_viewed

chunks = pytest.importorskip("rerun.chunk", reason="Rerun is not installed in this environment: make test-rerun")


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return make_viewed(tmp_path / "set", 12)


def read(path: Path) -> dict[str, Any]:
    """Every column by name, rows in the order of frames."""
    found: dict[str, Any] = {}
    for chunk in chunks.RrdReader(path).stream().to_chunks():
        table = chunk.to_record_batch()
        for name in table.schema.names:
            if ":" in name:
                frames = table.column("frame").to_pylist() if "frame" in table.schema.names else [None]
                for frame, cell in zip(frames, table.column(name).to_pylist(), strict=True):
                    found.setdefault(f"{chunk.entity_path} {name}", {})[frame] = cell
    return found


def test_rerun_verifies_and_holds_the_same_values(dataset: Dataset, tmp_path: Path) -> None:
    models = write_rerun(dataset, tmp_path / "set.rrd")
    tool = Path(sys.executable).parent / "rerun"
    run = subprocess.run([tool, "rrd", "verify", tmp_path / "set.rrd"], check=False, capture_output=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert models == ["careful", "eager", "clock"]
    found = read(tmp_path / "set.rrd")
    names = [*models, "labelled progress", "failure: collision"]
    assert found["/rewards SeriesLines:names"] == {None: names}
    values = found["/rewards Scalars:scalars"]
    for place in range(12):
        rows = np.array([values[place * (LENGTH + 1) + k] for k in range(LENGTH + 1)])
        assert np.isnan(rows[-1]).all()  # the gap
        rows = rows[:-1]
        assert np.allclose(rows[:, 0], np.linspace(0, place / 12, LENGTH), atol=2e-4)
        assert np.isnan(rows[:, 1]).all() if place == 11 else np.allclose(rows[-1, 1], 1 - place / 12, atol=2e-4)
        assert (
            np.isnan(rows[:, 3]).all() if place == 5 else np.allclose(rows[:, 3], np.linspace(0, 1, LENGTH), atol=2e-4)
        )
        assert np.flatnonzero(rows[:, 4]).tolist() == ([4, 5, 6, 7, 8, 9] if place % 3 == 0 else [])


def test_frames_are_references_to_the_videos(dataset: Dataset, tmp_path: Path) -> None:
    write_rerun(dataset, tmp_path / "set.rrd")
    found = read(tmp_path / "set.rrd")
    starts = [place * (LENGTH + 1) for place in range(12)]
    references = found["/camera VideoFrameReference:video_reference"]
    assert references == {start: [f"videos/{place}"] for place, start in enumerate(starts) if place != 2}
    stamps = found["/camera VideoFrameReference:timestamp"]
    expected = [round(k * 1e9 / FPS) + AFTER for k in range(LENGTH)]
    assert [stamps[starts[3] + k] for k in range(LENGTH)] == [[stamp] for stamp in expected]
    assert bytes(found["/videos/3 AssetVideo:blob"][None][0]) == (tmp_path / "recording.mp4").read_bytes()


def test_episode_without_its_video_shows_no_other(dataset: Dataset, tmp_path: Path) -> None:
    write_rerun(dataset, tmp_path / "set.rrd")
    assert [(row["problem"], row["kept"]) for row in dataset.problems.rows()] == [("unreadable video", True)]
    found = read(tmp_path / "set.rrd")
    opacity, start = found["/camera VideoFrameReference:opacity"], 2 * (LENGTH + 1)
    assert opacity[start] == [0.0] and opacity[start + LENGTH] == [1.0]
    assert start not in found["/camera VideoFrameReference:timestamp"]


def test_log_lists_episodes_and_failures(dataset: Dataset, tmp_path: Path) -> None:
    write_rerun(dataset, tmp_path / "set.rrd")
    lines = read(tmp_path / "set.rrd")["/log TextLog:text"]
    start = 3 * (LENGTH + 1)
    assert lines[start][0].startswith("set/003: push the red block; human Ada: failure")
    assert lines[start + 4] == ["collision <b>hit</b>"]


def test_stale_rewards_are_refused_and_nothing_is_written(dataset: Dataset, tmp_path: Path) -> None:
    with Store(tmp_path / "set").writer() as writer:
        writer.update({"set/006": {"instruction": "pull"}})
    with pytest.raises(StaleRewards) as caught:
        write_rerun(open_dataset(str(tmp_path / "set")), tmp_path / "set.rrd")
    assert caught.value.episode == "set/006" and not list(tmp_path.glob("*.rrd*"))


def test_command(dataset: Dataset, tmp_path: Path) -> None:
    run = demerit_here("export", tmp_path / "set", tmp_path / "set.rrd", "--to", "rerun")
    assert run.returncode == 0, run.stderr
    assert "12 episodes" in run.stdout and "careful, eager, clock" in run.stdout
    error_sentence(demerit_here("export", tmp_path / "set", tmp_path / "set.rrd", "--to", "rerun"))
    error_sentence(demerit_here("export", tmp_path / "set", tmp_path / "b.rrd", "--to", "rerun", "--fps", "3"))
