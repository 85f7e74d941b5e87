"""What checks deploy/: Helm, the schemas of Kubernetes and Compose, a linter for Dockerfiles. They live in an environment
of their own (scripts/install-apart.sh), which tests reach by starting its programs."""

from __future__ import annotations

import json
import subprocess
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
    command = [tool("python"), str(Path(__file__).with_name("in_tools.py"))]
    done = subprocess.run(
        command, input=json.dumps(question), capture_output=True, text=True, check=False, timeout=_WITHIN_S
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def yaml_documents(text: str) -> list[Any]:
    """Read a YAML text of several documents; empty ones are left out."""
    return [document for document in YAML(typ="safe", pure=True).load_all(text) if document is not None]


def wrong_for_kubernetes(documents: list[Any]) -> list[str]:
    """What the API server of the oldest and of the newest version that we know would refuse."""
    found: list[str] = ask({"do": "validate", "documents": documents, "versions": ["1.27", "1.37"]})
    return found
