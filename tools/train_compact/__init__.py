"""Training of the compact reward model, whose weights ship: a small network for any CPU, of frames and an instruction.

`python tools/train_compact --help` is the command; it needs the extra `train`.
"""
