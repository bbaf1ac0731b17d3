"""Critics that compare moments: what they are shown, how answers are read, how hops add up, what was really there."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from demerit.data.episode import Episode
from demerit.data.frames import Frames
from demerit.errors import BadInput
from demerit.models import load_model
from demerit.models.check import check_model, make_episodes
from demerit.models.published.dopamine import Dopamine
from demerit.models.published.hop_values import added_up, of_the_rest, of_what_remains
from demerit.models.published.vlac import VLAC
from demerit.models.vlm.backbone import Backbone
from demerit.models.vlm.decode import greedy
from demerit.models.vlm.hops import LONGEST, Critic, percent_in
from demerit.models.vlm.network import Network
from demerit.models.vlm.tree import separate
from demerit.models.vlm.words import words
from fakes.talking_vlm import talking_checkpoint
from fakes.tiny_vlm import tiny_checkpoint

TASK = "put the cup on the plate"
Share = st.floats(-1, 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("hops") / "tiny", seed=5, tied=False)


@pytest.fixture(scope="module")
def sure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Says +25% of everything."""
    return talking_checkpoint(tmp_path_factory.mktemp("hops") / "sure", "+25%")


@pytest.fixture(scope="module")
def goal(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("goal") / "goal.png"
    Image.fromarray(np.full((50, 70, 3), 200, np.uint8)).save(path)
    return str(path)


def images(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 130, 150, 3), dtype=np.uint8)


def three_views(count: int) -> Episode:
    views = {name: Frames.from_array(images(count, seed)) for seed, name in enumerate(("high", "left", "right"))}
    return Episode("three", TASK, views)


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("<score>+12%</score>", 0.12),
        ("<score>-7%</score>", -0.07),
        ("sure: <score>0%</score>", 0.0),
        ("<score>+250%</score>", 1.0),
        ("<score> -3.5 </score>", -0.035),
        ("+9%", 0.09),
        (" -41\n", -0.41),
        ("15</score>", 0.15),
        ("about 12%", None),
        ("<score>more</score>", None),
        ("<score>+12% or so</score>", None),
        ("", None),
    ],
)
def test_reading_a_signed_percentage(text: str, share: float | None) -> None:
    assert percent_in(text) == (None if share is None else pytest.approx(share))


@given(st.lists(Share, max_size=12))
def test_hops_add_up(hops: list[float]) -> None:
    """In other words: what remains shrinks by every gain, and what there is shrinks by every loss."""
    values = added_up(hops, of_what_remains)
    done = 0.0
    for value, hop in zip(values[1:], hops, strict=True):
        done = 1 - (1 - done) * (1 - hop) if hop >= 0 else done * (1 + hop)
        assert value == pytest.approx(done, abs=1e-9)
        assert -1e-9 <= value <= 1 + 1e-9
    rest = np.cumprod([1.0, *(1 - hop for hop in hops)])
    assert added_up(hops, of_the_rest) == pytest.approx(1 - rest, abs=1e-6)


def test_nobody_knows_what_comes_after_an_unreadable_hop() -> None:
    values = added_up([0.5, None, 0.5], of_what_remains)
    assert values[:2].tolist() == [0.0, 0.5]
    assert np.isnan(values[2:]).all()


