"""A benchmark: name@version = episodes + labels + metrics + the claim that they support.

Yours is a dozen lines, in any package:

    from demerit.evaluate.benchmarks import Benchmark
    from demerit.evaluate.benchmarks.metric_specs import AUROC, OVER_REWARD

    def drawers() -> Benchmark:
        return Benchmark(
            name="drawers@1",
            claim="Tells opened from unopened drawers in our kitchen; says nothing about other kitchens.",
            data="a folder of videos with labels.csv (file, instruction, success)",
            get="https://example.org/drawers",
            metrics=(AUROC, OVER_REWARD),
            headline=("auroc",),
        )

and an entry point `"drawers@1" = "my_package.bench:drawers"` in the group `demerit.benchmarks`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from demerit.data.dataset import SOURCES
from demerit.data.episode import Episode, Preference
from demerit.data.formats import DETECTORS
from demerit.data.published_sets import PublishedSet, published_sets
from demerit.errors import BadInput, UnknownName
from demerit.evaluate.benchmarks.metric_specs import (
    AT_RISK,
    AUROC,
    BOTH_ORDERS,
    CALIBRATION,
    DETECTION,
    F1_OF_FAILURE,
    F1_OVER_TASKS,
    FAILURE_PRECISION,
    GRADES,
    INSTRUCTION_METRICS,
    JUDGEMENT,
    MAE,
    MAE_GROUP_WISE,
    MAE_ROBOARENA,
    MAE_WITHOUT_ROBOARENA,
    MOMENT,
    ORDER,
    ORDERING,
    OVER_REWARDS,
    PUBLISHED_ORDERING,
    RANKING,
    REVERSED_ORDER,
    SHUFFLED_ORDER,
    TRUTH,
    judgement,
)
from demerit.evaluate.benchmarks.scores import (
    INSTRUCTION,
    PERTURBATIONS,
    REVERSED,
    ROBOTS,
    SHUFFLED,
    MetricSpec,
    labels_of,
)
from demerit.evaluate.reports.report import EpisodeLabels
from demerit.models import load_model
from demerit.models.protocol import RewardModel
from demerit.registry import Registry, load_attribute

OWN = "own:"
"""before the name of a benchmark: its measures and protocols on other episodes than the published ones"""
THE_DATA = "the data"
"""value of an option in a protocol that stands for the address of the benchmark's data"""
BENCHMARKS = Registry(
    "benchmark",
    {
        "own@1": "evaluate.benchmarks.benchmark:own",
        "roboarena@1": "evaluate.benchmarks.benchmark:roboarena",
        "roborewardbench@1": "evaluate.benchmarks.benchmark:roborewardbench",
        "rbm-eval@1": "evaluate.benchmarks.benchmark:rbm_eval",
        "gvl-voc@1": "evaluate.benchmarks.benchmark:gvl_voc",
        "failure-detection@1": "evaluate.benchmarks.benchmark:failure_detection",
        "metaworld-bad@1": "evaluate.benchmarks.benchmark:metaworld_bad",
        "fetch-bad@1": "evaluate.benchmarks.benchmark:fetch_bad",
        "taught@1": "training.teach.report:taught_benchmark",
    },
    "demerit.benchmarks",
)


