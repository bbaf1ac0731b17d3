"""Retrieval: windows, the index and how it resumes, ranking, merging, and the folder of segments."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demerit.cli.retrieve import CANDIDATES
from demerit.data.dataset import Dataset
from demerit.data.episode import Episode, Outcome
from demerit.data.formats import open_dataset
from demerit.data.store import Store
from demerit.data.video import write_video
from demerit.errors import BadInput
from demerit.models.compact.engine import Engine
from demerit.models.reward_store import RewardStore
from demerit.use.retrieve import (
    FRAMES,
    PlayWindows,
    WindowPlan,
    index_windows,
    merge_hits,
    pick_examples_of,
    score_by_examples,
    score_by_text,
    write_retrieve_page,
    write_segments,
)
from fakes.command import demerit_here, error_sentence
from fakes.lesson_data import draw_images
from fakes.opened_page import DESKTOP, PHONE, open_page

WORDS = "push the square to the right"
REST, MOVE = np.zeros(10), np.linspace(0, 1, 10)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load_shipped(threads=1)


def play(*courses: np.ndarray, seed: int = 0) -> np.ndarray:
    """A square at rest, moving to the right, or back."""
    return draw_images(np.concatenate(courses), seed, side=32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four recordings of 4 s at 10 frames per second: the square moves right in second 1, 2, 3, or back in second 1."""
    place = tmp_path_factory.mktemp("play") / "play"
    place.mkdir()
    for i in range(3):
        parts = [REST] * i + [MOVE] + [REST + 1] * (3 - i)
        write_video(place / f"right-{i}.mp4", play(*parts, seed=i), 10)
    write_video(place / "back.mp4", play(MOVE[::-1], REST, REST, REST, seed=9), 10)
    shown = place.parent / "shown"
    shown.mkdir()
    for i in range(3):
        write_video(shown / f"example-{i}.mp4", play(MOVE, seed=20 + i), 10)
    return place


def make_windows(spans: list[list[int]], owner: list[int] | None = None) -> PlayWindows:
    owners = np.zeros(len(spans), np.int32) if owner is None else np.array(owner, np.int32)
    recordings = [Episode.from_array(np.zeros((100, 4, 4, 3), np.uint8), id=f"r{i}") for i in range(owners.max() + 1)]
    return PlayWindows(recordings, owners, np.array(spans, np.int32), np.zeros((len(spans), 8, 4), np.float16), {})


@given(
    frames=st.integers(2, 200),
    rate=st.sampled_from([5.0, 8.9, 30.0]),
    seconds=st.floats(0.5, 9),
    share=st.floats(0.1, 1),
)
def test_windows_cover_every_frame_and_none_is_too_long(frames: int, rate: float, seconds: float, share: float) -> None:
    times = np.arange(frames) / rate
    spans = WindowPlan(seconds, seconds * share).spans(times)
    covered = {frame for first, last in spans for frame in range(first, last + 1)}
    assert covered == set(range(frames))
    assert spans[-1, 1] == frames - 1 and (np.diff(spans[:, 0]) >= 0).all()
    assert all(times[last] - times[first] <= seconds + 1e-5 for first, last in spans)


def test_an_infinite_window_is_the_recording() -> None:
    assert WindowPlan(math.inf, 1.0).spans(np.arange(7) / 10).tolist() == [[0, 6]]


def test_the_index_is_read_once_and_resumes(folder: Path, tmp_path: Path, engine: Engine) -> None:
    plan = WindowPlan(1.0, 0.5)
    episodes = [Episode.from_video(path) for path in sorted(folder.glob("*.mp4"))]
    some = index_windows(Dataset.from_episodes(episodes[:2]), plan, engine, tmp_path)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    whole = index_windows(Dataset.from_episodes(episodes), plan, engine, tmp_path)
    assert len(written) == 2 and len(list(tmp_path.iterdir())) == 4
    assert all(path.stat().st_mtime_ns == before for path, before in written.items())
    assert whole.vectors.shape == (len(whole), FRAMES, engine.pooled_width)
    assert np.array_equal(whole.vectors[: len(some)], some.vectors)


def test_a_window_is_seen_as_an_episode_of_its_own(folder: Path, tmp_path: Path, engine: Engine) -> None:
    episode = Episode.from_video(folder / "right-1.mp4")
    windows = index_windows(Dataset.from_episodes([episode]), WindowPlan(0.75, 0.5), engine, tmp_path)
    first, last = windows.spans[3]
    images = episode.main.take(range(first, last + 1))
    alone = engine.features(images, images[0])[:, : engine.pooled_width]
    assert last - first + 1 == FRAMES
    assert np.allclose(windows.vectors[3], alone, atol=2e-2)


