"""The compact model at work: resizing, the engine, the model, and folders that are or are not models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demerit.data.episode import Episode
from demerit.data.formats import open_dataset
from demerit.data.frames import Frames
from demerit.data.video import write_video
from demerit.errors import BadInput, DemeritError, UnknownName, WeightsMismatch
from demerit.models import load_model
from demerit.models.check import check_model
from demerit.models.compact.engine import CHUNK, STEPS, Engine
from demerit.models.compact.model import AT_ONCE, Compact
from demerit.models.compact.resize import resize_square
from demerit.models.loading import KINDS, write_description
from demerit.models.protocol import Comparer, Online, Prepares
from demerit.models.reward_store import RewardStore
from demerit.models.score import ScoreJob, score
from fakes.tiny_network import FEATURES, HIDDEN, make_network, write_info


@pytest.fixture(scope="session")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny trained network. Do not write into it."""
    return make_network(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def engine(network: Path) -> Engine:
    return Engine.load(network, threads=2)


@pytest.fixture
def copied(network: Path, tmp_path: Path) -> Path:
    """A network to damage."""
    return Path(shutil.copytree(network, tmp_path / "mine"))


def pictures(count: int, height: int = 30, width: int = 40, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


# Resizing, computed another way: exact fractions, pixel by pixel.


def axis_weights(old: int, new: int) -> list[dict[int, Fraction]]:
    scale = Fraction(old, new)
    rows: list[dict[int, Fraction]] = []
    for i in range(new):
        row: dict[int, Fraction] = {}
        if old > new:
            for j in range(old):
                covered = min(Fraction(j + 1), (i + 1) * scale) - max(Fraction(j), i * scale)
                if covered > 0:
                    row[j] = covered / scale
        else:
            centre = (i + Fraction(1, 2)) * scale - Fraction(1, 2)
            left = centre.__floor__()
            for j, weight in ((left, 1 - (centre - left)), (left + 1, centre - left)):
                place = min(max(j, 0), old - 1)
                row[place] = row.get(place, Fraction(0)) + weight
        rows.append(row)
    return rows


def as_matrix(old: int, new: int) -> np.ndarray:
    matrix = np.zeros((new, old))
    for i, row in enumerate(axis_weights(old, new)):
        for j, weight in row.items():
            matrix[i, j] = float(weight)
    return matrix


@settings(max_examples=60)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 24), st.integers(0, 5))
def test_resizing_is_the_area_average_in_floats_rounded(height: int, width: int, side: int, seed: int) -> None:
    images = pictures(2, height, width, seed)
    exact = np.einsum("ih,nhwc,jw->nijc", as_matrix(height, side), images.astype(np.float64), as_matrix(width, side))
    small = resize_square(images, side)
    assert small.shape == (2, side, side, 3) and small.dtype == np.uint8
    assert np.abs(small - exact).max() <= 0.5 + 1e-9


@settings(max_examples=30)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 255))
def test_one_colour_stays_that_colour_and_twice_is_once(height: int, width: int, level: int) -> None:
    plain = np.full((1, height, width, 3), level, np.uint8)
    assert (resize_square(plain, 128) == level).all()
    once = resize_square(pictures(1, height, width), 128)
    assert resize_square(once, 128) is once


@pytest.mark.parametrize(("height", "width"), [(1, 1), (2160, 3840), (1, 4096), (2161, 3), (127, 129)])
def test_any_size_becomes_a_square(height: int, width: int) -> None:
    images = pictures(1, height, width)
    small = resize_square(images, 128)
    assert small.shape == (1, 128, 128, 3)
    if height >= 128 and width >= 128:
        assert abs(float(small.mean()) - float(images.mean())) < 0.1
    # images that were resized in between leave nothing behind
    resize_square(pictures(1, 50, 60), 128)
    np.testing.assert_array_equal(resize_square(images, 128), small)


@pytest.mark.parametrize(
    "wrong", [np.zeros((4, 4, 3), np.uint8), np.zeros((1, 0, 4, 3), np.uint8), np.zeros((1, 4, 4, 3))]
)
def test_what_is_no_picture_is_refused(wrong: np.ndarray) -> None:
    with pytest.raises(BadInput, match="images: expected uint8 of shape"):
        resize_square(wrong, 128)


# The engine.


def test_features_do_not_depend_on_threads_chunks_or_company(network: Path, engine: Engine) -> None:
    images = pictures(3 * CHUNK + 5)
    together = engine.features(images, images[0])
    assert together.shape == (len(images), FEATURES) and together.dtype == np.float32
    np.testing.assert_array_equal(Engine.load(network, threads=1).features(images, images[0]), together)
    np.testing.assert_array_equal(engine.features(images[: 2 * CHUNK], images[0]), together[: 2 * CHUNK])
    alone = np.concatenate([engine.features(one[None], images[0]) for one in images])
    np.testing.assert_allclose(alone, together, atol=1e-6)


