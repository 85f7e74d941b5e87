"""The real Claude Code and its Agent SDK, from their own environment (requirements/claude.txt), against the stand-in
LLM: where they are, and the environment in which they ask nobody else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from breakloop.testing import Answer, SeenRequest, call_tool, say
from tests.e2e.served import SRC
from tests.programs import missing

PYTHON = SRC.parent / ".cache" / "claude" / "bin" / "python"
MODEL = "claude-sonnet-4-5"
COMMAND = "cat missing.txt; echo done"  # what a stuck agent does, again and again
LAND: dict[str, object] = {
    "bundle_version": 1,
    "policies": [],
    "defaults": {"loop_detection": {"similarity": "steps", "ladder": {"block": "land"}}},
}
MOST = 20  # requests, after which even a stuck agent gives up


def installed() -> Path:
    """Return the Python of that environment; absent, the test is skipped, or fails where it must be there (CI)."""
    if not PYTHON.exists():
        missing("`make apart-claude` installs what is missing")
    return PYTHON


def command_line() -> str:
    """Return the path of the command `claude`, which is in the SDK's package."""
    (found,) = installed().parent.parent.glob("lib/python*/site-packages/claude_agent_sdk/_bundled/claude")
    return str(found)


def environment(home: Path, url: str) -> dict[str, str]:
    """Return an environment in which all there is to talk to is the stand-in."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "CLAUDE_CODE_TMPDIR": str(home),  # it leaves a folder for each project
        "PYTHONPATH": str(SRC),
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "sk-canary-claude",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",  # it may run as root
        **{name: value for name, value in os.environ.items() if name.startswith("COVERAGE_")},
    }


def agent(arguments: Callable[[int], dict[str, str] | None]) -> Callable[[SeenRequest], Answer | None]:
    """Return a model that calls Bash with what `arguments` says of a turn, and is done when it says nothing."""

    def respond(request: SeenRequest) -> Answer | None:
        if not request.path.endswith("/messages") or not request.fields.get("tools"):
            return None
        turn = sum(message["role"] == "assistant" for message in request.fields["messages"])
        made = arguments(turn) if turn < MOST else None
        return say("All done.") if made is None else call_tool("Bash", made, tool_id=f"toolu_{turn:010}")

    return respond


def stuck(turn: int) -> dict[str, str]:
    """The same again."""
    return {"command": COMMAND, "description": "Look at the file"}


def healthy(turn: int) -> dict[str, str] | None:
    """Six steps, each with something new."""
    return {"command": f"echo chapter {turn} has {turn * 31} words", "description": "Read"} if turn < 6 else None


def told(requests: list[SeenRequest]) -> list[str]:
    """What the model was shown after each of its calls."""
    last = [request.fields["messages"][-1] for request in requests if request.fields.get("tools")]
    return [str(message["content"]) for message in last[1:]]


def obedient(request: SeenRequest) -> Answer | None:
    """Stuck, until it reads that it is to answer."""
    read = agent(stuck)(request)
    return say("What I have.") if read and "tools are switched off" in str(request.fields["messages"][-1]) else read
