"""The whole context ablation against the simulated judge, with faults: nothing lost, nothing billed twice.

A simulation, no model: a server in a process of its own answers from what the simulator measured after two seconds, and
5% of the requests go wrong (timeouts, 429, 500, cut connections, nonsense, refusals ...). Up to 2,000 episodes are
scored under the four contexts with 32 requests under way. Checked: every episode has a reward or a reason in every
context, no answer was sent twice, the same command again asks for next to nothing, and at least 90% of the slots were
in use.

demerit simulate test --benchmark metaworld-bad@1 --split test
demerit simulate train --benchmark metaworld-bad@1 --split train
python benchmarks/prompted_ablation.py test train       (without folders: the twelve episodes that ship)
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import demerit
from demerit.data.dataset import Dataset, Record
from demerit.evaluate.benchmarks.ablation import Ablation, Contexts, run_options
from demerit.evaluate.benchmarks.benchmark import load_benchmark
from demerit.evaluate.benchmarks.evidence import Settings
from demerit.evaluate.benchmarks.run import Gathered, RunOptions, gather, run_benchmark
from demerit.evaluate.metrics import Resampling
from demerit.evaluate.reports.page import write_page
from demerit.evaluate.reports.report import Report
from demerit.models.gvl.context import KINDS
from fakes.judge.faults import Faults
from fakes.judge.server import Busy, ScriptedServer
from fakes.judge.truth import NAME, SimulatedJudge

SLOTS, WANTED = 32, 0.90
MOST = 2000
FAULTS = (
    *("timeout", "429", "429-date", "429-bare", "500", "503", "cut", "drop", "garbage", "gateway"),
    *("nonsense", "refusal", "length", "empty", "slow"),
)
SHIPPED = Path(demerit.__file__).parent / "assets" / "sample"


@dataclass(frozen=True)
class Several:
    """Several datasets as one, cut after so many episodes."""

    folders: tuple[str, ...]
    most: int
    name: str = "several"

    def records(self) -> Iterator[Record]:
        left = self.most
        for folder in self.folders:
            for episode in demerit.open_dataset(folder):
                if left:
                    left -= 1
                    yield episode

    def expected(self) -> int | None:
        return None


def serve(pipe: Connection, several: Several, latency: float, rate: float) -> None:
    """Answer until told to stop; on request tell what was asked, billed and broken since the last time."""
    judge = SimulatedJudge(one for one in several.records() if isinstance(one, demerit.Episode))
    faults = Faults({kind: rate / len(FAULTS) for kind in FAULTS}, retry_after=0.5, delay=latency)
    with ScriptedServer(judge, faults, latency=latency, models=(NAME,)) as server:
        pipe.send(server.url)
        while pipe.recv() == "measure":
            facts = (server.busy.share(SLOTS), server.asked.total(), Counter(server.billed), Counter(server.faulted))
            pipe.send(facts)
            server.busy = Busy()


def ablate(url: str, gathered: Gathered, folder: Path, given: argparse.Namespace) -> tuple[Report, Contexts]:
    benchmark = replace(load_benchmark(given.benchmark), splits=())
    options = f"gvl:url={url},model={NAME},frames={given.frames},size={given.size},concurrency={SLOTS}"
    options += f",timeout={given.timeout},cache={folder / 'answers.sqlite'},example_frames=3"
    contexts = Contexts(options, Ablation(KINDS, pairs_a_task=given.pairs), gathered)
    resampling = Resampling(resamples=given.resamples)
    chosen = RunOptions(showings=False, workers=1, settings=Settings(resampling))
    chosen = run_options(chosen, contexts, gathered.episodes)
    last = [time.monotonic()]

    def told(what: str, progress: Any) -> None:
        if time.monotonic() - last[0] > 20:
            last[0] = time.monotonic()
            print(f"  {what}: {progress.seen}; {contexts.chat.spent.requests} requests in all", flush=True)

    started = time.monotonic()
    models = contexts.models(folder)
    print(f"  distilled in {time.monotonic() - started:.0f} s: {contexts.notes[0]}", flush=True)
    report = contexts.told(run_benchmark(benchmark, models, gathered, folder, chosen, told))
    contexts.chat.close()
    return report, contexts


def check(report: Report, billed: Counter[str]) -> None:
    """Every episode is there in every context, every gap has a reason, and no answer was sent twice."""
    for card in report.cards[: len(KINDS)]:
        rewards = report.rewards_of(card.name)
        lost = [one.id for one in report.episodes if one.id not in rewards]
        gaps = [one for one in rewards.values() if not one.scored or np.isnan(one.value).any()]
        unexplained = [one.episode for one in gaps if not one.why_missing]
        reasons = Counter(one.why_missing.split(":")[0].split(" (")[0][:40] for one in gaps).most_common(4)
        print(f"  {card.name}: {len(rewards)} rewards, {len(gaps)} with gaps {dict(reasons)}")
        assert not lost, lost[:3]
        assert not unexplained, unexplained[:3]
    twice = {question: count for question, count in billed.items() if count > 1}
    assert not twice, f"{len(twice)} questions were answered more than once"


def show(report: Report) -> None:
    for name in (*report.about.headline, "preference_ordering_by_sum"):
        cells = [report.line(card.name, name) for card in report.cards[: len(KINDS)]]
        text = "  ".join("–" if one is None else f"{one.value:.3f} ({one.low:.3f}..{one.high:.3f})" for one in cells)
        print(f"  {name:28} {text}")
    for one in report.comparisons:
        if one.first == "gvl" and one.second.startswith("gvl+"):
            print(f"  {one.measure}: {one.second} - gvl = {-one.difference:+.3f}, p adjusted {one.p_adjusted:.3g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", default=[str(SHIPPED)])
    parser.add_argument("--episodes", type=int, default=MOST)
    parser.add_argument("--benchmark", default="metaworld-bad@1")
    parser.add_argument("--latency", type=float, default=2.0)
    parser.add_argument("--faults", type=float, default=0.05)
    parser.add_argument("--frames", type=int, default=8)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=6.0)
    parser.add_argument("--resamples", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=None, help="keep the report here")
    given = parser.parse_args()
    several = Several(tuple(given.folders), given.episodes)
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    arguments = (theirs, several, given.latency, given.faults)
    server = multiprocessing.get_context("spawn").Process(target=serve, args=arguments, daemon=True)
    server.start()
    gathered = gather(replace(load_benchmark(given.benchmark), splits=()), Dataset(several, "simulated episodes"))
    url = ours.recv()
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.out or Path(scratch)
        run(url, ours, gathered, folder, given)
    ours.send("stop")
    server.join(10)


def run(url: str, pipe: Connection, gathered: Gathered, folder: Path, given: argparse.Namespace) -> None:
    rounds, before = [], 0
    for attempt in ("first run", "the same again"):
        started = time.monotonic()
        report, contexts = ablate(url, gathered, folder, given)
        seconds = time.monotonic() - started
        pipe.send("measure")
        busy, asked, billed, faulted = pipe.recv()
        print(f"{attempt}: {len(gathered.episodes)} episodes x {len(KINDS)} contexts, {seconds:.0f} s")
        print(f"  {asked - before} requests, {billed.total()} answers billed so far, faults so far: {dict(faulted)}")
        print(
            f"  {SLOTS} slots in use {busy:.1%} of the time" if asked - before > 10 * SLOTS else "  too few to measure"
        )
        print(f"  {contexts.chat.spent}")
        check(report, billed)
        rounds.append((busy, asked - before))
        before = asked
    show(report)
    if given.out is not None:
        report.write(folder / "report.json")
        print(write_page(report, folder / "report.html", gathered.frames()))
    few = rounds[0][1] <= 10 * SLOTS
    assert few or rounds[0][0] >= WANTED, f"the slots were in use only {rounds[0][0]:.1%} of the time"


if __name__ == "__main__":
    main()
