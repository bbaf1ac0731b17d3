"""Start-up time of `demerit --help` and `import demerit`, compared with plain Python.

python benchmarks/startup.py [--small]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "import demerit": [sys.executable, "-c", "import demerit"],
    "demerit --help": [sys.executable, "-c", "from demerit.cli import main; main()", "--help"],
}


def main(rounds: int) -> None:
    times: dict[str, list[float]] = {title: [] for title in COMMANDS}
    for _ in range(rounds):
        for title, command in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            times[title].append(time.perf_counter() - start)
    for title, values in times.items():
        print(f"{title:16s} median {statistics.median(values):.3f} s, worst {max(values):.3f} s of {rounds}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="one round")
    main(rounds=1 if parser.parse_args().small else 15)
