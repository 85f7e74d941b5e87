"""Reads OpenAI Chat Completions requests (Azure's and OpenRouter's too) into a `Chat`, decoding only the last messages.

Decoding falls back in steps (SPEC C-9): typed, then tolerant, then None, which means plain HTTP. Folding case and white
space, and hashing, is left to `detect`; ids never enter, because a retry carries new ones.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
import orjson
import xxhash

from breakloop.model.call import Chat, Message, ToolCall

DIALECT: Final = "openai"
_PATHS: Final = ("/chat/completions", "/chat/completions/")
# A list of a million tiny items is eight times as slow as list[Raw] (a new object each) as it is as plain values; with
# items of 32 bytes and more it is the other way round. There are at most as many items as there are commas.
_ANY_RAW_MAX_BYTES: Final = 64 * 1024
_RAW_ITEM_MIN_BYTES: Final = 32
_TEXT_PARTS: Final = frozenset(("text", "input_text", "output_text"))
_DIGITS_MAX: Final = 400

Raw = msgspec.Raw


class _Body(msgspec.Struct, gc=False):
    """What is read of a request; anything of another type sends the whole body to the tolerant step."""

    messages: Raw
    model: str | None = None
    stream: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None


class _Message(msgspec.Struct, gc=False):
    """One message before it is flattened. Ids are not among the fields."""

    role: Any = ""
    content: Any = None
    tool_calls: Any = None
    function_call: Any = None
    refusal: Any = None


_decode_body = msgspec.json.Decoder(_Body).decode
_decode_raw_list = msgspec.json.Decoder(list[Raw]).decode
_decode_message = msgspec.json.Decoder(_Message).decode


def looks_like_chat(path: str) -> bool:
    """Say whether a normalised path is a chat completions endpoint."""
    return path.endswith(_PATHS)


def read(body: bytes, tail: int) -> Chat | None:
    """Read a request body, or return None when it is not a JSON object; `tail` is how many last messages to decode."""
    try:
        return _typed(body, tail)
    except RecursionError:
        return None
    except ValueError:  # of msgspec and orjson too: broken JSON, or a type that is not expected
        return _tolerant(body, tail)


def opening(body: bytes) -> str:
    """Return the messages up to the first of the user, which name a conversation; "" if there is none."""
    try:
        return _up_to_user(_raw_or_decoded(_decode_body(body).messages, body))
    except RecursionError:
        return ""
    except ValueError:
        fields = _load_tolerantly(body) or {}
    try:
        return _up_to_user(_as_list(fields.get("messages")))
    except RecursionError:
        return ""


def _up_to_user(items: list[Any]) -> str:
    texts: list[str] = []
    for item in items:
        message = _flatten(_decode_message(item) if isinstance(item, Raw) else _from_decoded(item))
        texts.append(f"{message.role}\n{message.text}")
        if message.role == "user":
            return _clean("\n".join(texts))
    return ""


def _typed(body: bytes, tail: int) -> Chat:
    fields = _decode_body(body)
    items = _raw_or_decoded(fields.messages, body)
    newest = items[-tail:] if tail > 0 else []
    limit = fields.max_completion_tokens
    return Chat(
        DIALECT,
        fields.model or "",
        tuple([_flatten(_decode_message(item) if isinstance(item, Raw) else _from_decoded(item)) for item in newest]),
        len(items),
        fields.stream or False,
        fields.max_tokens if limit is None else limit,
    )


def _raw_or_decoded(messages: Raw, body: bytes) -> list[Any]:
    size = len(body)
    if size <= _ANY_RAW_MAX_BYTES or body.count(b",") * _RAW_ITEM_MIN_BYTES < size:
        return _decode_raw_list(messages)
    value = orjson.loads(memoryview(messages))
    if not isinstance(value, list):
        raise ValueError("messages is not a list")  # noqa: TRY004 (as the decoders say it)
    return value


def _tolerant(body: bytes, tail: int) -> Chat | None:
    fields = _load_tolerantly(body)
    if fields is None:
        return None
    items = _as_list(fields.get("messages"))
    try:
        newest = tuple([_clean_message(_flatten(_from_decoded(item))) for item in (items[-tail:] if tail > 0 else [])])
    except RecursionError:
        return None
    limit = fields.get("max_completion_tokens")
    return Chat(
        DIALECT,
        _clean(_text(fields.get("model"))),
        newest,
        len(items),
        _truth(fields.get("stream")),
        _count(fields.get("max_tokens") if limit is None else limit),
        "tolerant",
    )


def _flatten(item: _Message) -> Message:
    role, text = item.role, item.content
    if not isinstance(role, str):
        role = _text(role)
    if not isinstance(text, str):
        text = _content(text)
    if item.refusal:
        text = f"{text}\n{_text(item.refusal)}" if text else _text(item.refusal)
    if item.tool_calls or item.function_call:
        return Message(role, text, _calls(item.tool_calls, item.function_call))
    return Message(role, text)


def _from_decoded(item: object) -> _Message:
    if not isinstance(item, dict):
        return _Message("", item)
    get = item.get
    return _Message(get("role"), get("content"), get("tool_calls"), get("function_call"), get("refusal"))


def _as_list(value: object) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _load_tolerantly(body: bytes) -> dict[str, Any] | None:
    try:
        value = orjson.loads(body)
    except ValueError:
        try:
            value = json.loads(body.decode(json.detect_encoding(body), "replace"), parse_int=_integer)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def _integer(digits: str) -> int | float:
    # int() refuses thousands of digits, and one absurd number must not hide the conversation.
    return int(digits) if len(digits) <= _DIGITS_MAX else float(digits)


def _truth(value: object) -> bool:
    return bool(value) and value not in ("false", "False", "0")


def _count(value: object) -> int | None:
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _content(value: object) -> str:
    if isinstance(value, list):
        return "\n".join([_part(part) for part in value])
    return _text(value)


def _part(part: object) -> str:
    if not isinstance(part, dict):
        return _text(part)
    kind = part.get("type", "text")
    if kind in _TEXT_PARTS and "text" in part:
        return _text(part["text"])
    if kind == "refusal":
        return _text(part.get("refusal"))
    digest = xxhash.xxh3_64_hexdigest(_json(part))
    return f"<{_text(kind)[:64]}:{digest}>"


def _calls(calls: object, legacy: object) -> tuple[ToolCall, ...]:
    found = [_call(item) for item in _as_list(calls)]
    if legacy:
        found.append(_call({"function": legacy}))
    return tuple(found)


def _call(item: object) -> ToolCall:
    if not isinstance(item, dict):
        return ToolCall("", _text(item))
    function = item.get("function")
    if isinstance(function, dict):
        return ToolCall(_text(function.get("name")), _text(function.get("arguments")))
    custom = item.get("custom")
    if isinstance(custom, dict):
        return ToolCall(_text(custom.get("name")), _text(custom.get("input")))
    return ToolCall("", _text({key: value for key, value in item.items() if key != "id"}))


def _text(value: object) -> str:
    """A string as it is, null as nothing, anything else as its JSON text."""
    if isinstance(value, str):
        return value
    return "" if value is None else _json(value).decode()


def _json(value: object) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # a lone surrogate, an integer over 64 bits, or nested too deep
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _clean(text: str) -> str:
    """Replace lone surrogates, so that every text that leaves here can be encoded."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _clean_message(message: Message) -> Message:
    calls = tuple([ToolCall(_clean(call.name), _clean(call.arguments)) for call in message.calls])
    return Message(_clean(message.role), _clean(message.text), calls)
