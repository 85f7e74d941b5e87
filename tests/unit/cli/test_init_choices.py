"""What `breakloop init --for` knows: files that are what they seem, and three commands each."""

from __future__ import annotations

import ast
import json

import pytest

from breakloop.cli.init import CHOICES, MERGED, PLAIN, TEMPLATES, texts
from breakloop.policy.documents import read_document
from scripts.gen_docs import GATEWAYS, ROOT

DEFAULT = "http://127.0.0.1:8787"


@pytest.mark.parametrize("name", CHOICES)
def test_files_can_be_read(name: str) -> None:
    """Python, JSON and YAML are valid; clients go to where breakloop listens (P-4)."""
    found = texts(name)
    assert found
    for path, text in found.items():
        if path.endswith(".py"):
            ast.parse(text)
        elif path.endswith(".json"):
            json.loads(text)
        elif path.endswith(".yaml"):
            read_document(text.encode(), path)
    if CHOICES[name].template != "gateway" and name not in {"docker", "kubernetes"}:
        assert DEFAULT in "".join(found.values())


@pytest.mark.parametrize("name", GATEWAYS)
def test_gateways_get_what_is_tested(name: str) -> None:
    """The files of examples/, in a folder of their own, without the page and the policy (P-4)."""
    folder = ROOT / "examples" / name
    own = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    assert texts(name) == {
        f"{name}/{file}": text for file, text in own.items() if file not in {"README.md", "policy.yaml"}
    }
    assert CHOICES[name].folder == name
    command, _ = CHOICES[name].commands[-1]
    assert command.startswith(name)


@pytest.mark.parametrize("name", CHOICES)
def test_three_commands(name: str) -> None:
    """Test, run, use (X-3)."""
    commands = [line for line, _ in CHOICES[name].commands]
    assert len(commands) == len(PLAIN) == 3
    assert commands[0] == "breakloop test policy-test.yaml"
    assert CHOICES[name].template in TEMPLATES
    for file in texts(name):
        if file not in MERGED and file.endswith(
            (".py", "settings.json", "litellm.yaml", "mcp.json", "values.yaml", "Caddyfile")
        ):
            assert any(file in line for line in commands), file