def test_ranks_are_those_of_the_network(folder: Path, tmp_path: Path, engine: Engine) -> None:
    episode = Episode.from_video(folder / "right-1.mp4")
    windows = index_windows(Dataset.from_episodes([episode]), WindowPlan(0.75, 0.5), engine, tmp_path)
    ranks = engine.rank_clips(windows.vectors, WORDS)
    padded = np.zeros((len(windows), FRAMES, engine.info.features), np.float32)
    padded[:, :, : engine.pooled_width] = windows.vectors
    assert np.allclose(ranks, [engine.follow(clip, WORDS).rank[-1] for clip in padded], atol=1e-5)
    scores = score_by_text(windows, engine, WORDS)
    assert np.array_equal(np.argsort(scores), np.argsort(ranks)) and abs(scores.mean()) < 1e-6


def discriminate(rows: np.ndarray, shown: np.ndarray) -> np.ndarray:
    """Fisher's discriminant once more, window by window, in standard deviations."""
    mean, cov = np.mean(rows, axis=0), np.cov(rows.T, bias=True)
    direction = np.linalg.inv(cov + np.trace(cov) / 6 * np.eye(6)) @ (shown.mean(axis=0) - mean)
    raw = np.array([direction @ (row - mean) for row in rows])
    return np.asarray((raw - raw.mean()) / raw.std())


def test_examples_are_scored_by_the_formula() -> None:
    rng = np.random.default_rng(0)
    vectors, shown = rng.normal(size=(50, 8, 6)).astype(np.float16), rng.normal(size=(3, 8, 6)).astype(np.float16)
    windows = replace(make_windows([[i, i + 1] for i in range(50)]), vectors=vectors)
    x, y = vectors.astype(float), shown.astype(float)
    both = discriminate(x.mean(axis=1), y.mean(axis=1)) + discriminate(x[:, 7] - x[:, 0], y[:, 7] - y[:, 0])
    assert np.allclose(score_by_examples(windows, shown), both / both.std(), atol=1e-3)


@pytest.mark.parametrize(
    ("spans", "scores", "top", "found"),
    [
        ([[0, 9], [5, 14], [40, 49]], [3.0, 2.0, 1.0], 5, [(0, 14), (40, 49)]),
        ([[0, 9], [5, 14], [10, 19], [15, 24]], [4.0, 3.0, 2.0, 1.0], 5, [(0, 19)]),  # at most two windows long
        ([[0, 9], [20, 29], [8, 21]], [3.0, 2.0, 1.0], 5, [(0, 9), (20, 29)]),  # two hits do not become one
        ([[0, 9], [20, 29], [40, 49]], [1.0, 3.0, 2.0], 2, [(20, 29), (40, 49)]),
    ],
)
def test_overlapping_hits_become_one_segment(
    spans: list[list[int]], scores: list[float], top: int, found: list[tuple[int, int]]
) -> None:
    segments = merge_hits(make_windows(spans), np.array(scores), top)
    assert [(one.first, one.last) for one in segments] == found
    assert [one.score for one in segments] == sorted((one.score for one in segments), reverse=True)


def test_windows_of_different_recordings_never_merge() -> None:
    segments = merge_hits(make_windows([[0, 9], [5, 14]], [0, 1]), np.array([2.0, 1.0]), 5)
    assert [(one.episode.id, one.first) for one in segments] == [("r0", 0), ("r1", 5)]


def test_examples_are_successes_or_unlabelled_and_of_the_same_words() -> None:
    images = np.zeros((4, 4, 4, 3), np.uint8)
    facts = [("Push it!", True), ("push it", None), ("push it", False), ("", None), ("pull it", True)]
    labels = [() if success is None else (Outcome("human", success=success),) for _, success in facts]
    episodes = [
        replace(Episode.from_array(images, words, f"e{i}"), outcomes=outcomes)
        for i, ((words, _), outcomes) in enumerate(zip(facts, labels, strict=True))
    ]
    assert [one.id for one in pick_examples_of("push it", Dataset.from_episodes(episodes))] == ["e0", "e1", "e3"]
    with pytest.raises(BadInput, match="pull it"):
        pick_examples_of("push it", Dataset.from_episodes(episodes[4:]))


