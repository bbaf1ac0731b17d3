"""Bad behaviour from physics: Meta-World tasks, scripted experts that go wrong on purpose, and what really happened.

tasks.py           the fifty tasks: words, what counts as near, what the expert needs (tasks.json, experts.json)
calibrate.py       measures the experts: experts.json
gl.py              finds a way to draw without a screen, or says what to install
arena.py           one task's physics: reset, step, and the facts of the moment
scene.py           camera, light and colours of an episode, drawn from its seed; pictures
behaviours.py      the ways to act: the expert, and the expert made nervous, lazy, hesitant or violent
beliefs.py         experts that are wrong about the world
afterwards.py      experts that do not stop when they are done
endings.py         what an arm does when its script is over, drawn alike whatever the outcome
measure.py         progress and success at every frame
events.py          failure events, from measured facts alone
rollout.py         one episode: task, behaviour, seed and setting in, pictures and measurements out
record.py          a rollout as an episode with its video
splits.py          the plan of `metaworld-bad@1`, and its pairs matched by length and motion
shipped_sample.py  the 28 episodes that ship with the package
gallery.py         the picture of the behaviours in the documentation

Nothing here imports the simulator before an episode is run.
"""
