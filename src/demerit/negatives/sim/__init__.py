"""Simulated bad behaviour: tasks of two robots, scripted experts that go wrong on purpose, and measured labels.

tasks        fifty tasks of Meta-World, five of Fetch: instructions, distances, what the experts need
arena        physics and rendering of a task
fetch        the same for the Fetch robot, and its experts
behaviours   the expert and its faulty variants
rollout      one episode: task, behaviour, seed and setting in; images and measurements out
variants     a recorded episode again, in a scene that is changed a little
measure      progress, success and failure events, from measured facts alone
splits       the episodes of the benchmarks metaworld-bad@1 and fetch-bad@1, and matched pairs
job          simulate many episodes into a dataset folder

The simulator is imported when an episode runs.
"""
