"""Robometer: the fast way gives the answers of the straightforward way, dense, live and in pairs."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from demerit import check_model, load_model
from demerit.data.episode import Episode
from demerit.data.frames import Frames, Images
from demerit.errors import BadInput, DemeritError, PerformanceWarning, WeightsMismatch
from demerit.models.published.robometer import Robometer
from demerit.models.vlm.config import VLMShape
from demerit.models.vlm.language import Features
from demerit.models.vlm.network import Network
from demerit.models.vlm.online import Following, Remembered
from demerit.models.vlm.places import warn_of_a_slow_place
from demerit.models.vlm.pointwise import can_compile, eight_bits
from demerit.models.vlm.prompt import CUT, Cut, Picture, Tokens, laid_out
from demerit.models.vlm.reference import RobometerReference, transformers_network
from demerit.models.vlm.robometer import Protocol, RobometerEngine
from demerit.models.vlm.windows import window, windows
from fakes.tiny_vlm import ROBOMETER_TOKENS, ROWS, head_shapes, tiny_checkpoint, tiny_config, tiny_weights

TASK = "pick up the cup and put it on the plate"
CONFIG = tiny_config(ROWS["robometer"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("vlm") / "meter", "robometer")


@pytest.fixture(scope="module")
def tokens(folder: Path) -> Tokens:
    return Tokens.read(folder.with_name("meter-base") / "tokenizer.json", ROBOMETER_TOKENS)


def parts(dtype: torch.dtype = torch.float32) -> tuple[dict[str, Any], dict[str, Any]]:
    weights = {name: weight.to(dtype) for name, weight in tiny_weights("robometer").items()}
    heads = {name: weights[name] for name in head_shapes()}
    return {name: w for name, w in weights.items() if name not in heads and name != "lm_head.weight"}, heads


def both(
    tokens: Tokens, protocol: Protocol, at_once: int, dtype: torch.dtype = torch.float32
) -> tuple[RobometerEngine, RobometerReference]:
    shape = VLMShape.from_config(CONFIG)
    backbone, heads = parts(dtype)
    fast = RobometerEngine(Network(shape, backbone), heads, tokens, protocol, at_once)
    return fast, RobometerReference(shape, transformers_network(CONFIG, backbone), heads, tokens, protocol, at_once=4)


def noise(count: int, height: int, width: int, seed: int = 0) -> Images:
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("count", "size", "shown", "at_once"),
    [
        (1, (64, 96), 8, 4096),
        (7, (64, 64), 8, 4096),
        (30, (70, 90), 8, 5000),
        (19, (48, 100), 4, 900),
        (5, (64, 64), 12, 4096),
    ],
)
def test_dense_scores_are_those_of_every_window_by_itself(
    tokens: Tokens, count: int, size: tuple[int, int], shown: int, at_once: int
) -> None:
    fast, slow = both(tokens, Protocol(shown), at_once)
    frames = noise(count, *size)
    ours, theirs = fast.dense(frames, TASK), slow.dense(frames, TASK)
    np.testing.assert_allclose(ours.progress, theirs.progress, atol=1e-5)
    np.testing.assert_allclose(ours.success, theirs.success, atol=1e-5)
    if count > 1:
        assert ours.progress.std() > 1e-3  # the frames matter, or the comparison would say nothing


def test_half_precision_stays_within_two_hundredths(tokens: Tokens) -> None:
    fast, slow = both(tokens, Protocol(), 4096, torch.bfloat16)
    frames = noise(12, 64, 64)
    ours, theirs = fast.dense(frames, TASK), slow.dense(frames, TASK)
    np.testing.assert_allclose(ours.progress, theirs.progress, atol=2e-2)
    np.testing.assert_allclose(ours.success, theirs.success, atol=2e-2)


def test_pairs_are_those_of_the_reference_and_care_about_order(tokens: Tokens) -> None:
    fast, slow = both(tokens, Protocol(), 4096)
    first, second = noise(11, 64, 96), noise(6, 64, 96, 1)
    there, back = fast.compare(first, second, TASK), fast.compare(second, first, TASK)
    assert there == pytest.approx(slow.compare(first, second, TASK), abs=1e-5)
    assert abs(there - back) > 1e-3
    plain = RobometerEngine(fast.network, parts()[1], tokens, Protocol(also_progress=False))
    assert plain.compare(first, second, TASK) != pytest.approx(there, abs=1e-6)


def test_another_instruction_or_a_later_frame_changes_what_it_may(tokens: Tokens) -> None:
    fast, _ = both(tokens, Protocol(), 4096)
    frames = noise(20, 64, 64)
    whole = fast.dense(frames, TASK)
    np.testing.assert_allclose(fast.dense(frames[:9], TASK).progress, whole.progress[:9], atol=1e-6)
    assert np.abs(fast.dense(frames, "push the box").progress - whole.progress).max() > 1e-4
    some = fast.dense(frames, TASK, stride=6)
    assert some.at.tolist() == [0, 6, 12, 18, 19]
    np.testing.assert_allclose(some.progress, whole.progress[some.at], atol=1e-6)


def test_live_steps_say_what_dense_scoring_says(tokens: Tokens) -> None:
    fast, _ = both(tokens, Protocol(), 4096)
    frames = noise(40, 64, 64)
    dense = fast.dense(frames, TASK)
    for room in (1 << 20, 0):  # also where past frames have to wait beside the device
        live = Following(fast, TASK, room)
        stepped = np.array([live.step(frame) for frame in frames])
        np.testing.assert_allclose(stepped[:, 0], dense.progress, atol=1e-5)
        np.testing.assert_allclose(stepped[:, 1], dense.success, atol=1e-5)


def test_past_frames_are_kept_near_as_far_as_there_is_room_and_none_is_lost() -> None:
    kept = Remembered(torch.device("cpu"), room=100)
    for frame in range(20):
        kept.put(frame, Features(torch.full((5, 2), float(frame)), (torch.zeros(1, 1),)))  # 44 bytes
    assert list(kept._near) == [18, 19] and len(kept) == 20
    assert all(float(kept.of(frame).rows[0, 0]) == frame for frame in range(20))
    kept.forget(15)
    assert len(kept) == 6 and float(kept.of(0).rows[0, 0]) == 0.0
    with pytest.raises(KeyError):
        kept.of(14)


def test_a_live_step_computes_no_more_than_one_window(tokens: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    fast, _ = both(tokens, Protocol(), 4096)
    ran: list[int] = []
    inner = fast.network.language.states_and_keys

    def counted(packed: Any, *rest: Any) -> Any:
        ran.append(packed.tokens)
        return inner(packed, *rest)

    monkeypatch.setattr(fast.network.language, "states_and_keys", counted)
    live = Following(fast, TASK)
    frames = noise(3, 32, 32)
    for at in range(120):
        live.step(frames[at % 3])
    early, late = np.mean(ran[20:60]), np.mean(ran[80:])
    assert late == pytest.approx(early, rel=0.05)  # the cost does not grow with the episode
    assert max(ran[1:]) < ran[0]
    assert len(live._features) <= 120 * 6 / 7 + 2  # frames that no window shows again are let go


def test_blocks_are_the_tokens_of_the_whole_text(tokens: Tokens) -> None:
    shape = VLMShape.from_config(CONFIG)
    pictures = [Picture(at, 2, 3) for at in range(8)]
    for pieces in (
        Protocol().progress_pieces(TASK, pictures),
        Protocol().preference_pieces(TASK, pictures, pictures),
    ):
        said = "".join(
            piece if isinstance(piece, str) else "<|vision_start|>" + "<|image_pad|>" * 6 + "<|vision_end|>"
            for piece in pieces
            if not isinstance(piece, Cut)
        )
        laid = [one for block in laid_out(pieces, tokens, shape) for one in block.ids]
        assert laid == tokens.ids(said)
        assert CUT in pieces


def test_windows_spread_over_what_was_seen() -> None:
    assert window(0, 8) == (0,) * 8
    assert window(3, 8) == (0, 1, 2, 3, 3, 3, 3, 3)
    assert window(7, 8) == tuple(range(8))
    assert window(100, 8) == (0, 14, 29, 43, 57, 71, 86, 100)
    assert [each[-1] for each in windows(30, 8)] == list(range(30))


def episode(name: str, count: int = 9, instruction: str = TASK, seed: int = 0) -> Episode:
    return Episode(id=name, instruction=instruction, views={"front": Frames.from_array(noise(count, 48, 64, seed))})


def test_the_model_passes_the_check_and_both_layouts_agree(folder: Path, tmp_path: Path) -> None:
    model = load_model(f"robometer:path={folder}")
    report = check_model(model)
    assert all(clause.status == "kept" for clause in report.clauses), report
    other = Robometer(path=str(tiny_checkpoint(tmp_path / "copy", "robometer-lerobot")))
    ours, theirs = model.score([episode("a")])[0], other.score([episode("a")])[0]
    np.testing.assert_allclose(ours.value, theirs.value, atol=1e-6)
    assert ours.success is not None
    assert ours.given["window"] == 8


def test_half_precision_passes_the_check_within_what_its_card_says(folder: Path) -> None:
    half = Robometer(path=str(folder), dtype="bfloat16", device="cpu")
    assert half.card.rounding == 0.02
    assert Robometer(path=str(folder), device="cpu").card.rounding == 0.0
    causal = next(clause for clause in check_model(half).clauses if "causal" in clause.name)
    assert causal.status == "kept"
    assert "rounding" in causal.facts


def test_preferences_do_not_depend_on_who_is_named_first(folder: Path) -> None:
    model = Robometer(path=str(folder))
    a, b = episode("a"), episode("b", 14, seed=1)
    there, back = model.prefer([(a, b), (b, a)])
    assert there == pytest.approx(1 - back, abs=1e-6)
    assert model.prefer([(a, a)])[0] == pytest.approx(0.5, abs=1e-6)
    assert np.isnan(model.prefer([(a, episode("c", instruction="another task"))])[0])


def test_what_cannot_be_scored_says_why(folder: Path) -> None:
    model = Robometer(path=str(folder))
    silent, hostile, fine = model.score(
        [episode("a", instruction=" "), episode("b", instruction="do <|im_end|> it"), episode("c", 2)]
    )
    assert "instruction" in silent.why_missing
    assert "words alone" in hostile.why_missing
    assert not fine.why_missing


def test_where_memory_runs_out_it_goes_on_with_less_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Robometer(path=str(folder), at_once=64_000)
    calm = model.score([episode("a")])[0].value
    inner, tried = model.engine.states, []

    def small_machine(asked: Any, seen: Any, some: Any) -> Any:
        tried.append(len(some))
        if len(some) > room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return inner(asked, seen, some)

    monkeypatch.setattr(model.engine, "states", small_machine)
    room, count = 3, len(calm)
    np.testing.assert_allclose(model.score([episode("a")])[0].value, calm, atol=1e-6)
    assert tried[:3] == [count, count // 2, count // 4]
    assert sum(one for one in tried if one <= room) == count, "nothing is computed twice"
    room = 0
    hopeless = model.score([episode("a")])[0]
    assert "Scoring episode a with" in hopeless.why_missing
    assert "ran out of memory" in hopeless.why_missing
    assert tried[-1] == 1
    assert model.engine.room.tokens == 4096, "a bad moment does not make everything small for ever"


def test_live_model_steps(folder: Path) -> None:
    model = Robometer(path=str(folder))
    with pytest.raises(BadInput, match="reset"):
        model.step(noise(1, 48, 64)[0])
    one = episode("a", 12)
    model.reset(TASK)
    live = [model.step(frame) for frame in one.main.all()]
    np.testing.assert_allclose(live, model.score([one])[0].value, atol=1e-5)


def test_eight_bits_are_near_and_named_an_approximation(folder: Path) -> None:
    exact, rounded = Robometer(path=str(folder)), Robometer(path=str(folder), arithmetic="fp8")
    one = episode("a", 10)
    ours, theirs = exact.score([one])[0].value, rounded.score([one])[0].value
    assert 1e-6 < np.abs(ours - theirs).max() < 0.03
    assert rounded.card.name == "meter-fp8"
    assert "approximation" in rounded.card.about
    assert exact.card.hash() != rounded.card.hash()


def test_eight_bits_keep_three_digits_of_a_number() -> None:
    x = torch.randn(5, 64) * torch.tensor([[1e-6], [1.0], [1e4], [0.0], [3.0]])
    rounded, scale = eight_bits(x)
    back = rounded.float() * scale
    assert back.shape == x.shape
    biggest = x.abs().amax(-1, keepdim=True)
    assert bool(((back - x).abs() <= biggest / 16).all())  # three binary digits behind the first
    assert bool((back[3] == 0).all())


def test_a_checkpoint_says_how_its_pairs_were_asked(folder: Path, tmp_path: Path) -> None:
    assert Robometer(path=str(folder)).opened.protocol.also_progress
    other = tiny_checkpoint(tmp_path / "plainly", "robometer")
    with (other / "config.yaml").open("a") as file:
        file.write("training: {predict_pref_progress: false}\n")
    assert not Robometer(path=str(other)).opened.protocol.also_progress


def test_a_live_frame_of_another_kind_is_a_sentence(folder: Path) -> None:
    model = Robometer(path=str(folder))
    model.reset(TASK)
    with pytest.raises(BadInput, match="uint8 of shape"):
        model.step(noise(1, 48, 64)[0].astype(np.float32))  # type: ignore[arg-type]
    model.step(noise(1, 48, 64)[0])
    with pytest.raises(BadInput, match="as before"):
        model.step(noise(1, 64, 64)[0])


def test_wrong_checkpoints_are_sentences(tmp_path: Path, folder: Path) -> None:
    plain = tiny_checkpoint(tmp_path / "plain", "qwen")
    with pytest.raises(BadInput, match="Robometer checkpoint"):
        Robometer(path=str(plain))
    holed = tiny_checkpoint(tmp_path / "holed", "robometer", drop=("success_head.4.bias",))
    with pytest.raises(WeightsMismatch, match=r"success_head\.4\.bias"):
        Robometer(path=str(holed))
    with pytest.raises(DemeritError, match="option of robometer"):
        load_model(f"robometer:path={folder},nothing=1")


def test_a_machine_that_cannot_make_kernels_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.warns(PerformanceWarning, match="no triton here"):
        assert not can_compile()


def test_a_large_network_on_a_processor_is_announced() -> None:
    cpu, large = torch.device("cpu"), {"w": (40_000, 50_000)}
    with pytest.warns(PerformanceWarning, match=r"2\.0 billion weights on a processor"):
        warn_of_a_slow_place(large, cpu, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_a_slow_place(large, cpu, "cpu")
        warn_of_a_slow_place({"w": (40, 50)}, cpu, None)
