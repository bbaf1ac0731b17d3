"""Frames taken in any order equal the frames of a linear decode, pixel for pixel."""

import os
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demerit.data.frames import Frames, Images
from demerit.data.video import EXACT, SMALL, Encoding, VideoClip, write_video
from demerit.errors import BadInput, UnreadableVideo
from fakes import tiny_video

ENCODINGS = {
    "h264 gop 2": Encoding(gop=2),
    "h264 gop 250, B-frames": Encoding(gop=250, options={"bf": "4", "preset": "medium"}),
    "h264 gop 8, B-pyramid": Encoding(gop=8, options={"bf": "3", "b-pyramid": "normal", "preset": "slow"}),
    "h264 open gop": Encoding(gop=8, options={"bf": "3", "x264-params": "open-gop=1:scenecut=0", "preset": "medium"}),
    "h264 gop 2, B-frames": Encoding(gop=2, options={"bf": "2", "preset": "medium"}),
    "av1 gop 2": Encoding("libsvtav1", gop=2, options={"crf": "30", "preset": "10"}),
    "av1 gop 30": Encoding("libsvtav1", gop=30, options={"crf": "30", "preset": "10"}),
    "vp9": Encoding("libvpx-vp9", gop=12, options={"deadline": "realtime", "cpu-used": "8"}),
    "hevc": Encoding("libx265", gop=12, options={"preset": "ultrafast", "x265-params": "log-level=none"}),
    "exact": EXACT,
}


def moving(count: int, size: tuple[int, int] = (64, 80), seed: int = 0) -> np.ndarray:
    """Images that all differ: a moving square over noise."""
    rng = np.random.default_rng(seed)
    images = np.repeat(rng.integers(0, 256, (1, *size, 3), dtype=np.uint8) // 2, count, axis=0)
    for i in range(count):
        x = (i * 5) % (size[1] - 16)
        images[i, 8 + i % 32 : 24 + i % 32, x : x + 16] = (255, i * 3 % 256, 255 - i * 7 % 256)
    return images


def linear(path: Path) -> np.ndarray:
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


@pytest.fixture(scope="module", params=list(ENCODINGS))
def encoded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    path = tmp_path_factory.mktemp("videos") / "clip.mp4"
    write_video(path, moving(61), fps=15, encoding=ENCODINGS[request.param])
    return path, linear(path)


@settings(max_examples=25)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=20))
def test_any_choice_of_frames_equals_the_linear_decode(encoded: tuple[Path, np.ndarray], wanted: list[int]) -> None:
    path, truth = encoded
    assert len(truth) == 61
    np.testing.assert_array_equal(Frames.from_video(path).take(wanted), truth[wanted])


def test_all_frames_equal_the_linear_decode(encoded: tuple[Path, np.ndarray]) -> None:
    path, truth = encoded
    frames = Frames.from_video(path)
    np.testing.assert_array_equal(frames.all(), truth)
    np.testing.assert_allclose(frames.times(), np.arange(61) / 15, atol=1e-3)


@settings(max_examples=15)
@given(st.integers(0, 58), st.integers(1, 30), st.data())
def test_a_clip_of_a_longer_file(encoded: tuple[Path, np.ndarray], first: int, count: int, data: st.DataObject) -> None:
    path, truth = encoded
    last = min(61, first + count)
    clip = VideoClip(str(path), start=first / 15, stop=last / 15)
    assert len(clip) == last - first
    wanted = data.draw(st.lists(st.integers(0, last - first - 1), min_size=1, max_size=5))
    np.testing.assert_array_equal(clip.take(wanted), truth[first:last][wanted])
    assert clip.times()[0] == 0


def test_lossless_encoding(tmp_path: Path) -> None:
    images = np.random.default_rng(1).integers(0, 256, (12, 33, 47, 3), dtype=np.uint8)
    write_video(tmp_path / "exact.mp4", images, encoding=EXACT)
    np.testing.assert_array_equal(Frames.from_video(tmp_path / "exact.mp4").all(), images)


def test_variable_frame_rate(tmp_path: Path) -> None:
    times = np.cumsum([0.0, 0.1, 0.5, 0.02, 0.02, 1.0, 0.3, 0.04])
    write_video(tmp_path / "vfr.mp4", moving(8), times=times.tolist())
    frames = Frames.from_video(tmp_path / "vfr.mp4")
    np.testing.assert_allclose(frames.times(), times, atol=1e-4)
    np.testing.assert_array_equal(frames.take([6, 1]), linear(tmp_path / "vfr.mp4")[[6, 1]])


@pytest.mark.parametrize("degrees", [90, 180, -90])
def test_rotation_in_the_file(tmp_path: Path, degrees: int) -> None:
    source, turned = tmp_path / "plain.mp4", tmp_path / "turned.mp4"
    write_video(source, moving(4), encoding=EXACT)
    with av.open(str(source)) as plain, av.open(str(turned), "w") as out:
        stream = out.add_stream_from_template(plain.streams.video[0])
        stream.set_display_rotation(degrees)
        for packet in plain.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                out.mux(packet)
    with av.open(str(turned)) as check:
        assert abs(next(check.decode(video=0)).rotation) == abs(degrees)
    expected = np.stack([np.rot90(image, round(degrees / 90)) for image in moving(4)])
    np.testing.assert_array_equal(Frames.from_video(turned).all(), expected)


