"""RLDS folders, generated and real ones where they are present."""

import copy
import io
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from demerit.data.dataset import Dataset, DatasetReader
from demerit.data.episode import Outcome
from demerit.data.formats.rlds import RldsReader, TfRecordFrames
from demerit.data.frames import FrameSource, frame_source
from demerit.errors import BadInput, UnknownName, UnreadableVideo
from fakes.paths import SHARED
from fakes.tfrecord_writer import example, feature, frame
from fakes.tiny_video import read_facts

BRIDGE = SHARED / "rlds_bridge_octo"


def encode(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def encoded_image(value: int, kind: str = "PNG", size: tuple[int, int] = (8, 6)) -> bytes:
    pixels = np.full((size[1], size[0], 3), value, dtype=np.uint8)
    pixels[0, 0] = (255, 0, 10)
    return encode(pixels, kind)


def image_spec(channels: int = 3, dtype: str = "uint8") -> dict:
    return {"image": {"shape": {"dimensions": ["6", "8", str(channels)]}, "dtype": dtype, "encodingFormat": "png"}}


def tensor_spec(*shape: int, dtype: str = "float32") -> dict:
    return {"tensor": {"shape": {"dimensions": [str(n) for n in shape]}, "dtype": dtype, "encoding": "none"}}


def group(**features: dict) -> dict:
    return {"featuresDict": {"features": features}}


FEATURES = group(
    steps={
        "sequence": {
            "feature": group(
                observation=group(
                    wrist_image=image_spec(),
                    image=image_spec(),
                    depth=image_spec(1),
                    depth16=image_spec(3, "uint16"),
                    state=tensor_spec(2),
                    natural_language_instruction={"text": {}},
                    natural_language_embedding=tensor_spec(512),
                ),
                action=group(move=tensor_spec(3), grip=tensor_spec()),
                reward=tensor_spec(),
                discount=tensor_spec(),
                is_first=tensor_spec(dtype="bool"),
                is_terminal=tensor_spec(dtype="bool"),
                language_instruction={"text": {}},
                language_embedding=tensor_spec(512),
            ),
            "length": "-1",
        }
    },
    episode_metadata=group(
        success=tensor_spec(dtype="bool"), file_path={"text": {}}, number=tensor_spec(dtype="int32")
    ),
)


def steps(n: int = 4, **changes) -> dict:
    """A good record of n steps; a change of None leaves a feature out."""
    features = {
        "steps/observation/image": [encoded_image(10 * i) for i in range(n)],
        "steps/observation/wrist_image": [encoded_image(100 + i) for i in range(n)],
        "steps/observation/state": np.arange(2 * n, dtype=np.float32),
        "steps/action/move": np.arange(3 * n, dtype=np.float32),
        "steps/action/grip": np.arange(n, dtype=np.float32),
        "steps/reward": np.arange(n, dtype=np.float32),
        "steps/is_first": np.array([1] + [0] * (n - 1))[:n],
        "steps/is_terminal": np.array([0] * (n - 1) + [1])[-n:] if n else np.zeros(0, dtype=int),
        "steps/language_instruction": [b"lift the cube"] * n,
        "steps/language_embedding": np.zeros(512 * n, dtype=np.float32),
        "episode_metadata/file_path": [b"/data/one.npy"],
        "episode_metadata/number": np.array([300]),
    }
    features |= {key.replace("__", "/"): value for key, value in changes.items()}
    return {key: value for key, value in features.items() if value is not None}


def write(root: Path, records: list, lengths: dict | None = None, version: str = "1.0.0", features=FEATURES) -> Path:
    """Write a dataset with one train shard; a record is features or bytes."""
    folder = root / "toy" / version
    folder.mkdir(parents=True)
    lengths = {"train": [len(records)]} if lengths is None else lengths
    splits = [{"name": name, "shardLengths": [str(n) for n in counts]} for name, counts in lengths.items()]
    (folder / "dataset_info.json").write_text(json.dumps({"name": "toy", "version": version, "splits": splits}))
    (folder / "features.json").write_text(json.dumps(features))
    encoded = [r if isinstance(r, bytes) else example({k: feature(v) for k, v in r.items()}) for r in records]
    (folder / "toy-train.tfrecord-00000-of-00001").write_bytes(b"".join(map(frame, encoded)))
    return folder


def read(path: Path, **options) -> tuple[list, list[tuple[str, str, bool]]]:
    return read_facts(RldsReader(path, **options))


def test_a_good_record_becomes_an_episode(tmp_path):
    reader = RldsReader(write(tmp_path, [steps()]))
    assert isinstance(reader, DatasetReader)
    assert (reader.name, reader.expected()) == ("toy", 1)
    (episode,) = list(reader.records())
    assert episode.id == "toy/train/00000/000000"
    assert episode.instruction == "lift the cube"
    assert list(episode.views) == ["image", "wrist_image"]
    assert episode.outcomes == ()
    shapes = {name: values.shape[1:] for name, values in episode.signals.items()}
    scalars = dict.fromkeys(("action/grip", "reward", "is_first", "is_terminal"), ())
    assert shapes == {"state": (2,), "action/move": (3,), **scalars}
    assert episode.signals["is_terminal"].tolist() == [False, False, False, True]
    assert episode.signals["state"][1].tolist() == [2, 3]
    origin = episode.origin
    assert (origin.dataset, origin.revision, origin.split, origin.group) == ("toy", "1.0.0", "train", "/data/one.npy")
    assert origin.tags == {"file_path": "/data/one.npy", "number": "300"}


def test_frames_and_their_identity(tmp_path):
    (episode, copy), _ = read(write(tmp_path, [steps(), steps()]), fps=2.0)
    (moved, _), _ = read(write(tmp_path / "moved", [steps(), steps()]))
    assert episode.fingerprint() == moved.fingerprint() != copy.fingerprint()
    frames = episode.main
    assert isinstance(frames.source, FrameSource)
    taken = frames.take([3, 0, 3])
    assert (taken.shape, taken.dtype) == ((3, 6, 8, 3), np.uint8)
    assert taken[:, 3, 3, 0].tolist() == [30, 0, 30]
    assert taken[0, 0, 0].tolist() == [255, 0, 10]
    assert frames.take([]).shape == (0, 6, 8, 3)
    assert frames.times().tolist() == [0, 0.5, 1, 1.5]
    again = pickle.loads(pickle.dumps(frame_source(frames.source.kind, frames.source.describe())))
    assert again == frames.source
    assert again.identity() == frames.identity() != episode.views["wrist_image"].identity()
    assert len(TfRecordFrames(again.path, again.offset, again.length, again.key)) == 4


def test_jpeg_and_grey_png_decode_to_rgb(tmp_path):
    images = [encoded_image(200, "JPEG"), encode(np.arange(48, dtype=np.uint8).reshape(6, 8))]
    (episode,), problems = read(write(tmp_path, [steps(2, steps__observation__image=images)]))
    assert problems == []
    assert episode.main.take([1])[0, 0, 5].tolist() == [5, 5, 5]
    assert abs(int(episode.main.take([0])[0, 5, 7, 0]) - 200) < 8


@pytest.mark.parametrize(("value", "dtype", "success"), [(1, "bool", True), (0, "bool", False), (1, "int64", None)])
def test_success_from_metadata_declared_bool(tmp_path, value, dtype, success):
    features = copy.deepcopy(FEATURES)
    metadata = features["featuresDict"]["features"]["episode_metadata"]["featuresDict"]["features"]
    metadata["success"]["tensor"]["dtype"] = dtype
    (episode,), _ = read(write(tmp_path, [steps(episode_metadata__success=np.array([value]))], features=features))
    known = Outcome("rule", success=success, by="episode_metadata/success")
    assert episode.outcomes == (() if success is None else (known,))


def test_the_newest_version(tmp_path):
    for version in ("0.9.0", "0.10.0", "0.2.0"):
        write(tmp_path, [steps()], version=version)
    (tmp_path / "toy" / "incomplete.1.0.0").mkdir()
    assert RldsReader(tmp_path / "toy").folder.name == "0.10.0"


HERE = "toy/train/00000/000000"
BROKEN = [encoded_image(9)] * 3 + [b"nonsense"]
BOTH = ["image", "wrist_image"]
OBSERVED = {"steps__observation__natural_language_instruction": [b"lift the cube", b"", b"x", b"x"]}
MESSY = {
    "several instructions": (steps(steps__language_instruction=None, **OBSERVED), BOTH),
    "empty instruction": (steps(steps__language_instruction=[b" "] * 4), BOTH),
    "no steps": (steps(0), None),
    "missing camera": (steps(steps__observation__image=None), ["wrist_image"]),
    "camera of another length": (steps(steps__observation__image=[encoded_image(1)] * 3), ["wrist_image"]),
    "undecodable image": (steps(steps__observation__image=BROKEN), ["wrist_image"]),
    "undecodable image (cut)": (steps(1, steps__observation__image=[b"\x89PNG\r\n\x1a\n cut"]), ["wrist_image"]),
    "placeholder camera": (
        steps(steps__observation__wrist_image=[encode(np.zeros((6, 8, 3), np.uint8))] * 4),
        ["image"],
    ),
    "misshapen signal": (steps(steps__reward=np.zeros(3)), BOTH),
    "unreadable record": (b"\x0a\x7fnot a message", None),
    "no usable camera": (steps(steps__observation__image=BROKEN, steps__observation__wrist_image=None), None),
}


@pytest.mark.parametrize("kind", MESSY)
def test_a_record_with_a_problem(tmp_path, kind):
    record, cameras = MESSY[kind]
    episodes, problems = read(write(tmp_path, [record, steps()]))
    assert problems == [(kind.partition(" (")[0], HERE, cameras is not None)]
    assert [list(episode.views) for episode in episodes] == ([cameras] if cameras else []) + [BOTH]
    assert episodes[-1].id == "toy/train/00000/000001"
    assert not cameras or episodes[0].instruction == ("" if kind == "empty instruction" else "lift the cube")
    assert "reward" in episodes[-1].signals and ("reward" in episodes[0].signals) == (kind != "misshapen signal")


def test_images_that_cannot_be_decoded_together(tmp_path):
    noisy = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    images = [encode(noisy), encode(noisy)[:600], encoded_image(1)]
    (episode,), _ = read(write(tmp_path, [steps(3, steps__observation__image=images)]))
    np.testing.assert_array_equal(episode.main.take([0])[0], noisy)
    with pytest.raises(UnreadableVideo, match="image 1"):
        episode.main.take([1])
    with pytest.raises(UnreadableVideo, match="sizes"):
        episode.main.take([0, 2])


@pytest.mark.parametrize(("declared", "cut", "kept"), [(3, None, False), (1, None, True), (2, -100, False)])
def test_shards_with_another_number_of_episodes(tmp_path, declared, cut, kept):
    folder = write(tmp_path, [steps(), steps()], {"train": [declared]})
    shard = folder / "toy-train.tfrecord-00000-of-00001"
    shard.write_bytes(shard.read_bytes()[:cut])
    episodes, problems = read(folder)
    assert len(episodes) == (1 if cut else 2)
    assert problems == [("unreadable shard" if cut else "wrong number of episodes", "toy/train/00000", kept)]


def test_splits_without_lengths_or_shards(tmp_path):
    folder = write(tmp_path / "unknown", [steps()], {"train": []})
    assert (RldsReader(folder).expected(), *map(len, read(folder))) == (None, 1, 0)
    folder = write(tmp_path, [steps()], {"train": [1], "val": [7]})
    episodes, problems = read(folder)
    assert (len(episodes), problems) == (1, [("missing split", "toy/val", False)])
    assert RldsReader(folder).expected() == 8
    assert (RldsReader(folder, split="train").expected(), len(read(folder, split="train")[1])) == (1, 0)
    with pytest.raises(UnknownName, match="vall"):
        RldsReader(folder, split="vall")


def test_missing_and_stray_shards(tmp_path):
    folder = write(tmp_path, [steps()], {"train": [1, 5]})
    shard = folder / "toy-train.tfrecord-00000-of-00001"
    episodes, problems = read(folder)  # the only set there is, although not the declared one
    assert (len(episodes), problems) == (1, [("wrong number of shards", "toy/train", True)])
    (folder / "toy-train.tfrecord-00000-of-00002").write_bytes(shard.read_bytes())
    episodes, problems = read(folder)
    assert len(episodes) == 1
    assert problems == [("stray shards", "toy/train", False), ("missing shards", "toy/train", False)]


def test_folders_that_are_not_rlds(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(BadInput):
            RldsReader(path)
    folder = write(tmp_path, [])
    for name, text, word in [
        ("features.json", json.dumps(group(steps=group())), "image"),
        ("features.json", '{"featuresDict": 3}', "features"),
        ("features.json", "[" * 100_000, "JSON"),
        ("dataset_info.json", '{"splits": [3]}', "name"),
        ("dataset_info.json", '{"splits": []}', "at least one"),
        ("dataset_info.json", "[]", "object"),
    ]:
        (folder / name).write_text(text)
        with pytest.raises(BadInput, match=word):
            RldsReader(folder)


def test_bad_frames(tmp_path):
    (episode,), _ = read(write(tmp_path, [steps()]))
    source = episode.main.source
    with pytest.raises(BadInput, match="0 to 3"):
        source.take([-1])
    for path, key in [(source.path, "steps/reward"), (str(tmp_path / "gone"), source.key)]:
        with pytest.raises(UnreadableVideo):
            TfRecordFrames(path, source.offset, source.length, key).take([0])
    with pytest.raises(BadInput, match="fps"):
        TfRecordFrames(source.path, 12, 1, "k", fps=0)


@pytest.mark.skipif(not BRIDGE.is_dir(), reason="the Bridge sample is not beside the repository")
def test_the_bridge_sample():
    reader = RldsReader(BRIDGE)
    dataset = Dataset(reader)
    episodes = list(dataset)
    assert (reader.name, reader.expected(), len(episodes)) == ("bridge_dataset", 50, 25)
    assert {(len(e), *e.views) for e in episodes} == {(10, "image_0", "image_1", "image_2")}
    instructions = {e.instruction for e in episodes}
    assert len(instructions) == 4 and "put carrot on plate" in instructions
    assert episodes[3].signals["action"].shape == episodes[3].signals["state"].shape == (10, 7)
    assert all(np.isfinite(e.signals["state"]).all() and e.signals["is_first"].tolist()[0] for e in episodes)
    assert dict(dataset.problems.counts) == {("placeholder camera", True): 25, ("missing split", False): 25}
    assert len({e.fingerprint() for e in episodes}) == 25
    images = episodes[0].main.all()
    assert images.shape == (10, 64, 64, 3) and images.std() > 20
