"""The reader: what it is trained on, what it can see, and a taught model that has one."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from demerit.errors import BadInput, StoreError
from demerit.models import load_model
from demerit.models.compact import Engine
from demerit.models.taught.features import SIDE, FeatureStream, Reader
from demerit.models.taught.head import TaughtHead
from demerit.training.teach import TeachConfig, features, teach
from demerit.training.teach.data import TeachLabel, targets_of
from demerit.training.teach.fit import FitExample, build_rows, choose_mix, confusion, fit_head
from fakes import lesson_data as data

torch = pytest.importorskip("torch", reason="readers are trained with torch")
from demerit.training.teach import torch_reader as reading  # noqa: E402 - it needs torch

PLACES = 8


def maps_of_two(near: bool, rng: np.random.Generator, frames: int = 4) -> reading.Maps:
    """Two things anywhere on the map, side by side or apart: neither's place alone tells which."""
    maps = rng.normal(0, 0.3, (frames, 6, PLACES, PLACES))
    y, x = rng.integers(0, PLACES, 2) % (PLACES - 1)
    far = [(b, a) for b in range(PLACES) for a in range(PLACES) if abs(a - x) + abs(b - y) > PLACES // 2]
    other = (y, x + 1) if near else far[rng.integers(len(far))]
    maps[:, 0, y, x] += 4
    maps[:, 1, other[0], other[1]] += 4
    coarse = rng.normal(0, 0.3, (frames, 3, PLACES // 2, PLACES // 2))
    return maps.astype(np.float16), coarse.astype(np.float16)


def relation(near: bool, rng: np.random.Generator) -> reading.ReaderExample:
    targets = targets_of(TeachLabel(success=near), 4)
    return reading.make_example([maps_of_two(near, rng)], [0], targets, np.arange(4), near, 3)


def relation_of(maps: tuple[np.ndarray, np.ndarray]) -> reading.ReaderExample:
    targets = targets_of(TeachLabel(success=True), len(maps[0]))
    return reading.make_example([maps], [0], targets, np.arange(len(maps[0])), True, 3)


def test_a_relation_between_two_things_is_learned() -> None:
    rng = np.random.default_rng(0)
    network = reading.train_reader([relation(near, rng) for near in (True, False) * 30], 0)
    ends = {near: [reading.read_example(network, relation(near, rng))[0][-1].mean() for _ in range(20)]
            for near in (True, False)}  # fmt: skip
    assert confusion(np.array(ends[False]), np.array(ends[True])) < 0.15


def test_shuffled_labels_teach_a_reader_nothing() -> None:
    rng = np.random.default_rng(1)
    drawn = [maps_of_two(near, rng) for near in (True, True, False, False) * 10]
    flags = [True, False] * 20
    examples = [
        reading.make_example([maps], [0], targets_of(TeachLabel(success=flag), 4), np.arange(4), flag, 3)
        for maps, flag in zip(drawn, flags, strict=True)
    ]
    network = reading.train_reader(examples, 0)
    ends = {near: np.array([reading.read_example(network, relation(near, rng))[0][-1].mean() for _ in range(30)])
            for near in (True, False)}  # fmt: skip
    assert confusion(ends[False], ends[True]) > 0.3


@pytest.mark.parametrize("success", [True, False])
def test_flags_say_what_is_done_and_nothing_about_the_middle(success: bool) -> None:
    kept = np.arange(20)
    example = reading.make_example([], [], targets_of(TeachLabel(success=success), 20), kept, success, 3)
    assert example.done[-3:].tolist() == [float(success)] * 3 and example.done_weight[-3:].all()
    assert not example.done[:6].any() and example.done_weight[:6].all()
    middle = example.done_weight[6:-3]
    assert not middle.any() if success else middle.all()  # a failure is nowhere done; when a success is, is unknown
    assert example.capped[-3:].all() != success
    assert example.draw.sum() == pytest.approx(1) and example.draw[-3:].sum() >= 0.5


def test_a_curve_teaches_every_frame() -> None:
    curve = np.linspace(0, 1, 10)
    example = reading.make_example([], [], targets_of(TeachLabel(curve=curve), 10), np.arange(10), None, 3)
    assert np.allclose(example.progress, curve) and (example.progress_weight == 1).all() and not example.capped.any()
    assert example.done.tolist() == [0.0] * 9 + [1.0]


def test_the_exported_graph_is_the_network() -> None:
    """Against the tower's own lower layers in ONNX Runtime, and the reader in torch."""
    lower = reading.cut_tower(Engine.load_shipped().tower_file, SIDE)
    images = np.random.default_rng(0).integers(0, 256, (5, SIDE, SIDE, 3), dtype=np.uint8)
    session = onnxruntime.InferenceSession(lower.SerializeToString())
    fine, coarse = session.run(None, {"frames": images, "first": images[:1]})
    torch.manual_seed(0)
    network = reading.ReaderNetwork((fine.shape[1], coarse.shape[1]), fine.shape[2])
    network.standardize([relation_of((fine, coarse))])
    network.eval()
    with torch.no_grad():
        expected = network(torch.from_numpy(fine), torch.from_numpy(coarse)).numpy()
    read = Reader(reading.export_reader(network, lower), Path("reader.onnx"))(images, images[0])
    assert np.allclose(read, expected, atol=1e-4)


def test_a_changed_copy_keeps_shape_and_order_of_frames() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    images[2] = images[0]
    changed = reading.change_images(images, np.random.default_rng(1))
    assert changed.shape == images.shape and changed.dtype == np.uint8
    assert (changed[0] == changed[2]).all() and (changed[0] != changed[1]).any() and (changed != images).any()


def flagged(count: int, quality: float, seed: int) -> list[FitExample]:
    """Features that say nothing and a reader that is right by `quality` deviations."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        success = number % 2 == 0
        value = np.clip(0.5 + quality * (success - 0.5) + rng.normal(0, 0.3, (6, 2)), 0, 1)
        targets = targets_of(TeachLabel(success=success), 6)
        found.append(FitExample(rng.normal(0, 1, (6, 4)), targets, str(number), read=value))
    return found


def test_the_better_head_counts_more_and_more_so_with_more_episodes() -> None:
    config = TeachConfig()
    weights = []
    for count in (6, 60):
        rows = build_rows(flagged(count, 1.0, 0), (), config)
        chance = np.random.default_rng(2).uniform(0, 1, rows.y.shape)
        weights.append(choose_mix(rows, chance)[0])
    assert 0.5 < weights[0] < weights[1] == 1.0
    rows = build_rows(flagged(60, 0.0, 0), (), config)
    right = np.stack([rows.y[:, 1], rows.y[:, 1]], axis=1)
    assert choose_mix(rows, right)[0] == 0.0


def test_a_head_with_a_reader_is_stored_and_mixes_its_outputs(tmp_path: Path) -> None:
    examples = flagged(40, 1.0, 3)
    head = fit_head(examples)
    assert head.mix == 1.0
    x, read = examples[0].x, examples[0].read
    assert np.allclose(head.raw(x, read=read), read)
    (tmp_path / "head.npz").write_bytes(head.content())
    again = TaughtHead.load(tmp_path / "head.npz")
    assert np.array_equal(again.raw(x, read=read), head.raw(x, read=read))
    with pytest.raises(BadInput):
        again.raw(x)


@pytest.mark.parametrize("pieces", [[7], [1] * 7, [3, 1, 3]])
def test_what_a_reader_said_holds_until_it_reads_again(pieces: list[int]) -> None:
    class Counting:
        def __call__(self, images: np.ndarray, first: np.ndarray) -> np.ndarray:
            return np.stack([images[:, 0, 0, 0], images[:, 0, 0, 0]], axis=1).astype(np.float64)

    images = np.arange(7, dtype=np.uint8)[:, None, None, None] * np.ones((1, 8, 8, 3), np.uint8)
    stream = FeatureStream(Engine.load_shipped(), "", ["tower"], Counting(), read_every=3)  # type: ignore[arg-type]
    said = [stream.embed_and_read(part)[1] for part in np.split(images, np.cumsum(pieces)[:-1])]
    assert np.concatenate(said)[:, 0].tolist() == [0, 0, 0, 3, 3, 3, 6]  # type: ignore[arg-type]


LESSON = TeachConfig(folds=3, rows=12)


@pytest.fixture(scope="module")
def with_reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model taught with the shipped network; the reader always counts."""
    folder = tmp_path_factory.mktemp("taught") / "mine"
    patch = pytest.MonkeyPatch()
    patch.setattr(reading, "STEPS", (20, 0, 20))
    patch.setattr("demerit.training.teach.job.READS", 1)
    patch.setattr(
        "demerit.training.teach.fit.choose_mix", lambda rows, held_out: (0.5, {"closed form": 0.1, "reader": 0.1})
    )
    teach(data.dataset(data.episodes(4, 4, data.verdict)), folder, config=LESSON, workers=0)
    patch.undo()
    return folder


@pytest.mark.slow
def test_a_model_with_a_reader_scores_without_torch_and_live(with_reader: Path) -> None:
    files = sorted(path.name.split("-")[0] for path in with_reader.iterdir() if "-" in path.name)
    assert files == ["head", "held", "reader", "seen"]
    model = load_model(str(with_reader))
    assert model.config.read_every == 3  # type: ignore[attr-defined]
    episode = data.episode(True, 40)
    (reward,) = model.score([episode])  # type: ignore[attr-defined]
    run = model.start(episode.instruction)  # type: ignore[attr-defined]
    live = [run.step(image).value for image in episode.main.all()]
    assert np.allclose(live, reward.value, atol=1e-4)
    code = (
        f"import sys; sys.path = {sys.path!r}; sys.modules['torch'] = None; sys.modules['onnx'] = None\n"
        "from demerit.models import load_model; from fakes import lesson_data as data\n"
        f"print(*load_model({str(with_reader)!r}).score([data.episode(True, 40)])[0].value)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert np.allclose([float(value) for value in run.stdout.split()], reward.value, atol=1e-5)


@pytest.mark.slow
def test_a_damaged_reader_is_refused(with_reader: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(with_reader, tmp_path / "copy"))
    path = next(copy.glob("reader-*.onnx"))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(StoreError):
        load_model(str(copy))
    path.unlink()
    with pytest.raises(StoreError):
        load_model(str(copy))


@pytest.mark.slow
def test_no_reader_without_torch_or_when_not_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lesson = data.dataset(data.episodes(3, 3, data.verdict))
    unwanted = teach(lesson, config=TeachConfig(folds=3, reader=False), workers=0)
    monkeypatch.setattr(features, "missing_extra", lambda: "torch")
    monkeypatch.setattr("demerit.training.teach.job.missing_extra", lambda: "torch")
    missing = teach(lesson, tmp_path / "mine", config=LESSON, workers=0)
    for outcome in (unwanted, missing):
        assert outcome.model.reader is None and not outcome.model.config.large and not outcome.results.reader
    assert any("torch" in note for note in missing.results.notes)
    assert not any("torch" in note for note in unwanted.results.notes)


@pytest.mark.slow
def test_ctrl_c_while_a_reader_is_trained_keeps_the_closed_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(reading, "train_reader", stop)
    outcome = teach(data.dataset(data.episodes(3, 3, data.verdict)), tmp_path / "mine", config=LESSON, workers=0)
    assert "reader" in outcome.stopped and outcome.model.reader is None
    assert np.isfinite(load_model(str(tmp_path / "mine")).score([data.episode(True, 40)])[0].value).all()  # type: ignore[attr-defined]
