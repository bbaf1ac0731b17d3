"""TeachResults: held-out figures and controls, what they mean, what to label next; as JSON and as an HTML page."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from demerit.data.arrays import Floats
from demerit.data.episode import task_name
from demerit.data.files import plain, write_atomic
from demerit.data.frames import Frames
from demerit.data.reward import Reward
from demerit.decide.guarantee import describe_cut
from demerit.errors import BadInput, DemeritError
from demerit.evaluate.benchmarks import Benchmark, MeasureSettings, MetricSpec, Scores, labels_of
from demerit.evaluate.benchmarks.metric_specs import CALIBRATION, DETECTION, GRADES, JUDGEMENT, MOMENT, RANKED, TRUTH
from demerit.evaluate.benchmarks.results import compute_results
from demerit.evaluate.benchmarks.run import with_results
from demerit.evaluate.metrics import Measure, Resampling, Tally
from demerit.evaluate.metrics.ranking import preference_ordering
from demerit.evaluate.reports.headline import Lead, headline, number
from demerit.evaluate.reports.page import player_parts, report_facts
from demerit.evaluate.reports.player import LISTED, make_film, pick_examples
from demerit.evaluate.reports.report import About, EpisodeLabels, Report, ScoredUnder
from demerit.models.baselines import Change, Clock, Constant, Length, Motion, Noise
from demerit.models.protocol import SCORE, RewardModel
from demerit.models.taught.features import Features, Reader
from demerit.models.taught.head import TaughtHead
from demerit.models.taught.model import TaughtModel
from demerit.negatives.negative import VARIANTS
from demerit.training.teach.data import TeachData, teaches_progress
from demerit.training.teach.features import EmbeddedEpisode
from demerit.training.teach.fit import READER
from demerit.training.teach.training_set import TrainingSet, distances, doubt_labels
from demerit.training.teach.trust import TrustAnswer, decide_trust, gather_evidence
from demerit.training.teach.validate import (
    CUES,
    NOT_HELD_OUT,
    CameraFigure,
    CrossValidation,
    CurvePoint,
    SuccessCalibration,
    measure_cameras,
    score_cues,
)
from demerit.web.pages import render

UNTAUGHT = "untaught"
RESAMPLES = 2000
FEW_GROUPS = 10
FORMAT = 1
TEMPLATE = "teaching.html.j2"
WIDTH, HEIGHT, PAD = 420, 150, 28
"""of the learning curve's drawing"""
FILM_FRAMES, FILM_HEIGHT = 4, 112
"""of the pictures of an episode to label next"""
MOST_SUGGESTIONS = 20
SUGGESTION_WEIGHTS = {"torn": 0.4, "near": 0.3, "novel": 0.3}
NEAR = 0.2
"""distance from the threshold at which a probability is still near it"""
LITTLE = 0.15
"""an episode with a lower score would teach little and is not suggested"""


