"""What stages teach: targets where they begin and are done, and better progress than success flags alone."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import demerit
from demerit.data.dataset import Dataset
from demerit.data.episode import Episode, Outcome
from demerit.data.stages import StageSpan
from demerit.training.teach.data import TeachConfig, TeachLabel, gather_data, targets_of
from demerit.training.teach.training_set import move_label

HALVES = (StageSpan("reach", 0, 9, 0, 0.5), StageSpan("carry", 10, 15, 0.5, 1))
SAMPLE = Path(demerit.__file__).parent / "assets" / "sample"


def stages(text: str) -> tuple[StageSpan, ...]:
    spans = [(name, *map(int, span.split("-"))) for name, span in (word.split(":") for word in text.split())]
    return tuple(StageSpan(*span) for span in spans)


def episode(id: str, success: bool | None, text: str, instruction: str = "lift the cup") -> Episode:
    images = np.full((20, 8, 8, 3), hash(id) % 256, np.uint8)
    images[0, 0, 0] = np.frombuffer(id.encode()[:3].ljust(3), np.uint8)
    label = Outcome("human", success=success, stages=stages(text))
    return replace(Episode.from_array(images, instruction, id), outcomes=(label,))


def gather(*episodes: Episode) -> dict[str, list[tuple[str, float | None, float | None]]]:
    labels = gather_data(Dataset.from_episodes(episodes)).labels
    return {id: [(one.name, one.start, one.stop) for one in label.stages] for id, label in labels.items()}


def test_progress_is_a_straight_line_through_each_stage_of_a_success() -> None:
    targets = targets_of(TeachLabel(success=True, stages=HALVES), 20)
    assert targets.value[[0, 9, 10, 15, 19]].tolist() == [0, 0.5, 0.5, 1, 1]
    assert np.allclose(np.diff(targets.value[:10]), 0.5 / 9) and np.allclose(np.diff(targets.value[10:16]), 0.1)
    assert targets.done[15:].all() and not targets.done[:15].any() and targets.origins == ("marked", "between")


def test_the_last_stage_of_a_failure_was_not_done() -> None:
    config = TeachConfig()
    for some, cap in ((HALVES, 0.5), (HALVES[:1], 0.25)):
        targets = targets_of(TeachLabel(success=False, stages=some), 20)
        begun = some[-1].first
        assert targets.value[begun] == some[-1].start and not targets.done[targets.origin > 0].any()
        ending = slice(20 - config.ending(20), None)
        assert targets.capped[ending].all() and (targets.value[ending] == cap).all()
        assert np.isnan(targets.value[begun + 1 : 20 - config.ending(20)]).all()
    measured = targets_of(TeachLabel(success=False, progress=0.6, stages=HALVES), 20)
    assert measured.value[-1] == pytest.approx(0.6) and not measured.capped.any()


def test_a_curve_comes_before_stages() -> None:
    curve = np.linspace(0, 1, 20, dtype=np.float32)
    assert targets_of(TeachLabel(curve=curve, stages=HALVES), 20).value == pytest.approx(curve)


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=6, unique=True),
    st.integers(1, 60),
    st.sampled_from([None, True, False]),
)
def test_targets_of_any_stages_are_in_range(edges: list[int], length: int, success: bool | None) -> None:
    firsts = sorted(edges)
    shares = np.linspace(0, 1, len(firsts) + 1).tolist()
    some = [StageSpan(str(i), a, a, shares[i], shares[i + 1]) for i, a in enumerate(firsts)]
    label = TeachLabel(success=success, stages=tuple(some))
    targets = targets_of(label, length)
    known = targets.origin > 0
    assert ((targets.value[known] >= 0) & (targets.value[known] <= 1)).all() and known.any()
    at = np.arange(0, length, 3, dtype=np.int32)
    moved = move_label(label, at, length)
    if len(at) < length:
        assert [stage.name for stage in moved.stages] == [stage.name for stage in some if stage.first < length]
        assert all(stage.last < len(at) for stage in moved.stages)


def test_stages_of_a_task_are_those_of_its_successes() -> None:
    found = gather(
        episode("a", True, "reach:0-4 grasp:5-9 place:10-19"),
        episode("b", False, "reach:0-4 grasp:5-19"),
        episode("c", True, "reach:0-9 place:10-19"),
        episode("d", True, "turn:0-9 pull:10-19", "open the drawer"),
        episode("e", False, "shake:0-9", "open the drawer"),
    )
    thirds = [("reach", 0, 1 / 3), ("grasp", 1 / 3, 2 / 3), ("place", 2 / 3, 1)]
    approximately = {
        id: [(name, *(round(edge or 0, 6) for edge in edges)) for name, *edges in got] for id, got in found.items()
    }
    rounded = [(name, round(a, 6), round(b, 6)) for name, a, b in thirds]
    assert approximately == {
        "a": rounded,
        "b": rounded[:2],
        "c": [rounded[0], rounded[2]],
        "d": [("turn", 0, 0.5), ("pull", 0.5, 1)],
        "e": [],  # nothing says how far shaking is
    }


def test_stages_that_teach_nothing_are_named() -> None:
    data = gather_data(
        Dataset.from_episodes(
            [episode("a", True, ""), episode("b", False, "reach:0-9"), episode("c", None, "reach:0-9")]
        )
    )
    assert set(data.labels) == {"a", "b"} and data.count_kinds() == {"success or failure": 2}
    assert any("2 episodes" in note and "stages" in note for note in data.notes)


def lesson(kind: str) -> Iterable[Episode]:
    """The training episodes of the sample, with a person's labels: flags, or stages as well."""
    for row in map(json.loads, (SAMPLE / "labels.jsonl").read_text("utf-8").splitlines()):
        if row["split"] != "train":
            continue
        curve = np.array(row["curve"])
        moves, done, last = np.flatnonzero(curve >= 0.35), np.flatnonzero(curve >= 1), len(curve) - 1
        first = f"reach:0-{moves[0] - 1 if len(moves) else last}"
        second = f" carry:{moves[0]}-{done[0] if len(done) else last}" if len(moves) else ""
        parts = stages(first + second) if kind == "stages" else ()
        label = Outcome("human", success=row["success"], stages=parts)
        recorded = Episode.from_video(SAMPLE / row["file"], row["instruction"])
        yield replace(recorded, outcomes=(label,), origin=replace(recorded.origin, group=row["group"]))


@pytest.mark.slow
def test_stages_teach_better_progress_than_flags_alone(tmp_path: Path) -> None:
    tested = [one for one in demerit.open_dataset(str(SAMPLE)) if one.origin.split == "test"]
    errors = {}
    for kind in ("flags", "stages"):
        data = Dataset.from_episodes(lesson(kind))
        model = demerit.teach(data, None, config=TeachConfig(reader=False), cache=tmp_path, workers=0).model
        pairs = zip(tested, model.score(tested), strict=True)
        truths = [(reward.value, known.outcome.curve[reward.at]) for known, reward in pairs if known.outcome]  # type: ignore[index]
        errors[kind] = np.mean([np.abs(value - truth).mean() for value, truth in truths])
    assert errors["stages"] < 0.95 * errors["flags"]
