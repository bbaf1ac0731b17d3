"""The reader of a taught model: a small network on larger images, trained by `demerit teach` and run without torch."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from demerit.data.frames import RGB, Images, Prepare
from demerit.models.compact.engine import Shapes, count_cores, open_session
from demerit.models.compact.resize import resize_square
from demerit.models.loading import read_listed

SIDE = 192
"""pixels of the images that a reader sees"""
LAYERS = "/blocks.4/Add_output_0", "/blocks.10/Add_output_0"
"""the tower's layers below a reader: the last of the third and of the fifth stage, an eighth and a sixteenth of the
image's side"""
READ = "outputs"
OUTPUTS = 2
CHUNK = 8
"""frames that one thread computes; fixed, so results do not depend on the number of threads"""


class Reader:
    """Progress and `done` of frames, from images of SIDE x SIDE pixels and the episode's first."""

    def __init__(self, content: bytes, path: Path) -> None:
        """Open an ONNX graph; `path` is where it comes from, for messages."""
        self.content = content
        image = (SIDE, SIDE, RGB)
        inputs: Shapes = {"frames": (None, *image), "first": (1, *image)}
        self._session = open_session(content, (inputs, {READ: (None, OUTPUTS)}), path)
        self._pool = ThreadPoolExecutor(count_cores(), thread_name_prefix="demerit-reader")

    @property
    def sha256(self) -> str:
        """Hash of the graph."""
        return hashlib.sha256(self.content).hexdigest()

    @classmethod
    def load(cls, path: Path, sha256: str) -> Reader:
        """Read a reader's file; refuse another than the one that was written."""
        return cls(read_listed(path, sha256), path)

    def __call__(self, images: Images, first: Images) -> npt.NDArray[np.float64]:
        """Return progress and `done`, 0 to 1: (frames, 2)."""
        before = resize_square(first[None], SIDE)

        def run(chunk: Images) -> npt.NDArray[np.float32]:
            frames = np.ascontiguousarray(resize_square(chunk, SIDE))
            return np.asarray(self._session.run([READ], {"frames": frames, "first": before})[0])

        chunks = [images[start : start + CHUNK] for start in range(0, len(images), CHUNK)]
        return np.concatenate(list(self._pool.map(run, chunks))).astype(np.float64)


def prepare_large() -> Prepare:
    """Return the function that resizes images for a reader; run in the decoding processes."""
    return partial(resize_square, side=SIDE)
