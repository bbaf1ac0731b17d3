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

from starlette.responses import JSONResponse, RedirectResponse, Response

from demerit.data.episode import Episode, Outcome
from demerit.data.frames import short_hash
from demerit.data.store import Store
from demerit.data.taxonomy import kinds, read_rubric
from demerit.errors import BadInput, DemeritError
from demerit.people.accounts import Accounts, NotAllowed
from demerit.people.annotate.labels import ANSWER_FIELDS
from demerit.people.annotate.teacher import Teacher
from demerit.people.annotate.team import (
    FIELDS,
    count_accepted,
    find_disagreements,
    measure_agreement,
    read_judgements,
    summarize_raters,
)
from demerit.people.annotate.work import Work, count_frames, list_shown, proposed_label, store_labels
from demerit.people.database import Database
from demerit.people.guard import Asked, Guard, show_to
from demerit.web.media import EpisodeMedia, video_times

STORE_SECONDS = 0.5
"""how long a label waits until it is in the dataset folder; longer where writing it takes long"""
EVERYBODY = ("owner", "rater")
KEPT = "Answers are kept, and not yet in the dataset"
LARGEST_ANSWER = 256_000
"""bytes of an answer or a draft"""
LONGEST = 1e9
"""seconds of an answer; more is no time"""
ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
KIND_NAMES = tuple(ANSWER_FIELDS)


