"""How many private words `demerit release` misses, and how many harmless ones it takes, by kind.

Texts of robot data are made up, with private words of known kinds hidden in them, and go through the very code that
makes a release: `known_names` reads the dataset, `Cleaner` cleans its episodes. A hidden word is missed if any part of
it that tells is still there. Nobody tells the rules a name, unless it says "told". First names, cities and brands are
measured twice: those that a rule lists, and others that no rule lists (`_planted_spans.py`). Real sentences are DROID's
and RoboArena's instructions, half of them as the instructions of a dataset, the other half as notes of people.
Intervals are Wilson's, 95%. The rules were mended by what the first texts showed; "other spellings" were written
afterwards, and no rule was changed for them. All texts are ours: how people write is a matter of their labs.

python benchmarks/scrubbing.py --real DROID/episodes.jsonl ROBOARENA/index.json
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from _harmless_texts import BRAND_FRAMES, CODES, LOOK_LIKE_NAMES, NUMBERS, SENTENCES
from _other_spellings import HARMLESS, KINDS
from _planted_spans import (
    HELD_OUT_BRANDS,
    HELD_OUT_CITIES,
    HELD_OUT_NAMES,
    IDS,
    INSTRUCTIONS,
    LABS,
    OTHER_KINDS,
    STREETS,
    SURNAMES,
    Kind,
    Planted,
    cities,
    people,
    planted,
)
from demerit.data.episode import Episode
from demerit.data.frames import Frames
from demerit.data.labels import Outcome
from demerit.use.release.cleaned import Cleaner
from demerit.use.release.settings import Settings
from demerit.use.release.survey import known_names

PICTURES = Frames.from_array(np.zeros((2, 8, 8, 3), dtype=np.uint8), 10.0)
TASKS = (
    "put the cup on the tray",
    "open the left drawer",
    "Fold the towel",
    "close the lid of the box",
    "stack the blocks",
)
"""the instructions of the made-up dataset: its words for things are known"""
Z = 1.959964


def wilson(hits: int, count: int) -> tuple[float, float]:
    """Return the interval of a share: the shares p with |hits/count - p| <= z sqrt(p (1 - p) / count)."""
    if not count:
        return math.nan, math.nan
    share, square = hits / count, Z * Z / count
    middle, half = share + square / 2, Z * math.sqrt(share * (1 - share) / count + square / (4 * count))
    return max(0.0, (middle - half) / (1 + square)), min(1.0, (middle + half) / (1 + square))


def episode(number: int, *, id: str = "", instruction: str = "", note: str = "") -> Episode:
    outcome = Outcome("human", success=False, note=note)
    return Episode(
        id or f"ep-{number}", instruction or TASKS[number % len(TASKS)], {"main": PICTURES}, outcomes=(outcome,)
    )


def cleaned(
    episodes: Sequence[Episode], told: Iterable[str] = (), words: Sequence[Episode] = ()
) -> tuple[list[Episode], Cleaner]:
    """Clean as a release does; `words` are episodes whose words are also the dataset's."""
    names = known_names([*episodes, *words], [], Settings(names=tuple(told)))
    cleaner = Cleaner(names)
    return [cleaner.episode(one) for one in episodes], cleaner


def notes_of(
    texts: Sequence[str], told: Iterable[str] = (), instructions: Sequence[str] = ()
) -> tuple[list[str], set[str]]:
    """Clean notes; also return the words that are listed for the owner."""
    others = [episode(number, instruction=one) for number, one in enumerate(instructions)]
    made, cleaner = cleaned([episode(number, note=text) for number, text in enumerate(texts)], told, others)
    return [one.outcomes[0].note for one in made], {word.lower() for word in cleaner.suspects}


def is_left(text: str, secret: str) -> bool:
    """Whether a telling part is still there, as a word or a part of one between signs."""
    return re.search(rf"(?<![^\W\d_]){re.escape(secret)}(?![^\W\d_])", text, re.I) is not None


def row(name: str, hits: int, count: int, example: str = "") -> str:
    low, high = wilson(hits, count)
    return f"| {name} | {hits / count:.3f} | {low:.3f} to {high:.3f} | {count} | {example} |"


def recall(name: str, hidden: Sequence[Planted], after: Sequence[str]) -> str:
    missed = [text for one, text in zip(hidden, after, strict=True) if any(is_left(text, part) for part in one.secrets)]
    return row(name, len(hidden) - len(missed), len(hidden), missed[0] if missed else "")


def in_notes(kinds: Mapping[str, Kind], count: int, which: str, told: Iterable[str] = ()) -> None:
    for name, kind in kinds.items():
        hidden = planted(kind, count, f"{name}, {which}")
        after, to_read = notes_of([one.text for one in hidden], told)
        left = [
            [part.lower() for part in one.secrets if is_left(text, part)]
            for one, text in zip(hidden, after, strict=True)
        ]
        unseen = sum(not set(parts) <= to_read for parts in left)
        print(recall(f"{name}{which}", hidden, after) + f" {1 - unseen / len(hidden):.3f} |")


