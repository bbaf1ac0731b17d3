"""RewardStore: one model's rewards for a dataset, on disk; which of them are fresh; the dataset joined with them.

A stored reward is fresh if neither the episode nor the model has changed since: both are compared by their content.
The raw answers of chat models are in a table of their own, written in the same commit as the reward.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from demerit.data.dataset import Dataset
from demerit.data.episode import Episode
from demerit.data.files import lock_folder, parse_json
from demerit.data.parts import Manifest, PartWriter, open_part, read_manifest, write_manifest
from demerit.data.reward import GENERATIONS, Reward
from demerit.errors import BadEpisode, DemeritError, StaleRewards, StoreError, UnreadableVideo
from demerit.models.protocol import ModelCard

FORMAT_NAME = "demerit-rewards"
MANIFEST = "rewards.json"
TABLES = ("rewards", GENERATIONS)
UNREADABLE = "unreadable"
"""stored in the place of the fingerprint of an episode whose video cannot be read"""
NOT_SCORED = "not scored yet"
EPISODE_CHANGED = "the episode has changed since it was scored"
MODEL_CHANGED = "the model has changed since it scored this episode"
MOST_OPEN_PARTS = 64
"""small parts are merged while a long job writes, so that a commit stays quick after days"""
ROWS_AT_ONCE = 1000
"""turned into Python values at a time"""

REWARDS = pa.schema(
    [
        ("episode", pa.string()),
        ("fingerprint", pa.string()),
        ("card", pa.string()),
        ("at", pa.list_(pa.int32())),
        ("value", pa.list_(pa.float32())),
        ("success", pa.list_(pa.float32())),
        ("scored", pa.bool_()),
        ("why_missing", pa.string()),
        ("given", pa.string()),
    ]
)
ANSWER_FACTS = ("about", "request", "answer", "why_not")
ANSWERS = pa.schema(
    [
        ("episode", pa.string()),
        ("answers", pa.list_(pa.struct([(name, pa.string()) for name in ANSWER_FACTS]))),
    ]
)


@dataclass(frozen=True)
class StoredScore:
    """What is stored about an episode's reward: enough to decide whether to score it again."""

    fingerprint: str
    card: str
    is_scored: bool