class AnnotateApp:
    """What each path answers."""

    def __init__(self, database: Database, cache: Path, is_secure: bool = False, teach: Sequence[Path] = ()) -> None:
        """Make the routes; `start` begins to write labels into the dataset folders.

        Pictures and videos go to the folder `cache`. Browsers reach it by HTTPS if `is_secure`. While people label, a
        model is taught from the dataset folders `teach`.
        """
        self.database, self.accounts, self.work = database, Accounts(database), Work(database)
        self.media, self.guard = EpisodeMedia(cache), Guard(self.accounts, is_secure)
        self._times = lru_cache(maxsize=1024)(self._find_times)
        self.teachers = [Teacher(folder, self.work) for folder in teach]
        self._trouble = ""
        self._is_ending, self._new = threading.Event(), threading.Event()
        self._writer = threading.Thread(target=self._write_labels, daemon=True)
        add = self.guard.add
        add("GET", "/", EVERYBODY, self.home)
        add("GET", "/work", EVERYBODY, self.next_item)
        add("GET", "/work/{kind}", EVERYBODY, self.next_item)
        add("GET", "/items/{item:number}", EVERYBODY, self.show_item)
        add("GET", "/items/{item:number}/previous", EVERYBODY, self.previous)
        add("PUT", "/items/{item:number}/draft", EVERYBODY, self.save_draft, LARGEST_ANSWER)
        add("POST", "/items/{item:number}/answer", EVERYBODY, self.answer, LARGEST_ANSWER)
        add("GET", "/items/{item:number}/curve", EVERYBODY, self.curve)
        add("GET", "/team", ["owner"], self.show_team)
        add("POST", "/team/invite", ["owner"], self.invite)
        add("POST", "/team/{person:number}", ["owner"], self.set_active)
        add("GET", "/disagreements", ["owner"], self.show_disagreements)
        add("POST", "/disagreements/{item:number}", ["owner"], self.settle)
        add("GET", "/audit", ["owner"], self.show_audit)
        add("GET", "/teach", ["owner"], lambda asked: show_to(asked.me, "teach.html.j2", lessons=self._lessons()))
        add("GET", "/teach/state", ["owner"], lambda asked: JSONResponse(self._lessons()))
        add("GET", "/items/{item:number}/{place:number}/{camera:number}.mp4", EVERYBODY, self.video)
        add("GET", "/items/{item:number}/{place:number}/{camera:number}.jpg", EVERYBODY, self.picture)

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
        counts = self.work.count_left(asked.me)
        start = next((kind for kind, count in counts.items() if count["left"]), "")
        return show_to(asked.me, "home.html.j2", left=counts, start=start, trouble=trouble, lessons=lessons)

    def next_item(self, asked: Asked, kind: str = "") -> Response:
        """Go to the next item: of a kind while there are some, then of the others, in the order of the queue."""
        if kind and kind not in KIND_NAMES:
            raise NotAllowed(404, f"There is no work called {kind!r}.")
        assignment = self.work.next_item(asked.me, kind) if kind else None
        if assignment is None:
            others = (self.work.next_item(asked.me, other) for other in self.work.count_left(asked.me) if other != kind)
            assignment = next((item for item in others if item is not None), None)
        if assignment is None:
            text = "Everything is answered, or others are at it."
            return show_to(asked.me, "message.html.j2", title="Nothing left to do here", text=text)
        return RedirectResponse(f"/items/{assignment.item}", 303)

    def previous(self, asked: Asked, item: int) -> Response:
        """Go back to what was answered before."""
        self.work.find(asked.me, item)
        earlier = self.work.previous(asked.me, item)
        return RedirectResponse(f"/items/{item if earlier is None else earlier}", 303)

    def show_item(self, asked: Asked, item: int) -> Response:
        """Show an item: its videos, what is asked, the draft or the answer that was given."""
        assignment = self.work.find(asked.me, item)
        shown = list_shown(assignment)
        episodes = [self._episode(assignment.dataset, id) for id in shown]
        proposed = proposed_label(episodes[0].outcomes) if assignment.kind == "verify" else None
        facts = {
            "item": item,
            "key": short_hash(
                *(part.encode() for part in (assignment.kind, assignment.dataset, *shown, asked.me.name))
            ),
            "kind": assignment.kind,
            "names": shown,
            "instruction": episodes[0].instruction,
            "episodes": [self._describe(item, place, assignment.dataset, id) for place, id in enumerate(shown)],
            "proposed": None if proposed is None else _describe_label(proposed),
            "reasons": [label.note for label in episodes[0].outcomes if label.source == "model" and label.note],
            "rubric": read_rubric(),
            "draft": assignment.draft,
            "answer": self.work.newest_answer(asked.me, item),
            "failures": [{"name": kind.name, "definition": kind.definition} for kind in kinds()],
        }
        counts, needs_break = self.work.count_left(asked.me), self.work.needs_break(asked.me)
        done, total = counts[assignment.kind]["done"], sum(counts[assignment.kind].values())
        place = f"answered ({done} of {total} done)" if assignment.is_done else f"{done + 1} of {total}"
        page = f"{assignment.kind}.html.j2"
        return show_to(asked.me, page, facts=facts, left=counts, place=place, needs_break=needs_break)

    def save_draft(self, asked: Asked, item: int) -> Response:
        """Keep an unfinished answer."""
        self.work.save_draft(asked.me, item, asked.json())
        return JSONResponse({})

    def answer(self, asked: Asked, item: int) -> Response:
        """Store an answer, and say what comes next."""
        assignment, message = self.work.find(asked.me, item), asked.json()
        id, body, seconds = message.get("id"), message.get("body"), message.get("seconds", 0)
        if not isinstance(id, str) or not ID.fullmatch(id) or not isinstance(body, Mapping):
            raise BadInput("answer", "an id (a UUID) and a body", f"{id!r} and {type(body).__name__}")
        if not isinstance(seconds, int | float) or abs(seconds) > LONGEST:
            raise BadInput("seconds", "a number of seconds", str(seconds)[:40])
        episode = self._episode(assignment.dataset, assignment.episode)
        proposed = proposed_label(episode.outcomes) if assignment.kind == "verify" else None
        shown = {} if proposed is None else _describe_label(proposed)
        if body.get("verdict") == "accept" and assignment.kind == "verify":
            if not shown or any(body.get(name) != value for name, value in shown.items()):
                raise NotAllowed(409, "The label has changed since this page was opened: reload it.")
        elif body.get("verdict") == "correct" and shown and _says_the_same(body, shown):
            body = {**body, **shown, "verdict": "accept"}
        self.work.answer(asked.me, item, str(uuid.UUID(id)), body, count_frames(episode), seconds)
        self._new.set()
        return JSONResponse({"next": f"/work/{assignment.kind}"})

    def curve(self, asked: Asked, item: int) -> Response:
        """Return what the taught model says of an item that this person has answered; before, it could sway them."""
        assignment = self.work.find(asked.me, item)
        teacher = next((teacher for teacher in self.teachers if str(teacher.dataset) == assignment.dataset), None)
        if teacher is None or not assignment.is_done:
            raise NotAllowed(404, "There is no model yet, or this item is not answered.")
        reward = teacher.score(self._episode(assignment.dataset, assignment.episode))
        if reward is None:
            raise NotAllowed(404, "There is no model yet.")
        values = zip(reward.at.tolist(), reward.value.tolist(), strict=True)
        points = [[at, value] for at, value in values if not math.isnan(value)]
        return JSONResponse({"points": points, "verdict": str(reward.verdict), "caution": reward.caution})

    def _lessons(self) -> list[dict[str, Any]]:
        return [{"dataset": teacher.dataset.name, **teacher.state()} for teacher in self.teachers]

    # The team

    def show_team(self, asked: Asked, link: str = "") -> Response:
        """Show who works here, how well, and how much they agree."""
        judgements = read_judgements(self.database)
        parts: dict[str, Any] = {"raters": summarize_raters(judgements), "accepted": count_accepted(self.database)}
        parts |= {"agreement": measure_agreement(judgements), "fields": FIELDS}
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
        disagreements = find_disagreements(read_judgements(self.database))
        return show_to(asked.me, "disagreements.html.j2", disagreements=disagreements, fields=FIELDS)

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
        return asked.send_file(self.media.video(self._frames(asked, item, place, camera)), "video/mp4")

    def picture(self, asked: Asked, item: int, place: int, camera: int) -> Response:
        """Send the last frame of an item."""
        return asked.send_file(self.media.thumbnail(self._frames(asked, item, place, camera)), "image/jpeg")

    def _frames(self, asked: Asked, item: int, place: int, camera: int) -> Any:
        assignment = self.work.find(asked.me, item)
        ids = list_shown(assignment)[place : place + 1]
        views = [view for id in ids for view in self._episode(assignment.dataset, id).views.values()]
        if camera >= len(views):
            raise NotAllowed(404, "This item has no such video.")
        return views[camera]

    def _describe(self, item: int, place: int, dataset: str, id: str) -> dict[str, Any]:
        cameras = enumerate(self._times(dataset, id, _minute()).items())
        link = f"/items/{item}/{place}"
        shown = [{"name": name, "video": f"{link}/{number}.mp4", "times": times} for number, (name, times) in cameras]
        return {"cameras": [camera for camera in shown if camera["times"]]}

    def _find_times(self, dataset: str, id: str, _: int) -> dict[str, list[float]]:
        """Find when each frame of each camera is on the screen; nothing for a video that cannot be shown."""
        times: dict[str, list[float]] = {}
        for name, view in self._episode(dataset, id).views.items():
            try:
                self.media.video(view)
                times[name] = video_times(view).tolist()
            except DemeritError:
                times[name] = []
        return times

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


def _says_the_same(body: Mapping[str, Any], shown: Mapping[str, Any]) -> bool:
    """Whether a correction states what was shown, and nothing else."""
    stated = {name: body[name] for name in shown if body.get(name) is not None}
    return bool(stated) and all(shown[name] == value for name, value in stated.items())


def _describe_label(label: Outcome) -> dict[str, Any]:
    return {"success": label.success, "grade": label.grade, "progress": label.progress}
