"""Writes a session in the shapes in which clients send it: every dialect, with and without names, ids and streaming."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Final

from breakloop.dialects.mcp import TOOL_ERROR
from breakloop.model.call import Answer, ToolCall
from breakloop.replay.sessions import RecordedBody, RecordedTurn
from tests.corpus.script import Item, Made, Script, Sent, declared

Json = dict[str, Any]

MODEL: Final = "model-1"


@dataclass(frozen=True, slots=True)
class Form:
    """One shape: a dialect, and how a client uses it."""

    name: str
    dialect: str
    write: Callable[[Script, Form], Iterator[RecordedTurn]]
    named: bool = True  # the client names its session
    ids: str = "random"  # of calls: random, counted, none, or listed (calls are messages of their own)
    chained: bool = False  # the provider keeps the history (`previous_response_id`)
    conversation: bool = False  # of these, in a conversation with an id
    stream: bool = False


def digest(*parts: object, size: int = 8) -> str:
    return blake2b(repr(parts).encode(), digest_size=size).hexdigest()


def uuid(*parts: object) -> str:
    raw = digest(*parts, size=16)
    return f"{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:]}"


def write(script: Script, form: Form) -> list[RecordedTurn]:
    """Return the turns of a session in one shape."""
    if script.tools is None:
        names = declared(script.sent)
        for one in script.sent:
            one.tools = one.tools or names
    return list(form.write(script, form))


# -- what all shapes have in common


def _answer(sent: Sent, response_id: str = "", ids: Sequence[str] = ()) -> Answer:
    if sent.status >= 400:
        return Answer(sent.status)
    if sent.answer is None:
        return Answer(200, "Very well.", response_id=response_id, complete=True)
    calls = tuple([ToolCall(made.name, json.dumps(made.arguments)) for made in sent.answer.calls])
    return Answer(
        200, sent.answer.said, calls, model=MODEL, response_id=response_id, complete=True, call_ids=tuple(ids)
    )


def _turn(script: Script, form: Form, sent: Sent, path: str, body: Json, answer: Answer) -> RecordedTurn:
    names = sent.names
    headers = {"authorization": f"Bearer sk-{digest(script.name)}".encode(), "user-agent": b"agent/1.0"}
    session = names.get("session", script.name if form.named else "")
    if session and not (form.dialect == "anthropic_messages" and "session" not in names):
        headers[_SESSION_HEADERS.get(form.dialect, "x-agent-session")] = session.encode()
    for name, header in (("parent", "x-agent-parent"), ("agent", "x-agent-id"), ("trigger", "x-agent-trigger")):
        if names.get(name):
            headers[header] = names[name].encode()
    if names.get("trace"):
        headers["traceparent"] = f"00-{digest(names['trace'], size=16)}-{digest(sent.at_s)}-01".encode()
    spelled = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    return RecordedTurn(RecordedBody(path, spelled), answer, at_s=sent.at_s, headers=headers)


_SESSION_HEADERS: Final = {"openai_responses": "session-id", "mcp": "mcp-session-id"}


def _call_id(form: Form, prefix: str, made: Made, at: int) -> str:
    return f"{prefix}_{made.id}" if form.ids == "random" else f"{prefix}_{at}"


def _schema(name: str) -> Json:
    properties = {"value": {"type": "string", "description": f"What {name} works on."}}
    return {"type": "object", "properties": properties, "additionalProperties": True}


def _error(made: Made) -> str:
    """Return a result in a dialect that has no flag for errors."""
    return f"Error: {made.result}" if made.failed else made.result


_PNG_URL: Final = "data:image/png;base64,"

# -- OpenAI Chat Completions


def _chat(script: Script, form: Form) -> Iterator[RecordedTurn]:
    for sent in script.sent:
        body: Json = {"model": MODEL, "temperature": 0, "messages": list(_chat_messages(sent, form))}
        if sent.tools and form.ids not in ("none", "listed"):
            functions = [{"name": name, "parameters": _schema(name)} for name in sent.tools]
            body["tools"] = [{"type": "function", "function": one} for one in functions]
        if form.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        yield _turn(script, form, sent, "/v1/chat/completions", body, _answer(sent))


def _chat_messages(sent: Sent, form: Form) -> Iterator[Json]:
    yield {"role": "system", "content": sent.system}
    at = 0
    for item in sent.items:
        if not item.is_answer:
            yield {"role": "user", "content": item.user}
        elif form.ids == "none":
            yield from _as_text(item)
        elif form.ids == "listed":
            yield from _as_messages(item)
        else:
            ids = [_call_id(form, "call", made, at + number) for number, made in enumerate(item.calls)]
            at += len(ids)
            answer: Json = {"role": "assistant", "content": item.said or (None if ids else "")}
            if ids:
                answer["tool_calls"] = [
                    {
                        "id": by,
                        "type": "function",
                        "function": {"name": made.name, "arguments": json.dumps(made.arguments)},
                    }
                    for by, made in zip(ids, item.calls, strict=True)
                ]
            yield answer
            for by, made in zip(ids, item.calls, strict=True):
                url = {"url": f"{_PNG_URL}{made.image}"}
                parts = [{"type": "text", "text": _error(made)}, {"type": "image_url", "image_url": url}]
                yield {"role": "tool", "tool_call_id": by, "content": parts if made.image else _error(made)}


def _cohere(script: Script, form: Form) -> Iterator[RecordedTurn]:
    for sent in script.sent:
        body = {"model": MODEL, "messages": list(_chat_messages(sent, form))}
        yield _turn(script, form, sent, "/v2/chat", body, _answer(sent))


def _ollama(script: Script, form: Form) -> Iterator[RecordedTurn]:
    """Arguments are objects, and a result names the tool instead of the call."""
    for sent in script.sent:
        messages: list[Json] = []
        for message in _chat_messages(sent, form):
            for call in message.get("tool_calls", ()):
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
            if message["role"] == "tool":
                name = next(
                    call["function"]["name"]
                    for one in reversed(messages)
                    for call in one.get("tool_calls", ())
                    if call["id"] == message["tool_call_id"]
                )
                messages.append({"role": "tool", "tool_name": name, "content": message["content"]})
            else:
                messages.append(message)
        yield _turn(script, form, sent, "/api/chat", {"model": MODEL, "messages": messages}, _answer(sent))


def _as_text(item: Item) -> Iterator[Json]:
    """Write calls into the text of the answer, as models without native calls do, and results as the user's."""
    said = item.said
    for made in item.calls:
        spelled = json.dumps({"name": made.name, "arguments": made.arguments})
        said += f"\n<tool_call>\n{spelled}\n</tool_call>"
    yield {"role": "assistant", "content": said.strip()}
    for made in item.calls:
        yield {"role": "user", "content": f"<tool_response>\n{_error(made)}\n</tool_response>"}


