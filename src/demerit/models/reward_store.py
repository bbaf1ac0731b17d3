"""RewardStore: one model's rewards for a dataset, on disk."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from demerit.data.files import lock_folder
from demerit.data.parts import Manifest, PartWriter, read_batches, read_manifest, write_manifest
from demerit.data.reward import Reward
from demerit.data.untrusted import parse_json
from demerit.errors import BadEpisode, DemeritError, StoreError
from demerit.models.protocol import ModelCard

FORMAT_NAME = "demerit-rewards"
MANIFEST = "rewards.json"
MOST_OPEN_PARTS = 64
"""small parts are merged while a long job writes, so that a commit stays quick after days"""

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
                    f"rewards cannot be written there ({error.strerror}); choose another place (--out or --rewards)",
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
        """Return what is stored, by episode."""
        found: dict[str, StoredScore] = {}
        for part in self.manifest.tables.get("rewards", ()):
            for table in read_batches(self.root, part, ["episode", "fingerprint", "card", "scored"]):
                columns = [column.to_pylist() for column in table.columns]
                for episode, fingerprint, card, is_scored in zip(*columns, strict=True):
                    found[episode] = StoredScore(fingerprint, card, is_scored)
        return found

    def __iter__(self) -> Iterator[Reward]:
        """Yield the newest reward of each episode, in the order written."""
        newest = {}
        for place, episode in enumerate(self._episodes()):
            newest[episode] = place
        place = 0
        for part in self.manifest.tables.get("rewards", ()):
            for table in read_batches(self.root, part, None):
                for row in table.to_pylist():
                    if newest[row["episode"]] == place:
                        yield self.read_row(row)
                    place += 1

    def __getitem__(self, episode: str) -> Reward:
        """Find the newest reward of an episode by its id."""
        found: list[dict[str, Any]] = []
        for part in self.manifest.tables.get("rewards", ()):
            for table in read_batches(self.root, part, None):
                found = table.filter(pc.field("episode") == episode).to_pylist() or found
        if not found:
            near = difflib.get_close_matches(episode, set(self._episodes()), n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise BadEpisode(episode, f"an episode with a reward in {self.root}", f"one without{hint}")
        return self.read_row(found[-1])

    @contextmanager
    def writer(self, card: ModelCard) -> Iterator[RewardWriter]:
        """Append rewards under the folder's lock."""
        with lock_folder(self.root):
            manifest = read_manifest(self.root / MANIFEST, FORMAT_NAME)
            header = {**manifest.header, "card": asdict(card)}
            parts = PartWriter(self.root / MANIFEST, FORMAT_NAME, Manifest(header, manifest.tables), ["rewards"])
            try:
                yield RewardWriter(parts, card.hash())
                parts.compact()
            finally:
                self.manifest = parts.manifest

    def read_row(self, row: Mapping[str, Any]) -> Reward:
        """Turn a row into a reward."""
        try:
            return Reward(
                model=str(self.manifest.header["model"]),
                episode=row["episode"],
                at=row["at"],
                value=row["value"],
                success=row["success"],
                why_missing=row["why_missing"],
                given=parse_json(row["given"], "given", nan=True),
            )
        except (DemeritError, KeyError, TypeError, ValueError) as error:
            raise StoreError(self.root, f"the reward of {row.get('episode')!r} cannot be read ({error})") from error

    def _episodes(self) -> Iterator[str]:
        for part in self.manifest.tables.get("rewards", ()):
            for table in read_batches(self.root, part, ["episode"]):
                yield from table.column("episode").to_pylist()


class RewardWriter:
    """Appends rewards; durable once `commit` returns."""

    def __init__(self, parts: PartWriter, card_hash: str) -> None:
        """Write under one card."""
        self._parts, self._card = parts, card_hash

    def commit(self, rewards: Iterable[tuple[Reward, str]]) -> None:
        """Write rewards with their episodes' fingerprints."""
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
                "given": json.dumps(dict(reward.given), ensure_ascii=False),
            }
            for reward, fingerprint in rewards
        ]
        if rows:
            self._parts.commit({"rewards": pa.Table.from_pylist(rows, REWARDS)})
            self._parts.compact(MOST_OPEN_PARTS)
