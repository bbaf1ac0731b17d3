"""Self-distillation keeps what people's preferences confirm, and counts the rest."""

import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demerit.data.dataset import Record
from demerit.data.episode import Episode
from demerit.data.labels import Outcome, Preference
from demerit.models.gvl import distil as module
from demerit.models.gvl.distil import Distillation, DistillationConfig, DistilledPair, distil, save_records
from demerit.models.gvl.library import Library, is_distilled
from demerit.models.gvl.query import SampledCurve
from fakes.chat_server import ScriptedServer
from fakes.paths import REPO
from fakes.prompted import Watcher, coloured, entries

FRAMES = 5


class FakePrompter:
    """A prompter with answers at hand: {episode: [values or None per sample]}; NaN = unscored."""

    client = SimpleNamespace(endpoint=SimpleNamespace(model="fake"))

    def __init__(self, answers: dict[str, list[list[float] | None]]) -> None:
        self.answers, self.asked = answers, list[str]()

    def ask(self, episodes: list[Episode], samples: int, temperature: float) -> list[Any]:
        self.asked += [one.id for one in episodes]
        return [
            SimpleNamespace(episode=one, samples=[self.sample(values) for values in self.answers[one.id][:samples]])
            for one in episodes
        ]

    @staticmethod
    def sample(values: list[float] | None) -> SampledCurve | None:
        if values is None:
            return None
        why = {i: "missing" for i, value in enumerate(values) if math.isnan(value)}
        return SampledCurve(np.arange(len(values), dtype=np.int32), np.array(values), why)


def run(answers: dict[str, list[list[float] | None]], *preferences: Preference, **plan: Any) -> Distillation:
    samples = len(next(iter(answers.values())))
    episodes = [coloured(id, FRAMES, blue=10 * i) for i, id in enumerate(answers)]
    fake: Any = FakePrompter(answers)
    return distil(fake, [*episodes, *preferences], DistillationConfig(**{"samples": samples, **plan}))


def flat(value: float) -> list[float]:
    return [0.0, *[value] * (FRAMES - 1)]


A_OVER_B = Preference("a", "b", "a", "human")


def test_the_clearest_agreeing_sample_gives_the_rejected_curve() -> None:
    found = run({"a": [flat(0.5), flat(0.9), flat(0.6)], "b": [flat(0.8), flat(0.2), flat(0.5)]}, A_OVER_B)
    (pair,) = found.pairs
    assert (pair.agreeing, pair.complete, pair.sample, pair.dropped) == (2, 3, 1, "")
    assert pair.margin == pytest.approx(4 * 0.7)
    outcome = found.curves["b"]
    assert outcome.curve == pytest.approx(flat(0.2)) and list(found.curves) == ["b"]
    assert (outcome.source, outcome.by, outcome.success) == ("model", "gvl fake", None)
    assert "2 of 3 samples" in outcome.note and is_distilled(outcome)


def test_dropped_pairs_are_counted_by_reason() -> None:
    hole = [0.0, math.nan, 0.9, 0.9, 0.9]
    wrong = run({"a": [flat(0.5), flat(0.4)], "b": [flat(0.8), flat(0.4)]}, A_OVER_B)
    assert wrong.drop_reasons() == {module.NO_AGREEMENT: 1} and wrong.kept == 0 and not wrong.curves
    assert run({"a": [hole, None], "b": [flat(0.1), flat(0.1)]}, A_OVER_B).drop_reasons() == {module.NO_ANSWER: 1}
    answers: dict[str, list[list[float] | None]] = {"a": [flat(0.9)], "b": [flat(0.1)]}
    others = [Preference("a", "b", "tie", "human"), Preference("a", "c", "a", "human")]
    others += [Preference("a", "b", "a", "simulator")]
    found = run(answers, *others)
    assert found.drop_reasons() == {module.TIE: 1, module.NOT_HERE: 1, module.OTHER_SOURCE: 1} and not found.curves
    assert run(answers, *others, sources=("simulator",)).kept == 1


