"""A thousand originals relabelled with 5% of the requests broken: none is lost, no answer is billed twice.

A scripted server in a process of its own writes commands by the book; of its requests 5% go wrong in sixteen ways
(timeouts, 429, 500, cut connections, nonsense, refusals, slow answers ...). Checked: every original has all its labels
or the reasons why not, no question was answered twice, and the same command again asks nothing. With --kill the job is
killed with -9 half-way and begun again: then what was under way at the kill may be answered twice.

python benchmarks/relabel.py [--originals 1000] [--kill]
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

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from demerit.llm import Endpoint
from demerit.negatives.relabel import RelabelSettings, relabel
from demerit.negatives.relabel.journal import read_records
from fakes.judge.faults import Faults
from fakes.judge.server import ScriptedServer
from fakes.relabel_author import author, originals

SLOTS = 16


def serve(pipe: Connection, rate: float) -> None:
    faults = Faults.everything(rate, retry_after=0.05, delay=0.2)
    with ScriptedServer(author, faults) as server:
        pipe.send(server.url)
        while pipe.recv() == "measure":
            twice = sum(count - 1 for count in server.billed.values())
            pipe.send((server.asked.total(), server.billed.total(), twice, Counter(server.faulted)))


def job(folder: str, url: str, count: int) -> None:
    settings = RelabelSettings(size=32)
    endpoint = Endpoint(url, "simulated", key_env="")
    dest = Path(folder) / "made"
    made = relabel(
        originals(Path(folder), count), dest, endpoint=endpoint, concurrency=SLOTS, timeout=2.0, settings=settings
    )
    print(f"  {made.settled} of {made.originals} settled, {made.asked_now} of them now; {made.labels} labels")
    print(f"  commands {dict(sorted(made.commands.items()))}, clips {dict(sorted(made.clips.items()))}")
    print(f"  turned down {dict(made.rejected)}; unfinished {dict(made.unfinished)}")
    print(f"  {made.spent}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--originals", type=int, default=1000)
    parser.add_argument("--faults", type=float, default=0.05)
    parser.add_argument("--kill", action="store_true")
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=serve, args=(theirs, given.faults), daemon=True)
    server.start()
    url, whole = ours.recv(), 14 * given.originals

    def measured() -> tuple[int, int, int, Counter[str]]:
        ours.send("measure")
        return ours.recv()

    with tempfile.TemporaryDirectory() as folder:
        originals(Path(folder), 1)
        start, rounds = time.monotonic(), []
        for name in (*(("killed half-way",) if given.kill else ()), "to the end", "the same again"):
            print(name)
            child = context.Process(target=job, args=(folder, url, given.originals))
            child.start()
            while name == "killed half-way" and measured()[1] < whole // 2 and child.is_alive():
                time.sleep(0.1)
            if name == "killed half-way":
                os.kill(child.pid or 0, signal.SIGKILL)
            child.join()
            rounds.append(measured())
            print(f"  {time.monotonic() - start:.0f} s; requests, billed, twice: {rounds[-1][:3]}")
        records = list(read_records(Path(folder) / "made"))
        unexplained = [one.original for one in records if len(one.commands) < 4 and not one.rejected]
        print(f"{len(records)} records; {sum(len(one.commands) == 4 for one in records)} with all four commands")
        print(f"faults: {dict(rounds[-1][3])}")
    ours.send("stop")
    assert len(records) == given.originals and not unexplained
    assert rounds[-1][2] <= (SLOTS if given.kill else 0), "only what was under way at a kill"
    assert rounds[-1][0] == rounds[-2][0], "nothing is asked again"


if __name__ == "__main__":
    main()
