"""robomimic and LIBERO files, generated."""

import json
import pickle
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from demerit.data.dataset import DatasetReader
from demerit.data.episode import Outcome
from demerit.data.formats import open_dataset
from demerit.data.formats.hdf5 import Hdf5Frames, Hdf5Reader
from demerit.data.frames import FrameSource, frame_source
from demerit.errors import BadInput, MissingExtra, UnreadableVideo
from fakes.tiny_video import read_facts

ROBOMIMIC = {"env_name": "Lift", "type": 1, "env_kwargs": {"control_freq": 10, "robots": ["Panda"]}}


def make_images(n: int, first: int = 0) -> np.ndarray:
    """Images whose top row holds their number; the bottom row is 200."""
    images = np.full((n, 4, 6, 3), 100, dtype=np.uint8)
    images[:, 0] = (first + np.arange(n))[:, None, None]
    images[:, -1] = 200
    return images


def add_demo(file, name: str, n: int = 5, endings: str = "image", samples: int | None = None, **changes) -> None:
    """Write a good demo; a change of None leaves a dataset out, `obs__x` is inside obs."""
    contents = {
        "actions": np.zeros((n, 7)),
        "rewards": np.array([0.0] * (n - 1) + [1.0])[-n:] if n else np.zeros(0),
        "dones": np.zeros(n, dtype=np.int64),
        f"obs/agentview_{endings}": make_images(n),
        f"obs/robot0_eye_in_hand_{endings}": make_images(n, 50),
        "obs/robot0_eef_pos": np.ones((n, 3)),
    }
    contents |= {key.replace("__", "/"): value for key, value in changes.items()}
    group = file.create_group(f"data/{name}")
    group.attrs["num_samples"] = n if samples is None else samples
    for key, value in contents.items():
        if value is not None:
            group[key] = value


@pytest.fixture
def robomimic(tmp_path: Path) -> Path:
    path = tmp_path / "lift.hdf5"
    with h5py.File(path, "w") as file:
        for name in ("demo_0", "demo_10", "demo_2"):
            add_demo(file, name)
        file["data"].attrs["env_args"] = json.dumps(ROBOMIMIC)
        file["mask/train"] = np.array([b"demo_0", b"demo_10"])
        file["mask/valid"] = np.array([b"demo_2"])
        file["mask/20_percent"] = np.array([b"demo_2"])
    return path


def one_demo(path: Path, attributes: dict | None = None, **changes) -> Path:
    path.parent.mkdir(exist_ok=True)
    with h5py.File(path, "w") as file:
        add_demo(file, "demo_0", **changes)
        file["data"].attrs.update(attributes or {})
    return path


def read(path: Path, instruction: str | None = "go", **options) -> tuple[list, list[tuple[str, str, bool]]]:
    episodes, problems = read_facts(Hdf5Reader(path, **options))
    return episodes, [problem for problem in problems if instruction is None or problem[0] != "empty instruction"]


def test_a_robomimic_file(robomimic):
    reader = Hdf5Reader(robomimic)
    assert isinstance(reader, DatasetReader)
    assert (reader.name, reader.expected()) == ("lift", 3)
    episodes, problems = read(robomimic, instruction=None)
    assert [e.id for e in episodes] == ["lift/demo_0", "lift/demo_2", "lift/demo_10"]
    assert problems == [("empty instruction", e.id, True) for e in episodes]
    assert [e.origin.split for e in episodes] == ["train", "valid", "train"]
    first = episodes[0]
    assert (first.instruction, list(first.views)) == ("", ["agentview", "robot0_eye_in_hand"])
    assert (first.origin.embodiment, first.origin.tags) == ("Panda", {"environment": "Lift"})
    shapes = {name: values.shape for name, values in first.signals.items()}
    assert shapes == {"actions": (5, 7), "rewards": (5,), "dones": (5,), "robot0_eef_pos": (5, 3)}
    assert first.outcomes == (Outcome("simulator", success=True, by="rewards dataset (sparse)"),)
    assert first.main.times().tolist() == [0, 0.1, 0.2, 0.3, 0.4]
    told = open_dataset(robomimic, instruction="lift the cube")
    assert ({e.instruction for e in told}, len(told.problems)) == ({"lift the cube"}, 0)


