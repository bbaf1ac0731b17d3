"""The RoboReward recipe from end to end, with the commands that a user has and a random backbone.

    python benchmarks/roboreward_recipe.py --out DIR                              # simulates its episodes; on a CPU
    python benchmarks/roboreward_recipe.py --out DIR --train DATASET --test DATASET --originals 200
    python benchmarks/roboreward_recipe.py --out DIR --corpus CORPUS --test DATASET   # of episodes relabelled before
    python benchmarks/roboreward_recipe.py --out DIR --device cuda --width 1024 --layers 12 --updates 500
    python benchmarks/roboreward_recipe.py --small                                # only shows that the script runs

simulate -> relabel (counterfactuals of grade 1 to 4; train, validation and test by task) -> negatives (clips) -> train
roboreward -> bench on tasks that are in no split of the corpus. The chat model is a script that knows its own commands
(`_simulator_author.py`), and the backbone has random weights: the figures show that the pipeline works and keeps splits
apart, not how good RoboReward is. It fails if the trained model has seen anything but the train split.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder of everything; the same command resumes (default: temporary)")
    parser.add_argument("--train", help="a simulated dataset instead of new episodes")
    parser.add_argument("--corpus", type=Path, help="what the steps before training have made; needs --test")
    parser.add_argument("--test", help="another one, of other tasks")
    parser.add_argument("--episodes", type=int, default=8, help="simulated per task and behaviour")
    parser.add_argument("--originals", type=int, default=0, help="successes to relabel; 0 = all")
    parser.add_argument("--updates", type=int, default=150)
    parser.add_argument("--rate", type=float, default=3e-4, help="learning rate: random weights need more than 3e-6")
    parser.add_argument("--width", type=int, default=64, help="of the random backbone")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--fp8", action="store_true", help="also measure the trained model with eight-bit products")
    parser.add_argument("--small", action="store_true")
    OPTIONS = parser.parse_args()  # before the imports that need extras: --help works without them
    if OPTIONS.corpus and not OPTIONS.test:
        parser.error("--corpus needs --test: episodes of other tasks to measure on")

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from demerit import load_model
from demerit.data.formats import open_dataset
from demerit.data.splits import SeenEpisodes, normalize_split, task_of
from demerit.evaluate.metrics.ranking import spearman
from demerit.models.vlm.network import VLMNetwork
from demerit.training.vlm.checkpoints import EMBEDDING
from fakes.chat_server import ScriptedServer
from fakes.tiny_vlm import ROWS, tiny_checkpoint

TRAINED = (
    "button-press door-open door-close handle-press lever-pull plate-slide reach soccer push coffee-button".split()
)
TESTED = "drawer-open window-close faucet-open".split()
FPS = 2
"""frames a second, in training as in measuring"""


def run(*words: object) -> str:
    """Run a demerit command, print it and return what it printed."""
    print("$ demerit", *words, flush=True)
    command = [sys.executable, "-c", "from demerit.cli import main; main()", *map(str, words)]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    print(done.stdout, flush=True)
    if done.returncode:
        raise SystemExit(done.returncode)
    return done.stdout


def simulate(given: argparse.Namespace, name: str, tasks: list[str], behaviours: str, seed: int) -> str:
    words = ["--tasks", ",".join(tasks), "--behaviours", behaviours, "--episodes", given.episodes, "--seed", seed]
    run("simulate", given.out / name, *words)
    return str(given.out / name)


def relabel(given: argparse.Namespace, source: str) -> Path:
    """Write counterfactuals and clips of a dataset's successes, in splits by task, into one folder."""
    from _simulator_author import SimulatorAuthor  # only this step needs the extra chat

    with ScriptedServer(SimulatorAuthor(open_dataset(source))) as server:
        chat = {"URL": server.url, "MODEL": "scripted", "KEY_ENV": "", "CACHE": str(given.out / "answers.sqlite")}
        os.environ.update({f"DEMERIT_CHAT_{name}": value for name, value in chat.items()})
        written = given.out / "relabelled"
        run("relabel", source, written, "--clips", "", "--keep-originals", "--per-dataset", given.originals)
    run("negatives", written, given.out / "corpus", "--mix", "clip", "--per-episode", 3, "--keep-originals")
    return given.out / "corpus"


