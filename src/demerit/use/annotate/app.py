"""The annotation app: its routes. Pages are in `assets/people`."""

from __future__ import annotations

import math
import re
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from fastapi import Response
from fastapi.responses import JSONResponse, RedirectResponse

from demerit.data.episode import Episode
from demerit.data.frames import short_hash
from demerit.data.labels import Outcome
from demerit.data.store import Store
from demerit.data.taxonomy import kinds
from demerit.errors import BadInput, DemeritError
from demerit.use.annotate.teacher import Teacher
from demerit.use.annotate.team import FIELDS, find_disagreements, measure_agreement, read_judgements, summarize_raters
from demerit.use.annotate.work import Work, count_frames, proposed_label, store_labels
from demerit.use.people.accounts import Accounts, NotAllowed
from demerit.use.people.database import Database
from demerit.use.people.entrance import Entrance
from demerit.use.people.guard import Asked, Guard, send_file, show_to
from demerit.use.view.media import EpisodeMedia

STORE_SECONDS = 0.5
"""how long a label waits until it is in the dataset folder; longer where writing it takes long"""
EVERYBODY = ("owner", "rater")
KEPT = "Answers are kept, and not yet in the dataset"
LONGEST = 1e9
"""seconds of an answer; more is no time"""
ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
KIND_NAMES = {"verify": "Verify", "compare": "Compare", "mark": "Mark"}


