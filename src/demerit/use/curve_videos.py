"""A video per episode to show around: its frames, and below them the stored rewards so far, verdicts and labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageOps

from demerit.data.dataset import Dataset, Problem
from demerit.data.episode import Episode
from demerit.data.export import (
    BACKGROUND,
    INK,
    MARGIN,
    PLOT_HEIGHT,
    draw_head,
    gather_curves,
    name_video,
    plot_curves,
)
from demerit.data.files import atomic_folder
from demerit.data.frames import Images
from demerit.data.reward import Reward
from demerit.data.video import write_video
from demerit.errors import UnreadableVideo
from demerit.use.view import index_for_file
from demerit.use.view_folder import FOLDERS
from demerit.web.media import VIDEO, video_times

WIDTH, TALLEST = 640, 480


def write_curve_videos(
    dataset: Dataset, dest: str | Path, on_progress: Callable[[int], None] = lambda written: None
) -> tuple[int, list[str]]:
    """Write a folder of mp4 files, complete or not at all; return the number of episodes and the models' names.

    A video has the frames and the times of its episode's main camera. An episode without its video is left out and
    counted as a problem. Raises StaleRewards.
    """
    index = index_for_file(dataset, dest, is_folder=True)
    written = 0
    with atomic_folder(dest) as folder:
        for episode in dataset:
            rewards = [reward for reward in index.fresh_rewards(episode) if reward is not None]
            verdict_lines = [f"{model.name}: {model.verdicts[index.places[episode.id]]}" for model in index.models]
            try:
                times = video_times(episode.main).tolist()
                path = folder / name_video(episode.id, episode.main_camera)
                write_video(path, _draw_frames(episode, rewards, verdict_lines), encoding=VIDEO, times=times)
            except UnreadableVideo as error:
                dataset.report(Problem("unreadable video", episode.id, f"{error.path}: {error.reason}", kept=False))
                continue
            written += 1
            on_progress(written)
    return written, [model.name for model in index.models]


def _draw_frames(episode: Episode, rewards: Sequence[Reward], said: Sequence[str]) -> Iterator[Images]:
    """Draw the parts that stay the same once: per frame, the curves are uncovered up to it."""
    width, curves = WIDTH - 2 * MARGIN, gather_curves(episode, rewards)
    head = draw_head(episode, WIDTH, [FOLDERS.sub("", text) for text in said])
    plot, empty = (plot_curves(curves, episode, width, is_empty) for is_empty in (False, True))
    page, number = None, 0
    for images in episode.main.chunks():
        for image in images:
            if page is None:
                top = min(TALLEST, round(WIDTH * image.shape[0] / image.shape[1]))
                height = top + MARGIN + (plot.height if curves else 0) + head.height
                page = Image.new("RGB", (WIDTH, height + height % 2), BACKGROUND)
                page.paste(head, (0, height - head.height))
            page.paste(ImageOps.pad(Image.fromarray(image), (WIDTH, top), color=BACKGROUND), (0, 0))
            if curves:
                x = round(number / max(1, len(episode) - 1) * (width - 1))
                page.paste(empty, (MARGIN, top + MARGIN))
                page.paste(plot.crop((0, 0, x + 1, PLOT_HEIGHT + 2)), (MARGIN, top + MARGIN))
                line = [(MARGIN + x, top + MARGIN), (MARGIN + x, top + MARGIN + PLOT_HEIGHT)]
                ImageDraw.Draw(page).line(line, INK)
            yield np.asarray(page)
            number += 1