@dataclass(frozen=True, eq=False)
class TeachResults:
    """Everything in the report of a taught model."""

    report: Report
    """figures, rewards and episodes, as in any benchmark report"""
    answer: TrustAnswer
    """is it good enough?"""
    text: str
    advice: tuple[str, ...]
    """what to do next, most useful first"""
    notes: tuple[str, ...]
    """caveats"""
    calibration: SuccessCalibration
    curve: tuple[CurvePoint, ...]
    suggestions: tuple[LabelSuggestion, ...]
    no_suggestion: str
    """why nothing is suggested; empty when something is"""
    doubtful: Mapping[str, str]
    """episodes whose label may be wrong, and why"""
    cut: str = ""
    """which number decides success, and what the value means"""
    cameras: tuple[CameraFigure, ...] = ()
    """each camera alone, then all together; empty with one camera"""
    reader: Mapping[str, float] = field(default_factory=dict)
    """how much the reader counts, and how often each head confuses held-out episodes; empty when there is no reader"""

    @property
    def which_head(self) -> str:
        """How much the reader counts against the closed form, and why; empty when no reader was trained."""
        if not self.reader:
            return ""
        weight, closed, read = (self.reader[name] for name in ("weight", "closed form", "reader"))
        return (
            f"Confusion of held-out episodes: closed form {number(closed)}, reader {number(read)}. "
            f"The reader counts {weight:.0%}, the closed form {1 - weight:.0%}."
        )

    @property
    def which_camera(self) -> str:
        """The figures of the cameras in a sentence; empty when there are none."""
        pairs = [(figure, f"AUROC {number(figure.auroc)}") for figure in self.cameras if not math.isnan(figure.auroc)]
        parts = [f"{figure.cameras[0] if len(figure.cameras) == 1 else 'together'} {text}" for figure, text in pairs]
        return f"Cameras, each shown alone to the held-out heads: {', '.join(parts)}." if parts else ""

    @property
    def title(self) -> str:
        """The answer as one line."""
        return self.answer.title

    def measure(self, name: str, model: str | None = None) -> Measure | None:
        """Return one figure, of the taught model unless another is named."""
        return self.report.line(model or self.report.cards[0].name, name)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values: a benchmark report plus `teaching`."""
        return {
            **self.report.as_dict(),
            "teaching": {
                "format": FORMAT,
                "title": self.title,
                "answer": self.answer.as_dict(),
                "text": self.text,
                "advice": list(self.advice),
                "notes": list(self.notes),
                "calibration": self.calibration.as_dict(),
                "learning curve": plain(self.curve),
                **({"cameras": plain(self.cameras)} if self.cameras else {}),
                **({"reader": dict(self.reader)} if self.reader else {}),
                "label next": plain(self.suggestions),
                "doubtful labels": dict(self.doubtful),
            },
        }

    def write(self, path: Path) -> None:
        """Write the JSON file atomically."""
        write_atomic(path, (json.dumps(self.as_dict(), ensure_ascii=False, allow_nan=False) + "\n").encode())


def build_results(
    data: TeachData,
    training_set: TrainingSet,
    held_out: CrossValidation,
    calibration: SuccessCalibration,
    model: TaughtModel,
    curve: Sequence[CurvePoint],
    suggestions: Sequence[LabelSuggestion] | None,
    notes: tuple[str, ...],
) -> TeachResults:
    """Measure the held-out predictions and the controls, and describe the result.

    `suggestions` is None when the unlabelled episodes were not looked at.
    """
    report = _build_report(data, training_set, held_out, model)
    rewards = report.rewards_of(model.card.name)
    values = np.array([rewards[embedded.id].final for embedded in training_set.episodes])
    ids = [embedded.id for embedded in training_set.episodes]
    doubtful = doubt_labels(values, training_set.success, training_set.copies, ids)
    answer = _answer(report, training_set, held_out, values, curve, len(data.unlabelled))
    return TeachResults(
        report=report,
        answer=answer,
        text=_summarize(report, calibration),
        advice=tuple(_advice(data, training_set, calibration, report, doubtful)),
        notes=(*_caveats(training_set, held_out), *notes, *report.warnings),
        calibration=calibration,
        curve=tuple(curve),
        suggestions=tuple(suggestions or ()),
        no_suggestion=_describe_no_suggestion(data, suggestions),
        doubtful=doubtful,
        cut=describe_cut(model),
        cameras=tuple(measure_cameras(training_set, held_out, model.head)),
        reader=model.head.about.get(READER, {}),
    )


def _answer(
    report: Report,
    training_set: TrainingSet,
    held_out: CrossValidation,
    values: Floats,
    curve: Sequence[CurvePoint],
    unlabelled: int,
) -> TrustAnswer:
    """Decide with each look by itself: that two robots can be told apart is no merit."""
    units = np.array(training_set.recordings if held_out.by_episode else training_set.groups)
    looks = np.array(training_set.looks)
    evidence = [
        gather_evidence(values[looks == look], training_set.success[looks == look], units[looks == look].tolist())
        for look in sorted(set(training_set.looks))
    ]
    return decide_trust(evidence, report.verdict(report.cards[0].name, "auroc"), curve, unlabelled)


# The benchmark behind the report


def taught_benchmark() -> Benchmark:
    """Return the benchmark of a taught model's report; its rewards are those of held-out episodes."""
    return Benchmark(
        name="taught@1",
        claim="How good a model taught on some of these episodes is on the others: every value comes from a head that "
        "had not seen the episode, nor any that was recorded with it. It says nothing about other robots, tasks or "
        "cameras.",
        data="the report.json that demerit teach wrote",
        get="demerit teach DATASET -o MODEL",
        metrics=(*DETECTION, *TRUTH, PAIRS, *JUDGEMENT, *GRADES, *CALIBRATION, *MOMENT),
        headline=(
            *("auroc", "over_reward_rate", "over_reward_above_half", "over_reward_above_threshold"),
            *("progress_error", "judgement_agreement"),
        ),
    )


