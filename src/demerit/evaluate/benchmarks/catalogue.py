"""The built-in benchmarks, found by name through `BENCHMARKS`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from demerit.data.episode import Episode
from demerit.data.labels import Preference
from demerit.evaluate.benchmarks.benchmark import Benchmark
from demerit.evaluate.benchmarks.data import INSTRUCTION, REVERSED, SHUFFLED, labels_of
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
from demerit.evaluate.reports.report import EpisodeLabels
from demerit.registry import load_attribute


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
    """Return the position paper's protocol on RoboArena: rollouts of one session ordered as its evaluator did."""
    return Benchmark(
        name="roboarena@1",
        claim="Orders rollouts of one task on one real robot as the person beside it did, by the sum of its per-step "
        "rewards. It says nothing about when in an episode a reward is right.",
        data="a RoboArena dump (evaluation_sessions/)",
        get="https://huggingface.co/datasets/RoboArena/DataDump_08-05-2025",
        reads="roboarena",
        metrics=(PUBLISHED_ORDERING, *ORDERING, *JUDGEMENT, BOTH_ORDERS, *DETECTION, *AT_RISK, *CALIBRATION),
        headline=(PUBLISHED_ORDERING.name, "preference_ordering_by_sum"),
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
        metrics=(MAE_GROUP_WISE, MAE_ROBOARENA, MAE_WITHOUT_ROBOARENA, replace(MAE, by=("subset",))),
        headline=("mae_group_wise", "mae_roboarena", "mae_group_wise_without_roboarena"),
        labels_of=_by_video,
        options={"split": "test"},
        protocols={"roboreward": {"how": "decode"}},
    )


def rbm_eval() -> Benchmark:
    """Return Robometer's evaluation: order of the frames, ranking of the episodes, words against videos."""
    return Benchmark(
        name="rbm-eval@1",
        claim="Rises along successes, ranks failed < suboptimal < successful within a task, and rewards a video for "
        "its own instruction. Rising alone is what a clock does: read it beside the shuffled frames.",
        data="RBM-EVAL rows (id, task, frames, quality_label), or any dataset with words for quality",
        get="https://robometer.github.io",
        reads="rbm",
        metrics=(*RANKING, *ORDER, *SHUFFLED_ORDER, *REVERSED_ORDER, *INSTRUCTION_METRICS, AUROC),
        headline=("kendall_tau_a", "voc_pearson", "voc_pearson_shuffled", "instruction_diagonal_share"),
        perturbations=(REVERSED, SHUFFLED, INSTRUCTION),
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
        get="demerit simulate DIR --benchmark metaworld-bad@1 --split test, with the extra: pip install 'demerit[sim]'",
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
        get="demerit simulate DIR --benchmark fetch-bad@1, with the extra: pip install 'demerit[sim]'",
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