def test_a_rollout_in_several_pairs_keeps_its_clearest_example() -> None:
    answers: dict[str, list[list[float] | None]] = {"a": [flat(0.5)], "b": [flat(0.1)], "c": [flat(0.9)]}
    for order in ([A_OVER_B, Preference("c", "b", "a", "human")], [Preference("b", "c", "b", "human"), A_OVER_B]):
        found = run(answers, *order)
        assert found.kept == 1 and found.drop_reasons() == {module.WORSE_EXAMPLE: 1}
        (kept,) = (one for one in found.pairs if not one.dropped)
        assert "c" in (kept.preference.a, kept.preference.b)


VALUES = st.lists(st.floats(0, 1, width=32), min_size=FRAMES, max_size=FRAMES)


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=5), st.booleans())
def test_what_is_kept_orders_as_the_person_did(samples: list[tuple[list[float], list[float]]], a_wins: bool) -> None:
    answers: dict[str, list[list[float] | None]] = {"a": [a for a, _ in samples], "b": [b for _, b in samples]}
    found = run(answers, Preference("a", "b", "a" if a_wins else "b", "human"))
    better, worse = ("a", "b") if a_wins else ("b", "a")
    margins = [math.fsum(answers[better][i] or []) - math.fsum(answers[worse][i] or []) for i in range(len(samples))]
    (pair,) = found.pairs
    assert pair.agreeing == sum(margin > 0 for margin in margins)
    if max(margins) > 0:
        assert pair.margin == max(margins) and pair.sample == margins.index(max(margins))
        assert found.curves[worse].curve == pytest.approx(answers[worse][pair.sample])
    else:
        assert found.curves == {}


def test_applying_replaces_an_older_curve_of_the_same_model() -> None:
    old = Outcome("model", curve=np.zeros(FRAMES), by="gvl fake")
    new = Outcome("model", curve=np.ones(FRAMES), by="gvl fake")
    other = Outcome("model", curve=np.ones(FRAMES), by="gvl another")
    records: list[Record] = [coloured("a", FRAMES, outcomes=(old, other)), A_OVER_B]
    after = list(Distillation({"a": new}, (DistilledPair(A_OVER_B),)).apply(records))
    assert isinstance(after[0], Episode) and after[0].outcomes == (other, new) and after[1] is A_OVER_B


def test_the_documented_distillation(tmp_path: Path, make_episode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python block of docs/prompted.md; its curves are found again as examples."""

    def rate_by_seed(request: Any, shown: Any) -> Any:
        # noise videos have no colour to read: odd samples see a rise, even ones a fall
        return entries({n: 10 * n if request.seed % 2 else 90 - 10 * n for n in shown})

    records: list[Record] = [make_episode("a", 6, 1), make_episode("b", 6, 2), A_OVER_B]
    monkeypatch.chdir(tmp_path)
    save_records("my_set", "my_set", records)
    (block,) = re.findall(r"```python\n(.*?)```", (REPO / "docs" / "prompted.md").read_text(), re.DOTALL)
    found: dict[str, Any] = {}
    with ScriptedServer(Watcher(rate_by_seed)) as server:
        for name, value in {"URL": server.url, "MODEL": "simulated", "CACHE": "off"}.items():
            monkeypatch.setenv(f"DEMERIT_CHAT_{name}", value)
        exec(block, found)
        found["model"].close()
    assert len(found["distilled"].pairs) == 1
    made = Distillation({"b": Outcome("model", curve=[0, math.nan, 0.3, math.nan, math.nan, 0.1], by="gvl x")}, ())
    save_records("by_hand", "by_hand", made.apply(records))
    fresh = replace(make_episode("new", 6, 3), instruction="do b")
    ((example, outcome),) = Library.open("by_hand").allowed_examples(fresh).with_curve(5)
    assert example.id == "b" and (outcome.source, outcome.by) == ("model", "gvl x")
    assert np.array_equal(outcome.curve, np.array([0, np.nan, 0.3, np.nan, np.nan, 0.1], np.float32), equal_nan=True)
