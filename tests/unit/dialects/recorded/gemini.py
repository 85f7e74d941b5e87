"""Answers of Gemini, in the shape in which they come."""

from __future__ import annotations

import json
from typing import Any

from breakloop.model.call import Answer, ToolCall, Usage
from tests.unit.dialects.recorded.shape import JSON, SSE, Recorded, dump, events

ID, MODEL = "mNl9aO_cGpGzkdUPw6G4oQE", "gemini-2.5-flash"
COUNT = {
    "promptTokenCount": 100,
    "candidatesTokenCount": 12,
    "totalTokenCount": 165,
    "cachedContentTokenCount": 40,
    "thoughtsTokenCount": 50,
    "toolUsePromptTokenCount": 3,
    "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 100}],
}
USAGE = Usage(103, 62, 40, 0, 50)
WEATHER = ToolCall("get_weather", '{"city":"Paris","unit":"c"}')


def piece(*parts: Any, finish: str = "", usage: Any = None, **more: Any) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    count = usage or {"promptTokenCount": 100, "totalTokenCount": 100}
    return {"candidates": [candidate], "usageMetadata": count, "modelVersion": MODEL, "responseId": ID, **more}


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"text": said, **more}


def call(name: str, args: Any, **more: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": args}, **more}


PIECES = (
    piece(text("secrets", thought=True)),
    piece(text("Hello"), text(", ")),
    piece(text("wörld")),
    piece(call("get_weather", {"unit": "c", "city": "Paris"}, thoughtSignature="CiQB")),
    piece(call("get_time", {}), text(""), finish="STOP", usage=COUNT),
)
PARTIAL = (
    piece({"functionCall": {"name": "get_weather", "willContinue": True}}),
    piece(
        {"functionCall": {"partialArgs": [{"jsonPath": "$.unit", "stringValue": "c"}], "willContinue": True}},
    ),
    piece(
        {
            "functionCall": {
                "partialArgs": [{"jsonPath": "$.city", "stringValue": "Pa", "willContinue": True}],
                "willContinue": True,
            }
        }
    ),
    piece(
        {
            "functionCall": {
                "partialArgs": [
                    {"jsonPath": "$.city", "stringValue": "ris"},
                    {"jsonPath": "$.days", "numberValue": 2},
                    {"jsonPath": "$.hourly", "boolValue": True},
                    {"jsonPath": "$.note", "nullValue": "NULL_VALUE"},
                ],
                "willContinue": True,
            }
        }
    ),
    piece({"functionCall": {}}, call("get_time", {})),
    piece(finish="STOP", usage=COUNT),
)
GATHERED = ToolCall("get_weather", '{"city":"Paris","days":2,"hourly":true,"note":null,"unit":"c"}')
BLOCKED = {
    "promptFeedback": {"blockReason": "PROHIBITED_CONTENT"},
    "usageMetadata": {"promptTokenCount": 8, "totalTokenCount": 8},
    "modelVersion": MODEL,
    "responseId": ID,
}
FAILURE = {"error": {"code": 503, "message": "secrets", "status": "UNAVAILABLE"}}


def array(*pieces: Any) -> bytes:
    """As it comes without `alt=sse`: one array, spread over lines, its commas in front."""
    return b"[" + b"\n,\r\n".join([json.dumps(one, indent=2, ensure_ascii=False).encode() for one in pieces]) + b"\n]\n"


def said(text: str = "Hello, wörld", *calls: ToolCall, finish: str = "STOP", **more: Any) -> Answer:
    whole: dict[str, Any] = {"status": 200, "complete": True, "model": MODEL, "response_id": ID, "usage": USAGE} | more
    return Answer(text=text, calls=calls, finish=finish, **whole)


TIME = ToolCall("get_time", "{}")
ANSWERED = said("Hello, wörld", WEATHER, TIME)
CUT = said("Hello, wörld", finish="", usage=Usage(100), complete=False)
ALL_PARTS = [part for one in PIECES for part in one["candidates"][0]["content"]["parts"]]
GEMINI = {
    "gemini events": Recorded("gemini", SSE, events(*PIECES), ANSWERED),
    "gemini crlf": Recorded("gemini", SSE, events(*PIECES).replace(b"\n", b"\r\n"), ANSWERED),
    "gemini array": Recorded("gemini", JSON, array(*PIECES), ANSWERED),
    "gemini whole": Recorded("gemini", JSON, dump(piece(*ALL_PARTS, finish="STOP", usage=COUNT)), ANSWERED),
    "gemini in parts": Recorded("gemini", SSE, events(*PARTIAL), said("", GATHERED, TIME)),
    "gemini call cut short": Recorded(
        "gemini",
        SSE,
        events(*PARTIAL[:3]),
        said("", ToolCall("get_weather", '{"city":"Pa","unit":"c"}'), finish="", usage=Usage(100), complete=False),
    ),
    "gemini tool at google's": Recorded(
        "gemini",
        SSE,
        events(
            piece({"toolCall": {"toolType": "GOOGLE_SEARCH_WEB", "args": {"queries": ["q"]}, "id": "x"}}),
            piece({"toolResponse": {"toolType": "GOOGLE_SEARCH_WEB"}}, text("Hi"), finish="STOP", usage=COUNT),
        ),
        said("Hi", ToolCall("GOOGLE_SEARCH_WEB", '{"queries":["q"]}')),
    ),
    "gemini blocked": Recorded("gemini", SSE, events(BLOCKED), said("", finish="PROHIBITED_CONTENT", usage=Usage(8))),
    "gemini cut short": Recorded("gemini", SSE, events(*PIECES[:3]), CUT),
    "gemini array cut short": Recorded(
        "gemini", JSON, array(*PIECES[:3])[:-10], said("Hello, ", finish="", usage=Usage(100), complete=False)
    ),
    "gemini fails": Recorded("gemini", SSE, events(*PIECES[:3], FAILURE), CUT._replace(error="UNAVAILABLE")),
    "gemini array fails": Recorded("gemini", JSON, array(*PIECES[:3], FAILURE), CUT._replace(error="UNAVAILABLE")),
}