def test_rotation_by_the_dataset(tmp_path: Path) -> None:
    write_video(tmp_path / "wrist.mp4", moving(3), encoding=EXACT)
    clip = VideoClip(str(tmp_path / "wrist.mp4"), rotate=180)
    np.testing.assert_array_equal(clip.take([2]), moving(3)[2:, ::-1, ::-1])
    with pytest.raises(BadInput, match="multiple of 90"):
        VideoClip("x.mp4", rotate=45)


def test_avi_without_frame_times(tmp_path: Path) -> None:
    path = tmp_path / "old.avi"
    tiny_video.write_video(path, moving(20), codec="mpeg4", bf="2")
    truth = linear(path)
    frames = Frames.from_video(path)
    assert len(frames) == len(truth)
    np.testing.assert_array_equal(frames.take([0, 7, len(truth) - 1]), truth[[0, 7, -1]])


@pytest.mark.skipif(not hasattr(os, "sched_getscheduler"), reason="only Linux has these priorities")
def test_an_encoder_takes_no_real_time_priority(tmp_path: Path) -> None:
    """As root, SVT-AV1 takes it for its threads and for the one that calls it."""
    policies: set[int] = set()

    def images() -> Iterator[Images]:
        for image in moving(5):
            yield image
            policies.update(os.sched_getscheduler(int(thread)) for thread in os.listdir("/proc/self/task"))

    write_video(tmp_path / "clip.mp4", images(), encoding=ENCODINGS["av1 gop 2"])
    assert policies == {os.SCHED_OTHER}


@pytest.mark.parametrize("codec", ["libx264", "libsvtav1"])
def test_a_truncated_video_is_noticed(tmp_path: Path, codec: str) -> None:
    whole, cut = tmp_path / "whole.mp4", tmp_path / "cut.mp4"
    tiny_video.write_video(whole, moving(60), codec=codec, flags="faststart")
    assert len(VideoClip(str(whole)).scan().pts) == 60
    cut.write_bytes(whole.read_bytes()[: int(whole.stat().st_size * 0.6)])
    index = VideoClip(str(cut)).scan()
    assert index.header_frames == 60
    assert 0 < len(index.pts) < 60
    with pytest.raises(UnreadableVideo, match="frames can be read"):
        VideoClip(str(cut), length=60).take([59])


def test_threads_do_not_share_an_open_file(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    write_video(path, moving(60), encoding=Encoding(gop=10))
    truth, frames = linear(path), Frames.from_video(path)
    with ThreadPoolExecutor(4) as pool:
        wanted = [[i % 60, (i * 7) % 60] for i in range(80)]
        for chosen, images in zip(wanted, pool.map(frames.take, wanted), strict=True):
            np.testing.assert_array_equal(images, truth[chosen])


def test_files_that_are_not_videos(tmp_path: Path) -> None:
    (tmp_path / "notes.mp4").write_text("not a video")
    with pytest.raises(UnreadableVideo, match="notes"):
        len(Frames.from_video(tmp_path / "notes.mp4"))
    with pytest.raises(UnreadableVideo, match="no such file"):
        Frames.from_video(tmp_path / "absent.mp4")
    with av.open(str(tmp_path / "sound.wav"), "w") as out:
        stream = out.add_stream("pcm_s16le", rate=8000)
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.int16), layout="mono")
        silence.rate = 8000
        out.mux(stream.encode(silence))
    with pytest.raises(UnreadableVideo, match="no video stream"):
        len(Frames.from_video(tmp_path / "sound.wav"))


def test_a_video_without_a_decoder(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", np.zeros((3, 16, 16, 3), np.uint8))
    content = (tmp_path / "a.mp4").read_bytes()
    assert content.count(b"avc1") >= 1
    (tmp_path / "a.mp4").write_bytes(content.replace(b"avc1", b"xxx1"))
    with pytest.raises(UnreadableVideo, match="decode"):
        Frames.from_video(tmp_path / "a.mp4").all()


def test_playlists_do_not_open_other_files(tmp_path: Path) -> None:
    write_video(tmp_path / "other.mp4", np.zeros((3, 16, 16, 3), np.uint8))
    (tmp_path / "list.mp4").write_text("ffconcat version 1.0\nfile other.mp4\n")
    with pytest.raises(UnreadableVideo):
        len(Frames.from_video(tmp_path / "list.mp4"))


def test_damaged_frames_are_never_returned(tmp_path: Path) -> None:
    path = tmp_path / "damaged.mp4"
    write_video(path, moving(40), encoding=Encoding(gop=40))
    raw = bytearray(path.read_bytes())
    start = raw.index(b"mdat") + 3000
    raw[start : start + 3000] = np.random.default_rng(0).bytes(3000)
    path.write_bytes(bytes(raw))
    with pytest.raises(UnreadableVideo, match=r"decoding stopped|damaged|could be decoded"):
        Frames.from_video(path).all()


def test_pickled_frames_and_replaced_files(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    write_video(path, moving(5))
    frames = Frames.from_video(path).select([4, 0])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(frames)).all(), frames.all())
    assert len(pickle.dumps(frames)) < 1000
    write_video(path, moving(9, seed=3))
    assert len(Frames.from_video(path)) == 9


def test_bad_input_of_the_writer(tmp_path: Path) -> None:
    mixed = [np.zeros((32, 32, 3), np.uint8), np.zeros((64, 32, 3), np.uint8)]
    for images, encoding, word in [
        ([], EXACT, "at least one"),
        (np.zeros((2, 33, 47, 3), np.uint8), SMALL, "even"),
        (mixed, EXACT, "one size"),
    ]:
        with pytest.raises(BadInput, match=word):
            write_video(tmp_path / "bad.mp4", images, encoding=encoding)
    assert list(tmp_path.iterdir()) == []
