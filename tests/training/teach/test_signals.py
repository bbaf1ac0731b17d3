"""Teaching with signals: what the pictures do not show, what is refused, and the whole way on the command line."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import demerit
from demerit.data.episode import Episode
from demerit.data.frames import Frames
from demerit.data.reward import VerdictCounts
from demerit.data.store import Store
from demerit.data.video import write_video
from demerit.errors import BadInput, UnknownName
from demerit.evaluate.reports.report import Report
from demerit.models import load_model
from demerit.models.check import check_model
from demerit.models.live import start_live
from demerit.models.reward_store import RewardStore
from demerit.models.taught.model import TaughtModel
from demerit.training.teach import TeachConfig, TeachOutcome, teach
from demerit.use.gym import RewardEnv
from fakes import lesson_data as data
from fakes.command import demerit_here, error_sentence
from fakes.fake_network import FakeNetwork

SAMPLE = Path(demerit.__file__).parent / "assets" / "sample"
QUICK = TeachConfig(folds=4, rows=12, views=1)


def feel(good: int, bad: int, first: int = 0, shuffle: bool = False) -> list[Episode]:
    """Pictures of successes alone; half of them are failures, in which a force was too large for one moment."""
    rng, episodes = np.random.default_rng([first, shuffle]), []
    for one in data.episodes(good, bad, data.verdict, first=first):
        seed = int(one.id.split("-")[1])
        images = data.draw_images(data.course(True, seed), seed + (not one.outcomes[0].success) * 1000)
        force = rng.uniform(0, 5, (data.FRAMES, 1))
        if rng.random() < 0.5 if shuffle else not one.outcomes[0].success:
            force[rng.integers(8, 20)] = rng.uniform(30, 3000)
        episodes.append(
            replace(
                one,
                views={"main": Frames.from_array(images)},
                signals={"force": force, "name": np.full(data.FRAMES, "a")},
            )
        )
    return episodes


def taught(episodes: Sequence[Episode], out: Path | None = None, signals: Sequence[str] = ("force",)) -> TeachOutcome:
    config = {"network": FakeNetwork(), "config": QUICK, "workers": 0}
    return teach(data.dataset(episodes), out, signals=signals, **config)  # type: ignore[arg-type]


def gap(outcome: TeachOutcome, episodes: Sequence[Episode]) -> float:
    """The share of pairs in which the success has the higher value."""
    rewards = {reward.episode: reward.final for reward in outcome.model.score(episodes)}
    good, bad = ([value for id, value in rewards.items() if id.startswith(kind)] for kind in ("good", "bad"))
    return float(np.mean([[a > b for b in bad] for a in good]))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[TeachOutcome, Path]:
    folder = tmp_path_factory.mktemp("taught") / "gentle"
    return taught(feel(8, 8), folder), folder


def test_a_force_is_learned_that_no_picture_shows(model: tuple[TeachOutcome, Path]) -> None:
    test = feel(8, 8, first=30)
    assert gap(model[0], test) > 0.95
    assert gap(taught(feel(8, 8), signals=()), test) < 0.75
    assert gap(taught(feel(8, 8, shuffle=True)), feel(8, 8, first=30, shuffle=True)) < 0.75


def test_the_model_needs_its_signals_and_says_so(model: tuple[TeachOutcome, Path]) -> None:
    outcome, folder = model
    loaded = TaughtModel.from_folder(folder, FakeNetwork())
    assert loaded.card.hash() == outcome.model.card.hash() != taught(feel(8, 8), signals=()).model.card.hash()
    assert loaded.card.reads_signals and "the signals force" in loaded.card.about
    whole = feel(1, 0, first=40)[0]
    without = replace(whole, signals={})
    wide = replace(whole, signals={"force": np.zeros((data.FRAMES, 2))})
    gone = replace(whole, signals={"force": np.full(data.FRAMES, np.nan)})
    rewards = loaded.score([whole, without, wide, gone])
    assert [reward.scored for reward in rewards] == [True, False, False, False]
    for reward, word in zip(rewards[1:], ("without force", "1 numbers per frame", "at frame 0"), strict=True):
        assert word in reward.why_missing
        assert reward.verdict.reason == "not scored" and word in str(reward.verdict)
    assert not VerdictCounts.of(rewards[1:]).as_dict()["success"]
    assert np.isnan(loaded.prefer([(whole, without)])[0])


def test_live_use_refuses(model: tuple[TeachOutcome, Path]) -> None:
    for start in (model[0].model.start, lambda words: start_live(model[0].model, words)):
        with pytest.raises(BadInput, match="signals"):
            start("push")
    with pytest.raises(BadInput, match="signals"):
        RewardEnv(gymnasium.make("CartPole-v1", render_mode="rgb_array"), model[0].model, "push")


def test_the_contract_holds(model: tuple[TeachOutcome, Path]) -> None:
    clauses = {clause.name: clause.status for clause in check_model(model[0].model, feel(2, 2, first=50)).clauses}
    assert clauses.pop("live = offline") == "not checkable"
    assert set(clauses.values()) == {"kept"}


def test_a_signal_weighs_the_same_with_two_cameras() -> None:
    """Cameras share its weight, and an episode without one of them is scored with its signals."""

    def film(episodes: Sequence[Episode]) -> list[Episode]:
        return [replace(one, views={"left": one.main, "right": one.main}) for one in episodes]

    outcome, test = taught(film(feel(8, 8))), film(feel(8, 8, first=30))
    assert gap(outcome, test) > 0.95
    assert gap(outcome, [replace(one, views={"right": one.views["right"]}) for one in test]) > 0.95


def test_lessons_that_lack_signals() -> None:
    episodes = feel(6, 6)
    some = [replace(episodes[0], signals={}), *episodes[1:]]
    outcome = taught(some)
    assert outcome.model.config.taught_on["episodes"] == 11
    (note,) = (note for note in outcome.results.notes if "good-0 was skipped" in note)
    assert note.endswith("without force.")
    with pytest.raises(UnknownName, match="force"):
        taught(episodes, signals=["forse"])
    with pytest.raises(BadInput, match="numbers"):
        taught(episodes, signals=["name"])


def test_a_damaged_description_is_refused(model: tuple[TeachOutcome, Path], tmp_path: Path) -> None:
    for path in model[1].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    facts = json.loads((tmp_path / "model.json").read_text())
    (tmp_path / "model.json").write_text(json.dumps({**facts, "signals": {"force": [[0.0, 0.0]]}}))
    with pytest.raises(BadInput, match="signals"):
        TaughtModel.from_folder(tmp_path, FakeNetwork())


def test_the_whole_way_on_the_command_line(tmp_path: Path) -> None:
    """Teach, score, bench, verdict; live use is refused."""
    for name, first, count in (("lesson", 0, 8), ("new", 30, 5)):
        store = Store.create(tmp_path / name, name)
        with store.writer() as writer:
            for one in feel(count, count, first=first):
                write_video(tmp_path / f"{one.id}.mp4", np.kron(one.main.all(), np.ones((1, 2, 2, 1), np.uint8)))
                video = {"main": Frames.from_video(tmp_path / f"{one.id}.mp4")}
                writer.add(replace(one, views=video, signals={"force": one.signals["force"]}))

    def run(*words: object) -> str:
        done = demerit_here(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("teach", "lesson", "-o", "gentle", "--signals", "force", "--no-reader", "--risk", "0.25", "--workers", "0")
    run("score", "new", "--model", "./gentle", "--workers", "0")
    rewards = list(RewardStore(tmp_path / "new" / "rewards" / "gentle"))
    words = {reward.episode: reward.verdict.word for reward in rewards}
    assert len(words) == 10
    assert {word for id, word in words.items() if id.startswith("bad")} == {"failure"}
    assert "success" in words.values()
    run("bench", "own", "--data", "new", "--model", "./gentle", "-o", "bench", "--workers", "0")
    area = Report.read(tmp_path / "bench" / "report.json").line("gentle", "auroc")
    assert area is not None and area.value > 0.9
    with pytest.raises(BadInput, match="the signals force"):
        load_model(str(tmp_path / "gentle")).start(data.WORDS)  # type: ignore[attr-defined]
    wrong = demerit_here("teach", "lesson", "-o", "other", "--signals", "forces", cwd=tmp_path)
    assert "force" in error_sentence(wrong)


def test_rewards_of_another_model_are_a_signal_once_exported(tmp_path: Path) -> None:
    """So a published model, run where there is a GPU, is corrected by labels where there is none."""
    shutil.copytree(SAMPLE, tmp_path / "videos")

    def run(*words: str) -> None:
        done = demerit_here(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr

    run("export", "videos", "scored", "--model", "change")
    run("teach", "scored", "-o", "m", "--signals", "next.reward", "--tower", "none", "--no-reader", "--workers", "0")
    run("score", "videos", "--model", "./m", "--limit", "2")
    model, episodes = load_model(str(tmp_path / "m")), list(demerit.open_dataset(tmp_path / "scored"))
    for one, reward in zip(episodes, RewardStore(tmp_path / "videos.demerit" / "rewards" / "change"), strict=True):
        assert np.allclose(one.signals["next.reward"][:-1], reward.value[1:])  # the value of the frame after it
    changed = [replace(one, signals={"next.reward": 1 - one.signals["next.reward"]}) for one in episodes[:2]]
    for before, after in zip(model.score(episodes[:2]), model.score(changed), strict=True):
        assert before.why_missing == "" and not np.allclose(before.value, after.value)
    assert all("next.reward" in one.why_missing for one in RewardStore(tmp_path / "videos.demerit" / "rewards" / "m"))


def test_a_camera_of_another_length_than_the_signals_is_not_taught() -> None:
    def film(one: Episode, length: int) -> Episode:
        frames = one.main.select([*range(data.FRAMES), *[data.FRAMES - 1] * (length - data.FRAMES)])
        return replace(one, views={"main": one.main, "wrist": frames})

    episodes = feel(6, 6)
    longer = [film(episodes[0], data.FRAMES + 5), *(film(one, data.FRAMES) for one in episodes[1:])]
    found = teach(
        data.dataset(longer), None, network=FakeNetwork(), config=QUICK, workers=0, signals=["force"], cameras=["wrist"]
    )
    assert any("good-0 was skipped" in note and "cameras of one length" in note for note in found.results.notes)
