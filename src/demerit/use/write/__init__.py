"""Rewards written where trainers read them.

formulas.py   values of frames to rewards, returns, advantages and sample weights
frames.py     a scored dataset as flat arrays; what happens to unscored frames
tables.py     parquet and npz files, among them the sidecars of LeRobot and RLinf (returns, RECAP)
lerobot.py    a new LeRobot dataset whose videos are links
minari.py     a Minari dataset
"""
