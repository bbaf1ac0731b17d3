"""The train commands of vision-language models."""

import json
import signal
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from demerit.cli import app
from demerit.training.vlm.fit import VLMTrainer
from fakes.accelerate_state import fresh_accelerator  # noqa: F401
from fakes.drawn_sample import make_sample
from fakes.tiny_vlm import tiny_checkpoint

SMALL = {"steps": 2, "batch": 2, "part": 1, "frames": 2, "shorter_side": 64, "lora": 2, "precision": "float32"}
CHANGES = [part for name, value in SMALL.items() for part in ("--set", f"{name}={value}")]


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
    corpus = ["robometer", "-o", tmp_path / "other", "--corpus", tmp_path / "out" / "corpus"]
    other = run_command(*corpus, *common, "--set", "most_frames=9")
    assert (other.exit_code, "most_frames 9" in other.output) == (1, True)


def test_bad_options_are_refused_before_anything_is_done(tmp_path: Path) -> None:
    videos = make_sample(tmp_path / "videos", repeats=1)
    for options in (
        ["robometer", "--imagenet", "x"],
        ["robometer", "--held-out", "a=b"],
        ["roboreward", "--demonstrations", "a=b"],
        ["compact", "--from", "x"],
        ["robometr"],
    ):
        assert run_command(*options, "-o", tmp_path / "no").exit_code == 2
    for options, found in (
        (["roboreward"], "--corpus"),
        (["robometer", "--data", "a=nowhere", "--save", "all"], "merged"),
        (["robometer", "--data", "a=nowhere", "--metrics", "wand"], "Did you mean 'wandb'"),
        (["robometer", "--data", "a=nowhere", "--device", "gpu"], "device"),
        (["robometer", "--data", f"a=videos:{videos}", "--from", tmp_path / "none"], "checkpoint"),
        (["robometer", "--data", "a=nowhere", "--save", "adapter"], "lora"),
    ):
        refused = run_command(*options, "-o", tmp_path / "no")
        assert refused.exit_code == 1
        assert found in refused.output
    assert not (tmp_path / "no").exists()
