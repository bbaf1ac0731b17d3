"""Self-distillation keeps what people's preferences confirm, and counts the rest."""

import math
import re
import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from demerit.cli import app
from demerit.data.dataset import Record
from demerit.data.episode import Episode, Outcome, Preference
from demerit.data.formats import open_dataset
from demerit.data.store import Store
from demerit.models.gvl import distil as module
from demerit.models.gvl.distil import add_curves, distil_curves
from demerit.models.gvl.library import Library, is_distilled
from demerit.models.gvl.model import SampledCurve
from fakes.chat_server import ScriptedServer
from fakes.paths import REPO
from fakes.prompted import Watcher, coloured, entries, gvl
from fakes.prompted import close_models as _close_models  # noqa: F401

FRAMES = 5
Curves = dict[str, list[list[float] | None]]


class FakePrompter:
    """A prompter with answers at hand: {episode: [values or None per sample]}; NaN = unscored."""

    client = SimpleNamespace(endpoint=SimpleNamespace(model="fake"))

    def __init__(self, answers: Curves) -> None:
        self.answers, self.asked = answers, list[str]()

    def ask(self, episodes: list[Episode]) -> list[Any]:
        self.asked += [one.id for one in episodes]
        return [
            SimpleNamespace(episode=one, samples=[self.sample(values) for values in self.answers[one.id]])
            for one in episodes
        ]

    @staticmethod
    def sample(values: list[float] | None) -> SampledCurve | None:
        if values is None:
            return None
        why = {i: "missing" for i, value in enumerate(values) if math.isnan(value)}
        return SampledCurve(np.arange(len(values), dtype=np.int32), np.array(values), why)


def run(answers: Curves, *preferences: Preference) -> tuple[dict[str, Outcome], dict[str, int]]:
    episodes = [coloured(id, FRAMES, blue=10 * i) for i, id in enumerate(answers)]
    fake: Any = FakePrompter(answers)
    curves, became = distil_curves(fake, [*episodes, *preferences])
    assert sum(became.values()) == len(preferences) and len(fake.asked) == len(set(fake.asked))
    return curves, dict(became)


def flat(value: float) -> list[float]:
    return [0.0, *[value] * (FRAMES - 1)]


A_OVER_B = Preference("a", "b", "a", "human")


def test_the_clearest_agreeing_sample_gives_the_rejected_curve() -> None:
    curves, became = run({"a": [flat(0.5), flat(0.9), flat(0.6)], "b": [flat(0.8), flat(0.2), flat(0.5)]}, A_OVER_B)
    assert became == {module.KEPT: 1} and list(curves) == ["b"]
    outcome = curves["b"]
    assert outcome.curve == pytest.approx(flat(0.2))
    assert (outcome.source, outcome.by, outcome.success) == ("model", "gvl fake", None)
    assert "2 of 3 samples" in outcome.note and "sample 1 " in outcome.note and is_distilled(outcome)


def test_pairs_that_give_nothing_are_counted_by_reason() -> None:
    hole = [0.0, math.nan, 0.9, 0.9, 0.9]
    wrong = run({"a": [flat(0.5), flat(0.4)], "b": [flat(0.8), flat(0.4)]}, A_OVER_B)
    assert wrong == ({}, {module.NO_AGREEMENT: 1})
    assert run({"a": [hole, None], "b": [flat(0.1), flat(0.1)]}, A_OVER_B) == ({}, {module.NO_ANSWER: 1})
    others = [Preference("a", "b", "tie", "human"), Preference("a", "c", "a", "human")]
    others += [Preference("a", "b", "a", "simulator")]
    found = run({"a": [flat(0.9)], "b": [flat(0.1)]}, *others)
    assert found == ({}, {module.TIE: 1, module.NOT_HERE: 1, module.OTHER_SOURCE: 1})


def test_a_rollout_in_several_pairs_keeps_its_clearest_example() -> None:
    answers: Curves = {"a": [flat(0.5)], "b": [flat(0.1)], "c": [flat(0.9)]}
    for order in ([A_OVER_B, Preference("c", "b", "a", "human")], [Preference("b", "c", "b", "human"), A_OVER_B]):
        curves, became = run(answers, *order)
        assert became == {module.KEPT: 1, module.WORSE_EXAMPLE: 1}
        assert "below c" in curves["b"].note


