"""Bodies of denials."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakloop.dialects import denial, registry
from breakloop.dialects.mcp import rpc_id
from breakloop.model.call import Call
from breakloop.model.decision import STOP_REASONS, Decision
from breakloop.model.verdict import REASONS, LimitState, LoopFinding, Verdict
from tests.each import each

LOOP = LoopFinding("tail", "ab" * 16, 6, 60, 30, "reject", fresh=True, message="Blocked: x.", evidence="6 times")


def refused(reason: str = "kill_switch", message: str = "No.", status: int = 429) -> Verdict:
    return Verdict(allowed=False, reason=reason, status=status, message=message)


def looped() -> Verdict:
    verdict = refused("loop_detected", LOOP.message)
    verdict.loop, verdict.policy = LOOP, "p"
    return verdict


DETAIL = {
    "error": "recursive_loop_detected",
    "message": "Blocked: x.",
    "fingerprint": "ab" * 16,
    "hit_count": 6,
    "cooldown_seconds": 30,
    "kind": "tail",
    "evidence": "6 times",
    "stop_reason": "loop",
}


def body(verdict: Verdict, dialect: str = "", request_id: str = "", sent: bytes = b"") -> bytes:
    return registry.error_body(verdict, Call("POST", "/", request_id=request_id, body=sent), dialect)


def loads(body: bytes) -> Any:
    return json.loads(body)


def test_a_loop_body() -> None:
    """Exactly these fields, in plain JSON (A-3)."""
    assert loads(body(looped())) == {"detail": DETAIL}
    assert body(looped()).startswith(b'{"detail":{"error":"recursive_loop_detected","message":')


DIALECTS = ["openai_completions", "openai_chat", "openai_responses", "anthropic_messages", "gemini", "mcp"]
TEXT = "Blocked: x. (recursive_loop_detected)"


@pytest.mark.parametrize("dialect", ["openai_completions", "openai_chat", "openai_responses", "openai_embeddings"])
def test_the_openai_error_stands_beside_it(dialect: str) -> None:
    """OpenAI shapes get their own error object too (A-3)."""
    error = {"message": TEXT, "type": "rate_limit_error", "param": None, "code": "recursive_loop_detected"}
    assert loads(body(looped(), dialect)) == {"detail": DETAIL, "error": error}
    assert "error" not in loads(body(looped(), ""))


def test_the_anthropic_error() -> None:
    """`type: error` on top, the error beside `detail`, and the request's id as Anthropic writes it (A-3)."""
    details = {"error_code": "recursive_loop_detected"}  # what its SDK shows as `error_code`
    error = {"type": "rate_limit_error", "message": TEXT, "details": details}
    assert loads(body(looped(), "anthropic_messages", request_id="r-1")) == {
        "detail": DETAIL,
        "type": "error",
        "error": error,
        "request_id": "r-1",
    }
    assert "request_id" not in loads(body(looped(), "anthropic_messages"))


def test_the_gemini_error() -> None:
    """A google.rpc status; its details invite to no retry where none helps (A-3)."""
    verdict = looped()
    verdict.never, verdict.retry_after_s = True, 30
    info = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "RECURSIVE_LOOP_DETECTED",
        "domain": "breakloop",
        "metadata": {"error": "recursive_loop_detected"},
    }
    error = {"code": 429, "message": TEXT, "status": "RESOURCE_EXHAUSTED", "details": [info]}
    assert loads(body(verdict, "gemini")) == {"detail": DETAIL, "error": error}


def test_gemini_is_told_when_a_retry_helps() -> None:
    """As google.rpc.RetryInfo, which its clients wait for (A-3)."""
    verdict = refused("token_bucket_exceeded")
    verdict.retry_after_s = 7
    details = loads(body(verdict, "gemini"))["error"]["details"]
    assert details[1:] == [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "7s"}]


def test_the_mcp_error() -> None:
    """A JSON-RPC error that answers the request's id; its data repeats all but the message (A-3)."""
    data = {name: value for name, value in DETAIL.items() if name != "message"}
    error = {"code": -32000, "message": TEXT, "data": data}
    assert loads(body(looped(), "mcp", sent=b'{"id":"a"}')) == {
        "detail": DETAIL,
        "jsonrpc": "2.0",
        "id": "a",
        "error": error,
    }
    assert loads(body(looped(), "mcp"))["id"] is None


