"""Training runs of tiny vision-language models: they learn, stop, go on, and end the same; what comes out loads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from demerit.cli import app
from demerit.errors import BadInput, DemeritError, OutOfMemory, UnknownName
from demerit.models.vlm.backbone import Backbone
from demerit.models.vlm.checkpoint import read_checkpoint
from demerit.models.vlm.heads import expected_heads
from demerit.models.vlm.network import Network
from demerit.models.vlm.opened import Opened
from demerit.models.vlm.robometer import Protocol, RobometerEngine
from demerit.training.vlm.corpus import Corpus
from demerit.training.vlm.dashboards import check_dashboards
from demerit.training.vlm.network import Learner
from demerit.training.vlm.recipe import RobometerRecipe, RoboRewardRecipe
from demerit.training.vlm.reports import Reports, Told
from demerit.training.vlm.saved import BEST, CHECKPOINT, read
from demerit.training.vlm.train import begin, train
from fakes.drawn_sample import make_sample
from fakes.paths import TESTS
from fakes.processes import running
from fakes.tiny_vlm import tiny_checkpoint
from fakes.toy_trajectories import WordTokens, tiny_start, toy, written

SMALL = {"batch": 4, "part": 2, "frames": 4, "precision": "float32", "rate": 1e-3, "cache": "memory"}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """On a busy machine threads wait for each other, and their number changes the order of sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def recipe_of(**changes: Any) -> RobometerRecipe:
    return RobometerRecipe().changed({"steps": 6, **SMALL, **changes})


def weights_in(folder: Path) -> dict[str, torch.Tensor]:
    return {name.removeprefix("model."): one for name, one in load_file(folder / "model.safetensors").items()}


def same(one: Path, other: Path) -> bool:
    a, b = weights_in(one), weights_in(other)
    return set(a) == set(b) and all(torch.equal(a[name], b[name]) for name in a)


# --- it learns ----------------------------------------------------------------------------------------------------


def engine_of(folder: Path, frames: int = 4) -> RobometerEngine:
    weights, shape = weights_in(folder), tiny_start().shape
    heads = {name: weights[name] for name in expected_heads(64, 10)}
    tokens: Any = WordTokens()
    backbone = Network(shape, {name: one for name, one in weights.items() if name not in heads})
    return RobometerEngine(backbone, heads, tokens, Protocol(frames=frames))


def video(corpus: Corpus, row: int) -> np.ndarray:
    return np.stack([corpus.picture(row, frame) for frame in range(corpus.rows[row].frames)])


def judged(engine: RobometerEngine, held_out: Corpus) -> tuple[float, float, float]:
    """Return the share of pairs judged rightly, the least progress of a success and the most of a failure."""
    rows = range(len(held_out.rows))
    right: list[bool] = []
    ends: dict[bool, list[float]] = {True: [], False: []}
    for a in rows:
        words, good = held_out.rows[a].instruction, bool(held_out.rows[a].success)
        ends[good].append(float(engine.dense(video(held_out, a), words).progress[-1]))
        for b in rows:
            other = held_out.rows[b]
            if good and not other.success and other.instruction == words:
                clips = video(held_out, a), video(held_out, b)
                right += [engine.compare(*clips, words) > 0.5, engine.compare(*clips[::-1], words) < 0.5]
    return float(np.mean(right)), min(ends[True]), max(ends[False])


def shuffled(corpus: Corpus) -> Corpus:
    """Give every episode an outcome by a coin, and every frame the progress of another."""
    rng = np.random.default_rng(1)
    rows = []
    for row in corpus.rows:
        good = bool(rng.integers(2))
        mixed = (rng.permutation(row.frames) / row.frames).astype(np.float32)
        rows.append(replace(row, success=good, progress=mixed, final=1.0 if good else 0.0))
    return Corpus(tuple(rows), corpus.pictures)


def test_a_dozen_episodes_are_learned_and_new_ones_ranked_rightly(tmp_path: Path) -> None:
    recipe = recipe_of(
        steps=50, batch=8, part=8, clip=1.0, rate=2e-3, preference=3.0, head_dropout=0.0, checkpointing=False,
        strategies={"expertise": 1},
    )  # fmt: skip
    held_out = toy((9, 11), seed=7)
    told: dict[str, list[Told]] = {"true": [], "shuffled": []}
    corpus = toy()
    assert len(corpus.rows) == 12
    found = {}
    for name, labels in (("true", corpus), ("shuffled", shuffled(corpus))):
        made = train(labels, tmp_path / name, recipe, tiny_start(), told[name].append, device="cpu")
        found[name] = judged(engine_of(made), held_out)
    first, last = (np.mean([one.loss for one in some]) for some in (told["true"][:5], told["true"][-5:]))
    assert last < 0.5 * first
    right, least, most = found["true"]
    assert right == 1.0
    assert least > most + 0.2
    assert found["shuffled"][0] < 0.8  # the same run on labels that mean nothing
    assert told["true"][-1].found == 1.0  # every frame has been seen, and none is encoded again


