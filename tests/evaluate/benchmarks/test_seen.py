"""A model is not measured on what it learned from, unless asked, and then the report says so."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from demerit.data.formats import open_dataset
from demerit.errors import BadInput
from demerit.evaluate.benchmarks.benchmark import load_benchmark
from demerit.evaluate.benchmarks.run import RunOptions, recompute, run_benchmark
from demerit.evaluate.benchmarks.scores import CONTROLS, MeasureSettings
from demerit.evaluate.metrics import Resampling
from demerit.evaluate.reports import Report, build_leaderboard, write_page
from demerit.evaluate.reports.headline import lead
from demerit.models import load_model
from demerit.models.taught.model import TaughtModel
from demerit.training.teach import TeachConfig, teach
from fakes import lesson_data as data
from fakes.fake_network import FakeNetwork
from golden.make import GOLDEN

OPTIONS = RunOptions(workers=0, perturbations=False, settings=MeasureSettings(Resampling(resamples=50)))
QUICK = TeachConfig(folds=4, rows=12, views=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`lesson` holds 8 videos, `lesson-model` the model that was taught on them."""
    folder = tmp_path_factory.mktemp("seen")
    data.write_videos(folder / "lesson", 4, 4)
    teach(folder / "lesson", folder / "lesson-model", network=FakeNetwork(), config=QUICK, workers=0)
    return folder


@pytest.fixture
def measure(folder: Path, tmp_path: Path) -> Callable[..., Report]:
    model = TaughtModel.from_folder(folder / "lesson-model", FakeNetwork())

    def run(place: Path, *more: str, **changes: bool) -> Report:
        models = [model, *map(load_model, more)]
        return run_benchmark(load_benchmark("own"), models, str(place), tmp_path / "out", replace(OPTIONS, **changes))

    return run


def copy_renamed(lesson: Path, out: Path) -> Path:
    """Copy the videos under other names, without labels or sessions."""
    out.mkdir()
    lines = ["file,instruction,success"]
    for number, path in enumerate(sorted(lesson.glob("*.mp4"))):
        shutil.copy(path, out / f"{number}.mp4")
        lines.append(f"{number}.mp4,do it,{str(path.name.startswith('good')).lower()}")
    (out / "labels.csv").write_text("\n".join(lines) + "\n")
    return out


def test_the_training_set_is_refused_also_copied_and_renamed(
    folder: Path, tmp_path: Path, measure: Callable[..., Report]
) -> None:
    for place in (folder / "lesson", copy_renamed(folder / "lesson", tmp_path / "copy")):
        with pytest.raises(BadInput, match="lesson-model"):
            measure(place)


def test_seen_episodes_leave_the_figures_of_every_model(
    folder: Path, tmp_path: Path, measure: Callable[..., Report]
) -> None:
    mixed = data.write_videos(tmp_path / "mixed", 7, 7)
    for path in (folder / "lesson").glob("*.mp4"):  # eight of the 14
        shutil.copy(path, mixed)
    report = measure(mixed, "clock")
    learned = {episode.id for episode in open_dataset(str(folder / "lesson"))}
    assert set(report.seen.by_model["lesson-model"]) == learned and report.seen.of == 14
    assert not learned & {row.id for row in report.episodes} and len(report.episodes) == 6
    for name in ("lesson-model", "clock", *CONTROLS):
        assert len(report.rewards_of(name)) == 6 and report.line(name, "auroc").n == 6
    assert report.seen.sentences()[0] in write_page(report, tmp_path / "report.html").read_text()
    assert lead(report).title != "Not a fair measurement"


def test_seen_episodes_that_are_included_mark_the_report(
    folder: Path, tmp_path: Path, measure: Callable[..., Report]
) -> None:
    report = measure(folder / "lesson", include_seen=True)
    assert len(report.episodes) == 8 and report.seen.unfair and lead(report).trusted == ""
    assert report.line("lesson-model", "auroc") and not report.verdicts.get("lesson-model") and not report.decisions
    report.write(tmp_path / "report.json")
    again = Report.read(tmp_path / "report.json")
    assert again.seen == report.seen and recompute(again).as_dict() == report.as_dict()
    page = build_leaderboard([again], tmp_path / "site").read_text()
    assert "tag alarm" in page and report.seen.sentences()[0] in page


def test_other_episodes_are_measured_without_a_word(tmp_path: Path, measure: Callable[..., Report]) -> None:
    fresh = data.write_videos(tmp_path / "fresh", 3, 3, first=30)
    report = measure(fresh)
    assert len(report.episodes) == 6 and not report.seen.by_model and "seen" not in report.as_dict()
    assert not [warning for warning in report.warnings if "lesson-model" in warning]


def test_a_model_without_a_record_is_named_as_unknown(tmp_path: Path) -> None:
    old = load_model(str(GOLDEN / "taught"))
    assert not old.seen.complete
    report = run_benchmark(load_benchmark("own"), [old], str(GOLDEN / "videos"), tmp_path, OPTIONS)
    (note,) = [warning for warning in report.warnings if "record" in warning]
    assert "taught" in note and not report.seen.by_model
