"""The check for a compiler."""

from __future__ import annotations

import pytest

from demerit.errors import PerformanceWarning
from demerit.models.vlm.kernels import can_compile


def test_a_machine_without_triton_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.warns(PerformanceWarning, match="triton"):
        assert not can_compile()
