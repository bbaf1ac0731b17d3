"""Files that arrive in pieces over bad networks. A cut upload goes on where it stopped."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from PIL import Image, UnidentifiedImageError

from demerit.data.episode import Episode
from demerit.data.files import make_folder
from demerit.errors import BadInput, DemeritError
from demerit.use.arena.tables import TRIALS, UPLOADS
from demerit.use.people.accounts import NotAllowed, Person
from demerit.use.people.database import Database

PARTS = ("photo", "first", "second")
CAMERAS = ("left", "right", "wrist")
LARGEST = 2_000_000_000
LARGEST_PIECE = 4_000_000
MOST_PIXELS = 50_000_000


class Uploads:
    """The files of trials, in a folder."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database, self.folder = database, make_folder(folder)
        self._lock = threading.Lock()

    def begin(self, site: Person, trial: str, part: str, camera: str, size: int) -> dict[str, Any]:
        """Announce a file; return its id and how much of it has arrived. Another size starts over."""
        if part not in PARTS or camera not in CAMERAS:
            raise BadInput(
                "part and camera", f"one of {', '.join(PARTS)} and one of {', '.join(CAMERAS)}", (part, camera)
            )
        if type(size) is not int or not 0 < size <= LARGEST:
            raise BadInput("size", f"1 to {LARGEST} bytes", size)
        with self.database.begin() as db:
            _check_open(db, site, trial)
            same = (UPLOADS.c.trial == trial, UPLOADS.c.part == part, UPLOADS.c.camera == camera)
            found = db.execute(sa.select(UPLOADS).where(*same)).first()
            if found is not None and found.size == size:
                return {"id": found.id, "received": self._received(found.id), "is_complete": found.is_complete}
            if found is not None:
                db.execute(sa.delete(UPLOADS).where(UPLOADS.c.id == found.id))
            id = str(uuid.uuid4())
            db.execute(sa.insert(UPLOADS).values(id=id, trial=trial, part=part, camera=camera, size=size))
        if found is not None:
            self._path(found.id).unlink(missing_ok=True)
        return {"id": id, "received": 0, "is_complete": False}

    def add(self, site: Person, id: str, start: int, piece: bytes) -> dict[str, Any]:
        """Add a piece; durable when this returns. One that does not start where the file ends is refused, not lost."""
        with self.database.begin() as db:
            found = db.execute(sa.select(UPLOADS).where(UPLOADS.c.id == id)).first()
            if found is None:
                raise NotAllowed(404, "There is no such upload among yours.")
            _check_open(db, site, found.trial)
        if found.is_complete:
            return {"received": found.size, "is_complete": True}
        if len(piece) > LARGEST_PIECE or start + len(piece) > found.size:
            raise NotAllowed(413, f"Expected at most {LARGEST_PIECE} bytes, and {found.size} in all.")
        with self._lock:  # the same piece from two pages is added once
            if start == self._received(id) and piece:
                with open(self._path(id), "ab") as file:
                    file.write(piece)
                    file.flush()
                    os.fsync(file.fileno())
            received = self._received(id)
            return self._finish(found) if received == found.size else {"received": received, "is_complete": False}

    def path(self, trial: str, part: str, camera: str = "left") -> Path | None:
        """Return a file that has arrived whole."""
        return self.files(trial, part).get(camera)

    def files(self, trial: str, part: str) -> Mapping[str, Path]:
        """Return the files of a part that have arrived whole, by camera."""
        done = (UPLOADS.c.trial == trial, UPLOADS.c.part == part, UPLOADS.c.is_complete)
        with self.database.begin() as db:
            rows = db.execute(sa.select(UPLOADS.c.camera, UPLOADS.c.id).where(*done)).all()
        return {camera: self._path(id) for camera, id in sorted(rows, key=lambda row: CAMERAS.index(row.camera))}

    def _finish(self, found: sa.Row[Any]) -> dict[str, Any]:
        """Check that a whole file is a photo or a video; one that is not is removed and can be sent again."""
        path = self._path(found.id)
        try:
            if found.part == "photo":
                _check_photo(path)
            elif len(Episode.from_video(path)) < 2:  # noqa: PLR2004
                raise BadInput("video", "two frames or more", "fewer")
        except DemeritError as error:
            path.unlink(missing_ok=True)
            raise NotAllowed(
                422, f"This file cannot be used ({str(error).replace(str(path), 'it')}). Send another."
            ) from None
        with self.database.begin() as db:
            db.execute(sa.update(UPLOADS).where(UPLOADS.c.id == found.id).values(is_complete=True))
        return {"received": found.size, "is_complete": True}

    def _received(self, id: str) -> int:
        try:
            return self._path(id).stat().st_size
        except FileNotFoundError:
            return 0

    def _path(self, id: str) -> Path:
        return self.folder / f"{uuid.UUID(id)}.mp4"  # photos too; what is inside is checked


def _check_open(db: sa.Connection, site: Person, trial: str) -> None:
    row = db.execute(sa.select(TRIALS.c.site, TRIALS.c.ended).where(TRIALS.c.id == trial)).first()
    if row is None or row.site != site.id:
        raise NotAllowed(404, "There is no such trial among yours.")
    if row.ended is not None:
        raise NotAllowed(409, "This trial has ended.")


def _check_photo(path: Path) -> None:
    try:
        with Image.open(path, formats=("JPEG", "PNG", "WEBP")) as image:
            if image.width * image.height > MOST_PIXELS:
                raise BadInput("photo", f"at most {MOST_PIXELS} pixels", image.size)
            image.load()
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        raise BadInput("photo", "a JPEG, PNG or WebP image", type(error).__name__) from error
