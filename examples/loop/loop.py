"""Close the loop: what a policy does wrong in the real world teaches its reward model, and the policy is trained again.

    python examples/loop/loop.py OUT --jobs 2       run it again to go on; writes OUT/page.html and OUT/results.md
    python examples/loop/loop.py OUT --small        a minute, for tests; the figures mean nothing

Round 0: a reward model is taught demonstrations alone, half from a simulator, half from a second world that stands for
reality (see worlds.py). SAC learns in the simulator from that model's values, and the policy is tried in the second
world. Each further round asks a person (here: the measured outcome) for verdicts, teaches the model again from the
start, and trains the policy again from the start. There are three ways to go on:

    loop    verdicts on what the policy did in the second world: up to half of them on rollouts that the detector flags,
            the others on those that the model values most. Failures become variants in the simulator, where what
            happens is measured.
    stock   as many verdicts on other recordings of the second world: a demonstrator who leaves the task and wanders. No
            variants.
    none    no more verdicts; the last round is trained once more, with another seed

What is compared: the policy's true success in the second world, and how often its model is fooled.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "rl")]

TASKS, SEEDS = ("window-close", "window-open"), (0, 1, 2)


def run_all(out: Path, jobs: int, small: bool, only: str) -> list[str]:
    """Run every task and seed, a process each; return the names of those that failed."""
    tasks, seeds = (TASKS[:1], SEEDS[:1]) if small else (TASKS, SEEDS)
    names = [name for seed, task in product(seeds, tasks) if only in (name := f"{task}:{seed}")]
    one_core = {**os.environ, "OMP_NUM_THREADS": "1", "LP_NUM_THREADS": "0"}
    out.mkdir(parents=True, exist_ok=True)

    def run(name: str) -> int:
        command = [sys.executable, __file__, str(out), "--chain", name, *(["--small"] if small else [])]
        log = out / f"{name.replace(':', '--')}.log"
        with log.open("w") as sink:
            code = subprocess.run(command, env=one_core, stdout=sink, stderr=sink, check=False).returncode
        print(f"{name}: {f'failed ({code}), see {log}' if code else 'done'}", flush=True)
        return code

    with ThreadPoolExecutor(jobs) as pool:
        return [name for name, code in zip(names, pool.map(run, names), strict=True) if code]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT", help="a folder")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--only", default="", help="only TASK:SEED that contain this")
    parser.add_argument("--small", action="store_true", help="a minute, for tests")
    parser.add_argument("--chain", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.out = given.out.resolve()
    if given.chain:
        from rounds import SMALL, Chain, LoopPlan

        task, seed = given.chain.split(":")
        Chain(task, int(seed), given.out, SMALL if given.small else LoopPlan()).run()
        return
    failed = run_all(given.out, given.jobs, given.small, given.only)
    from loop_page import write_page

    print(write_page(given.out))
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped; run it again to go on")
