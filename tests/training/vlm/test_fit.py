"""Training runs of tiny models: they learn, stop, resume from the last checkpoint, and end when numbers break."""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from safetensors.torch import load_file

from demerit.data.files import lock_folder
from demerit.errors import (
    BadInput,
    DemeritError,
    Diverged,
    OutOfMemory,
    StoppedByUser,
    StoreBusy,
    UnreadableVideo,
    WriteError,
)
from demerit.models.vlm.network import VLMNetwork
from demerit.models.vlm.robometer import RobometerEngine, RobometerProtocol, expected_heads
from demerit.training.prepared import PreparedCorpus
from demerit.training.vlm.checkpoints import load_start
from demerit.training.vlm.config import RobometerTrainConfig, RoboRewardTrainConfig
from demerit.training.vlm.fit import VLMProgress, VLMTrainer, make_objective, train_vlm
from demerit.training.vlm.network import VLMLearner
from fakes.paths import REPO, TESTS
from fakes.processes import running
from fakes.tiny_vlm import tiny_checkpoint
from fakes.toy_trajectories import WordTokens, tiny_start, vlm_corpus, write_corpus

SMALL = {"batch": 4, "part": 2, "frames": 4, "precision": "float32", "rate": 1e-3, "steps": 6, "save_every": 2}
Report = Callable[[VLMProgress], None]


def run(
    out: Path, report: Report | None = None, corpus: PreparedCorpus | None = None, seed: int = 0, **changes: Any
) -> Path:
    config = RobometerTrainConfig().change({**SMALL, **changes})
    return train_vlm(corpus or vlm_corpus((8, 9)), out, config, tiny_start(seed), report, device="cpu")


def weights_in(folder: Path) -> dict[str, torch.Tensor]:
    return {name.removeprefix("model."): value for name, value in load_file(folder / "model.safetensors").items()}


def furthest(one: Path, other: Path) -> float:
    """The largest difference between the weights of two models."""
    a, b = weights_in(one / "model"), weights_in(other / "model")
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def checkpoints(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "run").glob("checkpoint*"))


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "run" / "metrics.jsonl").read_text().splitlines()]


def at(step: int, do: Callable[[], Any]) -> Report:
    return lambda progress: do() if progress.step == step else None


def press() -> None:
    signal.raise_signal(signal.SIGINT)


# Learning


def judge(folder: Path, held_out: PreparedCorpus) -> list[bool]:
    """Whether each pair of a success and a failure is in the right order, by preference both ways and by progress."""
    weights = weights_in(folder)
    heads = {name: weights.pop(name) for name in expected_heads(64, 10)}
    tokens: Any = WordTokens()
    engine = RobometerEngine(VLMNetwork(tiny_start().shape, weights), heads, tokens, RobometerProtocol(frames=4))
    videos = [
        np.stack([held_out.frame(at, frame) for frame in range(row.frames)]) for at, row in enumerate(held_out.rows)
    ]
    right: list[bool] = []
    for good, row in zip(videos, held_out.rows, strict=True):
        for bad, other in zip(videos, held_out.rows, strict=True):
            if row.success and not other.success and other.instruction == row.instruction:
                done, failed = (float(engine.dense(clip, row.instruction).progress[-1]) for clip in (good, bad))
                right += [engine.compare(good, bad, row.instruction) > 0.5, done > failed + 0.2]
                right += [engine.compare(bad, good, row.instruction) < 0.5]
    return right


def shuffle_labels(corpus: PreparedCorpus) -> PreparedCorpus:
    """Random outcomes, and every frame with the progress of another."""
    rng = np.random.default_rng(1)
    rows = []
    for row in corpus.rows:
        mixed = (rng.permutation(row.frames) / row.frames).astype(np.float32)
        rows.append(replace(row, success=bool(rng.integers(2)), progress=mixed))
    return PreparedCorpus(tuple(rows), corpus.pixels)


