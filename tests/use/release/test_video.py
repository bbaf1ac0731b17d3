"""Released videos: the same images and nothing else; covered where asked."""

import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from demerit.data.episode import Episode
from demerit.data.frames import Frames, SplicedFrames, alter, list_recordings
from demerit.data.video import EXACT, VideoClip, open_encoder, write_video
from demerit.errors import BadInput
from demerit.use.release.config import Mask, ReleaseConfig
from demerit.use.release.video import ReleaseVideos, hide_regions, remux
from fakes.release_fixture import add_user_data, cut_video, write_recording

MakeVideo = Callable[..., Path]


def write(tmp_path: Path, *episodes: Episode, **config: Any) -> tuple[list[Episode], list[str], ReleaseVideos]:
    (tmp_path / "records").mkdir(parents=True, exist_ok=True)
    videos = ReleaseVideos(tmp_path / "out", tmp_path / "records", ReleaseConfig(**config), episodes)
    made = [videos.write(episode) for episode in episodes]
    return [episode for episode, _ in made], [how for _, how in made], videos


def episode_of(source: Any, id: str = "a", indices: Any = None) -> Episode:
    return Episode(id, "do it", {"main": Frames(source, indices)})


def test_sound_tags_and_user_data_are_gone_and_images_are_the_same(tmp_path: Path) -> None:
    source = add_user_data(write_recording(tmp_path / "said.mp4"), tmp_path / "a.mp4", "AnnaSchmidt")
    for path, private in ((tmp_path / "said.mp4", b"Anna's kitchen"), (source, b"AnnaSchmidt")):
        assert private in path.read_bytes()
        target = tmp_path / f"made-{path.name}"
        assert remux(str(path), target).how == "remuxed"
        content = target.read_bytes()
        for text in (private, b"2025", b"52.5200", b"x264", b"Lavf"):
            assert text not in content
        with av.open(str(target)) as made:
            assert [stream.type for stream in made.streams] == ["video"]
            assert set(made.metadata) == {"major_brand", "minor_version", "compatible_brands"}
            assert made.streams.video[0].metadata == {"language": "und", "handler_name": "VideoHandler"}
        np.testing.assert_array_equal(VideoClip(str(target)).take(range(20)), VideoClip(str(path)).take(range(20)))
        np.testing.assert_allclose(VideoClip(str(target)).times(), VideoClip(str(path)).times())
        again = tmp_path / f"again-{path.name}"
        remux(str(target), again)
        assert again.read_bytes() == content


@pytest.mark.parametrize(
    ("codec", "suffix", "how"),
    [("libx264", "mkv", "remuxed"), ("libsvtav1", "mp4", "remuxed"), ("libvpx-vp9", "webm", "remuxed"),
     ("mjpeg", "avi", "re-encoded")],
)  # fmt: skip
def test_codecs(tmp_path: Path, codec: str, suffix: str, how: str) -> None:
    path = tmp_path / f"a.{suffix}"
    with av.open(str(path), "w") as out:
        out.metadata["title"] = "Anna"
        stream = out.add_stream(codec, rate=10)
        stream.width, stream.height = 64, 48
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.codec_context.color_range = 2 if codec == "mjpeg" else 1
        open_encoder(stream.codec_context)
        for number in range(12):
            image = np.full((48, 64, 3), 20 * number, dtype=np.uint8)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        out.mux(stream.encode(None))
    source = episode_of(VideoClip(str(path)))
    (made,), (said,), _ = write(tmp_path, source)
    assert said == how
    difference = np.abs(made.main.all().astype(int) - source.main.all().astype(int))
    assert difference.max() == 0 if how == "remuxed" else difference.mean() < 4
    assert b"Anna" not in Path(made.main.source.path).read_bytes()


def test_frames_that_an_edit_list_hides_are_not_released(tmp_path: Path) -> None:
    source = episode_of(VideoClip(str(cut_video(tmp_path / "cut.mp4"))))
    (made,), (how,), _ = write(tmp_path, source)
    assert (how, len(made)) == ("re-encoded", 20)
    with av.open(made.main.source.path, options={"ignore_editlist": "1"}) as video:
        assert sum(1 for _ in video.decode(video=0)) == 20


def test_times_begin_at_zero_and_clips_keep_their_images(tmp_path: Path, make_video: MakeVideo) -> None:
    with av.open(str(make_video(frames=30))) as given, av.open(str(tmp_path / "late.mkv"), "w") as late:
        stream = late.add_stream_from_template(given.streams.video[0])
        for packet in given.demux(video=0):
            if packet.size and packet.pts is not None and packet.dts is not None and packet.time_base is not None:
                shift = round(Fraction(5000) / packet.time_base)
                packet.pts, packet.dts, packet.stream = packet.pts + shift, packet.dts + shift, stream
                late.mux(packet)
    path = str(tmp_path / "late.mkv")
    episodes = [episode_of(VideoClip(path, 5000.0, 5001.0), "a"), episode_of(VideoClip(path, 5001.0), "b")]
    made, hows, _ = write(tmp_path, *episodes)
    assert hows == ["remuxed", "remuxed"]
    assert [len(episode) for episode in made] == [10, 20]
    for before, after in zip(episodes, made, strict=True):
        np.testing.assert_array_equal(after.main.all(), before.main.all())
    assert made[0].main.source.path == made[1].main.source.path
    with av.open(made[0].main.source.path) as video:
        assert next(video.decode(video=0)).time == 0
    assert made[1].main.source.start == pytest.approx(1.0)


