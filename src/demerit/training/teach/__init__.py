"""Teaching: a handful of your own episodes, labelled in whatever way, become a reward model for your task.

settings.py      Settings: everything that can be tuned, in one place
gather.py        what a dataset offers to teach from; too little is a sentence
labels.py        what is known about an episode, and by whom; contradictions
targets.py       from labels to a target and a weight per frame; made-up ones say so
rows.py          examples as rows of one regression
ridge.py         ridge regression in closed form, with exact left-out predictions
head.py          fit: features and targets to a head; what is chosen is chosen by left-out episodes
building.py      from what was gathered and seen to a lesson
views.py         the lesson's own negatives: the same frames in another order, or under other words
lesson.py        what one lesson holds: examples with features, and what is fitted and predicted from them
crossval.py      predictions of episodes that were left out, and how good they are
cues.py          a control that is taught too, on change and motion alone
calibrate.py     probabilities, and a threshold with a promised risk
next_labels.py   which episodes to label next, and why
looking.py       every frame of every episode through the network once, kept on disk
job.py           teach: all of it, in an order that leaves a usable model at every moment
folder.py        the folder that a lesson writes
benchmark.py     the questions that its report answers
findings.py      what a lesson found, in words and as a report
page.py          the report as one HTML file
"""
