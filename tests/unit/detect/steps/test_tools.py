"""SPEC LD-4: which calls change something."""

from __future__ import annotations

import pytest

from breakloop.detect.steps.tools import changes, is_shell


@pytest.mark.parametrize(("name", "arguments"), [
    ("write_file", "{}"), ("apply_patch", "{}"), ("createIssue", "{}"), ("fileWrite", "{}"), ("book_flight", "{}"),
    ("str_replace_based_edit_tool", '{"command":"insert"}'),
    ("bash", '{"command":"echo a > b.txt"}'), ("bash", '{"command":"sed -i s/a/b/ f"}'), ("shell", '{"command":"git commit -m x"}'),
    ("execute_bash", '{"command":"cat <<EOF > a"}'), ("python", "open('a', 'w').write('x')"),
    ("execute-tool", '{"tool_name": "create_presentation"}'),
])  # fmt: skip
def test_changes(name: str, arguments: str) -> None:
    """LD-4: by name, or by what a shell command does."""
    assert changes(name, arguments)


@pytest.mark.parametrize(("name", "arguments"), [
    ("read_file", "{}"), ("search", '{"q":"write"}'), ("str_replace_based_edit_tool", '{"command":"view"}'),
    ("bash", '{"command":"ls -la 2>&1"}'), ("bash", '{"command":"grep x f >/dev/null"}'), ("bash", '{"command":"python -c \'1 -> 2\'"}'),
    ("execute-tool", '{"tool_name": "list_files"}'), ("get_address", "{}"),
])  # fmt: skip
def test_looks(name: str, arguments: str) -> None:
    """LD-4: reading is no change, whatever the arguments say."""
    assert not changes(name, arguments)


def test_shells() -> None:
    """LD-4: tools that run commands or code."""
    assert is_shell("execute_bash")
    assert is_shell("run_command")
    assert not is_shell("task_done")
    assert not is_shell("publish")
