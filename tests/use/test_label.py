"""Labels by a rule, through the command."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from demerit.data.episode import Episode, Outcome
from demerit.data.store import Store
from fakes.command import demerit_here
from fakes.tiny_video import put_video


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset: one calm episode, one with a large force, one without forces; a person labelled the first."""
    store = Store.create(tmp_path / "set", "set")
    human = Outcome("human", success=False, by="Ada")
    with store.writer() as writer:
        for name, forces in {"calm": [1, 2, 3, 3], "rough": [1, 30, 1, 1], "blind": None}.items():
            put_video(tmp_path / f"{name}.mp4")
            signals = {} if forces is None else {"force": np.array(forces, np.float32)}
            episode = Episode.from_video(tmp_path / f"{name}.mp4", "lift the cup", id=name)
            writer.add(replace(episode, signals=signals, outcomes=(human,) if name == "calm" else ()))
    (tmp_path / "safe.yaml").write_text("formula: never(force > 20 N)")
    return store.root


def outcomes(folder: Path) -> dict[str, list[tuple[str, bool | None]]]:
    return {one.id: [(label.source, label.success) for label in one.outcomes] for one in Store(folder).episodes()}


def test_labels_have_the_source_rule_and_others_stay(folder: Path) -> None:
    said = demerit_here("label", folder, folder.parent / "safe.yaml")
    assert said.returncode == 0 and "1 without a label" in said.stdout
    assert outcomes(folder) == {
        "calm": [("human", False), ("rule", True)],
        "rough": [("rule", False)],
        "blind": [],
    }


def test_labelling_again_replaces_the_labels_of_the_same_rule(folder: Path) -> None:
    rule = folder.parent / "safe.yaml"
    demerit_here("label", folder, rule)
    rule.write_text("formula: never(force > 2 N)")
    demerit_here("label", folder, rule)
    assert outcomes(folder)["calm"] == [("human", False), ("rule", False)]


def test_a_folder_that_is_not_demerits_is_refused(folder: Path) -> None:
    said = demerit_here("label", folder.parent, folder.parent / "safe.yaml")
    assert said.returncode == 1
