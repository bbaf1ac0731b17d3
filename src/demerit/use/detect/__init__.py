"""Failure detection: when did it go wrong? With a promised share of false alarms.

detector.py    the statistic, the detector and its file, live episodes
calibrate.py   a detector from successes that the model has not learned from
kinds.py       what kind of failure it was, by a chat model
labels.py      alarms as labels
measure.py     false alarms, failures found and delays, where labels say so
"""

from demerit.use.detect.calibrate import calibrate_detector
from demerit.use.detect.detector import Detection, Detector, LiveDetection, LiveStep
from demerit.use.detect.measure import CountedShare, DetectionFigures, measure_detections

__all__ = [
    "CountedShare",
    "Detection",
    "DetectionFigures",
    "Detector",
    "LiveDetection",
    "LiveStep",
    "calibrate_detector",
    "measure_detections",
]
