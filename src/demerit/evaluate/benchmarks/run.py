"""Run a benchmark: load episodes, score models and controls, compute the results; and recompute a report."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from demerit.data.dataset import Dataset, StreamReader
from demerit.data.episode import (
    NOT_A_MODEL,
    Episode,
    Preference,
    count_episodes,
    safe_name,
    select_labels,
)
from demerit.data.files import atomic_file
from demerit.data.formats import open_dataset
from demerit.data.frames import short_hash, spread
from demerit.data.published_sets import PublishedSet
from demerit.data.splits import LabelSelection, describe_leaks, find_leaks, same_split
from demerit.errors import BadInput, DemeritError
from demerit.evaluate.benchmarks.benchmark import Benchmark, count_parts, load_benchmark
from demerit.evaluate.benchmarks.results import BenchmarkResults, compute_results
from demerit.evaluate.benchmarks.scores import (
    ALWAYS_A,
    CONTROLS,
    NAN,
    BenchmarkData,
    MeasureSettings,
    Perturbation,
    Scores,
    apply_categories,
    describe_unknown,
    leave_out_seen,
    list_perturbations,
    under_instruction,
)
from demerit.evaluate.reports.published import find_figures
from demerit.evaluate.reports.report import (
    AS_RECORDED,
    JUDGED_BY_MODELS,
    UNVERIFIED,
    About,
    EpisodeLabels,
    PairAnswer,
    Report,
    ScoredUnder,
)
from demerit.models import load_model
from demerit.models.protocol import Comparer, ModelCard, RewardModel
from demerit.models.reward_store import RewardStore
from demerit.models.score import ScoreJob, ScoreProgress, score

MAX_REASONS = 3
OnProgress = Callable[[str, ScoreProgress], None]
"""called with what is being scored, and the progress"""


@dataclass(frozen=True)
class RunOptions:
    """Everything about a run apart from benchmark, models and data."""

    controls: bool = True
    perturbations: bool = True
    """also score under the benchmark's perturbations"""
    frames: int | None = None
    """score only this many frames of each episode"""
    limit: int | None = None
    """use only the first N episodes"""
    batch: int = 8
    retry: bool = False
    """score again what an earlier run could not score"""
    workers: int | None = None
    """decoding processes; None = one per core"""
    sources: tuple[str, ...] = NOT_A_MODEL
    """label sources to measure by; with labels of models the report says so"""
    unverified: bool = False
    """also measure test episodes whose labels no person has checked, although they must be; the report says so"""
    include_seen: bool = False
    """also measure episodes that a model learned from; the report then says that it is unfair"""
    camera: str | None = None
    settings: MeasureSettings = field(default_factory=MeasureSettings)
    reader: dict[str, Any] = field(default_factory=dict)
    """options of the format's reader"""
    categories: Mapping[str, str] = field(default_factory=dict)
    """category by task name (see `read_categories`), instead of by verb"""


