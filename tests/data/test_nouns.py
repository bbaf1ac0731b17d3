"""The nouns refuse impossible values and keep what they are given."""

import math
import pickle
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demerit.data.episode import Edit, Episode, Event, Origin, Outcome, Preference, safe_name
from demerit.data.frames import Frames, spread
from demerit.data.reward import Reward
from demerit.errors import BadEpisode, BadInput, BadReward, UnknownName
from demerit.models.protocol import example_card

IMAGES = np.arange(7 * 4 * 5 * 3, dtype=np.uint8).reshape(7, 4, 5, 3)


@given(st.lists(st.integers(0, 6), max_size=12), st.data())
def test_a_view_of_a_view_is_a_flat_view(first: list[int], data: st.DataObject) -> None:
    frames = Frames.from_array(IMAGES)
    view = frames.select(first)
    np.testing.assert_array_equal(view.all(), IMAGES[first])
    if first:
        second = data.draw(st.lists(st.integers(0, len(first) - 1), max_size=12))
        again = view.select(second)
        np.testing.assert_array_equal(again.all(), IMAGES[first][second])
        assert again.source is frames.source


def test_times_and_limits_of_frames() -> None:
    frames = Frames.from_array(IMAGES, fps=2)
    np.testing.assert_allclose(frames.times(), np.arange(7) / 2)
    np.testing.assert_allclose(frames.select([2, 4, 5]).times(), [0, 1, 1.5])
    np.testing.assert_allclose(frames.select([2, 3, 2, 1]).times(), [0, 0.5, 1, 1.5])
    for wrong in ([7], [-1], [0, 99]):
        with pytest.raises(BadInput, match="0 to 6"):
            frames.take(wrong)
    for images in (np.zeros((3, 4, 5), np.uint8), np.zeros((3, 4, 5, 3)), np.zeros((4, 5, 3), np.uint8)):
        with pytest.raises(BadInput, match="uint8"):
            Frames.from_array(images)


@given(st.integers(1, 500), st.integers(1, 64))
def test_spread_has_both_ends_and_no_repeats(length: int, count: int) -> None:
    chosen = spread(length, count)
    assert len(chosen) == min(length, count)
    assert chosen[-1] == length - 1
    assert bool(np.all(np.diff(chosen) > 0))
    if len(chosen) > 1:
        assert chosen[0] == 0
        steps = np.diff(chosen)
        assert steps.max() - steps.min() <= 1


def test_identity_follows_the_pixels_not_the_path(make_video: Callable[..., object]) -> None:
    first = Frames.from_video(make_video("a.mp4", seed=1))
    same = Frames.from_video(make_video("b/c.mp4", seed=1))
    other = Frames.from_video(make_video("d.mp4", seed=2))
    assert first.identity() == same.identity() != other.identity()
    assert first.select([0, 1]).identity() != first.select([1, 0]).identity() != first.identity()


def test_fingerprint_covers_what_a_model_sees(make_episode: Callable[..., Episode]) -> None:
    one = make_episode("one")
    labelled = Episode(one.id, one.instruction, one.views, outcomes=(Outcome("human", success=True),))
    reworded = Episode(one.id, "something else", one.views)
    assert labelled.fingerprint() == one.fingerprint() != reworded.fingerprint()
    assert Episode("x", "half a \ud800 pair", one.views).fingerprint()


def test_cameras_of_an_episode(make_episode: Callable[..., Episode]) -> None:
    frames = make_episode().main
    for id, views in (("", {"main": frames}), ("a", {})):
        with pytest.raises(BadEpisode):
            Episode(id, "x", views)
    episode = Episode("a", "x", {"top": frames, "wrist": frames.select([0, 1])})
    assert episode.with_camera("wrist").main_camera == "wrist"
    assert list(episode.with_camera("wrist").views) == ["wrist", "top"]
    with pytest.raises(UnknownName, match="wrist"):
        episode.with_camera("wrst")
    with pytest.raises(BadEpisode, match="one length"):
        episode.select([0])


def test_selecting_frames_keeps_signals_and_drops_frame_labels() -> None:
    outcome = Outcome("human", success=True, curve=np.linspace(0, 1, 7), events=(Event("dropped", 1, 2),))
    episode = Episode("a", "x", {"main": Frames.from_array(IMAGES)}, (outcome,), signals={"s": np.arange(7)})
    part = episode.select([6, 0])
    assert part.signals["s"].tolist() == [6, 0]
    assert part.outcome == Outcome("human", success=True)


