"""The rounds of one task and seed: teach, train, try in the second world, ask, and vary what failed."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from worlds import Act, World, make_demonstrator, make_wanderer

from demerit.data.dataset import Dataset
from demerit.data.episode import Episode, Outcome
from demerit.data.files import make_folder, write_json
from demerit.data.reward import Reward
from demerit.data.splits import seen_by
from demerit.data.store import Store, open_or_create
from demerit.decide.detector import Detection, calibrate_detector, left_out_by
from demerit.evaluate.metrics import Resampling
from demerit.evaluate.metrics.success import auroc
from demerit.models import load_model
from demerit.negatives.sim.job import plan_variants, simulate
from demerit.negatives.sim.variants import CHANGES
from demerit.training.teach import teach
from demerit.use.gym import RewardEnv
from prepare import CONFIG, is_done
from robot import SIZE, STRIDE
from train import make_learner

LOOP, STOCK, NONE = "loop", "stock", "none"
RISK = 0.1
"""share of successes that the detector may flag"""
HALF = 0.5
CLIPS = 3
DEMONSTRATIONS, RECORDINGS, ROLLOUTS = 3_000_000, 4_000_000, 5_000_000
"""first seeds of scenes"""
EACH_SEED, EACH_ROUND = 100_000, 1_000
LATEST = 5
"""a wanderer leaves the task before this step"""


@dataclass(frozen=True)
class LoopPlan:
    """How much is recorded, labelled and trained."""

    rounds: int = 3
    demonstrations: int = 10
    """in each of the two worlds"""
    verdicts: int = 6
    """per round"""
    variants: int = 4
    """of each failure"""
    steps: int = 4000
    rollouts: int = 20
    """trials of a policy in the second world"""


SMALL = LoopPlan(rounds=1, demonstrations=5, verdicts=2, variants=1, steps=90, rollouts=3)


@dataclass(frozen=True)
class Chain:
    """All rounds of one task and seed."""

    task: str
    seed: int
    out: Path
    plan: LoopPlan

    @property
    def recordings(self) -> Path:
        """The folder of what was recorded for all rounds."""
        return self.out / "recordings" / f"{self.task}--{self.seed}"

    def folder(self, way: str, number: int) -> Path:
        """The folder of a round; round 0 is the same for all ways."""
        return self.out / "runs" / f"{self.task}--{self.seed}" / (f"{way}-{number}" if number else "start")

    def run(self) -> None:
        """Run all rounds that have no result yet."""
        rounds = [(LOOP, 0), *((way, n) for n in range(1, self.plan.rounds + 1) for way in (LOOP, STOCK))]
        for way, number in [*rounds, (NONE, self.plan.rounds)]:
            if not (self.folder(way, number) / "result.json").exists():
                self.run_round(way, number)
        self.judge_models()

    def judge_models(self) -> None:
        """Measure every model on policies that none of them was taught anything of, and on new demonstrations."""
        folders = sorted(path.parent for path in self.folder(LOOP, 0).parent.glob("*/result.json"))
        results = {folder.name: json.loads((folder / "result.json").read_text()) for folder in folders}
        others = [folder for folder in folders if "asked next" not in results[folder.name]]
        first = DEMONSTRATIONS + self.seed * EACH_SEED + EACH_ROUND
        path, seeds = self.recordings / "expert-held-out", range(first, first + self.plan.rollouts)
        seen = self.record(path, True, seeds, "expert", make_demonstrator)
        seen += [one for folder in others for one in Store(folder / "rollouts").episodes()]
        models = {folder.name: load_model(str(folder / "model")) for folder in folders}
        features: list[Any] = [next(iter(models.values())).features(one)[1] for one in seen]  # type: ignore[attr-defined]
        done = np.array([is_done(one) for one in seen])
        if done.all():
            return  # nothing that could fool a model
        judged = {}
        for name, model in models.items():
            known: Any = model
            pairs = zip(seen, features, strict=True)
            ends = np.array([known.head.progress(x, known.task(one.instruction))[-1] for one, x in pairs])
            judged[name] = {
                "way": results[name]["way"],
                "round": results[name]["round"],
                "auroc": auroc(ends, done.astype(float)).measure(Resampling(resamples=1)).value,
                "failures above a half": float((ends[~done] >= HALF).mean()),
                "successes above a half": float((ends[done] >= HALF).mean()),
            }
        facts = {"task": self.task, "seed": self.seed, "rollouts": len(seen), "models": list(judged.values())}
        write_json(folders[0].parent / "models.json", facts)

    def run_round(self, way: str, number: int) -> None:
        """Teach, train, try in the second world, and collect what the next round is taught."""
        started, folder = time.monotonic(), make_folder(self.folder(way, number))
        lesson = [label(one) for one in [*self.record_demonstrations(), *self.collect_taught(way, number)]]
        data = Dataset.from_episodes(lesson, f"{way}-{number}")
        cache = self.out / "features" / self.task
        model = teach(data, folder / "model", config=CONFIG, tower="none", workers=1, cache=cache).model
        rollouts = self.try_policy(self.train_policy(model, 10 * self.seed + number, folder), way, number)
        rewards = model.score(rollouts)
        detections = self.detect(model, data, rollouts, rewards, folder)
        facts = describe(rollouts, rewards, detections)
        if number < self.plan.rounds and way == LOOP:
            facts["asked next"] = choose(rollouts, rewards, detections, self.plan.verdicts)
            facts |= self.make_variants([one for one in rollouts if one.id in facts["asked next"]], folder)
        asked = 2 * self.plan.demonstrations + (0 if way == NONE else number * self.plan.verdicts)
        facts |= {"task": self.task, "seed": self.seed, "way": way, "round": number, "labels": asked}
        facts |= {"learned from": len(lesson), "seconds": round(time.monotonic() - started, 1)}
        write_json(folder / "result.json", facts)
        print(json.dumps({name: value for name, value in facts.items() if name != "clips"}), flush=True)

    def record_demonstrations(self) -> list[Episode]:
        """Record an expert in both worlds."""
        first = DEMONSTRATIONS + self.seed * EACH_SEED
        seeds = range(first, first + self.plan.demonstrations)
        return [
            episode
            for real in (False, True)
            for episode in self.record(self.recordings / f"expert-{real}", real, seeds, "expert", make_demonstrator)
        ]

    def record(
        self, folder: Path, real: bool, seeds: Sequence[int], who: str, make: Callable[[World, int], Act]
    ) -> list[Episode]:
        """Record somebody in a scene of each seed; what is there already is kept."""
        store = open_or_create(folder, who, "MIT", "examples/loop")
        videos, world = make_folder(folder / "videos"), World(self.task, real)
        with store.writer() as writer:
            for seed in seeds[len(store) :]:
                writer.add(world.record(make(world, seed), who, seed, videos))
        world.close()
        return list(Store(folder).episodes())[: len(seeds)]

    def collect_taught(self, way: str, number: int) -> list[Episode]:
        """Return what was asked in the rounds before: rollouts and their variants, or other recordings."""
        if way == STOCK:
            first = RECORDINGS + self.seed * EACH_SEED
            seeds = range(first, first + number * self.plan.verdicts)
            return self.record(self.recordings / "wanderer", True, seeds, "wanderer", leave_early)
        taught: list[Episode] = []
        for before in range(number if way == LOOP else 0):
            folder = self.folder(LOOP, before)
            asked = set(json.loads((folder / "result.json").read_text())["asked next"])
            taught += [one for one in Store(folder / "rollouts").episodes() if one.id in asked]
            taught += Store(folder / "variants").episodes() if Store.is_at(folder / "variants") else []
        return taught

    def train_policy(self, model: Any, seed: int, folder: Path) -> Any:
        """Train a policy in the simulator with the model's values, and keep it."""
        world = World(self.task, real=False)
        env = RewardEnv(world, model, world.words, stride=STRIDE)
        policy = make_learner(env, self.plan.steps, seed).learn(self.plan.steps)
        policy.save(folder / "policy.zip", exclude=["replay_buffer"])
        env.close()
        return policy

    def try_policy(self, policy: Any, way: str, number: int) -> list[Episode]:
        """Record a policy in the second world, in scenes of this round."""
        first = ROLLOUTS + self.seed * EACH_SEED + number * EACH_ROUND
        seeds = range(first, first + self.plan.rollouts)

        def make(world: World, seed: int) -> Act:
            return lambda _, state: policy.predict(state, deterministic=True)[0]

        return self.record(self.folder(way, number) / "rollouts", True, seeds, f"{way}-{number}", make)

    def detect(
        self, model: Any, data: Dataset, rollouts: list[Episode], rewards: list[Reward], folder: Path
    ) -> list[Detection]:
        """Judge rollouts by a detector that is calibrated on the taught successes of the second world, left out."""
        known = [one for one in data if is_real(one)]
        risk = max(RISK, 1 / (sum(map(is_done, known)) + 1))
        detector = calibrate_detector(
            zip(known, model.score(known), strict=True),
            model.card,
            str(folder / "model"),
            risk,
            learned_from=seen_by(model),
            left_out=left_out_by(model),
        )
        detector.save(folder / "detector.json")
        return [detector.judge_episode(one, reward) for one, reward in zip(rollouts, rewards, strict=True)]

    def make_variants(self, asked: list[Episode], folder: Path) -> dict[str, int]:
        """Do failures again in the simulator, with changes; what happens then is measured."""
        specs, _ = plan_variants(asked, self.plan.variants, tuple(CHANGES), SIZE)
        simulate(folder / "variants", specs, workers=1)
        made = list(Store(folder / "variants").episodes())
        return {"variants": len(made), "failing variants": sum(not is_done(one) for one in made)}