def _as_messages(item: Item) -> Iterator[Json]:
    """Write calls and results as messages with roles of their own, as frameworks do that do not translate them."""
    if item.said or not item.calls:
        yield {"role": "assistant", "content": item.said}
    for made in item.calls:
        function = {"name": made.name, "arguments": made.arguments}
        listed = [{"id": f"call_{made.id}", "type": "function", "function": function}]
        yield {"role": "tool-call", "content": f"Calling tools:\n{listed}"}
        yield {"role": "tool-response", "content": f"Call id: call_{made.id}\nObservation:\n{_error(made)}"}


# -- a whole run in one message


def _dspy(script: Script, form: Form) -> Iterator[RecordedTurn]:
    for sent in script.sent:
        fields = [f"[[ ## question ## ]]\n{sent.items[0].user}", "[[ ## trajectory ## ]]"]
        for number, item in enumerate([one for one in sent.items if one.is_answer]):
            (made,) = item.calls
            values = (item.said, made.name, json.dumps(made.arguments), _error(made))
            names = ("thought", "tool_name", "tool_args", "observation")
            for name, value in zip(names, values, strict=True):
                fields.append(f"[[ ## {name}_{number} ## ]]\n{value}")
        fields.append("Respond with the corresponding output fields, starting with `[[ ## next_thought ## ]]`.")
        yield _one_message(script, form, sent, "\n\n".join(fields))


def _react(script: Script, form: Form) -> Iterator[RecordedTurn]:
    rules = "Thought: what to do\nAction: a tool\nAction Input: its input\nObservation: its output\n(again and again)"
    for sent in script.sent:
        said = f"Answer with these tools, in this form:\n{rules}\n\nBegin!\n\nQuestion: {sent.items[0].user}\nThought:"
        for item in sent.items:
            for made in item.calls:
                spelled = json.dumps(made.arguments)
                said += (
                    f" {item.said}\nAction: {made.name}\nAction Input: {spelled}\nObservation: {_error(made)}\nThought:"
                )
        yield _one_message(script, form, sent, said)


def _one_message(script: Script, form: Form, sent: Sent, text: str) -> RecordedTurn:
    messages = [{"role": "system", "content": sent.system}, {"role": "user", "content": text}]
    body: Json = {"model": MODEL, "messages": messages}
    return _turn(script, form, sent, "/v1/chat/completions", body, _answer(sent))


