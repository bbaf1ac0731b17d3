"""Relabelling against a scripted author: how many wrong commands validation catches, and what faults and kills cost.

A simulation: the rates of mistakes are chosen, so this measures the checks around a model, not a model.

1. Validation. An author writes 30% of its commands for a wrong grade and breaks a rule of form in 10%. Printed: the
   share of right grades among the first commands written, among those that the rules let pass, and among those
   accepted, for validators that misjudge at several rates.
2. Faults. 5% of the requests fail in many ways. Checked: every original has all its labels or the reasons why not,
   no request is answered twice, and the same job again sends nothing. With --kill the job is killed halfway first;
   then only requests in flight at the kill are answered twice.

python benchmarks/relabel.py [--originals 1000] [--kill] [--small]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--originals", type=int, default=1000)
    parser.add_argument("--faults", type=float, default=0.05)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--small", action="store_true", help="a few originals, in seconds")
    OPTIONS = parser.parse_args()  # before the imports that need extras: --help works without them

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from demerit.llm import ChatClient, Endpoint
from demerit.negatives.relabel import RelabelConfig, RelabelSummary, read_records, relabel
from fakes.chat_server import Faults, ScriptedServer
from fakes.relabel_author import SloppyAuthor, author, originals, true_grade

CONCURRENCY = 16


def run(folder: Path, url: str, count: int, clips: tuple[int, ...]) -> RelabelSummary:
    endpoint = Endpoint(url, "simulated", key_env="")
    with ChatClient(endpoint, folder / "answers.sqlite", concurrency=CONCURRENCY, timeout=4.0) as client:
        return relabel(originals(folder, count), folder / "made", client, RelabelConfig(size=32, clips=clips))


def measure_validation(count: int, misjudged: float) -> str:
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    complete = 0
    with tempfile.TemporaryDirectory() as folder, ScriptedServer(SloppyAuthor(misjudged=misjudged)) as server:
        run(Path(folder), server.url, count, ())
        for record in read_records(Path(folder) / "made"):
            complete += len(record.accepted("command")) == 4
            for one in record.candidates:
                if one.stage != "command":
                    continue
                rows = {"first": one.fresh, "passed the rules": one.fresh and one.verdict is not None}
                for name in [name for name, holds in {**rows, "accepted": not one.reason}.items() if holds]:
                    total[name] += 1
                    right[name] += true_grade(one.text, record.instruction) == one.grade
    cells = [f"{right[name] / max(1, total[name]):.3f} ({total[name]})" for name in total]
    return f"{misjudged:.0%} | {' | '.join(cells)} | {complete} of {count}"


def serve(pipe: Connection, rate: float) -> None:
    with ScriptedServer(author, Faults.everything(rate, retry_after=0.05, delay=0.2)) as server:
        pipe.send(server.url)
        while pipe.recv() == "measure":
            twice = sum(count - 1 for count in server.billed.values())
            pipe.send((server.asked.total(), server.billed.total(), twice, Counter(server.faulted)))


def run_and_print(folder: str, url: str, count: int) -> None:
    made = run(Path(folder), url, count, (2, 3, 4))
    print(f"  {made.settled} of {made.originals} settled, {made.labels} labels, rejected {dict(made.rejected)}")
    print(f"  {made.spent}", flush=True)


def measure_faults(count: int, rate: float, kill: bool) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=serve, args=(theirs, rate), daemon=True)
    server.start()
    url, start, counts = ours.recv(), time.monotonic(), []

    def read_counts() -> tuple[int, int, int, Counter[str]]:
        ours.send("measure")
        return ours.recv()

    with tempfile.TemporaryDirectory() as folder:
        originals(Path(folder), 1)
        for name in (*(("killed halfway",) if kill else ()), "to the end", "the same again"):
            print(name)
            child = context.Process(target=run_and_print, args=(folder, url, count))
            child.start()
            if name == "killed halfway":
                while read_counts()[1] < 13 * count // 2 and child.is_alive():
                    time.sleep(0.1)
                os.kill(child.pid or 0, signal.SIGKILL)
            child.join()
            counts.append(read_counts())
            print(f"  {time.monotonic() - start:.0f} s; requests, answered, answered twice: {counts[-1][:3]}")
        records = list(read_records(Path(folder) / "made"))
    ours.send("stop")
    unexplained = [one.original for one in records if len(one.accepted("command")) < 4 and not one.rejected]
    print(f"{len(records)} records; faults: {dict(counts[-1][3])}")
    assert len(records) == count and not unexplained
    assert counts[-1][2] <= (CONCURRENCY if kill else 0), "only what was in flight at a kill"
    assert counts[-1][0] == counts[-2][0], "nothing is sent again"


def main(given: argparse.Namespace) -> None:
    count = 10 if given.small else given.originals
    print("validator misjudges | first | passed the rules | accepted | originals with all four grades")
    for misjudged in (0.1, 1.0) if given.small else (0.0, 0.1, 0.3, 0.5, 1.0):
        print(measure_validation(count, misjudged))
    measure_faults(count, given.faults, given.kill)


if __name__ == "__main__":
    main(OPTIONS)
