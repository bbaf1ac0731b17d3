"""Which episodes and labels reach a trainer: splits and label sources, the same for every plan."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demerit.data.episode import NOT_A_MODEL, Edit, Episode, Origin, Outcome, Preference
from demerit.data.frames import Frames
from demerit.errors import BadInput, UnknownName
from demerit.training.prepared import (
    CorpusPart,
    PreparedCorpus,
    count_skipped,
    count_sources,
    open_corpus,
    prepare,
    read_provenance,
)
from demerit.training.rewind.data import CompactCorpusPlan
from demerit.training.vlm.config import RobometerTrainConfig, RoboRewardTrainConfig, VLMCorpusPlan
from fakes.toy_corpus import SIZE, list_dataset, small_config
from train_compact.clips import ClipSampler

GRADES = VLMCorpusPlan(RoboRewardTrainConfig(most_frames=8))
PLANS = [GRADES, VLMCorpusPlan(RobometerTrainConfig(most_frames=8)), CompactCorpusPlan(SIZE)]
NAMES = ["roboreward", "robometer", "compact"]
CHECKED, OPINION = "author, relabel-2.1a2b3c", "author"


def rollout(id: str, split: str = "", source: Any = "human", by: str = "", grade: int = 2, **more: Any) -> Episode:
    images = np.full((12, 16, 16, 3), sum(id.encode()) % 200, np.uint8)
    outcome = Outcome(source, success=grade == 5, grade=grade, by=by)
    origin = Origin(split=split, group=more.pop("group", ""))
    frames = {"main": Frames.from_array(images, fps=4.0)}
    return Episode(id, more.pop("instruction", f"do {id}"), frames, (outcome,), origin, **more)


def prepare_list(folder: Path, *episodes: Episode | Preference, plan: Any = GRADES, **part: Any) -> PreparedCorpus:
    return prepare([CorpusPart("lab", list_dataset(episodes), **part)], folder, plan, workers=0)


@pytest.mark.parametrize("plan", PLANS, ids=NAMES)
def test_a_dataset_keeps_its_own_splits(tmp_path: Path, plan: Any) -> None:
    splits = [
        "train",
        "training",
        "",
        "lab-2",
        "val",
        "valid",
        "validation",
        "dev",
        "eval",
        "test",
        "Test_2",
        "held_out",
    ]
    corpus = prepare_list(tmp_path / "corpus", *(rollout(f"e-{split}", split) for split in splits), plan=plan)
    found = {row.id.removeprefix("e-"): row.split for row in corpus.rows}
    assert found == dict.fromkeys(splits[:4], "train") | dict.fromkeys(splits[4:9], "held-out")
    assert count_skipped(tmp_path / "corpus") == {"of the test split": 3}


def test_a_test_split_is_taken_only_when_forced(tmp_path: Path) -> None:
    test = rollout("a", "test")
    with pytest.raises(BadInput, match="--use-test-split") as caught:
        prepare_list(tmp_path / "refused", test)
    assert "lab" in caught.value.what
    parts = [CorpusPart("lab", list_dataset([rollout("b")])), CorpusPart("late", list_dataset([test]), "held-out")]
    with pytest.raises(BadInput, match="late"):  # weights are not chosen by a test split either
        prepare(parts, tmp_path / "chosen", GRADES, workers=0)
    forced = prepare_list(tmp_path / "forced", test, use_test_split=True)
    assert [(row.id, row.split) for row in forced.rows] == [("a", "train")]
    assert read_provenance(tmp_path / "forced")["parts"][0]["use_test_split"] is True


def test_an_episode_that_changes_its_split_changes_the_corpus(tmp_path: Path) -> None:
    prepare_list(tmp_path / "corpus", rollout("a"), rollout("b", "train"))
    prepare_list(tmp_path / "corpus", rollout("a", "train"), rollout("b"))  # none is train
    with pytest.raises(BadInput, match="'lab' changed"):
        prepare_list(tmp_path / "corpus", rollout("a"), rollout("b", "test"))


def test_a_dataset_may_be_held_out_of_its_own_training_split(tmp_path: Path) -> None:
    whole = [rollout("a", "train"), rollout("b", "val")]
    parts = [CorpusPart("lab", list_dataset(whole)), CorpusPart("lab", list_dataset(whole[1:]), "held-out")]
    assert {row.split for row in prepare(parts, tmp_path / "corpus", GRADES, workers=0).rows} == {"train", "held-out"}


@pytest.mark.parametrize("plan", PLANS, ids=NAMES)
def test_validated_labels_of_a_model_are_trained_on_and_opinions_are_not(tmp_path: Path, plan: Any) -> None:
    episodes = [rollout("person"), rollout("checked", "", "model", CHECKED), rollout("opinion", "", "model", OPINION)]
    corpus = prepare_list(tmp_path / "corpus", *episodes, plan=plan)
    assert [row.id for row in corpus.rows] == ["person", "checked"]
    assert count_skipped(tmp_path / "corpus") == {"label source not taken: model": 1}
    counts = count_sources(tmp_path / "corpus")
    assert counts is not None
    assert counts.as_dict() == {"taken": {"human": 1, "model:validated": 1}, "dropped": {"model": 1}}


def test_a_recipe_names_its_sources(tmp_path: Path) -> None:
    episodes = [rollout("person"), rollout("checked", "", "model", CHECKED), rollout("opinion", "", "model", OPINION)]
    for sources, expected in (
        (NOT_A_MODEL, ["person"]),
        (("model:validated",), ["checked"]),
        (("model",), ["checked", "opinion"]),
    ):
        plan = VLMCorpusPlan(RoboRewardTrainConfig(most_frames=8).change({"sources": list(sources)}))
        folder = tmp_path / "-".join(sources).replace(":", "-")
        assert [row.id for row in prepare_list(folder, *episodes, plan=plan).rows] == expected
        with pytest.raises(BadInput, match="sources"):  # a corpus of other sources
            open_corpus(folder, GRADES)
    said = Preference("person", "checked", "a", "model", by=CHECKED)
    pairs = VLMCorpusPlan(RobometerTrainConfig(most_frames=8))
    same = [rollout("person", instruction="do it"), rollout("checked", "", "model", CHECKED, instruction="do it")]
    assert [choice.source for choice in prepare_list(tmp_path / "pairs", *same, said, plan=pairs).choices] == ["model"]


def test_a_corpus_of_an_earlier_version_opens(tmp_path: Path) -> None:
    prepare_list(tmp_path / "corpus", rollout("a"))
    path = tmp_path / "corpus" / "prepared.json"
    lines = path.read_text().replace('"sources"', '"once"').replace('"label_sources"', '"counts"')
    path.write_text(lines)
    assert len(open_corpus(tmp_path / "corpus", GRADES).rows) == 1
    assert count_sources(tmp_path / "corpus") is None
    assert len(prepare_list(tmp_path / "corpus", rollout("a")).rows) == 1


@pytest.mark.parametrize("plan", PLANS, ids=NAMES)
def test_episodes_of_an_edit_can_be_left_out(tmp_path: Path, plan: Any) -> None:
    edits = {"own": (), "cut": (Edit("clip", {}),), "other": (Edit("counterfactual", {}),)}
    episodes = [rollout(name, edits=made) for name, made in edits.items()]
    changes = {"without": ["counterfactual"]}
    if isinstance(plan, VLMCorpusPlan):
        plan = VLMCorpusPlan(plan.config.change(changes))
    else:
        plan = CompactCorpusPlan(SIZE, without=("counterfactual",))
    assert [row.id for row in prepare_list(tmp_path / "corpus", *episodes, plan=plan).rows] == ["own", "cut"]
    assert count_skipped(tmp_path / "corpus") == {"made by counterfactual": 1}
    for config in (RoboRewardTrainConfig(), small_config()):
        with pytest.raises(UnknownName, match="counterfactual"):
            config.change({"without": ["counterfactuals"]})


def test_the_compact_network_learns_a_counterfactual_under_its_own_instruction(tmp_path: Path) -> None:
    """Commands of one video are one group; each is known at the end only, and never under the original's words."""
    made = [
        rollout(
            f"c{grade}",
            source="model",
            by=CHECKED,
            grade=grade,
            group="video",
            instruction=f"command {grade}",
            edits=(Edit("counterfactual", {}),),
        )
        for grade in (1, 3)
    ]
    original = rollout("own", source="human", grade=5, group="video", instruction="original")
    corpus = prepare_list(tmp_path / "corpus", original, *made, plan=CompactCorpusPlan(SIZE))
    assert {row.id: row.kind for row in corpus.rows} == {"own": "demonstration", "c1": "outcome", "c3": "outcome"}
    sampler = ClipSampler(corpus, small_config(shares={"outcome": 1.0}, groups=20))
    ends = {}
    for group in sampler.sample(np.random.default_rng(0)):
        for clip in group:
            assert np.isnan(clip.progress[clip.frames != clip.frames[-1]]).all() and np.isnan(clip.success[:-1]).all()
            ends[clip.instruction] = (float(clip.progress[-1]), float(clip.success[-1]))
    assert ends == {"command 1": (0.0, 0.0), "command 3": (0.5, 0.0)}