@pytest.mark.slow
def test_a_dozen_episodes_are_learned_and_new_ones_ordered(tmp_path: Path) -> None:
    changes = {
        "steps": 50, "batch": 8, "part": 8, "clip": 1.0, "rate": 2e-3, "preference": 3.0, "head_dropout": 0.0,
        "checkpointing": False, "strategies": {"expertise": 1}, "save_every": 200,
    }  # fmt: skip
    corpus, held_out = vlm_corpus(), vlm_corpus((9, 11), seed=7)
    told: list[VLMProgress] = []
    assert all(judge(run(tmp_path / "true", told.append, corpus, **changes), held_out))
    assert np.mean([progress.loss for progress in told[-5:]]) < 0.5 * np.mean([progress.loss for progress in told[:5]])
    assert told[-1].features_found == 1.0
    assert np.mean(judge(run(tmp_path / "shuffled", None, shuffle_labels(corpus), **changes), held_out)) < 0.8


@pytest.mark.slow
def test_decoding_ahead_in_processes_changes_nothing(tmp_path: Path) -> None:
    config = RobometerTrainConfig().change({**SMALL, "steps": 4, "cache": "none"})
    folder = write_corpus(vlm_corpus((8, 9)), tmp_path / "corpus", config, "video")
    told: list[VLMProgress] = []
    for workers in (0, 2):
        corpus = PreparedCorpus.load(folder)
        out = tmp_path / str(workers)
        train_vlm(corpus, out, config, tiny_start(), told.append, device="cpu", workers=workers)
    assert furthest(tmp_path / "0", tmp_path / "2") == 0
    assert all(progress.waited >= 0 and "waited" in progress.metrics() for progress in told)


def test_a_broken_video_ends_the_run_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    config = RobometerTrainConfig().change({**SMALL, "steps": 40, "save_every": 1, "cache": "none"})
    folder = write_corpus(vlm_corpus((8, 9)), tmp_path / "corpus", config, "video")
    corpus = PreparedCorpus.load(folder)
    content = bytes(len((folder / "frames.video").read_bytes()))

    def spoil() -> None:
        (folder / "frames.video").write_bytes(content)

    with pytest.raises(UnreadableVideo, match=r"frames\.video"):
        train_vlm(corpus, tmp_path / "out", config, tiny_start(), at(2, spoil), device="cpu", workers=1)
    assert checkpoints(tmp_path / "out") and not (tmp_path / "out" / "model").exists()


@pytest.mark.slow
def test_two_launched_processes_resume_what_one_began_and_end_where_it_does(tmp_path: Path) -> None:
    """The documented command: accelerate's launcher and configuration file, with two processes on the CPU (gloo)."""
    changes = {**SMALL, "steps": 3, "part": 1, "head_dropout": 0.0, "cache": "none"}
    config = RobometerTrainConfig().change(changes)
    corpus = PreparedCorpus.load(write_corpus(vlm_corpus((8, 9)), tmp_path / "corpus", config, "video"))
    start = tiny_checkpoint(tmp_path / "qwen", text={"num_hidden_layers": 3})
    train_vlm(corpus, tmp_path / "one", config, load_start(str(start), config), device="cpu", workers=0)
    with pytest.raises(StoppedByUser):
        begun = load_start(str(start), config)
        train_vlm(corpus, tmp_path / "two", config, begun, at(1, press), device="cpu", workers=0)
    numbers = [part for name, value in changes.items() for part in ("--set", f"{name}={value}")]
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", REPO / "docs/accelerate/ddp.yaml"]
    launch += ["--num_processes", "2", "--main_process_port", "0", "-m", "demerit"]
    launch += ["train", "robometer", "-o", tmp_path / "two", "--prepared", tmp_path / "corpus", "--workers", "1"]
    launch += ["--from", start, "--device", "cpu", *numbers]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = list(map(str, launch))
    two = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert two.returncode == 0, two.stderr
    assert two.stdout.count("The model:") == 1
    assert [line["step"] for line in lines(tmp_path / "two")] == [1, 2, 3]  # each written once
    assert checkpoints(tmp_path / "two") == ["checkpoint-3"]
    for one, other in zip(lines(tmp_path / "one"), lines(tmp_path / "two"), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-5) and one["tokens"] == other["tokens"]
    assert furthest(tmp_path / "one", tmp_path / "two") < 1e-5


# Stopping and resuming


