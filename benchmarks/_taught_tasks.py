"""Teaching many small lessons on simulated tasks: what was seen, who is taught and tested, what came of it.

Used by `what_a_bad_example_is_worth.py`. Nothing here is fitted but heads, with default settings.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from demerit.models.taught.network import Network
from demerit.training.teach.head import fit
from demerit.training.teach.labels import Label
from demerit.training.teach.rows import Pair
from demerit.training.teach.settings import Settings
from demerit.training.teach.targets import Target, begun, target_of

from demerit.data.episode import Episode
from demerit.data.labels import Preference
from demerit.data.store import Store
from demerit.evaluate.benchmarks.curve_metrics import FALL, PATIENCE
from demerit.evaluate.metrics.bootstrap import NAN, Measure, Tally, mean_tally, values_of
from demerit.evaluate.metrics.detection import auroc, over_reward
from demerit.evaluate.metrics.failure_moment import falls_at
from demerit.evaluate.metrics.ordering import judgement_agreement
from demerit.models.baselines import Change, Clock, Constant, Length, Motion
from demerit.models.compact.resize import resize_square
from demerit.models.protocol import RewardModel
from demerit.models.taught.features import Layout, Stream, widths_of
from demerit.negatives.sim.splits import matched_pairs

CONTROLS = ("clock", "constant", "change", "motion", "length")
UNTAUGHT = "the default model, untaught"
TEST_SCENES = 3
"""scenes of a task that are tested on in a draw; the lesson comes from the others"""
FEWEST = 2
"""successes, and failures, that a test part must have"""
WANTED = ((16, 0), (10, 0), (12, 4), (8, 8), (4, 12), (20, 20))
"""lessons that the untested scenes should have enough episodes for"""
MARKS, SIDE, LONG = 4, 16, 100.0
MOMENTS = ("dropped", "undone", "collision")
Curve = tuple[np.ndarray, np.ndarray]
"""frames and their values"""


@dataclass(frozen=True, eq=False)
class Seen:
    """One episode: what is known about it, and everything that anybody sees in it."""

    id: str
    task: str
    scene: str
    behaviour: str
    success: bool
    truth: np.ndarray
    events: tuple[tuple[str, int], ...]
    """what was dropped, undone or hit, and at which frame"""
    rewards: dict[str, Curve]
    """what the models that are not taught say"""
    features: np.ndarray
    pixels: np.ndarray


def look(store: Path, kept: Path | None) -> tuple[list[Seen], list[Preference]]:
    """Look at every episode once, or take what an earlier run with the same network saw."""
    episodes = [one for one in Store(store).episodes() if one.outcome is not None and one.outcome.curve is not None]
    network = Network.shipped()
    if kept is not None and kept.exists():
        with np.load(kept, allow_pickle=False) as file:
            if str(file["network"]) == network.hash and json.loads(str(file["ids"])) == [one.id for one in episodes]:
                return _unpacked(episodes, {name: file[name] for name in file.files}), matched_pairs(episodes)
    models: dict[str, RewardModel] = dict(
        zip(CONTROLS, (Clock(), Constant(), Change(), Motion(), Length()), strict=True)
    )
    columns: dict[str, list[np.ndarray]] = defaultdict(list)
    for one in episodes:
        images = one.main.take(range(len(one)))
        stream = Stream(network, one.instruction, ("tower",))
        features = stream.look(network.prepare(images))
        columns["features"].append(features.astype(np.float16))
        columns["pixels"].append(resize_square(images, SIDE).reshape(len(images), -1))
        said = {name: model.score([one])[0] for name, model in models.items()}
        for name, reward in said.items():
            columns[name].append(np.interp(np.arange(len(one)), reward.at, reward.value))
        columns[UNTAUGHT].append(np.clip(network.follow(features, one.instruction).progress, 0, 1))
    packed = {name: np.concatenate(parts) for name, parts in columns.items()}
    if kept is not None:
        facts = {"network": np.array(network.hash), "ids": np.array(json.dumps([one.id for one in episodes]))}
        np.savez(kept, allow_pickle=False, **facts, **packed)
    return _unpacked(episodes, packed), matched_pairs(episodes)


def _unpacked(episodes: Sequence[Episode], packed: dict[str, np.ndarray]) -> list[Seen]:
    found, start = [], 0
    for one in episodes:
        rows = slice(start, start + len(one))
        start = rows.stop
        tags, outcome = one.origin.tags, one.outcome
        at = np.arange(len(one))
        rewards = {name: (at, packed[name][rows].astype(np.float64)) for name in (*CONTROLS, UNTAUGHT)}
        assert outcome is not None and outcome.curve is not None
        events = tuple((event.kind, event.first) for event in outcome.events if event.kind in MOMENTS)
        names = (one.id, tags["task"], one.origin.group, tags["behaviour"])
        known = (bool(outcome.success), outcome.curve, events)
        found.append(Seen(*names, *known, rewards, packed["features"][rows], packed["pixels"][rows]))
    return found


@dataclass(frozen=True)
class Lesson:
    """What is taught: so many successes and failures, how they are labelled, and through which eyes."""

    good: int
    bad: int
    label: str = "dense"
    eyes: str = "network"
    without: str = ""
    """a behaviour whose failures are not taught"""


@dataclass(frozen=True, eq=False)
class Draw:
    """One task's episodes divided: some scenes are tested on, lessons take the first of each list of the others."""

    task: str
    number: int
    test: tuple[Seen, ...]
    good: tuple[Seen, ...]
    bad: tuple[Seen, ...]

    def taught(self, lesson: Lesson) -> list[Seen] | None:
        """The lesson's episodes; None where the task has too few. Larger lessons contain smaller ones."""
        bad = [one for one in self.bad if not lesson.without or one.behaviour != lesson.without]
        if len(self.good) < lesson.good or len(bad) < lesson.bad:
            return None
        return [*self.good[: lesson.good], *bad[: lesson.bad]]


