"""CPU time and memory of commands as a dataset grows: per episode both should stay flat.

    python benchmarks/growth.py [--episodes 1000 10000] [--commands score bench]        (--small: 20 episodes)

CPU time is that of the command and its decoding processes, so that a busy machine changes it little. Beside it stands
what each further episode costs, and the memory at most. The servers (view, annotate) start, answer their first pages
and stop. Episodes are videos of 20 frames, half of them successes; "bench, one task" gives all the same instruction.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

import numpy as np
import pyarrow as pa

from demerit.data.episode import Episode, Origin, Outcome
from demerit.data.files import lock_folder
from demerit.data.frames import Frames
from demerit.data.parts import PartWriter
from demerit.data.store import EPISODES, FORMAT_NAME, MANIFEST, SCHEMAS, Store, episode_row
from demerit.data.video import write_video

VIDEOS, FRAMES, TASKS, AT_ONCE = 50, 20, 20, 10_000
COMMANDS = {
    "score": ("score", "{set}", "--model", "change"),
    "score again": ("score", "{set}", "--model", "change"),
    "filter": ("filter", "{set}", "{out}", "--model", "change", "--keep-best", "50%"),
    "bench": ("bench", "own", "--data", "{set}", "-o", "{out}"),
    "bench, one task": ("bench", "own", "--data", "{set}", "-o", "{out}", "--no-controls", "--model", "clock"),
    "view": ("view", "{set}", "--port", "0", "--no-browser"),
    "annotate": ("annotate", "{set}", "--port", "0", "--no-browser", "--no-teach", "--tasks", "verify"),
}
PAGES = {"view": ("/index.json", "/episodes/7.json", "/stale.json"), "annotate": ("", "/work/verify")}


def make_videos(folder: Path) -> list[Path]:
    rng = np.random.default_rng(0)
    paths = [folder / f"{number}.mp4" for number in range(VIDEOS)]
    for path in paths:
        write_video(path, rng.integers(0, 255, (FRAMES, 48, 64, 3), np.uint8))
    return paths


def fill(root: Path, videos: list[Path], count: int, tasks: int) -> Path:
    """Write rows made from templates: one for each video, task and label."""
    store, rng = Store.create(root, "set"), np.random.default_rng(0)
    templates = [
        episode_row(
            Episode("x", f"task {place % tasks}", {"main": Frames.from_video(video)}, (label,), Origin(dataset="set")),
            store.root,
        )
        for place, video in enumerate(videos)
        for label in (Outcome("human", success=True, grade=5), Outcome("human", success=False, grade=2))
    ]
    kinds = pa.Table.from_pylist(templates, EPISODES)
    with lock_folder(store.root):
        parts = PartWriter(store.root / MANIFEST, FORMAT_NAME, store.manifest, SCHEMAS)
        for start in range(0, count, AT_ONCE):
            stop = min(start + AT_ONCE, count)
            ids = pa.array([f"set/episode_{number:07d}" for number in range(start, stop)])
            table = kinds.take(rng.integers(0, len(kinds), stop - start))
            parts.commit({"episodes": table.set_column(0, EPISODES.field("id"), ids)})
    return store.root


def run(command: list[str], pages: tuple[str, ...], log: Path) -> tuple[float, float]:
    """Return the CPU seconds and the peak memory (MB) of a command with its child processes."""
    environment = {**os.environ, "NO_COLOR": "1", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "demerit", *command],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
        )
        assert process.stdout is not None
        said = visit(process, pages) if pages else process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, -signal.SIGTERM, 128 + signal.SIGTERM) or (process.returncode and not pages):
        sys.exit(f"{' '.join(command)} failed ({process.returncode}): {said[-2000:]} {log.read_text()[-2000:]}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def visit(process: subprocess.Popen[str], pages: tuple[str, ...]) -> str:
    """Open pages of a server once it has printed its address, and stop it."""
    assert process.stdout is not None
    said = ""
    while not (found := re.search(r"http://[\w.:]+(/enter/\S+)?", said)):
        line = process.stdout.readline()
        if not line:
            return said
        said += line
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    base = re.match(r"http://[\w.:]+", found[0])
    assert base is not None
    for page in pages:
        opener.open(base[0] + page if page else found[0]).read()
    process.send_signal(signal.SIGTERM)
    return said + process.stdout.read()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="20 episodes; the figures mean nothing")
    parser.add_argument("--episodes", type=int, nargs="+", default=[1000, 10_000], metavar="N")
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS), metavar="NAME")
    given = parser.parse_args()
    sizes = [20] if given.small else given.episodes
    print(f"{'command':<18}{'episodes':>9}{'CPU s':>9}{'ms per further episode':>24}{'memory MB':>11}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        videos = make_videos(folder)
        sets = {
            (size, tasks): fill(folder / f"{size}-{tasks}", videos, size, tasks)
            for size in sizes
            for tasks in (TASKS, 1)
        }
        for title in given.commands:
            last = (0, 0.0)
            for size in sizes:
                place = {
                    "set": sets[size, 1 if title == "bench, one task" else TASKS],
                    "out": folder / f"{size}-{title}",
                }
                command = [word.format_map(place) for word in COMMANDS[title]]
                seconds, memory = run(command, PAGES.get(title, ()), folder / "log")
                more = f"{1000 * (seconds - last[1]) / (size - last[0]):.2f}" if last[0] else ""
                print(f"{title:<18}{size:>9,}{seconds:>9.1f}{more:>24}{memory:>11.0f}", flush=True)
                last = (size, seconds)


if __name__ == "__main__":
    main()
