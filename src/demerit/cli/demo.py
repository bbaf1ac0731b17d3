"""The demo command: teach on one part of the shipped sample, score the rest and the controls, write a report.

DIR/videos/    the sample: videos and labels.jsonl
DIR/lesson/    the episodes to teach with, as a dataset folder
DIR/test/      the others
DIR/taught/    the taught model with its own report
DIR/report/    report.html, report.json, rewards/
DIR/demo.json  what all this was made from; written last
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from demerit.cli.bars import out, print_table, stage_bars
from demerit.cli.demo_page import TAUGHT, UNTAUGHT, describe_demo, write_demo_page
from demerit.data.episode import Episode
from demerit.data.files import read_json, write_atomic
from demerit.data.formats import open_dataset
from demerit.data.frames import short_hash
from demerit.data.importing import import_dataset
from demerit.errors import BadInput, StoreError
from demerit.evaluate.benchmarks.run import RunOptions, load_data, run_benchmark
from demerit.evaluate.benchmarks.scores import MeasureSettings, labels_of
from demerit.evaluate.metrics import Measure, Resampling
from demerit.evaluate.reports.report import EpisodeLabels, Report
from demerit.models import load_model
from demerit.training.teach import TeachConfig, teach
from demerit.training.teach.report import taught_benchmark
from demerit.training.teach.trust import TrustAnswer

DONE = "demo.json"
PAGE, TAUGHT_PAGE = "report/report.html", f"{TAUGHT}/report.html"
FORMAT = 1
PARTS = {"lesson": "train", "test": "test"}
"""folders, and the split of the sample that each holds"""
OPTIONS = RunOptions(settings=MeasureSettings(Resampling(resamples=2000)))
MEASURES = {
    "auroc": "pairs right ↑",
    "over_reward_above_half": "failures above 0.5 ↓",
    "over_reward_rate": "failures above median success ↓",
    "progress_error": "progress off ↓",
}
BROWSER_SECONDS = 6.0
"""longest wait for a browser to start"""
OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class DemoResult:
    """What the demo made."""

    folder: Path
    report: Report
    taught_report: Report
    """of the taught episodes, each held out once"""
    answer: TrustAnswer
    """of the taught model's own report: is it good enough?"""
    seconds: dict[str, float]
    """duration of each step; empty when everything existed already"""


def demo(
    folder: Annotated[Path, typer.Argument(help="The folder to write.")] = Path("demo"),
    open_page: Annotated[bool, typer.Option("--open", help="Open the report in a browser, if there is one.")] = False,
) -> None:
    """Teach a model on part of the sample and score the rest.

    Takes under a minute and downloads nothing.

    [bold]Examples[/bold]

      demerit demo
      demerit demo my_demo --open
    """
    with stage_bars() as on_progress:
        result = run_demo(folder, on_progress)
    _print_result(result)
    if open_page and can_open():
        open_in_browser(result.folder / PAGE)


def run_demo(folder: str | Path, on_progress: OnProgress = lambda stage, done, total: None) -> DemoResult:
    """Run the demo in a folder; what is done already is not done again."""
    folder = Path(folder)
    videos = copy_sample(folder / "videos")
    facts = _provenance(videos)
    if _is_done(folder, facts):
        return _read_result(folder, {})
    seconds: dict[str, float] = {}
    with _time_step(seconds, "teaching"):
        _split_sample(videos, folder)
        # an absolute address, so that the model is recognised from any working directory
        address, config = f"demerit:{folder.resolve() / 'lesson'}", TeachConfig(reader=False)  # in seconds, everywhere
        taught = teach(address, folder / TAUGHT, config=config, on_progress=on_progress)
    if taught.stopped:
        raise KeyboardInterrupt(taught.stopped)
    with _time_step(seconds, "scoring"):
        report, frames = _measure(folder, on_progress)
        report.write(folder / "report" / "report.json")
    with _time_step(seconds, "writing the report"):
        on_progress("writing the report", 0, 1)
        summary = describe_demo(report, taught.results.report, taught.results.answer)
        write_demo_page(report, taught.results.report, summary, folder / PAGE, frames)
    write_atomic(folder / DONE, (json.dumps(facts, indent=1) + "\n").encode())
    return _read_result(folder, seconds)


