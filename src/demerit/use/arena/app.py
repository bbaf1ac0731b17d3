"""The arena's pages: a site's trial step by step, the owner's checks, the public results, and the relay to policies."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from fastapi import Response, WebSocket
from fastapi.responses import JSONResponse, RedirectResponse
from starlette.websockets import WebSocketDisconnect
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from demerit.data.episode import Episode
from demerit.data.frames import Frames
from demerit.data.video import VideoClip
from demerit.errors import DemeritError
from demerit.models import RewardModel
from demerit.models.score import score_together
from demerit.use.arena.results import compute_results, make_dump, write_dump
from demerit.use.arena.tables import MODEL_SCORES
from demerit.use.arena.trials import Trial, Trials
from demerit.use.arena.uploads import CAMERAS, LARGEST_PIECE
from demerit.use.people.accounts import Accounts, NotAllowed
from demerit.use.people.database import Database, DatabaseAway
from demerit.use.people.entrance import Entrance
from demerit.use.people.guard import ANYBODY, Asked, Guard, send_file, show, show_to

SITES, OWNERS = ("site",), ("owner",)
LOOK_AGAIN = 60.0
"""seconds until trials are looked at again without a new one"""
LARGEST_MESSAGE = 64_000_000
"""of a robot or a policy, in bytes"""
CHECKLIST = (
    "An emergency stop is within reach of a person who watches the robot.",
    "Nobody is inside the robot's reach, and nothing there can be damaged.",
    "Speed and force limits of the robot are on.",
)


class ArenaApp:
    """What each path answers."""

    def __init__(
        self,
        database: Database,
        folder: Path,
        models: Sequence[RewardModel] = (),
        names: Sequence[str] = (),
        is_secure: bool = False,
    ) -> None:
        """Make the routes; `start` begins to score trials.

        Args:
            database: of the arena.
            folder: for uploads.
            models: reward models that score each trial.
            names: host names of this server.
            is_secure: whether browsers reach it by HTTPS.
        """
        self.database, self.accounts = database, Accounts(database)
        self.trials, self.models = Trials(database, folder), models
        self.guard = Guard(self.accounts, names, is_secure)
        self._compute = lru_cache(maxsize=1)(lambda version: compute_results(make_dump(self.trials)))
        self._new, self._is_ending = threading.Event(), False
        self._scorer = threading.Thread(target=self._score_trials, daemon=True)
        Entrance(self.guard)
        add = self.guard.add
        add("GET", "/", ANYBODY, self.home)
        add("GET", "/results.json", ANYBODY, self.dump)
        add("GET", "/trial", SITES, self.begin)
        add("GET", "/trials/{id}", SITES, self.show_trial)
        add("POST", "/trials/{id}/describe", SITES, self.describe)
        add("POST", "/trials/{id}/reset", SITES, self.confirm_reset)
        add("POST", "/trials/{id}/judge", SITES, self.judge)
        add("POST", "/trials/{id}/uploads", SITES, self.begin_upload)
        add("PUT", "/uploads/{id}/{start:int}", SITES, self.add_piece)
        add("GET", "/trials/{id}/photo", SITES, self.photo)
        add("GET", "/check", OWNERS, self.show_checks)
        add("POST", "/check/{id}", OWNERS, self.exclude)
        add("GET", "/check/{id}/{part}/{camera}.mp4", OWNERS, self.video)
        add("POST", "/sites/invite", OWNERS, self.invite)
        self.guard.app.add_api_websocket_route("/trials/{id}/policy/{part}", self.relay)

    def start(self) -> None:
        """Score what is not scored yet, and new trials as they end."""
        self._scorer.start()
        self._new.set()

    def stop(self) -> None:
        """Stop scoring; the trial that is being scored is scored again next time."""
        self._is_ending = True
        self._new.set()
        if self._scorer.is_alive():
            self._scorer.join()

    # Everybody

    def home(self, asked: Asked) -> Response:
        """Show the results."""
        results = self._compute(self.trials.version())
        if asked.person is None:
            return show("arena.html.j2", results=results)
        return show_to(asked.person, "arena.html.j2", results=results)

    def dump(self, asked: Asked) -> Response:
        """Send everything that the results are computed from."""
        return Response(write_dump(make_dump(self.trials)), media_type="application/json")

    # Sites

    def begin(self, asked: Asked) -> Response:
        """Go on with the open trial, or begin one."""
        return RedirectResponse(f"/trials/{self.trials.start(asked.me).id}", 303)

    def show_trial(self, asked: Asked, id: str) -> Response:
        """Show the step that a trial is at."""
        trial = self.trials.find(asked.me, id)
        done = {part: list(self.trials.uploads.files(id, part)) for part in ("photo", "first", "second")}
        base = str(asked.request.base_url).replace("http", "ws", 1)
        parts = {"trial": trial, "done": done, "cameras": CAMERAS, "checklist": CHECKLIST, "base": base}
        has_policy = bool(self.trials.address_now(id, trial.step))
        return show_to(asked.me, "trial.html.j2", **parts, has_policy=has_policy, piece=LARGEST_PIECE)

    def describe(self, asked: Asked, id: str) -> Response:
        """Take the instruction and the safety checklist."""
        sent = asked.json()
        ticked = sent.get("checklist")
        is_safe = isinstance(ticked, list) and len(ticked) == len(CHECKLIST) and all(one is True for one in ticked)
        return _step(self.trials.describe(asked.me, id, str(sent.get("instruction", "")), is_safe))

    def confirm_reset(self, asked: Asked, id: str) -> Response:
        """Take the word that the scene looks like the photo."""
        return _step(self.trials.confirm_reset(asked.me, id))

    def judge(self, asked: Asked, id: str) -> Response:
        """Take the judgement, and end the trial."""
        found = self.trials.judge(asked.me, id, asked.json())
        self._new.set()
        return _step(found)

    def begin_upload(self, asked: Asked, id: str) -> Response:
        """Announce a file."""
        sent = asked.json()
        part, camera = str(sent.get("part")), str(sent.get("camera", "left"))
        return JSONResponse(self.trials.uploads.begin(asked.me, id, part, camera, sent.get("size", 0)))

    def add_piece(self, asked: Asked, id: str, start: int) -> Response:
        """Take a piece of a file."""
        return JSONResponse(self.trials.uploads.add(asked.me, _check_id(id), start, asked.body))

    def photo(self, asked: Asked, id: str) -> Response:
        """Show the scene that the second rollout must start from."""
        self.trials.find(asked.me, id)
        path = self.trials.uploads.path(id, "photo")
        if path is None:
            raise NotAllowed(404, "There is no photo yet.")
        return send_file(path, "image/jpeg")

    async def relay(self, socket: WebSocket, id: str, part: str) -> None:
        """Pass messages between a site's robot and a policy, so that the site never learns which policy it is.

        Who knows the id of an open trial may use it; ids are random, and published only after the trial.
        """
        address = await asyncio.to_thread(self.trials.address_now, id, part)
        await socket.accept()
        if not address:
            await socket.close(1008, "no such policy for you now")
            return
        try:
            async with connect(address, max_size=LARGEST_MESSAGE) as policy:

                async def pass_on() -> None:
                    while (message := await socket.receive())["type"] == "websocket.receive":
                        await policy.send(message["bytes"] if message.get("bytes") is not None else message["text"])

                async def pass_back() -> None:
                    async for message in policy:
                        await (socket.send_bytes(message) if isinstance(message, bytes) else socket.send_text(message))

                tasks = [asyncio.create_task(pass_on()), asyncio.create_task(pass_back())]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()
        except (OSError, WebSocketException, WebSocketDisconnect, RuntimeError):
            pass  # the policy's server or the robot is gone; its address stays hidden
        with suppress(RuntimeError):
            await socket.close(1011, "the policy cannot be reached now")

    # Owners

    def show_checks(self, asked: Asked, link: str = "") -> Response:
        """Show every trial with what is doubtful about it."""
        rows = [
            (row, self.trials.doubts(row), list(self.trials.uploads.files(row.id, "first")))
            for row in self.trials.rows()
        ]
        return show_to(asked.me, "check.html.j2", rows=rows[::-1], link=link)

    def exclude(self, asked: Asked, id: str) -> Response:
        """Leave a trial out, or let it count again."""
        self.trials.exclude(asked.me, id, asked.form().get("reason", ""))
        return RedirectResponse("/check", 303)

    def video(self, asked: Asked, id: str, part: str, camera: str) -> Response:
        """Show a rollout."""
        path = self.trials.uploads.path(_check_id(id), part, camera)
        if path is None or part == "photo":
            raise NotAllowed(404, "There is no such video.")
        return send_file(path, "video/mp4")

    def invite(self, asked: Asked) -> Response:
        """Make an invitation for a site."""
        return self.show_checks(asked, f"{asked.request.base_url}join/{self.accounts.make_link('site', by=asked.me)}")

    # Reward models

    def _score_trials(self) -> None:
        while True:
            self._new.wait(LOOK_AGAIN)
            self._new.clear()
            if self._is_ending:
                return
            with suppress(DatabaseAway):
                for row in self.trials.rows():
                    for model in self.models:
                        for part in ("first", "second"):
                            if self._is_ending:
                                return
                            self._score(row, part, model)

    def _score(self, row: sa.Row[Any], part: str, model: RewardModel) -> None:
        key = {"trial": row.id, "part": part, "model": model.card.name}
        with self.database.begin() as db:
            same = (getattr(MODEL_SCORES.c, name) == value for name, value in key.items())
            if db.execute(sa.select(MODEL_SCORES.c.model).where(*same)).first() is not None:
                return
        views = {
            camera: Frames(VideoClip(str(path))) for camera, path in self.trials.uploads.files(row.id, part).items()
        }
        try:
            (reward,) = score_together(model, [Episode(f"{row.id}/{part}", row.instruction, views)])
            value, why = (None, reward.why_missing) if math.isnan(reward.final) else (reward.final, "")
        except DemeritError as error:
            value, why = None, str(error)
        with self.database.begin() as db:
            db.execute(sa.insert(MODEL_SCORES).values(**key, value=value, why_missing=why))


def _step(trial: Trial) -> Response:
    return JSONResponse({"step": trial.step})


def _check_id(id: str) -> str:
    if len(id) != 36:  # noqa: PLR2004
        raise NotAllowed(404, "There is no such thing.")
    return id