def test_following_is_causal_and_can_be_interrupted_anywhere(engine: Engine) -> None:
    features = np.random.default_rng(1).normal(size=(2 * STEPS + 7, FEATURES)).astype(np.float32)
    whole = engine.follow(features, "push the cup")
    assert whole.hidden.shape == (len(features), HIDDEN)
    np.testing.assert_allclose(whole.bins.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(whole.progress, whole.bins @ np.linspace(0, 1, whole.bins.shape[1]), atol=1e-5)
    for cut in (1, STEPS, STEPS + 3):
        begun = engine.follow(features[:cut], "push the cup")
        rest = engine.follow(features[cut:], "push the cup", begun.state)
        for name in ("progress", "bins", "success", "rank", "hidden"):
            both = np.concatenate([getattr(begun, name), getattr(rest, name)])
            np.testing.assert_allclose(both, getattr(whole, name), atol=1e-5)
        np.testing.assert_allclose(rest.state, whole.state, atol=1e-5)


def test_words_matter_and_no_words_are_no_words(engine: Engine) -> None:
    features = np.ones((3, FEATURES), np.float32)
    said, other, none, blank = (engine.follow(features, text).progress for text in ("push the cup", "cup", "", " \n"))
    assert not np.allclose(said, other) and not np.allclose(said, none)
    np.testing.assert_array_equal(none, blank)
    assert engine.text_vector("中") is None


def test_nothing_to_look_at_gives_nothing(engine: Engine) -> None:
    assert engine.features(pictures(0), pictures(1)[0]).shape == (0, FEATURES)
    empty = engine.follow(np.empty((0, FEATURES), np.float32), "push")
    assert empty.progress.shape == (0,) and empty.hidden.shape == (0, HIDDEN)
    with pytest.raises(BadInput, match=r"features: expected shape \(frames, 12\)"):
        engine.follow(np.empty((2, 3), np.float32), "push")


# Strict loading.


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("name", ["tower.onnx", "temporal.onnx", "words.npz"])
def test_a_damaged_file_is_noticed_by_its_hash(copied: Path, name: str) -> None:
    cut_short(copied / name)
    with pytest.raises(BadInput, match=rf"{name}: .*copy the folder again"):
        load_model(str(copied))
    (copied / name).unlink()
    with pytest.raises(BadInput, match=rf"{name}: expected a file of the network.*No such file"):
        load_model(str(copied))


@pytest.mark.parametrize("name", ["tower.onnx", "temporal.onnx", "words.npz"])
def test_a_file_that_is_none_is_refused_even_when_its_hash_is_right(copied: Path, name: str) -> None:
    cut_short(copied / name)
    write_info(copied)
    with pytest.raises(DemeritError, match=name):
        load_model(str(copied))


def test_other_shapes_and_names_are_refused(copied: Path) -> None:
    write_info(copied, features=FEATURES + 1)
    with pytest.raises(BadInput, match=r"tower.onnx, features: expected tensor\(float\) of shape \['any', 13\]"):
        load_model(str(copied))
    write_info(copied, state=HIDDEN + 1)
    with pytest.raises(BadInput, match=r"temporal\.onnx, state"):
        load_model(str(copied))
    graph = onnx.load(copied / "tower.onnx")
    graph.graph.output[0].name = graph.graph.node[-1].output[0] = "other"
    onnx.save(graph, copied / "tower.onnx")
    write_info(copied)
    with pytest.raises(WeightsMismatch, match=r"1 missing: tower\.onnx features; 1 unexpected: tower\.onnx other"):
        load_model(str(copied))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": 2}, "expected format 1"),
        ({"bins": 0}, "bins: expected a whole number, 1 or more, got 0"),
        ({"bins": True}, "bins: expected a whole number"),
        ({"licence": ""}, "licence: expected some text"),
        ({"trained_on": "x"}, "trained_on: expected a list of texts"),
        ({"sha256": {"tower.onnx": "0"}}, "sha256: expected a hash for each of"),
        ({"more": 1}, r"extra: \['more'\]"),
    ],
)
def test_a_description_that_is_wrong_is_refused(copied: Path, change: dict[str, object], sentence: str) -> None:
    write_info(copied, **change)
    with pytest.raises(BadInput, match=sentence):
        load_model(str(copied))
    (copied / "network.json").write_text("{")
    with pytest.raises(BadInput, match=r"network.json: expected JSON"):
        load_model(str(copied))
    (copied / "network.json").unlink()
    with pytest.raises(BadInput, match=r"a trained network with network.json"):
        load_model(str(copied))


