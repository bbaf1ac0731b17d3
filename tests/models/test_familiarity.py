"""Familiarity: its formula by hand, its calibration, and what it says of moved cameras and foreign videos."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from demerit.data.episode import Episode
from demerit.data.reward import UNFAMILIAR, Reward
from demerit.data.video import write_video
from demerit.errors import BadInput
from demerit.models import load_model
from demerit.models.compact.engine import FAMILIAR, Engine
from demerit.models.compact.model import Compact
from demerit.models.familiarity import Familiarity, FeatureProjection, student_tail
from demerit.models.reward_store import RewardStore
from demerit.models.taught.head import TaughtHead
from demerit.training.teach import TeachConfig, TeachOutcome, teach
from fakes import lesson_data as lesson
from fakes.command import demerit_here
from fakes.fake_network import FakeNetwork
from fakes.paths import REPO
from fakes.tiny_network import FEATURES, random_images

SAMPLE = REPO / "src" / "demerit" / "assets" / "sample"


def draw_episodes(rng: np.random.Generator, count: int, shift: float = 0.0) -> list[np.ndarray]:
    """Episodes of 12 frames and 6 columns around a centre each."""
    return [rng.normal(shift, 1, 6) + rng.normal(0, 0.5, (12, 6)) for _ in range(count)]


def fitted(episodes: list[np.ndarray]) -> Familiarity:
    found = Familiarity.fit(episodes, [str(number) for number in range(len(episodes))])
    assert found is not None
    return found


def mean_log_distance(episode: np.ndarray, references: list[np.ndarray]) -> float:
    return float(np.mean([np.log(min(np.linalg.norm(row - one) for one in references)) for row in episode]))


def test_the_figure_is_the_formula_in_plain_loops() -> None:
    rng = np.random.default_rng(0)
    episodes, new = draw_episodes(rng, 7), draw_episodes(rng, 1, 0.5)[0]
    at = np.linspace(0, 11, 10).round().astype(int)
    referred = [np.float64(np.float16(episode[at])) for episode in episodes]
    left_out = [
        mean_log_distance(one, [row for other in range(7) if other != number for row in referred[other]])
        for number, one in enumerate(episodes)
    ]
    distance = mean_log_distance(new, [row for rows in referred for row in rows])
    t = (distance - np.mean(left_out)) / (np.std(left_out, ddof=1) * np.sqrt(1 + 1 / 7))
    found = fitted(episodes)
    assert found.percentile(found.distances(new)) == pytest.approx(stats.t.sf(t, 6), abs=2e-3)


def test_the_tail_is_student_s() -> None:
    for degrees in (3, 5, 9, 40):
        for t in np.linspace(-6, 6, 41):
            assert student_tail(float(t), degrees) == pytest.approx(stats.t.sf(t, degrees), abs=1e-3)


def test_new_episodes_of_the_same_kind_are_spread_evenly() -> None:
    rng = np.random.default_rng(1)
    figures = []
    for _ in range(80):
        found = fitted(draw_episodes(rng, 10))
        figures += [found.percentile(found.distances(episode)) for episode in draw_episodes(rng, 10)]
    assert np.mean(figures) == pytest.approx(0.5, abs=0.06)
    for share in (0.01, 0.1, 0.25, 0.5, 0.75):
        assert np.mean(np.array(figures) < share) == pytest.approx(share, abs=0.01 + 0.25 * share)


def test_a_projection_keeps_distances_and_what_it_leaves_out() -> None:
    rng = np.random.default_rng(2)
    basis = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    a, b = rng.normal(size=(2, 4, 6))
    whole = FeatureProjection(np.ones(6), np.full(6, 2.0), basis)
    part = FeatureProjection(np.ones(6), np.full(6, 2.0), basis[:, :2])
    assert np.allclose(np.linalg.norm(whole.measured(a) - whole.referred(b), axis=1), 2 * np.linalg.norm(a - b, axis=1))
    along, rest = 2 * (a - b) @ basis[:, :2], [2 * (one - 1) @ basis[:, 2:] for one in (a, b)]
    squared = (along**2).sum(1) + (rest[0] ** 2).sum(1) + (rest[1] ** 2).sum(1)
    assert np.allclose(((part.measured(a) - part.referred(b)) ** 2).sum(1), squared)


def test_too_few_or_equal_episodes_say_nothing() -> None:
    rng = np.random.default_rng(3)
    episodes = draw_episodes(rng, 6)
    assert Familiarity.fit(episodes, ["a", "a", "b", "b", "c", "c"]) is None
    assert Familiarity.fit([episodes[0]] * 6, list("abcdef")) is None


# Taught models


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> tuple[TeachOutcome, Path]:
    folder, config = tmp_path_factory.mktemp("familiar") / "squares", TeachConfig(folds=4, rows=12, views=1)
    # a success and a failure of one number share their noise, and new episodes share it with none
    data = lesson.dataset([*lesson.episodes(6, 0), *lesson.episodes(0, 6, first=10)])
    return teach(data, folder, network=FakeNetwork(), config=config, workers=0), folder


def familiarity_of(model: object, episodes: list[Episode]) -> list[float]:
    found = [reward.familiarity for reward in model.score(episodes)]  # type: ignore[attr-defined]
    assert None not in found
    return found


def test_a_taught_model_finds_its_task_familiar_and_others_not(taught: tuple[TeachOutcome, Path]) -> None:
    model, new = taught[0].model, [*lesson.episodes(8, 0, first=30), *lesson.episodes(0, 8, first=40)]
    moved = [Episode.from_array(np.roll(one.main.all(), 8, axis=1), one.instruction) for one in new]
    foreign = [Episode.from_array(random_images(24, 24, 24, seed), lesson.WORDS) for seed in range(4)]
    same = familiarity_of(model, new)
    assert np.median(same) > 0.1 and np.mean(np.array(same) < UNFAMILIAR) < 0.2
    assert max(familiarity_of(model, moved)) < min(0.05, np.median(same))
    assert all(reward.is_guess for reward in model.score(foreign))


def test_the_folder_keeps_it_and_live_steps_reach_it(taught: tuple[TeachOutcome, Path]) -> None:
    (outcome, folder), episode = taught, lesson.episode(True, 60)
    (reward,) = outcome.model.score([episode])
    loaded = type(outcome.model).from_folder(folder, FakeNetwork())
    assert loaded.score([episode])[0].familiarity == reward.familiarity
    run = loaded.start(episode.instruction)
    live = [run.step(frame).familiarity for frame in episode.main.all()]
    assert live[-1] == pytest.approx(reward.familiarity, abs=1e-3)


def test_a_head_of_an_earlier_version_has_none(taught: tuple[TeachOutcome, Path], tmp_path: Path) -> None:
    (head,) = (REPO / "tests" / "golden" / "taught").glob("head-*.npz")
    assert TaughtHead.load(head).familiarity is None
    without = replace(taught[0].model.head, familiarity=None)
    assert not [name for name in without.arrays() if name.startswith("familiar")]
    model = type(taught[0].model)(taught[0].model.config, without, FakeNetwork())
    assert "familiarity" not in model.score([lesson.episode(True, 41)])[0].given


# The default model


def write_familiar(folder: Path, network: str) -> None:
    rng = np.random.default_rng(0)
    projection = FeatureProjection(np.zeros(FEATURES), np.ones(FEATURES), np.eye(FEATURES)[:, :3])
    rows = projection.referred(rng.normal(size=(20, FEATURES))).astype(np.float32)
    found = Familiarity(rows, 0.0, 0.3, 10, projection)
    np.savez(folder / FAMILIAR, network=np.array([network]), **found.arrays())  # type: ignore[arg-type]


def test_a_network_reads_its_own_file_only(network: Path, tmp_path: Path) -> None:
    for path in network.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    engine = Engine.load(tmp_path)
    episode = Episode.from_array(random_images(9), "push the cup")
    before = Compact(engine=engine).score([episode])[0]
    assert engine.familiarity is None and before.familiarity is None
    write_familiar(tmp_path, engine.hash)
    known = Engine.load(tmp_path)
    (after,) = Compact(engine=known).score([episode])
    assert known.hash == engine.hash and np.array_equal(after.value, before.value)
    assert known.familiarity is not None
    logs = known.familiarity.distances(known.features(episode.main.all(), episode.main.all()[0]))
    assert after.familiarity == pytest.approx(known.familiarity.percentile(logs), abs=1e-3)
    write_familiar(tmp_path, "another")
    with pytest.raises(BadInput, match=FAMILIAR):
        Engine.load(tmp_path)
    (tmp_path / FAMILIAR).write_bytes(b"damaged")
    with pytest.raises(BadInput, match=FAMILIAR):
        Engine.load(tmp_path)


@pytest.mark.slow
def test_the_shipped_network_knows_its_simulator_and_notices_a_moved_camera(tmp_path: Path) -> None:
    model = Compact()
    episodes = [Episode.from_video(path, "move the block") for path in sorted(SAMPLE.glob("*expert*.mp4"))]
    whole = np.array(familiarity_of(model, episodes))
    assert np.median(whole) > 0.05 and model.engine.familiarity is not None
    moved = [Episode.from_array(np.rot90(one.main.all(), axes=(1, 2)).copy()) for one in episodes]
    corner = [Episode.from_array(one.main.all()[:, :90, :90].copy()) for one in episodes]
    assert np.median(familiarity_of(model, moved)) < UNFAMILIAR
    assert np.mean(np.array(familiarity_of(model, corner)) < whole) > 0.7
    run = model.start("")
    live = [run.step(frame).familiarity for frame in episodes[0].main.all()]
    assert live[-1] == pytest.approx(whole[0], abs=1e-3)


def test_scoring_says_what_is_a_guess(tmp_path: Path) -> None:
    folder = tmp_path / "noise"
    folder.mkdir()
    for seed in range(2):
        write_video(folder / f"{seed}.mp4", random_images(6, 64, 64, seed))
    run = demerit_here("score", "noise", "--json", "--csv", "scores.csv", cwd=tmp_path)
    (found,) = json.loads(run.stdout)["models"]
    assert found["guesses"] == 2 and [row["familiarity"] < UNFAMILIAR for row in found["scores"]] == [True, True]
    with (tmp_path / "scores.csv").open(newline="") as file:
        assert [float(row["familiarity"]) < UNFAMILIAR for row in csv.DictReader(file)] == [True, True]
    stored = list(RewardStore(found["rewards"][0]))
    assert [reward.familiarity for reward in stored] == [row["familiarity"] for row in found["scores"]]
    again = demerit_here("score", "noise", cwd=tmp_path).stdout
    assert "unfamiliar: 2 of 2" in again and again.count("unknown: unfamiliar") == 2  # a line for all, and each verdict


def test_rewards_combine_and_refuse_other_figures() -> None:
    values = {"given": {"familiarity": 0.2}}
    assert Reward.unscored("m", "e", "why", **values).familiarity == 0.2
    for odd in (None, "0.2", float("nan"), 7):
        assert Reward.unscored("m", "e", "why", {"familiarity": odd}).familiarity is None
    (mixed,) = load_model("ensemble:default+clock").score([Episode.from_array(random_images(4), "push")])
    assert mixed.is_guess
