"""Whatever decides rewards makes others when it changes; no two models share a name, and adapters fit their base."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from demerit import load_model
from demerit.errors import AmbiguityWarning, BadInput
from demerit.models.published.dopamine import Dopamine
from demerit.models.published.naming import filed_under
from demerit.models.published.robometer import PUBLISHED, Robometer
from demerit.models.published.roboreward import RoboReward
from demerit.models.published.topreward import TOPReward
from demerit.models.published.vlac import VLAC
from demerit.models.vlm.checkpoint import read_checkpoint
from demerit.models.vlm.hub import id_of, located
from fakes.tiny_vlm import tiny_checkpoint

TALKERS = (RoboReward, TOPReward, Dopamine, VLAC)
MODULE = "base_model.model.model.language_model.layers.0.self_attn.q_proj"


def change_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    facts = json.loads(path.read_text())
    change(facts)
    path.write_text(json.dumps(facts))


def other_merge(folder: Path) -> None:
    """Make the tokenizer cut words in another way: one merge fewer."""
    change_json(folder / "tokenizer.json", lambda facts: facts["model"]["merges"].pop())


def smaller_pictures(folder: Path) -> None:
    size = {"shortest_edge": 4096, "longest_edge": 65536}
    (folder / "video_preprocessor_config.json").write_text(json.dumps({"size": size}))


CHANGES: dict[str, Callable[[Path], None]] = {
    "rope sections": lambda folder: change_json(
        folder / "config.json", lambda facts: facts["text_config"]["rope_scaling"].update(mrope_section=[2, 3, 3])
    ),
    "deepstack": lambda folder: change_json(
        folder / "config.json", lambda facts: facts["vision_config"].update(deepstack_visual_indexes=[0, 1, 3])
    ),
    "epsilon": lambda folder: change_json(
        folder / "config.json", lambda facts: facts["text_config"].update(rms_norm_eps=1e-3)
    ),
    "tokenizer": other_merge,
    "video bounds": smaller_pictures,
    "picture bounds": lambda folder: (folder / "preprocessor_config.json").write_text('{"size": 3}') and None,
    "weights": lambda folder: save_file(
        {name: value + 1 for name, value in load_file(folder / "model.safetensors").items()},
        folder / "model.safetensors",
    ),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("plain") / "it")


@pytest.fixture(scope="module")
def meter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("meter") / "it", "robometer")


def hashed(kind: Callable[..., Any], folder: Path, **options: Any) -> str:
    return str(kind(path=str(folder), device="cpu", **options).card.weights_hash)


@pytest.mark.parametrize("what", CHANGES)
def test_whatever_decides_the_answers_makes_other_rewards(plain: Path, tmp_path: Path, what: str) -> None:
    before = {kind: hashed(kind, plain) for kind in TALKERS}
    shutil.copytree(plain, tmp_path / "it")
    assert {kind: hashed(kind, tmp_path / "it") for kind in TALKERS} == before, "the same model in another place"
    CHANGES[what](tmp_path / "it")
    after = {kind: hashed(kind, tmp_path / "it") for kind in TALKERS}
    assert all(after[kind] != before[kind] for kind in TALKERS)


def test_what_decides_nothing_makes_no_other_rewards(plain: Path, tmp_path: Path) -> None:
    shutil.copytree(plain, tmp_path / "it")
    change_json(tmp_path / "it/config.json", lambda facts: facts.update(transformers_version="9.9"))
    assert hashed(TOPReward, tmp_path / "it") == hashed(TOPReward, plain)


@pytest.mark.parametrize("kind", [*TALKERS, Robometer])
def test_another_kind_of_number_makes_other_rewards(plain: Path, meter: Path, kind: Callable[..., Any]) -> None:
    folder = meter if kind is Robometer else plain
    assert hashed(kind, folder, dtype="float32") != hashed(kind, folder, dtype="bfloat16")


def test_a_robometer_is_told_apart_by_config_and_tokenizer(meter: Path, tmp_path: Path) -> None:
    before = hashed(Robometer, meter)
    copy = tmp_path / "it"
    shutil.copytree(meter, copy)
    assert hashed(Robometer, copy) == before
    CHANGES["rope sections"](copy)
    changed = hashed(Robometer, copy)
    shutil.copy(meter.with_name("it-base") / "tokenizer.json", copy)
    assert before != changed == hashed(Robometer, copy), "the same tokenizer, found elsewhere"
    # the five tokens stay the last rows; words are cut in another way
    change_json(copy / "tokenizer.json", lambda facts: facts["model"]["merges"].reverse())
    assert hashed(Robometer, copy) != changed


def test_adapters_that_count_differently_make_other_rewards(plain: Path, tmp_path: Path) -> None:
    """Two modules whose strengths are exchanged: the same files, the same set of strengths."""
    strengths = ({"q_proj": 2, "k_proj": 8}, {"q_proj": 8, "k_proj": 2})
    found = [
        hashed(RoboReward, plain, adapter=str(adapter(tmp_path / str(at), plain, alpha_pattern=one)))
        for at, one in enumerate(strengths)
    ]
    assert found[0] != found[1]


def test_another_goal_under_the_same_name_makes_other_rewards(plain: Path, tmp_path: Path) -> None:
    cards = []
    for shade in (10, 10, 200):
        Image.fromarray(np.full((32, 32, 3), shade, np.uint8)).save(tmp_path / "done.png")
        cards.append(Dopamine(path=str(plain), device="cpu", goal=str(tmp_path / "done.png")).card)
    assert cards[0] == cards[1]
    assert cards[0].hash() != cards[2].hash()


# --- names --------------------------------------------------------------------------------------------------------


def test_trained_models_have_names_of_their_own(meter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for run in ("ra", "rb"):
        shutil.copytree(meter, tmp_path / run / "model")
    names = [load_model(f"robometer:path={tmp_path / run / 'model'}").card.name for run in ("ra", "rb")]
    assert names == ["ra", "rb"]
    monkeypatch.chdir(tmp_path / "ra" / "model")
    assert load_model("robometer:path=.").card.name == "ra"


@pytest.mark.parametrize("kind", TALKERS)
def test_an_adapter_is_not_filed_under_its_base(plain: Path, tmp_path: Path, kind: Callable[..., Any]) -> None:
    beside = adapter(tmp_path / "mine" / "model", plain)
    base, on_it, alone = (
        kind(device="cpu", **options).card.name
        for options in ({"path": str(plain)}, {"path": str(plain), "adapter": str(beside)}, {"path": str(beside)})
    )
    assert on_it == f"{base}+mine"
    assert alone == base.removesuffix("it") + "mine"


@pytest.mark.parametrize(
    ("place", "on_it", "name"),
    [
        ("robometer/Robometer-4B", None, "robometer"),
        ("lerobot/Robometer-4B", None, "robometer-lerobot"),
        ("robometer/Robometer-4B", "runs/x/model", "robometer+x"),
        ("someone/tuned", None, "someone-tuned"),
        ("Qwen/Qwen3-VL-4B-Instruct", None, "Qwen3-VL-4B-Instruct"),
        ("here/robometer", None, "robometer-local"),
        ("here/Robometer-lerobot/model", None, "Robometer-lerobot-local"),
        ("here/clock", None, "clock-local"),
        ("here/run/checkpoint-500", None, "run-checkpoint-500"),
        ("models--robometer--Robometer-4B/snapshots/0123", None, "robometer"),
        ("models--someone--tuned/snapshots/0123", None, "someone-tuned"),
    ],
)
def test_names(place: str, on_it: str | None, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if place.startswith(("here", "models--")):
        Path(place).mkdir(parents=True)
    if on_it:
        Path(on_it).mkdir(parents=True)
    assert filed_under(place, on_it, PUBLISHED) == name


def test_a_folder_called_like_a_size_is_not_the_published_one(tmp_path: Path) -> None:
    assert RoboReward(path=str(tiny_checkpoint(tmp_path / "8b")), device="cpu").card.name == "roboreward-8b-local"


# --- adapters and their bases -------------------------------------------------------------------------------------


def adapter(folder: Path, base: Path | str, start: str | None = None, **changes: Any) -> Path:
    """Write a LoRA adapter of two modules; `start` is the fingerprint that training would have left."""
    folder.mkdir(parents=True)
    shapes = {"q_proj": 64, "k_proj": 32}
    made = {}
    for name, out in shapes.items():
        module = MODULE.replace("q_proj", name)
        made[f"{module}.lora_A.weight"] = torch.ones(2, 64)
        made[f"{module}.lora_B.weight"] = torch.ones(out, 2)
    save_file(made, folder / "adapter_model.safetensors")
    facts = {"peft_type": "LORA", "base_model_name_or_path": str(base), "r": 2, "lora_alpha": 4, **changes}
    (folder / "adapter_config.json").write_text(json.dumps(facts))
    if start is not None:
        (folder / "training.json").write_text(json.dumps({"start": str(base), "start_fingerprint": start}))
    return folder


def test_an_adapter_of_other_weights_is_refused(plain: Path, tmp_path: Path) -> None:
    other = tiny_checkpoint(tmp_path / "other", seed=5)
    fine = adapter(tmp_path / "fine", plain, read_checkpoint(str(plain)).fingerprint())
    shutil.copytree(plain, tmp_path / "copy")
    for base in (plain, tmp_path / "copy"):
        read_checkpoint(str(base), adapter=str(fine))
    with pytest.raises(BadInput, match=r"expected the weights that .*it had when .*training\.json.*other with others"):
        read_checkpoint(str(other), adapter=str(fine))
    # the model that it names has changed since
    stale = adapter(tmp_path / "stale", other, read_checkpoint(str(plain)).fingerprint())
    with pytest.raises(BadInput, match="other with others"):
        read_checkpoint(str(stale))


def test_without_a_fingerprint_the_named_base_decides(plain: Path, tmp_path: Path) -> None:
    other = tiny_checkpoint(tmp_path / "other", seed=5)
    bare = adapter(tmp_path / "bare", plain)
    shutil.copytree(plain, tmp_path / "copy")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for base in (plain, tmp_path / "copy"):
            read_checkpoint(str(base), adapter=str(bare))
        read_checkpoint(str(other), adapter=str(adapter(tmp_path / "same name", "/elsewhere/other")))
        read_checkpoint(str(other), adapter=str(adapter(tmp_path / "no name", "")))
    with pytest.raises(BadInput, match=r"the weights that .*it has, which .*adapter_config\.json names"):
        read_checkpoint(str(other), adapter=str(bare))
    unknown = adapter(tmp_path / "unknown", "Qwen/Qwen3-VL-8B-Instruct")
    with pytest.warns(AmbiguityWarning, match=r"was made for Qwen/Qwen3-VL-8B-Instruct and is merged into .*other"):
        read_checkpoint(str(other), adapter=str(unknown))


# --- the tokenizer's rows -----------------------------------------------------------------------------------------


def with_one_more(folder: Path, to: Path) -> None:
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.add_special_tokens(["<|one_more|>"])
    backend.save(str(to / "tokenizer.json"))


def test_robometers_tokens_are_the_last_rows_or_nothing(meter: Path, tmp_path: Path) -> None:
    longer, shorter = tmp_path / "longer", tmp_path / "shorter"
    for folder in (longer, shorter):
        shutil.copytree(meter, folder)
    with_one_more(meter.with_name("it-base"), longer)
    with pytest.raises(BadInput, match=r"as the last rows of the embedding table, 346 to 350 .*\[347, 348, 349"):
        Robometer(path=str(longer))
    shutil.copy(meter.with_name("it-base") / "tokenizer.json", shorter)

    def drop_the_last(facts: dict[str, Any]) -> None:
        facts["added_tokens"].pop()

    change_json(shorter / "tokenizer.json", drop_the_last)
    with pytest.raises(BadInput, match=r"346 to 350 .*another model's tokenizer\), got \[345, 346"):
        Robometer(path=str(shorter))


def test_a_tokenizer_with_the_five_tokens_in_it_is_as_good(meter: Path, tmp_path: Path) -> None:
    shutil.copytree(meter, tmp_path / "it")
    backend = Tokenizer.from_file(str(meter.with_name("it-base") / "tokenizer.json"))
    backend.add_special_tokens(
        ["<|split_token|>", "<|reward_token|>", "<|pref_token|>", "<|sim_token|>", "<|prog_token|>"]
    )
    backend.save(str(tmp_path / "it/tokenizer.json"))
    assert Robometer(path=str(tmp_path / "it")).opened.tokens.id("<|prog_token|>") == 350


def test_a_tokenizer_whose_pictures_are_other_rows_is_refused(plain: Path, tmp_path: Path) -> None:
    shutil.copytree(plain, tmp_path / "it")
    change_json(tmp_path / "it/config.json", lambda facts: facts.update(image_token_id=7))
    with pytest.raises(BadInput, match=r"<\|image_pad\|> as token 7, as config\.json says, got 332"):
        TOPReward(path=str(tmp_path / "it"), device="cpu")


# --- which commit -------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, plain: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A hub whose main can be moved: what its client leaves on disk."""
    home = tmp_path / "hub" / "models--a--b"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    main = "1" * 40

    def fetch(_: str, revision: str | None = None, **__: Any) -> str:
        commit = revision if revision not in (None, "main") else main
        if not (home / "snapshots" / commit).is_dir():
            shutil.copytree(plain, home / "snapshots" / commit)
        if revision in (None, "main"):
            (home / "refs").mkdir(exist_ok=True)
            (home / "refs" / "main").write_text(main)
        return os.fspath(home / "snapshots" / commit)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)

    def move(commit: str) -> None:
        nonlocal main
        main = commit

    return move


