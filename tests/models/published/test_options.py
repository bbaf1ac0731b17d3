"""Options, names of rewards, and listing without torch."""

import subprocess
import sys
from pathlib import Path

import pytest

from demerit import load_model
from demerit.errors import BadInput, MissingExtra, UnknownName
from demerit.models.published.robometer import PUBLISHED
from demerit.models.published.scoring import reward_name
from demerit.models.published.topreward import TOPReward
from fakes.tiny_vlm import tiny_adapter, tiny_checkpoint

MODELS = ["robometer", "roboreward", "topreward", "dopamine", "vlac"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("plain") / "it")


def test_an_adapter_is_not_named_after_its_base(plain: Path, tmp_path: Path) -> None:
    beside = tiny_adapter(tmp_path / "mine" / "model", plain)
    base, on_it, alone = (
        TOPReward(device="cpu", **options).card.name
        for options in ({"path": str(plain)}, {"path": str(plain), "adapter": str(beside)}, {"path": str(beside)})
    )
    assert on_it == f"{base}+mine"
    assert alone == base.removesuffix("it") + "mine"
    beside = tiny_adapter(tmp_path / "models--a--lora/snapshots" / ("4" * 40), plain)
    card = TOPReward(path=str(plain), adapter=str(beside), device="cpu").card
    assert card.revision.startswith(f"local+{'4' * 40} ")
    assert card.name == "topreward-it+a-lora"


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
        ("ra/model", None, "ra"),
        ("here/run/checkpoint-500", None, "run-checkpoint-500"),
        ("models--robometer--Robometer-4B/snapshots/0123", None, "robometer"),
        ("models--someone--tuned/snapshots/0123", None, "someone-tuned"),
    ],
)
def test_names(place: str, on_it: str | None, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if place.startswith(("here", "ra", "models--")):
        Path(place).mkdir(parents=True)
    if on_it:
        Path(on_it).mkdir(parents=True)
    assert reward_name(place, on_it, PUBLISHED) == name


@pytest.mark.parametrize("model", MODELS)
def test_wrong_options_are_refused(model: str) -> None:
    with pytest.raises(BadInput, match="at_once"):
        load_model(f"{model}:path=a/b,at_once=0")
    with pytest.raises(UnknownName) as caught:
        load_model(f"{model}:path=a/b,pth=1")
    assert "path" in caught.value.known
    for options, word in (("at_once=many", "int"), ("path=c/d", "two")):
        with pytest.raises(BadInput, match=word):
            load_model(f"{model}:path=a/b,{options}")


def test_listing_needs_no_torch() -> None:
    code = (
        "import sys; from demerit.models.loading import describe_model\n"
        f"for name in {MODELS}:\n"
        "    line = describe_model(name)\n"
        "    assert line.extra == 'vlm' and line.verified and line.licence, line\n"
        "assert not {'torch', 'transformers', 'safetensors'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("model", MODELS)
def test_a_missing_extra_is_the_install_line(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra) as caught:
        load_model(model)
    assert caught.value.extra == "vlm"