def test_questions_are_the_published_words(folder: Path) -> None:
    """Tokens of the whole text, as one string, with eight pictures where the words have them."""
    backbone = Backbone.open(str(folder), device="cpu")
    prompt = words("dopamine")["prompt"]
    assert prompt.count("<image>") == 8
    assert prompt.startswith("\nYou are a rigorous")
    assert prompt.endswith("<score>0%</score>\n")
    keys = list(range(8))
    blocks = Critic(backbone, prompt).blocks(keys, TASK, dict.fromkeys(keys, (2, 3)))
    pad = f"<|vision_start|>{'<|image_pad|>' * 6}<|vision_end|>"
    text = f"<|im_start|>user\n{prompt.replace('<image>', pad).format(task=TASK)}<|im_end|>\n<|im_start|>assistant\n"
    assert [id for block in blocks for id in block.ids] == backbone.tokens.ids(text)
    assert [block.picture.key for block in blocks if block.picture] == keys

    pair = words("vlac")
    blocks = Critic(backbone, pair["prompt"], pair["system"]).blocks([0, 1], TASK, dict.fromkeys(keys, (2, 3)))
    text = pair["prompt"].replace("<image>", pad).format(task=TASK)
    whole = (
        f"<|im_start|>system\n{pair['system']}<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    )
    assert [id for block in blocks for id in block.ids] == backbone.tokens.ids(whole)


def test_together_is_alone(folder: Path) -> None:
    """Questions decoded over their shared beginning say what each says by itself, pictures of two sizes among them."""
    critic = Critic(Backbone.open(str(folder), device="cpu"), "a <image> b <image> then {task}")
    small = np.random.default_rng(1).integers(0, 256, (4, 64, 64, 3), dtype=np.uint8)
    shown = {0: small[0], 1: small[1], 2: small[2], 3: small[3][:, :32].repeat(1, 0)}
    asked = [(0, 1), (0, 2), (0, 3), (1, 0)]
    together = critic.answers(asked, TASK, shown)
    seen, grids = critic.look(shown), critic.grids(shown)
    for keys, text in zip(asked, together, strict=True):
        blocks = critic.blocks(keys, TASK, grids)
        backbone = critic.backbone
        alone = greedy(backbone.network, separate([blocks]), seen, stops=backbone.stops, most=LONGEST)
        assert backbone.tokens.text(alone[0].ids) == text
    assert len(set(together)) > 1, "the questions must have different answers to test anything"
    with pytest.raises(BadInput, match="expected 2 pictures, got 1"):
        critic.blocks([0], TASK, grids)


@settings(max_examples=12)
@given(st.integers(1, 400), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=6))
def test_portions_change_no_answer(folder: Path, tokens: int, asked: list[tuple[int, int]]) -> None:
    backbone, prompt = _opened(folder), "a <image> b <image> then {task}"
    shown = {at: picture[: 32 + 32 * (at % 2)] for at, picture in enumerate(images(5)[:, :64, :64])}
    together = Critic(backbone, prompt).answers(asked, TASK, shown)
    assert Critic(backbone, prompt, at_once=tokens).answers(asked, TASK, shown) == together


@functools.cache
def _opened(folder: Path) -> Backbone:
    return Backbone.open(str(folder), device="cpu")