@pytest.mark.slow
def test_a_killed_run_resumes_from_its_last_checkpoint_and_exports(tmp_path: Path) -> None:
    script = f"""
import sys, time
sys.path.insert(0, {str(TESTS)!r})
import torch
torch.set_num_threads(1)
from demerit.training.vlm.config import RobometerTrainConfig
from demerit.training.vlm.fit import train_vlm
from fakes.toy_trajectories import tiny_start, vlm_corpus
config = RobometerTrainConfig().change({ {**SMALL, "lora": 4}!r})
def report(progress):
    print(progress.step, flush=True)
    time.sleep(60 if progress.step == 5 else 0)
train_vlm(vlm_corpus((8, 9)), {str(tmp_path / "cut")!r}, config, tiny_start(), report, device="cpu")
"""
    with running([sys.executable, "-c", script]) as process:
        assert process.stdout is not None
        assert [next(process.stdout).strip() for _ in range(5)] == ["1", "2", "3", "4", "5"]
        process.send_signal(signal.SIGKILL)
    assert checkpoints(tmp_path / "cut") == ["checkpoint-4"]
    (tmp_path / "cut" / "run" / "checkpoint.partial").mkdir()  # killed while saving
    steps: list[int] = []
    run(tmp_path / "cut", lambda progress: steps.append(progress.step), lora=4)
    assert steps == [5, 6]
    assert checkpoints(tmp_path / "cut") == ["checkpoint-6"]
    assert [line["step"] for line in lines(tmp_path / "cut")] == [1, 2, 3, 4, 5, 6]
    run(tmp_path / "whole", lora=4)
    assert furthest(tmp_path / "cut", tmp_path / "whole") < 1e-5