# --- it stops and goes on -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: Any) -> Path:
    """A run that nobody disturbed; with adapters, so that dropout is drawn twice over."""
    out: Path = tmp_path_factory.mktemp("whole")
    train(toy((8, 9)), out, recipe_of(lora=4, save_every=2), tiny_start(), device="cpu")
    return out


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path: Path, whole: Path) -> None:
    """Killed without a warning; also, training needs neither a video decoder nor the command line's libraries."""
    script = f"""
import sys, time
sys.modules |= dict.fromkeys(("av", "pydantic", "typer", "rich", "openai"))  # importing them fails
sys.path.insert(0, {str(TESTS)!r})
import torch
torch.set_num_threads(1)
from demerit.training.vlm.recipe import RobometerRecipe
from demerit.training.vlm.train import train
from fakes.toy_trajectories import tiny_start, toy
recipe = RobometerRecipe().changed({ {"steps": 6, **SMALL, "lora": 4, "save_every": 2}!r})
def slowly(told):
    print(told.step, flush=True)
    time.sleep(60 if told.step == 5 else 0)
train(toy((8, 9)), {str(tmp_path)!r}, recipe, tiny_start(), slowly, device="cpu")
"""
    with running([sys.executable, "-c", script]) as run:
        assert run.stdout is not None
        steps = [next(run.stdout).strip() for _ in range(5)]
        run.send_signal(signal.SIGKILL)
    assert steps == ["1", "2", "3", "4", "5"]
    assert read(tmp_path / "run" / CHECKPOINT)["step"] == 4  # the fifth update is lost, and made again
    told: list[Told] = []
    train(toy((8, 9)), tmp_path, recipe_of(lora=4, save_every=2), tiny_start(), told.append, device="cpu")
    assert [one.step for one in told] == [5, 6]
    assert same(tmp_path / "model", whole / "model")
    lines = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines == [1, 2, 3, 4, 5, 6]


def test_ctrl_c_saves_what_was_learned_and_goes_on_to_the_same_bits(tmp_path: Path, whole: Path) -> None:
    def stop(told: Told) -> None:
        if told.step == 3:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(toy((8, 9)), tmp_path, recipe_of(lora=4, save_every=2), tiny_start(), stop, device="cpu")
    assert signal.getsignal(signal.SIGINT) is before
    assert read(tmp_path / "run" / CHECKPOINT)["step"] == 3  # heard after the update that was being made
    assert not (tmp_path / "model").exists()
    train(toy((8, 9)), tmp_path, recipe_of(lora=4, save_every=2), tiny_start(), device="cpu")
    assert same(tmp_path / "model", whole / "model")


def test_another_run_is_not_gone_on_with(tmp_path: Path, whole: Path) -> None:
    for change in (
        {"recipe": recipe_of(lora=4, save_every=2, seed=1)},
        {"start": tiny_start(1)},
        {"corpus": toy((9,))},
    ):
        given = {"corpus": toy((8, 9)), "recipe": recipe_of(lora=4, save_every=2), "start": tiny_start(), **change}
        with pytest.raises(BadInput, match="choose another folder"):
            train(given["corpus"], whole, given["recipe"], given["start"], device="cpu")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / CHECKPOINT).write_bytes(b"torn")
    with pytest.raises(BadInput, match="remove it to begin anew"):
        train(toy((8, 9)), tmp_path, recipe_of(), tiny_start(), device="cpu")


@pytest.mark.parametrize("cache", ["none", "disk"])
def test_where_features_are_kept_changes_nothing(tmp_path: Path, whole: Path, cache: str) -> None:
    train(toy((8, 9)), tmp_path, recipe_of(lora=4, save_every=2, cache=cache), tiny_start(), device="cpu")
    assert same(tmp_path / "model", whole / "model")
    assert (tmp_path / "features").exists() == (cache == "disk")


