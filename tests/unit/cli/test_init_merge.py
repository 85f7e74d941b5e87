"""Our hooks among those of others."""

from __future__ import annotations

import json
import re

import pytest

from breakloop.cli.init import MergeError, merged, texts
from breakloop.integrations.claude_code import COMMAND_EVENTS, END
from scripts.gen_docs import ROOT

OURS = texts("claude-code")[".claude/settings.json"]
MINE = {"matcher": "Bash", "hooks": [{"type": "command", "command": "mine.sh"}]}


def test_ours_are_those_that_are_answered() -> None:
    """Every event that the command answers, and no other (P-3)."""
    assert set(json.loads(OURS)["hooks"]) == {*COMMAND_EVENTS, END}


@pytest.mark.parametrize("there", ["", "{}"])
def test_into_an_empty_file(there: str) -> None:
    """Into an empty file: all of ours (P-3)."""
    assert json.loads(merged(there, OURS)) == json.loads(OURS)


def test_what_is_there_stays() -> None:
    """Settings and hooks of others, in front of ours (P-3)."""
    there = {"permissions": {"allow": ["Bash(ls)"]}, "hooks": {"PreToolUse": [MINE], "Stop": [MINE]}, "ä": 1}
    made = json.loads(merged(json.dumps(there), OURS))
    assert (made["permissions"], made["ä"]) == ({"allow": ["Bash(ls)"]}, 1)
    assert made["hooks"]["PreToolUse"][0] == MINE
    assert len(made["hooks"]["PreToolUse"]) == 2
    assert made["hooks"]["Stop"] == [MINE]


def test_twice_is_once() -> None:
    """Byte for byte the same, also where somebody has tuned the command (P-3)."""
    once = merged(json.dumps({"hooks": {"PreToolUse": [MINE]}}), OURS)
    assert merged(once, OURS) == once
    for command in ("/opt/bin/breakloop", "'/opt/my bin/breakloop'", '\\"/opt/my bin/breakloop\\"'):
        tuned = once.replace("breakloop hook claude-code", f"{command} hook claude-code --shadow")
        assert merged(tuned, OURS) == tuned


@pytest.mark.parametrize("there", ["{", "[]", '{"hooks": []}', '{"hooks": {"PreToolUse": {}}}'])
def test_what_is_no_settings_file(there: str) -> None:
    """It is not touched (P-3)."""
    with pytest.raises(MergeError):
        merged(there, OURS)


def test_the_same_stands_in_the_example_and_on_the_page() -> None:
    """Whoever copies it gets what `init` writes (P-3)."""
    assert (ROOT / "examples/claude-code/settings.json").read_text(encoding="utf-8") == OURS
    page = (ROOT / "docs/how-to/claude-code-hooks.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert json.loads(block) == json.loads(OURS)