def load_data(
    benchmark: Benchmark, data: str | Path | Sequence[str] | Dataset, options: RunOptions | None = None
) -> BenchmarkData:
    """Read a benchmark's episodes and their labels; no frame is decoded.

    Args:
        benchmark: the benchmark.
        data: `format:path`, a path, several of them, or an open dataset; the error for none names where to get it.
        options: limit, camera, reader options, categories, settings.
    """
    options = options or RunOptions()
    dataset = data if isinstance(data, Dataset) else _open(benchmark, data, options)
    episodes: list[Episode] = []
    all_labels: list[EpisodeLabels] = []
    preferences: list[Preference] = []
    selection = LabelSelection(options.sources, use_test_split=True, use_unchecked=options.unverified)
    for record in dataset.records():
        if isinstance(record, Preference):
            preferences.append(record)
        elif _is_measured(benchmark, options, record) and (options.limit is None or len(episodes) < options.limit):
            if (taken := selection.take(record)) is not None:
                episodes.append(taken)
                all_labels.append(benchmark.labels_of(taken))  # now, while its video's times are in memory
    checks = tuple(selection.describe_checks())
    if not episodes:
        got = " ".join((f"no episode at {dataset.address or dataset.name}.", *checks)).rstrip(".")
        hint = " (--unverified measures them all the same)" if selection.unchecked else ""
        raise BadInput(benchmark.name, benchmark.data, got + hint)
    ids = {episode.id for episode in episodes}
    preferences = preferences if benchmark.pairs is None else benchmark.pairs(episodes)
    pairs = [pair for pair in preferences if pair.a in ids and pair.b in ids]
    counts = selection.labels
    counts.add(pairs, options.sources)
    kept = select_labels(pairs, options.sources)
    problems = tuple(
        f"The dataset has a problem: {row['problem']}, {count_episodes(row['episodes'])} "
        f"({'kept' if row['kept'] else 'skipped'}), e.g. {row['first']}."
        for row in dataset.problems.rows()
    )
    labels, notes = apply_categories(all_labels, options.categories)
    split = options.settings.calibrate_on
    rows = [row for row in labels if not split or not same_split(row.split, split)]
    published = benchmark.find_set(rows)
    notes = (*checks, *notes, *_describe_set(published, rows), *problems)
    return BenchmarkData(dataset.address or dataset.name, tuple(episodes), labels, kept, notes, counts, published)


def run_benchmark(
    benchmark: Benchmark,
    models: Sequence[str | RewardModel],
    data: str | Path | Dataset | BenchmarkData,
    out: str | Path,
    options: RunOptions | None = None,
    on_progress: OnProgress = lambda what, progress: None,
) -> Report:
    """Score the models and the controls, compute the benchmark's metrics, and return the report.

    Args:
        benchmark: the benchmark.
        models: names or models; controls are added after them.
        data: the episodes' address, or episodes that were loaded already.
        out: a folder; rewards are kept in out/rewards, so an interrupted run resumes.
        options: see `RunOptions`.
        on_progress: called after each batch.
    """
    options = options or RunOptions()
    loaded = data if isinstance(data, BenchmarkData) else load_data(benchmark, data, options)
    candidates = [benchmark.load_model(model, loaded.address) if isinstance(model, str) else model for model in models]
    whole, (loaded, seen) = loaded, leave_out_seen(candidates, loaded, options.include_seen)
    scorers, controls = _with_controls(candidates, options)
    rewards = [
        scored
        for model in scorers
        for perturbation in _perturbations(benchmark, loaded, options)
        for scored in _score(model, perturbation, loaded, Path(out), options, on_progress)
    ]
    comparing = scorers if any(metric.asks_comparers for metric in benchmark.metrics) else []
    answers = tuple(answer for model in comparing for answer in _ask_both_orders(model, loaded, options, on_progress))
    cards = [model.card for model in scorers]
    if controls and loaded.preferences:
        cards, controls = [*cards, always_a_card()], (*controls, ALWAYS_A)
    report = Report(
        about=About(benchmark.name, benchmark.claim, loaded.address),
        cards=tuple(cards),
        controls=controls,
        episodes=loaded.labels,
        preferences=loaded.preferences,
        rewards=tuple(rewards),
        choices=answers,
        environment={**_environment(options), **_name_sources(options, loaded), **_name_set(loaded)},
        seen=seen,
    )
    results = compute_results(benchmark, Scores.of(report, options.settings), controls)
    figures = find_figures(loaded.published, report.cards, results.lines)
    leaks = [*describe_unknown(candidates), *describe_leaks(find_leaks(loaded.episodes))]
    # Problems of the data first: they explain much of what follows, such as measures without instructions.
    warnings = (
        *loaded.problems,
        *_describe_unscored(report),
        *_describe_unanswered(answers),
        *leaks,
        *results.warnings,
    )
    if figures and len(loaded.episodes) < len(whole.episodes) and not seen.by_model.keys() <= {*seen.goals}:
        share = f"{len(loaded.episodes)} of {len(whole.episodes)} episodes"
        warnings = (f"No published figure is shown: they rest on all episodes, and these on {share}.", *warnings)
        figures = ()
    return with_results(replace(report, warnings=warnings, published=figures), benchmark, results)