# -- OpenAI Responses


def _responses(script: Script, form: Form) -> Iterator[RecordedTurn]:
    body: Json = {}
    response_id, number, chain = "", 0, 0
    for at, sent in enumerate(script.sent):
        chain += sent.compacted
        if not sent.repeats:
            # The provider keeps the whole history, so that a client that replaces it starts another chain.
            continues = form.chained and sent.number == number and not sent.compacted
            items = _since_answer(sent.items, form) if continues else list(_responses_items(sent.items, form))
            body = {"model": MODEL, "instructions": sent.system, "store": form.chained, "input": items}
            if form.conversation:
                body["conversation"] = {"id": f"conv_{digest(script.name, sent.number + chain)}"}
            elif continues:
                body["previous_response_id"] = response_id
            if sent.tools:
                body["tools"] = [{"type": "function", "name": name, "parameters": _schema(name)} for name in sent.tools]
            if form.stream:
                body["stream"] = True
        number, response_id = sent.number, f"resp_{digest(script.name, form.name, at)}"
        made = sent.answer.calls if sent.answer else ()
        ids = [_call_id(form, "call", one, len(sent.items)) for one in made]
        yield _turn(script, form, sent, "/v1/responses", body, _answer(sent, response_id, ids))


def _since_answer(items: Sequence[Item], form: Form) -> list[Json]:
    """Return what a client sends if the provider keeps the history: results and texts after the last answer."""
    last = max((at for at, item in enumerate(items) if item.is_answer), default=0)
    sent = _responses_items(items[last:], form)
    return [one for one in sent if one.get("role") == "user" or one.get("type") == "function_call_output"]