@pytest.mark.parametrize("wanted", [[3, 0, 3, 1], [4], [], [0, 1, 2, 3, 4], [39, 26, 13, 0, 39, 0]])
def test_order_of_frames(tmp_path, wanted):
    path = one_demo(tmp_path / "x.hdf5", n=40)
    taken = Hdf5Frames(str(path), "data/demo_0/obs/agentview_image").take(wanted)
    np.testing.assert_array_equal(taken, make_images(40)[wanted])
    assert taken.dtype == np.uint8


def test_describe_and_identity(robomimic, tmp_path):
    episode = read(robomimic)[0][0]
    source = episode.main.source
    assert isinstance(source, FrameSource)
    again = pickle.loads(pickle.dumps(frame_source(source.kind, source.describe())))
    assert again == source and len(again) == len(Hdf5Frames(source.path, source.key)) == 5
    moved = tmp_path / "moved.hdf5"
    moved.write_bytes(robomimic.read_bytes())
    assert Hdf5Frames(str(moved), source.key).identity() == source.identity()
    assert Hdf5Frames(source.path, source.key, upside_down=True).identity() != source.identity()
    assert episode.views["robot0_eye_in_hand"].identity() != source.identity()


@pytest.mark.parametrize(
    ("stem", "attributes", "instruction"),
    [
        ("KITCHEN_SCENE3_turn_on_the_stove_demo", {}, "turn on the stove"),
        ("LIVING_ROOM_SCENE2_put_both_the_mugs_down_demo", {}, "put both the mugs down"),
        ("open_the_door_demo", {"problem_info": "{not json", "bddl_file_name": "x.bddl"}, "open the door"),
        *(
            ("any", {"problem_info": json.dumps({"language_instruction": given})}, "close the drawer")
            for given in ("close the drawer", list("close the drawer"), '"close the drawer"')
        ),
    ],
)
def test_libero(tmp_path, stem, attributes, instruction):
    path = one_demo(tmp_path / f"{stem}.hdf5", attributes, endings="rgb")
    (episode,), problems = read(path, instruction=None)
    assert (episode.instruction, problems) == (instruction, [])
    assert list(episode.views) == ["agentview", "robot0_eye_in_hand"]
    assert [(o.source, o.success) for o in episode.outcomes] == [("rule", True)]
    for frames, first in zip(episode.views.values(), (0, 50), strict=True):
        images = frames.take([2])
        assert (images[0, 0, 0, 0], images[0, -1, 0, 0]) == (200, first + 2)  # LIBERO stores images upside down
    (stored,), _ = read(path, upside_down=False)
    assert stored.main.take([2])[0, 0, 0, 0] == 2


def test_upside_down_option(tmp_path):
    path = one_demo(tmp_path / "low_demo.hdf5")  # LIBERO's name, but not LIBERO's cameras
    assert read(path)[0][0].main.take([2])[0, 0, 0, 0] == 2
    assert read(path, upside_down=True)[0][0].main.take([2])[0, 0, 0, 0] == 200


@pytest.mark.parametrize(
    ("rewards", "success"),
    [
        ([0, 0, 0, 0, 1], True),
        ([0, 1, 1, 0, 0], False),
        ([0, 0, 0, 0, 0], False),
        ([0, 0.5, 0, 0, 1], None),
        ([0, 0, 0, 0, np.nan], None),
        (None, None),
    ],
)
def test_success_needs_sparse_rewards(tmp_path, rewards, success):
    value = None if rewards is None else np.array(rewards)
    (episode,), _ = read(one_demo(tmp_path / "x.hdf5", rewards=value))
    assert [o.success for o in episode.outcomes] == ([] if success is None else [success])


