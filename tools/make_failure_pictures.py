"""Draw docs/images/failures.png: one episode for every kind of failure in simulation.

    python tools/make_failure_pictures.py STORE

STORE is a folder made by `demerit simulate`, for example with --benchmark metaworld-bad@1 --split test.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from demerit.data.episode import Episode, Event
from demerit.data.store import Store
from demerit.data.taxonomy import kinds

COLUMNS, SIZE, GAP, LINE = 7, 112, 3, 18
BACKGROUND, INK, FAINT, ALARM = (250, 250, 248), (30, 30, 34), (110, 110, 116), (213, 94, 0)


def examples(store: Store) -> dict[str, tuple[Episode, Event]]:
    """Find an episode for each kind, with as few other failures as possible."""
    best: dict[str, tuple[int, str, Episode, Event]] = {}
    for episode in store.episodes():
        events = episode.outcome.events if episode.outcome else ()
        for event in events:
            candidate = (len(events), episode.id, episode, event)
            if event.first > 1 and (event.kind not in best or candidate[:2] < best[event.kind][:2]):
                best[event.kind] = candidate
    return {kind: (episode, event) for kind, (_, _, episode, event) in best.items()}


def row(episode: Episode, event: Event) -> Image.Image:
    """Draw frames around the failure; those in it have a border."""
    first, last = max(0, event.first - 4), min(len(episode) - 1, max(event.last, event.first + 3) + 2)
    chosen = np.unique(np.rint(np.linspace(first, last, COLUMNS)).astype(int))
    strip = Image.new("RGB", (COLUMNS * (SIZE + GAP) - GAP, SIZE + LINE + 8), BACKGROUND)
    draw = ImageDraw.Draw(strip)
    draw.text((2, 1), event.kind, INK, ImageFont.load_default(13))
    facts = f"{episode.instruction} ({event.note})" if event.note else episode.instruction
    draw.text((strip.width - 4, 2), facts, FAINT, ImageFont.load_default(11), anchor="ra")
    for column, (index, image) in enumerate(zip(chosen, episode.main.take(chosen), strict=True)):
        x = column * (SIZE + GAP)
        strip.paste(Image.fromarray(image).resize((SIZE, SIZE), Image.Resampling.LANCZOS), (x, LINE))
        if event.first <= index <= event.last:
            draw.rectangle((x, LINE, x + SIZE - 1, LINE + SIZE - 1), outline=ALARM, width=2)
        draw.text((x + 4, LINE + 3), str(index), (255, 255, 255), ImageFont.load_default(11), stroke_width=1)
    return strip


def main(store: str) -> None:
    found = examples(Store(store))
    rows = [row(*found[kind.name]) for kind in kinds() if kind.name in found]
    sheet = Image.new("RGB", (rows[0].width, sum(one.height for one in rows)), BACKGROUND)
    for place, one in enumerate(rows):
        sheet.paste(one, (0, place * one.height))
    path = Path(__file__).parents[1] / "docs" / "images" / "failures.png"
    sheet.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    absent = [kind.name for kind in kinds() if kind.name not in found]
    print(f"{path}: {len(rows)} kinds; the simulator does not show: {', '.join(absent)}")


if __name__ == "__main__":
    main(sys.argv[1])
