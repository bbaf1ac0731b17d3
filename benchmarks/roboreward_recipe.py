"""The RoboReward recipe from end to end, with the commands that a user has and a random backbone.

    python benchmarks/roboreward_recipe.py --out DIR                              # simulates its episodes; on a CPU
    python benchmarks/roboreward_recipe.py --out DIR --train DATASET --test DATASET --originals 200
    python benchmarks/roboreward_recipe.py --out DIR --device cuda --width 1024 --layers 12 --updates 500
    python benchmarks/roboreward_recipe.py --small                                # only shows that the script runs

simulate -> relabel (counterfactuals of grade 1 to 4; train, validation and test by task) -> negatives (clips) -> train
roboreward -> bench on tasks that are in no split of the corpus. The chat model is a script that knows its own commands
(`_simulator_author.py`), and the backbone has random weights: the figures show that the pipeline works and keeps splits
apart, not how good RoboReward is. It fails if the trained model has seen anything but the train split.
"""

from __future__ import annotations

import argparse
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
    parser.add_argument("--test", help="another one, of other tasks")
    parser.add_argument("--episodes", type=int, default=8, help="simulated per task and behaviour")
    parser.add_argument("--originals", type=int, default=0, help="successes to relabel; 0 = all")
    parser.add_argument("--updates", type=int, default=150)
    parser.add_argument("--rate", type=float, default=3e-4, help="learning rate: random weights need more than 3e-6")
    parser.add_argument("--width", type=int, default=64, help="of the random backbone")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--small", action="store_true")
    OPTIONS = parser.parse_args()  # before the imports that need extras: --help works without them

from _simulator_author import SimulatorAuthor
from demerit.data.formats import open_dataset
from demerit.data.seen import SeenEpisodes
from demerit.data.splits import normalize_split, task_of
from fakes.chat_server import ScriptedServer
from fakes.tiny_vlm import tiny_checkpoint

TRAINED = (
    "button-press door-open door-close handle-press lever-pull plate-slide reach soccer push coffee-button".split()
)
TESTED = "drawer-open window-close faucet-open".split()


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
    with ScriptedServer(SimulatorAuthor(open_dataset(source))) as server:
        chat = {"URL": server.url, "MODEL": "scripted", "KEY_ENV": "", "CACHE": str(given.out / "answers.sqlite")}
        os.environ.update({f"DEMERIT_CHAT_{name}": value for name, value in chat.items()})
        written = given.out / "relabelled"
        run("relabel", source, written, "--clips", "", "--keep-originals", "--per-dataset", given.originals)
    run("negatives", written, given.out / "corpus", "--mix", "clip", "--per-episode", 3, "--keep-originals")
    return given.out / "corpus"


def train(given: argparse.Namespace, corpus: Path) -> Path:
    """Train RoboReward on the corpus's train split from random weights; return the model's folder."""
    text = {"hidden_size": given.width, "num_hidden_layers": given.layers, "intermediate_size": 3 * given.width // 2}
    start = tiny_checkpoint(given.out / "start", text=text, vision={"out_hidden_size": given.width})
    numbers = {"steps": given.updates, "rate": given.rate, "batch": 16, "part": 8, "fps": 2, "shorter_side": 64}
    numbers |= {"validate_every": max(1, given.updates // 5), "precision": "bfloat16"}
    if given.device == "cpu":
        numbers |= {"precision": "float32", "checkpointing": "false"}
    changes = [word for name, value in numbers.items() for word in ("--set", f"{name}={value}")]
    out = given.out / "trained"
    run(
        "train", "roboreward", "-o", out, "--data", f"sim={corpus}", "--from", start, "--device", given.device, *changes
    )
    return out / "model"


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


def main(given: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        given.out = (given.out or Path(temporary)).resolve()
        if given.small:
            given.episodes, given.updates = 1, 4
        tested = TESTED[:1] if given.small else TESTED
        source = given.train or simulate(given, "train", TRAINED, "expert", 0)  # only successes are relabelled
        test = given.test or simulate(given, "test", tested, "expert,early-stop,undo,random", 20_000)
        corpus = relabel(given, source)
        model = train(given, corpus)
        check_splits(model, corpus, test)
        words = ["--model", f"roboreward:path={model}", "--out", given.out / "report", "--as-recorded", "--embed", 0]
        run("bench", "own", "--data", test, *words, "--resamples", 100 if given.small else 10_000)


if __name__ == "__main__":
    main(OPTIONS)
