"""Bags beside videos: decoding H.264 from a bag and from an mp4 with the same packets, and indexing a large bag.

    python benchmarks/ros.py [--small]

Both decode every frame, and sixteen spread frames, of a 640x480 video with a key frame every 30 frames, one thread,
with what they know of the file forgotten before each round; rounds alternate, the result is the median of the CPU time.
The large bag has raw images; its peak memory (Linux) is that of a process that lists its episodes, beyond the same
process before it opens the bag.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import av
import numpy as np

from demerit.data.formats import open_dataset
from demerit.data.frames import Frames, frame_source, spread
from demerit.data.video import Encoding, VideoClip, scan_video, write_video
from demerit.data.video import _last_opened as last_video

VIDEO = "builtin_interfaces/Time timestamp\nstring frame_id\nuint8[] data\nstring format"
SECOND = 10**9


class Recorder:
    """Writes a bag."""

    def __init__(self, path: Path) -> None:
        from rosbags.rosbag2 import StoragePlugin, Writer
        from rosbags.typesys import Stores, get_types_from_msg, get_typestore

        self.types = get_typestore(Stores.ROS2_HUMBLE)
        self.types.register(get_types_from_msg(VIDEO, "foxglove_msgs/msg/CompressedVideo"))
        self.writer = Writer(path, version=9, storage_plugin=StoragePlugin.MCAP)
        self.writer.open()
        self.topics: dict[str, Any] = {}

    def write(self, topic: str, kind: str, at: int, *values: Any) -> None:
        if topic not in self.topics:
            self.topics[topic] = self.writer.add_connection(topic, kind, typestore=self.types)
        stamp = self.types.types["builtin_interfaces/msg/Time"](at // SECOND, at % SECOND)
        first = stamp if "foxglove" in kind else self.types.types["std_msgs/msg/Header"](stamp, "")
        message = self.types.types[kind](first, *values)
        self.writer.write(self.topics[topic], at, self.types.serialize_cdr(message, kind))


def draw(frames: int) -> np.ndarray:
    """Draw a textured table, a moving block and the camera's noise."""
    rng = np.random.default_rng(0)
    table = np.kron(rng.integers(60, 200, (15, 20, 3)), np.ones((32, 32, 1))).astype(np.int16)
    images = np.empty((frames, 480, 640, 3), dtype=np.uint8)
    for place in range(frames):
        image = table + rng.normal(0, 3, table.shape).astype(np.int16)
        image[200:280, place % 560 : place % 560 + 80] = (230, 120, 20)
        images[place] = np.clip(image, 0, 255)
    return images


def write_both(folder: Path, frames: int) -> tuple[Path, Path]:
    """Write an mp4, and a bag with its packets."""
    path, bag = folder / "video.mp4", folder / "bag"
    options = {"crf": "23", "preset": "veryfast", "bf": "0"}
    write_video(path, draw(frames), fps=30, encoding=Encoding(gop=30, options=options))
    recorder = Recorder(bag)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        to_units = av.BitStreamFilterContext("h264_mp4toannexb", stream)
        packets = [one for packet in container.demux(stream) if packet.size for one in to_units.filter(packet)]
    for place, packet in enumerate(packets):
        data = np.frombuffer(bytes(packet), np.uint8)
        recorder.write(
            "/cam/video", "foxglove_msgs/msg/CompressedVideo", place * SECOND // 30 + SECOND, "", data, "h264"
        )
    recorder.writer.close()
    return path, bag


def shrink(images: np.ndarray) -> np.ndarray:
    """Keep every second pixel, as a model's preprocessing would."""
    return images[:, ::2, ::2]


def compare_decoding(folder: Path, frames: int, rounds: int) -> None:
    from demerit.data.formats.bag_frames import _scan_clip

    path, bag = write_both(folder, frames)
    clip = VideoClip(str(path))
    (episode,) = open_dataset(bag)
    indexed = episode.main  # with its index, as datasets give it to the decoding processes
    bare = Frames(frame_source("bag", indexed.source.describe()))  # without, as from an imported folder
    np.testing.assert_array_equal(Frames(clip).all(), indexed.all())
    for title, wanted in {"every frame": np.arange(frames), "16 frames": spread(frames, 16)}.items():
        times: dict[str, list[float]] = {"mp4": [], "bag": [], "bag without its index": []}
        for _ in range(rounds):
            for name, source in zip(times, (Frames(clip), indexed, bare), strict=True):
                scan_video.cache_clear()
                _scan_clip.cache_clear()
                last_video.key = None
                start = time.process_time()
                source.take_prepared(wanted, shrink)
                times[name].append(time.process_time() - start)
        medians = {name: statistics.median(values) for name, values in times.items()}
        row = ", ".join(f"{name} {value * 1000:.0f} ms" for name, value in medians.items())
        ratios = ", ".join(f"{name} {value / medians['mp4']:.2f}" for name, value in medians.items() if name != "mp4")
        print(f"{title}: {row}; times the mp4: {ratios}")


MEASURED = """
import re, sys, time
from pathlib import Path
from demerit.data.formats import open_dataset
import demerit.data.formats.ros, demerit.data.video

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

before, start = peak(), time.process_time()
frames = sum(len(episode) for episode in open_dataset(sys.argv[1]))
print(frames, time.process_time() - start, peak() - before)
"""


def measure_indexing(folder: Path, frames: int) -> None:
    recorder = Recorder(folder / "large")
    rng = np.random.default_rng(0)
    for place in range(frames):
        data = rng.integers(0, 255, 480 * 640 * 3, dtype=np.uint8)
        fields = (480, 640, "rgb8", 0, 640 * 3, data)
        recorder.write("/cam/image_raw", "sensor_msgs/msg/Image", place * SECOND // 30 + SECOND, *fields)
    recorder.writer.close()
    size = (folder / "large" / "large.mcap").stat().st_size / 2**20
    command = [sys.executable, "-c", MEASURED, str(folder / "large")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    found, spent, memory = int(said[0]), float(said[1]), float(said[2])
    assert found == frames
    print(f"indexing {size:.0f} MB: {spent:.1f} s ({size / spent:.0f} MB/s), {memory:.0f} MB more memory at its peak")


def main(frames: int, rounds: int, large: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        compare_decoding(Path(folder), frames, rounds)
        measure_indexing(Path(folder), large)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a short video and a small bag")
    small = parser.parse_args().small
    main(frames=32 if small else 300, rounds=1 if small else 7, large=8 if small else 400)
