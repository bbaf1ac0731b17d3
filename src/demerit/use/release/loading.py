"""The loader examples of a card. A test runs them inside releases, as printed."""

from __future__ import annotations

WITH_DEMERIT = """\
import demerit

dataset = demerit.open_dataset(".")  # the folder that this card lies in
failures = [one for one in dataset if one.outcome is not None and one.outcome.success is False]
print(len(failures), "failures")
for episode in failures[:3]:
    pictures = episode.main.take(range(0, len(episode), 10))  # (n, height, width, 3) uint8
    kinds = [event.kind for event in episode.outcome.events]
    print(episode.id, repr(episode.instruction), kinds, pictures.shape)
"""

FOLDER = """\
import json
from pathlib import Path

import av
import pyarrow.parquet as pq

columns = ["id", "instruction", "success", "progress", "grade", "vouched_by", "split", "views", "outcomes"]
parts = sorted(Path("episodes").glob("*.parquet"))
rows = [row for part in parts for row in pq.read_table(part, columns=columns).to_pylist()]
print(len(rows), "episodes")
row = next(row for row in rows if row["views"][0]["kind"] == "video")
view = row["views"][0]
part = json.loads(view["fields"])  # an episode may be a part of a longer file: from start on, before stop, in seconds
start, stop = part.get("start", float("-inf")), part.get("stop", float("inf"))
with av.open(view["path"]) as video:
    half = 0.5 / float(video.streams.video[0].average_rate)
    if "start" in part:
        video.seek(round(start * 1_000_000))
    frames = (frame for frame in video.decode(video=0) if start - half <= frame.time < stop - half)
    pictures = [frame.to_ndarray(format="rgb24") for frame in frames][: part.get("length")]
if view["indices"] is not None:  # an edited episode: these frames of the file, in this order
    pictures = [pictures[index] for index in view["indices"]]
print(row["id"], repr(row["instruction"]), row["success"], len(pictures), "frames")
"""

LEROBOT = """\
import json
from pathlib import Path

import av
import pyarrow.parquet as pq

info = json.loads(Path("meta/info.json").read_text())
camera = next(key for key, feature in info["features"].items() if feature["dtype"] == "video")
row = pq.read_table("meta/episodes/chunk-000/file-000.parquet").slice(0, 1).to_pylist()[0]
place = {name: row[f"videos/{camera}/{name}"] for name in ("chunk_index", "file_index")}
start = row[f"videos/{camera}/from_timestamp"]
with av.open(info["video_path"].format(video_key=camera, **place)) as video:
    video.seek(round(start * 1_000_000))
    frames = (frame for frame in video.decode(video=0) if frame.time >= start - 0.5 / info["fps"])
    pictures = [next(frames).to_ndarray(format="rgb24") for _ in range(row["length"])]
print(row["tasks"], row["success"], len(pictures), "frames")
"""


def with_demerit() -> str:
    """Load a release of either layout."""
    return WITH_DEMERIT


def without_demerit(layout: str) -> str:
    """Load a release with pyarrow and PyAV alone."""
    return LEROBOT if layout == "lerobot" else FOLDER