def test_ctrl_c_saves_and_the_same_call_resumes(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(StoppedByUser, match="update 3"):
        run(tmp_path, at(3, press))
    assert signal.getsignal(signal.SIGINT) is before
    assert checkpoints(tmp_path) == ["checkpoint-3"]
    assert not (tmp_path / "model").exists()
    with pytest.raises(StoppedByUser, match="update 4"):
        run(tmp_path, at(5, lambda: (press(), press())))  # the second one stops at once
    steps: list[int] = []
    run(tmp_path, lambda progress: steps.append(progress.step))
    assert steps == [5, 6]


def test_another_run_is_not_resumed(tmp_path: Path) -> None:
    run(tmp_path, steps=1)
    others: list[dict[str, Any]] = [{"rate": 1e-4}, {"seed": 1}, {"corpus": vlm_corpus((9,))}]
    for change in others:
        with pytest.raises(BadInput, match="another folder"):
            run(tmp_path, **{"steps": 1, **change})
    folder = tmp_path / "run" / "checkpoint-1"
    for name, content in (("optimizer.bin", b"torn"), ("trained.safetensors", b"torn"), ("state.json", b"{}")):
        before = (folder / name).read_bytes()
        (folder / name).write_bytes(content)
        with pytest.raises(BadInput, match="remove it"):
            run(tmp_path, steps=1)
        (folder / name).write_bytes(before)
    with lock_folder(tmp_path / "run"), pytest.raises(StoreBusy):
        run(tmp_path, steps=1)


# Numbers that break, memory and disk


def fill_memory(*_: Any) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 is full.")


def break_weights(optimiser: torch.optim.Optimizer, closure: Any = None) -> None:
    with torch.no_grad():
        optimiser.param_groups[0]["params"][-1].view(-1)[0] = torch.nan


FORWARD = VLMLearner.forward
BREAKS: list[tuple[type, str, Any, type[DemeritError], str]] = [
    (VLMLearner, "forward", lambda *a: {k: v * torch.inf for k, v in FORWARD(*a).items()}, Diverged, "loss"),
    (Accelerator, "clip_grad_norm_", lambda *_: torch.tensor(torch.inf), Diverged, "gradient"),
    (torch.optim.AdamW, "step", break_weights, Diverged, "weights"),
    (VLMLearner, "forward", fill_memory, OutOfMemory, r"part=1.*20.00 GiB"),
]


@pytest.mark.parametrize(("owner", "name", "broken", "error", "word"), BREAKS)
def test_a_run_that_breaks_keeps_the_last_checkpoint_and_exports_nothing(
    tmp_path: Path, monkeypatch: Any, owner: type, name: str, broken: Any, error: type[DemeritError], word: str
) -> None:
    with pytest.raises(error, match=word):
        run(tmp_path, at(2, lambda: monkeypatch.setattr(owner, name, broken)), steps=4)
    assert checkpoints(tmp_path) == ["checkpoint-2"]
    trained = load_file(tmp_path / "run" / "checkpoint-2" / "trained.safetensors")
    assert all(value.isfinite().all() for value in trained.values())
    assert not (tmp_path / "model").exists()


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path: Path, monkeypatch: Any) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    try:
        with pytest.raises(WriteError) as caught:
            run(tmp_path, at(3, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "update 2" in caught.value.kept
    assert checkpoints(tmp_path) == ["checkpoint-2"]


# What is held out, and metrics


def test_the_best_weights_are_kept_and_nan_is_never_the_best(tmp_path: Path, monkeypatch: Any) -> None:
    errors = iter([2.0, 1.0, float("nan")])
    monkeypatch.setattr(VLMTrainer, "_held_out_error", lambda *_: next(errors))
    changes = {"batch": 2, "part": 2, "precision": "float32", "steps": 3, "validate_every": 1, "lora": 2}
    config = RoboRewardTrainConfig().change(changes)
    corpus = vlm_corpus((5, 6))
    rows = (replace(row, split="held-out") if row.frames == 6 else row for row in corpus.rows)
    start = load_start(str(tiny_checkpoint(tmp_path / "qwen", text={"num_hidden_layers": 3})), config)
    graded = PreparedCorpus(tuple(rows), corpus.pixels)
    model = train_vlm(graded, tmp_path / "out", config, start, device="cpu")
    best = json.loads((model / "training.json").read_text())["best"]
    assert best == {"update": 2, "held-out error": 1.0, "measure": "mean distance of held-out grades"}
    assert json.loads((tmp_path / "out" / "run" / "best" / "state.json").read_text())["step"] == 2
    assert [line["held_out_error"] for line in lines(tmp_path / "out")] == [2.0, 1.0, None]


def test_the_weights_that_rank_held_out_episodes_best_are_written(tmp_path: Path) -> None:
    corpus = vlm_corpus((8, 9))
    rows = (*corpus.rows, *(replace(row, id=f"later {row.id}", split="held-out") for row in corpus.rows))
    out = tmp_path / "out"
    model = run(out, corpus=replace(corpus, rows=rows), steps=4, validate_every=1)
    errors = [line["held_out_error"] for line in lines(out)]
    facts = json.loads((model / "training.json").read_text())
    best = {"update": 1 + int(np.argmin(errors)), "held-out error": min(errors)}
    assert facts["best"] == {**best, "measure": "share of held-out pairs in the wrong order"}
    assert facts["recipe"]["zero_at"] == "clip"
    assert "progress_pred_type: absolute_first_frame" in (model / "config.yaml").read_text()
    written, kept = weights_in(model), load_file(out / "run" / "best" / "trained.safetensors")
    assert all(torch.equal(written[name].float(), kept[name]) for name in kept)
    progress = score_ends(model, corpus)
    objective = make_objective(replace(corpus, rows=rows), RobometerTrainConfig().change(SMALL), tiny_start())
    assert objective.held_out_error(progress) == pytest.approx(min(errors), abs=1e-9)


def score_ends(folder: Path, corpus: PreparedCorpus) -> list[float]:
    """Score every episode with the engine and return the progress at its end."""
    start = tiny_start()
    weights = weights_in(folder)
    heads = {name: weights.pop(name) for name in expected_heads(start.shape.text.hidden, 10) if name in weights}
    tokens: Any = WordTokens()
    engine = RobometerEngine(VLMNetwork(start.shape, weights), heads, tokens, RobometerProtocol(4))
    images = [
        np.stack([corpus.frame(number, at) for at in range(row.frames)]) for number, row in enumerate(corpus.rows)
    ]
    shown = zip(corpus.rows, images, strict=True)
    return [float(engine.dense(frames, row.instruction).progress[-1]) for row, frames in shown]
