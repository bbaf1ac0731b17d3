"""How a training run ends before its end: numbers that break down, Ctrl-C twice, a full disk, a folder in use."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from demerit.cli import app
from demerit.data.files import lock_folder
from demerit.errors import BadInput, Diverged, StoppedByUser, StoreBusy, StoreError, WriteError
from demerit.training.vlm import saved
from demerit.training.vlm.export import export
from demerit.training.vlm.fit import Fitting
from demerit.training.vlm.network import Learner
from demerit.training.vlm.recipe import RobometerRecipe, RoboRewardRecipe
from demerit.training.vlm.reports import Reports, Told
from demerit.training.vlm.saved import BEST, CHECKPOINT, read
from demerit.training.vlm.train import begin, train
from fakes.drawn_sample import make_sample
from fakes.tiny_vlm import tiny_checkpoint
from fakes.toy_trajectories import tiny_start, toy

SMALL = {"batch": 2, "part": 2, "frames": 2, "precision": "float32", "rate": 1e-3, "lora": 2}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(out: Path, report: Callable[[Told], None] | None = None, **changes: Any) -> Path:
    recipe = RobometerRecipe().changed({"steps": 3, **SMALL, **changes})
    return train(toy((8, 9)), out, recipe, tiny_start(), report, device="cpu")


def lines(out: Path) -> list[dict[str, Any]]:
    def refuse(word: str) -> None:
        pytest.fail(f"{word} is not JSON")

    text = (out / "run" / "metrics.jsonl").read_text()
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def at(step: int, do: Callable[[], None]) -> Callable[[Told], None]:
    return lambda told: do() if told.step == step else None


# --- numbers that are no numbers ------------------------------------------------------------------------------------


def test_a_run_ends_at_the_first_loss_that_is_no_number(tmp_path: Path, monkeypatch: Any) -> None:
    answer = Learner.forward

    def break_down() -> None:
        monkeypatch.setattr(Learner, "forward", lambda *given: {k: v * torch.inf for k, v in answer(*given).items()})

    with pytest.raises(Diverged, match=r"at update 3: the loss is no number .*update 2 stands.*lower rate") as caught:
        run(tmp_path, at(2, break_down), save_every=2)
    assert "begins with" not in str(caught.value)
    assert not (tmp_path / "model").exists()
    checkpoint = read(tmp_path / "run" / CHECKPOINT)
    assert checkpoint["step"] == 2
    assert all(one.isfinite().all() for one in checkpoint["weights"].values())
    told = lines(tmp_path)
    assert [line["step"] for line in told] == [1, 2, 3]
    assert set(told[1]) | {"broke"} == set(told[2])
    assert told[2]["loss"] is None
    assert "the loss is no number" in told[2]["broke"]


def test_a_run_ends_at_weights_that_are_no_numbers_also_when_they_are_the_last(
    tmp_path: Path, monkeypatch: Any
) -> None:
    def too_far(optimiser: torch.optim.Optimizer) -> None:
        with torch.no_grad():
            optimiser.param_groups[0]["params"][-1].view(-1)[0] = torch.nan

    monkeypatch.setattr(torch.optim.AdamW, "step", too_far)
    with pytest.raises(Diverged, match=r"update 1: it made weights .*Nothing was saved.*begins with"):
        run(tmp_path, steps=1)
    assert not (tmp_path / "model").exists()
    assert not (tmp_path / "run" / CHECKPOINT).exists()
    assert lines(tmp_path)[0]["broke"]


def test_a_gradient_that_is_no_number_changes_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    from demerit.training.vlm.ranks import Ranks

    monkeypatch.setattr(Ranks, "clipped", lambda *_: float("inf"))
    with pytest.raises(Diverged, match=r"the gradient is no number \(inf\)"):
        run(tmp_path)
    assert lines(tmp_path)[0]["gradient"] is None


def test_no_answer_to_what_is_held_out_is_never_the_best(tmp_path: Path, monkeypatch: Any) -> None:
    errors = iter([float("nan"), 1.0, float("nan")])
    monkeypatch.setattr(Fitting, "_error", lambda *_: next(errors))
    recipe = RoboRewardRecipe().changed(
        {"batch": 2, "part": 2, "precision": "float32", "steps": 3, "validate_every": 1, "lora": 2}
    )
    corpus = toy((5, 6))
    object.__setattr__(corpus.rows[1], "split", "validation")
    start = begin("roboreward", str(tiny_checkpoint(tmp_path / "qwen", text={"num_hidden_layers": 3})), recipe)
    made = train(corpus, tmp_path / "out", recipe, start, device="cpu")
    assert read(tmp_path / "out" / "run" / BEST)["step"] == 2
    assert json.loads((made / "training.json").read_text())["best"]["update"] == 2
    assert [line["held_out_error"] for line in lines(tmp_path / "out")] == [None, 1.0, None]


def graded_run(folder: Path) -> Callable[[], Path]:
    """Return what trains for three updates in a folder and looks at what is held out after each."""
    changes = {"batch": 2, "part": 2, "precision": "float32", "steps": 3, "validate_every": 1, "lora": 2}
    recipe = RoboRewardRecipe().changed(changes)
    corpus = toy((5, 6))
    object.__setattr__(corpus.rows[1], "split", "validation")
    start = begin("roboreward", str(tiny_checkpoint(folder / "qwen", text={"num_hidden_layers": 3})), recipe)
    return lambda: train(corpus, folder / "out", recipe, start, device="cpu")


def test_weights_that_could_not_be_written_are_not_called_the_best(tmp_path: Path, monkeypatch: Any) -> None:
    errors = iter([2.0, 1.0, 1.5])
    monkeypatch.setattr(Fitting, "_error", lambda *_: next(errors))
    again, write = graded_run(tmp_path), saved._write

    def full(path: Path, state: dict[str, Any]) -> None:
        if path.name == BEST and state["step"] == 2:
            raise OSError(28, "No space left on device", str(path))
        write(path, state)

    monkeypatch.setattr(saved, "_write", full)
    with pytest.raises(WriteError, match="best"):
        again()
    made = again()  # there is room again
    told = json.loads((made / "training.json").read_text())["best"]["update"]
    assert told == read(tmp_path / "out" / "run" / BEST)["step"] == 3


def test_the_best_weights_of_another_update_are_not_exported(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(Fitting, "_error", lambda *_: 1.0)
    again = graded_run(tmp_path)
    again()
    path = tmp_path / "out" / "run" / BEST
    torch.save({**read(path), "step": 2}, path)
    with pytest.raises(BadInput, match=r"best\.pt: expected the weights of update 1.*got those of update 2"):
        again()


def test_lost_best_weights_are_said_to_be_missing(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(Fitting, "_error", lambda *_: 1.0)
    again = graded_run(tmp_path)
    again()
    path = tmp_path / "out" / "run" / BEST
    torch.save({"step": 1, "weights": {}}, path)
    with pytest.raises(BadInput, match=r"best\.pt: .*remove .*run to begin anew\), got one without the right weights"):
        again()
    path.unlink()
    with pytest.raises(BadInput, match=r"best\.pt: expected the weights of update 1.*put back.*got no such file"):
        again()


def test_a_damaged_checkpoint_is_a_sentence(tmp_path: Path) -> None:
    run(tmp_path, steps=1)
    path = tmp_path / "run" / CHECKPOINT
    whole = read(path)
    name = next(iter(whole["weights"]))
    fewer = {key: value for key, value in whole["weights"].items() if key != name}
    for change in (
        {"weights": fewer},
        {"weights": {**fewer, name: torch.zeros(1)}},
        {"weights": None},
        {"moments": {}},
        {"moments": None},
        {"moments": {**whole["moments"], name: {}}},
        {"moments": {**whole["moments"], name: {**whole["moments"][name], "exp_avg": torch.zeros(1)}}},
        {"step": None},
        {"best": 3},
    ):
        torch.save({**whole, **change}, path)
        with pytest.raises(BadInput, match=r"a whole checkpoint \(remove it to begin anew\), got one without"):
            run(tmp_path, steps=1)


@pytest.mark.parametrize("odd", [b"\xff\xfe\n", b"[1]\n", b'{"step": null}\n', b"{}\n"])
def test_damaged_metrics_are_a_sentence(tmp_path: Path, odd: bytes) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n' + odd)
    with pytest.raises(BadInput, match=r"metrics\.jsonl: expected a line of JSON for every update \(move it away"):
        Reports(tmp_path, (), None, {}).go_on_from(1)
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n{"step": 2}\n{"st')
    Reports(tmp_path, (), None, {}).go_on_from(1)
    assert (tmp_path / "metrics.jsonl").read_bytes() == b'{"step": 1}\n'


# --- Ctrl-C ---------------------------------------------------------------------------------------------------------


def press(times: int = 1) -> None:
    for _ in range(times):
        signal.raise_signal(signal.SIGINT)


def test_the_first_ctrl_c_says_what_a_second_one_costs(tmp_path: Path, capfd: Any) -> None:
    with pytest.raises(StoppedByUser, match="up to update 2 is kept, and the same command goes on from there"):
        run(tmp_path, at(2, press), save_every=1)
    sentence = "stopping after this update and saving; again to stop at once and lose what came since update 1"
    assert sentence in capfd.readouterr().err
    assert read(tmp_path / "run" / CHECKPOINT)["step"] == 2


def test_a_second_ctrl_c_stops_at_once_and_says_what_is_lost(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(StoppedByUser, match=r"up to update 2 is kept \(updates lost after it: 1\)"):
        run(tmp_path, at(3, lambda: press(2)), steps=4, save_every=2)
    assert read(tmp_path / "run" / CHECKPOINT)["step"] == 2
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(StoppedByUser, match="nothing was saved yet, and the same command begins anew"):
        run(tmp_path / "early", at(1, lambda: press(2)))
    assert not (tmp_path / "early" / "run" / CHECKPOINT).exists()


def test_ctrl_c_during_a_save_lets_it_finish(tmp_path: Path, monkeypatch: Any) -> None:
    write = torch.save

    def pressed(*given: Any) -> None:
        press(3)
        write(*given)

    monkeypatch.setattr(saved.torch, "save", pressed)
    with pytest.raises(StoppedByUser, match="up to update 2 is kept, and"):
        run(tmp_path, save_every=2)
    assert read(tmp_path / "run" / CHECKPOINT)["step"] == 2
    assert not list((tmp_path / "run").glob("*.partial"))
    monkeypatch.undo()
    told: list[Told] = []
    run(tmp_path, told.append, save_every=2)
    assert [one.step for one in told] == [3]


# --- no room --------------------------------------------------------------------------------------------------------


@contextmanager
def room(bytes_each: int) -> Iterator[None]:
    """Let no file grow larger: the system refuses as it does when a disk is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    compiling, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # or half a module stays behind for others
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_each, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = compiling


