"""The default model: scoring, cameras, live steps, preferences."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demerit.data.decode import load_ahead
from demerit.data.episode import Episode
from demerit.data.frames import Frames
from demerit.data.video import write_video
from demerit.errors import BadInput
from demerit.models import load_model
from demerit.models.check import check_model
from demerit.models.compact.engine import CHUNK, Engine, resize_square
from demerit.models.compact.model import AT_ONCE, Compact
from demerit.models.protocol import Comparer, Online, Prepares
from fakes.tiny_network import random_images


@pytest.fixture(scope="session")
def model(network: Path) -> Compact:
    return Compact.from_folder(network)


def test_the_model_passes_the_conformance_check(network: Path) -> None:
    for name in (str(network), f"{network}:all"):
        report = check_model(load_model(name))
        assert not report.broken, report.broken
        assert all(clause.status == "kept" for clause in report.clauses)


def test_a_reward_covers_every_frame(model: Compact) -> None:
    episode = Episode.from_array(random_images(21), "push the cup", id="with")
    first, second = model.score([episode, replace(episode, instruction="", id="without")])
    assert first.at.tolist() == list(range(21)) and first.success is not None and len(first.success) == 21
    assert first.given == {"camera": "main", "frames": 21, "instruction": "push the cup"}
    assert second.given["instruction"] == "none" and not np.array_equal(first.value, second.value)
    assert isinstance(model, Online) and isinstance(model, Comparer) and isinstance(model, Prepares)


@pytest.mark.parametrize("count", [1, 2, CHUNK, 3 * CHUNK + 1])
def test_live_steps_equal_scoring(model: Compact, count: int) -> None:
    images = random_images(count, 50, 33)
    (offline,) = model.score([Episode.from_array(images, "push the cup")])
    assert offline.success is not None
    for _ in range(2):
        run = model.start("push the cup")
        live = [run.step(image) for image in images]
        np.testing.assert_allclose([one.value for one in live], offline.value, atol=1e-5)
        np.testing.assert_allclose([one.success for one in live], offline.success, atol=1e-5)


def test_live_episodes_of_one_model_do_not_mix(model: Compact) -> None:
    shown = [random_images(9, seed=seed) for seed in (1, 2)]
    episodes = [Episode.from_array(images, f"push the cup {at}") for at, images in enumerate(shown)]
    runs = [model.start(episode.instruction) for episode in episodes]
    live = np.array([[float(run.step(images[at])) for run, images in zip(runs, shown, strict=True)] for at in range(9)])
    for column, offline in zip(live.T, model.score(episodes), strict=True):
        np.testing.assert_allclose(column, offline.value, atol=1e-5)


@pytest.mark.parametrize("wrong", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3)), np.zeros((0, 4, 3), np.uint8), {}])
def test_wrong_live_frames_are_refused_and_change_nothing(model: Compact, wrong: Any) -> None:
    images = random_images(2)
    run, undisturbed = model.start("push"), model.start("push")
    for image in images:
        with pytest.raises(BadInput):
            run.step(wrong)
        assert run.step(image) == undisturbed.step(image)


def test_several_cameras_are_averaged_and_live_too(network: Path) -> None:
    front, wrist = random_images(12, seed=1), random_images(12, seed=2)
    views = {"front": Frames.from_array(front), "wrist": Frames.from_array(wrist)}
    episode = Episode("two", "push the cup", views)
    main, second, both, named = (
        Compact.from_folder(network, cameras).score([episode])[0]
        for cameras in ("main", ["wrist"], "all", "front, wrist")
    )
    np.testing.assert_allclose(both.value, (main.value + second.value) / 2, atol=1e-6)
    np.testing.assert_array_equal(both.value, named.value)
    assert [reward.given["camera"] for reward in (main, second, both)] == ["front", "wrist", ["front", "wrist"]]
    model = Compact.from_folder(network, "all")
    frames = [{"front": a, "wrist": b} for a, b in zip(front, wrist, strict=True)]
    for cameras, offline in (("all", both), ("main", main), ("wrist", second), ("front,wrist", named)):
        run = Compact.from_folder(network, cameras).start("push the cup")
        live = [run.step(dict(reversed(frame.items())) if at else frame) for at, frame in enumerate(frames)]
        np.testing.assert_allclose(np.array(live, float), offline.value, atol=1e-5)
    run = model.start("push the cup")
    run.step(frames[0])
    with pytest.raises(BadInput, match="front, wrist"):
        run.step(front[0])
    missing = Compact.from_folder(network, ["top"]).score([episode])[0]
    assert not missing.scored and "'top'" in missing.why_missing
    uneven = replace(episode, views={**views, "wrist": Frames.from_array(random_images(11))})
    assert not model.score([uneven])[0].scored and Compact.from_folder(network).score([uneven])[0].scored


@pytest.mark.parametrize("wrong", [[], ["a", "a"], "a,,b", [1]])
def test_wrong_cameras_are_refused(engine: Engine, wrong: list[str] | str) -> None:
    with pytest.raises(BadInput, match="cameras"):
        Compact(wrong, engine=engine)


def test_prefer_is_antisymmetric_and_nan_when_unreadable(model: Compact) -> None:
    a, b = (Episode.from_array(random_images(10, seed=seed), "push the cup", id=str(seed)) for seed in (1, 2))
    ahead, back, itself = model.prefer([(a, b), (b, a), (a, a)])
    assert ahead + back == pytest.approx(1) and itself == 0.5 and ahead != 0.5
    ranks = [model.follow(one).rank[-1] for one in (a, b)]
    assert ahead == pytest.approx(1 / (1 + np.exp(ranks[1] - ranks[0])))
    empty = Episode.from_array(random_images(0), id="empty")
    assert np.isnan(model.prefer([(a, empty)])[0])
    assert "at least one frame" in model.score([empty])[0].why_missing


def test_a_long_video_is_read_in_chunks(model: Compact) -> None:
    images = np.repeat(random_images(40, 4, 4), 60, axis=0)
    seen: list[int] = []

    class Watched(type(Frames.from_array(images).source)):  # type: ignore[misc]
        def take(self, indices: list[int]) -> np.ndarray:
            seen.append(len(indices))
            return super().take(indices)

    reward = model.score([Episode("long", "push the cup", {"main": Frames(Watched(images))})])[0]
    assert len(reward.value) == len(images) > 2 * AT_ONCE
    assert max(seen) <= 64


def test_frames_are_resized_by_the_decoder(network: Path, tmp_path: Path) -> None:
    """All cameras, views that repeat frames, few frames asked for: small pictures arrive, and the right ones."""
    for name, size in (("front", (40, 60)), ("wrist", (150, 130))):
        write_video(tmp_path / f"{name}.mp4", random_images(20, *size, seed=len(name)))
    views = {name: Frames.from_video(tmp_path / f"{name}.mp4") for name in ("front", "wrist")}
    whole = Episode("whole", "push the cup", views)
    rewound = replace(whole.select([3, 2, 2, 19, 0]), id="rewound")
    model = Compact.from_folder(network, "all")
    other = Compact.from_folder(network, ["top"])
    for workers in (0, 2):
        for batch in load_ahead([whole, rewound], model.card.wanted, 1, workers, model.looks_at, model.prepare):
            episode = batch[0].episode
            original = {"whole": whole, "rewound": rewound}[episode.id]
            for name in views:
                expected = resize_square(original.views[name].all(), 128)
                np.testing.assert_array_equal(episode.views[name].all(), expected)
            np.testing.assert_array_equal(model.score([episode])[0].value, model.score([original])[0].value)
        refused = list(load_ahead([whole], other.card.wanted, 1, workers, other.looks_at, other.prepare))
        assert "named 'top'" in refused[0][0].error
