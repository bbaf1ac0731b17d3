"""Detectors: the statistic, the promise, the file, live episodes, labels."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from demerit.data.episode import Episode, Event, Origin, Outcome
from demerit.data.reward import Reward
from demerit.data.splits import SeenEpisodes
from demerit.data.store import Store
from demerit.decide.detector import (
    ALL,
    Detection,
    Detector,
    EpisodeFollower,
    Schedule,
    calibrate_detector,
    find_usual,
    hold_levels,
    make_schedule,
)
from demerit.decide.measure import label_detections, measure_detections
from demerit.errors import BadInput
from demerit.models.protocol import SCORE, example_card
from demerit.models.rule import Rule, RuleConfig
from demerit.negatives import load_negative
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
    assert found.flagged_at == next(t for t, number in enumerate(behind) if number >= schedule.threshold)
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


@pytest.mark.parametrize("scores_live", [True, False])
def test_live_alarms_are_those_of_the_whole_episode(scores_live: bool) -> None:
    detector, model = calibrate(rises(30, 0)), LampModel()
    if not scores_live:
        model = SimpleNamespace(card=CARD, score=model.score)  # type: ignore[assignment]
    for episode in [
        *rises(3, 1),
        lamp([0, 40, 80, 120, 160, 90, 20, 0, 0], False, "undone"),
        lamp([0, 9], False, "short"),
    ]:
        live = detector.start("light it", model)
        steps = [live.step(image) for image in episode.main.all()]
        last = live.finish()
        found = detector.judge(*_reward_of(episode), "light it")
        assert (live.alarm_at, live.went_wrong_at, last.alarm) == (found.flagged_at, found.went_wrong_at, found.alarm)
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
    assert offline.judge(whole.score([dark])[0], 5, "").flagged_at == 4  # the one frame that it scores


def test_too_few_successes_say_how_many_are_needed_and_which_did_not_count() -> None:
    episodes = rises(15, 0)
    with pytest.raises(BadInput) as few:
        calibrate(episodes, 0.05)
    assert few.value.expected == "19 or more" and "--risk 0.07" in str(few.value.got)
    with pytest.raises(BadInput) as learned:
        calibrate_detector(score(episodes), CARD, "lamp", 0.07, learned_from=SeenEpisodes.of(episodes[:4]))
    assert str(learned.value.got).startswith("11") and "4 more" in str(learned.value.got)
    tested = [replace(one, origin=Origin("x", split="test")) for one in episodes]
    with pytest.raises(BadInput):
        calibrate(tested, 0.2)
    with pytest.raises(BadInput) as sure:
        calibrate(rises(30, 0), 0.05, 0.9)
    assert sure.value.expected == "45 or more"


def test_what_was_made_of_one_success_counts_once() -> None:
    episodes = rises(15, 0)
    made = [load_negative(name).make_with_seed(one, 0) for one in episodes for name in ("hold", "recolour")]
    with pytest.raises(BadInput) as few:
        calibrate([*made, *episodes], 0.05)
    assert str(few.value.got).startswith("15") and "30 more made of the same recordings" in str(few.value.got)
    assert calibrate([*made, *episodes]).schedules == calibrate(episodes).schedules


def test_two_successes_are_the_least_whatever_is_promised() -> None:
    with pytest.raises(BadInput):
        calibrate(rises(1, 0), 0.9)
    assert calibrate(rises(2, 0), 0.9).schedules[ALL].successes == 2


def test_models_whose_values_cannot_be_compared_are_refused() -> None:
    with pytest.raises(BadInput):
        calibrate_detector(score(rises(30, 0)), example_card(comparable=False), "x")


def test_a_column_of_ones_own_goes_through_the_same_bound() -> None:
    rng = np.random.default_rng(0)
    rule = Rule(RuleConfig("never(entropy > 0)"))

    def record(name: str, success: bool, stuck: float) -> tuple[Episode, Reward]:
        entropy = 40 + 5 * rng.random(12)
        entropy[6:] += stuck
        episode = replace(lamp([0] * 12, success, name), signals={"entropy": entropy})
        return episode, rule.score([episode])[0]

    known = [record(f"k{i}", True, 0) for i in range(30)]
    detector = calibrate_detector(known, rule.card, "rule:sure.yaml", 0.1)
    values = np.concatenate([reward.value for _, reward in known])
    assert (detector.low, detector.high) == pytest.approx((values.min(), values.max()))
    judged = [detector.judge_episode(*record(f"n{i}", stuck == 0, stuck)) for i in range(40) for stuck in (0.0, 20.0)]
    assert sum(one.alarm is True for one in judged[::2]) <= 8  # 10% of 40 are promised, on average
    assert sum(one.alarm is True for one in judged[1::2]) == 40
    still = [(one, replace(reward, value=np.full(12, -1.0))) for one, reward in known]
    assert calibrate_detector(still, rule.card, "x", 0.1).high == 0  # a signal that never moves has a range too


def test_a_model_that_was_taught_no_progress_is_judged_at_the_end() -> None:
    ends = calibrate_detector(score(rises(30, 0)), replace(CARD, quantity=SCORE), "lamp", 0.1)
    assert ends.at_end and not calibrate(rises(30, 0)).at_end
    level = min(LampModel().score([one])[0].value[-1] for one in rises(30, 0))
    assert ends.schedules[ALL].threshold <= 1 - level + 1e-6
    late = lamp([0] * 10 + [240], False, "late")
    undone = lamp([0, 60, 120, 240, 180, 90, 60, 30, 9, 9, 9], False, "undone")
    assert ends.judge(*_reward_of(late), "light it").alarm is False
    found = ends.judge(*_reward_of(undone), "light it")
    assert (found.flagged_at, found.went_wrong_at) == (10, 3)
    live = ends.start("light it", SimpleNamespace(card=replace(CARD, quantity=SCORE), score=LampModel().score))
    assert not any(live.step(image) for image in undone.main.all())
    assert live.finish().alarm and (live.alarm_at, live.went_wrong_at) == (10, 3)


def test_what_a_model_learned_from_counts_by_what_was_left_out() -> None:
    episodes = rises(20, 0)
    dim = {one.id: Reward("lamp", one.id, np.arange(12), np.full(12, 0.1)) for one in episodes[:15]}
    seen = SeenEpisodes.of(episodes)
    detector = calibrate_detector(
        score(episodes), CARD, "lamp", 0.07, learned_from=seen, left_out=lambda one: dim.get(one.id)
    )
    assert detector.schedules[ALL].successes == 15 and detector.schedules[ALL].end == pytest.approx(0.1)
    assert not detector.seen.has(episodes[15]) and detector.seen.has(episodes[14])
    assert detector.guarantee.left_out == 15 and "twice" in str(detector.guarantee)  # the promise is approximate
    assert calibrate(episodes).guarantee.left_out == 0 and "twice" not in str(calibrate(episodes).guarantee)


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
    assert found.alarm is None and found.flagged_at is None and found.why_missing == "no camera"


def test_with_probabilities_of_success_the_level_is_the_mean_of_both() -> None:
    reward = Reward("m", "e", np.array([0]), np.array([3.0]), np.array([0.9]))
    assert hold_levels(reward, 1, 1, 5) == pytest.approx([0.7])


def test_figures_count_unseen_labelled_episodes_only() -> None:
    successes, detector = rises(40, 0), calibrate(rises(20, 3))
    event = Event("dropped", 2, 8), Event("hesitation", 0, 1)
    failures = [lamp([0] * 12, False, f"f{i}", event) for i in range(4)]
    other = lamp([0] * 12, None, "unlabelled")
    judged = [(one, detector.judge_episode(one, reward)) for one, reward in score([*successes, *failures, other])]
    unnamed = lamp([0] * 12, False, "unnamed", (Event("unknown", 2, 8),))
    kinds = measure_detections([(unnamed, Detection("unnamed", 5, 1.0, 0.5, 4, kind="dropped"))]).kinds
    assert kinds.n == 0  # there is nothing to compare the kind with
    figures = measure_detections(judged, SeenEpisodes.of(successes[:10]))
    assert figures.not_counted == 10 and figures.false_alarms.n == 30
    assert (figures.found.hits, figures.found.n) == (4, 4)
    frame = judged[-2][1].flagged_at
    assert frame is not None and figures.delay == frame - 2 and figures.delay_share == (frame - 2) / 12
    assert judged[-2][1].flagged_second == pytest.approx(frame / 10)
    assert judged[-2][1].went_wrong_at == 0 and figures.moment_error == 2 / 12
    assert figures.f1 == 8 / (8 + figures.false_alarms.hits)
    assert figures.as_dict()["found"] == {"value": 1.0, "low": 0.510109, "high": 1.0, "hits": 4, "n": 4}


def test_labels_are_written_as_a_models_and_replaced_by_the_next_run(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "set", "set")
    with store.writer() as writer:
        for name in ("bad", "good"):
            put_video(tmp_path / f"{name}.mp4")
            episode = Episode.from_video(tmp_path / f"{name}.mp4", "lift the cup", id=name)
            writer.add(replace(episode, outcomes=(Outcome("human", success=name == "good"),)))
    for frame in (1, 2):
        bad, good = Store(store.root).episodes()
        judged = [(bad, Detection("bad", 3, 0.7, 0.5, went_wrong_at=frame)), (good, Detection("good", None, 0.1, 0.5))]
        label_detections(store.root, judged, "lamp")
    bad, good = Store(store.root).episodes()
    human, label = bad.outcomes
    assert human.source == "human" and (label.source, label.success, label.by) == ("model", None, "detect with lamp")
    assert [(event.first, event.last) for event in label.events] == [(2, len(bad) - 1)]
    assert [one.source for one in good.outcomes] == ["human"]
