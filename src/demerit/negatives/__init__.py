"""Bad behaviour: edits of good episodes, instructions written by a chat model, and simulated failures.

An edit changes which frames of a video are visible or its instruction. No video is copied: a negative is frame indices
and text over the original, and the source of its label is "edit".
"""

from demerit.negatives.negative import NEGATIVES, Negative, apply_edit, load_negative, negative

__all__ = ["NEGATIVES", "Negative", "apply_edit", "load_negative", "negative"]