class AnnotateApp:
    """What each path answers."""

    def __init__(
        self,
        database: Database,
        cache: Path,
        names: Sequence[str] = (),
        is_secure: bool = False,
        teach: Sequence[Path] = (),
    ) -> None:
        """Make the routes; `start` begins to write labels into the dataset folders.

        Args:
            database: where answers are kept.
            cache: a folder for pictures and videos.
            names: host names of this server.
            is_secure: whether browsers reach it by HTTPS.
            teach: dataset folders that a model is taught from while people label.
        """
        self.database, self.accounts, self.work = database, Accounts(database), Work(database)
        self.media, self.guard = EpisodeMedia(cache), Guard(self.accounts, names, is_secure)
        self._times = lru_cache(maxsize=1024)(self._find_times)
        self.teachers = [Teacher(folder, self.work) for folder in teach]
        self._trouble = ""
        self._is_ending, self._new = threading.Event(), threading.Event()
        self._writer = threading.Thread(target=self._write_labels, daemon=True)
        Entrance(self.guard)
        add = self.guard.add
        add("GET", "/", EVERYBODY, self.home)
        add("GET", "/work/{kind}", EVERYBODY, self.next_item)
        add("GET", "/items/{item:int}", EVERYBODY, self.show_item)
        add("GET", "/items/{item:int}/previous", EVERYBODY, self.previous)
        add("PUT", "/items/{item:int}/draft", EVERYBODY, self.save_draft)
        add("POST", "/items/{item:int}/answer", EVERYBODY, self.answer)
        add("GET", "/items/{item:int}/curve", EVERYBODY, self.curve)
        add("GET", "/team", ["owner"], self.show_team)
        add("POST", "/team/invite", ["owner"], self.invite)
        add("POST", "/team/{person:int}", ["owner"], self.set_active)
        add("GET", "/disagreements", ["owner"], self.show_disagreements)
        add("POST", "/disagreements/{item:int}", ["owner"], self.settle)
        add("GET", "/audit", ["owner"], self.show_audit)
        add("GET", "/teach", ["owner"], lambda asked: show_to(asked.me, "teach.html.j2", lessons=self._lessons()))
        add("GET", "/teach/state", ["owner"], lambda asked: JSONResponse(self._lessons()))
        add("GET", "/items/{item:int}/{place:int}/{camera:int}.mp4", EVERYBODY, self.video)
        add("GET", "/items/{item:int}/{place:int}/{camera:int}.jpg", EVERYBODY, self.picture)

    def start(self) -> None:
        """Write the labels that an earlier run did not get to, and go on writing new ones."""
        self._writer.start()
        for teacher in self.teachers:
            teacher.start()

    def stop(self) -> None:
        """Write what is waiting, and stop."""
        self._is_ending.set()
        self._new.set()
        if self._writer.is_alive():
            self._writer.join()
            for teacher in self.teachers:
                teacher.stop()

    # Work

    def home(self, asked: Asked) -> Response:
        """Show what there is to do."""
        lessons = self._lessons() if asked.me.is_owner else []
        trouble = self._trouble if asked.me.is_owner else self._trouble and KEPT  # names folders of this machine
        rest = {"trouble": trouble, "lessons": lessons}
        return show_to(asked.me, "home.html.j2", left=self.work.count_left(asked.me), **rest)

    def next_item(self, asked: Asked, kind: str) -> Response:
        """Go to the next item of a kind."""
        if kind not in KIND_NAMES:
            raise NotAllowed(404, f"There is no work called {kind!r}.")
        found = self.work.next_item(asked.me, kind)
        if found is None:
            text = "Everything is answered, or others are at it."
            return show_to(asked.me, "message.html.j2", title="Nothing left to do here", text=text)
        return RedirectResponse(f"/items/{found.item}", 303)

    def previous(self, asked: Asked, item: int) -> Response:
        """Go back to what was answered before."""
        self.work.find(asked.me, item)
        found = self.work.previous(asked.me, item)
        return RedirectResponse(f"/items/{item if found is None else found}", 303)

    def show_item(self, asked: Asked, item: int) -> Response:
        """Show an item: its videos, what is asked, the draft or the answer that was given."""
        found = self.work.find(asked.me, item)
        episodes = [self._episode(found.dataset, id) for id in found.shown]
        proposed = proposed_label(episodes[0].outcomes) if found.kind == "verify" else None
        facts = {
            "item": item,
            "key": short_hash(*(part.encode() for part in (found.kind, found.dataset, *found.shown, asked.me.name))),
            "kind": found.kind,
            "instruction": episodes[0].instruction,
            "episodes": [self._describe(item, place, found.dataset, id) for place, id in enumerate(found.shown)],
            "proposed": None if proposed is None else _describe_label(proposed),
            "draft": found.draft,
            "answer": self.work.newest_answer(asked.me, item),
            "failures": [{"name": kind.name, "definition": kind.definition} for kind in kinds()],
        }
        rest = {"left": self.work.count_left(asked.me), "needs_break": self.work.needs_break(asked.me)}
        return show_to(asked.me, f"{found.kind}.html.j2", facts=facts, name=KIND_NAMES[found.kind], **rest)

    def save_draft(self, asked: Asked, item: int) -> Response:
        """Keep an unfinished answer."""
        self.work.save_draft(asked.me, item, asked.json())
        return JSONResponse({})

    def answer(self, asked: Asked, item: int) -> Response:
        """Store an answer, and say what comes next. What a model thought of the episode is shown only now."""
        found, sent = self.work.find(asked.me, item), asked.json()
        id, body, seconds = sent.get("id"), sent.get("body"), sent.get("seconds", 0)
        if not isinstance(id, str) or not ID.fullmatch(id) or not isinstance(body, Mapping):
            raise BadInput("answer", "an id (a UUID) and a body", f"{id!r} and {type(body).__name__}")
        if not isinstance(seconds, int | float) or abs(seconds) > LONGEST:
            raise BadInput("seconds", "a number of seconds", str(seconds)[:40])
        episode = self._episode(found.dataset, found.episode)
        self.work.answer(asked.me, item, str(uuid.UUID(id)), body, count_frames(episode), seconds)
        self._new.set()
        proposed = proposed_label(episode.outcomes) if found.kind == "verify" else None
        return JSONResponse({"next": f"/work/{found.kind}", "rationale": "" if proposed is None else proposed.note})

    def curve(self, asked: Asked, item: int) -> Response:
        """Return what the taught model says of an item that this person has answered; before, it could sway them."""
        found = self.work.find(asked.me, item)
        teacher = next((one for one in self.teachers if str(one.dataset) == found.dataset), None)
        if teacher is None or not found.is_done:
            raise NotAllowed(404, "There is no model yet, or this item is not answered.")
        reward = teacher.score(self._episode(found.dataset, found.episode))
        known = [] if reward is None else zip(reward.at.tolist(), reward.value.tolist(), strict=True)
        return JSONResponse({"points": [[at, value] for at, value in known if not math.isnan(value)]})

    def _lessons(self) -> list[dict[str, Any]]:
        return [{"dataset": teacher.dataset.name, **teacher.state()} for teacher in self.teachers]

    # The team

    def show_team(self, asked: Asked, link: str = "") -> Response:
        """Show who works here, how well, and how much they agree."""
        judgements = read_judgements(self.database)
        parts = {"raters": summarize_raters(judgements), "agreement": measure_agreement(judgements), "fields": FIELDS}
        return show_to(asked.me, "team.html.j2", people=self.accounts.list_people(), link=link, **parts)

    def invite(self, asked: Asked) -> Response:
        """Make an invitation link. It is shown once: only its hash is stored."""
        role: Any = asked.form().get("role", "rater")
        return self.show_team(asked, f"{asked.request.base_url}join/{self.accounts.make_link(role, by=asked.me)}")

    def set_active(self, asked: Asked, person: int) -> Response:
        """Close or open an account."""
        self.accounts.set_active(person, asked.form().get("active") == "yes", asked.me)
        return RedirectResponse("/team", 303)

    def show_disagreements(self, asked: Asked) -> Response:
        """List what people answered differently."""
        found = find_disagreements(read_judgements(self.database))
        return show_to(asked.me, "disagreements.html.j2", found=found, fields=FIELDS)

    def settle(self, asked: Asked, item: int) -> Response:
        """Take an item that others disagree about: an owner's later answer counts first."""
        self.work.take(asked.me, item)
        return RedirectResponse(f"/items/{item}", 303)

    def show_audit(self, asked: Asked) -> Response:
        """Show who did what."""
        times = ((datetime.fromtimestamp(row.at, UTC), row) for row in self.accounts.read_audit())
        rows = [(at.isoformat(" ", "seconds")[:19], *row[1:]) for at, row in times]
        return show_to(asked.me, "audit.html.j2", rows=rows)

    # Pictures and videos

    def video(self, asked: Asked, item: int, place: int, camera: int) -> Response:
        """Send a video of an item."""
        return send_file(self.media.video(self._frames(asked, item, place, camera)).path, "video/mp4")

    def picture(self, asked: Asked, item: int, place: int, camera: int) -> Response:
        """Send the last frame of an item."""
        return send_file(self.media.thumbnail(self._frames(asked, item, place, camera)), "image/jpeg")

    def _frames(self, asked: Asked, item: int, place: int, camera: int) -> Any:
        found = self.work.find(asked.me, item)
        views = (
            list(self._episode(found.dataset, found.shown[place]).views.values()) if place < len(found.shown) else []
        )
        if camera >= len(views):
            raise NotAllowed(404, "This item has no such video.")
        return views[camera]

    def _describe(self, item: int, place: int, dataset: str, id: str) -> dict[str, Any]:
        times = self._times(dataset, id, _minute())
        cameras = [
            {"name": name, "video": f"/items/{item}/{place}/{number}.mp4", "times": shown}
            for number, (name, shown) in enumerate(times.items())
            if shown
        ]
        return {"cameras": cameras}

    def _find_times(self, dataset: str, id: str, _: int) -> dict[str, list[float]]:
        """Find when each frame of each camera is on the screen; nothing for a video that cannot be shown."""
        found: dict[str, list[float]] = {}
        for name, view in self._episode(dataset, id).views.items():
            try:
                found[name] = self.media.video(view).times.tolist()
            except DemeritError:
                found[name] = []
        return found

    def _episode(self, dataset: str, id: str) -> Episode:
        return _find_episode(dataset, id, _minute())

    # Labels

    def _write_labels(self) -> None:
        while True:
            ends, began = self._is_ending.is_set(), time.monotonic()
            self._new.clear()
            try:
                store_labels(self.database)
                self._trouble = ""
            except Exception as error:  # a busy folder, a full disk, no database: answers wait, and this goes on
                self._trouble = f"{KEPT}: {error}"
            for teacher in self.teachers:
                teacher.notice()
            if ends:
                return
            took = time.monotonic() - began
            self._new.wait(60 if not self._trouble else 5)
            self._is_ending.wait(max(STORE_SECONDS, 9 * took))  # a large folder takes a tenth of the time at most


def _minute() -> int:
    """Number the minutes: what is read of a dataset folder is kept so long, because each label changes the folder."""
    return int(time.time() // 60)


@lru_cache(maxsize=1024)
def _find_episode(dataset: str, id: str, _: int) -> Episode:
    return Store(dataset).episode(id)


def _describe_label(label: Outcome) -> dict[str, Any]:
    return {"success": label.success, "grade": label.grade, "progress": label.progress}
