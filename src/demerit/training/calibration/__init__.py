"""Calibrate a model on labelled episodes: probabilities, progress, and a threshold with a false-positive guarantee."""

from demerit.training.calibration.job import CalibrateOptions, CalibrationResult, calibrate

__all__ = ["CalibrateOptions", "CalibrationResult", "calibrate"]