def find(folder: Path, *options: object) -> list[dict[str, Any]]:
    said = demerit_here("retrieve", WORDS, folder, "--seconds", 1, "--stride", 0.5, *options, "--json")
    assert said.returncode == 0, said.stderr
    found: list[dict[str, Any]] = json.loads(said.stdout)
    return found


def test_the_moments_that_look_like_the_examples_are_found(folder: Path) -> None:
    best, second, *_ = find(folder, "--examples", folder.parent / "shown")
    for one in (best, second):
        name, _, moved = one["episode"].partition("-")
        assert name == "right" and one["seconds"][0] <= int(moved) + 0.5 <= one["seconds"][1]


def test_segments_are_episodes_by_reference_without_the_recordings_labels(folder: Path, tmp_path: Path) -> None:
    labelled = Store.create(tmp_path / "play", "play")
    with labelled.writer() as writer:
        whole = Episode.from_video(folder / "right-1.mp4", "tidy up")
        writer.add(replace(whole, outcomes=(Outcome("human", success=True),), signals={"state": np.arange(40)}))
    found = find(labelled.root, tmp_path / "out", "--top", 1, "--model", "clock")
    (episode,) = Store(tmp_path / "out").episodes()
    first, last = found[0]["first"], found[0]["last"]
    assert (episode.instruction, episode.outcomes, episode.origin.parent) == (WORDS, (), "right-1")
    assert episode.signals["state"].tolist() == list(range(first, last + 1))
    assert np.array_equal(episode.main.all(), whole.main.take(range(first, last + 1)))
    assert not list((tmp_path / "out").rglob("*.mp4"))
    assert found[0]["gain"] == pytest.approx(1 - 1 / (last - first + 1))
    facts = json.loads((tmp_path / "out" / "segments.json").read_text())
    assert facts["instruction"] == WORDS and facts["segments"] == found


def test_a_model_that_looks_at_every_window_finds_what_words_do_not(folder: Path, tmp_path: Path) -> None:
    """`change` values a window by how far the image is from the window's first: only a moving square gains."""
    options = ("--model", "change", "--every-window", "--index", tmp_path / "index")
    found = find(folder, "--top", 4, *options)
    moved = {"right-0": 0.5, "right-1": 1.5, "right-2": 2.5, "back": 0.5}
    assert {one["episode"] for one in found} == set(moved)
    assert all(one["seconds"][0] <= moved[one["episode"]] <= one["seconds"][1] for one in found)
    gains = [one["gain"] for one in found]
    assert gains == sorted(gains, reverse=True) and min(gains) > 0
    # three candidates for one segment would all come from what words put first
    (best,) = find(folder, "--top", 1, *options)
    assert (best["episode"], best["gain"]) == (found[0]["episode"], found[0]["gain"])
    stored = RewardStore(next((tmp_path / "index").rglob("change")))
    windows = index_windows(open_dataset(str(folder)), WindowPlan(1.0, 0.5), Engine.load_shipped(), tmp_path / "again")
    assert len(stored) == len(windows) > CANDIDATES
    assert error_sentence(demerit_here("retrieve", WORDS, folder, "--every-window"))


def test_the_answer_says_that_the_model_put_it_in_order_and_what_the_model_warns_of(
    folder: Path, tmp_path: Path
) -> None:
    page, model = tmp_path / "found.html", "fakes.named_values:Named"
    options = ("--seconds", 1, "--top", 1, "--model", model)
    doubtful = demerit_here("retrieve", f"{WORDS} 0.05", folder, *options, "--page", page)
    sure = demerit_here("retrieve", f"{WORDS} 0.5", folder, *options)
    assert doubtful.returncode == 0 == sure.returncode, doubtful.stderr + sure.stderr
    for text in (doubtful.stdout, page.read_text()):
        assert model in text and "unfamiliar: 3 of 3" in text  # the candidates of one segment
    assert "unfamiliar" not in sure.stdout
    as_json = demerit_here("retrieve", f"{WORDS} 0.05", folder, *options, "--json")
    assert "unfamiliar: 3 of 3" in as_json.stderr and len(json.loads(as_json.stdout)) == 1


