"""Where the system's programs are that tests start: nginx, redis-server and the like."""

from __future__ import annotations

import os
import shutil

import pytest

_SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/opt/nginx/sbin")


def found(name: str) -> str | None:
    """Look for a program, also where only root's PATH looks."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *_SBIN])
    named = os.environ.get(f"BREAKLOOP_TESTS_{name.upper().replace('-', '_')}")
    return named or shutil.which(name, path=path)


def program(name: str, *, required: bool = True) -> str:
    """Find a program; absent, the test is skipped, or fails where every program is `required` (CI)."""
    path = found(name)
    if path:
        return path
    message = f"{name} is not installed; `sh scripts/install-system.sh {name}` installs it"
    if required and (os.environ.get("CI") or os.environ.get("TESTS_COMPLETE")):
        pytest.fail(message)
    pytest.skip(message)
