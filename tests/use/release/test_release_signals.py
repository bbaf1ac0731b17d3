"""Signals of a release: clocks told by their values, positions gone, texts searched, names clean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demerit.data.dataset import Dataset
from demerit.data.episode import Episode, Origin
from demerit.data.formats import open_dataset
from demerit.data.labels import Outcome
from demerit.data.store import Store
from demerit.use.release import Settings, release
from demerit.use.release.cleaned import Cleaner
from demerit.use.release.clocks import seconds_since_start, since_start
from demerit.use.release.stand_ins import stand_ins

NOW = 1_709_648_530
FRAMES = np.arange(12)


@given(
    st.sampled_from([1, 10**3, 10**6, 10**9]),
    st.integers(946_684_801, 4_000_000_000),
    st.lists(st.integers(0, 3600), min_size=1, max_size=20),
)
def test_a_clock_of_any_unit_keeps_its_steps_and_loses_its_date(unit: int, start: int, steps: list[int]) -> None:
    begun = since_start(np.array([(start + step) * unit for step in steps], dtype=np.int64))
    assert begun is not None
    assert begun.tolist() == [(step - min(steps)) * unit for step in steps]  # counted in whole numbers, not in ours


@pytest.mark.parametrize(
    "values",
    [
        np.linspace(-3, 3, 24).reshape(12, 2),
        np.arange(12),
        np.arange(12) * 1e8,  # most of it, but not all, looks like a moment
        np.full(12, 2**31 - 1),  # no reading
        np.full((12, 4), 200, np.uint8),
        np.full(12, 60000, np.float16),
        np.array([True, False]),
        np.zeros((0, 3)),
        np.array([np.nan, np.inf]),
    ],
)
def test_what_is_no_clock_stays(values: Any) -> None:
    assert since_start(values) is None


def test_columns_of_one_unit_keep_their_distances_and_what_was_never_set_stays() -> None:
    stamps = np.stack([NOW + FRAMES, NOW + 0.5 + FRAMES, FRAMES / 7], axis=1)
    begun = since_start(stamps)
    assert begun is not None
    np.testing.assert_allclose(begun, np.stack([FRAMES, 0.5 + FRAMES, FRAMES / 7], axis=1), atol=1e-6)
    unset = since_start(np.array([0, -1, NOW, NOW + 3]))
    assert unset is not None and unset.tolist() == [0, -1, 0, 3]
    # A jump that nobody understands is no reason to keep the date, where the name says what it is.
    broken = np.array([NOW, NOW + 1, 77, NOW + 2])
    named = since_start(broken, named=True)
    assert since_start(broken) is None and named is not None and named.tolist() == [0, 1, 77, 2]
    # Seconds and nanoseconds beside each other: the second column says nothing of when.
    pair = since_start(np.stack([NOW + FRAMES, FRAMES * 83_000_000], axis=1), named=True)
    assert pair is not None and pair[:, 1].tolist() == (FRAMES * 83_000_000).tolist()


@given(
    st.lists(st.datetimes(datetime(2000, 1, 1), datetime(2099, 12, 31)), min_size=1, max_size=9),
    st.sampled_from(["%Y%m%d", "%Y%m%d%H%M", "%Y%m%d%H%M%S"]),
)
def test_days_and_moments_in_digits_are_counted_from_the_first(times: list[datetime], how: str) -> None:
    read = [datetime.strptime(one.strftime(how), how) for one in times]
    values = np.array([int(one.strftime(how)) for one in times])
    unit = {"%Y%m%d": timedelta(days=1), "%Y%m%d%H%M": timedelta(minutes=1)}.get(how, timedelta(seconds=1))
    begun = since_start(values, named=True)
    assert begun is not None and begun.tolist() == [(one - min(read)) // unit for one in read]
    # Fewer digits are a number like others where no name says what they are.
    assert (since_start(values) is None) == (how != "%Y%m%d%H%M%S")


@given(st.lists(st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)), min_size=1, max_size=9))
def test_columns_of_a_calendar_are_counted_from_the_first(times: list[datetime]) -> None:
    read = [one.replace(microsecond=0) for one in times]
    columns = np.array([one.timetuple()[:6] for one in read])
    begun = since_start(columns, named=True)
    assert begun is not None and not begun[:, :2].any() and since_start(columns) is None
    passed = [
        timedelta(days=int(d), hours=int(h), minutes=int(m), seconds=int(s)).total_seconds()
        for d, h, m, s in begun[:, 2:]
    ]
    assert passed == [(one - min(read)).total_seconds() for one in read]


def test_clocks_of_other_systems_are_known_where_a_name_says_so() -> None:
    milliseconds = since_start(np.array([20240305142210123, 20240305142211001]))
    assert milliseconds is not None and milliseconds.tolist() == [0, 878]
    for start in (731_340_130, 638_452_453_300_000_000, 133_541_221_300_000_000):  # since 2001, the year 1, 1601
        values = np.arange(4) + start
        named = since_start(values, named=True)
        assert named is not None and named.tolist() == [0, 1, 2, 3] and since_start(values) is None
    # A counter since a start that only passes through such numbers stays whole.
    assert since_start(np.linspace(0, 900_000_000, 12), named=True) is None
    unset = since_start(np.array([np.nan, -1, 20240305.0, 20240307.0]), named=True)
    np.testing.assert_array_equal(unset, [np.nan, -1, 0, 2])  # type: ignore[arg-type]


def test_what_a_name_calls_something_else_is_left_alone(make_episode: Callable[..., Episode]) -> None:
    kept = {
        "seed": np.full(12, 1_608_637_542), "hash64": np.full(12, 1_234_567_890_123_456_789),
        "encoder_ticks": FRAMES + 2**30, "track_id": np.full(12, NOW),
        "lat_accel": np.ones(12), "geo_mean": np.ones(12),
        "object": np.array(["Cracker Box"] * 12), "body_name": np.array(["Link7"] * 12),
        "site_name": np.array(["grip_site"] * 12), "sw_version": np.array(["2024.10.05"] * 12),
    }  # fmt: skip
    changed = {
        "step_time": NOW + FRAMES, "date": np.full(12, 20240305), "ymdhms": np.tile([2024, 3, 5, 14, 22, 10], (12, 1)),
        "day": np.array(["20240305"] * 12), "step_note": np.array(["ask Maria"] * 12),
        "object_in_hand": np.array(["Maria's Cup"] * 12),
    }  # fmt: skip
    gone = {"site": np.array(["Garching"] * 12), "geo_pos": np.ones(12), "operator2": np.array(["mensah"] * 12)}
    episode = replace(judged(make_episode("a")), signals={**kept, **changed, **gone})
    clean = Cleaner(stand_ins([], [], [], frozenset())).episode(episode).signals
    assert set(clean) == {*kept, *changed}
    assert {name: clean[name].tolist() for name in kept} == {name: values.tolist() for name, values in kept.items()}
    assert clean["step_time"].tolist() == FRAMES.tolist() and not clean["date"].any() and not clean["ymdhms"].any()
    assert [clean[name][0] for name in ("day", "step_note", "object_in_hand")] == [
        "2024-03",
        "ask [name]",
        "[name] Cup",
    ]


def test_calendar_times_become_seconds() -> None:
    times = np.array(["2024-03-05T14:22:10.5", "NaT", "2024-03-05T14:22:12"], dtype="datetime64[ms]")
    np.testing.assert_array_equal(seconds_since_start(times), [0, np.nan, 1.5])
    assert np.isnan(seconds_since_start(np.array(["NaT"], dtype="datetime64[s]"))).all()


SIGNALS = {
    "unix_ns": NOW * 10**9 + FRAMES,
    "utc": float(NOW) + FRAMES,
    "t": float(NOW) + FRAMES,
    "when": np.datetime64("2024-03-05T14:22:10") + FRAMES,
    "observation.gnss": np.full((12, 2), 48.1373),
    "base_position_wgs84": np.full((12, 2), 48.1373),
    "gps0/fix": np.full((12, 2), 48.1373),
    "operator": np.array(["Clara Weber"] * 12),
    "hostname": np.array([b"robot-pc-7"] * 12),
    "remark": np.array(["Clara slipped", "the cup fell"] * 6),
    "remark_bytes": np.array([b"ask Alice Jones"] * 12),
    "language": np.array(["put the Coke on the tray"] * 12),
    "logged": np.array([f"{NOW}.25"] * 12),
    "alice_gripper": np.ones(12),
    "Alice_gripper": np.zeros(12),
    "obs/data/pose": np.ones((12, 7)),
    "blob": np.array([b"Garching1234"] * 12).view("V12"),
    "things": np.array([{"by": "Alice"}] * 12, dtype=object),
    "actions": np.linspace(0, 1, 24).reshape(12, 2),
}


def judged(episode: Episode) -> Episode:
    return replace(
        episode,
        instruction="put the Coke on the tray",
        outcomes=(Outcome("human", success=False, by="Alice Jones"),),
        origin=Origin(licence="MIT"),
        signals=SIGNALS,
    )


class Two:
    name = "two"

    def __init__(self, *episodes: Episode) -> None:
        self.all = episodes

    def records(self) -> Any:
        return iter(self.all)

    def expected(self) -> int:
        return len(self.all)


@pytest.mark.parametrize("layout", ["folder", "lerobot"])
def test_signals_of_a_release(make_episode: Callable[..., Episode], tmp_path: Path, layout: Any) -> None:
    episodes = [judged(make_episode(id)) for id in "ab"]
    release(Dataset(Two(*episodes), "x"), tmp_path / "out", Settings(layout=layout))
    signals = next(iter(Store(tmp_path / "out").episodes())).signals
    expected: dict[str, list[Any]] = {
        **{name: FRAMES.tolist() for name in ("unix_ns", "utc", "t", "when")},
        "remark": ["[name] slipped", "the cup fell"] * 6,
        "remark_bytes": ["ask person-1"] * 12,
        "language": ["put the Coke on the tray"] * 12,
        "logged": ["2024-03"] * 12,
        "person-1_gripper": [1.0] * 12,
        "person-1_gripper-n2": [0.0] * 12,
        "obs/data/pose": [[1.0] * 7] * 12,
        "actions": SIGNALS["actions"].tolist(),
    }
    assert {name: values.tolist() for name, values in signals.items()} == expected
    said = (tmp_path / "out" / "PRIVACY.md").read_text()
    for row in (
        "| signal unix_ns | clock, begins at zero | 2 |",
        "| signal when | clock, begins at zero | 2 |",
        "| signal base_position_wgs84 | position on the globe, removed | 2 |",
        "| signal operator | text about a person, removed | 2 |",
        "| signal remark | text in which something was found, replaced | 2 |",
        "| signal things | bytes that no rule reads, removed | 2 |",
        "| signal name | known name or place | 2 |",
    ):
        assert row in said
    assert "lice_gripper" not in said
    if layout == "lerobot":
        theirs = next(iter(open_dataset(f"lerobot:{tmp_path / 'out'}"))).signals
        assert theirs["unix_ns"].tolist() == FRAMES.tolist()


def test_texts_among_signals_go_where_free_text_goes(make_episode: Callable[..., Episode]) -> None:
    names = stand_ins(["Alice Jones"], [], [], frozenset())
    gone = Cleaner(names, "drop").episode(judged(make_episode("a"))).signals
    assert not {"remark", "language", "logged"} & set(gone)
    kept = Cleaner(names, "keep").episode(judged(make_episode("a"))).signals
    assert kept["remark"][0] == "Clara slipped" and "operator" not in kept


def test_clocks_and_positions_of_an_hdf5_file(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="no HDF5 here: pip install h5py")
    with h5py.File(tmp_path / "d.hdf5", "w") as file:
        demo = file.create_group("data/demo_0")
        demo["actions"] = np.zeros((12, 7))
        pictures = np.random.default_rng(0).integers(0, 255, (12, 32, 32, 3), dtype=np.uint8)
        demo["obs/agentview_image"] = pictures
        for name in ("unix_ns", "utc", "observation.gnss"):
            demo[f"obs/{name}"] = SIGNALS[name]
    release(open_dataset(tmp_path / "d.hdf5"), tmp_path / "out", Settings(licence="MIT"))
    signals = next(iter(Store(tmp_path / "out").episodes())).signals
    assert {name: values.ravel()[:2].tolist() for name, values in signals.items()} == {
        "actions": [0, 0], "unix_ns": [0, 1], "utc": [0, 1],
    }  # fmt: skip
