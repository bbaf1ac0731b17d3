"""The page of `demerit view`: every episode in a few columns, and one episode in full.

The columns of 10,000 episodes fit in one answer of about a megabyte; curves, pictures and videos follow when an episode
is looked at. Rewards are those stored in folders; no model is loaded.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from demerit.data.arrays import Floats
from demerit.data.dataset import Dataset
from demerit.data.episode import Episode, most_trusted
from demerit.data.files import check_free, parse_json
from demerit.data.frames import Frames
from demerit.data.parts import open_part, read_batches
from demerit.data.quality import MEASURES, measure_quality
from demerit.data.reward import ADVICE, Reward, Verdict, VerdictCounts, gather_doubts, judge
from demerit.data.store import Store, flat_labels
from demerit.data.video import VideoClip
from demerit.errors import BadInput, StaleRewards, StoreError, UnreadableVideo
from demerit.evaluate.benchmarks.scores import CONTROLS
from demerit.evaluate.reports.headline import number
from demerit.evaluate.reports.page import style_models
from demerit.evaluate.reports.player import MAX_POINTS, curve_points, digits_of
from demerit.models.reward_store import (
    EPISODE_CHANGED,
    MANIFEST,
    MODEL_CHANGED,
    NOT_SCORED,
    RewardStore,
    scored_fingerprint,
)
from demerit.models.score import rewards_folder
from demerit.web.media import EpisodeMedia, media_routes, video_times
from demerit.web.pages import render
from demerit.web.server import make_app

Json = dict[str, Any]
STALE_REASONS = (EPISODE_CHANGED, MODEL_CHANGED)
STALENESS = ("", *(f"stale: {why} (demerit score scores it again)" for why in STALE_REASONS))
"""why a stored reward is out of date, by number; 0 = it is not"""
KINDS = "outcomes.list.element.events.list.element.kind"


class StoredCurves:
    """A folder of rewards, by the places of a dataset's episodes. Curves stay on disk."""

    def __init__(self, root: Path, places: Mapping[str, int]) -> None:
        """`places` maps the ids of the dataset's episodes to their places."""
        self.store = RewardStore(root)
        self.name, self.card = root.name, self.store.card
        self.final = np.full(len(places), math.nan)
        """the last value of each episode; NaN = unscored"""
        self.why = [NOT_SCORED] * len(places)
        """why something is missing, empty if nothing is"""
        self.verdicts = [Verdict(None, "not scored", NOT_SCORED)] * len(places)
        self.cautions: dict[str, None] = {}
        self._rows: list[tuple[str, int, int]] = [("", 0, 0)] * len(places)
        self.seen = (math.inf, -math.inf)
        """the lowest and the highest value"""
        for part in self.store.manifest.tables.get("rewards", ()):
            columns = ["episode", "why_missing", "given", "value"]
            for group, table in enumerate(read_batches(self.store.root, part, columns)):
                self._add(table, str(self.store.root / part.file), group, places)

    def _add(self, table: pa.Table, path: str, group: int, places: Mapping[str, int]) -> None:
        *texts, values = (column.combine_chunks() for column in table.columns)
        ends, numbers = np.asarray(values.offsets), np.asarray(values.values, dtype=np.float64)
        finals = numbers[~np.isnan(numbers)]
        self.seen = float(finals.min(initial=self.seen[0])), float(finals.max(initial=self.seen[1]))
        for row, (id, why, text) in enumerate(zip(*(text.to_pylist() for text in texts), strict=True)):
            place = places.get(id)
            if place is not None:
                self.final[place] = numbers[ends[row + 1] - 1] if ends[row + 1] > ends[row] else math.nan
                self.why[place], self._rows[place] = why, (path, group, row)
                facts = parse_json(text, "given", nan=True)
                self.verdicts[place] = judge(float(self.final[place]), why, facts)
                self.cautions |= dict.fromkeys(filter(None, [gather_doubts([facts]).get("caution")]))

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

    def as_dict(self, look: str) -> Json:
        """Return name, range and look for the page."""
        low, high = (
            bound if bound is not None else extreme if math.isfinite(extreme) else default
            for bound, extreme, default in zip((self.card.low, self.card.high), self.seen, (0.0, 1.0), strict=True)
        )
        high = high if high > low else low + 1.0
        assumed = "" if self.card.low is not None and self.card.high is not None else " as seen here"
        words = f"{self.card.quantity}, {number(low)} to {number(high)}{assumed}"
        counts = VerdictCounts.of_verdicts(self.verdicts, self.cautions)
        facts = {"name": self.name, "control": self.card.name in CONTROLS, "low": low, "high": high, "range": words}
        return {**facts, "look": look, "counts": str(counts), "warnings": counts.warnings}


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

    def as_dict(self) -> Json:
        """Return all columns; texts that repeat are numbered."""
        styles = style_models((model.name for model in self.models), CONTROLS)
        reasons: dict[str, int] = {"": 0}
        why = [[reasons.setdefault(text, len(reasons)) for text in model.why] for model in self.models]
        verdicts = [
            [reasons.setdefault(str(verdict), len(reasons)) for verdict in model.verdicts] for model in self.models
        ]
        return {
            "name": self.dataset.name,
            "models": [model.as_dict(styles[model.name]["css"]) for model in self.models],
            **self.columns,
            "final": [_rounded(model.final, digits_of(model.card) + 1) for model in self.models],
            "why": why,
            "verdicts": verdicts,
            "reasons": list(reasons),
            "staleness": STALENESS,
            "quality": MEASURES,
            "problems": self.problems,
        }

    def find_stale(self) -> list[dict[int, int]]:
        """Return by model the places of out-of-date rewards with their `STALENESS`.

        It reads a part of every video file: seconds for 10,000 episodes. It stops when `is_replaced` is set.
        """
        numbers: list[dict[int, int]] = [{} for _ in self.models]
        for episode in self.dataset if self.models else ():
            place = self.places.get(episode.id)
            if self.is_replaced:
                break
            if place is not None:
                for stale, number in zip(numbers, self.staleness(episode), strict=True):
                    stale.update({place: number} if number else {})
        return numbers

    def measure_quality(self) -> dict[str, list[float | None]]:
        """Return the columns of quality by name. It reads every episode's signals and stops as `find_stale` does."""
        rows = measure_quality(takewhile(lambda _: not self.is_replaced, self.dataset))
        return {
            name: [None if (value := rows.get(id, {}).get(name)) is None else round(value, 4) for id in self.places]
            for name in MEASURES
        }

    def episode_json(self, place: int) -> Json:
        """Return an episode with its labels, events and every model's curve."""
        episode = self.dataset[place]
        rewards, stale = [model.reward(place) for model in self.models], self.staleness(episode)
        notes, verdicts = list[str](), list[list[str]]()
        for model, reward, why in zip(self.models, rewards, stale, strict=True):
            missing = NOT_SCORED if reward is None else reward.why_missing
            missing = f"partly unscored: {missing}" if reward is not None and reward.scored and missing else missing
            notes += [f"{model.name}: {text}" for text in (STALENESS[why], missing) if text]
            if reward is not None:
                advice = f": {ADVICE[reward.verdict.reason]}" if reward.verdict.reason else ""
                caution = f"; the model is not trusted yet: {reward.caution}" if reward.caution else ""
                verdicts.append([model.name, f"{'stale: ' if why else ''}{reward.verdict}{advice}{caution}"])
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
            "verdicts": verdicts,
        }

    def fresh_rewards(self, episode: Episode) -> list[Reward | None]:
        """Read an episode's reward of each model; None = not scored. Raises StaleRewards."""
        for model, why in zip(self.models, self.staleness(episode), strict=True):
            if why:
                raise StaleRewards(model.store.root, episode.id, is_model=why > 1)
        return [model.reward(self.places[episode.id]) for model in self.models]

    def staleness(self, episode: Episode) -> list[int]:
        """Return a number of `STALENESS` for each model."""
        now: dict[bool, str] = {}
        numbers = []
        for model in self.models:
            fingerprint = now.get(model.card.reads_signals) or scored_fingerprint(episode, model.card)
            now[model.card.reads_signals] = fingerprint
            why = model.store.why_stale(episode, model.card, fingerprint)
            numbers.append(STALE_REASONS.index(why) + 1 if why in STALE_REASONS else 0)
        return numbers


