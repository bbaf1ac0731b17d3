"""Teaching: a few labelled episodes of your own become a reward model for your task.

data.py           labels, contradictions, targets per frame
features.py       every frame through the network once, cached on disk
training_set.py   labelled episodes with features, groups and negatives; copies, looks, labels that do not fit
fit.py            ridge regression in closed form: the head
validate.py       cross-validation, calibrated success, a control
trust.py          is it good enough? trust it, label more, more labels will not help
report.py         figures, advice, what to label next; JSON and HTML
job.py            teach: all of it, leaving a usable model at every moment
"""

from demerit.training.teach.data import LabelWeights, TeachConfig
from demerit.training.teach.job import TeachOutcome, teach
from demerit.training.teach.report import TeachResults

__all__ = ["LabelWeights", "TeachConfig", "TeachOutcome", "TeachResults", "teach"]
