"""Write a model's rewards for a dataset, in one of six formats."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from demerit.data.dataset import Dataset
from demerit.data.episode import safe_name
from demerit.data.files import atomic_folder, check_free
from demerit.data.formats.lerobot.reader import LeRobotReader
from demerit.data.importing import refuse_linked
from demerit.data.reward import ADVICE, UnknownReason, VerdictCounts
from demerit.errors import BadInput, StoreError
from demerit.models.protocol import ModelCard
from demerit.models.reward_store import ScoredDataset
from demerit.registry import load_attribute
from demerit.use.write.frames import FrameRewards, RewardRecipe, lay_out, read_frames
from demerit.use.write.lerobot import match_entries, write_encoded, write_linked
from demerit.use.write.tables import write_npz, write_parquet, write_recap, write_sidecars

RewardFormat = Literal["lerobot", "sidecar", "recap", "minari", "parquet", "npz"]
ENDINGS: dict[RewardFormat, str] = {
    "lerobot": "-lerobot",
    "sidecar": "-sidecar",
    "recap": "-recap",
    "minari": "-v0",
    "parquet": ".parquet",
    "npz": ".npz",
}
BESIDE = ("sidecar", "recap")
"""formats of files that belong to a LeRobot dataset, and may be written into it"""
MINARI = "demerit.use.write.minari:write_minari"
REFUSED: tuple[UnknownReason, ...] = ("task not taught", "camera missing")
"""verdicts for which the values are of another task or of half the images"""


@dataclass(frozen=True)
class WrittenRewards:
    """What was written."""

    dest: Path
    frames: FrameRewards
    sidecars: list[Path] = field(default_factory=list)
    """relative to `dest`"""
    links: dict[str, int] | None = None
    """how many videos are linked or copied; None = they were encoded, or none were written"""
    minari_id: str = ""


def plan_write(
    dataset: Dataset, card: ModelCard, to: RewardFormat, recipe: RewardRecipe, dest: Path | None = None
) -> Path:
    """Refuse what cannot be written, before anything is scored; return where it is written (default: next to it)."""
    if to not in get_args(RewardFormat):
        raise BadInput("--to", f"one of {', '.join(get_args(RewardFormat))}", repr(to))
    if not card.comparable:
        raise BadInput(card.name, "a model whose values can be compared between episodes", "one relative to each")
    refuse_linked(dataset)
    if to in BESIDE and not isinstance(dataset.reader, LeRobotReader):
        expected = f"a LeRobot dataset, which a {to} belongs to (demerit export writes one, and so does --to lerobot)"
        raise BadInput(dataset.address, expected, "another format")
    if to == "sidecar" and (card.low is None or card.high is None):
        raise BadInput(card.name, "a model with values in a range, which become progress from 0 to 1", "unbounded")
    if to in ("lerobot", "minari") and recipe.rest == "weight-zero":
        expected = "fail, interpolate or drop-episode: this format has no weight, so every frame needs a reward"
        raise BadInput(f"--unscored, to {to}", expected, "weight-zero")
    if to == "recap" and recipe.rest != "fail":
        expected = (
            "fail or interpolate: RLinf refuses a dataset with a frame that has no advantage (--to lerobot drops it)"
        )
        raise BadInput(f"--unscored, to {to}", expected, recipe.rest)
    if dest is None:
        source = Path(dataset.address.partition(":")[2] or dataset.name)
        dest = source.parent / f"{source.name}-{safe_name(card.name)}{ENDINGS[to]}"
    dest = dest.expanduser().absolute()
    if to in ("lerobot", "minari"):
        check_free(dest)
    elif to not in BESIDE and dest.exists():
        raise StoreError(dest, "it exists; nothing is overwritten")
    if isinstance(dataset.reader, LeRobotReader) and to not in BESIDE and dest.is_relative_to(dataset.reader.info.root):
        raise BadInput(str(dest), "a place outside the source dataset", "one inside it")
    return dest


def check_verdicts(scored: ScoredDataset, anyway: bool = False) -> VerdictCounts:
    """Refuse to write rewards of tasks that were not taught or with a missing camera, unless `anyway`."""
    verdicts = {episode.id: reward.verdict for episode, reward in scored}
    doubtful = {id: verdict for id, verdict in verdicts.items() if verdict.reason in REFUSED}
    if doubtful and not anyway:
        id, verdict = next(iter(doubtful.items()))
        assert verdict.reason is not None
        got = f"{len(doubtful)} of {len(verdicts)} that are not, e.g. {id}: {verdict} ({ADVICE[verdict.reason]})"
        raise BadInput(scored.card.name, "episodes that it was taught to judge, or --anyway", got)
    return VerdictCounts.of(reward for _, reward in scored)


def write_rewards(
    scored: ScoredDataset, dest: Path, to: RewardFormat, recipe: RewardRecipe, fps: float | None = None
) -> WrittenRewards:
    """Write rewards to what `plan_write` returned; it is complete or absent.

    `fps` is the frame rate, when videos are encoded into a LeRobot dataset.
    """
    dataset, reader = scored.dataset, scored.dataset.reader
    dest = plan_write(dataset, scored.card, to, recipe, dest)
    scored_frames = {episode.id: read_frames(episode, reward, recipe) for episode, reward in scored}
    episodes = match_entries(reader, scored_frames) if isinstance(reader, LeRobotReader) else scored_frames.values()
    frames = lay_out(episodes, recipe, scored.card)
    sidecars: list[Path] = []

    def add_sidecars(folder: Path, renumbered: bool = True) -> None:
        tag, paths = recipe.tag or frames.model, list[Path]()
        if to == "recap":
            paths = write_recap(frames, folder, tag, recipe.positive)
        elif frames.progress is not None:
            paths = write_sidecars(frames, folder, tag, renumbered)
        sidecars.extend(path.relative_to(folder) for path in paths)

    links, id = None, ""
    if to == "lerobot" and isinstance(reader, LeRobotReader) and reader.info.is_v3:
        links = write_linked(reader.info, frames, dest, add_sidecars)
    elif to == "lerobot":
        write_encoded(dataset, frames, dest, fps, add_sidecars)
    elif to in BESIDE and dest.exists():
        add_sidecars(dest, renumbered=False)
    elif to in BESIDE:
        with atomic_folder(dest) as partial:
            add_sidecars(partial, renumbered=False)
    elif to == "minari":
        write_minari = load_attribute(MINARI, "a Minari dataset")
        id = write_minari(dataset, frames, recipe, dest)
    else:
        (write_parquet if to == "parquet" else write_npz)(frames, dest)
    return WrittenRewards(dest, frames, sidecars, links, id)
