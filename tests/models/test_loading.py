"""Model folders: loading, names, and what is refused."""

import json
import sys
from pathlib import Path

import pytest

from demerit.errors import BadInput, DemeritError, UnknownName
from demerit.models import load_model
from demerit.models.compact.model import Compact
from demerit.models.loading import KINDS, write_description
from fakes.tiny_network import make_network


def test_a_folder_loads_as_a_model(
    copied: Path, network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(str(copied))
    assert isinstance(model, Compact) and model.card.name == "mine" and model.card.revision == "tiny"
    monkeypatch.chdir(copied.parent)
    assert load_model("./mine").card == model.card == load_model("mine").card
    assert load_model("./mine:all").card.name == "mine-all"
    assert load_model("./mine", cameras=["wrist", "left side"]).card.name == "mine-wrist+left-side"
    monkeypatch.chdir(copied)
    assert load_model(".").card == model.card
    same, other = load_model(str(network)).card, load_model(str(make_network(tmp_path / "mine-2", seed=1))).card
    assert model.card.weights_hash == same.weights_hash != other.weights_hash
    assert len({card.hash() for card in (model.card, same, other)}) == 3, "names and weights make another model"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("nonsense", "JSON"),
        ("[1]", "list"),
        ('{"kind": "compact"}', "format 1"),
        ('{"format": 1}', "kind"),
        ('{"format": 1, "kind": "compac"}', "'compact'"),
        ('{"format": 1, "kind": "os:system"}', "os:system"),
        ('{"format": 1, "kind": "compact", "threads": 4}', "threads"),
    ],
)
def test_a_wrong_model_json_is_refused(copied: Path, text: str, word: str) -> None:
    (copied / "model.json").write_text(text)
    with pytest.raises(DemeritError, match=word):
        load_model(str(copied))


def test_wrong_paths_and_options_are_refused(copied: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"model\.json"):
        load_model(str(tmp_path))
    with pytest.raises(BadInput, match="compact"):
        load_model(str(copied), colour="red")
    with pytest.raises(BadInput, match="nothing"):
        load_model("./nothing")
    with pytest.raises(UnknownName, match="nothing"):
        load_model("nothing")


def test_a_class_of_a_file_in_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from the console script, which leaves the current folder out of the path."""
    monkeypatch.setattr("sys.path", [entry for entry in sys.path if entry])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rewards_of_mine.py").write_text("from demerit.models.baselines import Clock as Mine\n")
    (tmp_path / "rewards_torn.py").write_text("import no_such_module\n")
    (tmp_path / "rewards_bare.py").write_text("class Bare:\n    card = None\n    def score(self, episodes): ...\n")
    assert load_model("rewards_of_mine:Mine").card.name == "clock"
    for name, words in {
        "rewards_of_nobody:Mine": "which does not exist",
        "rewards_of_mine:Yours": "'Yours'",
        "rewards_torn:Mine": "no_such_module",
        "rewards_bare:Bare": "ModelCard",
    }.items():
        with pytest.raises(BadInput, match=words):
            load_model(name)


def test_a_kind_can_be_registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS._added, "clockwork", lambda folder: load_model("clock"))
    write_description(tmp_path, "clockwork", note="kinds add what they need")
    assert json.loads((tmp_path / "model.json").read_text())["note"] == "kinds add what they need"
    assert load_model(str(tmp_path)).card.name == "clock"
