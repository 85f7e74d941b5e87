"""Answers of Amazon Bedrock, in the shape in which they come: of Converse, and of models with their own APIs."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from breakloop.dialects.aws_events import aws_event
from breakloop.model.call import Answer, ToolCall, Usage
from tests.unit.dialects.recorded.shape import AWS, JSON, Recorded, dump

USAGE = {"inputTokens": 20, "outputTokens": 9, "totalTokens": 34, "cacheReadInputTokens": 4, "cacheWriteInputTokens": 1}
COUNTED = Usage(25, 9, 4, 1)
WEATHER = ToolCall("get_weather", '{"city":"Paris"}')
METRICS = {"metrics": {"latencyMs": 420}}


def events(*sent: tuple[str, Any]) -> bytes:
    return b"".join(aws_event(kind, dump(fields)) for kind, fields in sent)


def chunks(*payloads: Any) -> bytes:
    sent = [{"bytes": b64encode(dump(one)).decode(), "p": "abcdef"} for one in payloads]
    return b"".join(aws_event("chunk", dump(one)) for one in sent)


def delta(index: int, **fields: Any) -> tuple[str, Any]:
    return "contentBlockDelta", {"contentBlockIndex": index, "delta": fields, "p": "abc"}


END = (("messageStop", {"stopReason": "end_turn"}), ("metadata", {"usage": USAGE, **METRICS}))
CALLED_END = (("messageStop", {"stopReason": "tool_use"}), ("metadata", {"usage": USAGE, **METRICS}))
SAID = (
    ("messageStart", {"role": "assistant", "p": "abcd"}),
    delta(0, reasoningContent={"text": "Hm."}),
    delta(0, reasoningContent={"signature": "x"}),
    ("contentBlockStop", {"contentBlockIndex": 0}),
    delta(1, text="Hello"),
    delta(1, text=", wörld"),
    ("contentBlockStop", {"contentBlockIndex": 1}),
)
CALLED = (
    ("messageStart", {"role": "assistant"}),
    ("contentBlockStart", {"contentBlockIndex": 0, "start": {"toolUse": {"toolUseId": "t1", "name": "get_weather"}}}),
    delta(0, toolUse={"input": '{"city":'}),
    delta(0, toolUse={"input": ' "Paris"}'}),
    ("contentBlockStop", {"contentBlockIndex": 0}),
    ("contentBlockStart", {"contentBlockIndex": 1, "start": {"toolUse": {"toolUseId": "t2", "name": "get_time"}}}),
    delta(1, toolUse={"input": "{}"}),
    ("contentBlockStop", {"contentBlockIndex": 1}),
)
TEXT = Answer(200, "Hello, wörld", (), COUNTED, "", "", "end_turn", complete=True)
CALLS = Answer(200, "", (WEATHER, ToolCall("get_time", "{}")), COUNTED, "", "", "tool_use", complete=True)
BLOCKS = [{"reasoningContent": {"reasoningText": {"text": "Hm."}}}, {"text": "Hello, wörld"}]
USED = [
    {"toolUse": {"toolUseId": "t1", "name": "get_weather", "input": {"city": "Paris"}}},
    {"toolUse": {"toolUseId": "t2", "name": "get_time", "input": {}}},
]


def whole(blocks: list[Any], reason: str) -> bytes:
    output = {"message": {"role": "assistant", "content": blocks}}
    return dump({"output": output, "stopReason": reason, "usage": USAGE, **METRICS})


MESSAGE = (
    {
        "type": "message_start",
        "message": {"id": "msg_1", "model": "claude", "content": [], "usage": {"input_tokens": 7, "output_tokens": 1}},
    },
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello, wörld"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}},
    {"type": "message_stop", "amazon-bedrock-invocationMetrics": {"inputTokenCount": 7}},
)
PIECES = (
    {"id": "c1", "model": "m", "choices": [{"index": 0, "delta": {"content": "Hello, wörld"}}]},
    {
        "id": "c1",
        "model": "m",
        "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
        "amazon-bedrock-invocationMetrics": {"inputTokenCount": 7, "outputTokenCount": 5, "invocationLatency": 9},
    },
)
THROTTLED = aws_event("throttlingException", b'{"message":"Too many tokens"}', exception=True)

BEDROCK = {
    "converse stream": Recorded("bedrock_converse", AWS, events(*SAID, *END), TEXT),
    "converse stream of calls": Recorded("bedrock_converse", AWS, events(*CALLED, *CALLED_END), CALLS),
    "converse whole": Recorded("bedrock_converse", JSON, whole(BLOCKS, "end_turn"), TEXT),
    "converse whole calls": Recorded("bedrock_converse", JSON, whole(USED, "tool_use"), CALLS),
    "nova chunks": Recorded("bedrock_converse", AWS, chunks(*({kind: fields} for kind, fields in (*SAID, *END))), TEXT),
    "converse fails": Recorded(
        "bedrock_converse",
        AWS,
        events(*SAID[:5]) + THROTTLED,
        Answer(200, "Hello", error="throttlingException"),
    ),
    "bedrock claude": Recorded(
        "bedrock_anthropic",
        AWS,
        chunks(*MESSAGE),
        Answer(200, "Hello, wörld", (), Usage(7, 5), "claude", "msg_1", "end_turn", complete=True),
    ),
    "bedrock claude fails": Recorded(
        "bedrock_anthropic",
        AWS,
        chunks(*MESSAGE[:3]) + THROTTLED,
        Answer(200, "Hello, wörld", (), Usage(7, 1), "claude", "msg_1", error="throttlingException"),
    ),
    "bedrock chat": Recorded(
        "bedrock_chat",
        AWS,
        chunks(*PIECES),
        Answer(200, "Hello, wörld", (), Usage(7, 5), "m", "c1", "stop", complete=True),
    ),
}
