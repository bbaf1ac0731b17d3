"""The mcap library reads what demerit writes for Foxglove."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft7Validator
from mcap.reader import make_reader
from PIL import Image

from demerit.data.dataset import Dataset
from demerit.data.episode import Event, Outcome
from demerit.data.formats import open_dataset
from demerit.data.store import Store
from demerit.errors import BadInput, StaleRewards
from demerit.use.mcap_file import ERROR, GAP, INFO, SECOND, WARNING, write_mcap
from fakes.bag import START, put_bag
from fakes.command import demerit_here, error_sentence
from fakes.viewed_dataset import FPS, LENGTH, make_viewed

COUNT = 6


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return make_viewed(tmp_path / "set", COUNT)


def read(path: Path) -> dict[str, list[tuple[int, dict[str, Any]]]]:
    """Every message by topic, each checked by its schema."""
    found: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    before = 0
    with path.open("rb") as file:
        for schema, channel, message in make_reader(file, validate_crcs=True).iter_messages(log_time_order=False):
            assert schema is not None and (schema.encoding, channel.message_encoding) == ("jsonschema", "json")
            content = json.loads(message.data)
            Draft7Validator(json.loads(schema.data) | {"additionalProperties": False}).validate(content)
            assert content["timestamp"] == {"sec": message.log_time // SECOND, "nsec": message.log_time % SECOND}
            assert message.log_time >= before
            before = message.log_time
            found.setdefault(channel.topic, []).append((message.log_time, {**content, "schema": schema.name}))
    return found


def test_curves_verdicts_failures_and_pictures_are_those_of_the_dataset(dataset: Dataset, tmp_path: Path) -> None:
    assert write_mcap(dataset, tmp_path / "set.mcap") == (COUNT, ["careful", "eager", "clock"])
    found = read(tmp_path / "set.mcap")
    topics = {
        "/main/image",
        "/rewards/careful",
        "/rewards/eager",
        "/rewards/clock",
        "/labels/progress",
        "/state",
        "/log",
    }
    assert set(found) == topics
    # Foxglove knows these by name
    assert {content["schema"] for _, content in found["/main/image"]} == {"foxglove.CompressedImage"}
    assert {content["schema"] for _, content in found["/log"]} == {"foxglove.Log"}
    values = [content["value"] for _, content in found["/rewards/careful"]]
    expected = np.concatenate([np.linspace(0, place / COUNT, LENGTH) for place in range(COUNT)])
    assert np.allclose(values, expected, atol=1e-6)
    assert len(found["/rewards/eager"]) == (COUNT - 1) * LENGTH  # the last was not scored
    assert len(found["/labels/progress"]) == (COUNT - 1) * LENGTH  # 5 has no label
    failures = [content["failure"] for _, content in found["/state"]]
    assert failures == ["none", "collision", "none", *["none"] * 2, "none", "collision", "none", *["none"] * 2]
    levels = [content["level"] for _, content in found["/log"]]
    assert levels.count(ERROR) == 2 and levels.count(INFO) == COUNT
    assert levels.count(WARNING) == 3 * COUNT - 1  # no threshold, so no verdict is known
    assert any("no threshold" in content["message"] for _, content in found["/log"])


def test_pictures_stand_at_the_times_of_their_frames(dataset: Dataset, tmp_path: Path) -> None:
    write_mcap(dataset, tmp_path / "set.mcap")
    found = read(tmp_path / "set.mcap")
    images, values = found["/main/image"], found["/rewards/careful"]
    assert len(images) == (COUNT - 1) * LENGTH  # 2 has lost its video
    assert [(row["problem"], row["kept"]) for row in dataset.problems.rows()] == [("unreadable video", True)]
    assert [at for at, _ in images[:LENGTH]] == [GAP + round(k * SECOND / FPS) for k in range(LENGTH)]
    assert [at for at, _ in images[:LENGTH]] == [at for at, _ in values[:LENGTH]]
    for frame in (0, 20):
        picture = Image.open(io.BytesIO(base64.b64decode(images[frame][1]["data"])))
        assert (picture.format, picture.size) == ("JPEG", (64, 48))
        assert abs(np.asarray(picture).mean() - (2 + 3.5 * frame)) < 4
    backwards = Image.open(io.BytesIO(base64.b64decode(images[LENGTH][1]["data"])))
    assert np.asarray(backwards).mean() > 90


def test_a_bag_keeps_its_times_and_the_file_is_read_back(tmp_path: Path) -> None:
    put_bag(tmp_path / "bags" / "run", task="go")
    dataset = open_dataset(tmp_path / "bags" / "run")
    assert write_mcap(dataset, tmp_path / "out.mcap") == (1, [])
    found = read(tmp_path / "out.mcap")
    assert [at - START for at, _ in found["/front/image"]] == [k * SECOND // 10 for k in range(12)]
    again = next(iter(open_dataset(tmp_path / "out.mcap")))
    (recorded,) = dataset
    assert list(again.views) == list(recorded.views) and np.allclose(again.main.times(), recorded.main.times())
    difference = np.abs(again.views["wrist"].all().astype(int) - recorded.views["wrist"].all())
    assert difference.mean() < 4


def test_nothing_is_overwritten_and_stale_rewards_are_refused(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "set.mcap").write_text("mine")
    with pytest.raises(BadInput, match="one that exists"):
        write_mcap(dataset, tmp_path / "set.mcap")
    store = Store(tmp_path / "set")
    with store.writer() as writer:
        writer.update({"set/001": {"instruction": "another", "fingerprint": "0"}})
    with pytest.raises(StaleRewards, match="set/001"):
        write_mcap(open_dataset(str(tmp_path / "set")), tmp_path / "new.mcap")
    assert not (tmp_path / "new.mcap").exists() and not list(tmp_path.glob(".*.part"))


def test_the_command_counts_what_it_wrote(dataset: Dataset, tmp_path: Path) -> None:
    said = demerit_here("export", "set", "set.mcap", "--to", "mcap", cwd=tmp_path)
    assert said.returncode == 0 and f"{COUNT} episodes for Foxglove, rewards of careful" in said.stdout
    assert len(read(tmp_path / "set.mcap")["/rewards/clock"]) == COUNT * LENGTH
    said = demerit_here("export", "set", "set.mcap", "--to", "mcap", cwd=tmp_path)
    assert said.returncode == 1 and "one that exists" in error_sentence(said)
    said = demerit_here("export", "set", "set2.mcap", "--to", "mcap", "--fps", "3", cwd=tmp_path)
    assert said.returncode == 1


def test_an_event_and_an_unknown_curve_leave_gaps(tmp_path: Path) -> None:
    from dataclasses import replace

    put_bag(tmp_path / "bags" / "run", cameras=("raw",))
    (episode,) = open_dataset(tmp_path / "bags")
    curve = np.array([0, np.nan, 1, *[np.nan] * 9])
    label = Outcome("human", success=False, curve=curve, events=(Event("drop", 10, 40),))
    write_mcap(Dataset.from_episodes([replace(episode, outcomes=(label,))]), tmp_path / "out.mcap")
    found = read(tmp_path / "out.mcap")
    assert [(content["frame"], content["value"]) for _, content in found["/labels/progress"]] == [(0, 0), (2, 1)]
    assert [content["failure"] for _, content in found["/state"]] == ["none", "drop"]
