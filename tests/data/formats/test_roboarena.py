import pickle

import numpy as np
import pytest
import yaml

from demerit.data.dataset import SOURCES, Dataset, DatasetReader, Problem
from demerit.data.episode import Episode, Preference
from demerit.data.formats.roboarena import RoboArenaReader
from demerit.errors import BadInput
from fakes.tiny_video import bright_below, problem_facts, put_video

SESSION = {
    "language_instruction": "put the cup on the plate",
    "preference": "A",
    "longform_feedback": "A was faster",
    "evaluator_name": "Ada",
    "evaluation_location": "Oslo",
    "session_creation_timestamp": "2025_06_01",
    "session_completion_timestamp": "2025_06_02",
}
LAYOUTS = {
    2025: {"left": "u_video_left.mp4", "right": "u_video_right.mp4", "wrist": "u_video_wrist.mp4"},
    2026: {"left": "left_shoulder.mp4", "right": "right_shoulder.mp4", "wrist": "wrist.mp4"},
}


def judged(name="pi0", binary=1, partial=0.8, **more):
    return {"policy_name": name, "binary_success": binary, "partial_success": partial, "duration": 12.5, **more}


def add_session(
    root, uuid, policies, folders=("A_pi0", "B_dp"), *, layout=2025, cameras=("left", "right", "wrist"), **names
):
    session = root / "evaluation_sessions" / uuid
    for folder in folders:
        (session / folder).mkdir(parents=True)
        for camera in cameras:
            put_video(session / folder / LAYOUTS[layout][camera])
    session.mkdir(parents=True, exist_ok=True)
    metadata = {name: value for name, value in {**SESSION, **names}.items() if value is not ...}
    (session / "metadata.yaml").write_text(yaml.safe_dump({**metadata, "policies": policies}))
    return session


def read(root, **options):
    records = list(RoboArenaReader(str(root), **options).records())
    episodes = {record.id: record for record in records if isinstance(record, Episode)}
    preferences = [record for record in records if isinstance(record, Preference)]
    return episodes, preferences, [record for record in records if isinstance(record, Problem)]


@pytest.mark.parametrize("layout", [2025, 2026])
def test_both_layouts_give_the_same_episodes(tmp_path, layout):
    root = tmp_path / "DataDump"
    add_session(root, "s1", {"A": judged(), "B": judged("dp", 0, 0.25)}, layout=layout)
    (root / "global_metadata.yaml").write_text("policy_index: {pi0: {open_source: true, action_space: joint}}")
    reader = SOURCES.factory("roboarena")(str(root))
    assert isinstance(reader, DatasetReader)
    assert (reader.name, reader.expected()) == ("DataDump", 2)

    episodes, preferences, problems = read(root)
    assert problems == []
    assert preferences == [Preference("s1/A", "s1/B", "a", "human", why="A was faster", by="Ada")]
    first, second = episodes["s1/A"], episodes["s1/B"]
    assert first.instruction == "put the cup on the plate"
    outcome = first.outcome
    assert (outcome.source, outcome.by, outcome.note) == ("human", "Ada", "A was faster")
    assert (outcome.success, outcome.progress) == (True, 0.8)
    assert (second.outcome.success, second.outcome.progress) == (False, 0.25)
    origin = first.origin
    assert (origin.dataset, origin.licence, origin.embodiment) == ("DataDump", "MIT", "DROID (Franka)")
    assert (origin.site, origin.group) == ("Oslo", "s1")
    policy = {"policy": "pi0", "letter": "A", "duration": "12.5", "open_source": "True", "action_space": "joint"}
    policy |= {"perspective": "exocentric"}
    assert "perspective" not in first.with_camera("wrist").origin.tags  # the tag is that of the former camera
    assert origin.tags == policy | {name: value for name, value in SESSION.items() if name.endswith("timestamp")}
    upright = {name: bool(bright_below(view)) for name, view in first.views.items()}
    assert list(upright.items()) == [("left", True), ("right", True), ("wrist", False)]  # the wrist is turned by 180
    assert second.origin.tags["policy"] == "dp"
    assert "action_space" not in second.origin.tags


def test_order_and_verdicts(tmp_path):
    policies = {"B": judged("dp"), "C": judged("x"), "A": judged()}
    for uuid, given in (("s3", "TIE"), ("s2", "tie"), ("s1", "B")):
        add_session(tmp_path, uuid, policies, ["C_x", "B_dp", "A_pi0"], preference=given)
    episodes, preferences, _ = read(tmp_path)
    assert list(episodes) == [f"s{number}/{letter}" for number in (1, 2, 3) for letter in "ABC"]
    assert [preference.verdict for preference in preferences] == ["b", "tie", "tie"]
    assert list(read(tmp_path / "evaluation_sessions")[0]) == list(episodes)


def test_null_entries(tmp_path):
    add_session(tmp_path, "s1", {"A": None, "B": judged("dp"), "D": None}, folders=["A_pi0", "B_dp", "C_x"])
    episodes, preferences, problems = read(tmp_path)
    policies = {id: episode.origin.tags["policy"] for id, episode in episodes.items()}
    assert policies == {"s1/A": "pi0", "s1/B": "dp", "s1/C": "x"}
    assert episodes["s1/A"].outcomes == episodes["s1/C"].outcomes == ()
    assert len(preferences) == 1
    assert problem_facts(problems) == [
        ("null policy entry", "s1/A", True),
        ("null policy entry", "s1/C", True),
        ("missing video", "s1/D", False),
    ]


