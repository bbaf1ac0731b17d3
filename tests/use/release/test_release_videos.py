"""Videos of a release: nothing but pictures, the same pictures, and none of those that were to be hidden."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest

from demerit.data.episode import Episode
from demerit.data.frames import ArrayFrames, Frames
from demerit.data.video import Encoding, VideoClip, write_video
from demerit.errors import BadInput
from demerit.negatives.edits.splice import SplicedFrames
from demerit.use.release.containers import extras, has_user_data
from demerit.use.release.encoder_marks import X264, X265, is_own
from demerit.use.release.pixels import cover, hide, load_detector
from demerit.use.release.repacked import repack
from demerit.use.release.settings import Mask, Settings
from demerit.use.release.shown import unseen_frames
from demerit.use.release.videos import Videos
from fakes.release_fixture import SECRETS, cut_video, talking_video, with_user_data

Make = Callable[..., Path]


def made(tmp_path: Path, **settings: object) -> Videos:
    (tmp_path / "notes").mkdir(exist_ok=True)
    return Videos(tmp_path / "tree", tmp_path / "notes", Settings(**settings))  # type: ignore[arg-type]


def test_our_own_videos_hold_nothing_else(make_video: Make, sample: Path) -> None:
    for path in (make_video(), sample / "success-0.mp4"):
        assert extras(str(path)).clean, extras(str(path))


def test_everything_else_is_found(tmp_path: Path) -> None:
    found = extras(str(talking_video(tmp_path / "a.mp4")))
    assert found.sounds == 1
    assert {"title", "creation_time"} <= set(found.tags)
    assert "creation time" in found.unknown
    assert not found.clean


@pytest.mark.parametrize("where", ["after", "free"])
def test_bytes_that_nobody_plays_are_found(make_video: Make, where: str) -> None:
    path = make_video()
    box = b"free" if where == "free" else b"uuid"
    with open(path, "ab") as file:
        file.write((8 + 40).to_bytes(4, "big") + box + b"Anna was here, 14:32".ljust(40, b"\0"))
    assert extras(str(path)).unknown


def test_a_repacked_video_shows_the_same_and_holds_no_secret(tmp_path: Path) -> None:
    source, target = talking_video(tmp_path / "a.mp4"), tmp_path / "b.mp4"
    assert b"Anna" in source.read_bytes()
    assert repack(str(source), target, extras(str(source)))
    assert extras(str(target)).clean
    assert not any(secret.encode() in target.read_bytes() for secret in SECRETS)
    before, after = VideoClip(str(source)), VideoClip(str(target))
    np.testing.assert_array_equal(before.take(range(20)), after.take(range(20)))
    np.testing.assert_allclose(before.times(), after.times())
    # Packed once more it stays as it is, byte for byte: a release of a release keeps its fingerprints.
    assert repack(str(target), tmp_path / "c.mp4", extras(str(target)))
    assert (tmp_path / "c.mp4").read_bytes() == target.read_bytes()


def test_data_inside_the_stream_goes(tmp_path: Path, make_video: Make) -> None:
    source = with_user_data(make_video(), tmp_path / "gps.mp4", "Anna at 52.5200")
    found = extras(str(source))
    assert found.user_data
    assert b"Anna at" in source.read_bytes()
    assert repack(str(source), tmp_path / "b.mp4", found)
    assert b"Anna at" not in (tmp_path / "b.mp4").read_bytes()
    assert not extras(str(tmp_path / "b.mp4")).user_data
    np.testing.assert_array_equal(
        VideoClip(str(source)).take(range(12)), VideoClip(str(tmp_path / "b.mp4")).take(range(12))
    )


def test_user_data_is_told_from_the_encoders_own() -> None:
    own = bytes([6, 5, 16]) + bytes.fromhex("dc45e9bde6d948b7962cd820d923eeef") + b"\x80"
    foreign = bytes([6, 5, 16]) + bytes(range(16)) + b"\x80"
    for unit, is_foreign in ((own, False), (foreign, True), (b"\x65\x88\x84", False)):
        assert has_user_data("h264", len(unit).to_bytes(4, "big") + unit, 4) is is_foreign
        assert has_user_data("h264", b"\0\0\0\1" + unit, 0) is is_foreign
    assert has_user_data("av1", bytes([5 << 3 | 2, 3, 1, 2, 3]), 0)
    assert not has_user_data("av1", bytes([6 << 3 | 2, 3, 1, 2, 3]), 0)
    assert has_user_data("mjpeg", b"", 0)
    assert not has_user_data("vp9", b"", 0)


def test_av1_and_other_containers_come_through(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 255, (8, 64, 64, 3), dtype=np.uint8)
    write_video(
        tmp_path / "a.mp4", images, encoding=Encoding("libsvtav1", options={"preset": "10", "svtav1-params": "log=0"})
    )
    with av.open(str(tmp_path / "a.mp4")) as given, av.open(str(tmp_path / "a.mkv"), "w") as out:
        out.metadata["title"] = "Anna"
        stream = out.add_stream_from_template(given.streams.video[0], opaque=True)
        for packet in given.demux(video=0):
            if packet.size:
                packet.stream = stream
                out.mux(packet)
    episode = Episode.from_video(tmp_path / "a.mkv", id="one")
    treated, how = made(tmp_path).treated(episode)
    assert how == "repacked"
    path = Path(treated.main.source.describe()["path"])
    assert b"Anna" not in path.read_bytes()
    np.testing.assert_array_equal(treated.main.all(), episode.main.all())


def test_what_cannot_be_repacked_is_encoded_anew(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 255, (5, 32, 32, 3), dtype=np.uint8)
    with av.open(str(tmp_path / "a.avi"), "w") as out:
        stream = out.add_stream("mjpeg", rate=10)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuvj420p"
        for image in images:
            out.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24").reformat(format="yuvj420p")))
        out.mux(stream.encode(None))
    episode = Episode.from_video(tmp_path / "a.avi", id="one")
    treated, how = made(tmp_path).treated(episode)
    assert how == "encoded anew"
    assert len(treated.main.all()) == 5
    assert np.abs(treated.main.all().astype(int) - episode.main.all()).mean() < 12


def test_views_and_splices_stay_views(tmp_path: Path, make_video: Make) -> None:
    a, b = (VideoClip(str(make_video(f"{name}.mp4", seed=seed))) for seed, name in enumerate("ab"))
    view = Episode("view", "", {"main": Frames(a).select([5, 3, 3])})
    spliced = Episode("splice", "", {"main": Frames(SplicedFrames(((a, 0, 4), (b, 6, 9))))})
    videos = made(tmp_path)
    treated = [videos.treated(one) for one in (view, spliced)]
    assert [how for _, how in treated] == ["same file", "same file"]
    assert len(list((tmp_path / "tree/videos").iterdir())) == 2
    for (after, _), before in zip(treated, (view, spliced), strict=True):
        assert after.fingerprint() == before.fingerprint()
        np.testing.assert_array_equal(after.main.all(), before.main.all())
    assert unseen_frames([one for one, _ in treated]) == (16, 24)


def test_frames_that_no_episode_shows_are_counted(tmp_path: Path, make_video: Make) -> None:
    clip = VideoClip(str(make_video(frames=12)))
    some = Episode("some", "", {"main": Frames(clip).select([0, 1, 1, 2])})
    assert unseen_frames([some]) == (9, 12)
    assert unseen_frames([some, Episode("all", "", {"main": Frames(clip)})]) == (0, 0)
    treated, how = made(tmp_path, materialize=True).treated(some)
    assert (how, len(treated.main), unseen_frames([treated])) == ("encoded anew", 4, (0, 0))


def test_pictures_in_memory_are_written_without_loss_and_kept_apart(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    episodes = [
        Episode(f"{n}", "", {"main": Frames(ArrayFrames(rng.integers(0, 255, (3, 17, 31, 3), dtype=np.uint8)))})
        for n in range(2)
    ]
    videos = made(tmp_path)
    for one in episodes:
        treated, how = videos.treated(one)
        assert how == "lossless"
        np.testing.assert_array_equal(treated.main.all(), one.main.all())


def frames_in(path: Path) -> int:
    """How many pictures a player gets that does not mind edit lists."""
    with av.open(str(path), options={"ignore_editlist": "1"}) as container:
        return sum(1 for _ in container.decode(video=0))


@pytest.mark.parametrize("title", ["", "Anna"])
def test_pictures_that_an_edit_list_cuts_off_are_gone(tmp_path: Path, title: str) -> None:
    """Cut without encoding, a file shows twenty pictures and holds thirty-five."""
    path = cut_video(tmp_path / "cut.mp4", title)
    episode = Episode.from_video(path, id="one")
    assert (len(episode), frames_in(path), extras(str(path)).cut_off) == (20, 35, 15)
    videos = made(tmp_path)
    treated, how = videos.treated(episode)
    released = Path(treated.main.source.describe()["path"])
    assert (how, len(treated), frames_in(released)) == ("encoded anew", 20, 20)
    assert sum(one.removed["pictures that the file holds and never shows"] for one in videos.written) == 15
    assert np.abs(treated.main.all().astype(int) - episode.main.all()).mean() < 6
    assert not repack(str(path), tmp_path / "again.mp4", extras(str(path)))
    assert [one.name for one in released.parent.iterdir()] == [released.name]


def test_a_time_of_day_in_the_stream_is_found() -> None:
    for kind, has_clock in ((136, True), (1, False)):
        unit = bytes([39 << 1, 1, kind, 5]) + b"\x14\x22\x10\x05\x11\x80"
        assert has_user_data("hevc", len(unit).to_bytes(4, "big") + unit, 4) is has_clock


def test_masks_reach_the_pixels_and_keep_the_rest(tmp_path: Path) -> None:
    episode = Episode.from_video(talking_video(tmp_path / "a.mp4"), id="one")
    videos = made(tmp_path, masks=(Mask("main", 10, 8, 20, 16),))
    treated, how = videos.treated(episode)
    before, after = episode.main.all().astype(int), treated.main.all().astype(int)
    assert how == "encoded anew"
    assert before[:, 8:24, 10:30].mean() > 150
    assert after[:, 10:22, 12:28].max() < 12
    assert np.abs(after[:, 30:] - before[:, 30:]).mean() < 6
    np.testing.assert_allclose(treated.main.times(), episode.main.times(), atol=1e-4)
    assert videos.written[0].removed["frames with a region masked"] == 20
    assert videos.written[0].removed["streams of sound"] == 1


def test_a_mask_belongs_to_a_camera_and_a_picture() -> None:
    assert Mask.parse("left=cam=1,2,3,4") == Mask("left=cam", 1, 2, 3, 4)
    for wrong in ("main", "main=1,2,3", "=1,2,3,4", "main=1,2,3,-4", "main=a,b,c,d", "main=1,2,0,4"):
        with pytest.raises(BadInput):
            Mask.parse(wrong)
    with pytest.raises(BadInput, match="inside its 64x48 pixels"):
        cover(np.zeros((1, 48, 64, 3), np.uint8), Mask("main", 60, 0, 8, 8), "camera 'main'")


def test_a_mosaic_hides_boxes_and_masks_for_good() -> None:
    rng = np.random.default_rng(0)
    face = rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)
    by_box, by_mask = face.copy(), face.copy()
    inside = np.zeros((64, 64), bool)
    inside[16:48, 16:48] = True
    assert hide(by_box, lambda image: [(16, 16, 32, 32)], "x")
    assert hide(by_mask, lambda image: inside, "x")
    for hidden in (by_box, by_mask):
        assert len(np.unique(hidden[16:48, 16:48].reshape(-1, 3), axis=0)) <= 25
        assert hidden[20:44, 20:44].std() < face.std() / 4
    np.testing.assert_array_equal(by_mask[~inside], face[~inside])
    np.testing.assert_array_equal(by_box[:8], face[:8])
    assert not hide(face.copy(), lambda image: [], "x")
    assert not hide(face.copy(), lambda image: None, "x")
    assert not hide(face.copy(), lambda image: np.zeros((64, 64), bool), "x")


@pytest.mark.parametrize(
    "answer", [[(1, 2, 3)], "face", [(0, 0, float("nan"), 2)], [(0, 0, -1, 2)], np.zeros((4, 4), bool)]
)
def test_a_detector_that_answers_nonsense_is_refused(answer: object) -> None:
    with pytest.raises(BadInput, match="detector on"):
        hide(np.zeros((8, 8, 3), np.uint8), lambda image: answer, "camera 'main'")


def test_a_detector_that_breaks_is_a_sentence() -> None:
    with pytest.raises(BadInput, match="ZeroDivisionError"):
        hide(np.zeros((8, 8, 3), np.uint8), lambda image: 1 / 0, "camera 'main'")


def test_the_users_own_detector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_faces_here.py").write_text("def boxes(image):\n    return [(10, 8, 20, 16)]\nnumber = 3\n")
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    episode = Episode.from_video(talking_video(tmp_path / "a.mp4"), id="one")
    videos = made(tmp_path, blur="my_faces_here:boxes")
    treated, _ = videos.treated(episode)
    assert sys.path == path
    assert videos.written[0].removed["frames in which the detector found something to hide"] == 20
    edges = [np.abs(np.diff(one.main.take([3])[0, 4:28, 5:35].astype(int), axis=1)).max() for one in (episode, treated)]
    assert edges[1] < edges[0] * 0.75
    for wrong in ("my_faces_here", "no_such_module:f", "my_faces_here:nothing", "my_faces_here:number"):
        with pytest.raises(BadInput, match="--blur"):
            load_detector(wrong)


def test_a_tag_behind_another_of_the_same_name_is_found(make_video: Make, tmp_path: Path) -> None:
    """The container's encoder is a muxer's, the stream's is whatever somebody called it: 'Anna Schmidt'."""
    path = make_video()
    whole = bytearray(path.read_bytes())
    at = whole.find(b"avc1", whole.find(b"stsd")) - 4
    named = b"Anna Schmidt"
    whole[at + 50 : at + 82] = bytes([len(named)]) + named.ljust(31, b"\0")
    path.write_bytes(whole)
    found = extras(str(path))
    assert "encoder" in found.tags
    assert "name of an encoder" in found.unknown
    assert repack(str(path), tmp_path / "b.mp4", found)
    assert extras(str(tmp_path / "b.mp4")).clean
    assert b"Anna" not in (tmp_path / "b.mp4").read_bytes()


