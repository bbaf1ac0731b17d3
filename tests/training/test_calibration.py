"""Calibrated models as files and commands: fitted, written, loaded strictly, and recognised where they cheat."""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

from demerit.data.dataset import Dataset
from demerit.data.episode import NOT_A_MODEL, Episode
from demerit.data.reward import Reward
from demerit.data.splits import SeenEpisodes, seen_by
from demerit.errors import BadInput, DemeritError, StoreError
from demerit.evaluate.benchmarks.benchmark import load_benchmark
from demerit.evaluate.benchmarks.run import RunOptions, run_benchmark
from demerit.evaluate.benchmarks.scores import MeasureSettings
from demerit.evaluate.metrics import Resampling
from demerit.models import load_model
from demerit.models.calibrated import Calibrated, Confidence, Shift
from demerit.models.check import check_model
from demerit.models.ensemble import Ensemble
from demerit.models.protocol import Comparer, LiveFrame, LiveReward, Online
from demerit.negatives import load_negative
from demerit.training.calibration import CalibrateOptions, CalibrationResult, calibrate
from fakes.coded_episodes import Listed, Oracle, coded, episode
from fakes.command import demerit, error_sentence
from fakes.paths import REPO

QUICK = CalibrateOptions(workers=0)
SURE = CalibrateOptions(method="conformal", risk=0.05, workers=0)


class Hopeful(Oracle):
    """An oracle that squeezes everything into the upper half: right in order, wrong in amount."""

    def _one(self, one: Episode) -> Reward:
        true = super()._one(one)
        return replace(true, value=0.5 + true.value / 2)


class Follows(Hopeful):
    """One that says success as well, follows live and compares."""

    def _one(self, one: Episode) -> Reward:
        said = super()._one(one)
        return replace(said, success=said.value**2)

    def start(self, instruction: str) -> Self:
        return self

    def step(self, frame: LiveFrame) -> LiveReward:
        assert isinstance(frame, np.ndarray)
        value = 0.5 + float(frame[0, 0, 0]) / 255 / 2
        return LiveReward(value, value**2, 0.25)

    def prefer(self, pairs: Sequence[tuple[Episode, Episode]]) -> list[float]:
        return [0.5 for _ in pairs]


@pytest.fixture
def hopeful(tmp_path: Path) -> CalibrationResult:
    return calibrate(coded(), Hopeful(name="hopeful"), tmp_path / "iso", QUICK)


def test_a_model_is_not_calibrated_on_a_test_split_or_by_models_unless_forced(tmp_path: Path) -> None:
    episodes = list(coded())
    test = [replace(one, origin=replace(one.origin, split="test")) for one in episodes[:6]]
    said = [replace(one, outcomes=(replace(one.outcomes[0], source="model"),)) for one in episodes[6:10]]
    data = Dataset(Listed([*test, *said, *episodes[10:]]), "mixed")
    for name, more, expected in (
        ("default", {}, 38),
        ("test", {"use_test_split": True}, 44),
        ("models", {"sources": (*NOT_A_MODEL, "model")}, 42),
    ):
        found = calibrate(data, Hopeful(name="hopeful"), tmp_path / name, replace(QUICK, **more))
        assert (name, found.counts["episodes"]) == (name, expected)
        assert any("6 episodes of a test split" in note for note in found.notes) is (name != "test")
    with pytest.raises(BadInput, match="--use-test-split"):
        calibrate(Dataset(Listed(test), "test"), Hopeful(name="hopeful"), tmp_path / "none", QUICK)


def test_episodes_that_the_model_learned_from_are_left_out_and_counted(tmp_path: Path) -> None:
    model = Hopeful(name="taught")
    model.seen = SeenEpisodes.of(coded(2))  # type: ignore[attr-defined]
    for limit in (None, 40):
        found = calibrate(coded(), model, tmp_path / str(limit), replace(QUICK, limit=limit))
        assert found.counts["episodes"] == 40
        assert any("8 episodes" in note and "taught" in note for note in found.notes)
    assert not any("learned" in note for note in calibrate(coded(), Hopeful(name="h"), tmp_path / "h", QUICK).notes)
    with pytest.raises(BadInput, match=r"taught.*8 episodes"):
        calibrate(coded(2), model, tmp_path / "none", QUICK)