@pytest.mark.parametrize("request_id", [7, "a", None])
def test_a_denied_tool_call_is_a_readable_tool_error(request_id: str | int | None) -> None:
    """200 with `isError`, so that the model reads the text (A-3)."""
    sent = json.dumps({"jsonrpc": "2.0", "id": request_id}).encode()
    status, found = registry.denial_for(looped(), Call("POST", "/mcp", body=sent), "mcp")
    assert status == 200
    assert json.loads(found) == {
        "jsonrpc": "2.0",
        "id": request_id,
        "result": {
            "resultType": "complete",
            "content": [{"type": "text", "text": TEXT}],
            "isError": True,
            "_meta": {"breakloop/detail": DETAIL},
        },
    }


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        (b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"id":9}}', 7),
        (b'{"id":"a","x":[[[1]]]}', "a"),
        (b'{"id":null}', None),
        (b'{"id":1.5}', None),
        (b'{"id":{}}', None),
        (b'[{"id":1}]', None),
        (b'{"method":"x"}', None),
        (b'{"id":1', None),
        (b"", None),
        pytest.param(b'{"x":' + b"[" * 100_000, None, id="deep"),
    ],
)
def test_ids_of_json_rpc_requests(sent: bytes, found: str | int | None) -> None:
    """Strings and whole numbers; what is no request has none (A-3)."""
    assert rpc_id(sent) == found


@pytest.mark.parametrize(
    ("status", "openai", "anthropic", "gemini"),
    [
        (400, "invalid_request_error", "invalid_request_error", "FAILED_PRECONDITION"),
        (401, "authentication_error", "authentication_error", "UNAUTHENTICATED"),
        (402, "insufficient_quota", "billing_error", "FAILED_PRECONDITION"),
        (403, "permission_error", "permission_error", "PERMISSION_DENIED"),
        (418, "invalid_request_error", "invalid_request_error", "FAILED_PRECONDITION"),
        (429, "rate_limit_error", "rate_limit_error", "RESOURCE_EXHAUSTED"),
        (503, "server_error", "api_error", "UNAVAILABLE"),
        (529, "server_error", "overloaded_error", "INTERNAL"),
        (599, "server_error", "api_error", "INTERNAL"),
    ],
)
def test_statuses_have_each_providers_name(status: int, openai: str, anthropic: str, gemini: str) -> None:
    """Whatever `deny_status` a policy sets; code that looks at the name does the right thing (A-4)."""
    verdict = refused(status=status)
    assert loads(body(verdict, "openai_chat"))["error"]["type"] == openai
    assert loads(body(verdict, "anthropic_messages"))["error"]["type"] == anthropic
    error = loads(body(verdict, "gemini"))["error"]
    assert (error["code"], error["status"]) == (status, gemini)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialects_text_names_the_reason(dialect: str) -> None:
    """SDKs show the message and nothing else of the object; who reads a log has to find the reason there (A-3)."""
    assert loads(body(looped(), dialect))["error"]["message"] == TEXT
    assert loads(body(refused(), dialect))["error"]["message"] == "No. (kill_switch)"


@pytest.mark.parametrize("reason", sorted(set(REASONS) - {"loop_detected"}))
def test_other_denials_have_the_same_shape(reason: str) -> None:
    """`error` is the reason (A-4)."""
    found = loads(body(refused(reason)))
    found["detail"].pop("stop_reason", None)
    assert found == {"detail": {"error": reason, "message": "No."}}
    assert loads(body(refused(reason), "openai_chat"))["error"]["code"] == reason


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("loop_detected", "loop"),
        ("run_limit_exceeded", "budget"),
        ("agent_quarantined", "killed"),
        ("tpm_exceeded", "limit"),
        ("store_unavailable", None),
    ],
)
def test_what_ended_the_run_is_one_word(reason: str, word: str | None) -> None:
    """In header, body and problem alike; a fault of the installation has none (A-4)."""
    verdict = refused(reason)
    lines = denial.VerdictHeaders("X-Breakloop-", b"key").denied(verdict, "r1", "").decode().split("\r\n")
    assert [line for line in lines if "Stop-Reason" in line] == ([f"X-Breakloop-Stop-Reason: {word}"] if word else [])
    assert loads(body(verdict))["detail"].get("stop_reason") == word
    assert loads(denial.problem(verdict)).get("stop_reason") == word
    assert Decision(allowed=False, reason=reason).stop_reason == (word or "")


def test_every_stop_reason_belongs_to_a_reason() -> None:
    """Or to the warning of a landing (A-4)."""
    assert set(STOP_REASONS) <= {*REASONS, "budget_land", "run_land", "operator_land"}


@each(
    "warning, word",
    [("loop_detected", "loop"), ("budget_land", "budget"), ("run_land", "budget"), ("operator_land", "killed")],
)
def test_a_landing_says_what_ends_the_run(warning: str, word: str) -> None:
    """In the header of the response, and in the library; a warning alone ends nothing (A-4, LD-10)."""
    headers = denial.VerdictHeaders("X-Breakloop-", b"key")
    for landed in (False, True):
        verdict = Verdict()
        verdict.warning, verdict.landed = warning, landed
        found = dict(denial.field_pairs(headers.allowed(verdict, "r1")))
        assert found.get("X-Breakloop-Stop-Reason") == (word if landed else None)
        assert Decision(warning=warning, landed=landed).stop_reason == (word if landed else "")


