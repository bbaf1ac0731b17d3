"""The Robometer model: both layouts, preferences, live steps, missing values, memory."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from demerit import load_model
from demerit.data.episode import Episode
from demerit.data.frames import Frames, Images
from demerit.errors import BadInput, OutOfMemory, WeightsMismatch
from demerit.models.check import check_model
from demerit.models.live import step_together
from demerit.models.protocol import LiveReward
from demerit.models.published.robometer import ZERO_AT, Robometer
from fakes.tiny_vlm import tiny_checkpoint

TASK = "pick up the cup and put it on the plate"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("vlm") / "meter", "robometer")


def noise(count: int, height: int, width: int, seed: int = 0) -> Images:
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def episode(name: str, count: int = 9, instruction: str = TASK, seed: int = 0) -> Episode:
    return Episode(id=name, instruction=instruction, views={"front": Frames.from_array(noise(count, 48, 64, seed))})


def test_both_layouts_agree(folder: Path, tmp_path: Path) -> None:
    model = load_model(f"robometer:path={folder}")
    other = Robometer(path=str(tiny_checkpoint(tmp_path / "copy", "robometer-lerobot")))
    plainly = tiny_checkpoint(tmp_path / "plainly", "robometer")
    with (plainly / "config.yaml").open("a") as file:
        file.write("training: {predict_pref_progress: false}\n")
    assert other.checkpoint.protocol.also_progress
    assert not Robometer(path=str(plainly)).checkpoint.protocol.also_progress
    ours, theirs = model.score([episode("a")])[0], other.score([episode("a")])[0]
    np.testing.assert_allclose(ours.value, theirs.value, atol=1e-6)
    assert ours.success is not None
    assert ours.given["window"] == 8


def test_bfloat16_keeps_the_contract_within_its_rounding(folder: Path) -> None:
    half = Robometer(path=str(folder), dtype="bfloat16", device="cpu")
    assert half.card.rounding == 0.02
    assert Robometer(path=str(folder), device="cpu").card.rounding == 0.0
    causal = next(clause for clause in check_model(half).clauses if "causal" in clause.name)
    assert causal.status == "kept"
    assert "rounding" in causal.facts


def test_preferences_do_not_depend_on_the_order(folder: Path) -> None:
    model = Robometer(path=str(folder))
    a, b = episode("a"), episode("b", 14, seed=1)
    there, back = model.prefer([(a, b), (b, a)])
    assert there == pytest.approx(1 - back, abs=1e-6)
    assert model.prefer([(a, a)])[0] == pytest.approx(0.5, abs=1e-6)
    assert np.isnan(model.prefer([(a, episode("c", instruction="another task"))])[0])


def test_after_running_out_of_memory_it_continues_with_less(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Robometer(path=str(folder), at_once=64_000)
    calm = model.score([episode("a")])[0].value
    inner, tried = model.engine.states, []

    def small_machine(prompt: Any, images: Any, some: Any) -> Any:
        tried.append(len(some))
        if len(some) > fits:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return inner(prompt, images, some)

    monkeypatch.setattr(model.engine, "states", small_machine)
    fits, count = 3, len(calm)
    np.testing.assert_allclose(model.score([episode("a")])[0].value, calm, atol=1e-6)
    assert tried[:3] == [count, count // 2, count // 4]
    assert sum(size for size in tried if size <= fits) == count, "nothing is computed twice"
    fits = 0
    hopeless = model.score([episode("a")])[0]
    assert "memory" in hopeless.why_missing
    assert tried[-1] == 1
    assert model.engine.budget.tokens == 4096, "the remembered budget has a floor"


def test_live_steps_equal_scores(folder: Path) -> None:
    model = Robometer(path=str(folder))
    shown, other = episode("a", 12), noise(12, 32, 48)
    run, beside = model.start(TASK), model.start("another task")
    live = [(beside.step(image), run.step(frame))[1] for image, frame in zip(other, shown.main.all(), strict=True)]
    (offline,) = model.score([shown])
    np.testing.assert_allclose([one.value for one in live], offline.value, atol=1e-5)
    assert offline.success is not None and np.ptp(offline.success) > 1e-3
    np.testing.assert_allclose([one.success for one in live], offline.success, atol=1e-5)
    assert float(live[3]) == live[3].value
    for odd, word in ((noise(1, 48, 64)[0].astype(np.float32), "uint8"), (noise(1, 64, 64)[0], "before")):
        with pytest.raises(BadInput, match=word):
            run.step(odd)


@pytest.mark.parametrize("what", ["no image", "a line", "too large", "no memory for its keys"])
def test_a_live_episode_that_fails_does_not_fail_the_others(
    folder: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Robometer(path=str(folder), device="cpu")
    frames = noise(3, 48, 64)
    alone = [reward.value for reward in map(model.start(TASK).step, frames)]
    odd: Images = {"no image": frames[0, 0], "a line": noise(1, 1, 300)[0]}.get(what, noise(1, 320, 320)[0])
    states, take = model.engine.network.language.states, model.engine.slots.take

    def little_memory(needed: int, least: int) -> None:
        if needed > least and what in ("too large", "no memory for its keys"):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    def states_of_few(packed: Any, *rest: Any) -> Any:
        little_memory(packed.tokens, 800)
        return states(packed, *rest)

    def take_few(count: int) -> Any:
        little_memory(count, 800 if "keys" in what else 10_000)
        return take(count)

    monkeypatch.setattr(model.engine.network.language, "states", states_of_few)
    monkeypatch.setattr(model.engine.slots, "take", take_few)
    runs = [model.start(TASK) for _ in range(3)]
    for at in range(3):
        answers = step_together(runs, [frames[at], odd, frames[at]])
        assert isinstance(answers[1], OutOfMemory if "mem" in what or "large" in what else BadInput)
        for answer in (answers[0], answers[2]):
            assert isinstance(answer, LiveReward) and answer.value == pytest.approx(alone[at], abs=1e-5)
    monkeypatch.undo()
    if isinstance(answers[1], OutOfMemory):  # the episode has not taken its frame
        assert runs[1].step(odd).value == pytest.approx(model.start(TASK).step(odd).value, abs=1e-5)


def test_a_trained_model_says_where_its_progress_is_zero(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "mine", "robometer")
    cards = {"": Robometer(path=str(folder)).card}
    for zero_at in ("clip", "episode"):
        (folder / "training.json").write_text(json.dumps({"recipe": {"zero_at": zero_at}}))
        cards[zero_at] = Robometer(path=str(folder)).card
    (folder / "training.json").write_text(json.dumps({"recipe": {"frames": 8}}))  # of an earlier version
    assert Robometer(path=str(folder)).card == cards[""]
    assert len({card.hash() for card in cards.values()}) == 3
    assert {zero_at for zero_at, text in ZERO_AT.items() if text in cards[zero_at].about} == {"clip", "episode"}


def test_wrong_checkpoints_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="Robometer"):
        Robometer(path=str(tiny_checkpoint(tmp_path / "plain", "qwen")))
    holed = tiny_checkpoint(tmp_path / "holed", "robometer", drop=("success_head.4.bias",))
    with pytest.raises(WeightsMismatch) as caught:
        Robometer(path=str(holed))
    assert caught.value.missing == ["success_head.4.bias"]
