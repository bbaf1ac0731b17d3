"""The published tables on small stand-ins in the published layouts: what is refused, and what stands beside figures."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from demerit.cli.bench import print_report
from demerit.data.dataset import Dataset, ListReader
from demerit.data.episode import Episode, Outcome
from demerit.data.published_sets import PublishedPart, published_sets
from demerit.data.reward import Reward
from demerit.data.splits import SeenEpisodes
from demerit.errors import BadInput
from demerit.evaluate.benchmarks.benchmark import Benchmark, load_benchmark
from demerit.evaluate.benchmarks.run import RunOptions, list_scored, load_data, recompute, run_benchmark
from demerit.evaluate.benchmarks.scores import MeasureSettings
from demerit.evaluate.metrics import Resampling
from demerit.evaluate.reports.page import grade_matrices, instruction_matrices, published_rows, write_page
from demerit.evaluate.reports.published import find_figures, published_tables
from demerit.evaluate.reports.report import EpisodeLabels, Report
from demerit.models.protocol import example_card
from fakes.command import demerit_here, error_sentence
from fakes.tiny_video import put_video, write_lines, write_video

QUICK = RunOptions(workers=0, controls=False, settings=MeasureSettings(Resampling(resamples=50)))


class Ending:
    """Rises evenly to the number that ends the instruction."""

    def __init__(self, name: str, revision: str = "1", low: float = 0.0, high: float = 1.0) -> None:
        self.card = example_card(name=name, revision=revision, low=low, high=high, quantity="grade", sees_pixels=False)

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        return [
            Reward(self.card.name, one.id, np.arange(4), np.linspace(self.card.low or 0, float(_last(one)), 4))
            for one in episodes
        ]


def _last(one: Episode) -> str:
    return one.instruction.rpartition(" ")[2]


def shrink(name: str, count: int, parts: dict[str, int], by: str = "subset", called: str = "") -> Benchmark:
    """Return a published benchmark whose set is this small."""
    benchmark = load_benchmark(name)
    known = next(one for one in benchmark.published if called in ("", one.name))
    small = tuple(replace(known.find_part(part) or PublishedPart(part), count=size) for part, size in parts.items())
    return replace(benchmark, published=(replace(known, count=count, parts=small, by=by),))


def row(place: int, subset: str = "", category: str = "other", context: str = "", **more: object) -> EpisodeLabels:
    facts = EpisodeLabels(id=str(place), instruction="", category=category, context=context, task="", subset=subset)
    return replace(facts, **more)  # type: ignore[arg-type]


# The sets as printed


def test_printed_sizes_add_up() -> None:
    (bench,) = published_sets("roborewardbench@1")
    (arena,) = published_sets("roboarena@1")
    for one, size, parts in ((bench, 2831, 23), (arena, 723, 7)):
        counted = [part.count or 0 for part in one.parts]
        assert (sum(counted), one.count, sum(count > 0 for count in counted)) == (size, size, parts)
    assert [part.count for part in arena.parts] == [427, 32, 72, 47, 68, 30, 47]
    assert [one.count for one in published_sets("rbm-eval@1")] == [976, None]
    (long,) = (table for table in published_tables() if table.name == "roboreward_table_10")
    assert {part.name for part in bench.parts if part.count} == set(long.columns) - {"Overall"}
    assert len({part.embodiment for part in bench.parts}) == 14  # as many as the paper counts
    assert Counter(part.perspective for part in bench.parts)["egocentric"] == 7


def test_the_published_set_is_recognised_by_its_sizes() -> None:
    benchmark = load_benchmark("roborewardbench@1")
    parts = [part for part in benchmark.published[0].parts if part.count]
    rows = [row(0, f"{part.folder}_converted_externally_to_rlds") for part in parts for _ in range(part.count or 0)]
    assert benchmark.find_set(rows) is benchmark.published[0]
    renamed = [replace(one, subset=f"folder {one.subset[-40:]}") for one in rows]
    assert benchmark.find_set(renamed) is benchmark.published[0]
    for wrong, word in (
        (rows[:-1], "DLR Wheelchair Shared Control 18 instead of 19"),
        (rows[1000:], "RoboArena (1,00"),
    ):
        with pytest.raises(BadInput, match=r"2,831 examples in 23 subsets.*own:roborewardbench@1") as caught:
            benchmark.find_set(wrong)
        assert word in str(caught.value)
    moved = [*rows[:-1], replace(rows[0], subset="mine")]  # the right number, in other parts
    with pytest.raises(BadInput, match=r"2,831 examples in 24 subsets.*extra: mine \(1\)"):
        benchmark.find_set(moved)


def test_rbm_eval_is_one_of_two_sets() -> None:
    benchmark = load_benchmark("rbm-eval@1")
    unseen, known = benchmark.published
    assert benchmark.find_set([row(place, "usc_xarm") for place in range(976)]) is unseen
    rows = [row(place, f"{part.name}_eval") for place, part in enumerate(known.parts)]
    assert benchmark.find_set(rows) is known
    with pytest.raises(BadInput, match=r"RBM-EVAL-OOD, 976 .* RBM-EVAL-ID"):
        benchmark.find_set(rows[1:])


def test_roboarena_counts_tasks_with_two_rated_rollouts() -> None:
    benchmark = load_benchmark("roboarena@1")
    kinds = [part.name for part in benchmark.published[0].parts for _ in range(part.count or 0)]
    twice = [
        row(place, category=kind, context=str(place), progress=0.5) for place, kind in enumerate(kinds) for _ in "AB"
    ]
    alone = [row(0, context="alone", progress=0.5), row(0, context="unrated"), row(0, context="unrated")]
    assert benchmark.find_set([*twice, *alone]) is benchmark.published[0]
    assert benchmark.find_set([replace(one, category="pour") for one in twice]) is not None  # said, not refused
    with pytest.raises(BadInput, match=r"723 tasks.*got 722 tasks"):
        benchmark.find_set([*twice[2:], *alone])


# The three tables


def make_grades(root: Path) -> Path:
    grades = {"bridge": (5, 1), "roboarena": (3, 2), "taco_play": (4,)}
    rows = []
    for subset, given in grades.items():
        for number, grade in enumerate(given):
            put_video(root / "test" / subset / f"{number}.mp4")
            said = min(5, grade + (subset == "roboarena"))  # one grade too many on RoboArena
            rows.append({"file_name": f"{subset}/{number}.mp4", "task": f"lift cup {said}", "reward": grade})
    write_lines(root / "test" / "metadata.jsonl", *rows)
    return root


def make_rollouts(root: Path) -> Path:
    for session, (task, scores) in {"s1": ("pour the nuts", (0.9, 0.1)), "s2": ("lift the cup", (0.2, 0.8))}.items():
        folder, policies = root / "evaluation_sessions" / session, {}
        for letter, score in zip("AB", scores, strict=True):
            policies[letter] = {"policy_name": "p", "binary_success": int(score > 0.5), "partial_success": score}
            put_video(folder / f"{letter}_p" / "u_video_left.mp4")
        facts = {"language_instruction": task, "preference": "A", "policies": policies}
        (folder / "metadata.yaml").write_text(json.dumps(facts))
    return root


def make_rows(root: Path) -> Path:
    rows = []
    for task in ("lift the cup 0.9", "open the drawer 0.4"):
        for quality in ("failure", "successful"):
            name = f"{task.split()[0]}-{quality}"
            put_video(root / "videos" / f"{name}.mp4")
            facts = {"id": name, "task": task, "frames": f"videos/{name}.mp4", "data_source": "lab"}
            rows.append({**facts, "quality_label": quality})
    write_lines(root / "rows.jsonl", *rows)
    return root


@pytest.mark.parametrize(
    ("make", "name", "size"),
    [
        (make_grades, "roborewardbench@1", "got 5 examples in 3 subsets"),
        (make_rows, "rbm-eval@1", "got 4 trajectories"),
        (make_rollouts, "roboarena@1", "got 2 tasks"),
    ],
)
def test_another_set_is_refused_under_the_published_name(make, name, size, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    data = make(tmp_path / "data")
    command = (
        "--data",
        data,
        "-m",
        "clock",
        "--no-controls",
        "--workers",
        0,
        "--set",
        "resamples=20",
        "--set",
        "embed=0",
    )
    sentence = error_sentence(demerit_here("bench", name, *command, cwd=tmp_path))
    assert size in sentence and f"own:{name}" in sentence and "own@1" in sentence
    assert not (tmp_path / "bench").exists()  # nothing was scored
    done = demerit_here("bench", f"own:{name}", *command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = Report.read(tmp_path / "bench" / f"own-{name}" / "report.json")
    assert report.about.name == f"own:{name}" and report.published == ()
    assert set(report.about.headline) <= set(load_benchmark(name).headline)
    assert "published" not in done.stdout.lower()
    assert recompute(report).about.name == f"own:{name}"


def test_roboreward_table_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = make_grades(tmp_path / "data")
    benchmark = shrink("roborewardbench@1", 5, {"Berkeley Bridge": 2, "RoboArena": 2, "Freiburg Franka Play": 1})
    models = [Ending("roboreward-8b-decode", low=1.0, high=5.0), Ending("grader-gpt-5.2", low=1.0, high=5.0)]
    report = run_benchmark(benchmark, [*models, "clock"], f"roboreward:{data}", tmp_path / "out", QUICK)
    assert report.environment["published set"].startswith("RoboRewardBench, 5 examples")
    found = {(one.model, one.measure, one.part): (one.printed, one.value) for one in report.published}
    assert found["roboreward-8b-decode", "mae_group_wise", ""] == ("0.665", 0.665)
    assert found["roboreward-8b-decode", "mae_roboarena", ""] == ("0.768", 0.768)
    assert found["roboreward-8b-decode", "mae_group_wise_without_roboarena", ""] == ("0.660", 0.66)
    assert found["roboreward-8b-decode", "mae", "subset: taco_play"] == ("0.473", 0.473)
    assert found["grader-gpt-5.2", "mae_group_wise", ""] == ("0.887", 0.887)  # of the long table alone
    assert not any(one.model == "clock" for one in report.published)
    sources = {one.source.rpartition(", ")[2] for one in report.figures("roboreward-8b-decode", "mae_group_wise")}
    assert sources == {"Table 1"}
    measured = report.line("roboreward-8b-decode", "mae_group_wise")
    assert measured is not None and measured.value == pytest.approx((0 + 1 + 0) / 3)

    by_robot = {line.part: line.measure.value for line in report.lines if line.measure.name == "mae" and line.part}
    assert by_robot["embodiment: WidowX"] == 2.0 and by_robot["perspective: egocentric"] == 1.0  # the clock's
    line = report.line("roboreward-8b-decode", "mae", "perspective: exocentric")
    assert line is not None and (line.n, line.value) == (2, 0.0)

    again = Report.from_dict(json.loads(json.dumps(report.as_dict())))
    assert again.published == report.published
    print_report(report)
    said = capsys.readouterr().out
    assert "published 0.665" in said and "Table 1" in said
    rows = published_rows(report)
    assert rows[0]["difference"] == "−0.332" and len(rows) == len(report.published)
    page = write_page(report, tmp_path / "report.html").read_text()
    assert "published: 0.665" in page and "Table 10" in page and "Which grades are confused" in page


def test_the_matrix_of_grades_counts_every_episode(tmp_path: Path) -> None:
    data = make_grades(tmp_path / "data")
    benchmark = load_benchmark("own:roborewardbench@1")
    report = run_benchmark(
        benchmark, [Ending("graded", low=1.0, high=5.0)], f"roboreward:{data}", tmp_path / "o", QUICK
    )
    (matrix,) = grade_matrices(report)
    counts = {
        (place // 5 + 1, place % 5 + 1): cell["text"] for place, cell in enumerate(matrix["cells"]) if cell["text"]
    }
    assert counts == {(5, 5): "1", (1, 1): "1", (3, 4): "1", (2, 3): "1", (4, 4): "1"}
    assert "60% of 5" in matrix["caption"]
    off = sum(abs(truth - said) * int(count) for (truth, said), count in counts.items())
    line = report.line("graded", "mae")
    assert line is not None and line.value == pytest.approx(off / 5)


def test_robometer_table_1(tmp_path: Path) -> None:
    data = make_rows(tmp_path / "data")
    models = [Ending("robometer"), Ending("gvl", "gpt-5-mini prompt 1"), Ending("dopamine-8b-forward", "r 1")]
    for called, kendall, voc in (("RBM-EVAL-OOD", "0.64", "0.94"), ("RBM-EVAL-ID", None, "0.92")):
        benchmark = shrink("rbm-eval@1", 4, {}, called=called)
        report = run_benchmark(benchmark, models, f"rbm:{data}", tmp_path / called, QUICK)
        found = {(one.model, one.measure): one.printed for one in report.published}
        assert found["robometer", "voc_pearson"] == voc and found.get(("robometer", "kendall_tau_a")) == kendall
        assert {model for model, _ in found} == {"robometer", "gvl", "dopamine-8b-forward"}
    local = run_benchmark(benchmark, [Ending("gvl", "qwen prompt 1")], f"rbm:{data}", tmp_path / "q", QUICK)
    assert local.published == ()  # the print is of another chat model
    (matrix, *_) = instruction_matrices(report)
    assert matrix["videos"] == ["lift the cup 0.9", "open the drawer 0.4"]
    # this model looks at nothing but the words: columns are equal
    assert [cell["text"] for cell in matrix["cells"]] == ["0.9", "0.4", "0.9", "0.4"]


def test_position_paper_figures_3_and_4(tmp_path: Path) -> None:
    data = make_rollouts(tmp_path / "data")
    benchmark = shrink("roboarena@1", 2, {"pour": 1, "pick/place": 1}, by="category")
    loaded = load_data(benchmark, f"roboarena:{data}", QUICK)
    assert not [note for note in loaded.problems if "Categories" in note]
    report = run_benchmark(benchmark, ["clock"], loaded, tmp_path / "out", QUICK)
    assert report.published == ()
    cards = [replace(report.cards[0], name=name) for name in ("gvl", "gvl+dense")]
    lines = [replace(line, model=card.name) for line in report.lines for card in cards]
    figures = {(one.model, one.part): one for one in find_figures(loaded.published, cards, lines)}
    assert figures["gvl", "category: pick/place"].printed == "0.72 to 0.77 (three models)"
    assert figures["gvl", "category: pour"].value is None and "about 0.6" in figures["gvl", "category: pour"].printed
    assert figures["gvl+dense", "category: pour"].printed.startswith("10 percent")
    other = shrink("roboarena@1", 2, {"pour": 2}, by="category")
    (note,) = [note for note in load_data(other, f"roboarena:{data}", QUICK).problems if "Categories" in note]
    assert "pour 1 instead of 2" in note and "pick/place (1)" in note


def test_no_figure_is_shown_for_a_part_of_the_set(tmp_path: Path) -> None:
    data = make_grades(tmp_path / "data")
    write_video(data / "test" / "bridge" / "1.mp4", np.zeros((4, 32, 32, 3), dtype=np.uint8))
    benchmark = shrink("roborewardbench@1", 5, {"Berkeley Bridge": 2, "RoboArena": 2, "Freiburg Franka Play": 1})
    with pytest.raises(BadInput, match="4 examples"):
        load_data(benchmark, f"roboreward:{data}", replace(QUICK, limit=4))
    loaded = load_data(benchmark, f"roboreward:{data}", QUICK)
    model = Ending("roboreward-8b-decode", low=1.0, high=5.0)
    model.seen = SeenEpisodes.of(one for one in loaded.episodes if "bridge/1" in one.id)  # type: ignore[attr-defined]
    report = run_benchmark(benchmark, [model], loaded, tmp_path / "out", QUICK)
    assert report.published == () and len(report.episodes) == 4
    assert any("4 of 5 episodes" in warning and "published" in warning for warning in report.warnings)
    model.seen = replace(model.seen, are_goals=True)  # type: ignore[attr-defined]
    goals = run_benchmark(benchmark, [model], loaded, tmp_path / "goals", QUICK)
    assert goals.published and len(goals.episodes) == 4  # as the position paper leaves them out


# Table III: the policy's own token uncertainty


def test_token_uncertainty_of_the_policy_is_a_rule_over_what_it_recorded(tmp_path: Path) -> None:
    """At most 1 on the whole way is called a success; F1 of failure by hand: 2 of 3 calls right, 2 of 3 found."""
    recorded = {"a": (0.2, 0.4, True), "b": (0.3, 1.5, True), "c": (2.0, 0.1, False), "d": (0.1, 1.2, False)}
    recorded["e"] = (0.5, 0.6, False)
    episodes = [
        replace(
            Episode.from_array(np.zeros((2, 8, 8, 3), dtype=np.uint8), "lift the cup", id=name),
            signals={"token_uncertainty": np.array(curve)},
            outcomes=(Outcome("human", success=success),),
        )
        for name, (*curve, success) in recorded.items()
    ]
    (tmp_path / "sure.yaml").write_text("formula: never(token_uncertainty > 1)\n")
    data = Dataset(ListReader("memory", episodes), "memory")
    benchmark = load_benchmark("failure-detection@1")
    report = run_benchmark(benchmark, [f"rule:{tmp_path / 'sure.yaml'}"], data, tmp_path / "out", QUICK)
    measure = report.line("rule-sure", "f1_of_failure")
    assert measure is not None and measure.value == pytest.approx(2 / 3)
    # the certainties are minus the largest uncertainty: 4 of 6 pairs in the right order
    order = report.line("rule-sure", "auroc")
    assert order is not None and order.value == pytest.approx(4 / 6)


# Protocols


def test_protocols_are_those_of_the_papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, object]]] = []
    monkeypatch.setattr(
        "demerit.evaluate.benchmarks.benchmark.load_model", lambda name, **options: asked.append((name, options))
    )
    table, arena = load_benchmark("rbm-eval@1"), load_benchmark("roboarena@1")
    for name in ("dopamine", "dopamine:4b,frames=8", "roboreward:4b", "vlac", "gvl", "topreward", "robometer"):
        table.load_model(name)
    for name in ("dopamine", "dopamine:goal=done.png"):
        arena.load_model(name, "roboarena:here")
    cameras = {"cameras": "left+right+wrist"}
    assert asked == [
        ("dopamine", {"mode": "forward", "frames": 64}),
        ("dopamine:4b,frames=8", {"mode": "forward"}),
        ("roboreward:4b", {"how": "dense", "frames": 64}),
        ("vlac", {"frames": 64}),
        ("gvl", {"frames": 15}),
        ("topreward", {"frames": 64}),
        ("robometer", {}),
        ("dopamine", {"goals": "roboarena:here", **cameras}),
        ("dopamine:goal=done.png", cameras),
    ]


@pytest.mark.parametrize("name", ["own:roborewardbench@1", "own:rbm-eval@1", "own:roboarena@1"])
def test_other_episodes_may_be_of_any_format(name: str, sample: Path) -> None:
    data = load_data(load_benchmark(name), str(sample), RunOptions(limit=2))
    assert len(data.episodes) == 2 and data.address.startswith("videos:")


def test_what_is_scored_includes_changed_frames_and_instructions(sample: Path) -> None:
    benchmark, options = load_benchmark("own@1"), RunOptions(limit=2)
    data = load_data(benchmark, str(sample), options)
    asked = list_scored(benchmark, data, options)
    assert len(asked) > len(data.episodes) and {episode.id for episode in asked} == {one.id for one in data.episodes}
    assert len(list_scored(benchmark, data, RunOptions(limit=2, perturbations=False))) == 2
