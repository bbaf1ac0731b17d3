"""Accelerate keeps precision and device per process, so every test here starts without them."""

from fakes.accelerate_state import fresh_accelerator  # noqa: F401
