"""The pages of `demerit view` as a folder that opens from a disk and can be hosted anywhere.

    index.html           the page, with its scripts
    data/*.json.js       what the server of `view` would answer, as scripts: a page from a disk may fetch nothing else
    media/*.jpg, *.mp4   the last frame of each episode; its videos, encoded again without sound and metadata

No text in it holds the folders of a path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from demerit.data.dataset import Dataset, Problem
from demerit.data.files import atomic_folder, make_folder
from demerit.errors import UnreadableVideo
from demerit.use.view import index_for_file, render_view
from demerit.web.media import EpisodeMedia

FOLDERS = re.compile(r"(?<![^\s'\"(\[=:,;])(?!//[^/])(?:~\w*)?/+(?=\S)(?:(?:[^/\n:]|:(?! ))+/+)+")
"""the folders of a path that begins at the root or at home, but not the address of a web page"""


def write_view(
    dataset: Dataset, dest: str | Path, on_progress: Callable[[int], None] = lambda written: None
) -> tuple[int, list[str]]:
    """Write the folder, complete or not at all; return the number of episodes and the models' names.

    An episode without its video keeps its curves and is counted as a problem.
    """
    index = index_for_file(dataset, dest, is_folder=True)
    written = 0
    with atomic_folder(dest) as folder:
        media, data = EpisodeMedia(folder / "media"), folder / "data"
        make_folder(data / "episodes")
        (folder / "index.html").write_text(
            render_view(dataset.name, "view_folder.html.j2", ["view_folder.js"]), "utf-8"
        )
        whole = {"index": index.as_dict(), "stale": index.find_stale(), "quality": index.measure_quality()}
        for name, content in whole.items():
            _write_answer(data, f"/{name}.json", content, {})
        for written, episode in enumerate(dataset, 1):
            place = index.places[episode.id]
            answer, links = index.episode_json(place), {f"/media/{place}.mp4": ""}
            for number, (camera, frames) in enumerate(episode.views.items()):
                address = f"/cameras/{place}/{number}.mp4"
                try:
                    links[address] = f"media/{media.clip(frames).name}"
                    if camera == episode.main_camera:
                        links[f"/media/{place}.mp4"] = links[address]
                        media.thumbnail(frames).replace(media.cache / f"{place}.jpg")
                except UnreadableVideo as error:
                    links[address] = ""
                    shown = [answer["episode"]] if camera == episode.main_camera else []
                    for facts in (answer["episode"]["cameras"][number], *shown):
                        facts.setdefault("problem", str(error))
                    dataset.report(Problem("unreadable video", episode.id, f"{error.path}: {error.reason}", kept=True))
            _write_answer(data, f"/episodes/{place}.json", answer, links)
            on_progress(written)
    return written, [model.name for model in index.models]


def _write_answer(folder: Path, address: str, content: Any, links: Mapping[str, str]) -> None:
    text = json.dumps(_without_folders(content, links), allow_nan=False)
    (folder / f"{address[1:]}.js").write_text(f"receive({json.dumps(address)}, {text});\n", "utf-8")


def _without_folders(value: Any, links: Mapping[str, str]) -> Any:
    """Replace the addresses of videos by those of `links`, and remove the folders from all other paths.

    >>> _without_folders(["/media/3.mp4", "/home/ada/my runs/1.mp4: it is empty", "push the pick/place button"], {})
    ['3.mp4', '1.mp4: it is empty', 'push the pick/place button']
    """
    if isinstance(value, str):
        return links[value] if value in links else FOLDERS.sub("", value)
    if isinstance(value, Mapping):
        return {name: _without_folders(item, links) for name, item in value.items()}
    return [_without_folders(item, links) for item in value] if isinstance(value, list | tuple) else value
