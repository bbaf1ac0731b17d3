"""PRIVACY.md: what was removed and by which rule, what nobody removed, and what to ask before sharing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from demerit.data.episode import Episode
from demerit.data.files import write_atomic
from demerit.use.release.settings import Settings
from demerit.use.release.videos import NEVER_SHOWN, Written
from demerit.use.release.words import markdown

PRIVACY = "PRIVACY.md"


@dataclass(frozen=True)
class Removal:
    """What was taken out of a release. Counts and places, never the values."""

    texts: dict[str, dict[str, int]]
    """where to what to how often"""
    files: Sequence[Written]
    unseen: tuple[int, int]
    """frames in the files that no episode shows, of how many"""
    settings: Settings
    suspects: int
    """words in texts and ids that may be names and were left"""

    def in_videos(self) -> Counter[str]:
        """Count what was in the files besides pictures, and frames that were covered."""
        found: Counter[str] = Counter()
        for one in self.files:
            found.update(one.removed)
        return +found

    def headline(self) -> list[str]:
        """Say the most important in a few lines."""
        texts = sum(sum(counts.values()) for counts in self.texts.values())
        videos = self.in_videos()
        covered = videos["frames with a region masked"]
        hidden = videos["frames in which the detector found something to hide"]
        said = [
            f"{texts} names, dates, addresses and the like removed or replaced in texts and signals" if texts else ""
        ]
        said += [f"sound removed from {videos['streams of sound']} videos" if videos["streams of sound"] else ""]
        tags = sum(count for what, count in videos.items() if what.startswith(("container tag", "in the container")))
        said += [f"{tags} container tags and clocks removed" if tags else ""]
        cut_off = videos[NEVER_SHOWN]
        said += [f"{cut_off} pictures left out that files held and never showed" if cut_off else ""]
        said += [f"{covered} frames masked" if covered else "", f"{hidden} frames with a mosaic" if hidden else ""]
        return [line for line in said if line] or ["nothing was found that had to be removed"]

    def warnings(self) -> list[str]:
        """Say what whoever shares this has to look at."""
        said = []
        if not self.settings.repaints:
            said.append("No pixel was changed: people, screens, badges and reflections are in it if a camera saw them.")
        unseen, total = self.unseen
        if unseen:
            said.append(
                f"{unseen} of {total} frames in some video files are in no episode and can still be played: "
                f"--materialize writes only what episodes show."
            )
        if self.suspects:
            words = "word" if self.suspects == 1 else "words"
            said.append(
                f"{self.suspects} {words} in texts and ids may be names and were left; the private file lists them."
            )
        if self.settings.notes == "keep":
            said.append("Free text was kept as it is (--notes keep).")
        return said


RULES = """\
- **Who and where.** The names of people who judged, preferred, operated or collected, and of sites, are replaced by
  numbered stand-ins (`person-1`, `site-1`), the same everywhere in this release: in their own fields, in ids, groups,
  instructions, notes, tags, camera names and edits. They are known from the fields that hold nothing else, and from the
  list that the owner gave. A name that is also an everyday word, or what this dataset calls a thing, is replaced in its
  own field, and in free text where it has a capital; elsewhere it is left, and listed for the owner. So are common
  first names and cities that nobody told in ids, groups, cameras, signals and fields about things.
- **Free text** (notes, feedback, reasons by people and models): known names as above; mail addresses, links, paths,
  accounts, hosts, rooms, streets, coordinates, telephone numbers, days and hours by pattern; and every word with a
  capital that this dataset does not use as a word becomes `[name]`, unless it begins a sentence and is everyday English
  or is a common product, which removes some harmless words too. In small letters some hundreds of common first names
  and cities are found, and unknown words where somebody is named ("ask ..."). Text in a script without capitals cannot
  be searched so and is removed whole.
- **Instructions** are what models read: known names and patterns, common first names with a capital (and the surname
  behind them) and names behind a title are replaced; words that only look like names are left and listed for the
  owner.
