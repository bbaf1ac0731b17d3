"""Several datasets, a part of one, single videos and an instruction for episodes without one."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from demerit.data.dataset import Dataset, ListReader, Problem, distinct_names, join_readers
from demerit.data.episode import Episode, Preference
from demerit.data.formats import open_dataset, open_parts
from demerit.data.importing import import_dataset
from demerit.errors import BadEpisode, BadInput


@pytest.fixture
def runs(tmp_path: Path, sample: Path) -> Path:
    """Two folders of the same videos; `b/runs` has no label file."""
    shutil.copytree(sample, tmp_path / "a" / "runs")
    (tmp_path / "b" / "runs").mkdir(parents=True)
    for video in sorted(sample.rglob("*.mp4"))[:2]:
        shutil.copy(video, tmp_path / "b" / "runs" / video.name)
    return tmp_path


def test_a_video_is_an_episode_of_its_folder(runs: Path) -> None:
    folder = open_dataset(runs / "a" / "runs")
    first, *_ = folder
    video = open_dataset(first.main.source.path)
    (episode,) = video
    assert (video.address, video.expected()) == (folder.address, 1)
    assert (episode.id, episode.fingerprint(), episode.outcomes) == (first.id, first.fingerprint(), first.outcomes)


def test_videos_of_one_folder_are_one_dataset(runs: Path) -> None:
    folder = runs / "b" / "runs"
    first, second = sorted(folder.glob("*.mp4"))
    for addresses in ([first, second, first], [str(folder / "*.mp4")], [f"videos:{folder}/*.mp4"], [second, folder]):
        (part,) = open_parts(addresses)
        assert part.address == f"videos:{folder}"
        assert {episode.id for episode in part} == {first.stem, second.stem}
    assert [episode.id for episode in open_dataset(second)] == [second.stem]


def test_ids_of_several_datasets_are_distinct(runs: Path) -> None:
    addresses = [runs / "a" / "runs", runs / "b" / "runs"]
    joined = open_dataset(addresses)
    ids = [episode.id for episode in joined]
    parts = open_parts(addresses)
    assert ids == [f"{name}/runs/{e.id}" for name, part in zip("ab", parts, strict=True) for e in part]
    assert len(set(ids)) == 17 and len(joined.problems) == len(parts[0].problems) + len(parts[1].problems)
    with pytest.raises(BadInput):
        open_parts([runs / "a" / "runs", f"rbm:{runs / 'a' / 'runs'}"])
    for nothing in ([], [str(runs / "*.nothing")], [str(runs / "c")]):
        with pytest.raises(BadInput):
            open_parts(nothing)


def test_references_between_episodes_are_kept() -> None:
    episode = Episode.from_array(np.zeros((1, 8, 8, 3), np.uint8), id="x")
    choice = Preference("x", "y", "a", "human")
    reader = join_readers({"n": ListReader("n", [episode, choice]), "m": ListReader("m", [])})
    found = list(reader.records())
    assert isinstance(found[1], Preference)
    assert (found[0].id, found[1].a, found[1].better) == ("n/x", "n/x", "n/x")
    assert (reader.expected(), reader.name) == (1, "n+m")


def test_a_part_of_a_dataset_has_the_preferences_between_its_episodes() -> None:
    episodes = [Episode.from_array(np.zeros((1, 8, 8, 3), np.uint8), id=id) for id in "xyz"]
    choices = [Preference("x", "z", "a", "human"), Preference("x", "y", "a", "human")]
    fault = Problem("missing video", "w", "there is no such file", kept=False)
    whole = Dataset(ListReader("n", [choices[0], fault, *episodes, choices[1]]), "list:n")
    part = whole.where(lambda episode: episode.id != "y", "list:n#some")
    for _ in range(2):
        assert [getattr(record, "id", "choice") for record in part.records()] == ["x", "z", "choice"]
    assert (len(part), part.name, part.address, part.expected()) == (2, "n", "list:n#some", None)
    assert (len(part.problems), len(whole.problems)) == (0, 1)
    assert whole.where(lambda _: True).address == "list:n"


def test_distinct_names() -> None:
    assert distinct_names(["videos:/a/runs", "videos:/b/runs", "lerobot:/c"]) == ["a/runs", "b/runs", "c"]
    assert distinct_names(["videos:/runs", "videos:/x/runs"]) == ["runs", "x/runs"]
    with pytest.raises(BadInput, match="/runs"):
        distinct_names(["videos:/x", "videos:/runs", "videos:/runs"])


def test_an_instruction_fills_gaps_only(runs: Path) -> None:
    bare = open_dataset(runs / "b" / "runs", instruction="stack the blocks", strict=True)
    assert {episode.instruction for episode in bare} == {"stack the blocks"}
    own = open_dataset(runs / "a" / "runs", instruction="stack the blocks")
    before = [episode.instruction for episode in open_dataset(runs / "a" / "runs")]
    assert [episode.instruction for episode in own] == before
    assert own.problems.counts["instruction of its own", True] == 15
    own.strict = True
    with pytest.raises(BadEpisode):
        list(own)


def test_an_instruction_reaches_indexed_episodes(runs: Path) -> None:
    import_dataset(open_dataset(runs / "b" / "runs"), runs / "set")
    assert [open_dataset(runs / "set", instruction="stack")[place].instruction for place in (0, 1)] == ["stack"] * 2


def test_an_empty_folder_and_a_misspelt_path_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "rollouts" / "day_1").mkdir(parents=True)
    with pytest.raises(BadInput) as empty:
        open_dataset(tmp_path / "rollouts")
    assert "empty folder" in str(empty.value.got)
    with pytest.raises(BadInput) as misspelt:
        open_dataset(tmp_path / "rolouts")
    assert str(tmp_path / "rollouts") in str(misspelt.value.got)
    with pytest.raises(BadInput) as lost:
        open_dataset(tmp_path / "nowhere" / "rollouts")
    assert "?" not in str(lost.value.got)
