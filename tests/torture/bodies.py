"""Bodies and streams that cost more than their size: nested structure, compression, tiny events."""

from __future__ import annotations

import base64
import gzip
import json
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Final

from tests.e2e.raw_client import CutShortError, RawClient
from tests.torture.gateway import Rig, bystanders, chat, expect_alive, gateway, post, send, send_all, told
from tests.torture.limits import Limits, memory
from tests.torture.table import Row
from tests.torture.upstream import upstream

MEMORY_MIB: Final = 512  # as in deploy/helm and deploy/kubernetes
_CALM: Final = 100  # answers of bystanders before and after an attack
_GROWTH_MIB: Final = 64
_SERVED: Final = {200, 413, 429, 503}  # passed or refused, with a response that says which


@cache
def empty_lists(size: int = 10_450_000) -> bytes:
    """A chat body of this many bytes, nearly all of which are empty lists."""
    unique = base64.b64encode(secrets.token_bytes(36))
    head, tail = b'{"model":"m","user":"%b","messages":[{"role":"user","content":[' % unique, b"]}]}"
    return head + b",".join([b"[]"] * ((size - len(head) - len(tail)) // 3)) + tail


@cache
def packed_lists() -> bytes:
    """The same compressed: 10 MB in 53 KB, a ratio that is allowed."""
    noise = base64.b64encode(secrets.token_bytes(42_000))
    head = b'{"model":"m","user":"%b","messages":[{"role":"user","content":[' % noise
    return gzip.compress(head + b",".join([b"[]"] * 3_474_760) + b"]}]}", 9)


@cache
def many_keys(count: int) -> bytes:
    """An object with so many keys, and half of a surrogate pair, which strict parsers refuse."""
    keys = ",".join(f'"k{number}":1' for number in range(count))
    return b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}],"metadata":{%b}}' % keys.encode()


@cache
def numbers(count: int) -> bytes:
    """A list of so many numbers."""
    return b'{"model":"m","messages":[{"role":"user","content":"x"}],"metadata":[%b]}' % b",".join([b"1"] * count)