def _responses_items(items: Sequence[Item], form: Form) -> Iterator[Json]:
    for at, item in enumerate(items):
        if not item.is_answer:
            yield {"role": "user", "content": [{"type": "input_text", "text": item.user}]}
            continue
        sealed = digest(at, item.said, [made.id for made in item.calls])
        yield {"type": "reasoning", "id": f"rs_{sealed}", "summary": [], "encrypted_content": sealed}
        if item.said or not item.calls:
            yield {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": item.said}]}
        for made in item.calls:
            by = _call_id(form, "call", made, at)
            spelled = json.dumps(made.arguments)
            yield {
                "type": "function_call",
                "id": f"fc_{made.id}",
                "call_id": by,
                "name": made.name,
                "arguments": spelled,
            }
        for made in item.calls:
            shown = {"type": "input_image", "image_url": f"{_PNG_URL}{made.image}"}
            parts = [{"type": "input_text", "text": _error(made)}, shown]
            output = parts if made.image else _error(made)
            yield {"type": "function_call_output", "call_id": _call_id(form, "call", made, at), "output": output}


# -- Anthropic Messages


def _messages(script: Script, form: Form) -> Iterator[RecordedTurn]:
    for sent in script.sent:
        body: Json = {"model": MODEL, "max_tokens": 4096, "messages": list(_messages_items(sent.items))}
        body["system"] = [{"type": "text", "text": sent.system, "cache_control": {"type": "ephemeral"}}]
        if form.named and "session" not in sent.names:
            body["metadata"] = {"user_id": f"user_{digest('u')}_account__session_{uuid(script.name)}"}
        if sent.tools:
            body["tools"] = [{"name": name, "input_schema": _schema(name)} for name in sent.tools]
        if form.stream:
            body["stream"] = True
        yield _turn(script, form, sent, "/v1/messages", body, _answer(sent))


def _messages_items(items: Sequence[Item]) -> Iterator[Json]:
    pending: list[Json] = []  # blocks of the user that one message holds together
    for item in items:
        if not item.is_answer:
            pending.append({"type": "text", "text": item.user})
            continue
        if pending:
            yield {"role": "user", "content": pending}
        blocks: list[Json] = [{"type": "text", "text": item.said}] if item.said else []
        blocks += [
            {"type": "tool_use", "id": f"toolu_{made.id}", "name": made.name, "input": made.arguments}
            for made in item.calls
        ]
        yield {"role": "assistant", "content": blocks or [{"type": "text", "text": ""}]}
        pending = []
        for made in item.calls:
            result: Json = {"type": "tool_result", "tool_use_id": f"toolu_{made.id}", "content": made.result}
            if made.image:
                source = {"type": "base64", "media_type": "image/png", "data": made.image}
                result["content"] = [{"type": "text", "text": made.result}, {"type": "image", "source": source}]
            pending.append(result | ({"is_error": True} if made.failed else {}))
    if pending:
        yield {"role": "user", "content": pending}


# -- the same APIs at clouds

_HOSTED: Final = {
    "vertex_anthropic": f"/v1/projects/p/locations/eu/publishers/anthropic/models/{MODEL}:rawPredict",
    "bedrock_anthropic": f"/model/anthropic.{MODEL}/invoke",
    "bedrock_chat": f"/model/openai.{MODEL}/invoke",
}


def _hosted(script: Script, form: Form) -> Iterator[RecordedTurn]:
    """Write the requests of Anthropic or OpenAI as a cloud takes them: the model is in the path."""
    write, version = (
        (_chat, {}) if form.dialect == "bedrock_chat" else (_messages, {"anthropic_version": "bedrock-2023-05-31"})
    )
    for turn in write(script, form):
        assert isinstance(turn.request, RecordedBody)
        body = json.loads(turn.request.body) | version
        del body["model"]
        yield replace(turn, request=RecordedBody(_HOSTED[form.dialect], json.dumps(body).encode()))


def _converse(script: Script, form: Form) -> Iterator[RecordedTurn]:
    for sent in script.sent:
        messages = [
            {"role": message["role"], "content": [_converse_block(block) for block in message["content"]]}
            for message in _messages_items(sent.items)
        ]
        body = {"system": [{"text": sent.system}], "messages": messages}
        yield _turn(script, form, sent, f"/model/amazon.{MODEL}/converse", body, _answer(sent))


def _converse_block(block: Json) -> Json:
    if block["type"] == "tool_use":
        return {"toolUse": {"toolUseId": block["id"], "name": block["name"], "input": block["input"]}}
    if block["type"] == "tool_result":
        status = "error" if block.get("is_error") else "success"
        result = {"toolUseId": block["tool_use_id"], "content": [{"text": block["content"]}], "status": status}
        return {"toolResult": result}
    return {"text": block["text"]}


def _conversations(script: Script, form: Form) -> Iterator[RecordedTurn]:
    """Write all entries of a conversation of Mistral, which is started with them."""
    for sent in script.sent:
        inputs: list[Json] = []
        for item in sent.items:
            if not item.is_answer:
                inputs.append({"type": "message.input", "role": "user", "content": item.user})
                continue
            if item.said or not item.calls:
                inputs.append({"type": "message.output", "role": "assistant", "content": item.said})
            for made in item.calls:
                call = {"type": "function.call", "tool_call_id": made.id, "name": made.name}
                inputs.append(call | {"arguments": json.dumps(made.arguments)})
            inputs += [
                {"type": "function.result", "tool_call_id": made.id, "result": _error(made)} for made in item.calls
            ]
        body = {"model": MODEL, "instructions": sent.system, "inputs": inputs}
        yield _turn(script, form, sent, "/v1/conversations", body, _answer(sent))


# -- Gemini


def _gemini(script: Script, form: Form) -> Iterator[RecordedTurn]:
    path = f"/v1beta/models/{MODEL}:{'streamGenerateContent' if form.stream else 'generateContent'}"
    for sent in script.sent:
        body: Json = {"contents": list(_gemini_contents(sent.items)), "generationConfig": {"temperature": 0}}
        body["systemInstruction"] = {"parts": [{"text": sent.system}]}
        if sent.tools:
            declarations = [{"name": name, "parameters": _schema(name)} for name in sent.tools]
            body["tools"] = [{"functionDeclarations": declarations}]
        yield _turn(script, form, sent, path, body, _answer(sent))


def _gemini_contents(items: Sequence[Item]) -> Iterator[Json]:
    for item in items:
        if not item.is_answer:
            yield {"role": "user", "parts": [{"text": item.user}]}
            continue
        parts: list[Json] = [{"text": item.said}] if item.said or not item.calls else []
        parts += [{"functionCall": {"name": made.name, "args": made.arguments}} for made in item.calls]
        yield {"role": "model", "parts": parts}
        if item.calls:
            yield {"role": "user", "parts": [{"functionResponse": _gemini_result(made)} for made in item.calls]}


def _gemini_result(made: Made) -> Json:
    result: Json = {"name": made.name, "response": {"error" if made.failed else "output": made.result}}
    if made.image:
        result["parts"] = [{"inlineData": {"mimeType": "image/png", "data": made.image}}]
    return result


# -- others


def _mcp(script: Script, form: Form) -> Iterator[RecordedTurn]:
    """Write each call as the client of an MCP server sends it; the server's answer is the result."""
    number = 0
    for sent in script.sent:
        last = sent.items[-1] if sent.items[-1].is_answer else (sent.items[-2] if len(sent.items) > 1 else Item())
        for made in last.calls:
            number += not sent.repeats
            params: Json = {"name": made.name, "arguments": made.arguments, "_meta": {"progressToken": number}}
            body = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
            answer = Answer(200, made.result, error=TOOL_ERROR if made.failed else "", complete=True)
            yield _turn(script, form, sent, "/mcp", body, answer if sent.status < 400 else Answer(sent.status))


def _a2a(script: Script, form: Form) -> Iterator[RecordedTurn]:
    """Write each call as a message to another agent; its answer is the result."""
    number = 0
    for sent in script.sent:
        last = sent.items[-1] if sent.items[-1].is_answer else (sent.items[-2] if len(sent.items) > 1 else Item())
        for made in last.calls:
            number += not sent.repeats
            parts = [{"kind": "text", "text": made.name}, {"kind": "data", "data": dict(made.arguments)}]
            message: Json = {"kind": "message", "role": "user", "messageId": f"m-{number}", "parts": parts}
            body = {"jsonrpc": "2.0", "id": number, "method": "message/send", "params": {"message": message}}
            answer = Answer(200, made.result, error="failed" if made.failed else "", complete=True)
            yield _turn(script, form, sent, "/agent", body, answer if sent.status < 400 else Answer(sent.status))


def _completions(script: Script, form: Form) -> Iterator[RecordedTurn]:
    path = "/v1/completions" if form.dialect == "openai_completions" else "/api/generate"
    for sent in script.sent:
        said = [f"User: {item.user}" if not item.is_answer else f"Assistant: {item.said}" for item in sent.items]
        prompt = "\n".join([sent.system, *said, "Assistant:"])
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 200}
        yield _turn(script, form, sent, path, body, _answer(sent))