def train(given: argparse.Namespace, corpus: Path) -> Path:
    """Train RoboReward on the corpus's train split from random weights; return the model's folder."""
    width = given.width
    text = {"hidden_size": width, "num_hidden_layers": given.layers, "intermediate_size": 3 * width // 2}
    text |= {"num_attention_heads": width // 16, "num_key_value_heads": width // 32}  # heads of 16 numbers
    # drawn as transformers draws it (`initializer_range`); larger, the first answers are sure and wrong
    words = {"model." + EMBEDDING: 0.02 * torch.randn(ROWS["qwen"], width, generator=torch.Generator().manual_seed(0))}
    start = tiny_checkpoint(given.out / "start", text=text, vision={"out_hidden_size": width}, extra=words)
    numbers = {"steps": given.updates, "rate": given.rate, "batch": 16, "part": 8, "fps": FPS}
    numbers |= {"validate_every": max(1, given.updates // 5), "precision": "bfloat16"}
    if given.device == "cpu":
        numbers |= {"precision": "float32", "checkpointing": "false"}
    changes = [word for name, value in numbers.items() for word in ("--set", f"{name}={value}")]
    out = given.out / "trained"
    run(
        "train", "roboreward", "-o", out, "--data", f"sim={corpus}", "--from", start, "--device", given.device, *changes
    )
    return out / "model"


def describe_training(out: Path) -> None:
    """Print how the loss and the held-out error went, and the speed once the first updates are over."""
    lines = (out / "trained" / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    size = max(1, len(rows) // 10)
    losses = [sum(row["loss"] for row in part) / size for part in (rows[:size], rows[-size:])]
    print(f"loss an answer token: {losses[0]:.3f} in the first {size} updates, {losses[1]:.3f} in the last")
    errors = [f"{row['step']}: {row['held_out_error']:.3f}" for row in rows if "held_out_error" in row]
    print("held-out error after update", ", ".join(errors))
    steady = rows[len(rows) // 5 :]
    busy, waited, tokens = (sum(row[name] for row in steady) for name in ("seconds", "waited", "tokens"))
    each, share = 1000 * (busy + waited) / len(steady), waited / (busy + waited)
    memory = f", {rows[-1]['gpu_gib']:.1f} GiB" if "gpu_gib" in rows[-1] else ""
    print(
        f"{each:.0f} ms an update of 16, {tokens / (busy + waited):.0f} tokens/s, {share:.1%} waiting for data{memory}"
    )
    print((out / "trained" / "model" / "training.json").read_text(encoding="utf-8"))


def check_splits(model: Path, corpus: Path, test: str) -> None:
    """Print what the model has seen of each split; fail unless it is the train split and nothing else."""
    seen = SeenEpisodes.read(model / "seen.json")
    episodes = [("corpus, " + normalize_split(episode.origin.split), episode) for episode in open_dataset(corpus)]
    episodes += [("evaluation", episode) for episode in open_dataset(test)]
    found = Counter((place, seen.has(episode)) for place, episode in episodes)
    tasks = {place: {task_of(episode) for here, episode in episodes if here == place} for place, _ in episodes}
    print("| split | tasks | episodes | seen by the model |\n| --- | --- | --- | --- |")
    for place, known in tasks.items():
        print(f"| {place} | {len(known)} | {found[place, True] + found[place, False]} | {found[place, True]} |")
    assert len(tasks) == 4, "train, validation and test of the corpus, and the evaluation"
    assert {place for place, is_seen in found if is_seen} == {"corpus, train"}
    assert not found["corpus, train", False], "all of the train split was trained on"
    assert sum(map(len, tasks.values())) == len(set().union(*tasks.values())), "a task is in two splits"


def measure_eight_bits(model: Path, test: str, device: str) -> None:
    """Print how eight-bit products change the grades of a trained model; without a GPU, torch rounds in their place."""
    episodes = list(open_dataset(test))
    true = np.array([episode.outcome.progress for episode in episodes], float)
    means = {}
    for name, eight_bits in (("full", False), ("eight bits", True)):
        reader = load_model(f"roboreward:path={model},fps={FPS},device={device},trust=0")
        backbone = reader.backbone
        weights = backbone.load_weights(backbone.shape.expected_weights(read_out=True))
        backbone.__dict__["network"] = VLMNetwork(backbone.shape, weights, eight_bits=eight_bits)
        means[name] = np.array([reward.final for reward in reader.score(episodes)])
        error = np.abs((means[name] - 1) / 4 - true)
        print(f"{name}: {np.isfinite(error).sum()} episodes, {np.nanmean(error):.4f} from the measured progress")
    change = np.abs(means["full"] - means["eight bits"])
    print(f"grades that change: {np.mean(change > 0):.1%}, by {change.max():g} at most; ", end="")
    print(f"rank correlation {spearman(means['full'], means['eight bits']):.3f}")


def main(given: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        given.out = (given.out or Path(temporary)).resolve()
        if given.small:
            given.episodes, given.updates = 1, 4
        tested = TESTED[:1] if given.small else TESTED
        test = given.test or simulate(given, "test", tested, "expert,early-stop,undo,random", 20_000)
        # only successes are relabelled
        corpus = given.corpus or relabel(given, given.train or simulate(given, "train", TRAINED, "expert", 0))
        model = train(given, corpus)
        describe_training(given.out)
        check_splits(model, corpus, test)
        named = f"roboreward:path={model},fps={FPS},device={given.device}"
        words = ["--model", named, "--out", given.out / "report", "--set", "as-recorded=true", "--set", "embed=0"]
        if given.fp8:
            measure_eight_bits(model, test, given.device)
        run("bench", "own", "--data", test, *words, "--set", f"resamples={100 if given.small else 10_000}")


if __name__ == "__main__":
    main(OPTIONS)
