"""Corpora like RoboReward's, composed in one command: sources, caps, repaired words, negatives, grades, splits.

recipe.py             Recipe: everything that decides what is in a corpus; recipe_file.py reads it from YAML
labelling.py          what an episode's role makes of its labels
drawing.py            which episodes of a source are taken, spread over its tasks
gathering.py          the chosen episodes of all sources as one stream
splitting.py          splits that part no task, video or recording
leak_check.py         what two splits share, and what a held-out set does
planning.py           all of this before anything is made
preparing.py          episodes with their split and their words; repairing.py asks a model for the words
with_model.py         the stages that a chat model answers, and what they cost; model_at_hand.py finds it
composition.py        what came out, counted; composition_table.py writes the page
job.py                build_corpus: the stages, in order; resumes
"""

from demerit.training.corpus.job import CorpusSummary, build_corpus, dry_run
from demerit.training.corpus.planning import Plan, make_plan
from demerit.training.corpus.recipe import Recipe, Source
from demerit.training.corpus.recipe_file import load_recipe, read_recipe

__all__ = [
    "CorpusSummary",
    "Plan",
    "Recipe",
    "Source",
    "build_corpus",
    "dry_run",
    "load_recipe",
    "make_plan",
    "read_recipe",
]
