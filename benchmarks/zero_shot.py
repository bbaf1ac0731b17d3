"""The default model without teaching, on unseen tasks: AUROC, matched pairs, progress error and over-reward.

demerit simulate stores/test --benchmark metaworld-bad@1 --split test
python benchmarks/zero_shot.py stores/test            # docs/results/zero_shot.md, "Unseen tasks"
python benchmarks/zero_shot.py --small                # the shipped sample: only shows that the script runs
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

MEASURES = ("auroc", "matched_pairs", "progress_error", "over_reward_rate")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", nargs="?", help="simulated episodes of metaworld-bad@1, split test")
    parser.add_argument("--out", type=Path, help="folder of the report (default: a temporary one)")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    if not options.small and options.store is None:
        parser.error("expected a folder of simulated episodes, or --small")
    benchmark, store = "metaworld-bad@1", options.store
    more: list[str] = []
    if options.small:
        benchmark, store = "own", str(files("demerit") / "assets" / "sample")
        more = ["--limit", "6", "--set", "resamples=50", "--workers", "0"]
    with tempfile.TemporaryDirectory() as temporary:
        out = options.out or Path(temporary)
        command = [sys.executable, "-c", "from demerit.cli import main; main()", "bench", benchmark, "--data", store]
        subprocess.run(
            [*command, "--model", "default", "--set", "as-recorded=true", "--out", str(out), *more],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        report = json.loads((out / "report.json").read_text("utf-8"))
    rows = [
        (line["model"], line["measure"])
        for line in report["lines"]
        if not line["part"] and line["measure"]["name"] in MEASURES
    ]
    print(f"| model | measure | value | 95% interval | n |\n{'| --- ' * 5}|")
    for model, measure in rows:
        value, low, high = (
            "undefined" if measure[name] is None else f"{measure[name]:.3f}" for name in ("value", "low", "high")
        )
        print(f"| {model} | {measure['name']} | {value} | {low} to {high} | {measure['n']} |")


if __name__ == "__main__":
    main()
