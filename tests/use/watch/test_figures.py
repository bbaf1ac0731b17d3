"""The figures: what to look at, drift, metrics that Prometheus reads, and a page that runs no foreign code."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from demerit.data.formats import open_dataset
from demerit.data.reward import Verdict
from demerit.models import load_model
from demerit.use.watch.alarms import AlarmCondition
from demerit.use.watch.figures import WatchPage, count_rate, draw_curves, measure_drift, pick_to_watch
from demerit.use.watch.watcher import WatchedEpisode, Watcher, WatchState
from demerit.web.media import EpisodeMedia
from fakes.tiny_video import put_video

EVIL = '<img src=x onerror="alert(1)">'


def make_row(place: int, value: float | None = 0.5, success: bool | None = None, **changes: Any) -> WatchedEpisode:
    verdict = Verdict(success, None if success is not None else "no threshold" if value is not None else "not scored")
    row = WatchedEpisode(
        f"e{place}", "push", place, float(place), value, verdict, None, "" if value is not None else "x"
    )
    return replace(row, **changes)


def test_failures_guesses_and_unscored_ones_are_looked_at_and_the_lowest_first() -> None:
    rows = [
        make_row(0, 0.9, True),
        make_row(1, 0.4, False),
        make_row(2, 0.1, False),
        make_row(3, 0.8, verdict=Verdict(None, "unfamiliar")),
        make_row(4, None),
    ]
    assert [row.id for row in pick_to_watch(rows)] == ["e2", "e1", "e3", "e4"]
    assert len(pick_to_watch(rows * 5)) == 8
    assert pick_to_watch(rows[:1]) == []


def test_only_judged_episodes_make_the_rate() -> None:
    rate = count_rate([make_row(0, success=True), make_row(1, success=False), make_row(2)])
    assert (rate.value, rate.n) == (0.5, 2)


def test_a_detector_makes_a_rate_of_failures_and_none_of_successes(page: WatchPage) -> None:
    quiet = [make_row(place, verdict=Verdict(None, "no alarm")) for place in range(8)]
    rows = [*quiet, make_row(8, success=False), make_row(9, verdict=Verdict(None, "unfamiliar"))]
    rate = count_rate(rows, "failure")
    assert (rate.hits, rate.n) == (1, 9)
    assert set(draw_curves(rows, None, None, "failure")) == {"failure", "band"}
    condition = AlarmCondition.parse("failure>0.1 over 9")
    assert condition.measured(rows) == pytest.approx(1 / 9) and condition.holds(rows)
    page.watcher.outcome, page.watcher.state = "failure", WatchState(tuple(rows))
    text = TestClient(page.app()).get("/body").text
    assert "<h2>Failure</h2>" in text and str(rate) in text and "<h2>Success</h2>" not in text
    assert 'failure_ratio{end="value"}' in page.metrics() and "success_ratio" not in page.metrics()


def test_drift_is_found_where_it_is_and_rarely_elsewhere() -> None:
    rng = np.random.default_rng(0)

    def count_drifts(values: Sequence[float], familiarity: Sequence[float]) -> list[bool]:
        rows = [make_row(i, value, familiarity=f) for i, (value, f) in enumerate(zip(values, familiarity, strict=True))]
        return [drift["is_far"] for drift in measure_drift(rows, 50)]

    steady = [count_drifts(rng.normal(0.6, 0.1, 100).tolist(), rng.random(100).tolist()) for _ in range(100)]
    assert np.mean(steady) < 0.03
    lower = [*rng.normal(0.6, 0.1, 80).tolist(), *rng.normal(0.45, 0.1, 20).tolist()]
    unlike = [*rng.random(80).tolist(), *(0.2 * rng.random(20)).tolist()]
    assert count_drifts(lower, unlike) == [True, True]
    assert count_drifts(rng.normal(0.6, 0.1, 100).tolist(), [0.95] * 100)[1] is False  # more familiar is no drift
    assert measure_drift([make_row(i, 0.1 * i) for i in range(30)], 50) == []


def test_curves_stay_inside_the_drawing() -> None:
    rows = [make_row(i, 2.0 * (i % 2) - 0.5, bool(i % 2)) for i in range(2000)]
    curves = draw_curves(rows, 0.0, 1.0)
    assert set(curves) == {"success", "value", "band"} and set(draw_curves(rows, None, None)) == {"success", "band"}
    assert len(curves["value"].split()) <= 350
    for points in curves.values():
        xs, ys = np.array([[float(part) for part in point.split(",")] for point in points.split()]).T
        assert xs.min() >= 0 and xs.max() <= 600 and ys.min() >= 0 and ys.max() <= 120
    assert draw_curves([make_row(0, success=True)], 0.0, 1.0) == {}


@pytest.fixture
def page(tmp_path: Path) -> WatchPage:
    """A page about a folder whose names, instructions and reasons attack it."""
    folder = tmp_path / "runs"
    put_video(folder / "a.mp4")
    (folder / "bad.mp4").write_text("no video")
    (folder / "labels.csv").write_text(f'file,instruction\na.mp4,"{EVIL.replace(chr(34), chr(34) * 2)}"\n')
    watcher = Watcher(str(folder), load_model("clock"), open_dataset, settle=0.0, patience=0.0)
    watcher.look()
    judged = [row if row.unscored else replace(row, verdict=Verdict(False)) for row in watcher.state.rows]
    rows = (*judged, make_row(1, None, unscored=EVIL, id=EVIL, kind=EVIL))
    watcher.state = WatchState(rows, ((EVIL, EVIL),), EVIL, 1, (EVIL,), 2, 5.0)
    broken: Any = SimpleNamespace(failed=1, delivered=0, error=EVIL, url="")
    return WatchPage(watcher, EpisodeMedia(tmp_path / "media"), [AlarmCondition.parse("success<1 over 1")], broken)


def test_texts_of_data_are_escaped(page: WatchPage) -> None:
    for path in ("/", "/body"):
        text = TestClient(page.app()).get(path).text
        assert EVIL not in text and "&lt;img src=x" in text
        assert text.count("<img ") == 1  # the thumbnail of the one episode with a video
    assert "script-src 'sha256-" in TestClient(page.app()).get("/").text


def test_the_first_line_says_what_to_watch(page: WatchPage) -> None:
    assert "Of these 3, watch these <em>3</em>" in TestClient(page.app()).get("/").text
    page.watcher.state = WatchState()
    assert "Waiting for the first episode" in TestClient(page.app()).get("/").text


def test_prometheus_reads_the_metrics(page: WatchPage) -> None:
    page.watcher.state = replace(page.watcher.state, rows=(*page.watcher.state.rows, make_row(9, 0.25, kind='a"b\\\n')))
    families = {family.name: family for family in text_string_to_metric_families(page.metrics())}
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in families.values()
        for sample in family.samples
    }
    assert found["demerit_watch_episodes",] == 4 and found["demerit_watch_unscored",] == 2
    assert found["demerit_watch_failures", 'a"b\\\n'] == 1
    assert found["demerit_watch_alarm", "success<1 over 1"] == 1
    assert (found["demerit_watch_success_ratio", "value"], found["demerit_watch_up",]) == (0, 0)
    assert found["demerit_watch_scored_total",] == 2 and families["demerit_watch_scored"].type == "counter"


def test_the_page_of_a_model_without_verdicts_shows_its_values_over_time(page: WatchPage) -> None:
    page.watcher.state = WatchState(tuple(make_row(place, 0.1 * place) for place in range(8)))
    text = TestClient(page.app()).get("/body").text
    assert text.count("<polyline") == 1 and "<polygon" not in text and "demerit calibrate" in text
    other_task = [make_row(place, verdict=Verdict(None, "task not taught")) for place in range(3)]
    page.watcher.state = WatchState(tuple(other_task))
    text = TestClient(page.app()).get("/body").text
    assert "Unknown: 0 success, 0 failure, 3 unknown (task not taught)" in text and "demerit calibrate" not in text


def test_nothing_is_measured_before_the_first_episode(page: WatchPage) -> None:
    page.watcher.state = WatchState()
    assert "NaN" not in page.metrics() and "success_ratio" not in page.metrics()


def test_pictures_and_clips_are_found_by_place(page: WatchPage) -> None:
    client = TestClient(page.app())
    assert client.get("/media/0.jpg").content[:2] == b"\xff\xd8" and client.get("/media/0.mp4").status_code == 200
    assert client.get("/media/7.jpg").status_code == 404
