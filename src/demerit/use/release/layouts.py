"""The two layouts of a release: our folder, or LeRobot v3.0 with our own labels beside it.

A LeRobot release is both at once. LeRobot's tools read meta/, data/ and videos/; demerit reads dataset.json and
episodes/, whose views are clips of the very same videos, so that ids, every account of what happened, edits and origins
come back whole, and fingerprints are the same whichever way the folder is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from demerit.data.episode import Episode
from demerit.data.formats.lerobot.metadata import NOT_SIGNALS
from demerit.data.formats.lerobot.reader import LeRobotReader
from demerit.data.formats.lerobot.writer import DTYPES, MATRIX, plan_of, write_lerobot
from demerit.data.labels import Preference
from demerit.data.parts import Manifest, write_manifest
from demerit.data.store import FORMAT_NAME, MANIFEST, Store
from demerit.use.release.settings import CAME_AS, CAME_FROM, Settings
from demerit.use.release.videos import Videos

Told = Callable[[int], None]


def write_folder(
    episodes: Sequence[Episode], before: Sequence[str], root: Path, videos: Videos, on_progress: Told
) -> Iterator[Episode]:
    """Write the videos and yield the episodes as they are in the release."""
    for number, (episode, fingerprint) in enumerate(zip(episodes, before, strict=True), start=1):
        treated, how = videos.treated(episode)
        yield _noted(treated, fingerprint, how)
        on_progress(number)


def write_as_lerobot(
    episodes: Sequence[Episode], before: Sequence[str], root: Path, videos: Videos, settings: Settings, told: Told
) -> Iterator[Episode]:
    """Write the LeRobot dataset, which has to come in one go; then yield the episodes as clips of its videos."""

    def painted() -> Iterator[Episode]:
        for number, episode in enumerate(episodes, start=1):
            yield videos.painted(episode)
            told(number)

    write_lerobot(painted(), root, fps=settings.fps, signals=common_signals(episodes))
    return _as_clips(episodes, before, root)


def _as_clips(episodes: Sequence[Episode], before: Sequence[str], root: Path) -> Iterator[Episode]:
    read = (record for record in LeRobotReader(root).records() if isinstance(record, Episode))
    cameras: dict[str, str] = {}
    for episode, fingerprint, clip in zip(episodes, before, read, strict=True):
        cameras = cameras or dict(zip(episode.views, clip.views, strict=True))
        views = {cameras[name]: clip.views[cameras[name]] for name in episode.views}
        # As LeRobot's metadata gives it back: without the spaces around it.
        seen = replace(episode, instruction=clip.instruction, views=views)
        yield _noted(seen, fingerprint, "encoded anew")


def check_fits_lerobot(episodes: Iterable[Episode], settings: Settings) -> None:
    """Refuse episodes that no LeRobot dataset can hold together, such as two frame rates; decodes one picture."""
    listed = in_order_of_splits(episodes)
    plan = plan_of(listed[0], settings.fps, None, [], False)
    for one in listed:
        plan.check(one)


def words_are_the_same(one: Episode, other: Episode) -> bool:
    """Whether two fingerprints differ by their pictures alone."""
    return one.instruction == other.instruction and list(one.views) == list(other.views)


def in_order_of_splits(episodes: Iterable[Episode]) -> list[Episode]:
    """LeRobot's splits are ranges of episodes: those of one split are put together."""
    listed = list(episodes)
    order = {split: place for place, split in enumerate(dict.fromkeys(one.origin.split for one in listed))}
    return sorted(listed, key=lambda one: order[one.origin.split])


def common_signals(episodes: Sequence[Episode]) -> list[str]:
    """Signals that LeRobot's tables can hold: of one kind in every episode; our own rows keep the others as well."""
    kinds: dict[str, set[object]] = {}
    counts: Counter[str] = Counter()
    for one in episodes:
        frames = len(one)
        for name, values in one.signals.items():
            counts[name] += 1
            fits = len(values) == frames and values.dtype.kind in DTYPES and 1 <= values.ndim <= MATRIX
            kinds.setdefault(name, set()).add((DTYPES[values.dtype.kind], values.shape[1:]) if fits else None)
    everywhere = [name for name in episodes[0].signals if counts[name] == len(episodes) and len(kinds[name]) == 1]
    return [name for name in everywhere if None not in kinds[name] and name not in NOT_SIGNALS and "/" not in name]


def write_rows(
    root: Path, name: str, licence: str, episodes: Iterable[Episode], preferences: Iterable[Preference]
) -> None:
    """Write dataset.json and its parts anew, whatever a run that was killed has left of them."""
    root.mkdir(parents=True, exist_ok=True)
    # Where it was made from is a path on somebody's machine: a release does not say.
    write_manifest(root / MANIFEST, FORMAT_NAME, Manifest({"name": name, "licence": licence, "source": ""}))
    with Store(root).writer() as writer:
        for episode in episodes:
            writer.add(episode)
        for preference in preferences:
            writer.add(preference)
    # The lock file names the machine and the command.
    (root / ".lock").unlink(missing_ok=True)


def _noted(episode: Episode, before: str, how: str) -> Episode:
    """Record where an episode came from if its fingerprint is not that one any more.

    No fingerprint (`before` is empty) is told where words were removed: it is a hash of them, and whoever has the video
    could try one name after the other until it fits.
    """
    if episode.fingerprint() == before:
        return episode
    how = "same file, other words" if how == "same file" else how
    tags = {**episode.origin.tags, **({CAME_FROM: before} if before else {}), CAME_AS: how}
    return replace(episode, origin=replace(episode.origin, tags=tags))