def _count_pairs(scores: Scores, finals: Floats) -> Tally:
    """Count pairs within one instruction; clusters are recordings, and a pair spans two of them."""
    clusters = scores.clusters if scores.settings.by_recording else None  # earlier reports resampled instructions
    return preference_ordering(finals, scores.human_scores[0], scores.contexts, clusters=clusters, how="final")


PAIRS = MetricSpec("preference_ordering_by_final", Scores.finals, _count_pairs, needs=RANKED)


def _build_report(data: TeachData, training_set: TrainingSet, held_out: CrossValidation, model: TaughtModel) -> Report:
    benchmark = taught_benchmark()
    controls: list[RewardModel] = [Constant(), Clock(), Noise(), Change(), Motion(), Length()]
    settings = MeasureSettings(Resampling(resamples=RESAMPLES, alone="rows"))
    cue_card, cue_rewards = score_cues(training_set, held_out)
    rewards = [*_held_out_rewards(training_set, held_out, model), *_untaught_rewards(training_set), *cue_rewards]
    for control in controls:
        for embedded in training_set.episodes:
            kept = next((reward for reward in embedded.controls if reward.model == control.card.name), None)
            rewards.append(kept if kept is not None else control.score([embedded.episode])[0])
    about = "The network that the model was taught on, as it ships: what teaching starts from."
    network = model.config.network
    untaught = replace(
        model.card, name=UNTAUGHT, quantity="progress", revision=network[:12], weights_hash=network, about=about
    )
    names = (CUES, *(control.card.name for control in controls))
    ids = {embedded.id for embedded in training_set.episodes}
    # variants change what the controls see, such as the length: of a taught episode, only the original is measured
    measured = [
        index
        for index, embedded in enumerate(training_set.episodes)
        if not {edit.name for edit in embedded.episode.edits} & set(VARIANTS)
        or embedded.episode.origin.parent not in ids
    ]
    report = Report(
        about=About(benchmark.name, benchmark.claim, data.address),
        cards=(model.card, untaught, cue_card, *(control.card for control in controls)),
        controls=names,
        episodes=tuple(_report_episode(training_set, index) for index in measured),
        preferences=tuple(choice for choice in data.preferences if {choice.a, choice.b} <= ids),
        rewards=tuple(ScoredUnder(reward) for reward in rewards),
        environment=_environment(training_set, settings),
    )
    results = compute_results(benchmark, Scores.of(report, settings), names)
    # missing labels and few recordings are described in our own notes
    warnings = tuple(
        text for text in results.warnings if " not measured: " not in text and not text.startswith("Intervals rest on ")
    )
    return with_results(replace(report, warnings=warnings), benchmark, results)


