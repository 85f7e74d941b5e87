"""Guardrail for LiteLLM's proxy: `guardrail: breakloop.integrations.litellm.BreakloopGuardrail`.

Requests are checked before LiteLLM routes them. A denial becomes LiteLLM's own error, or a response. A note for the
model is added to the conversation, a warning to the response headers. LiteLLM authenticates the caller.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from litellm.integrations.custom_guardrail import CustomGuardrail
from litellm.proxy._types import ProxyException
from litellm.types.guardrails import GuardrailEventHooks

from breakloop.dialects.registry import of_path
from breakloop.model.call import SECRET_HEADERS, Answer, Call
from breakloop.model.verdict import Decision
from breakloop.sdk.backend import facts, request_call
from breakloop.sdk.decorators import answer_in, status_of
from breakloop.sdk.guard import Guard
from breakloop.sdk.http import denied, steered
from breakloop.sdk.local_backend import Policy

_KEPT_MAX: Final = 4096  # requests that LiteLLM never tells the end of are forgotten
# What a provider is sent, as far as it is judged. LiteLLM's own things beside it (keys among them) stay where they are.
_JUDGED: Final = (
    *("model", "messages", "input", "prompt", "contents", "system", "instructions", "systemInstruction", "tools"),
    *("max_tokens", "max_completion_tokens", "max_output_tokens", "n", "stream", "suffix", "user"),
    *("previous_response_id", "conversation", "prompt_cache_key"),
)
_CONVERSATION: Final = ("messages", "input", "prompt", "contents")
_REQUEST: Final = "proxy_server_request"
_MADE_UP: Final = "litellm_session_id_generated"
# Header fields that are not judged: those of the connection to LiteLLM, and whatever keys it left in.
_LEFT_OUT: Final = frozenset(
    ("content-length", "content-encoding", "transfer-encoding", "connection", "host", "content-type", *SECRET_HEADERS)
)


class BreakloopGuardrail(CustomGuardrail):
    """The guardrail. `policy` is a bundle's file, or `api_base` (with `api_key`) a decision service's address; without
    them the built-in protection holds. `on_block: answer` lets a denial look like an answer of the model."""

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
            raise ValueError('on_block is "error" or "answer"')
        self.guard = guard or Guard(policy, url=api_base or "", token=api_key or "")
        self._answers = on_block == "answer"
        self._open: OrderedDict[str, Decision] = OrderedDict()
        self._headers: OrderedDict[str, dict[str, str]] = OrderedDict()
        # Another mode would never ask us: LiteLLM says so when it starts.
        super().__init__(supported_event_hooks=[GuardrailEventHooks.pre_call], **litellm_params)

    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: str
    ) -> dict[str, Any] | None:
        """Judge a request before it is routed. LiteLLM calls this where `mode` has `pre_call`."""
        _ = cache, call_type
        try:
            decision = await self.guard.ajudge(_call(user_api_key_dict, data))
        except Exception as error:  # noqa: BLE001 - the outermost edge: a request that we cannot read passes
            self.guard.fault(error)
            return None
        if not decision.allowed:
            self._deny(decision, data)
        await self.guard.await_(decision)
        name = _name(data)
        _keep(self._open, name, decision)
        if not decision.warning:
            return None
        placed = _steer(decision, data)
        _keep(self._headers, name, _told(decision, placed=placed))
        return data if placed else None

    async def async_post_call_response_headers_hook(
        self, data: dict[str, Any], user_api_key_dict: Any, response: Any, *_: Any, **__: Any
    ) -> dict[str, str] | None:
        """Return the header fields of a warning."""
        _ = user_api_key_dict, response
        return self._headers.pop(_name(data), None)

    async def async_log_success_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """Settle what was answered; of a stream LiteLLM has put the whole answer together."""
        _ = start_time, end_time
        decision = self._open.pop(_name(kwargs), None)
        if decision is not None:
            await self._settle(decision, response_obj)

    async def async_post_call_failure_hook(
        self, request_data: dict[str, Any], original_exception: Exception, user_api_key_dict: Any, *_: Any, **__: Any
    ) -> None:
        """Settle what failed, after all tries of LiteLLM's: it does not count as a repeat."""
        _ = user_api_key_dict
        decision = self._open.pop(_name(request_data), None)
        if decision is not None:
            await self.guard.asettle(decision, Answer(status_of(original_exception)))

    async def _settle(self, decision: Decision, response: Any) -> None:
        answer = Answer(200, complete=True)
        with self.guard.fail_open():  # objects of LiteLLM's need not be what they are expected to be
            answer = answer_in(response)
        await self.guard.asettle(decision, answer)

    def _deny(self, decision: Decision, data: dict[str, Any]) -> None:
        told = facts(decision)
        if self._answers:
            self.raise_passthrough_exception(decision.notice, data, told)
        fields = [(name, value) for name, value in denied(decision).headers if not name.startswith("Content-")]
        raise ProxyException(
            message=decision.notice,
            type="rate_limit_error" if decision.status == 429 else "permission_error",
            param=None,
            code=decision.status,
            openai_code=decision.error,
            headers=dict(fields),
            provider_specific_fields={"detail": told},
        )


