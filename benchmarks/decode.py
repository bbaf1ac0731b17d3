"""Decoding sampled frames: demerit, a linear decode and, if installed, torchcodec.

    python benchmarks/decode.py [--small]

Sixteen frames spread over 300-frame videos of 256x256, one thread each, files not cached. Every round decodes the same
clip with every decoder; the result is the median over rounds.

torchcodec needs torch 2.11 or newer and FFmpeg's shared libraries (4 to 8; `apt install ffmpeg`):

    pip install -c constraints.txt torch torchcodec
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np

from demerit.data.frames import Frames, spread
from demerit.data.video import Encoding, VideoClip, _last_opened, scan_video, write_video

SAMPLES = 16


def scene(seed: int, frames: int) -> np.ndarray:
    """Draw something like a robot's camera: a textured table, moving objects, sensor noise."""
    rng = np.random.default_rng(seed)
    table = np.kron(rng.integers(90, 160, (16, 16, 3)), np.ones((16, 16, 1))).astype(np.int16)
    images = np.repeat(table[None], frames, axis=0)
    for i in range(frames):
        for thing in range(3):
            x = int(100 + 80 * np.sin(i / 30 + thing * 2 + seed))
            y = int(110 + 70 * np.cos(i / 45 + thing))
            images[i, y : y + 40, x : x + 40] = (40 + 70 * thing, 200 - 60 * thing, 90)
    return np.clip(images + rng.normal(0, 3, images.shape), 0, 255).astype(np.uint8)


def linear(path: Path, wanted: np.ndarray) -> np.ndarray:
    """Decode from the start and keep the wanted frames."""
    chosen = set(wanted.tolist())
    with av.open(str(path)) as container:
        container.streams.video[0].codec_context.thread_count = 1
        frames = enumerate(container.decode(video=0))
        return np.stack([frame.to_ndarray(format="rgb24") for i, frame in frames if i in chosen])


def ours(path: Path, wanted: np.ndarray) -> np.ndarray:
    scan_video.cache_clear()
    _last_opened.key = None
    return Frames(VideoClip(str(path))).take(wanted)


def decoders() -> dict[str, Callable[[Path, np.ndarray], np.ndarray]]:
    found: dict[str, Callable[[Path, np.ndarray], np.ndarray]] = {"linear": linear, "demerit": ours}
    try:
        from torchcodec.decoders import VideoDecoder
    except (ImportError, RuntimeError, OSError) as error:
        print(f"without torchcodec ({str(error).splitlines()[0]})")
        return found

    def decoder(mode: str) -> Callable[[Path, np.ndarray], np.ndarray]:
        def decode(path: Path, wanted: np.ndarray) -> np.ndarray:
            video = VideoDecoder(str(path), dimension_order="NHWC", num_ffmpeg_threads=1, seek_mode=mode)
            return video.get_frames_at(indices=wanted.tolist()).data.numpy()

        return decode

    return found | {"torchcodec exact": decoder("exact"), "torchcodec approximate": decoder("approximate")}


def main(frames: int, rounds: int, clips: int) -> None:
    encodings = {
        "h264 GOP 2": Encoding(gop=2, options={"crf": "23", "preset": "medium"}),
        "h264 GOP 250": Encoding(gop=250, options={"crf": "23", "preset": "medium"}),
        "av1 GOP 2": Encoding("libsvtav1", gop=2, options={"crf": "30", "preset": "10"}),
        "av1 GOP 250": Encoding("libsvtav1", gop=250, options={"crf": "30", "preset": "10"}),
    }
    wanted, compared = spread(frames, SAMPLES), decoders()
    with tempfile.TemporaryDirectory() as folder:
        for title, encoding in encodings.items():
            paths = [Path(folder) / f"{title}-{i}.mp4".replace(" ", "-") for i in range(clips)]
            for i, path in enumerate(paths):
                write_video(path, scene(i, frames), fps=30, encoding=encoding)
            times: dict[str, list[float]] = {name: [] for name in compared}
            for _ in range(rounds):
                for path in paths:
                    for name, decode in compared.items():
                        start = time.perf_counter()
                        images = decode(path, wanted)
                        times[name].append(time.perf_counter() - start)
                        assert images.shape == (SAMPLES, 256, 256, 3)
            np.testing.assert_array_equal(ours(paths[0], wanted), linear(paths[0], wanted))
            medians = {name: statistics.median(values) * 1000 for name, values in times.items()}
            best = min(value for name, value in medians.items() if name != "demerit")
            row = ", ".join(f"{name} {value:.1f} ms" for name, value in medians.items())
            print(f"{title:13s} {row}; demerit is {best / medians['demerit']:.2f} times as fast as the best other")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="one short clip, one round")
    small = parser.parse_args().small
    main(frames=32 if small else 300, rounds=1 if small else 30, clips=1 if small else 4)
