"""Files of strangers are opened in a process of their own, which their tricks end or delay, and nothing else."""

import fcntl
import gc
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from demerit.data.video import VideoClip
from demerit.errors import UnreadableVideo
from demerit.web.uploads import LEFT_OVER, ServeLimits, UploadDecoder

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
