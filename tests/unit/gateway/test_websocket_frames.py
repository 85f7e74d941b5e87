"""Frames of websockets, against the `websockets` package as the other side."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.streams import StreamReader

from breakloop.gateway import websocket_frames as frames
from breakloop.gateway.websocket_frames import FrameError, Message, MessageReader, close_frame, text_frame

SIZES = [0, 1, 125, 126, 127, 65535, 65536, 70_000]


def read(data: bytes, *, masked: bool, most: int = 1_000_000) -> list[Message]:
    return MessageReader(most, masked=masked).feed(data)


def sent(payload: bytes, *, masked: bool, opcode: Any = Opcode.TEXT, fin: bool = True) -> bytes:
    """A frame as the package sends it."""
    return Frame(opcode, payload, fin=fin).serialize(mask=masked)


def received(data: bytes, *, masked: bool) -> Frame:
    """A frame as the package reads it."""
    reader = StreamReader()
    reader.feed_data(data)
    parsing = Frame.parse(reader.read_exact, mask=masked)
    try:
        while True:
            next(parsing)
    except StopIteration as done:
        frame: Frame = done.value
        return frame


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_a_message_of_any_size(size: int, *, masked: bool) -> None:
    """Is read as the package sends it, and the package reads what is written here (D-1)."""
    payload = bytes(at % 251 for at in range(size))
    raw = sent(payload, masked=masked)
    assert read(raw, masked=masked) == [Message(frames.TEXT, payload, raw)]
    assert received(text_frame(payload, masked=masked), masked=masked).data == payload


def test_a_close_frame() -> None:
    """Has the code and the reason, cut to what fits."""
    frame = received(close_frame(1008, "x" * 200, masked=False), masked=False)
    assert (frame.opcode, frame.data) == (Opcode.CLOSE, b"\x03\xf0" + b"x" * 123)


@given(st.lists(st.integers(1, 40), max_size=30), st.lists(st.binary(max_size=30), min_size=1, max_size=5))
def test_messages_in_pieces(cuts: list[int], payloads: list[bytes]) -> None:
    """Fragments are joined, control frames between them come out at once, and splits of the bytes do not matter
    (D-1)."""
    ping = sent(b"?", masked=True, opcode=Opcode.PING)
    parts = [
        sent(payload, masked=True, opcode=Opcode.CONT if at else Opcode.TEXT, fin=at == len(payloads) - 1)
        for at, payload in enumerate(payloads)
    ]
    stream, reader, found = ping.join(parts), MessageReader(10_000, masked=True), []
    for cut in [*cuts, len(stream)]:
        found += reader.feed(stream[:cut])
        stream = stream[cut:]
    assert [message.payload for message in found if message.kind == frames.TEXT] == [b"".join(payloads)]
    assert [message.raw for message in found if message.kind == frames.TEXT] == [b"".join(parts)]
    assert sum(message.kind == frames.PING for message in found) == len(payloads) - 1
    assert len(reader) == 0


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(sent(b"x", masked=False), 1002, id="no-mask"),
        pytest.param(b"\xc1\x80" + bytes(4), 1002, id="reserved-bit"),
        pytest.param(b"\x83\x80" + bytes(4), 1002, id="unknown-kind"),
        pytest.param(b"\x09\x80" + bytes(4), 1002, id="ping-in-fragments"),
        pytest.param(b"\x89\xfe\x00\x7e" + bytes(130), 1002, id="long-ping"),
        pytest.param(sent(b"x", masked=True, opcode=Opcode.CONT), 1002, id="continuation-of-nothing"),
        pytest.param(sent(b"x", masked=True, fin=False) + sent(b"x", masked=True), 1002, id="message-within-another"),
        pytest.param(b"\x81\xff" + (1001).to_bytes(8) + bytes(4), 1009, id="announced-too-long"),
        pytest.param(
            sent(b"x" * 600, masked=True, fin=False) + sent(b"x" * 600, masked=True, opcode=Opcode.CONT),
            1009,
            id="too-long-in-fragments",
        ),
    ],
)
def test_what_violates_the_protocol(data: bytes, code: int) -> None:
    """Is refused with the code that the protocol has for it, before it is held (Y-2)."""
    with pytest.raises(FrameError) as refused:
        read(data, masked=True, most=1000)
    assert refused.value.code == code


def test_a_message_of_empty_frames_without_end() -> None:
    """Has a bound, too (Y-2)."""
    reader = MessageReader(1000, masked=True)
    reader.feed(sent(b"", masked=True, fin=False))
    with pytest.raises(FrameError) as refused:
        reader.feed(sent(b"", masked=True, opcode=Opcode.CONT, fin=False) * 10_001)
    assert refused.value.code == 1009


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_read_or_refused(data: bytes, masked: bool) -> None:
    """Nothing but `FrameError` comes out of it (Y-2)."""
    with contextlib.suppress(FrameError):
        read(data, masked=masked)


def test_a_large_message_is_unmasked_as_it_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once it would take 4 ms for a megabyte (Y-2)."""
    sizes: list[int] = []
    unmask = frames._unmask

    def noted(payload: bytes, mask: bytes) -> bytes:
        sizes.append(len(payload))
        return unmask(payload, mask)

    monkeypatch.setattr(frames, "_unmask", noted)
    payload = bytes(range(256)) * 2000
    data = sent(payload, masked=True)
    reader = MessageReader(1_000_000, masked=True)
    found = [message for at in range(0, len(data), 9_999) for message in reader.feed(data[at : at + 9_999])]
    assert [(message.payload, message.raw) for message in found] == [(payload, data)]
    assert max(sizes) <= 9_999
