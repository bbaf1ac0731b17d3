"""Robometer's engine against transformers' own forward pass of every window, and live against dense scoring."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from demerit.data.frames import Images
from demerit.errors import BadInput
from demerit.models.vlm.config import VLMShape
from demerit.models.vlm.network import VLMNetwork, transformers_network
from demerit.models.vlm.prompt import PromptTokenizer
from demerit.models.vlm.robometer import RobometerEngine, RobometerProtocol
from demerit.models.vlm.robometer_live import LiveRobometer, step_together
from fakes.tiny_vlm import ROBOMETER_TOKENS, ROWS, head_shapes, tiny_config, tiny_weights, write_tokenizer
from fakes.vlm_reference import RobometerReference

TASK = "pick up the cup and put it on the plate"
CONFIG = tiny_config(ROWS["robometer"])


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> PromptTokenizer:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return PromptTokenizer.read(folder / "tokenizer.json", ROBOMETER_TOKENS)


def parts(dtype: torch.dtype = torch.float32) -> tuple[dict[str, Any], dict[str, Any]]:
    weights = {name: weight.to(dtype) for name, weight in tiny_weights("robometer").items()}
    heads = {name: weights[name] for name in head_shapes()}
    return {name: w for name, w in weights.items() if name not in heads and name != "lm_head.weight"}, heads


def both(
    tokens: PromptTokenizer, protocol: RobometerProtocol, at_once: int, dtype: torch.dtype = torch.float32
) -> tuple[RobometerEngine, RobometerReference]:
    shape = VLMShape.from_config(CONFIG)
    backbone, heads = parts(dtype)
    fast = RobometerEngine(VLMNetwork(shape, backbone), heads, tokens, protocol, at_once)
    return fast, RobometerReference(shape, transformers_network(CONFIG, backbone), heads, tokens, protocol, at_once=4)


def noise(count: int, height: int, width: int, seed: int = 0) -> Images:
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("count", "size", "shown", "at_once", "dtype"),
    [
        (1, (64, 96), 8, 4096, torch.float32),
        (20, (70, 90), 8, 5000, torch.float32),
        (19, (48, 100), 4, 900, torch.float32),
        (5, (64, 64), 12, 4096, torch.float32),
        (12, (64, 64), 8, 4096, torch.bfloat16),
    ],
)
def test_dense_scores_equal_the_reference(
    tokens: PromptTokenizer, count: int, size: tuple[int, int], shown: int, at_once: int, dtype: torch.dtype
) -> None:
    fast, slow = both(tokens, RobometerProtocol(shown), at_once, dtype)
    atol = 1e-5 if dtype == torch.float32 else 2e-2
    frames = noise(count, *size)
    ours, theirs = fast.dense(frames, TASK), slow.dense(frames, TASK)
    np.testing.assert_allclose(ours.progress, theirs.progress, atol=atol)
    np.testing.assert_allclose(ours.success, theirs.success, atol=atol)
    if count > 1:
        assert ours.progress.std() > 1e-3  # negative control: the frames matter


def test_preferences_equal_the_reference_and_depend_on_the_order(tokens: PromptTokenizer) -> None:
    fast, slow = both(tokens, RobometerProtocol(), 4096)
    first, second = noise(11, 64, 96), noise(6, 64, 96, 1)
    there, back = fast.compare(first, second, TASK), fast.compare(second, first, TASK)
    assert there == pytest.approx(slow.compare(first, second, TASK), abs=1e-5)
    assert abs(there - back) > 1e-3
    plain = RobometerEngine(fast.network, parts()[1], tokens, RobometerProtocol(also_progress=False))
    assert plain.compare(first, second, TASK) != pytest.approx(there, abs=1e-6)


def test_scores_depend_on_the_instruction_and_not_on_later_frames(tokens: PromptTokenizer) -> None:
    fast, _ = both(tokens, RobometerProtocol(), 4096)
    frames = noise(20, 64, 64)
    whole = fast.dense(frames, TASK)
    np.testing.assert_allclose(fast.dense(frames[:9], TASK).progress, whole.progress[:9], atol=1e-6)
    assert np.abs(fast.dense(frames, "push the box").progress - whole.progress).max() > 1e-4
    some = fast.dense(frames, TASK, stride=6)
    assert some.at.tolist() == [0, 6, 12, 18, 19]
    np.testing.assert_allclose(some.progress, whole.progress[some.at], atol=1e-6)


def test_live_steps_equal_dense_scores(tokens: PromptTokenizer) -> None:
    fast, _ = both(tokens, RobometerProtocol(), 4096)
    frames = noise(20, 64, 64)
    dense = fast.dense(frames, TASK)
    for limit in (1 << 20, 0):  # also with all past frames in main memory
        live = LiveRobometer(fast, TASK, limit)
        stepped = np.array([live.step(frame) for frame in frames])
        np.testing.assert_allclose(stepped[:, 0], dense.progress, atol=1e-5)
        np.testing.assert_allclose(stepped[:, 1], dense.success, atol=1e-5)


def test_live_episodes_that_step_together_are_independent(tokens: PromptTokenizer) -> None:
    fast, _ = both(tokens, RobometerProtocol(), 4096)
    clips = [noise(14, 64, 64, 1), noise(14, 32, 96, 2), noise(14, 64, 64, 3)]
    tasks = [TASK, "push the box", TASK]
    alone = [fast.dense(clip, task) for clip, task in zip(clips, tasks, strict=True)]
    lives = [LiveRobometer(fast, task) for task in tasks]
    stepped: list[list[float]] = [[], [], []]
    for at in range(17):  # the second begins three frames later, the third misses every other turn
        present = [which for which, here in enumerate((at < 14, 3 <= at < 17, at % 2 == 1)) if here]
        frames = [clips[which][lives[which].frames] for which in present]
        for which, (progress, _) in zip(present, step_together([lives[n] for n in present], frames), strict=True):
            stepped[which].append(progress)
    for values, dense in zip(stepped, alone, strict=True):
        np.testing.assert_allclose(values, dense.progress[: len(values)], atol=1e-5)
    assert [len(values) for values in stepped] == [14, 14, 8]


def test_live_episodes_together_keep_the_token_budget(tokens: PromptTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    fast, _ = both(tokens, RobometerProtocol(), 1000)
    ran: list[int] = []
    inner = fast.network.language.states

    def counted(packed: Any, *rest: Any) -> Any:
        ran.append(packed.tokens)
        return inner(packed, *rest)

    clips = [noise(3, 32, 64, seed) for seed in range(7)]
    alone = [fast.dense(clip, TASK).progress for clip in clips]
    monkeypatch.setattr(fast.network.language, "states", counted)
    lives = [LiveRobometer(fast, TASK) for _ in clips]
    for at in range(3):
        stepped = step_together(lives, [clip[at] for clip in clips])
        np.testing.assert_allclose([value for value, _ in stepped], [values[at] for values in alone], atol=1e-5)
    assert max(ran) <= 1000 and len(ran) < 3 * len(clips)


def test_slots_of_episodes_that_end_are_used_again(tokens: PromptTokenizer) -> None:
    fast, _ = both(tokens, RobometerProtocol(), 4096)
    frames = noise(3, 32, 32)
    dense = fast.dense(frames, TASK).progress
    first = LiveRobometer(fast, TASK)
    values = [first.step(frames[0])[0]]
    for _ in range(5):  # others come and go while the first one goes on
        other = LiveRobometer(fast, "push the box")
        other.step(frames[1])
        del other
    values += [first.step(frame)[0] for frame in frames[1:]]
    np.testing.assert_allclose(values, dense, atol=1e-5)
    window = len(first._slots)
    assert len(fast.slots) <= 4 * window
    del first
    assert len(fast.slots._free) == len(fast.slots) > window
    last = LiveRobometer(fast, TASK)
    np.testing.assert_allclose([last.step(frame)[0] for frame in frames], dense, atol=1e-5)
    assert len(fast.slots) == window, "memory of many episodes is freed when all have ended"


def test_a_frame_of_another_size_changes_nothing(tokens: PromptTokenizer) -> None:
    fast, _ = both(tokens, RobometerProtocol(), 4096)
    frames = noise(3, 32, 64)
    dense = fast.dense(frames, TASK).progress
    lives = [LiveRobometer(fast, TASK), LiveRobometer(fast, TASK)]
    step_together(lives, [frames[0], frames[0]])
    with pytest.raises(BadInput):
        step_together(lives, [frames[1], noise(1, 64, 64)[0]])
    for live in lives:
        np.testing.assert_allclose([live.step(frame)[0] for frame in frames[1:]], dense[1:], atol=1e-5)


def test_a_live_step_computes_at_most_one_window(tokens: PromptTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    fast, _ = both(tokens, RobometerProtocol(), 4096)
    ran: list[int] = []
    inner = fast.network.language.states

    def counted(packed: Any, *rest: Any) -> Any:
        ran.append(packed.tokens)
        return inner(packed, *rest)

    monkeypatch.setattr(fast.network.language, "states", counted)
    live = LiveRobometer(fast, TASK)
    frames = noise(3, 32, 32)
    for at in range(60):
        live.step(frames[at % 3])
    early, late = np.mean(ran[20:40]), np.mean(ran[40:])
    assert late == pytest.approx(early, rel=0.05)  # the cost does not grow with the episode
    assert max(ran[1:]) < ran[0]
    assert len(live._features) <= 60 * 6 / 7 + 2  # frames that no window shows again are dropped
