"""The training loop: it learns, stops, resumes and refuses."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from demerit.errors import BadInput, Diverged
from demerit.models.compact.engine import TextEncoder
from demerit.training import loop
from demerit.training.loop import CHECKPOINT, LoopProgress
from demerit.training.prepared import PreparedCorpus
from fakes.toy_corpus import compact_corpus, small_config
from train_compact import fit
from train_compact.fit import CompactTrainer
from train_compact.train import SHIPPED_WORDS


@pytest.fixture(scope="module")
def words() -> TextEncoder:
    return TextEncoder.load(SHIPPED_WORDS)


def make_trainer(
    words: TextEncoder, folder: Path, corpus: PreparedCorpus | None = None, **changes: object
) -> CompactTrainer:
    return CompactTrainer(corpus or compact_corpus(), small_config(**changes), words, folder, device="cpu")


def same(one: CompactTrainer, other: CompactTrainer) -> bool:
    """Whether two runs have come to the same weights, bit for bit."""
    pairs = zip(_numbers(one), _numbers(other), strict=True)
    return one.step == other.step and all(torch.equal(a, b) for a, b in pairs)


def _numbers(run: CompactTrainer) -> Iterator[torch.Tensor]:
    for network in (run.network, run.averaged):
        yield from network.state_dict().values()
    for state in run.optimiser.state_dict()["state"].values():
        yield from state.values()


def test_a_stopped_run_resumes_and_ends_the_same(words: TextEncoder, tmp_path: Path) -> None:
    changes = {"steps": 2, "groups": 1, "clips": 2}
    whole = make_trainer(words, tmp_path / "whole", **changes)
    whole.run()
    stopped = make_trainer(words, tmp_path / "stopped", **changes)

    def press(progress: LoopProgress) -> None:
        if progress.step == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        stopped.run(press, every=1)
    assert stopped.step == 1
    torch.rand(5)  # other code may draw random numbers in between
    resumed = make_trainer(words, tmp_path / "stopped", **changes)
    assert same(resumed, stopped)
    resumed.run()
    assert same(resumed, whole)
    assert not same(stopped, whole)


def test_a_run_ends_at_the_first_loss_that_is_not_finite(
    words: TextEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SAVE_EVERY", -1.0)
    run, features = make_trainer(words, tmp_path), fit.tower_features
    monkeypatch.setattr(fit, "tower_features", lambda *given: features(*given) * (torch.inf if run.step == 2 else 1))
    with pytest.raises(Diverged, match="tower_rate") as caught:
        run.run()
    assert caught.value.update == 3
    monkeypatch.undo()
    kept = make_trainer(words, tmp_path)
    assert kept.step == 2
    assert all(value.isfinite().all() for value in kept.network.state_dict().values())


def test_weights_that_are_not_finite_are_not_saved(
    words: TextEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_trainer(words, tmp_path, steps=1)
    monkeypatch.setattr(run, "_average", lambda: next(run.averaged.parameters()).fill_(torch.nan))
    with pytest.raises(Diverged, match="weights are not finite"):
        run.run()
    assert not (tmp_path / CHECKPOINT).exists()


def test_another_runs_checkpoint_is_refused(words: TextEncoder, tmp_path: Path) -> None:
    make_trainer(words, tmp_path).save()
    corpus = compact_corpus()
    rows = tuple(replace(row, progress=1 - row.progress) for row in corpus.rows)
    relabelled = replace(corpus, rows=rows)  # the same episodes with other labels
    for seed, other in ((1, corpus), (0, compact_corpus((8, 9))), (0, relabelled)):
        with pytest.raises(BadInput, match="these episodes"):
            make_trainer(words, tmp_path, other, seed=seed)
    (tmp_path / CHECKPOINT).write_text("torn")
    with pytest.raises(BadInput, match="remove it"):
        make_trainer(words, tmp_path)


@pytest.mark.slow
def test_the_loss_goes_down_on_what_can_be_learned(
    words: TextEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "WARM_UP", 2)
    losses: list[float] = []
    changes = {"shares": {"measured": 1}, "steps": 14, "tower_rate": 2e-3, "head_rate": 5e-3}
    run = make_trainer(words, tmp_path, **changes)
    run.run(lambda progress: losses.append(progress.losses["progress"]), every=1)
    assert np.mean(losses[-4:]) < np.mean(losses[:4]) - 0.2, losses
