"""The steer note in conversations of any shape: one insertion, and what the APIs insist on still holds."""

from __future__ import annotations

import copy
import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from breakloop.dialects.steps import without_additions
from breakloop.model.call import Chat
from tests.unit.dialects.parsing import append_note, read_chat

PATHS = {
    "openai_chat": "/v1/chat/completions",
    "openai_responses": "/v1/responses",
    "openai_completions": "/v1/completions",
    "anthropic_messages": "/v1/messages",
    "gemini": "/v1beta/models/gemini-3:generateContent",
    "mcp": "/mcp",
}
NOTE = 'You called "search" 5 times. Change course or finish. \u2192 \u00e9'
TEXT = f"[breakloop] {NOTE} [/breakloop]"
INTO = f"\n\n{TEXT}"


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


TEXTS = st.text(max_size=20)
PARTS = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}), min_size=1, max_size=3)
EXTRA = st.dictionaries(
    st.sampled_from(("tools", "metadata", "temperature", 'x"y\\', "\u00fc")),
    st.recursive(
        TEXTS | st.integers() | st.none(), lambda one: st.lists(one) | st.dictionaries(TEXTS, one), max_leaves=4
    ),
)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A dialect, and a request of it that ends in the user's words or in the results of calls."""
    dialect = draw(st.sampled_from(("openai_chat", "anthropic_messages", "openai_responses", "gemini")))
    items: list[Any] = []
    for turn in range(draw(st.integers(1, 4))):
        if draw(st.booleans()) and turn:
            items += results(dialect, draw(st.integers(1, 3)), f"{turn}", draw(TEXTS))
        else:
            items += words(dialect, draw(TEXTS), draw(PARTS) if draw(st.booleans()) else None, first=not turn)
    field = {"gemini": "contents", "openai_responses": "input"}.get(dialect, "messages")
    body = {**draw(EXTRA), field: items}
    if draw(st.booleans()):
        body = dict(reversed(body.items()))
    return dialect, {"model": "m"} | body if dialect != "gemini" else body


def words(dialect: str, text: str, parts: list[Any] | None, *, first: bool) -> list[Any]:
    if dialect == "gemini":
        said = {"role": "user", "parts": parts or [{"text": text}]}
        return [said] if first else [{"role": "model", "parts": [{"text": "ok"}]}, said]
    return [user(parts or text)] if first else [{"role": "assistant", "content": "ok"}, user(parts or text)]


def results(dialect: str, count: int, turn: str, text: str) -> list[Any]:
    ids = [f"{turn}-{number}" for number in range(count)]
    if dialect == "openai_chat":
        calls = [{"id": one, "type": "function", "function": {"name": "f", "arguments": "{}"}} for one in ids]
        made = {"role": "assistant", "tool_calls": calls}
        return [made, *({"role": "tool", "tool_call_id": one, "content": text} for one in ids)]
    if dialect == "openai_responses":
        made_calls = [{"type": "function_call", "call_id": one, "name": "f", "arguments": "{}"} for one in ids]
        return [*made_calls, *({"type": "function_call_output", "call_id": one, "output": text} for one in ids)]
    if dialect == "anthropic_messages":
        uses = [{"type": "tool_use", "id": one, "name": "f", "input": {}} for one in ids]
        done = [{"type": "tool_result", "tool_use_id": one, "content": text} for one in ids]
        return [{"role": "assistant", "content": uses}, user(done)]
    asked = [{"functionCall": {"name": one, "args": {}}} for one in ids]
    answers = [{"functionResponse": {"name": one, "response": {"result": text}}} for one in ids]
    return [{"role": "model", "parts": asked}, {"role": "user", "parts": answers}]


def without_note(dialect: str, body: dict[str, Any]) -> dict[str, Any]:
    """Take exactly one note off the tail, wherever the dialect puts it."""
    body = copy.deepcopy(body)
    field = {"gemini": "contents", "openai_responses": "input"}.get(dialect, "messages")
    last = body[field][-1]
    inside = "parts" if dialect == "gemini" else "content"
    said = last[inside]
    if said == TEXT or (isinstance(said, list) and len(said) == 1):
        assert said == TEXT or said[0]["text"] == TEXT
        body[field].pop()
    elif isinstance(said, str):
        assert said.endswith(INTO)
        last[inside] = said.removesuffix(INTO)
    else:
        assert said.pop()["text"] == TEXT
    return body


STYLES: list[dict[str, Any]] = [
    {},
    {"separators": (",", ":"), "ensure_ascii": False},
    {"indent": 2},
    {"separators": (" , ", " : ")},
]


