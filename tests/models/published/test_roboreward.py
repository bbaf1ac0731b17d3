"""The RoboReward model: frames, the grade's distribution against transformers, decoding, unscored answers."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from demerit.data.decode import load_ahead
from demerit.data.episode import Episode
from demerit.errors import BadInput, WeightsMismatch
from demerit.evaluate.benchmarks import load_benchmark
from demerit.evaluate.metrics.ranking import order_correlations
from demerit.models import load_model
from demerit.models.by_time import ByTime
from demerit.models.published.roboreward import RoboReward, parse_grade
from demerit.models.vlm.grades import GRADES, VideoGrader
from demerit.models.vlm.images import cut_video_patches, resize_frames
from demerit.models.vlm.network import VLMNetwork
from demerit.models.vlm.prompt import load_prompts
from fakes.talking_vlm import talking_checkpoint
from fakes.tiny_vlm import tiny_checkpoint, tiny_config

TRUSTING = {"device": "cpu", "trust": 0.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("roboreward") / "tiny", seed=1, tied=False)


@pytest.fixture(scope="module")
def model(folder: Path) -> RoboReward:
    return RoboReward(path=str(folder), **TRUSTING)


def episode(count: int, seed: int = 0, fps: float = 5.0, task: str = "push the red block into the box") -> Episode:
    images = np.random.default_rng(seed).integers(0, 256, (count, 40, 56, 3), dtype=np.uint8)
    return Episode.from_array(images, task, id=f"{count} frames {seed}", fps=fps)


def test_ticks_are_counted_before_they_are_made() -> None:
    assert ByTime(1.0, 64).by_time(np.arange(24) / 5).tolist() == [0, 5, 10, 15, 20, 23]
    times = np.arange(40) / 10
    assert len(ByTime(1e-300, 5).by_time(times)) == 5
    for step in (0.1, 0.3, 0.5, 1.0, 1.3, 3.9, 4.0):
        for most in (2, 4, 5, 9, 14, 40, 41, 42):
            ticks = np.arange(0, times[-1] + 1e-9, step)
            ticks = ticks if len(ticks) + 1 <= most else np.linspace(0, times[-1], most)
            nearest = {int((times[1:] + times[:-1] < 2 * tick).sum()) for tick in ticks}
            assert ByTime(step, most).by_time(times).tolist() == sorted(nearest | {39}), (step, most)


def test_only_the_graded_frames_are_decoded(model: RoboReward, tmp_path: Path) -> None:
    (loaded,) = load_ahead([episode(24)], model.wanted, 1, 0)
    assert loaded[0].episode.main.source.places.keys() == {0, 5, 10, 15, 20, 23}
    reward = model.score([loaded[0].episode])[0]
    assert reward.at.tolist() == [23]
    assert reward.given["frames"] == 6
    assert reward.given["fps"] == pytest.approx(5 / 4.6, abs=1e-3)
    assert reward.given["prompt"] == "roboreward-card-1"


def test_the_distribution_equals_transformers(model: RoboReward, folder: Path) -> None:
    """One full forward pass of transformers' network."""
    network = Qwen3VLForConditionalGeneration(Qwen3VLConfig(**tiny_config(tied=False))).eval()
    network.load_state_dict(load_file(folder / "model.safetensors"), strict=True)
    one = episode(24)
    clip = model._clip(one)
    grader = model._grader
    size = grader.size(clip)
    tokens = (size[0] // 32) * (size[1] // 32)
    seconds = [(clip.seconds[at] + clip.seconds[min(at + 1, 5)]) / 2 for at in (0, 2, 4)]
    video = "".join(f"<{t:.1f} seconds><|vision_start|>{'<|video_pad|>' * tokens}<|vision_end|>" for t in seconds)
    text = load_prompts("roboreward")["prompt"].format(task=one.instruction)
    whole = f"<|im_start|>user\n{video}{text}<|im_end|>\n<|im_start|>assistant\nANSWER: "
    ids = torch.tensor([model.backbone.tokens.ids(whole)])
    frames = torch.from_numpy(resize_frames(clip.frames, size, "torch"))
    with torch.inference_mode():
        logits = network(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values_videos=cut_video_patches(frames, patch=16, merge=2, temporal=2).flatten(0, 1),
            video_grid_thw=torch.tensor([[3, size[0] // 16, size[1] // 16]]),
            mm_token_type_ids=2 * (ids == model.backbone.shape.video_token).int(),
        ).logits[0]
    last = logits[-1].double().softmax(-1)
    digits = [model.backbone.tokens.ids(str(grade))[0] for grade in GRADES]
    graded = grader.distribution(clip, one.instruction)
    assert graded.mass == pytest.approx(float(last[digits].sum()), rel=1e-4)
    assert graded.likely == pytest.approx((last[digits] / last[digits].sum()).numpy(), abs=1e-5)
    begins = len(model.backbone.tokens.ids("ANSWER: "))
    path = logits.double().log_softmax(-1)[-begins - 1 : -1].gather(1, ids[0, -begins:, None]).sum().exp()
    assert graded.form == pytest.approx(float(path), rel=1e-3)
    reward = model.score([one])[0]
    mean = sum(g * p for g, p in zip(GRADES, graded.likely, strict=True))
    assert reward.value[0] == pytest.approx(mean, abs=1e-5)
    square = sum(g * g * p for g, p in zip(GRADES, graded.likely, strict=True))
    assert reward.given["deviation"] == pytest.approx((square - mean**2) ** 0.5, abs=1e-3)


def test_decoding_agrees_with_the_distribution(model: RoboReward, folder: Path, tmp_path: Path) -> None:
    """Where the model prefers a digit, the likeliest grade is the decoded one."""
    shutil.copytree(folder, tmp_path / "digits")
    weights = load_file(folder / "model.safetensors")
    digits = [model.backbone.tokens.ids(str(grade))[0] for grade in GRADES]
    table = torch.zeros_like(weights["lm_head.weight"])  # all logits but the digits' are 0: a digit above 0 wins
    table[digits] = 4 * weights["lm_head.weight"][digits]
    save_file({**weights, "lm_head.weight": table}, tmp_path / "digits/model.safetensors")
    ours = RoboReward(path=str(tmp_path / "digits"), **TRUSTING)
    grader = VideoGrader(ours.backbone, load_prompts("roboreward")["prompt"], "ANSWER: ")
    episodes = [episode(count, seed) for seed, count in enumerate((3, 24, 9, 24, 1, 12))]
    clips = [ours._clip(shown) for shown in episodes]
    written = grader.decode(clips, [shown.instruction for shown in episodes], forced=True)
    likely = [grader.distribution(clip, one.instruction) for clip, one in zip(clips, episodes, strict=True)]
    agreeing = 0
    for text, graded in zip(written, likely, strict=True):
        above = graded.mass * graded.likely.max() > (1 - graded.mass) / (384 - 5)
        # a second digit behind the first makes the number another one, and no grade
        assert text.startswith(f"ANSWER: {graded.top}") == above
        agreeing += above
    assert agreeing >= 3, "most of the videos must lead to a digit to compare anything"


def test_an_answer_without_a_grade_is_unscored(folder: Path) -> None:
    rewards = RoboReward("how=decode", path=str(folder), **TRUSTING).score([episode(24), episode(5)])
    for reward in rewards:
        assert not reward.scored
        assert repr(reward.given["answer"]) in reward.why_missing
    doubted = RoboReward(path=str(folder), device="cpu").score([episode(24)])[0]
    assert not doubted.scored
    assert "trust=0.5" in doubted.why_missing
    assert len(doubted.given["grades"]) == 5


def test_parsing_the_answer_line() -> None:
    for text, grade in (("ANSWER: 4", 4), ("First...\nanswer :2\n", 2), ("ANSWER: 1 no\nANSWER: 5", 5)):
        assert parse_grade(text) == grade
    for text in ("ANSWER: 7", "ANSWER: 45", "ANSWER: 4.5", "The reward is 3", ""):
        assert parse_grade(text) is None


def test_a_model_that_always_answers_four(tmp_path: Path) -> None:
    """It writes ANSWER: 4 whatever it sees, and its logits agree."""
    four = talking_checkpoint(tmp_path / "four", "ANSWER: 4")
    for how in ("decode", "logits"):
        rewards = RoboReward(path=str(four), device="cpu", how=how).score([episode(24), episode(5)])
        assert [reward.value.tolist() for reward in rewards] == [[pytest.approx(4.0, abs=1e-4)]] * 2
    assert rewards[0].given["likeliest grade"] == 4
    assert rewards[0].given["probability of the answer's form"] == pytest.approx(1.0, abs=1e-3)


def test_certainty_is_that_of_the_least_likely_token(folder: Path, tmp_path: Path) -> None:
    """Whatever the answer says: one that is no grade has a certainty too."""
    sure = RoboReward("how=certainty", path=str(talking_checkpoint(tmp_path / "four", "ANSWER: 4")), device="cpu")
    assert sure.score([episode(5)])[0].value.tolist() == [pytest.approx(1.0, abs=1e-4)]
    unsure = RoboReward("how=certainty", path=str(folder), device="cpu")
    rewards = unsure.score([episode(24), episode(5)])
    clips = [unsure._clip(one) for one in (episode(24), episode(5))]
    said = unsure._grader.decode_surely(clips, [episode(24).instruction] * 2)
    assert [reward.given["answer"] for reward in rewards] == [text for text, _ in said]
    assert [reward.value.tolist() for reward in rewards] == [[pytest.approx(np.exp(log))] for _, log in said]
    assert all(0 < reward.final < 0.5 for reward in rewards)
    card = unsure.card
    assert (card.name, card.quantity, card.low, card.high) == (
        "roboreward-tiny-certainty",
        "certainty of the answer",
        0.0,
        1.0,
    )


def test_a_prefix_is_graded_as_a_video_of_its_own(model: RoboReward, folder: Path) -> None:
    """Dense values against the plain model on every shorter video; and few tokens at a time against all at once."""
    dense = RoboReward("how=dense", path=str(folder), **TRUSTING)
    few = RoboReward("how=dense,at_once=1", path=str(folder), **TRUSTING)
    for count in (1, 2, 9, 24):  # 1 frame, odd and even numbers of frames shown
        one = episode(count)
        images, (reward,) = one.main.all(), dense.score([one])
        assert reward.at.tolist() == model.wanted.by_time(one.main.times()).tolist()
        assert few.score([one])[0].value == pytest.approx(reward.value, abs=1e-5)
        shorter = [Episode.from_array(images[: at + 1], one.instruction, fps=5.0) for at in reward.at]
        separate = [graded.value[0] for graded in model.score(shorter)]
        assert reward.value == pytest.approx(separate, abs=1e-5)
        assert count < 9 or np.ptp(separate) > 1e-3, "negative control: the prefixes differ"
        assert bool(order_correlations([reward.value]).undefined[0]) == (count == 1)  # VOC is defined


def test_dense_cards_and_doubts(model: RoboReward, folder: Path, tmp_path: Path) -> None:
    dense = RoboReward("how=dense", path=str(folder), device="cpu")
    assert (dense.card.name, dense.card.quantity) == ("roboreward-tiny-dense", "grade")
    doubted = dense.score([episode(24)])[0]  # random weights seldom write a digit
    assert np.isnan(doubted.value).all() and "trust=0.5" in doubted.why_missing
    four = talking_checkpoint(tmp_path / "four", "ANSWER: 4")
    reward = RoboReward("how=dense", path=str(four), device="cpu").score([episode(24)])[0]
    assert reward.value == pytest.approx([4.0] * 6, abs=1e-4) and reward.given["how"] == "dense"
    cards = [RoboReward(path=str(folder), how=how, **TRUSTING).card for how in ("logits", "decode", "dense")]
    assert len({card.hash() for card in cards}) == 3
    assert [replace(card, weights_hash="").hash() for card in cards[:2]] == [  # stored grades stay valid
        "c0977f7c0d40879eae8a6b1d1374f257",
        "2714dbbcee367ec9c1645d7053db0c4b",
    ]


def test_its_benchmark_asks_for_the_published_answer(folder: Path) -> None:
    bench, own = load_benchmark("roborewardbench@1"), load_benchmark("own@1")
    name = f"roboreward:path={folder},device=cpu"
    assert [found.load_model(name).card.name for found in (bench, own)] == ["roboreward-tiny-decode", "roboreward-tiny"]
    for how in ("logits", "dense"):
        assert bench.load_model(f"{name},how={how}").how == how
    assert bench.load_model("clock").card.hash() == load_model("clock").card.hash()


def test_wrong_options_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="8b, 4b"):
        load_model("roboreward:70b")
    with pytest.raises(BadInput, match="trust"):
        RoboReward(path=str(folder), device="cpu", trust=2)
    for fps in ("inf", "nan", "0", "-1", "1e-320", "1e9"):
        with pytest.raises(BadInput, match="fps"):
            load_model(f"roboreward:path={folder},fps={fps}")
    broken = tiny_checkpoint(tmp_path / "broken", tied=False, drop=("lm_head.weight",))
    with pytest.raises(WeightsMismatch) as caught:
        RoboReward(path=str(broken), device="cpu")
    assert caught.value.missing == ["lm_head.weight"]


def test_fewer_answers_at_a_time_when_memory_is_short(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompts do not fit together, and one not even alone: the others are answered as before."""
    graded = RoboReward("how=decode", path=str(folder), device="cpu")
    episodes = [episode(3), episode(25), episode(9)]
    calm = [reward.why_missing for reward in graded.score(episodes)]
    honest, tried = VLMNetwork.states_and_keys, []

    def small_machine(self: VLMNetwork, tree: Any, *rest: Any) -> Any:
        tried.append(tree.tokens)
        if tree.tokens > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return honest(self, tree, *rest)

    monkeypatch.setattr(VLMNetwork, "states_and_keys", small_machine)
    most = 10**9
    graded.score(episodes[1:2])
    graded.score(episodes)
    alone, together = tried
    most = together - 1
    assert [reward.why_missing for reward in graded.score(episodes)] == calm
    most = alone - 1
    short = [reward.why_missing for reward in graded.score(episodes)]
    assert "ran out of memory" in short[1]
    assert [short[at] for at in (0, 2)] == [calm[at] for at in (0, 2)]