def test_without_its_weights_the_default_model_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("demerit.models.compact.engine.files", lambda _: tmp_path)
    with pytest.raises(BadInput, match="the default model: expected the weights that come with a release"):
        load_model("default")


# Model folders.


def test_a_folder_is_a_model(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(str(copied))
    assert isinstance(model, Compact) and model.card.name == "mine" and model.card.revision == "tiny"
    monkeypatch.chdir(copied.parent)
    assert load_model("./mine").card == model.card == load_model("mine").card
    assert load_model("./mine:all").card.name == "mine-all"
    assert load_model("./mine", cameras=["wrist", "left side"]).card.name == "mine-wrist+left-side"
    monkeypatch.chdir(copied)
    assert load_model(".").card == model.card


def test_two_folders_are_told_apart_by_name_and_by_content(copied: Path, network: Path, tmp_path: Path) -> None:
    same, other = load_model(str(network)).card, load_model(str(make_network(tmp_path / "mine-2", seed=1))).card
    mine = load_model(str(copied)).card
    assert mine.weights_hash == same.weights_hash != other.weights_hash
    assert len({mine.name, same.name, other.name}) == 3
    assert len({one.hash() for one in (mine, same, other)}) == 3


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nonsense", "expected JSON"),
        ("[1]", "expected an object, got a list"),
        ('{"kind": "compact"}', "expected format 1"),
        ('{"format": 1}', "expected a kind of model, as text"),
        ('{"format": 1, "kind": "compac"}', "Did you mean 'compact'.*Known: .*compact"),
        ('{"format": 1, "kind": "os:system"}', "There is no kind of model"),
        ('{"format": 1, "kind": "compact", "threads": 4}', r"only the fields .*got \['threads'\]"),
    ],
)
def test_a_folder_that_is_no_model_says_why(copied: Path, text: str, sentence: str) -> None:
    (copied / "model.json").write_text(text)
    with pytest.raises(DemeritError, match=sentence):
        load_model(str(copied))


def test_a_path_without_a_model_and_a_wrong_option_are_sentences(copied: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"the name of a model, or its folder with model.json"):
        load_model(str(tmp_path))
    with pytest.raises(BadInput, match="compact"):
        load_model(str(copied), colour="red")
    with pytest.raises(UnknownName, match=r"There is no model named './nothing'"):
        load_model("./nothing")


def test_anybody_can_register_a_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS._added, "clockwork", lambda folder: load_model("clock"))
    write_description(tmp_path, "clockwork", note="kinds add what they need")
    assert json.loads((tmp_path / "model.json").read_text())["note"] == "kinds add what they need"
    assert load_model(str(tmp_path)).card.name == "clock"


# The model.


@pytest.fixture(scope="session")
def model(network: Path) -> Compact:
    return Compact.from_folder(network)


def test_it_keeps_its_contract(network: Path) -> None:
    for name in (str(network), f"{network}:all"):
        report = check_model(load_model(name))
        assert not report.broken, report.broken
        assert all(clause.status == "kept" for clause in report.clauses)


def test_a_reward_has_every_frame_success_and_what_was_given(model: Compact) -> None:
    told = Episode.from_array(pictures(21), "push the cup", id="told")
    untold = replace(told, instruction="", id="untold")
    first, second = model.score([told, untold])
    assert first.at.tolist() == list(range(21)) and first.success is not None and len(first.success) == 21
    assert first.given == {"camera": "main", "frames": 21, "instruction": "push the cup"}
    assert second.given["instruction"] == "none"
    assert not np.array_equal(first.value, second.value)
    alone = model.score([told])[0]
    np.testing.assert_array_equal(alone.value, first.value)
    assert isinstance(model, Online) and isinstance(model, Comparer) and isinstance(model, Prepares)


@pytest.mark.parametrize("count", [1, 2, CHUNK, 3 * CHUNK + 1])
def test_following_live_is_scoring(model: Compact, count: int) -> None:
    images = pictures(count, 50, 33)
    value = model.score([Episode.from_array(images, "push the cup")])[0].value
    for _ in range(2):
        model.reset("push the cup")
        live = [model.step(image) for image in images]
        np.testing.assert_allclose(live, value, atol=1e-5)


def test_live_with_several_cameras_is_the_mean(network: Path) -> None:
    front, wrist = pictures(9, seed=1), pictures(9, seed=2)
    views = {"front": Frames.from_array(front), "wrist": Frames.from_array(wrist)}
    model = Compact.from_folder(network, "all")
    scored = model.score([Episode("two", "push the cup", views)])[0]
    assert scored.given["camera"] == ["front", "wrist"] and scored.model == "tiny-all"
    model.reset("push the cup")
    live = [model.step(np.stack(pair)) for pair in zip(front, wrist, strict=True)]
    np.testing.assert_allclose(live, scored.value, atol=1e-5)
    with pytest.raises(BadInput, match="frame: expected 2 cameras"):
        model.step(front[0])


