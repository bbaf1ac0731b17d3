"""Count the modules of demerit whose functions run in one command: a measure of how far a reader has to follow a call.

python tools/trace_modules.py teach demo/lesson -o /tmp/model
"""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

from demerit.cli import main

modules: set[str] = set()


def record_call(frame: FrameType, event: str, _: Any) -> None:
    """Remember the module of a called function; importing a module does not count."""
    name = frame.f_globals.get("__name__", "")
    if event == "call" and name.startswith("demerit") and frame.f_code.co_name != "<module>":
        modules.add(name)


if __name__ == "__main__":
    sys.setprofile(record_call)
    threading.setprofile(record_call)
    try:
        main()
    finally:
        sys.setprofile(None)
        print(f"{len(modules)} modules:", *sorted(modules), file=sys.stderr)