def test_overoptimistic_model_is_corrected(hopeful: CalibrationResult) -> None:
    model = hopeful.model
    good, bad = model.score([episode(99, "success"), episode(98, "failed")])
    assert good.final == pytest.approx(1.0) and bad.final == pytest.approx(0.0, abs=0.01)
    assert good.success is not None and bad.success is not None and (good.success[-1], bad.success[-1]) == (1.0, 0.0)
    assert good.value == pytest.approx(np.linspace(0, 1, 18), abs=0.03)
    assert good.model == "iso" and good.given["inner"] == "hopeful" and good.given["inner final"] == 1.0
    assert good.given["succeeds"] is True and bad.given["succeeds"] is False
    assert hopeful.counts["episodes"] == 48 and hopeful.counts["failures"] == 24
    assert hopeful.measures["progress_error"].value < 0.02 < hopeful.measures["progress_error_before"].value
    assert "At most 5.0% of failures" in model.card.about and (model.card.low, model.card.high) == (0.0, 1.0)


def test_conformal_gives_confidence_and_a_lower_bound(tmp_path: Path) -> None:
    found = calibrate(coded(), Hopeful(name="hopeful"), tmp_path / "sure", SURE)
    assert isinstance(found.model.recipe.progress, Shift) and isinstance(found.model.recipe.success, Confidence)
    good, bad = found.model.score([episode(99, "success"), episode(98, "failed")])
    assert good.given["succeeds"] is True and bad.given["succeeds"] is False
    assert good.success is not None and good.success[-1] == pytest.approx(24 / 25)
    assert found.model.card.quantity == "lower bound of progress"
    assert found.measures["progress_overrated"].value <= 0.05 < found.measures["progress_overrated_before"].value


def test_folder_round_trip(hopeful: CalibrationResult, tmp_path: Path) -> None:
    again = Calibrated.from_folder(tmp_path / "iso", Hopeful(name="hopeful"))
    episodes = list(coded())
    for a, b in zip(hopeful.model.score(episodes), again.score(episodes), strict=True):
        assert np.array_equal(a.value, b.value) and a.given == b.given
    assert again.card == hopeful.model.card
    assert sorted(path.name for path in (tmp_path / "iso").iterdir()) == ["model.json"]
    with pytest.raises(BadInput, match="version"):
        Calibrated.from_folder(tmp_path / "iso", Hopeful(name="hopeful", revision="2"))


def test_other_methods_of_the_inner_model_stay(tmp_path: Path) -> None:
    plain = calibrate(coded(), Hopeful(name="h"), tmp_path / "plain", QUICK).model
    assert not isinstance(plain, Online) and not isinstance(plain, Comparer)
    model = calibrate(coded(), Follows(name="f"), tmp_path / "live", QUICK).model
    assert isinstance(model, Online) and isinstance(model, Comparer)
    assert model.recipe.evidence == "success"
    one = episode(99, "success")
    (whole,) = model.score([one])
    run = model.start(one.instruction)
    live = [run.step(frame) for frame in one.main.all()]
    assert [one.value for one in live] == pytest.approx(whole.value, abs=1e-6)
    assert [one.success for one in live] == pytest.approx(whole.success, abs=1e-6)
    assert {one.familiarity for one in live} == {0.25}


def test_unscored_stays_unscored(tmp_path: Path) -> None:
    class Blinks(Hopeful):
        def _one(self, one: Episode) -> Reward:
            if one.id.startswith("99"):
                return Reward.unscored(self.card.name, one.id, "it slept")
            value = super()._one(one).value.copy()
            value[[3, -1] if one.id.startswith("5/") else [3]] = np.nan
            return Reward(self.card.name, one.id, np.arange(len(value)), value, why_missing="it blinked")

    found = calibrate(coded(), Blinks(name="blinks"), tmp_path / "out", QUICK)
    assert any("it blinked (4)" in note for note in found.notes)
    slept, blinked = found.model.score([episode(99, "success"), episode(5, "success")])
    assert not slept.scored and slept.why_missing == "it slept" and slept.given["succeeds"] is None
    assert np.flatnonzero(np.isnan(blinked.value)).tolist() == [3, 17] and blinked.why_missing == "it blinked"


def test_too_few_failures_write_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="19"):
        calibrate(coded(5), Hopeful(name="h"), tmp_path / "out", SURE)
    assert not (tmp_path / "out").exists()
    found = calibrate(coded(5), Hopeful(name="h"), tmp_path / "out", QUICK)
    assert found.model.recipe.threshold is None
    assert found.model.score([episode(99, "success")])[0].given["succeeds"] is None