HERE = "x/demo_0"
BOTH = ["agentview", "robot0_eye_in_hand"]
NO_IMAGES = {"obs__agentview_image": None, "obs__robot0_eye_in_hand_image": None}
NOT_CAMERAS = {
    "obs__depth_image": np.zeros((5, 4, 6, 1), dtype=np.uint8),
    "obs__float_image": np.zeros((5, 4, 6, 3), dtype=np.float32),
    "obs__empty_image": np.zeros((5, 0, 6, 3), dtype=np.uint8),
}


@pytest.mark.parametrize(
    ("changes", "kind", "cameras"),
    [
        (NO_IMAGES, "no camera", None),
        ({"n": 0}, "no steps", None),
        ({"actions": np.zeros((4, 7))}, "another length", BOTH),
        ({"obs__robot0_eye_in_hand_image": make_images(3)}, "another length", ["agentview"]),
        ({"samples": 6}, "wrong num_samples", BOTH),
        (NOT_CAMERAS, None, BOTH),
        ({"obs__agentview_rgb": make_images(5, 9)}, None, ["agentview", "agentview_rgb", "robot0_eye_in_hand"]),
    ],
)
def test_unusual_demos(tmp_path, changes, kind, cameras):
    path = one_demo(tmp_path / "x.hdf5", **changes)
    with h5py.File(path, "a") as file:
        add_demo(file, "demo_1")
        # A dataset that declares terabytes is not read.
        file["data/demo_1/obs"].create_dataset("bomb", (5, 10**12), "f8", chunks=(1, 1024))
    episodes, problems = read(path)
    assert problems == ([(kind, HERE, cameras is not None)] if kind else [])
    assert [e.id for e in episodes] == ([HERE] if cameras else []) + ["x/demo_1"]
    assert cameras is None or list(episodes[0].views) == cameras
    assert cameras is None or ("actions" in episodes[0].signals) == ("actions" not in changes)
    assert "bomb" not in episodes[-1].signals


def test_contradicting_masks(robomimic):
    with h5py.File(robomimic, "a") as file:
        file["mask/test"] = np.array([b"demo_2", b"demo_77"])
    episodes, problems = read(robomimic)
    assert problems == [("several splits", "lift/demo_2", True), ("missing demo", "lift/demo_77", False)]
    assert [e.origin.split for e in episodes] == ["train", "", "train"]


def test_links_out_of_the_file_are_not_followed(tmp_path):
    other = one_demo(tmp_path / "other" / "y.hdf5")
    (other.parent / "secret.bin").write_bytes(bytes(5 * 4 * 6 * 3))
    path = one_demo(tmp_path / "x.hdf5")
    with h5py.File(path, "a") as file:
        file["data/demo_1"] = h5py.ExternalLink(str(other), "/data/demo_0")
        add_demo(file, "demo_2", obs__agentview_image=None)
        file["data/demo_2/obs/agentview_image"] = h5py.ExternalLink(str(other), "/data/demo_0/obs/agentview_image")
        add_demo(file, "demo_3", **NO_IMAGES)
        file["way_out"] = h5py.ExternalLink(str(other), "/data/demo_0")
        file["data/demo_3/obs/sly_image"] = h5py.SoftLink("/way_out/obs/agentview_image")
        add_demo(file, "demo_4", **NO_IMAGES)
        file["data/demo_4/obs"].create_dataset(
            "raw_image", (5, 4, 6, 3), "u1", external=[(str(other.parent / "secret.bin"), 0, h5py.h5f.UNLIMITED)]
        )
        add_demo(file, "demo_5", **NO_IMAGES)
        layout = h5py.VirtualLayout((5, 4, 6, 3), "u1")
        layout[:] = h5py.VirtualSource(str(other), "data/demo_0/obs/agentview_image", (5, 4, 6, 3))
        file["data/demo_5/obs"].create_virtual_dataset("virtual_image", layout)
    episodes, problems = read(path)
    assert [(e.id, list(e.views)) for e in episodes] == [
        ("x/demo_0", ["agentview", "robot0_eye_in_hand"]),
        ("x/demo_2", ["robot0_eye_in_hand"]),
    ]
    assert problems == [
        ("refused link", "x/demo_1", False),
        ("refused link", "x/demo_2", True),
        *[("no camera", f"x/demo_{number}", False) for number in (3, 4, 5)],
    ]
    for key in ("data/demo_1/obs/agentview_image", "data/demo_3/obs/sly_image", "data/demo_4/obs/raw_image"):
        with pytest.raises(UnreadableVideo, match="not followed"):
            Hdf5Frames(str(path), key).take([0])


