"""Running a benchmark: score models and controls, ask the questions, write the report; and recompute one."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from demerit.data.dataset import Dataset, ListReader
from demerit.data.episode import Episode, safe_name
from demerit.data.formats import open_dataset
from demerit.data.frames import Frames, short_hash
from demerit.data.labels import Preference
from demerit.data.splits import describe_leaks, find_leaks
from demerit.errors import BadInput
from demerit.evaluate.benchmarks.benchmark import Benchmark, load_benchmark
from demerit.evaluate.benchmarks.category_table import from_table
from demerit.evaluate.benchmarks.comparers import ask_both_orders, unanswered
from demerit.evaluate.benchmarks.controls import ALWAYS_A, CONTROLS, always_a_card
from demerit.evaluate.benchmarks.evidence import Evidence, Settings
from demerit.evaluate.benchmarks.findings import Findings, find
from demerit.evaluate.benchmarks.leaks import seen_before
from demerit.evaluate.benchmarks.showings import Showing, showings
from demerit.evaluate.benchmarks.together import Halt, Watch, together
from demerit.evaluate.reports.report import AS_RECORDED, About, Judged, Report, Shown
from demerit.models import load_model
from demerit.models.protocol import ModelCard, RewardModel
from demerit.models.reward_store import RewardStore
from demerit.models.score import ScoreJob, score

MOST_REASONS = 3


@dataclass(frozen=True)
class RunOptions:
    """Everything about a run that is not the benchmark, the models or the data."""

    controls: bool = True
    showings: bool = True
    """also reversed, shuffled and told, where the benchmark asks for them"""
    frames: int | None = None
    """score only so many frames of each episode"""
    limit: int | None = None
    """only the first so many episodes"""
    batch: int = 8
    retry: bool = False
    """try again what an earlier run could not score"""
    at_once: int = 1
    """models that are scored at the same time, in threads: for models that wait for a server"""
    stop: Callable[[], None] = lambda: None
    """called on an error or Ctrl-C when several models are scored at once: keeps them from asking on"""
    workers: int | None = None
    """decoding processes; None = one a core"""
    camera: str | None = None
    settings: Settings = field(default_factory=Settings)
    reader: dict[str, Any] = field(default_factory=dict)
    """options of the format's reader"""
    categories: Mapping[str, str] = field(default_factory=dict)
    """kinds of task by instruction (see `demerit.evaluate.benchmarks.category_table`), instead of the rules"""


@dataclass(frozen=True, eq=False)
class Gathered:
    """The episodes of a benchmark, judged, with the videos still behind them."""

    address: str
    episodes: tuple[Episode, ...]
    judged: tuple[Judged, ...]
    preferences: tuple[Preference, ...]
    problems: tuple[str, ...] = ()

    def frames(self) -> dict[str, Frames]:
        """The main camera of each episode, for whoever shows the videos."""
        return {one.id: one.main for one in self.episodes}


def gather(benchmark: Benchmark, data: str | Path | Dataset, options: RunOptions | None = None) -> Gathered:
    """Read and judge a benchmark's episodes; no frame is decoded.

    Args:
        benchmark: what to read them for.
        data: `format:path`, a path, or an open dataset; empty says where to get the data.
        options: how much of it.
    """
    options = options or RunOptions()
    dataset = data if isinstance(data, Dataset) else _opened(benchmark, str(data), options)
    episodes: list[Episode] = []
    preferences: list[Preference] = []
    for record in dataset.records():
        if isinstance(record, Preference):
            preferences.append(record)
        elif _is_measured(benchmark, options, record) and (options.limit is None or len(episodes) < options.limit):
            episodes.append(record)
    if not episodes:
        raise BadInput(benchmark.name, f"{benchmark.data}", f"no episode at {dataset.address or dataset.name}")
    ids = {one.id for one in episodes}
    preferences = preferences if benchmark.pairs is None else benchmark.pairs(episodes)
    kept = tuple(one for one in preferences if one.a in ids and one.b in ids and one.source != "model")
    judged = tuple(benchmark.judge(one) for one in episodes)
    problems = tuple(
        f"The dataset has a problem: {row['problem']}, {row['episodes']} episodes "
        f"({'kept' if row['kept'] else 'left out'}), e.g. {row['first']}."
        for row in dataset.problems.rows()
    )
    judged, said = from_table(judged, options.categories)
    return Gathered(dataset.address or dataset.name, tuple(episodes), judged, kept, (*said, *problems))


