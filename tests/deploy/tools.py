"""What checks deploy/: Helm, the schemas of Kubernetes and Compose, a linter for Dockerfiles. They live in an environment
of their own (scripts/install-apart.sh), which tests reach by starting its programs."""

from __future__ import annotations

import atexit
import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests.programs import missing

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
_FOLDER = ROOT / ".cache" / "deploy"
_WITHIN_S = 60


def tool(name: str) -> str:
    """Where a program of that environment is; absent, the test is skipped, or fails where everything is required."""
    path = _FOLDER / "bin" / name
    if (_FOLDER / ".lock").is_file():
        return str(path)
    return missing("`make apart-deploy` installs what is missing")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a program and return what it said."""
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_WITHIN_S)


def ask(question: dict[str, Any]) -> Any:
    """Let `in_tools.py` answer, over there."""
    process = _answering()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(question) + "\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


@cache
def _answering() -> subprocess.Popen[str]:
    """One process for all questions of this one, because its imports take longer than an answer."""
    command = [tool("python"), str(Path(__file__).with_name("in_tools.py"))]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(process.communicate)
    return process


def yaml_documents(text: str) -> list[Any]:
    """Read a YAML text of several documents; empty ones are left out."""
    return [document for document in YAML(typ="safe", pure=True).load_all(text) if document is not None]


def wrong_for_kubernetes(documents: list[Any]) -> list[str]:
    """What the API server of the oldest and of the newest version that we know would refuse."""
    found: list[str] = ask({"do": "validate", "documents": documents, "versions": ["1.27", "1.37"]})
    return found
