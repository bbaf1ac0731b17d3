"""What the page of `demerit view` shows: every episode in a few columns, and one episode in full.

The columns of 10,000 episodes fit in one answer of about a megabyte; curves, pictures and videos follow when an episode
is looked at. Rewards are those stored in folders; no model is loaded.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from demerit.data.dataset import Dataset
from demerit.data.episode import Episode
from demerit.data.frames import Frames
from demerit.data.parts import open_part, read_batches
from demerit.data.reward import Reward
from demerit.data.store import Store, flat_labels
from demerit.data.video import VideoClip
from demerit.errors import StoreError, UnreadableVideo
from demerit.evaluate.benchmarks.scores import CONTROLS
from demerit.evaluate.reports.headline import number
from demerit.evaluate.reports.page import style_models
from demerit.evaluate.reports.player import MAX_POINTS, curve_points, digits_of
from demerit.models.reward_store import MANIFEST, RewardStore
from demerit.models.score import rewards_folder, scored_fingerprint
from demerit.use.scored import NOT_SCORED
from demerit.use.view.media import video_times

Json = dict[str, Any]
STALENESS = (
    "",
    "stale: the episode has changed since it was scored (demerit score scores it again)",
    "stale: the model has changed since it scored this episode (demerit score scores it again)",
)
"""why a stored reward is out of date, by number; 0 = it is not"""
KINDS = "outcomes.list.element.events.list.element.kind"


class StoredCurves:
    """A folder of rewards, by the places of a dataset's episodes. Curves stay on disk."""

    def __init__(self, root: Path, places: Mapping[str, int]) -> None:
        """`places` maps the ids of the dataset's episodes to their places."""
        self.store = RewardStore(root)
        self.name, self.card = root.name, self.store.card
        self._card_hash = self.card.hash()
        self.final = np.full(len(places), math.nan)
        """the last value of each episode; NaN = unscored"""
        self.why = [NOT_SCORED] * len(places)
        """why something is missing, empty if nothing is"""
        self.scored_as: list[tuple[str, str] | None] = [None] * len(places)
        """fingerprint of the episode and hash of the card that it was scored with"""
        self._rows: list[tuple[str, int, int]] = [("", 0, 0)] * len(places)
        self.seen = (math.inf, -math.inf)
        """the lowest and the highest value"""
        for part in self.store.manifest.tables.get("rewards", ()):
            columns = ["episode", "fingerprint", "card", "why_missing", "value"]
            for group, table in enumerate(read_batches(self.store.root, part, columns)):
                self._add(table, str(self.store.root / part.file), group, places)

    def _add(self, table: pa.Table, path: str, group: int, places: Mapping[str, int]) -> None:
        *texts, values = (column.combine_chunks() for column in table.columns)
        ends, numbers = np.asarray(values.offsets), np.asarray(values.values, dtype=np.float64)
        known = numbers[~np.isnan(numbers)]
        self.seen = float(known.min(initial=self.seen[0])), float(known.max(initial=self.seen[1]))
        for row, (id, fingerprint, card, why) in enumerate(zip(*(text.to_pylist() for text in texts), strict=True)):
            place = places.get(id)
            if place is not None:
                self.final[place] = numbers[ends[row + 1] - 1] if ends[row + 1] > ends[row] else math.nan
                self.why[place], self.scored_as[place] = why, (fingerprint, card)
                self._rows[place] = (path, group, row)

    def reward(self, place: int) -> Reward | None:
        """Read the reward of an episode; None if there is none."""
        path, group, row = self._rows[place]
        if not path:
            return None
        try:
            state = os.stat(path)
        except OSError as error:
            raise StoreError(path, f"it cannot be read ({error.strerror})") from None
        return self.store.read_row(_read_group(path, group, state.st_mtime_ns).slice(row, 1).to_pylist()[0])

    def staleness(self, place: int, fingerprint: str) -> int:
        """Return a number of `STALENESS`. `fingerprint` is that of the episode now."""
        before = self.scored_as[place]
        if before is None or before == (fingerprint, self._card_hash):
            return 0
        return 1 if before[0] != fingerprint else 2

    def to_json(self, look: str) -> Json:
        """Return name, range and look for the page."""
        low, high = (
            bound if bound is not None else found if math.isfinite(found) else default
            for bound, found, default in zip((self.card.low, self.card.high), self.seen, (0.0, 1.0), strict=True)
        )
        high = high if high > low else low + 1.0
        assumed = "" if self.card.low is not None and self.card.high is not None else " as seen here"
        words = f"{self.card.quantity}, {number(low)} to {number(high)}{assumed}"
        is_control = self.card.name in CONTROLS
        return {"name": self.name, "control": is_control, "low": low, "high": high, "range": words, "look": look}


