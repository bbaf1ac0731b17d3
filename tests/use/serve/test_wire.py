"""What client and server send each other survives the way, and anything else is refused with a sentence."""

import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from demerit.data.episode import Episode
from demerit.data.frames import Frames
from demerit.data.reward import Reward
from demerit.errors import BadInput, DemeritError, UnreadableVideo
from demerit.models.protocol import LiveReward, example_card
from demerit.use.serve import wire
from demerit.use.serve.requests import read_episodes, read_frame
from demerit.use.serve.wire import encode_frame, join_message
from demerit.web.uploads import SentFrames, ServeLimits

LIMITS = ServeLimits(frames=50, pixels=10_000)
IMAGES = np.random.default_rng(0).integers(0, 255, (6, 5, 7, 3), dtype=np.uint8)


def send(episode: Episode, **card: object) -> Episode:
    facts, parts = wire.encode_episode(episode, example_card(**card), 1000)
    (sent,), _ = read_episodes(join_message({"episodes": [facts]}, parts), LIMITS)
    return sent.as_episode()


def test_an_episode_arrives_as_it_was() -> None:
    views = {"front": Frames.from_array(IMAGES, fps=4), "wrist": Frames.from_array(IMAGES[::-1, :4])}
    signals = {"force": np.linspace(0, 1, 18, dtype=np.float32).reshape(6, 3), "done": np.array([False] * 5 + [True])}
    came = send(Episode("ü 1", "push\nit", views, signals=signals))
    assert (came.id, came.instruction, list(came.views)) == ("ü 1", "push\nit", ["front", "wrist"])
    for name, view in views.items():
        assert np.array_equal(came.views[name].all(), view.all())
        assert np.array_equal(came.views[name].times(), view.times())
    assert {name: (found.dtype, found.tolist()) for name, found in came.signals.items()} == {
        name: (sent.dtype, sent.tolist()) for name, sent in signals.items()
    }


def test_only_the_frames_that_a_model_wants_are_sent() -> None:
    came = send(Episode.from_array(IMAGES), frame_budget=3)
    assert len(came) == 6 and isinstance(came.main.source, SentFrames) and len(came.main.source.images) == 3
    assert np.array_equal(came.main.take([0, 5]), IMAGES[[0, 5]])
    with pytest.raises(UnreadableVideo):
        came.main.take([1])
    blind = send(Episode.from_array(IMAGES), sees_pixels=False)
    assert len(blind) == 6 and len(blind.main.times()) == 6


@given(
    st.lists(st.floats(0, 1, width=32) | st.none(), min_size=1, max_size=5),
    st.none() | st.floats(0, 1, width=32),
)
@example([0.1, None], 0.5)
def test_rewards_arrive_as_they_were(values: list[float | None], familiarity: float | None) -> None:
    value = np.array([np.nan if one is None else one for one in values], np.float32)
    why = "it blinked" if np.isnan(value).any() else ""
    reward = Reward("m", "e", np.arange(len(value)) * 2, value, value, why, {"familiarity": familiarity})
    came = wire.read_reward(json.loads(json.dumps(wire.encode_reward(reward), allow_nan=False)))
    for name in ("at", "value", "success"):
        assert np.array_equal(getattr(came, name), getattr(reward, name), equal_nan=name != "at")
    assert (came.model, came.episode, came.why_missing, came.given) == ("m", "e", why, reward.given)
    for live in (LiveReward(0.1, 0.2, familiarity), LiveReward(float("nan"))):
        assert repr(wire.read_live(json.loads(json.dumps(wire.encode_live(live), allow_nan=False)))) == repr(live)


def test_live_frames_arrive_as_they_were() -> None:
    alone = read_frame(wire.encode_frame(IMAGES[0]), LIMITS)
    assert isinstance(alone, np.ndarray) and np.array_equal(alone, IMAGES[0])
    both = read_frame(wire.encode_frame({"b": IMAGES[1, :3], "a": IMAGES[0, :, ::-1]}), LIMITS)
    assert isinstance(both, dict) and list(both) == ["b", "a"] and np.array_equal(both["a"], IMAGES[0, :, ::-1])
    for wrong in (IMAGES, IMAGES[0].astype(float), {"a": None}):
        with pytest.raises(BadInput):
            wire.encode_frame(wrong)  # type: ignore[arg-type]