def run_benchmark(
    benchmark: Benchmark,
    models: Sequence[str | RewardModel],
    data: str | Path | Dataset | Gathered,
    out: str | Path,
    options: RunOptions | None = None,
    on_progress: Watch = lambda what, progress: None,
) -> Report:
    """Score the models and the controls, ask the benchmark's questions, and return the report.

    Args:
        benchmark: what is asked.
        models: names or models; controls are added, and shown after them.
        data: where the episodes lie, or episodes that were gathered already.
        out: a folder; rewards are kept in out/rewards, so that an interrupted run goes on where it was.
        options: how much, how fast, how sure.
        on_progress: told how far it is.
    """
    options = options or RunOptions()
    gathered = data if isinstance(data, Gathered) else gather(benchmark, data, options)
    asked = [load_model(one) if isinstance(one, str) else one for one in models]
    asked, controls = _with_controls(asked, options)
    ways = _showings(benchmark, gathered, options)
    shown = _scored(asked, ways, gathered, Path(out), options, on_progress)
    compared = ((gathered.episodes, gathered.preferences), options.batch, options.frames, on_progress)
    comparing = asked if any(question.asks_comparers for question in benchmark.questions) else []
    choices = tuple(choice for model in comparing for choice in ask_both_orders(model, *compared))
    cards = [model.card for model in asked]
    if controls and gathered.preferences:
        cards, controls = [*cards, always_a_card()], (*controls, ALWAYS_A)
    report = Report(
        about=About(benchmark.name, benchmark.claim, gathered.address),
        cards=tuple(cards),
        controls=controls,
        episodes=gathered.judged,
        preferences=gathered.preferences,
        rewards=tuple(shown),
        choices=choices,
        environment=_environment(options),
    )
    found = find(benchmark, Evidence.of(report, options.settings), controls)
    leaks = [*seen_before(asked, gathered.episodes), *describe_leaks(find_leaks(gathered.episodes))]
    warnings = (*_unscored(report), *unanswered(choices), *leaks, *found.warnings, *gathered.problems)
    return _with_findings(replace(report, warnings=warnings), benchmark, found)


def recompute(report: Report, benchmark: Benchmark | None = None) -> Report:
    """Compute lines, comparisons and verdicts again from the report's own rewards, without a model.

    Args:
        report: one that was read back.
        benchmark: its benchmark; None looks it up by the name in the report.
    """
    benchmark = benchmark or load_benchmark(report.about.name)
    evidence = Evidence.of(report, Settings.from_facts(report.environment))
    return _with_findings(report, benchmark, find(benchmark, evidence, report.controls))


def _with_findings(report: Report, benchmark: Benchmark, found: Findings) -> Report:
    lower = tuple(question.name for question in benchmark.questions if question.lower_is_better)
    about = replace(report.about, headline=found.headline, lower_is_better=lower)
    return replace(report, about=about, lines=found.lines, comparisons=found.comparisons, verdicts=dict(found.verdicts))


def _is_measured(benchmark: Benchmark, options: RunOptions, episode: Episode) -> bool:
    split = episode.origin.split
    return not benchmark.splits or not split or split in (*benchmark.splits, options.settings.calibrate_on)


def _opened(benchmark: Benchmark, data: str, options: RunOptions) -> Dataset:
    address = benchmark.address(data)
    chosen = {**benchmark.options, **options.reader}
    if options.settings.calibrate_on:
        chosen.pop("split", None)  # the calibration split has to be read as well
    if benchmark.reads and not address.startswith(f"{benchmark.reads}:"):
        chosen = dict(options.reader)  # another format was named, and the options are not its
    return open_dataset(address, camera=options.camera, **chosen)


