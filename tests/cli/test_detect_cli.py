"""demerit detect on small videos: rising brightness is a success."""

import csv
import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from demerit.data.store import Store
from demerit.decide.detector import GUESS, Detector
from fakes.command import demerit_here
from fakes.tiny_video import write_video


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`known`: 12 successes; `new`: 3 successes and 3 failures that stay dark, one with a marked event."""
    root = tmp_path_factory.mktemp("detect")
    for folder, names in {"known": ["ok"] * 12, "new": ["ok"] * 3 + ["bad"] * 3}.items():
        (root / folder).mkdir()
        lines = []
        for number, kind in enumerate(names):
            top = 180 + 4 * number if kind == "ok" else 10 + number
            levels = np.linspace(0, top, 8 + number % 3)
            frames = np.stack([np.full((32, 32, 3), level, np.uint8) for level in levels])
            frames[:, :8, :8] = (number * 37 + len(names) * 8) % 256  # no two videos are alike
            write_video(root / folder / f"{kind}{number}.mp4", frames)
            events = {"events": [{"kind": "incomplete", "first": 2, "last": 7}]} if number == 5 else {}
            facts = {"file": f"{kind}{number}.mp4", "instruction": "light it", "success": kind == "ok", **events}
            lines.append(json.dumps(facts))
        (root / folder / "labels.jsonl").write_text("\n".join(lines))
    return root


def test_it_finds_what_stays_dark_and_saves_the_detector(work: Path) -> None:
    arguments = ["detect", "new", "--model", "change", "--calibrate", "known", "--false-alarms", "0.1"]
    said = demerit_here(*arguments, "-o", "d.json", "--csv", "a.csv", "--page", "a.html", "--json", cwd=work)
    assert said.returncode == 0, said.stderr
    facts = json.loads(said.stdout)
    assert {row["episode"] for row in facts["episodes"] if row["alarm"]} == {"bad3", "bad4", "bad5"}
    assert (facts["figures"]["false_alarms"]["hits"], facts["figures"]["false_alarms"]["n"]) == (0, 3)
    assert facts["flagged"] == 3 and facts["guarantee"]["share"] == 0.1
    assert facts["verdicts"] == {"success": 0, "failure": 3, "unknown": {"no alarm": 3}, "warnings": []}
    frames = {row["episode"]: row["flagged_at"] for row in facts["episodes"]}
    assert facts["figures"]["delay"] == frames["bad5"] - 2
    page = (work / "a.html").read_text()
    for row in (row for row in facts["episodes"] if row["alarm"]):
        assert f">{row['episode']} <span" in page and f"flagged at frame {row['flagged_at']} (" in page.lower()
    with (work / "a.csv").open() as file:
        assert [row["alarm"] for row in csv.DictReader(file)] == ["False"] * 3 + ["True"] * 3
    again = demerit_here("detect", "new", "--detector", "d.json", cwd=work)
    assert again.returncode == 0 and "3 flagged of 6 episodes" in again.stdout
    assert "Verdicts: 0 success, 3 failure, 3 unknown (no alarm)" in again.stdout
    assert "flagged at" in again.stdout and GUESS in again.stdout
    ((_, same),) = Counter(frames[id] for id in ("bad3", "bad4", "bad5")).most_common(1)
    assert ("a deadline" in again.stdout) == (same > 1)
    assert Detector.load(work / "d.json").false_alarms == 0.1


def test_demonstrations_alone_teach_and_calibrate(work: Path) -> None:
    taught = demerit_here("teach", "known", "-o", "model", cwd=work)
    assert taught.returncode == 0, taught.stderr
    arguments = ["detect", "new", "--model", "./model", "--calibrate", "known", "--risk", "0.1"]
    said = demerit_here(*arguments, "-o", "ends.json", cwd=work)
    assert said.returncode == 0, said.stderr
    assert "if they resemble the 12 that it was calibrated on" in said.stdout
    assert "each is flagged at its end" in said.stdout and Detector.load(work / "ends.json").at_end
    rows = json.loads(demerit_here("detect", "new", "--detector", "ends.json", "--json", cwd=work).stdout)["episodes"]
    found = {row["episode"]: row for row in rows if row["alarm"]}
    assert {"bad3", "bad4", "bad5"} <= set(found) and len(found) <= 4
    assert all(row["went_wrong_at"] <= row["flagged_at"] for row in found.values())
    for path in (work / "model").glob("held-*.npz"):
        path.unlink()  # as in a model of an earlier version: what it learned from does not count
    few = demerit_here(*arguments, cwd=work)
    assert few.returncode == 1 and "12 more that the model learned from" in few.stderr


def test_a_broken_video_is_listed_and_the_others_are_judged(work: Path, tmp_path: Path) -> None:
    shutil.copytree(work / "known", tmp_path / "known")
    for name in ("ok3", "ok7"):  # torn, and empty
        (tmp_path / "known" / f"{name}.mp4").write_bytes(b"torn" * (name == "ok3"))
    arguments = ["detect", "known", "--model", "change", "--calibrate", "known", "--false-alarms", "0.1", "--json"]
    said = demerit_here(*arguments, cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    rows = {row["episode"]: row for row in json.loads(said.stdout)["episodes"]}
    assert rows["ok3"]["alarm"] is None and "ok3.mp4" in rows["ok3"]["why_missing"]
    assert sum(row["alarm"] is not None for row in rows.values()) == 10


def test_episodes_that_calibrated_it_do_not_measure_it(work: Path) -> None:
    arguments = ["detect", "known", "--model", "change", "--calibrate", "known", "--false-alarms", "0.1", "--json"]
    figures = json.loads(demerit_here(*arguments, cwd=work).stdout)["figures"]
    assert figures["not_counted"] == 12 and figures["false_alarms"]["n"] == 0


def test_bad_input_is_one_sentence_and_writes_nothing(work: Path) -> None:
    few = demerit_here("detect", "new", "--model", "change", "--calibrate", "known", "-o", "no.json", cwd=work)
    assert few.returncode == 1 and "19" in few.stderr and not (work / "no.json").exists()
    for arguments in (
        ["new", "--model", "change"],
        ["new", "--model", "change", "--calibrate", "known", "--detector", "d.json"],
        ["new", "--model", "change", "--calibrate", "known", "--write-labels"],
        ["new", "--detector", "nothing.json"],
        ["new", "--model", "change", "--calibrate", "known", "--false-alarms", "0"],
        ["new", "--model", "change", "--calibrate", "known", "--false-alarms", "nan"],
        ["new", "--model", "change", "--calibrate", "known", "--page", "known/labels.jsonl"],
    ):
        said = demerit_here("detect", *arguments, cwd=work)
        assert said.returncode == 1 and said.stderr.startswith("demerit: ") and "Traceback" not in said.stderr


def test_alarms_become_labels_only_on_request(work: Path) -> None:
    assert demerit_here("import", "new", "folder", cwd=work).returncode == 0
    arguments = ["detect", "folder", "--model", "change", "--calibrate", "known", "--false-alarms", "0.1"]
    for more, expected in (([], 0), (["--write-labels"], 3)):
        assert demerit_here(*arguments, *more, cwd=work).returncode == 0
        found = [
            label for one in Store(work / "folder").episodes() for label in one.outcomes if label.source == "model"
        ]
        assert len(found) == expected
