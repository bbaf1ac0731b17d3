"""Views without the episodes that fail a condition: what goes, why, and that nothing else changes."""

import hashlib
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demerit.data.dataset import Dataset
from demerit.data.episode import Episode, Event, Outcome, Preference
from demerit.data.formats import open_dataset
from demerit.data.store import Store
from demerit.errors import BadInput
from demerit.models.reward_store import RewardStore
from demerit.models.score import score_missing
from demerit.use.filter import decide, need_at_least, need_best, need_no_kind, need_success, write_filter_page
from fakes.command import demerit_here, error_sentence
from fakes.lerobot_fixture import write_v21
from fakes.named_values import Named
from fakes.tiny_video import put_video

MODEL = ("--model", "fakes.named_values:Named")
VALUES = ("0.9", "0.3", "0.05", "0.6", "unscored", "0.8")
LABELS = {
    0: Outcome("human", success=True),
    1: Outcome("human", success=False, events=(Event("spill", 1, 2),)),
    2: Outcome("human", success=False),
    3: Outcome("human", success=True),
}
FORCES = {0: [1, 2, 3, 3], 3: [1, 30, 1, 1]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six episodes e0 to e5: some labelled, two with forces, one that cannot be scored."""
    store = Store.create(tmp_path / "set", "set")
    with store.writer() as writer:
        for i, value in enumerate(VALUES):
            video = put_video(tmp_path / f"e{i}.mp4")
            task = "lift the cup" if i % 2 else "wipe the table"
            episode = Episode.from_video(video, f"{task} {value}")
            signals = {"force": np.array(FORCES[i], np.float32)} if i in FORCES else {}
            writer.add(replace(episode, signals=signals, outcomes=(LABELS[i],) if i in LABELS else ()))
        writer.add(Preference("e0", "e3", "a", "human"))
        writer.add(Preference("e0", "e1", "a", "human"))
    (tmp_path / "safe.yaml").write_text("formula: never(force > 20 N)")
    return store.root


def run(folder: Path, *options: object, dest: str = "view") -> dict[str, Any]:
    said = demerit_here("filter", folder, folder.parent / dest, *options, "--json")
    assert said.returncode == 0, said.stderr
    found: dict[str, Any] = json.loads(said.stdout)
    assert (found["lerobot_edit"] is None) == (folder.name != "lr")
    return found


def tree(folder: Path) -> dict[str, str]:
    """Every file of a folder with its hash, locks and rewards aside."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files if "rewards" not in path.parts}


@pytest.mark.parametrize(
    ("options", "kept", "dropped", "undecided"),
    [
        ((*MODEL, "--min-final", 0.5), "e0 e3 e4 e5", {"final value < 0.5": 2}, 1),
        ((*MODEL, "--min-mean", 0.35), "e0 e4 e5", {"mean value < 0.35": 3}, 1),
        ((*MODEL, "--keep-best", "40%"), "e0 e4 e5", {"not among the best 40%": 3}, 1),
        ((*MODEL, "--keep-best", "1"), "e0 e4", {"not among the best 1": 4}, 1),
        ((*MODEL, "--success", "model"), "e0 e2 e3 e4 e5", {"a failure by the model": 1}, 2),  # e2 is unfamiliar
        (("--success", "labels"), "e0 e3 e4 e5", {"a failure by the labels": 2}, 2),
        (("--drop-kinds", "spill"), "e0 e2 e3 e4 e5", {"failure kind spill": 1}, 3),
        (("--rule", "safe.yaml"), "e0 e1 e2 e4 e5", {"rule-safe broken": 1}, 4),
        ((*MODEL, "--min-familiarity", 0.01), "e0 e1 e3 e4 e5", {"familiarity < 0.01": 1}, 1),
        ((*MODEL, "--min-final", 0.5, "--unscored", "drop"), "e0 e3 e5", {"final value < 0.5": 2}, 1),
        (
            (*MODEL, "--min-final", 0.5, "--rule", "safe.yaml"),
            "e0 e4 e5",
            {"final value < 0.5": 2, "rule-safe broken": 1},
            2,
        ),
    ],
)
def test_every_condition_drops_and_counts_what_it_should(
    folder: Path, options: tuple[object, ...], kept: str, dropped: dict[str, int], undecided: int
) -> None:
    options = tuple(folder.parent / one if one == "safe.yaml" else one for one in options)
    found = run(folder, *options)
    assert found["kept_ids"] == kept.split()
    assert found["dropped_by"] == dropped
    assert sum(row["episodes"] for row in found["undecided"]) == undecided
    assert Store(folder.parent / "view").ids() == kept.split()


def test_the_view_refers_to_the_videos_and_says_why_each_episode_went(folder: Path) -> None:
    before = tree(folder.parent)
    run(folder, *MODEL, "--min-final", 0.5, "--drop-kinds", "spill")
    view = folder.parent / "view"
    assert {path: hash for path, hash in tree(folder.parent).items() if not path.startswith(str(view))} == before
    assert not list(view.rglob("*.mp4"))
    lines = [json.loads(line) for line in (view / "decisions.jsonl").read_text().splitlines()]
    assert [(line["episode"], line["kept"]) for line in lines] == [
        (f"e{i}", kept) for i, kept in enumerate([True, False, False, True, True, True])
    ]
    assert lines[1]["reasons"] == ["final value 0.3 < 0.5", "failure kind spill"]
    assert lines[4]["undecided"]["final value < 0.5"] == "the sensor slept"
    stored = Store(view)
    assert stored.episode("e0").main.take([0]).shape == (1, 32, 32, 3)
    assert stored.episode("e3").signals["force"].tolist() == FORCES[3]
    assert [(one.a, one.b) for one in stored.preferences()] == [("e0", "e3")]
    assert stored.episode("e0").outcome == LABELS[0]


def test_rewards_come_along_and_are_not_computed_again(folder: Path) -> None:
    run(folder, *MODEL, "--min-final", 0.5)
    view = folder.parent / "view"
    assert {reward.episode for reward in RewardStore(view / "rewards" / "named")} == {"e0", "e3", "e4", "e5"}
    done = []
    score_missing(open_dataset(str(view)), Named(), on_progress=lambda progress: done.append(progress.kept))
    assert done[-1] == 4


def test_the_best_of_each_task(folder: Path) -> None:
    rows = [(one, reward) for (one, reward) in score_missing(open_dataset(str(folder)), Named(), folder / "r")]
    renamed = [(replace(one, instruction=" ".join(one.instruction.split()[:-1])), reward) for one, reward in rows]
    kept = decide(renamed, [], need_best("1", per_task=True)).kept
    assert kept == ["e0", "e4", "e5"]  # the best table, an unscored one, the best cup


def test_equal_values_keep_the_first(tmp_path: Path) -> None:
    images = np.zeros((4, 4, 4, 3), np.uint8)
    episodes = [Episode.from_array(images, "lift the cup 0.5", f"e{i}") for i in range(5)]
    scored = score_missing(Dataset.from_episodes(episodes), Named(), tmp_path)
    assert decide(scored, [], need_best("50%")).kept == ["e0", "e1", "e2"]


def test_lerobot_indices_are_those_of_its_trainer(tmp_path: Path) -> None:
    words = [[f"lift the cup {value}"] for value in ("0.9", "0.1", "0.7")]
    write_v21(tmp_path / "lr", [4, 4, 4], tasks=words)
    found = run(tmp_path / "lr", *MODEL, "--min-final", 0.5)
    assert found["lerobot"] == {"kept": [0, 2], "dropped": [1]}
    assert (tmp_path / "view" / "episodes_kept.json").read_text() == "[0,2]"
    assert json.loads((tmp_path / "view" / "episodes_dropped.json").read_text()) == [1]
    assert shlex.split(found["lerobot_edit"]) == [
        f"HF_LEROBOT_HOME={tmp_path}",
        "lerobot-edit-dataset",
        "--repo_id=lr",
        "--new_repo_id=lr_kept",
        "--operation.type=delete_episodes",
        "--operation.episode_indices=[1]",
    ]
    words = ("filter", tmp_path / "lr", *MODEL, "--dry-run", "--page", tmp_path / "page.html", "--min-final")
    assert found["lerobot_edit"] in demerit_here(*words, 0.5).stdout
    assert "  1 dropped: final value < 0.5\n" in demerit_here(*words, 0.5).stdout
    assert "lerobot-edit-dataset" not in demerit_here(*words, 0).stdout  # nothing goes


def test_a_dry_run_writes_only_the_page_and_no_text_of_the_data_becomes_html(tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)></script><script>alert(2)</script> 0.1"
    store = Store.create(tmp_path / "set", "set")
    with store.writer() as writer:
        for i, words in enumerate((evil, "lift the cup 0.9")):
            writer.add(Episode.from_video(put_video(tmp_path / f"{i}.mp4"), words))
    before = tree(tmp_path)
    page = tmp_path / "look.html"
    said = demerit_here("filter", store.root, *MODEL, "--min-final", 0.5, "--dry-run", "--page", page)
    assert said.returncode == 0, said.stderr
    assert set(tree(tmp_path)) - set(before) == {str(page)}
    text = page.read_text()
    assert "<img src=x" not in text and "<script>alert" not in text
    rows = json.loads(text.split('id="rows">')[1].split("</script>")[0])
    assert [(row["instruction"], row["kept"], bool(row["film"])) for row in rows] == [
        (evil, False, True),
        ("lift the cup 0.9", True, True),
    ]


def test_the_page_has_as_many_pictures_as_asked_dropped_ones_first(folder: Path) -> None:
    dataset = open_dataset(str(folder))
    outcome = decide(score_missing(dataset, Named()), [need_at_least("final value", 0.5, lambda one: one.final)])
    write_filter_page(outcome, dataset, folder.parent / "page.html", pictures=3)
    rows = json.loads((folder.parent / "page.html").read_text().split('id="rows">')[1].split("</script>")[0])
    assert [row["episode"] for row in rows if row["film"]] == ["e0", "e1", "e2"]


def test_the_page_has_the_warnings_of_the_terminal(folder: Path) -> None:
    page = folder.parent / "page.html"
    options = ("--dry-run", "--page", page)
    said = demerit_here("filter", folder, *MODEL, "--min-final", 0.5, *options, "--json")
    (warning,) = json.loads(said.stdout)["verdicts"]["warnings"]
    assert warning.startswith("unfamiliar: 1 of 6") and warning in page.read_text()
    assert demerit_here("filter", folder, "--success", "labels", *options).returncode == 0
    assert 'class="warnings"' not in page.read_text()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--min-final", 0.5), "--model"),
        (MODEL, "conditions"),
        ((*MODEL, "--min-final", 0.5, "--unscored", "fail"), "--unscored fail"),
        ((*MODEL, "--min-final", 0.95, "--unscored", "drop"), "conditions"),
        ((*MODEL, "--min-final", "nan"), "final value"),
        ((*MODEL, "--keep-best", "0.5"), "--keep-best"),
        ((*MODEL, "--keep-best", "120%"), "--keep-best"),
        ((*MODEL, "--keep-best", "0"), "--keep-best"),
        ((*MODEL, "--min-final", 0.5, "--per-task"), "--per-task"),
        ((*MODEL, "--success", "people"), "--success"),
        (("--drop-kinds", "spil"), "Did you mean 'spill'"),
        (("--rule", "absent.yaml"), "absent.yaml"),
        (("--model", "clock", "--success", "model"), "condition"),
        (("--model", "clock", "--min-familiarity", 0.1), "condition"),
        (("--model", "fakes.named_values:Alone", "--min-final", 0.5), "compared"),
    ],
)
def test_bad_input_is_a_sentence_and_writes_no_view(folder: Path, options: tuple[object, ...], what: str) -> None:
    said = demerit_here("filter", folder, folder.parent / "view", *options)
    assert said.returncode == 1 and what in said.stderr and "Traceback" not in said.stderr
    assert not (folder.parent / "view").exists()


