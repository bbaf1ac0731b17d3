"""Draw small multiples of curves with bands, with nothing but Pillow: 900 points wide, at twice the size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

SCALE, FINE = 2, 2
"""pixels a point in the file; drawn finer still and averaged down, so that lines are smooth"""
WIDTH, HEIGHT, LEGEND = 900, 360, 11.5
TOP, BOTTOM, LEFT, GAP, RIGHT = 106, 50, 40, 48, 16
PAPER, INK, FAINT, GRID = (255, 255, 255), (34, 34, 38), (110, 110, 116), (232, 232, 234)
# Okabe and Ito's colours: told apart by colour-blind people, and by their lightness in print
COLOURS = {"100:0": (86, 180, 233), "75:25": (0, 158, 115), "50:50": (213, 94, 0), "25:75": (0, 0, 0)}
BANDS = ("100:0", "50:50")
"""whose intervals are drawn: four on top of each other cannot be read"""
WORDS = {"100:0": "successes only", "75:25": "1/4 failures", "50:50": "half failures", "25:75": "3/4 failures"}
ASIDE = 2.0
"""points between lines at one budget, so that equal values are seen side by side"""
Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """One share of failures: (labelled episodes, value, low, high)."""

    name: str
    points: Sequence[tuple[float, float, float, float]]


@dataclass(frozen=True)
class Panel:
    """One metric."""

    title: str
    lower_is_better: bool
    lines: Sequence[Line]
    levels: dict[str, float]
    """controls: name to value, dashed"""
    tasks: tuple[int, int]
    """how many tasks it shows, of how many"""


class _Pen:
    """Draw in points; the picture is finer."""

    def __init__(self) -> None:
        self.unit = SCALE * FINE
        self.image = Image.new("RGB", (WIDTH * self.unit, HEIGHT * self.unit), PAPER)
        self.draw = ImageDraw.Draw(self.image)

    def line(self, points: Sequence[Point], colour: tuple[int, int, int], width: float) -> None:
        self.draw.line([self._at(one) for one in points], colour, round(width * self.unit), joint="curve")

    def dashed(self, start: Point, end: Point, colour: tuple[int, int, int]) -> None:
        x = start[0]
        while x < end[0]:
            self.line([(x, start[1]), (min(x + 4, end[0]), start[1])], colour, 1)
            x += 7

    def dot(self, centre: Point, colour: tuple[int, int, int]) -> None:
        x, y = self._at(centre)
        for radius, fill in ((4.2, PAPER), (3.2, colour)):
            r = radius * self.unit
            self.draw.ellipse((x - r, y - r, x + r, y + r), fill)

    def band(self, points: Sequence[Point], colour: tuple[int, int, int], strength: float) -> None:
        """Fill a polygon, see-through."""
        mask = Image.new("L", self.image.size, 0)
        ImageDraw.Draw(mask).polygon([self._at(one) for one in points], round(255 * strength))
        self.image.paste(Image.new("RGB", self.image.size, colour), (0, 0), mask)

    def text(self, at: Point, words: str, colour: tuple[int, int, int], size: float, anchor: str = "ls") -> float:
        font = ImageFont.load_default(size * self.unit)
        self.draw.text(self._at(at), words, colour, font, anchor=anchor)
        return float(font.getlength(words)) / self.unit

    def _at(self, point: Point) -> Point:
        return point[0] * self.unit, point[1] * self.unit


def draw_figure(panels: Sequence[Panel], path: Path) -> None:
    """Draw the panels side by side under one legend."""
    pen = _Pen()
    pen.text((LEFT - 24, 24), "What a bad example is worth", INK, 17)
    some, every = panels[0].tasks
    tasks = f"{some} of {every} simulated tasks that were never trained on (those with enough episodes for every point)"
    pen.text((LEFT - 24, 43), tasks, FAINT, 11.5)
    _legend(pen, panels[0].lines)
    width = (WIDTH - LEFT - RIGHT - GAP * (len(panels) - 1)) / len(panels)
    for place, panel in enumerate(panels):
        _panel(pen, panel, LEFT + place * (width + GAP), width)
    size = (WIDTH * SCALE, HEIGHT * SCALE)
    pen.image.resize(size, Image.Resampling.BOX).save(path, optimize=True)


def _legend(pen: _Pen, lines: Sequence[Line]) -> None:
    x = float(LEFT - 24)
    pen.text((x, 64), "taught on", INK, LEGEND)
    x += 62
    for one in lines:
        pen.line([(x, 60), (x + 20, 60)], COLOURS[one.name], 2.2)
        pen.dot((x + 10, 60), COLOURS[one.name])
        x += 26 + pen.text((x + 26, 64), WORDS[one.name], INK, LEGEND) + 18
    pen.text((WIDTH - RIGHT, 64), "bands: 95% over tasks; new scenes, new cameras", FAINT, LEGEND, "rs")


def _panel(pen: _Pen, panel: Panel, left: float, width: float) -> None:
    low, high, ticks = _axis(panel)
    bottom, height = HEIGHT - BOTTOM, HEIGHT - BOTTOM - TOP
    budgets = sorted({point[0] for one in panel.lines for point in one.points})
    first, last = math.log(budgets[0]), math.log(budgets[-1])

    def at(budget: float, value: float) -> Point:
        x = left + 10 + (width - 20) * (math.log(budget) - first) / (last - first)
        return x, bottom - height * (min(max(value, low), high) - low) / (high - low)

    better = "lower is better" if panel.lower_is_better else "higher is better"
    used = pen.text((left - 24, TOP - 14), panel.title, INK, 13)
    pen.text((left - 24 + used + 8, TOP - 14), better, FAINT, 10.5)
    for tick in ticks:
        y = at(budgets[0], tick)[1]
        pen.line([(left, y), (left + width, y)], GRID, 1)
        pen.text((left - 5, y), f"{tick:g}", FAINT, 10.5, "rm")
    for budget in budgets:
        pen.text((at(budget, low)[0], bottom + 15), f"{budget:g}", FAINT, 10.5, "ms")
    pen.text((left + width / 2, bottom + 34), "labelled episodes", FAINT, 11, "ms")
    for one in panel.lines:
        if one.name in BANDS:
            upper = [at(point[0], point[3]) for point in one.points]
            lower = [at(point[0], point[2]) for point in one.points]
            pen.band([*upper, *reversed(lower)], COLOURS[one.name], 0.13)
    _levels(pen, panel, (low, high), lambda value: at(budgets[0], value)[1], left, width)
    for place, one in enumerate(panel.lines):
        aside = (place - (len(panel.lines) - 1) / 2) * ASIDE
        points = [(x + aside, y) for x, y in (at(point[0], point[1]) for point in one.points)]
        pen.line(points, COLOURS[one.name], 2.2)
        for point in points:
            pen.dot(point, COLOURS[one.name])


def _levels(
    pen: _Pen, panel: Panel, shown: tuple[float, float], y_of: Callable[[float], float], left: float, width: float
) -> None:
    """Controls as dashed lines; those off the scale are named where they would be."""
    inside = {name: level for name, level in panel.levels.items() if shown[0] <= level <= shown[1]}
    for name, level in inside.items():
        pen.dashed((left, y_of(level)), (left + width, y_of(level)), FAINT)
        pen.text((left + width, y_of(level) - 4), name, FAINT, 10.5, "rs")
    off = [f"{name} {level:.2f}" for name, level in panel.levels.items() if name not in inside]
    if off:
        edge = y_of(shown[1]) + 13 if panel.lower_is_better else y_of(shown[0]) - 5
        pen.text((left + 4, edge), f"off the scale: {', '.join(off)}", FAINT, 10.5)


def _axis(panel: Panel) -> tuple[float, float, list[float]]:
    """Least and greatest value shown, and round numbers between them."""
    points = [(one.name, point) for one in panel.lines for point in one.points]
    shown = [value for name, point in points for value in (point[1:] if name in BANDS else point[1:2])]
    shown.append(panel.levels["untaught"])
    step = 0.1 if max(shown) - min(shown) > 0.3 else 0.05
    low = 0.0 if panel.lower_is_better else math.floor((min(shown) - 0.01) / step) * step
    high = 1.0 if not panel.lower_is_better else math.ceil((max(shown) + 0.01) / step) * step
    return low, high, [round(low + step * i, 3) for i in range(round((high - low) / step) + 1)]
