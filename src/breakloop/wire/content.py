"""What the dialects share: the text of contents, media as `<type:digest>`, arguments in one spelling, tolerant loading.

Which fields a dialect has is its own file's business; taking a body apart in steps is `conversation`'s.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
import orjson
import xxhash

from breakloop.model.call import Message, ToolCall
from breakloop.wire.json_body import canonical

_TEXT_PARTS: Final = frozenset(("text", "input_text", "output_text"))
# The model's own thinking is worded anew each time, and signatures and encrypted forms of it are as good as ids.
_SILENT_PARTS: Final = frozenset(("thinking", "redacted_thinking", "reasoning"))
# A cache mark moves along the conversation, and a retry carries new ids: the same content with other ones is the same.
_NOT_IDENTITY: Final = frozenset(("id", "call_id", "tool_use_id", "cache_control"))
_NESTING: Final = ("{", "[")
_DIGITS_MAX: Final = 400
_KIND_MAX: Final = 64
# Parts of one content, and calls of one message, that are read one by one; what follows stands as one digest, so that
# three million of them hold nobody up and still tell requests apart.
ITEMS_MAX: Final = 1000
# Characters of arguments that are spelled anew, and those that are with every number looked at: a thousand calls may
# come in one request. Longer ones count as they were sent.
_RESPELLED_MAX: Final = 64 * 1024
_THOROUGH_MAX: Final = 1024


def as_list(value: object) -> list[Any]:
    """Return a list as it is, null as an empty one, anything else as the only item."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def load(body: bytes) -> Any:
    """Decode JSON that a strict decoder refused (BOM, UTF-16, lone surrogates, NaN); None when it is no JSON."""
    try:
        return orjson.loads(body)
    except ValueError:
        try:
            return json.loads(body.decode(json.detect_encoding(body), "replace"), parse_int=_integer)
        except (ValueError, RecursionError):
            return None


def _integer(digits: str) -> int | float:
    # int() refuses thousands of digits, and one absurd number must not hide the conversation.
    return int(digits) if len(digits) <= _DIGITS_MAX else float(digits)


def truth(value: object) -> bool:
    """Read a flag that may have been sent as a number or a word."""
    return bool(value) and value not in ("false", "False", "0")


def count(value: object) -> int | None:
    """Read a number of tokens; None where it is none."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def at_least_one(value: object) -> int:
    """Read how many answers a request wants; 1 where it does not say, or nonsense."""
    return max(1, count(value) or 1)


def content(value: object) -> str:
    """Return the text of a content: a string, or a list of parts, joined by line breaks."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        texts = [part(item) for item in value[:ITEMS_MAX] if not is_silent(item)]
        if len(value) > ITEMS_MAX:
            texts.append(more(value))
        return "\n".join(texts)
    return text(value)


def more(items: list[Any]) -> str:
    """Return what stands for the items of a list beyond `ITEMS_MAX`."""
    return f"<more:{xxhash.xxh3_64_hexdigest(json_text(items[ITEMS_MAX:]))}>"


def prompts(value: object) -> str:
    """Return the text of a prompt or a batch of them, which is one request and no history; tokens as a digest."""
    if not isinstance(value, list):
        return text(value)
    try:
        return "\n".join(value)
    except TypeError:
        return f"<tokens:{xxhash.xxh3_64_hexdigest(json_text(value))}>"


def is_silent(item: object) -> bool:
    """Say whether a part is the model's thinking, which is not said to anybody."""
    if not isinstance(item, dict):
        return False
    kind = item.get("type")
    return isinstance(kind, str) and kind in _SILENT_PARTS


def part(item: object) -> str:
    """Return the text of one part; media and kinds we do not know stand as `<type:digest>`."""
    if not isinstance(item, dict):
        return text(item)
    kind = item.get("type", "text")
    if not isinstance(kind, str):
        return media(text(kind), item)
    if kind in _TEXT_PARTS and "text" in item:
        return text(item["text"])
    if kind == "refusal":
        return text(item.get("refusal"))
    return media(kind, item)


def media(kind: str, item: dict[str, Any]) -> str:
    """Return `<kind:digest>`: the same for the same bytes, whatever ids and cache marks go with them."""
    if not _NOT_IDENTITY.isdisjoint(item):
        item = without_ids(item)
    return f"<{kind[:_KIND_MAX]}:{xxhash.xxh3_64_hexdigest(json_text(item))}>"


def without_ids(item: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that say something."""
    return {key: value for key, value in item.items() if key not in _NOT_IDENTITY}


def arguments(value: object) -> str:
    """Return arguments in one spelling where they are JSON, as a value or as a text: key order does not count."""
    if isinstance(value, str):
        return _respelled(value) if value.startswith(_NESTING) or value.lstrip().startswith(_NESTING) else value
    if value is None:
        return ""
    spelled = json_text(value)
    return (canonical(spelled) if b".0" in spelled else spelled).decode()


def _respelled(value: str) -> str:
    if len(value) > _RESPELLED_MAX:
        return value
    long = len(value) > _THOROUGH_MAX
    try:
        spelled = orjson.dumps(orjson.loads(value), option=orjson.OPT_SORT_KEYS)
        if long or (spelled.find(b".0") < 0 and spelled.find(b"e+") < 0):  # `in` takes twice the time
            return spelled.decode()
    except (ValueError, TypeError):  # no JSON, or deeper than orjson writes
        if long:
            return value
    # Three times as slow, and thorough: one spelling of numbers, and what the fast decoder does not take.
    return canonical(value.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")


def text(value: object) -> str:
    """Return a string as it is, null as nothing, anything else as its JSON text."""
    if isinstance(value, str):
        return value
    return "" if value is None else json_text(value).decode()


def json_text(value: object) -> bytes:
    """Return sorted, compact JSON of a decoded value."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # a lone surrogate, an integer over 64 bits, or nested too deep
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def clean(value: str) -> str:
    """Replace lone surrogates, so that every text that leaves here can be encoded."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def clean_message(message: Message) -> Message:
    """Replace lone surrogates in all that a message says."""
    calls = tuple([ToolCall(clean(call.name), clean(call.arguments)) for call in message.calls])
    return Message(clean(message.role), clean(message.text), calls)


decode: Final = msgspec.json.Decoder().decode
"""Decode strictly; `ValueError` sends the body to the tolerant step."""


def named_tools(fields: dict[str, Any]) -> list[str]:
    """Return the names of tools that are declared with their names at the top, where a body is odd elsewhere."""
    tools = as_list(fields.get("tools"))[:ITEMS_MAX]
    return [name for tool in tools if isinstance(tool, dict) and (name := text(tool.get("name")))]
