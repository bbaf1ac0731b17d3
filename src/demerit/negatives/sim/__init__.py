"""Simulated bad behaviour: Meta-World tasks, scripted experts that go wrong on purpose, and measured labels.

tasks        the fifty tasks: instructions, distances, what the experts need
arena        physics and rendering of a task
behaviours   the expert and its faulty variants
rollout      one episode: task, behaviour, seed and setting in; images and measurements out
measure      progress, success and failure events, from measured facts alone
splits       the episodes of the benchmark metaworld-bad@1, and matched pairs
job          simulate many episodes into a dataset folder

The simulator is imported when an episode runs.
"""
