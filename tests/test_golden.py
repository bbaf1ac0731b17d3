"""Files written by an earlier version open and resume, and new files and JSON output have the same content.

The files in `golden` were made by an earlier version with `golden/make.py`. A failure here means that users lose
something. Make the files again only when a format changes on purpose.
"""

import hashlib
import importlib.util
import json
import math
import shutil
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

import demerit
from fakes.command import demerit_here
from golden import make
from golden.make import EXPECTED, GOLDEN, PLACE

TOLERANCE = 1e-4
# Fitted numbers may differ in their last digits, and so do their hashes.
HASHED = ("*.head", "*.card.revision", "*.card.weights_hash")
# Text written for people may be reworded: it has to be there, but not to be equal.
PROSE = (
    *("*claim", "*measure.note", "*verdicts.*", "*warnings.*", "*advice.*", "*notes.*", "*calibration.note"),
    *("*text", "*title", "*promise", "*outcomes.*.events.*.note", "*preferences.*.why"),
)
ADDED = (
    *("reads_signals", "familiar*", "answer", "doubtful labels", "reader", "read_every", "large", "caution", "flagged"),
    *("unfinished", "second_tower"),
)
MACHINE = tuple(f"environment.{name}" for name in ("demerit", "python", "platform", "numpy", "date"))
# With few tasks, recordings are resampled now, and paraphrases of one task are one task.
RESAMPLED = (
    *("comparisons.*.low", "comparisons.*.high", "comparisons.*.p", "comparisons.*.p_adjusted"),
    *("lines.*.measure.low", "lines.*.measure.high", "lines.*.measure.clusters"),
    *("episodes.*.task", "verdicts.*", "warnings"),
)
EXACT = "cards,checks,export,inspect,schemas,files,rows,materialize,taught head,teach,scores".split(",")
STORED = ("store/episodes", "judged/episodes", "judged/preferences", "judged/problems", "negatives/episodes")
REWARDS = sorted(path.parent.relative_to(GOLDEN).as_posix() for path in GOLDEN.rglob("rewards.json"))


def golden(what: str) -> Any:
    return json.loads((GOLDEN / EXPECTED / f"{what.replace(' ', '-')}.json").read_text("utf-8"))


def differences(before: Any, now: Any, but: tuple[str, ...] = (), at: str = "") -> list[str]:
    """List where two JSON values differ. Floats may differ by the tolerance; paths that match `but` are skipped."""
    if any(fnmatch(at, pattern) for pattern in but):
        return []
    if isinstance(before, str) and isinstance(now, str) and any(fnmatch(at, pattern) for pattern in PROSE):
        return []
    if type(before) is not type(now):
        return [f"{at}: {before!r} before, {now!r} now"]
    if isinstance(before, dict):
        changed = [f"{at}.{key}: gone" for key in before if key not in now]
        changed += [f"{at}.{key}: new" for key in now if key not in before]
        both = [key for key in before if key in now]
        return changed + [
            change for key in both for change in differences(before[key], now[key], but, f"{at}.{key}".strip("."))
        ]
    if isinstance(before, list):
        if len(before) != len(now):
            return [f"{at}: {len(before)} values before, {len(now)} now"]
        pairs = zip(before, now, strict=True)
        return [
            change for place, pair in enumerate(pairs) for change in differences(*pair, but, f"{at}.{place}".strip("."))
        ]
    if isinstance(before, float):
        is_same = math.isclose(before, now, rel_tol=TOLERANCE, abs_tol=TOLERANCE) or (
            math.isnan(before) and math.isnan(now)
        )
        return [] if is_same else [f"{at}: {before!r} before, {now!r} now"]
    return [] if before == now else [f"{at}: {before!r} before, {now!r} now"]


def leave_out_added(now: Any) -> Any:
    """Leave out what earlier versions lack: familiarity, a lesson's answer and weights, cautions, reading signals."""
    if isinstance(now, dict):
        return {
            key: leave_out_added(value)
            for key, value in now.items()
            if not any(fnmatch(key, pattern) for pattern in ADDED)
        }
    return [leave_out_added(value) for value in now] if isinstance(now, list) else now


