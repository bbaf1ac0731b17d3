"""Two policies compared: the estimator against a second computation, coverage, and the command."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from demerit.data.episode import Episode, Outcome
from demerit.data.reward import Reward
from demerit.data.splits import SeenEpisodes
from demerit.decide.interval import Share
from demerit.errors import BadInput
from demerit.use.compare import (
    PolicyComparison,
    PolicyRollouts,
    compare,
    estimate_rate,
    extend_sheet,
    read_sheet,
)
from fakes.command import demerit_here, error_sentence
from fakes.tiny_video import put_video


def draw(rate: float, labels: int, kind: str, rng: np.random.Generator, episodes: int = 200) -> tuple:
    """Predictions and labels of simulated episodes; the first are labelled."""
    y = (rng.random(episodes) < rate).astype(float)
    noise = rng.random(episodes)
    f = {
        "good": 0.7 * y + 0.3 * noise,
        "random": noise,
        "flatters": np.where(noise < 0.6, 1.0, y),  # most failures pass
    }[kind]
    return f, np.where(np.arange(episodes) < labels, y, np.nan)


def test_the_rate_is_a_regression_read_at_the_mean_prediction_and_worth_more_labels() -> None:
    f, labels = draw(0.6, 30, "good", np.random.default_rng(0))
    found = estimate_rate(f, labels)
    y = np.append(labels[:30], [1, 0])
    x = np.stack([np.ones(32), np.append(f[:30], [f.min(), f.max()])], axis=1)
    root = np.sqrt(np.append(np.ones(30), [0.1, 0.1]))
    (_, slope), squares, *_ = np.linalg.lstsq(x * root[:, None], y * root, rcond=None)
    explained = 1 - squares[0] / (root**2 @ (y - np.average(y, weights=root**2)) ** 2) * 29 / 28
    assert found.rate == pytest.approx(labels[:30].mean() + slope * (f.mean() - f[:30].mean()))
    assert found.worth() == pytest.approx(30 / (1 - explained * 170 / 200))
    assert found.interval == Share.around(found.rate, found.worth())


def test_with_many_labels_it_is_textbook_ppi() -> None:
    f, labels = draw(0.6, 2000, "flatters", np.random.default_rng(1), episodes=8000)
    y, n, rest = labels[:2000], 2000, 6000
    tuned = np.cov(y, f[:n])[0, 1] / f[:n].var(ddof=1) / (1 + n / rest)  # the lambda of PPI++ for a mean
    rate = (y - tuned * f[:n]).mean() + tuned * f[n:].mean()
    variance = (y - tuned * f[:n]).var() / n + tuned**2 * f[n:].var() / rest
    found = estimate_rate(f, labels)
    assert found.rate == pytest.approx(rate, abs=1e-3)
    assert found.variance() == pytest.approx(variance, rel=0.01)
    assert found.slope * (1 - n / 8000) == pytest.approx(tuned, rel=0.01)


@pytest.mark.parametrize("f", [[math.nan] * 20, [0.5] * 20, [0.1] * 7 + [0.9] * 3 + [0.5] * 10])
def test_a_model_that_says_nothing_or_the_opposite_leaves_the_labels_alone(f: list[float]) -> None:
    found = estimate_rate(f, [1.0] * 7 + [0.0] * 3 + [math.nan] * 10)
    assert (found.rate, found.slope, found.interval) == (0.7, 0.0, found.by_labels)
    assert str(found.interval) == "70% (95%: 40 to 89), 7 of 10"


def test_labels_of_one_kind_and_a_model_that_sees_the_other_among_the_rest() -> None:
    found = estimate_rate([0.9] * 10 + [0.9, 0.1] * 20, [1.0] * 10 + [math.nan] * 40)
    assert found.interval == found.by_labels  # ten successes do not show what a low prediction means
    assert (found.rate, found.by_labels.high) == (1.0, 1.0)


def test_where_every_episode_has_a_label_the_rate_is_the_labels_own_whatever_the_model() -> None:
    rates = [estimate_rate(f, [1.0] + [0.0] * 4) for f in ([0.1, 0.2, 0.9, 0.8, 0.7], [0.9] + [0.1] * 4)]
    for rate in rates:
        assert (rate.rate, rate.interval) == (0.2, rate.by_labels)
        assert str(rate.interval) == "20% (95%: 4 to 62), 1 of 5"
    other = estimate_rate([0.5] * 6, [1.0] * 5 + [0.0])
    assert PolicyComparison(rates[0], other).difference == PolicyComparison(rates[0], other).by_labels


def cover(kind: str, labels: int, runs: int = 300) -> tuple[float, float]:
    """Coverage of the difference, and mean width over that of the labels alone."""
    rng, covered, widths = np.random.default_rng(labels), 0, []
    for _ in range(runs):
        result = PolicyComparison(*(estimate_rate(*draw(rate, labels, kind, rng)) for rate in (0.5, 0.7)))
        gap, alone = result.difference, result.by_labels
        covered += gap.low <= 0.2 <= gap.high
        widths.append((gap.high - gap.low, alone.high - alone.low))
    mine, theirs = np.mean(widths, axis=0)
    return covered / runs, mine / theirs


@pytest.mark.parametrize("labels", [10, 40])
def test_intervals_hold_for_any_model_and_are_never_wider_than_the_labels_alone(labels: int) -> None:
    slack = 2.6 * math.sqrt(0.95 * 0.05 / 300)  # of 300 runs
    good, random, flatters = (cover(kind, labels) for kind in ("good", "random", "flatters"))
    assert min(good[0], random[0], flatters[0]) > 0.95 - slack
    assert max(good[1], random[1], flatters[1]) <= 1
    assert good[1] < (0.85 if labels == 10 else 0.65)
    assert random[1] > 0.97


def test_the_promised_number_of_labels_decides_about_as_often_as_promised() -> None:
    rng, promised = np.random.default_rng(7), []
    pair = [estimate_rate(*draw(rate, 40, "flatters", rng, 2000)) for rate in (0.5, 0.7)]
    # the truth, not the estimate: what is tested is the sum, not the luck of 40 labels
    truth = PolicyComparison(*(replace(one, rate=rate) for one, rate in zip(pair, (0.5, 0.7), strict=True)))
    needed = truth.labels_needed()
    assert needed is not None and needed[0] == needed[1]
    for _ in range(200):
        again = [estimate_rate(*draw(rate, 40 + needed[0], "flatters", rng, 2000)) for rate in (0.5, 0.7)]
        promised.append(PolicyComparison(*again).sign == 1)
    assert 0.7 < np.mean(promised) < 0.95


def test_equal_policies_ask_for_more_episodes_not_for_labels() -> None:
    one = estimate_rate([0.2, 0.8] * 10, [0.0, 1.0] * 10)
    result = PolicyComparison(one, one)
    assert (result.sign, result.labels_needed(), result.episodes_needed()) == (0, None, math.inf)


def make_reward(id: str, value: float, success: list[float] | None = None) -> Reward:
    return Reward("m", id, np.array([0]), np.array([value]), None if success is None else np.array(success))


def make_episode(id: str, *outcomes: Outcome) -> Episode:
    images = np.full((2, 4, 4, 3), sum(map(ord, id)) % 250, dtype=np.uint8)
    return replace(Episode.from_array(images, "push", id), outcomes=outcomes)


def test_episodes_that_the_model_learned_from_and_its_own_labels_do_not_count(tmp_path: Path) -> None:
    videos = [put_video(tmp_path / f"{name}.mp4") for name in "ab"]
    videos[1].write_bytes(videos[1].read_bytes() + b"\0")  # another recording
    taught, new = (Episode.from_video(video, "push") for video in videos)
    rollouts = PolicyRollouts("a")
    rollouts.add(taught, make_reward("a", 0.5), ("human",), SeenEpisodes.of([taught]), None)
    mine = replace(new, outcomes=(Outcome("model", success=True, by="m"),))
    rollouts.add(mine, make_reward("b", 0.25), ("human",), SeenEpisodes.of([taught]), None)
    human = make_episode("c", Outcome("model", success=True), Outcome("human", success=False))
    rollouts.add(human, make_reward("c", 0.25, [0.75]), ("human",), SeenEpisodes(), None)
    rollouts.add(human, make_reward("c", 0.25), ("human",), SeenEpisodes(), True)
    assert (rollouts.taught, rollouts.of_models) == (1, 1)
    assert rollouts.predictions == [0.25, 0.75, 0.25]
    assert np.isnan(rollouts.labels[0]) and rollouts.labels[1:] == [0.0, 1.0]


def test_a_policy_whose_episodes_the_model_all_knows_is_refused() -> None:
    empty, other = PolicyRollouts("a", taught=3), PolicyRollouts("b", ["x"], [0.5], [1.0], [""])
    with pytest.raises(BadInput) as caught:
        compare(empty, other)
    assert caught.value.what == "policy 'a'" and "3" in str(caught.value.got)


def test_the_choice_is_random_stable_and_not_by_prediction() -> None:
    ids = [f"run-{i:04}" for i in range(400)]
    rollouts = PolicyRollouts("a", ids, list(np.linspace(0, 1, 400)), [math.nan] * 400, [""] * 400)
    first = [row[1] for row in rollouts.choose(40)]
    assert first == [row[1] for row in rollouts.choose(60)][:40]  # more labels continue the same order
    places = [ids.index(id) for id in first]
    assert abs(np.mean(places) - 199.5) < 60  # 3 standard errors
    rollouts.labels[places[0]] = 1.0
    assert rollouts.choose(39)[0][1] == first[1]


def test_labels_of_chosen_episodes_are_doubted() -> None:
    f = np.linspace(0, 1, 200)
    by_value = np.where(f > 0.8, 1.0, np.nan)
    assert estimate_rate(f, by_value).is_odd
    spread = np.where(np.arange(200) % 5 == 0, 1.0, np.nan)
    assert not estimate_rate(f, spread).is_odd


def test_a_sheet_keeps_what_was_written_in_it(tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.csv"
    extend_sheet(sheet, [("a", "1, or one", "/v/1.mp4")])
    sheet.write_text('policy,episode,success,seen by\na,"1, or one",yes,Ada')  # a person's editor, no last newline
    extend_sheet(sheet, [("b", "2", "/v/2.mp4")])
    assert list(csv.reader(sheet.read_text().splitlines()))[1:] == [
        ["a", "1, or one", "yes", "Ada"],
        ["b", "2", "", ""],
    ]
    assert read_sheet(sheet) == {("a", "1, or one"): True, ("b", "2"): None}
    extend_sheet(sheet, [("=cmd", "-x", "@v")])
    assert read_sheet(sheet)["=cmd", "-x"] is None and ",=" not in sheet.read_text()
    sheet.write_text("")
    extend_sheet(sheet, [("b", "2", "/v/2.mp4")])
    assert read_sheet(sheet) == {("b", "2"): None}
    sheet.write_text("hello\n")
    with pytest.raises(BadInput):
        extend_sheet(sheet, [("b", "2", "/v/2.mp4")])
    assert sheet.read_text() == "hello\n"
    sheet.write_text("policy,episode,success\na,1,perhaps\n")
    with pytest.raises(BadInput):
        read_sheet(sheet)


# The command


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Two policies with 24 videos each: `old` fails, `new` succeeds; 12 of each have a person's label."""
    for name, success in (("old", "no"), ("new", "yes")):
        rows = []
        for i in range(24):
            put_video(tmp_path / name / f"{i}.mp4")
            verdict = (success if i % 6 else "yes") if i < 12 else ""
            rows.append(f"{i}.mp4,push the cup,{verdict},{name}")
        (tmp_path / name / "labels.csv").write_text("\n".join(["file,instruction,success,policy", *rows]) + "\n")
    return tmp_path