@dataclass(frozen=True)
class Benchmark:
    """Which metrics, on which episodes, to support which claim."""

    name: str
    """name@version; another version may give other numbers"""
    claim: str
    """what a good score supports, and what it does not"""
    data: str
    """the episodes that it reads, as a phrase"""
    get: str
    """where to get them"""
    metrics: tuple[MetricSpec, ...]
    headline: tuple[str, ...]
    """names of the metrics to show first; models are compared by them"""
    perturbations: tuple[str, ...] = ()
    """beyond `as recorded`: reversed, shuffled, told (= under another instruction)"""
    labels_of: Callable[[Episode], EpisodeLabels] = labels_of
    """collects the labels of an episode"""
    reads: str = ""
    """the format of the data; empty = detected from its files"""
    options: Mapping[str, Any] = field(default_factory=dict)
    """options of the format's reader"""
    splits: tuple[str, ...] = ()
    """where the data has splits, only these are measured; empty = all"""
    pairs: Callable[[Sequence[Episode]], list[Preference]] | None = None
    """makes the pairs to judge; None = the preferences that come with the data"""
    protocols: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """options by model name that make it answer as in the published figures, where none are given"""
    published: tuple[PublishedSet, ...] = ()
    """the sets that the name stands for: other episodes are refused; empty = any episodes"""

    def __post_init__(self) -> None:
        """Check names, headline and perturbations."""
        name, at, version = self.name.partition("@")
        if not (name and at and version):
            raise BadInput("name of a benchmark", "name@version", repr(self.name))
        names = [metric.name for metric in self.metrics]
        if len(set(names)) != len(names):
            raise BadInput(f"benchmark {self.name}", "each metric once", names)
        for headline in self.headline:
            if headline not in names:
                raise UnknownName(f"metric of benchmark {self.name}", headline, names)
        for perturbation in self.perturbations:
            if perturbation not in PERTURBATIONS:
                raise UnknownName("perturbation", perturbation, PERTURBATIONS)

    def metric(self, name: str) -> MetricSpec:
        """Return a metric by name."""
        return next(metric for metric in self.metrics if metric.name == name)

    def load_model(self, name: str, data: str = "") -> RewardModel:
        """Load a model with its published protocol; options that the name gives itself count more.

        `data` is the address of the episodes, for protocols that take goals or examples from them.
        """
        model, _, text = name.partition(":")
        names = {part.partition("=")[0].strip() for part in text.split(",")}
        names |= {"goals"} if "goal" in names else set()  # one picture, or one for each task
        options = {option: value for option, value in self.protocols.get(model, {}).items() if option not in names}
        return load_model(name, **{key: data if value == THE_DATA else value for key, value in options.items()})

    def find_set(self, rows: Sequence[EpisodeLabels]) -> PublishedSet | None:
        """Return which of its published sets these episodes are, None if it has none; refuse any other episodes."""
        wrong = {candidate: candidate.compare(count_parts(candidate, rows)) for candidate in self.published}
        for candidate, difference in wrong.items():
            if not difference:
                return candidate
        if not wrong:
            return None
        sets = ", or ".join(map(str, self.published))
        instead = f"{OWN}{self.name} measures other episodes in the same way, own@1 by every measure"
        raise BadInput(self.name, f"{sets} ({instead})", max(wrong.values(), key=len))

    def address(self, data: str) -> str:
        """Return the data's address as `format:path`; without data, raise an error that names where to get it."""
        if not data:
            raise BadInput(self.name, f"--data PATH with {self.data} (to be had from: {self.get})", "no data")
        if not self.reads or data.partition(":")[0] in SOURCES:
            return data
        # a dataset that was imported before is in our own format, not in its original one
        is_ours = (Path(data).expanduser() / "dataset.json").is_file()
        is_other = self.name.startswith(OWN) and self._looks_otherwise(Path(data).expanduser())
        return data if is_other else f"{'demerit' if is_ours else self.reads}:{data}"

    def _looks_otherwise(self, path: Path) -> bool:
        """Whether data is of another format than the benchmark reads; rows of RBM look like nothing else."""
        kind = next((kind for kind, is_this in DETECTORS.items() if is_this(path)), self.reads)
        has_rows = self.reads == "rbm" and any(file.stem != "labels" for file in path.glob("*.json*"))
        return kind != self.reads and not has_rows


def count_parts(published: PublishedSet, rows: Sequence[EpisodeLabels]) -> Counter[str]:
    """Count episodes as a published set counts them: by subset or category, or its tasks of two rated rollouts."""
    if published.unit != "tasks":
        return Counter(getattr(row, published.by) for row in rows)
    rated = [row for row in rows if row.progress is not None or row.success is not None]
    rollouts = Counter(row.context for row in rated)
    tasks = {row.context: getattr(row, published.by) for row in rated if rollouts[row.context] > 1}
    return Counter(tasks.values())


def load_benchmark(name: str) -> Benchmark:
    """Load a benchmark by name@version; the name alone means its newest version.

    `own:NAME` is that benchmark on other episodes than the published ones, under that name.
    """
    if name.startswith(OWN):
        other = load_benchmark(name.removeprefix(OWN))
        claim = f"Measures and protocols of {other.name} on other episodes: not comparable with its published figures. "
        return replace(other, name=f"{OWN}{other.name}", claim=claim + other.claim, published=())
    versions = [version for version in BENCHMARKS if version.partition("@")[0] == name]
    newest = max(versions, key=_version) if versions else name
    benchmark = BENCHMARKS.factory(newest)()
    if not isinstance(benchmark, Benchmark):
        raise BadInput(name, "a function that returns a Benchmark", f"a {type(benchmark).__name__}")
    return benchmark


