"""The train command: a vision-language model or a ReWiND, trained on many episodes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.markup import escape

from demerit.cli.bars import bar, out, print_grades, print_problems
from demerit.cli.bundles import ChangesOption, LabelSourcesOption, OutOption, parse_sources
from demerit.config import parse_changes
from demerit.data.episode import count_episodes
from demerit.data.files import read_json
from demerit.data.formats import open_dataset
from demerit.data.splits import USE_TEST_SPLIT
from demerit.data.store import Store
from demerit.errors import BadInput, UnknownName
from demerit.models.compact.engine import NetworkInfo, shipped_folder
from demerit.models.vlm.hub import locate_checkpoint
from demerit.registry import load_attribute
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
from demerit.training.rewind.data import CompactCorpusPlan, load_rewind_config
from demerit.training.train_config import TrainConfig
from demerit.training.vlm.config import VLMCorpusPlan, default_start, load_vlm_config

MODELS = ("rewind", "robometer", "roboreward")
NAME_DATASET = "NAME=DATASET"
ConfigT = TypeVar("ConfigT", bound=TrainConfig)


@dataclass(frozen=True)
class TrainingData:
    """The episodes to train on, and the folder in which their frames are prepared."""

    data: Annotated[
        list[str] | None, typer.Option(metavar=NAME_DATASET, help="Labelled episodes to train on. Repeatable.")
    ] = None
    demonstrations: Annotated[
        list[str] | None, typer.Option(metavar=NAME_DATASET, help="Episodes that are all successes. Repeatable.")
    ] = None
    held_out: Annotated[
        list[str] | None, typer.Option(metavar=NAME_DATASET, help="Episodes that are never trained on. Repeatable.")
    ] = None
    use_test_split: Annotated[
        bool, typer.Option(USE_TEST_SPLIT, help="Also train on test splits; do not measure on them afterwards.")
    ] = False
    prepared: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the prepared frames (default: OUT/corpus).")
    ] = None
    prepare_only: Annotated[bool, typer.Option("--prepare-only", help="Prepare the frames and stop.")] = False
    storage: Annotated[
        str, typer.Option(metavar="video|raw|originals", help="Prepared frames: small videos, raw, or not copied.")
    ] = ""
    workers: Annotated[int, typer.Option(help="Processes that decode and encode frames; 0 for none.")] = 2

    def prepare(self, out_folder: Path, plan: PreparePlan, storage: str) -> PreparedCorpus:
        """Prepare the frames, or open those that are there; print what they are."""
        folder = self.prepared or out_folder / "corpus"
        return _prepare(self.open_parts(folder), folder, plan, self.workers, self.storage or storage)

    def open_parts(self, folder: Path) -> list[CorpusPart]:
        """Open the datasets that NAME=DATASET pairs name; none are needed if the prepared folder exists."""
        parts = []
        pairs_of = {"data": self.data, "demonstrations": self.demonstrations, "held-out": self.held_out}
        for option, pairs in pairs_of.items():
            for pair in pairs or []:
                name, equals, address = pair.partition("=")
                if not (name and equals and address):
                    raise BadInput(f"--{option}", NAME_DATASET, repr(pair))
                kind: Any = option
                parts.append(CorpusPart(name, open_dataset(address), kind, self.use_test_split))
        if Store.is_at(folder):
            raise BadInput("--prepared", f"a folder of prepared frames (a dataset is --data NAME={folder})", folder)
        if not parts and not folder.exists():
            raise BadInput("training data", "--data or a folder of --prepared frames", "none of them")
        return parts


def train(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=f"What to train: {', '.join(MODELS)}.")],
    out_folder: OutOption,
    episodes: TrainingData,
    recipe: Annotated[
        str | None, typer.Option("--recipe", metavar="FILE", help="Another configuration (YAML) than the shipped one.")
    ] = None,
    changes: ChangesOption = None,
    label_sources: LabelSourcesOption = "",
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="MODEL", help="Folder or hub id to start with (default: Qwen3-VL, or shipped)."),
    ] = None,
    save: Annotated[
        str, typer.Option("--save", metavar="merged|adapter", help="Write a whole model, or the adapters alone.")
    ] = "",
    log: Annotated[
        list[str] | None,
        typer.Option("--log", metavar="tensorboard|wandb", help="Also send metrics there. Repeatable."),
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="cpu|cuda", help="Device (default: a GPU if there is one).")
    ] = None,
) -> None:
    """Train a vision-language model or a ReWiND on many episodes.

    To teach the shipped network your task, use demerit teach. Episodes of --held-out or a validation split are held
    out, those of a test split left out. OUT is the model (OUT/model of a vision-language model). Ctrl-C saves, and the
    same command resumes. NAME is kept with each episode. --set changes a number of the configuration.

    [bold]rewind[/bold]: a small transformer over the features of the shipped network, on any CPU. Needs successes with
    instructions; failures with a progress curve, a final progress or a grade are used too; --set failures=0 leaves them
    out, as the paper does (docs/training_rewind.md).

    [bold]robometer[/bold]: progress, success and preferences. Needs episodes with an outcome, a progress or a curve.
    The weights that rank the held-out episodes best are written. Say when your demonstrations are done (cutoffs).

    [bold]roboreward[/bold]: grades from 1 to 5; a success without one is grade 5. The weights with the lowest held-out
    error are written. Grades of a model count where they were validated, as those of demerit relabel.
    See docs/training_vlms.md, also for several GPUs.

    [bold]Examples[/bold]

      demerit train rewind -o mine --data sim=my_sim --demonstrations shown=my_demos --set failures=0
      demerit train robometer -o mine --data lab=my_set --from robometer/Robometer-4B --set lora=32 --set steps=500
      demerit train robometer -o mine --data lab=my_set --held-out later=my_other_set --set 'cutoffs={"lab": 0.95}'
      demerit train roboreward -o graded --data corpus=my_corpus --recipe roboreward_8b --log tensorboard
      demerit score new_episodes --model robometer:path=mine/model
    """
    if model == "compact":
        raise BadInput("MODEL", f"one of {', '.join(MODELS)}", "compact, which tools/train_compact trains now")
    if model not in MODELS:
        raise UnknownName("model to train", model, MODELS)
    if model == "rewind":
        _refuse("rewind", {"--save": save, "--log": log, "--storage": episodes.storage})
        network = None if start is None else Path(start)
        _train_rewind(out_folder, episodes, recipe, changes, label_sources, network, device)
        return
    if model == "roboreward":
        _refuse("roboreward, which learns from grades", {"--demonstrations": episodes.demonstrations})
    _train_vlm(model, out_folder, episodes, recipe, changes, label_sources, start, save or "merged", log or [], device)


def _refuse(model: str, options: dict[str, Any]) -> None:
    for name, value in options.items():
        if value:
            raise BadInput(name, f"not with {model}", value)


def _train_rewind(
    out_folder: Path,
    episodes: TrainingData,
    recipe: str | None,
    changes: list[str] | None,
    label_sources: str,
    network: Path | None,
    device: str | None,
) -> None:
    config = change_settings(load_rewind_config(recipe), changes, label_sources)
    run = None if episodes.prepare_only else load_training("rewind.train:train_rewind", "train")
    size = NetworkInfo.read(network or shipped_folder()).size
    prepared = episodes.prepare(out_folder, CompactCorpusPlan(size, config.sources, config.without), "raw")
    if run is None:
        return
    frames = sum(row.frames for row in prepared.rows)
    with bar("features", frames) as features_bar, bar("training", config.steps) as shown:
        folder = run(
            prepared,
            out_folder,
            config,
            network,
            lambda progress: shown.update(progress.step, str(progress)),
            device,
            features_bar.update,
        )
    out.print(f"The model: [bold]{escape(str(folder))}[/bold]")
    out.print(f"Next: demerit score DATASET --model {escape(str(out_folder))}")


def _train_vlm(
    model: str,
    out_folder: Path,
    episodes: TrainingData,
    recipe: str | None,
    changes: list[str] | None,
    label_sources: str,
    start: str | None,
    save: str,
    log: list[str],
    device: str | None,
) -> None:
    config = change_settings(load_vlm_config(model, recipe), changes, label_sources)
    start = start or default_start(model, recipe)
    if not episodes.prepare_only:
        load_training("vlm.fit:check_vlm_options", "vlm-train")(config, save, log, device)
        episodes.open_parts(episodes.prepared or out_folder / "corpus")  # refused before anything is fetched
        locate_checkpoint(start, weights=False)  # fetches small files only
    prepared = episodes.prepare(out_folder, VLMCorpusPlan(config), "video")
    if episodes.prepare_only:
        return
    begun = load_training("vlm.checkpoints:load_start", "vlm-train")(start, config)
    updates = load_training("vlm.fit:make_objective", "vlm-train")(prepared, config, begun).updates
    with bar("training", updates) as shown:
        folder = load_training("vlm.fit:train_vlm", "vlm-train")(
            prepared,
            out_folder,
            config,
            begun,
            lambda progress: shown.update(progress.step, str(progress)),
            device=device,
            save=save,
            metrics=log,
            workers=episodes.workers,
        )
    if os.environ.get("RANK", "0") == "0":  # the first of several processes
        best = read_json(folder / "training.json").get("best")
        choice = "the last update: nothing held out to choose by"
        if best:
            choice = f"update {best['update']}: {best['measure']} {best['held-out error']:.3f}"
        out.print(f"The model: [bold]{escape(str(folder))}[/bold] ({escape(choice)})")
        out.print(f"Next: demerit score DATASET --model {model}:path={escape(str(folder))}")


def change_settings(config: ConfigT, changes: list[str] | None, label_sources: str) -> ConfigT:
    """Apply --set and --label-sources."""
    config = config.change(parse_changes(changes or []))
    return replace(config, sources=parse_sources(label_sources, config.sources))


def _prepare(
    parts: Sequence[CorpusPart], folder: Path, plan: PreparePlan, workers: int, storage: Any
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


def load_training(address: str, extra: str) -> Any:
    """Import a training function; a missing library is named with its install line."""
    return load_attribute(f"demerit.training.{address}", "Training", extra)
