"""Small LeRobot v2.1 folders."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from demerit.data.frames import Images
from demerit.data.video import write_video

SCALAR = {"shape": [1], "names": None}
SIZE = (32, 48)


def make_images(count: int, seed: int = 0, size: tuple[int, int] = SIZE) -> Images:
    """Smooth images whose brightness encodes the frame: 4 grey levels per frame, from 20."""
    ramp = np.linspace(0, 30, size[1])[None, :, None] + np.zeros((size[0], 1, 3))
    images = np.stack([ramp + 20 + 4 * frame + 10 * seed for frame in range(count)])
    return images.astype(np.uint8)


def write_v21(
    root: Path,
    lengths: list[int],
    *,
    cameras: tuple[str, ...] = ("front",),
    image_cameras: tuple[str, ...] = (),
    tasks: list[list[str]] | None = None,
    success: list[list[bool]] | None = None,
    extra: list[dict[str, Any]] | None = None,
    version: str = "v2.1",
    chunks_size: int = 1000,
) -> Path:
    """Write a folder of `len(lengths)` episodes at 10 frames per second."""
    tasks = tasks or [["pick up the cube"]] * len(lengths)
    texts = list(dict.fromkeys(text for some in tasks for text in some))
    features: dict[str, Any] = {"observation.state": {"dtype": "float32", "shape": [3], "names": None}}
    features |= {"action": {"dtype": "float32", "shape": [2], "names": None}}
    features |= {f"observation.images.{name}": {"dtype": "video", "shape": [*SIZE, 3]} for name in cameras}
    features |= {f"observation.images.{name}": {"dtype": "image", "shape": [*SIZE, 3]} for name in image_cameras}
    features |= {"timestamp": {"dtype": "float32", **SCALAR}, "frame_index": {"dtype": "int64", **SCALAR}}
    features |= {"task_index": {"dtype": "int64", **SCALAR}, "next.reward": {"dtype": "float32", **SCALAR}}
    if success is not None:
        features["next.success"] = {"dtype": "bool", **SCALAR}
    for index, length in enumerate(lengths):
        chunk = f"chunk-{index // chunks_size:03d}"
        columns = _columns(index, length, texts.index(tasks[index][0]) if tasks[index] else 0)
        for name in image_cameras:
            columns[f"observation.images.{name}"] = [
                {"bytes": png(p), "path": None} for p in make_images(length, index)
            ]
        if success is not None:
            columns["next.success"] = pa.array(success[index], pa.bool_())
        path = root / f"data/{chunk}/episode_{index:06d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), path, row_group_size=4)
        for name in cameras:
            path = root / f"videos/{chunk}/observation.images.{name}/episode_{index:06d}.mp4"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_video(path, make_images(length, index), fps=10)
    info = {
        "codebase_version": version,
        "robot_type": "test_arm",
        "total_episodes": len(lengths),
        "chunks_size": chunks_size,
        "fps": 10,
        "splits": {"train": f"0:{len(lengths) - 1}", "test": f"{len(lengths) - 1}:{len(lengths)}"},
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
        "features": features,
    }
    rows = [
        {"episode_index": i, "tasks": tasks[i], "length": length, **(extra[i] if extra else {})}
        for i, length in enumerate(lengths)
    ]
    (root / "meta").mkdir()
    (root / "meta/info.json").write_text(json.dumps(info))
    write_jsonl(root / "meta/episodes.jsonl", rows)
    write_jsonl(root / "meta/tasks.jsonl", [{"task_index": i, "task": text} for i, text in enumerate(texts)])
    return root


def write_jsonl(path: Path, rows: list[Any]) -> None:
    path.write_text("".join(row + "\n" if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def png(image: Images) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def _columns(index: int, length: int, task: int) -> dict[str, Any]:
    at = np.arange(length)
    state = pa.array((at[:, None] + np.arange(3) + 100 * index).astype(np.float32).reshape(-1))
    action = pa.array(np.zeros(2 * length, np.float32))
    return {
        "observation.state": pa.FixedSizeListArray.from_arrays(state, 3),
        "action": pa.FixedSizeListArray.from_arrays(action, 2),
        "timestamp": pa.array((at / 10).astype(np.float32)),
        "frame_index": pa.array(at),
        "task_index": pa.array(np.full(length, task)),
        "next.reward": pa.array(np.ones(length, np.float32)),
    }
