"""Marks: who gets which, logs that are torn, and the three ways to find an episode: file times, stamps, order."""

import json
import os
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demerit.data.episode import Episode, Event
from demerit.data.formats import open_dataset
from demerit.data.formats.marks import (
    VERDICTS,
    WORDS,
    Mark,
    apply_undos,
    find_by_order,
    find_by_time,
    join_marks,
    read_log,
    read_mark,
)
from demerit.data.formats.videos import read_time
from demerit.data.importing import import_dataset
from demerit.data.store import Store
from demerit.data.taxonomy import UNKNOWN
from demerit.errors import BadInput, DemeritError, UnknownName
from fakes.bag import SECOND, START, BagWriter, pictures
from fakes.command import demerit_here, error_sentence
from fakes.lerobot_fixture import write_v21
from fakes.tiny_video import put_video, write_lines

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC).timestamp()
TENTH = SECOND // 10
ATS = st.integers(0, 60).map(float)


def press(word, seconds, by="Ada", run="a", drift=0.0):
    """A line of a log, seconds after noon."""
    at = datetime.fromtimestamp(NOON + seconds, UTC).isoformat()
    return {"mark": word, "at": at, "monotonic": seconds - drift, "by": by, "run": run}


def put_log(path, *presses):
    write_lines(path, *(press(*one) if isinstance(one, tuple) else one for one in presses))
    return path


def put_run(folder, name, closed):
    """Put a video of 0.3 s (four frames), whose file was closed so many seconds after noon."""
    path = put_video(folder / f"{name}.mp4")
    os.utime(path, (NOON + closed, NOON + closed))


def labels_of(dataset):
    return {
        episode.id: [(one.by, one.success, one.events) for one in episode.outcomes if one.source == "human"]
        for episode in dataset
    }


def kinds_of(dataset):
    return {kind: count for (kind, _), count in dataset.problems.counts.items() if kind != "empty instruction"}


# Who gets which


@given(st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from("ab"), st.sampled_from("xy"))))
def test_an_undo_drops_the_last_mark_of_its_own_run_and_person(presses):
    marks = [Mark(word, float(at), by, run) for at, (word, by, run) in enumerate(presses)]
    stacks = {}
    for mark in marks:
        own = stacks.setdefault((mark.by, mark.run), [])
        if mark.word != "undo":
            own.append(mark)
        elif own:
            own.pop()
    assert apply_undos(marks) == sorted((one for own in stacks.values() for one in own), key=lambda one: one.at)


@given(
    st.lists(st.tuples(st.sampled_from(WORDS[:4]), ATS), max_size=8),
    st.lists(st.tuples(ATS, ATS.map(lambda length: length / 4)), max_size=5),
    ATS.map(lambda late: late / 4),
)
def test_a_mark_has_one_episode_by_time_or_a_reason(presses, runs, late):
    spans = [(start, start + length) for start, length in runs]
    marks = [Mark(word, at, run=str(place)) for place, (word, at) in enumerate(presses)]
    found, lost = find_by_time(marks, spans, late)
    assert sum(map(len, found)) + len(lost) == len(marks)
    for mark in marks:
        around = [place for place, (start, end) in enumerate(spans) if start <= mark.at <= end]
        if not around and mark.word in VERDICTS:
            ended = max((end for _, end in spans if end < mark.at), default=-1e9)
            around = [place for place, (_, end) in enumerate(spans) if end == ended and mark.at - ended <= late]
        expected = around if len(around) == 1 else []
        assert [place for place, own in enumerate(found) if mark in own] == expected


@given(st.lists(st.sampled_from(WORDS[:4]), max_size=9), st.integers(0, 9))
def test_by_order_every_episode_gets_a_verdict_or_none_does(words, count):
    marks = [Mark(word, float(place)) for place, word in enumerate(words)]
    found, lost = find_by_order(marks, count)
    said = [mark for mark in marks if mark.word in VERDICTS]
    kept = [mark for mark in said if mark.word != "retake"]
    joined = [mark for own in found for mark in own]
    assert len(found) == count and joined in ([], said, kept)
    assert not count or (len(joined) == count) == (count in (len(said), len(kept)))
    unused = bool(said) and count not in (len(said), len(kept))
    assert len(lost) == words.count("event") + unused