def write_generations(report: Report, out: str | Path, path: Path, frames: int | None = None) -> int:
    """Write the raw answers of a report's chat models as JSON lines (see `Report`), and return their number.

    Args:
        report: what `run_benchmark` returned; its options `out` and `frames` are given again.
        out: the folder with the rewards, where the answers are kept.
        path: the file to write, atomically; without an answer there is none.
        frames: as in `RunOptions`.
    """
    cards = {card.name: card for card in report.cards}
    ids = {episode.id for episode in report.episodes}
    lines = (
        json.dumps({"model": model, "perturbation": perturbation, "episode": episode, **answer}, ensure_ascii=False)
        for model, perturbation in dict.fromkeys(
            (reward.reward.model, reward.perturbation) for reward in report.rewards
        )
        for episode, answer in RewardStore(rewards_folder(Path(out), cards[model], perturbation, frames)).generations()
        if episode in ids
    )
    first = next(lines, None)
    if first is None:
        path.unlink(missing_ok=True)
        return 0
    with atomic_file(path) as partial, partial.open("w", encoding="utf-8") as file:
        return sum(file.write(f"{line}\n") > 0 for line in chain([first], lines))


def recompute(report: Report, benchmark: Benchmark | None = None) -> Report:
    """Compute lines, comparisons and verdicts again from the report's own rewards, without a model.

    Args:
        report: a report that was read from a file.
        benchmark: its benchmark; None = the one named in the report.
    """
    benchmark = benchmark or load_benchmark(report.about.name)
    scores = Scores.of(report, MeasureSettings.from_dict(report.environment))
    return with_results(report, benchmark, compute_results(benchmark, scores, report.controls))


def with_results(report: Report, benchmark: Benchmark, results: BenchmarkResults) -> Report:
    """Put lines, comparisons and verdicts into a report; its warnings stay.

    Nothing is concluded about a model from episodes that it learned from.
    """
    unfair = report.seen.by_model if report.seen.unfair else {}
    lower = tuple(metric.name for metric in benchmark.metrics if metric.lower_is_better)
    about = replace(report.about, headline=results.headline, lower_is_better=lower)
    return replace(
        report,
        about=about,
        lines=results.lines,
        comparisons=results.comparisons,
        verdicts={name: words for name, words in results.verdicts.items() if name not in unfair},
        decisions=tuple(verdict for verdict in results.decisions if verdict.model not in unfair),
    )


def always_a_card() -> ModelCard:
    """Return the card of the comparer that always names the first."""
    return ModelCard(
        name=ALWAYS_A,
        revision="1",
        licence="Apache-2.0",
        quantity="preference for the first of two",
        low=0.0,
        high=1.0,
        causal=True,
        comparable=True,
        sees_pixels=False,
        reads_instruction=False,
        about="Always says A. Sees nothing; right where people said A.",
    )


def rewards_folder(out: Path, card: ModelCard, perturbation: str, frames: int | None = None) -> Path:
    """Return the folder with one model's rewards under one perturbation."""
    name = safe_name(card.name) + ("" if frames is None else f"+{frames}frames")
    part = safe_name(perturbation) if ":" not in perturbation else f"told-{short_hash(perturbation.encode())}"
    return out / "rewards" / name / part


def _is_measured(benchmark: Benchmark, options: RunOptions, episode: Episode) -> bool:
    split = episode.origin.split
    measured = (*benchmark.splits, options.settings.calibrate_on)
    return not benchmark.splits or not split or any(same_split(split, name) for name in measured)


