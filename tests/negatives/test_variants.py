"""Edits that keep the label: of failures too, with the reason, in the group and split of the original."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from demerit.data.dataset import Dataset, ListReader
from demerit.data.episode import Edit, Episode, Event, Outcome
from demerit.data.frames import AlteredFrames, Frames, SplicedFrames, alter
from demerit.data.splits import SplitAssigner, find_leaks, videos_of
from demerit.data.stages import StageSpan
from demerit.data.store import Store
from demerit.errors import BadInput, NotApplicable, UnknownName
from demerit.negatives import apply_edit, load_negative
from demerit.negatives.job import ANY, make_negatives
from demerit.negatives.mix import Mix
from demerit.negatives.negative import VARIANTS

PIXELS, TIMES = ("crop", "recolour", "cover"), ("pace", "hold")
EVENTS = (Event("dropped", 6, 8, "seen there"),)
FAILED = Outcome(
    "human",
    success=False,
    progress=0.5,
    grade=3,
    curve=np.linspace(0, 0.5, 12),
    events=EVENTS,
    note="it slipped",
    by="Ada",
    stages=(StageSpan("reach", 0, 4), StageSpan("lift", 5, 11)),
)
GUESSED = Outcome("model", success=False, by="m")


@pytest.fixture
def failed(make_episode: Callable[..., Episode]) -> Episode:
    made = make_episode("slip")
    return replace(made, outcomes=(GUESSED, FAILED), origin=replace(made.origin, split="test", group="monday"))


@pytest.mark.parametrize("success", [False, True])
@pytest.mark.parametrize("name", VARIANTS)
def test_the_trusted_label_is_copied_with_the_reason(failed: Episode, name: str, success: bool) -> None:
    original = replace(failed, outcomes=(GUESSED, replace(FAILED, success=success, by="Ada")))
    made = load_negative(name).make_with_seed(original, 3)
    (label,) = made.outcomes
    assert (label.source, label.by, label.success, label.grade, label.progress) == ("edit", name, success, 3, 0.5)
    assert label.note == f"{load_negative(name).keeps} (label: human Ada)"
    assert (made.origin.parent, made.origin.group, made.origin.split) == ("slip", "monday", "test")
    assert made.instruction == original.instruction and not made.signals
    assert made.fingerprint() != original.fingerprint()
    assert videos_of(made) == videos_of(original)
    again = apply_edit(original, Edit(name, json.loads(json.dumps(dict(made.edits[0].params)))))
    assert (again.id, again.fingerprint(), again.outcomes) == (made.id, made.fingerprint(), made.outcomes)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize(
    ("outcomes", "tags"),
    [((), {}), ((GUESSED,), {}), ((FAILED,), {"human_check": "rejected"}), ((Outcome("human", grade=2),), {})],
)
def test_nothing_is_copied_from_a_model_or_from_nobody(
    failed: Episode, name: str, outcomes: tuple[Outcome, ...], tags: dict[str, str]
) -> None:
    original = replace(failed, outcomes=outcomes, origin=replace(failed.origin, tags=tags))
    with pytest.raises(NotApplicable, match="no trusted source"):
        load_negative(name).make_with_seed(original, 0)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_known_by_frame_follows_the_frames(failed: Episode, seed: int) -> None:
    truth = FAILED.curve
    assert truth is not None
    for name in VARIANTS:
        made = load_negative(name).make_with_seed(failed, seed)
        (label,), shown = made.outcomes, made.main.indices
        shown = np.arange(12) if shown is None else shown
        np.testing.assert_array_equal(label.curve, truth[shown])
        assert [stage.name for stage in label.stages] == ["reach", "lift"]
        for stage, before in zip(label.stages, FAILED.stages, strict=True):
            assert before.first <= shown[stage.first] <= shown[stage.last] <= before.last
        if name in ("crop", "cover"):  # the event may be hidden
            assert label.events == ()
            continue
        (event,) = label.events
        assert 6 <= shown[event.first] <= shown[event.last] <= 8 and event.note == "seen there"
    paced, held = (load_negative(name).make_with_seed(failed, seed).main.indices for name in TIMES)
    assert paced is not None and held is not None
    assert (paced[0], paced[-1]) == (0, 11) and np.all(np.diff(paced) >= 0) and len(paced) != 12
    assert held.tolist() == [*range(12), *[11] * (len(held) - 12)] and len(held) > 12


def test_a_faster_pace_keeps_what_one_frame_shows(failed: Episode) -> None:
    marks = np.full(12, np.nan)
    marks[5] = 0.5
    spans = {"events": (Event("dropped", 9, 9),), "stages": (StageSpan("reach", 0, 4), StageSpan("lift", 5, 5))}
    original = replace(failed, outcomes=(replace(FAILED, curve=marks, **spans),))
    made = load_negative("pace")(original, np.random.default_rng(0), factor=0.75)
    (label,), shown = made.outcomes, made.main.indices
    assert shown is not None and shown.tolist() == [0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert label.curve is not None and label.curve[~np.isnan(label.curve)].tolist() == [0.5]
    assert [shown[span.first] for span in (*label.events, *label.stages)] == [9, 0, 5]
    many = replace(FAILED, events=tuple(Event("dropped", frame, frame) for frame in (2, 5, 9)), stages=())
    with pytest.raises(NotApplicable, match="too few frames"):  # it would be as before
        load_negative("pace")(replace(failed, outcomes=(many,)), np.random.default_rng(0), factor=0.75)


def test_a_task_that_asks_for_a_speed_has_no_other_pace(failed: Episode) -> None:
    with pytest.raises(NotApplicable, match="speed"):
        load_negative("pace").make_with_seed(replace(failed, instruction="Slowly pour the milk"), 0)


def test_drawn_changes_are_small() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(40, 216, (2, 50, 100, 3), dtype=np.uint8)
    original = replace(Episode.from_array(images, "lift it"), outcomes=(Outcome("human", success=False),))
    for seed in range(40):
        crop, recolour, cover = (load_negative(name).make_with_seed(original, seed) for name in PIXELS)
        _, _, width, height = crop.edits[0].params["box"]
        assert 0.88 <= min(width, height) and max(width, height) <= 1
        gains, light = np.array(recolour.edits[0].params["levels"][:3]), recolour.edits[0].params["levels"][3]
        assert gains.max() / gains.min() < 1.07 and 0.8 < gains.min() and gains.max() < 1.2 and abs(light) <= 0.06
        shown = images.astype(float) * gains + 255 * light
        np.testing.assert_allclose(recolour.main.all(), np.clip(shown, 0, 255), atol=0.51)
        hidden = (cover.main.all() != images).any(axis=(0, 3))
        rows, columns = np.flatnonzero(hidden.any(axis=1)), np.flatnonzero(hidden.any(axis=0))
        assert 0.005 < hidden.mean() <= 0.045
        assert 0 in (rows[0], columns[0], 49 - rows[-1], 99 - columns[-1])  # at an edge
        assert crop.main.all().shape == cover.main.all().shape == images.shape


def test_a_crop_enlarges_its_box() -> None:
    images = np.zeros((3, 40, 40, 3), np.uint8)
    images[:, 10:30, 10:30] = (250, 100, 50)
    frames = alter(Frames.from_array(images), "crop", (0.25, 0.25, 0.5, 0.5))
    assert (frames.all() == (250, 100, 50)).all()
    assert (images[0, 0, 0] == 0).all()  # the original is as it was
    by_hand = Image.fromarray(images[0]).crop((10, 0, 40, 40)).resize((40, 40), Image.Resampling.BILINEAR)
    right = alter(Frames.from_array(images), "crop", (0.25, 0, 0.75, 1)).take([0])[0]
    assert np.abs(right.astype(int) - np.asarray(by_hand).astype(int)).max() <= 1


def test_changes_join_and_are_decoded_frame_by_frame(make_video: Callable[..., Path]) -> None:
    plain = Frames.from_video(make_video())
    one = alter(plain.select([3, 3, 1]), "cover", (0, 0, 0.5, 0.5, 1.0))
    both = alter(one, "recolour", (0.5, 0.5, 0.5, 0.0))
    assert isinstance(both.source, AlteredFrames) and len(both.source.changes) == 2
    assert both.source.source is plain.source
    pictures = both.all()
    assert (pictures[:, :16, :24] == 128).all() and np.array_equal(pictures[0], pictures[1])
    np.testing.assert_array_equal(both.take_prepared([0, 2], lambda images: images[:, ::2]), pictures[[0, 2], ::2])
    assert both.take([]).size == 0
    assert len({frames.identity() for frames in (plain.select([3, 3, 1]), one, both)}) == 3
    np.testing.assert_array_equal(both.times(), plain.select([3, 3, 1]).times())


def test_a_folder_keeps_them_where_it_moves(failed: Episode, tmp_path: Path) -> None:
    names = (*PIXELS, "hold")
    made = [load_negative(name).make_with_seed(failed, 0) for name in names]
    with Store.create(tmp_path / "new", "set").writer() as writer:
        for episode in (failed, *made):
            writer.add(episode)
    (tmp_path / "new").rename(tmp_path / "moved")
    stored = list(Store(tmp_path / "moved").episodes())
    for before, after in zip((failed, *made), stored, strict=True):
        assert (after.id, after.fingerprint(), after.edits) == (before.id, before.fingerprint(), before.edits)
        assert [str(label) for label in after.outcomes] == [str(label) for label in before.outcomes]
        np.testing.assert_array_equal(after.main.all(), before.main.all())
    assert not list((tmp_path / "moved").glob("**/*.mp4"))  # nothing was copied


def test_no_split_separates_them(make_episode: Callable[..., Episode]) -> None:
    label = Outcome("human", success=False)
    originals = [replace(make_episode(f"e{number}", seed=number), outcomes=(label,)) for number in range(6)]
    variants = [load_negative(name).make_with_seed(one, 0) for one in originals for name in VARIANTS]
    assigner = SplitAssigner()
    for episode in (*originals, *variants):
        assigner.add(episode)
    splits = assigner.assign({"train": 0.5, "test": 0.5}, 0)
    assert set(splits.values()) == {"train", "test"}
    assert all(splits[variant.id] == splits[variant.origin.parent] for variant in variants)
    placed = [replace(one, origin=replace(one.origin, split=splits[one.id])) for one in (*originals, *variants)]
    assert find_leaks(placed) == []
    other = {"train": "test", "test": "train"}[splits["e0"]]
    apart = replace(variants[0], origin=replace(variants[0].origin, split=other))
    assert {leak.kind for leak in find_leaks([placed[0], apart])} >= {"video", "original"}


def test_the_job_makes_one_of_each_of_every_labelled_episode(
    make_episode: Callable[..., Episode], tmp_path: Path
) -> None:
    labels = {"good": (Outcome("human", success=True),), "bad": (Outcome("human", success=False),), "new": ()}
    episodes = [replace(make_episode(id), outcomes=outcomes) for id, outcomes in labels.items()]
    mix = Mix.parse("variants", per_episode=5)
    assert str(mix) == "crop=1,recolour=1,cover=1,pace=1,hold=1"
    done = make_negatives(Dataset(ListReader("a", episodes), "a"), tmp_path / "varied", mix, keep_originals=True)
    assert done.made == dict.fromkeys(VARIANTS, 2) and done.kept == 3
    assert done.skipped == {(ANY, "no trusted source says whether it succeeded"): 1}
    made = [episode for episode in Store(tmp_path / "varied").episodes() if episode.edits]
    assert {(one.origin.parent, one.edits[0].name, one.outcomes[0].success) for one in made} == {
        (id, name, id == "good") for id in ("good", "bad") for name in VARIANTS
    }
    assert all(one.outcomes[0].grade is None for one in made)  # a flag stays a flag
    mixed = make_negatives(Dataset(ListReader("a", episodes), "a"), tmp_path / "mixed", Mix.parse("clip,hold"))
    assert mixed.skipped["clip", "it did not succeed"] > 0 and mixed.made["hold"] > 0


@pytest.mark.parametrize(
    "change",
    [
        ("melt", (1.0,)),
        ("crop", (0.0, 0.0, 1.0)),
        ("crop", (0.5, 0.0, 0.6, 1.0)),
        ("cover", (0.0, 0.0, 0.0, 0.5, 0.5)),
        ("recolour", (float("nan"), 1.0, 1.0, 0.0)),
    ],
)
def test_changes_that_make_no_sense_are_refused(change: tuple[str, tuple[float, ...]]) -> None:
    plain = Frames.from_array(np.zeros((2, 8, 8, 3), np.uint8))
    with pytest.raises((BadInput, UnknownName)):
        alter(plain, *change)
    altered = alter(plain, "recolour", (1.0, 1.0, 1.0, 0.1)).source
    with pytest.raises(BadInput, match="altered"):
        SplicedFrames(((altered, 0, 2),))
