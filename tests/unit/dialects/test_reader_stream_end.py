"""How a stream that is cut ends, as bytes and as the providers' own packages read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseIncompleteEvent

from breakloop.dialects import registry
from breakloop.dialects.answers import ITEMS_MAX_BYTES, StreamEnd, StreamState
from breakloop.dialects.framing import SseParser
from breakloop.dialects.registry import reader
from breakloop.model.call import Usage
from tests.each import each
from tests.unit.dialects.recorded.shape import SSE, dump, events, named

SAID = ("And so on, ", "and so on.")
TEXT = "".join(SAID)
USAGE = Usage(30, 12, 5, 0, 2)
DIALECTS = ["openai_chat", "openai_completions", "openai_responses", "anthropic_messages", "gemini"]
MESSAGES: Any = [{"role": "user", "content": "Hello"}]


def chunk(piece: str, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": piece}, "logprobs": None, "finish_reason": None}
    envelope = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "gpt-5"}
    return {**envelope, "system_fingerprint": "fp", "choices": [choice], **more}


def completion(piece: str) -> dict[str, Any]:
    choice = {"index": 0, "text": piece, "logprobs": None, "finish_reason": None}
    return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}


RESPONSE = {
    "id": "resp_1", "object": "response", "created_at": 1700000000, "status": "in_progress", "error": None,
    "incomplete_details": None, "instructions": "Be brief.", "model": "gpt-5", "output": [], "usage": None,
    "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "temperature": 0.5, "top_p": 1.0, "metadata": {},
}  # fmt: skip
REASONING = {"id": "rs_1", "type": "reasoning", "summary": []}
MESSAGE = {"id": "msg_1", "type": "message", "status": "in_progress", "role": "assistant", "content": []}
PART = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
AT = {"item_id": "msg_1", "output_index": 1, "content_index": 0}


def response_events() -> list[dict[str, Any]]:
    said = [{"type": "response.output_text.delta", **AT, "delta": piece, "logprobs": []} for piece in SAID]
    sent: list[dict[str, Any]] = [
        {"type": "response.created", "response": RESPONSE},
        {"type": "response.output_item.added", "output_index": 0, "item": REASONING},
        {"type": "response.output_item.done", "output_index": 0, "item": REASONING},
        {"type": "response.output_item.added", "output_index": 1, "item": MESSAGE},
        {"type": "response.content_part.added", **AT, "part": PART},
        *said,
    ]
    return [{**event, "sequence_number": place} for place, event in enumerate(sent)]


def message_events() -> list[dict[str, Any]]:
    begun: dict[str, Any] = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": [], "stop_reason": None,
        "stop_sequence": None, "usage": {"input_tokens": 25, "output_tokens": 1},
    }  # fmt: skip
    block = {"type": "text", "text": ""}
    said = [
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": piece}} for piece in SAID
    ]
    return [
        {"type": "message_start", "message": begun},
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "thinking", "thinking": "", "signature": ""},
        },
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": block},
        *said,
        {"type": "ping"},
    ]


def piece_of_gemini(piece: str) -> dict[str, Any]:
    candidate = {"content": {"parts": [{"text": piece}], "role": "model"}, "index": 0}
    return {"candidates": [candidate], "usageMetadata": {"promptTokenCount": 4}, "modelVersion": "g", "responseId": "r"}


SENT: dict[str, list[dict[str, Any]]] = {
    "openai_chat": [chunk(piece) for piece in SAID],
    "openai_completions": [completion(piece) for piece in SAID],
    "openai_responses": response_events(),
    "anthropic_messages": message_events(),
    "gemini": [piece_of_gemini(piece) for piece in SAID],
}


def passed(*payloads: Any) -> StreamState:
    kept = StreamState(b'"response.output_item.done"')
    for payload in payloads:
        kept.note(payload if isinstance(payload, bytes) else dump(payload))
    return kept


def final_event(
    dialect: str, state: StreamState, text: str = "", *, usage: Usage | None = None, choices: Sequence[int] = (0,)
) -> bytes:
    return registry.DIALECTS[dialect].end_stream(StreamEnd(state, text, usage, choices, len(text)))


def cut(dialect: str, usage: Usage | None = None) -> bytes:
    """The whole stream, as a client gets it."""
    sent = SENT[dialect]
    began = named(*sent) if "type" in sent[0] else events(*sent)
    return began + final_event(dialect, passed(*sent), TEXT, usage=usage)


def told(ending: bytes) -> list[Any]:
    return [json.loads(data) if data != b"[DONE]" else "[DONE]" for data in SseParser().feed(ending)]


def http(body: bytes) -> httpx2.Client:
    """A client for which every answer is this one."""
    headers = {"content-type": "text/event-stream"}
    return httpx2.Client(transport=httpx2.MockTransport(lambda _: httpx2.Response(200, content=body, headers=headers)))


def openai_client(body: bytes) -> openai.OpenAI:
    return openai.OpenAI(api_key="k", base_url="http://standin/v1", http_client=http(body), max_retries=0)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_our_own_reader_sees_a_proper_end(dialect: str) -> None:
    """A well-formed final event of the dialect, which says that the answer is not whole (LD-8)."""
    reading = reader(dialect, SSE)
    assert reading is not None
    reading.feed(cut(dialect))
    answer = reading.answer(200, complete=True)
    assert (answer.text, answer.complete, answer.error, reading.unreadable) == (TEXT, True, "", 0)
    assert answer.finish.lower() in {"length", "max_tokens", "max_output_tokens"}


def test_openai_reads_a_chat_that_was_cut() -> None:
    """With the real package, by chunks and by its own gathering (LD-8)."""
    with openai_client(cut("openai_chat")) as client:
        chunks = list(client.chat.completions.create(model="m", messages=MESSAGES, stream=True))
        assert "".join(one.choices[0].delta.content or "" for one in chunks) == TEXT
        assert [one.choices[0].finish_reason for one in chunks] == [None, None, "length"]
        assert {one.id for one in chunks} == {"chatcmpl-1"}
        with client.chat.completions.stream(model="m", messages=MESSAGES) as stream:
            assert [event.type for event in stream][-1] == "content.done"
            with pytest.raises(openai.LengthFinishReasonError) as cut_short:  # its own way to say so
                stream.get_final_completion()
    assert cut_short.value.completion.choices[0].message.content == TEXT


def test_openai_reads_a_completion_that_was_cut() -> None:
    """With the real package (LD-8)."""
    with openai_client(cut("openai_completions")) as client:
        chunks = list(client.completions.create(model="m", prompt="Hello", stream=True))
    assert "".join(one.choices[0].text for one in chunks) == TEXT
    assert chunks[-1].choices[0].finish_reason == "length"


def test_openai_reads_a_response_that_was_cut() -> None:
    """With the real package: every event in its turn, and at last the response as far as it came (LD-8)."""
    with openai_client(cut("openai_responses", USAGE)) as client:
        got = list(client.responses.create(model="m", input="Hello", stream=True))
        with client.responses.stream(model="m", input="Hello") as stream:
            assert [event.type for event in stream][-1] == "response.incomplete"
    assert [event.type for event in got][-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert [event.sequence_number for event in got] == list(range(len(got)))
    last = got[-1]
    assert isinstance(last, ResponseIncompleteEvent)
    ResponseIncompleteEvent.model_validate(last.model_dump(warnings="none"))
    response = last.response
    assert (response.id, response.status, response.output_text) == ("resp_1", "incomplete", TEXT)
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert response.instructions == "Be brief."
    assert response.usage is not None
    assert response.usage.total_tokens == 42


def test_anthropic_reads_a_message_that_was_cut() -> None:
    """With the real package, by its own gathering (LD-8)."""
    body = cut("anthropic_messages", USAGE)
    with anthropic.Anthropic(api_key="k", base_url="http://standin", http_client=http(body), max_retries=0) as client:
        with client.messages.stream(model="m", max_tokens=9, messages=MESSAGES) as stream:
            done = stream.get_final_message()
        raw = client.messages.create(model="m", max_tokens=9, messages=MESSAGES, stream=True)
        kinds = [event.type for event in raw]
    assert done.content[1].type == "text"
    assert done.content[1].text == TEXT
    assert (done.stop_reason, done.usage.input_tokens, done.usage.output_tokens) == ("max_tokens", 25, 12)
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_the_end_of_gemini() -> None:
    """One more piece, with a reason to finish and all that pieces carry (LD-8)."""
    ending = final_event("gemini", passed(*SENT["gemini"]), TEXT)
    candidate = {"content": {"parts": [{"text": ""}], "role": "model"}, "finishReason": "MAX_TOKENS", "index": 0}
    assert told(ending) == [piece_of_gemini("") | {"candidates": [candidate]}]


def test_every_answer_of_a_stream_ends() -> None:
    """Several choices or candidates; those that have ended are not ended again (LD-8)."""
    ending = told(final_event("openai_chat", passed(*SENT["openai_chat"]), choices=(0, 1)))
    assert [choice["index"] for choice in ending[0]["choices"]] == [0, 1]
    ending = told(final_event("gemini", passed(*SENT["gemini"]), choices=(0, 2)))
    assert [candidate["index"] for candidate in ending[0]["candidates"]] == [0, 2]


def test_a_count_for_those_who_asked() -> None:
    """`include_usage` puts a count behind the last chunk, and shows in every chunk before it (LD-8)."""
    asked = told(final_event("openai_chat", passed(chunk("x", usage=None)), usage=USAGE))
    assert asked[1]["choices"] == []
    assert asked[1]["usage"] == {"prompt_tokens": 30, "completion_tokens": 12, "total_tokens": 42}
    assert [len(asked), asked[2]] == [3, "[DONE]"]
    assert len(told(final_event("openai_chat", passed(chunk("x")), usage=USAGE))) == 2
    assert len(told(final_event("openai_chat", passed(chunk("x", usage=None))))) == 2


def test_anthropic_needs_some_count() -> None:
    """Where nobody counted, a guess (LD-8)."""
    ending = told(final_event("anthropic_messages", passed(*message_events()), "x" * 400))
    assert ending[1]["usage"] == {"output_tokens": 100}


@each(
    "dialect, last, kinds",
    [
        ("openai_chat", b"[DONE]", []),
        ("anthropic_messages", {"type": "content_block_stop", "index": 1}, ["message_delta", "message_stop"]),
        ("anthropic_messages", {"type": "message_delta", "delta": {}, "usage": {}}, ["message_stop"]),
        ("anthropic_messages", {"type": "message_stop"}, []),
        ("anthropic_messages", {"type": "error", "error": {}}, []),
        ("openai_responses", {"type": "response.output_text.done"}, ["response.incomplete"]),
        ("openai_responses", {"type": "response.completed", "response": {}}, []),
        ("mcp", {"jsonrpc": "2.0"}, []),
        ("openai_chat", b"", []),
        ("openai_chat", b"<html>", []),
        ("gemini", b"[1]", []),
    ],
)
def test_no_more_than_is_missing(dialect: str, last: Any, kinds: list[str]) -> None:
    """What has ended is not ended again (LD-8)."""
    ending = told(final_event(dialect, passed(last), TEXT))
    assert [event if isinstance(event, str) else event["type"] for event in ending] == kinds


@pytest.mark.parametrize(
    ("dialect", "last", "ending"),
    [
        ("openai_chat", chunk("") | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, ["[DONE]"]),
        ("openai_chat", chunk("") | {"choices": []}, ["[DONE]"]),
        ("gemini", {"candidates": [{"finishReason": "STOP"}]}, []),
    ],
)
def test_where_every_answer_has_ended(dialect: str, last: Any, ending: list[str]) -> None:
    """Only the end mark is missing, where the dialect has one (LD-8)."""
    assert told(final_event(dialect, passed(last), choices=())) == ending


def test_a_chunk_that_says_nothing_may_be_the_last() -> None:
    """Some servers send chunks without choices in between; the answer still gets its end (LD-8)."""
    ending = told(final_event("openai_chat", passed(chunk("x"), chunk("") | {"choices": []})))
    assert [choice["finish_reason"] for choice in ending[0]["choices"]] == ["length"]


def test_which_dialects_can_be_ended() -> None:
    late = {name for name, one in registry.DIALECTS.items() if isinstance(one, registry.LateDialect) and one.is_llm}
    found = {name for name, one in registry.DIALECTS.items() if one.ends_streams}
    assert found == {*DIALECTS, *late}  # test_late_dialects.py has those


def test_a_refusal_that_was_cut() -> None:
    """It is closed as what it is (LD-8)."""
    last = {"type": "response.refusal.delta", **AT, "delta": "No.", "sequence_number": 7}
    ending = told(final_event("openai_responses", passed(RESPONSE, last), "No."))
    assert ending[0] == {"type": "response.refusal.done", **AT, "refusal": "No.", "sequence_number": 8}
    assert ending[1]["part"] == {"type": "refusal", "refusal": "No."}
    assert ending[3]["response"]["output"] == [ending[2]["item"]]
    assert ending[3]["response"]["object"] == "response"  # although the stream did not begin with one


def test_what_is_kept_has_a_bound() -> None:
    """Items of a response, which may carry pictures (Y-2)."""
    large = {"type": "response.output_item.done", "item": {"type": "x", "data": "x" * (ITEMS_MAX_BYTES // 3)}}
    kept = passed(*[large] * 10)
    assert len(kept.items) == 2
    assert len(kept.last) == len(dump(large))


values = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["index", "id"]), inner, max_size=2),
    max_leaves=4,
)


@given(
    st.sampled_from(DIALECTS),
    st.dictionaries(st.sampled_from(["type", "choices", "candidates", "index", "id", "response", "item"]), values),
    st.text() | st.just("\ud800"),
)
def test_whatever_comes(dialect: str, fields: dict[str, Any], text: str) -> None:
    """Nothing fails, and what is written is events (Y-2)."""
    payload = json.dumps(fields).encode()
    ending = final_event(dialect, passed(payload, payload), text)
    assert ending == b"" or ending.endswith(b"\n\n")
    told(ending)