def draws_of(seen: Sequence[Seen], pairs: Sequence[Preference], count: int) -> list[Draw]:
    """Divide every task a few times. Which scenes are tested on is decided by labels alone, before any model is asked.

    Of all triples of scenes that leave enough for the wanted lessons, four times as many as needed are drawn and those
    with the most matched pairs inside are kept.
    """
    found = []
    for task in sorted({one.task for one in seen}):
        mine = [one for one in seen if one.task == task]
        rng = np.random.default_rng([sum(task.encode()), 1])
        triples = _best(mine)
        some = [triples[i] for i in rng.permutation(len(triples))[: 4 * count]]
        inside = [{one.id for one in mine if one.scene in scenes} for scenes in some]
        held = [sum(pair.a in ids and pair.b in ids for pair in pairs) for ids in inside]
        for number, place in enumerate(np.argsort([-n for n in held], kind="stable")[:count].tolist()):
            rest = [mine[i] for i in rng.permutation(len(mine)) if mine[i].id not in inside[place]]
            sides = (tuple(one for one in rest if one.success == side) for side in (True, False))
            found.append(Draw(task, number, tuple(one for one in mine if one.id in inside[place]), *sides))
    return found


def _best(mine: Sequence[Seen]) -> list[tuple[str, ...]]:
    scenes = sorted({one.scene for one in mine})
    good = {scene: sum(one.success for one in mine if one.scene == scene) for scene in scenes}
    bad = {scene: sum(not one.success for one in mine if one.scene == scene) for scene in scenes}
    by_number: dict[int, list[tuple[str, ...]]] = defaultdict(list)
    for chosen in itertools.combinations(scenes, TEST_SCENES):
        a, b = sum(good[scene] for scene in chosen), sum(bad[scene] for scene in chosen)
        if min(a, b) >= FEWEST:
            left = (sum(good.values()) - a, sum(bad.values()) - b)
            by_number[sum(left[0] >= g and left[1] >= f for g, f in WANTED)].append(chosen)
    return by_number[max(by_number)]