def test_live_before_a_beginning_or_with_no_picture_is_a_sentence(network: Path) -> None:
    model = Compact.from_folder(network)
    with pytest.raises(BadInput, match="reset"):
        model.step(pictures(1)[0])
    model.reset("push")
    with pytest.raises(BadInput, match="frame: expected shape"):
        model.step(np.zeros((4, 4), np.uint8))
    with pytest.raises(BadInput, match="expected uint8"):
        model.step(np.zeros((4, 4, 3)))


def test_all_cameras_are_the_mean_of_each(network: Path) -> None:
    views = {"front": Frames.from_array(pictures(12, seed=1)), "wrist": Frames.from_array(pictures(12, 20, 20, seed=2))}
    episode = Episode("two", "push the cup", views)
    main, wrist, both, named = (
        Compact.from_folder(network, cameras).score([episode])[0]
        for cameras in ("main", ["wrist"], "all", "front, wrist")
    )
    np.testing.assert_allclose(both.value, (main.value + wrist.value) / 2, atol=1e-6)
    np.testing.assert_array_equal(both.value, named.value)
    assert (main.given["camera"], wrist.given["camera"]) == ("front", "wrist")
    missing = Compact.from_folder(network, ["top"]).score([episode])[0]
    assert not missing.scored and "no camera in episode 'two' named 'top'" in missing.why_missing
    uneven = replace(episode, views={**views, "wrist": Frames.from_array(pictures(11))})
    assert "cameras of one length" in Compact.from_folder(network, "all").score([uneven])[0].why_missing
    assert Compact.from_folder(network).score([uneven])[0].scored


@pytest.mark.parametrize("wrong", [[], ["a", "a"], "a,,b", [1]])
def test_cameras_that_mean_nothing_are_refused(engine: Engine, wrong: list[str] | str) -> None:
    with pytest.raises(BadInput, match="cameras: expected"):
        Compact(wrong, engine=engine)


def test_preferring_is_antisymmetric_and_admits_what_it_cannot_see(model: Compact) -> None:
    a, b = (Episode.from_array(pictures(10, seed=seed), "push the cup", id=str(seed)) for seed in (1, 2))
    ahead, back, itself = model.prefer([(a, b), (b, a), (a, a)])
    assert ahead + back == pytest.approx(1) and itself == 0.5 and ahead != 0.5
    ranks = [model.follow(one).rank[-1] for one in (a, b)]
    assert ahead == pytest.approx(1 / (1 + np.exp(ranks[1] - ranks[0])))
    empty = Episode.from_array(pictures(0), id="empty")
    assert np.isnan(model.prefer([(a, empty)])[0])
    assert "at least one frame" in model.score([empty])[0].why_missing


def test_a_long_video_is_looked_at_piece_by_piece(model: Compact) -> None:
    images = np.repeat(pictures(40, 4, 4), 60, axis=0)
    seen: list[int] = []

    class Watched(type(Frames.from_array(images).source)):  # type: ignore[misc]
        def take(self, indices: list[int]) -> np.ndarray:
            seen.append(len(indices))
            return super().take(indices)

    reward = model.score([Episode("long", "push the cup", {"main": Frames(Watched(images))})])[0]
    assert len(reward.value) == len(images) > 2 * AT_ONCE
    assert max(seen) <= 64


# The scoring job.


@pytest.mark.parametrize("workers", [0, 2])
def test_the_job_gives_what_the_model_gives(
    network: Path, tmp_path: Path, workers: int, make_video: Callable[..., Path]
) -> None:
    videos = make_video("set/a.mp4", 30).parent
    make_video("set/b.mp4", 9, seed=1)
    dataset = open_dataset(f"videos:{videos}")
    model = Compact.from_folder(network)
    done = score(ScoreJob(model, dataset, tmp_path / "rewards", workers=workers, batch=2))
    assert (done.scored, done.frames) == (2, 39)
    stored = {reward.episode: reward for reward in RewardStore(tmp_path / "rewards")}
    for episode in dataset:
        direct = model.score([episode])[0]
        np.testing.assert_array_equal(stored[episode.id].value, direct.value)
        np.testing.assert_array_equal(stored[episode.id].success, direct.success)


def test_frames_are_prepared_where_they_are_decoded(network: Path, tmp_path: Path) -> None:
    """All cameras, views that repeat frames, few frames asked for: small pictures arrive, and the right ones."""
    from demerit.data.decode import load_ahead

    for name, size in (("front", (40, 60)), ("wrist", (150, 130))):
        write_video(tmp_path / f"{name}.mp4", pictures(20, *size, seed=len(name)))
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
