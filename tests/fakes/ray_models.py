"""A model that does harm on command, for tests on a Ray cluster.

The file that DEMERIT_TEST_PLAN names holds JSON: {"log": FILE, "harm": {EPISODE: WORDS}, "driver": PID, "head": PID,
"weights": TEXT, "node": PID, "together": COUNT}; the weights are in the model's card. A process
scores nothing before as many as `together` have begun.
Every scored episode is a line of the log: process, episode, the process of its machine, its GPUs. Harm is done once per
episode, before it is scored, except "always die".

An actor on the machine `node` kills that machine at the second episode that it scores; "wait for its end" waits for it.
"""

import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from demerit.data.episode import Episode
from demerit.data.reward import Reward
from demerit.models.loading import Listing
from demerit.models.protocol import example_card


class Saboteur:
    """The mean brightness of three frames, and what the plan says."""

    def __init__(self) -> None:
        plan = json.loads(Path(os.environ["DEMERIT_TEST_PLAN"]).read_text())
        self.card = example_card(name="saboteur", frame_budget=3, weights_hash=plan.get("weights", ""))

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        return [self._one(episode) for episode in episodes]

    def _one(self, episode: Episode) -> Reward:
        plan = json.loads(Path(os.environ["DEMERIT_TEST_PLAN"]).read_text())
        log = Path(plan["log"])
        log.with_name(f"{os.getpid()}.begun").touch()
        while len(list(log.parent.glob("*.begun"))) < plan.get("together", 0):
            time.sleep(0.01)
        harm, done = plan.get("harm", {}).get(episode.id, ""), log.with_name(f"{episode.id}.done")
        if (node := plan.get("node", 0)) and os.getppid() == node:
            if log.exists() and any(line.startswith(f"{os.getpid()} ") for line in log.read_text().splitlines()):
                os.kill(node, signal.SIGKILL)
                log.with_name("node.done").touch()
                os.kill(os.getpid(), signal.SIGKILL)
        elif "wait" in harm:
            while not log.with_name("node.done").exists():
                time.sleep(0.1)
        elif harm and not done.exists():
            if harm != "always die":
                done.touch()
            victim = next((plan[name] for name in ("driver", "head") if name in harm), os.getpid())
            os.kill(victim, signal.SIGINT if "interrupt" in harm else signal.SIGKILL)
            if victim != os.getpid():
                signal.pause()  # until Ray notices
        with open(log, "a") as file:
            gpus = os.environ.get("CUDA_VISIBLE_DEVICES") or "none"
            file.write(f"{os.getpid()} {episode.id} {os.getppid()} {gpus}\n")
        at = self.card.wanted(len(episode))
        value = episode.main.take(at).mean(axis=(1, 2, 3)) / 255
        return Reward(self.card.name, episode.id, at, value.astype(np.float32))


class SaboteurOnGpu(Saboteur):
    """Says that it runs on a GPU, as vision-language models do."""

    listing = Listing("progress", 0.0, 1.0, causal=True, licence="Apache-2.0", about="A fake.", extra="vlm")
