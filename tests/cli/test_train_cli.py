"""The train commands of vision-language models."""

import json
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from demerit.cli import app
from demerit.data.dataset import Dataset
from demerit.data.formats import open_dataset
from demerit.data.splits import SeenEpisodes, normalize_split
from demerit.data.video import write_video
from demerit.llm import ChatClient, Endpoint
from demerit.negatives.relabel import RelabelConfig, relabel
from demerit.training.prepared import PreparedCorpus
from demerit.training.vlm.fit import VLMTrainer
from fakes.accelerate_state import fresh_accelerator  # noqa: F401
from fakes.chat_server import ScriptedServer
from fakes.coded_episodes import Listed
from fakes.drawn_sample import make_sample
from fakes.relabel_author import author, originals_apart
from fakes.tiny_vlm import tiny_checkpoint

SMALL = {"steps": 2, "batch": 2, "part": 1, "frames": 2, "shorter_side": 64, "lora": 2, "precision": "float32"}
CHANGES = [part for name, value in SMALL.items() for part in ("--set", f"{name}={value}")]

GRADES = {name: value for name, value in SMALL.items() if name != "frames"} | {"validate_every": 1}
GRADED = [part for name, value in GRADES.items() for part in ("--set", f"{name}={value}")]


def run_command(*options: object) -> Any:
    return CliRunner().invoke(app, ["train", *map(str, options)])


def test_the_command_prepares_trains_stops_and_resumes(tmp_path: Path, monkeypatch: Any) -> None:
    videos = make_sample(tmp_path / "videos", repeats=1)
    labels = videos / "labels.jsonl"
    rows = [json.loads(line) for line in labels.read_text().splitlines()]
    rows.append({**rows[0], "file": "absent.mp4"})
    labels.write_text("".join(json.dumps(row) + "\n" for row in rows))
    start = tiny_checkpoint(tmp_path / "qwen", text={"num_hidden_layers": 3})
    common = ["--from", start, "--device", "cpu", "--workers", 0, *CHANGES]
    options = ["robometer", "-o", tmp_path / "out", "--data", f"drawn=videos:{videos}", *common]
    write = VLMTrainer._write_metrics
    monkeypatch.setattr(
        VLMTrainer, "_write_metrics", lambda self, told: (write(self, told), signal.raise_signal(signal.SIGINT))
    )
    stopped = run_command(*options)
    assert stopped.exit_code == 130, stopped.output
    assert "update 1" in stopped.output
    assert "5 episodes" in stopped.output
    assert "missing video" in stopped.output
    monkeypatch.undo()
    done = run_command(*options)
    assert done.exit_code == 0, done.output
    assert "--model robometer:path=" in done.output
    facts = json.loads((tmp_path / "out" / "model" / "training.json").read_text())
    assert (facts["recipe"]["lora"], facts["episodes"], facts["preferences"]) == (2, {"drawn": 5}, {})
    labels.write_text("".join(json.dumps({**row, "success": not row["success"]}) + "\n" for row in rows))
    changed = run_command(*options)
    assert (changed.exit_code, "'drawn' changed" in changed.output) == (1, True)
    corpus = ["robometer", "-o", tmp_path / "other", "--prepared", tmp_path / "out" / "corpus"]
    other = run_command(*corpus, *common, "--set", "most_frames=9")
    assert (other.exit_code, "most_frames 9" in other.output) == (1, True)


