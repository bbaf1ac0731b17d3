"""Files of strangers are opened in a process of their own, which their tricks end or delay, and nothing else."""

import fcntl
import gc
import os
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from demerit.data.video import VideoClip, write_video
from demerit.errors import UnreadableVideo
from demerit.web.uploads import LEFT_OVER, DecoderAway, ServeLimits, UploadDecoder

SECRET = "policy-alpha-7"
LIMITS = ServeLimits(megabytes=1, frames=20, pixels=4096)


@pytest.fixture(scope="module")
def decoder() -> Iterator[UploadDecoder]:
    decoder = UploadDecoder(LIMITS, processes=1)
    yield decoder
    decoder.close()


def test_a_video_by_its_path_and_by_its_bytes(decoder: UploadDecoder, make_video: Callable[..., Path]) -> None:
    path = make_video(frames=12)
    expected = VideoClip(str(path)).take(range(12))
    for video in (path, memoryview(path.read_bytes())):
        frames = decoder.decode(video, None, None)
        assert np.array_equal(frames.images, expected) and len(frames) == 12
        some = decoder.decode(video, 2, None)
        assert some.at.tolist() == [0, 11] and np.array_equal(some.images, expected[[0, 11]]) and len(some) == 12


def test_what_cannot_be_read_is_a_sentence_without_a_path(
    decoder: UploadDecoder, make_video: Callable[..., Path], tmp_path: Path
) -> None:
    path = tmp_path / "sent.mp4"
    for content in (b"noise" * 100, b"#EXTM3U\n/etc/passwd", b"", make_video("long.mp4", frames=21).read_bytes()):
        path.write_bytes(content)
        with pytest.raises(UnreadableVideo) as caught:
            decoder.decode(path, 2, None)
        assert str(tmp_path) not in str(caught.value)


def test_decoding_ends_when_nobody_waits_for_it(decoder: UploadDecoder, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "slow.mp4")  # opening it waits for a writer
    stop = threading.Event()
    stop.set()
    with pytest.raises(UnreadableVideo, match="nobody waits"):
        decoder._run(open, tmp_path / "slow.mp4", stop)  # type: ignore[arg-type]


def test_photos(decoder: UploadDecoder, tmp_path: Path) -> None:
    for name, size in (("a.png", (20, 20)), ("large.png", (65, 64))):
        Image.new("RGB", size).save(tmp_path / name)
    decoder.check_photo(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"no image")
    for name in ("large.png", "b.png", "missing.png"):
        with pytest.raises(UnreadableVideo) as caught:
            decoder.check_photo(tmp_path / name)
        assert str(tmp_path) not in str(caught.value)


def test_a_decoder_that_dies_or_hangs_is_replaced(make_video: Callable[..., Path], tmp_path: Path) -> None:
    path, decoder = make_video(), UploadDecoder(ServeLimits(), processes=1)
    decoder.decode(path, 2, None)
    worker = decoder._free.get()
    assert worker is not None
    worker.process.kill()
    decoder._free.put(worker)
    with pytest.raises(UnreadableVideo, match="died"):
        decoder.decode(path, 2, None)
    assert len(decoder.decode(path, 2, None)) == 12
    decoder.close()
    slow, hanging = UploadDecoder(ServeLimits(decode_seconds=0.1), processes=1), tmp_path / "slow.mp4"
    os.mkfifo(hanging)  # opening it waits for a writer
    with pytest.raises(UnreadableVideo, match="longer than"):
        slow._run(open, hanging)  # type: ignore[arg-type]
    slow.close()


