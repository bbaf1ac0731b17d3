"""Corpus configs, the draw of episodes, the grades that roles imply."""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demerit.data.episode import Episode, Origin, Outcome
from demerit.data.frames import Frames
from demerit.errors import BadInput, DemeritError, NotApplicable
from demerit.training.corpus import CorpusSource, load_config, parse_config
from demerit.training.corpus.config import ScoreColumn, draw_evenly, format_config, label_episode
from fakes.corpus_fixture import RECIPE, make_folders

ONE = "name: x\nsources: [{folder: .}]\n"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("name: x", "'sources'"),
        ("name: x\nsources: []", "at least one"),
        ("sources: [{folder: .}]", "'name'"),
        (ONE + "negative: {}", "'negatives'"),
        ("name: x\nsources: [{folder: ., role: sucesses}]", "'successes'"),
        ("name: x\nsources: [{folder: .}, {folder: .}]", "twice"),
        ("name: x\nsources: [{folder: nothing/*}]", "folders that exist"),
        ("name: x\nsources: [{folder: ., score: {column: a}}]", "role graded"),
        ("name: x\nsources: [{folder: ., role: graded, vouched_by: edit}]", "simulator"),
        (ONE + "negatives: {mix: clap=1}", "'clip'"),
        (ONE + "splits: {shares: {train: 0}}", "above 0"),
        (ONE + "splits: {by: tasks}", "'task'"),
        (ONE + "counterfactuals: {grades: [5]}", "1 to 4"),
        (ONE + "counterfactuals: {clips: [2]}\nnegatives: {mix: clip=1}", "both"),
        (ONE + "leaks: ignore", "refuse"),
    ],
)
def test_wrong_configs_are_refused(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(DemeritError, match=re.escape(word)):
        parse_config(text, tmp_path)


def test_a_config_round_trips_and_its_digest_covers_what_is_made(tmp_path: Path) -> None:
    data = make_folders(tmp_path, videos=False)
    config = parse_config(RECIPE, data)
    assert [source.name for source in config.sources] == ["blocks", "kitchen", "droid", "roboarena", "scored"]
    assert [source.is_augmented for source in config.sources] == [True, True, True, False, False]
    assert parse_config(format_config(config), data / "elsewhere") == config
    elsewhere = parse_config(RECIPE + "leaks: report\nchat: {url: 'http://x/v1', model: m}\n", data)
    assert elsewhere.digest == config.digest != parse_config(RECIPE + "seed: 1\n", data).digest
    assert parse_config(ONE + "negatives:\n", data).negatives is not None
    assert load_config("example").name == "example"
    with pytest.raises(BadInput, match="example"):
        load_config("exmaple")


@given(st.lists(st.integers(0, 6), max_size=60), st.integers(0, 40), st.integers(0, 3))
def test_a_cap_is_spread_over_the_tasks(numbers: list[int], cap: int, seed: int) -> None:
    tasks = {f"e{place}": f"t{number}" for place, number in enumerate(numbers)}
    chosen = draw_evenly(tasks, cap, seed)
    assert len(chosen) == (min(cap, len(tasks)) if cap else len(tasks))
    assert chosen == draw_evenly(dict(reversed(tasks.items())), cap, seed)
    # A second computation: fill one by one, always a task that has fewest so far.
    there, level = Counter(tasks.values()), Counter[str]()
    for _ in range(len(chosen)):
        level[min((task for task in there if level[task] < there[task]), key=lambda task: level[task])] += 1
    assert sorted(level.values()) == sorted(Counter(tasks[id] for id in chosen).values())


def make_episode(*outcomes: Outcome, instruction: str = "do it", **tags: str) -> Episode:
    frames = Frames.from_array(np.zeros((2, 8, 8, 3), dtype=np.uint8))
    return Episode("e", instruction, {"main": frames}, outcomes, origin=Origin("d", tags=tags))


@given(st.integers(0, 1000))
def test_a_score_becomes_a_human_grade(tenths: int) -> None:
    source = CorpusSource(".", role="graded", score=ScoreColumn("stars"))
    (outcome,) = label_episode(make_episode(stars=str(tenths / 10)), source).outcomes
    expected = 1 + sum(tenths / 10 >= cut for cut in (12.5, 37.5, 62.5, 87.5))
    assert (outcome.source, outcome.by, outcome.grade) == ("human", "stars", expected)
    assert outcome.progress == pytest.approx(tenths / 1000)


def test_successes_are_grade_5_by_rule() -> None:
    (outcome,) = label_episode(make_episode(), CorpusSource(".", because="demonstrations")).outcomes
    assert (outcome.source, outcome.grade, outcome.by) == ("rule", 5, "assumed: demonstrations")
    person, rule = label_episode(make_episode(Outcome("human", success=True)), CorpusSource(".")).outcomes
    assert (person.grade, rule.source, rule.grade) == (None, "rule", 5)


def test_graded_sources_use_one_label_source() -> None:
    simulator = CorpusSource(".", role="graded", vouched_by="simulator")
    undone = label_episode(make_episode(Outcome("simulator", success=False, progress=1.0)), simulator)
    assert undone.outcomes[0].grade == 4  # not done is never a 5
    curve = Outcome("model", curve=np.array([0.0, 0.4], np.float32), by="m")
    episode = make_episode(Outcome("human", success=True), curve)
    first, second = label_episode(episode, CorpusSource(".", role="graded", vouched_by="model")).outcomes
    assert first.grade is None and (second.source, second.grade, second.by) == ("model", 3, "m")
    with pytest.raises(NotApplicable, match="human"):
        label_episode(episode, CorpusSource(".", role="graded"))


@given(st.integers(0, 1000))
def test_a_failure_is_never_grade_5(thousandths: int) -> None:
    """RoboArena's rollouts have a person's success flag and a partial score."""
    progress = thousandths / 1000
    steps = 1 + sum(progress >= cut for cut in (0.125, 0.375, 0.625, 0.875))
    for success, most in ((False, 4), (True, 5), (None, 5)):
        episode = make_episode(Outcome("human", success=success, progress=progress))
        assert label_episode(episode, CorpusSource(".", role="graded")).outcomes[0].grade == min(steps, most)
    scored = make_episode(Outcome("human", success=False), stars=str(progress))  # flag and score in two places
    by_column = CorpusSource(".", role="graded", score=ScoreColumn("stars", 0, 1))
    assert label_episode(scored, by_column).outcomes[1].grade == min(steps, 4)


@pytest.mark.parametrize(
    ("episode", "source"),
    [
        (make_episode(), CorpusSource(".", because="")),
        (make_episode(), CorpusSource(".", role="graded")),
        (make_episode(Outcome("human", success=False)), CorpusSource(".")),
        (make_episode(instruction=" "), CorpusSource(".")),
        (make_episode(stars="n/a"), CorpusSource(".", role="graded", score=ScoreColumn("stars"))),
        (make_episode(stars="101"), CorpusSource(".", role="graded", score=ScoreColumn("stars"))),
    ],
)
def test_no_label_is_invented(episode: Episode, source: CorpusSource) -> None:
    with pytest.raises(NotApplicable):
        label_episode(episode, source)
