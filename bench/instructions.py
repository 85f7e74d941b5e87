"""Instructions that one decision executes, from the bytes of the request to the bytes of the reply; in the proxy, those
of a call: from the bytes of the client to the bytes for the upstream, and from its response to the client.

Unlike times, they do not depend on what else the machine does, so they show a change of one per cent. A child runs
below `valgrind`: it builds the service, warms up, and forks twice for each case; the two decide a different number of
requests, and the difference of their counts is what the requests cost. `python -m bench instructions`.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import chat, traffic
from bench.agents import STEPS, Conversations
from bench.load import FIRST_NUMBER, Pieces, Shape, pieces

if TYPE_CHECKING:
    from bench.report import Options, Report

WARM_UP = 80
FEW, MANY = 20, 320  # requests of the two processes of a case
_MANY_LARGE = 80  # of 60 KB and more, where a request costs millions and hardly varies
_SIZES_KB = (2, 20, 60, 200)
_AGENTS = 8  # that work beside each other, as in `bench agents`
_ROOT = Path(__file__).resolve().parent.parent
_DECISION = "/v1/decision"
_REFS = re.compile(r"(?:Collected|I\s+refs)\s*:\s*([\d,]+)")
_ALLOWED = b"HTTP/1.1 200"


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table. `request` makes the request with a number."""

    name: str
    request: Callable[[int], bytes]
    policy: dict[str, Any] | None = None  # None: the built-in protection
    settings: dict[str, Any] = field(default_factory=dict)
    allowed: bool = True
    # Of the upstream, in the pieces in which it comes: the request goes through the proxy.
    answer: Callable[[int], bytes | Sequence[bytes]] | None = None
    provider: str = "openai"
    many: int = MANY


def cases() -> list[Case]:
    """What is measured."""
    get, body = Pieces(*pieces(Shape(_DECISION))), Pieces(*pieces(Shape(_DECISION, body=True)))
    verified = {"jwt": {"secret": traffic.JWT_SECRET}}

    return [
        Case("one rule", _with_number(get), traffic.one_rule()),
        Case("five rules", _with_number(get), traffic.complex_policy()),
        Case("five rules, verified token", _with_number(get), traffic.complex_policy(), verified),
        Case("denied loop", lambda _: get.with_number(FIRST_NUMBER), traffic.looping(), allowed=False),
        Case("tail, 2 KB", _with_number(body), traffic.complex_policy(tail=True)),
        Case("a step", _step),
        *_proxied(),
    ]


def _proxied() -> list[Case]:
    """Calls through the proxy: those of `bench proxy`, and agents whose conversations grow, with and without names."""
    off = {"loop_guard": {"max_hits": 0}}
    found = [_same_opening(2, "forwarded", off), *[_same_opening(size_kb, "proxied") for size_kb in (2, 20)]]
    found += [_streamed("forwarded", off), _streamed("proxied"), _streamed("proxied", padded=True)]
    for anthropic, named in ((False, False), (False, True), (True, False), (True, True)):
        for size_kb in _SIZES_KB:
            one = Conversations(size_kb * 1024, anthropic=anthropic, named=named)
            title = f"agent, {'Messages' if anthropic else 'chat'}, {'named' if named else 'unnamed'}, {size_kb} KB"
            many = MANY if size_kb < 60 else _MANY_LARGE
            provider = "anthropic" if anthropic else "openai"
            found.append(Case(title, one.request, answer=one.answer, provider=provider, many=many))
    traced = Conversations(2 * 1024, traced=True)
    found.append(Case("agent, chat, traced, 2 KB", traced.request, answer=traced.answer))
    for size_kb in _SIZES_KB[:2]:
        one = Conversations(size_kb * 1024, agents=_AGENTS)
        found.append(Case(f"{_AGENTS} agents, chat, unnamed, {size_kb} KB", one.request, answer=one.answer))
    return found


def _same_opening(size_kb: int, what: str, settings: dict[str, Any] | None = None) -> Case:
    """A request of `bench proxy`: the opening and the history of one conversation, and a last message that is new."""
    numbered, answer = _with_number(chat.call(size_kb * 1024)), partial(chat.numbered, chat.answer())
    return Case(f"{what}, {size_kb} KB", numbered, settings=settings or {}, answer=answer)


