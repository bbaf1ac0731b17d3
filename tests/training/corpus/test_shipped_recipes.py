"""Every recipe that ships, on small folders in the layouts of its sources; and the commands that it names."""

import io
import json
import re
import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from demerit.cli import app
from demerit.data.formats import open_dataset
from demerit.errors import BadInput
from demerit.training.corpus import load_config, make_plan
from demerit.training.corpus.config import SHIPPED, CorpusSource, shipped_configs
from fakes.accelerate_state import fresh_accelerator  # noqa: F401
from fakes.corpus_fixture import write_clip, write_roboarena
from fakes.tfrecord_writer import example, feature, frame
from fakes.tiny_video import write_lines
from fakes.tiny_vlm import tiny_checkpoint

PAPERS = ["libero_h1", "libero_h2", "rbm_1m", "robofac", "roboreward"]


def image(seed: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(out, "PNG")
    return out.getvalue()


def write_rlds(folder: Path, seed: int) -> None:
    """Two demonstrations, as Open X-Embodiment has them."""
    name, place = folder.name, folder / "0.1.0"
    place.mkdir(parents=True)
    info = {"name": name, "version": "0.1.0", "splits": [{"name": "train", "shardLengths": ["2"]}]}
    (place / "dataset_info.json").write_text(json.dumps(info))
    spec = {"image": {"shape": {"dimensions": ["8", "8", "3"]}, "dtype": "uint8", "encodingFormat": "png"}}
    seen = {"featuresDict": {"features": {"image": spec, "natural_language_instruction": {"text": {}}}}}
    steps = {"sequence": {"feature": {"featuresDict": {"features": {"observation": seen}}}, "length": "-1"}}
    (place / "features.json").write_text(json.dumps({"featuresDict": {"features": {"steps": steps}}}))
    records = [
        {
            "steps/observation/image": [image(seed + 10 * number + at) for at in range(6)],
            "steps/observation/natural_language_instruction": [f"{name} task {number}".encode()] * 6,
        }
        for number in range(2)
    ]
    encoded = [frame(example({key: feature(value) for key, value in record.items()})) for record in records]
    (place / f"{name}-train.tfrecord-00000-of-00001").write_bytes(b"".join(encoded))


def write_libero(folder: Path, seed: int) -> None:
    """A file of two demonstrations of one task."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    with h5py.File(folder / f"{folder.name}_put_the_bowl_on_the_plate_demo.hdf5", "w") as file:
        for number in range(2):
            demo = file.create_group(f"data/demo_{number}")
            demo.attrs["num_samples"] = 6
            demo["actions"], demo["rewards"] = np.zeros((6, 7)), np.array([0.0] * 5 + [1.0])
            demo["obs/agentview_rgb"] = rng.integers(0, 255, (6, 32, 32, 3), dtype=np.uint8)


def write_rbm(folder: Path, seed: int) -> None:
    """A success, a failure of unknown progress, a suboptimal one of known progress, and a row without a label."""
    labels = [("successful", None), ("failure", None), ("suboptimal", 0.5), (None, None)]
    rows = []
    for number, (quality, partial) in enumerate(labels):
        write_clip(folder / "videos" / f"{number}.mp4", seed + number)
        row = {"id": str(number), "task": f"{folder.name} task", "data_source": folder.name, "is_robot": True}
        row |= {"frames": f"videos/{number}.mp4", "quality_label": quality, "partial_success": partial}
        rows.append(row)
    write_lines(folder / "rows.jsonl", *rows)


WRITERS: dict[str, Callable[[Path, int], object]] = {
    "rlds": write_rlds,
    "hdf5": write_libero,
    "rbm": write_rbm,
    "roboarena": lambda folder, seed: write_roboarena(folder, [(1.0, 0.3), (0.6, 0.0)], seed),
}
GRADES = {"rlds": {5: 2}, "hdf5": {5: 2}, "rbm": {5: 1, 3: 1, None: 1}, "roboarena": {5: 1, 2: 1, 3: 1, 1: 1}}
"""of the episodes that are used"""


def write_sources(name: str, root: Path) -> tuple[CorpusSource, ...]:
    sources = load_config(name, root).sources
    for number, source in enumerate(sources):
        assert Path(source.folder).parent == root
        WRITERS[source.format](Path(source.folder), 1000 * number)
    return sources


def test_these_ship() -> None:
    assert shipped_configs() == sorted(["example", *PAPERS])


@pytest.mark.parametrize("name", PAPERS)
def test_a_recipe_reads_every_source_in_its_layout(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="do not exist"):
        make_plan(load_config(name, tmp_path))
    sources = write_sources(name, tmp_path)
    plan = make_plan(load_config(name, tmp_path))
    for source, drawn in zip(sources, plan.drawn, strict=True):
        assert dict(drawn.grades) == GRADES[source.format], source.name
        assert sum(drawn.skipped.values()) == (source.format == "rbm"), (source.name, drawn.skipped)
        assert source.about and not source.licence  # the papers name no licence, and none is invented
    run = CliRunner().invoke(app, ["build-corpus", name, "--root", str(tmp_path), "--dry-run"])
    assert run.exit_code == 0, run.output


def test_the_recipe_of_roboreward_has_the_numbers_of_table_4(tmp_path: Path) -> None:
    sources = load_config("roboreward", tmp_path).sources
    counts = [re.findall(r"(\d+) (train|val|test)", source.about) for source in sources]
    total = Counter[str]()
    for found in counts:
        assert [split for _, split in found] == ["train", "val", "test"]
        total.update({split: int(count) for count, split in found})
    assert total == {"train": 45_072, "val": 6_232, "test": 2_831}
    shares = load_config("roboreward", tmp_path).splits.shares
    assert dict(shares) == dict(total)
    assert len(sources) == 29 and Counter(source.perspective for source in sources)["egocentric"] == 7


def commands_of(name: str) -> list[list[str]]:
    """The commands in a recipe's comments."""
    text = (SHIPPED / f"{name}.yaml").read_text()
    return [shlex.split(line) for line in re.findall(r"^#   demerit (.*)$", text, flags=re.M)]


@pytest.mark.parametrize("name", ["libero_h1", "libero_h2", "robofac"])
def test_the_commands_of_a_recipe_run(name: str, tmp_path: Path) -> None:
    """With a tiny network and one update instead of the published weights and the paper's updates."""
    write_sources(name, tmp_path / "DATA")
    layout = "robometer" if name == "robofac" else "qwen"
    start = tiny_checkpoint(tmp_path / "tiny", layout)  # type: ignore[arg-type]
    small = [
        "--from",
        str(start),
        "--device",
        "cpu",
        "--workers",
        "0",
        "--set",
        "steps=1",
        "--set",
        "precision=float32",
    ]
    small += ["--set", "batch=2", "--set", "part=2"]
    trained = {}
    for words in commands_of(name):
        there = [re.sub(r"\b(DEST|DATA)\b", lambda found: str(tmp_path / found[0]), word) for word in words]
        if words[0] == "train":
            there[there.index("-o") + 1] = str(tmp_path / words[words.index("-o") + 1])
            there += small
        run = CliRunner().invoke(app, there)
        assert run.exit_code == 0, (words, run.output)
        if words[0] == "train":
            out = words[words.index("-o") + 1]
            trained[out] = json.loads((tmp_path / out / "model" / "training.json").read_text())["recipe"]
    episodes = list(open_dataset(str(tmp_path / "DEST")))
    kinds = Counter(episode.outcome.success for episode in episodes if episode.outcome)
    if name == "libero_h1":
        assert kinds == {True: 8}
        assert [trained[out]["preference"] for out in ("h1_progress", "h1_preference")] == [0.0, 1.0]
    elif name == "libero_h2":
        assert kinds == {True: 12, False: 8}
        assert trained["h2"]["preference"] == 1.0 and trained["h2"]["frames"] == 4
    else:
        assert kinds == {True: 1, False: 2}
        assert (trained["adapted"]["lora"], trained["adapted"]["rate"]) == (32, 2e-5)