def test_parts_of_an_update_add_up(tmp_path: Path) -> None:
    steady = {"head_dropout": 0.0, "steps": 2}
    for part in (1, 4):
        train(toy((8, 9)), tmp_path / str(part), recipe_of(part=part, **steady), tiny_start(), device="cpu")
    one, four = (weights_in(tmp_path / str(part) / "model") for part in (1, 4))
    assert max(float((one[name] - four[name]).abs().max()) for name in one) < 1e-5


def test_two_machines_go_on_where_one_stopped_and_end_where_it_does(tmp_path: Path) -> None:
    """FSDP over two processors; the dropout of a part is the same whoever computes it."""
    recipe = recipe_of(steps=3, part=1)
    corpus = Corpus.load(written(toy((8, 9)), tmp_path / "corpus", recipe))
    start = tiny_checkpoint(tmp_path / "qwen", text={"num_hidden_layers": 3})

    def stop(told: Told) -> None:
        raise KeyboardInterrupt

    train(corpus, tmp_path / "one", recipe, begin("robometer", str(start), recipe), device="cpu")
    with pytest.raises(KeyboardInterrupt):
        train(corpus, tmp_path / "two", recipe, begin("robometer", str(start), recipe), stop, device="cpu")
    numbers = [f"{name}={value}" for name, value in {**SMALL, "steps": 3, "part": 1}.items()]
    asked = ["robometer", str(tmp_path / "corpus"), str(tmp_path / "two"), "--from", str(start), "--device", "cpu"]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m"]
    two = subprocess.run(
        [*command, "demerit.training.vlm.train", *asked, "--set", *numbers],
        capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert two.returncode == 0, two.stderr
    assert "1/3" not in two.stdout
    assert "3/3 loss" in two.stdout
    one, both = weights_in(tmp_path / "one" / "model"), weights_in(tmp_path / "two" / "model")
    assert set(one) == set(both)
    assert max(float((one[name] - both[name]).abs().max()) for name in one) < 1e-5


def test_parts_that_machines_cannot_share_are_refused(tmp_path: Path, monkeypatch: Any) -> None:
    from demerit.training.vlm.ranks import Ranks

    alone = Ranks("cpu")
    alone.count = 3
    with pytest.raises(BadInput, match="a multiple of 3"):
        train(toy((8, 9)), tmp_path, recipe_of(), tiny_start(), ranks=alone)
    with pytest.raises(UnknownName, match="device"):
        Ranks("tpu")


def test_running_out_of_memory_is_a_sentence_and_loses_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    def stop(told: Told) -> None:
        def full(*_: Any) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 is full.")

        if told.step == 2:
            monkeypatch.setattr(Learner, "forward", full)

    with pytest.raises(OutOfMemory, match=r"part=2.*--set part=1.*Tried to allocate 20.00 GiB"):
        train(toy((8, 9)), tmp_path, recipe_of(save_every=1), tiny_start(), stop, device="cpu")
    assert read(tmp_path / "run" / CHECKPOINT)["step"] == 2


def test_a_place_for_metrics_that_is_not_there_is_a_sentence(tmp_path: Path, monkeypatch: Any) -> None:
    with pytest.raises(DemeritError, match="Did you mean 'wandb'"):
        train(toy((8, 9)), tmp_path, recipe_of(), tiny_start(), device="cpu", metrics=["wand"])
    for name, module in (("wandb", "wandb"), ("tensorboard", "torch.utils.tensorboard")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(BadInput, match=f"pip install {name}"):
            train(toy((8, 9)), tmp_path, recipe_of(), tiny_start(), device="cpu", metrics=[name])
    monkeypatch.delitem(sys.modules, "wandb")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    (tmp_path / "wandb").mkdir()  # Python would import it, and it is only what wandb left behind
    with pytest.raises(BadInput, match="pip install wandb"):
        check_dashboards(["wandb"])


def on_the_board(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read_back = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return {tag: [(one.step, one.value) for one in read_back.Scalars(tag)] for tag in read_back.Tags()["scalars"]}


def in_the_file(folder: Path) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        facts = json.loads(line)
        for name in set(facts) - {"step"}:
            found.setdefault(name, []).append((facts["step"], float(np.float32(facts[name]))))
    return found


def test_tensorboard_shows_what_the_file_says(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")

    def stop(told: Told) -> None:
        if told.step == 3:
            raise KeyboardInterrupt

    told = (toy((8, 9)), tmp_path, recipe_of(steps=4), tiny_start())
    with pytest.raises(KeyboardInterrupt):
        train(*told, stop, device="cpu", metrics=["tensorboard"])
    assert on_the_board(tmp_path / "run") == in_the_file(tmp_path / "run")
    train(*told, device="cpu", metrics=["tensorboard"])
    shown = on_the_board(tmp_path / "run")
    assert shown == in_the_file(tmp_path / "run")
    assert [step for step, _ in shown["loss"]] == [1, 2, 3, 4]
    assert {"loss_preference", "rate", "gradient", "seconds", "tokens"} < set(shown)


def test_tensorboard_forgets_what_was_told_behind_a_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    for first, last in ((1, 5), (4, 6)):  # killed after five updates, of which three were saved
        reports = Reports(tmp_path, ["tensorboard"], None, {})
        reports.go_on_from(first - 1)
        for step in range(first, last + 1):
            reports.tell(Told(step, 6, {"progress": first + step / 7}, 1e-3, 1.0, 0.1, 10))
    shown = on_the_board(tmp_path)
    assert shown == in_the_file(tmp_path)
    assert [step for step, _ in shown["loss"]] == [1, 2, 3, 4, 5, 6]
    assert shown["loss"][3][1] == np.float32(4 + 4 / 7)


def test_wandb_goes_on_with_the_same_run(tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for step in (1, 2):
        reports = Reports(tmp_path, ["wandb"], None, {"lora": 4})
        reports.go_on_from(step - 1)
        with reports:
            reports.tell(Told(step, 2, {"progress": 0.5}, 1e-3, 1.0, 0.1, 10))
    named = (tmp_path / "wandb.id").read_text().strip()
    assert {one.name.rpartition("-")[2] for one in (tmp_path / "wandb").glob("offline-run-*")} == {named}


# --- what comes out -----------------------------------------------------------------------------------------------


def test_a_plain_model_becomes_a_robometer_that_loads(tmp_path: Path) -> None:
    start = tiny_checkpoint(tmp_path / "qwen")
    recipe = recipe_of(steps=1, lora=4, rate=1e-2)
    begun = begin("robometer", str(start), recipe)
    made = train(toy((8, 9)), tmp_path / "out", recipe, begun, device="cpu")
    opened = Opened.robometer(str(made), device="cpu", dtype="float32")
    assert opened.protocol.frames == 4
    assert opened.shape.text.vocabulary == 351
    answer = opened.engine().dense(video(toy((8,)), 0), "press the red button")
    assert np.isfinite(answer.progress).all()
    table = "language_model.embed_tokens.weight"
    after, before = weights_in(made)[table], begun.weights[table]
    assert torch.equal(after[:346], before[:346])
    assert not torch.equal(after[346:], before[346:])  # the new tokens are learned even where the table is frozen
    changed = "language_model.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(weights_in(made)[changed], begun.weights[changed])  # the adapter is merged
    (tmp_path / "mine" / "model").mkdir(parents=True)
    with pytest.raises(BadInput, match="a model that was trained here"):  # never over a folder of somebody else's
        train(toy((8, 9)), tmp_path / "mine", recipe, begun, device="cpu")
    with pytest.raises(BadInput, match="no place for new tokens"):
        train(toy((8, 9)), tmp_path / "no", recipe, begun, device="cpu", save="adapter")


def test_an_adapter_on_its_own_is_the_merged_model(tmp_path: Path) -> None:
    start = tiny_checkpoint(tmp_path / "robometer", "robometer", frames=4)
    recipe = recipe_of(steps=2, lora=4)
    for save in ("merged", "adapter"):
        begun = begin("robometer", str(start), recipe)
        train(toy((8, 9)), tmp_path / save, recipe, begun, device="cpu", save=save)
    merged, alone = (read_checkpoint(str(tmp_path / save / "model")) for save in ("merged", "adapter"))
    assert alone.adapters
    assert alone.facts is not None
    one, other = (dict(each.tensors("cpu", torch.float32)) for each in (merged, alone))
    assert set(one) == set(other)
    assert all(torch.allclose(one[name], other[name], atol=1e-6) for name in one)
    head = "progress_head.0.weight"
    assert not torch.equal(other[head], begin("robometer", str(start), recipe).weights[head])
    further = begin("robometer", str(tmp_path / "adapter" / "model"), recipe)
    with pytest.raises(BadInput, match=r"no adapter can lie on another \(--save merged"):
        train(toy((8, 9)), tmp_path / "further", recipe, further, device="cpu", save="adapter")
    assert not (tmp_path / "further").exists()
    with pytest.raises(BadInput, match="a run with adapters"):
        train(toy((8, 9)), tmp_path / "x", recipe_of(), begin("robometer", str(start), recipe_of()), save="adapter")
    with pytest.raises(BadInput, match="10 bins and 4 frames"):
        begin("robometer", str(start), recipe_of(frames=8))


def test_grades_are_learned_and_the_best_weights_kept(tmp_path: Path) -> None:
    start = tiny_checkpoint(tmp_path / "qwen", text={"num_hidden_layers": 3})
    corpus = toy((5, 6))
    rows = [replace(row, split="validation") if row.frames == 6 else row for row in corpus.rows]
    graded = Corpus(tuple(rows), corpus.pictures)
    numbers = {"batch": 4, "part": 2, "precision": "float32", "rate": 2e-3, "steps": 6, "validate_every": 2}
    recipe = RoboRewardRecipe().changed(numbers)
    told: list[Told] = []
    made = train(graded, tmp_path / "out", recipe, begin("roboreward", str(start), recipe), told.append, device="cpu")
    errors = {one.step: one.error for one in told if one.error is not None}
    assert sorted(errors) == [2, 4, 6]
    assert told[-1].loss < 0.3 * told[0].loss
    best = read(tmp_path / "out" / "run" / BEST)
    assert best["error"] == min(errors.values())
    assert errors[best["step"]] == best["error"]
    assert json.loads((made / "training.json").read_text())["best"]["update"] == best["step"]
    backbone = Backbone.open(str(made), device="cpu", dtype="float32")
    exported = dict(backbone.checkpoint.tensors("cpu", torch.float32))
    for name, value in best["weights"].items():
        assert torch.equal(exported[name], value)
    before = begin("roboreward", str(start), recipe).weights
    assert all(torch.equal(exported[name], before[name]) for name in exported if name.startswith("visual.blocks"))
    assert not torch.equal(exported["visual.merger.linear_fc1.weight"], before["visual.merger.linear_fc1.weight"])
    with pytest.raises(BadInput, match="a Robometer, which has heads"):
        begin("roboreward", str(tiny_checkpoint(tmp_path / "r", "robometer")), recipe)


# --- the command line ---------------------------------------------------------------------------------------------


def test_the_command_prepares_trains_and_says_what_is_next(tmp_path: Path) -> None:
    videos = make_sample(tmp_path / "videos", repeats=1)
    start = tiny_checkpoint(tmp_path / "qwen", text={"num_hidden_layers": 3})
    numbers = {"steps": 1, "batch": 2, "part": 1, "frames": 2, "shorter_side": 64, "lora": 2}
    changes = [part for name, value in numbers.items() for part in ("--set", f"{name}={value}")]
    out = ["-o", str(tmp_path / "out"), "--data", f"drawn=videos:{videos}", "--device", "cpu", "--workers", "0"]
    run = CliRunner().invoke(app, ["train", "robometer", *out, "--from", str(start), *changes])
    assert run.exit_code == 0, run.output
    assert "5 episodes" in run.output
    assert "--model robometer:path=" in run.output
    facts = json.loads((tmp_path / "out" / "model" / "training.json").read_text())
    assert facts["recipe"]["lora"] == 2
    assert facts["episodes"] == {"drawn": 5}
    assert facts["preferences"] == {}
    for options, sentence in (
        (["robometer", "--imagenet", "x"], "No such option: --imagenet"),
        (["robometer", "--held-out", "a=b"], "No such option: --held-out"),
        (["roboreward", "--demonstrations", "a=b"], "No such option: --demonstrations"),
        (["compact", "--from", "x"], "No such option: --from"),
        (["robometr"], "Did you mean 'robometer'"),
    ):
        refused = CliRunner().invoke(app, ["train", *options, "-o", str(tmp_path / "no")])
        assert refused.exit_code == 2
        assert sentence in refused.output
    for options, sentence in (
        (["roboreward"], "expected --data or a prepared --corpus"),
        (["robometer", "--data", "a=nowhere", "--save", "all"], "expected merged or adapter"),
        (["robometer", "--data", "a=nowhere", "--metrics", "wand"], "Did you mean 'wandb'"),
        (["robometer", "--data", "a=nowhere", "--device", "gpu"], "device"),
        (
            ["robometer", "--data", f"a=videos:{videos}", "--from", str(tmp_path / "none")],
            "A checkpoint: expected a folder",
        ),
        (["robometer", "--data", "a=nowhere", "--save", "adapter"], "a run with adapters"),
    ):
        refused = CliRunner().invoke(app, ["train", *options, "-o", str(tmp_path / "no")])
        assert refused.exit_code == 1
        assert sentence in refused.output
    assert not (tmp_path / "no").exists()
