"""Files that arrive in pieces over bad networks. A cut upload goes on where it stopped; a whole one is final.

Their names never arrive. What a video's container says (titles, tracks, places) is gone before anybody is shown it.
"""

from __future__ import annotations

import filecmp
import os
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from demerit.data.files import atomic_file, make_folder
from demerit.errors import BadInput, DemeritError, StoreError
from demerit.people.accounts import NotAllowed, Person
from demerit.people.database import TRIALS, UPLOADS, Database
from demerit.web.uploads import DecoderAway, ServeLimits, UploadDecoder

CAMERAS = ("left", "right", "wrist")
LOG = "log"
"""what the robot saw and did, in any format: kept, never opened"""
PARTS = {"photo": ("left",), "first": (*CAMERAS, LOG), "second": (*CAMERAS, LOG)}
"""the files of each part of a trial"""
UNFINISHED = ".part"
LARGEST, LARGEST_LOG, LARGEST_PIECE = 2_000_000_000, 200_000_000, 4_000_000
BYTES_A_DAY, DAY = 50_000_000_000, 24 * 3600.0
"""of a site"""
LIMITS = ServeLimits(megabytes=1024, frames=100_000, pixels=50_000_000, decode_seconds=60)
"""of a video or a photo"""
CHECKS = 3
"""files that are checked at the same time, one of each site"""
ONE_PIXEL = itemgetter((slice(None), slice(1), slice(1)))
"""of each frame: to check a video, no image leaves its decoder"""