def test_a_long_chain_of_hops_holds_few_pictures(sure: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each picture goes through the tower once, and no more of them are held for 120 hops than for 30."""
    backbone = Backbone.open(str(sure), device="cpu")
    network, held = backbone.network, {}
    honest, vision = network.states_and_keys, network.vision.features
    for count in (30, 120):
        rows, encoded = [], []

        def noting(tree: Any, seen: Any, *rest: Any, rows: list[int] = rows) -> Any:
            rows.append(len(seen.features))
            return honest(tree, seen, *rest)

        def counting(patches: Any, *grid: int, encoded: list[int] = encoded) -> Any:
            encoded.append(len(patches))
            return vision(patches, *grid)

        monkeypatch.setattr(network, "states_and_keys", noting)
        monkeypatch.setattr(network.vision, "features", counting)
        shown = {at: np.full((32, 32, 3), at, np.uint8) for at in range(count + 1)}
        asked = [(0, at - 1, at) for at in range(1, count + 1)]
        critic = Critic(backbone, "start <image> before <image> after <image> {task}", at_once=300)
        assert critic.answers(asked, TASK, shown) == ["+25%"] * count
        assert sum(encoded) == count + 1
        held[count] = (max(rows), len(rows))
    assert held[120][0] == held[30][0] < 30
    assert held[120][1] == pytest.approx(4 * held[30][1], abs=4)


def test_fewer_hops_side_by_side_where_memory_is_short(sure: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest, tried = Network.states_and_keys, []

    def small_machine(self: Network, tree: Any, *rest: Any) -> Any:
        tried.append(len(tree.ends))
        if len(tree.ends) > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return honest(self, tree, *rest)

    monkeypatch.setattr(Network, "states_and_keys", small_machine)
    for model in (Dopamine(path=str(sure), device="cpu", frames=5), VLAC(path=str(sure), device="cpu", frames=5)):
        most = 1
        tried.clear()
        reward = model.score([Episode.from_array(images(9), TASK)])[0]
        assert reward.value == pytest.approx([0, 0.25, 0.4375, 0.578125, 0.68359375])
        assert tried[0] > 1
        assert tried.count(1) == 4
        most = 0
        reward = model.score([Episode.from_array(images(9), TASK)])[0]
        assert "Asking 4 questions about pictures ran out of memory" in reward.why_missing


def test_a_quarter_of_what_remains_each_time(sure: Path) -> None:
    reward = Dopamine(path=str(sure), device="cpu", frames=4).score([Episode.from_array(images(9), TASK)])[0]
    assert reward.at.tolist() == [0, 3, 5, 8]
    assert reward.value == pytest.approx([0, 0.25, 0.4375, 0.578125])
    assert reward.given["hops"] == {"incremental": [0.25] * 3}
    assert reward.given["views"] == {"front": "main", "left wrist": "main", "right wrist": "main"}
    assert reward.given["goal image"] == "none: a grey picture stands for it"
    pair = VLAC(path=str(sure), device="cpu", frames=3).score([Episode.from_array(images(9), TASK)])[0]
    assert pair.value == pytest.approx([0, 0.25, 0.4375])
    assert pair.given["goal image"] == "none"


def test_modes_and_views(sure: Path, goal: str) -> None:
    values = {}
    for mode in ("forward", "backward", "incremental", "mean"):
        model = Dopamine(f"mode={mode},frames=3,cameras=high+left+right", path=str(sure), device="cpu", goal=goal)
        reward = model.score([three_views(5)])[0]
        values[mode] = reward.value
        assert reward.given["views"] == {"front": "high", "left wrist": "left", "right wrist": "right"}
        assert reward.given["goal image"] == goal
    assert values["forward"] == pytest.approx([0, 0.25, 0.25])
    assert values["backward"] == pytest.approx([0, 1.25, 1.25])
    assert values["mean"] == pytest.approx(np.mean([values[m] for m in ("forward", "backward", "incremental")], axis=0))


def test_each_hop_is_shown_its_own_pictures(sure: Path, goal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        Critic, "answers", lambda self, questions, task, pictures: asked.append(questions) or ["+1%"] * len(questions)
    )
    for mode in ("incremental", "forward", "backward"):
        Dopamine(path=str(sure), device="cpu", mode=mode, frames=3, cameras="high+left+right", goal=goal).score(
            [three_views(5)]
        )
    start, end = ("high", 0), "goal"
    views = [[(name, at) for name in ("high", "left", "right")] for at in range(3)]
    assert asked[0] == [[start, end, *views[0], *views[1]], [start, end, *views[1], *views[2]]]
    assert asked[1] == [[start, end, *views[0], *views[1]], [start, end, *views[0], *views[2]]]
    assert asked[2] == [[start, end, end, end, end, *views[1]], [start, end, end, end, end, *views[2]]]


def test_an_unreadable_answer_is_unscored(folder: Path) -> None:
    for model in (Dopamine(path=str(folder), device="cpu", frames=3), VLAC(path=str(folder), device="cpu", frames=3)):
        reward = model.score([Episode.from_array(images(5), TASK)])[0]
        assert not reward.scored
        assert reward.why_missing.startswith("no signed percentage in the answer to hop 1: ")


def test_they_keep_their_contracts(sure: Path) -> None:
    for model in (Dopamine(path=str(sure), device="cpu", frames=3), VLAC(path=str(sure), device="cpu", frames=2)):
        report = check_model(model, make_episodes()[:3])
        assert not report.broken, report.broken
        assert "Not verified here" in model.card.about


def test_other_families_are_refused_with_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"got none \(the published VLAC is an InternVL2"):
        load_model("vlac")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "internvl_chat", "llm_config": {}}))
    with pytest.raises(BadInput, match=r"family internvl_chat: .*InternViT vision tower"):
        VLAC(path=str(tmp_path), device="cpu")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2_5_vl", "vision_config": {}}))
    with pytest.raises(BadInput, match=r"family qwen2_5_vl: .*RoboBrain 2.0, a Qwen2.5-VL"):
        Dopamine(path=str(tmp_path), device="cpu")


def test_what_they_cannot_do_is_said(sure: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="goal=PICTURE"):
        Dopamine(path=str(sure), device="cpu", mode="backward")
    with pytest.raises(BadInput, match="one camera, or 3"):
        Dopamine(path=str(sure), device="cpu", cameras="a+b")
    with pytest.raises(BadInput, match="a picture that can be opened"):
        Dopamine(path=str(sure), device="cpu", goal=str(tmp_path / "none.png"))
    model = Dopamine(path=str(sure), device="cpu", cameras="wrist")
    (lost,) = model.score([Episode.from_array(images(5), TASK)])
    assert "There is no camera in episode 'array' named 'wrist'" in lost.why_missing
    (short,) = VLAC(path=str(sure), device="cpu").score([Episode.from_array(images(1), TASK)])
    assert "at least two frames to compare" in short.why_missing
