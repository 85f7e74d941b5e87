"""How the interpreter is set for a process that serves."""

from __future__ import annotations

import gc
import sys

import pytest

from breakloop.app.build import GC_THRESHOLD, tune


@pytest.mark.slow
def test_garbage_is_collected_rarely_and_threads_take_turns_often() -> None:
    """What is made at the start is not looked at again (Q-1)."""
    before, switching = gc.get_threshold(), sys.getswitchinterval()
    gc.unfreeze()  # what the tests import, see conftest.py
    try:
        tune()
        assert gc.get_threshold() == GC_THRESHOLD
        assert sys.getswitchinterval() < 0.001
        assert gc.get_freeze_count() > 0
    finally:
        gc.set_threshold(*before)
        sys.setswitchinterval(switching)