def _embeddings(script: Script, form: Form) -> Iterator[RecordedTurn]:
    for sent in script.sent:
        body = {"model": MODEL, "input": [item.user for item in sent.items]}
        yield _turn(
            script, form, sent, "/v1/embeddings", body, Answer(200 if sent.status < 400 else sent.status, complete=True)
        )


def _plain(script: Script, form: Form) -> Iterator[RecordedTurn]:
    """Write the last text as an order to some other API."""
    for sent in script.sent:
        body = {"order": sent.items[-1].user}
        yield _turn(script, form, sent, "/orders", body, Answer(sent.status, complete=True))


FORMS: Final = {
    form.name: form
    for form in (
        Form("chat", "openai_chat", _chat, stream=True),
        Form("chat-unnamed", "openai_chat", _chat, named=False),
        Form("chat-counted", "openai_chat", _chat, named=False, ids="counted"),
        Form("chat-text", "openai_chat", _chat, ids="none"),
        Form("chat-text-unnamed", "openai_chat", _chat, named=False, ids="none", stream=True),
        Form("chat-roles", "openai_chat", _chat, ids="listed"),
        Form("dspy", "openai_chat", _dspy),
        Form("dspy-unnamed", "openai_chat", _dspy, named=False),
        Form("react", "openai_chat", _react),
        Form("react-unnamed", "openai_chat", _react, named=False),
        Form("responses", "openai_responses", _responses, stream=True),
        Form("responses-unnamed", "openai_responses", _responses, named=False),
        Form("responses-chain", "openai_responses", _responses, named=False, chained=True),
        Form("responses-conversation", "openai_responses", _responses, named=False, chained=True, conversation=True),
        Form("messages", "anthropic_messages", _messages, stream=True),
        Form("messages-unnamed", "anthropic_messages", _messages, named=False),
        Form("gemini", "gemini", _gemini),
        Form("gemini-unnamed", "gemini", _gemini, named=False, stream=True),
        Form("mcp", "mcp", _mcp),
        Form("mcp-unnamed", "mcp", _mcp, named=False),
        Form("a2a", "a2a", _a2a),
        Form("completions", "openai_completions", _completions, named=False),
        *(Form(name, name, _hosted) for name in _HOSTED),
        Form("bedrock_converse", "bedrock_converse", _converse),
        Form("mistral_conversations", "mistral_conversations", _conversations),
        Form("ollama", "ollama_chat", _ollama),
        Form("ollama-generate", "ollama_generate", _completions, named=False),
        Form("cohere", "cohere_chat", _cohere),
        Form("embeddings", "openai_embeddings", _embeddings, named=False),
        Form("plain", "", _plain, named=False),
    )
}