def leave_early(world: World, seed: int) -> Act:
    """Make an expert that wanders off after a few steps."""
    return make_wanderer(world, seed, int(np.random.default_rng(seed).integers(LATEST)))


def is_real(episode: Episode) -> bool:
    """Whether it was recorded in the second world."""
    return episode.origin.tags.get("world") == "real"


def label(episode: Episode) -> Episode:
    """Keep what is known of an episode: in the simulator its progress, in the second world a person's yes or no."""
    verdict = Outcome("simulator", success=is_done(episode))
    return replace(episode, outcomes=(verdict,)) if is_real(episode) else episode


def choose(
    rollouts: Sequence[Episode], rewards: Sequence[Reward], detections: Sequence[Detection], count: int
) -> list[str]:
    """Choose the rollouts to ask about: up to half flagged ones, furthest behind first, then the most valued."""
    flagged = [place for place, detection in enumerate(detections) if detection.alarm]
    flagged.sort(key=lambda place: -detections[place].behind)
    valued = sorted(range(len(rollouts)), key=lambda place: -rewards[place].value[-1])
    asked = flagged[: count // 2]
    asked += [place for place in valued if place not in asked][: count - len(asked)]
    return [rollouts[place].id for place in asked]


def describe(rollouts: Sequence[Episode], rewards: Sequence[Reward], detections: Sequence[Detection]) -> dict[str, Any]:
    """Return a policy's true success, what its model believes, and some videos."""
    flagged = np.array([bool(detection.alarm) for detection in detections])
    done = np.array([is_done(one) for one in rollouts])
    curves = [one.outcome.curve for one in rollouts if one.outcome is not None and one.outcome.curve is not None]
    ends, truth = np.array([reward.value[-1] for reward in rewards]), np.array([curve[-1] for curve in curves])
    clips = [
        {
            "values": np.round(reward.value, 4).tolist(),
            "progress": np.round(curve, 4).tolist(),
            "video": base64.b64encode(Path(rollout.main.source.path).read_bytes()).decode(),  # type: ignore[attr-defined]
        }
        for rollout, reward, curve in list(zip(rollouts, rewards, curves, strict=True))[:CLIPS]
    ]
    return {
        "success": float(done.mean()),
        "fooled": float((~done & (ends >= HALF)).mean()),
        "over-reward": float((ends - truth)[~done].clip(0).mean()) if (~done).any() else 0.0,
        "flagged failures": int((flagged & ~done).sum()),
        "flagged successes": int((flagged & done).sum()),
        "clips": clips,
    }