def test_frames_that_no_episode_shows_are_not_released(tmp_path: Path, make_video: MakeVideo) -> None:
    clip = VideoClip(str(make_video(frames=30)))
    part = replace(clip, start=1.0, stop=2.0)
    rewound = episode_of(clip, "b", np.array([3, 4, 4, 3], dtype=np.int32))
    made, hows, _ = write(tmp_path, episode_of(part), rewound)
    assert hows == ["re-encoded", "re-encoded"]
    for episode, length in zip(made, (10, 4), strict=True):
        assert len(VideoClip(episode.main.source.path).scan().pts) == len(episode) == length
    # With the whole file in the release there is nothing to hide: both are views of one file.
    whole, hows, _ = write(tmp_path / "whole", episode_of(clip, "c"), rewound)
    assert hows == ["remuxed", "remuxed"]
    assert whole[1].main.indices is not None
    np.testing.assert_array_equal(whole[1].main.all(), rewound.main.all())


def test_spliced_and_stored_images(tmp_path: Path, make_video: MakeVideo) -> None:
    first, second = VideoClip(str(make_video("a.mp4"))), VideoClip(str(make_video("b.mp4", seed=1)))
    images = np.random.default_rng(0).integers(0, 255, (6, 33, 48, 3), dtype=np.uint8)
    spliced = episode_of(SplicedFrames(((first, 0, 12), (second, 0, 12))))
    array = replace(episode_of(first, "b"), views={"main": Frames.from_array(images)})
    made, hows, _ = write(tmp_path, spliced, array)
    assert hows == ["remuxed", "lossless"]
    np.testing.assert_array_equal(made[0].main.all(), spliced.main.all())
    np.testing.assert_array_equal(made[1].main.all(), images)


def test_masks_cover_pixels(tmp_path: Path) -> None:
    images = np.full((5, 47, 64, 3), 200, dtype=np.uint8)
    write_video(tmp_path / "odd.mp4", images, encoding=EXACT)
    source = episode_of(VideoClip(str(tmp_path / "odd.mp4")))
    source = replace(source, views={"main": source.main, "wrist": source.main})
    (made,), (how,), _ = write(tmp_path, source, masks=(Mask("wrist", 8, 4, 24, 16),))
    assert how == "re-encoded"
    np.testing.assert_array_equal(made.views["main"].all(), images)
    covered = made.views["wrist"].all()
    assert covered[:, 5:19, 9:31].max() < 24
    assert covered[:, 24:].min() > 180
    with pytest.raises(BadInput, match="64x47"):
        write(tmp_path / "x", source, masks=(Mask("*", 60, 0, 8, 8),))
    for text in ("main", "main=1,2,3", "=1,2,3,4", "main=0,0,0,4", "main=-1,0,4,4"):
        with pytest.raises(BadInput, match="mask"):
            Mask.parse(text)


def test_what_is_hidden_moves_with_an_altered_picture(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", np.full((5, 48, 64, 3), 200, dtype=np.uint8), encoding=EXACT)
    recorded = Frames(VideoClip(str(tmp_path / "a.mp4")))
    mask, crop = Mask("main", 12, 8, 40, 32), (0.25, 0.25, 0.5, 0.5)  # the crop shows what the mask hides, and no more
    whole = replace(episode_of(recorded.source), views={"main": alter(recorded, "crop", crop)})
    part = replace(whole, id="b", views={"main": whole.main.select([0, 1])})
    for number, episodes in enumerate(([whole, part], [part])):  # alone, frames of the video must not be released
        made, hows, videos = write(tmp_path / str(number), *episodes, masks=(mask,))
        assert set(hows) == {"re-encoded"}
        assert all(episode.main.all().max() < 24 for episode in (*made, *map(videos.cover, episodes)))
        shown, _, _ = write(tmp_path / f"{number} shown", *episodes)
        assert all(episode.main.all().min() > 180 for episode in shown)
        lengths = [len(VideoClip(list_recordings(episode.main.source)[0].path).scan().pts) for episode in made]
        assert lengths == ([5, 5] if len(episodes) > 1 else [2])


def test_the_owners_detector_hides_what_it_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_faces_here.py").write_text("def boxes(image):\n    return [(10, 8, 20, 16)]\n")
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    source = Episode.from_video(write_recording(tmp_path / "a.mp4"), id="a")
    (made,), _, videos = write(tmp_path, source, blur="my_faces_here:boxes")
    assert sys.path == path and videos.hidden_frames == 20
    edges = [np.abs(np.diff(e.main.take([3])[0, 4:28, 5:35].astype(int), axis=1)).max() for e in (source, made)]
    assert edges[1] < edges[0] * 0.75
    face = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    hidden = face.copy()
    assert hide_regions(hidden, lambda image: [(20, 20, 24, 24)], "main")
    assert len(np.unique(hidden[17:47, 17:47].reshape(-1, 3), axis=0)) <= 25, "a mosaic of few colours"
    np.testing.assert_array_equal(hidden[:16], face[:16])
    for nothing in ([], [(80, 0, 5, 5)], [(-9, 0, 5, 5)]):
        untouched = face.copy()
        assert not hide_regions(untouched, lambda image, nothing=nothing: nothing, "main")
        np.testing.assert_array_equal(untouched, face)


@pytest.mark.parametrize("answer", [[(1, 2, 3)], "face", [(0, 0, float("nan"), 2)], [(0, 0, -1, 2)], ZeroDivisionError])
def test_a_detector_that_fails_is_refused(answer: Any) -> None:
    def detect(image: Any) -> Any:
        if answer is ZeroDivisionError:
            raise answer
        return answer

    with pytest.raises(BadInput, match="detector"):
        hide_regions(np.zeros((8, 8, 3), np.uint8), detect, "main")