def episode(id="run"):
    return Episode.from_array(pictures(11), id=id)


def judge(*marks):
    records = list(join_marks([episode()], [Mark(*one) for one in marks], lambda _: (100.0, 101.0), 60, "log"))
    return [one for one in records if isinstance(one, Episode)], [
        one for one in records if not isinstance(one, Episode)
    ]


def test_verdicts_and_events_of_several_people_are_labels_of_each():
    ((one,), problems) = judge(
        ("success", 101.5, "Ada"), ("success", 102.0, "Ada"), ("event", 100.52, "Bo"), ("failure", 101.0, "Bo")
    )
    assert not problems
    assert [(label.source, label.by, label.success, label.events) for label in one.outcomes] == [
        ("human", "Ada", True, ()),
        ("human", "Bo", False, (Event(UNKNOWN, 5, 5),)),
    ]


@pytest.mark.parametrize(
    "marks",
    [
        [("success", 100.5, "Ada"), ("failure", 101.0, "Ada")],
        [("retake", 100.5, "Ada"), ("failure", 101.0, "Ada")],
        [("retake", 100.5, "Ada"), ("failure", 101.0, "Bo")],
    ],
)
def test_several_verdicts_of_an_episode_are_listed_and_none_is_used(marks):
    (one,), (problem,) = judge(*marks)
    assert one.outcomes == () and (problem.kind, problem.kept) == ("several verdicts", True)


def test_a_retake_is_left_out():
    episodes, (problem,) = judge(("event", 100.5, "Ada"), ("retake", 101.5, "Ada"))
    assert episodes == [] and (problem.kind, problem.episode, problem.kept) == ("retake", "run", False)


@pytest.mark.parametrize("value", ["sucess", "", None, 1, {"mark": "success", "bye": 1}, {"by": "Ada"}])
def test_what_is_no_mark_is_refused(value):
    with pytest.raises(UnknownName):
        read_mark(value)
    with pytest.raises(BadInput):
        read_mark({"mark": "success", "by": ["Ada"]})
    assert read_mark({"mark": " Success ", "by": " Ada "}) == ("success", "Ada")


# Logs


