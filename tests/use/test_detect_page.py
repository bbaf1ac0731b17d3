"""The page of detect: which episodes are drawn, in which order, and where the curve meets the bound."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demerit.data.dataset import Dataset
from demerit.data.episode import Episode, Event, Outcome
from demerit.data.reward import Reward, VerdictCounts
from demerit.decide.detector import ALL, GUESS, Detection, Detector, Schedule
from demerit.decide.measure import measure_detections
from demerit.errors import BadInput
from demerit.use import detect_page
from demerit.use.detect_page import write_detect_page
from fakes.opened_page import DESKTOP, PHONE, open_page

LENGTH = 9
USUAL = tuple(np.linspace(0, 1, LENGTH).tolist())
EVIL = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
COURSES = {
    "good": (np.linspace(0, 1, LENGTH), True),
    "late": (np.r_[np.linspace(0, 0.5, 5), np.full(4, 0.4)], False),
    "dark": (np.zeros(LENGTH), False),
    "sly": (np.linspace(0, 0.9, LENGTH), False),
    "no label": (np.linspace(0, 0.9, LENGTH), None),
    "lost": (np.array([]), False),
}


def make_episode(id: str, success: bool | None) -> Episode:
    events = (Event("dropped", 5, 8),) if id == "late" else ()
    labels = () if success is None else (Outcome("human", success=success, events=events),)
    images = np.full((LENGTH, 12, 16, 3), 90, np.uint8)
    return replace(Episode.from_array(images, EVIL if id == "dark" else "light it", id), outcomes=labels)


def write(path: Path, schedule: Schedule) -> tuple[str, dict[str, Detection], Detector]:
    detector = Detector("lamp", "0", 0.0, 1.0, True, 0.1, None, {ALL: schedule})
    episodes = [make_episode(id, success) for id, (_, success) in COURSES.items()]
    rewards = {
        id: Reward("lamp", id, np.arange(len(values)), values)
        if len(values)
        else Reward.unscored("lamp", id, "the video is torn")
        for id, (values, _) in COURSES.items()
    }
    judged = [(one, detector.judge_episode(one, rewards[one.id])) for one in episodes]
    verdicts = VerdictCounts.of_verdicts(detection.verdict for _, detection in judged)
    dataset = Dataset.from_episodes(episodes, "lamps")
    write_detect_page(judged, rewards, detector, measure_detections(judged), verdicts, dataset, path)
    return path.read_text(), {detection.episode: detection for _, detection in judged}, detector


def heights(page: str, id: str, look: str) -> dict[float, float]:
    """Return y by x of a curve of an episode."""
    found = re.search(rf'<path class="{look}" d="([^"]+)"', page[page.index(f">{id} <span") :])
    assert found is not None
    return {float(x): float(y) for x, y in re.findall("[ML]([^,]+),([^ML]+)", found[1])}


def test_flagged_ones_come_first_then_failures_without_an_alarm(tmp_path: Path) -> None:
    page, found, _ = write(tmp_path / "a.html", Schedule(USUAL, 1.0, 0.4, 9))
    flagged, missed = page.split('id="missed"')
    order = re.findall(r'<h3 class="id">(.*?) <span', page)
    assert order == ["dark", "late", "sly"]  # the furthest behind first
    assert flagged.count('class="strip"') == 2 and missed.count('class="strip"') == 1
    assert page.count("data:image/jpeg") == 3 and "<h1>2 flagged of 6 episodes</h1>" in page
    late = found["late"]
    assert (
        f"Flagged at frame {late.flagged_at} (0.7 s), went wrong near frame {late.went_wrong_at} (0.4 s, a guess)"
        in page
    )
    assert GUESS in page
    assert "labelled: dropped" in page and "1 not judged" in page and "the video is torn" in page
    assert "50% (95%:" not in page and "67% (95%: 21 to 94), 2 of 3" in page  # failures found
    assert "<img src=x" not in page and "<script>alert" not in page


def test_the_curve_reaches_the_bound_where_it_is_flagged(tmp_path: Path) -> None:
    page, found, _ = write(tmp_path / "a.html", Schedule(USUAL, 1.0, 0.4, 9))
    level, bound = heights(page, "late", "s0 d0"), heights(page, "late", "s1 d1")
    below = [x in bound and level[x] >= bound[x] for x in sorted(level)]  # y grows downwards
    assert len(bound) < LENGTH  # it is below 0 at first
    assert below.index(True) == found["late"].flagged_at and len(below) == LENGTH


def test_a_model_that_knows_only_ends_has_one_bound(tmp_path: Path) -> None:
    page, found, detector = write(tmp_path / "a.html", Schedule((), 1.0, 0.4, 9))
    assert detector.at_end and found["late"].flagged_at == LENGTH - 1
    assert len(set(heights(page, "late", "s1 d1").values())) == 1


def test_what_is_not_drawn_is_counted_and_another_file_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect_page, "STRIPS", 1)
    page, *_ = write(tmp_path / "a.html", Schedule(USUAL, 1.0, 0.4, 9))
    assert page.count('class="strip"') == 1 and "the 1 that are furthest behind" in page
    assert "1 are not drawn here" in page
    write(tmp_path / "a.html", Schedule(USUAL, 1.0, 0.4, 9))  # its own page may be written again
    (tmp_path / "thesis.html").write_text("years")
    with pytest.raises(BadInput, match="thesis"):
        write(tmp_path / "thesis.html", Schedule(USUAL, 1.0, 0.4, 9))
    assert (tmp_path / "thesis.html").read_text() == "years"


@pytest.mark.slow
@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_moments_stand_under_their_frames_in_a_browser(browser: Any, tmp_path: Path, screen: dict[str, Any]) -> None:
    _, found, _ = write(tmp_path / "a.html", Schedule(USUAL, 1.0, 0.4, 9))
    with open_page(browser, tmp_path / "a.html", **screen) as page:
        strip = page.locator(".strip").nth(1)  # "late"
        film = strip.locator("img").bounding_box()
        for name, frame in (("went wrong", found["late"].went_wrong_at), ("flagged", found["late"].flagged_at)):
            left = strip.locator(".alarm", has_text=name).bounding_box()["x"]
            assert frame is not None
            assert left == pytest.approx(film["x"] + film["width"] * (frame + 0.5) / LENGTH, abs=3), name
        rows = [row.bounding_box()["y"] for row in strip.locator(".under b").all()]
        assert len(set(rows)) == len(rows) == 3  # no name covers another
