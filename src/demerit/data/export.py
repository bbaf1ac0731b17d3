"""Episodes for people and other tools: mp4 files with a label file, and contact sheets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from demerit.data.dataset import Dataset, Problem
from demerit.data.episode import Episode, Outcome, safe_name
from demerit.data.files import make_folder, plain, write_atomic
from demerit.data.frames import Frames, Images, short_hash, spread
from demerit.data.reward import Reward
from demerit.data.video import write_video
from demerit.errors import BadEpisode, StoreError, UnreadableVideo

LABELS = "labels.jsonl"
LONGEST_STEM = 100


def materialize(dataset: Dataset, dest: str | Path, on_progress: Callable[[int], None] = lambda written: None) -> int:
    """Write every episode's cameras as mp4 files with a labels.jsonl; return the number of episodes.

    The `videos` reader reads the folder back with the same ids, cameras, instructions and labels. The label file is
    written last; a rerun keeps the videos of an interrupted run.
    """
    folder = Path(dest).resolve()
    if (folder / LABELS).exists():
        raise StoreError(folder, f"it has a {LABELS} already; nothing is overwritten")
    make_folder(folder / "videos")
    lines = []
    for episode in dataset:
        try:
            files = {
                camera: _write_camera(folder, episode.id, camera, frames) for camera, frames in episode.views.items()
            }
        except UnreadableVideo as error:
            dataset.report(Problem("unreadable video", episode.id, f"{error.path}: {error.reason}", kept=False))
            continue
        lines.append(json.dumps(label_row(episode, files), ensure_ascii=False))
        on_progress(len(lines))
    write_atomic(folder / LABELS, "".join(f"{line}\n" for line in lines).encode())
    return len(lines)


def label_row(episode: Episode, files: dict[str, str]) -> dict[str, Any]:
    """Turn an episode into a row of the label file: the most trusted outcome, and the first curve."""
    origin, outcome = episode.origin, episode.outcome
    row: dict[str, Any] = {"id": episode.id, "videos": files, "instruction": episode.instruction}
    if outcome is not None:
        row |= {name: getattr(outcome, name) for name in ("success", "progress", "grade", "note", "source", "by")}
    if outcome is not None and outcome.events:
        row["events"] = [vars(event) for event in outcome.events]
    if outcome is not None and outcome.stages:
        row["stages"] = [vars(stage) for stage in outcome.stages]
    measured = next((label for label in episode.labels if label.curve is not None), None)
    if measured is not None and measured.curve is not None:
        row |= {"curve": plain(measured.curve), "curve_source": measured.source, "curve_by": measured.by}
    row |= {name: getattr(origin, name) for name in ("split", "group", "site", "licence", "embodiment", "parent")}
    if episode.edits:
        row["edit"] = "; ".join(f"{edit.name} {json.dumps(dict(edit.params))}" for edit in episode.edits)
    return {name: value for name, value in row.items() if value not in (None, "")}


def name_video(id: str, camera: str) -> str:
    """Return a file name; its hash separates names that become equal when made safe or cut."""
    return f"{safe_name(id)[:LONGEST_STEM]}-{short_hash(id.encode(), camera.encode())[:8]}.mp4"


def _write_camera(folder: Path, id: str, camera: str, frames: Frames) -> str:
    name = name_video(id, camera)
    path = folder / "videos" / name
    if not path.exists():
        write_video(path, even_images(frames), times=frames.times().tolist())
    return f"videos/{name}"


def even_images(frames: Frames) -> Iterator[Images]:
    """Duplicate odd edges: mp4 stores colours for pairs of pixels."""
    for images in frames.chunks():
        odd = [(0, 0), (0, images.shape[1] % 2), (0, images.shape[2] % 2), (0, 0)]
        yield from np.pad(images, odd, mode="edge") if any(after for _, after in odd) else images


BACKGROUND, INK, FAINT = (250, 250, 248), (30, 30, 34), (150, 150, 156)
# Distinct for every kind of colour vision (Okabe and Ito), in the order in which curves are drawn.
CURVE_COLOURS = [(0, 114, 178), (213, 94, 0), (0, 158, 115), (204, 121, 167), (86, 180, 233), (230, 159, 0)]
MARGIN, GAP, TITLE_SIZE, TEXT_SIZE, PLOT_HEIGHT = 16, 4, 18, 13, 110


def contact_sheet(
    episode: Episode, path: str | Path, rewards: Sequence[Reward] = (), frames: int = 16, width: int = 192
) -> Path:
    """Draw evenly spaced frames of every camera, the outcomes and the curves as an image file."""
    if not all(map(len, episode.views.values())):
        raise BadEpisode(episode.id, "at least one frame of every camera", "none")
    count = min(frames, len(episode))
    strips = [_strip(episode, camera, count, width) for camera in episode.views]
    columns = min(count, 8)
    total_width = 2 * MARGIN + columns * (width + GAP) - GAP
    curves = gather_curves(episode, rewards)
    plot = plot_curves(curves, episode, total_width - 2 * MARGIN) if curves else None
    head = draw_head(episode, total_width)
    height = head.height + sum(strip.height + TEXT_SIZE + 10 for strip in strips) + (plot.height if plot else 0)
    sheet = Image.new("RGB", (total_width, height + 2 * MARGIN), BACKGROUND)
    sheet.paste(head, (0, MARGIN))
    y = MARGIN + head.height
    draw = ImageDraw.Draw(sheet)
    for camera, strip in zip(episode.views, strips, strict=True):
        draw.text((MARGIN, y), f"camera {camera}, {len(episode.views[camera])} frames", FAINT, _font(TEXT_SIZE))
        sheet.paste(strip, (MARGIN, y + TEXT_SIZE + 5))
        y += strip.height + TEXT_SIZE + 10
    if plot:
        sheet.paste(plot, (MARGIN, y))
    try:
        sheet.save(path)
    except (OSError, ValueError) as error:
        raise StoreError(path, f"the image cannot be written ({error})") from error
    return Path(path)


def _strip(episode: Episode, camera: str, count: int, width: int) -> Image.Image:
    view = episode.views[camera]
    indices = spread(len(view), count)
    images = view.take(indices)
    height = round(images.shape[1] * width / images.shape[2])
    columns = min(len(images), 8)
    rows = -(-len(images) // columns)
    strip = Image.new("RGB", (columns * (width + GAP) - GAP, rows * (height + GAP) - GAP), BACKGROUND)
    draw = ImageDraw.Draw(strip)
    for place, (index, image) in enumerate(zip(indices, images, strict=True)):
        x, y = place % columns * (width + GAP), place // columns * (height + GAP)
        strip.paste(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR), (x, y))
        draw.text((x + 4, y + 2), str(index), (255, 255, 255), _font(12), stroke_width=2, stroke_fill=(0, 0, 0))
    return strip


def draw_head(episode: Episode, width: int, more: Sequence[str] = ()) -> Image.Image:
    """Draw the instruction, below it `more` lines, the id and the labels."""
    lines = _wrap(episode.instruction or "(no instruction)", width, TITLE_SIZE)
    notes = [line for text in more for line in _wrap(text, width, TEXT_SIZE)]
    outcomes = [_outcome_text(outcome) for outcome in episode.labels] or ["outcome unknown"]
    details = [line for text in [episode.id, *outcomes] for line in _wrap(text, width, TEXT_SIZE)]
    height = len(lines) * (TITLE_SIZE + 6) + len([*notes, *details]) * (TEXT_SIZE + 5) + 6
    head = Image.new("RGB", (width, height), BACKGROUND)
    draw = ImageDraw.Draw(head)
    y = 0
    for line in lines:
        draw.text((MARGIN, y), line, INK, _font(TITLE_SIZE))
        y += TITLE_SIZE + 6
    for line in [*notes, *details]:
        draw.text((MARGIN, y), line, INK if line in notes else FAINT, _font(TEXT_SIZE))
        y += TEXT_SIZE + 5
    return head


def _outcome_text(outcome: Outcome) -> str:
    facts = [
        {True: "success", False: "failure", None: ""}[outcome.success],
        "" if outcome.progress is None else f"progress {outcome.progress:.2f}",
        "" if outcome.grade is None else f"grade {outcome.grade}",
        *(f"{event.kind} at {event.first}-{event.last}" for event in outcome.events),
        " ".join(map(str, outcome.stages)),
        outcome.note,
    ]
    source = outcome.source + (f" ({outcome.by})" if outcome.by else "")
    return f"{source}: " + (", ".join(fact for fact in facts if fact) or "a curve")


def gather_curves(episode: Episode, rewards: Sequence[Reward]) -> dict[str, tuple[list[int], list[float]]]:
    """Return the frames and values of labels and rewards by the name that is drawn."""
    curves = {
        f"{outcome.source} {outcome.by}".strip(): (list(range(len(outcome.curve))), outcome.curve.tolist())
        for outcome in episode.labels
        if outcome.curve is not None
    }
    return curves | {reward.model: (reward.at.tolist(), reward.value.tolist()) for reward in rewards if reward.scored}


def plot_curves(
    curves: dict[str, tuple[list[int], list[float]]], episode: Episode, width: int, is_empty: bool = False
) -> Image.Image:
    """Draw the curves on one scale, with gaps where values are unknown; or only the scale and the names."""
    places, x, y = {}, 0, PLOT_HEIGHT + 8
    for name in curves:
        length = round(_font(TEXT_SIZE).getlength(name))
        x, y = (x, y) if x + length <= width else (0, y + TEXT_SIZE + 5)
        places[name], x = (x, y), x + length + MARGIN
    plot = Image.new("RGB", (width, y + TEXT_SIZE + 9), BACKGROUND)
    draw = ImageDraw.Draw(plot)
    numbers = [value for _, values in curves.values() for value in values if not np.isnan(value)]
    low, high = min([0.0, *numbers]), max([1.0, *numbers])
    for height, value in ((8, high), (PLOT_HEIGHT, low)):
        draw.line([(0, height), (width, height)], FAINT)
        draw.text((2, height + 2 if value == high else height - TEXT_SIZE - 3), f"{value:g}", FAINT, _font(TEXT_SIZE))
    last = max(1, len(episode) - 1)
    for place, (name, (at, values)) in enumerate(curves.items()):
        colour = CURVE_COLOURS[place % len(CURVE_COLOURS)]
        points = [
            (x / last * (width - 1), PLOT_HEIGHT - (y - low) / (high - low) * (PLOT_HEIGHT - 8))
            for x, y in zip(at, values, strict=True)
        ]
        for start, end in pairwise(() if is_empty else points):
            if not np.isnan([*start, *end]).any():
                draw.line([start, end], colour, 3)
        draw.text(places[name], name, colour, _font(TEXT_SIZE))
    return plot


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _wrap(text: str, width: int, size: int) -> list[str]:
    """Break a text into at most four lines; long words are cut."""
    most = max(10, int((width - 2 * MARGIN) / (size * 0.55)))
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) + 1 > most and lines[-1]:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word[:most]}".strip()
    return lines[:4]


def shrink(image: Images, widest: int) -> Images:
    """Scale down to a width, with even sides (yuv420p halves the colour planes)."""
    height, width = image.shape[:2]
    scale = min(1.0, widest / width)
    size = tuple(max(2, 2 * round(side * scale / 2)) for side in (width, height))
    if size == (width, height):
        return image
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.LANCZOS))