def index_for_file(dataset: Dataset, dest: str | Path, is_folder: bool = False) -> ViewIndex:
    """Find the rewards of a dataset for a file that must not exist yet, or for a folder that must be empty."""
    if is_folder:
        check_free(dest)
    index = ViewIndex(dataset)
    if (Path(dest).exists() and not is_folder) or index.problems:
        got = index.problems[0] if index.problems else "one that exists"
        raise BadInput(str(dest), f"a new {'folder' if is_folder else 'file'}, and rewards that can be read", got)
    return index


def render_view(name: str, template: str = "view.html.j2", reading: Sequence[str] = ()) -> str:
    """Render the page of a dataset; `reading` are scripts that say where it reads its data, if not from a server."""
    nothing = {"data": Markup('{"models":[],"episodes":[]}'), "curves": Markup("{}"), "videos": {}}
    return render(template, scripts=("tables.js", "player.js", *reading, "view.js"), name=name, **nothing)


def view_app(index: ViewIndex, open_index: Callable[[], ViewIndex], media: EpisodeMedia) -> Starlette:
    """Make the page of a dataset. Every time it is loaded, `open_index` opens the dataset and its rewards again."""
    newest = [index]

    def show(request: Request) -> Response:
        return HTMLResponse(render_view(newest[-1].dataset.name))

    def list_episodes(request: Request) -> Response:
        newest.append(open_index())
        newest.pop(0).is_replaced = True
        return JSONResponse(newest[-1].as_dict())

    routes = [
        Route("/", show),
        Route("/index.json", list_episodes),
        Route("/stale.json", lambda request: JSONResponse(newest[-1].find_stale())),
        Route("/quality.json", lambda request: JSONResponse(newest[-1].measure_quality())),
        Route(
            "/episodes/{place:number}.json",
            lambda request: JSONResponse(newest[-1].episode_json(request.path_params["place"])),
        ),
    ]
    return make_app([*routes, *media_routes(media, lambda place: newest[-1].dataset[place])])


