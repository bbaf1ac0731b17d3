"""Bags as episodes: every storage, every camera, labels, cuts, clocks, and bags that are broken."""

import json
import sqlite3

import numpy as np
import pytest
import yaml
from mcap.writer import Writer
from mcap_ros2.writer import Writer as Ros2Writer
from rosbags.typesys.base import TypesysError

from demerit.data.dataset import SOURCES, DatasetReader
from demerit.data.export import materialize
from demerit.data.formats import detect, open_dataset
from demerit.data.formats.bag_file import BagTopic, _load_types
from demerit.data.formats.bag_frames import CODECS, TrackBuilder, _is_key
from demerit.data.formats.ros import RosReader
from demerit.data.frames import frame_source
from demerit.data.importing import import_dataset
from demerit.data.store import Store
from demerit.data.summary import summarize
from demerit.errors import BadInput, UnreadableVideo
from demerit.use.watch.watcher import files_of
from fakes.bag import SECOND, START, STORAGES, BagWriter, encode_h264, jpeg, pictures, put_bag
from fakes.command import demerit_here
from fakes.tiny_video import problem_facts, put_video, read_records

TENTH = SECOND // 10
CLOSE = {"front": 3, "side": 3, "wrist": 0}
"""mean difference to the original images: H.264, JPEG, raw"""


def read(root, **options):
    return read_records(RosReader(str(root), **options))


def bag_at(root, name="run", storage="mcap"):
    return root / f"{name}.bag" if storage == "bag" else root / name


def one_problem(root, **options):
    episodes, problems = read(root, **options)
    (problem,) = problems
    assert problem.detail and not problem.detail.endswith(".")
    return episodes, problem


@pytest.mark.parametrize("storage", STORAGES)
def test_a_bag_of_every_storage_is_an_episode_with_its_cameras_and_signals(tmp_path, storage):
    path = put_bag(bag_at(tmp_path, storage=storage), storage, task="push the ball")
    assert detect(path) == detect(tmp_path) == "ros"
    assert isinstance(SOURCES.factory("ros")(str(tmp_path)), DatasetReader)
    dataset = open_dataset(path)
    (episode,) = dataset
    assert len(dataset.problems) == 0
    assert (episode.id, episode.instruction, list(episode.views)) == ("run", "push the ball", list(CLOSE))
    for camera, frames in episode.views.items():
        images = frames.all()
        assert np.abs(images.astype(int) - pictures()).mean() <= CLOSE[camera]
        assert np.allclose(frames.times(), np.arange(12) / 10)
        again = frame_source(frames.source.kind, json.loads(json.dumps(frames.source.describe())))
        assert np.array_equal(again.take([7, 3, 7]), images[[7, 3, 7]])
        assert np.allclose(again.times(), frames.times()) and again.identity() == frames.source.identity()
    assert np.allclose(episode.signals["joint_states.position"], [[place / 10, -1] for place in range(12)])
    assert episode.origin.tags["columns of joint_states.position"] == "shoulder, elbow"


@pytest.mark.parametrize("encoding", ["rgb8", "bgr8", "rgba8", "bgra8", "mono8"])
def test_raw_encodings(tmp_path, encoding):
    with BagWriter(tmp_path / "run") as bag:
        for place, image in enumerate(pictures(3)):
            bag.raw("/cam/image_raw", place * TENTH, image, encoding)
        bag.raw("/depth/image_raw", 0, pictures(1)[0], "16UC1")
    episodes, problems = read(tmp_path, clock="receive")
    images = episodes["run"].views["cam"].all()
    expected = pictures(3)[..., [0, 0, 0]] if encoding == "mono8" else pictures(3)
    assert np.array_equal(images, expected)
    assert ("unread images", "run", True) in problem_facts(problems)


def test_png_and_webp_and_padded_rows(tmp_path):
    with BagWriter(tmp_path / "run") as bag:
        for place, image in enumerate(pictures(3)):
            bag.picture("/png/image", place * TENTH, image, "PNG")
            padded = np.pad(image.reshape(32, -1), ((0, 0), (0, 16)))
            bag.write(
                "/raw", "sensor_msgs/msg/Image", place * TENTH, bag.header, 32, 48, "rgb8", 0, 160, padded.ravel()
            )
    views = read(tmp_path)[0]["run"].views
    assert all(np.array_equal(frames.all(), pictures(3)) for frames in views.values())
    assert list(views) == ["png", "raw"]


