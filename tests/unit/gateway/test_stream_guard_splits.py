"""A stream is cut as well wherever its bytes are split: into chunks by the upstream, into pieces by the network."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from breakloop.gateway.connection import Phase
from tests.builders import decide_with
from tests.unit.gateway.fake_client import read_replies
from tests.unit.gateway.fake_upstream import Proxy
from tests.unit.gateway.repeating import CHUNKED_HEAD, LOOP, POLICY, UNIT, UNTIL_CLOSE_HEAD, asked, check_cut, chunked

CONTENT = b"".join(LOOP)
EVENT = len(LOOP[0])
DUE = next(number for number in range(4, 99, 4) if number * len(UNIT) >= 1200)  # events: every four are looked at


@pytest.fixture(scope="module", autouse=True)
def guarded() -> Iterator[None]:
    """Every answer is."""
    with pytest.MonkeyPatch.context() as patch:
        decide_with(patch, guards_stream=1)
        yield


def cut(proxy: Proxy, pieces: Sequence[bytes], head: bytes = CHUNKED_HEAD, version: str = "1.1") -> bytes:
    """Let the upstream send this, one piece after the other; returns the body that the client got, well framed."""
    cuts = proxy.world.engine.tally.cut
    proxy.transport.sent = b""
    proxy.send(asked(version=version))
    upstream = proxy.upstream()
    upstream.says(head)
    for piece in pieces:
        if upstream.wire.closed:
            break
        upstream.says(piece)
    assert upstream.wire.aborted
    assert proxy.world.engine.tally.cut == cuts + 1
    got = proxy.sent()
    if version == "1.0":
        assert proxy.closed()
        return got.partition(b"\r\n\r\n")[2]
    assert proxy.phase() is Phase.IDLE
    ((status, body, _),) = read_replies(got)
    assert status == 200
    return body


def split(data: bytes, places: Sequence[int]) -> list[bytes]:
    places = sorted({0, len(data), *[place for place in places if 0 < place < len(data)]})
    return [data[start:stop] for start, stop in itertools.pairwise(places)]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_an_event_to_a_chunk_split_at_every_byte(line_end: bytes) -> None:
    """Around the place of the cut, with the line ends of every kind (LD-8, D-1)."""
    sent = chunked(*[one.replace(b"\n", line_end) for one in LOOP])
    content = CONTENT.replace(b"\n", line_end)
    each = len(sent) // len(LOOP)
    with Proxy(POLICY) as proxy:
        for at in range((DUE - 1) * each - 9, DUE * each + 9):
            body = cut(proxy, [sent[:at], sent[at : at + 1], sent[at + 1 :]])
            check_cut(body.replace(line_end, b"\n"), CONTENT)
            assert body.startswith(content[: EVENT * (DUE - 1)])
            assert b"\r" not in body.replace(line_end, b"")
            assert body.partition(b"[DONE]")[2].startswith(2 * line_end)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, EVENT - 1, EVENT + 1, 1000])
def test_chunks_that_know_nothing_of_events(size: int) -> None:
    """What stands between an upstream and us may frame it anew; split at every byte of some chunks (LD-8, D-1)."""
    sent = chunked(*split(CONTENT, range(0, len(CONTENT), size)))
    last = len(sent) * DUE // len(LOOP)
    with Proxy(POLICY) as proxy:
        for at in range(last - 40, last + 40, 1 if size > 2 else 8):
            check_cut(cut(proxy, split(sent, [at, at + 9])), CONTENT)


def test_byte_by_byte() -> None:
    """Then it is cut as soon as can be (LD-8, D-1)."""
    with Proxy(POLICY) as proxy:
        for sent in (chunked(*LOOP), chunked(*split(CONTENT, range(0, len(CONTENT), 100)))):
            body = cut(proxy, [sent[at : at + 1] for at in range(len(sent))])
            check_cut(body, CONTENT)
            assert body.count(b"configuration") == DUE


def test_one_piece() -> None:
    """What came with the repetition has passed already, and nothing after it does (LD-8)."""
    with Proxy(POLICY) as proxy:
        body = cut(proxy, [chunked(*LOOP), chunked(*LOOP)])
    check_cut(body, CONTENT)
    assert body.startswith(CONTENT)


@given(
    st.lists(st.integers(1, len(CONTENT) - 1), max_size=40),
    st.lists(st.integers(1, len(CONTENT) - 1), max_size=40),
    st.sampled_from(
        [(CHUNKED_HEAD, "1.1"), (UNTIL_CLOSE_HEAD, "1.1"), (CHUNKED_HEAD, "1.0"), (UNTIL_CLOSE_HEAD, "1.0")]
    ),
)
@example([EVENT * DUE - 1], [EVENT * DUE, EVENT * DUE + 10], (CHUNKED_HEAD, "1.1"))
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_cut_anywhere(in_chunks: list[int], in_pieces: list[int], how: tuple[bytes, str]) -> None:
    """Any chunks in any pieces, for every framing (LD-8, D-1)."""
    head, version = how
    sent = chunked(*split(CONTENT * 2, in_chunks)) if head == CHUNKED_HEAD else CONTENT * 2
    with Proxy(POLICY) as proxy:
        check_cut(cut(proxy, split(sent, in_pieces), head, version), CONTENT * 2)
