"""Datasets as sequences, and what a notebook shows."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from demerit.data.dataset import Dataset, ListReader, Problem, Record
from demerit.data.episode import Episode
from demerit.data.formats import open_dataset
from demerit.data.frames import Frames
from demerit.data.reward import Reward
from demerit.data.store import Store
from demerit.data.video import VideoClip
from demerit.errors import BadEpisode, BadInput


@pytest.mark.parametrize("kind", ["memory", "videos", "demerit", "demerit, one camera"])
def test_datasets_are_sequences(tmp_path: Path, sample: Path, kind: str) -> None:
    dataset = open_dataset(sample)
    episodes = list(open_dataset(sample))
    if kind == "memory":
        dataset = Dataset.from_episodes(episodes)
    elif kind != "videos":
        with Store.create(tmp_path / "set", "set").writer() as writer:
            for episode in episodes[:9]:
                writer.add(episode)
            writer.commit()
            for episode in episodes[9:]:
                writer.add(episode)
        dataset = open_dataset(tmp_path / "set", camera="main" if kind.endswith("camera") else None)
    ids = [episode.id for episode in episodes]
    assert (len(dataset), [episode.id for episode in dataset]) == (15, ids)
    assert [dataset[place].id for place in (0, 8, 9, -1)] == [ids[place] for place in (0, 8, 9, -1)]
    assert dataset[ids[3]].fingerprint() == dataset[3].fingerprint() == episodes[3].fingerprint()
    for part in (slice(2, 5), slice(None, None, -4), slice(20, 30)):
        assert [episode.id for episode in dataset[part]] == ids[part]
    for missing in (15, -16):
        with pytest.raises(BadInput) as refused:
            dataset[missing]
        assert refused.value.got == missing
    with pytest.raises(BadEpisode):
        dataset["nobody"]
    assert "15 episodes" in repr(dataset)


def test_a_folder_made_again_is_read_again(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    for id in ("old", "new"):
        shutil.rmtree(tmp_path / "set", ignore_errors=True)
        with Store.create(tmp_path / "set", "set").writer() as writer:
            writer.add(make_episode(id))
        assert open_dataset(tmp_path / "set")[0].id == id


def test_len_and_list_read_a_dataset_once(make_episode: Callable[..., Episode]) -> None:
    passes = []

    class Counting(ListReader):
        def records(self) -> Iterator[Record]:
            passes.append(1)
            return super().records()

    problem = Problem("missing video", "lost", "gone", kept=False)
    dataset = Dataset(Counting("counted", [make_episode("one"), problem, make_episode("one"), make_episode("two")]))
    assert "2 episodes" not in repr(dataset) and not passes
    assert (len(dataset), len(list(dataset)), dataset[1].id) == (2, 2, "two")
    assert len(passes) == 1 and len(dataset.problems) == 2
    dataset._repr_html_()
    assert len(dataset.problems) == 2


def test_html_shows_hostile_text_as_text(make_episode: Callable[..., Episode]) -> None:
    episode = replace(make_episode("<b>&"), instruction="<script>alert(1)</script>")
    for page in (Dataset.from_episodes([episode], "<i>")._repr_html_(), episode._repr_html_()):
        assert "<script>" not in page and "&lt;script&gt;" in page and "&lt;b&gt;&amp;" in page
    assert "data:image/jpeg;base64," in episode._repr_html_()
    gone = Episode("gone", "", {"main": Frames(VideoClip("nowhere.mp4"))})
    assert "nowhere.mp4" in gone._repr_html_() and "<img" not in gone._repr_html_()


def test_a_plot_has_gaps_where_nothing_is_known(tmp_path: Path) -> None:
    value = [0.0, 0.5, np.nan, np.nan, 2.0, 1.0, np.nan, 1.0]
    reward = Reward("m<", "e\x1b&", np.arange(8), value, success=np.linspace(0, 1, 8), why_missing="x")
    reward.plot().save(tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text() == reward.plot()._repr_svg_()
    tree = ElementTree.parse(tmp_path / "a.svg").getroot()
    lines = [line.get("points", "").split() for line in tree.iter("{http://www.w3.org/2000/svg}polyline")]
    assert [len(points) for points in lines] == [2, 2, 8]
    heights = [float(point.split(",")[1]) for point in lines[0] + lines[1]]
    assert heights[2] < heights[3] < heights[1] < heights[0]  # 2, 1, 0.5, 0 from the top
    assert len(list(tree.iter("{http://www.w3.org/2000/svg}circle"))) == 1
    nothing = ElementTree.fromstring(Reward.unscored("m", "e", "no frames").plot().svg)
    assert not list(nothing.iter("{http://www.w3.org/2000/svg}polyline"))
