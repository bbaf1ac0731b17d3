"""Count the modules of demerit whose functions run in one command: how far a reader has to follow a call.

python tools/trace_modules.py teach demo/lesson -o my-model
"""

from __future__ import annotations

import inspect
import sys
import threading
from types import FrameType
from typing import Any

from demerit.cli import main

modules: set[str] = set()


def is_importing(frame: FrameType | None) -> bool:
    """Whether the frame runs because a module is being imported."""
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


def record_call(frame: FrameType, event: str, _: Any) -> None:
    """Remember the module of a called function. Class bodies and imports do not count."""
    name = frame.f_globals.get("__name__", "")
    if event == "call" and name.startswith("demerit") and name not in modules:
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED and not is_importing(frame):
            modules.add(name)


if __name__ == "__main__":
    sys.setprofile(record_call)
    threading.setprofile(record_call)
    try:
        main()
    finally:
        sys.setprofile(None)
        print(f"{len(modules)} modules:", *sorted(modules), file=sys.stderr)