def test_a_log_is_read_around_torn_lines_and_a_clock_that_was_set(tmp_path):
    naive = press("success", 3) | {"at": "2026-11-18T12:00:03"}
    lines = [("success", 1), '{"mark": "fail', naive, ("undo", 4), ("failure", 5), ("retake", 8, "Ada", "a", 2.5)]
    marks, problems = read_log(put_log(tmp_path / "marks.jsonl", *lines))
    assert [(mark.word, mark.at - NOON, mark.by) for mark in marks] == [("failure", 5, "Ada"), ("retake", 8, "Ada")]
    assert [(one.kind, one.kept) for one in problems] == [
        ("malformed line", True),
        ("malformed line", True),
        ("clock jump", True),
    ]
    with pytest.raises(BadInput):
        read_log(tmp_path / "none.jsonl")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_log_or_problems(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("logs") / "marks.jsonl"
    path.write_bytes(content)
    assert not read_log(path)[0]


# Videos


def test_videos_by_the_times_of_their_files(tmp_path):
    for place, closed in enumerate((10, 20, 30, 40)):
        put_run(tmp_path / "runs", f"run_{place}", closed)
    log = put_log(
        tmp_path / "marks.jsonl",
        ("failure", 1),  # before the first
        ("event", 9.9),  # the third of four frames, a tenth apart
        ("failure", 12),
        ("success", 19.9),
        ("retake", 31),
        ("event", 35),  # between two
        ("success", 200),  # long after
    )
    dataset = open_dataset(tmp_path / "runs", marks=log)
    assert labels_of(dataset) == {
        "run_0": [("Ada", False, (Event(UNKNOWN, 2, 2),))],
        "run_1": [("Ada", True, ())],
        "run_3": [],
    }
    assert kinds_of(dataset) == {"mark of no episode": 3, "retake": 1}
    later = open_dataset(tmp_path / "runs", marks=log, late="170")
    assert labels_of(later)["run_3"] == [("Ada", True, ())]
    with pytest.raises(BadInput):
        list(open_dataset(tmp_path / "runs", marks=log, late="soon"))


def named(seconds):
    return f"run {datetime.fromtimestamp(NOON + seconds):%Y-%m-%d_%H-%M-%S}"


def test_videos_by_the_times_in_their_names(tmp_path):
    put_run(tmp_path / "runs", named(0), 5)
    put_run(tmp_path / "runs", named(60), 65)
    log = put_log(tmp_path / "marks.jsonl", ("event", 0.1), ("success", 2), ("failure", 70))
    expected = {named(0): [("Ada", True, (Event(UNKNOWN, 1, 1),))], named(60): [("Ada", False, ())]}
    assert labels_of(open_dataset(tmp_path / "runs", marks=log)) == expected
    for closed in (3600, -3600):  # a copy, another time zone
        put_run(tmp_path / "runs", named(60), closed)
        with pytest.raises(BadInput):
            list(open_dataset(tmp_path / "runs", marks=log))
        assert labels_of(open_dataset(tmp_path / "runs", marks=log, times="name")) == expected
        by_file = labels_of(open_dataset(tmp_path / "runs", marks=log, times="file"))
        assert by_file[named(60)] == []
    put_run(tmp_path / "runs", "take 3", 65)
    with pytest.raises(BadInput):
        list(open_dataset(tmp_path / "runs", marks=log, times="name"))
    with pytest.raises(BadInput):
        open_dataset(tmp_path / "runs", times="names")


def test_dates_that_do_not_exist_and_other_numbers_are_no_times():
    for name in ("run_3", "2026-13-18_14-03-22", "20261118", "12026-11-18_14-03-22", "2026-11-18_14-03-221"):
        assert read_time(name) is None
    assert read_time("OBS 2026-11-18 14.03.22 left") == read_time("VID_20261118_140322")


def test_a_video_that_cannot_be_read_still_takes_its_verdict(tmp_path):
    put_run(tmp_path / "runs", "a", 10)
    put_run(tmp_path / "runs", "b", 20)
    (tmp_path / "runs" / "b.mp4").write_bytes(b"no video")
    os.utime(tmp_path / "runs" / "b.mp4", (NOON + 20, NOON + 20))
    log = put_log(tmp_path / "marks.jsonl", ("event", 20), ("failure", 22))
    dataset = open_dataset(tmp_path / "runs", marks=log)
    assert labels_of(dataset) == {"a": [], "b": [("Ada", False, ())]}
    assert kinds_of(dataset) == {"mark of no frame": 1}


def test_an_import_keeps_the_labels_whatever_happens_to_the_files_times(tmp_path):
    put_run(tmp_path / "runs", "a", 10)
    log = put_log(tmp_path / "marks.jsonl", ("failure", 12), ("event", 40))
    done = demerit_here("import", tmp_path / "runs", tmp_path / "set", "--with", f"marks={log}")
    assert done.returncode == 0 and "1 marks" not in done.stdout
    os.utime(tmp_path / "runs" / "a.mp4", (NOON + 9999, NOON + 9999))
    store = Store(tmp_path / "set")
    assert labels_of(store.episodes()) == {"a": [("Ada", False, ())]}
    assert "mark of no episode" in {problem.kind for problem in store.problems()}


def test_an_import_lists_every_mark_that_fits_nothing(tmp_path):
    put_run(tmp_path / "runs", "a", 10)
    log = put_log(tmp_path / "marks.jsonl", *(("event", 40 + place) for place in range(3)))
    printed = demerit_here("import", tmp_path / "runs", tmp_path / "set", "--with", f"marks={log}").stdout
    for place in range(3):
        assert f"{datetime.fromtimestamp(NOON + 40 + place):%H:%M:%S}" in printed


def test_where_marks_cannot_be_joined_an_error_says_so(tmp_path):
    put_run(tmp_path / "runs", "a", 10)
    put_run(tmp_path / "more", "a", 10)
    log = put_log(tmp_path / "marks.jsonl", ("failure", 12))
    import_dataset(open_dataset(tmp_path / "runs"), tmp_path / "set")
    for folders in ([tmp_path / "set"], [tmp_path / "runs", tmp_path / "more"]):
        with pytest.raises(BadInput):
            open_dataset(folders, marks=log)
    error_sentence(demerit_here("inspect", tmp_path / "runs", "--with", f"marks={tmp_path / 'none'}"))
    with pytest.raises(DemeritError):
        list(open_dataset(tmp_path / "runs", strict=True, instruction="x", marks=put_log(log, ("event", 400))))


# LeRobot: by order


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("success failure success", {0: True, 1: False, 2: True}),
        ("success failure undo failure retake success", {0: True, 1: False, 2: True}),  # the recorder dropped it too
        ("success retake failure", {0: True, 2: False}),
        ("success failure", None),
        ("success failure success failure", None),
        ("success retake", None),
    ],
)
def test_verdicts_of_lerobot_episodes_go_by_order_if_the_numbers_agree(tmp_path, words, kept):
    root = write_v21(tmp_path / "set", [4, 4, 4])
    log = put_log(tmp_path / "marks.jsonl", *((word, place) for place, word in enumerate(words.split())))
    dataset = open_dataset(root, marks=log)
    ids = [f"set/episode_{place:06d}" for place in range(3)]
    found = labels_of(dataset)
    if kept is None:
        assert found == {id: [] for id in ids} and kinds_of(dataset) == {"mark of no episode": 1}
    else:
        assert found == {ids[place]: [("Ada", success, ())] for place, success in kept.items()}
        assert kinds_of(dataset) == ({} if len(kept) == 3 else {"retake": 1})


