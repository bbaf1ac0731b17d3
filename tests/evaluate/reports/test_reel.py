"""Film strips: a curve or a mark stands under the frame that it is about."""

import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from demerit.data.episode import Event
from demerit.data.frames import Frames, spread
from demerit.evaluate.reports.reel import HEIGHT, MARGIN, MOST, WIDTH, FilmReel
from fakes.tiny_video import put_video


def points(text: str) -> np.ndarray:
    return np.array([[float(part) for part in point.split(",")] for point in re.findall("[ML]([^ML]+)", text)])


@given(length=st.integers(1, 90), sides=st.sampled_from([(8, 8), (6, 8), (9, 16), (16, 9)]))
def test_a_frame_of_the_strip_stands_over_its_point(length: int, sides: tuple[int, int]) -> None:
    grey = np.linspace(0, 250, length).astype(np.uint8)
    images = np.broadcast_to(grey[:, None, None, None], (length, *sides, 3))
    reel = FilmReel.draw(Frames.from_array(images), {"grey": (np.arange(length), grey / 250)})
    film = np.asarray(Image.open(io.BytesIO(base64.b64decode(reel.film))).convert("L"), np.float64)
    placed, shown = points(reel.curves["grey"]), spread(length, reel.shown)
    assert len(placed) == length and len(shown) == reel.shown <= MOST
    for x, y in placed[shown]:
        value = film[film.shape[0] // 2, int(x / WIDTH * film.shape[1])] / 250
        assert value == pytest.approx((HEIGHT - MARGIN - y) / (HEIGHT - 2 * MARGIN), abs=0.03)


def test_gaps_stay_open_values_are_cut_and_marks_are_in_percent() -> None:
    frames = Frames.from_array(np.zeros((12, 8, 8, 3), np.uint8))
    curve = (np.arange(5), [np.nan, 7.0, -7.0, np.nan, 0.5])
    reel = FilmReel.draw(frames, {"a": curve}, [Event("drop", 6, 11)], [Event("flagged", 11, 11)])
    assert reel.curves["a"] == f"M150.0,{MARGIN}.0L250.0,{HEIGHT - MARGIN}.0M450.0,{HEIGHT / 2}"
    flagged, drop = reel.marks
    assert (flagged["kind"], flagged["look"], flagged["is_late"]) == ("flagged", "alarm", True)
    assert flagged["left"] == pytest.approx(100 * 11.5 / 12, abs=0.01) and flagged["width"] > 0
    assert (drop["left"], drop["width"], drop["is_late"]) == (54.17, 41.67, False)


def test_a_video_that_is_gone_has_no_film(tmp_path: Path) -> None:
    put_video(tmp_path / "a.mp4")
    frames = Frames.from_video(tmp_path / "a.mp4")
    (tmp_path / "a.mp4").unlink()
    assert FilmReel.draw(frames, {"a": ([0], [1.0])}) == FilmReel("", 0)