@lru_cache(maxsize=8)
def _read_group(path: str, group: int, _changed: int) -> pa.Table:
    with open_part(Path(path)) as file:
        return file.read_row_group(group, use_threads=False)


class ViewIndex:
    """A dataset and the rewards stored for it."""

    def __init__(self, dataset: Dataset, extra: Sequence[Path] = ()) -> None:
        """`extra` are folders of rewards beside those next to the dataset."""
        self.dataset, self.is_replaced = dataset, False
        self.columns = _episode_columns(dataset)
        self.places = {id: place for place, id in enumerate(self.columns["id"])}
        self.models: list[StoredCurves] = []
        self.problems: list[str] = []
        beside = rewards_folder(dataset, "x").parent
        for root in [*sorted(path.parent for path in beside.glob(f"*/{MANIFEST}")), *extra]:
            try:
                self.models.append(StoredCurves(root, self.places))
            except StoreError as error:
                self.problems.append(str(error))
        self.models.sort(key=lambda model: (model.card.name in CONTROLS, model.name))

    def to_json(self) -> Json:
        """Return all columns; texts that repeat are numbered."""
        styles = style_models((model.name for model in self.models), CONTROLS)
        reasons: dict[str, int] = {"": 0}
        why = [[reasons.setdefault(text, len(reasons)) for text in model.why] for model in self.models]
        return {
            "name": self.dataset.name,
            "models": [model.to_json(styles[model.name].css) for model in self.models],
            **self.columns,
            "final": [_rounded(model.final, digits_of(model.card) + 1) for model in self.models],
            "why": why,
            "reasons": list(reasons),
            "staleness": STALENESS,
            "problems": self.problems,
        }

    def find_stale(self) -> list[dict[int, int]]:
        """Return by model the places of out-of-date rewards with their `STALENESS`.

        It reads a part of every video file: seconds for 10,000 episodes. It stops when `is_replaced` is set.
        """
        found: list[dict[int, int]] = [{} for _ in self.models]
        for episode in self.dataset if self.models else ():
            place = self.places.get(episode.id)
            if self.is_replaced:
                break
            if place is not None:
                for stale, why in zip(found, self.staleness(episode, place), strict=True):
                    stale.update({place: why} if why else {})
        return found

    def episode_json(self, place: int) -> Json:
        """Return an episode with its labels, events and every model's curve."""
        episode = self.dataset[place]
        rewards, stale = [model.reward(place) for model in self.models], self.staleness(episode, place)
        notes = []
        for model, reward, why in zip(self.models, rewards, stale, strict=True):
            missing = NOT_SCORED if reward is None else reward.why_missing
            missing = f"partly unscored: {missing}" if reward is not None and reward.scored and missing else missing
            guess = "a guess: unlike everything that the model learned from" if reward and reward.is_guess else ""
            notes += [f"{model.name}: {text}" for text in (STALENESS[why], missing, guess) if text]
        return {
            "episode": _episode_facts(episode, place),
            "curves": {
                "curves": [
                    curve_points(reward.at, reward.value, digits_of(model.card), MAX_POINTS) if reward else None
                    for model, reward in zip(self.models, rewards, strict=True)
                ],
                **_label_curves(episode),
            },
            "notes": notes,
        }

    def staleness(self, episode: Episode, place: int) -> list[int]:
        """Return a number of `STALENESS` for each model."""
        now: dict[bool, str] = {}
        for card in (model.card for model in self.models):
            if card.reads_signals not in now:
                now[card.reads_signals] = scored_fingerprint(episode, card)
        return [model.staleness(place, now[model.card.reads_signals]) for model in self.models]