def copy_sample(folder: Path) -> Path:
    """Copy the shipped sample: videos, and labels measured by a simulator."""
    source = files("demerit") / "assets" / "sample"
    labels = folder / "labels.jsonl"
    if labels.exists() and labels.read_bytes() != (source / labels.name).read_bytes():
        raise StoreError(folder, "it holds videos of another demo; remove it or choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in source.iterdir():
            target = folder / file.name
            if not target.exists():
                write_atomic(target, file.read_bytes())
    except OSError as error:
        raise StoreError(folder, f"the sample cannot be written there ({error.strerror})") from error
    return folder


def _provenance(videos: Path) -> dict[str, Any]:
    network = (files("demerit") / "assets" / "compact" / "network.json").read_bytes()
    sample = b"".join(path.read_bytes() for path in sorted(videos.iterdir()) if path.is_file())
    hashes = {"network": short_hash(network), "sample": short_hash(sample)}
    return {"format": FORMAT, "demerit": version("demerit"), **hashes}


def _is_done(folder: Path, facts: dict[str, Any]) -> bool:
    try:
        before = read_json(folder / DONE)
    except BadInput:
        return False
    pages = [folder / name for name in (PAGE, TAUGHT_PAGE)]
    return bool(before == facts) and all(
        page.with_suffix(end).is_file() for page in pages for end in (".html", ".json")
    )


def _read_result(folder: Path, seconds: dict[str, float]) -> DemoResult:
    report, taught = (Report.read(folder / name / "report.json") for name in ("report", TAUGHT))
    answer = TrustAnswer.from_dict(read_json(folder / TAUGHT / "report.json")["teaching"]["answer"])
    return DemoResult(folder, report, taught, answer, seconds)


@contextmanager
def _time_step(seconds: dict[str, float], step: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    seconds[step] = time.monotonic() - started


def _split_sample(videos: Path, folder: Path) -> None:
    """Import both splits as dataset folders, so that every step can be repeated by hand."""
    whole = open_dataset(f"videos:{videos.resolve()}")
    for name, split in PARTS.items():
        part = whole.where(partial(_is_in_split, split), f"{whole.address}#{split}")
        import_dataset(part, folder / name, licence="MIT")


def _is_in_split(split: str, episode: Episode) -> bool:
    return episode.origin.split == split


def _measure(folder: Path, on_progress: OnProgress) -> tuple[Report, dict[str, Any]]:
    """Score the test episodes with the taught model, the untaught network and the controls."""
    claim = "How good the taught model is on episodes of its task that it never saw. It says nothing about other tasks."
    benchmark = replace(taught_benchmark(), claim=claim, labels_of=_labels_by_scene)
    data = load_data(benchmark, f"demerit:{folder.resolve() / 'test'}", OPTIONS)
    models = [load_model(str(folder.resolve() / TAUGHT)), load_model(UNTAUGHT)]
    total = len(data.episodes)
    report = run_benchmark(
        benchmark,
        models,
        data,
        folder / "report",
        OPTIONS,
        lambda model, progress: on_progress(f"scoring with {model}", progress.seen, total),
    )
    others = tuple(warning for warning in report.warnings if " not measured: " not in warning)
    caveats = (
        f"{len(report.episodes)} episodes are few: intervals are wide, and where every pair is right an interval has "
        "no width, which is not certainty. Simulated, one task, one camera: a first impression, not a proof.",
        "Of five tasks that were tried, this one was chosen because the untaught network cannot judge it and teaching "
        "helps most: expect less elsewhere.",
    )
    return replace(report, warnings=(*caveats, *others)), data.frames()


def _labels_by_scene(episode: Episode) -> EpisodeLabels:
    """All episodes are one task; clusters are the scenes."""
    task = episode.origin.tags.get("task", "")
    return replace(labels_of(episode), task=episode.origin.group or episode.id, context=task)


# Output


def _print_result(result: DemoResult) -> None:
    summary = describe_demo(result.report, result.taught_report, result.answer)
    taught, scored = len(result.taught_report.episodes), len(result.report.episodes)
    out.print(f"A simulated arm moves a block from bin to bin: {taught} episodes to teach with, {scored} to judge.")
    if result.seconds:
        out.print(f"[dim]{', '.join(f'{step} {seconds:.1f} s' for step, seconds in result.seconds.items())}[/dim]")
    else:
        out.print("[dim]Up to date: everything exists already.[/dim]")
    out.print(f"\n[bold]{escape(summary.title)}[/bold]")
    out.print(escape(summary.text))
    print_table(_results_table(result.report, summary.trusted))
    out.print(f"[yellow]note[/yellow]  {escape(result.report.warnings[0])}\n")
    out.print("[bold]See the reward rise and fall under the video[/bold]")
    out.print(f"  {escape(str((result.folder / PAGE).resolve()))}", style="cyan")
    out.print("How it was taught, and what to label next")
    out.print(f"  {escape(str((result.folder / TAUGHT_PAGE).resolve()))}", style="cyan")
    out.print("\n[bold]Now your robot[/bold]")
    program = escape(name_program())
    out.print(f"  {program} teach MY_VIDEOS -o my-model              [dim]a dozen labelled episodes are a start[/dim]")
    out.print(f"  {program} score NEW_VIDEOS --model ./my-model")
    out.print(f"  {program} bench own --data NEW_VIDEOS --model ./my-model --model default")


def name_program() -> str:
    """Return how to call demerit from here: as this run was, if the shell does not find that one by its name."""
    called, installed = Path(sys.argv[0]), shutil.which("demerit")
    if called.name != "demerit" or (installed and called.exists() and called.samefile(installed)):
        return "demerit"
    return shlex.quote(sys.argv[0])


def _results_table(report: Report, trusted: str) -> Table:
    measures = {name: title for name, title in MEASURES.items() if name in report.about.headline}
    table = Table(caption="with 95% intervals; below the line: controls, which do not know the task")
    for title in ("", *measures.values()):
        table.add_column(title)
    for card in report.cards:
        is_control = card.name in report.controls
        if is_control and card.name == report.controls[0]:
            table.add_section()
        name = "untaught" if card.name == UNTAUGHT else card.name
        cells = [_cell(report.line(card.name, measure), measure != "progress_error") for measure in measures]
        style = "bold green" if card.name == trusted else "dim" if is_control else ""
        table.add_row(f"{name}{' ✓ trust' if card.name == trusted else ''}", *cells, style=style)
    return table


def _cell(measure: Measure | None, is_share: bool) -> str:
    if measure is None or not measure.known:
        return "unknown"
    if is_share:
        return f"{measure.value:.0%} ({100 * measure.low:.0f} to {100 * measure.high:.0f})"
    return f"{measure.value:.2f} ({measure.low:.2f} to {measure.high:.2f})"


def can_open() -> bool:
    """Whether a browser can show a page here; not over ssh."""
    if os.environ.get("SSH_CONNECTION"):
        return False
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def open_in_browser(page: Path) -> None:
    """Open a page without waiting for a browser that runs in the terminal."""
    command = [sys.executable, "-m", "webbrowser", page.resolve().as_uri()]
    quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(command, **quiet, start_new_session=True, timeout=BROWSER_SECONDS, check=False)
