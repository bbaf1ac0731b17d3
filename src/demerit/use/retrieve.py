"""Finding parts of recordings by an instruction or by examples: windows, their ranking, and hits merged to segments.

A window is seen as an episode of its own: 8 frames, spread evenly, each compared with the window's first. A file per
recording is stored next to the dataset, named by a hash of its frames: an interrupted run resumes, and a recording that
changed is read again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.arrays import Floats, Floats32
from demerit.data.dataset import Dataset
from demerit.data.episode import Episode, normalize_instruction, with_check
from demerit.data.files import atomic_file, atomic_folder, make_folder, plain, read_npz, write_atomic, write_json
from demerit.data.frames import Indices, Times
from demerit.data.importing import import_dataset
from demerit.errors import BadInput, UnreadableVideo
from demerit.evaluate.reports.reel import FilmReel
from demerit.models.compact.engine import Engine
from demerit.models.score import rewards_folder
from demerit.web.pages import check_page, render

FRAMES = 8
"""frames of a window"""
AT_ONCE = 64
"""windows decoded at once: bounds the memory of a long recording"""
MOST_BYTES = 2**32
Vectors = npt.NDArray[np.float16]


@dataclass(frozen=True)
class WindowPlan:
    """How long windows are and how far apart they begin, in seconds."""

    seconds: float = 4.0
    """infinite = each recording is one window"""
    stride: float = 2.0

    def __post_init__(self) -> None:
        """Validate."""
        if not self.seconds > 0 or not 0 < self.stride <= self.seconds or math.isinf(self.stride):
            expected = "positive numbers, the stride at most the length of a window"
            raise BadInput("window in seconds and stride", expected, (self.seconds, self.stride))

    def spans(self, times: Times) -> Indices:
        """Return (windows, 2): first and last frame of each; the last window ends with the recording."""
        latest = max(float(times[-1]) - self.seconds, 0.0)
        starts = np.append(np.arange(0, latest, self.stride), latest)
        first = np.searchsorted(times, starts - 1e-6)
        last = np.searchsorted(times, starts + self.seconds + 1e-6, side="right") - 1
        return np.unique(np.stack([first, np.maximum(first, last)], axis=1), axis=0).astype(np.int32)


@dataclass(frozen=True, eq=False)
class PlayWindows:
    """The windows of all recordings."""

    episodes: Sequence[Episode]
    """the recordings"""
    owner: Indices
    """the recording of each window"""
    spans: Indices
    """(windows, 2): first and last frame of each"""
    vectors: Vectors
    """(windows, 8, columns): the network's pooled features"""
    problems: dict[str, str]
    """recordings that cannot be read, and why"""

    def __len__(self) -> int:
        return len(self.owner)


def index_folder(dataset: Dataset, plan: WindowPlan, engine: Engine, home: Path | None = None) -> Path:
    """Return the folder of the index: in `home`, or next to the dataset (inside a demerit folder)."""
    name = f"{plan.seconds:g}s-{plan.stride:g}s-{engine.hash[:12]}"
    return (home or rewards_folder(dataset, "any").parents[1] / "windows") / name


def index_windows(
    dataset: Dataset,
    plan: WindowPlan,
    engine: Engine,
    folder: Path,
    on_progress: Callable[[int, int], None] = lambda recordings, windows: None,
) -> PlayWindows:
    """Read what is not indexed yet, and load the index."""
    make_folder(folder)
    episodes, spans, vectors, problems = list[Episode](), list[Indices](), list[Vectors](), dict[str, str]()
    count = 0
    with ThreadPoolExecutor(engine.threads) as pool:
        for done, episode in enumerate(dataset, 1):
            try:
                path = folder / f"{episode.main.identity()}.npz"
                if not path.exists():
                    _write_recording(path, episode, plan, engine, pool)
            except (UnreadableVideo, BadInput) as error:
                problems[episode.id] = str(error)
                continue
            arrays = read_npz(path, MOST_BYTES, "an index (delete it and run again)")
            episodes.append(episode)
            spans.append(arrays["spans"])
            vectors.append(arrays["vectors"])
            count += len(arrays["spans"])
            on_progress(done, count)
    if not episodes:
        raise BadInput("recordings", "at least one that can be read", next(iter(problems.values()), "an empty dataset"))
    owner = np.repeat(np.arange(len(episodes), dtype=np.int32), [len(part) for part in spans])
    return PlayWindows(episodes, owner, np.concatenate(spans), np.concatenate(vectors), problems)