def test_words_behind_the_end_of_an_encoders_name_are_found(make_video: Make) -> None:
    path = make_video()
    whole = bytearray(path.read_bytes())
    at = whole.find(b"avc1", whole.find(b"stsd")) - 4
    whole[at + 50 : at + 82] = bytes([4]) + b"Lavc\0Anna Schmidt".ljust(31, b"\0")
    path.write_bytes(whole)
    assert extras(str(path)).unknown == ("name of an encoder",)


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx264", {"preset": "ultrafast"}),
        ("libx264", {"preset": "slow", "x264-params": "bitrate=300:vbv-maxrate=400:vbv-bufsize=400:nal-hrd=vbr"}),
        ("libx264", {"qp": "20", "tune": "grain", "x264-params": "slices=2:keyint=infinite:tff=1:me=umh"}),
        ("libx265", {"preset": "ultrafast", "x265-params": "log-level=none"}),
        ("libx265", {"preset": "fast", "x265-params": "log-level=none:bitrate=300:vbv-maxrate=400:vbv-bufsize=400"}),
    ],
)
def test_what_an_encoder_says_of_itself_is_no_secret(tmp_path: Path, codec: str, options: dict[str, str]) -> None:
    images = np.random.default_rng(0).integers(0, 255, (4, 128, 128, 3), dtype=np.uint8)
    write_video(tmp_path / "a.mp4", images, encoding=Encoding(codec, options=options))
    assert re.search(rb"x26[45].{1,200}options:", (tmp_path / "a.mp4").read_bytes())
    assert extras(str(tmp_path / "a.mp4")).clean, extras(str(tmp_path / "a.mp4"))


def test_words_of_somebodys_under_an_encoders_mark_are_found(make_video: Make, tmp_path: Path) -> None:
    head = (
        b"x264 - core 165 - H.264/MPEG-4 AVC codec - Copyleft 2003-2025 - http://www.videolan.org/x264.html - options:"
    )
    assert is_own(X264 + head + b" cabac=1 ref=3 me=hex analyse=0x3:0x113 crf=23.0\0")
    for words in (b"Anna", head + b" cabac=1 Anna", head + b" anna=1", head + b" me=anna", head[:-8], b"x" + head):
        assert not is_own(X264 + words)
    assert not is_own(X265 + head) and not is_own(bytes(16) + head) and not is_own(b"")
    path = with_user_data(make_video(), tmp_path / "a.mp4", "AnnaSchmidt", "dc45e9bd-e6d9-48b7-962c-d820d923eeef")
    found = extras(str(path))
    assert found.user_data
    assert repack(str(path), tmp_path / "b.mp4", found)
    assert b"Anna" not in (tmp_path / "b.mp4").read_bytes()
