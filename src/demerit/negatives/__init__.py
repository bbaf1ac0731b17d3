"""Bad behaviour made from good: edits that change which frames of a video are seen, or the words it is judged by.

negative.py     Negative: a named edit, how it is registered, looked up and replayed
targets.py      progress at every frame of an original, measured or by construction, and its grade
edits.py        an edited episode: frames, words and labels that follow them
clip.py         clip
rewind.py       rewind, reverse, undo
pace.py         freeze, slow, stall
jump.py         jump
splice.py       splice; spliced.py: frames of several sources in one sequence
wording.py      wrong-instruction; instructions.py: which instructions mean the same; pool.py: what there is to draw
counterfactual.py, reworded.py   words that `demerit relabel` had a model write, as views
mix.py          Mix: how many of which, with a balanced ladder of grades

No video is copied: a negative is frame indices and text over the original, and its label is vouched for by the edit.
"""

from demerit.negatives.negative import NEGATIVES, Negative, apply_edit, load_negative, negative

__all__ = ["NEGATIVES", "Negative", "apply_edit", "load_negative", "negative"]
