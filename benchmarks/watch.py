"""How long after a robot has written an episode is its score on /metrics?

    python benchmarks/watch.py
    python benchmarks/watch.py --small

`demerit watch` runs as a process of its own with the default model. The sample's videos are written into its folder one
after the other, as a recorder does it: in pieces, under their final name. The clock starts when the last byte is
written and stops when /metrics counts the episode. Bar: under 5 seconds. Then the watch is killed (-9), started again,
and must find every episode scored.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import demerit

SAMPLE = Path(demerit.__file__).parent / "assets" / "sample"
BAR = 5.0
PIECES = 4


def start(folder: Path) -> tuple[subprocess.Popen[str], str]:
    """Start a watch; return it and its address."""
    words = ["-m", "demerit", "watch", str(folder), "--port", "0", "--instruction", "move the block to the other bin"]
    run = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    found = re.search(r"http://\S+", run.stdout.readline())
    assert found is not None
    return run, found[0]


def read(url: str, name: str) -> float:
    """Return a figure of /metrics."""
    with urllib.request.urlopen(f"{url}/metrics") as reply:
        found = re.search(rf"^demerit_watch_{name} (\S+)$", reply.read().decode(), flags=re.M)
    return float(found[1]) if found else 0.0


def wait_for(url: str, episodes: int) -> None:
    """Wait until so many episodes are scored."""
    for _ in range(6000):
        if read(url, "episodes") >= episodes:
            return
        time.sleep(0.02)
    raise SystemExit(f"{episodes} episodes: not scored within 2 minutes")


def main() -> None:
    """Print the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="2 episodes: the figures mean little")
    parser.add_argument("--episodes", type=int, default=28)
    given = parser.parse_args()
    videos = sorted(SAMPLE.glob("*.mp4"))[: 2 if given.small else given.episodes]
    with tempfile.TemporaryDirectory() as place:
        folder, seconds = Path(place, "runs"), list[float]()
        folder.mkdir()
        run, url = start(folder)
        try:
            for count, video in enumerate(videos, start=1):
                content = video.read_bytes()
                step = len(content) // PIECES + 1
                with open(folder / video.name, "wb") as file:
                    for begin in range(0, len(content), step):
                        file.write(content[begin : begin + step])
                        file.flush()
                        time.sleep(0.1)
                done = time.monotonic()
                wait_for(url, count)
                seconds.append(time.monotonic() - done)
            run.send_signal(signal.SIGKILL)
            run.wait()
            begin = time.monotonic()
            run, url = start(folder)
            wait_for(url, len(videos))
            again, scored = time.monotonic() - begin, read(url, "scored_total")
        finally:
            run.kill()
            run.wait()
            shutil.rmtree(folder.with_name("runs.demerit"), ignore_errors=True)
    print(f"{len(seconds)} episodes, from the last byte to /metrics (the default --settle is 1 s of it):")
    print(f"  median {statistics.median(seconds):.2f} s, longest {max(seconds):.2f} s; bar {BAR:g} s: ", end="")
    print("met" if max(seconds) < BAR else "MISSED")
    print(f"after kill -9: all {len(videos)} on the page {again:.1f} s after the start, {scored:.0f} scored again")


if __name__ == "__main__":
    main()
