"""Labels and targets: what is read from a dataset, what is refused or skipped, and a target per frame."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from demerit.data.dataset import Record
from demerit.data.episode import NOT_A_MODEL, Episode, Event, Outcome, Preference
from demerit.data.splits import LabelSelection
from demerit.errors import BadInput, NotApplicable
from demerit.models.taught.features import stride_indices
from demerit.negatives import load_negative
from demerit.training.teach.data import TeachConfig, TeachData, TeachLabel, gather_data, targets_of
from demerit.training.teach.features import EmbeddedEpisode
from demerit.training.teach.training_set import group_episodes, move_label, name_tasks
from fakes import lesson_data as data


def gather(records: Sequence[Record]) -> TeachData:
    return gather_data(data.dataset(records))


def relabel(episode: Episode, *outcomes: Outcome, **changes: object) -> Episode:
    return replace(episode, outcomes=outcomes, **changes)


SUCCEEDED, FAILED = Outcome("human", success=True), Outcome("human", success=False)


def same_video_twice(number: int) -> list[Episode]:
    episode = data.episode(True, number, data.verdict)
    return [episode, relabel(episode, FAILED, id=f"again-{number}")]


@pytest.mark.parametrize(
    ("records", "word"),
    [
        ([], "none"),
        (data.episodes(3, 3, data.unlabelled), "none labelled"),
        ([data.episode(True, 0), data.episode(False, 1, data.unlabelled)], "1 labelled"),
        (data.episodes(0, 4, data.verdict), "success"),
        ([relabel(one, Outcome("model", success=True)) for one in data.episodes(2, 2)], "4 model "),
        ([relabel(one, Outcome("human", curve=np.full(24, 0.4))) for one in data.episodes(2, 2)], "0.4"),
        ([*same_video_twice(0), *same_video_twice(1)], "contradict"),
        ([relabel(data.episode(True, 0), SUCCEEDED, FAILED)], "another that it failed"),
    ],
)
def test_too_little_to_teach_from_is_refused(records: Sequence[Record], word: str) -> None:
    with pytest.raises(BadInput, match=word) as caught:
        gather(records)
    assert caught.value.what == "squares:memory"


def in_split(episodes: Sequence[Episode], split: str) -> list[Episode]:
    return [replace(one, origin=replace(one.origin, split=split)) for one in episodes]


def test_nothing_is_taught_from_a_test_split_unless_forced() -> None:
    train, later, test = data.episodes(3, 3), data.episodes(1, 1, first=10), data.episodes(2, 2, first=20)
    records = [*train, *in_split(later, "val"), *in_split(test, "test")]
    found = gather(records)
    assert {one.id for one in found.taught} == {one.id for one in (*train, *later)} and not found.unlabelled
    assert any("4 episodes of a test split" in note for note in found.notes)
    assert len(gather_data(data.dataset(records), limit=8).taught) == 8  # a limit counts what may be taught
    with pytest.raises(BadInput, match="--use-test-split"):
        gather(in_split(test, "held_out"))
    forced = gather_data(data.dataset(records), selection=LabelSelection(use_test_split=True))
    assert len(forced.taught) == 12


def test_labels_of_models_teach_only_when_asked() -> None:
    checked, opinion = (Outcome("model", success=False, by=by) for by in ("a, validated by b", "a"))
    others = [
        relabel(one, outcome) for one, outcome in zip(data.episodes(0, 2, first=9), (checked, opinion), strict=True)
    ]
    said = Preference("good-0", "good-1", "a", "model", by="a, validated by b")
    records = [*data.episodes(2, 2, data.verdict), *others, said]
    found = gather(records)
    assert len(found.labels) == 4 and not found.preferences
    asked = gather_data(data.dataset(records), selection=LabelSelection((*NOT_A_MODEL, "model:validated")))
    assert set(asked.labels) - set(found.labels) == {others[0].id} and asked.preferences == (said,)
    assert any("2 model:validated; not used: 1 model" in note for note in asked.notes)


def test_contradictory_labels_are_skipped_unless_one_source_is_more_trusted() -> None:
    found = gather([*data.episodes(3, 3, first=10), *same_video_twice(0)])
    assert len(found.taught) == 6 and found.notes
    assert set(found.conflicts) == {"good-0", "again-0"}
    settled = relabel(data.episode(True, 0), Outcome("rule", success=False), SUCCEEDED)
    found = gather([settled, *data.episodes(2, 2, first=5)])
    assert found.labels["good-0"].success is True and not found.conflicts
    odd = relabel(data.episode(True, 0), Outcome("human", success=True, progress=0.2))
    assert "good-0" in gather([odd, *data.episodes(2, 2, first=5)]).notes[0]
    both = [Preference("good-0", "bad-0", "a", "human"), Preference("good-0", "bad-0", "b", "human")]
    assert gather([*data.episodes(2, 2), *both]).preferences == ()


def test_groups_share_a_session_an_original_or_a_video() -> None:
    episodes = data.episodes(3, 1)
    child = replace(episodes[0], id="child", origin=replace(episodes[0].origin, group="", parent="good-1"))
    copy = replace(episodes[2], id="copy", origin=replace(episodes[2].origin, group="elsewhere"))
    alone = data.episode(False, 9)
    embedded = [EmbeddedEpisode(one, 24, stride_indices(24, 1), {}) for one in (*episodes, child, copy, alone)]
    groups = dict(zip((one.id for one in embedded), group_episodes(embedded), strict=True))
    assert groups["good-0"] == groups["child"] == groups["good-1"]
    assert groups["copy"] == groups[episodes[2].id]
    assert len(set(groups.values())) == 4
    # counted without sessions: what was made from a recording is no other recording
    varied = load_negative("crop").make_with_seed(alone, 0)
    apart = replace(varied, id="apart", origin=replace(varied.origin, parent="", group=""))  # as of another folder
    embedded += [EmbeddedEpisode(one, 24, stride_indices(24, 1), {}) for one in (varied, apart)]
    counted = dict(zip((one.id for one in embedded), group_episodes(embedded, with_sessions=False), strict=True))
    assert counted[alone.id] == counted[varied.id] == counted["apart"]
    assert len(set(counted.values())) == 4
    monday = [replace(one, origin=replace(one.origin, group="monday")) for one in data.episodes(2, 0)]
    together = [EmbeddedEpisode(one, 24, stride_indices(24, 1), {}) for one in monday]
    assert [len(set(group_episodes(together, with_sessions=sessions))) for sessions in (True, False)] == [1, 2]


def test_instructions_that_may_mean_the_same_share_a_task() -> None:
    names = name_tasks(["open the drawer", "pull the drawer open", "close the drawer"])
    assert names["open the drawer"] == names["pull the drawer open"] != names["close the drawer"]


curves = hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(0, 1, width=32) | st.just(float("nan")))
labels = st.builds(
    TeachLabel,
    success=st.none() | st.booleans(),
    progress=st.none() | st.floats(0, 1),
    grade=st.none() | st.integers(1, 5),
    curve=st.none() | curves.filter(lambda curve: not np.isnan(curve).all()),
    events=st.tuples() | st.tuples(st.builds(Event, st.just("dropped"), st.integers(0, 20), st.integers(20, 60))),
)


@given(labels, st.integers(1, 60), st.integers(2, 32))
def test_targets_are_in_range_and_equal_the_labels(label: TeachLabel, length: int, rows: int) -> None:
    if label.curve is not None:
        length = len(label.curve)
    config = TeachConfig(rows=rows)
    try:
        targets = targets_of(label, length, config)
    except NotApplicable:
        assert not label.known
        return
    known = targets.origin > 0
    assert len(targets) == length
    assert np.array_equal(np.isnan(targets.value), ~known) and np.array_equal(np.isnan(targets.done), ~known)
    assert ((targets.value[known] >= 0) & (targets.value[known] <= 1)).all()
    at, weight = targets.choose_rows(config.rows, config.last)
    assert known[at].all() and (weight > 0).all() and len(np.unique(at)) == len(at)
    assert weight.sum() <= sum(getattr(config.weights, origin) for origin in targets.origins) + 1e-9
    if label.curve is not None:
        labelled = ~np.isnan(label.curve)
        assert np.allclose(targets.value[labelled], label.curve[labelled])
        assert targets.origins[0] in {"measured", "marked"}
    elif label.verdict is False and label.end is None:
        assert targets.capped[-1] and (targets.value[-1], targets.done[-1]) == (config.cap, 0)


def test_a_verdict_sets_the_end_and_interpolates_from_the_start() -> None:
    good = targets_of(TeachLabel(success=True), 20)
    assert good.origins == ("end", "start", "made_up")
    assert good.value[0] == 0 and (good.value[-3:] == 1).all() and (np.diff(good.value) >= 0).all()
    assert good.done[-3:].all() and not good.done[:15].any()
    bad = targets_of(TeachLabel(success=False), 20)
    assert bad.origins == ("start", "capped") and np.isnan(bad.value[5])
    graded = targets_of(TeachLabel(grade=3), 20)
    assert (graded.value[-1], graded.done[-1]) == (0.5, 0)


@given(length=st.integers(1, 90), success=st.booleans())
def test_a_flag_of_recordings_that_stop_is_about_their_last_frames(length: int, success: bool) -> None:
    targets = targets_of(TeachLabel(success=success), length, stops=True)
    share = np.arange(length) / max(1, length - 1)
    last = np.arange(length) >= length - 2
    known = last | (share < 0.8)
    assert (targets.origin > 0).tolist() == known.tolist()  # what lies between is not called anything
    assert targets.done[known].tolist() == (last & success)[known].astype(float).tolist()
    assert not np.isnan(targets.value[known]).any() and bool((targets.capped[last] != success).all())
    assert length < 4 or bool((np.diff(targets.value[share < 0.8]) >= 0).all())


def test_a_failure_event_caps_the_frames_after_it() -> None:
    event = (Event("dropped", 8, 10),)
    failed = targets_of(TeachLabel(success=False, events=event), 20)
    assert failed.capped[8:].all() and not failed.capped[:8].any()
    assert targets_of(TeachLabel(events=event), 20).capped[10:].all()
    assert np.allclose(targets_of(TeachLabel(progress=0.4, events=event), 20).value[8:], 0.4)


def test_labels_move_to_the_nearest_frame_used() -> None:
    curve = np.full(9, np.nan, dtype=np.float32)
    curve[[1, 4, 8]] = (0.1, 0.5, 1.0)
    moved = move_label(TeachLabel(curve=curve, events=(Event("dropped", 4, 5),)), stride_indices(9, 3), 9)
    assert moved.curve is not None
    assert np.array_equal(moved.curve, np.array([0.1, 0.5, np.nan, 1.0], np.float32), equal_nan=True)
    assert (moved.events[0].first, moved.events[0].last) == (1, 2)
