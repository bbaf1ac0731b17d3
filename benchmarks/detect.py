"""Does a detector of failures keep its promise, and how many failures does it find how soon? On unseen seeds.

    python benchmarks/detect.py DATASET --curves FILE [--promise 0.05] [--parts 3] [--no-reader]
    python benchmarks/detect.py DATASET --successes [--deals 20]
    python benchmarks/detect.py --small        (both, with drawn episodes)

DATASET holds simulated episodes (`demerit simulate`). For each task, a third of the seeds teaches a model, which scores
the others; then another third teaches. FILE keeps the scores: a second run only measures. Then half of the scored
seeds, of all tasks together, calibrates one detector and the other half is tested, in `--deals` ways.

    false alarms   share of successes with an alarm, all frames of an episode together
    found          share of failures with an alarm
    delay          median from the moment of failure to the alarm, as a share of the episode; early ones are negative
    moment         median distance from the moment of failure to where it is said to have gone wrong, as a share
    AUROC          of the largest distance behind, a failure against a success

`clock`, `length`, a jerk heuristic (third difference of the states) and the fall of the taught value below its highest
go through the same detector.

`--successes`: successes alone, with no labelled failure. For each task and choice of cameras, half of the successes
teach a model (closed form, flags alone) and calibrate the detector, with the smallest promise that so many allow; the
other successes and all failures are tested, in `--deals` ways.

    left out, at the end   each success is left out of the fit in turn; the level at the end decides
    left out, all frames   the same, with all frames
    one half each          half of them teach, half calibrate; all frames, and a larger promise
    nearest last frame     distance of the last frame to that of the nearest success, left out
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from demerit.data.dataset import Dataset, ListReader
from demerit.data.episode import Episode, Outcome
from demerit.data.formats import open_dataset
from demerit.data.reward import Reward
from demerit.data.splits import LabelSelection
from demerit.decide.detector import Detection, calibrate_detector
from demerit.decide.measure import failure_moment, measure_detections
from demerit.decide.threshold import affordable_risk, conformal_threshold, failures_needed
from demerit.evaluate.metrics.bootstrap import Resampling
from demerit.evaluate.metrics.success import auroc
from demerit.models.baselines import Clock, Length
from demerit.models.protocol import example_card
from demerit.models.taught.features import Features
from demerit.models.taught.model import TaughtModel
from demerit.training.teach import TeachConfig, teach
from fakes.drawn_sample import make_sample

Judged = list[tuple[Episode, Detection]]
Rows = tuple[npt.NDArray[np.int32], Features]
Folds = dict[int, list[tuple[Episode, Reward]]]
CARD = example_card(name="taught")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?")
    parser.add_argument("--curves", type=Path, help="file of the scores, made if it is missing")
    parser.add_argument("--promise", type=float, default=0.05)
    parser.add_argument("--parts", type=int, default=3, help="parts of the seeds; each teaches once")
    parser.add_argument("--deals", type=int, help="150, or 20 with --successes")
    parser.add_argument("--successes", action="store_true", help="teach and calibrate on successes alone")
    parser.add_argument("--no-reader", action="store_true")
    parser.add_argument("--small", action="store_true", help="drawn episodes, a promise of 0.4")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        if given.small:
            given.dataset, given.promise, given.no_reader = str(make_sample(Path(temporary) / "drawn")), 0.4, True
        elif not given.dataset:
            parser.error("DATASET or --small")
        episodes = [one for one in open_dataset(given.dataset) if one.outcome and one.outcome.success is not None]
        if given.small:
            more = open_dataset(str(make_sample(Path(temporary) / "more", repeats=8)))
            report_successes([one for one in more if one.outcome], 2, Path(temporary))
        elif given.successes:
            report_successes(episodes, given.deals or 20, Path(temporary))
            return
        given.deals = given.deals or 150
        curves = given.curves or Path(temporary) / "curves.json"
        if not curves.exists():
            rows = [row for fold in range(given.parts) for row in score_fold(episodes, fold, given)]
            curves.write_text(json.dumps(rows))
        report(episodes, json.loads(curves.read_text()), given)


def seed_of(episode: Episode) -> int:
    return int(episode.origin.tags.get("seed", sum(episode.id.encode())))


def task_of(episode: Episode) -> str:
    return episode.origin.tags.get("task", "all")


def score_fold(episodes: list[Episode], fold: int, given: argparse.Namespace) -> list[dict[str, object]]:
    """Teach every task on one part of its seeds; return the scores of all others."""
    found: list[dict[str, object]] = []
    for task in sorted({task_of(one) for one in episodes}):
        mine = [one for one in episodes if task_of(one) == task]
        part = {seed: place % given.parts for place, seed in enumerate(sorted({seed_of(one) for one in mine}))}
        lesson = Dataset(ListReader("lesson", [one for one in mine if part[seed_of(one)] == fold]), "")
        config = TeachConfig(reader=not given.no_reader)
        model = teach(lesson, workers=0, use_test_split=True, config=config).model
        for one in mine:
            if part[seed_of(one)] != fold:
                (reward,) = model.score([one])
                assert reward.success is not None, reward
                scores = {"value": reward.value.tolist(), "success": reward.success.tolist()}
                found.append({"fold": fold, "episode": one.id, "at": reward.at.tolist(), **scores})
    return found


def report(episodes: Sequence[Episode], rows: list[dict[str, object]], given: argparse.Namespace) -> None:
    by_id = {one.id: one for one in episodes}
    folds: Folds = {}
    for row in rows:
        episode = by_id[str(row["episode"])]
        arrays = [np.array(row[name], np.float32) for name in ("at", "value", "success")]
        folds.setdefault(int(str(row["fold"])), []).append((episode, Reward("taught", episode.id, *arrays)))
    print(f"promised: at most {given.promise:.1%} of successes have an alarm\n")
    print("| values of | false alarms | found | delay | early | moment | AUROC |\n|---|---|---|---|---|---|---|")
    table: list[Judged] = []
    for name, made in SIGNALS.items():
        changed = {fold: [(one, made(one, reward)) for one, reward in pairs] for fold, pairs in folds.items()}
        ways = deal(changed, given)
        table = table or ways
        print(f"| {name} | {describe(ways)} |", flush=True)
    for most in (19, 39) if not given.small else ():
        print(f"| the taught model, {most} calibration successes | {describe(deal(folds, given, most))} |")
    print(f"\n{describe_guess(table)}")
    print("\n| task | false alarms | found | delay | early | moment | AUROC | F1 |\n|---|---|---|---|---|---|---|---|")
    scores = []
    for task in sorted({task_of(one) for one in episodes}):
        ways = [[row for row in way if task_of(row[0]) == task] for way in table]
        scores.append(measure_detections(row for way in ways for row in way).f1)
        print(f"| {task} | {describe(ways)} | {scores[-1]:.2f} |")
    print(f"\nmean F1 over tasks: {np.nanmean(scores):.2f}")


def deal(folds: Folds, given: argparse.Namespace, most: int | None = None) -> list[Judged]:
    """Calibrate on half of the seeds, or on `most` successes of them, and judge the other half, in many ways."""
    rng = np.random.default_rng(0)
    selection = LabelSelection(use_test_split=True)
    ways = []
    for number in range(given.deals):
        pairs = folds[number % len(folds)]
        seeds = rng.permutation(sorted({seed_of(one) for one, _ in pairs}))
        inside = set(seeds[: len(seeds) // 2].tolist())
        known = [(one, r) for one, r in pairs if seed_of(one) in inside and one.outcome and one.outcome.success]
        known = [known[i] for i in rng.permutation(len(known))[:most]]
        if len(known) < failures_needed(given.promise):  # only with --small
            continue
        detector = calibrate_detector(known, CARD, "taught", given.promise, selection=selection)
        ways.append(
            [(one, detector.judge(r, len(one), one.instruction)) for one, r in pairs if seed_of(one) not in inside]
        )
    return ways


def describe(ways: Sequence[Judged]) -> str:
    """False alarms, failures found, delay and early alarms of all ways together; AUROC as their mean."""
    figures = measure_detections(row for way in ways for row in way)
    areas = []
    for way in ways:
        labels = [one.outcome.success for one, _ in way if one.outcome is not None]
        if len(set(labels)) > 1:
            area = auroc([-found.behind for _, found in way], np.array(labels, dtype=float))
            areas.append(area.measure(Resampling(resamples=1)).value)
    moment = f"{figures.early.value:.0%} | {figures.moment_error:.1%}"
    delay = "- | - | -" if math.isnan(figures.delay_share) else f"{figures.delay_share:+.1%} | {moment}"
    shares = f"{figures.false_alarms.value:.1%} | {figures.found.value:.1%}"
    return f"{shares} | {delay} | {np.mean(areas):.3f}" if areas else f"{shares} | {delay} | -"


def describe_guess(ways: Sequence[Judged]) -> str:
    """The moments of the failures found, against a constant guess that knows the median moment of all of them."""
    found = [(one, detection, failure_moment(one.outcome)) for way in ways for one, detection in way if one.outcome]
    moments = [(moment[0], len(one), flag.flagged_at) for one, flag, moment in found if moment is not None]
    flagged = np.array([(at / length, frame / length) for at, length, frame in moments if frame is not None])
    if not len(flagged):
        return "no failure found has a marked moment"
    guess = float(np.median([at / length for at, length, _ in moments]))
    constant, alarm = (float(np.median(np.abs(flagged[:, 0] - said))) for said in (guess, flagged[:, 1]))
    return f"median error of a constant guess (at {guess:.0%} of the episode) {constant:.1%}, of the alarm {alarm:.1%}"


# Successes alone


def report_successes(episodes: Sequence[Episode], deals: int, folder: Path) -> None:
    print("| task, cameras | way | promised | false alarms | found |\n|---|---|---|---|---|")
    flags = [
        replace(one, outcomes=(Outcome("human", success=bool(one.outcome and one.outcome.success)),))
        for one in episodes
    ]
    means: dict[str, list[tuple[float, ...]]] = {}
    for task in sorted({task_of(one) for one in flags}):
        mine = [one for one in flags if task_of(one) == task]
        names = tuple(mine[0].views)
        for cameras in [*((name,) for name in names), names] if len(names) > 1 else [names]:
            lesson = SuccessLessons(cameras, folder)
            rng, rows = np.random.default_rng(0), dict[str, list[tuple[float, ...]]]()
            good, bad = (
                [one for one in mine if one.outcome and one.outcome.success is verdict] for verdict in (True, False)
            )
            for _ in range(deals):
                order = rng.permutation(len(good))
                known, new = ([good[i] for i in half] for half in (order[: len(good) // 2], order[len(good) // 2 :]))
                for way, alarms in lesson.judge(known, [*new, *bad]).items():
                    promise, flagged = alarms
                    rows.setdefault(way, []).append(
                        (promise, float(np.mean(flagged[: len(new)])), float(np.mean(flagged[len(new) :])))
                    )
            for way, found in rows.items():
                mean = tuple(np.mean(found, axis=0))
                means.setdefault(way, []).append(mean)
                shares = " | ".join(f"{share:.1%}" for share in mean)
                print(f"| {task}, {' + '.join(cameras)} | {way} | {shares} |", flush=True)
    for way, cells in means.items():
        print(f"| **mean** | {way} | {' | '.join(f'{share:.1%}' for share in np.mean(cells, axis=0))} |")


class SuccessLessons:
    """Teaches on successes of some cameras; the features of an episode are computed once."""

    def __init__(self, cameras: tuple[str, ...], folder: Path) -> None:
        self.cameras, self.folder, self._features = cameras, folder, dict[str, Rows]()

    def teach(self, known: Sequence[Episode]) -> TaughtModel:
        lesson = Dataset(ListReader("lesson", list(known)), "")
        config = TeachConfig(reader=False)
        cache = self.folder / "features"
        return teach(lesson, cameras=self.cameras, workers=0, use_test_split=True, config=config, cache=cache).model

    def features(self, model: TaughtModel, episode: Episode) -> Rows:
        if episode.id not in self._features:
            self._features[episode.id] = model.features(episode)
        return self._features[episode.id]

    def score(self, model: TaughtModel, episode: Episode) -> Reward:
        at, x = self.features(model, episode)
        outputs = model.head.outputs(x, model.task(episode.instruction))
        return Reward("taught", episode.id, at, model.head.value(outputs), model.head.success(outputs))

    def judge(self, known: Sequence[Episode], new: Sequence[Episode]) -> dict[str, tuple[float, list[bool]]]:
        """Return, for each way, the promise and which of the new episodes are flagged."""
        promise = affordable_risk(len(known))
        model, part = self.teach(known), self.teach(known[: len(known) // 2])
        rest = known[len(known) // 2 :]
        ways = {
            "left out, at the end": (model, promise, [(one, model.left_out(one)) for one in known], True),
            "left out, all frames": (model, promise, [(one, model.left_out(one)) for one in known], False),
            "one half each": (part, affordable_risk(len(rest)), [(one, self.score(part, one)) for one in rest], False),
        }
        found = {}
        for way, (taught, share, scored, at_end) in ways.items():
            pairs = [(one, reward) for one, reward in scored if reward is not None]
            selection = LabelSelection(use_test_split=True)
            detector = calibrate_detector(pairs, taught.card, "taught", share, selection=selection, at_end=at_end)
            judged = [detector.judge(self.score(taught, one), len(one), one.instruction) for one in new]
            found[way] = share, [one.alarm is True for one in judged]
        ends = {one.id: model.head.standardize(self.features(model, one)[1][-1:])[0] for one in [*known, *new]}
        apart = {
            one.id: min(float(np.linalg.norm(ends[one.id] - ends[other.id])) for other in known if other is not one)
            for one in [*known, *new]
        }
        at = conformal_threshold([apart[one.id] for one in known], promise).at
        found["nearest last frame"] = promise, [apart[one.id] >= at for one in new]
        return found


def by_clock(episode: Episode, _: Reward) -> Reward:
    return Clock().score([episode])[0]


def by_length(episode: Episode, _: Reward) -> Reward:
    return Length().score([episode])[0]


def by_jerk(episode: Episode, reward: Reward) -> Reward:
    states = np.asarray(episode.signals.get("state", np.zeros((len(episode), 1))), dtype=np.float64)
    jerk = np.concatenate([np.zeros(3), np.linalg.norm(np.diff(states, n=3, axis=0), axis=1)])[: len(states)]
    return Reward("jerk", reward.episode, np.arange(len(states)), (1 / (1 + 10 * jerk)).astype(np.float32))


def by_fall(_: Episode, reward: Reward) -> Reward:
    fall = np.maximum.accumulate(reward.value) - reward.value
    return Reward("fall", reward.episode, reward.at, 1 - fall)


SIGNALS = {
    "the taught model": lambda _, reward: reward,
    "its fall below its highest": by_fall,
    "clock": by_clock,
    "length": by_length,
    "jerk": by_jerk,
}

if __name__ == "__main__":
    main()
