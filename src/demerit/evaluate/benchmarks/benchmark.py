"""A benchmark: name@version = where the episodes come from + the labels + the questions + the claim.

Yours is a dozen lines, in any package:

    from demerit.evaluate.benchmarks.benchmark import Benchmark
    from demerit.evaluate.benchmarks.questions import AUROC, OVER_REWARD

    def drawers() -> Benchmark:
        return Benchmark(
            name="drawers@1",
            claim="Tells opened from unopened drawers in our kitchen; says nothing about other kitchens.",
            data="a folder of videos with labels.csv (file, instruction, success)",
            get="https://example.org/drawers",
            questions=(AUROC, OVER_REWARD),
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
from demerit.evaluate.benchmarks.judging import Judge, judge
from demerit.evaluate.benchmarks.question import Question
from demerit.evaluate.benchmarks.showings import KINDS
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
        "taught@1": "training.teach.report:taught_benchmark",
    },
    "demerit.benchmarks",
)


@dataclass(frozen=True)
class Benchmark:
    """What is asked, of which episodes, to support which claim."""

    name: str
    """name@version: another version may give other numbers"""
    claim: str
    """what a good score supports, and what it does not"""
    data: str
    """the episodes that it reads, as a phrase"""
    get: str
    """where to get them"""
    questions: tuple[Question, ...]
    headline: tuple[str, ...]
    """names of the measures to show first; models are compared by them"""
    showings: tuple[str, ...] = ()
    """ways of showing episodes beyond as recorded: reversed, shuffled, told (under another instruction)"""
    judge: Judge = judge
    """turns an episode into a judged row"""
    reads: str = ""
    """the format of the data; empty: told by its files"""
    options: Mapping[str, Any] = field(default_factory=dict)
    """options of the format's reader"""
    splits: tuple[str, ...] = ()
    """where the data has splits, only these are measured; empty: all"""
    pairs: Callable[[Sequence[Episode]], list[Preference]] | None = None
    """makes the pairs that judgements are about; None: the preferences that come with the data"""

    def __post_init__(self) -> None:
        """Refuse a benchmark that nobody could name, or whose headline nobody asks."""
        name, at, version = self.name.partition("@")
        if not (name and at and version):
            raise BadInput("name of a benchmark", "name@version", repr(self.name))
        asked = [question.name for question in self.questions]
        if len(set(asked)) != len(asked):
            raise BadInput(f"benchmark {self.name}", "each question once", asked)
        for measure in self.headline:
            if measure not in asked:
                raise UnknownName(f"question of benchmark {self.name}", measure, asked)
        for kind in self.showings:
            if kind not in KINDS:
                raise UnknownName("showing", kind, KINDS)

    def question(self, name: str) -> Question:
        """Find a question by the name of its measure."""
        return next(one for one in self.questions if one.name == name)

    def address(self, data: str) -> str:
        """Write where the data lies as `format:path`; without data, say where to get it."""
        if not data:
            raise BadInput(self.name, f"--data PATH with {self.data} (to be had from: {self.get})", "no data")
        if not self.reads or data.partition(":")[0] in SOURCES:
            return data
        # what was imported before is in our own format, whatever it was
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