def test_missing_empty_and_linked_videos(tmp_path):
    dump, both = tmp_path / "dump", {"A": judged(), "B": judged("dp")}
    add_session(dump, "s1", both, cameras=["right", "wrist"])
    for path in (add_session(dump, "s2", both) / "B_dp").iterdir():
        path.unlink()
    folder = add_session(dump, "s3", {"A": judged()}, folders=["A_pi0"], preference="C") / "A_pi0"
    (folder / "u_video_left.mp4").write_bytes(b"")
    (folder / "u_video_wrist.mp4").unlink()
    (folder / "u_video_wrist.mp4").symlink_to(put_video(tmp_path / "private.mp4"))
    episodes, preferences, problems = read(dump)
    assert {id: episode.main_camera for id, episode in episodes.items()} == {
        **{"s1/A": "right", "s1/B": "right"},
        **{"s2/A": "left", "s3/A": "right"},
    }
    assert list(episodes["s3/A"].views) == ["right"]
    assert [preference.a for preference in preferences] == ["s1/A"]
    assert problem_facts(problems) == [
        *[("missing left camera", f"s1/{letter}", True) for letter in "AB"],
        ("missing video", "s2/B", False),
        ("dangling preference", "s2", True),
        ("empty video", "s3/A", True),
        ("path leaves the folder", "s3/A", True),
        ("bad preference", "s3", True),
    ]


def test_unreadable_metadata_is_counted_by_rollout(tmp_path):
    malformed = ["policies: [", "policies: 3", "language_instruction: push"]
    malformed += ["session_creation_timestamp: 2025-13-45", "!!python/object/apply:os.getcwd []"]
    (add_session(tmp_path, "s0", {}) / "metadata.yaml").unlink()
    for number, content in enumerate(malformed, 1):
        (add_session(tmp_path, f"s{number}", {}) / "metadata.yaml").write_text(content)
    episodes, preferences, problems = read(tmp_path)
    assert (episodes, preferences) == ({}, [])
    assert problem_facts(problems) == [
        (f"{'malformed' if number else 'missing'} metadata", f"s{number}/{letter}", False)
        for number in range(6)
        for letter in "AB"
    ]


def test_labels_out_of_range_are_unknown(tmp_path):
    policies = {"A": judged(partial=70), "B": judged("dp", binary=3, partial=0.5), "C": judged("x", "no", -1)}
    add_session(tmp_path, "s1", policies, folders=["A_pi0", "B_dp", "C_x"])
    episodes, _, problems = read(tmp_path)
    outcomes = {id: (episode.outcome.success, episode.outcome.progress) for id, episode in episodes.items()}
    assert outcomes == {"s1/A": (True, None), "s1/B": (None, 0.5), "s1/C": (False, None)}
    assert problem_facts(problems) == [("bad label", f"s1/{letter}", True) for letter in "ABC"]


def test_missing_fields_are_counted(tmp_path):
    session = add_session(tmp_path, "s1", {"A": {"duration": 3}}, folders=["A_pi0"])
    (session / "metadata.yaml").write_text("policies: {A: {duration: 3}}")
    dataset = Dataset(RoboArenaReader(tmp_path))
    (episode,) = dataset
    assert (episode.instruction, episode.outcomes, episode.origin.tags["policy"]) == ("", (), "pi0")
    absent = {*SESSION, "policy_name", "binary_success", "partial_success"} - {"language_instruction"}
    kinds = ["empty instruction", *(f"absent {name}" for name in absent)]
    assert dict(dataset.problems.counts) == {(kind, True): 1 for kind in kinds}


def test_bad_folders(tmp_path):
    with pytest.raises(BadInput, match="evaluation_sessions"):
        RoboArenaReader(tmp_path)
    add_session(tmp_path, "s1", {"A": judged(), "B": judged("dp")})
    (tmp_path / "global_metadata.yaml").write_text("policy_index: [")
    episodes, _, problems = read(tmp_path)
    assert len(episodes) == 2
    assert problem_facts(problems) == [("malformed metadata", "global_metadata.yaml", True)]


class Trap:
    """Unpickling one of these creates a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_pickles_need_permission(tmp_path):
    session = add_session(tmp_path, "s1", {"A": judged(), "B": judged("dp")})
    sprung = tmp_path / "sprung"
    for folder in ("A_pi0", "B_dp"):
        np.savez(session / folder / "u_npz_file.npz", data=np.array([Trap(sprung)], dtype=object))
    for episode in read(tmp_path)[0].values():
        assert episode.signals == {}
        assert len(episode) == 4
        episode.fingerprint()
        episode.select([0, 1])
    assert not sprung.exists()

    allowed = read(tmp_path, allow_pickle=True)[0]["s1/A"]
    assert not sprung.exists()  # not before somebody asks for the signals
    with pytest.raises(BadInput, match="npz"):
        list(allowed.signals)
    assert sprung.exists()  # so the trap above was a real one


def test_allowed_signals_load_on_access(tmp_path):
    session = add_session(tmp_path, "s1", {"A": judged(), "B": judged("dp")}, layout=2026)
    steps = [
        {"joint_position": np.full(7, i), "gripper_position": 0.5 * i, "action": np.ones(8), "note": "x"}
        for i in range(4)
    ]
    np.savez(session / "A_pi0" / "proprio_and_actions.npz", data=np.array(steps, dtype=object))
    episodes, _, problems = read(tmp_path, allow_pickle=True)
    signals = pickle.loads(pickle.dumps(episodes["s1/A"].signals))  # workers receive episodes this way
    assert {name: values.shape for name, values in signals.items()} == {
        "joint_position": (4, 7),
        "gripper_position": (4, 1),
        "action": (4, 8),
    }
    np.testing.assert_array_equal(signals["joint_position"][:, 0], [0, 1, 2, 3])
    assert problem_facts(problems) == [("missing signals", "s1/B", True)]
