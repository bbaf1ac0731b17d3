"""How datasets, episodes and rewards look in a notebook: small HTML and SVG, without a plotting library."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from demerit.data.files import write_atomic
from demerit.data.frames import Frames, spread
from demerit.errors import UnreadableVideo

if TYPE_CHECKING:
    from demerit.data.episode import Episode
    from demerit.data.reward import Reward

SHOWN_EPISODES, SHOWN_FRAMES, FRAME_WIDTH = 5, 6, 120
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 560, 200, 40, 30, 40
VALUE, SUCCESS = "#0072b2", "#d55e00"  # distinct for every kind of colour vision (Okabe and Ito)


@dataclass(frozen=True)
class RewardPlot:
    """A drawing of a reward. Notebooks show it; `save` writes it as an SVG file."""

    svg: str

    def save(self, path: str | Path) -> None:
        """Write the SVG file."""
        write_atomic(path, self.svg.encode())

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"RewardPlot({len(self.svg)} characters of SVG; save(path) writes them)"


def dataset_html(name: str, count: str, episodes: Iterable[Episode]) -> str:
    """Describe a dataset by its name, its size and its first episodes."""
    rows = [(episode.id, episode.instruction, _outcome(episode), ", ".join(episode.views)) for episode in episodes]
    head = "".join(f"<th>{title}</th>" for title in ("id", "instruction", "outcome", "cameras"))
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<b>{escape(name)}</b>: {escape(count)}, the first {len(rows)}:<table><tr>{head}</tr>{body}</table>"


def episode_html(episode: Episode) -> str:
    """Describe an episode by its instruction, its outcome and a strip of frames of its main camera."""
    title = f"<b>{escape(episode.id)}</b>: {escape(episode.instruction or '(no instruction)')}"
    try:
        strip = f'<img src="data:image/jpeg;base64,{_strip(episode.main)}">'
        frames = f"{len(episode)} frames"
    except UnreadableVideo as error:
        strip, frames = "", str(error)
    facts = f"{_outcome(episode)}; {frames}; cameras: {', '.join(episode.views)}"
    return f"{title}<br>{escape(facts)}<br>{strip}"


def draw_reward(reward: Reward) -> str:
    """Draw a reward as SVG. The scale goes from 0 to 1, or further if a value does."""
    curves = {"value": (reward.value, VALUE)}
    if reward.success is not None:
        curves["probability of success"] = (reward.success, SUCCESS)
    numbers = np.concatenate([[0.0, 1.0], *(values[np.isfinite(values)] for values, _ in curves.values())])
    low, high, last = float(numbers.min()), float(numbers.max()), max(1, int(reward.at.max(initial=1)))
    x = LEFT + reward.at / last * (WIDTH - LEFT - 10)
    marks = []
    for place, (name, (values, colour)) in enumerate(curves.items()):
        y = TOP + (high - values) / (high - low) * (HEIGHT - TOP - BOTTOM)
        marks += [_line(run_x, run_y, colour) for run_x, run_y in _runs(x, y)]
        marks.append(_text(LEFT + 60 * place, HEIGHT - 6, name, colour))
    for level in (low, high):
        at = TOP + (high - level) / (high - low) * (HEIGHT - TOP - BOTTOM)
        marks.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - 10}" stroke="#999" stroke-width="0.5"/>')
        marks.append(_text(4, at + 4, f"{level:.2g}"))
    marks += [_text(LEFT, HEIGHT - 24, "0"), _text(WIDTH - 10, HEIGHT - 24, f"frame {last}", anchor="end")]
    missing = f", unscored: {reward.why_missing}" if reward.why_missing else ""
    marks.append(_text(4, 16, f"{reward.model}, {reward.episode}{missing}"[:90]))
    style = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12"'
    background = '<rect width="100%" height="100%" fill="white"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {style}>{background}{"".join(marks)}</svg>'


def _runs(
    x: npt.NDArray[np.floating[Any]], y: npt.NDArray[np.floating[Any]]
) -> Iterable[tuple[list[float], list[float]]]:
    """The stretches without a gap."""
    for is_known, run in groupby(range(len(x)), key=lambda i: bool(np.isfinite(y[i]))):
        places = list(run)
        if is_known:
            yield x[places].tolist(), y[places].tolist()


def _line(x: list[float], y: list[float], colour: str) -> str:
    if len(x) == 1:
        return f'<circle cx="{x[0]:.1f}" cy="{y[0]:.1f}" r="2" fill="{colour}"/>'
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'


def _text(x: float, y: float, text: str, colour: str = "#333", anchor: str = "start") -> str:
    # XML has no escape for control characters.
    plain = "".join(c if c.isprintable() else " " for c in text)
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}">{escape(plain)}</text>'


def _outcome(episode: Episode) -> str:
    outcome = episode.outcome
    if outcome is None:
        return "unlabelled"
    word = {True: "success", False: "failure", None: "success unknown"}[outcome.success]
    return f"{word} ({outcome.source})"


def _strip(frames: Frames) -> str:
    """Evenly spaced frames in a row, as base64 of a JPEG."""
    images = [Image.fromarray(image) for image in frames.take(spread(len(frames), SHOWN_FRAMES))]
    height = max(1, round(images[0].height * FRAME_WIDTH / images[0].width))
    strip = Image.new("RGB", (FRAME_WIDTH * len(images), height))
    for place, image in enumerate(images):
        strip.paste(image.resize((FRAME_WIDTH, height)), (place * FRAME_WIDTH, 0))
    file = io.BytesIO()
    strip.save(file, "JPEG", quality=80)
    return base64.b64encode(file.getvalue()).decode()
