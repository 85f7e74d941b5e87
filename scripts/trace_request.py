"""`make trace`: which files and functions one proxied chat completion passes.

Starts the real server in front of the stand-in LLM, with one policy (a token bucket and a limit on LLM tokens), the
built-in loop protection and no history. Sends five requests of one session, so that caches are warm, and records every
Python call in `src/breakloop` from the first byte of the fifth request until its response is settled: once for a
streamed response, once for a whole one. Timers and background jobs are left out, so the result does not depend on time.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import http.client
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import uvloop

import breakloop
from breakloop.app.runtime import Runtime
from breakloop.config.settings import Settings
from breakloop.testing import PATHS, Conversation, StandInLLM, ThreadedLLM, say

SRC: Final = str(Path(breakloop.__file__).parent) + "/"
WARM_UP: Final = 4  # requests of the session before the one that is traced
DEADLINE_S: Final = 30.0
MODEL: Final = "gpt-4.1"  # one whose price is known
EVENTS: Final = 18  # words of the response: with the role, the end and `[DONE]` 21 server-sent events
_ENTRY: Final = "gateway/"  # a callback of the event loop that enters here belongs to the request
_TIMERS: Final = frozenset(("_on_timer",))
_POLICY: Final = """\
bundle_version: 1
policies:
  - id: chat
    spec:
      selector: {pathPrefix: /v1}
      rules:
        - name: requests
          limit_keys: [agent:id]
          algorithm: token_bucket
          algorithm_config: {tokens_per_second: 100, burst: 100}
        - name: tokens
          limit_keys: [agent:id]
          algorithm: token_bucket_llm
          algorithm_config: {tokens_per_minute: 1000000}
"""


class Step(NamedTuple):
    """One Python call."""

    file: str  # relative to `src/breakloop`
    function: str


class Trace(NamedTuple):
    """The calls of one request and its response, in order."""

    steps: tuple[Step, ...]

    @property
    def files(self) -> list[str]:
        """The files in the order in which they are first entered."""
        return list(dict.fromkeys(step.file for step in self.steps))

    @property
    def packages(self) -> list[str]:
        """The packages and root modules, in the same order."""
        return list(dict.fromkeys(file.partition("/")[0] for file in self.files))

    def summary(self) -> dict[str, int]:
        """Return the numbers that a change should not make worse."""
        files = [step.file for step in self.steps]
        return {
            "calls": len(files),
            "functions": len(set(self.steps)),
            "files": len(self.files),
            "packages": len(self.packages),
            "file_switches": sum(one != other for one, other in pairwise(files)),
        }


class Recorder:
    """A profile function for the server's thread. Records the calls below callbacks that enter at the gateway."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._depth = 0  # frames of ours that are active
        self._recording = False

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        """Record one call; follow returns to know where a callback of the event loop ends."""
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(SRC):
            return
        if event == "return":
            self._depth = max(0, self._depth - 1)
            return
        file = code.co_filename[len(SRC) :]
        if not self._depth:
            self._recording = file.startswith(_ENTRY) and code.co_name not in _TIMERS
        self._depth += 1
        if self._recording and not code.co_name.startswith("<"):  # comprehensions are frames in some versions only
            self.steps.append(Step(file, code.co_qualname))


class _Server(Runtime):
    """The server without handlers of signals, so that it runs in any thread."""

    def take_signals(self) -> None:
        pass


class _Client:
    """One agent in a thread of its own: five requests on one connection, the last of them recorded."""

    def __init__(self, runtime: Runtime, loop: asyncio.AbstractEventLoop, *, stream: bool) -> None:
        self._runtime = runtime
        self._loop = loop
        self._stream = stream
        self.recorder = Recorder()

    def run(self, port: int) -> None:
        """Send the session."""
        talk = Conversation(model=MODEL).work()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
        try:
            for _ in range(WARM_UP):
                self._ask(connection, talk)
                talk.work()
            gc.collect()
            gc.disable()  # the end of a generator that is collected would be recorded
            self._in_server(lambda: sys.setprofile(self.recorder))
            self._ask(connection, talk)
            self._in_server(lambda: sys.setprofile(None))
        finally:
            gc.enable()
            connection.close()
            self._loop.call_soon_threadsafe(self._runtime.stop)

    def _ask(self, connection: http.client.HTTPConnection, talk: Conversation) -> None:
        headers = {"Content-Type": "application/json", "Authorization": "Bearer sk-traced", "X-Agent-Id": "traced"}
        headers["X-Agent-Session"] = "session-1"
        more = {"stream": True} if self._stream else {}
        connection.request("POST", PATHS["openai_chat"], json.dumps(talk.request(**more)).encode(), headers)
        response = connection.getresponse()
        content = response.read()
        if response.status != 200:
            raise RuntimeError(f"the server answered {response.status}: {content[:300]!r}")

    def _in_server(self, call: Callable[[], None]) -> None:
        """Run something in the server's thread, and wait for it."""
        done = threading.Event()

        def run() -> None:
            call()
            done.set()

        self._loop.call_soon_threadsafe(run)
        if not done.wait(DEADLINE_S):
            raise TimeoutError


def trace(*, stream: bool) -> Trace:
    """Run the server, and return the calls of the fifth request of a session."""
    text = " ".join(f"word{number}" for number in range(EVENTS))
    with tempfile.TemporaryDirectory() as folder, StandInLLM.in_thread(default=say(text)) as llm:
        return uvloop.run(_traced(Path(folder), llm, stream=stream))


async def _traced(folder: Path, llm: ThreadedLLM, *, stream: bool) -> Trace:
    policy = folder / "policy.yaml"
    policy.write_text(_POLICY, encoding="utf-8")
    settings = Settings.model_validate(
        {
            "port": 0,
            "admin_port": 0,
            "data_dir": str(folder / "data"),
            "history": "off",
            "policy": str(policy),
            "upstream": [f"openai={llm.url}"],
        }
    )
    runtime = _Server(settings)
    client = _Client(runtime, asyncio.get_running_loop(), stream=stream)
    tasks: list[asyncio.Task[None]] = []

    def ready(url: str) -> None:
        port = int(url.rpartition(":")[2])
        tasks.append(asyncio.create_task(asyncio.to_thread(client.run, port)))

    await runtime.run(ready)
    await tasks[0]
    return Trace(tuple(client.recorder.steps))


def _walk(steps: Sequence[Step]) -> Iterator[str]:
    """One line for each file that is entered, with the functions called there."""
    last = ""
    functions: list[str] = []
    entered: set[str] = set()
    for step in (*steps, Step("", "")):
        if step.file == last:
            functions.append(step.function)
            continue
        if last:
            again = "<<" if last in entered else "  "
            yield f"  {again} {last:34} {', '.join(functions)}"
            entered.add(last)
        last, functions = step.file, [step.function]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the traces of a streamed and of a whole response."""
    parser = argparse.ArgumentParser(prog="trace_request", description="Trace one proxied request.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--walk", action="store_true", help="print the calls in order as well")
    options = parser.parse_args(arguments)
    traces = {name: trace(stream=name == "streamed") for name in ("streamed", "whole")}
    if options.json:
        found = {
            name: {**one.summary(), "file_names": one.files, "package_names": one.packages, "walk": one.steps}
            for name, one in traces.items()
        }
        print(json.dumps(found, indent=1))
        return 0
    for name, one in traces.items():
        print(f"{name}: " + ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in one.summary().items()))
        print(f"  packages: {', '.join(one.packages)}")
        print("\n".join(_walk(one.steps) if options.walk else [f"  {file}" for file in sorted(one.files)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
