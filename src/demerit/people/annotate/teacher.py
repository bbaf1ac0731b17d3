"""Teach while people label: a model is taught again after every few labels, in a process of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from demerit.data.episode import Episode
from demerit.data.reward import Reward
from demerit.errors import DemeritError
from demerit.models import RewardModel, load_model
from demerit.models.loading import DESCRIPTION
from demerit.people.annotate.work import Work
from demerit.people.database import DatabaseAway

EVERY = 3
"""answers after which a model is taught again"""
FOLDER = "taught"


@dataclass
class Teacher:
    """Teaches from one dataset folder. `notice` after every stored answer."""

    dataset: Path
    work: Work
    lesson: dict[str, Any] | None = None
    """the newest result: answers, title ("is it good enough?"), is_enough (time to stop), text, advice, curve"""
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
        answers = self.work.count_answers(str(self.dataset))
        return {"answers": answers, "is_teaching": self.is_teaching, "lesson": self.lesson}

    def score(self, episode: Episode) -> Reward | None:
        """Return the taught model's reward of an episode; None when there is no model yet."""
        try:
            time = (self.folder / DESCRIPTION).stat().st_mtime_ns
            if self._model is None or self._model[0] != time:
                self._model = (time, load_model(str(self.folder)))
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

    def _teach(self, answers: int) -> dict[str, Any] | None:
        command = [sys.executable, "-m", "demerit", "teach", f"demerit:{self.dataset}", "-o", str(self.folder)]
        command += ["--no-reader", "--json", "--workers", "1"]
        if nice := shutil.which("nice"):
            command = [nice, "-n", "10", *command]
        with self._lock:
            if self._is_ending:
                return None
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        output, error = self._process.communicate()
        if self._is_ending:
            return None
        if self._process.returncode != 0:
            title = (error.strip().splitlines() or ["Teaching failed"])[-1].removeprefix("demerit: ")
            nothing = {"is_enough": False, "text": "", "advice": [], "curve": []}
            return self.lesson or {"answers": answers, "title": title, **nothing}  # the next labels start another try
        facts = json.loads(output)
        self.work.prefer(str(self.dataset), [suggestion["episode"] for suggestion in facts["label next"]])
        is_enough = facts["answer"]["kind"] not in ("label more", "not yet measurable")
        lesson = {name: facts[name] for name in ("title", "text", "advice")}
        return {**lesson, "answers": answers, "is_enough": is_enough, "curve": facts["learning curve"]}
