"""How long a release takes and how large it is: the samples that ship, and 1,000 simulated episodes.

    python benchmarks/release.py [--simulated STORE] [--episodes 1000] [--keep DIR]

Each is released as our folder and as LeRobot v3.0, imported again, and compared: ids, labels and fingerprints have to
come back as the release has them. LeRobot has one frame rate: there all are written at 10 a second. STORE is a folder
that `demerit simulate` made; without one, the samples alone.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from demerit.data.dataset import Dataset, Record
from demerit.data.formats import open_dataset
from demerit.data.importing import import_dataset
from demerit.data.store import Store
from demerit.use.release import Settings, release, verify
from fakes.drawn_sample import make_sample


@dataclass(frozen=True)
class Spread:
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


def compared(folder: Path, again: Path) -> str:
    """Say whether an import of the release gives back what the release has."""
    before, after = ({one.id: one for one in Store(place).episodes()} for place in (folder, again))
    same = before.keys() == after.keys() and all(
        one.fingerprint() == after[id].fingerprint()
        and one.outcomes == after[id].outcomes
        and one.instruction == after[id].instruction
        and one.origin == after[id].origin
        for id, one in before.items()
    )
    return "the same" if same else "DIFFERENT"


def measure(name: str, dataset: Dataset, place: Path, layout: str) -> None:
    dest = place / f"{name}-{layout}"
    started = time.monotonic()
    settings = Settings(licence="MIT", layout="lerobot", fps=10.0) if layout == "lerobot" else Settings(licence="MIT")
    made = release(dataset, dest, settings)
    seconds = time.monotonic() - started
    started = time.monotonic()
    imported = import_dataset(open_dataset(dest), place / f"{name}-{layout}-again")
    again = time.monotonic() - started
    assert not verify(dest)
    read = sum(1 for _ in open_dataset(f"lerobot:{dest}")) if layout == "lerobot" else imported.durable
    steps = ", ".join(f"{what} {value:.1f}" for what, value in made.seconds.items())
    videos = sum(path.stat().st_size for path in (dest / "videos").rglob("*.mp4")) / 1e6
    print(
        f"| {name} | {layout} | {made.facts['episodes']} | {seconds:.1f} ({steps}) | {made.bytes / 1e6:.1f} | "
        f"{videos:.1f} | {(dest / 'card.html').stat().st_size / 1e6:.2f} | {again:.1f} | "
        f"{compared(dest, place / f'{name}-{layout}-again')}, {imported.durable} and {read} read |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
            measure("sample", open_dataset(f"videos:{files('demerit') / 'data' / 'sample'}"), place, layout)
            if given.simulated:
                some = Spread(Store(given.simulated), given.episodes)
                measure("simulated", Dataset(some, f"simulated:{given.simulated}"), place, layout)


if __name__ == "__main__":
    main()