def _episode_columns(dataset: Dataset) -> Json:
    """Read the columns of every episode: from a folder's table, or from the episodes of any other format."""
    names = ("id", "instruction", "frames", "success", "grade", "vouched_by")
    if isinstance(dataset.reader, Store) and dataset.camera is None and not dataset.instruction:
        rows = dataset.reader.columns(names).to_pydict()
        kinds = [kind for table in dataset.reader.batches("episodes", [KINDS]) for kind in _event_kinds(table)]
    else:
        found = [(episode, flat_labels(episode.outcomes)) for episode in map(dataset.__getitem__, range(len(dataset)))]
        flat = [{"id": e.id, "instruction": e.instruction, "frames": _known_length(e.main), **f} for e, f in found]
        rows = {name: [row[name] for row in flat] for name in names}
        kinds = [sorted({event.kind for label in e.outcomes for event in label.events}) for e, _ in found]
    texts = {text: code for code, text in enumerate(dict.fromkeys(rows["instruction"]))}
    return {
        **rows,
        "instruction": [texts[text] for text in rows["instruction"]],
        "instructions": list(texts),
        "kinds": {place: names for place, names in enumerate(kinds) if names},
    }


def _event_kinds(table: pa.Table) -> Iterator[list[str]]:
    """Yield the kinds of events of each row, of all of its labels."""
    outcomes = table.column(0).combine_chunks()
    events = pc.list_flatten(outcomes).field("events")
    rows = np.asarray(pc.list_parent_indices(outcomes))[np.asarray(pc.list_parent_indices(events))]
    kinds: list[set[str]] = [set() for _ in range(len(outcomes))]
    for row, kind in zip(rows.tolist(), pc.list_flatten(events).field("kind").to_pylist(), strict=True):
        kinds[row].add(kind)
    return map(sorted, kinds)


def _known_length(frames: Frames) -> int | None:
    """Return the number of frames; None where a video would have to be opened to count them."""
    clip = frames.source
    is_unknown = frames.indices is None and isinstance(clip, VideoClip) and clip.length is None
    return None if is_unknown else len(frames)


def _episode_facts(episode: Episode, place: int) -> Json:
    facts: Json = {"id": episode.id, "instruction": episode.instruction, "link": f"/media/{place}.mp4"}
    label = episode.outcome
    if label is not None:
        facts |= {name: getattr(label, name) for name in ("success", "grade", "note")}
        facts["progress"] = None if label.progress is None else round(label.progress, 3)
        facts["by"] = f"{label.source} {label.by}".strip()
    try:
        times = video_times(episode.main)
        facts |= {"frames": len(times), "seconds": float(times[-1]), "times": np.round(times, 5).tolist()}
    except UnreadableVideo as error:
        facts |= {"problem": str(error), "link": ""}
    facts["labels"] = [str(one) for one in episode.outcomes]
    facts["more"] = {"cameras": ", ".join(episode.views), "split": episode.origin.split, **episode.origin.tags}
    facts["more"] |= {"edits": ", ".join(edit.name for edit in episode.edits)}
    return {name: value for name, value in facts.items() if value not in (None, "")}


def _label_curves(episode: Episode) -> Json:
    events = {(e.kind, e.first, e.last): e.note for label in episode.outcomes for e in label.events}
    found: Json = {"events": [[*event, note] for event, note in events.items()]}
    for label in episode.outcomes:
        if label.curve is not None and "truth" not in found:
            found["truth"] = curve_points(np.arange(len(label.curve)), label.curve, 3, MAX_POINTS)
    return found


def _rounded(values: npt.NDArray[np.float64], digits: int) -> list[float | None]:
    return [None if math.isnan(value) else round(value, digits) for value in values.tolist()]
