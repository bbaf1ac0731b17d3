"""A fixture for tests that train in this process."""

from collections.abc import Iterator

import pytest
import torch
from accelerate.state import AcceleratorState  # type: ignore[import-untyped]


@pytest.fixture(autouse=True)
def fresh_accelerator() -> Iterator[None]:
    """Accelerate keeps precision and device per process; torch's threads mostly wait on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    AcceleratorState._reset_state(reset_partial_state=True)
