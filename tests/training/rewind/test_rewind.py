"""ReWiND: the objective, the clips, a run from end to end, and the folder that it writes."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from demerit.cli import app
from demerit.data.arrays import Floats32
from demerit.data.episode import Episode
from demerit.data.frames import Images, spread
from demerit.data.splits import SeenEpisodes
from demerit.errors import BadInput, DemeritError
from demerit.models import load_model
from demerit.models.check import check_model
from demerit.models.compact.engine import WORDS, Engine, TextEncoder, shipped_folder
from demerit.models.loading import DESCRIPTION
from demerit.models.rewind import HEAD, ReWiND
from demerit.training.prepared import CorpusRow, PreparedCorpus
from demerit.training.rewind import RewindTrainConfig, load_rewind_config
from demerit.training.rewind.data import RewindSampler, is_for_rewind, order_rewound, row_targets
from demerit.training.rewind.train import (
    RewindNetwork,
    RewindTrainer,
    compute_features,
    export_rewind,
    list_credits,
    rewind_losses,
)
from fakes.toy_corpus import INSTRUCTIONS, compact_corpus, draw_bar

SMALL = RewindTrainConfig(steps=6, clips=8, hidden=16, layers=1, heads=2, mismatched=1.0, failures=0.0)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def words() -> TextEncoder:
    return TextEncoder.load(shipped_folder() / WORDS)


def corpus_features(width: int = 8) -> tuple[tuple[CorpusRow, ...], np.ndarray]:
    """The toy corpus with made-up features, of which the first is the true progress."""
    rows = compact_corpus().rows
    done = [np.linspace(0, 1, row.frames) if np.isnan(row.progress).any() else row.progress for row in rows]
    noise = np.random.default_rng(0).normal(size=(sum(row.frames for row in rows), width - 1)) / 4
    return rows, np.concatenate([np.concatenate(done)[:, None], noise], axis=1).astype(np.float16)


def small_network(features: int = 384) -> RewindNetwork:
    torch.manual_seed(5)
    return RewindNetwork(features, 192, 16, 2, 2).eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("model") / "mine" / "network"
    rows = [replace(row, marks=("ab" * 8,)) for row in compact_corpus().rows[:4]]
    return export_rewind(small_network(), out, shipped_folder(), SMALL, rows)


# The objective


def test_the_objective_is_the_papers() -> None:
    rng = np.random.default_rng(1)
    own, other = rng.random((3, 5)), rng.random((3, 5))
    targets = np.arange(1, 6)[None].repeat(3, axis=0) / 5  # t / T
    targets[1] = [0.2, 0.4, 0.6, 0.4, 0.2]  # rewound
    expected_own = sum((own[n, t] - targets[n, t]) ** 2 for n in range(3) for t in range(5)) / 15
    expected_other = sum(other[n, t] ** 2 for n in range(3) for t in range(5)) / 15
    found = rewind_losses(*(torch.from_numpy(part) for part in (own, other, targets)), weight=1.0)
    assert found["progress"].item() == pytest.approx(expected_own)
    assert found["mismatched"].item() == pytest.approx(expected_other)


def test_padding_and_unknown_progress_count_for_nothing() -> None:
    own = torch.tensor([[0.5, 0.9]])
    found = rewind_losses(own, own, torch.tensor([[0.25, torch.nan]]), weight=2.0)
    assert found["progress"].item() == pytest.approx(0.0625)
    assert found["mismatched"].item() == pytest.approx(0.5)


def test_controls_have_the_loss_that_theory_says() -> None:
    rng = np.random.default_rng(2)
    orders = [order_rewound(40, rng) for _ in range(100)]
    targets = torch.from_numpy(np.concatenate([(order + 1) / 40 for order in orders]))
    clock = torch.from_numpy(np.concatenate([np.arange(1, len(order) + 1) / len(order) for order in orders]))
    zeros = torch.zeros_like(targets)
    assert rewind_losses(targets, zeros, targets, 1.0)["progress"].item() == 0
    assert rewind_losses(clock, zeros, targets, 1.0)["progress"].item() > 0.05
    assert rewind_losses(targets, targets, targets, 1.0)["mismatched"].item() > 0.1  # deaf to the instruction


# Clips


def test_a_rewind_goes_forward_then_back_one_frame_at_a_time() -> None:
    rng = np.random.default_rng(0)
    for length in (3, 4, 17, 32):
        for _ in range(20):
            order = order_rewound(length, rng)
            turn = int(order.argmax())
            assert order[0] == 0 and turn >= length // 2 and turn < len(order) - 1
            assert np.abs(np.diff(order)).tolist() == [1] * (len(order) - 1)
            assert order.min() >= 0


def test_targets_follow_the_frames(words: TextEncoder) -> None:
    rows, _ = corpus_features()
    config = replace(SMALL, clips=200, failures=0.5)
    sampler = RewindSampler(rows, config)
    of = {number: (row, number - row.first) for row in rows for number in range(row.first, row.first + row.frames)}
    for clip in sampler.sample(np.random.default_rng(0)):
        row = of[int(clip.frames[0])][0]
        for number, target in zip(clip.frames, clip.targets, strict=True):
            if not np.isnan(target):
                time = (of[int(number)][1] + 1) / row.frames
                assert target == pytest.approx(time if row.success else row.progress[of[int(number)][1]])
        assert np.isnan(clip.targets).sum() == 16 - len(clip.targets[~np.isnan(clip.targets)])
        assert clip.instruction == row.instruction
        assert clip.other in set(INSTRUCTIONS.values()) - {row.instruction}


def test_the_papers_recipe_sees_no_failure_and_no_model_curve() -> None:
    rows, _ = corpus_features()
    kinds = {(row.kind, row.success) for row in RewindSampler(rows, SMALL).rows}
    assert kinds == {("measured", True), ("demonstration", True)}
    kinds = {(row.kind, row.success) for row in RewindSampler(rows, replace(SMALL, failures=0.5)).rows}
    assert kinds == {("measured", True), ("measured", False), ("demonstration", True)}


@pytest.mark.parametrize("split", ["validation", "test", "held-out"])
def test_other_splits_are_never_trained_on(split: str) -> None:
    row = compact_corpus().rows[0]
    assert is_for_rewind(row, SMALL) and not is_for_rewind(replace(row, split=split), SMALL)
    with pytest.raises(BadInput):
        RewindSampler(compact_corpus(split=split).rows, SMALL)


def test_an_episode_graded_at_its_end_is_shown_whole() -> None:
    """As graded counterfactuals and clips are."""
    graded = replace(compact_corpus().rows[0], kind="outcome", success=False, progress=np.full(8, np.nan, np.float32))
    graded.progress[-1] = 0.25
    rows = [*compact_corpus().rows, graded]
    sampler = RewindSampler(rows, replace(SMALL, failures=1.0, clips=100))
    assert graded in sampler.rows
    first = sum(row.frames for row in rows[:-1])
    found = [clip for clip in sampler.sample(np.random.default_rng(0)) if clip.frames[0] == first]
    assert found
    for clip in found:
        assert clip.frames[:8].tolist() == list(range(first, first + 8))
        assert clip.targets[7] == 0.25 and np.isnan(clip.targets).sum() == len(clip.targets) - 1


def test_measured_targets_where_there_are_some() -> None:
    rows = {(row.kind, row.success): row for row in compact_corpus().rows}
    good, bad, shown = rows["measured", True], rows["measured", False], rows["demonstration", True]
    assert row_targets(good, "time")[0] == pytest.approx(1 / good.frames) and row_targets(good, "measured")[0] == 0
    assert row_targets(bad, "time").tolist() == bad.progress.tolist()
    assert row_targets(shown, "measured")[-1] == 1


# Training


def test_training_is_deterministic_and_resumes_to_the_same_weights(tmp_path: Path, words: TextEncoder) -> None:
    rows, features = corpus_features()

    def train(folder: str) -> RewindTrainer:
        return RewindTrainer(rows, features, SMALL, words, tmp_path / folder, "cpu")

    whole, again = train("a").run().state_dict(), train("b").run().state_dict()
    stopped = train("c")

    def stop(progress: object) -> None:
        if stopped.step == 3:
            stopped.save()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped.run(stop, every=1)
    resumed = train("c")
    assert resumed.step == 3
    rest = resumed.run().state_dict()
    for name, value in whole.items():
        assert torch.equal(value, again[name]) and torch.equal(value, rest[name])
    with pytest.raises(BadInput):
        RewindTrainer(rows, features, replace(SMALL, rewind=0.1), words, tmp_path / "a", "cpu")


@pytest.mark.slow
def test_it_learns_progress_and_that_a_wrong_instruction_is_worth_nothing(tmp_path: Path, words: TextEncoder) -> None:
    rows, features = corpus_features()
    config = replace(SMALL, steps=500, clips=32, hidden=32, rate=3e-3)
    network = RewindTrainer(rows, features, config, words, tmp_path, "cpu").run()
    row = next(row for row in rows if row.kind == "measured" and row.success)
    seen = torch.from_numpy(features[row.first : row.first + row.frames].astype(np.float32))[None]
    vectors = [torch.from_numpy(words.vector(text))[None] for text in (row.instruction, INSTRUCTIONS["shown"])]
    with torch.no_grad():
        right, wrong = (network(seen, vector)[0].numpy() for vector in vectors)
        undone = network(seen.flip(1), vectors[0])[0].numpy()
    assert right[-1] > 0.7 and right[0] < 0.4 and wrong[-1] < right[-1] - 0.3
    assert undone[-1] < right[-1] - 0.2  # it looks; a clock would not tell


def test_features_are_computed_once_and_continue_where_they_stopped(tmp_path: Path) -> None:
    corpus, engine = compact_corpus(lengths=(8,)), Engine.load_shipped(threads=1)
    seen: list[int] = []
    whole = compute_features(corpus, engine, tmp_path / "a", seen.append)
    assert whole.shape == (64, 384) and seen[-1] == 64
    assert np.array_equal(compute_features(corpus, engine, tmp_path / "a", seen.append), whole) and len(seen) == 8

    def stop(frames: int) -> None:
        if frames == 24:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compute_features(corpus, engine, tmp_path / "b", stop)
    (partial,) = (tmp_path / "b").glob("*.partial")
    partial.write_bytes(partial.read_bytes()[:-5])  # killed in the middle of a write
    seen.clear()
    assert np.array_equal(compute_features(corpus, engine, tmp_path / "b", seen.append), whole) and seen[0] == 24
    assert not list((tmp_path / "b").glob("*.partial"))


def test_counterfactuals_and_clips_of_an_episode_cost_no_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, images = Engine.load_shipped(threads=1), np.arange(8, dtype=np.uint8)[:, None, None, None] * 30
    images = np.broadcast_to(images, (8, 16, 16, 3)).copy()
    row = compact_corpus(lengths=(8,)).rows[0]
    clip = replace(row, id="clip", progress=row.progress[:5], times=row.times[:5], facts=None)
    whole, cut = images, images[:5]
    corpus = PreparedCorpus.from_arrays([row, replace(row, id="other", instruction="other"), clip], [whole, whole, cut])
    counted: list[int] = []
    features = Engine.features

    def count(self: Engine, images: Images, first: Images) -> Floats32:
        counted.append(len(images))
        return features(self, images, first)

    monkeypatch.setattr(Engine, "features", count)
    found = compute_features(corpus, engine, tmp_path)
    assert sum(counted) == 8
    assert np.array_equal(found[8:16], found[:8]) and np.array_equal(found[16:], found[:5])


# The model


def test_the_exported_model_equals_the_network(folder: Path, words: TextEncoder) -> None:
    network, model = small_network(), ReWiND.from_folder(folder)
    features = np.random.default_rng(0).normal(size=(40, 384)).astype(np.float32)
    meaning = words.vector("lift the lid")
    assert meaning is not None
    with torch.no_grad():
        expected = [
            network(torch.from_numpy(features[spread(at + 1, 16)])[None], torch.from_numpy(meaning)[None])[0, -1].item()
            for at in range(40)
        ]
    np.testing.assert_allclose(model.follow(features, meaning), expected, atol=1e-5)


def test_live_equals_offline(folder: Path) -> None:
    model = load_model(str(folder.parent))
    images = np.stack([draw_bar(done) for done in np.linspace(0, 1, 21)])
    (reward,) = model.score([Episode.from_array(images, "lift the lid", id="e")])
    run = model.start("lift the lid")
    assert [run.step(image).value for image in images] == pytest.approx(reward.value.tolist(), abs=1e-5)
    assert reward.value.std() > 0


def test_it_keeps_the_contract_and_names_what_it_has_seen(folder: Path) -> None:
    model = load_model(str(folder))
    check_model(model).raise_if_broken()
    assert model.card.name == "mine" and model.card.causal
    assert "ab" * 8 in model.seen.marks and Engine.load_shipped().seen.marks <= model.seen.marks


def test_without_an_instruction_there_is_no_reward(folder: Path) -> None:
    model = load_model(str(folder))
    images = np.stack([draw_bar(0.5)] * 3)
    (reward,) = model.score([Episode.from_array(images, "", id="e")])
    assert not reward.scored and "instruction" in reward.why_missing
    with pytest.raises(BadInput):
        model.start(" ")


@pytest.mark.parametrize("damage", ["head", "tower", "field", "frames", "missing"])
def test_a_damaged_folder_is_refused(folder: Path, tmp_path: Path, damage: str) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    facts = json.loads((copy / DESCRIPTION).read_text())
    if damage in ("head", "tower"):
        path = copy / (HEAD if damage == "head" else "tower/words.npz")
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    elif damage == "missing":
        (copy / HEAD).unlink()
    else:
        changed = {**facts, "frames": 0} if damage == "frames" else {**facts, "code": "evil.py"}
        (copy / DESCRIPTION).write_text(json.dumps(changed))
    with pytest.raises(DemeritError):
        load_model(str(copy))


def test_the_recipe_is_the_default() -> None:
    assert load_rewind_config() == RewindTrainConfig()
    for changes in ({"rewind": 1.5}, {"heads": 3}, {"targets": "guess"}, {"frames": 1}, {"rates": 1}):
        with pytest.raises(DemeritError):
            RewindTrainConfig().change(changes)


@pytest.mark.slow
def test_the_command_trains_on_the_sample_and_the_folder_is_a_model(tmp_path: Path, sample: Path) -> None:
    command = ["train", "rewind", "-o", str(tmp_path / "mine"), "--data", f"lab={sample}", "--workers", "0"]
    small = [f"--set={change}" for change in ("steps=2", "clips=4", "hidden=16", "layers=1", "heads=2")]
    for _ in range(2):  # the second run resumes a finished one
        result = CliRunner().invoke(app, [*command, *small, "--device", "cpu"])
        assert result.exit_code == 0, result.output
    model = load_model(str(tmp_path / "mine"))
    assert isinstance(model, ReWiND) and len(model.seen.marks - SeenEpisodes().marks) > 0
    assert (tmp_path / "mine" / "network" / "training.json").is_file()


def test_credits_name_the_datasets() -> None:
    sources = {"press": "droid", "lift": "mine"}
    rows = [replace(row, source=sources.get(row.task, "metaworld")) for row in compact_corpus().rows]
    credits = list_credits(rows)
    assert (
        credits[0].startswith("DROID (CC-BY-4.0)") and credits[1].startswith("Meta-World") and credits[2:] == ["mine"]
    )


SCORING = """
import numpy as np
from demerit import Episode, load_model
load_model("default").score([Episode.from_array(np.zeros((3, 32, 32, 3), np.uint8), "press the button")])
"""
HELP = """
from demerit.cli import app
app(["train", "rewind", "--help"], standalone_mode=False)
app(["train", "robometer", "--help"], standalone_mode=False)
"""


@pytest.mark.parametrize("code", [HELP, SCORING], ids=["help", "scoring"])
def test_only_training_loads_torch(code: str) -> None:
    check = f"import sys\n{code}\nassert 'torch' not in sys.modules and 'onnx' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True, stdout=subprocess.DEVNULL)


def test_without_torch_the_extra_is_named_first(tmp_path: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; from demerit.cli import main; main()"
    command = [sys.executable, "-c", code, "train", "rewind", "-o", str(tmp_path / "out"), "--data", "a=nowhere"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "demerit[train]" in run.stderr
    assert not (tmp_path / "out").exists()
