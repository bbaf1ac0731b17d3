"""Train robots with rewards that a taught model gives, and see what its quality is worth.

    python examples/rl/rl.py prepare OUT            episodes, taught models and their quality
    python examples/rl/rl.py train OUT --jobs 2     SAC with each kind of reward; run it again to go on
    python examples/rl/rl.py page OUT               a page and a table of what has finished

`train` needs only the folder `models` of OUT. `--small` runs in seconds; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))


def say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("prepare", "train", "page", "case", "all"))
    parser.add_argument("out", type=Path, metavar="OUT", help="a folder")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--only", default="", help="only runs whose name contains this")
    parser.add_argument("--minutes", type=float, default=1e9, help="start no run after this time")
    parser.add_argument("--small", action="store_true", help="seconds, for tests")
    given = parser.parse_args()
    given.out = given.out.resolve()
    if given.step in ("prepare", "all"):
        from prepare import prepare

        prepare(given.out, given.jobs, given.small, say)
    if given.step in ("train", "all"):
        from train import train

        train(given.out, given.jobs, given.small, given.only, given.minutes, say)
    if given.step == "case":
        from train import cases, run_case

        run_case(next(case for case in cases(given.small) if case.name == given.only), given.out)
    if given.step in ("page", "all"):
        from page import write_page

        write_page(given.out, say)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped; run it again to go on")
