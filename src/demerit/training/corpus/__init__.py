"""Training corpora from many datasets: sources, caps, grades, negatives, counterfactuals, splits and a leak check.

A `CorpusConfig` (YAML) decides everything. `make_plan` draws the episodes, assigns splits and checks for leaks before
anything is written; `build_corpus` makes the corpus and its composition table. `demerit build-corpus` is the command.
"""

from demerit.training.corpus.config import CorpusConfig, CorpusPlan, CorpusSource, load_config, make_plan, parse_config
from demerit.training.corpus.job import CorpusCounts, CorpusSummary, build_corpus, estimate_cost

__all__ = [
    "CorpusConfig",
    "CorpusCounts",
    "CorpusPlan",
    "CorpusSource",
    "CorpusSummary",
    "build_corpus",
    "estimate_cost",
    "load_config",
    "make_plan",
    "parse_config",
]