def _version(name: str) -> tuple[int, str]:
    version = name.partition("@")[2]
    return (int(version) if version.isdigit() else -1, version)


def own() -> Benchmark:
    """Return the benchmark for a dataset of your own: every measure that its labels allow."""
    return Benchmark(
        name="own@1",
        claim="How far a model's numbers agree with your labels on your episodes. It says nothing about other robots, "
        "tasks or cameras.",
        data="any dataset that demerit reads, with whatever labels it has (success, progress, grade, events, A/B)",
        get="your robot: a folder of videos with labels.csv is enough (demerit list sources)",
        metrics=(
            *DETECTION,
            *AT_RISK,
            *ORDERING,
            *JUDGEMENT,
            BOTH_ORDERS,
            *RANKING,
            *GRADES,
            *CALIBRATION,
            F1_OF_FAILURE,
            *TRUTH,
            *MOMENT,
            *ORDER,
            *SHUFFLED_ORDER,
            *INSTRUCTION_METRICS,
        ),
        headline=("auroc", *(metric.name for metric in OVER_REWARDS), "preference_ordering_by_final"),
        perturbations=(SHUFFLED, INSTRUCTION),
    )


def roboarena() -> Benchmark:
    """Return the position paper's protocol on RoboArena: rollouts of one session ordered as its evaluator did.

    `dopamine` sees three cameras and, as its goal, the end of another success of the same task, which is not measured.
    The paper does not say which camera stands for which of the three views.
    """
    return Benchmark(
        name="roboarena@1",
        claim="Orders rollouts of one task on one real robot as the person beside it did, by the sum of its per-step "
        "rewards. It says nothing about when in an episode a reward is right.",
        data="a RoboArena dump (evaluation_sessions/)",
        get="https://huggingface.co/datasets/RoboArena/DataDump_08-05-2025",
        reads="roboarena",
        metrics=(PUBLISHED_ORDERING, *ORDERING, *JUDGEMENT, BOTH_ORDERS, *DETECTION, *AT_RISK, *CALIBRATION),
        headline=(PUBLISHED_ORDERING.name, "preference_ordering_by_sum"),
        protocols={"dopamine": {"goals": THE_DATA, "cameras": "left+right+wrist"}},
        published=published_sets("roboarena@1"),
    )


def roborewardbench() -> Benchmark:
    """Return RoboRewardBench: the error on people's grades 1 to 5, each subset with the same weight.

    `roboreward` is asked for the whole number that it writes, as published; `roboreward:how=logits` for the mean.
    """
    return Benchmark(
        name="roborewardbench@1",
        claim="Grades the end of an episode from 1 to 5 as people did, averaged over subsets. The map from a model's "
        "value to a grade is part of the result and stands beside it.",
        data="the RoboReward dataset, of which the test split is measured",
        get="https://huggingface.co/datasets/teetone/RoboReward",
        reads="roboreward",
        metrics=(MAE_GROUP_WISE, MAE_ROBOARENA, MAE_WITHOUT_ROBOARENA, replace(MAE, by=("subset", *ROBOTS))),
        headline=("mae_group_wise", "mae_roboarena", "mae_group_wise_without_roboarena"),
        labels_of=_by_video,
        options={"split": "test"},
        protocols={"roboreward": {"how": "decode"}},
        published=published_sets("roborewardbench@1"),
    )


def rbm_eval() -> Benchmark:
    """Return Robometer's evaluation: order of the frames, ranking of the episodes, words against videos.

    The protocols are those of the authors' public commands: Robo-Dopamine compares each of 64 frames with the first,
    without a goal; VLAC compares 64 neighbours; GVL gets 15 frames; TOPReward and RoboReward get beginnings of up to 64
    frames. Of RoboReward's grade after each, the mean is taken here where the authors decode one whole number.
    """
    return Benchmark(
        name="rbm-eval@1",
        claim="Rises along successes, ranks failed < suboptimal < successful within a task, and rewards a video for "
        "its own instruction. Rising alone is what a clock does: read it beside the shuffled frames.",
        data="RBM-EVAL rows (id, task, frames, quality_label)",
        get="https://robometer.github.io",
        reads="rbm",
        metrics=(*RANKING, *ORDER, *SHUFFLED_ORDER, *REVERSED_ORDER, *INSTRUCTION_METRICS, AUROC),
        headline=("kendall_tau_a", "voc_pearson", "voc_pearson_shuffled", "instruction_diagonal_share"),
        perturbations=(REVERSED, SHUFFLED, INSTRUCTION),
        protocols={
            "dopamine": {"mode": "forward", "frames": 64},
            "roboreward": {"how": "dense", "frames": 64},
            "topreward": {"frames": 64},
            "vlac": {"frames": 64},
            "gvl": {"frames": 15},
        },
        published=published_sets("rbm-eval@1"),
    )


