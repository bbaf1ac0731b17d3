"""The simulate command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from demerit.negatives.sim.rollout import EpisodeSpec


def simulate(
    dest: Annotated[Path, typer.Argument(help="The folder to make; run again to go on after an interruption.")],
    tasks: Annotated[str, typer.Option(metavar="all|A,B", help="Which of the 50 Meta-World tasks.")] = "all",
    behaviours: Annotated[
        str, typer.Option(metavar="all|A,B", help="Which ways to act (see: demerit list behaviours).")
    ] = "all",
    episodes: Annotated[int, typer.Option(help="How many of each task and behaviour.")] = 1,
    seed: Annotated[int, typer.Option(help="The first seed; the same seed makes the same bytes.")] = 0,
    setting: Annotated[
        str, typer.Option(metavar="plain|varied|held-out", help="Camera, light and colours: fixed, or drawn.")
    ] = "varied",
    benchmark: Annotated[
        str | None, typer.Option(metavar="NAME", help="Make a benchmark's episodes instead: metaworld-bad@1.")
    ] = None,
    split: Annotated[str, typer.Option(metavar="train|validation|test|all", help="Which part of it.")] = "test",
    workers: Annotated[int | None, typer.Option(help="Processes; as many as cores unless told.")] = None,
    size: Annotated[int, typer.Option(help="Pixels a side.")] = 128,
) -> None:
    """Make episodes by physics: a task, a way to go wrong, a seed; what happened is measured, never assumed.

    [bold]Examples[/bold]

      demerit simulate bad --tasks pick-place,drawer-open --behaviours expert,drop,undo --episodes 5
      demerit simulate plain --setting plain --behaviours expert
      demerit simulate bench-test --benchmark metaworld-bad@1 --split test
    """
    from demerit.cli.bars import bar, out  # noqa: PLC0415
    from demerit.negatives.sim.job import simulate as run  # noqa: PLC0415

    if benchmark is not None:
        specs = _of_benchmark(benchmark, split, size)
    else:
        specs = _of_options(tasks, behaviours, range(seed, seed + episodes), setting, size)
    with bar("simulating", len(specs)) as shown:
        progress = run(dest, specs, workers, lambda progress: shown.update(progress.seen))
    kept = f", {progress.kept} were there already" if progress.kept else ""
    out.print(
        f"[bold]{dest}[/bold]: {progress.made} episodes made, {progress.successes} of them end in success{kept}; "
        f"{progress.preferences} preferences"
    )
    if progress.made:
        out.print(f"  {progress.made / progress.seconds * 60:.0f} episodes a minute")
    for reason, count in sorted(progress.not_applicable.items()):
        out.print(f"  [yellow]left out[/yellow]: {count} ({reason})")
    out.print(f"Next: demerit inspect {dest}")


def _of_benchmark(benchmark: str, split: str, size: int) -> list[EpisodeSpec]:
    from demerit.errors import UnknownName  # noqa: PLC0415
    from demerit.negatives.sim.splits import BENCHMARK, SPLITS, plan  # noqa: PLC0415

    if benchmark != BENCHMARK:
        raise UnknownName("simulated benchmark", benchmark, [BENCHMARK])
    return [spec for name in (SPLITS if split == "all" else (split,)) for spec in plan(name, size)]


def _of_options(tasks: str, behaviours: str, seeds: range, setting: str, size: int) -> list[EpisodeSpec]:
    from demerit.errors import BadInput, UnknownName  # noqa: PLC0415
    from demerit.negatives.sim.arena import SETTINGS  # noqa: PLC0415
    from demerit.negatives.sim.behaviours import BEHAVIOURS  # noqa: PLC0415
    from demerit.negatives.sim.rollout import EpisodeSpec  # noqa: PLC0415
    from demerit.negatives.sim.tasks import tasks as known_tasks  # noqa: PLC0415

    if setting not in SETTINGS:
        raise UnknownName("setting", setting, SETTINGS)
    if not seeds or seeds[0] < 0:
        raise BadInput("episodes and seed", "at least one episode and a seed from 0 on", seeds)
    chosen_tasks = _chosen("task", tasks, list(known_tasks()))
    chosen_behaviours = _chosen("behaviour", behaviours, BEHAVIOURS.names())
    return [
        EpisodeSpec(task, behaviour, seed, setting, size)
        for task in chosen_tasks
        for seed in seeds
        for behaviour in chosen_behaviours
    ]


def _chosen(kind: str, given: str, known: list[str]) -> list[str]:
    from demerit.errors import UnknownName  # noqa: PLC0415

    if given == "all":
        return known
    names = [name.strip() for name in given.split(",") if name.strip()]
    for name in names or [given]:
        if name not in known:
            raise UnknownName(kind, name, known)
    return names
