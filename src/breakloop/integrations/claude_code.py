"""Claude Code's hooks: the events that it sends, the answers that it takes (both as in its documentation), and the
session file in which `breakloop hook` keeps what it needs from one event to the next. Internal.

Light to import, because `breakloop hook` is a new process for each event. Deciding is left to `GatewayHookBackend`, to
`claude_code_local` or, inside a program, to `claude_agent`.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from urllib.parse import urlsplit

from breakloop.clock import Clock, SystemClock
from breakloop.model.decision import Decision, ToolFailedError, marked
from breakloop.sdk.context import AgentContext, data_dir, gateway_token, shared_secret
from breakloop.store.data_dir import DataDir

if TYPE_CHECKING:
    from breakloop.store.ops import FingerprintSpec

PROMPT: Final = "UserPromptSubmit"
BEFORE: Final = "PreToolUse"
AFTER: Final = "PostToolUse"
FAILED: Final = "PostToolUseFailure"
COMPACT: Final = "PreCompact"
STARTED: Final = "SubagentStart"
STOPPED: Final = "SubagentStop"
END: Final = "SessionEnd"
EVENTS: Final = (PROMPT, BEFORE, AFTER, FAILED)
COMMAND_EVENTS: Final = (*EVENTS, COMPACT, STARTED, STOPPED)  # a program with a `Guard` has no use for the last ones
AGENT_TOOLS: Final = frozenset(("Task", "Agent"))  # start a sub-agent
AGENTS: Final = "agents"  # instead of the digest of a call: every call that starts a sub-agent

STOP_AFTER: Final = 3  # blocks in a row that end a run
_TIMEOUT_S: Final = 1.0  # the agent waits for the hook
_AUTOMATIC: Final = "auto"  # a compaction that nobody asked for
# Stands for the summary, which the event does not have: the detector counts it as a cut of the context.
COMPACTED: Final = "The work is continued from a previous conversation."

# Fields of a tool's response that differ each time and mean nothing.
_VOLATILE: Final = r"duration|elapsed|timestamp|Ms$|_ms$"  # compiled when it is needed, which is not for each event

Json = dict[str, Any]


class HookEvent(NamedTuple):
    """The fields of an event that matter here."""

    kind: str
    session: str
    agent: str = ""  # the id of a sub-agent
    tool: str = ""
    arguments: Any = None
    call_id: str = ""
    result: str = ""
    failed: bool = False
    prompt: str = ""
    agent_type: str = ""

    @property
    def tree(self) -> str:
        """The owner of what is known about all sub-agents of the session."""
        return f"{self.session}:*"

    @property
    def owner(self) -> str:
        """The session and, within it, the sub-agent that the step belongs to."""
        return f"{self.session}:{self.agent}" if self.agent else self.session

    @property
    def outcome(self) -> str | ToolFailedError:
        """The result of the call, as `Run.step` takes it."""
        return ToolFailedError(self.result) if self.failed else self.result

    @property
    def arguments_text(self) -> str:
        return self.arguments if isinstance(self.arguments, str) else _json(self.arguments)


class HookBackend(Protocol):
    def decide(self, session: HookSession, event: HookEvent, now: float) -> Decision:
        """Decide about a call that was made, with its result, or about what a person wrote."""
        ...

    def started(self, tree: HookSession, event: HookEvent, now: float) -> Decision:
        """Decide about a sub-agent that has started. A denial means that no more may start."""
        ...

    def stopped(self, tree: HookSession, event: HookEvent, now: float) -> None:
        """Record that a sub-agent has ended."""
        ...


class GatewayHookBackend:
    """Asks a gateway. Each event is a request with one step in it, because the gateway keeps the window of the session.
    Raises what `RemoteBackend` raises."""

    def __init__(self, url: str, token: str, agent: str) -> None:
        # Loaded here, because `PreToolUse` and the local backend do not need them.
        self._backend = import_module("breakloop.sdk.remote_backend").RemoteBackend(url, token, _TIMEOUT_S)
        self._requests = import_module("breakloop.sdk.requests")
        self._agent = agent

    def decide(self, session: HookSession, event: HookEvent, now: float) -> Decision:  # noqa: ARG002
        # Two sessions with the same steps must not be taken for one, so each opens with its name.
        transcript = self._requests.Transcript("claude-code", f"Session {event.owner}")
        if event.kind in (PROMPT, COMPACT):
            body = transcript.add([], [], "", event.prompt)
        else:
            body = transcript.add([(event.tool, event.arguments_text)], [event.outcome], "", "")
        return self._ask(event, body)

    def started(self, tree: HookSession, event: HookEvent, now: float) -> Decision:  # noqa: ARG002
        return self._ask(event, self._requests.Transcript("claude-code", f"Session {event.owner}").opening())

    def stopped(self, tree: HookSession, event: HookEvent, now: float) -> None:  # noqa: ARG002
        """Send a request that says that the agent has ended."""
        transcript = self._requests.Transcript("claude-code", f"Session {event.owner}")
        self._ask(event, transcript.add([], [], "Done.", ""), {"x-agent-ended": b"1"})

    def _ask(self, event: HookEvent, body: bytes, more: Mapping[str, bytes] = MappingProxyType({})) -> Decision:
        try:
            parent = event.session if event.agent else ""
            call = self._requests.chat_call(body, AgentContext(self._agent, event.owner, parent))
            call.replace_body(body, {**call.headers, **more})
            decision: Decision = self._backend.decide(call)
        finally:
            self._backend.close()
        return decision


def read(sent: Mapping[str, Any]) -> HookEvent:
    """Return an event. Fields that are missing or of another type are empty."""
    kind = _text(sent, "hook_event_name")
    failed = kind == FAILED
    return HookEvent(
        kind,
        _text(sent, "session_id"),
        _text(sent, "agent_id"),
        _text(sent, "tool_name"),
        sent.get("tool_input"),
        _text(sent, "tool_use_id"),
        _text(sent, "error") if failed else response_text(sent.get("tool_response")) if kind == AFTER else "",
        failed,
        COMPACTED if kind == COMPACT else _text(sent, "prompt"),
        _text(sent, "agent_type"),
    )


def is_counted(sent: Mapping[str, Any]) -> bool:
    """Tell whether an event is one that the command decides about. A compaction that a person asked for is not."""
    kind = sent.get("hook_event_name")
    if kind in (STARTED, STOPPED):
        return bool(_text(sent, "agent_id"))
    return kind in COMMAND_EVENTS and (kind != COMPACT or sent.get("trigger") == _AUTOMATIC)


def response_text(response: Any) -> str:
    """Return the response of a tool as one text, about as the model reads it."""
    if isinstance(response, str):
        return response
    if isinstance(response, dict):
        if isinstance(response.get("stdout"), str):
            interrupted = "(interrupted)" if response.get("interrupted") else ""
            return "\n".join(filter(None, (response["stdout"], _text(response, "stderr"), interrupted)))
        if isinstance(response.get("content"), list):
            response = response["content"]
    if isinstance(response, list) and all(isinstance(block, dict) for block in response):
        return "\n".join(_text(block, "text") or _json(_steady(block)) for block in response)
    return _json(_steady(response))


def answer_to(kind: str, decision: Decision, strikes: int = 0, stop_after: int = STOP_AFTER) -> Json:
    """Return the answer to an event. Before a call, a denial blocks it, and so does landing, because the model is to
    answer without tools. After it, the model reads what it repeats."""
    if kind == PROMPT:  # a person may repeat a prompt, but not continue a run that is held
        return {} if decision.allowed or decision.is_loop else {"decision": "block", "reason": decision.notice}
    blocks = blocks_call(kind, decision)
    if not blocks and (kind == BEFORE or not decision.notice):
        return {}
    if kind == COMPACT:  # the model does not read answers to it
        if decision.allowed:
            return {"systemMessage": f"breakloop: {decision.notice}"}
        return {"continue": False, "stopReason": f"breakloop stopped this run. {decision.notice}"}
    if kind == BEFORE:
        output = {"permissionDecision": "deny", "permissionDecisionReason": decision.notice}
    else:
        output = {"additionalContext": marked(decision.notice)}
    stopped = _stopped(decision, strikes, stop_after) if blocks else {}
    return {**stopped, "hookSpecificOutput": {"hookEventName": kind, **output}}


def blocks_call(kind: str, decision: Decision) -> bool:
    """Tell whether a decision is a block, of which a number in a row ends the run."""
    return not decision.allowed or (decision.landed and kind == BEFORE)


def shadow_answer(answer: Json) -> Json:
    """Return an answer that changes nothing, and shows the user, not the model, what would have been answered."""
    if not answer:
        return {}
    inner = answer.get("hookSpecificOutput", {})
    text = inner.get("permissionDecisionReason") or inner.get("additionalContext") or answer.get("reason")
    text = text or answer.get("stopReason") or answer.get("systemMessage", "")
    does = (
        "stop" if "continue" in answer else "block" if "permissionDecision" in inner or "decision" in answer else "tell"
    )
    return {"systemMessage": f"breakloop (shadow) would {does}: {text}"}


def _stopped(decision: Decision, strikes: int, stop_after: int) -> Json:
    """End the run after too many blocks in a row, or at once if the denial is not for a loop."""
    if (decision.is_loop or decision.landed) and (not stop_after or strikes < stop_after):
        return {}
    return {"continue": False, "stopReason": f"breakloop stopped this run. {decision.notice}"}


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=repr)


def _steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _steady(one)
            for name, one in value.items()
            if not (isinstance(one, int | float) and re.search(_VOLATILE, str(name)))
        }
    return [_steady(one) for one in value] if isinstance(value, list) else value


VERSION: Final = 1
KEPT_S: Final = 24 * 3600.0  # older files are deleted
_BLOCKED_MAX: Final = 64
_BLOCK_S: Final = 30.0  # if the denial has no time
_DENIAL_FIELDS: Final = ("reason", "status", "message", "kind", "hit_count", "fingerprint", "evidence")
_LOCK_TRIES: Final = 100
_LOCK_WAIT_S: Final = 0.01
_SUFFIX: Final = ".session"


class HookSession:
    """What is kept of a session between two events: the detector's window, blocked calls and cooldowns. No text of a
    prompt or a result is in it.

    Unlike a `Run`, a hook cannot check a call again before it is made, so a block lasts until its time is over.
    """

    def __init__(self, fields: dict[str, Any], window: bytes) -> None:
        self.window = window
        self.steps = int(fields.get("steps", 0))
        self.size = int(fields.get("size", 0))
        self.strikes = int(fields.get("strikes", 0))  # blocks in a row
        self.landing = str(fields.get("landing", ""))  # the note of a run that is to answer without tools
        # By digest of the call: its denial, and until when it is blocked.
        self.held = {name: {**one, "until": float(one["until"])} for name, one in fields.get("held", {}).items()}
        # By loop: the end and the length of its cooldown, and whether it has passed once since.
        self.cooling = {name: [float(part) for part in one] for name, one in fields.get("cooling", {}).items()}

    def before(self, call: str, now: float) -> Decision:
        """Decide about a call that is about to be made: denied if it is blocked, landed if no more are to be made."""
        if self.landing:
            self.strikes += 1
            return Decision(note=self.landing, landed=True)
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
        """Record the decision about a call that was made; a denial blocks it, and landing blocks every call."""
        if decision.landed:
            self.landing = decision.note
        if decision.allowed:
            if not decision.notice:
                self.strikes = 0
            return
        self.strikes += 1
        wait_s = decision.cooldown_seconds or decision.retry_after or _BLOCK_S
        self.held[call] = {"until": now + wait_s, **{name: getattr(decision, name) for name in _DENIAL_FIELDS}}

    def unblock(self) -> None:
        """Let every call be tried again, because a person has replied."""
        self.strikes = 0
        self.landing = ""
        self.held.clear()

    def cooldown(self, loop: str, spec: FingerprintSpec, now: float) -> float:
        """Return how long a detected loop stays blocked. 0: it passes once, because its cooldown is over."""
        until, before_s, passed = self.cooling.get(loop, (0.0, 0.0, 0.0))
        if now < until:
            return until - now
        is_recent = until and now < until + spec.cooldown_max_s
        if is_recent and not passed:
            self.cooling[loop] = [until, before_s, 1.0]
            return 0.0
        cooldown_s = spec.next_cooldown_s(before_s if is_recent else None)
        self.cooling[loop] = [now + cooldown_s, cooldown_s, 0.0]
        return cooldown_s

    def dump(self, now: float) -> bytes:
        """Return the content of the session file: a line of JSON, then the window."""
        held = dict(sorted(self.held.items(), key=lambda one: -one[1]["until"])[:_BLOCKED_MAX])
        cooling = dict(sorted(self.cooling.items(), key=lambda one: -one[1][0])[:_BLOCKED_MAX])
        fields = {
            "v": VERSION,
            "steps": self.steps,
            "size": self.size,
            "strikes": self.strikes,
            "landing": self.landing,
            "held": {name: one for name, one in held.items() if one["until"] > now},
            "cooling": cooling,
        }
        return json.dumps(fields, separators=(",", ":")).encode() + b"\n" + self.window


def load(data: bytes) -> HookSession:
    """Return the session in a file; a new one if the file cannot be read."""
    line, _, window = data.partition(b"\n")
    try:
        fields = json.loads(line) if line else {}
        if isinstance(fields, dict) and fields.get("v") == VERSION:
            return HookSession(fields, window)
    except (AttributeError, KeyError, TypeError, ValueError):
        pass  # a truncated or foreign file
    return HookSession({}, b"")


def call_digest(call: tuple[str, str], secret: bytes) -> str:
    """Return the keyed digest by which the session file knows a call (name and canonical arguments)."""
    content = "\0".join(call).encode("utf-8", "surrogatepass")
    return blake2b(content, digest_size=16, key=secret[:64]).hexdigest()


@contextmanager
def open_session(folder: Path, owner: str, now: float) -> Iterator[HookSession]:
    """Open the session of an owner and lock it until the block ends. Raises OSError."""
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


def delete_session(folder: Path, owner: str, now: float) -> None:
    """Delete a session that has ended, and files that were left behind."""
    _file(folder, owner).unlink(missing_ok=True)
    for file in folder.glob(f"*{_SUFFIX}"):
        with suppress(OSError):
            if now - file.stat().st_mtime > KEPT_S:
                file.unlink()


def _file(folder: Path, owner: str) -> Path:
    name = blake2b(owner.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
    return folder / f"{name}{_SUFFIX}"


def _lock(descriptor: int) -> None:
    """Wait for another hook of the same session, for a second at most: tools that run in parallel end in parallel."""
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOCK_WAIT_S)  # noqa: TID251 - a process that has nothing else to do
        else:
            return
    raise TimeoutError("another hook process has locked the session")


class HookOptions(NamedTuple):
    """The options of `breakloop hook claude-code`."""

    url: str = ""  # of a gateway that decides
    agent: str = "claude-code"
    sensitivity: str = "normal"
    stop_after: int = STOP_AFTER
    shadow: bool = False


FOLDER: Final = "hooks"
_DELAY_MAX_S: Final = 5.0


def handle(options: HookOptions) -> None:
    """Handle the event on standard input, as a command. If that fails, the call is allowed: exit code 2, which would
    block it, is never used."""
    try:
        sent = json.loads(sys.stdin.buffer.read())
        answer = answered(sent, options, data_dir(), SystemClock())
    except Exception as error:  # noqa: BLE001 - the outermost edge: a fault of ours must not stop an agent
        sys.stderr.write(f"breakloop: the hook failed; the call is allowed: {_why(error, options.url)}\n")
        return
    if answer:
        sys.stdout.write(f"{json.dumps(answer)}\n")


def _why(error: Exception, url: str) -> str:
    """Describe a failure: the error and, if a gateway was asked, its address. Contents of the event are left out."""
    if not url:
        return type(error).__name__
    parts = urlsplit(url)
    why = import_module("breakloop.sdk.core").describe_fault(error)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}: {why}" if parts.netloc else why


def answered(sent: Mapping[str, Any], options: HookOptions, root: Path, clock: Clock) -> Json:
    """Return the response to an event; {} means no opinion."""
    event = read(sent)
    folder = root / FOLDER
    if event.kind == END:
        delete_session(folder, event.session, clock.now())
        delete_session(folder, event.tree, clock.now())
    if not event.session or not is_counted(sent):
        return {}
    secret = shared_secret() or DataDir(root).kept_secret()
    backend = None if event.kind == BEFORE else _backend(options, secret)
    if event.kind in (STARTED, STOPPED) or event.tool in AGENT_TOOLS:
        answer = _answer_about_agents(event, folder, backend, clock.now())
        if answer or event.kind in (STARTED, STOPPED):
            return shadow_answer(answer) if options.shadow else answer
    with open_session(folder, event.owner, clock.now()) as session:
        answer, decision = _answer(event, session, backend, options, (secret, clock.now()))
    if options.shadow:
        return shadow_answer(answer)
    if decision.delay_seconds:
        time.sleep(min(decision.delay_seconds, _DELAY_MAX_S))  # noqa: TID251 - a throttle; the agent waits for us
    return answer


def _answer(
    event: HookEvent,
    session: HookSession,
    backend: HookBackend | None,
    options: HookOptions,
    known: tuple[bytes, float],
) -> tuple[Json, Decision]:
    secret, now = known
    call = call_digest((event.tool, event.arguments_text), secret)
    if backend is None:
        decision = session.before(call, now)
    elif event.kind in (PROMPT, COMPACT):
        if event.kind == PROMPT:
            session.unblock()
        decision = backend.decide(session, event, now)
    else:
        decision = backend.decide(session, event, now)
        session.after(call, decision, now)
    return answer_to(event.kind, decision, session.strikes, options.stop_after), decision


def _answer_about_agents(event: HookEvent, folder: Path, backend: HookBackend | None, now: float) -> Json:
    """Answer to the start and the end of a sub-agent. A start cannot be prevented, so if there are too many, the next
    call that would start one is denied. This ends no run: those at work go on.
    """
    decision = Decision()
    with open_session(folder, event.tree, now) as tree:
        if backend is None:
            decision = tree.before(AGENTS, now)
        elif event.kind == STARTED:
            decision = backend.started(tree, event, now)
            tree.after(AGENTS, decision, now)
        elif event.kind == STOPPED:
            backend.stopped(tree, event, now)
            tree.unblock()
    return answer_to(event.kind, decision, stop_after=0)


def _backend(options: HookOptions, secret: bytes) -> HookBackend:
    """Load one backend, and only when it is needed: `PreToolUse` needs neither."""
    if options.url:
        return GatewayHookBackend(options.url, gateway_token(), options.agent)
    module = import_module("breakloop.integrations.claude_code_local")
    local: HookBackend = module.LocalHookBackend(secret, options.sensitivity)
    return local
