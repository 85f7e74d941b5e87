"""`breakloop release`."""

from __future__ import annotations

import json

import pytest

from breakloop.cli.main import run
from tests.fake_admin import fake_admin

PATH = "POST /agents/code-fixer/release"


def test_an_agent(capsys: pytest.CaptureFixture[str]) -> None:
    """An agent (G-1, T-2)."""
    with fake_admin() as admin:
        admin.answers[PATH] = {"released": [{}, {}], "loops": 1, "shared": True}
        assert run(["release", "code-fixer", "--project", "blue", *admin.args]) == 0
        assert admin.asked == [(f"{PATH}?project=blue", {})]
    assert capsys.readouterr().out == "code-fixer is released: 2 holds ended, 1 blocked loop cleared\n"


def test_a_caller_and_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    """What binds a caller or a run (G-1)."""
    path = "POST /quarantine/release"
    with fake_admin() as admin:
        admin.answers[path] = {"released": [{}], "loops": 0, "shared": False}
        assert run(["release", "--caller", "key:1", *admin.args]) == 0
        assert run(["release", "a", "--run", "r1", *admin.args]) == 0
        assert [body for _, body in admin.asked] == [
            {"agent": "", "caller": "key:1", "run": ""},
            {"agent": "a", "caller": "", "run": "r1"},
        ]
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "key:1 is released: 1 hold ended"
    assert said[1].startswith("note: other instances are unreachable")


def test_one_that_was_not_held(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_admin() as admin:
        admin.answers[PATH] = {"released": [], "loops": 0, "shared": True}
        assert run(["release", "code-fixer", *admin.args]) == 0
        admin.answers[PATH] = {"released": [], "loops": 2, "shared": True}
        assert run(["release", "code-fixer", *admin.args]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "code-fixer was neither quarantined nor blocked; its loop counters are cleared",
        "code-fixer is released: 2 blocked loops cleared",
    ]


def test_whom(capsys: pytest.CaptureFixture[str]) -> None:
    """Whom: exit code 3 (X-3)."""
    assert run(["release", "--url", "http://127.0.0.1:1", "--token", "t"]) == 3
    assert "give an AGENT, --caller, --run or --tree" in capsys.readouterr().err


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_admin() as admin:
        admin.answers[PATH] = {"released": [], "loops": 0, "shared": True}
        assert run(["release", "code-fixer", "--json", *admin.args]) == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True, "released": [], "loops": 0, "shared": True}
