"""The configuration of the compact model."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from demerit.data.episode import NOT_A_MODEL
from demerit.errors import BadInput, DemeritError
from train_compact.config import CompactTrainConfig, load_compact_config


def test_the_file_and_the_defaults_made_the_shipped_weights() -> None:
    shipped = files("demerit") / "assets" / "compact" / "training.json"
    made = json.loads(shipped.read_text("utf-8"))["recipe"]
    now = json.loads(json.dumps(load_compact_config().as_dict()))
    later = {name: now.pop(name) for name in ("sources", "without")}  # recipes name these since then
    assert now["shares"].pop("outcome") == 0.2  # there were no such episodes
    assert now == made and later == {"sources": [*NOT_A_MODEL, "model:validated"], "without": []}
    assert load_compact_config() == CompactTrainConfig()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"steps": 0}, "steps"),
        ({"clips": 3}, "even"),
        ({"frames": 3}, "4"),
        ({"size": 100}, "32"),
        ({"rewind": 1.5}, "rewind"),
        ({"rewind": 0.9, "wrong_words": 0.2}, "together"),
        ({"fold": 3}, "fold"),
        ({"failures": "no"}, "failures"),
        ({"tower_rate": "fast"}, "tower_rate"),
        ({"head_rate": "nan"}, "head_rate"),
        ({"facts": "inf"}, "finite"),
        ({"shares": {"measured": 0}}, "shares"),
        ({"shares": {"measurd": 1}}, "measured"),
        ({"wrong_kinds": "model"}, "list"),
        ({"stps": 3}, "steps"),
    ],
)
def test_bad_numbers_are_refused(change: dict[Any, Any], found: str) -> None:
    with pytest.raises(DemeritError, match=found):
        CompactTrainConfig().change(change)


def test_a_file_changes_some_numbers(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("tower_rate: 3e-4\nwrong_kinds: []\nfold: null\n")
    mine = load_compact_config(tmp_path / "mine.yaml")
    assert (mine.tower_rate, mine.wrong_kinds, mine.fold) == (3e-4, (), None)
    assert CompactTrainConfig(fold=1).change({"fold": None}).fold is None
    (tmp_path / "torn.yaml").write_text("steps: [")
    for name in ("torn.yaml", "absent.yaml"):
        with pytest.raises(BadInput, match=name):
            load_compact_config(tmp_path / name)
