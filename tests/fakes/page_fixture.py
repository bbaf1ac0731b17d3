"""A report for tests of its page: the drawn dataset, real controls, and models invented for the test.

The invented models see the true curve: `careful` adds noise, `eager` takes time for progress, `grades` answers 1 to 5
on few frames.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from demerit.data.episode import Episode, Event
from demerit.data.frames import Frames, spread
from demerit.data.reward import Reward
from demerit.evaluate.benchmarks import Benchmark, recompute
from demerit.evaluate.benchmarks.metric_specs import AUROC, BRIER, OVER_REWARD, ordering
from demerit.evaluate.reports.report import About, EpisodeLabels, Report, ScoredUnder
from demerit.models.baselines import Clock, Constant, Noise
from demerit.models.protocol import ModelCard, example_card
from fakes.drawn_sample import BEHAVIOURS, FPS, draw_episode, failure_events

KINDS = {
    "pick/place": "put the {colour} block on the {goal}",
    "push/pull": "push the {colour} block onto the {goal}",
    "open/close": "close the {colour} box beside the {goal}",
    "stack": "stack the {colour} block on the block at the {goal}",
    "reorient": "turn the {colour} block upright on the {goal}",
}
PAINTS = (("red", "green square"), ("blue", "white tray"), ("yellow", "green square"))
BENCHMARK = Benchmark(
    name="sample@1",
    claim="Tells five drawn behaviours of a cartoon gripper apart.",
    data="drawn episodes",
    get="tests",
    metrics=(ordering("final"), replace(AUROC, by=()), OVER_REWARD, BRIER),
    headline=("preference_ordering_by_final", "auroc", "over_reward_rate", "brier"),
)
WARNING = "These cartoons are drawn and these models are invented."


def make_report(repeats: int = 3, seed: int = 0) -> tuple[Report, dict[str, Frames]]:
    """Draw `repeats` sessions of each kind of task, five behaviours each, and judge them."""
    rng = np.random.default_rng(seed)
    labels, frames = [], {}
    for kind, words in KINDS.items():
        for session in range(repeats):
            colour, goal = PAINTS[session % len(PAINTS)]
            for name, behaviour in BEHAVIOURS.items():
                id = f"{kind.replace('/', '-').replace(' ', '-')}/{session:02d}-{name.replace(' ', '-')}"
                images, curve = draw_episode(behaviour, colour, goal, rng)
                frames[id] = Frames.from_array(images, FPS)
                labels.append(_labels(id, kind, words.format(colour=colour, goal=goal), session, name, curve))
    episodes = [Episode(row.id, row.instruction, {"main": frames[row.id]}) for row in labels]
    return report_of(labels, episodes), frames


def make_large_report(episodes: int = 1000, seed: int = 1) -> Report:
    """Many episodes and eight models, without pictures."""
    rng = np.random.default_rng(seed)
    names, kinds = list(BEHAVIOURS), list(KINDS)
    labels = []
    for i in range(episodes):
        name, kind = names[i % len(names)], kinds[(i // 5) % len(kinds)]
        curve = np.clip(np.linspace(0, BEHAVIOURS[name].carries_to, 60), 0, 1)
        words = KINDS[kind].format(colour="red", goal=f"tray number {i // 25}")
        labels.append(replace(_labels(f"{kind}/{i:04d}", kind, words, i // 25, name, curve), events=()))
    still = Frames.from_array(np.zeros((60, 2, 2, 3), np.uint8))
    shown = [Episode(row.id, row.instruction, {"main": still}) for row in labels]
    extra = [(example_card(name=f"noisy-{k}"), _careful(0.05 * k)) for k in range(1, 4)]
    return report_of(labels, shown, extra, rng)


Invented = Callable[[EpisodeLabels, np.random.Generator], Reward]


def report_of(
    labels: Sequence[EpisodeLabels],
    episodes: Sequence[Episode],
    extra: Sequence[tuple[ModelCard, Invented]] = (),
    rng: np.random.Generator | None = None,
) -> Report:
    """Score, measure and compare."""
    rng = rng or np.random.default_rng(7)
    grades = example_card(name="grades", quantity="grade", low=1.0, high=5.0, frame_budget=8)
    careful, eager = example_card(name="careful"), example_card(name="eager", causal=False)
    invented = [(careful, _careful(0.12)), (eager, _eager), (grades, _grades), *extra]
    rewards = [score(row, rng) for _, score in invented for row in labels]
    controls = [Clock(), Constant(), Noise()]
    rewards += [reward for model in controls for reward in model.score(list(episodes))]
    report = Report(
        about=About(BENCHMARK.name, BENCHMARK.claim, "fakes.drawn_sample"),
        cards=(*(card for card, _ in invented), *(model.card for model in controls)),
        controls=tuple(model.card.name for model in controls),
        episodes=tuple(labels),
        rewards=tuple(ScoredUnder(reward) for reward in rewards),
        warnings=(WARNING,),
        environment={"demerit": "0.1.0", "python": "3.11", "resamples": "500"},
    )
    return recompute(report, BENCHMARK)


def _labels(id: str, kind: str, words: str, session: int, name: str, curve: np.ndarray) -> EpisodeLabels:
    behaviour, task = BEHAVIOURS[name], f"{kind} {session}"
    return EpisodeLabels(
        *(id, words, kind, task, task),
        frames=len(curve),
        seconds=len(curve) / FPS,
        success=behaviour.success,
        progress=float(curve[-1]),
        grade=1 + round(4 * float(curve[-1])),
        vouched_by="rule",
        note=behaviour.note,
        events=tuple(Event(**facts, note=behaviour.note) for facts in failure_events(behaviour)),
        curve=curve.astype(np.float32),
    )


def _careful(noise: float) -> Invented:
    def score(row: EpisodeLabels, rng: np.random.Generator) -> Reward:
        assert row.curve is not None
        name = "careful" if noise == 0.12 else f"noisy-{round(noise / 0.05)}"
        if rng.random() < 0.04:
            return Reward.unscored(name, row.id, "the server timed out")
        wander = np.cumsum(rng.normal(0, noise / 4, row.frames)) + rng.normal(0, noise)
        value = np.clip(0.08 + 0.8 * row.curve + wander, 0, 1)
        success = 1 / (1 + np.exp(-8 * (value - 0.7)))
        return Reward(name, row.id, np.arange(row.frames), value, success)

    return score


def _eager(row: EpisodeLabels, rng: np.random.Generator) -> Reward:
    assert row.curve is not None
    time = np.linspace(0, 1, row.frames)
    reached = np.maximum.accumulate(row.curve)
    value = np.clip(0.55 * time**0.8 + 0.4 * reached + rng.normal(0, 0.1) * time, 0, 1)
    if rng.random() < 0.03:
        value[-3:] = np.nan
    reason = "the answer was cut off" if np.isnan(value).any() else ""
    return Reward("eager", row.id, np.arange(row.frames), value, why_missing=reason)


def _grades(row: EpisodeLabels, rng: np.random.Generator) -> Reward:
    assert row.curve is not None
    at = spread(row.frames, 8)
    return Reward("grades", row.id, at, np.clip(np.rint(1 + 4 * row.curve[at] + rng.normal(0, 1.6, len(at))), 1, 5))


def shading_frames(count: int = 64, size: tuple[int, int] = (120, 90)) -> Frames:
    """Frames whose grey tells their number: frame k is about 2 + 3.5 k bright, for tests that look at the pixels."""
    grey = (2 + 3.5 * np.arange(count)).astype(np.uint8)
    images = np.broadcast_to(grey[:, None, None, None], (count, size[1], size[0], 3))
    return Frames.from_array(np.ascontiguousarray(images), FPS)