@pytest.mark.parametrize("text", ["a\r\nb", "ü", "\x7f", '"', "\u2028", "\ud800", "\x00"])
def test_bodies_are_one_line_of_ascii(text: str) -> None:
    """So that they can travel in a header field."""
    verdict = refused(message=text)
    for found in (*[body(verdict, dialect) for dialect in DIALECTS], denial.problem(verdict)):
        assert all(0x20 <= byte < 0x7F for byte in found)
        assert text in str(
            loads(found)["detail"] if isinstance(loads(found)["detail"], str) else loads(found)["detail"]["message"]
        )


WHOLE = [
    ("OpenAI/Python 2.54.0", "openai_chat"),
    ("AsyncAzureOpenAI/Python 1.109.1", "openai_responses"),
    ("AsyncAnthropic/Python 2.8.0", "anthropic_messages"),
    ("claude-cli/2.1.325 (external, cli)", "anthropic_messages"),
    ("google-genai-sdk/3.3.0 gl-python/3.11.7", "gemini"),
    ("mistral-client-python/3.7.0", "openai_chat"),
    ("litellm/1.108.4", "anthropic_messages"),
    ("codex_exec/0.169.0 (Debian 12.0.0; x86_64)", "openai_responses"),
]


@pytest.mark.parametrize(("agent", "dialect"), WHOLE)
def test_sdks_that_show_the_whole_body(agent: str, dialect: str) -> None:
    """The sentence is there once, before everything else that is ours; no field of `detail` but its copy is missing
    (A-3)."""
    sent = Call("POST", "/", headers={"user-agent": agent.encode()})
    _, found = registry.denial_for(looped(), sent, dialect)
    assert found.count(b"Blocked: x.") == 1
    assert list(loads(found))[-1] == "detail"
    assert loads(found)["error"]["message"] == TEXT
    assert loads(found)["detail"] == {name: value for name, value in DETAIL.items() if name != "message"}
    assert loads(registry.error_body(looped(), sent, dialect))["detail"] == DETAIL  # for a gateway that asks


@pytest.mark.parametrize("agent", ["OpenAI/Python 3.49.0", "AsyncOpenAI/Python 10.0.0", "OpenAI/JS 6.1.0", "curl/8"])
def test_other_clients_get_the_whole_detail(agent: str) -> None:
    """Their errors show the message of the error object, or they read `detail` (A-3)."""
    sent = Call("POST", "/", headers={"user-agent": agent.encode()})
    assert loads(registry.denial_for(looped(), sent, "openai_chat")[1])["detail"] == DETAIL


def test_problems() -> None:
    """RFC 9457 members, `detail` as text, our fields beside them (A-4)."""
    found = loads(denial.problem(looped()))
    assert found["type"].endswith("#abnormal-usage-detected")
    assert (found["status"], found["detail"], found["error"]) == (429, "Blocked: x.", "recursive_loop_detected")
    assert (found["hit_count"], found["cooldown_seconds"], found["violated-policies"]) == (6, 30, ["p"])


@pytest.mark.parametrize(
    ("reason", "limit", "kind"),
    [
        ("token_bucket_exceeded", LimitState("p", 1, 1, 0, 1), "quota-exceeded"),
        ("no_bundle_loaded", None, "temporary-reduced-capacity"),
        ("store_unavailable", None, "temporary-reduced-capacity"),
    ],
)
def test_problem_types(reason: str, limit: LimitState | None, kind: str) -> None:
    """The types of the RateLimit draft where they fit (A-4)."""
    verdict = refused(reason)
    verdict.limit = limit
    assert loads(denial.problem(verdict))["type"] == f"https://iana.org/assignments/http-problem-types#{kind}"


def test_a_problem_without_a_type() -> None:
    """`about:blank` for the rest, and no empty list of policies (A-4)."""
    found = loads(denial.problem(refused()))
    ours = {"error": "kill_switch", "stop_reason": "killed"}
    assert found == {"type": "about:blank", "title": "Denied", "status": 429, "detail": "No.", **ours}


@pytest.mark.parametrize("text", ["plain", "a\nb\x00\x1f", "delete \x7f", "\u00fc and \u4e2d", "\ud800", '"\\/'])
def test_bodies_are_ascii(text: str) -> None:
    """They fit into a header field, whatever a name contains."""
    content: dict[str, object] = {"detail": {"message": text, "hits": 3, "none": None}}
    assert denial.dump(content) == json.dumps(content, separators=(",", ":")).encode("ascii")
