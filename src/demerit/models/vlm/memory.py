"""Running out of memory as a sentence that says what to do, not as a page of the allocator's."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from demerit.errors import OutOfMemory

ON_THE_PROCESSOR = "can't allocate memory"
"""how torch begins to say it where there is no GPU"""


@contextmanager
def within_memory(what: str) -> Iterator[None]:
    """Turn an out-of-memory error inside the block into demerit's; every other error passes.

    The tensors of the failed attempt are let go, so that a caller may catch the error and try something smaller.
    """
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        detail = _detail(error)
        # the traceback holds every local tensor of the frames that failed; without this they outlive the attempt
        traceback.clear_frames(error.__traceback__)
        failed = OutOfMemory(what, detail)
    else:
        return
    # outside the handler, so that the old error (and what it holds) is not kept as this one's context
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    raise failed


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or on the processor."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and ON_THE_PROCESSOR in str(error)


def _detail(error: BaseException) -> str:
    """Keep the allocator's figures (the first two sentences), not its advice about its own settings."""
    sentences = " ".join(str(error).split()).removeprefix("CUDA out of memory. ").split(". ")
    return ". ".join(sentences[:2]).rstrip(".") or type(error).__name__
