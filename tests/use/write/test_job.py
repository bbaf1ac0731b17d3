"""Every format is written, read back and compared; the source stays as it was; bad input is a sentence."""

import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from demerit.cli.export import EPISODE_FORMATS
from demerit.data.formats import open_dataset
from demerit.errors import BadEpisode, BadInput, MissingExtra, StaleRewards, StoreError, UnscoredFrames
from demerit.models.protocol import example_card
from demerit.use.write import lerobot, tables
from demerit.use.write.frames import RewardRecipe, lay_out
from demerit.use.write.job import RewardFormat, WrittenRewards, plan_write, write_rewards
from demerit.use.write.tables import read_weights
from fakes.command import demerit_here, error_sentence
from fakes.written_rewards import LENGTHS, TASKS, ByPlace, scored, true_value, write_source

ONE_HIDDEN = ByPlace(lambda i, t: i == 1 and t == 2, "gap")
FIRST_OF_1_HIDDEN = ByPlace(lambda i, t: i == 1 and t == 0, "late")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Do not write into it."""
    return write_source(tmp_path_factory.mktemp("source") / "arm")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return write_source(tmp_path / "own" / "arm")


def snapshot(root: Path) -> dict[str, tuple[bytes, int]]:
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in root.rglob("*") if path.is_file()}


def put(
    root: Path,
    dest: Path,
    to: RewardFormat,
    model: ByPlace | None = None,
    recipe: RewardRecipe | None = None,
    **more: Any,
) -> WrittenRewards:
    return write_rewards(scored(root, model), dest, to, recipe or RewardRecipe(gamma=1.0), **more)


def columns(path: Path) -> dict[str, list[Any]]:
    return dict(pq.read_table(path).to_pydict())


def rows_of(root: Path) -> dict[str, list[Any]]:
    return dict(pa.concat_tables([pq.read_table(path) for path in sorted((root / "data").glob("*/*"))]).to_pydict())


def dense(place: int) -> list[float]:
    return [true_value(place, min(t + 1, LENGTHS[place] - 1)) for t in range(LENGTHS[place])]


DENSE = [reward for place in range(4) for reward in dense(place)]


def test_a_new_dataset_has_rewards_and_links_every_video(source: Path, tmp_path: Path) -> None:
    before = snapshot(source)
    written = put(source, tmp_path / "new", "lerobot")
    assert snapshot(source) == before
    assert written.links == {"hard links": 8}
    for path in (source / "videos").rglob("*.mp4"):
        assert os.path.samefile(path, tmp_path / "new" / path.relative_to(source))
    data, old = rows_of(tmp_path / "new"), rows_of(source)
    np.testing.assert_allclose(data["next.reward"], DENSE, rtol=1e-6)
    ends = [t == length - 1 for length in LENGTHS for t in range(length)]
    assert data["next.done"] == ends
    assert data["next.success"] == [
        end and place != 1 for place, n in enumerate(LENGTHS) for end in ends[:0] or [t == n - 1 for t in range(n)]
    ]
    assert {name: data[name] for name in old} == old
    schema = pq.read_schema(next((tmp_path / "new/data").glob("*/*")))
    assert (schema.field("next.reward").type, schema.field("next.success").type) == (pa.float32(), pa.bool_())
    assert b"next.reward" in schema.metadata[b"huggingface"]
    info = json.loads((tmp_path / "new/meta/info.json").read_text())
    assert info["features"]["next.reward"] == {"dtype": "float32", "shape": [1], "names": None}
    stats = json.loads((tmp_path / "new/meta/stats.json").read_text())
    assert stats["next.reward"]["mean"] == pytest.approx([np.mean(DENSE)])
    assert stats["action"] == json.loads((source / "meta/stats.json").read_text())["action"]
    episodes = columns(next((tmp_path / "new/meta/episodes").glob("*/*")))
    assert [cell[0] for cell in episodes["stats/next.reward/max"]] == pytest.approx([max(dense(i)) for i in range(4)])
    again = list(open_dataset(str(tmp_path / "new")))
    assert [len(one) for one in again] == list(LENGTHS)
    assert again[1].outcome is not None and again[1].outcome.success is False


def test_dropped_episodes_leave_a_dataset_numbered_from_0(source: Path, tmp_path: Path) -> None:
    recipe = RewardRecipe(("drop-episode",), gamma=1.0)
    put(source, tmp_path / "new", "lerobot", ONE_HIDDEN, recipe)
    data = rows_of(tmp_path / "new")
    lengths = [LENGTHS[i] for i in (0, 2, 3)]
    assert data["episode_index"] == [place for place, n in enumerate(lengths) for _ in range(n)]
    assert data["index"] == list(range(sum(lengths)))
    np.testing.assert_allclose(data["next.reward"], dense(0) + dense(2) + dense(3), rtol=1e-6)
    episodes = columns(next((tmp_path / "new/meta/episodes").glob("*/*")))
    assert episodes["episode_index"] == [0, 1, 2]
    assert episodes["dataset_from_index"] == [0, 6, 11] and episodes["dataset_to_index"] == [6, 11, 18]
    assert [cell[0] for cell in episodes["stats/index/min"]] == [0, 6, 11]
    assert [cell[0] for cell in episodes["stats/episode_index/mean"]] == [0, 1, 2]
    info = json.loads((tmp_path / "new/meta/info.json").read_text())
    assert (info["total_episodes"], info["total_frames"], info["splits"]) == (3, 18, {"train": "0:3"})
    stats = json.loads((tmp_path / "new/meta/stats.json").read_text())
    for key in ("action", "observation.state", "index", "frame_index"):
        values = np.array(data[key], dtype=np.float64).reshape(18, -1)
        for name, truth in (("mean", values.mean(0)), ("std", values.std(0)), ("max", values.max(0))):
            np.testing.assert_allclose(stats[key][name], truth, rtol=1e-6, err_msg=f"{key} {name}")
        assert stats[key]["count"] == [18]
    sidecar = columns(tmp_path / "new/sarm_progress.parquet")
    assert sidecar["index"] == data["index"] and sidecar["episode_index"] == data["episode_index"]
    pixels = [one.main.all() for one in open_dataset(str(tmp_path / "new"))]
    kept = [one.main.all() for one in open_dataset(str(source))]
    for got, place in zip(pixels, (0, 2, 3), strict=True):
        np.testing.assert_array_equal(got, kept[place])


def test_rewards_of_another_model_replace_those_of_the_source(source: Path, tmp_path: Path) -> None:
    put(source, tmp_path / "first", "lerobot")
    path = next((tmp_path / "first/meta/episodes").glob("*/*"))  # as newer versions of LeRobot write it
    table = pq.read_table(path)
    pq.write_table(table.append_column("stats/next.reward/q01", table["stats/next.reward/min"]), path)
    dark = ByPlace(lambda i, t: i == 1, "by-place-2")
    put(tmp_path / "first", tmp_path / "second", "lerobot", dark, RewardRecipe(("drop-episode",), reward="final"))
    data = rows_of(tmp_path / "second")
    assert sum(data["next.reward"]) == pytest.approx(sum(true_value(i, LENGTHS[i] - 1) for i in (0, 2, 3)))
    stats = json.loads((tmp_path / "second/meta/stats.json").read_text())
    assert stats["next.reward"]["min"] == [0.0] and stats["next.reward"]["count"] == [18]
    assert [one.name for one in (tmp_path / "second/meta").glob("returns*")] == ["returns_by-place-2.parquet"]
    assert "stats/next.reward/q01" not in columns(next((tmp_path / "second/meta/episodes").glob("*/*")))


def test_a_sidecar_has_what_lerobot_and_rlinf_read(source: Path, tmp_path: Path) -> None:
    written = put(source, tmp_path / "side", "sidecar", recipe=RewardRecipe(gamma=0.5, ahead=3, tag="mine"))
    names = ["sample_weights.parquet", "sarm_progress.parquet", "meta/returns_mine.parquet"]
    assert [str(path) for path in written.sidecars] == names
    schema = pq.read_schema(tmp_path / "side/sarm_progress.parquet")
    int64, float32 = pa.int64(), pa.float32()
    kinds = {"index": int64, "episode_index": int64, "frame_index": int64, "progress_sparse": float32}
    assert {field.name: field.type for field in schema} == kinds | {"progress_dense": float32}
    progress = columns(tmp_path / "side/sarm_progress.parquet")
    old = rows_of(source)
    assert all(progress[name] == old[name] for name in ("index", "episode_index", "frame_index"))
    truth = [true_value(place, t) for place, n in enumerate(LENGTHS) for t in range(n)]
    assert progress["progress_dense"] == progress["progress_sparse"] == truth
    returns = columns(tmp_path / "side/meta/returns_mine.parquet")
    assert returns["prompt"] == [task for task, n in zip(TASKS, LENGTHS, strict=True) for _ in range(n)]
    assert returns["return"][5] == returns["reward"][5] == pytest.approx(true_value(0, 5))
    assert returns["return"][4] == pytest.approx(returns["reward"][4] + 0.5 * returns["return"][5])
    assert read_weights(tmp_path / "side/sample_weights.parquet").shape == (sum(LENGTHS),)


def test_recap_has_what_the_policy_step_of_rlinf_reads(own: Path, tmp_path: Path) -> None:
    recipe = RewardRecipe(gamma=1.0, ahead=2, tag="my tag", positive=0.25)
    (own / "meta/mixture_config.yaml").write_text("datasets: [{name: arm}]\ntags: {old: {positive_quantile: 0.5}}\n")
    written = put(own, own, "recap", recipe=recipe)
    path = own / "meta/advantages_my-tag.parquet"
    assert [str(one) for one in written.sidecars] == ["meta/advantages_my-tag.parquet", "meta/mixture_config.yaml"]
    kinds = {"episode_index": pa.int64(), "frame_index": pa.int64()}
    kinds |= {"advantage": pa.bool_(), "advantage_continuous": pa.float64()}
    assert {field.name: field.type for field in pq.read_schema(path)} == kinds
    found, data = columns(path), rows_of(own)
    keys = list(zip(found["episode_index"], found["frame_index"], strict=True))
    # RLinf looks up every frame of the dataset by these two numbers, and refuses it if one is missing
    assert keys == list(zip(data["episode_index"], data["frame_index"], strict=True))
    rise = {(i, t): true_value(i, min(t + 2, LENGTHS[i] - 1)) - true_value(i, t) for i, t in keys}
    assert found["advantage_continuous"] == pytest.approx([rise[key] for key in keys])
    config = yaml.safe_load((own / "meta/mixture_config.yaml").read_text())
    assert config["datasets"] == [{"name": "arm"}] and config["tags"]["old"] == {"positive_quantile": 0.5}
    about = config["tags"]["my-tag"]
    assert (
        about["positive_quantile"] == 0.25 and about["value_model"] == "by-place" and "unified_threshold" not in about
    )
    for task, places in (("open the box", (0, 2)), ("close the box", (1, 3))):
        of_task = sorted(rise[key] for key in keys if key[0] in places)
        limit = np.percentile(of_task, 75)
        assert about["task_thresholds"][task] == pytest.approx(limit)
        labels = [label for key, label in zip(keys, found["advantage"], strict=True) if key[0] in places]
        assert labels == [rise[key] >= about["task_thresholds"][task] - 1e-12 for key in keys if key[0] in places]
        assert 0.25 <= np.mean(labels) < 1
    with pytest.raises(StoreError, match="my-tag"):
        put(own, own, "recap", recipe=recipe)
    put(own, tmp_path / "new", "lerobot")  # the episodes of a new dataset may have other numbers
    assert not [*(tmp_path / "new/meta").glob("advantages*"), *(tmp_path / "new/meta").glob("mixture*")]


def test_recap_of_one_task_has_the_threshold_where_the_tools_of_rlinf_look(source: Path, tmp_path: Path) -> None:
    episodes = [replace(one, task="open the box") for one in put(source, tmp_path / "side", "sidecar").frames.episodes]
    frames = lay_out(episodes, RewardRecipe(), example_card())
    tables.write_recap(frames, tmp_path, "one", 0.3)
    about = yaml.safe_load((tmp_path / "meta/mixture_config.yaml").read_text())["tags"]["one"]
    found = columns(tmp_path / "meta/advantages_one.parquet")
    pairs = zip(found["advantage"], found["advantage_continuous"], strict=True)
    assert all(label == (number >= about["unified_threshold"]) for label, number in pairs)


def test_dropped_frames_weigh_nothing_and_unscored_ones_never_reach_ra_bc(source: Path, tmp_path: Path) -> None:
    dropped = put(source, tmp_path / "drop", "sidecar", ONE_HIDDEN, RewardRecipe(("drop-episode",)))
    weights = read_weights(tmp_path / "drop/sample_weights.parquet")
    assert len(weights) == sum(LENGTHS) and (weights[6:15] == 0).all() and weights[:5].all()
    assert set(columns(tmp_path / "drop/sarm_progress.parquet")["episode_index"]) == {0, 2, 3}
    assert dropped.frames.dropped == 1
    zero = put(source, tmp_path / "zero", "sidecar", ONE_HIDDEN, RewardRecipe(("weight-zero",), ahead=1))
    assert [str(path) for path in zero.sidecars] == ["sample_weights.parquet"]
    weights = read_weights(tmp_path / "zero/sample_weights.parquet")
    assert np.flatnonzero(weights[6:14] == 0).tolist() == [1, 2]


def test_parquet_and_npz_hold_the_same(source: Path, tmp_path: Path) -> None:
    recipe = RewardRecipe(gamma=0.9, penalty=1.0, advantage="group")
    put(source, tmp_path / "r.parquet", "parquet", recipe=recipe)
    put(source, tmp_path / "r.npz", "npz", recipe=recipe)
    table = columns(tmp_path / "r.parquet")
    with np.load(tmp_path / "r.npz", allow_pickle=False) as arrays:
        for name in (
            "index",
            "episode_index",
            "frame_index",
            "value",
            "reward",
            "return",
            "advantage",
            "weight",
            "done",
        ):
            assert arrays[name].tolist() == table[name], name
        assert arrays["episode"].tolist() == list(dict.fromkeys(table["episode"]))
        assert arrays["length"].tolist() == list(LENGTHS) and arrays["success"].tolist() == [1, 0, 1, 1]
        assert arrays["task"].tolist() == list(TASKS)
    assert table["success"] == [place != 1 for place, n in enumerate(LENGTHS) for _ in range(n)]


def test_minari_opens_what_is_written(source: Path, tmp_path: Path) -> None:
    minari = pytest.importorskip("minari")
    written = put(source, tmp_path / "arm-v3", "minari")
    dataset = minari.MinariDataset(tmp_path / "arm-v3/data")
    assert (written.minari_id, dataset.total_episodes, dataset.total_steps) == ("arm-v3", 4, sum(LENGTHS) - 4)
    for place, episode in enumerate(dataset.iterate_episodes()):
        at = np.arange(LENGTHS[place])
        assert episode.observations.tolist() == np.stack([at, at + 10 * place], 1).tolist()
        assert episode.actions[:, 0].tolist() == at[:-1].tolist()
        np.testing.assert_allclose(episode.rewards, [true_value(place, t) for t in at[1:]], rtol=1e-6)
        ends = [t == LENGTHS[place] - 2 for t in range(LENGTHS[place] - 1)]
        assert episode.terminations.tolist() == [end and place != 1 for end in ends]
        assert episode.truncations.tolist() == [end and place == 1 for end in ends]
    put(source, tmp_path / "final", "minari", recipe=RewardRecipe(reward="final"))
    last = minari.MinariDataset(tmp_path / "final/data")[2].rewards
    np.testing.assert_allclose(last, [0, 0, 0, true_value(2, 4)], rtol=1e-6)


def test_minari_says_what_is_missing(sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = demerit_here("export", sample, tmp_path / "m", "-m", "clock", "--to", "minari", "--rewards", tmp_path / "r")
    assert "action" in error_sentence(run) and not (tmp_path / "m").exists()
    monkeypatch.setitem(__import__("sys").modules, "minari", None)
    monkeypatch.delitem(__import__("sys").modules, "demerit.use.write.minari", raising=False)
    run = demerit_here("export", sample, tmp_path / "m", "-m", "clock", "--to", "minari", "--rewards", tmp_path / "r")
    assert "'.[minari]'" in error_sentence(run)
    assert issubclass(MissingExtra, Exception) and issubclass(BadEpisode, Exception)


def test_other_formats_become_lerobot_in_one_step(sample: Path, tmp_path: Path) -> None:
    run = demerit_here(
        "rewards",
        "write",
        sample,
        "-m",
        "clock",
        "-o",
        tmp_path / "new",
        "--fps",
        10,
        "--rewards",
        tmp_path / "r",
        "--json",
    )
    told = json.loads(run.stdout)
    assert told["videos"] is None and told["episodes"] == len(list(open_dataset(str(sample))))
    data = rows_of(tmp_path / "new")
    assert data["next.reward"][-1] == 1.0 and sum(data["next.done"]) == told["episodes"]
    assert (tmp_path / "new/sarm_progress.parquet").exists()


def test_success_is_omitted_when_an_outcome_is_unknown(tmp_path: Path) -> None:
    root = write_source(tmp_path / "arm", labelled=False)
    put(root, tmp_path / "a", "lerobot")
    assert "next.success" not in rows_of(tmp_path / "a")
    put(root, tmp_path / "b", "lerobot", recipe=RewardRecipe(success="model"))
    assert sum(rows_of(tmp_path / "b")["next.success"]) == 2  # labels of 0 and 3; the model says no to 2


def test_another_disk_gets_symbolic_links_and_a_disk_without_links_copies(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", refuse)
    assert put(source, tmp_path / "a", "lerobot").links == {lerobot.SYMLINKED: 8}
    assert [len(one) for one in open_dataset(str(tmp_path / "a"))] == list(LENGTHS)
    monkeypatch.setattr(os, "symlink", refuse)
    assert put(source, tmp_path / "b", "lerobot").links == {lerobot.COPIED: 8}


@pytest.mark.parametrize("place", ["meta/notes.txt", "videos/x.mp4", "README.md", "data/more"])
def test_a_source_with_a_link_to_a_file_elsewhere_is_refused_by_every_format(own: Path, place: str) -> None:
    secret = own.parent / "secret"
    secret.write_text("secret")
    (own / place).unlink(missing_ok=True)
    (own / place).symlink_to(secret)
    dataset = open_dataset(str(own))
    for to in get_args(RewardFormat):
        with pytest.raises(BadInput, match="link"):
            plan_write(dataset, example_card(), to, RewardRecipe())
    for to in EPISODE_FORMATS:
        result = demerit_here("export", str(own), str(own.parent / "out"), "--to", to)
        assert result.returncode != 0 and "link" in error_sentence(result)
    assert not (own.parent / "out").exists() and secret.stat().st_nlink == 1


def test_an_episode_that_the_reader_skips_is_unscored_not_forgotten(own: Path, tmp_path: Path) -> None:
    for camera in ("front", "side"):
        (own / f"videos/observation.images.{camera}/chunk-000/file-002.mp4").unlink()
    with pytest.raises(UnscoredFrames) as caught:
        put(own, tmp_path / "new", "lerobot")
    assert (caught.value.frames, caught.value.episodes) == (LENGTHS[2], 1)
    put(own, tmp_path / "new", "lerobot", recipe=RewardRecipe(("drop-episode",)))
    assert [len(one) for one in open_dataset(str(tmp_path / "new"))] == [6, 9, 7]


def test_a_video_that_cannot_be_read_is_unscored(sample: Path, tmp_path: Path) -> None:
    shutil.copytree(sample, tmp_path / "set")
    next((tmp_path / "set").rglob("*.mp4")).write_bytes(b"no video")
    words = ["export", tmp_path / "set", "-m", "clock", "--to", "npz"]
    assert "1 of 15 episodes" in error_sentence(demerit_here(*words, tmp_path / "r.npz"))
    for rule in ("drop-episode", "weight-zero"):
        told = json.loads(demerit_here(*words, tmp_path / f"{rule}.npz", "--unscored", rule, "--json").stdout)
        assert (told["episodes"], told["dropped"]) == (14, 1)


# Bad input


def test_a_dataset_that_changed_since_it_was_scored_is_an_error(own: Path, tmp_path: Path) -> None:
    joined = scored(own)
    tasks = own / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(tasks)
    place = table.schema.get_field_index("tasks")
    pq.write_table(table.set_column(place, "tasks", pa.array([["another task"]] * 4)), tasks)
    joined = type(joined)(open_dataset(str(own)), joined.store)
    with pytest.raises(StaleRewards) as caught:
        write_rewards(joined, tmp_path / "new", "lerobot", RewardRecipe())
    assert caught.value.episode == "arm/episode_000000" and not (tmp_path / "new").exists()


@pytest.mark.parametrize("to", get_args(RewardFormat))
def test_unscored_frames_stop_every_format(source: Path, tmp_path: Path, to: RewardFormat) -> None:
    with pytest.raises(UnscoredFrames) as caught:
        put(source, tmp_path / "new", to, FIRST_OF_1_HIDDEN, RewardRecipe(("interpolate",)))
    assert caught.value.frames == 1 and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("to", "card", "rule"),
    [
        ("parquet", {"comparable": False}, "fail"),
        ("sidecar", {"high": None}, "fail"),
        ("lerobot", {}, "weight-zero"),
        ("minari", {}, "weight-zero"),
        ("recap", {}, "weight-zero"),
        ("recap", {}, "drop-episode"),
        ("csv", {}, "fail"),
    ],
)
def test_what_cannot_be_written_is_refused_before_scoring(source: Path, to: Any, card: Any, rule: Any) -> None:
    with pytest.raises(BadInput):
        plan_write(open_dataset(str(source)), example_card(**card), to, RewardRecipe((rule,)))


def test_a_sidecar_belongs_to_a_lerobot_dataset(sample: Path) -> None:
    with pytest.raises(BadInput, match="demerit export"):
        plan_write(open_dataset(str(sample)), example_card(), "sidecar", RewardRecipe())
    with pytest.raises(BadInput, match="demerit export"):
        plan_write(open_dataset(str(sample)), example_card(), "recap", RewardRecipe())


def test_nothing_is_overwritten_and_nothing_goes_into_the_source(own: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there/mine.txt").write_text("mine")
    with pytest.raises(StoreError, match="nothing is overwritten"):
        put(own, tmp_path / "there", "lerobot")
    (tmp_path / "r.npz").write_text("mine")
    with pytest.raises(StoreError, match="nothing is overwritten"):
        put(own, tmp_path / "r.npz", "npz")
    with pytest.raises(BadInput, match="outside"):
        put(own, own / "new", "lerobot")
    assert put(own, own, "sidecar").sidecars  # asked for: LeRobot looks for it there
    with pytest.raises(StoreError, match="nothing is overwritten"):
        put(own, own, "sidecar")
    assert (tmp_path / "r.npz").read_text() == "mine"


@pytest.mark.parametrize("to", get_args(RewardFormat))
def test_a_read_only_folder_is_a_sentence(source: Path, tmp_path: Path, to: RewardFormat) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreError):
        put(source, tmp_path / "file/new", to)


@pytest.mark.parametrize(
    ("place", "to"), [(lerobot, "lerobot"), (tables, "sidecar"), (tables, "parquet"), (tables, "recap")]
)
def test_a_full_disk_leaves_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Any, to: RewardFormat
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = snapshot(source)
    monkeypatch.setattr(lerobot.TableWriter, "write_table", full)
    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(StoreError, match="No space left"):
        put(source, tmp_path / "new", to)
    assert list(tmp_path.iterdir()) == [] and snapshot(source) == before


def test_ctrl_c_leaves_nothing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(lerobot._Renumbering, "info", stop)
    with pytest.raises(KeyboardInterrupt):
        put(source, tmp_path / "new", "lerobot")
    assert list(tmp_path.iterdir()) == []


def test_damaged_metadata_are_refused(own: Path, tmp_path: Path) -> None:
    path = own / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    moved = pa.array([0, 6, 16, 21])
    pq.write_table(
        table.set_column(table.schema.get_field_index("dataset_from_index"), "dataset_from_index", moved), path
    )
    with pytest.raises(BadInput, match="16"):
        put(own, tmp_path / "new", "lerobot")


def test_damaged_data_leave_nothing(own: Path, tmp_path: Path) -> None:
    path = own / "data/chunk-000/file-002.parquet"
    content = path.read_bytes()
    for damage in (b"PAR1 no table PAR1", content[:-30] + b"0" * 26 + b"PAR1", b""):
        path.write_bytes(damage)
        with pytest.raises(StoreError, match="file-002"):
            put(own, tmp_path / "new", "lerobot")
    path.unlink()
    with pytest.raises(BadInput, match="27 rows"):
        put(own, tmp_path / "new", "lerobot")
    assert [one.name for one in tmp_path.iterdir()] == ["own"]


def test_weights_of_strangers_are_checked(tmp_path: Path) -> None:
    for name, weight in (("bad", [-1.0]), ("nan", [float("nan")])):
        pq.write_table(pa.table({"index": [0], "weight": weight}), tmp_path / name)
        with pytest.raises(StoreError):
            read_weights(tmp_path / name)
    (tmp_path / "text").write_text("no parquet")
    with pytest.raises(StoreError):
        read_weights(tmp_path / "text")
    pq.write_table(pa.table({"index": [3, 1], "weight": [0.5, 1.0]}), tmp_path / "good")
    assert read_weights(tmp_path / "good").tolist() == [0.0, 1.0, 0.0, 0.5]


def test_the_command_says_what_became_of_unscored_frames(source: Path, tmp_path: Path) -> None:
    run = demerit_here(
        "rewards",
        "write",
        source,
        "-m",
        "change",
        "--to",
        "sidecar",
        "-o",
        tmp_path / "s",
        "--rewards",
        tmp_path / "r",
        "--unscored",
        "interpolate",
        "--ahead",
        "2",
    )
    assert run.returncode == 0, run.stderr
    assert "sarm_progress.parquet" in run.stdout
