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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from demerit.data.dataset import SOURCES
from demerit.data.episode import Episode
from demerit.data.labels import Preference
from demerit.errors import BadInput, UnknownName
from demerit.evaluate.benchmarks.data import PERTURBATIONS, labels_of
from demerit.evaluate.benchmarks.scores import MetricSpec
from demerit.evaluate.reports.report import EpisodeLabels
from demerit.models import load_model
from demerit.models.protocol import RewardModel
from demerit.registry import Registry

BENCHMARKS = Registry(
    "benchmark",
    {
        "own@1": "evaluate.benchmarks.catalogue:own",
        "roboarena@1": "evaluate.benchmarks.catalogue:roboarena",
        "roborewardbench@1": "evaluate.benchmarks.catalogue:roborewardbench",
        "rbm-eval@1": "evaluate.benchmarks.catalogue:rbm_eval",
        "gvl-voc@1": "evaluate.benchmarks.catalogue:gvl_voc",
        "failure-detection@1": "evaluate.benchmarks.catalogue:failure_detection",
        "metaworld-bad@1": "evaluate.benchmarks.catalogue:metaworld_bad",
        "fetch-bad@1": "evaluate.benchmarks.catalogue:fetch_bad",
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

    def load_model(self, name: str) -> RewardModel:
        """Load a model with its published protocol; options that the name gives itself count more."""
        model, _, text = name.partition(":")
        given = {part.partition("=")[0].strip() for part in text.split(",")}
        published = self.protocols.get(model, {})
        return load_model(name, **{option: value for option, value in published.items() if option not in given})

    def address(self, data: str) -> str:
        """Return the data's address as `format:path`; without data, raise an error that names where to get it."""
        if not data:
            raise BadInput(self.name, f"--data PATH with {self.data} (to be had from: {self.get})", "no data")
        if not self.reads or data.partition(":")[0] in SOURCES:
            return data
        # a dataset that was imported before is in our own format, not in its original one
        is_ours = (Path(data).expanduser() / "dataset.json").is_file()
        return f"{'demerit' if is_ours else self.reads}:{data}"


def load_benchmark(name: str) -> Benchmark:
    """Load a benchmark by name@version; the name alone means its newest version."""
    versions = [known for known in BENCHMARKS if known.partition("@")[0] == name]
    chosen = max(versions, key=_version) if versions else name
    benchmark = BENCHMARKS.factory(chosen)()
    if not isinstance(benchmark, Benchmark):
        raise BadInput(name, "a function that returns a Benchmark", f"a {type(benchmark).__name__}")
    return benchmark


def _version(name: str) -> tuple[int, str]:
    version = name.partition("@")[2]
    return (int(version) if version.isdigit() else -1, version)
