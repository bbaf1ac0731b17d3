"""A realistic report for the tests of its page: the drawn dataset, real controls, and models invented for the test.

The invented models look at the true curve (no real model can) and bend it: `careful` adds noise, `eager` believes that
time is progress, `grades` answers 1 to 5 on few frames. Their numbers say nothing about anything but this page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from demerit.data.episode import Episode
from demerit.data.frames import Frames, spread
from demerit.data.labels import Event
from demerit.data.reward import Reward
from demerit.evaluate.metrics import Measure, Resampling, Tally, compare, holm
from demerit.evaluate.metrics.calibration import brier_tally
from demerit.evaluate.metrics.controls import shown_nothing
from demerit.evaluate.metrics.detection import auroc_tally, over_reward_tally
from demerit.evaluate.metrics.ordering import ordering_tally
from demerit.evaluate.reports.report import About, Judged, Line, Report, Shown, Versus
from demerit.models.baselines import Clock, Constant, Noise
from demerit.models.protocol import ModelCard, example_card
from fakes.drawn_sample import BEHAVIOURS, FPS, FRAMES, draw_episode

KINDS = {
    "pick/place": "put the {colour} block on the {goal}",
    "push/pull": "push the {colour} block onto the {goal}",
    "open/close": "close the {colour} box beside the {goal}",
    "stack": "stack the {colour} block on the block at the {goal}",
    "reorient": "turn the {colour} block upright on the {goal}",
}
PAINTS = (("red", "green square"), ("blue", "white tray"), ("yellow", "green square"))
EVENT_AT = {"drops": (16, 19), "misses": (9, 12), "stops short": (20, 24), "undoes it": (24, 31)}
DRAWS = Resampling(resamples=500)
HEADLINE = ("preference_ordering_by_final", "auroc", "over_reward_rate", "brier")
WARNING = "Drawn cartoons and invented models: this page shows what a report looks like, not what any model is worth."


def make_report(repeats: int = 3, seed: int = 0) -> tuple[Report, dict[str, Frames]]:
    """Draw `repeats` sessions of each kind of task, five behaviours each, and judge them."""
    rng = np.random.default_rng(seed)
    judged, frames = [], {}
    for kind, words in KINDS.items():
        for session in range(repeats):
            colour, goal = PAINTS[session % len(PAINTS)]
            for name, behaviour in BEHAVIOURS.items():
                id = f"{kind.replace('/', '-').replace(' ', '-')}/{session:02d}-{name.replace(' ', '-')}"
                images, curve = draw_episode(behaviour, colour, goal, rng)
                frames[id] = Frames.from_array(images, FPS)
                judged.append(_judged(id, kind, words.format(colour=colour, goal=goal), session, name, curve))
    return report_of(judged, [Episode(one.id, one.instruction, {"main": frames[one.id]}) for one in judged]), frames


def make_large_report(episodes: int = 1000, seed: int = 1) -> Report:
    """Many episodes and eight models, without pictures."""
    rng = np.random.default_rng(seed)
    names, kinds = list(BEHAVIOURS), list(KINDS)
    judged = []
    for i in range(episodes):
        name, kind = names[i % len(names)], kinds[(i // 5) % len(kinds)]
        curve = np.clip(np.linspace(0, BEHAVIOURS[name].carries_to, 60), 0, 1)
        words = KINDS[kind].format(colour="red", goal=f"tray number {i // 25}")
        one = _judged(f"{kind}/{i:04d}", kind, words, i // 25, name, curve)
        judged.append(replace(one, events=()))
    still = Frames.from_array(np.zeros((60, 2, 2, 3), np.uint8))
    shown = [Episode(one.id, one.instruction, {"main": still}) for one in judged]
    extra = [(example_card(name=f"noisy-{k}"), _careful(0.05 * k)) for k in range(1, 4)]
    return report_of(judged, shown, extra, rng)


Invented = Callable[[Judged, np.random.Generator], Reward]


def report_of(
    judged: Sequence[Judged],
    episodes: Sequence[Episode],
    extra: Sequence[tuple[ModelCard, Invented]] = (),
    rng: np.random.Generator | None = None,
) -> Report:
    """Score, measure and compare."""
    rng = rng or np.random.default_rng(7)
    made = [
        (example_card(name="careful", about="Invented: sees the truth through a little noise."), _careful(0.12)),
        (example_card(name="eager", about="Invented: half of what it sees is the clock.", causal=False), _eager),
        (
            example_card(name="grades", quantity="grade", low=1.0, high=5.0, frame_budget=8, about="Invented."),
            _grades,
        ),
        *extra,
    ]
    rewards = {card.name: [score(one, rng) for one in judged] for card, score in made}
    controls = [Clock(), Constant(), Noise()]
    rewards |= {model.card.name: model.score(list(episodes)) for model in controls}
    cards = [card for card, _ in made] + [model.card for model in controls]
    names = tuple(model.card.name for model in controls)
    lines = _lines(judged, cards, rewards)
    return Report(
        about=About(
            "sample@1",
            "Tells five drawn behaviours of a cartoon gripper apart. It says nothing about real robots.",
            "fakes.drawn_sample",
            HEADLINE,
            ("over_reward_rate", "brier"),
        ),
        cards=tuple(cards),
        controls=names,
        episodes=tuple(judged),
        rewards=tuple(Shown(reward) for each in rewards.values() for reward in each),
        lines=tuple(lines),
        comparisons=tuple(_comparisons(judged, rewards)),
        verdicts={card.name: _verdict(lines, card.name, names) for card, _ in made},
        warnings=(WARNING,),
        environment={"demerit": "0.1.0", "python": "3.11", "resamples": str(DRAWS.resamples)},
    )


def _judged(id: str, kind: str, words: str, session: int, name: str, curve: np.ndarray) -> Judged:
    behaviour = BEHAVIOURS[name]
    first, last = EVENT_AT.get(name, (0, 0))
    return Judged(
        id=id,
        instruction=words,
        category=kind,
        context=f"{kind} {session}",
        task=f"{kind} {session}",
        frames=len(curve),
        seconds=len(curve) / FPS,
        success=behaviour.success,
        progress=float(curve[-1]),
        grade=1 + round(4 * float(curve[-1])),
        vouched_by="rule",
        note=behaviour.note,
        events=(Event(behaviour.event, first, last, behaviour.note),) if behaviour.event else (),
        curve=curve.astype(np.float32),
    )


def _careful(noise: float) -> Invented:
    def score(one: Judged, rng: np.random.Generator) -> Reward:
        assert one.curve is not None
        name = "careful" if noise == 0.12 else f"noisy-{round(noise / 0.05)}"
        if rng.random() < 0.04:
            return Reward.unscored(name, one.id, "the server timed out")
        wander = np.cumsum(rng.normal(0, noise / 4, one.frames)) + rng.normal(0, noise)
        value = np.clip(0.08 + 0.8 * one.curve + wander, 0, 1)
        success = 1 / (1 + np.exp(-8 * (value - 0.7)))
        return Reward(name, one.id, np.arange(one.frames), value, success)

    return score


def _eager(one: Judged, rng: np.random.Generator) -> Reward:
    assert one.curve is not None
    time = np.linspace(0, 1, one.frames)
    reached = np.maximum.accumulate(one.curve)
    value = np.clip(0.55 * time**0.8 + 0.4 * reached + rng.normal(0, 0.1) * time, 0, 1)
    if rng.random() < 0.03:
        value[-3:] = np.nan
    reason = "the answer was cut off" if np.isnan(value).any() else ""
    return Reward("eager", one.id, np.arange(one.frames), value, why_missing=reason)


def _grades(one: Judged, rng: np.random.Generator) -> Reward:
    assert one.curve is not None
    at = spread(one.frames, 8)
    return Reward("grades", one.id, at, np.clip(np.rint(1 + 4 * one.curve[at] + rng.normal(0, 1.6, len(at))), 1, 5))


def _lines(judged: Sequence[Judged], cards: Sequence[ModelCard], rewards: dict[str, list[Reward]]) -> list[Line]:
    lines = []
    for card in cards:
        final = _finals(rewards[card.name])
        for name in HEADLINE:
            if name == "brier" and card.high != 1.0:
                continue
            lines.append(Line(card.name, _tally(name, judged)(final).measure(DRAWS)))
        for kind in sorted({one.category for one in judged}):
            rows = [i for i, one in enumerate(judged) if one.category == kind]
            part = _tally(HEADLINE[0], [judged[i] for i in rows])(final[rows]).measure(DRAWS)
            lines.append(Line(card.name, part, f"category: {kind}"))
    return lines


def _finals(rewards: Sequence[Reward]) -> np.ndarray:
    return np.array([reward.final for reward in rewards], dtype=np.float64)


def _tally(name: str, judged: Sequence[Judged]) -> Callable[[np.ndarray], Tally]:
    tasks = [one.task for one in judged]
    success = np.array([float(bool(one.success)) for one in judged])
    progress = np.array([one.progress or 0.0 for one in judged])
    return {
        "preference_ordering_by_final": lambda x: ordering_tally(x, progress, tasks, how="final"),
        "auroc": lambda x: auroc_tally(x, success, clusters=tasks),
        "over_reward_rate": lambda x: over_reward_tally(x, success, clusters=tasks),
        "brier": lambda x: brier_tally(x, success, clusters=tasks),
    }[name]


def _comparisons(judged: Sequence[Judged], rewards: dict[str, list[Reward]]) -> list[Versus]:
    pairs = [("careful", "eager"), ("careful", "grades"), ("eager", "grades")]
    found = {}
    for first, second in pairs:
        result = compare(_tally("auroc", judged), _finals(rewards[first]), _finals(rewards[second]), DRAWS)
        found[f"{first} {second}"] = (first, second, result)
    adjusted = holm({key: result.p for key, (_, _, result) in found.items()})
    return [
        Versus(a, b, "auroc", c.difference, c.low, c.high, c.p, adjusted[key], c.n) for key, (a, b, c) in found.items()
    ]


def _verdict(lines: Sequence[Line], model: str, controls: Sequence[str]) -> tuple[str, ...]:
    sentences = []
    for name in HEADLINE[:3]:
        whole = {line.model: line.measure for line in lines if line.measure.name == name and not line.part}
        others: dict[str, Measure] = {other: whole[other] for other in controls}
        lower = name == "over_reward_rate"
        text = shown_nothing(whole[model], others, higher_is_better=not lower)
        sentences.append(text or f"{name}: {whole[model].value:.3f} is clear of every control.")
    return tuple(sentences)


def shading_frames(count: int = 64, size: tuple[int, int] = (120, 90)) -> Frames:
    """Frames whose grey tells their number: frame k is about 2 + 3.5 k bright, for tests that look at the pixels."""
    grey = (2 + 3.5 * np.arange(count)).astype(np.uint8)
    images = np.broadcast_to(grey[:, None, None, None], (count, size[1], size[0], 3))
    return Frames.from_array(np.ascontiguousarray(images), FPS)


def write_example(folder: Path, repeats: int = 6) -> Path:
    """Write `report.json` and `report.html` of the drawn dataset, for looking at."""
    from demerit.evaluate.reports.page import write_page

    report, frames = make_report(repeats)
    report.write(folder / "report.json")
    return write_page(report, folder / "report.html", frames)


assert FRAMES == 32  # EVENT_AT counts on it
