"""Instructions that one decision executes, from the bytes of the request to the bytes of the reply.

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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import traffic
from bench.load import FIRST_NUMBER, Pieces, Shape, pieces

if TYPE_CHECKING:
    from bench.report import Options, Report

WARM_UP = 60
COUNTS = (20, 320)  # requests of the two processes of a case
STEPS = 10  # of each session
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


def cases() -> list[Case]:
    """What is measured."""
    get, chat = Pieces(*pieces(Shape(_DECISION))), Pieces(*pieces(Shape(_DECISION, body=True)))
    verified = {"jwt": {"secret": traffic.JWT_SECRET}}

    def with_number(request: Pieces) -> Callable[[int], bytes]:
        return lambda number: request.with_number(FIRST_NUMBER + number)

    return [
        Case("one rule", with_number(get), traffic.one_rule()),
        Case("five rules", with_number(get), traffic.complex_policy()),
        Case("five rules, verified token", with_number(get), traffic.complex_policy(), verified),
        Case("denied loop", lambda _: get.with_number(FIRST_NUMBER), traffic.looping(), allowed=False),
        Case("tail, 2 KB", with_number(chat), traffic.complex_policy(tail=True)),
        Case("a step", _step),
    ]


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
    """Keeps the last reply."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 4711)})
        self.sent = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent = bytes(data)

    def is_closing(self) -> bool:
        return False


class _Turns:
    """In the place of the event loop: keeps what is to be called in the next turn."""

    def __init__(self) -> None:
        self.next: Callable[[], None] | None = None

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.next = callback


class _Subject:
    """A service with one client connection."""

    def __init__(self, case: Case, folder: Path) -> None:
        from breakloop.app.runtime import Runtime  # noqa: PLC0415 - only the child needs it, and of another tree
        from breakloop.config.settings import Settings  # noqa: PLC0415
        from breakloop.gateway.connection import Connection  # noqa: PLC0415

        folder.mkdir()
        given: dict[str, Any] = {"mode": "decision", "port": 0, "admin_port": 0, "history": "off", **case.settings}
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

    def decide(self, requests: Sequence[bytes], *, allowed: bool) -> None:
        receive, turns = self._connection.data_received, self._turns
        for request in requests:
            receive(request)
            turn = turns.next
            assert turn is not None
            turn()
        if self._transport.sent.startswith(_ALLOWED) is not allowed:
            raise SystemExit(f"bench: unexpected reply: {self._transport.sent!r}")


async def _child(folder: Path) -> None:
    """Count each case, one after the other. A server needs a running event loop."""
    for number, case in enumerate(cases()):
        requests = [case.request(one) for one in range(WARM_UP + max(COUNTS))]
        subject = _Subject(case, folder / str(number))
        if not case.allowed:
            subject.decide(requests[:1], allowed=True)
        subject.decide(requests[:WARM_UP], allowed=case.allowed)
        gc.collect()
        gc.disable()
        _count(case, subject, requests[WARM_UP:])
        gc.enable()


def _count(case: Case, subject: _Subject, requests: Sequence[bytes]) -> None:
    """Fork the processes that are counted, and print which one did what."""
    for count in COUNTS:
        sys.stdout.flush()
        process = os.fork()
        if not process:
            subject.decide(requests[:count], allowed=case.allowed)
            os._exit(0)
        if os.waitpid(process, 0)[1]:
            raise SystemExit(f"bench: {case.name}: the process that is counted has failed")
        print(json.dumps([case.name, count, process]))


# -- the parent --------------------------------------------------------------------------------------------------------


def measure(tree: Path) -> dict[str, float]:
    """Return the instructions of one decision for each case, in a checkout."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise SystemExit("bench: valgrind is not installed; `sh scripts/install-system.sh valgrind` installs it")
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder) / "logs"
        logs.mkdir()
        tool = ["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", f"--log-file={logs}/%p"]
        command = [valgrind, *tool, sys.executable, "-m", "bench.instructions", folder]
        environment = {"PATH": os.environ["PATH"], "HOME": folder, "PYTHONHASHSEED": "0", "PYTHONMALLOC": "pymalloc"}
        environment["PYTHONPATH"] = os.pathsep.join((str(tree / "src"), str(_ROOT)))
        done = subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"bench: {tree}: exit code {done.returncode}; its messages are above")
        executed: dict[str, list[int]] = {}
        for line in done.stdout.splitlines():
            name, _, process = json.loads(line)
            found = _REFS.search((logs / str(process)).read_text(encoding="utf-8"))
            assert found is not None, "valgrind gave no count"
            executed.setdefault(name, []).append(int(found[1].replace(",", "")))
    few, many = COUNTS
    return {name: (counts[1] - counts[0]) / (many - few) for name, counts in executed.items()}


def run(options: Options) -> Report:
    """Measure this tree and those to compare it with, and return the table."""
    from bench.report import Report  # noqa: PLC0415 - not in the child, where each import takes a second

    trees = [_ROOT, *[Path(tree).resolve() for tree in options.trees]]
    found: list[dict[str, float]] = []
    for tree in trees:
        options.progress(f"instructions: {tree}")
        found.append(measure(tree))
    columns = ("", "instructions", *[f"{tree.name}, difference" for tree in trees[1:]])
    report = Report("instructions", "Instructions of one decision", columns)
    for name, own in found[0].items():
        others = [other[name] for other in found[1:]]
        figures = {"instructions": own} | {f"tree_{at}": other for at, other in enumerate(others, 1)}
        report.add(name, figures, (f"{own:,.0f}", *[f"{other:,.0f} {own / other - 1:+.1%}" for other in others]))
    return report


if __name__ == "__main__":
    asyncio.run(_child(Path(sys.argv[1])))