def test_a_disk_that_is_full_at_the_first_checkpoint(tmp_path: Path) -> None:
    with room(20_000), pytest.raises(WriteError, match=r"too large\)\. Nothing was saved yet, and the same command"):
        run(tmp_path, save_every=1)
    assert {one.name for one in (tmp_path / "run").iterdir()} == {".lock", "metrics.jsonl"}


def test_a_disk_that_fills_up_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    filling = room(20_000)
    try:
        with pytest.raises(WriteError, match=r"checkpoint\.pt: .*What was learned up to update 1 is kept"):
            run(tmp_path, at(2, filling.__enter__), save_every=1)
    finally:
        filling.__exit__(None, None, None)
    assert read(tmp_path / "run" / CHECKPOINT)["step"] == 1
    assert not list((tmp_path / "run").glob("*.partial"))


@pytest.mark.parametrize("merged", [True, False])
def test_a_model_that_finds_no_room_is_a_sentence(tmp_path: Path, merged: bool) -> None:
    recipe = RobometerRecipe(lora=2)
    big = {"progress_head.0.weight": torch.zeros(100, 100)}
    with room(20_000), pytest.raises(WriteError, match=r"model: .*the same command writes the model"):
        export(big, tiny_start(), recipe, tmp_path / "model", {}, merged=merged)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("merged", [True, False])