# Bags: by stamps


def put_marked_bag(path, texts, topic="/mark"):
    """Three episodes of 0.9 s, 10 s apart, and marks: (seconds, text)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with BagWriter(path) as bag:
        for run in range(3):
            for place, image in enumerate(pictures(10)):
                bag.raw("/cam/image_raw", run * 10 * SECOND + place * TENTH, image)
        for seconds, text in texts:
            bag.text(topic, int(seconds * SECOND), text)
    return path


def test_marks_in_a_bag_are_labels_of_its_episodes(tmp_path):
    bag = put_marked_bag(
        tmp_path / "bags" / "run",
        [
            (0.52, "event"),
            (5, "failure"),
            (6, "success"),
            (7, "undo"),
            (10.4, json.dumps({"mark": "success", "by": "Ada"})),
            (29, "RETAKE"),
            (30, "great"),
            (31, '{"mark": "success", "age": 3}'),
        ],
    )
    dataset = open_dataset(bag, gap=5)
    assert labels_of(dataset) == {
        "run/0": [("", False, (Event(UNKNOWN, 5, 5),))],
        "run/1": [("Ada", True, ())],
    }
    assert kinds_of(dataset) == {"retake": 1, "unknown mark": 2}
    import_dataset(dataset, tmp_path / "set")
    assert labels_of(Store(tmp_path / "set").episodes()) == labels_of(dataset)


def test_the_topic_of_marks_may_have_another_name_and_other_bags_are_as_before(tmp_path):
    bag = put_marked_bag(tmp_path / "run", [(1, "success")], "/operator/says")
    assert labels_of(open_dataset(bag)) == {"run": []}
    assert labels_of(open_dataset(bag, mark_topic="/operator/says")) == {"run": [("", True, ())]}


def test_a_log_beside_bags_goes_by_their_stamps(tmp_path):
    bag = put_marked_bag(tmp_path / "run", [])
    begun = START / SECOND - NOON
    log = put_log(tmp_path / "marks.jsonl", ("failure", begun + 2), ("event", begun + 10.1), ("success", begun + 25))
    dataset = open_dataset(bag, gap=5, marks=log)
    assert labels_of(dataset) == {
        "run/0": [("Ada", False, ())],
        "run/1": [("Ada", None, (Event(UNKNOWN, 1, 1),))],
        "run/2": [("Ada", True, ())],
    }