def gvl_voc() -> Benchmark:
    """Return GVL's value-order correlation on demonstrations, with its shuffled control."""
    return Benchmark(
        name="gvl-voc@1",
        claim="Puts the frames of a demonstration in their order. In order, counting is enough; only the shuffled "
        "figure shows that a model looks.",
        data="demonstrations in any format that demerit reads (Open X-Embodiment, DROID, LeRobot ...)",
        get="https://huggingface.co/lerobot or https://droid-dataset.github.io",
        metrics=(*ORDER, *SHUFFLED_ORDER),
        headline=("voc_pearson_shuffled", "voc_spearman_shuffled", "voc_pearson", "voc_spearman"),
        perturbations=(SHUFFLED,),
    )


def failure_detection() -> Benchmark:
    """Return failure detection as in Robometer's Table III: F1 of failures, task by task, thresholds fixed."""
    return Benchmark(
        name="failure-detection@1",
        claim="Notices failures without having seen the task and without a threshold tuned on it.",
        data="labelled episodes, successes and failures of several tasks (success true or false)",
        get="your robot; the 100 DROID episodes of the published table were not found in public",
        metrics=(F1_OVER_TASKS, F1_OF_FAILURE, AUROC, FAILURE_PRECISION, *OVER_REWARDS, *AT_RISK),
        headline=("f1_of_failure_mean_over_tasks", "auroc", *(metric.name for metric in OVER_REWARDS)),
    )


def metaworld_bad() -> Benchmark:
    """Return our own benchmark of bad behaviour in simulation: every frame's progress is measured, not judged."""
    return Benchmark(
        name="metaworld-bad@1",
        claim="Follows the simulator's own measure of progress through many kinds of bad behaviour. It says nothing "
        "about real cameras.",
        data="simulated episodes with the simulator's progress at every frame",
        get="demerit simulate DIR --benchmark metaworld-bad@1 --split test, with the extra: pip install -e '.[sim]'",
        metrics=(*TRUTH, *ORDERING, MATCHED, AUROC, *OVER_REWARDS, *AT_RISK, *RANKING, *MOMENT),
        headline=("auroc", "matched_pairs", *(metric.name for metric in OVER_REWARDS), "progress_error"),
        splits=("test",),
        labels_of=_by_task,
        pairs=_find_matched_pairs,
    )


def fetch_bad() -> Benchmark:
    """Return the same measurements on the Fetch robot, on which nothing that demerit ships was trained."""
    return replace(
        metaworld_bad(),
        name="fetch-bad@1",
        claim="Follows the simulator's own measure of progress on a robot that the shipped network has never seen. It "
        "says nothing about real cameras.",
        get="demerit simulate DIR --benchmark fetch-bad@1, with the extra: pip install -e '.[sim]'",
    )


# Attempts at one task that are equally long and move equally much: only what was done tells them apart.
MATCHED = replace(
    judgement("matched_pairs", "final"), needs="a success and a failure of one task, alike in length and motion"
)


def _find_matched_pairs(episodes: Sequence[Episode]) -> list[Preference]:
    wanted = {"task", "motion", "frames"}
    matched_pairs = load_attribute("demerit.negatives.sim.splits:matched_pairs", "the benchmark metaworld-bad@1")
    pairs: list[Preference] = matched_pairs([episode for episode in episodes if wanted <= episode.origin.tags.keys()])
    return pairs


def _by_task(episode: Episode) -> EpisodeLabels:
    """Group by the simulator's task name: one task has several instructions."""
    labels, task = labels_of(episode), episode.origin.tags.get("task")
    return replace(labels, task=task, context=task) if task else labels


def _by_video(episode: Episode) -> EpisodeLabels:
    """Group by video: the same video occurs under several instructions and in pieces."""
    labels = labels_of(episode)
    return replace(labels, task=episode.origin.group) if episode.origin.group else labels