def _episode_columns(dataset: Dataset) -> Json:
    """Read the columns of every episode: from a folder's table, or from the episodes of any other format."""
    names = ("id", "instruction", "frames", "success", "grade", "vouched_by")
    if isinstance(dataset.reader, Store) and dataset.camera is None and not dataset.instruction:
        rows = dataset.reader.columns(names).to_pydict()
        kinds = [kind for table in dataset.reader.batches("episodes", [KINDS]) for kind in _event_kinds(table)]
    else:
        pairs = [(episode, flat_labels(episode.labels)) for episode in map(dataset.__getitem__, range(len(dataset)))]
        flat = [{"id": e.id, "instruction": e.instruction, "frames": _known_length(e.main), **f} for e, f in pairs]
        rows = {name: [row[name] for row in flat] for name in names}
        kinds = [sorted({event.kind for label in e.labels for event in label.events}) for e, _ in pairs]
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
    cameras = list(enumerate(episode.views.items()))
    facts["cameras"] = [
        {"name": name, **_video_facts(view, f"/cameras/{place}/{i}.mp4")} for i, (name, view) in cameras
    ]
    facts |= _video_facts(episode.main, facts["link"])
    facts["labels"] = [str(outcome) for outcome in episode.outcomes]
    facts["more"] = {"cameras": ", ".join(episode.views), "split": episode.origin.split, **episode.origin.tags}
    facts["more"] |= {"edits": ", ".join(edit.name for edit in episode.edits)}
    return {name: value for name, value in facts.items() if value not in (None, "")}


def _video_facts(frames: Frames, link: str) -> Json:
    try:
        times = video_times(frames)
    except UnreadableVideo as error:
        return {"problem": str(error), "link": ""}
    seconds, shown = float(times[-1]), np.round(times, 5).tolist()
    return {"link": link, "frames": len(times), "seconds": seconds, "times": shown}


def _label_curves(episode: Episode) -> Json:
    events = {(e.kind, e.first, e.last): e.note for label in episode.labels for e in label.events}
    curves: Json = {"events": [[*event, note] for event, note in events.items()]}
    staged = most_trusted(label for label in episode.labels if label.stages)
    curves["stages"] = [[stage.name, stage.first, stage.last] for stage in (staged.stages if staged else ())]
    for label in episode.labels:
        if label.curve is not None and "truth" not in curves:
            curves["truth"] = curve_points(np.arange(len(label.curve)), label.curve, 3, MAX_POINTS)
    return curves


def _rounded(values: Floats, digits: int) -> list[float | None]:
    return [None if math.isnan(value) else round(value, digits) for value in values.tolist()]
