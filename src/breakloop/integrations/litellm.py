"""Guardrail for LiteLLM's proxy. In its `config.yaml`, under `guardrails`, in `litellm_params`:

    guardrail: breakloop.integrations.litellm.BreakloopGuardrail
    mode: pre_call

Requests are checked before LiteLLM routes them. A denial becomes LiteLLM's own error, or a response. A note for the
model is added to the conversation, a warning to the response headers. LiteLLM authenticates the caller.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from litellm.integrations.custom_guardrail import CustomGuardrail
from litellm.proxy._types import ProxyException
from litellm.types.guardrails import GuardrailEventHooks

from breakloop.dialects.registry import of_path
from breakloop.model.call import SECRET_HEADERS, Call
from breakloop.model.decision import Decision
from breakloop.sdk.core import ANSWERED
from breakloop.sdk.guard import Guard, answer_in
from breakloop.sdk.http import denied_response, steered_body
from breakloop.sdk.local_backend import Policy
from breakloop.sdk.requests import denial_details, request_call
from breakloop.sdk.toolkit import BoundedDict, failed_answer, toolkit_of

__all__ = ["BreakloopGuardrail"]

_OPEN_MAX: Final = 4096  # LiteLLM does not report the end of every request
# The fields that a provider is sent and that are checked. LiteLLM's own fields beside them may hold keys.
_CHECKED: Final = (
    *("model", "messages", "input", "prompt", "contents", "system", "instructions", "systemInstruction", "tools"),
    *("max_tokens", "max_completion_tokens", "max_output_tokens", "n", "stream", "suffix", "user"),
    *("previous_response_id", "conversation", "prompt_cache_key"),
)
_CHOICES: Final = ("tool_choice", "function_call")
_CONVERSATION: Final = ("messages", "input", "prompt", "contents")
_REQUEST: Final = "proxy_server_request"
_GENERATED_SESSION: Final = "litellm_session_id_generated"
# Header fields that are not checked: those of the connection to LiteLLM, and keys.
_IGNORED_HEADERS: Final = frozenset(
    ("content-length", "content-encoding", "transfer-encoding", "connection", "host", "content-type", *SECRET_HEADERS)
)


class BreakloopGuardrail(CustomGuardrail):
    """The guardrail. `policy` is the path of a bundle; or `api_base`, with `api_key`, is the URL of a decision service.
    Without them the built-in protection applies. With `on_block: answer` a denial looks like an answer of the model."""

    def __init__(
        self,
        *,
        policy: Policy = None,
        api_base: str = "",
        api_key: str = "",
        on_block: Literal["error", "answer"] = "error",
        guard: Guard | None = None,
        **litellm_params: Any,
    ) -> None:
        if on_block not in {"error", "answer"}:
            raise ValueError('on_block must be "error" or "answer"')
        self.guard = guard or Guard(policy, url=api_base or "", token=api_key or "")
        self._toolkit = toolkit_of(self.guard)
        self._answers = on_block == "answer"
        self._open: BoundedDict[str, Decision] = BoundedDict(_OPEN_MAX)
        self._headers: BoundedDict[str, dict[str, str]] = BoundedDict(_OPEN_MAX)
        # In other modes LiteLLM would never call the guardrail; with this it reports that at start.
        super().__init__(supported_event_hooks=[GuardrailEventHooks.pre_call], **litellm_params)

    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: str
    ) -> dict[str, Any] | None:
        _ = cache, call_type
        io = self._toolkit.asynchronous
        call = None
        with self._toolkit.fail_open():  # a request that cannot be read passes
            call = _call(user_api_key_dict, data)
        if call is None:
            return None
        decision = await io.decide(call)
        if not decision.allowed:
            self._deny(decision, data)
        await io.wait(decision)
        name = _request_key(data)
        self._open[name] = decision
        if not decision.warning:
            return None
        placed = _steer(decision, data)
        self._headers[name] = _warning_headers(decision, placed=placed)
        return data if placed else None

    async def async_post_call_response_headers_hook(
        self, data: dict[str, Any], user_api_key_dict: Any, response: Any, *_: Any, **__: Any
    ) -> dict[str, str] | None:
        _ = user_api_key_dict, response
        return self._headers.pop(_request_key(data), None)

    async def async_log_success_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        _ = start_time, end_time
        decision = self._open.pop(_request_key(kwargs), None)
        if decision is not None:
            answer = ANSWERED
            with self._toolkit.fail_open():  # the objects of LiteLLM change
                answer = answer_in(response_obj)
            await self._toolkit.asynchronous.settle(decision, answer)

    async def async_post_call_failure_hook(
        self, request_data: dict[str, Any], original_exception: Exception, user_api_key_dict: Any, *_: Any, **__: Any
    ) -> None:
        _ = user_api_key_dict
        decision = self._open.pop(_request_key(request_data), None)
        if decision is not None:
            await self._toolkit.asynchronous.settle(decision, failed_answer(original_exception))

    def _deny(self, decision: Decision, data: dict[str, Any]) -> None:
        details = denial_details(decision)
        if self._answers:
            self.raise_passthrough_exception(decision.notice, data, details)
        fields = [(name, value) for name, value in denied_response(decision).headers if not name.startswith("Content-")]
        raise ProxyException(
            message=decision.notice,
            type="rate_limit_error" if decision.status == 429 else "permission_error",
            param=None,
            code=decision.status,
            openai_code=decision.error,
            headers=dict(fields),
            provider_specific_fields={"detail": details},
        )


def _request_key(record: Mapping[str, Any]) -> str:
    """Return what identifies a request in all hooks: its time of arrival, to the microsecond. LiteLLM's own id changes
    when it translates a request from one API to another."""
    request = record.get(_REQUEST) or (record.get("litellm_params") or {}).get(_REQUEST) or {}
    return str(request.get("arrival_time") or record.get("litellm_call_id", ""))


def _call(caller: Any, data: Mapping[str, Any]) -> Call:
    """Return the request as the client sent it, as far as LiteLLM still has it. The caller is its key."""
    request = data.get(_REQUEST) or {}
    path = urlsplit(str(request.get("url", ""))).path or "/"
    sent = request.get("headers") or {}
    headers = {name: str(value) for name, value in sent.items() if name.lower() not in _IGNORED_HEADERS}
    key = getattr(caller, "api_key", None)  # a hash, or LiteLLM's name for the master key
    if key:
        headers["authorization"] = f"Bearer {key}"
    headers["content-type"] = "application/json"
    if not of_path(path):
        call = request_call(str(request.get("method", "POST")), path, headers)
        call.body_unseen = True
        return call
    body = {name: data[name] for name in _CHECKED if data.get(name) is not None}
    session = _session(data)
    if session:
        body["litellm_session_id"] = session
    return request_call("POST", path, headers, json.dumps(body, default=repr).encode())


def _session(data: Mapping[str, Any]) -> str:
    """Return the session that the client named. LiteLLM can generate one for each request; those are ignored."""
    named = [data.get("metadata"), data.get("litellm_metadata")]
    maps = [one for one in named if isinstance(one, dict)]
    if any(one.get(_GENERATED_SESSION) for one in maps):
        return ""
    found = [data.get("litellm_session_id"), *(one.get("session_id") for one in maps)]
    return next((str(one) for one in found if one), "")


def _steer(decision: Decision, data: dict[str, Any]) -> bool:
    """Add a note to the conversation, and switch tools off if the call is landed. All messages but the last stay the
    same objects."""
    steered = steered_body(decision)
    body = {} if steered is None else json.loads(steered)
    name = next((name for name in _CONVERSATION if name in body), "")
    if not name:
        return False
    before, after = data[name], body[name]
    data[name] = [*before[:-1], *after[len(before) - 1 :]] if isinstance(before, list) else after
    data.update({name: body[name] for name in _CHOICES if decision.landed and name in body})
    return True


def _warning_headers(decision: Decision, *, placed: bool) -> dict[str, str]:
    headers = {"X-Breakloop-Warning": decision.warning}
    if decision.request_id:
        headers["X-Breakloop-Request-Id"] = decision.request_id
    if decision.hit_count:
        headers["X-Breakloop-Loop-Count"] = str(decision.hit_count)
    if decision.landed:
        headers["X-Breakloop-Action"] = "land"
    if decision.note and not placed:
        headers["X-Breakloop-Note"] = decision.note.encode("ascii", "replace").decode()
    return headers
