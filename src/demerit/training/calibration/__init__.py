"""Fitting calibrated models: what a model's numbers were worth on labelled episodes.

isotonic    the best rising fit (pool adjacent violators)
examples    labelled episodes with what the model said of them
fit         from examples to maps, a threshold and its promise
left_out    what the calibration is worth on tasks that it was not fitted to
job         score, fit, check, write
"""
