"""`gvl` with four contexts in one bench run against the simulated judge: nothing lost, nothing billed twice.

A simulation, not a model: a server in its own process answers from what the simulator measured, and 5% of the requests
go wrong. Checked: every episode has a reward or a reason in every context, no answer was sent twice, the same run again
sends only what was lost, and at least 90% of the slots were in use.

demerit simulate test --benchmark metaworld-bad@1 --split test
python benchmarks/prompted_ablation.py test        (--small: the episodes that ship, in seconds)
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import demerit
from demerit.evaluate.benchmarks import (
    BenchmarkData,
    MeasureSettings,
    RunOptions,
    load_benchmark,
    load_data,
    run_benchmark,
)
from demerit.evaluate.metrics import Resampling
from demerit.evaluate.reports.report import Report
from demerit.models.gvl.config import CONTEXT_KINDS
from demerit.models.gvl.distil import DistillationConfig
from demerit.models.gvl.model import GVL
from fakes.judge.faults import Faults
from fakes.judge.server import Busy, ScriptedServer
from fakes.judge.truth import NAME, SimulatedJudge

SLOTS, WANTED = 32, 0.90
SHIPPED = Path(demerit.__file__).parent / "assets" / "sample"


def serve(pipe: Connection, folder: str, limit: int, latency: float, rate: float) -> None:
    """Answer until told to stop; on request report what was asked, billed and broken."""
    judge = SimulatedJudge(islice(demerit.open_dataset(folder), limit))
    faults = Faults.everything(rate, retry_after=0.5, delay=latency)
    with ScriptedServer(judge, faults, latency=latency) as server:
        pipe.send(server.url)
        while pipe.recv() == "measure":
            pipe.send((server.busy.share(SLOTS), server.asked.total(), Counter(server.billed), dict(server.faulted)))
            server.busy = Busy()


def make_models(url: str, gathered: BenchmarkData, folder: Path, given: argparse.Namespace) -> list[GVL]:
    """Four contexts with one client; `dense` gets curves distilled from one pair per task."""
    options: dict[str, Any] = {"url": url, "model": NAME, "frames": given.frames, "size": 64, "example_frames": 3}
    options |= {"concurrency": SLOTS, "timeout": 6.0, "cache": str(folder / "answers.sqlite")}
    tasks = {one.id: one.task for one in gathered.labels}
    pairs = {tasks[one.a]: one for one in gathered.preferences if one.better is not None}
    config = DistillationConfig(samples=given.samples, sources=("human", "simulator", "rule"))
    distilled = GVL(**options).distil([*gathered.episodes, *pairs.values()], config)
    print(f"  {distilled}")
    records = [*distilled.apply(gathered.episodes), *gathered.preferences]
    return [GVL(kind, examples=None if kind == "none" else records, **options) for kind in CONTEXT_KINDS]


def check(report: Report, billed: Counter[str]) -> None:
    """Every episode is there in every context, every gap has a reason, and no answer was sent twice."""
    for card in report.cards[: len(CONTEXT_KINDS)]:
        rewards = report.rewards_of(card.name)
        gaps = [reward for reward in rewards.values() if not reward.scored or np.isnan(reward.value).any()]
        reasons = Counter(reward.why_missing.split(":")[0][:40] for reward in gaps)
        print(f"  {card.name}: {len(rewards)} rewards, {len(gaps)} with gaps {dict(reasons)}")
        assert len(rewards) == len(report.episodes) and all(reward.why_missing for reward in gaps)
    assert set(billed.values()) <= {1}, "an answer was sent more than once"


def show(report: Report) -> None:
    for name in report.about.headline:
        lines = [report.line(card.name, name) for card in report.cards[: len(CONTEXT_KINDS)]]
        cells = ["–" if line is None else f"{line.value:.3f} ({line.low:.3f}..{line.high:.3f})" for line in lines]
        print(f"  {name:28} {'  '.join(cells)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default=str(SHIPPED))
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--latency", type=float, default=2.0)
    parser.add_argument("--faults", type=float, default=0.05)
    parser.add_argument("--frames", type=int, default=8)
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--resamples", type=int, default=2000)
    parser.add_argument("--small", action="store_true", help="a few episodes that ship, no latency, no faults")
    given = parser.parse_args()
    if given.small:
        given.episodes, given.latency, given.faults, given.samples, given.resamples = 6, 0.0, 0.0, 2, 50
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    arguments = (theirs, given.folder, given.episodes, given.latency, given.faults)
    server = context.Process(target=serve, args=arguments, daemon=True)
    server.start()
    benchmark = replace(load_benchmark("metaworld-bad@1"), splits=())
    settings = MeasureSettings(Resampling(resamples=given.resamples))
    options = RunOptions(
        perturbations=False,
        workers=0 if given.small else 1,
        batch=SLOTS,
        limit=given.episodes,
        retry=True,
        settings=settings,
    )
    gathered = load_data(benchmark, given.folder, options)
    url, before = ours.recv(), 0
    with tempfile.TemporaryDirectory() as folder:
        for attempt in ("first run", "the same again"):
            print(f"{attempt}: {len(gathered.episodes)} episodes x {len(CONTEXT_KINDS)} contexts")
            started = time.monotonic()
            models = make_models(url, gathered, Path(folder), given)
            report = run_benchmark(benchmark, models, gathered, folder, options)
            ours.send("measure")
            busy, asked, billed, faulted = ours.recv()
            print(f"  {time.monotonic() - started:.0f} s, {asked - before} requests at the server, faults {faulted}")
            print(f"  {models[0].spent}")
            check(report, billed)
            if asked - before > 10 * SLOTS:
                print(f"  {SLOTS} slots in use {busy:.1%} of the time")
                assert busy >= WANTED
            before = asked
            models[0].close()
        show(report)
    ours.send("stop")
    server.join(10)


if __name__ == "__main__":
    main()
