"""Small transcripts, written for the tests in the formats of several programs: an agent that is stuck, and one that is
not. `steps` are pairs of a command and what came of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

Record = dict[str, Any]
Step = tuple[str, str]
START = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)
PROMPT = "Make the tests of the parser pass, please."
SECRET = "canary-7f3a"  # stands in prompts and results, and must not come out

STUCK: Sequence[Step] = [("pytest tests/parser", f"ERROR: file not found {SECRET}")] * 14
FINE: Sequence[Step] = [
    ("ls", "parser.py tests README.md setup.cfg"),
    ("cat parser.py", "def parse(text):\n    return text.split()"),
    ("cat tests/test_parser.py", "from parser import parse\n\ndef test_one():\n    assert parse('a b') == ['a', 'b']"),
    ("grep -n version setup.cfg", "3:version = 1.2"),
    ("git log --oneline", "8d2f1c0 Add the parser\n19fa2bb First commit"),
]


def stamp(seconds: float) -> str:
    """Return the time so many seconds after the beginning, as ISO 8601."""
    return (START + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def lines(records: Iterable[Record]) -> str:
    """Return JSON Lines."""
    return "".join(json.dumps(record) + "\n" for record in records)


def write(path: Path, records: Iterable[Record]) -> Path:
    """Write JSON Lines, with the folders above."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(lines(records))
    return path


def claude(steps: Sequence[Step], session: str = "s-1", **common: Any) -> Iterator[Record]:
    """Return the lines of a Claude Code session: a prompt, then for each step an answer in two lines and a result."""
    same = {"sessionId": session, "isSidechain": False, "userType": "external", "version": "2.1.37", **common}
    yield {"type": "file-history-snapshot", "messageId": "m", "snapshot": {}}
    prompt = {"role": "user", "content": f"{PROMPT} {SECRET}"}
    yield {"type": "user", "uuid": f"{session}-u", "parentUuid": None, "timestamp": stamp(0), "message": prompt, **same}
    for number, (command, output) in enumerate(steps):
        yield from claude_turn(session, number, command, output, same)


def claude_turn(session: str, number: int, command: str, output: str, same: Record) -> Iterator[Record]:
    """Return one answer, its text and its call on a line each, and the result of the call."""
    call = f"toolu_{session}_{number}"
    head = {"id": f"msg_{session}_{number}", "type": "message", "role": "assistant", "model": "claude-opus-4-5"}
    usage = {"input_tokens": 10, "cache_read_input_tokens": 900, "cache_creation_input_tokens": 90, "output_tokens": 50}
    blocks = [
        {"type": "text", "text": "I run it."},
        {"type": "tool_use", "id": call, "name": "Bash", "input": {"command": command}},
    ]
    for part, block in enumerate(blocks):
        yield {
            "type": "assistant",
            "uuid": f"{session}-a{number}-{part}",
            "requestId": f"req_{session}_{number}",
            "timestamp": stamp(number * 4 + 1),
            "message": {**head, "content": [block], "usage": usage},
            **same,
        }
    result = {"type": "tool_result", "tool_use_id": call, "content": output, "is_error": output.startswith("ERROR")}
    yield {
        "type": "user",
        "uuid": f"{session}-r{number}",
        "timestamp": stamp(number * 4 + 3),
        "message": {"role": "user", "content": [result]},
        "toolUseResult": {"stdout": output},
        **same,
    }


def run_again(session: str, at_s: float) -> Iterator[Record]:
    """Return the lines of a Claude Code session that reads something and answers, the same each time."""
    same = {"sessionId": session, "isSidechain": False, "version": "2.1.325"}
    usage = {"input_tokens": 1000, "output_tokens": 100}

    def answer(number: int, block: Record) -> Record:
        head = {"id": f"msg_{session}_{number}", "role": "assistant", "model": "claude-opus-4-5", "usage": usage}
        line = {"type": "assistant", "uuid": f"{session}-a{number}", "timestamp": stamp(at_s + 2 * number + 1), **same}
        return {**line, "message": {**head, "content": [block]}}

    def heard(number: int, content: Any) -> Record:
        line = {"type": "user", "uuid": f"{session}-u{number}", "timestamp": stamp(at_s + 2 * number), **same}
        return {**line, "message": {"role": "user", "content": content}}

    yield heard(0, PROMPT)
    yield answer(0, {"type": "tool_use", "id": f"toolu_{session}", "name": "Read", "input": {"file": "parser.py"}})
    yield heard(1, [{"type": "tool_result", "tool_use_id": f"toolu_{session}", "content": "def parse(text): ..."}])
    yield answer(1, {"type": "text", "text": "The tests of the parser pass."})


