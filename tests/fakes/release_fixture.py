"""Recordings as real ones are: sound, tags, a clock, data in the stream, and names wherever people put them."""

import json
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.bitstream import BitStreamFilterContext

SECRETS = ("Anna", "Schmidt", "Rosenheim", "anna@lab.example", "52.5200", "robot-pc-7", "2025-05-03", "14:32")
"""what must not be found in any byte of a release"""
MARK = "086f3693-b7b3-4f2c-9653-21492feee5b8"


def write_recording(path: Path, seed: int = 0) -> Path:
    """Write an mp4 with sound, tags and a clock; every frame has a bright square where somebody's face may be."""
    rng = np.random.default_rng(seed)
    frames, width, height = 20, 64, 48
    with av.open(str(path), "w", format="mp4", options={"movflags": "use_metadata_tags"}) as out:
        out.metadata.update(title="Anna's kitchen", creation_time="2025-05-03T14:32:10Z", location="+52.5200+013.4050/")
        video = out.add_stream("libx264", rate=10, options={"crf": "20"})
        video.width, video.height, video.pix_fmt = width, height, "yuv420p"
        sound = out.add_stream("aac", rate=16000)
        table = rng.integers(40, 90, (height, width, 3))
        for number in range(frames):
            image = (table + rng.integers(0, 10, table.shape)).astype(np.uint8)
            image[8:24, 10:30] = (230, 180, 150 + number)
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 10)
            out.mux(video.encode(frame))
        out.mux(video.encode(None))
        for number in range(frames * 1600 // 1024):
            samples = rng.normal(0, 0.1, (1, 1024)).astype(np.float32)
            heard = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
            heard.sample_rate, heard.pts = 16000, number * 1024
            out.mux(sound.encode(heard))
        out.mux(sound.encode(None))
    return path


def add_user_data(source: Path, target: Path, words: str) -> Path:
    """Put words into the pictures' own stream, as cameras do with positions and clocks."""
    with av.open(str(source)) as given, av.open(str(target), "w", format="mp4") as made:
        stream = given.streams.video[0]
        out = made.add_stream_from_template(stream)
        sieve = BitStreamFilterContext(f"h264_metadata=sei_user_data={MARK}+{words}", stream, out)
        for packet in given.demux(stream):
            for kept in sieve.filter(packet) if packet.size else sieve.filter(None):
                kept.stream = out
                made.mux(kept)
    return target


def cut_video(path: Path) -> Path:
    """Write 35 pictures, the first 15 of which an edit list skips, as a cut without encoding leaves it."""
    whole = path.with_name("whole.mkv")
    with av.open(str(whole), "w") as out:
        video = out.add_stream("libx264", rate=10, options={"crf": "20", "g": "100", "bf": "0", "preset": "ultrafast"})
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        for number in range(35):
            image = np.full((48, 64, 3), 7 * number, dtype=np.uint8)
            out.mux(video.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        out.mux(video.encode(None))
    with av.open(str(whole)) as given, av.open(str(path), "w", options={"avoid_negative_ts": "disabled"}) as made:
        stream = given.streams.video[0]
        out_stream = made.add_stream_from_template(stream)
        for packet in given.demux(stream):
            if packet.size and packet.pts is not None and packet.dts is not None and packet.time_base is not None:
                early = round(Fraction(3, 2) / packet.time_base)
                packet.pts, packet.dts, packet.stream = packet.pts - early, packet.dts - early, out_stream
                made.mux(packet)
    return path


def messy_rollouts(folder: Path, count: int = 6) -> Path:
    """A folder of rollouts, some bad, as somebody has it: names in fields, notes, tags and file names."""
    folder.mkdir(parents=True)
    lines = []
    for number in range(count):
        file = f"anna_2025-05-03_14:32_{number}.mp4".replace(":", "-")
        write_recording(folder / file, seed=number)
        done = number % 2 == 0
        lines.append(
            {
                "file": file,
                "instruction": "hand the cup to Anna" if number == 1 else "put the cup on the tray",
                "success": done,
                "progress": 1.0 if done else 0.3,
                "by": "Anna Schmidt",
                "note": "" if done else "Schmidt said the gripper slipped; ask anna@lab.example. Juan saw it too.",
                "events": [] if done else [{"kind": "dropped", "first": 5, "last": 8, "note": "on 2025-05-03"}],
                "site": "Rosenheim",
                "split": "train" if number < 4 else "test",
                "group": f"2025-05-03-{number}",
                "operator": "Anna Schmidt",
                "hostname": "robot-pc-7",
                "recorded": "2025-05-03T14:32:10",
                "policy": "pi-zero",
                "city": "Rosenheim",
            }
        )
    (folder / "labels.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return folder
