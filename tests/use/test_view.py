"""What the page of `demerit view` shows, as data."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from demerit.data.dataset import Dataset
from demerit.data.formats import open_dataset
from demerit.data.reward import Reward
from demerit.data.store import Store
from demerit.errors import DemeritError
from demerit.models.protocol import example_card
from demerit.models.reward_store import RewardStore, scored_fingerprint
from demerit.models.score import rewards_folder
from demerit.use.view import STALENESS, ViewIndex
from fakes.command import demerit_here, error_sentence
from fakes.tiny_video import put_video, write_lines
from fakes.viewed_dataset import EVIL, LENGTH, make_viewed


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return make_viewed(tmp_path / "set", 12)


def test_columns_hold_every_episode(dataset: Dataset) -> None:
    found = json.loads(json.dumps(ViewIndex(dataset).as_dict(), allow_nan=False))
    assert [model["name"] for model in found["models"]] == ["careful", "eager", "clock"]  # controls last
    assert [model["control"] for model in found["models"]] == [False, False, True]
    assert found["id"] == [f"set/{i:03d}" for i in range(12)]
    assert [found["instructions"][code] for code in found["instruction"][:3]] == [
        EVIL,
        "push the red block",
        "push the blue block",
    ]
    assert found["frames"] == [LENGTH] * 12
    assert found["success"][4:7] == [True, None, True] and found["vouched_by"][4:6] == ["human", None]
    assert found["kinds"] == {str(i): ["collision"] for i in (0, 3, 6, 9)}
    assert found["final"][0] == [round(i / 12, 4) for i in range(12)]
    assert found["final"][1][-1] is None
    assert found["reasons"][found["why"][1][-1]] == "not scored yet"
    assert not any(found["why"][0])
    assert {found["reasons"][code] for code in found["verdicts"][0]} == {"unknown: no threshold"}
    assert found["reasons"][found["verdicts"][1][-1]] == "unknown: not scored (not scored yet)"
    assert found["models"][1]["counts"] == "0 success, 0 failure, 12 unknown (11 no threshold, 1 not scored)"


def test_other_formats_have_the_same_columns(tmp_path: Path) -> None:
    rows = [{"video": f"{i}.mp4", "instruction": "push", "success": bool(i)} for i in range(2)]
    rows[0]["events"] = [{"kind": "collision", "first": 0, "last": 1}]
    rows[0]["stages"] = "reach:0-1 lift:2-3"
    for row in rows:
        put_video(tmp_path / "videos" / row["video"])
    write_lines(tmp_path / "videos" / "labels.jsonl", *rows)
    index = ViewIndex(open_dataset(str(tmp_path / "videos")))
    assert [index.episode_json(i)["curves"]["stages"] for i in (0, 1)] == [[["reach", 0, 1], ["lift", 2, 3]], []]
    found = index.as_dict()
    assert found["success"] == [False, True] and found["kinds"] == {0: ["collision"]}
    assert set(found) == set(ViewIndex(make_viewed(tmp_path / "set", 3)).as_dict())


def test_an_episode_has_its_curves_labels_and_events(dataset: Dataset) -> None:
    found = json.loads(json.dumps(ViewIndex(dataset).episode_json(3), allow_nan=False))
    assert found["episode"]["times"] == [k / 8 for k in range(LENGTH)]
    assert found["episode"]["by"] == "human Ada" and found["episode"]["success"] is False
    assert found["curves"]["events"] == [["collision", 4, 9, "<b>hit</b>"]]
    assert found["curves"]["truth"][1][-1] == 1
    at, values = found["curves"]["curves"][0]
    assert at == 0 and values == pytest.approx(np.linspace(0, 3 / 12, LENGTH), abs=1e-3)
    assert not found["notes"]
    last = ViewIndex(dataset).episode_json(11)
    assert last["curves"]["curves"][1] is None and last["notes"] == ["eager: not scored yet"]
    with pytest.raises(DemeritError):
        ViewIndex(dataset).episode_json(12)


def test_every_model_says_its_verdict_with_the_reason_and_warnings(tmp_path: Path) -> None:
    dataset = make_viewed(tmp_path / "set", 4)
    card = example_card(name="judge")
    store = RewardStore.open_or_create(rewards_folder(dataset, "judge"), card, {})
    said = [
        {"succeeds": True},
        {"succeeds": False},
        {"succeeds": True, "missing cameras": ["right"]},
        {"caution": "few"},
    ]
    with store.writer(card) as writer:
        for episode, given in zip(dataset, said, strict=True):
            print_of = scored_fingerprint(episode, card) if given != said[1] else "of another recording"
            writer.commit([(Reward("judge", episode.id, [0], [0.5], given=given), print_of)])
    index = ViewIndex(dataset)
    facts = index.as_dict()
    place = [model["name"] for model in facts["models"]].index("judge")
    assert [facts["reasons"][code] for code in facts["verdicts"][place]] == [
        *("success", "failure", "unknown: camera missing (right)", "unknown: no threshold")
    ]
    model = facts["models"][place]
    assert model["counts"] == "1 success, 1 failure, 2 unknown (1 camera missing, 1 no threshold)"
    assert [warning.partition(":")[0] for warning in model["warnings"]] == ["camera missing", "model not yet trusted"]
    verdicts = [dict(index.episode_json(number)["verdicts"])["judge"] for number in (0, 1, 2)]
    assert verdicts[:2] == ["success", "stale: failure"]
    assert verdicts[2].startswith("unknown: camera missing (right): a camera that the model was taught with is missing")


def test_every_camera_has_its_video(tmp_path: Path) -> None:
    for name in ("0_left.mp4", "0_right.mp4"):
        put_video(tmp_path / "videos" / name)
    cameras = ViewIndex(open_dataset(str(tmp_path / "videos"))).episode_json(0)["episode"]["cameras"]
    assert [(camera["name"], camera["link"]) for camera in cameras] == [
        ("left", "/cameras/0/0.mp4"),
        ("right", "/cameras/0/1.mp4"),
    ]
    assert all(len(camera["times"]) == camera["frames"] for camera in cameras)


def test_missing_video_has_a_reason_and_curves(dataset: Dataset) -> None:
    found = ViewIndex(dataset).episode_json(2)
    assert "lost.mp4: there is no such file" in found["episode"]["problem"] and "link" not in found["episode"]
    assert found["curves"]["curves"][0] is not None


def test_newest_reward_counts(dataset: Dataset) -> None:
    store = RewardStore(rewards_folder(dataset, "careful"))
    with store.writer(store.card) as writer:
        reward = Reward("careful", "set/004", np.arange(2), np.array([0.5, np.nan]), why_missing="too dark")
        writer.commit([(reward, scored_fingerprint(dataset[4], store.card))])
    index = ViewIndex(dataset)
    assert np.isnan(index.models[0].final[4]) and index.models[0].why[4] == "too dark"
    assert index.episode_json(4)["curves"]["curves"][0] == [0, [0.5, None]]
    assert index.episode_json(4)["notes"] == ["careful: partly unscored: too dark"]


def test_changed_episode_and_changed_model_are_stale_and_shown(dataset: Dataset, tmp_path: Path) -> None:
    assert ViewIndex(dataset).find_stale()[1:] == [{}, {}]
    with Store(tmp_path / "set").writer() as writer:
        writer.update({"set/006": {"instruction": "pull"}})
    dataset = open_dataset(str(tmp_path / "set"))
    card = replace(example_card(name="careful"), revision="new")
    with RewardStore(rewards_folder(dataset, "careful")).writer(card) as rewards:
        reward = Reward("careful", "set/007", np.arange(2), np.zeros(2))
        rewards.commit([(reward, scored_fingerprint(dataset[7], card))])
    index = ViewIndex(dataset)
    careful, eager, clock = index.find_stale()
    assert eager == clock == {6: 1}
    assert careful == {i: 2 for i in range(12) if i not in (6, 7)} | {6: 1}
    found = index.episode_json(6)
    assert found["curves"]["curves"][1] is not None and f"eager: {STALENESS[1]}" in found["notes"]


def test_damaged_rewards_are_mentioned_and_others_shown(dataset: Dataset) -> None:
    (rewards_folder(dataset, "eager") / "rewards.json").write_text("{")
    index = ViewIndex(dataset)
    assert [model.name for model in index.models] == ["careful", "clock"]
    assert len(index.as_dict()["problems"]) == 1 and "rewards.json" in index.as_dict()["problems"][0]


def test_rewards_from_elsewhere(dataset: Dataset, tmp_path: Path) -> None:
    rewards_folder(dataset, "eager").rename(tmp_path / "elsewhere")
    names = [model.name for model in ViewIndex(dataset, [tmp_path / "elsewhere"]).models]
    assert names == ["careful", "elsewhere", "clock"]


def test_export_without_rerun_names_the_extra(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rerun", None)
    sentence = error_sentence(demerit_here("export", tmp_path / "set", tmp_path / "a.rrd", "--to", "rerun"))
    assert "demerit[rerun]" in sentence and not (tmp_path / "a.rrd").exists()
    error_sentence(demerit_here("export", tmp_path / "set", tmp_path / "a.rrd", "--to", "rosbag"))