def test_a_destination_that_is_in_use_is_refused(folder: Path) -> None:
    target = folder.parent / "mine"
    target.mkdir()
    (target / "thesis.txt").write_text("years")
    assert "mine" in error_sentence(demerit_here("filter", folder, target, *MODEL, "--min-final", 0.5))
    assert [path.name for path in target.iterdir()] == ["thesis.txt"]
    page = folder.parent / "page.html"
    page.write_text("another page")
    error_sentence(demerit_here("filter", folder, *MODEL, "--min-final", 0.5, "--dry-run", "--page", page))
    assert page.read_text() == "another page"


def test_a_dataset_that_changed_is_scored_again(folder: Path) -> None:
    run(folder, *MODEL, "--min-final", 0.5)
    with Store(folder).writer() as writer:
        writer.update({"e1": {"instruction": "lift the cup 0.7"}})
    assert "e1" in run(folder, *MODEL, "--min-final", 0.5, dest="again")["kept_ids"]


def test_a_kept_episode_that_cannot_be_read_is_counted(folder: Path) -> None:
    (folder.parent / "e3.mp4").unlink()
    found = run(folder, "--success", "labels")
    assert "e3" not in found["kept_ids"] and found["dropped_by"]["unreadable"] == 1


def test_a_failure_while_writing_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("demerit.use.filter.write_json", fail)
    said = demerit_here("filter", folder, folder.parent / "view", *MODEL, "--min-final", 0.5)
    assert "space" in error_sentence(said)
    assert not (folder.parent / "view").exists() and not (folder.parent / ".view.part").exists()


def test_labels_that_name_no_failure_are_not_judged_by_kind() -> None:
    images = np.zeros((4, 4, 4, 3), np.uint8)
    plain = Episode.from_array(images, "lift the cup 0.5")
    (reward,) = Named().score([plain])
    _, judge = need_no_kind("spill")
    found = [judge(replace(plain, outcomes=labels), reward)[0] for labels in ((), (LABELS[2],), (LABELS[0],))]
    assert found == [None, None, True]
    assert judge(replace(plain, outcomes=(LABELS[1],)), reward)[0] is False
    assert need_success("labels")[1](plain, reward)[0] is None


def test_a_condition_that_can_judge_nothing_is_an_error() -> None:
    plain = Episode.from_array(np.zeros((4, 4, 4, 3), np.uint8), "lift the cup 0.5")
    with pytest.raises(BadInput, match="no label"):
        decide(zip([plain], Named().score([plain]), strict=True), [need_success("labels")])