@pytest.mark.parametrize(("codec", "encoder"), [("h265", "libx265"), ("vp9", "libvpx-vp9"), ("av1", "libsvtav1")])
def test_other_video_codecs(tmp_path, codec, encoder):
    frames = pictures(12, (64, 96))
    options = {"h265": {"x265-params": "log-level=none"}, "vp9": {"lag-in-frames": "0"}}.get(codec, {})
    packets = encode_h264(frames, encoder, gop=6, **options)
    if len(packets) != len(frames):
        pytest.skip(f"{encoder} does not encode a packet per frame here")
    with BagWriter(tmp_path / "run") as bag:
        for place, packet in enumerate(packets):
            bag.packet("/cam/video", place * TENTH, packet, codec)
    episodes, _ = read(tmp_path)
    source = episodes["run"].main.source
    assert np.flatnonzero(source.scan().track.keys)[0] == 0 and 1 <= source.scan().track.keys.sum() <= 3
    assert np.abs(source.take([11, 4]).astype(int) - frames[[11, 4]]).mean() < 8


def test_a_video_decodes_equally_however_it_is_asked_for(tmp_path):
    put_bag(tmp_path / "run", count=23)
    frames = read(tmp_path)[0]["run"].views["front"]
    whole = frames.all()
    for places in ([0], [22], [4, 5], [6, 1, 19], range(22, -1, -1)):
        assert np.array_equal(frames.take(list(places)), whole[list(places)])
    assert np.array_equal(frames.take_prepared([3, 20], lambda images: images[:, ::2]), whole[[3, 20], ::2])
    with pytest.raises(UnreadableVideo, match="23 frames"):
        frames.source.take([23])


def test_cameras_of_other_rates_follow_the_main_one(tmp_path):
    images = pictures(12)
    with BagWriter(tmp_path / "run") as bag:
        for place in range(10):
            bag.raw("/a/image", place * TENTH, images[place])
        for place in range(3):
            bag.raw("/wrist/image", place * 4 * TENTH + 1, images[place])
    episode = read(tmp_path)[0]["run"]
    wrist = episode.views["wrist"]
    assert len(wrist) == len(episode) == 10 and np.array_equal(wrist.times(), episode.main.times())
    assert np.array_equal(wrist.all(), images[[0, 0, 0, 1, 1, 1, 1, 2, 2, 2]])
    again = frame_source("bag", wrist.source.describe())
    assert np.array_equal(again.take(range(10)), wrist.all())


def test_signals_of_every_type_hold_their_latest_value(tmp_path):
    with BagWriter(tmp_path / "run") as bag:
        vector, kinds = bag.type("geometry_msgs/msg/Vector3"), "geometry_msgs/msg/"
        twist = bag.type(kinds + "Twist")(vector(1.0, 2.0, 3.0), vector(4.0, 5.0, 6.0))
        layout = bag.type("std_msgs/msg/MultiArrayLayout")([], 0)
        for place, image in enumerate(pictures(4)):
            bag.raw("/cam/image", place * TENTH, image)
        bag.write("/cmd", kinds + "Twist", TENTH, vector(1.0, 2.0, 3.0), vector(4.0, 5.0, 6.0))
        bag.write("/cmd2", kinds + "TwistStamped", 0, bag.header, twist)
        bag.write(
            "/force", kinds + "WrenchStamped", 0, bag.header, bag.type(kinds + "Wrench")(*[vector(0.5, 0, 0)] * 2)
        )
        bag.write("/gripper/width", "std_msgs/msg/Float32", TENTH + 1, 0.25)
        bag.write("/action", "std_msgs/msg/Float64MultiArray", 0, layout, np.array([7.0, 8.0]))
        pose = bag.type(kinds + "Pose")(
            bag.type(kinds + "Point")(1.0, 0, 0), bag.type(kinds + "Quaternion")(0, 0, 0, 1.0)
        )
        covered = bag.type(kinds + "PoseWithCovariance")(pose, np.zeros(36))
        moving = bag.type(kinds + "TwistWithCovariance")(twist, np.zeros(36))
        bag.write("/odom", "nav_msgs/msg/Odometry", 0, bag.header, "base", covered, moving)
        bag.joints("/joints", 0, ["a"], [1.0])
        bag.joints("/joints", 2 * TENTH, ["b"], [2.0])
    signals, tags = (episode := read(tmp_path)[0]["run"]).signals, episode.origin.tags
    nan = np.nan
    expected = {
        "cmd": [[nan] * 6, *[[1, 2, 3, 4, 5, 6]] * 3],
        "cmd2": [[1, 2, 3, 4, 5, 6]] * 4,
        "force": [[0.5, 0, 0] * 2] * 4,
        "gripper_width": [[nan], [nan], [0.25], [0.25]],
        "action": [[7, 8]] * 4,
        "odom": [[1, 0, 0, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6]] * 4,
        "joints.position": [[1, nan], [1, nan], [1, 2], [1, 2]],
        "joints.velocity": [[0, nan], [0, nan], [0, 0], [0, 0]],
    }
    assert set(signals) == set(expected)
    for name, values in expected.items():
        assert np.array_equal(signals[name], values, equal_nan=True), name
    assert tags["columns of odom"].startswith("pose.pose.position.x, ") and tags["columns of joints.position"] == "a, b"


