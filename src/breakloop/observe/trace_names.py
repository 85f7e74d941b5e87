"""What spans and metrics of a trace are called, and what stands in them: the GenAI semantic conventions of
OpenTelemetry, and `breakloop.*` beside them. Names, counts and verdicts only. Sending them is `tracing`'s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from breakloop.model.answer import CLIENT_LEFT, NO_ANSWER, Answer
from breakloop.model.call import Call, Chat
from breakloop.model.verdict import Verdict
from breakloop.wire import dialects, mcp

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
MODEL: Final = "gen_ai.request.model"
TOOL: Final = "gen_ai.tool.name"
TOKEN_TYPE: Final = "gen_ai.token.type"
ERROR_TYPE: Final = "error.type"
_OTHER: Final = "_OTHER"
_TEXT_MAX: Final = 200
_MODELS_MAX: Final = 50

_OPERATIONS: Final = {
    "openai_chat": "chat",
    "openai_responses": "chat",
    "anthropic_messages": "chat",
    "openai_completions": "text_completion",
    "openai_embeddings": "embeddings",
    "gemini": "generate_content",
    mcp.DIALECT: "execute_tool",
}
# Names of upstreams that people give -> the conventions' names. Others are known by the dialect they speak.
_PROVIDERS: Final = {
    "openai": "openai",
    "anthropic": "anthropic",
    "gemini": "gcp.gemini",
    "google": "gcp.gemini",
    "vertex": "gcp.vertex_ai",
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "mistral": "mistral_ai",
    "xai": "x_ai",
    "groq": "groq",
    "deepseek": "deepseek",
    "cohere": "cohere",
    "perplexity": "perplexity",
}

Attributes = dict[str, Any]


def span_name(attributes: Mapping[str, Any], method: str) -> str:
    """Return the name of a call's span: the operation and its model or tool, or the method of plain HTTP."""
    operation = attributes.get(OPERATION)
    if operation is None:
        return method
    of_what = attributes.get(MODEL) or attributes.get(TOOL)
    return f"{operation} {of_what}" if of_what else str(operation)


def call_attributes(call: Call, chat: Chat | None, agent: str, tools: Sequence[str] = ()) -> Attributes:
    """Return what is known of a call before it is answered."""
    found: Attributes = {
        "breakloop.request_id": call.request_id,
        "http.request.method": call.method,
        "gen_ai.agent.id": agent[:_TEXT_MAX],
    }
    if call.project:
        found["breakloop.project"] = call.project
    if call.upstream:
        found["breakloop.upstream"] = call.upstream
    if chat is None:
        return found
    found[OPERATION] = _OPERATIONS.get(chat.dialect, "chat")
    if tools:
        found[TOOL] = tools[0][:_TEXT_MAX]
    if chat.dialect == mcp.DIALECT:
        return found
    found[PROVIDER] = _PROVIDERS.get(call.upstream) or _by_dialect(chat.dialect)
    if chat.model:
        found[MODEL] = chat.model[:_TEXT_MAX]
    if chat.max_tokens is not None:
        found["gen_ai.request.max_tokens"] = chat.max_tokens
    if chat.answers != 1:
        found["gen_ai.request.choice.count"] = chat.answers
    if chat.stream:
        found["gen_ai.request.stream"] = True
    return found


def _by_dialect(dialect: str) -> str:
    provider = dialects.provider(dialect)
    return _PROVIDERS.get(provider, provider)


def verdict_attributes(verdict: Verdict) -> Attributes:
    """Return what was decided."""
    found: Attributes = {"breakloop.allowed": verdict.allowed, "breakloop.reason": verdict.reason}
    for name in ("policy", "rule", "warning"):
        value = getattr(verdict, name)
        if value:
            found[f"breakloop.{name}"] = value
    if verdict.delay_ms:
        found["breakloop.delay_ms"] = verdict.delay_ms
    if verdict.degraded:
        found["breakloop.degraded"] = True
    if verdict.shadow:
        found["breakloop.shadow.policies"] = [one.policy for one in verdict.shadow]
    if verdict.loop is not None:
        for name in ("kind", "fingerprint", "hit_count", "action"):
            found[f"breakloop.loop.{name}"] = getattr(verdict.loop, name)
    return found


def answer_attributes(answer: Answer) -> Attributes:
    """Return what is known of an answer; nothing of what it says."""
    found: Attributes = {}
    if answer.status not in (NO_ANSWER, CLIENT_LEFT):
        found["http.response.status_code"] = answer.status
    texts = {"gen_ai.response.model": answer.model, "gen_ai.response.id": answer.response_id}
    found |= {name: text[:_TEXT_MAX] for name, text in texts.items() if text}
    if answer.finish:
        found["gen_ai.response.finish_reasons"] = [answer.finish[:_TEXT_MAX]]
    usage = answer.usage
    if usage is not None:
        found["gen_ai.usage.input_tokens"] = usage.input_tokens
        found["gen_ai.usage.output_tokens"] = usage.output_tokens
        more = {
            "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
            "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
            "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
        }
        found |= {name: count for name, count in more.items() if count}
    return found


def failure(answer: Answer) -> str:
    """Return in one word why an answer is none; "" where it is one. Never in the words of the upstream."""
    if answer.status == CLIENT_LEFT:
        return "client_left"
    if answer.status == NO_ANSWER:
        return "no_answer"
    if answer.status >= 400:
        return str(answer.status)
    return "incomplete" if answer.error and not answer.complete else ""


class Names:
    """The attributes of metrics: few, and with few values each."""

    __slots__ = ("_models",)

    def __init__(self) -> None:
        self._models: set[str] = set()

    def of(self, attributes: Mapping[str, Any]) -> dict[str, str]:
        """Return those of a call; nothing for what no model does: tools and plain HTTP."""
        if PROVIDER not in attributes:
            return {}
        found = {name: str(attributes[name]) for name in (OPERATION, PROVIDER)}
        if MODEL in attributes:
            found[MODEL] = self._model(attributes[MODEL])
        return found

    def _model(self, model: str) -> str:
        if model not in self._models:
            if len(self._models) >= _MODELS_MAX:
                return _OTHER
            self._models.add(model)
        return model
