"""Google's Agent Development Kit: a plugin that checks each model request of the agents of an app.

    from breakloop.integrations.google_adk import GuardPlugin
    app = App(name="support", root_agent=agent, plugins=[GuardPlugin()])

A notice for the model is added to the end of the request. A request that is landed is sent with tools switched off. A
denial is the last event of the run: its text is the message, `error_code` and `custom_metadata["breakloop"]` say why.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.genai import types

from breakloop.model.call import Answer
from breakloop.model.decision import Decision, marked
from breakloop.sdk.guard import Guard
from breakloop.sdk.model_calls import (
    Conversation,
    Message,
    ModelCalls,
    assistant_message,
    result_message,
    text_message,
)
from breakloop.sdk.requests import denial_details, make_answer
from breakloop.sdk.toolkit import failed_answer

__all__ = ["GuardPlugin"]


class GuardPlugin(BasePlugin):
    """Checks the model requests of every agent of an app or runner, streamed or not:

        app = App(name="support", root_agent=agent, plugins=[GuardPlugin()])
        runner = InMemoryRunner(app=app)

    A conversation is an agent in a session of ADK. A plugin cannot raise: ADK would hide the error in a `RuntimeError`.
    So a denial is the final response of the agent, with an `error_code`.
    """

    def __init__(self, guard: Guard | None = None, *, agent: str = "", name: str = "breakloop") -> None:
        super().__init__(name)
        self._calls = ModelCalls(guard, agent)
        self.guard = self._calls.guard

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        def read() -> Conversation:
            session = f"{callback_context.session.id}/{callback_context.agent_name}"
            return Conversation(
                _messages(llm_request),
                llm_request.model or "",
                llm_request.tools_dict,
                callback_context.agent_name,
                session,
            )

        decision = await self._calls.abegin(_key(callback_context), read)
        if not decision.allowed:
            return _denied(decision)
        if decision.notice:
            note = types.Part(text=marked(decision.notice))
            llm_request.contents.append(types.Content(role="user", parts=[note]))
        if decision.landed:
            off = types.FunctionCallingConfig(mode=types.FunctionCallingConfigMode.NONE)
            llm_request.config.tool_config = types.ToolConfig(function_calling_config=off)
        return None

    async def after_model_callback(
        self, *, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> LlmResponse | None:
        if llm_response.partial:
            return None
        decision = await self._calls.aend(_key(callback_context), lambda: _answer(llm_response))
        if decision.landed and _calls(llm_response.content):  # of a server that ignores the choice
            text = _text(llm_response.content) or decision.note
            return llm_response.model_copy(update={"content": _said(text)})
        return None

    async def on_model_error_callback(
        self,
        *,
        callback_context: CallbackContext,
        llm_request: LlmRequest,  # noqa: ARG002
        error: Exception,
    ) -> None:
        await self._calls.aend(_key(callback_context), lambda: failed_answer(error))


def _key(context: CallbackContext) -> tuple[Any, ...]:
    return context.session.id, context.invocation_id, context.agent_name, context.branch


def _denied(decision: Decision) -> LlmResponse:
    return LlmResponse(
        content=_said(decision.notice),
        error_code=decision.error,
        error_message=decision.message,
        custom_metadata={"breakloop": denial_details(decision)},
    )


def _said(text: str) -> types.Content:
    return types.Content(role="model", parts=[types.Part(text=text)])


def _messages(request: LlmRequest) -> Iterator[Message]:
    system = request.config.system_instruction
    if system:
        yield text_message("system", system if isinstance(system, str) else repr(system))
    open_calls: dict[str, list[str]] = {}  # ids by name: Gemini's calls have none, and are answered in order
    for number, content in enumerate(request.contents):
        calls = [(one.id or f"{number}-{index}", one.name or "", one.args) for index, one in enumerate(_calls(content))]
        for call_id, name, _ in calls:
            open_calls.setdefault(name, []).append(call_id)
        text = _text(content)
        if content.role == "model":
            yield assistant_message(text, calls)
            continue
        for part in content.parts or ():
            result = part.function_response
            if result is not None:
                waiting, returned = open_calls.get(result.name or ""), result.response or {}
                call_id = waiting.pop(0) if waiting else result.id or ""
                value = returned["result"] if returned.keys() == {"result"} else returned  # ADK wraps plain values
                yield result_message(call_id, value, failed="error" in returned)
        if text:
            yield text_message("user", text)


def _calls(content: types.Content | None) -> list[types.FunctionCall]:
    return [part.function_call for part in (content.parts if content else None) or () if part.function_call]


def _text(content: types.Content | None) -> str:
    return "".join(part.text or "" for part in (content.parts if content else None) or () if not part.thought)


def _answer(response: LlmResponse) -> Answer:
    used = response.usage_metadata
    usage = used and {
        "input_tokens": used.prompt_token_count or 0,
        "output_tokens": (used.candidates_token_count or 0) + (used.thoughts_token_count or 0),
        "cached_tokens": used.cached_content_token_count or 0,
        "reasoning_tokens": used.thoughts_token_count or 0,
    }
    calls = [(one.name or "", one.args) for one in _calls(response.content)]
    return make_answer(200, _text(response.content), calls, usage)