def test_labels_and_instructions_come_from_the_label_file_then_a_topic_then_the_recorder(tmp_path):
    for name, options in {"a": {"task": "said"}, "b": {"instruction": "noted"}, "c": {}, "d": {"task": "said"}}.items():
        put_bag(tmp_path / name, cameras=("jpeg",), **options)
    rows = ["file,instruction,success,operator", "a,written,yes,Ada", "b/,,no,", "c.mcap,,,", "gone,x,yes,"]
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    episodes, problems = read(tmp_path)
    assert {id: one.instruction for id, one in episodes.items()} == {"a": "written", "b": "noted", "c": "", "d": "said"}
    verdicts = {id: one.outcome and one.outcome.success for id, one in episodes.items()}
    assert verdicts == {"a": True, "b": False, "c": None, "d": None}
    assert episodes["a"].origin.tags["operator"] == "Ada"
    assert problem_facts(problems) == [
        ("empty instruction", "c", True),
        ("bag without a row", "d", True),
        ("row without a bag", "labels.csv:5", False),
    ]
    (only,) = open_dataset(tmp_path / "b")
    assert (only.id, only.outcome.success) == ("b", False)


def test_other_task_topics_can_be_named(tmp_path):
    with BagWriter(tmp_path / "run") as bag:
        bag.text("/operator/says", 0, "stack")
        bag.raw("/cam/image", TENTH, pictures(1)[0])
    assert read(tmp_path, task="/operator/says")[0]["run"].instruction == "stack"
    assert read(tmp_path)[0]["run"].instruction == ""


def put_marked(path, marks):
    with BagWriter(path) as bag:
        packets = encode_h264(pictures(20), gop=7)
        for at, value in marks:
            (bag.flag if isinstance(value, bool) else bag.text)("/mark", at * TENTH - 1, value)
        for place, packet in enumerate(packets):
            bag.packet("/cam/video", place * TENTH, packet)


@pytest.mark.parametrize(
    ("marks", "spans", "instructions"),
    [
        ([(2, True), (8, False), (12, True)], {"run/0": (2, 8), "run/1": (12, 20)}, ["", ""]),
        ([(3, "start"), (6, "stop"), (9, "End")], {"run/0": (3, 6)}, [""]),
        ([(1, "open the door"), (9, "shut it")], {"run/0": (1, 9), "run/1": (9, 20)}, ["open the door", "shut it"]),
    ],
)
def test_a_marker_topic_cuts_a_bag(tmp_path, marks, spans, instructions):
    put_marked(tmp_path / "run", marks)
    whole = read(tmp_path)[0]["run"].main.all()
    episodes, _ = read(tmp_path, marker="/mark")
    assert list(episodes) == list(spans)
    for (first, last), episode, instruction in zip(spans.values(), episodes.values(), instructions, strict=True):
        assert np.array_equal(episode.main.all(), whole[first:last])
        again = frame_source("bag", episode.main.source.describe())
        assert np.array_equal(again.take([0, len(again) - 1]), whole[[first, last - 1]])
        assert (episode.instruction, episode.origin.group) == (instruction, "run")
        assert episode.main.times()[0] == 0
    assert len({episode.main.identity() for episode in episodes.values()}) == len(spans)