def test_others_may_read_the_model_as_far_as_the_umask_says(tmp_path: Path, merged: bool) -> None:
    before = os.umask(0o027)
    try:
        heads = {"progress_head.0.weight": torch.zeros(32, 64)}
        made = export(heads, tiny_start(), RobometerRecipe(lora=2), tmp_path / "model", {}, merged=merged)
    finally:
        os.umask(before)
    weights = list(made.glob("*.safetensors"))
    assert weights
    assert {oct(one.stat().st_mode & 0o777) for one in made.iterdir()} == {"0o640"}


# --- somebody else's folder -----------------------------------------------------------------------------------------


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with (
        lock_folder(tmp_path / "run"),
        pytest.raises(StoreBusy, match="another process is writing to this folder"),
    ):
        run(tmp_path)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="the folder cannot be made"):
        run(tmp_path / "file" / "out")
    run(tmp_path, steps=1, seed=2**32 - 1)  # and the largest seed can be trained with


# --- the command line -----------------------------------------------------------------------------------------------


def test_the_command_tells_problems_and_what_ctrl_c_kept_and_refuses_other_labels(
    tmp_path: Path, monkeypatch: Any
) -> None:
    videos = make_sample(tmp_path / "videos", repeats=1)
    start = tiny_checkpoint(tmp_path / "qwen", text={"num_hidden_layers": 3})
    changes = [part for name, value in SMALL.items() for part in ("--set", f"{name}={value}")]
    changes += ["--set", "steps=2", "--set", "shorter_side=64"]
    labels = videos / "labels.jsonl"
    rows = [json.loads(line) for line in labels.read_text().splitlines()]
    rows.append({**rows[0], "file": "absent.mp4"})
    labels.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def command(*more: str, out: str = "out") -> Any:
        told = ["-o", str(tmp_path / out), "--from", str(start), "--device", "cpu", "--workers", "0"]
        return CliRunner().invoke(app, ["train", "robometer", *told, *changes, *more])

    tell = Reports.tell
    monkeypatch.setattr(Reports, "tell", lambda self, told: (tell(self, told), press()))
    stopped = command("--data", f"drawn=videos:{videos}")
    assert stopped.exit_code == 130, stopped.output
    assert "interrupted; what was learned up to update 1 is kept, and the same command goes on" in stopped.output
    assert "Problems in" in stopped.output
    assert "missing video: 1 (left out), e.g. absent" in stopped.output
    monkeypatch.undo()
    for row in rows:
        row["success"] = not row["success"]
    labels.write_text("".join(json.dumps(row) + "\n" for row in rows))
    refused = command("--data", f"drawn=videos:{videos}")
    assert refused.exit_code == 1
    assert "before labels or words in 'drawn' changed" in refused.output
    other = command("--corpus", str(tmp_path / "out" / "corpus"), "--set", "most_frames=9", out="other")
    assert other.exit_code == 1
    assert "expected a corpus with most_frames 9" in other.output
    (tmp_path / "file").touch()
    below = command("--data", f"drawn=videos:{videos}", out="file/out")
    assert below.exit_code == 1
    assert "the folder cannot be made" in below.output
