"""Signals of an episode (forces, states) as numbers per frame, and as features of a taught model.

A taught model knows each signal's usual numbers: per column a middle (the median) and a spread (the median distance
from it, of the frames that are away from it). Its features are causal, two per column:

    now       asinh((x - middle) / spread): about linear near the middle, logarithmic far from it
    farthest  the value of `now` that was farthest from 0 so far
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from demerit.data.arrays import Floats
from demerit.data.episode import Episode
from demerit.errors import BadEpisode, BadInput, DemeritError, UnknownName

SignalScales: TypeAlias = Mapping[str, Sequence[Sequence[float]]]
"""by signal, middle and spread of each column"""


def read_columns(signals: Mapping[str, npt.NDArray[Any]], name: str, frames: int) -> Floats:
    """Return a signal as (frames, columns); raise where it is missing or has other than numbers for every frame."""
    if name not in signals:
        raise UnknownName("signal", name, signals)
    values = np.asarray(signals[name])
    if values.shape[:1] != (frames,):
        raise BadInput(f"signal {name!r}", f"{frames} values, one per frame", len(values) if values.ndim else "one")
    if not np.issubdtype(values.dtype, np.number) and values.dtype != bool:
        raise BadInput(f"signal {name!r}", "numbers", values.dtype)
    return np.asarray(values.reshape(frames, int(np.prod(values.shape[1:]))).astype(np.float64))


def fit_scales(episodes: Iterable[Episode], names: Sequence[str]) -> dict[str, list[list[float]]]:
    """Measure the usual numbers of signals, which have as many columns as in most episodes that have them."""
    episodes = list(episodes)
    known = dict.fromkeys(name for episode in episodes for name in episode.signals)
    scales = {}
    for name in dict.fromkeys(names):
        if name not in known:
            raise UnknownName("signal", name, known)
        found = [columns for episode in episodes if (columns := _read_or_none(episode, name)) is not None]
        if not found:
            raise BadInput(f"signal {name!r}", "finite numbers at every frame of some episodes", "none")
        width = Counter(columns.shape[1] for columns in found).most_common(1)[0][0]
        columns = np.concatenate([one for one in found if one.shape[1] == width])
        if (columns == columns[0]).all():
            raise BadInput(f"signal {name!r}", "numbers that change", f"{columns[0].tolist()} at every frame")
        scales[name] = [_scale(column) for column in columns.T]
    return scales


def _read_or_none(episode: Episode, name: str) -> Floats | None:
    try:
        columns = read_columns(episode.signals, name, len(episode))
    except DemeritError:
        return None  # reported with its reason when the episode is taught
    return columns if len(columns) and np.isfinite(columns).all() else None


def _scale(column: Floats) -> list[float]:
    middle = float(np.median(column))
    away = np.abs(column - middle)
    return [middle, float(np.median(away[away > 0])) if away.any() else 1.0]


def are_scales(scales: SignalScales) -> bool:
    """Whether these are a middle and a spread above 0 for each column."""
    try:
        tables = [np.array(columns, dtype=np.float64) for columns in scales.values()]
    except (TypeError, ValueError):
        return False
    return all(
        table.size and table.shape[1:] == (2,) and np.isfinite(table).all() and (table[:, 1] > 0).all()
        for table in tables
    )


def scale_signals(episode: Episode, scales: SignalScales) -> Floats:
    """Return `now`, (frames, columns of all signals); raise BadEpisode where a signal is not as it was taught."""
    missing = [name for name in scales if name not in episode.signals]
    if missing:
        expected = f"the signals {', '.join(scales)}, which this model was taught with"
        raise BadEpisode(episode.id, expected, f"an episode without {', '.join(missing)}")
    return np.concatenate([_scale_signal(episode, name, np.array(scale)) for name, scale in scales.items()], axis=1)


def _scale_signal(episode: Episode, name: str, scale: Floats) -> Floats:
    columns = read_columns(episode.signals, name, len(episode))
    if columns.shape[1] != len(scale):
        raise BadEpisode(episode.id, f"{len(scale)} numbers per frame of {name!r}, as taught", columns.shape[1])
    bad = np.flatnonzero(~np.isfinite(columns).all(axis=1))
    if len(bad):
        raise BadEpisode(episode.id, f"finite numbers of {name!r}", f"{columns[bad[0]].tolist()} at frame {bad[0]}")
    return np.asarray(np.arcsinh((columns - scale[:, 0]) / scale[:, 1]))


def add_farthest(now: Floats) -> Floats:
    """Add to each column what was farthest from 0 so far: (frames, 2 columns)."""
    is_farthest = np.abs(now) >= np.maximum.accumulate(np.abs(now), axis=0)
    since = np.maximum.accumulate(np.where(is_farthest, np.arange(len(now))[:, None], 0), axis=0)
    return np.concatenate([now, np.take_along_axis(now, since, axis=0)], axis=1)
