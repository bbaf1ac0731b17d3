"""LeRobot itself opens, iterates and trains on what demerit writes. Run with: make test-lerobot."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demerit.use.write.frames import EpisodeSpans, RewardRecipe, weigh_samples
from demerit.use.write.job import write_rewards
from demerit.use.write.tables import read_weights
from fakes.command import demerit
from fakes.drawn_sample import make_sample
from fakes.written_rewards import LENGTHS, ByPlace, scored, true_value, write_source

torch = pytest.importorskip("torch", reason="LeRobot's environment: make test-lerobot")
pytest.importorskip("lerobot.__version__", reason="LeRobot is not installed in this environment: make test-lerobot")
os.environ["HF_HUB_OFFLINE"] = "1"

from fakes.lerobot_itself import DECLARE  # noqa: E402

TRAIN = DECLARE + "\nfrom lerobot.scripts.lerobot_train import main\nmain()"
TOTAL = sum(LENGTHS)


def open_itself(root: Path) -> Any:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    return LeRobotDataset("local/arm", root=root, video_backend="pyav")


def rows(dataset: Any) -> dict[int, dict[str, Any]]:
    """Every row by its index, through a shuffled loader."""
    loader = torch.utils.data.DataLoader(dataset, batch_size=4, shuffle=True)
    found = {}
    for batch in loader:
        for place, index in enumerate(batch["index"].tolist()):
            found[index] = {name: values[place] for name, values in batch.items()}
    return found


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_source(tmp_path_factory.mktemp("source") / "arm")


@pytest.fixture(scope="module")
def rewarded(source: Path) -> Path:
    dest = source.parent / "rewarded"
    write_rewards(scored(source), dest, "lerobot", RewardRecipe(gamma=1.0))
    return dest


def test_it_opens_and_iterates_the_new_dataset(source: Path, rewarded: Path) -> None:
    new, old = open_itself(rewarded), open_itself(source)
    assert (len(new), new.num_episodes, new.fps) == (TOTAL, 4, 10)
    got, before = rows(new), rows(old)
    assert sorted(got) == list(range(TOTAL))
    index = 0
    for place, length in enumerate(LENGTHS):
        for t in range(length):
            row, is_last = got[index], t == length - 1
            assert row["next.reward"].dtype == torch.float32
            assert float(row["next.reward"]) == pytest.approx(true_value(place, min(t + 1, length - 1)), rel=1e-6)
            assert bool(row["next.done"]) == is_last and bool(row["next.success"]) == (is_last and place != 1)
            assert row["next.success"].dtype == row["next.done"].dtype == torch.bool
            for name in ("observation.images.front", "observation.images.side", "action", "observation.state"):
                assert torch.equal(row[name], before[index][name])
            assert row["task"] == before[index]["task"]
            index += 1
    assert new.meta.stats["next.reward"]["count"].tolist() == [TOTAL]
    assert set(new.meta.features) == {*old.meta.features, "next.reward", "next.success", "next.done"}


def test_it_opens_a_dataset_with_dropped_episodes(source: Path, tmp_path: Path) -> None:
    model = ByPlace(lambda i, t: i == 1 and t == 2, "gap")
    write_rewards(scored(source, model), tmp_path / "new", "lerobot", RewardRecipe(("drop-episode",)))
    new, old = rows(open_itself(tmp_path / "new")), rows(open_itself(source))
    kept = [*range(6), *range(15, TOTAL)]
    assert sorted(new) == list(range(len(kept)))
    for index, before in enumerate(kept):
        assert torch.equal(new[index]["observation.images.front"], old[before]["observation.images.front"])
        assert torch.equal(new[index]["action"], old[before]["action"])
    assert open_itself(tmp_path / "new").meta.stats["action"]["count"].tolist() == [len(kept)]


def test_it_opens_what_export_and_one_step_writing_make(tmp_path: Path) -> None:
    sample = make_sample(tmp_path / "blocks")
    assert demerit("export", sample, tmp_path / "plain", "--fps", 10).returncode == 0
    run = demerit(
        "rewards", "write", sample, "-m", "clock", "--fps", 10, "-o", tmp_path / "new", "--rewards", tmp_path / "r"
    )
    assert run.returncode == 0, run.stderr
    plain, new = open_itself(tmp_path / "plain"), open_itself(tmp_path / "new")
    assert len(plain) == len(new) == len(rows(new))
    assert float(new[len(new) - 1]["next.reward"]) == 1.0 and "next.reward" not in plain[0]


def test_a_sidecar_beside_it_changes_nothing_and_is_read(source: Path, tmp_path: Path) -> None:
    from lerobot.utils.rabc import RABCWeights

    recipe = RewardRecipe(ahead=3)
    write_rewards(scored(source), tmp_path / "side", "sidecar", recipe)
    for head in ("sparse", "dense"):
        theirs = RABCWeights(tmp_path / "side/sarm_progress.parquet", 3, head, kappa=0.01)
        indices = torch.arange(TOTAL)
        got, _ = theirs.compute_batch_weights({"index": indices})
        ours = read_weights(tmp_path / "side/sample_weights.parquet")
        np.testing.assert_allclose(got.cpu().numpy(), ours * TOTAL / (ours.sum() + 1e-6), atol=1e-6)
    copy = write_source(tmp_path / "arm")
    write_rewards(scored(copy), copy, "sidecar", recipe)
    assert len(rows(open_itself(copy))) == TOTAL


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kappa", [0.0, 0.01, 0.2])
def test_weights_equal_those_of_lerobot(seed: int, kappa: float, tmp_path: Path) -> None:
    from lerobot.utils.rabc import RABCWeights

    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 80, 12)
    spans = EpisodeSpans(lengths.astype(np.int64))
    steps = rng.normal(0.01, 0.05, spans.lengths.sum())
    progress = np.clip(np.cumsum(steps) % 1.0, 0, 1).astype(np.float32)
    progress[rng.random(len(progress)) < (0.1 if seed % 2 else 0.0)] = np.nan
    chunk = int(rng.integers(1, 60))
    table = {"index": np.arange(len(progress)), "episode_index": spans.owner, "progress_dense": progress}
    pq.write_table(pa.table(table), tmp_path / "progress.parquet")
    theirs = RABCWeights(tmp_path / "progress.parquet", chunk, "dense", kappa, fallback_weight=-1.0)
    deltas = np.array([theirs._compute_delta(index) for index in range(len(progress))], dtype=np.float32)
    ours = weigh_samples(progress.astype(np.float64), spans, chunk, kappa)
    expected = theirs._compute_weights(deltas)
    np.testing.assert_allclose(np.nan_to_num(ours, nan=-1.0), expected, atol=1e-6)
    assert len(set(expected.tolist())) > 2 or kappa == 0.0


def test_lerobot_train_takes_three_steps(rewarded: Path, tmp_path: Path) -> None:
    options = {
        "dataset.repo_id": "local/arm",
        "dataset.root": rewarded,
        "dataset.video_backend": "pyav",
        "policy.type": "act",
        "policy.device": "cpu",
        "policy.push_to_hub": "false",
        "policy.pretrained_backbone_weights": "null",
        "policy.chunk_size": 4,
        "policy.n_action_steps": 4,
        "policy.dim_model": 32,
        "policy.n_heads": 2,
        "policy.dim_feedforward": 64,
        "batch_size": 4,
        "steps": 3,
        "log_freq": 1,
        "num_workers": 0,
        "save_checkpoint": "false",
        "wandb.enable": "false",
        "output_dir": tmp_path / "run",
    }
    words = [f"--{name}={value}" for name, value in options.items()]
    run = subprocess.run(
        [sys.executable, "-c", TRAIN, *words], capture_output=True, text=True, check=False, timeout=200
    )
    said = run.stdout + run.stderr
    assert run.returncode == 0, said[-3000:]
    assert said.count("loss:") == 3, said[-3000:]