def _streamed(what: str, settings: dict[str, Any] | None = None, *, padded: bool = False) -> Case:
    """A request of `bench streams`, whose answer comes in 100 chunks."""
    numbered, head, chunks = _with_number(chat.call(2048, chat.PACED)), chat.stream_head(), chat.stream_chunks(padded)

    def answer(number: int) -> list[bytes]:
        return [chat.numbered(head, number), *chunks]

    name = f"{what}, a stream of {chat.CHUNKS} chunks{', padded' if padded else ''}"
    return Case(name, numbered, settings=settings or {}, answer=answer, many=_MANY_LARGE)


def _with_number(request: Pieces) -> Callable[[int], bytes]:
    return lambda number: request.with_number(FIRST_NUMBER + number)


def _step(number: int) -> bytes:
    """A chat request in a named session. Each tool call is another one, and what it finds is new."""
    session, step = divmod(number, STEPS)
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"Find out how harbour {session:03d} opens."}]
    for at in range(step + 1):
        arguments = json.dumps({"path": f"harbour-{session:03d}/file-{at}.txt"})
        call = {"id": f"call_{at}", "type": "function", "function": {"name": "read_file", "arguments": arguments}}
        found = " ".join(hashlib.sha256(b"%d %d %d" % (session, at, word)).hexdigest()[:7] for word in range(40))
        messages += [{"role": "assistant", "content": None, "tool_calls": [call]}]
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": found}]
    body = json.dumps({"model": "gpt-4.1-mini", "messages": messages}).encode()
    lines = [f"POST {_DECISION} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in traffic.fields("POST", traffic.CHAT_URI)]
    lines += [f"X-Agent-Session: s-{session:03d}", f"Content-Length: {len(body)}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


# -- the child ---------------------------------------------------------------------------------------------------------


class _Transport(asyncio.Transport):
    """Keeps the beginning of the last reply."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 4711)})
        self.sent = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent = self.sent or bytes(data)

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0


class _Turns:
    """In the place of the event loop: keeps what is to be called in the next turn."""

    def __init__(self) -> None:
        self._next: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._next.append(callback)

    def turn(self) -> None:
        while self._next:
            self._next.pop()()


class _Subject:
    """A service with one client connection. A proxy has one connection to its upstream, too."""

    def __init__(self, case: Case, folder: Path) -> None:
        from breakloop.app.runtime import Runtime  # noqa: PLC0415 - only the child needs it, and of another tree
        from breakloop.config.settings import Settings  # noqa: PLC0415
        from breakloop.gateway.connection import Connection  # noqa: PLC0415

        folder.mkdir()
        given: dict[str, Any] = {"mode": "decision", "port": 0, "admin_port": 0, "history": "off", **case.settings}
        if case.answer is not None:
            given |= {"mode": "all", "upstream": [f"{case.provider}=http://127.0.0.1:9"]}
        if case.policy is not None:
            file = folder / "policy.json"
            file.write_text(json.dumps(case.policy), encoding="utf-8")
            given["policy"] = str(file)
        self._runtime = Runtime(Settings.model_validate({**given, "data_dir": str(folder / "data")}))
        self._runtime.load()
        server: Any = self._runtime._server()  # noqa: SLF001 - the server without its socket
        server.loop = self._turns = _Turns()
        self._transport = _Transport()
        self._connection = Connection(server)
        self._connection.connection_made(self._transport)
        self._upstream = None if case.answer is None else _connected(server, case.provider)

    def decide(self, exchanges: Sequence[tuple[bytes, Sequence[bytes]]], *, allowed: bool) -> None:
        """Send requests, each with the response of the upstream; none for a decision."""
        receive, turn, upstream = self._connection.data_received, self._turns.turn, self._upstream
        for request, answer in exchanges:
            self._transport.sent = b""
            receive(request)
            turn()
            if upstream is not None:
                if upstream.exchange is None:
                    break
                for piece in answer:
                    upstream.data_received(piece)
                    turn()
        if self._transport.sent.startswith(_ALLOWED) is not allowed:
            raise SystemExit(f"bench: unexpected reply: {self._transport.sent!r}")


def _connected(server: Any, provider: str) -> Any:
    """Return a connection to the upstream, which the proxy takes for the next request."""
    from breakloop.gateway.upstream import UpstreamConnection  # noqa: PLC0415 - as above

    pool = server.handler.pools[provider]
    connection = UpstreamConnection(server, pool)
    connection.connection_made(_Transport())
    pool.give_back(connection)
    return connection


def exchanges_of(case: Case, numbers: range) -> list[tuple[bytes, Sequence[bytes]]]:
    """Return the requests with these numbers, with their answers."""
    found: list[tuple[bytes, Sequence[bytes]]] = []
    for number in numbers:
        answer = () if case.answer is None else case.answer(number)
        found.append((case.request(number), (answer,) if isinstance(answer, bytes) else answer))
    return found


async def _child(folder: Path, pattern: str) -> None:
    """Count each case, one after the other. A server needs a running event loop."""
    for number, case in enumerate(cases()):
        if not fnmatch(case.name, pattern):
            continue
        subject = _Subject(case, folder / str(number))
        warm_up = exchanges_of(case, range(WARM_UP))
        if not case.allowed:
            subject.decide(warm_up[:1], allowed=True)
        subject.decide(warm_up, allowed=case.allowed)
        counted = exchanges_of(case, range(WARM_UP, WARM_UP + case.many))
        gc.collect()
        gc.disable()
        _count(case, subject, counted)
        gc.enable()


def _count(case: Case, subject: _Subject, exchanges: Sequence[tuple[bytes, Sequence[bytes]]]) -> None:
    """Fork the processes that are counted, and print which one did what."""
    for count in (FEW, case.many):
        sys.stdout.flush()
        process = os.fork()
        if not process:
            subject.decide(exchanges[:count], allowed=case.allowed)
            os._exit(0)
        if os.waitpid(process, 0)[1]:
            raise SystemExit(f"bench: {case.name}: the process that is counted has failed")
        print(json.dumps([case.name, count, process]))


# -- the parent --------------------------------------------------------------------------------------------------------


def measure(tree: Path, pattern: str = "*") -> dict[str, float]:
    """Return the instructions of one decision for each case whose name fits, in a checkout."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise SystemExit("bench: valgrind is not installed; `sh scripts/install-system.sh valgrind` installs it")
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder) / "logs"
        logs.mkdir()
        tool = ["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", f"--log-file={logs}/%p"]
        command = [valgrind, *tool, sys.executable, "-m", "bench.instructions", folder, pattern]
        environment = {"PATH": os.environ["PATH"], "HOME": folder, "PYTHONHASHSEED": "0", "PYTHONMALLOC": "pymalloc"}
        environment["PYTHONPATH"] = os.pathsep.join((str(tree / "src"), str(_ROOT)))
        done = subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"bench: {tree}: exit code {done.returncode}; its messages are above")
        executed: dict[str, list[tuple[int, int]]] = {}
        for line in done.stdout.splitlines():
            name, count, process = json.loads(line)
            found = _REFS.search((logs / str(process)).read_text(encoding="utf-8"))
            assert found is not None, "valgrind gave no count"
            executed.setdefault(name, []).append((count, int(found[1].replace(",", ""))))
    return {name: (after - before) / (many - few) for name, ((few, before), (many, after)) in executed.items()}


def run(options: Options) -> Report:
    """Measure this tree and those to compare it with, and return the table."""
    from bench.report import Report  # noqa: PLC0415 - not in the child, where each import takes a second

    trees = [_ROOT, *[Path(tree).resolve() for tree in options.trees]]
    found: list[dict[str, float]] = []
    for tree in trees:
        options.progress(f"instructions: {tree}")
        found.append(measure(tree, options.cases))
    columns = ("", "instructions", *[f"{tree.name}, difference" for tree in trees[1:]])
    report = Report("instructions", "Instructions of one decision", columns)
    for name, own in found[0].items():
        others = [other[name] for other in found[1:]]
        figures = {"instructions": own} | {f"tree_{at}": other for at, other in enumerate(others, 1)}
        report.add(name, figures, (f"{own:,.0f}", *[f"{other:,.0f} {own / other - 1:+.1%}" for other in others]))
    return report


if __name__ == "__main__":
    asyncio.run(_child(Path(sys.argv[1]), sys.argv[2]))