def test_the_command_decides_and_says_so(folders: Path) -> None:
    said = demerit_here("compare", "old", "new", "--model", "clock", "--json", cwd=folders)
    facts = json.loads(said.stdout)
    assert facts["better"] == "new" and facts["difference"]["low"] > 0.3
    assert [one["labels"] for one in facts["policies"]] == [12, 12]
    assert (facts["labels_needed"], facts["to_label"]) == (None, [])
    text = demerit_here("compare", "new", "old", "--model", "clock", cwd=folders).stdout
    assert text.splitlines()[0].startswith("new is better: 100% vs 17%, difference 83 points (95%: ")


def test_a_sheet_leads_from_no_label_to_a_decision(folders: Path) -> None:
    for name in ("old", "new"):
        (folders / name / "labels.csv").unlink()
    words = ("compare", "old", "new", "--model", "clock", "--labels", "sheet.csv", "--json", "--instruction", "push")
    first = json.loads(demerit_here(*words, cwd=folders).stdout)
    assert (first["better"], first["difference"], first["labels_needed"]) == (None, None, 20)
    rows = list(csv.reader((folders / "sheet.csv").read_text().splitlines()))
    assert len(rows) == 21 and all(Path(row[2]).is_file() for row in rows[1:])
    filled = [[*row[:3], "yes" if row[0] == "new" else "no"] for row in rows[1:]]
    (folders / "sheet.csv").write_text("\n".join(",".join(row) for row in [rows[0], *filled]))
    again = json.loads(demerit_here(*words, cwd=folders).stdout)
    assert (again["better"], again["notes"]) == ("new", [])
    with (folders / "sheet.csv").open("a") as file:
        file.write("\nolder,0,,yes\n")
    (note,) = json.loads(demerit_here(*words, cwd=folders).stdout)["notes"]
    assert "older 0" in note