def _open(benchmark: Benchmark, data: str | Path | Sequence[str], options: RunOptions) -> Dataset:
    sources = [str(data)] if isinstance(data, (str, Path)) else data
    addresses = [benchmark.address(source) for source in sources or [""]]
    settings = {**benchmark.options, **options.reader}
    if options.settings.calibrate_on:
        settings.pop("split", None)  # the calibration split is needed as well
    if benchmark.reads and not all(address.startswith(f"{benchmark.reads}:") for address in addresses):
        settings = dict(options.reader)  # the benchmark's options are for another format
    return open_dataset(addresses, camera=options.camera, **settings)


def _with_controls(models: list[RewardModel], options: RunOptions) -> tuple[list[RewardModel], tuple[str, ...]]:
    names = [model.card.name for model in models]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise BadInput("models", "each model once", f"{', '.join(twice)} twice")
    controls = [load_model(name) for name in CONTROLS if options.controls and name not in names]
    return [*models, *controls], tuple(model.card.name for model in controls)


def _perturbations(benchmark: Benchmark, data: BenchmarkData, options: RunOptions) -> list[Perturbation]:
    """The calibration split is scored as recorded only."""
    kinds = benchmark.perturbations if options.perturbations else ()
    split = options.settings.calibrate_on
    recorded, *others = list_perturbations(
        kinds, [row for row in data.labels if not split or not same_split(row.split, split)]
    )
    return [replace(recorded, episodes=frozenset(row.id for row in data.labels)), *others]


def list_scored(benchmark: Benchmark, data: BenchmarkData, options: RunOptions) -> list[Episode]:
    """List everything that a model is asked about: the episodes, and again with frames or instruction changed."""
    return [
        perturbation.apply(episode)
        for perturbation in _perturbations(benchmark, data, options)
        for episode in data.episodes
        if episode.id in perturbation.episodes
    ]


def _score(
    model: RewardModel,
    perturbation: Perturbation,
    data: BenchmarkData,
    out: Path,
    options: RunOptions,
    on_progress: OnProgress,
) -> Iterator[ScoredUnder]:
    card, name = model.card, perturbation.name
    if name.startswith(under_instruction("")) and not card.reads_instruction:
        return  # its rewards would be the same
    folder = rewards_folder(out, card, name, options.frames)
    chosen = [episode for episode in data.episodes if episode.id in perturbation.episodes]
    reader = StreamReader(data.address, lambda: map(perturbation.apply, chosen), lambda: len(chosen))
    worker_option: dict[str, Any] = {} if options.workers is None else {"workers": options.workers}
    dataset = Dataset(reader, data.address)
    job = ScoreJob(model, dataset, folder, options.frames, options.batch, retry=options.retry, **worker_option)
    what = card.name if name == AS_RECORDED else f"{card.name} ({name})"
    score(job, lambda progress: on_progress(what, progress))
    yield from (ScoredUnder(reward, name) for reward in RewardStore(folder) if reward.episode in perturbation.episodes)


# Models that compare two episodes: asked in both orders, because some prefer what they see first.


def _ask_both_orders(
    model: RewardModel, data: BenchmarkData, options: RunOptions, on_progress: OnProgress
) -> Iterator[PairAnswer]:
    """Ask a comparer about every pair that people decided, as (a, b) and as (b, a); others give no answers."""
    if not isinstance(model, Comparer):
        return
    by_id = {episode.id: episode for episode in data.episodes}
    pairs = list(dict.fromkeys((pair.a, pair.b) for pair in data.preferences if pair.verdict != "tie"))
    progress = ScoreProgress(len(pairs))
    for start in range(0, len(pairs), options.batch):
        batch = pairs[start : start + options.batch]
        shown = [(_hide_labels(by_id[a], options.frames), _hide_labels(by_id[b], options.frames)) for a, b in batch]
        forward, swapped = _prefer(model, shown), _prefer(model, [(b, a) for a, b in shown])
        for (a, b), (p_first, why), (p_swapped, why_not) in zip(batch, forward, swapped, strict=True):
            yield PairAnswer(model.card.name, a, b, p_first, p_swapped, why or why_not)
        progress.scored += len(batch)
        on_progress(f"{model.card.name} (pairs)", progress)