HUGE = [2**31 - 1] * 3
GOOD_VIEW = {"camera": "a", "shape": [2, 5, 7, 3], "length": 4, "at": [0, 3], "times": [0, 0.1, 0.2, 0.3]}
WRONG_VIEWS = [
    {"shape": [2, 5, 7, 4]},
    {"shape": [2, 0, 7, 3]},
    {"shape": [3, 5, 7, 3]},
    {"shape": [1, 5, 7, 3]},
    {"shape": [2, 200, 200, 3]},
    {"shape": [2, 5, 7.0, 3]},
    {"shape": [2**62, 2**62, 1, 3]},
    {"shape": "all"},
    {"length": 1},
    {"length": 51, "times": [0] * 51},
    {"length": True},
    {"at": [3, 0]},
    {"at": [0, 4]},
    {"at": [0]},
    {"at": [0, [1]]},
    {"at": [0, 1.5]},
    {"at": "01"},
    {"at": [0, 2**70]},
    {"length": 2**70},
    {"times": [0, 1]},
    {"times": [3, 2, 1, 0]},
    {"times": [0, 0, 0, "1"]},
    {"camera": ""},
    {"camera": 1},
    {"video": 0},
    {"video": 2**40},
    {"video": -1},
    {"video": "../../etc/passwd"},
]


@pytest.mark.parametrize("wrong", WRONG_VIEWS, ids=str)
def test_a_wrong_view_is_refused(wrong: dict[str, object]) -> None:
    read = {"episodes": [{"views": [GOOD_VIEW]}]}
    assert len(read_episodes(join_message(read, [IMAGES[:2]]), LIMITS)[0][0].as_episode()) == 4
    with pytest.raises(BadInput):
        read_episodes(join_message({"episodes": [{"views": [{**GOOD_VIEW, **wrong}]}]}, [IMAGES[:2]]), LIMITS)


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"episodes": []},
        {"episodes": [1]},
        {"episodes": [{}]},
        {"episodes": [{"views": [GOOD_VIEW, GOOD_VIEW]}]},
        {"episodes": [{"views": [GOOD_VIEW], "id": ""}]},
        {"episodes": [{"views": [GOOD_VIEW], "instruction": 1}]},
        {"episodes": [{"views": [GOOD_VIEW], "signals": {"a": 1}}]},
        {"episodes": [{"views": [GOOD_VIEW], "signals": [{"name": "a", "dtype": "|O", "shape": [1]}]}]},
        {"episodes": [{"views": [GOOD_VIEW], "signals": [{"name": "a", "dtype": "<f8", "shape": [1]}]}]},
        {"episodes": [{"views": [GOOD_VIEW], "signals": [{"name": "a", "dtype": "<f8", "shape": [0, *HUGE]}]}]},
        {"episodes": [{"views": [GOOD_VIEW]}], "pairs": [[0, 2**70]]},
    ],
    ids=str,
)
def test_a_wrong_header_is_refused(header: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        read_episodes(join_message(header, [IMAGES[:2]]), LIMITS)


GOOD_MESSAGE = join_message(
    {
        "episodes": [{"views": [GOOD_VIEW], "signals": [{"name": "a", "dtype": "<f4", "shape": [2, 2]}]}],
        "pairs": [[0, 0]],
    },
    [IMAGES[:2], np.zeros((2, 2), np.float32)],
)
GOOD_FRAME = encode_frame(IMAGES[0])


@given(
    st.sampled_from([GOOD_MESSAGE, GOOD_FRAME]),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4),
    st.integers(0, 3),
)
@example(GOOD_MESSAGE, [], 0)
def test_changed_bytes_are_read_or_refused_with_a_sentence(
    message: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    noisy = bytearray(message)
    for place, byte in changes:
        noisy[place % len(noisy)] = byte
    for read in (read_episodes, read_frame):
        try:
            read(noisy[: len(noisy) - cut], LIMITS)
        except DemeritError as refused:
            assert str(refused).endswith(".")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
VIEW = st.dictionaries(st.sampled_from(["camera", "shape", "length", "at", "times", "video"]), JSON)


@given(st.binary(max_size=60), st.dictionaries(st.text(max_size=5), JSON, max_size=3), st.lists(VIEW, max_size=2))
@example(b"", {}, [])
@example(b"\x00\x00\x00\x02{}", {}, [])
@example(b"\xff\xff\xff\xff{}", {}, [])
def test_anything_else_is_refused_with_a_sentence(noise: bytes, header: dict[str, object], views: list[object]) -> None:
    for message in (noise, join_message(header, [noise]), join_message({"episodes": [{"views": views}]}, [noise])):
        for read in (read_episodes, read_frame):
            with pytest.raises(DemeritError) as refused:
                read(message, LIMITS)
            assert str(refused.value).endswith(".")


def test_limits_are_positive() -> None:
    with pytest.raises(BadInput, match="frames"):
        ServeLimits(frames=0)
