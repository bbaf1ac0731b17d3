"""Counterfactual relabelling: commands that a successful video fails, written and checked by a model.

settings.py    RelabelSettings: everything that decides what is made
wording.py     the prompts, text files with a version, in data/relabel
answers.py     what a model has to answer at each stage
looking.py     the pictures of a video: one a second, and the true last frame
asking.py      the question of each stage
rules.py       what code can check of a command and a plan
repairs.py     what a repair of an instruction may change
spelling.py    whether two words are one: the same, misspelt, another form
paraphrase.py  whether two commands say the same, by the text tower that ships
record.py      everything that came of one original: labels, and rejected candidates with their reasons
chain.py       the stages for one original, with regeneration
journal.py     the records on disk, a line each
views.py       from a record to episodes: the same video, other words
task_splits.py splits by original task, video and recording
held_out.py    which splits are there to be measured by
job.py         relabel: a dataset in, a folder of views out; resumes
costs.py       what it would cost, without sending anything
"""

from demerit.negatives.relabel.costs import Costs, estimate
from demerit.negatives.relabel.job import RelabelSummary, relabel
from demerit.negatives.relabel.settings import RelabelSettings

__all__ = ["Costs", "RelabelSettings", "RelabelSummary", "estimate", "relabel"]
