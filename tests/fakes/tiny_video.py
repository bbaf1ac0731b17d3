"""Real videos, small enough to write many of them."""

import json
import tempfile
from functools import cache
from pathlib import Path

import av
import numpy as np

from demerit.data.dataset import Problem
from demerit.data.episode import Episode
from demerit.data.video import open_encoder


def write_video(path, frames, fps=10, gop=10, codec="libx264", flags=None, **options):
    """Encode (n, height, width, 3) uint8 RGB images."""
    with av.open(str(path), "w", options={"movflags": flags} if flags else {}) as container:
        stream = container.add_stream(codec, rate=fps, options=options)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.gop_size = gop
        open_encoder(stream.codec_context)
        for image in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))


@cache
def tiny_bytes():
    """Four frames, 32 x 32, dark above and bright below: enough to tell which way up."""
    frames = np.zeros((4, 32, 32, 3), dtype=np.uint8)
    frames[:, 16:] = 255
    with tempfile.TemporaryDirectory() as folder:
        write_video(Path(folder, "tiny.mp4"), frames)
        return Path(folder, "tiny.mp4").read_bytes()


def put_video(path):
    """Put the tiny video at a path, folders included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tiny_bytes())
    return path


def bright_below(frames):
    """Whether the first frame is brighter below than above."""
    image = frames.take([0])[0].astype(float)
    return image[16:].mean() > image[:16].mean()


def problem_facts(problems):
    """The kind, the episode and whether it is kept: what tests compare."""
    return [(problem.kind, problem.episode, problem.kept) for problem in problems]


def write_lines(path, *rows):
    """Write a JSON Lines file; a row that is text is written as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")


def read_records(reader):
    """The episodes of a reader by id, and its problems."""
    records = list(reader.records())
    episodes = {record.id: record for record in records if isinstance(record, Episode)}
    return episodes, [record for record in records if isinstance(record, Problem)]


def read_facts(reader):
    """The episodes of a reader in their order, and the facts of its problems."""
    episodes, problems = read_records(reader)
    return list(episodes.values()), problem_facts(problems)