def test_what_was_made_of_one_recording_counts_once(tmp_path: Path) -> None:
    originals = list(coded(10))
    rng = np.random.default_rng(0)
    brighter = [load_negative("recolour")(one, rng, levels=[1.2, 1.0, 1.0, 0.0]) for one in originals]
    failed = sum(one.outcomes[0].success is False for one in originals)
    both = Dataset(Listed([*originals, *brighter]), "coded:both")
    with pytest.raises(BadInput, match=f"there are {failed} "):
        calibrate(both, Hopeful(name="h"), tmp_path / "out", replace(SURE, risk=0.03))
    alone, more = (
        calibrate(data, Hopeful(name="h"), tmp_path / name, SURE).model.recipe
        for name, data in (("alone", coded(10)), ("more", both))
    )
    assert more.promise == alone.promise
    assert more.threshold is not None and alone.threshold is not None and more.threshold > alone.threshold


def test_other_folders_are_not_overwritten(tmp_path: Path) -> None:
    for name, text in (
        ("full/thesis.tex", "x"),
        ("file", "x"),
        ("other/model.json", '{"format": 1, "kind": "taught"}'),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    calibrate(coded(), Hopeful(name="h"), tmp_path / "mine", QUICK)
    for name, model in (("full", "h"), ("file", "h"), ("other", "h"), ("mine", "g")):
        with pytest.raises(StoreError, match=name):
            calibrate(coded(), Hopeful(name=model), tmp_path / name, QUICK)
    calibrate(coded(), Hopeful(name="h"), tmp_path / "mine", SURE)  # the same model again, otherwise
    assert json.loads((tmp_path / "mine" / "model.json").read_text())["method"] == "conformal"


def test_crash_keeps_the_old_model_and_the_rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Hopeful(name="h")
    calibrate(coded(), model, tmp_path / "mine", QUICK)
    before = (tmp_path / "mine" / "model.json").read_bytes()
    real = os.replace

    def dies(source: Any, target: Any) -> None:
        if Path(target).name == "model.json":
            raise KeyboardInterrupt
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dies)
        for name in ("mine", "new"):
            with pytest.raises(KeyboardInterrupt):
                calibrate(coded(), model, tmp_path / name, SURE)
    assert (tmp_path / "mine" / "model.json").read_bytes() == before
    with pytest.raises(BadInput):
        load_model(str(tmp_path / "new"))  # nothing that could be taken for a model
    told: list[tuple[int, int]] = []
    calibrate(coded(), model, tmp_path / "mine", SURE, lambda progress: told.append((progress.kept, progress.scored)))
    assert told[-1] == (48, 0)
    assert calibrate(coded(), model, tmp_path / "new", SURE).counts["episodes"] == 48


BROKEN: dict[str, Callable[[dict[str, Any]], Any]] = {
    "format 1": lambda facts: facts.update(format=2),
    "extra": lambda facts: facts.update(extra=1),
    "'risk'": lambda facts: facts.pop("risk"),
    "isotonic": lambda facts: facts.update(method="platt"),
    "value, success": lambda facts: facts.update(evidence="luck"),
    "between 0 and 1": lambda facts: facts.update(risk=2),
    "number": lambda facts: facts.update(threshold="high"),
    "marks": lambda facts: facts.update(calibrated_on={}),
    "progress": lambda facts: facts.update(progress=[]),
    "falls": lambda facts: facts["success"].update(y=facts["success"]["y"][::-1]),
    "'calibrated'": lambda facts: facts.update(kind="taught"),
    "text": lambda facts: facts.update(inner=3),
    **{
        f"{name}.*trust": lambda facts, name=name: facts.update(inner=name)  # code or addresses
        for name in ("os:system", "clock:http://elsewhere", "calibrated:x:os:system", "./x:os:system", "os")
    },
    r"ensemble:clock\+os:system.*trust": lambda facts: facts.update(inner="ensemble:clock+os:system"),
}


