"""Which results say of themselves that they failed."""

from __future__ import annotations

from breakloop.dialects.steps import exit_status, result_error
from tests.each import each

LONG = "a line of output\n" * 200


@each(
    "text",
    [
        "<returncode>1</returncode>\n<output>\nno such file\n</output>",
        "Exit code: 2\nWall time: 0.1 seconds\nOutput:\nno",
        "exitcode: 1 (execution failed)\nCode output: oh",
        "Exit code 127\nls: not found",
        "some output\n[The command completed with exit code 1.]",
        "some output\n(exit status 2)",
        f"{LONG}exit status 1",
        f"{LONG}Error: (none)\nExit Code: 1\nSignal: (none)\nBackground PIDs: (none)",
        "Process exited with code 3",
        "Command finished with exit code -9",
        '{"output":"no","metadata":{"exit_code":1,"duration_seconds":0.1}}',
        '{"output":"' + "x" * 1000 + '","metadata":{"exit_code":1}}',
        "Error: order not found",
        "error: no such file",
        "ERROR! Nothing was changed.",
        "Error executing tool read: no",
        "Traceback (most recent call last):\n  File",
        "[error] Traceback (most recent call last):",
        "ValueError: not a number",
        "Call id: call_3\nError:\nCode execution failed",
        "Observation: Error: nothing there",
        "<tool_use_error>File has not been read yet</tool_use_error>",
        "Observed output of cmd `look` executed:\nError: failed",
        '{"error": "not found"}',
        '{"path": "a.py", "error": {"code": 5}}',
        "{'error': 'not found'}",
        '{"isError": true, "content": []}',
        '{"is_error": true}',
        '{"success": false, "message": "no"}',
        '{"status": "error", "reason": "quota"}',
        "success: false",
        "bash: line 1: gh: command not found",
        "/bin/sh: 1: jq: not found\n",
        "zsh: command not found: rg",
        "bash: ./deploy.sh: Permission denied",
        "bash: -c: line 3: syntax error near unexpected token `then'\nbash: -c: line 3: `then'",
    ],
)
def test_failed(text: str) -> None:
    """By exit status, or by the harness's own form at the beginning (LD-4)."""
    assert result_error(text)


@each(
    "text",
    [
        "",
        "ok",
        "<returncode>0</returncode>\n<output>\nTraceback (most recent call last):\n</output>",
        "Exit code: 0\nOutput:\nerror: 3 warnings",
        "3 passed, 2 failed\nE   error: expected 1",
        "src/a.py:3: error: incompatible types\nFound 1 error",
        "The exit code 1 means that nothing was found",
        "def main():\n    return code 1",
        "if bad:\nexit_code = 1",
        f"{LONG}Exit code: 1\n{LONG}",
        f"{LONG}Error: in the middle\n{LONG}",
        "Errors are collected in the file",
        "error handling is done in main",
        '{"error": null, "data": [1]}',
        '{"error": "", "data": [1]}',
        '{"success": true, "error_count": 0}',
        '{"exit_code": 0, "error": "warned"}',
        '{"data": {"error": "of an inner object"}}',
        "HttpErrorHandler: a class",
        "bash: warning: setlocale: LC_ALL: cannot change locale (C.UTF-8)\n12 files",
        "bash: line 1: jq: command not found\nname: a\nsize: 3",
        "sh: a shell of 1977",
        "Exit code: 0\nbash: line 1: jq: command not found",
    ],
)
def test_did_not_fail(text: str) -> None:
    """Words inside of output are no errors (LD-4)."""
    assert not result_error(text)


def test_the_exit_status() -> None:
    assert exit_status("Exit code: 0") == 0
    assert exit_status(f"{LONG}[Command finished with exit code 130]") == 130
    assert exit_status("code of conduct, status of things, exit") is None
    assert exit_status("Error: x") is None