def teach(draw: Draw, lesson: Lesson, columns: Columns) -> dict[str, Curve] | None:
    """Fit one head and let it judge the draw's test part; None where the task has too few episodes."""
    taught = draw.taught(lesson)
    if taught is None:
        return None
    settings, layout = columns.settings(lesson.eyes)
    features = [columns.of(one, lesson.eyes) for one in taught]
    targets = [_target(one, lesson.label, settings) for one in taught]
    pairs: list[Pair] = []
    if lesson.label == "preferences":
        places = range(len(taught))
        pairs = [Pair(a, b) for a in places for b in places if taught[a].success and not taught[b].success]
    head = fit(features, targets, settings, groups=[one.scene for one in taught], pairs=pairs, layout=layout)
    judged = {}
    for one in draw.test:
        value = head.value(head.outputs(columns.of(one, lesson.eyes)))
        judged[one.id] = (np.arange(len(value)), np.asarray(value, dtype=np.float64))
    return judged


class Columns:
    """What a head sees of an episode: the network's numbers, small pictures, or only how much changed and moved."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.parts = tuple(Settings().parts)

    def of(self, one: Seen, eyes: str) -> np.ndarray:
        if eyes == "pixels":
            return np.asarray(one.pixels / 255, dtype=np.float32)
        if eyes == "cues":
            cues = [one.rewards[name][1] for name in ("change", "motion")]
            return np.stack([*cues, np.arange(len(one.truth)) / LONG], axis=1)
        return Stream(self.network, "", self.parts).follow(one.features.astype(np.float32))

    def settings(self, eyes: str) -> tuple[Settings, Layout | None]:
        """The defaults; what is not the network's has fewer parts, and the cues none."""
        if eyes == "pixels":
            return replace(Settings(), parts={"tower": 1.0}), Layout(("main",), ("tower",), (SIDE * SIDE * 3,))
        if eyes == "cues":
            return Settings(kind="linear"), None
        info = self.network.engine.info
        widths = widths_of(self.parts, self.network.vector, info.features - self.network.vector, info.hidden)
        return Settings(), Layout(("main",), self.parts, widths)


def _target(one: Seen, label: str, settings: Settings) -> Target:
    length = len(one.truth)
    if label == "preferences":
        return begun(length, settings)
    made: dict[str, Callable[[], Label]] = {
        "dense": lambda: Label(success=one.success, progress=float(one.truth[-1]), curve=one.truth),
        "moments": lambda: Label(success=one.success, progress=float(one.truth[-1]), curve=marked(one.truth)),
        "time": lambda: Label(success=one.success, curve=_straight(length) if one.success else None),
        "outcome": lambda: Label(success=one.success),
    }
    return target_of(made[label](), length, settings)


def _straight(length: int) -> np.ndarray:
    return np.linspace(0, 1, length, dtype=np.float32)


def marked(truth: np.ndarray) -> np.ndarray:
    """Keep the start, the end, and the two turning points: each time the frame farthest from straight lines so far."""
    at = [0, len(truth) - 1]
    while len(at) < min(MARKS, len(truth)):
        away = np.abs(truth - np.interp(np.arange(len(truth)), sorted(at), truth[sorted(at)]))
        away[at] = -1
        at.append(int(away.argmax()))
    known = np.full(len(truth), np.nan, dtype=np.float32)
    known[at] = truth[at]
    return known


EpisodeLabels = dict[tuple[str, int], dict[str, Curve]]
"""what one row of a table says: per task and draw, per test episode"""
METRICS = ("auroc", "pairs", "mae", "over")


