"""Kill a running import at random moments, many times, and check what is left. Run by test_crash.py.

Everything that touches the folder runs in forked children, so this process never starts pyarrow's threads and forking
is safe. Prints one line of JSON.
"""

import json
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import av  # noqa: F401  # imported once, so that a forked child starts quickly

from demerit.data import store
from demerit.data.formats import open_dataset
from demerit.data.importing import import_dataset
from demerit.data.store import Store, StoreWriter


def in_child(work: Callable[[int], None]) -> tuple[int, int]:
    """Fork a child that reports through a pipe; return its process id and the pipe."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            work(writing)
            os._exit(0)
        except BaseException as error:
            os.write(writing, f"error {error!r}\n".encode())
            os._exit(1)
    os.close(writing)
    return child, reading


def import_everything(source: str, dest: Path, copy: bool) -> Callable[[int], None]:
    def work(report: int) -> None:
        commit = StoreWriter.commit

        def reporting(writer: StoreWriter) -> int:
            pending = [row["id"] for row in writer._pending["episodes"]]
            durable = commit(writer)
            os.write(report, "".join(f"durable {id}\n" for id in pending).encode())
            return durable

        StoreWriter.commit = reporting  # type: ignore[method-assign]
        store.COMMIT_SECONDS = 0.0
        import_dataset(open_dataset(source), dest, copy=copy)

    return work


def look(dest: Path) -> Callable[[int], None]:
    def work(report: int) -> None:
        if Store.is_at(dest):
            for number, episode in enumerate(Store(dest).episodes()):
                if number % 10 == 0:
                    episode.main.take([0])
                os.write(report, f"there {episode.id}\n".encode())

    return work


def answers(child: int, reading: int) -> tuple[int, list[list[str]]]:
    with os.fdopen(reading, "rb") as pipe:
        lines = [line.split() for line in pipe.read().decode().splitlines()]
    return os.waitpid(child, 0)[1], lines


def main(source: str, dest: Path, kills: int, longest: float, copy: bool) -> None:
    rng = random.Random(0)
    reported: set[str] = set()
    killed = completed = 0
    for round_number in range(kills):
        child, reading = in_child(import_everything(source, dest, copy))
        if round_number % 2:  # not before something is stored, however slow the machine is
            select.select([reading], [], [])
        time.sleep(rng.uniform(0, longest))
        os.kill(child, signal.SIGKILL)
        status, lines = answers(child, reading)
        killed += os.WIFSIGNALED(status)
        completed += not os.WIFSIGNALED(status)
        reported |= {line[1] for line in lines if line[0] == "durable"}
        status, lines = answers(*in_child(look(dest)))
        there = {line[1] for line in lines if line[0] == "there"}
        if status or not reported <= there:
            print(json.dumps({"round": round_number, "lost": sorted(reported - there), "said": lines[-1:]}))
            return
    status, lines = answers(*in_child(import_everything(source, dest, copy)))
    there = [line[1] for line in answers(*in_child(look(dest)))[1]]
    left = sorted(path.name for path in dest.rglob("*") if path.name.endswith(".part"))
    facts = {"killed": killed, "completed": completed, "last": status, "there": len(there), "left": left}
    print(json.dumps({**facts, "distinct": len(set(there)), "before_last": len(reported)}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), sys.argv[5] == "copy")
