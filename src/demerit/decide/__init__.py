"""From numbers to decisions: thresholds with a guarantee, detectors of failures, and the interval of a share.

interval.py    a share with its 95% interval
guarantee.py   what a threshold promises, as one sentence; which number of a model decides success
threshold.py   thresholds that at most a chosen share of the opposite episodes passes
detector.py    a detector: at which frame does an episode go wrong? Its file, its calibration, live episodes
measure.py     false alarms, failures found and delays, where labels say so; alarms as labels
kinds.py       what kind of failure it was, by a chat model
"""
