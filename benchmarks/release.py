"""How long a release takes and how large it is: the samples, and some simulated episodes.

    python benchmarks/release.py [--small] [--simulated STORE] [--episodes 1000] [--keep DIR]

Each dataset is released as our folder and as LeRobot v3.0 (at 10 frames per second), imported again and compared: ids,
labels, origins and fingerprints must be the same. STORE is a folder that `demerit simulate` made. `--small` releases
the drawn sample only.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from demerit.data.dataset import Dataset, Record
from demerit.data.formats import open_dataset
from demerit.data.importing import import_dataset
from demerit.data.store import Store
from demerit.use.release import ReleaseConfig, release, verify
from fakes.drawn_sample import make_sample


@dataclass(frozen=True)
class SpreadReader:
    """Some of a store's episodes, spread evenly over it."""

    store: Store
    count: int

    @property
    def name(self) -> str:
        return "simulated"

    def expected(self) -> int:
        return min(self.count, len(self.store))

    def records(self) -> Iterator[Record]:
        total = len(self.store)
        for place, episode in enumerate(self.store.episodes()):
            if place * self.count // total != (place + 1) * self.count // total or self.count >= total:
                yield episode


def compare(folder: Path, again: Path) -> str:
    """Say whether an import of the release gives back what the release has."""
    before, after = ({episode.id: episode for episode in Store(place).episodes()} for place in (folder, again))
    same = before.keys() == after.keys() and all(
        episode.fingerprint() == after[id].fingerprint()
        and episode.outcomes == after[id].outcomes
        and episode.instruction == after[id].instruction
        and episode.origin == after[id].origin
        for id, episode in before.items()
    )
    return "the same" if same else "DIFFERENT"


def measure(name: str, dataset: Dataset, place: Path, layout: str) -> None:
    dest, again = place / f"{name}-{layout}", place / f"{name}-{layout}-again"
    config = ReleaseConfig(licence="MIT", layout=layout, fps=10.0 if layout == "lerobot" else None)
    made = release(dataset, dest, config)
    started = time.monotonic()
    import_dataset(open_dataset(dest), again)
    imported = time.monotonic() - started
    assert not verify(dest)
    videos = sum(path.stat().st_size for path in (dest / "videos").rglob("*.mp4")) / 1e6
    card = (dest / "card.html").stat().st_size / 1e6
    print(
        f"| {name} | {layout} | {made.facts['episodes']} | {made.seconds:.1f} | {made.bytes / 1e6:.1f} | "
        f"{videos:.1f} | {card:.2f} | {imported:.1f} | {compare(dest, again)} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="the drawn sample only")
    parser.add_argument("--simulated", help="a folder that `demerit simulate` made")
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--keep", help="an empty folder to leave the releases in")
    given = parser.parse_args()
    print("| data | layout | episodes | seconds | MB | of it videos | card, MB | import again, s | comes back |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(given.keep or temporary)
        place.mkdir(parents=True, exist_ok=True)
        drawn = make_sample(Path(temporary) / "drawn")
        for layout in ("folder", "lerobot"):
            measure("drawn", open_dataset(f"videos:{drawn}"), place, layout)
            if not given.small:
                measure("sample", open_dataset(f"videos:{files('demerit') / 'assets' / 'sample'}"), place, layout)
            if given.simulated and not given.small:
                reader = SpreadReader(Store(given.simulated), given.episodes)
                measure("simulated", Dataset(reader, f"simulated:{given.simulated}"), place, layout)


if __name__ == "__main__":
    main()