def test_broken_folders_and_options_are_refused(hopeful: CalibrationResult, tmp_path: Path) -> None:
    path = tmp_path / "iso" / "model.json"
    good = path.read_text()
    for word, spoil in BROKEN.items():
        facts = json.loads(good)
        spoil(facts)
        path.write_text(json.dumps(facts))
        with pytest.raises(BadInput, match=word):
            load_model(f"calibrated:{tmp_path / 'iso'}")
    path.write_text("{")
    for name in ("calibrated:", f"calibrated:{tmp_path / 'iso'}", f"calibrated:{tmp_path / 'x'}"):
        with pytest.raises(DemeritError):
            load_model(name)
    for options in ({"method": "platt"}, {"risk": 1.0}, {"limit": 0}):
        with pytest.raises(BadInput):
            CalibrateOptions(**options)  # type: ignore[arg-type]


def test_inner_model_may_be_a_class_a_folder_or_an_ensemble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_rewards.py").write_text("from fakes.coded_episodes import Oracle\n")
    calibrate(coded(), "my_rewards:Oracle", "out", QUICK)
    with pytest.raises(BadInput, match="calibrated:out:my_rewards:Oracle"):
        load_model("calibrated:out")  # the user has to name it
    for name in ("calibrated:out:my_rewards:Oracle", "./out:my_rewards:Oracle"):
        assert load_model(name).card.name == "out"
    calibrate(coded(), "ensemble:change+motion", "first", QUICK)
    new = [episode(task, kind, 7) for task in range(6) for kind in ("success", "failed")]
    second = calibrate(Dataset(Listed(new), "new"), "./first", "deep/second", QUICK).model
    assert json.loads(Path("deep/second/model.json").read_text())["inner"] == "./../../first"
    shutil.move("deep", "moved")  # relative to each other, the two stand as before
    monkeypatch.chdir(tmp_path / "moved")
    again = load_model("calibrated:second")
    assert again.card == second.card
    assert check_model(again).broken == []
    path = tmp_path / "first" / "model.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "inner": "./."}))
    with pytest.raises(BadInput, match="inner"):
        load_model("calibrated:../first")


def test_fitted_episodes_are_not_measured(hopeful: CalibrationResult, tmp_path: Path) -> None:
    options = RunOptions(workers=0, perturbations=False, settings=MeasureSettings(Resampling(resamples=50)))
    new = [episode(task, kind) for task in range(50, 54) for kind in ("success", "failed")]
    with pytest.raises(BadInput, match="iso"):
        run_benchmark(load_benchmark("own"), [hopeful.model], coded(4), tmp_path / "seen", options)
    data = Dataset(Listed([*coded(4), *new]), "coded:memory")
    report = run_benchmark(load_benchmark("own"), [hopeful.model], data, tmp_path / "both", options)
    assert {row.id for row in report.episodes} == {one.id for one in new}
    assert len(report.seen.by_model["iso"]) == 16 and report.seen.of == 24 and not report.seen.unfair


def test_changed_episodes_are_recognised(hopeful: CalibrationResult) -> None:
    one = episode(3, "failed")
    clip = replace(one.select([0, 1, 2]), id="clip", instruction="something else")
    renamed = replace(one, id="renamed", views={"front": one.main, "other": episode(77, "failed").main})
    fresh = episode(78, "failed")
    for model in (hopeful.model, Ensemble([hopeful.model, Oracle()])):
        assert [model.seen.has(each) for each in (clip, renamed, fresh)] == [True, True, False]
    assert not seen_by(Oracle()).has(one)


def test_command_writes_a_model_that_scores(tmp_path: Path, sample: Path) -> None:
    shutil.copytree(sample, tmp_path / "blocks")
    run = demerit("calibrate", "blocks", "-m", "change", "-o", "mine", "--risk", "0.1", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "10.0%" in run.stdout and "--model calibrated:mine" in run.stdout
    scored = demerit("score", "blocks", "-m", "ensemble:change+./mine", cwd=tmp_path)
    assert "ensemble-change+mine: 15 scored" in scored.stdout, scored.stderr
    other = demerit("calibrate", "blocks", "-m", "clock", "-o", "mine", cwd=tmp_path)
    assert "change" in error_sentence(other)


def test_the_documented_python_runs(
    tmp_path: Path, sample: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(sample, tmp_path / "my_set")
    monkeypatch.chdir(tmp_path)
    text = (REPO / "docs" / "calibration.md").read_text()
    exec(text.partition("```python")[2].partition("```")[0], {})
    assert "At most 10.0% of failures" in capsys.readouterr().out
