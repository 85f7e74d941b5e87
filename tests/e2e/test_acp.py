"""`breakloop acp -- COMMAND` between a client and an agent of the `agent-client-protocol` package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.environments import program_of, variables
from tests.e2e.served import SRC

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).with_name("acp_program.py")
CALLS = 30  # of a turn that nobody ends


def edited(folder: Path, prompts: str, *flags: str) -> tuple[list[dict[str, Any]], str]:
    """What a client gets for each prompt, and what is on standard error."""
    python = program_of("semantic-kernel")
    agent = [python, str(PROGRAM), "agent"]
    done = subprocess.run(
        [python, str(PROGRAM), "client", prompts, sys.executable, "-m", "breakloop", "acp", *flags, "--", *agent],
        env=variables(folder, PYTHONPATH=str(SRC)),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout), done.stderr


def test_a_loop_ends_the_turn(tmp_path: Path) -> None:
    """The agent is cancelled and the client told why; the next turn begins anew, and thirty different calls pass. An agent
    that asks before each call is not permitted one more (P-3, LD-4)."""
    (loop, work, ask, again), log = edited(tmp_path, "loop,work,ask,loop")
    for outcome in (loop, ask, again):
        assert outcome["stopped"] == "max_turn_requests"
        assert 5 <= outcome["calls"] < CALLS
        assert "The turn has ended. Blocked: `execute` returned the same 8 bytes 5 times in a row." in outcome["text"]
        assert outcome["meta"]["breakloop/detail"]["error"] == "recursive_loop_detected"
    assert (ask["calls"], ask["asked"]) == (6, 5)
    assert work == {"stopped": "end_turn", "calls": CALLS, "asked": 0, "text": "Done.", "meta": None}
    assert "breakloop: You repeat yourself: `execute` returned the same 8 bytes 3 times in a row." in log


def test_shadow_mode_only_tells(tmp_path: Path) -> None:
    """On standard error (P-3)."""
    (loop,), log = edited(tmp_path, "loop", "--shadow")
    assert loop == {"stopped": "end_turn", "calls": CALLS, "asked": 0, "text": "Done.", "meta": None}
    assert "breakloop (shadow) would have responded: Blocked: `execute` returned the same 8 bytes" in log


def test_a_kill_switch_holds(tmp_path: Path) -> None:
    """The prompt does not reach the agent (P-3, K-2)."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "bundle_version: 1\npolicies: []\nkill_switches: [{scope_key: agent:id, scope_value: nightly, reason: now}]\n"
    )
    (loop,), _ = edited(tmp_path, "loop", "--policy", str(policy), "--agent", "nightly")
    assert (loop["stopped"], loop["calls"]) == ("refusal", 0)
    assert "The turn has ended." in loop["text"]