VALUES = st.lists(st.floats(0, 1, width=32), min_size=FRAMES, max_size=FRAMES)


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=5), st.booleans())
def test_what_is_kept_orders_as_the_person_did(samples: list[tuple[list[float], list[float]]], a_wins: bool) -> None:
    answers: Curves = {"a": [a for a, _ in samples], "b": [b for _, b in samples]}
    curves, _ = run(answers, Preference("a", "b", "a" if a_wins else "b", "human"))
    better, worse = ("a", "b") if a_wins else ("b", "a")
    margins = [math.fsum(answers[better][i] or []) - math.fsum(answers[worse][i] or []) for i in range(len(samples))]
    if max(margins) > 0:
        kept = margins.index(max(margins))
        assert curves[worse].curve == pytest.approx(answers[worse][kept])
        assert curves[worse].note.startswith(f"{sum(margin > 0 for margin in margins)} of {len(samples)} ")
        assert curves[worse].note.endswith(f"sample {kept} kept")
    else:
        assert curves == {}


def test_adding_replaces_an_older_curve_of_the_same_model() -> None:
    old = Outcome("model", curve=np.zeros(FRAMES), by="gvl fake")
    new = Outcome("model", curve=np.ones(FRAMES), by="gvl fake")
    other = Outcome("model", curve=np.ones(FRAMES), by="gvl another")
    records: list[Record] = [coloured("a", FRAMES, outcomes=(old, other)), A_OVER_B]
    after = list(add_curves(records, {"a": new}))
    assert isinstance(after[0], Episode) and after[0].outcomes == (other, new) and after[1] is A_OVER_B


def test_the_rejected_rollout_is_shown_to_others_and_never_to_its_own_pair(tmp_path: Path) -> None:
    watcher = Watcher()
    a, b = coloured("a", blue=60), coloured("b", blue=100)
    watcher.percents = lambda request, shown: entries(
        {n: (4 if one.blue < 80 or request.seed != 1 else 1) * one.index for n, one in shown.items()}
    )
    with ScriptedServer(watcher) as server:
        curves, _ = distil_curves(gvl(server, tmp_path, samples=4).prompter, [a, b, A_OVER_B])
        assert list(curves) == ["b"] and len(watcher.requests) == 8
        dense = gvl(server, tmp_path, "dense", examples=list(add_curves([a, b, A_OVER_B], curves)))
        reward = dense.score([coloured("new")])[0]
        assert [one["episode"] for one in reward.given["references"]] == ["b"]
        assert "references" not in dense.score([b])[0].given, "neither the rollout itself"
        assert "references" not in dense.score([a])[0].given, "nor the other half of its pair"


def test_the_documented_command(tmp_path: Path, make_episode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command of docs/prompted.md; run again it changes nothing, and its curves are found as examples."""

    def rate_by_seed(request: Any, shown: Any) -> Any:
        # noise videos have no colour to read: the accepted rollout rises in odd samples, the rejected one never
        rises = request.seed % 2 and shown and "do a" in str(request.body)
        return entries({n: 90 if rises else 10 for n in shown})

    monkeypatch.chdir(tmp_path)
    with Store.create("my_set", "my_set", "", source="test").writer() as writer:
        for record in (make_episode("a", 6, 1), make_episode("b", 6, 2), A_OVER_B):
            writer.add(record)
    (command,) = re.findall(r"^demerit (distil .*?) +#", (REPO / "docs" / "prompted.md").read_text(), flags=re.M)
    watcher = Watcher(rate_by_seed)
    with ScriptedServer(watcher) as server:
        for name, value in {"URL": server.url, "MODEL": "simulated", "CACHE": str(tmp_path / "answers")}.items():
            monkeypatch.setenv(f"DEMERIT_CHAT_{name}", value)
        for _ in range(2):
            found = CliRunner().invoke(app, shlex.split(command))
            assert found.exit_code == 0 and "1 of 1 pairs" in found.output, found.output
    assert len(watcher.requests) == 20 and {one.body["temperature"] for one in watcher.requests} == {0.8}
    outcomes = {episode.id: episode.outcomes for episode in open_dataset("distilled")}
    assert [one.by for one in outcomes["b"]] == ["gvl simulated"] and not outcomes["a"]
    fresh = replace(make_episode("new", 6, 3), instruction="do b")
    ((example, outcome),) = Library.open("distilled").allowed_examples(fresh).with_curve(5)
    assert example.id == "b" and np.nanmax(outcome.curve) == pytest.approx(0.1)
