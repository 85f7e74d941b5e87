"""Anthropic Messages on Vertex AI: the same bodies and answers, with model and streaming in the path."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from breakloop.dialects.anthropic import Anthropic
from breakloop.dialects.base import BodyFields, NamedTool, ParsedBody
from breakloop.dialects.content import as_list, count
from breakloop.dialects.session_ids import NULL, BodyModel

_STREAM: Final = ":streamRawPredict"


class HostedBody(BodyModel, gc=False, kw_only=True):
    """The fields of a request that are read. Other models are asked at such paths, too; only Anthropic's have a
    version."""

    messages: list[msgspec.Raw]
    anthropic_version: str
    tools: list[NamedTool] | None = None
    max_tokens: int | None = None
    system: msgspec.Raw = NULL


_decode_body: Final = msgspec.json.Decoder(HostedBody).decode


class HostedAnthropic(Anthropic):
    """Anthropic Messages at a cloud provider."""

    model_in_path = True
    answer_field = ""

    def read_fields(self, body: bytes) -> BodyFields:
        fields = _decode_body(body)
        return BodyFields("", fields.messages, False, fields.max_tokens, fields.system, fields)

    def read_fields_leniently(self, fields: dict[str, Any]) -> BodyFields | None:
        get = fields.get
        if get("anthropic_version") is None or get("messages") is None:
            return None
        return BodyFields("", as_list(get("messages")), False, count(get("max_tokens")), get("system"), fields)

    def owns_usage(self, fields: dict[str, Any]) -> bool:  # noqa: ARG002 - those of Anthropic itself
        return False


class VertexAnthropic(HostedAnthropic):
    name = "vertex_anthropic"
    provider = "vertex"
    path_endings = (":rawPredict", _STREAM)

    def parse(self, body: bytes, path: str = "") -> ParsedBody | None:
        return None if "/count-tokens:" in path else super().parse(body, path)

    def read_path(self, path: str) -> tuple[str, bool]:
        model, action, _ = path.rpartition("/")[2].partition(":")
        return model if action else "", path.endswith(_STREAM)