def _name(record: Mapping[str, Any]) -> str:
    """By what a request is known again: when it came, to the microsecond. LiteLLM's own id is another one inside of it
    where a request is translated from one API to another."""
    request = record.get(_REQUEST) or (record.get("litellm_params") or {}).get(_REQUEST) or {}
    return str(request.get("arrival_time") or record.get("litellm_call_id", ""))


def _call(caller: Any, data: Mapping[str, Any]) -> Call:
    """The request as the client sent it, as far as LiteLLM still has it, under the name of the key it was sent with."""
    request = data.get(_REQUEST) or {}
    path = urlsplit(str(request.get("url", ""))).path or "/"
    sent = request.get("headers") or {}
    headers = {name: str(value) for name, value in sent.items() if name.lower() not in _LEFT_OUT}
    key = getattr(caller, "api_key", None)  # a hash of it, or LiteLLM's name for the master key
    if key:
        headers["authorization"] = f"Bearer {key}"
    headers["content-type"] = "application/json"
    if not of_path(path):
        call = request_call(str(request.get("method", "POST")), path, headers)
        call.body_unseen = True
        return call
    body = {name: data[name] for name in _JUDGED if data.get(name) is not None}
    session = _session(data)
    if session:
        body["litellm_session_id"] = session
    return request_call("POST", path, headers, json.dumps(body, default=repr).encode())


def _session(data: Mapping[str, Any]) -> str:
    """The session that the client named; LiteLLM can make one up for each request, which says nothing."""
    named = [data.get("metadata"), data.get("litellm_metadata")]
    maps = [one for one in named if isinstance(one, dict)]
    if any(one.get(_MADE_UP) for one in maps):
        return ""
    found = [data.get("litellm_session_id"), *(one.get("session_id") for one in maps)]
    return next((str(one) for one in found if one), "")


def _steer(decision: Decision, data: dict[str, Any]) -> bool:
    """Put a note into the conversation. All but the last message stay the very objects that they were."""
    noted = steered(decision)
    body = {} if noted is None else json.loads(noted)
    name = next((name for name in _CONVERSATION if name in body), "")
    if not name:
        return False
    before, after = data[name], body[name]
    data[name] = [*before[:-1], *after[len(before) - 1 :]] if isinstance(before, list) else after
    return True


def _told(decision: Decision, *, placed: bool) -> dict[str, str]:
    told = {"X-Breakloop-Warning": decision.warning}
    if decision.request_id:
        told["X-Breakloop-Request-Id"] = decision.request_id
    if decision.hit_count:
        told["X-Breakloop-Loop-Count"] = str(decision.hit_count)
    if decision.note and not placed:
        told["X-Breakloop-Note"] = decision.note.encode("ascii", "replace").decode()
    return told


def _keep(kept: OrderedDict[str, Any], name: str, value: Any) -> None:
    kept[name] = value
    if len(kept) > _KEPT_MAX:
        kept.popitem(last=False)
