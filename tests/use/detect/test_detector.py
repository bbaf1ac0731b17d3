"""Detectors: the statistic, the promise, the file, live episodes, labels."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from demerit.data.episode import Episode, Origin
from demerit.data.labels import Event, Outcome
from demerit.data.reward import Reward
from demerit.data.seen import SeenEpisodes
from demerit.data.store import Store
from demerit.errors import BadInput
from demerit.models.protocol import example_card
from demerit.use.detect import Detection, Detector, calibrate_detector, measure_detections
from demerit.use.detect.calibrate import find_usual, make_schedule
from demerit.use.detect.detector import ALL, EpisodeFollower, Schedule, hold_levels
from demerit.use.detect.labels import label_detections
from demerit.use.detect.measure import CountedShare
from fakes.lamp_env import EpisodeLamp, LampModel
from fakes.tiny_video import put_video

CARD = LampModel().card


def lamp(bright: list[int], success: bool | None, name: str, events: tuple[Event, ...] = ()) -> Episode:
    images = np.stack([np.full((4, 4, 3), level, np.uint8) for level in bright])
    labels = () if success is None else (Outcome("human", success=success, events=events),)
    return replace(Episode.from_array(images, "light it", name), outcomes=labels)


def rises(count: int, seed: int, length: int = 12) -> list[Episode]:
    """Successes that grow bright, some late."""
    rng = np.random.default_rng(seed)
    paths = [np.clip(np.linspace(0, 300, length) - rng.uniform(0, 80), 0, 250) for _ in range(count)]
    return [lamp([int(x) for x in path], True, f"{seed}-{i}") for i, path in enumerate(paths)]


def score(episodes: list[Episode], model: LampModel | None = None) -> list[tuple[Episode, Reward]]:
    return list(zip(episodes, (model or LampModel()).score(episodes), strict=True))


def calibrate(episodes: list[Episode], share: float = 0.1, confidence: float | None = None) -> Detector:
    return calibrate_detector(score(episodes), CARD, "lamp", share, confidence)


def test_the_largest_distance_behind_is_computed_as_defined() -> None:
    detector = calibrate(rises(30, 0))
    dark = lamp([0] * 9, False, "dark")
    (reward,) = LampModel().score([dark])
    schedule = detector.schedules[ALL]
    levels = [LampModel().score([dark])[0].value[t] for t in range(9)]
    best = [max(levels[: t + 1]) for t in range(9)]
    behind = [max(schedule.usual[t], best[t]) - level for t, level in enumerate(levels)]
    behind[-1] = max(behind[-1], schedule.end - levels[-1])
    found = detector.judge(reward, 9, "light it")
    assert found.behind == pytest.approx(max(behind), abs=1e-6)
    assert found.frame == next(t for t, number in enumerate(behind) if number >= schedule.threshold)
    assert found.alarm is True
    assert detector.judge(*_reward_of(rises(1, 7)[0]), "light it").alarm is False


def _reward_of(episode: Episode) -> tuple[Reward, int]:
    return LampModel().score([episode])[0], len(episode)


def test_usual_is_what_four_of_five_successes_have_reached() -> None:
    table = np.array([[0.1 * i, 0.5 + 0.05 * i] for i in range(11)])
    usual, end = find_usual(table)
    assert usual == pytest.approx([0.2, 0.6]) and end == pytest.approx(0.75)
    unknown = np.column_stack([np.full(11, math.nan), table])
    assert find_usual(unknown)[0] == pytest.approx([0.0, 0.2, 0.6])


@pytest.mark.parametrize("count", [19, 40])
def test_the_promise_holds_on_new_successes_whatever_the_size(count: int) -> None:
    shares = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        curves = [np.clip(np.cumsum(rng.normal(0.08, 0.1, 15)), 0, 1) for _ in range(count + 60)]
        schedule = make_schedule(curves[:count], 0.05, None)
        largest = []
        for curve in curves[count:]:
            follower = EpisodeFollower(schedule)
            largest.append(max(follower.find_behind(t, x, t == 14) for t, x in enumerate(curve.tolist())))
        shares.append(np.mean(np.array(largest) >= schedule.threshold))
    assert 0.02 <= np.mean(shares) <= 0.055


def test_behind_is_measured_from_the_usual_level_the_own_best_and_the_end() -> None:
    schedule = Schedule((0.0, 0.1, 0.5), 0.9, 0.5, 20)
    assert EpisodeFollower(schedule).find_behind(1, 0.1) == 0.0
    assert EpisodeFollower(schedule).find_behind(1, 0.1, is_last=True) == pytest.approx(0.8)
    assert EpisodeFollower(schedule).find_behind(99, 0.4) == pytest.approx(0.1)  # beyond all: as at the last frame
    falling = EpisodeFollower(schedule)
    found = [falling.find_behind(t, level) for t, level in enumerate([0.0, 0.8, math.nan, 0.2])]
    assert found == pytest.approx([0.0, 0.0, math.nan, 0.6], nan_ok=True)


def test_live_alarms_are_those_of_the_whole_episode() -> None:
    detector, model = calibrate(rises(30, 0)), LampModel()
    for episode in [
        *rises(3, 1),
        lamp([0, 40, 80, 120, 160, 90, 20, 0, 0], False, "undone"),
        lamp([0, 9], False, "short"),
    ]:
        live = detector.start("light it", model)
        steps = [live.step(image) for image in episode.main.all()]
        last = live.finish()
        found = detector.judge(*_reward_of(episode), "light it")
        assert (live.alarm_at, last.alarm) == (found.frame, found.alarm)
        alarms = [bool(step) for step in steps]
        assert alarms == sorted(alarms)  # an alarm stays
        assert [step.frame for step in steps] == list(range(len(episode)))
    with pytest.raises(BadInput):
        detector.start("light it", model).finish()


def test_another_model_and_one_that_scores_whole_episodes_are_refused() -> None:
    detector, whole = calibrate(rises(30, 0)), EpisodeLamp()
    with pytest.raises(BadInput) as other:
        detector.start("", whole)
    assert "lamp" in str(other.value.got)
    scored = [(one, whole.score([one])[0]) for one in rises(30, 0)]
    offline = calibrate_detector(scored, whole.card, "x", 0.1)
    with pytest.raises(BadInput):
        offline.start("", whole)
    dark = lamp([0] * 5, False, "dark")
    assert offline.judge(whole.score([dark])[0], 5, "").frame == 4  # the one frame that it scores


def test_too_few_successes_say_how_many_are_needed_and_which_did_not_count() -> None:
    episodes = rises(15, 0)
    with pytest.raises(BadInput) as few:
        calibrate(episodes, 0.05)
    assert few.value.expected == "19 or more" and "--false-alarms 0.07" in str(few.value.got)
    with pytest.raises(BadInput) as learned:
        calibrate_detector(score(episodes), CARD, "lamp", 0.07, learned_from=SeenEpisodes.of(episodes[:4]))
    assert str(learned.value.got).startswith("11") and "4 more" in str(learned.value.got)
    tested = [replace(one, origin=Origin("x", split="test")) for one in episodes]
    with pytest.raises(BadInput):
        calibrate(tested, 0.2)
    with pytest.raises(BadInput) as sure:
        calibrate(rises(30, 0), 0.05, 0.9)
    assert sure.value.expected == "45 or more"


def test_two_successes_are_the_least_whatever_is_promised() -> None:
    with pytest.raises(BadInput):
        calibrate(rises(1, 0), 0.9)
    assert calibrate(rises(2, 0), 0.9).schedules[ALL].successes == 2


def test_models_whose_values_cannot_be_compared_are_refused() -> None:
    for card in (example_card(low=None), example_card(comparable=False)):
        with pytest.raises(BadInput):
            calibrate_detector(score(rises(30, 0)), card, "x")


def test_a_task_with_many_successes_has_its_own_schedule() -> None:
    slow = [replace(one, instruction="slowly") for one in rises(20, 1, length=24)]
    detector = calibrate([*rises(20, 0), *slow, replace(rises(1, 2)[0], instruction="once")])
    assert set(detector.schedules) == {ALL, "light it", "slowly"}
    assert len(detector.schedule("Slowly").usual) == 24 and detector.schedule("once") == detector.schedules[ALL]


def test_the_file_opens_again_and_anything_else_is_refused(tmp_path: Path) -> None:
    detector = calibrate(rises(20, 0))
    detector.save(tmp_path / "a.json")
    again = Detector.load(tmp_path / "a.json")
    assert again == detector and again.seen.has(rises(20, 0)[3])
    for text in ("{}", '{"format": 1, "kind": "detector", "model": 3}', "[", (tmp_path / "a.json").read_text()[:-60]):
        (tmp_path / "b.json").write_text(text)
        with pytest.raises(BadInput):
            Detector.load(tmp_path / "b.json")


def test_unscored_frames_are_not_made_up() -> None:
    reward = Reward("m", "e", np.array([1, 2, 4]), np.array([0.2, math.nan, 0.6]), None, "one failed")
    assert hold_levels(reward, 6, 0, 1) == pytest.approx([math.nan, 0.2, 0.2, 0.2, 0.6, 0.6], nan_ok=True)
    detector = calibrate(rises(20, 0))
    found = detector.judge(Reward.unscored("m", "e", "no camera"), 9, "")
    assert found.alarm is None and found.frame is None and found.why_missing == "no camera"


def test_with_probabilities_of_success_the_level_is_the_mean_of_both() -> None:
    reward = Reward("m", "e", np.array([0]), np.array([3.0]), np.array([0.9]))
    assert hold_levels(reward, 1, 1, 5) == pytest.approx([0.7])


def test_figures_count_unseen_labelled_episodes_only() -> None:
    successes, detector = rises(40, 0), calibrate(rises(20, 3))
    event = Event("dropped", 2, 8), Event("hesitation", 0, 1)
    failures = [lamp([0] * 12, False, f"f{i}", event) for i in range(4)]
    other = lamp([0] * 12, None, "unlabelled")
    judged = [(one, detector.judge_episode(one, reward)) for one, reward in score([*successes, *failures, other])]
    figures = measure_detections(judged, SeenEpisodes.of(successes[:10]))
    assert figures.not_counted == 10 and figures.false_alarms.n == 30
    assert (figures.found.hits, figures.found.n) == (4, 4)
    frame = judged[-2][1].frame
    assert frame is not None and figures.delay == frame - 2 and figures.delay_share == (frame - 2) / 12
    assert judged[-2][1].seconds == pytest.approx(frame / 10)
    assert figures.f1 == 8 / (8 + figures.false_alarms.hits)
    assert figures.to_json()["found"] == {"hits": 4, "n": 4}


def test_intervals_of_shares_are_wilsons() -> None:
    low, high = CountedShare(3, 20).interval
    for end in (low, high):  # the ends solve |p - hits / n| = z sqrt(p (1 - p) / n)
        assert abs(end - 0.15) == pytest.approx(1.96 * math.sqrt(end * (1 - end) / 20))
    assert CountedShare(0, 20).interval[0] == 0 and CountedShare(0, 20).interval[1] > 0.1
    assert math.isnan(CountedShare(0, 0).value)


def test_labels_are_written_as_a_models_and_replaced_by_the_next_run(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "set", "set")
    with store.writer() as writer:
        for name in ("bad", "good"):
            put_video(tmp_path / f"{name}.mp4")
            episode = Episode.from_video(tmp_path / f"{name}.mp4", "lift the cup", id=name)
            writer.add(replace(episode, outcomes=(Outcome("human", success=name == "good"),)))
    for frame in (1, 2):
        bad, good = Store(store.root).episodes()
        judged = [(bad, Detection("bad", frame, 0.7, 0.5)), (good, Detection("good", None, 0.1, 0.5))]
        label_detections(store.root, judged, "lamp")
    bad, good = Store(store.root).episodes()
    human, label = bad.outcomes
    assert human.source == "human" and (label.source, label.success, label.by) == ("model", None, "detect with lamp")
    assert [(event.first, event.last) for event in label.events] == [(2, len(bad) - 1)]
    assert [one.source for one in good.outcomes] == ["human"]
