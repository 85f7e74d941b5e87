"""Claude Code's hooks as data: what an event says, and what is answered to it, in the JSON that Claude Code documents.

Pure, and light to import. Who judges is left to others: `claude_agent` inside of a program, `hook_session` for a
command that is started anew for every event.

What a hook remembers of a session between two calls of the command: calls that are blocked, cooldowns, the window of
the detector. One small file a session, locked while it is open; no text of a prompt or a result is ever in it.

Judging is `hook_judge`'s. A file that cannot be read counts as new.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

from breakloop.model.call import ToolFailedError, marked
from breakloop.model.verdict import Decision
from breakloop.store.ops import FingerprintSpec

PROMPT: Final = "UserPromptSubmit"
BEFORE: Final = "PreToolUse"
AFTER: Final = "PostToolUse"
FAILED: Final = "PostToolUseFailure"
END: Final = "SessionEnd"
EVENTS: Final = (PROMPT, BEFORE, AFTER, FAILED)

STOP_AFTER: Final = 3  # blocks in a row, until the run is ended

# What a tool's answer holds that is another each time, and says nothing.
_VOLATILE: Final = re.compile(r"duration|elapsed|timestamp|Ms$|_ms$").search

Json = dict[str, Any]


class HookEvent(NamedTuple):
    """One event, as far as it matters here."""

    kind: str
    session: str
    agent: str = ""  # of a sub-agent, by its id
    tool: str = ""
    arguments: Any = None
    call_id: str = ""
    result: str = ""
    failed: bool = False
    prompt: str = ""

    @property
    def made(self) -> tuple[str, Any]:
        """The call."""
        return self.tool, self.arguments

    @property
    def owner(self) -> str:
        """Whose steps these are: the session, and within it the sub-agent."""
        return f"{self.session}:{self.agent}" if self.agent else self.session

    @property
    def outcome(self) -> str | ToolFailedError:
        """What the call returned, in the form in which steps are told."""
        return ToolFailedError(self.result) if self.failed else self.result


def read(sent: Mapping[str, Any]) -> HookEvent:
    """Return an event; what is missing, or is not what it should be, is empty."""
    kind = _text(sent, "hook_event_name")
    failed = kind == FAILED
    return HookEvent(
        kind,
        _text(sent, "session_id"),
        _text(sent, "agent_id"),
        _text(sent, "tool_name"),
        sent.get("tool_input"),
        _text(sent, "tool_use_id"),
        _text(sent, "error") if failed else shown(sent.get("tool_response")) if kind == AFTER else "",
        failed,
        _text(sent, "prompt"),
    )


def shown(response: Any) -> str:
    """Return what a tool answered as one text, about as the model reads it."""
    if isinstance(response, str):
        return response
    if isinstance(response, dict):
        if isinstance(response.get("stdout"), str):
            said = [
                response["stdout"],
                _text(response, "stderr"),
                "(interrupted)" if response.get("interrupted") else "",
            ]
            return "\n".join(filter(None, said))
        if isinstance(response.get("content"), list):
            response = response["content"]
    if isinstance(response, list) and all(isinstance(block, dict) for block in response):
        return "\n".join(_text(block, "text") or _json(block) for block in response)
    return _json(response)


def spelled(arguments: Any) -> str:
    """Return a call's arguments in one spelling."""
    return arguments if isinstance(arguments, str) else _json(arguments, steady=False)


def before(decision: Decision, strikes: int, stop_after: int = STOP_AFTER) -> Json:
    """Return the answer to `PreToolUse`: a blocked call is denied with its reason, which the model reads."""
    if decision.allowed:
        return {}
    denied = {
        "hookEventName": BEFORE,
        "permissionDecision": "deny",
        "permissionDecisionReason": decision.notice,
    }
    return {**_stopped(decision, strikes, stop_after), "hookSpecificOutput": denied}


def after(kind: str, decision: Decision, strikes: int, stop_after: int = STOP_AFTER) -> Json:
    """Return the answer to `PostToolUse` and its like: the tool has run; the model is told what it repeats."""
    if decision.allowed and not decision.notice:
        return {}
    told = {"hookEventName": kind, "additionalContext": marked(decision.notice)}
    stopped = {} if decision.allowed else _stopped(decision, strikes, stop_after)
    return {**stopped, "hookSpecificOutput": told}


def prompted(decision: Decision) -> Json:
    """Return the answer to `UserPromptSubmit`: people may repeat themselves, but not go on where they are held."""
    if decision.allowed or decision.is_loop:
        return {}
    return {"decision": "block", "reason": decision.notice}


def in_shadow(answer: Json) -> Json:
    """Return an answer that changes nothing, and tells the person (not the model) what would have been said."""
    if not answer:
        return {}
    inner = answer.get("hookSpecificOutput", {})
    said = inner.get("permissionDecisionReason") or inner.get("additionalContext") or answer.get("reason", "")
    does = (
        "stop" if "continue" in answer else "block" if "permissionDecision" in inner or "decision" in answer else "tell"
    )
    return {"systemMessage": f"breakloop (shadow) would {does}: {said}"}


def _stopped(decision: Decision, strikes: int, stop_after: int) -> Json:
    """A model that goes on all the same is stopped; so is at once whoever is denied for another reason than a loop."""
    if decision.is_loop and (not stop_after or strikes < stop_after):
        return {}
    return {"continue": False, "stopReason": f"breakloop stopped this run. {decision.notice}"}


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def _json(value: Any, *, steady: bool = True) -> str:
    kept = _steady(value) if steady else value
    return json.dumps(kept, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=repr)