def elsewhere(count: int) -> None:
    """Instructions and ids: words are not changed there by guess, but listed for the owner."""
    rng = random.Random("elsewhere")
    forms = {"first name": str, "first name in small letters": str.lower}
    for name, form in forms.items():
        words = [rng.choice(HELD_OUT_NAMES) for _ in range(count)]
        texts = [INSTRUCTIONS[number % len(INSTRUCTIONS)].format(x=form(word)) for number, word in enumerate(words)]
        hidden = [Planted(text, (word,)) for text, word in zip(texts, words, strict=True)]
        made, cleaner = cleaned([episode(number, instruction=text) for number, text in enumerate(texts)])
        print(recall(f"instruction: {name}, removed", hidden, [one.instruction for one in made]))
        listed = {re.sub(r"['’]s$", "", one).lower() for one in cleaner.suspects}
        print(row(f"instruction: {name}, listed for the owner", sum(w.lower() in listed for w in words), count))
        told, _ = cleaned([episode(number, instruction=text) for number, text in enumerate(texts)], HELD_OUT_NAMES)
        print(recall(f"instruction: {name}, removed when told", hidden, [one.instruction for one in told]))
    kinds = {"first name": (HELD_OUT_NAMES, lambda one: (one.lower(),) * 2)}
    for name in ("day", "mail address", "path with a user name"):
        kinds[name] = ((OTHER_KINDS[name],), lambda kind: kind.make(rng))  # type: ignore[assignment]
    for name, (source, make) in kinds.items():
        hidden = []
        for number in range(count):
            words, secrets = make(rng.choice(source))  # type: ignore[misc]
            text = IDS[number % len(IDS)].format(x=words)
            hidden.append(Planted(text, (secrets,) if isinstance(secrets, str) else secrets))
        made, _ = cleaned([episode(number, id=f"{one.text}#{number}") for number, one in enumerate(hidden)])
        print(recall(f"id: {name}", hidden, [one.id for one in made]))


def taken(name: str, before: Sequence[str], after: Sequence[str], to_read: Collection[str] = ()) -> None:
    changed = [f"{old} -> {new}" for old, new in zip(before, after, strict=True) if old != new]
    shown = sum(any(is_left(text, word) for word in to_read) for text in after)
    print(row(name, len(changed), len(before), changed[0] if changed else "") + f" {shown / len(before):.3f} |")


def controls(listed_brands: Sequence[str]) -> None:
    sets = {"small words that are names elsewhere": LOOK_LIKE_NAMES, "all kinds of first words": SENTENCES}
    sets |= {"numbers, versions, codes": NUMBERS, "abbreviations in capitals": CODES}
    sets |= {"other notes, written after the rules": HARMLESS}
    for brands, which in ((tuple(listed_brands), "listed"), (HELD_OUT_BRANDS, "not listed")):
        texts = tuple(frame.format(brand) for brand in brands for frame in BRAND_FRAMES)
        sets |= {f"brands with a capital, {which}": texts} if texts else {}
    for name, texts in sets.items():
        taken(name, texts, *notes_of(texts))
    every = [text for texts in sets.values() for text in texts]
    made, _ = cleaned([episode(number, instruction=text) for number, text in enumerate(every)])
    taken("all of these as instructions", every, [one.instruction for one in made])


def real(droid: Path, roboarena: Path) -> None:
    """Real sentences without names: half of them are the dataset, the other half its notes."""
    lines = [json.loads(line)["instruction"] for line in droid.read_text().splitlines()]
    arena = [one["instruction"] for one in json.loads(roboarena.read_text())]
    for name, every in (("DROID", lines), ("RoboArena", arena)):
        texts = sorted(set(every))
        random.Random(0).shuffle(texts)
        half = len(texts) // 2
        taken(f"{name}: as notes", texts[half:], *notes_of(texts[half:], instructions=texts[:half]))
        taken(f"{name}: as notes of a dataset with other words", texts, *notes_of(texts))
        made, _ = cleaned([episode(number, instruction=text) for number, text in enumerate(texts)])
        taken(f"{name}: as instructions", texts, [one.instruction for one in made])


def listed() -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """First names, cities and brands that the rules list; none where a version has no such lists."""
    try:
        from demerit.use.release import frequent_names
    except ImportError:
        return (), (), ()
    found = tuple(
        tuple(sorted(one.capitalize() for one in words))
        for words in (frequent_names.FIRST_NAMES, frequent_names.CITIES, frequent_names.BRANDS)
    )
    for words, held_out in zip(found, (HELD_OUT_NAMES, HELD_OUT_CITIES, HELD_OUT_BRANDS), strict=True):
        both = {one.lower() for one in words} & {one.lower() for one in held_out}
        if both:
            raise SystemExit(f"These are kept for measuring and must not be in a rule: {', '.join(sorted(both))}.")
    named = {one.lower() for one in (*LABS, *STREETS, *SURNAMES)}
    if both := named & (frequent_names.FIRST_NAMES | frequent_names.CITIES | frequent_names.SURNAMES):
        raise SystemExit(f"These are kept for measuring and must not be in a rule: {', '.join(sorted(both))}.")
    return found[0], found[1], found[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="texts of each kind")
    parser.add_argument("--real", nargs=2, type=Path, metavar=("DROID", "ROBOARENA"), default=None)
    given = parser.parse_args()
    names, towns, brands = listed()
    print("| hidden in notes | removed | interval | texts | a miss | removed or listed |\n|---|---|---|---|---|---|")
    in_notes({**people(HELD_OUT_NAMES), **cities(HELD_OUT_CITIES)}, given.count, ", not listed")
    if names:
        in_notes({**people(names), **cities(towns)}, given.count, ", listed")
    in_notes(OTHER_KINDS, given.count, "")
    in_notes(KINDS, given.count, ", other spellings")
    told = {name: replace(kind) for name, kind in people(HELD_OUT_NAMES).items() if "full" not in name}
    in_notes(told, given.count, ", told", HELD_OUT_NAMES)
    print("\n| elsewhere | found | interval | texts | a miss |\n|---|---|---|---|---|")
    elsewhere(given.count)
    print("\n| nothing private | changed | interval | texts | for example | with a listed word |")
    print("|---|---|---|---|---|---|")
    controls(brands)
    if given.real:
        real(*given.real)


if __name__ == "__main__":
    main()
