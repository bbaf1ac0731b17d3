"""Robo-Dopamine and VLAC: parsing, accumulation, views and modes, unreadable answers, memory."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from demerit.data.dataset import Dataset, ListReader
from demerit.data.episode import Episode, Outcome
from demerit.data.formats import open_dataset
from demerit.data.frames import Frames
from demerit.data.importing import import_dataset
from demerit.errors import BadInput
from demerit.evaluate.benchmarks.scores import BenchmarkData, labels_of, leave_out_seen
from demerit.models import load_model
from demerit.models.published.pairwise import BLANK, VLAC, Dopamine, accumulate, dopamine_step, parse_percent, vlac_step
from demerit.models.published.scoring import USED
from demerit.models.vlm import pairwise
from demerit.models.vlm.network import VLMNetwork
from demerit.models.vlm.pairwise import PairwiseCritic, PlainCritic
from fakes.talking_vlm import talking_checkpoint
from fakes.tiny_plain import make_talk, tiny_internvl2, tiny_qwen25
from fakes.tiny_vlm import tiny_checkpoint

TASK = "put the cup on the plate"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("hops") / "tiny", seed=5, tied=False)


@pytest.fixture(scope="module")
def sure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Always answers +25%."""
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


def test_parsing_a_signed_percentage() -> None:
    inside = {"+12%": 0.12, "-7%": -0.07, "0%": 0.0, "+250%": 1.0, " -3.5 ": -0.035}
    bare = {"+9%": 0.09, " -41\n": -0.41, "15</score>": 0.15}
    for text, share in ({f"sure: <score>{text}</score>": share for text, share in inside.items()} | bare).items():
        assert parse_percent(text) == pytest.approx(share), text
    for text in ("about 12%", "<score>more</score>", "<score>+12% or so</score>", ""):
        assert parse_percent(text) is None


@given(st.lists(st.floats(-1, 1), max_size=12))
def test_accumulation_equals_the_product_form(hops: list[float]) -> None:
    """What remains shrinks with every gain, and what there is shrinks with every loss."""
    values = accumulate(hops, dopamine_step)
    done = 0.0
    for value, hop in zip(values[1:], hops, strict=True):
        done = 1 - (1 - done) * (1 - hop) if hop >= 0 else done * (1 + hop)
        assert value == pytest.approx(done, abs=1e-9)
        assert -1e-9 <= value <= 1 + 1e-9
    rest = np.cumprod([1.0, *(1 - hop for hop in hops)])
    assert accumulate(hops, vlac_step) == pytest.approx(1 - rest, abs=1e-6)
    assert np.isnan(accumulate([*hops, None, 0.5], dopamine_step)).tolist() == [False] * len(values) + [True] * 2


