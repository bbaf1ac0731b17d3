"""Pictures and videos of episodes for a browser."""

import io
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from demerit.data.frames import Frames
from demerit.data.video import VideoClip
from demerit.errors import BadInput, UnreadableVideo
from demerit.web.media import EpisodeMedia, video_times
from fakes.page_fixture import shading_frames
from fakes.tiny_video import write_video

GREYS = np.broadcast_to((2 + 3.5 * np.arange(40)).astype(np.uint8)[:, None, None, None], (40, 48, 64, 3))


def shades(frames: Frames) -> np.ndarray:
    return frames.all().mean(axis=(1, 2, 3))


def picture(content: bytes) -> Image.Image:
    return Image.open(io.BytesIO(content))


def recorded(path: Path, **options: object) -> Frames:
    write_video(path, np.ascontiguousarray(GREYS), **options)
    return Frames.from_video(path)


@pytest.fixture
def media(tmp_path: Path) -> EpisodeMedia:
    return EpisodeMedia(tmp_path / "cache")


def test_plain_mp4_is_not_copied(tmp_path: Path, media: EpisodeMedia) -> None:
    frames = recorded(tmp_path / "a.mp4", bf="0")
    video = media.video(frames)
    assert video == tmp_path / "a.mp4" and not list(media.cache.iterdir())
    assert np.allclose(video_times(frames), np.arange(40) / 10)


@pytest.mark.parametrize("case", ["segment", "rotated", "edited", "array", "other codec", "matroska"])
def test_everything_else_becomes_a_clip_with_the_same_frames(case: str, tmp_path: Path, media: EpisodeMedia) -> None:
    frames = recorded(tmp_path / "a.mp4")
    path = str(tmp_path / "a.mp4")
    if case == "segment":
        frames = Frames(VideoClip(path, 1.0, 3.0))
    elif case == "rotated":
        frames = Frames(VideoClip(path, rotate=90))
    elif case == "edited":
        frames = frames.select([*range(30), *range(29, 0, -1)])
    elif case == "array":
        frames = shading_frames(33, (65, 47))  # sides of odd length
    else:
        name, codec = {"other codec": ("b.mp4", "mpeg4"), "matroska": ("b.mkv", "libx264")}[case]
        frames = recorded(tmp_path / name, codec=codec)
    video = media.video(frames)
    assert video.parent == media.cache
    shown, times = Frames.from_video(video), video_times(frames)
    assert len(shown) == len(times) == len(frames)
    assert np.abs(shades(shown) - shades(frames)).max() < 1.7  # less than half of the step from frame to frame
    assert np.allclose(shown.times(), times, atol=1e-4) and np.allclose(times, frames.times(), atol=1e-4)
    assert media.video(shown) == video  # itself a video that plays as it is


def test_replaced_recording_gets_a_new_clip(tmp_path: Path, media: EpisodeMedia) -> None:
    segment = Frames(VideoClip(str(tmp_path / "a.mp4"), 1.0, 3.0))
    recorded(tmp_path / "a.mp4")
    first = media.video(segment)
    write_video(tmp_path / "a.mp4", np.ascontiguousarray(255 - GREYS))
    second = media.video(segment)
    assert first != second and shades(Frames.from_video(second))[0] > 200


def test_thumbnail_shows_the_frame(tmp_path: Path, media: EpisodeMedia) -> None:
    frames = recorded(tmp_path / "a.mp4")
    for at, grey in ((None, GREYS[-1, 0, 0, 0]), (7, GREYS[7, 0, 0, 0])):
        assert abs(np.asarray(picture(media.thumbnail(frames, at).read_bytes())).mean() - grey) < 2
    wide = Frames.from_array(np.zeros((1, 600, 800, 3), np.uint8))
    assert picture(media.thumbnail(wide).read_bytes()).size == (192, 144)
    with pytest.raises(BadInput):
        media.thumbnail(frames, 40)
    with pytest.raises(UnreadableVideo):
        media.thumbnail(Frames(VideoClip(str(tmp_path / "gone.mp4"))))


def test_threads_make_a_clip_once(tmp_path: Path, media: EpisodeMedia, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr("demerit.web.media._write_clip", lambda _, __, path: (made.append(path), path.touch()))
    threads = [threading.Thread(target=media.video, args=(shading_frames(8),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
