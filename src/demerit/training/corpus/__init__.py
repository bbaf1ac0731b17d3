"""Training corpora from many datasets: sources, caps, grades, negatives, counterfactuals, splits and a leak check.

A `CorpusConfig` (YAML) decides everything. `make_plan` draws the episodes, assigns splits and checks for leaks before
anything is written; `build_corpus` makes the corpus and its composition table. `demerit build-corpus` is the command.
"""

from demerit.training.corpus.config import CorpusConfig, CorpusSource, load_config, parse_config
from demerit.training.corpus.counts import CorpusCounts
from demerit.training.corpus.job import CorpusSummary, build_corpus, estimate_cost
from demerit.training.corpus.plan import CorpusPlan, make_plan

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
