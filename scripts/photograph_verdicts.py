"""Part of `scripts.photograph`: every decision over recorded and scripted sessions, in memory and in Redis, and the
bytes that are stored for them. Labels in the output are literals: renaming an attribute does not change a file."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import shutil
import socket
import sqlite3
import subprocess
import tempfile
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from breakloop.app.build import price_list
from breakloop.cli.test import OFFLINE_SECRET
from breakloop.clock import FakeClock
from breakloop.config.settings import Settings
from breakloop.detect.counting import BuiltinLoopGuard
from breakloop.dialects import registry
from breakloop.dialects.denial import VerdictHeaders
from breakloop.engine.engine import Engine
from breakloop.engine.remote import RemoteEngine, SharedNames, StoreHealth
from breakloop.gateway.admission import Admission
from breakloop.gateway.http_request import Request
from breakloop.model.call import Answer, Call, Chat, ToolCall, Usage
from breakloop.model.events import Activity, Event
from breakloop.model.verdict import Verdict
from breakloop.policy.compile import compile_bundle
from breakloop.policy.compiled import CompiledBundle
from breakloop.policy.descriptors import ContextSettings, Descriptors
from breakloop.policy.load import load_text
from breakloop.replay.formats.recording import Recording
from breakloop.replay.run import ReplaySetup, replay
from breakloop.replay.sessions import RecordedBody, RecordedSession, RecordedTurn, SessionSlice
from breakloop.store.memory import MemoryStore
from breakloop.store.redis.store import RedisStore
from breakloop.store.redis.topology import Nodes, command, make_nodes
from breakloop.store.redis.url import parse_redis_url
from breakloop.store.snapshot import Snapshotter
from breakloop.testing import PATHS, Conversation, mcp_call
from scripts.photograph_bundles import BUILTIN, BUNDLES
from scripts.photograph_files import digest, lines_of, write_lines

RICH_EVERY: Final = 5  # sessions
STORED_EVERY: Final = 20
HEAD_BYTES: Final = 64
ENTRIES: Final = 100_000
BUDGET_S: Final = 60.0  # no decision may fall back because the machine is busy
PROBLEM: Final = b"application/problem+json"
SETTLE_ROUNDS: Final = 5  # commands that one answer may cause one after another, and one more

Json = dict[str, Any]
Note = Callable[[Json], None]


# -- one decision as text ----------------------------------------------------------------------------------------------


def verdict_json(verdict: Verdict) -> Json:
    """Return every field of a verdict that is not empty."""
    shown: Json = {
        "allowed": verdict.allowed,
        "reason": verdict.reason,
        "status": verdict.status,
        "policy": verdict.policy,
        "rule": verdict.rule,
        "message": verdict.message,
        "retry_after": verdict.retry_after_s,
        "retry_jitter": verdict.retry_jitter,
        "never": verdict.never,
        "delay_ms": verdict.delay_ms,
        "warning": verdict.warning,
        "note": verdict.note,
        "degraded": verdict.degraded,
        "shadow": [[one.policy, one.rule, one.reason, one.action] for one in verdict.shadow],
    }
    limit, loop = verdict.limit, verdict.loop
    if limit is not None:
        shown["limit"] = [limit.name, limit.quota, limit.window_s, limit.remaining, limit.reset_s]
    if loop is not None:
        shown["loop"] = {
            "kind": loop.kind,
            "fingerprint": loop.fingerprint,
            "hits": loop.hit_count,
            "window": loop.window_s,
            "cooldown": loop.cooldown_s,
            "action": loop.action,
            "fresh": loop.fresh,
            "message": loop.message,
            "evidence": loop.evidence,
        }
    return {name: value for name, value in shown.items() if name == "allowed" or value not in (None, "", False, 0, [])}


def event_json(event: Event) -> Json:
    """Return an event as subscribers get it."""
    return {
        "name": event.name,
        "at": event.at,
        "project": event.project,
        "request": event.request_id,
        "data": dict(event.data),
    }


def activity_json(activity: Activity) -> Json:
    """Return the sums of agents and loops."""
    agents = {
        " ".join(who): [
            use.requests,
            use.denied,
            use.failed,
            use.input_tokens,
            use.output_tokens,
            use.cost_microusd,
            use.last_at,
            use.model,
        ]
        for who, use in activity.agents.items()
    }
    loops = {
        " ".join(key): [
            use.passed,
            use.passed_tokens,
            use.passed_microusd,
            use.stopped,
            use.stopped_tokens,
            use.stopped_microusd,
        ]
        for key, use in activity.loops.items()
    }
    return {"agents": agents, "loops": loops, "shadow": {" ".join(key): n for key, n in activity.shadow.items()}}


class Recorded(Engine):
    """The engine, and the text of all that it decided."""

    __slots__ = ("_events", "_judging", "_now", "_turns", "memory")

    def __init__(self, bundle: CompiledBundle, descriptors: Descriptors, clock: FakeClock, prices: Any) -> None:
        self.memory = MemoryStore(ENTRIES)
        self._events: list[Json] = []
        self._turns: list[Json] = []
        self._now = clock.now
        super().__init__(self.memory, clock, descriptors, publish=self._take, prices=prices)
        self.recording()
        self.set_bundle(bundle)
        self._judging = Admission(self, descriptors, VerdictHeaders("X-Breakloop-", OFFLINE_SECRET), run_id="photo-")

    def _take(self, event: Event) -> None:
        self._events.append(event_json(event))

    def decide(self, call: Call) -> Verdict:
        """Decide, and write it down."""
        verdict = self.decided(call)
        turn = {"at": self._now(), **verdict_json(verdict), **self._rendered(call, verdict)}
        if self._events:
            turn["events"], self._events = self._events, []
        self._turns.append(turn)
        return verdict

    def decided(self, call: Call) -> Verdict:
        """Decide with the state of this process."""
        return super().decide(call)

    def settle(self, call: Call, answer: Answer) -> None:
        """Take the answer, and write down what it caused."""
        self.settled(call, answer)
        if self._events:
            self._turns[-1]["events after the answer"], self._events = self._events, []

    def settled(self, call: Call, answer: Answer) -> None:
        """Take the answer with the state of this process."""
        super().settle(call, answer)

    def take(self) -> list[Json]:
        """Return all turns, and the sums; begin again."""
        assert self.recorder is not None  # noqa: S101 - switched on above
        turns, self._turns = self._turns, []
        tally = self.tally
        sums = {
            "allowed": tally.allowed,
            "denied": tally.denied,
            "missing": tally.missing,
            "shadowed": tally.shadowed,
            "settled": tally.settled,
            "failed": tally.failed,
            "joined": tally.joined,
            "forgiven": tally.forgiven,
            "tokens": [tally.input_tokens, tally.output_tokens],
            "faults": [tally.faults, tally.store_errors],
        }
        return [*turns, {"sums": sums, **activity_json(self.recorder.take())}]

    def _rendered(self, call: Call, verdict: Verdict) -> Json:
        """What the gateway and the decision API send for it."""
        judging = self._judging
        if verdict.allowed:
            head = judging.headers.allowed(verdict, call.request_id)
            chat = call.parsed.chat
            steered = None
            if verdict.note and isinstance(chat, Chat):
                steered = registry.DIALECTS[chat.dialect].append_note(call.body, verdict.note)
            told = {"headers": head.decode("latin-1").splitlines()}
            return told if steered is None else {**told, "steered": digest(steered)}
        shown: Json = {}
        client = judging.client_denial(call, verdict)
        shown["client"] = [client.status, client.head.decode("latin-1").splitlines(), client.body.decode()]
        for name, accept in (("gateway", b"*/*"), ("problem", PROBLEM)):
            reply = judging.gateway_denial(Request("POST", b"/", {"accept": accept}), call, verdict)
            sent = [reply.status, reply.head.decode("latin-1").splitlines(), reply.body.decode()]
            if sent != shown["client"]:
                shown[name] = sent
        return shown


def is_plain(turn: Json) -> bool:
    """Tell whether a turn is not worth its text: allowed, and nothing else happened."""
    return bool(turn.get("allowed")) and not turn.keys() & {
        "warning", "note", "shadow", "events", "events after the answer", "delay_ms", "degraded", "loop",
    }  # fmt: skip


def session_lines(name: str, turns: Sequence[Json]) -> Iterator[str]:
    """One line with the digest of everything, then the turns that are not plain."""
    texts = [json.dumps(turn, sort_keys=True, ensure_ascii=False) for turn in turns]
    yield f"session {name} turns={len(turns) - 1} sha256={digest(chr(10).join(texts).encode('utf-8', 'surrogatepass'))}"
    for number, (turn, text) in enumerate(zip(turns, texts, strict=True), 1):
        if not is_plain(turn):
            yield f"  {number} {text}"


# -- engines -----------------------------------------------------------------------------------------------------------

MakeEngine = Callable[[CompiledBundle, Descriptors, FakeClock, Any], Recorded]


@dataclass(frozen=True, slots=True)
class Camera(ReplaySetup):
    """A rig whose engines write down what they do."""

    make: MakeEngine = Recorded
    engines: list[Recorded] = field(default_factory=list)

    def engine(self, clock: FakeClock) -> Engine:
        """Return an engine with empty state."""
        made = self.make(self.bundle, self.descriptors, clock, self.prices)
        self.engines.append(made)
        return made

    def photograph(self, pieces: Iterable[SessionSlice]) -> tuple[list[Json], list[Recorded]]:
        """Replay these; return what was decided, and the engines that did."""
        self.engines.clear()
        for _ in replay(pieces, self):
            pass
        return [turn for engine in self.engines for turn in engine.take()], list(self.engines)


def camera(name: str, make: MakeEngine = Recorded) -> Camera:
    """Return a rig with a bundle of `photograph_bundles`."""
    clock = FakeClock()
    descriptors = Descriptors(ContextSettings(secret=OFFLINE_SECRET), clock)
    text = BUNDLES[name]
    bundle = load_text(text.encode(), "photograph.yaml").bundle if text else None
    compiled = compile_bundle(bundle, "photograph", descriptors, OFFLINE_SECRET, BuiltinLoopGuard())
    prices = price_list(Settings(), clock).prices
    return Camera(descriptors, compiled, clock.now(), prices=lambda: prices, make=make)


# -- sessions ----------------------------------------------------------------------------------------------------------


def recorded(path: Path) -> Iterator[SessionSlice]:
    """Read a file of recorded sessions."""
    with path.open("rb") as file:
        yield from Recording(file, path.name).pieces()


def scripted() -> Iterator[tuple[str, list[SessionSlice]]]:
    """Return sessions that recordings do not have: every dialect, spawned agents, failures, sessions without a name."""
    for dialect in ("openai_chat", "openai_responses", "anthropic_messages", "gemini"):
        for named in (True, False):
            yield f"{dialect} {'named' if named else 'unnamed'}", [_looping(dialect, named=named)]
    yield "completions", [_piece("completions", _repeated("openai_completions", {"model": "m", "prompt": "Go on."}))]
    yield "embeddings", [_piece("embeddings", _repeated("openai_embeddings", {"model": "m", "input": "Same text."}))]
    yield "mcp", [_piece("mcp", _mcp())]
    yield "plain http", [_piece("plain", [_turn("/orders", {"id": 1 + number // 4}) for number in range(24)])]
    yield "failing upstream", [_piece("failing", _failing())]
    yield "spawned agents", list(_spawned())
    yield "broken bodies", [_piece("broken", _broken())]


def _looping(dialect: str, *, named: bool) -> SessionSlice:
    talk = Conversation(dialect=dialect)
    turns = []
    for number in range(24):
        body = json.dumps(talk.request(**({"stream": True} if number % 3 == 0 and dialect != "gemini" else {})))
        calls = (ToolCall("read_file", '{"path":"a"}'),)
        answer = Answer(200, f"Step {number}.", calls, Usage(900 + number, 40), "gpt-4o", complete=True)
        turns.append(RecordedTurn(RecordedBody(PATHS[dialect], body.encode()), answer, at_s=float(3 * number)))
        if number < 6:
            talk.work()
        elif number < 16:
            talk.tool("run_tests", {"target": "all"}, "1 failed: test_app", failed=number % 2 == 0)
        else:
            talk.user("Go on, please.").assistant("I shall look at it again.")
    return _piece(f"{dialect}-{named}", turns, named=named)


def _piece(name: str, turns: Sequence[RecordedTurn], *, named: bool = True, gateway: str = "") -> SessionSlice:
    return SessionSlice(
        RecordedSession(name, "scripted", f"agent-{name}", "gpt-4o", named=named, gateway=gateway), turns, True
    )


def _turn(
    path: str, body: Any, at_s: float | None = None, status: int = 200, headers: Mapping[str, bytes] | None = None
) -> RecordedTurn:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = Answer(status, "The same answer.", usage=Usage(100, 20), model="gpt-4o", complete=status == 200)
    return RecordedTurn(RecordedBody(path, raw), answer, at_s=at_s, headers=headers or {})


def _repeated(dialect: str, body: Json) -> list[RecordedTurn]:
    return [_turn(PATHS[dialect], body, float(number)) for number in range(12)]


def _mcp() -> list[RecordedTurn]:
    same = [_turn(PATHS["mcp"], mcp_call("search", {"q": "x"}, call_id=number)) for number in range(12)]
    other = [_turn(PATHS["mcp"], mcp_call("search", {"q": str(number)}, call_id=number)) for number in range(6)]
    return same + other


def _failing() -> list[RecordedTurn]:
    talk = Conversation().work(2)
    body = talk.request()
    return [_turn(PATHS["openai_chat"], body, float(at), 500 if at % 4 else 200) for at in range(24)]


def _spawned() -> Iterator[SessionSlice]:
    """Each agent starts another with the same task."""
    for number in range(14):
        talk = Conversation("Compare the offers of all suppliers, and write down which is the best of them.")
        headers = {"traceparent": f"00-{'ab' * 16}-{number + 1:016x}-01".encode()}
        if number:
            headers["x-agent-parent"] = f"spawned-{number - 1}".encode()
        first = _turn(PATHS["openai_chat"], talk.request(), float(10 * number), headers=headers)
        talk.work()
        second = _turn(PATHS["openai_chat"], talk.request(), 10.0 * number + 5, headers=headers)
        yield _piece(f"spawned-{number}", [first, second], gateway="spawned")


def _broken() -> list[RecordedTurn]:
    bodies: list[Any] = [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        {"model": 7, "messages": "none"},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}]},
        {"model": "m", "messages": []},
        b'{"model":"m","messages":[{"role":"user","content":"half \\ud800"}]}',
        b"\xef\xbb\xbf" + json.dumps({"model": "m", "messages": [{"role": "user", "content": "bom"}]}).encode(),
        gzip.compress(b'{"model":"m"}', mtime=0),
    ]
    paths = [PATHS[name] for name in ("openai_chat", "anthropic_messages", "openai_responses", "gemini", "mcp")]
    return [_turn(path, body) for path in paths for body in bodies]


# -- in memory ---------------------------------------------------------------------------------------------------------


def stored_lines(store: MemoryStore) -> Iterator[str]:
    """What the memory store holds: key, digest and first bytes."""
    for table, entries in store.kept().items():
        for key, entry in sorted(entries.items()):
            parts = [part.tobytes() if isinstance(part, array) else part for part in entry]
            blob = next((part for part in parts if isinstance(part, bytes)), b"")
            yield f"  {table} {key!r} sha256={digest(repr(parts).encode())} {blob[:HEAD_BYTES].hex()}"


def photograph_memory(out: Path, corpus: Sequence[Path]) -> None:
    """Write verdicts-memory/ and windows.txt."""
    cameras = {name: camera(name) for name in BUNDLES}
    windows: list[str] = []
    number = 0
    for path in corpus:
        texts: dict[str, list[str]] = {name: [] for name in BUNDLES}
        for piece in recorded(path):
            for name in BUNDLES if number % RICH_EVERY == 0 else (BUILTIN,):
                turns, engines = cameras[name].photograph([piece])
                texts[name] += session_lines(piece.session.id, turns)
                if number % STORED_EVERY == 0:
                    windows += lines_of(f"{name} {piece.session.id}", (stored_lines(one.memory) for one in engines))
            number += 1
        for name, lines in texts.items():
            write_lines(out / "verdicts-memory" / f"{path.name.partition('.')[0]}.{name}.txt", lines)
    for name in BUNDLES:
        lines = []
        for title, pieces in scripted():
            turns, engines = cameras[name].photograph(pieces)
            lines += session_lines(title, turns)
            windows += lines_of(f"{name} {title}", (stored_lines(one.memory) for one in engines))
        write_lines(out / "verdicts-memory" / f"scripted.{name}.txt", lines)
    write_lines(out / "windows.txt", windows)


def photograph_snapshot(out: Path) -> None:
    """Write snapshot.txt: the tables and rows of the state file after scripted sessions."""
    rig = camera("detectors")
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (title, pieces) in enumerate(scripted()):
            _, engines = rig.photograph(pieces)
            home = Path(folder) / str(number)
            home.mkdir()
            lines.append(title)
            for engine in engines[:1]:
                lines += _saved(engine.memory, home)
    write_lines(out / "snapshot.txt", lines)


def _saved(store: MemoryStore, home: Path) -> Iterator[str]:
    """Save a store as a server does, read it back, and show the file."""
    clock = FakeClock(store.latest)
    empty = MemoryStore(ENTRIES)
    durable = Snapshotter(empty, home, clock, print)
    durable.load()
    for name, table in store.kept().items():
        for key, entry in table.items():
            empty.kept()[name].put(key, entry, clock.now())
    durable.finish()
    for path in sorted(home.iterdir()):
        yield f"  file {path.name}"
        if path.suffix == ".db":
            yield from database_lines(path, masked={"writer"})
    again = MemoryStore(ENTRIES)
    reader = Snapshotter(again, home, clock, print)
    yield f"  read back {reader.load()}: sha256={digest(chr(10).join(stored_lines(again)).encode())}"
    reader.finish()


def database_lines(path: Path, *, masked: set[str]) -> Iterator[str]:
    """The schema of a SQLite file, and a digest of each row of tables that hold no times of this machine."""
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        for pragma in ("application_id", "user_version", "page_size"):
            yield f"  {pragma} {database.execute(f'PRAGMA {pragma}').fetchone()[0]}"
        for name, sql in database.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall():
            yield f"  {name}: {sql}"
        tables = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
        for (table,) in database.execute(tables).fetchall():
            for row in database.execute(f'SELECT * FROM "{table}"').fetchall():  # noqa: S608 - its own name
                shown = ["*" if row[0] in masked and at else part for at, part in enumerate(row)]
                yield f"    {table} sha256={digest(repr(shown).encode())}"
    finally:
        database.close()


# -- in Redis ----------------------------------------------------------------------------------------------------------


class Shared(Recorded):
    """The same with state in Redis; each decision is waited for, and all that an answer causes."""

    __slots__ = ("_loop", "_nodes", "_remote")

    def __init__(
        self,
        bundle: CompiledBundle,
        descriptors: Descriptors,
        clock: FakeClock,
        prices: Any,
        *,
        nodes: Nodes,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(bundle, descriptors, clock, prices)
        self._loop = loop
        self._nodes = nodes
        self._remote = loop.run_until_complete(self._joined(descriptors, clock))

    async def _joined(self, descriptors: Descriptors, clock: FakeClock) -> RemoteEngine:
        store = RedisStore(self._nodes, clock.now)
        remote = RemoteEngine(
            self,
            store,
            StoreHealth(_told),
            budget_s=BUDGET_S,
            fault=self._judging.fail_open,
            local=self.memory,
        )
        remote.names = SharedNames(descriptors.sessions, descriptors.trees, store)
        self.quarantine.drop_with(remote.drop)
        return remote

    def decided(self, call: Call) -> Verdict:
        """Decide with what is in Redis."""
        return self._loop.run_until_complete(self._asked(call))

    async def _asked(self, call: Call) -> Verdict:
        answer: asyncio.Future[Verdict] = self._loop.create_future()
        self._remote.decide(call, answer.set_result)
        verdict = await answer
        await self._rest()
        return verdict

    def settled(self, call: Call, answer: Answer) -> None:
        """Take the answer, and wait until Redis has it."""
        self._loop.run_until_complete(self._told(call, answer))

    async def _told(self, call: Call, answer: Answer) -> None:
        super().settled(call, answer)
        await self._rest()

    async def _rest(self) -> None:
        for _ in range(SETTLE_ROUNDS):
            await command(self._nodes, b"PING")

    def close(self) -> None:
        """End its timers."""
        self._loop.run_until_complete(self._closed())

    async def _closed(self) -> None:
        self._remote.close()


def _told(_up: bool, _why: str) -> None:  # noqa: FBT001 - as `StoreHealth` calls it
    """A verdict that was decided without Redis has `degraded`."""


@contextmanager
def redis_server() -> Iterator[redis.Redis | None]:
    """Run a server; None where there is no such program."""
    program = shutil.which("redis-server")
    if program is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
        process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        client = redis.Redis(port=port, retry=Retry(NoBackoff(), 0), socket_timeout=BUDGET_S)
        try:
            _wait_for(client)
            yield client
        finally:
            client.close()
            process.terminate()
            process.wait()


def _wait_for(client: redis.Redis, within_s: float = 15.0) -> None:
    end = time.monotonic() + within_s
    while True:
        try:
            client.ping()
            return
        except redis.ConnectionError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def key_lines(client: redis.Redis) -> Iterator[str]:
    """What Redis holds: key, type, whether it expires, digest of the value."""
    for key in sorted(client.scan_iter(count=1000)):
        kind = client.type(key)
        value = client.get(key) if kind == b"string" else client.dump(key)
        assert isinstance(kind, bytes)  # noqa: S101 - this client decodes nothing
        assert isinstance(value, bytes)  # noqa: S101 - as above
        expires = "expires" if client.ttl(key) >= 0 else "stays"
        yield f"  {key.decode('utf-8', 'backslashreplace')} {kind.decode()} {expires} sha256={digest(value)}"


def photograph_redis(out: Path, corpus: Sequence[Path]) -> str:
    """Write verdicts-redis/ and redis-keys.txt; return why not, or ""."""
    with redis_server() as client:
        if client is None:
            return "redis-server is not installed: verdicts-redis and redis-keys.txt are not written"
        loop = asyncio.new_event_loop()
        port = client.connection_pool.connection_kwargs["port"]
        nodes = loop.run_until_complete(_connected(f"redis://127.0.0.1:{port}/0", loop))
        try:
            _photograph_redis(out, corpus, client, nodes, loop)
        finally:
            loop.run_until_complete(nodes.close())
            loop.close()
    return ""


async def _connected(url: str, loop: asyncio.AbstractEventLoop) -> Nodes:
    nodes = make_nodes(parse_redis_url(url), loop)
    await nodes.start()
    return nodes


def _photograph_redis(
    out: Path, corpus: Sequence[Path], client: redis.Redis, nodes: Nodes, loop: asyncio.AbstractEventLoop
) -> None:
    def shared(bundle: CompiledBundle, descriptors: Descriptors, clock: FakeClock, prices: Any) -> Recorded:
        return Shared(bundle, descriptors, clock, prices, nodes=nodes, loop=loop)

    here = {name: camera(name) for name in BUNDLES}
    there = {name: camera(name, shared) for name in BUNDLES}
    keys: list[str] = []
    unlike: list[str] = []

    def taken(name: str, title: str, pieces: Sequence[SessionSlice]) -> list[str]:
        client.flushall()
        turns, engines = there[name].photograph(pieces)
        for engine in engines:
            if isinstance(engine, Shared):
                engine.close()
        keys.extend(lines_of(f"{name} {title}", [key_lines(client)]))
        unlike.extend(differences(f"{name} {title}", here[name].photograph(pieces)[0], turns))
        return list(session_lines(title, turns))

    number = 0
    for path in corpus:
        texts: dict[str, list[str]] = {name: [] for name in BUNDLES}
        for piece in recorded(path):
            if number % STORED_EVERY == 0:
                for name in BUNDLES:
                    texts[name] += taken(name, piece.session.id, [piece])
            number += 1
        for name, lines in texts.items():
            write_lines(out / "verdicts-redis" / f"{path.name.partition('.')[0]}.{name}.txt", lines)
    for name in BUNDLES:
        lines = [line for title, pieces in scripted() for line in taken(name, title, pieces)]
        write_lines(out / "verdicts-redis" / f"scripted.{name}.txt", lines)
    write_lines(out / "redis-keys.txt", keys)
    write_lines(out / "redis-unlike-memory.txt", unlike)


def differences(title: str, here: Sequence[Json], there: Sequence[Json]) -> Iterator[str]:
    """Which turns Redis decides in another way than memory does; a snapshot of that too."""
    for number, (one, other) in enumerate(zip(here, there, strict=True), 1):
        for name in sorted(one.keys() | other.keys()):
            if one.get(name) != other.get(name):
                yield f"{title} turn {number} {name}: {_short(one.get(name))} in memory, {_short(other.get(name))}"


def _short(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