class RewardStore:
    """A folder of rewards. Later rows of an episode replace earlier ones."""

    def __init__(self, root: str | Path) -> None:
        """Open a folder of rewards."""
        self.root = Path(root).resolve()
        self.manifest = read_manifest(self.root / MANIFEST, FORMAT_NAME)
        self._on_record: dict[str, StoredScore] | None = None

    @classmethod
    def open_or_create(cls, root: str | Path, card: ModelCard, header: Mapping[str, Any]) -> RewardStore:
        """Open the folder; create it when it does not exist."""
        root = Path(root).resolve()
        if not (root / MANIFEST).exists():
            try:
                root.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StoreError(
                    root,
                    f"rewards cannot be written there ({error.strerror}); choose another place (--rewards)",
                ) from error
            facts = {"model": card.name, "card": asdict(card), **header}
            with lock_folder(root):
                write_manifest(root / MANIFEST, FORMAT_NAME, Manifest(facts))
        return cls(root)

    @property
    def card(self) -> ModelCard:
        """The card of the model that made the newest rewards."""
        try:
            return ModelCard(**self.manifest.header["card"])
        except (DemeritError, KeyError, TypeError, AttributeError) as error:
            raise StoreError(self.root / MANIFEST, f"its model card cannot be read ({error})") from error

    def __len__(self) -> int:
        """Number of rows, replaced ones included."""
        return self.manifest.rows("rewards")

    def on_record(self) -> dict[str, StoredScore]:
        """Return what is stored, by episode. It is read once."""
        if self._on_record is None:
            scores: dict[str, StoredScore] = {}
            with self._open_parts("rewards") as files:
                for table in _read_groups(files, ["episode", "fingerprint", "card", "scored"]):
                    columns = [column.to_pylist() for column in table.columns]
                    for episode, fingerprint, card, is_scored in zip(*columns, strict=True):
                        scores[episode] = StoredScore(fingerprint, card, is_scored)
            self._on_record = scores
        return self._on_record

    def is_fresh(self, episode: Episode, card: ModelCard, fingerprint: str | None = None) -> bool:
        """Whether a reward is stored that the model with this card gave to the episode as it is now."""
        return not self.why_stale(episode, card, fingerprint)

    def why_stale(self, episode: Episode, card: ModelCard, fingerprint: str | None = None) -> str:
        """Return why the stored reward is not fresh: NOT_SCORED, EPISODE_CHANGED or MODEL_CHANGED; "" = it is fresh.

        Args:
            episode: as it is now.
            card: of the model as it is now.
            fingerprint: what `scored_fingerprint` returned for them; None = it is computed.
        """
        stored = self.on_record().get(episode.id)
        if stored is None:
            return NOT_SCORED
        if stored.fingerprint != (scored_fingerprint(episode, card) if fingerprint is None else fingerprint):
            return EPISODE_CHANGED
        return "" if stored.card == card.hash() else MODEL_CHANGED

    def __iter__(self) -> Iterator[Reward]:
        """Yield the newest reward of each episode, in the order written."""
        return map(self.read_row, self._newest_rows("rewards"))

    def generations(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield the raw answers behind the newest rewards: the episode's id, and the answer (see `GENERATIONS`)."""
        for row in self._newest_rows(GENERATIONS):
            yield from ((row["episode"], answer) for answer in row["answers"])

    def __getitem__(self, episode: str) -> Reward:
        """Find the newest reward of an episode by its id."""
        rows: list[dict[str, Any]] = []
        with self._open_parts("rewards") as files:
            for table in _read_groups(files):
                rows = table.filter(pc.field("episode") == episode).to_pylist() or rows
        if not rows:
            near = difflib.get_close_matches(episode, self.on_record(), n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise BadEpisode(episode, f"an episode with a reward in {self.root}", f"one without{hint}")
        return self.read_row(rows[-1])

    @contextmanager
    def writer(self, card: ModelCard) -> Iterator[RewardWriter]:
        """Append rewards under the folder's lock."""
        with lock_folder(self.root):
            manifest = read_manifest(self.root / MANIFEST, FORMAT_NAME)
            header = {**manifest.header, "card": asdict(card)}
            parts = PartWriter(self.root / MANIFEST, FORMAT_NAME, Manifest(header, manifest.tables), TABLES)
            try:
                yield RewardWriter(parts, card.hash())
                parts.compact()
            finally:
                self.manifest, self._on_record = parts.manifest, None

    def read_row(self, row: Mapping[str, Any]) -> Reward:
        """Turn a row into a reward."""
        try:
            return Reward(
                model=str(self.manifest.header["model"]),
                episode=sys.intern(row["episode"]),  # a benchmark keeps a dozen rewards of each episode
                at=row["at"],
                value=row["value"],
                success=row["success"],
                why_missing=row["why_missing"],
                given=_read_given(row["given"]),
            )
        except (DemeritError, KeyError, TypeError, ValueError) as error:
            raise StoreError(self.root, f"the reward of {row.get('episode')!r} cannot be read ({error})") from error

    def _newest_rows(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the newest row of each episode, in the order written."""
        with self._open_parts(name) as files:
            episodes = (table.column("episode").to_pylist() for table in _read_groups(files, ["episode"]))
            newest = {episode: place for place, episode in enumerate(chain.from_iterable(episodes))}
            batches = (batch for table in _read_groups(files) for batch in table.to_batches(max_chunksize=ROWS_AT_ONCE))
            rows = chain.from_iterable(batch.to_pylist() for batch in batches)
            yield from (row for place, row in enumerate(rows) if newest[row["episode"]] == place)

    @contextmanager
    def _open_parts(self, name: str) -> Iterator[list[pq.ParquetFile]]:
        """Open all files of a table; a writer may replace them afterwards, or just before: then the new ones."""
        with ExitStack() as opened:
            while True:
                parts = self.manifest.tables.get(name, ())
                try:
                    files = [opened.enter_context(open_part(self.root / part.file)) for part in parts]
                    break
                except StoreError:
                    newest = read_manifest(self.root / MANIFEST, FORMAT_NAME)
                    if newest == self.manifest:
                        raise
                    self.manifest = newest
            yield files


@lru_cache(maxsize=256)
def _read_given(text: str) -> Mapping[str, Any]:
    """Parse what a model was given; rewards that were given the same share it."""
    return parse_json(text, "given", nan=True)


def _read_groups(files: Sequence[pq.ParquetFile], columns: list[str] | None = None) -> Iterator[pa.Table]:
    for file in files:
        for group in range(file.num_row_groups):
            yield file.read_row_group(group, columns=columns, use_threads=False)


class RewardWriter:
    """Appends rewards; durable once `commit` returns."""

    def __init__(self, parts: PartWriter, card_hash: str) -> None:
        """Write under one card."""
        self._parts, self._card = parts, card_hash

    def commit(self, rewards: Iterable[tuple[Reward, str]]) -> None:
        """Write rewards with their episodes' fingerprints."""
        kept = list(rewards)
        answers = [
            {
                "episode": reward.episode,
                "answers": [
                    {name: str(answer.get(name, "")) for name in ANSWER_FACTS} for answer in reward.given[GENERATIONS]
                ],
            }
            for reward, _ in kept
            if GENERATIONS in reward.given
        ]
        rows = [
            {
                "episode": reward.episode,
                "fingerprint": fingerprint,
                "card": self._card,
                "at": reward.at,
                "value": reward.value,
                "success": reward.success,
                "scored": reward.scored,
                "why_missing": reward.why_missing,
                "given": json.dumps(
                    {name: fact for name, fact in reward.given.items() if name != GENERATIONS}, ensure_ascii=False
                ),
            }
            for reward, fingerprint in kept
        ]
        if rows:
            tables = {"rewards": (rows, REWARDS), GENERATIONS: (answers, ANSWERS)}
            self._parts.commit({name: pa.Table.from_pylist(*table) for name, table in tables.items()})
            self._parts.compact(MOST_OPEN_PARTS)


def scored_fingerprint(episode: Episode, card: ModelCard) -> str:
    """Return the fingerprint that is stored with an episode's reward."""
    try:
        return episode.fingerprint(card.reads_signals)
    except UnreadableVideo:
        return UNREADABLE  # when the file is readable again, its fingerprint differs and it is scored


@dataclass(frozen=True)
class ScoredDataset:
    """Episodes with their stored rewards, in the dataset's order."""

    dataset: Dataset
    store: RewardStore

    @property
    def card(self) -> ModelCard:
        """The card of the model."""
        return self.store.card

    def __iter__(self) -> Iterator[tuple[Episode, Reward]]:
        """Yield every episode and its reward. One that was never scored is unscored, with that reason.

        Raises StaleRewards at an episode that has changed since it was scored.
        """
        card, stored, early = self.card, iter(self.store), dict[str, Reward]()
        for episode in self.dataset:
            why = self.store.why_stale(episode, card)
            if why == NOT_SCORED:
                yield episode, Reward.unscored(card.name, episode.id, NOT_SCORED)
                continue
            if why:
                raise StaleRewards(self.store.root, episode.id, is_model=why == MODEL_CHANGED)
            while episode.id not in early:  # nearly always the next one
                reward = next(stored)
                early[reward.episode] = reward
            yield episode, early.pop(episode.id)