def test_bad_labels() -> None:
    for label, facts, word in [
        (Outcome, {"source": "me"}, "human"),
        (Outcome, {"progress": 1.2}, "0 to 1"),
        (Outcome, {"progress": math.nan}, "0 to 1"),
        (Outcome, {"grade": 0}, "1 to 5"),
        (Outcome, {"curve": [0.0, 2.0]}, "NaN"),
        (Outcome, {"curve": [[0.1]]}, "per frame"),
        (Event, {"kind": "dropped", "first": 5, "last": 4}, "first"),
        (Preference, {"a": "a", "b": "a", "verdict": "tie"}, "different"),
        (Preference, {"a": "a", "b": "b", "verdict": "A"}, "tie"),
    ]:
        with pytest.raises(BadInput, match=word):
            label(**({} if label is Event else {"source": "human"}) | facts)  # type: ignore[operator]
    assert Preference("x", "y", "b", "human").better == "y"
    assert Preference("x", "y", "tie", "human").better is None


def test_rewards_are_never_invented() -> None:
    def reward(at: object, value: object, **more: object) -> Reward:
        return Reward("m", "e", at, value, **more)  # type: ignore[arg-type]

    assert reward([0, 3], [0.1, 0.2]).final == pytest.approx(0.2)
    for at, value, more, message in [
        ([0, 1], [0.1], {}, "2 frame indices but 1 values"),
        ([1, 1], [0.1, 0.2], {}, "not increasing"),
        ([0], [math.inf], {}, "infinite"),
        ([0], [math.nan], {}, "no reason is given"),
        ([], [], {}, "no reason is given"),
        ([0], [0.5], {"why_missing": "?"}, "none is missing"),
        ([0.5], [0.5], {}, "not frame indices"),
        ([0], [[0.5]], {}, "shape"),
        ([0], ["high"], {}, "instead of numbers"),
        ([0], [0.5], {"success": [0.1, 0.2]}, "success probabilities"),
    ]:
        with pytest.raises(BadReward, match=message):
            reward(at, value, **more)
    nothing = Reward.unscored("m", "e", "too dark")
    assert not nothing.scored
    assert math.isnan(nothing.final)
    assert "too dark" in repr(nothing)


def test_cards_check_rewards(make_episode: Callable[..., Episode]) -> None:
    card, episode = example_card(), make_episode("e", frames=3)
    card.check(Reward("example", "e", [0, 2], [0.0, 1.0]), episode)  # type: ignore[arg-type]
    for wrong, message in [
        (Reward("example", "e", [0], [1.1]), "outside"),  # type: ignore[arg-type]
        (Reward("example", "e", [0], [-0.1]), "outside"),  # type: ignore[arg-type]
        (Reward("example", "e", [3], [0.5]), "of 3 frames"),  # type: ignore[arg-type]
        (Reward("example", "x", [0], [0.5]), "episode .x."),  # type: ignore[arg-type]
    ]:
        with pytest.raises(BadReward, match=message):
            card.check(wrong, episode)
    with pytest.raises(BadInput, match="low < high"):
        example_card(low=1.0, high=0.0)
    assert example_card().hash() != example_card(revision="2").hash()
    assert example_card(frame_budget=4).wanted(100).tolist() == [0, 33, 66, 99]
    assert example_card(sees_pixels=False).wanted(100).tolist() == []


def test_nouns_can_be_pickled(make_episode: Callable[..., Episode]) -> None:
    origin, edit = Origin(dataset="d", tags={"a": "b"}), Edit("clip", {"to": 3}, 1)
    whole = Episode("one", "x", make_episode().views, (Outcome("human", grade=3),), origin, edits=(edit,))
    copy = pickle.loads(pickle.dumps(whole))
    assert (copy.id, copy.outcomes, copy.origin, copy.edits) == (whole.id, whole.outcomes, whole.origin, whole.edits)
    assert copy.fingerprint() == whole.fingerprint()


def test_safe_names() -> None:
    assert safe_name("a/b c:d") == "a-b-c-d"
    assert safe_name("../../etc") == "etc"
    with pytest.raises(BadInput):
        safe_name("///")