def test_fewer_hops_at_a_time_when_memory_is_short(sure: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest, tried = VLMNetwork.states_and_keys, []

    def small_machine(self: VLMNetwork, tree: Any, *rest: Any) -> Any:
        tried.append(len(tree.ends))
        if len(tree.ends) > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return honest(self, tree, *rest)

    monkeypatch.setattr(VLMNetwork, "states_and_keys", small_machine)
    model, most = VLAC(path=str(sure), device="cpu", frames=5), 1
    reward = model.score([Episode.from_array(images(9), TASK)])[0]
    assert reward.value == pytest.approx([0, 0.25, 0.4375, 0.578125, 0.68359375])
    assert tried[0] > 1 and tried.count(1) == 4
    most = 0
    assert "memory" in model.score([Episode.from_array(images(9), TASK)])[0].why_missing


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


def success_of(task: str, id: str, level: int, success: bool = True) -> Episode:
    """An episode that ends in a picture of one grey level."""
    shown = images(5, level)
    shown[-1] = level
    return replace(Episode.from_array(shown, task, id=id), outcomes=(Outcome("human", success=success),))


def write_set(folder: Path, *episodes: Episode) -> str:
    import_dataset(Dataset(ListReader("given", list(episodes)), "given:x"), folder, copy=True)
    return str(folder)


def test_the_goal_is_the_end_of_a_success_at_the_same_task(sure: Path, tmp_path: Path) -> None:
    cup = [success_of(TASK, "failed", 10, success=False), success_of(TASK, "done", 220), success_of(TASK, "later", 99)]
    goals = write_set(tmp_path / "goals", *cup, success_of("open the drawer", "drawer", 50))
    model = Dopamine(f"goals={goals},frames=3", path=str(sure), device="cpu")
    again = list(open_dataset(goals))
    new = Episode.from_array(images(6), "Put the cup on the plate.", id="new")
    other = Episode.from_array(images(6), "fold the towel", id="other")
    for episode, level in ((new, 220), (again[0], 220), (again[2], 220)):
        assert np.all(model._read_images(episode).images["goal"] == level)
    rewards = {reward.episode: reward for reward in model.score([new, other, *again])}
    assert {id for id, reward in rewards.items() if reward.scored} == {"new", "failed", "later"}
    assert "done" in rewards["new"].given["goal image"]
    assert all(USED in rewards[id].why_missing for id in ("done", "drawer"))
    assert "no goal image" in rewards["other"].why_missing
    grey = Dopamine(f"goals={goals},no_goal=grey,frames=3", path=str(sure), device="cpu")
    assert np.all(grey._read_images(other).images["goal"] == BLANK) and grey.score([other])[0].scored
    assert len({one.card.hash() for one in (model, grey, Dopamine("frames=3", path=str(sure), device="cpu"))}) == 3
    labels = tuple(labels_of(episode) for episode in again)
    data, rows = leave_out_seen([model], BenchmarkData("goals", tuple(again), labels, ()))
    assert [episode.id for episode in data.episodes] == ["failed", "later"]
    assert rows.by_model == {model.card.name: ("done", "drawer")} and rows.goals == (model.card.name,)


def test_goals_that_cannot_be_used_are_refused(sure: Path, goal: str, tmp_path: Path) -> None:
    failures = write_set(tmp_path / "failures", success_of(TASK, "failed", 10, success=False))
    with pytest.raises(BadInput, match="success"):
        Dopamine(f"goals={failures}", path=str(sure), device="cpu")
    good = write_set(tmp_path / "good", success_of(TASK, "done", 10))
    with pytest.raises(BadInput, match="both"):
        Dopamine(f"goals={good},goal={goal}", path=str(sure), device="cpu")
    with pytest.raises(BadInput, match="backward"):
        Dopamine(f"goals={good},mode=backward,no_goal=grey", path=str(sure), device="cpu")
    assert Dopamine(f"goals={good},mode=backward", path=str(sure), device="cpu").mode == "backward"


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


def test_each_hop_shows_its_own_images(sure: Path, goal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        PairwiseCritic,
        "answers",
        lambda self, questions, task, images: asked.append(questions) or ["+1%"] * len(questions),
    )
    for mode in ("incremental", "forward", "backward"):
        Dopamine(path=str(sure), device="cpu", mode=mode, frames=3, cameras="high+left+right", goal=goal).score(
            [three_views(5)]
        )
    start, end = ("high", 0), "goal"
    first, second, third = ([(name, at) for name in ("high", "left", "right")] for at in range(3))
    assert asked[0] == [[start, end, *first, *second], [start, end, *second, *third]]
    assert asked[1] == [[start, end, *first, *second], [start, end, *first, *third]]
    assert asked[2] == [[start, end, end, end, end, *second], [start, end, end, end, end, *third]]


def test_an_unreadable_answer_is_unscored(folder: Path) -> None:
    for model in (Dopamine(path=str(folder), device="cpu", frames=3), VLAC(path=str(folder), device="cpu", frames=3)):
        reward = model.score([Episode.from_array(images(5), TASK)])[0]
        assert not reward.scored
        assert "hop 1" in reward.why_missing


def test_the_published_backbones_score(tmp_path: Path, goal: str) -> None:
    """InternVL2 for VLAC, Qwen2.5-VL for the first Robo-Dopamine: the same protocol and sums as on a Qwen3-VL."""
    vlac = VLAC(path=str(make_talk(tiny_internvl2(tmp_path / "v"), "+25")), device="cpu", frames=4)
    reward = vlac.score([Episode.from_array(images(9), TASK)])[0]
    assert reward.value == pytest.approx([0, 0.25, 0.4375, 0.578125])
    assert reward.given["image size"] == "448 x 448" and reward.given["hops"] == [0.25] * 3
    assert vlac.card.name == "vlac-v" and "internvl2-chat-1" in vlac.card.revision
    first = make_talk(tiny_qwen25(tmp_path / "d", tie_word_embeddings=False), "-2%")
    for mode, expected in (("incremental", [0, 0, 0]), ("backward", [0, 0.98, 0.98])):
        model = Dopamine(path=str(first), device="cpu", frames=3, mode=mode, goal=goal, cameras="high+left+right")
        reward = model.score([three_views(5)])[0]
        assert reward.value == pytest.approx(expected), mode
        height, width = map(int, reward.given["image size"].split(" x "))
        assert height % 28 == width % 28 == 0 and 12544 <= height * width <= 76800
    assert "qwen2.5-vl-chat-1" in model.card.revision


def test_each_pair_is_shown_as_the_authors_show_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbouring frames, squeezed to a square with Pillow's Lanczos filter."""
    seen = []
    model = VLAC(path=str(tiny_internvl2(tmp_path / "v")), device="cpu", frames=3)
    monkeypatch.setattr(
        PlainCritic, "_decode", lambda self, prompts, images: seen.extend(images) or ["+1"] * len(prompts)
    )
    episode = Episode.from_array(images(5), TASK)
    model.score([episode])
    squares = [
        np.array(Image.fromarray(images(5)[at]).resize((448, 448), Image.Resampling.LANCZOS)) for at in (0, 2, 4)
    ]
    expected = [squares[0], squares[1], squares[1], squares[2]]
    assert len(seen) == 4 and all(np.array_equal(a, b) for a, b in zip(seen, expected, strict=True))


def test_vlac_is_the_published_checkpoint_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, asked = tiny_internvl2(tmp_path / "v"), []
    monkeypatch.setattr(pairwise, "locate_checkpoint", lambda name, *_, **__: asked.append(name) or folder)
    assert load_model("vlac", device="cpu").card.name == "vlac"
    assert set(asked) == {"InternRobotics/VLAC"}


def test_other_families_are_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2_5_vl", "vision_config": {}}))
    with pytest.raises(BadInput, match=r"qwen2_5_vl: .*InternVL2"):
        VLAC(path=str(tmp_path), device="cpu")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "internvl_chat", "llm_config": {}}))
    with pytest.raises(BadInput, match=r"internvl_chat: .*Qwen2\.5-VL"):
        Dopamine(path=str(tmp_path), device="cpu")


def test_wrong_options_and_episodes_are_refused(sure: Path, tmp_path: Path) -> None:
    for option, value in (("mode", "backward"), ("cameras", "a+b"), ("goal", str(tmp_path / "none.png"))):
        with pytest.raises(BadInput, match="goal" if option == "mode" else option):
            Dopamine(path=str(sure), device="cpu", **{option: value})
    (lost,) = Dopamine(path=str(sure), device="cpu", cameras="wrist").score([Episode.from_array(images(5), TASK)])
    assert "'wrist'" in lost.why_missing
    (short,) = VLAC(path=str(sure), device="cpu").score([Episode.from_array(images(1), TASK)])
    assert "two frames" in short.why_missing