@pytest.mark.slow
def test_robometer_reports_the_update_that_ranks_held_out_episodes_best(tmp_path: Path) -> None:
    lesson, later = (
        make_sample(tmp_path / name, repeats=1, seed=seed) for seed, name in enumerate(("lesson", "later"))
    )
    for file in (lesson / "labels.jsonl", later / "labels.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps({**row, "instruction": "move the block"}) + "\n" for row in rows))
    start = tiny_checkpoint(tmp_path / "qwen", text={"num_hidden_layers": 3})
    common = ["--from", start, "--device", "cpu", "--workers", 0, *CHANGES, "--set", "validate_every=1"]
    data = ["--data", f"lab=videos:{lesson}", "--held-out", f"later=videos:{later}"]
    wrong = run_command("robometer", "-o", tmp_path / "out", *data, *common, "--set", 'cutoffs={"lba": 0.9}')
    assert wrong.exit_code == 1 and "lab" in wrong.output
    done = run_command("robometer", "-o", tmp_path / "out", *data, *common, "--set", 'cutoffs={"lab": 0.9}')
    assert done.exit_code == 0, done.output
    best = json.loads((tmp_path / "out" / "model" / "training.json").read_text())["best"]
    assert f"update {best['update']}: {best['measure']} {best['held-out error']:.3f}" in done.output.replace("\n", " ")


def write_roboreward(root: Path) -> Path:
    """A RoboReward dataset: four episodes to train on, two to choose by, three to test."""
    seed = 0
    for split, count in {"train": 4, "val": 2, "test": 3}.items():
        lines = []
        for number in range(count):
            seed += 1
            images = np.random.default_rng(seed).integers(0, 255, (10, 64, 64, 3), dtype=np.uint8)
            (root / split / "lab").mkdir(parents=True, exist_ok=True)
            write_video(root / split / "lab" / f"{number}.mp4", images, 4.0)
            lines.append({"file_name": f"lab/{number}.mp4", "task": f"lift cup {seed}", "reward": 1 + seed % 5})
        (root / split / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return root


def seen_splits(model: Path, data: str) -> Counter[str]:
    """The splits of the episodes that a model has learned from."""
    seen = SeenEpisodes.read(model / "seen.json")
    return Counter(normalize_split(episode.origin.split) for episode in open_dataset(data) if seen.has(episode))


def test_roboreward_trains_on_train_chooses_on_validation_and_never_reads_test(tmp_path: Path) -> None:
    data = f"roboreward:{write_roboreward(tmp_path / 'RoboReward')}"
    start = tiny_checkpoint(tmp_path / "qwen", text={"num_hidden_layers": 3})
    common = ["--from", start, "--device", "cpu", "--workers", 0, *GRADED]
    done = run_command("roboreward", "-o", tmp_path / "out", "--data", f"rr={data}", *common)
    assert done.exit_code == 0, done.output
    assert "4 to train on, 2 held out; labels: 6 model:validated" in done.output
    assert "3: of the test split" in done.output
    assert seen_splits(tmp_path / "out" / "model", data) == {"train": 4}
    facts = json.loads((tmp_path / "out" / "model" / "training.json").read_text())
    assert facts["episodes"] == {"rr": 4} and facts["best"]["held-out error"] >= 0
    shutil.rmtree(tmp_path / "RoboReward" / "train")
    shutil.rmtree(tmp_path / "RoboReward" / "val")
    alone = ["roboreward", "-o", tmp_path / "test", "--data", f"rr={data}", *common, "--prepare-only"]
    refused = run_command(*alone)
    assert refused.exit_code == 1 and "--use-test-split" in refused.output
    assert not (tmp_path / "test" / "corpus").exists()
    forced = run_command(*alone, "--use-test-split")
    assert forced.exit_code == 0 and "3 to train on" in forced.output
    people = run_command(*alone, "--use-test-split", "--label-sources", "rule", "--prepared", tmp_path / "no")
    assert people.exit_code == 1 and "label source not taken: human" in people.output.replace("\n", " ")


def test_counterfactuals_of_relabel_train_roboreward_with_splits_kept_apart(tmp_path: Path) -> None:
    config = RelabelConfig(grades=(2, 4), clips=(3,), keep_originals=True, size=32)
    originals = Dataset(Listed(originals_apart(tmp_path, 10)), "listed")
    with ScriptedServer(author) as server:
        with ChatClient(Endpoint(server.url, "simulated", key_env=""), tmp_path / "answers.sqlite") as client:
            relabel(originals, tmp_path / "made", client, config)
    data = f"demerit:{tmp_path / 'made'}"
    splits = Counter(normalize_split(episode.origin.split) for episode in open_dataset(data))
    assert splits == {"train": 32, "validation": 4, "test": 4}
    start = tiny_checkpoint(tmp_path / "qwen", text={"num_hidden_layers": 3})
    common = ["--data", f"made={data}", "--from", start, "--device", "cpu", "--workers", 0, *GRADED]
    done = run_command("roboreward", "-o", tmp_path / "out", *common)
    assert done.exit_code == 0, done.output
    corpus = PreparedCorpus.load(tmp_path / "out" / "corpus")
    edits = {episode.id: [edit.name for edit in episode.edits] for episode in open_dataset(data)}
    made = Counter((row.split, *edits[row.id], row.grade) for row in corpus.rows)
    assert made == {
        ("train", 5): 8, ("train", "counterfactual", 2): 8, ("train", "counterfactual", 4): 8, ("train", "clip", 3): 8,
        ("held-out", "counterfactual", 2): 1, ("held-out", "counterfactual", 4): 1, ("held-out", "clip", 3): 1,
        ("held-out", 5): 1,
    }  # fmt: skip
    assert set(seen_splits(tmp_path / "out" / "model", data)) == {"train"}
    without = ["--set", 'without=["counterfactual"]', "--prepare-only"]
    assert run_command("roboreward", "-o", tmp_path / "cut", *common, *without).exit_code == 0
    assert len(PreparedCorpus.load(tmp_path / "cut" / "corpus").rows) == 18


def test_bad_options_are_refused_before_anything_is_done(tmp_path: Path) -> None:
    videos = make_sample(tmp_path / "videos", repeats=1)
    assert run_command("robometer", "--imagenet", "x", "-o", tmp_path / "no").exit_code == 2
    for options, found in (
        (["roboreward", "--demonstrations", "a=b"], "grades"),
        (["rewind", "--save", "merged"], "not with rewind"),
        (["compact", "--from", "x"], "tools/train_compact"),
        (["robometr"], "Did you mean 'robometer'"),
        (["roboreward"], "--prepared"),
        (["robometer", "--data", "a=nowhere", "--save", "all"], "merged"),
        (["robometer", "--data", "a=nowhere", "--log", "wand"], "Did you mean 'wandb'"),
        (["robometer", "--data", "a=nowhere", "--device", "gpu"], "device"),
        (["robometer", "--data", f"a=videos:{videos}", "--from", tmp_path / "none"], "checkpoint"),
        (["robometer", "--data", "a=nowhere", "--save", "adapter"], "lora"),
    ):
        refused = run_command(*options, "-o", tmp_path / "no")
        assert refused.exit_code == 1
        assert found in refused.output
    assert not (tmp_path / "no").exists()