def _write_recording(path: Path, episode: Episode, plan: WindowPlan, engine: Engine, pool: ThreadPoolExecutor) -> None:
    frames = episode.main
    if len(frames) < 2:  # noqa: PLR2004
        raise BadInput(f"recording {episode.id!r}", "two frames or more", len(frames))
    spans, parts = plan.spans(frames.times()), list[Vectors]()
    if not np.any(spans[:, 1] > spans[:, 0]):
        raise BadInput(f"window of {plan.seconds:g} s", "two frames or more", f"one frame of {episode.id!r}")
    for start in range(0, len(spans), AT_ONCE):
        # fewer than 8 frames are repeated; the last is always the last
        first, last = spans[start : start + AT_ONCE].T
        samples = np.rint(np.linspace(first, last, FRAMES, axis=1)).astype(np.int32)
        images = frames.take_prepared(samples.ravel(), engine.prepare)
        images = images.reshape(len(samples), FRAMES, *images.shape[1:])
        rows = pool.map(lambda window: engine.features(window, window[0])[:, : engine.pooled_width], images)
        parts.append(np.stack(list(rows)).astype(np.float16))
    with atomic_file(path, sync=False) as part, part.open("wb") as file:
        np.savez(file, spans=spans, vectors=np.concatenate(parts))


SEGMENTS = "segments.json"
STRIPS = 200
"""most segments on a page"""
LONGEST = 2.0
"""the longest segment, in windows"""


@dataclass(frozen=True)
class PlaySegment:
    """A part of a recording."""

    episode: Episode
    """the recording"""
    first: int
    last: int
    score: float
    """standard deviations above the mean window"""
    gain: float = math.nan
    """a model's value at the end minus that at the start; NaN = unscored, or no model"""

    def cut(self, instruction: str) -> Episode:
        """Make an episode of it; the recording's labels are not its labels."""
        whole, origin = self.episode, with_check(self.episode, "").origin
        part = whole.select(np.arange(self.first, self.last + 1))
        tags = {**origin.tags, "retrieved": f"{self.score:.3f}"}
        origin = replace(origin, parent=whole.id, group=origin.group or whole.id, tags=tags)
        name = f"{whole.id}/{self.first}-{self.last}"
        return replace(part, id=name, instruction=instruction, outcomes=(), origin=origin)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        times = self.episode.main.times()
        seconds = [round(float(times[at]), 3) for at in (self.first, self.last)]
        span = {"episode": self.episode.id, "first": self.first, "last": self.last, "seconds": seconds}
        return {**span, "score": self.score, "gain": plain(self.gain)}


def score_by_text(windows: PlayWindows, engine: Engine, instruction: str) -> Floats:
    """Rank windows by how well they end as episodes of the instruction, for the default network."""
    return _standardize(engine.rank_clips(windows.vectors, instruction))


def score_by_examples(windows: PlayWindows, examples: Vectors) -> Floats:
    """Rank windows by how they look and what changes in them, as in the examples (n, 8, columns).

        x = mean of a window's frames, or last minus first; m and C = mean and covariance over all windows, d columns
        s(x) = (x - m) . (C + tr(C)/d I)^-1 (mean over the examples - m), in standard deviations
        score = s(mean) + s(change)

    s is Fisher's discriminant of the examples against all windows, of which few show the task.
    """
    pairs = zip(_summarize(windows.vectors), _summarize(examples), strict=True)
    return _standardize(np.sum([_discriminate(x, shown.mean(axis=0)) for x, shown in pairs], axis=0))


def _discriminate(x: Floats32, wanted: Floats32) -> Floats:
    mean = x.mean(axis=0)
    centred = x - mean
    covariance = centred.T @ centred / len(x)
    ridge = max(float(np.trace(covariance)) / len(covariance), 1e-9) * np.eye(len(covariance))
    return _standardize(centred @ np.linalg.solve(covariance + ridge, wanted - mean))


def _summarize(vectors: Vectors) -> tuple[Floats32, Floats32]:
    """Return the mean of the frames, and the last minus the first."""
    change = vectors[:, -1].astype(np.float32) - vectors[:, 0].astype(np.float32)
    return vectors.mean(axis=1, dtype=np.float32), change


def pick_examples_of(instruction: str, dataset: Dataset) -> list[Episode]:
    """Return the episodes of the instruction, or of none, that are no labelled failures and need no person's check."""
    wanted, others = normalize_instruction(instruction), set[str]()
    examples = []
    for episode in dataset:
        own = normalize_instruction(episode.instruction)
        others |= {episode.instruction} if own not in ("", wanted) else set()
        failed = episode.outcome is not None and episode.outcome.success is False
        if own in ("", wanted) and not failed and episode.check not in ("due", "rejected"):
            examples.append(episode)
    if not examples:
        got = f"those of {', '.join(map(repr, sorted(others)[:3]))}" if others else "failures or nothing"
        raise BadInput(f"examples in {dataset.name}", f"some of {instruction!r} (in these words) that succeed", got)
    return examples


