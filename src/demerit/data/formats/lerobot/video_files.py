"""Videos that hold one episode after the other, as LeRobot v3 keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from demerit.data.formats.lerobot.write_plan import Camera
from demerit.data.frames import Images
from demerit.errors import BadInput, UnknownName

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

FILES_PER_CHUNK = 1000
QUALITY: Mapping[str, Mapping[str, str]] = {
    "libx264": {"crf": "20", "preset": "veryfast"},
    "libsvtav1": {"crf": "30", "preset": "8"},
}


@dataclass(frozen=True)
class VideoSettings:
    """How videos are encoded and when the next file begins."""

    codec: str = "libx264"
    gop: int = 2
    """a key frame every so many frames: 2 makes random access cheap"""
    options: Mapping[str, str] = field(default_factory=dict)
    limit_mb: float = 500

    def __post_init__(self) -> None:
        """Refuse an encoder that this PyAV does not have."""
        import av  # noqa: PLC0415

        try:
            av.Codec(self.codec, "w")
        except ValueError:
            raise UnknownName("video encoder", self.codec, QUALITY) from None
        if self.gop < 1:
            raise BadInput("gop", "1 or more frames", self.gop)


@dataclass(frozen=True)
class Placement:
    """Where an episode's video went."""

    chunk: int
    file: int
    start: float
    stop: float


def chunk_and_file(number: int) -> tuple[int, int]:
    """Number files from 0 within chunks of a thousand."""
    return divmod(number, FILES_PER_CHUNK)


class VideoFiles:
    """One camera's videos, written episode by episode."""

    def __init__(self, root: Path, camera: Camera, rate: Fraction, settings: VideoSettings) -> None:
        """Files go below `root`/videos; nothing is opened yet."""
        self._folder, self._camera, self._rate, self._settings = root / "videos" / camera.key, camera, rate, settings
        self._container: OutputContainer | None = None
        self._stream: VideoStream | None = None
        self._number, self._frames, self._episode_start, self._bytes = -1, 0, 0, 0

    def begin(self) -> None:
        """Start an episode, in a new file if the last one has grown too large."""
        if self._container is None or self._bytes > self._settings.limit_mb * 1e6:
            self.close()
            self._open_next()
        self._episode_start = self._frames

    def add(self, images: Images, episode: str) -> None:
        """Append frames to the episode."""
        import av  # noqa: PLC0415
        from av.video.frame import PictureType  # noqa: PLC0415

        camera = self._camera
        if images.shape[1:3] != (camera.height, camera.width):
            expected = f"{camera.width}x{camera.height} pixels as in the first episode"
            got = f"{images.shape[2]}x{images.shape[1]}"
            raise BadInput(f"camera {camera.view!r} of episode {episode!r}", expected, got)
        for image in images:
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
            frame.pts, frame.time_base = self._frames, 1 / self._rate
            if self._frames == self._episode_start:
                frame.pict_type = PictureType.I  # no episode's pixels lean on another's
            self._encode(frame)
            self._frames += 1

    def end(self) -> Placement:
        """Finish the episode and tell where it is."""
        chunk, file = chunk_and_file(self._number)
        return Placement(chunk, file, float(self._episode_start / self._rate), float(self._frames / self._rate))

    def close(self) -> None:
        """Finish the current file."""
        if self._container is not None:
            if self._frames:
                self._encode(None)
            self._container.close()
        self._container = self._stream = None

    def details(self) -> dict[str, Any]:
        """What meta/info.json says about these videos besides their size."""
        import av  # noqa: PLC0415

        return {
            "video.codec": av.Codec(self._settings.codec, "w").canonical_name,
            "video.pix_fmt": self._pixels(),
            "video.is_depth_map": False,
            "video.fps": float(self._rate) if self._rate.denominator > 1 else int(self._rate),
            "video.channels": 3,
            "has_audio": False,
        }

    def _encode(self, frame: VideoFrame | None) -> None:
        assert self._stream is not None and self._container is not None
        packets = self._stream.encode(frame)
        # The file itself appears late and grows in jumps: count what goes into it.
        self._bytes += sum(packet.size for packet in packets)
        self._container.mux(packets)

    def _pixels(self) -> str:
        # Half-resolution colours need even sizes; full-resolution ones take any.
        return "yuv444p" if self._camera.height % 2 or self._camera.width % 2 else "yuv420p"

    def _open_next(self) -> None:
        import av  # noqa: PLC0415

        self._number, self._frames, self._bytes = self._number + 1, 0, 0
        chunk, file = chunk_and_file(self._number)
        path = self._folder / f"chunk-{chunk:03d}" / f"file-{file:03d}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._container = av.open(str(path), "w", format="mp4")
        options = {**QUALITY.get(self._settings.codec, {}), **self._settings.options}
        stream: Any = self._container.add_stream(self._settings.codec, rate=self._rate, options=options)
        stream.width, stream.height, stream.pix_fmt = self._camera.width, self._camera.height, self._pixels()
        stream.codec_context.time_base = 1 / self._rate
        stream.codec_context.gop_size = self._settings.gop
        # Reordered frames would shift the clock of the file by an edit list that readers treat differently.
        stream.codec_context.max_b_frames = 0
        self._stream = stream
