"""Draw docs/images/behaviours.png: a row per behaviour with its measured outcome.

python tools/gallery.py docs/images/behaviours.png
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from demerit.data.frames import spread
from demerit.negatives.sim.arena import Arena, SceneRenderer
from demerit.negatives.sim.rollout import EpisodeSpec, Rollout, outcome, rollout
from demerit.negatives.sim.tasks import task

SHOWN = (
    EpisodeSpec("pick-place", "expert", 1, "plain"),
    EpisodeSpec("push", "noisy", 3, "plain"),
    EpisodeSpec("door-close", "early-stop", 2, "plain"),
    EpisodeSpec("pick-place", "missed-grasp", 1, "plain"),
    EpisodeSpec("pick-place", "drop", 1, "plain"),
    EpisodeSpec("bin-picking", "never-closes", 1, "plain"),
    EpisodeSpec("push", "wrong-place", 1, "plain"),
    EpisodeSpec("pick-place", "wrong-object", 1, "plain"),
    EpisodeSpec("coffee-push", "overshoot", 4, "plain"),
    EpisodeSpec("pick-place", "hesitate", 0, "plain"),
    EpisodeSpec("drawer-open", "undo", 3, "plain"),
    EpisodeSpec("bin-picking", "slam", 4, "plain"),
    EpisodeSpec("window-open", "random", 1, "plain"),
)
COLUMNS, GAP, LINE = 8, 3, 17
BACKGROUND, INK, FAINT = (250, 250, 248), (30, 30, 34), (110, 110, 116)


def draw_rows(specs: Sequence[EpisodeSpec], path: str | Path, columns: int = COLUMNS) -> Path:
    """Run the episodes and draw a row of frames for each."""
    rows = []
    for spec in specs:
        with SceneRenderer(Arena(task(spec.task)), spec.size) as renderer:
            rows.append(_row(rollout(spec, renderer.arena, renderer), columns))
    width, height = rows[0].width, sum(row.height for row in rows)
    sheet = Image.new("RGB", (width, height), BACKGROUND)
    y = 0
    for row in rows:
        sheet.paste(row, (0, y))
        y += row.height
    # 256 colours look the same here and make a file half the size
    sheet.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    return Path(path)


def _row(made: Rollout, columns: int) -> Image.Image:
    size = made.spec.size
    row = Image.new("RGB", (columns * (size + GAP) - GAP, size + LINE + 6), BACKGROUND)
    draw = ImageDraw.Draw(row)
    label = outcome(made)
    verdict = "success" if label.success else "failure"
    events = ", ".join(f"{event.kind} {event.first}-{event.last}" for event in label.events)
    title = f"{made.spec.behaviour}: {made.instruction}"
    font = ImageFont.load_default(12)
    draw.text((2, 1), title, INK, font)
    facts = f"{verdict}, progress {label.progress:.2f}" + (f"; {events}" if events else "")
    draw.text((row.width - 4, 1), facts, FAINT, font, anchor="ra")
    for column, index in enumerate(spread(len(made.images), columns)):
        row.paste(Image.fromarray(np.asarray(made.images[index])), (column * (size + GAP), LINE))
        draw.text((column * (size + GAP) + 3, LINE + 1), str(index), (255, 255, 255), font, stroke_width=1)
    return row


if __name__ == "__main__":
    print(draw_rows(SHOWN, sys.argv[1]))