class Uploads:
    """The files of trials, in a folder."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database, self.folder = database, make_folder(folder)
        self.decoder = UploadDecoder(LIMITS, CHECKS + 1)
        """the only one that opens these files; one process is free for scoring, so that nobody waits for another"""
        self._lock, self._checked = threading.Lock(), set[int]()

    def begin(self, site: Person, trial: str, part: str, camera: str, size: int) -> dict[str, Any]:
        """Announce a file; return its id and how much has arrived. Another size starts over; a whole video stays."""
        if camera not in PARTS.get(part, ()):
            raise BadInput(
                "part and camera", "; ".join(f"{name}: {', '.join(of)}" for name, of in PARTS.items()), (part, camera)
            )
        largest = LARGEST_LOG if camera == LOG else LARGEST
        if type(size) is not int or not 0 < size <= largest:
            raise BadInput("size", f"1 to {largest} bytes", size)
        with self.database.begin() as db:
            _check_open(db, site, trial)
            place = (UPLOADS.c.trial == trial, UPLOADS.c.part == part, UPLOADS.c.camera == camera)
            upload = db.execute(sa.select(UPLOADS).where(*place)).first()
            if upload is not None and upload.size == size:
                received = upload.size if upload.is_complete else self._received(upload.id)
                return {"id": upload.id, "received": received, "is_complete": upload.is_complete}
            if upload is not None and upload.is_complete and part != "photo":
                raise NotAllowed(409, "This file has arrived and is final.")
            if upload is not None:
                db.execute(sa.delete(UPLOADS).where(UPLOADS.c.id == upload.id))
            today = (TRIALS.c.site == site.id, TRIALS.c.started > time.time() - DAY)
            volume = sa.select(sa.func.sum(UPLOADS.c.size)).join(TRIALS).where(*today)
            if int(db.execute(volume).scalar() or 0) + size > BYTES_A_DAY:
                raise NotAllowed(429, f"A site may send {BYTES_A_DAY // 10**9} GB a day: go on tomorrow.")
            id = str(uuid.uuid4())
            db.execute(sa.insert(UPLOADS).values(id=id, trial=trial, part=part, camera=camera, size=size))
        if upload is not None:
            self._sent(upload.id).unlink(missing_ok=True)
            self._path(upload.id).unlink(missing_ok=True)
        return {"id": id, "received": 0, "is_complete": False}

    def add(self, site: Person, id: str, start: int, piece: bytes) -> dict[str, Any]:
        """Add a piece; durable when this returns. One that does not start where the file ends is refused, not lost."""
        with self.database.begin() as db:
            upload = db.execute(sa.select(UPLOADS).where(UPLOADS.c.id == id)).first()
            if upload is None:
                raise NotAllowed(404, "There is no such upload among yours.")
            _check_open(db, site, upload.trial)
        if upload.is_complete:
            return {"received": upload.size, "is_complete": True}
        if len(piece) > LARGEST_PIECE or start + len(piece) > upload.size:
            raise NotAllowed(413, f"Expected at most {LARGEST_PIECE} bytes, and {upload.size} in all.")
        with self._lock:  # the same piece from two pages is added once
            if start == self._received(id) and piece:
                with open(self._sent(id), "ab") as file:
                    file.write(piece)
                    file.flush()
                    os.fsync(file.fileno())
            received = self._received(id)
        if received < upload.size:
            return {"received": received, "is_complete": False}
        with self._only_check(site):
            return self._finish(upload)

    def path(self, trial: str, part: str, camera: str = "left") -> Path | None:
        """Return a file that has arrived whole."""
        return self._arrived(trial, part).get(camera)

    def files(self, trial: str, part: str) -> Mapping[str, Path]:
        """Return the photo or the videos of a part that have arrived whole, by camera."""
        paths = self._arrived(trial, part)
        return {camera: paths[camera] for camera in CAMERAS if camera in paths}

    def list_arrived(self, trial: str, part: str) -> list[str]:
        """Return the names of all files of a part that have arrived whole, also of the log."""
        paths = self._arrived(trial, part)
        return [name for name in (*CAMERAS, LOG) if name in paths]

    def is_sent_twice(self, trial: str, part: str) -> bool:
        """Whether a rollout's main video is one of another rollout, sent again. One that was carried over is not."""
        place = (UPLOADS.c.trial == trial, UPLOADS.c.part == part, UPLOADS.c.camera == "left", UPLOADS.c.is_complete)
        with self.database.begin() as db:
            mine = db.execute(sa.select(UPLOADS).where(*place)).one()
            alike = (UPLOADS.c.size == mine.size, UPLOADS.c.id != mine.id, UPLOADS.c.is_complete)
            others = [self._path(id) for id in db.execute(sa.select(UPLOADS.c.id).where(*alike)).scalars()]
        path = self._path(mine.id)
        return any(not other.samefile(path) and filecmp.cmp(other, path, shallow=False) for other in others)

    def carry_over(self, db: sa.Connection, trial: str, part: str, into: str, as_part: str) -> None:
        """Let a part of a trial also be a part of another one; the files are shared, not copied."""
        mine = (UPLOADS.c.trial == trial, UPLOADS.c.part == part, UPLOADS.c.is_complete)
        for row in db.execute(sa.select(UPLOADS).where(*mine)).all():
            id = str(uuid.uuid4())
            try:
                os.link(self._path(row.id), self._path(id))
            except OSError as error:
                raise StoreError(self.folder, f"files cannot be shared there ({error.strerror})") from error
            copied = {"id": id, "trial": into, "part": as_part, "camera": row.camera, "size": row.size}
            db.execute(sa.insert(UPLOADS).values(**copied, is_complete=True))

    def remove_left_over(self) -> None:
        """Remove files of no upload and what arrived of whole ones, which a killed server left behind."""
        paths = [path for path in self.folder.iterdir() if path.suffix in (".mp4", UNFINISHED)]
        with self.database.begin() as db:
            done = {row.id: row.is_complete for row in db.execute(sa.select(UPLOADS.c.id, UPLOADS.c.is_complete))}
        for path in paths:
            if path.stem not in done or (path.suffix == UNFINISHED and done[path.stem]):
                path.unlink(missing_ok=True)

    @contextmanager
    def _only_check(self, site: Person) -> Iterator[None]:
        """Let a site have one file checked at a time. The others are asked to come back: nobody waits in line."""
        with self._lock:
            if site.id in self._checked or len(self._checked) >= CHECKS:
                raise NotAllowed(503, "Another file is being checked, this one is next")
            self._checked.add(site.id)
        try:
            yield
        finally:
            with self._lock:
                self._checked.discard(site.id)

    def _finish(self, upload: sa.Row[Any]) -> dict[str, Any]:
        """Check that a whole file is a photo or a video, and keep it, a video without what its container says.

        One that cannot be used is removed and can be sent again.
        """
        sent, path = self._sent(upload.id), self._path(upload.id)
        is_video = upload.part != "photo" and upload.camera != LOG
        try:
            if upload.part == "photo":
                self.decoder.check_photo(sent)
            if is_video:
                if len(self.decoder.decode(sent, 2, ONE_PIXEL)) < 2:  # noqa: PLR2004
                    raise BadInput("video", "two frames or more", "fewer")
                self.decoder.strip(sent, path)
        except DecoderAway:
            raise
        except DemeritError as error:
            sent.unlink(missing_ok=True)
            raise NotAllowed(422, f"This file cannot be used ({error}). Send another.") from None
        if not is_video:
            with atomic_file(path) as copy:
                os.link(sent, copy)
        with self.database.begin() as db:
            db.execute(sa.update(UPLOADS).where(UPLOADS.c.id == upload.id).values(is_complete=True))
        sent.unlink(missing_ok=True)
        return {"received": upload.size, "is_complete": True}

    def _arrived(self, trial: str, part: str) -> dict[str, Path]:
        place = (UPLOADS.c.trial == trial, UPLOADS.c.part == part, UPLOADS.c.is_complete)
        with self.database.begin() as db:
            rows = db.execute(sa.select(UPLOADS.c.camera, UPLOADS.c.id).where(*place)).all()
        return {camera: self._path(id) for camera, id in rows}

    def _received(self, id: str) -> int:
        try:
            return self._sent(id).stat().st_size
        except FileNotFoundError:
            return 0

    def _sent(self, id: str) -> Path:
        """Return where a file is until it has arrived whole and was checked."""
        return self.folder / f"{uuid.UUID(id)}{UNFINISHED}"

    def _path(self, id: str) -> Path:
        return self.folder / f"{uuid.UUID(id)}.mp4"  # photos and logs too


def _check_open(db: sa.Connection, site: Person, trial: str) -> None:
    row = db.execute(sa.select(TRIALS.c.site, TRIALS.c.ended).where(TRIALS.c.id == trial)).first()
    if row is None or row.site != site.id:
        raise NotAllowed(404, "There is no such trial among yours.")
    if row.ended is not None:
        raise NotAllowed(409, "This trial has ended.")