def _with_controls(models: list[RewardModel], options: RunOptions) -> tuple[list[RewardModel], tuple[str, ...]]:
    names = [model.card.name for model in models]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise BadInput("models", "each model once", f"{', '.join(twice)} twice")
    added = [load_model(name) for name in CONTROLS if options.controls and name not in names]
    return [*models, *added], tuple(model.card.name for model in added)


def _showings(benchmark: Benchmark, gathered: Gathered, options: RunOptions) -> list[Showing]:
    """The ways to show; what maps are fitted on is shown as recorded only."""
    kinds = benchmark.showings if options.showings else ()
    split = options.settings.calibrate_on
    everything, *others = showings(kinds, [one for one in gathered.judged if not split or one.split != split])
    return [replace(everything, episodes=frozenset(one.id for one in gathered.judged)), *others]


def _scored(
    models: Sequence[RewardModel],
    ways: Sequence[Showing],
    gathered: Gathered,
    out: Path,
    options: RunOptions,
    watch: Watch,
) -> list[Shown]:
    halt = Halt(options.stop, watch)
    jobs = [
        lambda model=model, way=way: list(_rewards(model, way, gathered, out, options, halt.watch))
        for model in models
        for way in ways
    ]
    return [one for found in together(jobs, options.at_once, halt) for one in found]


def _rewards(
    model: RewardModel, way: Showing, gathered: Gathered, out: Path, options: RunOptions, watch: Watch
) -> Iterator[Shown]:
    card = model.card
    if way.name.startswith("told: ") and not card.reads_instruction:
        return  # it answers as it did; the evidence knows
    folder = rewards_folder(out, card, way.name, options.frames)
    reader = ListReader(gathered.address, [way.show(one) for one in gathered.episodes if one.id in way.episodes])
    given: dict[str, Any] = {} if options.workers is None else {"workers": options.workers}
    job = ScoreJob(
        model, Dataset(reader, gathered.address), folder, options.frames, options.batch, retry=options.retry, **given
    )
    what = card.name if way.name == AS_RECORDED else f"{card.name} ({way.name})"
    score(job, lambda progress: watch(what, progress))
    yield from (Shown(reward, way.name) for reward in RewardStore(folder) if reward.episode in way.episodes)


def rewards_folder(out: Path, card: ModelCard, showing: str, frames: int | None = None) -> Path:
    """Where the rewards of one model for one showing are kept."""
    name = safe_name(card.name) + ("" if frames is None else f"+{frames}frames")
    way = safe_name(showing) if ":" not in showing else f"told-{short_hash(showing.encode())}"
    return out / "rewards" / name / way


def _unscored(report: Report) -> Iterator[str]:
    """Say how much each model left unscored, and why."""
    for card in report.cards:
        mine = [one for one in report.rewards if one.reward.model == card.name]
        for showing in dict.fromkeys(one.showing for one in mine):
            shown = [one.reward for one in mine if one.showing == showing]
            missing = [one for one in shown if not one.scored or np.isnan(one.value).any()]
            if missing:
                reasons = Counter(one.why_missing for one in missing).most_common(MOST_REASONS)
                said = "; ".join(f"{reason} ({count})" for reason, count in reasons)
                share = len(missing) / len(shown)
                yield (
                    f"{card.name} left {len(missing)} of {len(shown)} episodes ({share:.0%}, {showing}) "
                    f"unscored or partly so: {said}."
                )


def _environment(options: RunOptions) -> dict[str, str]:
    return {
        "demerit": version("demerit"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "numpy": np.__version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "frames": "all" if options.frames is None else str(options.frames),
        "limit": "none" if options.limit is None else str(options.limit),
        "categories": "by a table" if options.categories else "by rules",
        **options.settings.as_facts(),
    }