- **Moments.** Dates, the times of day beside them, and seconds since 1970 are coarsened, in ids as well.
- **Signals.** Numbers that lie between 2000 and 2100 in seconds, milliseconds, microseconds or nanoseconds since 1970
  are clocks, whatever they are called, and begin at zero, each signal at its own; so do calendar times, which become
  seconds. Positions on the globe are told by their names (gps, latitude, utm ...) and removed. Texts are free text;
  those about people, places and machines are removed, as are bytes that no rule reads. Names are cleaned like ids.
- **Fields about machines** (hosts, networks, addresses, serial numbers, paths, file names) are removed. Videos are
  numbered.
- **Video files.** A file with nothing but pictures in it is copied as it is. Otherwise the pictures' packets are packed
  anew without sound, subtitles, tags, clocks and data inside the stream; where that would change what is seen, where a
  file holds pictures that it never shows, or masks and detectors apply, the pictures are encoded anew.
- **Not released at all:** problems that were met on import, rewards of models, where the dataset lay."""

NOT_AUTOMATIC = """\
- Faces, bodies, voices in captions, screens, papers, badges, windows and mirrors in the pictures, unless masked above.
- Names that nobody told and that are written small, misspelt, or in an instruction. Measured on made-up notes with
  names, spellings and sentences that the rules do not know: of first names with a capital 1% were missed, of names and
  cities in small letters all, of rooms, paths, positions and telephone numbers in unusual spellings about four
  fifths. Most small words that may be names are listed in the private file: **read it**.
- Signals under names that do not say what they are: a position on the globe called `x`, a clock that counts days.
- What a room, a robot's scratches or an unusual object give away to somebody who knows them.
- Who can be told from a pattern: one stand-in with a rare kind of episode, or the order of recording.
- Whether the people recorded agreed to this use, and whether the law where they live asks for more."""

CHECKLIST = """\
- [ ] I have looked at every contact sheet on the card, and played episodes of every site and camera.
- [ ] Nobody can be recognised in a picture, or everybody who can has agreed in writing to this release.
- [ ] No screen, whiteboard, badge, parcel or document can be read.
- [ ] I have read the words listed in the private file beside the release, and named the names among them (`--names`).
- [ ] I have read some dozens of notes and instructions as a stranger would.
- [ ] Fewer than five episodes of one stand-in: left out, or merged, or harmless.
- [ ] Combined with what is public (papers, web pages, other datasets of ours) it still tells nothing about a person.
- [ ] The private file beside the release is not inside it, and not in the same repository.
- [ ] Everybody whose episodes these are agrees to the licence.
- [ ] There is somebody to write to who can take an episode out again."""


def write_privacy(root: Path, removal: Removal, episodes: Sequence[Episode]) -> None:
    """Write the report."""
    lines = ["# Privacy", "", f"Episodes: {len(episodes)}; " + "; ".join(removal.headline()) + ".", ""]
    if removal.warnings():
        lines += ["**Look at this before you share it:**", "", *(f"- {line}" for line in removal.warnings()), ""]
    lines += ["## What was removed or replaced", ""]
    rows = [(where, what, count) for where, counts in removal.texts.items() for what, count in counts.items()]
    lines += [*markdown(("where", "what", "how often"), rows), ""] if rows else ["In texts: nothing was found.", ""]
    videos = sorted(removal.in_videos().items(), key=lambda item: -item[1])
    how = Counter(one.how for one in removal.files)
    made = ", ".join(f"{count} {name}" for name, count in how.items())
    if removal.settings.layout == "lerobot":
        lines += ["Every picture was encoded anew, episode after episode, without anything but pictures.", ""]
    if made:
        lines += [f"Video files: {made}.", ""]
    lines += [*markdown(("in video files", "how often"), videos), ""] if videos else []
    precision = {"month": "to the month", "year": "to the year", "drop": "away altogether"}[removal.settings.dates]
    lines += ["## By which rules", "", RULES, "", f"Here dates were coarsened {precision}.", ""]
    lines += ["## What is not automatic", "", NOT_AUTOMATIC, "", "## Before you share it", "", CHECKLIST]
    write_atomic(root / PRIVACY, ("\n".join(lines) + "\n").encode())