def test_soft_links_and_names(tmp_path):
    path = one_demo(tmp_path / "x.hdf5")
    with h5py.File(path, "a") as file:
        file["data/demo_1"] = h5py.SoftLink("demo_0")
        file["data/demo_2"] = h5py.SoftLink("/data/demo_2")
        file["data/demo_3"] = h5py.SoftLink("/nowhere")
        h5py.h5g.create(file["data"].id, b"demo_\xff")
    episodes, problems = read(path)
    assert [e.id for e in episodes] == ["x/demo_0", "x/demo_1"]
    assert episodes[1].main.take([3])[0, 0, 0, 0] == 3
    assert sorted(problems) == [("unreadable demo", f"x/demo_{name}", False) for name in ("-xff", "2", "3")]
    (episode,), _ = read(one_demo(tmp_path / "データ.hdf5"))
    assert episode.id.endswith("/demo_0") and episode.id.isascii()


def test_a_folder_with_broken_files(tmp_path):
    folder = tmp_path / "suite"
    folder.mkdir()
    for name in ("task_10.hdf5", "task_2.h5"):
        one_demo(folder / name)
    one_demo(folder / "cut.hdf5")
    (folder / "cut.hdf5").write_bytes((folder / "cut.hdf5").read_bytes()[:-500])
    (folder / "empty.hdf5").write_bytes(b"")
    with h5py.File(folder / "other.hdf5", "w") as file:
        file["something"] = 1
    with h5py.File(folder / "none.hdf5", "w") as file:
        file.create_group("data")
    (folder / "notes.txt").write_text("not HDF5")
    episodes, problems = read(folder)
    assert [e.id for e in episodes] == ["suite/task_2/demo_0", "suite/task_10/demo_0"]
    assert problems == [
        ("unreadable file", "suite/cut", False),
        ("unreadable file", "suite/empty", False),
        ("no demos", "suite/none", False),
        ("unreadable file", "suite/other", False),
    ]
    assert Hdf5Reader(folder).expected() == 2
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", folder / "notes.txt", tmp_path / "none"):
        with pytest.raises(BadInput):
            Hdf5Reader(path)


def test_bad_frames(robomimic, tmp_path):
    key = "data/demo_0/obs/agentview_image"
    for path, wrong, word in [
        (robomimic, "data/nobody", "nobody"),
        (robomimic, "data/demo_0/actions", "uint8"),
        (tmp_path / "gone.hdf5", key, "no such file"),
    ]:
        with pytest.raises(UnreadableVideo, match=word):
            Hdf5Frames(str(path), wrong).take([0])
    with pytest.raises(BadInput, match="0 to 4"):
        Hdf5Frames(str(robomimic), key).take([5, 1])
    with pytest.raises(BadInput, match="fps"):
        Hdf5Frames("x", key, fps=-1)


def test_missing_h5py(robomimic, monkeypatch):
    monkeypatch.delitem(sys.modules, "demerit.data.formats.hdf5")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtra, match="hdf5"):
        open_dataset(f"hdf5:{robomimic}")