def _repeated(value: bytes, field: bytes, size: int = 10_000_000) -> bytes:
    """A chat body of this many bytes with a field that is a list of the same value."""
    return b'{"model":"m",%b:[%b]}' % (field, b",".join([value] * (size // (len(value) + 1))))


@cache
def empty_messages() -> bytes:
    return _repeated(b"null", b'"messages"')


@cache
def empty_parts() -> bytes:
    """One message with many parts, all of them empty."""
    parts = _repeated(b'{"type":"text","text":""}', b'"content"').removeprefix(b'{"model":"m",')
    return b'{"model":"m","messages":[{"role":"user",%b]}' % parts


@cache
def half_characters() -> bytes:
    """One message of halves of surrogate pairs, which strict parsers refuse."""
    return b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % (b"\\ud800" * 1_600_000)


@cache
def prose(size: int) -> bytes:
    """An honest body of this size: a conversation of long messages."""
    messages = [
        {"role": "user", "content": f"Page {page}. " + "The quick brown fox jumps over the lazy dog, again. " * 500}
        for page in range(size // 26_000)
    ]
    return json.dumps({"model": "m", "messages": messages}).encode()


def _each(count: int, body: bytes, *lines: str) -> list[bytes]:
    """The same body of so many clients: of one, it would be a loop."""
    return [post(body, *lines, key=f"attacker-{number}") for number in range(count)]


def _attack(row: Row, requests: Sequence[bytes], accepted: set[int], *, fast: bool = False) -> None:
    """Send all of them at once to a gateway with as much memory as a container has, beside bystanders."""
    with upstream() as url, memory(MEMORY_MIB) as limit, gateway(url, limits=limit.apply(Limits())) as running:
        row.done += f", within {MEMORY_MIB} MiB ({limit.by})"
        with bystanders(running.port) as others, others.watch(_CALM):
            statuses = send_all(running.port, requests)
        expect_alive(row, running, MEMORY_MIB)
        row.expect("each is passed on or refused", set(statuses) <= accepted, told(statuses))
        others.judge(row, fast=fast)


def packed(rig: Rig, row: Row) -> None:
    count = rig.size(2, 8)
    row.done = f"{count} requests of 53 KB at once, each 10 MB of empty lists in gzip; the upstream holds them for 2 s"
    hold = "X-Hold: 2" if rig.long else "X-Hold: 0.2"
    _attack(row, _each(count, packed_lists(), "Content-Encoding: gzip", hold), _SERVED, fast=True)


def plain(rig: Rig, row: Row) -> None:
    count = rig.size(2, 2)
    row.done = f"{count} requests of 10 MB of empty lists at once; the upstream holds them for 2 s"
    _attack(row, _each(count, empty_lists(), "X-Hold: 2" if rig.long else "X-Hold: 0.2"), _SERVED, fast=True)


def dozen(rig: Rig, row: Row) -> None:
    row.done = "12 requests of 10 MB of empty lists at once"
    _attack(row, _each(12, empty_lists(), "X-Hold: 1"), _SERVED)


def keys(rig: Rig, row: Row) -> None:
    count, size = rig.size(1, 4), rig.size(100_000, 700_000)
    body = many_keys(size)
    row.done = f"{count} requests at once, each an object of {size:,} keys that strict parsers refuse"
    _attack(row, _each(count, body), _SERVED)


def number_lists(rig: Rig, row: Row) -> None:
    row.done = "4 requests at once, each a list of 5 million numbers"
    _attack(row, _each(4, numbers(5_000_000)), _SERVED)


def small(rig: Rig, row: Row) -> None:
    count = rig.size(40, 400)
    row.done = f"{count} requests of 63 KB of empty lists at once; the upstream holds them for 2 s"
    _attack(row, _each(count, empty_lists(63_000), "X-Hold: 2"), _SERVED)


def _in_a_loop(what: str, make: Callable[[], bytes], *lines: str) -> Callable[[Rig, Row], None]:
    """One client sends a body again and again, each time as soon as it has the response, under another key."""

    def scenario(rig: Rig, row: Row) -> None:
        count, body = rig.size(2, 96), make()
        row.done = f"{count} requests of {len(body):,} bytes, one after the other: {what}"
        with upstream() as url, gateway(url) as running:
            with bystanders(running.port) as others:
                with others.watch(_CALM):
                    before_mib = running.forget_peak()
                    statuses = Counter(send(running.port, one) for one in _each(count, body, *lines))
                grown_mib = running.peak_mib() - before_mib
            expect_alive(row, running)
            row.expect("each is passed on or refused", set(statuses) <= _SERVED, told(statuses))
            row.expect(f"memory grows by {_GROWTH_MIB} MiB at most", grown_mib <= _GROWTH_MIB, f"{grown_mib} MiB")
            others.judge(row, none_waits=True)

    return scenario


def honest(rig: Rig, row: Row) -> None:
    row.done = "4 conversations of 9 MB of prose at once"
    body = prose(9_000_000)
    _attack(row, _each(4, body), {200})


def read_stream(port: int, content: bytes) -> int:
    """Read a stream to its end; returns how many events came."""
    try:
        with RawClient(port) as client:
            client.send(content)
            return client.answer().body.count(b"\n\n")
    except (OSError, CutShortError):
        return 0


def conversations(rig: Rig, row: Row) -> None:
    count = rig.size(500, 60_000)
    row.done = f"{count:,} conversations of 3 KB, each of another client"
    text = "The quick brown fox jumps over the lazy dog. " * 60

    def talk(numbers: range) -> Counter[int]:
        with RawClient(running.port) as client:
            statuses: Counter[int] = Counter()
            for number in numbers:
                client.send(chat(f"{number} {text}", f"X-Agent-Session: {number}", key=str(number)))
                statuses[client.answer().status] += 1
            return statuses

    with upstream() as url, memory(MEMORY_MIB) as limit, gateway(url, limits=limit.apply(Limits())) as running:
        row.done += f", within {MEMORY_MIB} MiB ({limit.by})"
        with ThreadPoolExecutor(4) as pool:
            seen = sum(pool.map(talk, [range(part, count, 4) for part in range(4)]), Counter())
        expect_alive(row, running, MEMORY_MIB)
        row.expect("each is answered", seen == {200: count}, told(seen))


def tiny_events(rig: Rig, row: Row) -> None:
    count = rig.size(20_000, 400_000)
    row.done = f"a stream of {count:,} tiny events, as fast as it is taken"
    with upstream() as url, gateway(url) as running, bystanders(running.port) as others:
        with others.watch(_CALM):
            events = read_stream(running.port, chat("Count.", f"X-Events: {count}"))
        expect_alive(row, running)
        row.expect("the stream is complete", events == count + 1, f"{events:,} events, the end included")
        others.judge(row)


SCENARIOS: Final[dict[str, Callable[[Rig, Row], None]]] = {
    "gzip-bodies": packed,
    "plain-bodies": plain,
    "a-dozen-bodies": dozen,
    "many-keys": keys,
    "many-numbers": number_lists,
    "small-bodies": small,
    "gzip-lists-in-a-loop": _in_a_loop("10 MB of empty lists in gzip", packed_lists, "Content-Encoding: gzip"),
    "lists-in-a-loop": _in_a_loop("empty lists", empty_lists),
    "keys-in-a-loop": _in_a_loop("700,000 keys, and half of a surrogate pair", lambda: many_keys(700_000)),
    "numbers-in-a-loop": _in_a_loop("5 million numbers", lambda: numbers(5_000_000)),
    "null-messages-in-a-loop": _in_a_loop("messages that are null", empty_messages),
    "empty-parts-in-a-loop": _in_a_loop("empty parts of one message", empty_parts),
    "half-characters-in-a-loop": _in_a_loop("halves of surrogate pairs", half_characters),
    "honest-bodies": honest,
    "many-conversations": conversations,
    "tiny-events": tiny_events,
}
