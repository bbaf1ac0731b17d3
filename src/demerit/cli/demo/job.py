"""The job of the demo: everything from the sample to the report, and nothing twice.

DIR/videos/    the sample: videos and labels.jsonl
DIR/lesson/    the episodes to teach with, as a dataset folder
DIR/test/      the others
DIR/taught/    the model that came of it, with the lesson's own report
DIR/report/    report.html, report.json, rewards/
DIR/demo.json  what all this was made from; written last
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from demerit.cli.demo.page import write_page
from demerit.cli.demo.words import TAUGHT, UNTAUGHT, doubts
from demerit.data.dataset import Dataset, Record
from demerit.data.episode import Episode
from demerit.data.files import write_atomic
from demerit.data.formats import open_dataset
from demerit.data.frames import short_hash
from demerit.data.importing import import_dataset
from demerit.errors import StoreError
from demerit.evaluate.benchmarks.data import labels_of
from demerit.evaluate.benchmarks.run import RunOptions, load_data, run_benchmark
from demerit.evaluate.benchmarks.scores import MeasureSettings
from demerit.evaluate.metrics import Resampling
from demerit.evaluate.reports.report import EpisodeLabels, Report
from demerit.models import load_model
from demerit.training.teach.job import teach
from demerit.training.teach.report import taught_benchmark as questions

DONE = "demo.json"
FORMAT = 1
PARTS = {"lesson": "train", "test": "test"}
"""folders, and the split of the sample that each holds"""
TOGETHER = RunOptions(settings=MeasureSettings(Resampling(resamples=2000)))

Watch = Callable[[str, int, int], None]
"""called with what is being done, how much of it is done and how much there is"""


@dataclass(frozen=True, eq=False)
class DemoResult:
    """What the demo made."""

    folder: Path
    report: Report
    lesson: Report
    """about the episodes that were taught, each left out once"""
    seconds: dict[str, float]
    """how long each step took; empty when everything was there already"""

    @property
    def page(self) -> Path:
        """The report."""
        return self.folder / "report" / "report.html"

    @property
    def lesson_page(self) -> Path:
        """The report of the lesson."""
        return self.folder / TAUGHT / "report.html"


def run_demo(folder: str | Path, on_progress: Watch = lambda what, done, total: None) -> DemoResult:
    """Do everything once; in the same folder again, what is done stays as it is.

    Args:
        folder: where to put it.
        on_progress: told how far it is.
    """
    folder = Path(folder)
    videos = shipped_sample(folder / "videos")
    facts = _made_from(videos)
    if _is_done(folder, facts):
        return _result(folder, {})
    clock = _Clock()
    with clock.timed("teaching"):
        _split(videos, folder)
        # An absolute address: the same folder, reached from elsewhere, holds the same model.
        lesson = teach(f"demerit:{folder.resolve() / 'lesson'}", folder / TAUGHT, on_progress=on_progress)
    if lesson.stopped:
        raise KeyboardInterrupt(lesson.stopped)  # a lesson keeps its best so far; a demo has to be whole
    with clock.timed("scoring"):
        report, frames = _measured(folder, on_progress)
        report.write(folder / "report" / "report.json")
    with clock.timed("writing the report"):
        on_progress("writing the report", 0, 1)
        write_page(report, lesson.results.report, folder / "report" / "report.html", frames)
    write_atomic(folder / DONE, (json.dumps(facts, indent=1) + "\n").encode())
    return _result(folder, clock.seconds)


def shipped_sample(folder: Path) -> Path:
    """Copy the sample out of the package: videos, and labels that a simulator measured."""
    source = files("demerit") / "assets" / "sample"
    labels = folder / "labels.jsonl"
    if labels.exists() and labels.read_bytes() != (source / labels.name).read_bytes():
        raise StoreError(folder, "it holds other videos than this demerit's demo; remove it or choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in source.iterdir():
            target = folder / file.name
            if not target.exists():
                write_atomic(target, file.read_bytes())
    except OSError as error:
        raise StoreError(folder, f"the sample cannot be written there ({error.strerror})") from error
    return folder


def _made_from(videos: Path) -> dict[str, Any]:
    network = (files("demerit") / "assets" / "compact" / "network.json").read_bytes()
    sample = b"".join(path.read_bytes() for path in sorted(videos.iterdir()) if path.is_file())
    return {
        "format": FORMAT,
        "demerit": version("demerit"),
        "network": short_hash(network),
        "sample": short_hash(sample),
    }


def _is_done(folder: Path, facts: dict[str, Any]) -> bool:
    made = ("report/report.html", "report/report.json", f"{TAUGHT}/report.html", f"{TAUGHT}/report.json")
    try:
        before = json.loads((folder / DONE).read_bytes())
    except (OSError, ValueError):
        return False
    return bool(before == facts) and all((folder / name).is_file() for name in made)


def _result(folder: Path, seconds: dict[str, float]) -> DemoResult:
    report, lesson = (Report.read(folder / name / "report.json") for name in ("report", TAUGHT))
    return DemoResult(folder, report, lesson, seconds)


class _Clock:
    """How long each step takes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.seconds[what] = time.monotonic() - started


@dataclass(frozen=True)
class _Part:
    """One split of a dataset, as a reader."""

    whole: Dataset
    split: str

    @property
    def name(self) -> str:
        return self.whole.name

    def records(self) -> Iterator[Record]:
        for record in self.whole.records():
            if not isinstance(record, Episode) or record.origin.split == self.split:
                yield record

    def expected(self) -> int | None:
        return None


def _split(videos: Path, folder: Path) -> None:
    """Make two dataset folders, so that every step can be done again by hand: `demerit teach DIR/lesson -o ...`."""
    for name, split in PARTS.items():
        whole = open_dataset(f"videos:{videos.resolve()}")
        import_dataset(Dataset(_Part(whole, split), f"{whole.address}#{split}"), folder / name, licence="MIT")


def _measured(folder: Path, watch: Watch) -> tuple[Report, dict[str, Any]]:
    """Score what was not taught, with the model, the network it came from and the controls."""
    benchmark = replace(questions(), labels_of=_by_recording)
    gathered = load_data(benchmark, f"demerit:{folder.resolve() / 'test'}", TOGETHER)
    models = [load_model(str(folder.resolve() / TAUGHT)), load_model(UNTAUGHT)]
    total = len(gathered.episodes)
    report = run_benchmark(
        benchmark,
        models,
        gathered,
        folder / "report",
        TOGETHER,
        lambda what, progress: watch(f"scoring with {what}", progress.seen, total),
    )
    known = tuple(one for one in report.warnings if " not measured: " not in one)
    return replace(report, warnings=(*doubts(report), *known)), gathered.frames()


def _by_recording(episode: Episode) -> EpisodeLabels:
    """All are attempts at one task, in a scene each: intervals rest on the scenes."""
    return replace(
        labels_of(episode), task=episode.origin.group or episode.id, context=episode.origin.tags.get("task", "")
    )