def test_a_moving_main_is_said_once_and_when_it_moves(cache: Callable[[str], None]) -> None:
    with pytest.warns(AmbiguityWarning, match=f"a/b: no revision is pinned.* revision={'1' * 40} keeps today's"):
        folder = located("a/b")
    assert id_of(folder) == "a/b"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        located("a/b")
        located("a/b", "2" * 40)
    cache("3" * 40)
    with pytest.warns(AmbiguityWarning, match=f"moved to {'3' * 40}.* revision={'1' * 40} keeps the one of before"):
        located("a/b", "main")


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("kind", TALKERS)
def test_the_commit_is_on_the_card(kind: Callable[..., Any]) -> None:
    card = kind(path="a/b", revision="2" * 40, device="cpu").card
    assert "2" * 40 in card.revision
    assert card.name.endswith("a-b")
    with pytest.warns(AmbiguityWarning, match="no revision is pinned"):
        assert "1" * 40 in kind(path="a/b", device="cpu").card.revision


def test_the_commit_of_an_adapter_is_on_the_card_too(plain: Path, tmp_path: Path) -> None:
    beside = adapter(tmp_path / "models--a--lora/snapshots" / ("4" * 40), plain)
    card = TOPReward(path=str(plain), adapter=str(beside), device="cpu").card
    assert card.revision.startswith(f"local+{'4' * 40} ")
    assert card.name == "topreward-it+a-lora"
