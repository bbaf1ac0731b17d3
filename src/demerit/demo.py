"""The demo: take the sample that ships, import it, measure a model on it beside the controls, write the report."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from demerit.bench.benchmark import load_benchmark
from demerit.bench.page import write_page
from demerit.bench.report import Report
from demerit.bench.run import gather, run_benchmark
from demerit.contact_sheet import contact_sheet
from demerit.ingest import import_dataset
from demerit.sources import open_dataset
from demerit.store import RewardStore, Store

MODEL = "change"


@dataclass(frozen=True)
class DemoResult:
    """What the demo made."""

    store: Path
    sheet: Path
    report: Report
    page: Path


def run_demo(folder: str | Path) -> DemoResult:
    """Do everything once; in the same folder again, what is done stays done."""
    folder = Path(folder)
    videos = shipped_sample(folder / "videos")
    import_dataset(open_dataset(f"videos:{videos}"), folder / "dataset", licence="Apache-2.0")
    store = Store(folder / "dataset")
    gathered = gather(load_benchmark("own"), f"demerit:{store.root}")
    report = run_benchmark(load_benchmark("own"), [MODEL], gathered, folder / "report")
    report.write(folder / "report" / "report.json")
    page = write_page(report, folder / "report" / "report.html", gathered.frames())
    return DemoResult(store.root, _sheet(store, folder), report, page)


def shipped_sample(folder: Path) -> Path:
    """Copy the sample out of the package: twelve simulated episodes, successes and failures, labels measured."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in (files("demerit") / "data" / "sample").iterdir():
        target = folder / file.name
        if not target.exists():
            target.write_bytes(file.read_bytes())
    return folder


def _sheet(store: Store, folder: Path) -> Path:
    """Draw a failure with what two of the models make of it."""
    shown = next(store.episodes({"success": False}))
    folders = [folder / "report" / "rewards" / name / "as-recorded" for name in (MODEL, "clock")]
    rewards = [reward for each in folders for reward in RewardStore(each) if reward.episode == shown.id]
    return contact_sheet(shown, folder / "sheet.png", rewards)
