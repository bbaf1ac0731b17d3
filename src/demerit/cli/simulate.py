"""The simulate command."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.markup import escape

from demerit.cli.bars import bar, out
from demerit.cli.bundles import ClusterOptions
from demerit.data.episode import count_episodes
from demerit.data.formats import open_dataset
from demerit.errors import BadInput, UnknownName
from demerit.negatives.sim.arena import SETTINGS, Setting
from demerit.negatives.sim.behaviours import BEHAVIOURS
from demerit.negatives.sim.job import plan_variants
from demerit.negatives.sim.job import simulate as run_simulation
from demerit.negatives.sim.rollout import USUAL_SIZE, EpisodeSpec
from demerit.negatives.sim.splits import BENCHMARK, FETCH_BENCHMARK, OTHER_BEHAVIOURS, SPLITS, plan
from demerit.negatives.sim.tasks import SAWYER, all_tasks
from demerit.negatives.sim.tasks import tasks as metaworld_tasks
from demerit.negatives.sim.variants import CHANGES
from demerit.use.simulate_on_ray import simulate_on_ray


def simulate(
    dest: Annotated[Path, typer.Argument(help="The folder to create; run again to resume.")],
    cluster: ClusterOptions,
    tasks: Annotated[
        str,
        typer.Option(
            metavar="all|A,B",
            help="Meta-World's 50 tasks, or some; fetch-insert, -pick, -push, -reach, -slide: another robot.",
        ),
    ] = "all",
    behaviours: Annotated[
        str, typer.Option(metavar="all|A,B", help="Which behaviours (demerit list behaviours).")
    ] = "all",
    episodes: Annotated[int, typer.Option(help="Episodes per task and behaviour; with --like, variants of each.")] = 1,
    seed: Annotated[int, typer.Option(help="The first seed; the same seed makes the same bytes.")] = 0,
    setting: Annotated[
        str, typer.Option(metavar="|".join(get_args(Setting)), help="Camera, light and colours: fixed or random.")
    ] = "varied",
    benchmark: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"Simulate a benchmark's episodes instead: {BENCHMARK}, {FETCH_BENCHMARK}."),
    ] = None,
    split: Annotated[str, typer.Option(metavar="train|validation|test|all", help="Its split.")] = "test",
    like: Annotated[
        str,
        typer.Option(metavar="DATASET", help="Vary the failures of a simulated dataset: do their actions again."),
    ] = "",
    vary: Annotated[
        str, typer.Option(metavar="all|A,B", help=f"With --like, what to change: {', '.join(CHANGES)}.")
    ] = "all",
    workers: Annotated[int | None, typer.Option(help="Number of processes (default: number of cores).")] = None,
    size: Annotated[int, typer.Option(help="Image width and height in pixels.")] = USUAL_SIZE,
) -> None:
    """Simulate successes and failures with measured labels.

    [bold]Examples[/bold]

      demerit simulate bad --tasks pick-place,drawer-open --behaviours expert,drop,undo --episodes 5
      demerit simulate other-robot --tasks fetch-pick,fetch-push,fetch-reach,fetch-slide --episodes 5
      demerit simulate plain --setting plain --behaviours expert
      demerit simulate bench-test --benchmark metaworld-bad@1 --split test
      demerit simulate variants --like bad --episodes 10 --vary start,object,timing
      demerit simulate /shared/bad --episodes 100 --on ray
    """
    skipped: Counter[str] = Counter()
    if like and benchmark is not None:
        raise BadInput("--like and --benchmark", "one of them", "both")
    if like:
        changes = _parse_names("change", vary, list(CHANGES))
        specs, skipped = plan_variants(open_dataset(like), episodes, changes, size)
        if not specs:
            reasons = "; ".join(f"{count} {reason}" for reason, count in skipped.items())
            expected = "a dataset with simulated failures (real ones: demerit negatives DATASET DEST --mix variants)"
            raise BadInput("--like", expected, reasons or "no episodes")
    elif benchmark is not None:
        specs = _benchmark_specs(benchmark, split, size)
    else:
        specs = _specs(tasks, behaviours, range(seed, seed + episodes), setting, size)
    simulator = partial(simulate_on_ray, on=cluster.on, actors=cluster.actors) if cluster.on else None
    with bar("simulating", len(specs)) as shown:
        progress = run_simulation(dest, specs, workers, lambda progress: shown.update(progress.seen), simulator)
    kept = f", {progress.kept} from an earlier run" if progress.kept else ""
    out.print(
        f"[bold]{escape(str(dest))}[/bold]: {count_episodes(progress.made)} simulated, "
        f"{progress.successes} successes{kept}; {progress.preferences} preferences"
    )
    if progress.made:
        out.print(f"  {progress.made / progress.seconds * 60:.0f} episodes a minute")
    for reason, count in sorted((progress.not_applicable + skipped).items()):
        out.print(f"  [yellow]skipped[/yellow]: {count} ({escape(reason)})")
    out.print(escape(f"Next: demerit inspect {dest}"))


def _benchmark_specs(benchmark: str, split: str, size: int) -> list[EpisodeSpec]:
    if benchmark not in (BENCHMARK, FETCH_BENCHMARK):
        raise UnknownName("simulated benchmark", benchmark, [BENCHMARK, FETCH_BENCHMARK])
    splits = (split,) if split != "all" else ("test",) if benchmark == FETCH_BENCHMARK else SPLITS
    return [spec for name in splits for spec in plan(name, size, benchmark)]


def _specs(tasks: str, behaviours: str, seeds: range, setting: str, size: int) -> list[EpisodeSpec]:
    if setting not in SETTINGS:
        raise UnknownName("setting", setting, SETTINGS)
    if not seeds or seeds[0] < 0:
        raise BadInput("episodes and seed", "at least one episode and a seed of at least 0", seeds)
    chosen_tasks = list(metaworld_tasks()) if tasks == "all" else _parse_names("task", tasks, list(all_tasks()))
    chosen_behaviours = _parse_names("behaviour", behaviours, BEHAVIOURS.names())
    return [
        EpisodeSpec(task, behaviour, seed, setting, size)
        for task in chosen_tasks
        for seed in seeds
        for behaviour in chosen_behaviours
        if behaviours != "all" or all_tasks()[task].robot != SAWYER or behaviour in ("expert", *OTHER_BEHAVIOURS)
    ]


def _parse_names(kind: str, text: str, choices: list[str]) -> list[str]:
    if text == "all":
        return choices
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names or [text]:
        if name not in choices:
            raise UnknownName(kind, name, choices)
    return names