@pytest.mark.parametrize("cause", ["no permission", "missing library"])
def test_a_decoder_that_cannot_start_is_the_servers_fault_and_its_log_says_why(
    cause: str, make_video: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, decoder, log = make_video(), UploadDecoder(ServeLimits(), processes=1), list[str]()
    with monkeypatch.context() as patch:
        patch.setattr("demerit.web.uploads.LOG.error", lambda text, *facts: log.append(text % facts))
        if cause == "no permission":
            patch.setattr("sys.executable", str(path))
        else:
            patch.setattr("demerit.web.uploads.CALL", "import a_library_that_is_not_there  # {pipe}")
        for _ in range(2):  # its place is free again
            with pytest.raises(DecoderAway) as caught:
                decoder.decode(path, 2, None)
    assert DecoderAway.status == 503 and str(path.parent) not in str(caught.value)
    assert len(log) == 2 and all("cannot be started" in line for line in log)
    assert ("Permission" in log[0]) == (cause == "no permission")
    assert len(decoder.decode(path, 2, None)) == 12
    decoder.close()


def test_a_disk_without_space_is_the_servers_fault(
    decoder: UploadDecoder, make_video: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    sent = memoryview(make_video().read_bytes())
    with monkeypatch.context() as patch:
        patch.setattr("demerit.web.uploads.LOG.error", lambda text, *facts: log.append(text % facts))
        # every write fails as on a full disk
        patch.setattr("demerit.web.uploads.tempfile.NamedTemporaryFile", lambda **_: open("/dev/full", "wb"))
        with pytest.raises(DecoderAway):
            decoder.decode(sent, 2, None)
    assert len(log) == 1 and "No space left" in log[0]
    assert len(decoder.decode(sent, 2, None)) == 12


def put_into(path: Path, dest: Path, container: str, **options: str) -> Path:
    """Copy a video into another container, with a name wherever a container has a place for one."""
    with av.open(str(path)) as source, av.open(str(dest), "w", format=container, options=options) as target:
        for name in ("title", "comment", "encoder", "location", "artist"):
            target.metadata[name] = SECRET
        target.metadata["creation_time"] = "2001-02-03T04:05:06Z"
        same = target.add_stream_from_template(source.streams.video[0])
        same.metadata["handler_name"] = same.metadata["title"] = SECRET
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = same
                target.mux(packet)
    return dest


@pytest.mark.parametrize("container", ["mp4", "mov", "matroska"])
def test_a_copy_has_the_same_frames_and_times_and_nothing_else(
    container: str, decoder: UploadDecoder, tmp_path: Path
) -> None:
    images = np.random.default_rng(0).integers(0, 255, (6, 32, 48, 3), dtype=np.uint8)
    plain, copies = tmp_path / "plain.mp4", [tmp_path / "1.mp4", tmp_path / "2.mp4"]
    write_video(plain, images, times=[0.0, 0.1, 0.35, 0.4, 0.9, 1.0])
    sent = put_into(plain, tmp_path / "sent", container)
    assert SECRET.encode() in sent.read_bytes()
    for copied in copies:
        decoder.strip(sent, copied)
        before, after = VideoClip(str(sent)), VideoClip(str(copied))
        assert np.array_equal(before.take(range(6)), after.take(range(6)))
        assert np.allclose(before.times(), after.times(), rtol=0, atol=1e-6)
        assert SECRET.encode() not in copied.read_bytes()
    assert copies[0].read_bytes() == copies[1].read_bytes()


def test_a_rotated_video_stays_rotated(decoder: UploadDecoder, make_video: Callable[..., Path], tmp_path: Path) -> None:
    content = bytearray(make_video("sent.mp4").read_bytes())
    matrix = content.index(b"tkhd") + 44
    content[matrix : matrix + 36] = struct.pack(">9i", 0, 65536, 0, -65536, 0, 0, 0, 0, 1 << 30)
    (sent := tmp_path / "sent.mp4").write_bytes(content)
    decoder.strip(sent, copied := tmp_path / "copy.mp4")
    for path in (sent, copied):
        assert VideoClip(str(path)).take([0]).shape == (1, 48, 32, 3)


def share_bytes(path: Path, dest: Path) -> bytes:
    """Return an mp4 whose frames are all the bytes of its first one."""
    with av.open(str(path)) as source, av.open(str(dest), "w") as target:
        packets = [packet for packet in source.demux(video=0) if packet.size]
        stream = source.streams.video[0]
        tracks = [target.add_stream_from_template(stream) for _ in range(2)]
        for packet, track in product(packets, tracks):
            twin = av.Packet(bytes(packet))
            twin.pts, twin.dts, twin.time_base, twin.stream = packet.pts, packet.dts, packet.time_base, track
            twin.is_keyframe = packet.is_keyframe
            target.mux(twin)
    content = bytearray(dest.read_bytes())
    for table, entries in ((b"stsz", 12), (b"stco", 8)):
        at = content.index(table) + 4 + entries
        first = content[at : at + 4]
        (count,) = struct.unpack(">I", content[at - 4 : at])
        assert count == 4
        content[at : at + 16] = first * 4
    return bytes(content)


def test_what_cannot_be_copied_is_encoded_again(decoder: UploadDecoder, tmp_path: Path) -> None:
    (raw := tmp_path / "sent.avi").write_bytes(b"")
    with av.open(str(raw), "w", format="avi") as target:  # mp4 has no place for this codec
        target.metadata["title"] = SECRET
        stream = target.add_stream("huffyuv", rate=10)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv422p"
        for level in range(0, 200, 50):
            image = np.full((32, 32, 3), level, np.uint8)
            target.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        target.mux(stream.encode(None))
    decoder.strip(raw, copy := tmp_path / "copy.mp4")
    before, after = VideoClip(str(raw)), VideoClip(str(copy))
    assert np.allclose(before.times(), after.times(), rtol=0, atol=1e-3)
    assert np.abs(before.take(range(4)).astype(int) - after.take(range(4))).max() < 8
    assert SECRET.encode() in raw.read_bytes() and SECRET.encode() not in copy.read_bytes()


def test_a_small_file_that_would_become_a_huge_one_is_refused(decoder: UploadDecoder, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    write_video(tmp_path / "a.mp4", [noise] * 4)
    (huge := tmp_path / "huge.mp4").write_bytes(share_bytes(tmp_path / "a.mp4", tmp_path / "b.mp4"))
    assert len(decoder.decode(huge, 2, None)) == 4
    with pytest.raises(UnreadableVideo) as caught:
        decoder.strip(huge, tmp_path / "copy.mp4")
    assert str(tmp_path) not in str(caught.value) and not list(tmp_path.glob("*copy*"))


def test_a_decoder_that_nobody_closed_leaves_no_process(make_video: Callable[..., Path]) -> None:
    decoder = UploadDecoder(ServeLimits(), processes=1)
    decoder.decode(make_video(), 2, None)
    worker = decoder._free.get()
    assert worker is not None and worker.process.poll() is None
    process = worker.process
    del decoder, worker
    gc.collect()
    assert process.returncode is not None


def test_files_that_a_killed_server_left_are_removed_and_those_in_use_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, used, new, other = (tmp_path / name for name in (f"{LEFT_OVER}a", f"{LEFT_OVER}b", f"{LEFT_OVER}c", "other"))
    for path in (left, used, new, other):
        path.touch()
        if path != new:
            os.utime(path, (0, 0))
    with used.open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        UploadDecoder(ServeLimits())
    assert sorted(tmp_path.iterdir()) == sorted([used, new, other])
