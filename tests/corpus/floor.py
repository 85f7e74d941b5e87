"""What is wrong with the detectors today, by session or by scenario, with the reason. These lists may get shorter, never
longer: a session that is judged correctly has to be removed, and the numbers below have to be lowered with it."""

from __future__ import annotations

from typing import Final

# Loops that are not found.
KNOWN_MISSED: Final = {
    "commands_that_differ_in_a_comment": "comments are part of a command, and a line of noise is a new line",
    "mcp_same_call/mcp-unnamed": "`steps` needs a session; without a name there is none for MCP, `tail` counts instead",
    "mcp_same_call_slowly": "six seconds are the most between two calls of a storm, and 60 s hold too few for `tail`",
}

# Healthy sessions that are blocked.
KNOWN_BLOCKED: Final = {
    "first_turns_of_people_without_names": "nothing in the requests distinguishes people behind one key",
    "judge_after_each_step/gemini": "calls have no ids in this dialect, so a judge's question after the same results"
    " is a new step of the session, with the same text each time",
    "story_in_simple_words": "after some chapters, few words are new, and the chapters look alike as sets of words",
}

# The number of sessions in each list, and the least number of sessions that are judged correctly.
SESSIONS_MISSED: Final = 4
SESSIONS_BLOCKED: Final = 5
LOOPS_FOUND: Final = 299
HEALTHY_PASSED: Final = 339


def reason(known: dict[str, str], session_id: str) -> str | None:
    """Return why a session is in a list, by its id or by its scenario; None if it is not."""
    return known.get(session_id) or known.get(session_id.partition("/")[0])