@dataclass(frozen=True, eq=False)
class Test:
    """Everything that judgements are held against."""

    seen: dict[str, Seen]
    pairs: list[Preference]
    draws: list[Draw]

    def of_model(self, name: str, of: set[tuple[str, int]] | None = None) -> EpisodeLabels:
        """What a model that is not taught says, on the same test parts."""
        return {
            (draw.task, draw.number): {one.id: one.rewards[name] for one in draw.test}
            for draw in self.draws
            if of is None or (draw.task, draw.number) in of
        }

    def truth(self) -> EpisodeLabels:
        """The simulator's own progress."""
        return {
            (draw.task, draw.number): {one.id: (np.arange(len(one.truth)), one.truth) for one in draw.test}
            for draw in self.draws
        }

    def one(self, judged: dict[str, Curve]) -> dict[str, float]:
        """The four metrics of one test part."""
        final = {id: float(curve[1][-1]) for id, curve in judged.items()}
        scores, good = list(final.values()), [self.seen[id].success for id in final]
        inside = [pair for pair in self.pairs if pair.a in final and pair.b in final]
        margins = [final[pair.a] - final[pair.b] for pair in inside]
        away = [np.abs(curve[1] - self.seen[id].truth[curve[0]]) for id, curve in judged.items()]
        return {
            "auroc": _value(auroc(scores, good)),
            "pairs": _value(judgement_agreement(margins, [pair.verdict for pair in inside])) if inside else NAN,
            "inside": float(len(inside)),
            "mae": float(np.concatenate(away).mean()),
            "over": _value(over_reward(scores, good)),
        }

    def by_task(self, judged: EpisodeLabels) -> dict[str, dict[str, float]]:
        """Average each task over its draws; pairs count by how many there are."""
        parts: dict[str, list[dict[str, float]]] = defaultdict(list)
        for (task, _), each in judged.items():
            parts[task].append(self.one(each))
        return {task: _averaged(found) for task, found in sorted(parts.items())}

    def pooled(self, judged: EpisodeLabels) -> float:
        """AUROC over the episodes of all tasks together, per draw, averaged."""
        found = []
        for number in sorted({number for _, number in judged}):
            final = {id: c[1][-1] for (_, n), each in judged.items() if n == number for id, c in each.items()}
            found.append(_value(auroc(list(final.values()), [self.seen[id].success for id in final])))
        return float(np.nanmean(found))

    def moments(self, judged: EpisodeLabels) -> dict[str, Measure]:
        """Does the value fall where something was dropped, undone or hit? Rows are events, clusters are tasks."""
        columns: dict[str, list[float]] = {name: [] for name in ("caught", "placebo", "latency")}
        tasks, kinds = [], []
        for id, curve, (kind, start) in self._events(judged):
            window = max(1, round(PATIENCE * len(self.seen[id].truth)))
            fall = falls_at([curve[1]], [curve[0]], [start], window=window, delta=FALL)
            tasks.append(self.seen[id].task)
            kinds.append(kind)
            for name, column in columns.items():
                column.append(float(getattr(fall, name)[0]))
        found = {name: mean_tally(name, "events", np.array(each), tasks).measure() for name, each in columns.items()}
        for kind in MOMENTS:
            mine = [i for i, one in enumerate(kinds) if one == kind]
            caught = np.array([columns["caught"][i] for i in mine])
            found[kind] = mean_tally(kind, "events", caught, [tasks[i] for i in mine]).measure()
        return found

    def _events(self, judged: EpisodeLabels) -> Iterator[tuple[str, Curve, tuple[str, int]]]:
        for each in judged.values():
            for id, curve in each.items():
                for event in self.seen[id].events:
                    yield id, curve, event


def _value(tally: Tally) -> float:
    """The value without its interval: intervals are over tasks, later."""
    return float(values_of(tally.statistic, tally.codes, np.ones((1, len(tally.clusters))))[0]) if tally.n else NAN


def _averaged(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    mean = {name: float(np.mean([one[name] for one in parts])) for name in ("auroc", "mae", "over")}
    weights = [one["inside"] for one in parts]
    credit = sum(one["pairs"] * one["inside"] for one in parts if one["inside"])
    return {**mean, "pairs": credit / sum(weights) if sum(weights) else NAN, "inside": sum(weights)}


def over_tasks(values: dict[str, float]) -> Measure:
    """Mean and interval over tasks."""
    return mean_tally("", "tasks", np.array(list(values.values())), list(values)).measure()
