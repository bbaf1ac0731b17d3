"""The simulation job on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from pathlib import Path

from demerit.data.episode import Episode
from demerit.errors import BadInput
from demerit.negatives.sim.job import ENVIRONMENT, SimulatingProcess
from demerit.negatives.sim.rollout import EpisodeSpec
from demerit.use.on_ray import DIED, LOCAL, ActorNeeds, RayCluster, work_on_ray


def simulate_on_ray(
    specs: Sequence[EpisodeSpec], videos: Path, on: str = LOCAL, actors: int | None = None
) -> Generator[tuple[str, Episode | str], None, None]:
    """Yield (id, episode or error) in any order. `videos` is a folder that every machine sees; an actor takes a CPU."""
    with RayCluster(on) as cluster:
        needs, make = ActorNeeds(actors=actors), partial(_simulate_each, videos.resolve())
        for group, answers in work_on_ray(cluster, make, specs, needs, env=ENVIRONMENT):
            yield from answers or [(spec.id, DIED) for spec in group]


def _simulate_each(videos: Path) -> Callable[[list[EpisodeSpec]], list[tuple[str, Episode | str]]]:
    if not videos.is_dir():
        raise BadInput(str(videos), "a folder on a disk that all machines share", "none here")
    simulating = SimulatingProcess(videos)
    return lambda specs: [(spec.id, simulating(spec)) for spec in specs]
