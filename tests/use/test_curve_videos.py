"""Videos with the curve drawn in: every frame, at its time, with the curve up to it and no further."""

from pathlib import Path

import av
import numpy as np
import pytest

from demerit.data.dataset import Dataset
from demerit.data.episode import Episode
from demerit.data.export import MARGIN, PLOT_HEIGHT, name_video
from demerit.data.formats import open_dataset
from demerit.data.frames import Frames
from demerit.data.store import Store
from demerit.errors import StaleRewards
from demerit.use.curve_videos import WIDTH, write_curve_videos
from fakes.command import demerit_here
from fakes.viewed_dataset import FPS, LENGTH, make_viewed

COUNT = 4


def decode(path: Path) -> tuple[np.ndarray, list[float]]:
    with av.open(str(path)) as video:
        frames = [(frame.to_ndarray(format="rgb24"), float(frame.time)) for frame in video.decode(video=0)]
    return np.stack([image for image, _ in frames]), [time for _, time in frames]


def end_of_curves(image: np.ndarray) -> int:
    """The last column with a colour, above the names of the curves; everything else there is grey."""
    plot = image[480 + MARGIN : 480 + MARGIN + PLOT_HEIGHT].astype(int)
    found = np.flatnonzero((plot.max(axis=2) - plot.min(axis=2) > 30).any(axis=0))
    return int(found[-1]) if len(found) else 0


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return make_viewed(tmp_path / "set", COUNT)


def test_a_video_has_every_frame_at_its_time_and_the_curve_up_to_it(dataset: Dataset, tmp_path: Path) -> None:
    said = demerit_here("export", "set", "videos", "--to", "video", cwd=tmp_path)
    assert said.returncode == 0 and "3 episodes as videos, rewards of careful, eager, clock" in said.stdout
    assert "lost.mp4" in said.stdout
    names = {name_video(f"set/{place:03d}", "main") for place in (0, 1, 3)}  # 2 has lost its video
    assert {path.name for path in (tmp_path / "videos").iterdir()} == names
    images, times = decode(tmp_path / "videos" / name_video("set/003", "main"))
    assert len(images) == LENGTH and times == pytest.approx([k / FPS for k in range(LENGTH)])
    grey = [float(image[200:280, 280:360].mean()) for image in images]
    assert grey == pytest.approx([2 + 3.5 * k for k in range(LENGTH)], abs=4)
    ends = [end_of_curves(image) for image in images]
    cursor = [MARGIN + k / (LENGTH - 1) * (WIDTH - 2 * MARGIN - 1) for k in range(LENGTH)]
    assert ends[0] == 0 and ends[1:] == pytest.approx(cursor[1:], abs=6)


def test_verdict_and_instruction_are_on_the_picture(dataset: Dataset, tmp_path: Path) -> None:
    write_curve_videos(dataset, tmp_path / "a")
    store = Store(tmp_path / "set")
    with store.writer() as writer:
        writer.update({f"set/{place:03d}": {"instruction": ""} for place in range(COUNT)})
    for folder in (tmp_path / "set" / "rewards").iterdir():
        for file in sorted(folder.rglob("*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()
        folder.rmdir()
    write_curve_videos(open_dataset(str(tmp_path / "set")), tmp_path / "b")
    with_text, without = (decode(tmp_path / folder / name_video("set/003", "main"))[0] for folder in "ab")
    assert without.shape[1] == with_text.shape[1] - 3 * 18  # a line for the verdict of each model
    instruction = slice(480 + MARGIN + 110 + 30, 480 + MARGIN + 110 + 54)
    assert np.abs(with_text[0, instruction].astype(int) - without[0, instruction]).mean() > 2


def test_unusual_pictures_and_one_frame(tmp_path: Path) -> None:
    sizes = {"wide": (30, 200), "tall": (201, 31), "dot": (1, 1)}
    images = {name: np.full((1, *size, 3), 120, np.uint8) for name, size in sizes.items()}
    found = [Episode(name, "", {"main": Frames.from_array(image)}) for name, image in images.items()]
    assert write_curve_videos(Dataset.from_episodes(found), tmp_path / "out") == (3, [])
    for name in sizes:
        (image,), _ = decode(tmp_path / "out" / name_video(name, "main"))
        assert image.shape[1] == WIDTH and np.abs(image[10, WIDTH // 2].astype(int) - 120).max() < 6


def test_stale_rewards_are_refused(dataset: Dataset, tmp_path: Path) -> None:
    with Store(tmp_path / "set").writer() as writer:
        writer.update({"set/001": {"instruction": "another", "fingerprint": "0"}})
    with pytest.raises(StaleRewards, match="set/001"):
        write_curve_videos(open_dataset(str(tmp_path / "set")), tmp_path / "new")
    assert not (tmp_path / "new").exists() and not list(tmp_path.glob(".*.part"))
