"""The arena's pages: a site's trial step by step, the owner's checks, the public results, and the relay to policies."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from demerit.errors import DemeritError
from demerit.models import RewardModel
from demerit.people.accounts import Accounts, NotAllowed
from demerit.people.arena.results import (
    compute_results,
    make_dump,
    read_verdict,
    score_trials,
    tell_agreement,
    write_dump,
)
from demerit.people.arena.trials import ADDRESS, ROLLOUTS, Trials
from demerit.people.arena.uploads import CAMERAS, LARGEST_PIECE, LOG
from demerit.people.database import Database
from demerit.people.guard import ANYBODY, Asked, Guard, show, show_to
from demerit.web.server import LARGEST_MESSAGE

SITES, OWNERS = ("site",), ("owner",)
LOOK_AGAIN = 60.0
"""seconds until trials are looked at again without a new one"""
CONNECTIONS, TURN_SECONDS = 4, 1.0
"""connections of robots to a policy in a trial, and how often each looks whether it is still the policy's turn"""
RUBRIC = {
    "0": "It did nothing for the task, or made it worse.",
    "25": "It went to the right object and touched it.",
    "50": "It did half of the steps, for example it holds the object.",
    "75": "All but the last step, or a result that is not quite right.",
    "100": "Done: a person would leave it like this.",
}
"""how much of the task was done, in percent"""
CHECKLIST = (
    "An emergency stop is within reach of a person who watches the robot.",
    "Nobody is inside the robot's reach, and nothing there can be damaged.",
    "Speed and force limits of the robot are on.",
)