def _steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _steady(one)
            for name, one in value.items()
            if not (isinstance(one, int | float) and _VOLATILE(str(name)))
        }
    return [_steady(one) for one in value] if isinstance(value, list) else value


VERSION: Final = 1
KEPT_S: Final = 24 * 3600.0  # files that nobody has touched for so long are deleted
_HELD_MAX: Final = 64
_HOLD_S: Final = 30.0  # where a denial does not say how long
_LOCK_TRIES: Final = 100
_LOCK_WAIT_S: Final = 0.01
_SUFFIX: Final = ".session"


class HookSession:
    """One session, as it is remembered."""

    def __init__(self, fields: dict[str, Any], window: bytes) -> None:
        self.window = window
        self.steps = int(fields.get("steps", 0))
        self.size = int(fields.get("size", 0))
        self.strikes = int(fields.get("strikes", 0))  # blocks in a row
        # A call's digest -> its denial, and until when; a loop -> until, seconds, whether it has passed since.
        self.held = {name: {**one, "until": float(one["until"])} for name, one in fields.get("held", {}).items()}
        self.cooling = {name: [float(part) for part in one] for name, one in fields.get("cooling", {}).items()}

    def before(self, call: str, now: float) -> Decision:
        """Return what is decided about a call that is about to be made: denied where it is blocked."""
        held = self.held.get(call)
        if held is None:
            return Decision()
        left_s = held["until"] - now
        if left_s <= 0:
            del self.held[call]
            return Decision()
        self.strikes += 1
        denial = {name: value for name, value in held.items() if name != "until"}
        return Decision(**{**denial, "allowed": False, "cooldown_seconds": max(1, round(left_s))})

    def after(self, call: str, decision: Decision, now: float) -> None:
        """Take note of what was decided about a call that has been made: blocked, it is not made again."""
        if decision.allowed:
            if not decision.notice:
                self.strikes = 0
            return
        self.strikes += 1
        wait_s = decision.cooldown_seconds or decision.retry_after or _HOLD_S
        self.held[call] = {
            "until": now + wait_s,
            "reason": decision.reason,
            "status": decision.status,
            "message": decision.message,
            "kind": decision.kind,
            "hit_count": decision.hit_count,
            "fingerprint": decision.fingerprint,
            "evidence": decision.evidence,
        }

    def asked(self) -> None:
        """A person has said something: whatever was blocked may be tried again."""
        self.strikes = 0
        self.held.clear()

    def cooldown(self, loop: str, spec: FingerprintSpec, now: float) -> float:
        """Return how long a loop stays blocked that is seen again; 0: this time it passes, for once."""
        until, before_s, passed = self.cooling.get(loop, (0.0, 0.0, 0.0))
        if now < until:
            return until - now
        is_remembered = until and now < until + spec.cooldown_max_s
        if is_remembered and not passed:
            self.cooling[loop] = [until, before_s, 1.0]
            return 0.0
        cooldown_s = spec.next_cooldown_s(before_s if is_remembered else None)
        self.cooling[loop] = [now + cooldown_s, cooldown_s, 0.0]
        return cooldown_s

    def dump(self, now: float) -> bytes:
        """Return it as a file has it: a line of JSON, then the window."""
        held = dict(sorted(self.held.items(), key=lambda one: -one[1]["until"])[:_HELD_MAX])
        cooling = dict(sorted(self.cooling.items(), key=lambda one: -one[1][0])[:_HELD_MAX])
        fields = {
            "v": VERSION,
            "steps": self.steps,
            "size": self.size,
            "strikes": self.strikes,
            "held": {name: one for name, one in held.items() if one["until"] > now},
            "cooling": cooling,
        }
        return json.dumps(fields, separators=(",", ":")).encode() + b"\n" + self.window


def load(data: bytes) -> HookSession:
    """Return the session in a file; a new one where it cannot be read."""
    line, _, window = data.partition(b"\n")
    try:
        fields = json.loads(line) if line else {}
        if isinstance(fields, dict) and fields.get("v") == VERSION:
            return HookSession(fields, window)
    except (AttributeError, KeyError, TypeError, ValueError):
        pass  # half a file, or somebody else's
    return HookSession({}, b"")


def digest(call: tuple[str, str], secret: bytes) -> str:
    """Return what stands for a call (its name, and its arguments in one spelling) in a file."""
    matter = "\0".join(call).encode("utf-8", "surrogatepass")
    return blake2b(matter, digest_size=16, key=secret[:64]).hexdigest()


@contextmanager
def opened(folder: Path, owner: str, now: float) -> Iterator[HookSession]:
    """Open the session of an owner for reading and writing, and for nobody else meanwhile. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(_file(folder, owner), os.O_RDWR | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "r+b", buffering=0) as file:
        _lock(file.fileno())
        session = load(file.read())
        yield session
        data = session.dump(now)
        file.seek(0)
        file.truncate()
        file.write(data)


def forget(folder: Path, owner: str, now: float) -> None:
    """Drop a session that has ended, and those that were left behind."""
    _file(folder, owner).unlink(missing_ok=True)
    for file in folder.glob(f"*{_SUFFIX}"):
        with suppress(OSError):
            if now - file.stat().st_mtime > KEPT_S:
                file.unlink()


def _file(folder: Path, owner: str) -> Path:
    name = blake2b(owner.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
    return folder / f"{name}{_SUFFIX}"


def _lock(descriptor: int) -> None:
    """Wait for another hook of the same session, but not for ever: tools that run side by side end side by side."""
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOCK_WAIT_S)  # noqa: TID251 - a process of its own, with nothing else to do
        else:
            return
    raise TimeoutError("another hook holds the session")
