"""Make the golden files: what users have on disk, and what commands tell as JSON, as this version writes it.

    python tests/golden/make.py

Only the command line and the public names of `import demerit` are used. `videos` is given: six episodes of the sample
that ships (MIT). Everything else is made from it. Make it again only when a format changes on purpose.

Files hold absolute paths. They are stored as if everything lay in PLACE and are rewritten in the test's own copy.
"""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import demerit

GOLDEN = Path(__file__).parent
PLACE = "/golden"
EXPECTED = "expected"
MODEL = "model.json"
MODELS = ("clock", "constant", "random", "change", "motion", "length", "default")
SCORED = ("clock", "change", "motion", "default")
CHECKED = ("clock", "change")
LISTS = ("models", "sources", "benchmarks", "negatives", "behaviours", "failures")
STORES = ("store", "judged", "negatives")
MIX = "clip=3,rewind=3,reverse=1,undo=1,freeze=3,slow=1,stall=1,jump=2,splice=2,wrong-instruction=2"

# Run in this order in a folder with `videos` and `judged`. A second run changes nothing.
ALONE = ("--workers", "0")
FORCED = ("--use-test-split",)  # the golden models learned from every episode of the store
RESUMED = {
    "import": ("import", "videos", "store", "--copy"),
    "score": ("score", "store", *ALONE, *(word for name in SCORED for word in ("--model", name))),
    "score some frames": ("score", "store", *ALONE, "--model", "clock", "--frames", "8"),
    "score videos": ("score", "videos", *ALONE, "--model", "clock"),
    "negatives": ("negatives", "store", "negatives", "--keep-originals", "--mix", MIX, "--per-episode", "12"),
}
TAUGHT = {
    "teach": (
        "teach",
        "store",
        "--out",
        "taught",
        "--risk",
        "0.05",
        "--json",
        "--no-reader",
        "--tower",
        "none",
        *FORCED,
        *ALONE,
    ),
    "calibrate": ("calibrate", "store", "--model", "change", "--out", "calibrated", *FORCED, *ALONE),
}
USED = {
    "score with taught": ("score", "store", *ALONE, "--model", "./taught"),
    "score with calibrated": ("score", "store", *ALONE, "--model", "calibrated:calibrated"),
}
BENCH = {
    "bench": (
        *("bench", "own@1", "--data", "judged", "--out", "bench", "--resamples", "200", "--embed", "0", *ALONE),
        *("--model", "clock", "--model", "change"),
    )
}
WRITTEN = {
    "export": ("export", "store", "exported"),
    "materialize": ("materialize", "negatives", "materialized"),
}
COMMANDS = {**RESUMED, **TAUGHT, **USED, **BENCH, **WRITTEN}
SIMULATED = (
    *("simulate", "simulated", "--tasks", "pick-place", "--behaviours", "expert,drop"),
    *("--size", "48", "--workers", "1"),
)
INSPECTED = ("videos", "store", "judged", "negatives", "lerobot:exported", "videos:materialized")

# Pages, locks and files that are cheap to make again.
NOT_KEPT = "*.html .lock __pycache__ taught.teaching calibrated.calibrating exported materialized simulated".split()


