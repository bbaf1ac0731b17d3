"""How many counterfactual commands deserve their grade by the simulator's own predicates, before and after validation.

A simulation, no model: the simulated judge writes the commands and checks them, over real HTTP, and is wrong at rates
that are set here. What is measured is the chain around a model: how much of such mistakes the checks catch.
"Nothing checked" is the first command that was written for each grade; "checked by code" those of them that keep the
rules of form; "accepted" is what ends up in the dataset. A command is right when the predicates give the last frame its
grade and it was not true in the first frame already. Clips are graded by measured progress. The benchmark's own
test tasks (`HELD_OUT_TASKS`) are counted apart.

The reader grades by the predicates that the result is measured with, so that with few slips the result must be good.
Two readers that do not: `--blind 1` grades by lot; `--reader words` never looks at a picture either, and grades a
command by how many of its words the instruction has. What they accept shows what the chain owes to a reader who sees.

demerit simulate test --benchmark metaworld-bad@1 --split test
demerit simulate val --benchmark metaworld-bad@1 --split validation
python benchmarks/counterfactuals.py test val
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import demerit
from demerit.data.dataset import Dataset, Record
from demerit.data.episode import Episode
from demerit.llm import Endpoint
from demerit.negatives.negative import DONE_GRADE
from demerit.negatives.relabel import RelabelSettings, relabel
from demerit.negatives.relabel.journal import read_records
from demerit.negatives.sim.splits import HELD_OUT_TASKS
from fakes.judge.predicates import already_true, facts_at, grade
from fakes.judge.relabeller import CLOSENESS, Relabeller, Slips
from fakes.judge.scenes import SCENES
from fakes.judge.server import ScriptedServer
from fakes.judge.truth import NAME, SimulatedJudge


@dataclass(frozen=True)
class Successes:
    """Successes of several folders, of the tasks that have predicates."""

    folders: tuple[str, ...]
    most: int
    name: str = "successes"

    def records(self) -> Iterator[Record]:
        left = self.most
        for folder in self.folders:
            for episode in demerit.open_dataset(folder):
                done = episode.outcome is not None and episode.outcome.success
                if done and left and episode.origin.tags.get("task") in SCENES:
                    left -= 1
                    yield episode

    def expected(self) -> int | None:
        return None


class Shares:
    """How many were right, of how many, by grade."""

    def __init__(self) -> None:
        self.right: Counter[int] = Counter()
        self.all: Counter[int] = Counter()
        self.unread = 0
        self.by_task: dict[str, list[int]] = defaultdict(lambda: [0, 0])

    def add(self, label: int, truth: int | None, was_true: bool, task: str) -> None:
        if truth is None:
            self.unread += 1
        right = truth == label and not was_true
        self.all[label] += 1
        self.right[label] += right
        self.by_task[task][0] += right
        self.by_task[task][1] += 1

    def __str__(self) -> str:
        """Write a row."""
        cells = [f"{self.right[one]}/{self.all[one]}" for one in (1, 2, 3, 4)]
        total, right = self.all.total(), self.right.total()
        tasks = [right / count for right, count in self.by_task.values()]
        worst = min(tasks) if tasks else float("nan")
        share = right / total if total else float("nan")
        return (
            f"{share:.3f} | {right}/{total} | {' | '.join(cells)} | {self.unread} | {worst:.2f} of {len(tasks)} tasks"
        )


class ReaderOfWords(Relabeller):
    """Checks a command without looking: the more of its words the instruction has, the better it must be done."""

    def _validate(self, found: dict[str, str], pictures: tuple[bytes, ...], question: str) -> str:
        command, task = (set(re.findall(r"[a-z]+", found[name].lower())) for name in ("command", "task"))
        closeness = 100 * len(command & task) / max(1, len(command))
        nearest = min(CLOSENESS, key=lambda one: (abs(CLOSENESS[one] - closeness), one))
        said = {"reasons": "by words", "sound": True, "already_true": False, "grade": nearest}
        return json.dumps({**said, "closeness": round(closeness, 1), "entailed": nearest == DONE_GRADE})


def measure(dest: Path, episodes: dict[str, Episode], tasks: Collection[str]) -> dict[str, Shares]:
    found = {name: Shares() for name in ("nothing checked", "checked by code", "accepted")}
    for record in read_records(dest):
        episode = episodes[record.original]
        end, task = facts_at(episode, -1), episode.origin.tags["task"]
        if task not in tasks:
            continue
        for one in record.candidates:
            if one.stage != "command" or not one.text:
                continue
            facts = (one.grade, grade(one.text, end), already_true(one.text, episode), task)
            if one.fresh:
                found["nothing checked"].add(*facts)
                if one.checked_by != "code" or one.verdict is not None:
                    found["checked by code"].add(*facts)
            if one.accepted:
                found["accepted"].add(*facts)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--misread", type=float, default=Slips().misread)
    parser.add_argument("--misplanned", type=float, default=Slips().misplanned)
    parser.add_argument("--malformed", type=float, default=Slips().malformed)
    parser.add_argument("--misjudged", type=float, default=Slips().misjudged)
    parser.add_argument("--blind", type=float, default=Slips().blind)
    parser.add_argument("--reader", choices=("predicates", "words"), default="predicates")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-clips", action="store_true", help="commands alone; they do not depend on the clips")
    given = parser.parse_args()
    successes = Successes(tuple(given.folders), given.episodes)
    episodes = {one.id: one for one in successes.records() if isinstance(one, Episode)}
    slips = Slips(given.misread, given.misplanned, given.malformed, given.misjudged, given.blind)
    judge = SimulatedJudge(episodes.values(), slips=slips)
    if given.reader == "words":
        judge.relabeller = ReaderOfWords(judge.relabeller.recognise, judge.relabeller.random, slips)
    settings = RelabelSettings(rounds=given.rounds, per_dataset=0, split="source")
    settings = replace(settings, clips=()) if given.no_clips else settings
    with tempfile.TemporaryDirectory() as scratch, ScriptedServer(judge, models=(NAME,)) as server:
        dest, start = Path(scratch) / "relabelled", time.monotonic()
        endpoint = Endpoint(server.url, NAME, key_env="")
        summary = relabel(Dataset(successes, "successes"), dest, endpoint=endpoint, concurrency=4, settings=settings)
        seconds = time.monotonic() - start
        assert summary.settled == len(episodes) and max(server.billed.values()) == 1
        print(f"{len(episodes)} successes of {len({e.origin.tags['task'] for e in episodes.values()})} tasks; {slips}")
        print(f"{server.billed.total()} answers, none twice, {seconds:.0f} s; turned down: {dict(summary.rejected)}")
        print(f"the reader grades by {given.reader}")
        for which, tasks in (("test tasks", HELD_OUT_TASKS), ("other tasks", set(SCENES) - set(HELD_OUT_TASKS))):
            own = {id: one for id, one in episodes.items() if one.origin.tags["task"] in tasks}
            if own:
                print(f"{which}: {len(own)} successes, {complete(dest, own)} with all four commands")
                print("commands | right | of all | grade 1 | 2 | 3 | 4 | not in the language | worst task")
                for name, shares in measure(dest, episodes, tasks).items():
                    print(f"{name} | {shares}")
        for reason, count in reasons(dest).most_common(12):
            print(f"  turned down {count} times: {reason}")
        clips = dict(sorted(summary.clips.items()))
        print(f"accepted clips by grade: {clips}")


def reasons(dest: Path) -> Counter[str]:
    """Count why commands were turned down, whatever words stand in the reason."""
    found = [one.reason for record in read_records(dest) for one in record.rejected if one.stage == "command"]
    return Counter(re.sub(r"'[^']*'|\(.*\)|[\d.]+%?", "...", reason) for reason in found)


def complete(dest: Path, episodes: Collection[str]) -> int:
    records = [record for record in read_records(dest) if record.original in episodes]
    return sum(len(record.commands) == len(RelabelSettings().grades) for record in records)


if __name__ == "__main__":
    main()
