"""Marks while a robot runs: presses of keys, and HTTP calls, appended to a log beside any recorder.

A press is on disk before it is shown or answered. Whatever goes wrong here never ends the recorder.
"""

from __future__ import annotations

import errno
import json
import os
import re
import select
import signal
import subprocess
import termios
import threading
import time
import tty
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from demerit.data.files import parse_json, sync_path
from demerit.data.formats.label_file import LabelRow, read_rows
from demerit.data.formats.marks import WORDS, Mark, apply_undos, read_mark
from demerit.errors import BadInput, DemeritError, WriteError
from demerit.web.doors import welcome
from demerit.web.server import has_token, make_app, read_body, refusal

KEYS = dict(zip("sfr u", WORDS, strict=True))
SEQUENCES = re.compile(r"\x1b(?:\[[0-9;]*[ -/]*[@-~]|O.|.)?", re.DOTALL)
"""what arrows, function keys and Alt send: their letters are no keys of ours"""
REPEAT = 0.7
"""seconds within which the same key again means that it, or the pedal, is held down"""
LOOK = 0.1
"""seconds between two looks at the command"""
LARGEST_BODY = 4096
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class MarkLog:
    """A log of marks, which only grows: a crash or a power cut loses at most the press that was being written."""

    def __init__(self, path: Path, name: str, on_mark: Callable[[Mark], None] = lambda mark: None) -> None:
        """Open or begin a log; `name` is who marks, `on_mark` is called after each press."""
        _, self.name = read_mark({"mark": "undo", "by": name})
        self.path, self.marks, self._on_mark = path, list[Mark](), on_mark
        self._run, self._lock, self._between = uuid.uuid4().hex[:8], threading.Lock(), b""
        _check_log(path)
        try:
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            sync_path(path.resolve().parent)
            size = os.fstat(self._file).st_size
            if size and os.pread(self._file, 1, size - 1) != b"\n":
                self._between = b"\n"  # the line that a crash has torn stays a line of its own
        except OSError as error:
            raise WriteError(path, error.strerror or str(error), "Nothing was marked.") from error

    def add(self, word: str, by: str = "") -> Mark | None:
        """Append a mark; return it when it is on disk. None = there is nothing to undo. Raises WriteError."""
        with self._lock:
            moment = datetime.now(UTC)
            mark = Mark(word, moment.timestamp(), by or self.name, self._run)
            marks = apply_undos([*self.marks, mark])
            if len(marks) == len(self.marks):
                return None
            facts = {"mark": word, "at": moment.isoformat(timespec="microseconds"), "monotonic": time.monotonic()}
            line = json.dumps({**facts, "by": mark.by, "run": mark.run}, ensure_ascii=False).encode() + b"\n"
            try:
                if os.write(self._file, self._between + line) < len(self._between + line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(self._file)
            except OSError as error:
                self._between = b"\n"
                raise WriteError(self.path, error.strerror or str(error), f"This {word} is not saved.") from error
            self.marks, self._between = marks, b""
        self._on_mark(mark)
        return mark


def _check_log(path: Path) -> None:
    """Refuse a file of somebody else: nothing is appended to it."""
    if path.suffix.lower() != ".jsonl":
        raise BadInput("--log", "a file that ends in .jsonl", repr(str(path)))
    if not path.is_file():
        return
    rows = (row for row in read_rows(path) if isinstance(row, LabelRow))
    if strange := next((row for row in rows if not {"mark", "at"} <= row.fields.keys()), None):
        raise BadInput(str(path), "a log of demerit mark, or a new file", f"{strange.where}, which is no mark")


class KeyReader:
    """Turns what a terminal sends into keys; a key that is held down counts once."""

    def __init__(self) -> None:
        self._last, self._at = "", 0.0

    def read(self, content: bytes, now: float) -> Iterator[str]:
        """Yield the keys in what was read at `now`, in seconds."""
        for key in SEQUENCES.sub("", content.decode("utf-8", "ignore")).lower():
            is_repeated = key == self._last and now - self._at < REPEAT
            self._last, self._at = key, now
            if not is_repeated:
                yield key


@contextmanager
def open_keys() -> Iterator[bool]:
    """Read the terminal key by key in this block; yield whether there is one and it is ours."""
    try:
        is_ours = os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        is_ours = False
    if not is_ours:
        yield False
        return
    before = termios.tcgetattr(0)
    tty.setcbreak(0)
    mode = termios.tcgetattr(0)
    mode[6][termios.VSUSP] = b"\0"  # Ctrl-Z would stop the marks and not the robot
    termios.tcsetattr(0, termios.TCSANOW, mode)
    try:
        yield True
    finally:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(0, termios.TCSADRAIN, before)


def mark_while(
    command: Sequence[str], has_keys: bool, on_key: Callable[[str], None], on_end: Callable[[int], None]
) -> int:
    """Read keys while a command runs, or without one until Ctrl-C or q; return the command's exit code.

    The command is in a process group of its own, with an empty stdin; Ctrl-C, SIGTERM and SIGHUP are passed on to it,
    once each. When it has ended by itself, `on_end` is called and the last verdict is waited for, until q or Ctrl-C.
    """
    child: subprocess.Popen[bytes] | None = None
    is_stopped, is_over, keys = False, not command, KeyReader()

    def stop(number: int, _: Any) -> None:
        nonlocal is_stopped
        is_stopped = True
        if child is not None and child.returncode is None:
            with suppress(ProcessLookupError, PermissionError):  # it has just ended
                os.killpg(child.pid, number)

    before = {number: signal.signal(number, stop) for number in INTERRUPTS}
    try:
        if command:
            child = _start(command)
        while not (is_over and (is_stopped or (child is not None and not has_keys))):
            if not is_over and child is not None and child.poll() is not None:
                is_over = True
                if has_keys and not is_stopped:
                    on_end(_exit_code(child))
            if not has_keys:
                time.sleep(LOOK)
            elif select.select([0], [], [], LOOK)[0]:
                content = _read_terminal()
                has_keys = bool(content)
                for key in keys.read(content, time.monotonic()):
                    is_stopped = is_stopped or (is_over and key == "q")
                    on_key(key)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0 if child is None else _exit_code(child)


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput("--while", "a command that can be run", f"{command[0]!r} ({reason})") from error


def _exit_code(child: subprocess.Popen[bytes]) -> int:
    """The exit code as a shell gives it."""
    code = child.wait()
    return code if code >= 0 else 128 - code


def _read_terminal() -> bytes:
    """Read what was pressed; nothing = the terminal is gone."""
    try:
        return os.read(0, 1024)
    except OSError:
        return b""


def mark_app(log: MarkLog, token: str | None) -> Starlette:
    """Answer POST /mark. A page of another site cannot call it: browsers ask first before they send JSON elsewhere."""

    async def add(request: Request) -> Response:
        try:
            if not has_token(request.headers, token):
                raise HTTPException(401, "expected this server's token in a Bearer header")
            welcome(request)
            if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
                raise HTTPException(415, "expected the content type application/json")
            word, by = read_mark(parse_json(bytes(await read_body(request, LARGEST_BODY)), "the mark"))
            mark = await run_in_threadpool(log.add, word, by)
            if mark is None:
                raise HTTPException(409, "there is nothing to undo")
        except WriteError as error:
            return JSONResponse({"error": str(error)}, 507)
        except (HTTPException, DemeritError) as error:
            status, sentence = refusal(error)
            return JSONResponse({"error": sentence}, status)
        return JSONResponse({"mark": mark.word, "at": mark.at, "by": mark.by})

    return make_app([Route("/mark", add, methods=["POST"])])