def test_the_page_has_a_film_strip_per_segment_and_runs_no_text(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "pages" / "found.html"
    options = ("--seconds", 1, "--stride", 0.5, "--examples", folder.parent / "shown", "--top", 3, "--page", page)
    said = demerit_here("retrieve", WORDS, folder, *options, "--json")
    assert said.returncode == 0, said.stderr
    found, text = json.loads(said.stdout), page.read_text()
    heads = re.findall(r'<h3 class="id">\d+\. (\S+), ([\d.]+) to ([\d.]+) s</h3>', text)
    assert heads == [(one["episode"], *(f"{second:.1f}" for second in one["seconds"])) for one in found]
    assert re.findall(r"Score (-?[\d.]+), frames (\d+) to (\d+)", text) == [
        (f"{one['score']:.2f}", str(one["first"]), str(one["last"])) for one in found
    ]
    assert text.count("data:image/jpeg") == 3 and "3 examples" in text
    page.write_text("another page")
    assert "found.html" in error_sentence(demerit_here("retrieve", WORDS, folder, *options))
    assert page.read_text() == "another page"
    evil = "<script>push</script> the square"
    index = index_windows(open_dataset(str(folder)), WindowPlan(1.0, 0.5), Engine.load_shipped(), tmp_path / "index")
    segments = merge_hits(index, np.zeros(len(index)), 2)
    write_retrieve_page(segments, evil, open_dataset(str(folder)), tmp_path / "evil.html", "words", ["a <b> doubt"])
    assert "<script>push" not in (tmp_path / "evil.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_page_fits_every_screen(folder: Path, tmp_path: Path, browser: Any, screen: dict[str, Any]) -> None:
    source = open_dataset(str(folder))
    index = index_windows(source, WindowPlan(1.0, 0.5), Engine.load_shipped(threads=1), tmp_path / "index")
    segments = merge_hits(index, np.arange(len(index)) / 10, 3)
    write_retrieve_page(segments, WORDS, source, tmp_path / "found.html", "words", ["a doubt"])
    with open_page(browser, tmp_path / "found.html", **screen) as page:
        assert page.locator(".strip img").count() == 3 and page.locator(".warnings").is_visible()


def test_segments_of_arrays_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    segments = merge_hits(make_windows([[0, 9]]), np.array([1.0]), 1)
    with pytest.raises(BadInput):
        write_segments(segments, WORDS, Dataset.from_episodes([], "none"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("", ()),
        ("日本", ()),
        (WORDS, ("--seconds", 0)),
        (WORDS, ("--seconds", 1, "--stride", 2)),
        (WORDS, ("--seconds", "nan")),
        (WORDS, ("--seconds", 0.01)),
        (WORDS, ("--examples", "absent")),
        (WORDS, ("--model", "absent")),
    ],
)
def test_bad_input_is_a_sentence(folder: Path, words: str, options: tuple[object, ...]) -> None:
    error_sentence(demerit_here("retrieve", words, folder, *options))


def test_a_bad_number_of_segments_is_told_before_anything_is_read(folder: Path, tmp_path: Path) -> None:
    words = ("retrieve", WORDS, folder, "--top", 0, "--index", tmp_path / "index")
    assert "--top" in error_sentence(demerit_here(*words))
    assert not (tmp_path / "index").exists()


def test_a_damaged_index_and_an_unreadable_recording_are_told(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "play"
    place.mkdir()
    for name in ("right-0", "right-1"):
        (place / f"{name}.mp4").write_bytes((folder / f"{name}.mp4").read_bytes())
    (place / "broken.mp4").write_bytes(b"no video")
    said = demerit_here("retrieve", WORDS, place, "--seconds", 1)
    assert said.returncode == 0 and "broken" in said.stdout
    (file, *_) = tmp_path.rglob("*.npz")
    file.write_bytes(b"torn")
    assert file.name in error_sentence(demerit_here("retrieve", WORDS, place, "--seconds", 1))


def test_a_recording_that_changed_is_read_again(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "play"
    place.mkdir()
    (place / "a.mp4").write_bytes((folder / "back.mp4").read_bytes())
    (place / "b.mp4").write_bytes((folder / "back.mp4").read_bytes())
    shown = ("--examples", folder.parent / "shown", "--top", 1)
    find(place, *shown)
    (place / "b.mp4").write_bytes((folder / "right-2.mp4").read_bytes())
    (best,) = find(place, *shown)
    assert best["episode"] == "b" and best["seconds"][0] <= 2.5 <= best["seconds"][1]


def test_a_dataset_that_cannot_be_written_to_needs_another_place(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "play"
    place.mkdir()
    (place / "a.mp4").write_bytes((folder / "back.mp4").read_bytes())
    (tmp_path / "play.demerit").write_text("in the way")
    assert "play.demerit" in error_sentence(demerit_here("retrieve", WORDS, place, "--seconds", 1))
    said = demerit_here("retrieve", WORDS, place, "--seconds", 1, "--index", tmp_path / "index")
    assert said.returncode == 0 and list((tmp_path / "index").rglob("*.npz"))