def _report_episode(training_set: TrainingSet, index: int) -> EpisodeLabels:
    """An episode's row: clusters are groups, ranking is within one instruction."""
    embedded, label = training_set.episodes[index], training_set.labels[index]
    context = task_name(embedded.episode.instruction) or "all"
    row = labels_of(embedded.episode)
    group = training_set.groups[index]
    return replace(row, task=group, group=group, context=context, success=label.verdict, frames=embedded.length)


def _held_out_rewards(training_set: TrainingSet, held_out: CrossValidation, model: TaughtModel) -> Iterator[Reward]:
    name = model.card.name
    for index, embedded in enumerate(training_set.episodes):
        if index not in held_out.outputs:
            yield Reward.unscored(name, embedded.id, NOT_HELD_OUT)
            continue
        outputs = held_out.outputs[index]
        success = model.head.success(outputs).astype(np.float32)
        cameras = [name for name in training_set.spec.cameras if name in embedded.tower]
        described = model.describe_scoring(
            cameras, embedded.episode.instruction, len(embedded.at), success[-1], familiarity=None
        )
        facts = {"left out in fold": int(held_out.fold[index]), **described}
        value = model.head.value(outputs).astype(np.float32)
        yield Reward(name, embedded.id, embedded.at, value, success, given=facts)


def _untaught_rewards(training_set: TrainingSet) -> Iterator[Reward]:
    """The network's own outputs, the mean over the cameras."""
    network = training_set.spec.network
    for embedded in training_set.episodes:
        cameras = [
            network.follow(np.asarray(tower, np.float32), embedded.episode.instruction)
            for tower in embedded.tower.values()
        ]
        value = np.mean([np.asarray(outputs.progress) for outputs in cameras], axis=0)
        success = np.mean([np.asarray(outputs.success) for outputs in cameras], axis=0)
        yield Reward(UNTAUGHT, embedded.id, embedded.at, np.clip(value, 0, 1), np.clip(success, 0, 1))


