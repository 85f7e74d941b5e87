"""Frameworks that do not fit beside ours have an environment each (requirements/NAME.txt, .cache/NAME): programs of it are
started with our source on their path."""

from __future__ import annotations

import os
from pathlib import Path

from tests.e2e.served import SRC
from tests.programs import missing

CACHE = SRC.parent / ".cache"


def program_of(environment: str, name: str = "python") -> str:
    """Where a program of it is; absent, the test is skipped, or fails where every environment is required."""
    folder = CACHE / environment
    if (folder / ".lock").is_file():
        return str(folder / "bin" / name)
    return missing(f"`make apart-{environment}` installs what is missing")


def variables(home: Path, **more: str) -> dict[str, str]:
    """The environment variables for such a program: no proxies, keys or settings of whoever runs the tests, and nothing
    that it would send to its makers."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "SYSTEMROOT") if name in os.environ}
    temporary = home / "tmp"  # some leave files there
    temporary.mkdir(parents=True, exist_ok=True)
    quiet = {
        "CREWAI_DISABLE_TELEMETRY": "true",
        "CREWAI_STORAGE_DIR": str(home / "crewai"),
        "CREWAI_TRACING_ENABLED": "false",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OTEL_SDK_DISABLED": "true",
    }
    return {**kept, "HOME": str(home), "TMPDIR": str(temporary), "PYTHONPATH": str(SRC), **quiet, **more}