def digests(folder: Path) -> dict[str, str]:
    """Hash every file except locks and pages."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock" and path.suffix != ".html"
    }


def run_demerit(*words: str, inside: Path) -> str:
    """Run a command in this process and return what it prints, in lines as long as they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "400")
        done = demerit_here(*words, cwd=inside)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A copy of the old files in another folder."""
    folder = tmp_path.resolve() / "old"
    shutil.copytree(GOLDEN, folder, ignore=shutil.ignore_patterns(EXPECTED, "*.py", "__pycache__"))
    make.move_data(folder, PLACE, str(folder))
    return folder


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The same files made by this version, and what its commands printed."""
    folder = tmp_path_factory.mktemp("fresh").resolve()
    shutil.copytree(GOLDEN / "videos", folder / "videos")
    return folder, make.make(folder, run_demerit)


# Files of the earlier version


@pytest.mark.parametrize("name", make.STORES)
def test_an_old_store_opens_with_the_same_rows(old: Path, name: str) -> None:
    assert not differences(golden("rows")[name], json.loads(json.dumps(make.store_facts(old / name))))
    opened = demerit.open_dataset(str(old / name))
    assert [episode.id for episode in opened] == [episode["id"] for episode in golden("rows")[name]["episodes"]]


@pytest.mark.parametrize("name", make.INSPECTED[:4])
def test_an_old_dataset_is_inspected_as_before(old: Path, name: str) -> None:
    assert not differences(golden("inspect")[name], json.loads(run_demerit("inspect", name, "--json", inside=old)))


def test_old_frames_decode(old: Path) -> None:
    for name in make.STORES:
        for episode in demerit.Store(old / name).episodes():
            for frames in episode.views.values():
                assert frames.take([0, len(frames) - 1]).shape == (2, 128, 128, 3)


@pytest.mark.parametrize("folder", REWARDS)
def test_old_rewards_open_with_the_same_values(old: Path, folder: str) -> None:
    store = demerit.RewardStore(old / folder)
    rows = make.rows(GOLDEN / folder / "rewards")
    assert [reward.episode for reward in store] == [row["episode"] for row in rows]
    assert {row["card"] for row in rows} == {store.card.hash()}
    for reward, row in zip(store, rows, strict=True):
        found = {
            "at": reward.at.tolist(),
            "value": reward.value.tolist(),
            "success": None if reward.success is None else reward.success.tolist(),
            "scored": reward.scored,
            "why_missing": reward.why_missing,
            "given": dict(reward.given),
        }
        assert not differences({**{name: row[name] for name in found}, "given": json.loads(row["given"])}, found)


@pytest.mark.parametrize("command", [*make.RESUMED, *make.USED])
def test_a_rerun_changes_nothing(old: Path, command: str) -> None:
    before = digests(old)
    run_demerit(*make.COMMANDS[command], inside=old)
    assert digests(old) == before


def test_an_old_benchmark_resumes_and_reports_the_same(old: Path) -> None:
    before = digests(old / "bench" / "rewards")
    run_demerit(*make.COMMANDS["bench"], inside=old)
    assert digests(old / "bench" / "rewards") == before
    assert not report_differences("bench", old)


@pytest.mark.parametrize("name", ["taught", "calibrated"])
def test_an_old_model_loads_and_scores_as_before(old: Path, name: str) -> None:
    model = str(old / name) if name == "taught" else f"calibrated:{old / name}"
    found = json.loads(json.dumps(make.reward_facts(model, old / "store")))
    assert not differences(golden("scores")[name], found)


def test_teaching_an_old_model_again_gives_the_same_result(old: Path) -> None:
    make.move_models(old / "taught", PLACE, str(old))
    printed = json.loads(run_demerit(*make.COMMANDS["teach"], inside=old))
    assert not differences(golden("teach"), leave_out_added(printed))


@pytest.mark.parametrize("folder", ["bench", "taught"])
def test_an_old_report_is_recomputed_to_the_same_numbers(old: Path, folder: str) -> None:
    run_demerit("bench", "--recompute", f"{folder}/report.json", inside=old)  # fails when a number differs