def _environment(training_set: TrainingSet, settings: MeasureSettings) -> dict[str, str]:
    stride = training_set.spec.stride
    return {
        "demerit": version("demerit"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "numpy": np.__version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "frames": "all" if stride == 1 else f"every {stride}th",
        "network": training_set.spec.network.hash,
        **settings.as_dict(),
    }


# Text


def _summarize(report: Report, calibration: SuccessCalibration) -> str:
    """Describe the figures; the main point is whether it tells success from failure."""
    name = report.cards[0].name
    area, error = report.line(name, "auroc"), report.line(name, "progress_error")
    agree = report.line(name, "judgement_agreement")
    parts = []
    if area is not None and area.known:
        verdict = report.verdict(name, "auroc")
        parts.append(f"On episodes that it had not seen, it ranks a random success above a random failure in "
                     f"{area.value:.0%} of pairs{_interval(area, 'AUROC; ')}; chance is 50%.")  # fmt: skip
        parts += [f"It {verdict.lead}."] if verdict is not None else []
    elif agree is not None and agree.known:
        parts.append(f"Of two held-out episodes it prefers the one that people preferred {agree.value:.0%} of the time"
                     f"{_interval(agree)}; chance is 50%.")  # fmt: skip
    else:
        parts.append("It is unknown whether it tells successes from failures.")
    over = report.line(name, "over_reward_above_half")
    if over is not None and over.known:
        parts.append(f"{round(over.value * over.n)} of {over.n} failures end above 0.5.")
    if error is not None and error.known:
        parts.append(f"Its progress is {error.value:.2f} off on average{_interval(error)}.")
    if calibration.threshold is not None and not math.isnan(calibration.caught):
        parts.append(f"At a false-positive risk of at most {calibration.risk:g} it recognises "
                     f"{calibration.caught:.0%} of the successes.")  # fmt: skip
    return " ".join(parts)


def _interval(measure: Measure, name: str = "") -> str:
    if math.isnan(measure.low):
        return ""
    if measure.low == measure.high:  # every resample is the same: a sign of few episodes, not of certainty
        return f" ({name}too few episodes for an interval)"
    style = ".2f" if measure.name == "progress_error" else ".0%"
    return f" ({name}{measure.level:.0%} interval {measure.low:{style}} to {measure.high:{style}})"


def _caveats(training_set: TrainingSet, held_out: CrossValidation) -> Iterator[str]:
    groups, stride = len(set(training_set.groups)), training_set.spec.stride
    if held_out.by_episode:
        yield "All episodes were recorded together, so single episodes were held out: another day may look worse."
    elif groups < FEW_GROUPS:
        yield f"Only {groups} independent recordings: every figure here is rough."
    recordings = len(set(training_set.recordings))
    if recordings < len(training_set):
        videos = "one video" if recordings == 1 else f"{recordings} different videos"
        yield f"{len(training_set)} episodes show {videos}: copies count once, and are held out together."
    if any(training_set.looks):
        few = sum(training_set.looks)
        yield (
            f"The episodes have two looks ({len(training_set) - few} and {few}): two robots, scenes or cameras? "
            "Each was judged by itself; teach them apart if one of them is worse."
        )
    still = sum(not any(map(_moves, embedded.tower.values())) for embedded in training_set.episodes)
    if still:
        yield f"Nothing moves in {still} of {len(training_set)} episodes: one frame, black or frozen."
    unmeasured = sum("measured" not in targets.origins for targets in training_set.targets)
    if not teaches_progress(training_set.labels):
        yield f"No progress is labelled, so the value is a {SCORE}."
    elif unmeasured:
        yield (
            f"{unmeasured} of {len(training_set)} episodes have no progress at every frame: between labels, it is "
            "interpolated (a straight line to success, unknown on the way to failure) and counts little."
        )
    if stride > 1:
        yield f"To limit the time, only every {stride}th frame was used; the model does the same."


def _moves(tower: Features) -> bool:
    return bool((tower != tower[:1]).any())


def _advice(
    data: TeachData,
    training_set: TrainingSet,
    calibration: SuccessCalibration,
    report: Report,
    doubtful: Mapping[str, str],
) -> Iterator[str]:
    failures, successes = int((training_set.success == 0).sum()), int((training_set.success == 1).sum())
    if not failures:
        yield (
            "Label failures: none is labelled. From successes alone a model learns what success looks like, not what "
            "to reject. At an equal number of labels, failures lower the share of failures that are rewarded, and "
            f"a false-positive risk of {calibration.risk:g} needs {calibration.needed} of them."
        )
    elif calibration.threshold is None and successes:
        lacking, left = calibration.needed - calibration.failures, len(data.unlabelled)
        few = f"{left} unlabelled episodes are" if left else "No unlabelled episode is"
        yield calibration.note + (f" {few} left: record the others." if left < lacking else "")
    elif failures < successes / 2:
        yield f"Label more failures ({failures} against {successes} successes): fewer failures are then rewarded."
    if successes == 0:
        yield "Label a success or two: the level of a finished task is not known, only the order."
    if not any(label.curve is not None for label in training_set.labels):
        yield (
            "Mark a few moments in each episode (grasped, lifted, placed): frame:progress in the column `curve` of the "
            "label file, such as 0:0 40:0.5 -1:1. Progress labels teach more than a verdict about the end."
        )
    verdict = report.verdict(report.cards[0].name, "auroc")
    if verdict is not None and verdict.answer == "not better":
        yield (
            f"Do not use it yet: the control {verdict.control} does as well without looking at the task. Harder "
            "failures would tell."
        )
    elif verdict is not None and verdict.needs:
        yield f"It is not yet shown that it beats the control {verdict.control}."
    if data.conflicts:
        yield f"Look at the {len(data.conflicts)} contradictory labels."
    if doubtful:
        yield "Check these labels: " + "; ".join(f"{id} ({why})" for id, why in doubtful.items()) + "."


# What to label next


def _read_last(reader: Reader, embedded: EmbeddedEpisode) -> Floats:
    """The mean over cameras of what a reader says of the last frame."""
    return np.asarray(np.mean([reader(images[-1:], images[0]) for images in embedded.images.values()], axis=0))


@dataclass(frozen=True)
class LabelSuggestion:
    """An unlabelled episode to label next."""

    episode: str
    instruction: str
    probability: float
    """p(success) now"""
    torn: float
    """disagreement between the heads of the folds, 0 to 1"""
    near: float
    """closeness to the threshold, 0 to 1"""
    novel: float
    """distance to all taught episodes, 0 to 1"""
    reason: str
    video: str = ""
    """the file to open, with the second at which the episode starts if the file holds several"""


def suggest_labels(
    training_set: TrainingSet,
    heads: Sequence[TaughtHead],
    head: TaughtHead,
    calibration: SuccessCalibration,
    unlabelled: Sequence[EmbeddedEpisode],
    reader: Reader | None = None,
) -> list[LabelSuggestion]:
    """Rank unlabelled episodes by what a label would teach, penalising likeness to earlier suggestions.

    Episodes from which little would be learned are left out.
    """
    if not unlabelled:
        return []
    calibrated = [replace(fold, steep=calibration.steep, middle=calibration.middle) for fold in (heads or [head])]
    features = [training_set.spec.features(embedded) for embedded in unlabelled]
    tasks = [training_set.tasks.get(embedded.instruction, "") for embedded in unlabelled]
    reads = [None if reader is None else _read_last(reader, embedded) for embedded in unlabelled]
    probabilities = np.array(
        [[fold.success(fold.outputs(x[-1:], task, read))[0] for fold in calibrated]
         for x, task, read in zip(features, tasks, reads, strict=True)]
    )  # fmt: skip
    ends = np.stack([_describe_episode(head, x) for x in features])
    taught = np.stack([_describe_episode(head, training_set.x(index)) for index in range(len(training_set))])
    threshold = calibration.threshold if calibration.threshold is not None else 0.5
    mean = probabilities.mean(axis=1)
    parts = {
        "torn": np.clip(2 * probabilities.std(axis=1), 0, 1),
        "near": np.exp(-(((mean - threshold) / NEAR) ** 2)),
        "novel": _novelty(ends, taught),
    }
    score = np.sum([SUGGESTION_WEIGHTS[name] * values for name, values in parts.items()], axis=0)
    chosen = _pick_diverse(score, ends, min(MOST_SUGGESTIONS, int((score >= LITTLE).sum())))
    return [
        _suggestion(unlabelled[i], float(mean[i]), {name: float(values[i]) for name, values in parts.items()})
        for i in chosen
    ]


def _suggestion(embedded: EmbeddedEpisode, probability: float, parts: dict[str, float]) -> LabelSuggestion:
    reasons = {
        "torn": "models taught on different episodes disagree about it",
        "near": "it is close to the line between success and failure",
        "novel": "it looks unlike anything that was taught",
    }
    weighted = {name: SUGGESTION_WEIGHTS[name] * value for name, value in parts.items()}
    reason = reasons[max(weighted, key=lambda name: weighted[name])]
    rounded = {name: round(value, 4) for name, value in parts.items()}
    return LabelSuggestion(
        embedded.id,
        embedded.episode.instruction,
        round(probability, 4),
        reason=reason,
        video=_video_file(embedded.episode.views[next(iter(embedded.tower))]),
        **rounded,
    )


def _video_file(frames: Frames) -> str:
    if frames.source.kind == "array":
        return ""
    facts = frames.source.describe()
    path, start = str(facts.get("path", "")), facts.get("start")
    return f"{path} from {start:.1f} s" if start else path


def _describe_no_suggestion(data: TeachData, suggestions: Sequence[LabelSuggestion] | None) -> str:
    if suggestions:
        return ""
    if not data.unlabelled:
        return "Every episode of the dataset is labelled. New episodes would help, failures above all."
    if suggestions is None:
        return "The run was interrupted before the unlabelled episodes were looked at; run the same command to resume."
    return "No unlabelled episode stands out: the model is sure about each, and similar ones are labelled."


def _describe_episode(head: TaughtHead, x: np.ndarray[Any, Any]) -> Floats:
    """Return the standardised features of the last and the middle frame."""
    z = head.standardize(np.asarray(x, dtype=np.float64))
    return np.concatenate([z[-1], z[len(z) // 2]])


def _novelty(ends: Floats, taught: Floats) -> Floats:
    """D / (d + 2 usual): d = distance to the nearest taught episode, usual = the median of that among the taught."""
    among = distances(taught, taught)
    np.fill_diagonal(among, np.inf)
    usual = float(np.median(among.min(axis=1))) if len(taught) > 1 else 1.0
    nearest = distances(ends, taught).min(axis=1)
    return np.asarray(nearest / (nearest + 2 * max(usual, 1e-9)))


def _pick_diverse(score: Floats, ends: Floats, count: int) -> Iterator[int]:
    apart = distances(ends, ends)
    usual = max(float(np.median(apart)), 1e-9)
    to_chosen = np.full(len(score), np.inf)
    left = score >= LITTLE
    for _ in range(count):
        value = np.where(left, score * (0.5 + 0.5 * np.minimum(1, to_chosen / usual)), -np.inf)
        best = int(np.argmax(value))
        yield best
        left[best] = False
        to_chosen = np.minimum(to_chosen, apart[best])


# The page


def write_teach_page(
    results: TeachResults, path: str | Path, frames: Mapping[str, Frames] | None = None, embed: int = 8
) -> Path:
    """Write the report as one self-contained HTML file, atomically.

    Args:
        results: what to show.
        path: the file; its folder must exist.
        frames: videos by episode id, also of suggested episodes; without them only curves are shown.
        embed: number of videos to embed, worst episodes first.
    """
    if embed < 0:
        raise BadInput("embed", "a number of videos, 0 or more", embed)
    path = Path(path)
    report = results.report
    chosen = pick_examples(replace(report, controls=(*report.controls, UNTAUGHT)), max(embed, LISTED))
    page = render(
        TEMPLATE,
        **player_parts(report, chosen, frames or {}, embed),
        results=results,
        card=report.cards[0],
        lead=Lead(results.title, results.text),
        facts=report_facts(report, "independent recordings"),
        table=headline(report),
        points=_learning_dots(results.curve),
        films=_make_films(results.suggestions, frames or {}),
        size=(WIDTH, HEIGHT, PAD),
    )
    write_atomic(path, page.encode())
    return path


def _make_films(suggestions: Sequence[LabelSuggestion], frames: Mapping[str, Frames]) -> dict[str, str]:
    """Return a film per suggested episode whose video can be read."""
    films = {}
    for episode in (suggestion.episode for suggestion in suggestions):
        if episode in frames:
            with suppress(DemeritError):  # it was readable a moment ago, or its features are cached
                films[episode] = make_film(frames[episode], FILM_FRAMES, FILM_HEIGHT)
    return films


def _learning_dots(curve: tuple[CurvePoint, ...]) -> list[dict[str, Any]]:
    """Place the points: groups on a log scale to the right, AUROC from 1/2 upwards."""
    points = [point for point in curve if not math.isnan(point.auroc)]
    if len(points) < 2:  # noqa: PLR2004
        return []
    step = (WIDTH - 2 * PAD) / (len(points) - 1)
    return [
        {
            "x": round(PAD + i * step, 1),
            "y": round(HEIGHT - PAD - (HEIGHT - 2 * PAD) * max(0.0, (point.auroc - 0.5) * 2), 1),
            "groups": point.groups,
            "text": f"taught on {point.groups}: AUROC {number(point.auroc)}{_describe_error(point.error)}",
        }
        for i, point in enumerate(points)
    ]


def _describe_error(error: float) -> str:
    return "" if math.isnan(error) else f", final progress {number(error)} off"
