"""Does familiarity tell what a model has learned from: other robots, other tasks, moved cameras?

    python benchmarks/familiarity.py SIMULATED NAME=DATASET [NAME=DATASET ...]
    python benchmarks/familiarity.py --small

SIMULATED is the test split of metaworld-bad@1 (`demerit simulate`), with tasks and cameras new to `default`. First
table: the familiarity that `default` gives each set, and the AUROC at which it tells SIMULATED from the set. Then each
other set is taught by itself (K successes and K failures), and the rest of it is compared with the other sets.
A camera is moved by cutting the same videos: zoomed by a third, shifted by a sixth, turned by 15 degrees. Sixteen
frames of every episode are used. `--small` uses the sample that comes with demerit.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

import demerit
from demerit.data.dataset import Dataset
from demerit.data.frames import Frames, Images, spread
from demerit.data.reward import UNFAMILIAR
from demerit.evaluate.metrics import Resampling
from demerit.evaluate.metrics.success import auroc
from demerit.models import RewardModel
from demerit.models.compact import Compact
from demerit.training.teach import teach

SAMPLE = Path(demerit.__file__).parent / "assets" / "sample"
FRAMES = 16
Episodes = list[demerit.Episode]


def zoom(images: Images) -> Images:
    """Cut an eighth off each side."""
    height, width = images.shape[1] // 8, images.shape[2] // 8
    return images[:, height:-height, width:-width]


def shift(images: Images) -> Images:
    """Move everything to the right by a sixth; the left edge is repeated."""
    by = images.shape[2] // 6
    return np.concatenate([np.repeat(images[:, :, :1], by, axis=2), images[:, :, :-by]], axis=2)


def turn(images: Images) -> Images:
    """Turn by 15 degrees; corners are black."""
    return np.stack([np.asarray(Image.fromarray(image).rotate(15, Image.Resampling.BILINEAR)) for image in images])


MOVES: dict[str, Callable[[Images], Images]] = {"zoomed": zoom, "shifted": shift, "turned": turn}


def read(address: str, most: int) -> Episodes:
    """Return at most so many episodes, spread evenly, with their main camera and few frames."""
    whole = list(demerit.open_dataset(address))
    return [keep_frames(whole[index]) for index in spread(len(whole), most)]


def keep_frames(episode: demerit.Episode) -> demerit.Episode:
    """Keep few frames of the main camera, in memory, and the outcome alone."""
    images = episode.main.take(spread(len(episode.main), FRAMES))
    outcomes = tuple(replace(one, curve=None, events=()) for one in episode.outcomes)
    return replace(episode, views={"main": Frames.from_array(images)}, outcomes=outcomes, signals={})


def move(episodes: Episodes, how: Callable[[Images], Images]) -> Episodes:
    """Cut every frame."""
    return [replace(one, views={"main": Frames.from_array(how(one.main.all()))}) for one in episodes]


def measure(model: RewardModel, episodes: Episodes) -> np.ndarray:
    """Return the familiarity of each episode."""
    return np.array([reward.familiarity for reward in model.score(episodes)], dtype=float)


def print_rows(title: str, known: np.ndarray, others: dict[str, np.ndarray]) -> None:
    """Print median, share of guesses and AUROC against what is known."""
    print(f"\n| {title} | episodes | median | a guess | AUROC |\n|---|---|---|---|---|")
    for name, found in {"itself": known, **others}.items():
        label = np.concatenate([np.ones(len(known)), np.zeros(len(found))])
        tally = auroc(np.concatenate([known, found]), label)
        area = "" if name == "itself" else f"{tally.measure(Resampling(resamples=1)).value:.3f}"
        share = np.mean(found < UNFAMILIAR)
        print(f"| {name} | {len(found)} | {np.median(found):.4f} | {share:.0%} | {area} |", flush=True)


def teach_some(episodes: Episodes, each: int, seed: int) -> tuple[RewardModel, Episodes]:
    """Teach some successes and failures; return the model and the rest."""
    order = np.random.default_rng(seed).permutation(len(episodes))
    flags = [episodes[i].outcome is not None and episodes[i].outcome.success for i in order]  # type: ignore[union-attr]
    chosen = {
        i for flag in (True, False) for i in [i for i, one in zip(order, flags, strict=True) if one is flag][:each]
    }
    lesson = Dataset.from_episodes([replace(episodes[i], origin=demerit.Origin()) for i in sorted(chosen)])
    rest = [episode for i, episode in enumerate(episodes) if i not in chosen]
    return teach(lesson, workers=0, use_test_split=True).model, rest


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("simulated", nargs="?", default=str(SAMPLE))
    parser.add_argument("sets", nargs="*", metavar="NAME=DATASET")
    parser.add_argument("--most", type=int, default=150, help="episodes of each set")
    parser.add_argument("--each", type=int, default=5, help="successes and failures that are taught")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args(arguments)
    most = 12 if options.small else options.most
    named = dict(text.split("=", 1) for text in options.sets) or {"sample": str(SAMPLE)}
    simulated = read(options.simulated, most)
    sets = {name: read(address, most) for name, address in named.items()}
    model = Compact()
    moved = {name: move(simulated, how) for name, how in MOVES.items()}
    found = {name: measure(model, episodes) for name, episodes in {**moved, **sets}.items()}
    print_rows("default, Meta-World's held-out tasks and cameras", measure(model, simulated), found)
    for name, episodes in sets.items():
        if any(episode.outcome is None or episode.outcome.success is None for episode in episodes):
            continue  # not labelled: only `default` is tried on it
        taught, rest = teach_some(episodes, 2 if options.small else options.each, options.seed)
        others = {how: move(rest, MOVES[how]) for how in MOVES} | {"Meta-World": simulated[::5]}
        others |= {other: sets[other][::3] for other in sets if other != name}
        title = f"taught {options.each} + {options.each} of {name}"
        print_rows(title, measure(taught, rest), {key: measure(taught, value) for key, value in others.items()})


if __name__ == "__main__":
    main()
