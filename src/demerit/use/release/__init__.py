"""A dataset that others can train on: made of one's own, with its card, checksums and as little of people as possible.

settings.py      what a release is asked to be
licences.py      which licences may stand in one release
names.py         finding names, places, dates and addresses in texts
fields.py        which fields of an episode are about people, places or moments
clocks.py        absolute times among numbers
cleaned.py       an episode without them
containers.py    what a video file holds besides its pictures
encoder_marks.py what x264 and x265 write about themselves
repacked.py      the same pictures without the rest
pixels.py        masks, and the mosaic over what somebody's own detector finds
videos.py        every video of a release, written once
survey.py        the first look at the source: licences, names, splits
places.py        where it may be put
job.py           release: everything in a folder beside, renamed when it is whole
layouts.py       our folder, or LeRobot v3.0 with our labels beside
composition.py   what is in it, counted
charts.py        the counts as drawings
card.py          README.md and card.html
privacy.py       what was removed, and what nobody can remove for you
checksums.py     SHA256SUMS
hub.py           pushing it, when told twice
"""

from demerit.use.release.checksums import verify
from demerit.use.release.job import Released, release
from demerit.use.release.settings import Settings

__all__ = ["Released", "Settings", "release", "verify"]