@given(conversations(), st.sampled_from(STYLES), st.sampled_from(("", " ", "\n\t")))
def test_the_result_is_the_original_and_the_note(sent: tuple[str, dict[str, Any]], style: Any, white: str) -> None:
    """One insertion, everything before and after it byte for byte, and nothing but the note more (LD-5)."""
    dialect, body = sent
    raw = (white + json.dumps(body, **style) + white).encode("utf-8", "surrogatepass")
    changed = append_note(dialect, raw, NOTE)
    assert changed is not None
    assert without_note(dialect, json.loads(changed)) == body
    same = next((at for at, (old, new) in enumerate(zip(raw, changed, strict=False)) if old != new), len(raw))
    assert changed.endswith(raw[same:])
    assert len(changed) > len(raw)


@given(conversations())
def test_what_the_apis_insist_on_still_holds(sent: tuple[str, dict[str, Any]]) -> None:
    """Results directly follow their calls, alone where they have to be, and the user speaks last (LD-5)."""
    dialect, body = sent
    changed = append_note(dialect, json.dumps(body).encode(), NOTE)
    assert changed is not None
    found = json.loads(changed)
    {"openai_chat": chat_rules, "anthropic_messages": anthropic_rules, "openai_responses": responses_rules}.get(
        dialect, gemini_rules
    )(found)


def chat_rules(body: dict[str, Any]) -> None:
    waiting: list[str] = []
    for message in body["messages"]:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
            continue
        assert not waiting, "somebody speaks between a call and its result"
        waiting = [call["id"] for call in message.get("tool_calls", ())]
    assert not waiting
    assert body["messages"][-1]["role"] == "user"


def anthropic_rules(body: dict[str, Any]) -> None:
    waiting: list[str] = []
    roles = [message["role"] for message in body["messages"]]
    assert all(one != other for one, other in pairwise(roles)), "roles alternate"
    for message in body["messages"]:
        blocks = message["content"] if isinstance(message["content"], list) else []
        kinds = [block["type"] for block in blocks]
        assert kinds == sorted(kinds, key=lambda kind: kind != "tool_result"), "results come first"
        done = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        assert done == waiting, "results directly after the calls, all of them"
        waiting = [block["id"] for block in blocks if block["type"] == "tool_use"]
    assert roles[-1] == "user"


def responses_rules(body: dict[str, Any]) -> None:
    calls = [item["call_id"] for item in body["input"] if item.get("type") == "function_call"]
    done = [item["call_id"] for item in body["input"] if item.get("type") == "function_call_output"]
    assert calls == done
    assert body["input"][-1]["role"] == "user"


def gemini_rules(body: dict[str, Any]) -> None:
    asked: list[str] = []
    for content in body["contents"]:
        done = [part["functionResponse"]["name"] for part in content["parts"] if "functionResponse" in part]
        assert done == asked, "as many responses as calls, in the next content"
        assert not done or len(done) == len(content["parts"]), "responses among themselves"
        asked = [part["functionCall"]["name"] for part in content["parts"] if "functionCall" in part]
    assert body["contents"][-1]["role"] == "user"


def tail(dialect: str, body: bytes) -> Chat:
    found = read_chat("POST", PATHS[dialect], body, 50)
    assert found is not None
    return found


@given(conversations())
def test_the_readers_read_what_was_steered(sent: tuple[str, dict[str, Any]]) -> None:
    """The same conversation, with the note as the end of what the user says last (LD-5, C-8)."""
    dialect, body = sent
    raw = json.dumps(body).encode()
    changed = append_note(dialect, raw, NOTE)
    assert changed is not None
    before, after = tail(dialect, raw), tail(dialect, changed)
    assert after.dialect == dialect
    assert (after.model, after.fallback) == (before.model, before.fallback)
    last = after.tail[-1]
    assert (last.role, last.text.endswith(TEXT)) == ("user", True)
    rest = without_additions(last.text)
    assert after.tail[:-1] == (before.tail[:-1] if len(after.tail) == len(before.tail) else before.tail)
    if len(after.tail) == len(before.tail):
        assert rest.strip() == before.tail[-1].text.strip()


@given(
    st.sampled_from(tuple(PATHS)),
    st.binary(max_size=40) | st.text(alphabet='{}[]":,ru0 \\', max_size=60).map(str.encode),
)
def test_nothing_is_raised(dialect: str, body: bytes) -> None:
    """Bytes of any kind (LD-5)."""
    append_note(dialect, body, NOTE)


@given(conversations(), st.data())
def test_a_damaged_body_is_changed_whole_or_not_at_all(sent: tuple[str, dict[str, Any]], data: st.DataObject) -> None:
    """With any byte gone, the result is None, or JSON that holds the note (LD-5)."""
    dialect, body = sent
    raw = json.dumps(body).encode()
    gone = data.draw(st.integers(0, len(raw) - 1))
    changed = append_note(dialect, raw[:gone] + raw[gone + 1 :], NOTE)
    if changed is not None:
        assert TEXT in json.dumps(json.loads(changed), ensure_ascii=False).replace('\\"', '"')
