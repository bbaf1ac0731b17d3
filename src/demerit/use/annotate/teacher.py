"""Teach while people label: a model is taught again after every few labels, in a process of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from demerit.data.episode import Episode
from demerit.data.reward import Reward
from demerit.errors import DemeritError
from demerit.models import RewardModel, load_model
from demerit.models.loading import DESCRIPTION
from demerit.use.annotate.work import Work
from demerit.use.people.database import DatabaseAway

EVERY = 3
"""answers after which a model is taught again"""
FOLDER = "taught"


@dataclass(frozen=True)
class Lesson:
    """What teaching with so many answers gave."""

    answers: int
    title: str
    """the answer to "is it good enough?" in a sentence"""
    is_enough: bool = False
    """time to stop: the model can be trusted, or this camera does not show the difference"""
    text: str = ""
    advice: Sequence[str] = ()
    curve: Sequence[Mapping[str, Any]] = ()
    """how good a model taught with fewer episodes is"""
    next: Sequence[str] = ()
    """episodes that would teach most"""


@dataclass
class Teacher:
    """Teaches from one dataset folder. `notice` after every stored answer; `lesson` is the newest result."""

    dataset: Path
    work: Work
    lesson: Lesson | None = None
    is_teaching: bool = False
    _answers: int = 0
    _wake: threading.Event = field(default_factory=threading.Event)
    _is_ending: bool = False
    _process: subprocess.Popen[str] | None = None
    _model: tuple[int, RewardModel] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def folder(self) -> Path:
        """The model folder that it writes."""
        return self.dataset / FOLDER

    def start(self) -> None:
        """Begin; labels of earlier runs are taught at once."""
        self._thread.start()
        self.notice()

    def stop(self) -> None:
        """End; a lesson that is not finished is dropped and taught again next time."""
        self._is_ending = True
        self._wake.set()
        with self._lock:
            if self._process is not None:
                self._process.terminate()
        self._thread.join()

    def notice(self) -> None:
        """Look whether there are enough new labels."""
        self._wake.set()

    def state(self) -> dict[str, Any]:
        """Return what a page shows."""
        known = None if self.lesson is None else vars(self.lesson)
        return {"answers": self.work.count_answers(str(self.dataset)), "is_teaching": self.is_teaching, "lesson": known}

    def score(self, episode: Episode) -> Reward | None:
        """Return the taught model's reward of an episode; None when there is no model yet."""
        try:
            changed = (self.folder / DESCRIPTION).stat().st_mtime_ns
            if self._model is None or self._model[0] != changed:
                self._model = (changed, load_model(str(self.folder)))
            return self._model[1].score([episode])[0]
        except (OSError, DemeritError):
            return None

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._is_ending:
                return
            with suppress(DatabaseAway):  # the next answer wakes it again
                answers = self.work.count_answers(str(self.dataset))
                if answers >= self._answers + EVERY:
                    self._answers, self.is_teaching = answers, True
                    self.lesson = self._teach(answers) or self.lesson
                    self._wake.set()  # labels may have come in the meantime
            self.is_teaching = False

    def _teach(self, answers: int) -> Lesson | None:
        command = [sys.executable, "-m", "demerit", "teach", f"demerit:{self.dataset}", "-o", str(self.folder)]
        command += ["--no-reader", "--json", "--workers", "1"]
        if nice := shutil.which("nice"):
            command = [nice, "-n", "10", *command]
        with self._lock:
            if self._is_ending:
                return None
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        said, error = self._process.communicate()
        if self._is_ending:
            return None
        if self._process.returncode != 0:
            failed = Lesson(answers, (error.strip().splitlines() or ["Teaching failed"])[-1].removeprefix("demerit: "))
            return self.lesson or failed  # the next labels start another try
        facts = json.loads(said)
        chosen = [suggestion["episode"] for suggestion in facts["label next"]]
        self.work.prefer(str(self.dataset), chosen)
        is_enough = facts["answer"]["kind"] in ("trust it", "this camera cannot see it")
        return Lesson(
            answers, facts["title"], is_enough, facts["text"], facts["advice"], facts["learning curve"], chosen
        )