def rollout(steps: Sequence[Step], session: str = "c-1", **meta: Any) -> Iterator[Record]:
    """Return the lines of a Codex session."""

    def line(kind: str, at_s: float, **payload: Any) -> Record:
        return {"timestamp": stamp(at_s), "type": kind, "payload": payload}

    yield line("session_meta", 0, id=session, cwd="project", originator="codex_cli", cli_version="0.128.0", **meta)
    yield line("turn_context", 0, model="gpt-5-codex", cwd="project")
    said = [{"type": "input_text", "text": f"{PROMPT} {SECRET}"}]
    yield line("response_item", 0, type="message", role="user", content=said)
    yield line("event_msg", 0, type="user_message", message=PROMPT)
    for number, (command, output) in enumerate(steps):
        at_s, call = number * 4.0, f"call_{session}_{number}"
        yield line("response_item", at_s + 1, type="reasoning", summary=[], encrypted_content="x")
        arguments = json.dumps({"cmd": command})
        call_item = {"type": "function_call", "name": "exec_command", "arguments": arguments, "call_id": call}
        yield line("response_item", at_s + 1, **call_item)
        used = {"input_tokens": 1000, "cached_input_tokens": 900, "output_tokens": 50, "reasoning_output_tokens": 20}
        total = {name: value * (number + 1) for name, value in used.items()}
        info = {"last_token_usage": used, "total_token_usage": total, "model_context_window": 258400}
        yield line("event_msg", at_s + 2, type="token_count", info=info)
        status = 1 if output.startswith("ERROR") else 0
        shown = f"Process exited with code {status}\nOutput:\n{output}"
        yield line("response_item", at_s + 3, type="function_call_output", call_id=call, output=shown)


def openhands(steps: Sequence[Step]) -> Iterator[Record]:
    """Return events of OpenHands 0.x."""
    yield {"id": 0, "timestamp": stamp(0), "source": "agent", "action": "system", "args": {"content": "You are."}}
    said = {"content": f"{PROMPT} {SECRET}"}
    yield {"id": 1, "timestamp": stamp(0), "source": "user", "action": "message", "args": said}
    for number, (command, output) in enumerate(steps):
        call = {
            "id": f"call_{number}",
            "function": {"name": "execute_bash", "arguments": json.dumps({"command": command})},
        }
        response = {
            "id": f"chatcmpl-{number}",
            "model": "claude-sonnet-4",
            "choices": [{"message": {"role": "assistant", "content": "", "tool_calls": [call]}}],
            "usage": {"prompt_tokens": 1000, "completion_tokens": 50, "prompt_tokens_details": {"cached_tokens": 900}},
        }
        told = {"function_name": "execute_bash", "tool_call_id": call["id"], "model_response": response}
        at = {"timestamp": stamp(number * 4 + 1), "tool_call_metadata": told}
        action = {"id": 2 + number * 2, "source": "agent", "action": "run", "args": {"command": command, "thought": ""}}
        yield action | at
        extras = {"command": command, "metadata": {"exit_code": 1 if output.startswith("ERROR") else 0}}
        yield {"id": 3 + number * 2, "source": "agent", "observation": "run", "content": output, "extras": extras} | {
            "cause": 2 + number * 2, "timestamp": stamp(number * 4 + 3), "tool_call_metadata": told,
        }  # fmt: skip


def openhands_sdk(steps: Sequence[Step]) -> Iterator[Record]:
    """Return events of OpenHands' software agent SDK."""
    text = [{"type": "text", "text": f"{PROMPT} {SECRET}"}]
    yield {"kind": "SystemPromptEvent", "id": "e0", "source": "agent", "timestamp": stamp(0), "tools": []}
    message = {"role": "user", "content": text}
    yield {"kind": "MessageEvent", "id": "e1", "source": "user", "timestamp": stamp(0), "llm_message": message}
    for number, (command, output) in enumerate(steps):
        call = {"id": f"toolu_{number}", "name": "terminal", "arguments": json.dumps({"command": command})}
        same = {"tool_name": "terminal", "tool_call_id": call["id"]}
        at = {
            "id": f"a{number}",
            "timestamp": stamp(number * 4 + 1),
            "source": "agent",
            "llm_response_id": f"r{number}",
        }
        yield {"kind": "ActionEvent", "thought": [], "tool_call": call, "action": {}, **same, **at}
        seen = {"content": [{"type": "text", "text": output}], "is_error": output.startswith("ERROR")}
        at = {
            "id": f"o{number}",
            "timestamp": stamp(number * 4 + 3),
            "source": "environment",
            "action_id": f"a{number}",
        }
        yield {"kind": "ObservationEvent", "observation": seen, **same, **at}


def trajectory(steps: Sequence[Step]) -> Record:
    """Return a trajectory of SWE-agent with calls of functions."""
    history: list[Record] = [
        {"role": "system", "content": "You program.", "agent": "main", "message_type": "system_prompt"},
        {"role": "user", "content": f"{PROMPT} {SECRET}", "agent": "main", "message_type": "observation"},
    ]
    for number, (command, output) in enumerate(steps):
        function = {"name": "bash", "arguments": json.dumps({"command": command})}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        history += [
            {"role": "assistant", "content": "I run it.", "action": command, "agent": "main", "tool_calls": [call]},
            {"role": "tool", "content": output, "agent": "main", "tool_call_ids": [call["id"]]},
        ]
    settings = json.dumps({"agent": {"model": {"name": "gpt-5"}}})
    return {"history": history, "trajectory": [], "info": {"exit_status": "exit_cost"}, "replay_config": settings}


def conversation(steps: Sequence[Step]) -> Record:
    """Return a whole conversation in OpenAI's form, as for fine-tuning."""
    messages: list[Record] = [{"role": "user", "content": f"{PROMPT} {SECRET}"}]
    for number, (command, output) in enumerate(steps):
        function = {"name": "bash", "arguments": json.dumps({"command": command})}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": output},
        ]
    return {"messages": [*messages, {"role": "assistant", "content": "I give up."}]}