def run_demerit(*words: str, inside: Path) -> str:
    """Run a command and return what it prints. Raises RuntimeError with the output if it fails."""
    code = "from demerit.cli import main; main()"
    # A wide terminal wraps no line. One thread keeps numbers equal.
    alike = {"COLUMNS": "400", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    source = str(Path(demerit.__file__).parents[1])
    env = {**os.environ, **alike, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=inside, env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"demerit {' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def make(folder: Path, run: Callable[..., str] = run_demerit) -> dict[str, Any]:
    """Make everything in a folder with `videos` in it; return what commands printed, by name."""
    make_judged(folder / "judged")
    said = {name: run(*words, inside=folder) for name, words in COMMANDS.items()}
    printed = {
        "cards": {name: card_facts(name) for name in MODELS},
        "checks": {
            name: {clause.name: clause.status for clause in demerit.check_model(demerit.load_model(name)).clauses}
            for name in CHECKED
        },
        "lists": {what: names_listed(run("list", what, inside=folder)) for what in LISTS},
        "inspect": {name: json.loads(run("inspect", name, "--json", inside=folder)) for name in INSPECTED},
        "teach": json.loads(said["teach"]),
        "manifests": {path: manifest_facts(folder / path) for path in manifests(folder)},
        "schemas": schemas(folder),
        "files": files(folder),
        "rows": {name: store_facts(folder / name) for name in STORES},
        "scores": scores_of_models(folder),
        "export": export_facts(folder / "exported"),
        "materialize": [
            json.loads(line) for line in (folder / "materialized" / "labels.jsonl").read_text().splitlines()
        ],
        "taught head": head_facts(folder / "taught"),
    }
    return dict(json.loads(json.dumps(printed).replace(str(folder.resolve()), PLACE)))


def simulate(folder: Path) -> dict[str, Any]:
    """Simulate two episodes and return their facts without pixels, which depend on the graphics driver."""
    run_demerit(*SIMULATED, inside=folder)
    facts = store_facts(folder / "simulated")
    for episode in facts["episodes"]:
        del episode["fingerprint"]
        for view in episode["views"].values():
            del view["identity"]
    facts["episodes"].sort(key=lambda episode: str(episode["id"]))
    return dict(json.loads(json.dumps(facts)))


def make_judged(root: Path) -> None:
    """Write a store as a program would: grades, choices, signals, edits, two cameras, a problem."""
    store = demerit.Store.create(root, "judged", licence="MIT", source="by hand")
    shutil.copytree(root.parent / "videos", root / "videos", ignore=shutil.ignore_patterns("labels.*"))
    paths = sorted((root / "videos").glob("*.mp4"))
    grades = (5, 4, 2, 1, 3, 5)
    with store.writer() as writer:
        for number, (path, grade) in enumerate(zip(paths, grades, strict=True)):
            writer.add(_judged_episode(number, path, grade))
        ids = [path.stem for path in paths]
        for a, b, verdict in ((0, 3, "a"), (2, 1, "b"), (4, 3, "a"), (0, 5, "tie")):
            writer.add(demerit.Preference(ids[a], ids[b], verdict, "human", why="it got further", by="ann"))
        writer.add(demerit.Problem("missing video", "lost", "there is no such file", kept=False))


def _judged_episode(number: int, path: Path, grade: int) -> demerit.Episode:
    frames = demerit.Frames.from_video(path)
    length = len(frames)
    curve = np.linspace(0, (grade - 1) / 4, length).astype(np.float32)
    curve[3] = np.nan
    events = (demerit.Event("missed grasp", 5, 9, "it slips"),) if grade < 3 else ()
    human = demerit.Outcome("human", grade == 5, (grade - 1) / 4, grade, None, events, "seen twice", "ann")
    ruled = demerit.Outcome("rule", progress=(grade - 1) / 4, curve=curve, by="evenly")
    views = {"top": frames}
    edits: tuple[demerit.Edit, ...] = ()
    if number == 0:
        views["side"] = demerit.Frames.from_video(path)
    if number == 1:
        views = {"top": frames.select(np.arange(length)[::-1].copy())}
        edits = (demerit.Edit("reverse", {"all": True}, 7),)
    steps = np.arange(length)
    return demerit.Episode(
        id=path.stem,
        instruction="move the block to the other bin" if number % 2 else "put the block into the far bin",
        views=views,
        outcomes=(human, ruled),
        origin=demerit.Origin(
            dataset="judged",
            revision="2",
            licence="MIT",
            embodiment="sawyer",
            site="here",
            split="test",
            group=f"session {number // 3}",
            tags={"task": "bins", "policy": "p1"},
        ),
        signals={
            "state": np.stack([steps, steps / 4], axis=1).astype(np.float32),
            "action": (steps / 8).astype(np.float64),
            "closed": steps % 2 == 0,
        },
        edits=edits,
    )


def card_facts(name: str) -> dict[str, Any]:
    """A model's card and its hash."""
    card = demerit.load_model(name).card
    return {"hash": card.hash(), **dataclasses.asdict(card)}


def names_listed(table: str) -> list[str]:
    """The first column of a printed table."""
    cells = [line.split("│")[1].strip() for line in table.splitlines() if line.startswith("│")]
    return [cell for cell in cells if cell]


def manifests(folder: Path) -> list[str]:
    """Every dataset.json, rewards.json and model.json."""
    names = ("dataset.json", "rewards.json", MODEL)
    return sorted(path.relative_to(folder).as_posix() for name in names for path in folder.rglob(name))


def manifest_facts(path: Path) -> dict[str, Any]:
    """What a manifest says, with the keys of one part per table (the number of parts depends on timing)."""
    facts = dict(json.loads(path.read_text("utf-8")))
    if "tables" in facts:
        facts["tables"] = {name: sorted(parts[0]) for name, parts in facts["tables"].items()}
    return facts


def files(folder: Path) -> list[str]:
    """List the files. Part numbers and hashes of fitted numbers are replaced by `*`."""
    found = set()
    for path in folder.rglob("*"):
        name = path.name
        if path.is_dir() or name == ".lock":
            continue
        if name.startswith(("part-", "head-", "seen-", "held-")):
            name = f"{name.partition('-')[0]}-*{path.suffix}"
        found.add((path.parent.relative_to(folder) / name).as_posix())
    return sorted(found)


def schemas(folder: Path) -> dict[str, list[list[str]]]:
    """Names and types of each table's columns."""
    found = {}
    for path in sorted(folder.rglob("*.parquet")):
        place = path.parent if path.name.startswith("part-") else path
        schema = pq.read_schema(path)
        found[place.relative_to(folder).as_posix()] = [[field.name, str(field.type)] for field in schema]
    return found


def rows(folder: Path) -> list[dict[str, Any]]:
    """Every row of the parts in a folder, in order."""
    return [row for path in sorted(folder.glob("part-*.parquet")) for row in pq.read_table(path).to_pylist()]


def store_facts(folder: Path) -> dict[str, Any]:
    """A dataset folder as `demerit.Store` reads it."""
    store = demerit.Store(folder)
    return {
        "name": store.name,
        "episodes": [episode_facts(episode) for episode in store.episodes()],
        "preferences": [dataclasses.asdict(preference) for preference in store.preferences()],
        "problems": [dataclasses.asdict(problem) for problem in store.problems()],
    }


def episode_facts(episode: demerit.Episode) -> dict[str, Any]:
    """An episode as plain values."""
    return {
        "id": episode.id,
        "instruction": episode.instruction,
        "fingerprint": episode.fingerprint(),
        "origin": {**dataclasses.asdict(episode.origin), "tags": dict(episode.origin.tags)},
        "views": {
            camera: {
                "length": len(frames),
                "identity": frames.identity(),
                "indices": None if frames.indices is None else frames.indices.tolist(),
                "last time": float(frames.times()[-1]),
            }
            for camera, frames in episode.views.items()
        },
        "outcomes": [outcome_facts(outcome) for outcome in episode.outcomes],
        "edits": [{"name": edit.name, "params": dict(edit.params), "seed": edit.seed} for edit in episode.edits],
        "signals": {
            name: {"dtype": values.dtype.str, "shape": list(values.shape), "sum": float(np.sum(values))}
            for name, values in episode.signals.items()
        },
    }


def outcome_facts(outcome: demerit.Outcome) -> dict[str, Any]:
    """An outcome as plain values; an unknown point of a curve is null."""
    curve = outcome.curve
    return {
        **{name: getattr(outcome, name) for name in ("source", "by", "success", "progress", "grade", "note")},
        "curve": None if curve is None else numbers(curve),
        "events": [dataclasses.asdict(event) for event in outcome.events],
    }


def numbers(values: Any) -> list[float | None]:
    """Round to six digits; NaN becomes null."""
    return [None if np.isnan(value) else round(float(value), 6) for value in values]


def scores_of_models(folder: Path) -> dict[str, Any]:
    """Rewards of each model for the episodes of the store."""
    here = {"taught": str(folder / "taught"), "calibrated": f"calibrated:{folder / 'calibrated'}"}
    return {name: reward_facts(here.get(name, name), folder / "store") for name in (*MODELS, *here)}


def reward_facts(model: str, store: Path) -> dict[str, Any]:
    """A model's rewards as plain values."""
    episodes = list(demerit.open_dataset(str(store)))
    return {
        reward.episode: {
            "model": reward.model,
            "at": reward.at.tolist(),
            "value": numbers(reward.value),
            "success": None if reward.success is None else numbers(reward.success),
            "why_missing": reward.why_missing,
            "given": dict(reward.given),
        }
        for reward in demerit.load_model(model).score(episodes)
    }


def export_facts(folder: Path) -> dict[str, Any]:
    """The LeRobot folder: info.json, its tasks, its first frames, its episodes without their statistics."""
    episodes = pq.read_table(next((folder / "meta" / "episodes").rglob("*.parquet")))
    plain = [name for name in episodes.column_names if not name.startswith("stats/")]
    return {
        "info": json.loads((folder / "meta" / "info.json").read_text("utf-8")),
        "statistics": {
            name: sorted(facts) for name, facts in json.loads((folder / "meta" / "stats.json").read_text()).items()
        },
        "tasks": pq.read_table(folder / "meta" / "tasks.parquet").to_pylist(),
        "frames": pq.read_table(next((folder / "data").rglob("*.parquet"))).slice(0, 3).to_pylist(),
        "episodes": episodes.select(plain).to_pylist(),
    }


def head_facts(folder: Path) -> dict[str, Any]:
    """The arrays in a taught model's file of fitted numbers."""
    with np.load(next(folder.glob("head-*.npz"))) as arrays:
        return {name: {"dtype": arrays[name].dtype.str, "shape": list(arrays[name].shape)} for name in arrays.files}


def move_models(folder: Path, old: str, new: str) -> None:
    """Change the dataset path recorded in models."""
    for path in folder.rglob(MODEL):
        path.write_text(path.read_text("utf-8").replace(old, new), "utf-8")


def move_data(folder: Path, old: str, new: str) -> None:
    """Change the paths recorded in a folder's files. Models keep theirs: it is part of their identity."""
    for path in folder.rglob("*.json"):
        text = path.read_text("utf-8")
        if old in text and path.name != MODEL:
            path.write_text(text.replace(old, new), "utf-8")
    for path in folder.rglob("*.parquet"):
        table = pq.read_table(path)
        if "views" in table.column_names:
            printed = list(_with_addresses(table, lambda address: address.replace(old, new)))
            pq.write_table(pa.Table.from_pylist(printed, table.schema), path, compression="zstd")


def _with_addresses(table: pa.Table, change: Callable[[str], str]) -> Iterator[dict[str, Any]]:
    for row in table.to_pylist():
        yield {**row, "views": [{**view, "path": change(view["path"])} for view in row["views"]]}


def forget_machine(path: Path) -> None:
    """Replace the date and platform of a report."""
    report = json.loads(path.read_text("utf-8"))
    report["environment"].update(platform="Linux", date="2026-01-01T00:00:00+00:00")
    path.write_text(json.dumps(report, ensure_ascii=False) + "\n", "utf-8")


def main() -> None:
    """Make all of it again, beside this file."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        shutil.copytree(GOLDEN / "videos", folder / "videos")
        printed = make(folder)
        printed["simulate"] = simulate(folder)
        move_models(folder, str(folder), PLACE)
        for used, words in USED.items():  # rewards of the models as they are stored
            shutil.rmtree(folder / "store" / "rewards" / used.split()[-1])
            run_demerit(*words, inside=folder)
        move_data(folder, str(folder), PLACE)
        for path in folder.rglob("report.json"):
            forget_machine(path)
        for path in sorted(GOLDEN.iterdir()):
            if path.is_dir() and path.name != "videos":
                shutil.rmtree(path)
        shutil.copytree(folder, GOLDEN, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*NOT_KEPT))
    (GOLDEN / EXPECTED).mkdir()
    for what, facts in printed.items():
        text = json.dumps(facts, indent=1, ensure_ascii=False)
        (GOLDEN / EXPECTED / f"{what.replace(' ', '-')}.json").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
