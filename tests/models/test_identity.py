"""Whatever changes a model's rewards changes its card, and files that cannot be read are refused with a sentence."""

import hashlib
import io
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demerit.errors import DemeritError, StoreError
from demerit.models import load_model
from demerit.models.reward_store import REWARDS, RewardStore
from demerit.models.taught.model import TaughtConfig, head_file
from fakes.paths import REPO

GOLDEN = REPO / "tests" / "golden"
JUNK: list[Any] = [None, [], {}, [[]], "", "x", -1, 0, 1.5, True, 10**40, ["main", None], {"tasks": None}]
TAUGHT = json.loads((GOLDEN / "taught" / "model.json").read_text("utf-8"))
CALIBRATED = json.loads((GOLDEN / "calibrated" / "model.json").read_text("utf-8"))


@pytest.fixture
def taught(tmp_path: Path) -> Callable[..., Path]:
    """Copy the taught model with other fields in its model.json."""

    def make(**changes: Any) -> Path:
        folder = tmp_path / "taught"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(GOLDEN / "taught", folder)
        (folder / "model.json").write_text(json.dumps({**TAUGHT, **changes}), "utf-8")
        return folder

    return make


def test_everything_that_changes_a_taught_models_rewards_is_in_its_hash(taught: Callable[..., Path]) -> None:
    tasks = {**TAUGHT["taught_on"], "tasks": {"open it": "open it"}}
    edits = [{}, {"stride": 2}, {"cameras": ["wrist"]}, {"parts": TAUGHT["parts"][:-1]}, {"threshold": 0.5}]
    edits += [{"risk": 0.1}, {"taught_on": tasks}]
    hashes = {load_model(str(taught(identity=2, **edit))).card.hash() for edit in edits}
    assert len(hashes) == len(edits)
    without_mark = load_model(str(taught())).card
    assert without_mark.hash() not in hashes  # removing the mark does not bring earlier rewards back
    assert without_mark.weights_hash == "62071b61ca93b83affc71870c4e7eca8"  # as in the version that wrote it


def test_the_networks_split_of_the_features_is_in_a_taught_models_hash() -> None:
    config = TaughtConfig("n", ("main",), ("tower", "places"), 1, None, 0.05, "", {}, "", "head", identity=2)
    assert config.hash(384) != config.hash(385)


@pytest.mark.parametrize("name", sorted(TAUGHT))
def test_junk_in_a_taught_models_file_is_refused_or_read(taught: Callable[..., Path], name: str) -> None:
    for junk in JUNK:
        try:
            load_model(str(taught(**{name: junk})))
        except DemeritError:
            continue
        assert name not in ("network", "head", "kind", "cameras", "parts")


@given(st.sampled_from(sorted(CALIBRATED)), st.sampled_from(JUNK), st.sampled_from(["", "x", "y", "map", "marks"]))
@settings(max_examples=150, deadline=None)
def test_junk_in_a_calibrated_models_file_is_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, name: str, junk: Any, inner: str
) -> None:
    folder = tmp_path_factory.getbasetemp() / "junk-calibrated"
    folder.mkdir(exist_ok=True)
    value = {**CALIBRATED[name], inner: junk} if isinstance(CALIBRATED[name], dict) and inner else junk
    (folder / "model.json").write_text(json.dumps({**CALIBRATED, name: value}), "utf-8")
    try:
        load_model(str(folder))
    except DemeritError:
        pass


@pytest.mark.parametrize("content", ["null", "[" * 100_000, '{"format": 1, "kind": "taught", "x": NaN}', "[]", ""])
def test_a_model_file_that_is_not_an_object_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "model.json").write_text(content, "utf-8")
    with pytest.raises(DemeritError):
        load_model(str(tmp_path))


def test_a_head_that_declares_15_gib_is_refused(taught: Callable[..., Path]) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file, np.load(GOLDEN / "taught" / head_file(TAUGHT["head"])) as arrays:
        for name in arrays.files:
            text = "{'descr': '<f8', 'fortran_order': False, 'shape': (2013265920,)}\n"
            file.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode())
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    folder = taught(head=digest)
    (folder / head_file(digest)).write_bytes(buffer.getvalue())
    with pytest.raises(DemeritError):
        load_model(str(folder))


def test_damaged_rewards_are_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(GOLDEN / "store" / "rewards" / "clock", tmp_path / "clock")
    manifest = json.loads((folder / "rewards.json").read_text("utf-8"))
    (part,) = (folder / "rewards").glob("*.parquet")
    rows = pq.read_table(part).to_pylist()
    for name, junk in (("given", "[" * 5000), ("given", None), ("at", None), ("value", [1.0])):
        pq.write_table(pa.Table.from_pylist([{**rows[0], name: junk}], REWARDS), part)
        with pytest.raises(StoreError):
            list(RewardStore(folder))
    for card in (None, {}, {**manifest["header"]["card"], "low": "x"}, []):
        header = {**manifest["header"], "card": card}
        (folder / "rewards.json").write_text(json.dumps({**manifest, "header": header}), "utf-8")
        with pytest.raises(StoreError):
            _ = RewardStore(folder).card