def test_gaps_cut_a_bag_and_rows_label_its_episodes(tmp_path):
    with BagWriter(tmp_path / "run") as bag:
        for place, image in enumerate(pictures(12)):
            bag.raw("/cam/image", place * TENTH + place // 4 * 10 * SECOND, image)
    (tmp_path / "labels.csv").write_text("id,success\nrun/0,1\nrun/2,0\n")
    episodes, problems = read(tmp_path, gap="5")
    assert {id: (len(one), one.outcome and one.outcome.success) for id, one in episodes.items()} == {
        "run/0": (4, True),
        "run/1": (4, None),
        "run/2": (4, False),
    }
    assert ("bag without a row", "run/1", True) in problem_facts(problems)
    assert list(read(tmp_path, gap=30)[0]) == ["run"]
    assert RosReader(str(tmp_path), gap=5).expected() is None and RosReader(str(tmp_path)).expected() == 1


def test_a_bag_without_its_marker_is_counted(tmp_path):
    put_bag(tmp_path / "run")
    episodes, problem = one_problem(tmp_path, marker="/mark")
    assert (episodes, problem.kind, problem.kept) == ({}, "no marker", False)


@pytest.mark.parametrize("options", [{"clock": "sun"}, {"gap": "soon"}, {"gap": -1}, {"gap": 1, "marker": "/m"}])
def test_options_that_mean_nothing_are_refused(tmp_path, options):
    with pytest.raises(BadInput):
        RosReader(str(tmp_path), **options)


def test_headers_give_the_times_unless_their_clock_jumps(tmp_path):
    for name, stamps in {"good": [0, 2, 3, 7], "back": [5, 6, 1, 2], "same": [0, 1, 1, 2]}.items():
        with BagWriter(tmp_path / name) as bag:
            for place, stamp in enumerate(stamps):
                bag.raw("/cam/image", stamp * TENTH, pictures(1)[0], received=place * TENTH)
    episodes, problems = read(tmp_path)
    times = {id: one.main.times().round(3).tolist() for id, one in episodes.items()}
    assert times == {"good": [0, 0.2, 0.3, 0.7], "back": [0, 0.1, 0.2, 0.3], "same": [0, 0.1, 0.1, 0.2]}
    assert (np.diff(episodes["same"].main.times()) > 0).all()
    assert problem_facts(one for one in problems if one.kind == "clock jump") == [("clock jump", "back", True)]
    received = {id: one.main.times().round(3).tolist() for id, one in read(tmp_path, clock="receive")[0].items()}
    assert set(map(tuple, received.values())) == {(0, 0.1, 0.2, 0.3)}
    jumps = {row["bag"]: row["clock jumps"] for row in RosReader(str(tmp_path)).topics()}
    assert jumps == {"good": 0, "back": 1, "same": 0}


def test_clocks_that_do_not_agree_are_not_compared(tmp_path):
    with BagWriter(tmp_path / "run") as bag:
        for place, image in enumerate(pictures(4)):
            bag.raw("/a/image", place * TENTH, image)
            bag.raw("/b/image", place * TENTH - 1000 * SECOND, image, received=place * TENTH)
            bag.joints("/joints", place * TENTH - 1000 * SECOND, ["x"], [place], received=place * TENTH)
    episode, problems = read(tmp_path)[0]["run"], read(tmp_path)[1]
    assert np.array_equal(episode.views["b"].all(), pictures(4))
    assert episode.signals["joints.position"][:, 0].tolist() == [0, 1, 2, 3]
    assert ("clock jump", "run", True) in problem_facts(problems)


# --- broken bags


@pytest.mark.parametrize("storage", STORAGES)
def test_a_bag_that_is_cut_off_is_counted_and_explained(tmp_path, storage):
    path = put_bag(bag_at(tmp_path, storage=storage), storage)
    file = path if path.is_file() else next(path.glob("run.*"))
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    episodes, problem = one_problem(tmp_path)
    assert (episodes, problem.kind, problem.episode, problem.kept) == ({}, "unreadable bag", "run", False)
    with pytest.raises(Exception, match="unreadable bag"):
        list(open_dataset(path, strict=True))


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_a_folder_without_metadata_is_read_as_it_is(tmp_path, storage):
    path = put_bag(tmp_path / "run", storage, task="go")
    (path / "metadata.yaml").unlink()
    file = next(path.glob("run.*"))
    file.rename(path / f"run_0{file.suffix}")
    episodes, problem = one_problem(tmp_path)
    assert len(episodes["run"]) == 12
    assert (problem.kind, problem.kept) == ("no metadata.yaml", True)
    assert "still being written" in problem.detail


def test_a_split_bag_is_one_episode_and_a_missing_file_is_explained(tmp_path):
    path = put_bag(tmp_path / "run", task="go")
    other = put_bag(tmp_path / "more" / "part", cameras=("raw",))
    (other / "part.mcap").rename(path / "run_1.mcap")
    facts = yaml.safe_load((path / "metadata.yaml").read_text())
    facts["rosbag2_bagfile_information"]["relative_file_paths"].append("run_1.mcap")
    (path / "metadata.yaml").write_text(yaml.safe_dump(facts))
    episodes, problem = one_problem(tmp_path, only=(path,))
    assert problem.kind == "missing messages"  # more than metadata.yaml says
    assert len(episodes["run"].views["front"]) == 12
    (path / "run_1.mcap").unlink()
    episodes, problem = one_problem(tmp_path, only=(path,))
    assert (problem.kind, episodes) == ("unreadable bag", {}) and "run_1.mcap" in problem.detail


@pytest.mark.parametrize("packed", ["STORAGE", "MESSAGE", "FILE"])
def test_compressed_bags(tmp_path, packed):
    with BagWriter(tmp_path / "run", packed=packed) as bag:
        for place, image in enumerate(pictures(3)):
            bag.raw("/cam/image", place * TENTH, image)
    episodes, problems = read(tmp_path)
    if packed == "FILE":
        assert problem_facts(problems) == [("unreadable bag", "run", False)] and "zstd -d" in problems[0].detail
    else:
        assert np.array_equal(episodes["run"].main.all(), pictures(3))


def test_an_mcap_file_of_another_writer(tmp_path):
    with (tmp_path / "run.mcap").open("wb") as file:
        writer = Ros2Writer(file)
        header, time = (
            "MSG: std_msgs/Header\nbuiltin_interfaces/Time stamp\nstring frame_id",
            "int32 sec\nuint32 nanosec",
        )
        line = "=" * 80
        text = f"std_msgs/Header header\nstring format\nuint8[] data\n{line}\n{header}\n{line}\n"
        text += f"MSG: builtin_interfaces/Time\n{time}"
        schema = writer.register_msgdef("sensor_msgs/msg/CompressedImage", text)
        for place, image in enumerate(pictures(3)):
            stamp = {"stamp": {"sec": 5 + place, "nanosec": 0}, "frame_id": ""}
            message = {"header": stamp, "format": "png", "data": jpeg(image, "PNG")}
            writer.write_message("/cam", schema, message, START + place, START + place)
        writer.finish()
    (episode,) = read(tmp_path)[0].values()
    assert np.array_equal(episode.main.all(), pictures(3)) and episode.main.times().tolist() == [0, 1, 2]


def test_a_path_out_of_the_folder_is_not_followed(tmp_path):
    path = put_bag(tmp_path / "run")
    (path / "run.mcap").rename(tmp_path / "secret.mcap")
    text = (path / "metadata.yaml").read_text().replace("run.mcap", "../secret.mcap")
    (path / "metadata.yaml").write_text(text)
    (path / "x.mcap").touch()
    _, problem = one_problem(tmp_path, only=(path,))
    assert problem.kind == "unreadable bag"


@pytest.mark.parametrize("text", ["", "a: [", "rosbag2_bagfile_information: 3", "\x00"])
def test_damaged_metadata_is_explained(tmp_path, text):
    path = put_bag(tmp_path / "run")
    (path / "metadata.yaml").write_text(text)
    _, problem = one_problem(tmp_path)
    assert problem.kind == "unreadable bag" and "metadata.yaml" in problem.detail


def test_a_damaged_chunk_costs_only_the_episodes_that_reach_it(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (12, 400, 400, 3), dtype=np.uint8)
    with BagWriter(tmp_path / "run", packed="STORAGE") as bag:
        for place, image in enumerate(noise):
            bag.raw("/cam/image", place * TENTH + place // 4 * 10 * SECOND, image)
    file = tmp_path / "run" / "run.mcap"
    data = bytearray(file.read_bytes())
    middle = len(data) * 10 // 12
    data[middle : middle + 200_000] = bytes(200_000)
    file.write_bytes(data)
    episodes, problems = read(tmp_path, gap=5)
    assert next(iter(episodes)) == "run/0" and "run/2" not in episodes
    assert np.array_equal(episodes["run/0"].main.all(), noise[:4])
    assert [one.kind for one in problems if not one.kept] == ["damaged bag"]
    assert read(tmp_path)[0] == {}


def test_a_file_that_changes_while_it_is_read_is_said(tmp_path):
    put_bag(tmp_path / "run", "sqlite3", cameras=("raw",))
    frames = read(tmp_path)[0]["run"].main
    with sqlite3.connect(tmp_path / "run" / "run.db3") as database:
        database.execute("DELETE FROM messages WHERE id % 3 = 1")
    with pytest.raises(UnreadableVideo):
        frames.all()


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.mcap", b""), ("b.bag", b"#ROSBAG V2.0\n"), ("c.db3", b"SQLite format 3"), ("d.mcap", b"x" * 99)],
)
def test_files_that_are_no_bags_are_explained(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    _, problem = one_problem(tmp_path)
    assert (problem.kind, problem.kept) == ("unreadable bag", False)


def test_topics_that_cannot_be_decoded_are_counted(tmp_path):
    put_bag(tmp_path / "run", "sqlite3", cameras=("raw",), task="go")
    with sqlite3.connect(tmp_path / "run" / "run.db3") as database:
        database.execute("DELETE FROM message_definitions")
        database.execute(
            "UPDATE messages SET data = x'00' WHERE topic_id = (SELECT id FROM topics WHERE type LIKE '%Joint%')"
        )
    episodes, problem = one_problem(tmp_path)
    assert (problem.kind, problem.kept) == ("unread topic", True) and "60 messages" in problem.detail
    assert np.array_equal(episodes["run"].main.all(), pictures())  # by the definitions of ROS 2 itself


def test_a_bag_without_a_camera_names_its_types(tmp_path):
    with BagWriter(tmp_path / "run") as bag:
        bag.text("/talk", 0, "hello")
        bag.write("/imu", "sensor_msgs/msg/Temperature", 0, bag.header, 20.0, 0.0)
    episodes, problem = one_problem(tmp_path)
    assert (episodes, problem.kind) == ({}, "no camera") and "sensor_msgs/msg/Temperature" in problem.detail


def test_frames_before_the_first_key_frame_are_left_out(tmp_path):
    packets = encode_h264(pictures(12), gop=5)
    with BagWriter(tmp_path / "run") as bag:
        for place, packet in enumerate(packets[2:]):
            bag.packet("/cam/video", place * TENTH, packet)
    episodes, problems = read(tmp_path)
    assert len(episodes["run"]) == 7
    assert "3 of /cam/video" in next(one.detail for one in problems if one.kind == "unread images")


def write_mcap(path, topics, encoding="json"):
    """Write messages of other encodings: (schema, message) by topic."""
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        for topic, (schema, messages) in topics.items():
            number = writer.register_schema(schema, "jsonschema", b"{}")
            channel = writer.register_channel(topic, encoding, number)
            for place, message in enumerate(messages):
                at = START + place * TENTH
                writer.add_message(channel, at, json.dumps(message).encode(), at)
        writer.finish()


def test_json_messages_of_foxglove_are_read_and_other_encodings_counted(tmp_path):
    import base64

    images = [
        {"timestamp": {"sec": place, "nsec": 5}, "format": "png", "data": base64.b64encode(jpeg(image, "PNG")).decode()}
        for place, image in enumerate(pictures(3))
    ]
    write_mcap(tmp_path / "run.mcap", {"/cam": ("foxglove.CompressedImage", images)})
    (episode,) = read(tmp_path)[0].values()
    assert np.array_equal(episode.main.all(), pictures(3)) and episode.main.times().tolist() == [0, 1, 2]
    write_mcap(tmp_path / "run.mcap", {"/cam": ("foxglove.CompressedImage", images)}, "protobuf")
    _, problems = read(tmp_path)
    assert [one.kind for one in problems] == ["unread topic", "no camera"] and "protobuf" in problems[0].detail


# --- in the package


def test_an_import_keeps_the_bag_in_place_or_copies_its_frames(tmp_path):
    put_bag(tmp_path / "bags" / "run", task="go")
    dataset = open_dataset(tmp_path / "bags")
    for copy in (False, True):
        import_dataset(dataset, tmp_path / f"store{copy}", copy=copy)
        (stored,) = Store(tmp_path / f"store{copy}").episodes()
        assert np.abs(stored.main.all().astype(int) - pictures()).mean() < 3
        assert stored.views["wrist"].source.kind == ("video" if copy else "bag")
        assert np.allclose(stored.signals["joint_states.position"][:, 1], -1)
    assert materialize(dataset, tmp_path / "videos") == 1


def test_inspect_shows_topics_rates_gaps_and_jumps(tmp_path):
    put_bag(tmp_path / "run", task="go")
    summary = summarize(open_dataset(tmp_path / "run")).as_dict()
    facts = {
        row["topic"]: (row["read as"], row["messages"], row["Hz"], row["longest gap"]) for row in summary["topics"]
    }
    assert facts["/front/video"] == ("camera", 12, 10.0, 0.1) and facts["/joint_states"] == ("signal", 60, 50.0, 0.02)
    assert facts["/task"][:2] == ("text", 1)
    said = demerit_here("inspect", "run", cwd=tmp_path)
    assert said.returncode == 0 and "/joint_states" in said.stdout and "CompressedVideo" in said.stdout
    (tmp_path / "run" / "run.mcap").write_bytes(b"")
    said = demerit_here("inspect", "run", cwd=tmp_path)
    assert said.returncode == 0 and "Traceback" not in said.stderr and "unreadable bag: 1" in said.stdout


def test_a_bag_that_grows_is_seen_by_its_files(tmp_path):
    put_bag(tmp_path / "run", "sqlite3", cameras=("raw",))
    (episode,) = open_dataset(tmp_path)
    assert files_of(episode) == [str(tmp_path / "run" / "run.db3")]
    before = episode.main.identity()
    with sqlite3.connect(tmp_path / "run" / "run.db3") as database:
        database.execute("DELETE FROM messages WHERE id > 60")
    (shorter,) = open_dataset(tmp_path)
    assert len(shorter) < len(episode) and shorter.main.identity() != before


def test_several_bags_of_a_folder_are_one_dataset_and_videos_come_first(tmp_path):
    for name in "abc":
        put_bag(tmp_path / name, cameras=("raw",))
    dataset = open_dataset([tmp_path / "a", tmp_path / "c"])
    assert [episode.id for episode in dataset] == ["a", "c"]
    put_video(tmp_path / "x.mp4")
    assert detect(tmp_path) == "videos"


@pytest.mark.parametrize(("codec", "data", "is_key"), [
    ("h264", b"\0\0\0\1\x67ab\0\0\1\x65cd", True), ("h264", b"\0\0\0\1\x41ab", False),
    ("hevc", b"\0\0\1\x26\1", True), ("hevc", b"\0\0\1\x02\1", False),
    ("vp9", b"\x82I\x83B", True), ("vp9", b"\x86\0", False), ("vp9", b"", False),
    ("libdav1d", b"\x12\0\x0a\x0b", True), ("libdav1d", b"\x12\0\x32\x0b", False),
])  # fmt: skip
def test_key_frames_are_found_by_their_bytes(codec, data, is_key):
    assert codec in CODECS.values()
    assert _is_key(codec, data) is is_key


def test_an_empty_track_has_no_frames():
    assert len(TrackBuilder().build().received) == 0


def test_a_strangers_type_name_runs_no_code(tmp_path):
    ran = tmp_path / "ran"
    for name in (
        f"a/msg/B:\n    pass\nopen({str(ran)!r}, 'w')\nclass C",
        f"a/msg/B'''+str(open({str(ran)!r}, 'w'))+'''",
        "a/msg/B C",
    ):
        with pytest.raises(TypesysError):  # rosbags writes names into Python code, and its grammar must refuse these
            _load_types(BagTopic(name, "ros2", "int32 a\n"))
    assert not ran.exists()
    known = _load_types(BagTopic("a/msg/B", "ros2", "int32 a\nfloat64[3] b\nint32 C=3\n"))
    assert "a/msg/B" in known.fielddefs
