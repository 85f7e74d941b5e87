"""The only reader of the environment in the library: a program that imports us has no settings file of ours."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

DEFAULT_URL: Final = "http://127.0.0.1:8787"


def gateway_url() -> str:
    """Return where the gateway is: `BREAKLOOP_URL`, without a slash at its end."""
    return (os.environ.get("BREAKLOOP_URL", "").strip() or DEFAULT_URL).rstrip("/")


def shared_secret() -> bytes:
    """Return the key of fingerprints and names (`BREAKLOOP_SECRET`), b"" where there is none."""
    return os.environ.get("BREAKLOOP_SECRET", "").encode()


def named_url() -> str:
    """Return the gateway that `BREAKLOOP_URL` names; "" where it names none."""
    return os.environ.get("BREAKLOOP_URL", "").strip().rstrip("/")


def gateway_token() -> str:
    """Return the key that the gateway knows us by (`BREAKLOOP_TOKEN`); "" where there is none."""
    return os.environ.get("BREAKLOOP_TOKEN", "").strip()


def data_dir() -> Path:
    """Return where things are kept between runs: the same directory that the server would take (SPEC T-2)."""
    named = os.environ.get("BREAKLOOP_DATA_DIR") or os.environ.get("STATE_DIRECTORY", "").split(":")[0]
    if named:
        return Path(named)
    shared = os.environ.get("XDG_DATA_HOME")
    if shared:
        return Path(shared, "breakloop")
    home = os.environ.get("HOME")
    return Path(home, ".local", "share", "breakloop") if home else Path(".breakloop")