def merge_hits(windows: PlayWindows, scores: Floats, top: int) -> list[PlaySegment]:
    """Return the best segments, best first. A hit that overlaps a better one extends it, up to twice its length."""
    segments: list[PlaySegment] = []
    by_owner: dict[int, list[int]] = {}
    lengths: list[int] = []
    for at in np.argsort(-scores, kind="stable"):
        owner, (first, last) = int(windows.owner[at]), (int(x) for x in windows.spans[at])
        near = [i for i in by_owner.get(owner, ()) if first <= segments[i].last and last >= segments[i].first]
        if near:
            i = near[0]  # the best one
            low, high = min(first, segments[i].first), max(last, segments[i].last)
            others = [segments[k] for k in by_owner[owner] if k != i]
            is_free = all(high < other.first or low > other.last for other in others)
            if is_free and high - low + 1 <= LONGEST * lengths[i]:
                segments[i] = replace(segments[i], first=low, last=high)
        elif len(segments) < top:
            by_owner.setdefault(owner, []).append(len(segments))
            lengths.append(last - first + 1)
            segments.append(PlaySegment(windows.episodes[owner], first, last, float(scores[at])))
        else:
            break
    return segments


def order_by_gain(segments: Sequence[PlaySegment], gains: Floats) -> list[PlaySegment]:
    """Return the segments with their gains, the highest first and those without (NaN) last."""
    ordered = [replace(segment, gain=gain) for segment, gain in zip(segments, gains.tolist(), strict=True)]
    return sorted(ordered, key=lambda segment: math.inf if math.isnan(segment.gain) else -segment.gain)


def list_windows(windows: PlayWindows) -> list[PlaySegment]:
    """Return every window as a segment of its own."""
    rows = zip(windows.owner.tolist(), windows.spans.tolist(), strict=True)
    return [PlaySegment(windows.episodes[owner], first, last, math.nan) for owner, (first, last) in rows]


def merge_gains(windows: PlayWindows, gains: Floats, top: int) -> list[PlaySegment]:
    """Return the best segments by the gain of every window; windows without a gain (NaN) are left out."""
    known = np.flatnonzero(~np.isnan(gains))
    if not len(known):
        return []
    rest = replace(windows, owner=windows.owner[known], spans=windows.spans[known], vectors=windows.vectors[known])
    scores = _standardize(gains[known])
    gain_of = dict(zip(scores.tolist(), gains[known].tolist(), strict=True))
    return [replace(segment, gain=gain_of[segment.score]) for segment in merge_hits(rest, scores, top)]


def write_segments(segments: Sequence[PlaySegment], instruction: str, dataset: Dataset, dest: str | Path) -> None:
    """Write the segments as episodes of a new demerit folder that refers to the videos: whole, or nothing."""
    with atomic_folder(dest) as folder:
        episodes = [segment.cut(instruction) for segment in segments]
        view = Dataset.from_episodes(episodes, dataset.name)
        view.address = f"retrieve:{dataset.address}"
        import_dataset(view, folder)
        facts = [segment.as_dict() for segment in segments]
        write_json(folder / SEGMENTS, {"source": dataset.address, "instruction": instruction, "segments": facts})


def write_retrieve_page(
    segments: Sequence[PlaySegment],
    instruction: str,
    dataset: Dataset,
    path: Path,
    by: str,
    warnings: Sequence[str] = (),
    on_strip: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Write a page with a film strip per segment, atomically; `by` says what the segments were found by.

    At most `STRIPS` segments are on it; `on_strip` is called after each with their number and the total.
    """
    check_page(path, "retrieve")
    shown, strips = segments[:STRIPS], list[dict[str, Any]]()
    for segment in shown:
        strips.append({**segment.as_dict(), "reel": FilmReel.draw(segment.cut(instruction).main, {})})
        on_strip(len(strips), len(shown))
    text = render(
        "retrieve.html.j2",
        name=dataset.name,
        address=dataset.address,
        instruction=instruction,
        by=by,
        warnings=warnings,
        count=len(segments),
        has_gain=any(not math.isnan(segment.gain) for segment in segments),
        strips=strips,
    )
    write_atomic(path, text.encode())


def _standardize(scores: npt.NDArray[Any]) -> Floats:
    wide = scores.astype(np.float64)
    return np.asarray((wide - wide.mean()) / max(float(wide.std()), 1e-9))
