"""Odd files, options and networks: each is a sentence or an unscored episode with its reason, never a number."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from demerit import load_model
from demerit.data.episode import Episode
from demerit.errors import BadInput, DemeritError
from demerit.models.by_time import ByTime
from demerit.models.check import check_model
from demerit.models.published.robometer import Robometer
from demerit.models.published.roboreward import RoboReward
from demerit.models.published.topreward import TOPReward
from demerit.models.vlm.checkpoint import read_checkpoint
from demerit.models.vlm.config import VLMShape
from demerit.models.vlm.hub import located
from demerit.models.vlm.prompt import Tokens
from demerit.models.vlm.room import Room
from fakes.tiny_vlm import tiny_checkpoint, tiny_config, write_tokenizer

NO_NUMBER = "the network gave no number there"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("plain") / "it")


def episode(frames: int = 5) -> Episode:
    images = np.random.default_rng(0).integers(0, 256, (frames, 32, 64, 3), dtype=np.uint8)
    return Episode.from_array(images, "push the red block", id="a")


# --- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda whole: whole[: len(whole) // 2], r"got something else \(.*EOF"),
        (lambda _: b"", "got an empty file"),
        (lambda _: bytes(range(256)) * 4, r"got something else \("),
        (lambda _: b"{}", r"got something else \("),
    ],
)
def test_a_spoilt_tokenizer_is_a_sentence(
    plain: Path, tmp_path: Path, spoil: Callable[[bytes], bytes], said: str
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(spoil((plain / "tokenizer.json").read_bytes()))
    with pytest.raises(BadInput, match=rf"tokenizer\.json: expected a whole tokenizer\.json .*{said}"):
        Tokens.read(path)
    path.unlink()
    with pytest.raises(BadInput, match="expected a readable file"):
        Tokens.read(path)


@pytest.mark.parametrize(
    ("part", "changes", "said"),
    [
        ("text", {"vocab_size": None}, "vocab_size, a whole number from 1 on, got none"),
        ("text", {"num_attention_heads": "four"}, "num_attention_heads, a whole number from 1 on, got 'four'"),
        ("text", {"num_attention_heads": 0}, "num_attention_heads, a whole number from 1 on, got 0"),
        ("text", {"num_hidden_layers": True}, "num_hidden_layers, a whole number from 1 on, got True"),
        ("text", {"num_key_value_heads": 3}, "a multiple of num_key_value_heads, got 4 and 3"),
        ("text", {"rope_scaling": "x"}, "rope_scaling, an object with names and values, got 'x'"),
        ("text", {"rope_theta": None}, "rope_theta, a positive number, got none"),
        ("text", {"rope_theta": float("inf")}, "rope_theta, a positive number, got inf"),
        ("text", {"rms_norm_eps": "small"}, "rms_norm_eps, a positive number, got 'small'"),
        ("vision", {"depth": 2.5}, "depth, a whole number from 1 on, got 2.5"),
        ("vision", {"num_heads": 5}, "a multiple of its num_heads, got 32 and 5"),
        ("vision", {"num_position_embeddings": 63}, "a square number, got 63"),
        ("vision", {"deepstack_visual_indexes": [0, 9]}, r"a list of blocks from 0 to 3, got \[0, 9\]"),
        ("vision", {"deepstack_visual_indexes": 3}, "a list of blocks from 0 to 3, got 3"),
    ],
)
def test_an_odd_config_is_a_sentence(part: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=rf"config\.json: .*{said}"):
        VLMShape.from_config(tiny_config(**{part: changes}))


@pytest.mark.parametrize("sections", [[24], [24, 20, 20], [4, 2, "2"], "4,2,2", [8, 0, -0.5], 8])
def test_rope_sections_share_out_half_a_head(sections: Any) -> None:
    rope = {"mrope_section": sections, "rope_type": "default"}
    with pytest.raises(BadInput, match="three whole numbers that add up to half of the 16 in head_dim"):
        VLMShape.from_config(tiny_config(text={"rope_scaling": rope}))
    with pytest.raises(BadInput, match="mrope_interleaved = true"):
        VLMShape.from_config(tiny_config(text={"rope_scaling": {**rope, "mrope_interleaved": False}}))


@pytest.mark.parametrize("name", ["text_config", "vision_config", "image_token_id", "vision_end_token_id"])
@pytest.mark.parametrize("value", [None, "x", [1], -1])
def test_any_entry_of_another_kind_is_a_sentence(plain: Path, tmp_path: Path, name: str, value: Any) -> None:
    config = {**json.loads((plain / "config.json").read_text()), name: value, "architectures": 5}
    with pytest.raises(BadInput, match=name):
        VLMShape.from_config(config)
    shutil.copytree(plain, tmp_path / "it")
    (tmp_path / "it/config.json").write_text(json.dumps(config))
    with pytest.raises(DemeritError):
        TOPReward(path=str(tmp_path / "it"), device="cpu")


def test_half_a_download_says_so(plain: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "models--a--b/snapshots/0123"
    shutil.copytree(plain, snapshot)
    (snapshot / "model.safetensors").unlink()
    with pytest.raises(BadInput, match=r"got no weights: the download was cut off \(the same command, with a conn"):
        read_checkpoint(str(snapshot))
    (snapshot / "config.json").unlink()
    with pytest.raises(BadInput, match=r"got neither \(a download that was cut off\?"):
        located(str(snapshot))
    write_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(tiny_config()))
    with pytest.raises(BadInput, match=r"got no weights\.$"):  # a folder of one's own was never downloaded
        read_checkpoint(str(tmp_path))


def test_a_checkpoint_given_as_a_model_folder_is_told_its_name(plain: Path, tmp_path: Path) -> None:
    meter = tiny_checkpoint(tmp_path / "rbm", "robometer")
    lerobot = tiny_checkpoint(tmp_path / "out" / "model", "robometer-lerobot")
    lora = tmp_path / "lora"
    lora.mkdir()
    (lora / "adapter_config.json").write_text("{}")
    for folder, said in (
        (meter, f"a Robometer checkpoint, which is robometer:path={meter}"),
        (lerobot.parent, f"a Robometer checkpoint, which is robometer:path={lerobot}"),
        (plain, f"which is roboreward:path={plain} "),
        (lora, f"an adapter of a vision-language model, which is roboreward:path={lora}"),
        (tmp_path, "got another path"),
    ):
        with pytest.raises(BadInput) as caught:
            load_model(str(folder))
        assert said in str(caught.value)


# --- options ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fps", ["inf", "nan", "0", "-1", "1e-320", "1e9"])
def test_no_such_number_of_frames_a_second(plain: Path, fps: str) -> None:
    with pytest.raises(BadInput, match="fps: expected a positive number of frames a second"):
        load_model(f"roboreward:path={plain},fps={fps}")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("roboreward:8b,4b", r"size: expected one value, got two \('8b' and '4b'\)"),
        ("robometer:path=a/b,path=c/d", r"path: expected one value, got two \('a/b' and 'c/d'\)"),
    ],
)
def test_an_option_given_twice_is_refused(asked: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        load_model(asked)


def test_frames_by_the_clock_are_counted_before_they_are_made() -> None:
    times = np.arange(40) / 10
    assert len(ByTime(1e-300, 5).by_time(times)) == 5
    for step in (0.1, 0.3, 0.5, 1.0, 1.3, 3.9, 4.0):
        for most in (2, 4, 5, 9, 14, 40, 41, 42):
            ticks = np.arange(0, times[-1] + 1e-9, step)
            ticks = ticks if len(ticks) + 1 <= most else np.linspace(0, times[-1], most)
            nearest = {int((times[1:] + times[:-1] < 2 * one).sum()) for one in ticks}
            assert ByTime(step, most).by_time(times).tolist() == sorted(nearest | {39}), (step, most)


@pytest.mark.parametrize("model", ["robometer", "roboreward", "topreward", "dopamine", "vlac"])
@pytest.mark.parametrize("tokens", [0, -5])
def test_nothing_at_once_is_refused(model: str, tokens: int) -> None:
    with pytest.raises(BadInput, match=f"at_once: expected a number from 1 on, got {tokens}"):
        load_model(f"{model}:path=a/b,at_once={tokens}")
    with pytest.raises(BadInput, match="at_once"):
        Room(tokens)


# --- networks without a number ------------------------------------------------------------------------------------


def broken(folder: Path, layout: Any) -> Path:
    """A network whose last norm is no number, so that nothing that it says is."""
    nothing = {"model.language_model.norm.weight": torch.full((64,), float("nan"))}
    return tiny_checkpoint(folder, layout, extra=nothing)


def test_a_robometer_without_a_number_says_so(tmp_path: Path) -> None:
    reward = Robometer(path=str(broken(tmp_path / "it", "robometer"))).score([episode()])[0]
    assert not reward.scored
    assert reward.why_missing == NO_NUMBER
    assert len(reward.at) == 5


@pytest.mark.parametrize("trust", [0.5, 0.0])
def test_a_grade_that_is_no_number_is_unscored(tmp_path: Path, trust: float) -> None:
    model = RoboReward(path=str(broken(tmp_path / "it", "qwen")), device="cpu", trust=trust)
    reward = model.score([episode()])[0]
    assert not reward.scored
    assert reward.why_missing == NO_NUMBER
    json.dumps(dict(reward.given), allow_nan=False)


@pytest.mark.parametrize("name", ["roboreward:how=decode", "topreward", "dopamine", "vlac"])
def test_answers_without_a_number_are_not_read(tmp_path: Path, name: str) -> None:
    model = load_model(name, path=str(broken(tmp_path / "it", "qwen")), device="cpu")
    for reward in model.score([episode(), episode(4)]):
        assert not reward.scored
        assert reward.why_missing == NO_NUMBER


def test_where_nothing_is_scored_its_range_is_not_checkable(tmp_path: Path) -> None:
    report = check_model(RoboReward(path=str(broken(tmp_path / "it", "qwen")), device="cpu"))
    clauses = {clause.name: clause for clause in report.clauses}
    assert clauses["keeps its range"].status == "not checkable"
    assert clauses["keeps its range"].facts == f"nothing was scored: {NO_NUMBER}"
    assert "scored none of them" in clauses["answers every episode"].facts