class ArenaApp:
    """What each path answers."""

    def __init__(
        self, database: Database, folder: Path, models: Sequence[RewardModel] = (), is_secure: bool = False
    ) -> None:
        """Make the routes; `start` begins to score trials with the models.

        Uploads go to `folder`. Browsers reach it by HTTPS if `is_secure`.
        """
        self.database, self.accounts = database, Accounts(database)
        self.trials, self.models = Trials(database, folder), models
        self.guard = Guard(self.accounts, is_secure)
        self._dump = lru_cache(maxsize=1)(lambda *_: make_dump(self.trials, [model.card for model in models]))
        self._compute = lru_cache(maxsize=1)(lambda *version: compute_results(self._dump(*version)))
        self._new, self._is_ending, self._scored = threading.Event(), False, 0
        self._scorer = threading.Thread(target=self._score_trials, daemon=True)
        self._connected = Counter[str]()
        """robots that are connected, by trial; only the relay's event loop uses it"""
        add = self.guard.add
        add("GET", "/", ANYBODY, self.home)
        add("GET", "/results.json", ANYBODY, self.dump)
        add("GET", "/trial", SITES, self.begin)
        add("GET", "/trials/{id}", SITES, self.show_trial)
        add("POST", "/trials/{id}/describe", SITES, self.describe)
        add("POST", "/trials/{id}/reset", SITES, self.confirm_reset)
        add("POST", "/trials/{id}/judge", SITES, self.judge)
        add("POST", "/trials/{id}/uploads", SITES, self.begin_upload)
        add("PUT", "/uploads/{id}/{start:number}", SITES, self.add_piece)
        add("POST", "/trials/{id}/another", SITES, self.add_policy)
        add("GET", "/trials/{id}/photo", SITES, self.photo)
        add("GET", "/trials/{id}/{part}/{camera}.mp4", SITES, self.own_video)
        add("GET", "/check", OWNERS, self.show_checks)
        add("POST", "/check/{id}", OWNERS, self.exclude)
        add("GET", "/check/{id}/{part}/{camera}.mp4", OWNERS, self.video)
        add("GET", "/check/{id}/{part}/log", OWNERS, self.log)
        add("POST", "/evaluation", OWNERS, self.close)
        add("POST", "/sites/invite", OWNERS, self.invite)
        self.guard.app.router.routes.append(WebSocketRoute("/trials/{id}/policy/{part}", self.relay))

    def start(self) -> None:
        """Remove what a killed server left, score what is not scored yet, and new trials as they end."""
        self.trials.uploads.remove_left_over()
        self._scorer.start()
        self._new.set()

    def stop(self) -> None:
        """Stop scoring; the trial that is being scored is scored again next time."""
        self._is_ending = True
        self._new.set()
        if self._scorer.is_alive():
            self._scorer.join()
        self.trials.uploads.decoder.close()

    # Everybody

    def home(self, asked: Asked) -> Response:
        """Show the results if the evaluation is closed, else how many trials there are."""
        results = self._compute(*self._version()) if self.trials.is_closed() else None
        count = self.trials.count()
        return show("arena.html.j2", me=asked.person, count=count, results=results, tell=tell_agreement)

    def dump(self, asked: Asked) -> Response:
        """Send everything that the results are computed from."""
        if not self.trials.is_closed():
            raise NotAllowed(404, "The results are published when the owner closes the evaluation.")
        return Response(write_dump(self._dump(*self._version())), media_type="application/json")

    # Sites

    def begin(self, asked: Asked) -> Response:
        """Go on with the open trial, or begin one."""
        return RedirectResponse(f"/trials/{self.trials.start(asked.me)}", 303)

    def show_trial(self, asked: Asked, id: str) -> Response:
        """Show the step that a trial is at."""
        trial = self.trials.find(asked.me, id)
        files = {part: self.trials.uploads.list_arrived(id, part) for part in ("photo", *ROLLOUTS)}
        base = str(asked.request.base_url).replace("http", "ws", 1)
        parts = {"trial": trial, "done": files, "cameras": CAMERAS, "checklist": CHECKLIST, "piece": LARGEST_PIECE}
        policy = self.trials.policy_now(id, trial["step"])
        if ADDRESS.fullmatch(policy):
            policy = f"{base}trials/{id}/policy/{trial['step']}"
        is_closed = self.trials.is_closed()
        return show_to(asked.me, "trial.html.j2", **parts, policy=policy, rubric=RUBRIC, is_closed=is_closed)

    def describe(self, asked: Asked, id: str) -> Response:
        """Take the instruction and the safety checklist."""
        message = asked.json()
        ticked = message.get("checklist")
        is_safe = isinstance(ticked, list) and len(ticked) == len(CHECKLIST) and all(tick is True for tick in ticked)
        self.trials.describe(asked.me, id, str(message.get("instruction", "")), is_safe)
        return self._send_step(asked, id)

    def confirm_reset(self, asked: Asked, id: str) -> Response:
        """Take the word that the scene looks like the photo."""
        self.trials.confirm_reset(asked.me, id)
        return self._send_step(asked, id)

    def judge(self, asked: Asked, id: str) -> Response:
        """Take the judgement, and end the trial."""
        self.trials.judge(asked.me, id, asked.json())
        self._new.set()
        return self._send_step(asked, id)

    def add_policy(self, asked: Asked, id: str) -> Response:
        """Go on with another policy on the same scene."""
        return RedirectResponse(f"/trials/{self.trials.add_policy(asked.me, id)}", 303)

    def _send_step(self, asked: Asked, id: str) -> Response:
        return JSONResponse({"step": self.trials.find(asked.me, id)["step"]})

    def begin_upload(self, asked: Asked, id: str) -> Response:
        """Announce a file."""
        message = asked.json()
        part, camera = str(message.get("part")), str(message.get("camera", "left"))
        return JSONResponse(self.trials.begin_upload(asked.me, id, part, camera, message.get("size", 0)))

    def add_piece(self, asked: Asked, id: str, start: int) -> Response:
        """Take a piece of a file."""
        return JSONResponse(self.trials.uploads.add(asked.me, _check_id(id), start, asked.body))

    def photo(self, asked: Asked, id: str) -> Response:
        """Show the scene that the second rollout must start from."""
        self.trials.find(asked.me, id)
        path = self.trials.uploads.path(id, "photo")
        if path is None:
            raise NotAllowed(404, "There is no photo yet.")
        return asked.send_file(path, "image/jpeg")

    def own_video(self, asked: Asked, id: str, part: str, camera: str) -> Response:
        """Show a rollout to the site that sent it."""
        self.trials.find(asked.me, id)
        return self.video(asked, id, part, camera)

    async def relay(self, socket: WebSocket) -> None:
        """Pass messages between a site's robot and a policy, so that the site never learns which policy it is.

        Who knows the id of an open trial may use it; ids are random, and published only after the evaluation. The
        connection ends with the policy's turn.
        """
        id, part = socket.path_params["id"], socket.path_params["part"]

        async def find_address() -> str:
            policy = await asyncio.to_thread(self.trials.policy_now, id, part)
            return policy if ADDRESS.fullmatch(policy) else ""

        origin = socket.headers.get("origin")
        is_foreign = origin is not None and origin.partition("://")[2] != socket.headers.get("host")
        address = "" if is_foreign else await find_address()
        if not address or self._connected[id] >= CONNECTIONS:
            error = f"There is no policy for you now, or {CONNECTIONS} connections to it are open."
            await socket.send_denial_response(JSONResponse({"error": error}, 403))
            return
        self._connected[id] += 1
        try:
            await socket.accept()
            async with connect(address, max_size=LARGEST_MESSAGE) as policy:

                async def pass_on() -> None:
                    while (message := await socket.receive())["type"] == "websocket.receive":
                        await policy.send(message["bytes"] if message.get("bytes") is not None else message["text"])

                async def pass_back() -> None:
                    async for message in policy:
                        await (socket.send_bytes(message) if isinstance(message, bytes) else socket.send_text(message))

                async def wait_for_the_end() -> None:
                    while await find_address() == address:
                        await asyncio.sleep(TURN_SECONDS)

                tasks = [asyncio.create_task(job()) for job in (pass_on, pass_back, wait_for_the_end)]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        except (OSError, WebSocketException, WebSocketDisconnect, RuntimeError):
            pass  # the policy's server or the robot is gone; its address stays hidden
        finally:
            self._connected -= Counter([id])  # one that is 0 is forgotten
        with suppress(RuntimeError):
            await socket.close(1011, "the policy cannot be reached now")

    # Owners

    def show_checks(self, asked: Asked, link: str = "") -> Response:
        """Show every trial with what is doubtful about it."""
        scores = {row["id"]: _name_scores(row) for row in self._dump(*self._version())["trials"]}
        rows = [
            (row, self.trials.doubts(row), self._list_files(row.id), scores.get(row.id, []))
            for row in self.trials.rows()
        ]
        return show_to(asked.me, "check.html.j2", rows=rows[::-1], link=link, is_closed=self.trials.is_closed())

    def _list_files(self, id: str) -> dict[str, list[str]]:
        return {part: self.trials.uploads.list_arrived(id, part) for part in ROLLOUTS}

    def close(self, asked: Asked) -> Response:
        """Close the evaluation, or go on with it."""
        self.trials.close(asked.me, asked.form().get("state") == "closed")
        return RedirectResponse("/check", 303)

    def exclude(self, asked: Asked, id: str) -> Response:
        """Leave a trial out, or let it count again."""
        self.trials.exclude(asked.me, id, asked.form().get("reason", ""))
        return RedirectResponse("/check", 303)

    def video(self, asked: Asked, id: str, part: str, camera: str) -> Response:
        """Show a rollout."""
        path = self.trials.uploads.files(_check_id(id), part).get(camera)
        if path is None or part == "photo":
            raise NotAllowed(404, "There is no such video.")
        return asked.send_file(path, "video/mp4")

    def log(self, asked: Asked, id: str, part: str) -> Response:
        """Send what a robot logged; the browser saves it."""
        path = self.trials.uploads.path(_check_id(id), part, LOG)
        if path is None:
            raise NotAllowed(404, "There is no such log.")
        response = asked.send_file(path, "application/octet-stream")
        response.headers["Content-Disposition"] = f'attachment; filename="{part}.log"'
        return response

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
            for model in self.models:
                with suppress(DemeritError):  # no database, a model's server that is away: tried again
                    for _ in score_trials(self.trials, model):
                        self._scored += 1
                        if self._is_ending:
                            return

    def _version(self) -> tuple[int, ...]:
        """Return numbers that differ whenever the results may differ."""
        return (*self.trials.version(), self._scored)


def _name_scores(row: Mapping[str, Any]) -> list[str]:
    """Return what each model says about the two rollouts of a trial."""
    lines = []
    for name, verdicts in row["model_verdicts"].items():
        values = {part: "" if value is None else f"{value:.3f}, " for part, value in row["models"][name].items()}
        words = (f"{part} {values[part]}{read_verdict(facts)}" for part, facts in verdicts.items())
        lines.append(f"{name}: {'; '.join(words)}")
    return lines


def _check_id(id: str) -> str:
    if len(id) != 36:  # noqa: PLR2004
        raise NotAllowed(404, "There is no such thing.")
    return id
