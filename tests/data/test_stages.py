"""Stages: what they say about progress, how label files write them, and how folders keep them."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demerit.data.dataset import Problem
from demerit.data.episode import Episode, Outcome
from demerit.data.export import label_row
from demerit.data.formats import open_dataset
from demerit.data.formats.label_file import LabelCells, LabelRow, read_outcomes
from demerit.data.frames import Frames
from demerit.data.importing import import_dataset
from demerit.data.parts import MOST_SMALL_PARTS
from demerit.data.stages import StageSpan, mark_stages, place_stages, plan_task, share_progress, trim_stages
from demerit.data.store import Store, label_hash, outcome_row
from demerit.errors import BadInput
from fakes.tiny_video import put_video, write_lines

FRAMES = Frames.from_array(np.zeros((61, 4, 4, 3), np.uint8), 10.0)
REACH, GRASP = StageSpan("reach", 0, 3), StageSpan("grasp", 4, 7)
STAGED = Outcome("human", success=True, stages=(REACH, StageSpan("grasp", 4, 7, 0.25, 1)), by="Ada")
PLAIN = Outcome("human", success=False)

spans = st.lists(st.integers(0, 40), min_size=2, max_size=8, unique=True).map(sorted)


def read_cell(cell: object) -> tuple[tuple[StageSpan, ...], list[Problem]]:
    problems: list[Problem] = []
    outcomes = read_outcomes(LabelCells(LabelRow("labels.csv:2", {"stages": cell})), FRAMES, "e", problems)
    return (outcomes[0].stages if outcomes else ()), problems


@pytest.mark.parametrize(
    "wrong",
    [
        *({"name": " "}, {"first": 4}, {"first": -1}, {"start": 0.5}, {"start": 0.5, "stop": 0.2}),
        *({"start": 0, "stop": 2}, {"start": float("nan"), "stop": 1}),
    ],
)
def test_a_stage_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        StageSpan(**{"name": "reach", "first": 0, "last": 3, **wrong})  # type: ignore[arg-type]


def test_stages_come_one_after_another() -> None:
    assert Outcome("human", stages=(GRASP, REACH)).stages == (REACH, GRASP)
    with pytest.raises(BadInput):
        Outcome("human", stages=(REACH, StageSpan("grasp", 3, 7)))
    assert Outcome("human", stages=(REACH,)) != Outcome("human")
    episode = Episode.from_array(np.zeros((8, 4, 4, 3), np.uint8))
    assert replace(episode, outcomes=(STAGED,)).select([0, 1]).outcomes[0].stages == ()


@given(spans, st.integers(1, 45))
def test_trimmed_spans_fit_the_video_and_keep_their_begins(edges: list[int], length: int) -> None:
    given_ = [StageSpan(str(a), a, b) for a, b in pairwise(edges)]  # each ends where the next begins
    found = trim_stages(given_, length)
    assert [stage.first for stage in found] == [first for first in edges[:-1] if first < length]
    assert all(stage.last < length for stage in found)
    assert all(a.last < b.first for a, b in pairwise(found))


@given(st.dictionaries(st.text(min_size=1), st.floats(0.01, 5), min_size=1, max_size=6))
def test_shares_of_a_task_add_up_to_it(shares: dict[str, float]) -> None:
    plan = share_progress(shares)
    assert list(plan) == list(shares)
    edges = [edge for pair in plan.values() for edge in pair]
    assert edges[0] == 0 and edges[-1] == pytest.approx(1) and edges == sorted(edges)
    for name, (start, stop) in plan.items():
        assert stop - start == pytest.approx(shares[name] / sum(shares.values()), abs=1e-6)


def test_stages_of_a_task_share_its_progress_equally() -> None:
    plan = plan_task([[REACH], [REACH, GRASP, replace(REACH, first=8, last=9), StageSpan("place", 10, 12)], []])
    assert list(plan) == ["reach", "grasp", "place"] and plan["grasp"] == pytest.approx((1 / 3, 2 / 3))
    again = place_stages([REACH, GRASP, replace(REACH, first=8, last=9)], plan, False)
    assert mark_stages(again, 10)[[0, 3, 4, 7, 8, 9]] == pytest.approx([0, 1 / 3, 1 / 3, 2 / 3, 0, 1 / 3])
    assert np.isnan(mark_stages(again, 10)[[1, 2, 5]]).all()


def test_who_has_other_stages_than_the_task_is_placed_only_if_finished() -> None:
    plan, other = plan_task([[REACH, GRASP]]), [StageSpan("throw", 0, 7)]
    assert place_stages(other, plan, is_finished=False) == ()
    assert place_stages(other, plan, is_finished=True) == (StageSpan("throw", 0, 7, 0, 1),)
    stated = [StageSpan("throw", 0, 7, 0.1, 0.4)]
    assert place_stages(stated, plan, is_finished=False) == tuple(stated)


@pytest.mark.parametrize(
    ("cell", "stages"),
    [
        ("reach:0-12 grasp:13-30", "reach:0-12 grasp:13-30"),
        ("move to the cup:0s-1.2s, grasp : 13 - 30; place:31--1", "move to the cup:0-12 grasp:13-30 place:31-60"),
        ('[{"name": "reach", "first": 0, "last": 3}]', "reach:0-3"),
        ([{"name": "reach", "first": 0, "last": -1}], "reach:0-60"),
        ("", ""),
        ("[]", ""),
    ],
)
def test_cells_of_a_label_file(cell: object, stages: str) -> None:
    found, problems = read_cell(cell)
    assert (" ".join(map(str, found)), problems) == (stages, [])


@pytest.mark.parametrize(
    "cell",
    [
        *(
            "reach",
            "reach:0-12 grasp:12-20",
            "reach:0-100",
            "reach:a-b",
            "reach:..-3",
            "reach:9-3",
            "reach:0-3 and",
            "3",
        ),
        *('{"reach": [0, 3]}', '[{"name": "reach"}]', '[{"name": "reach", "first": 0, "last": 3, "colour": 1}]', [1]),
    ],
)
def test_a_bad_cell_is_reported_with_its_place(cell: object) -> None:
    found, (problem,) = read_cell(cell)
    assert found == () and problem.kind == "bad label" and "labels.csv:2, column 'stages'" in problem.detail


def video_episode(folder: Path, number: int, outcome: Outcome) -> Episode:
    put_video(folder / f"{number}.mp4")
    return replace(Episode.from_video(folder / f"{number}.mp4", "lift", str(number)), outcomes=(outcome,))


def test_a_folder_keeps_stages_and_its_other_parts_as_they_were(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "set", "set")
    labels = [STAGED if i % 3 == 0 else PLAIN for i in range(MOST_SMALL_PARTS + 3)]
    for i, label in enumerate(labels):  # a part each, which are merged when there are many
        with store.writer() as writer:
            writer.add(video_episode(tmp_path, i, label))
        part = Store(store.root).manifest.tables["episodes"][-1]
        if part.rows == 1:
            has_stages = "stages" in str(pq.read_schema(store.root / part.file).field("outcomes").type)
            assert has_stages == (label is STAGED)  # folders without stages stay readable by earlier versions
    assert [episode.outcomes for episode in Store(store.root).episodes()] == [(label,) for label in labels]
    with store.writer() as writer:
        writer.relabel({"1": [STAGED], "3": [PLAIN]})
    now = {episode.id: episode.outcomes[0] for episode in Store(store.root).episodes()}
    assert (now["1"], now["3"], now["0"], now["2"]) == (STAGED, PLAIN, STAGED, PLAIN)


def test_an_import_again_follows_the_stages_of_the_label_file(tmp_path: Path) -> None:
    put_video(tmp_path / "videos/0.mp4")
    row = {"video": "0.mp4", "instruction": "lift", "success": True}

    def run(**more: object) -> Outcome:
        write_lines(tmp_path / "videos/labels.jsonl", {**row, **more})
        import_dataset(open_dataset(str(tmp_path / "videos")), tmp_path / "set")
        (episode,) = Store(tmp_path / "set").episodes()
        return episode.outcomes[0]

    assert run().stages == ()
    whole = [{"name": "lift", "first": 0, "last": 3, "start": 0, "stop": 1}]
    stored, (given_now,) = run(stages=whole), next(iter(open_dataset(str(tmp_path / "videos")))).outcomes
    assert label_hash("0", outcome_row(stored)) == label_hash("0", outcome_row(given_now))
    assert run(stages="reach:0-1 grasp:2-3").stages == (StageSpan("reach", 0, 1), StageSpan("grasp", 2, 3))
    assert run(stages="reach:0-2 grasp:3-3").stages == (StageSpan("reach", 0, 2), StageSpan("grasp", 3, 3))
    assert run().stages == ()


def test_an_exported_row_is_read_back() -> None:
    episode = replace(Episode.from_array(np.zeros((8, 4, 4, 3), np.uint8)), outcomes=(STAGED,))
    row = json.loads(json.dumps(label_row(episode, {})))
    found, problems = read_cell(row["stages"])
    assert found == STAGED.stages and not problems