def _hide_labels(episode: Episode, frames: int | None) -> Episode:
    """Remove the labels, and the frames that are not to be shown."""
    if frames is None:
        return replace(episode, outcomes=())
    views = {name: view.select(spread(len(view), frames)) for name, view in episode.views.items()}
    return replace(episode, views=views, outcomes=(), signals={})


def _prefer(model: Comparer, pairs: list[tuple[Episode, Episode]]) -> list[tuple[float, str]]:
    """Return a probability, or NaN and the reason, per pair; one failing pair does not fail the batch."""
    try:
        answers = list(model.prefer(pairs))
        if len(answers) != len(pairs):
            raise BadInput("answers of a comparer", f"{len(pairs)}", f"{len(answers)}")
        return [_check_probability(float(answer)) for answer in answers]
    except Exception as error:  # a third party's model may raise anything
        if len(pairs) == 1:
            return [(NAN, str(error) if isinstance(error, DemeritError) else f"{type(error).__name__}: {error}")]
        return [answer for pair in pairs for answer in _prefer(model, [pair])]


def _check_probability(answer: float) -> tuple[float, str]:
    if np.isnan(answer):
        return NAN, "it could not tell"
    return (answer, "") if 0 <= answer <= 1 else (NAN, f"{answer:g} is not a probability")


# Notes of the report


def _describe_unscored(report: Report) -> Iterator[str]:
    """Count the episodes that each model left unscored, with the reasons."""
    for card in report.cards:
        mine = [scored for scored in report.rewards if scored.reward.model == card.name]
        for perturbation in dict.fromkeys(scored.perturbation for scored in mine):
            rewards = [scored.reward for scored in mine if scored.perturbation == perturbation]
            missing = [reward for reward in rewards if not reward.scored or np.isnan(reward.value).any()]
            if missing:
                share = len(missing) / len(rewards)
                yield (
                    f"{card.name} left {len(missing)} of {len(rewards)} episodes ({share:.0%}, {perturbation}) "
                    f"unscored or partly so: {_reasons(reward.why_missing for reward in missing)}."
                )


def _describe_unanswered(answers: Sequence[PairAnswer]) -> Iterator[str]:
    """Count the pairs that each comparer left open, with the reasons."""
    for model in dict.fromkeys(answer.model for answer in answers):
        mine = [answer for answer in answers if answer.model == model]
        missing = [answer.why_missing for answer in mine if answer.why_missing]
        if missing:
            yield f"{model} left {len(missing)} of {len(mine)} pairs undecided in an order: {_reasons(missing)}."


def _reasons(reasons: Iterator[str] | list[str]) -> str:
    return "; ".join(f"{reason} ({count})" for reason, count in Counter(reasons).most_common(MAX_REASONS))


def _describe_set(published: PublishedSet | None, rows: Sequence[EpisodeLabels]) -> Iterator[str]:
    """Note that categories were assigned otherwise than in the paper, which does not print how."""
    if published is not None and published.by == "category":
        different = "; ".join(published.compare_parts(count_parts(published, rows)))
        if different:
            yield f"Categories are assigned otherwise than in {published.source}: {different}."


def _name_set(data: BenchmarkData) -> dict[str, str]:
    return {} if data.published is None else {"published set": str(data.published)}


def _name_sources(options: RunOptions, data: BenchmarkData) -> dict[str, str]:
    """Name the label sources, how much was labelled by models, and how much no person has checked, where it matters."""
    due = sum(episode.check == "due" and bool(episode.labels) for episode in data.episodes)
    unverified = {UNVERIFIED: str(due)} if due else {}
    if options.sources == NOT_A_MODEL:
        return unverified
    return {"label sources": ", ".join(options.sources), JUDGED_BY_MODELS: str(data.judged_by_models), **unverified}


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
        **options.settings.as_dict(),
    }
