"""The negatives and materialize jobs, on drawn videos and on real ones."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from demerit.data.dataset import Dataset, ListReader
from demerit.data.episode import Episode, Outcome
from demerit.data.export import materialize
from demerit.data.formats import open_dataset
from demerit.data.store import Store
from demerit.errors import StoreError
from demerit.evaluate.metrics.success import auroc
from demerit.negatives import apply_edit
from demerit.negatives.job import ANY, EVENLY, KEPT, MEASURED, SUCCEEDED, NegativesProgress, make_negatives
from demerit.negatives.mix import DEFAULT_MIX, Mix


def rows(root: Path) -> dict[str, tuple[object, ...]]:
    return {e.id: (e.instruction, e.fingerprint(), e.outcomes, e.edits, e.origin) for e in Store(root).episodes()}


def test_the_drawn_sample(sample: Path, tmp_path: Path) -> None:
    mix = Mix.parse("clip=4,rewind=2,undo,splice,wrong-instruction=2", per_episode=5)
    progress = make_negatives(open_dataset(sample), tmp_path / "bad", mix, keep_originals=True)
    originals = {episode.id: episode for episode in open_dataset(sample)}
    successes = [episode for episode in originals.values() if any(o.success for o in episode.outcomes)]
    assert (progress.originals, progress.kept) == (len(successes), len(originals)) == (3, 15)
    assert progress.skipped[ANY, "it did not succeed"] == 12
    assert sum(progress.made.values()) + sum(progress.skipped.values()) == 3 * 5 + 12
    assert progress.durable == len(Store(tmp_path / "bad")) == sum(progress.made.values()) + 15
    labels = [(len(e), e.outcome.success) for e in Store(tmp_path / "bad").episodes() if e.outcome]
    assert progress.length_auroc() == pytest.approx(auroc(*zip(*labels, strict=True)).measure().value)
    for made in Store(tmp_path / "bad").episodes():
        if not made.edits:
            assert made.outcomes == originals[made.id].outcomes
            continue
        parent = originals[made.origin.parent]
        if made.edits[0].name != "splice":
            again = apply_edit(parent, made.edits[0])
            assert (again.id, again.outcomes, again.fingerprint()) == (made.id, made.outcomes, made.fingerprint())
        assert made.origin.group


def test_an_interrupted_run_resumes_and_a_second_run_changes_nothing(sample: Path, tmp_path: Path) -> None:
    mix = Mix.parse("clip,rewind,wrong-instruction", per_episode=6)

    def stop(progress: NegativesProgress) -> None:
        if progress.seen == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_negatives(open_dataset(sample), tmp_path / "bad", mix, keep_originals=True, on_progress=stop)
    assert 0 < len(Store(tmp_path / "bad"))
    make_negatives(open_dataset(sample), tmp_path / "bad", mix, keep_originals=True)
    whole = make_negatives(open_dataset(sample), tmp_path / "whole", mix, keep_originals=True)
    assert rows(tmp_path / "bad") == rows(tmp_path / "whole")
    again = make_negatives(open_dataset(sample), tmp_path / "whole", mix, keep_originals=True)
    assert (whole.added, again.added) == (len(Store(tmp_path / "whole")), 0)
    assert (again.made, again.grades) == (whole.made, whole.grades)
    with pytest.raises(StoreError, match="seed 0"):
        make_negatives(open_dataset(sample), tmp_path / "bad", replace(mix, seed=1))


@pytest.mark.parametrize(
    ("made_by", "now", "labels"),
    [("hold", False, [False]), ("hold", None, []), ("clip", False, []), ("clip", True, [False])],
)
def test_labels_follow_the_source(
    tmp_path: Path, make_episode: Callable[..., Episode], made_by: str, now: bool | None, labels: list[bool]
) -> None:
    def make(*outcomes: Outcome) -> NegativesProgress:
        source = Dataset(ListReader("a", [replace(make_episode("one"), outcomes=outcomes)]), "a")
        return make_negatives(source, tmp_path / "made", Mix.parse(made_by, per_episode=1), keep_originals=True)

    make(Outcome("human", success=True))
    (edited,) = (episode.id for episode in Store(tmp_path / "made").episodes() if episode.edits)
    own = Outcome("human", success=True, by="me")
    with Store(tmp_path / "made").writer() as writer:
        writer.relabel({edited: (*Store(tmp_path / "made").episode(edited).outcomes, own)})
    progress = make(*([] if now is None else [Outcome("human", success=now)]))
    one, other = Store(tmp_path / "made").episode("one"), Store(tmp_path / "made").episode(edited)
    assert [label.success for label in one.outcomes] == ([] if now is None else [now])
    assert [label.success for label in other.outcomes if label.source == "edit"] == labels and own in other.outcomes
    assert sum(progress.changes.values()) == (0 if now else 2) and progress.added == 0


def test_an_original_that_a_person_rejects_teaches_nothing_any_more(
    tmp_path: Path, make_episode: Callable[..., Episode]
) -> None:
    one = replace(make_episode("one"), outcomes=(Outcome("human", success=True),))
    for check in ("", "rejected"):
        checked = replace(one, origin=replace(one.origin, tags={"human_check": check} if check else {}))
        source = Dataset(ListReader("a", [checked]), "a")
        make_negatives(source, tmp_path / "made", Mix.parse("hold", per_episode=1), keep_originals=True)
        labels = [episode.labels for episode in Store(tmp_path / "made").episodes()]
        assert len(labels) == 2 and (not any(labels) if check else all(labels))


def test_episodes_without_an_outcome(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    known = replace(make_episode("failed"), outcomes=(Outcome("human", success=False),))
    episodes = [make_episode("shown"), known]
    mix = Mix.parse("clip", per_episode=2)
    unused = make_negatives(Dataset(ListReader("a", episodes), "a"), tmp_path / "unused", mix)
    assert unused.durable == 0
    assert unused.skipped == {(ANY, "no trusted source says whether it succeeded"): 1, (ANY, "it did not succeed"): 1}
    dataset = Dataset(ListReader("a", episodes), "a")
    used = make_negatives(dataset, tmp_path / "used", mix, keep_originals=True, assume_success="demonstrations")
    assert (used.originals, used.kept) == (1, 2)
    shown = Store(tmp_path / "used").episode("shown")
    assert [(o.source, o.success, o.by) for o in shown.outcomes] == [("rule", True, "assumed: demonstrations")]
    assert [o.success for o in Store(tmp_path / "used").episode("failed").outcomes] == [False]


def test_labels_are_counted_by_what_they_rest_on(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    seen, flagged, shown, failed = (make_episode(name) for name in ("drawer", "kettle", "pencil", "sponge"))
    curve = np.linspace(0, 1, len(seen), dtype=np.float32)
    seen = replace(seen, outcomes=(Outcome("human", success=True, curve=curve),))
    flagged = replace(flagged, outcomes=(Outcome("human", success=True),))
    failed = replace(failed, outcomes=(Outcome("human", success=False),))
    for mix, assume, expected in (
        ("clip", "", {MEASURED: 1, EVENLY: 1}),
        ("clip", "demonstrations", {MEASURED: 1, EVENLY: 1, SUCCEEDED: 1}),
        ("wrong-instruction", "", {"that assume that a video of one task shows nothing of another": 2}),
        ("recolour", "", {KEPT: 3}),
    ):
        dataset = Dataset(ListReader("a", [seen, flagged, shown, failed]), "a")
        wanted = Mix.parse(mix, per_episode=1)
        made = make_negatives(dataset, tmp_path / f"{mix}{assume}", wanted, assume_success=assume)
        assert made.bases == expected and made.bases.total() == made.made.total()


def test_unreadable_videos_are_counted(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    good, bad = (replace(make_episode(name), outcomes=(Outcome("human", success=True),)) for name in ("good", "bad"))
    (tmp_path / "bad.mp4").write_bytes(b"not a video")
    dataset = Dataset(ListReader("a", [bad, good]), "a")
    progress = make_negatives(dataset, tmp_path / "set", Mix.parse("clip", per_episode=2))
    assert [row["problem"] for row in progress.problems.rows()] == ["unreadable video"]
    assert (progress.originals, progress.seen) == (1, 2)
    assert {e.origin.parent for e in Store(tmp_path / "set").episodes()} == {"good"}
    assert len(list(Store(tmp_path / "set").problems())) == 1


def test_real_demonstrations_give_balanced_grades(real_data: Path, tmp_path: Path) -> None:
    dataset = open_dataset(real_data / "droid")
    mix = Mix.parse(DEFAULT_MIX, per_dataset=150)
    progress = make_negatives(dataset, tmp_path / "bad", mix, keep_originals=True, assume_success="demonstrations")
    ladder = progress.ladder()
    total = sum(ladder.values())
    assert (progress.originals, ladder[None]) == (150, 0)
    assert total == progress.durable > 1300
    assert all(abs(ladder[grade] / total - 0.2) < 0.02 for grade in (1, 2, 3, 4, 5)), ladder
    assert abs(progress.length_auroc() - 0.5) < 0.08
    assert not (tmp_path / "bad" / "videos").exists()


def test_materialized_views_read_back(sample: Path, tmp_path: Path) -> None:
    mix = Mix.parse("clip,rewind,stall,wrong-instruction", per_episode=4, per_dataset=1)
    progress = make_negatives(open_dataset(sample), tmp_path / "bad", mix, keep_originals=True)
    assert (progress.originals, progress.over) == (1, 2)
    store = Store(tmp_path / "bad")
    assert materialize(Dataset(store), tmp_path / "files") == len(store)
    back = {episode.id: episode for episode in open_dataset(f"videos:{tmp_path / 'files'}")}
    assert set(back) == set(store.ids())
    for was in store.episodes():
        now = back[was.id]
        assert (now.instruction, len(now), list(now.views)) == (was.instruction, len(was), list(was.views))
        assert np.allclose(now.main.times(), was.main.times(), atol=1e-4)
        before, after = was.outcome, now.outcome
        assert before is not None and after is not None
        for name in ("success", "progress", "grade", "source", "by"):
            assert getattr(after, name) == getattr(before, name), name
        curve = next(o.curve for o in now.outcomes if o.curve is not None)
        assert np.array_equal(curve, next(o.curve for o in was.outcomes if o.curve is not None))
        assert now.origin.group == was.origin.group
        assert np.abs(now.main.take([0]).astype(int) - was.main.take([0])).mean() < 8
    with pytest.raises(StoreError, match="already"):
        materialize(Dataset(store), tmp_path / "files")


def test_odd_sizes_and_several_cameras_are_materialized(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    odd = Episode.from_array(rng.integers(0, 255, (3, 33, 47, 3), dtype=np.uint8), "go", "a/b c")
    both = replace(odd, views={"left": odd.main, "right": odd.main})
    materialize(Dataset.from_episodes([both]), tmp_path / "files")
    back = next(iter(open_dataset(f"videos:{tmp_path / 'files'}")))
    assert (back.id, list(back.views)) == ("a/b c", ["left", "right"])
    assert back.main.all().shape == (3, 34, 48, 3)