def test_the_leaderboard_reads_an_old_report(old: Path) -> None:
    run_demerit("leaderboard", "bench", "--out", "site", inside=old)
    assert "own@1" in "".join(path.read_text("utf-8") for path in (old / "site").rglob("*.html"))


# Files and output of this version


@pytest.mark.parametrize("what", EXACT)
def test_output_is_unchanged(fresh: tuple[Path, dict[str, Any]], what: str) -> None:
    assert not differences(golden(what), leave_out_added(fresh[1][what]))


def test_manifests_and_models_have_the_same_fields(fresh: tuple[Path, dict[str, Any]]) -> None:
    before, now = golden("manifests"), fresh[1]["manifests"]
    assert list(before) == list(now)
    for path in before:
        fitted = any(name in path for name in ("taught", "calibrated"))
        assert not differences(before[path], leave_out_added(now[path]), HASHED if fitted else (), path)


def test_every_listed_name_still_exists(fresh: tuple[Path, dict[str, Any]]) -> None:
    for what, names in golden("lists").items():
        assert names
        assert not set(names) - set(fresh[1]["lists"][what]), what


@pytest.mark.parametrize("table", STORED)
def test_the_same_rows_are_written(fresh: tuple[Path, dict[str, Any]], table: str) -> None:
    before = make.rows(GOLDEN / table)
    for row in before:
        for view in row.get("views", ()):
            view["path"] = view["path"].replace(PLACE, str(fresh[0]))
    assert before
    assert not differences(before, make.rows(fresh[0] / table))


@pytest.mark.parametrize("folder", REWARDS)
def test_the_same_rewards_are_written(fresh: tuple[Path, dict[str, Any]], folder: str) -> None:
    fitted = ("*.card",) if folder.endswith(("taught", "calibrated")) else ()
    before, now = (make.rows(root / folder / "rewards") for root in (GOLDEN, fresh[0]))
    for row in [*before, *now]:
        row["given"] = json.loads(row["given"])
    assert before
    assert not differences(before, leave_out_added(now), fitted)


@pytest.mark.parametrize("folder", ["bench", "taught"])
def test_the_same_report_is_written(fresh: tuple[Path, dict[str, Any]], folder: str) -> None:
    assert not report_differences(folder, fresh[0])


def report_differences(folder: str, root: Path) -> list[str]:
    before = json.loads((GOLDEN / folder / "report.json").read_text("utf-8"))
    now = json.loads((root / folder / "report.json").read_text("utf-8").replace(str(root), PLACE))
    before["lines"] = [line for line in before["lines"] if not line["part"].startswith("task: ")]
    fitted = ("cards.0.revision", "cards.0.weights_hash") if folder == "taught" else ()
    return differences(before, only_known(before, now), (*MACHINE, *fitted, *RESAMPLED))


def only_known(before: Any, now: Any) -> Any:
    """Leave out what later versions added: keys, measures, comparisons and names of measures."""
    if isinstance(before, dict) and isinstance(now, dict):
        return {key: only_known(before[key], now[key]) for key in before if key in now}
    if isinstance(before, list) and isinstance(now, list) and len(now) > len(before):
        at = {identity(one): one for one in now}
        now = [at[identity(one)] for one in before if identity(one) in at]
    if isinstance(before, list) and isinstance(now, list) and len(now) == len(before):
        return [only_known(*pair) for pair in zip(before, now, strict=True)]
    return now


def identity(one: Any) -> Any:
    """What a row of a report is of."""
    if not isinstance(one, dict):
        return one
    names = (one.get(key) for key in ("model", "part", "first", "second"))
    return (*names, one["measure"]["name"] if isinstance(one.get("measure"), dict) else one.get("measure"))


def test_the_simulator_gives_the_same_physics(tmp_path: Path) -> None:
    if importlib.util.find_spec("metaworld") is None:
        pytest.skip("no simulator here: pip install 'demerit[sim]'")
    try:
        found = make.simulate(tmp_path)
    except RuntimeError as error:
        if "OpenGL" in str(error):
            pytest.skip("no OpenGL here")
        raise
    for episode in found["episodes"]:  # earlier versions lack them
        assert {"action", "goal"} <= set(episode["signals"])
        del episode["signals"]["action"], episode["signals"]["goal"]
    assert not differences(golden("simulate"), found)