def test_one_dataset_is_split_by_a_tag(folders: Path) -> None:
    rows = [line for name in ("old", "new") for line in (folders / name / "labels.csv").read_text().splitlines()[1:]]
    for name in ("old", "new"):
        (folders / name / "labels.csv").unlink()
    lines = [f"{line.rsplit(',', 1)[1]}/{line}" for line in rows]
    (folders / "labels.csv").write_text("\n".join(["file,instruction,success,policy", *lines]))
    asked = demerit_here("compare", ".", "--by", "policy", "--model", "clock", "--json", cwd=folders)
    assert json.loads(asked.stdout)["better"] == "new"
    sentence = error_sentence(demerit_here("compare", ".", "--by", "policy=old,newer", "--model", "clock", cwd=folders))
    assert "old, new" in sentence
    lines = [line.replace(",old", ",other") if "/0.mp4" in line else line for line in lines]
    (folders / "labels.csv").write_text("\n".join(["file,instruction,success,policy", *lines]))
    words = ("compare", ".", "--model", "clock", "--json", "--by")
    assert "old" in error_sentence(demerit_here(*words, "policy", cwd=folders))
    facts = json.loads(demerit_here(*words, "policy=old,new", cwd=folders).stdout)
    assert facts["verdicts"]["unknown"]["no threshold"] == len(lines) - sum(",other" in line for line in lines)


@pytest.mark.parametrize(
    "words",
    [
        ["old", "--model", "clock"],
        ["old", "new", "--by", "policy", "--model", "clock"],
        ["old", "new", "--label-sources", "model"],
        ["old", "new", "--label-sources", "human,model:validated"],
        ["old", "new", "--labels", "old/0.mp4"],
        ["old", "new", "--labels", "old/labels.csv"],
        ["old", "absent"],
        ["old", "./old", "--model", "clock"],
    ],
)
def test_bad_input_is_one_sentence(folders: Path, words: list[str]) -> None:
    error_sentence(demerit_here("compare", *words, cwd=folders))
    assert not list(folders.glob("*.demerit"))  # nothing was scored in vain
