"""The result door: what it takes, what it refuses and in which words, whom it believes, and what it keeps."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import astuple

from breakloop.errors import RequestError
from breakloop.gateway.decision import BODY_MAX_BYTES, ReportedResults, is_result, read_report
from breakloop.gateway.http_request import Reply
from breakloop.model.call import CLIENT_LEFT, Answer, Call, ToolCall, Usage
from breakloop.model.events import SHADOW_WOULD_REJECT
from tests.builders import Json, World, bucket, bundle, call, chat, exact, fresh, policy, request, user, world
from tests.each import each
from tests.fake_remote import RemoteWorld, run

KEY = {"authorization": "Bearer sk-one"}


@dataclass
class Service:
    """The two doors together: one is asked, the other is told."""

    here: World
    results: ReportedResults
    asked: int = 0

    def ask(self, what: Call | None = None) -> str:
        """Ask about a call; return its result id, or "" for a denial."""
        made = fresh(what or chat(headers=KEY))
        self.asked += 1
        made.request_id = f"t-{self.asked:x}"
        self.results.expect(made)
        verdict = self.here.engine.decide(made)
        if not verdict.allowed:
            return ""
        return self.results.keep(made) if made.decision.awaits_result else "not awaited"

    def tell(self, result_id: str, told: Any = 200, method: str = "POST") -> Reply:
        body = {"status": told} if isinstance(told, int) else told
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.results.handle(request(f"/v1/decision/{result_id}/result", method=method, body=raw))


def service(*policies: Json, max_open: int = 100, **top: Any) -> Service:
    here = world(bundle(*(policies or (policy("p", loop=exact(3)),)), **top))
    return Service(here, ReportedResults(here.engine, here.descriptors, here.clock, max_open))


def error(reply: Reply) -> tuple[int, str, str]:
    assert reply.head.lower().startswith(b"content-type: application/json\r\n")
    detail = json.loads(reply.body)["detail"]
    return reply.status, detail["error"], detail["message"]


# -- what it does ------------------------------------------------------------------------------------------------------


def test_a_failed_result_takes_the_count_back() -> None:
    """From the first report on: ten failures, then the 3rd identical request is a loop again (D-6, LD-6)."""
    there = service()
    for _ in range(10):
        assert there.tell(there.ask(), 503).status == 204
        there.here.clock.advance(2)
    assert (there.here.engine.tally.forgiven, there.here.engine.tally.settled) == (10, 10)
    for _ in range(2):
        assert there.tell(there.ask(), 503).status == 204
        there.here.clock.advance(2)
    assert there.ask() == ""


def test_without_results_everything_counts() -> None:
    """Failed or running requests are not recognised where nobody tells (D-6)."""
    there = service()
    assert [bool(there.ask()) for _ in range(3)] == [True, True, False]


def test_a_result_is_taken_once() -> None:
    """204, then 404; an answer that came is no failure (D-6)."""
    there = service()
    first = there.ask()
    reply = there.tell(first, 200)
    assert (reply.status, reply.head, reply.body) == (204, b"", b"")
    status, code, message = error(there.tell(first, 503))
    assert (status, code) == (404, "not_found")
    assert "told already" in message
    assert there.ask()
    there.here.clock.advance(1)  # it is not in flight any more
    assert there.ask() == ""


@pytest.mark.parametrize("result_id", ["nobody", "t-ff", "t-1/x", "..", "%74-1", "", "t-1", "t-1.", "t-1.A"])
def test_an_unknown_request_is_404(result_id: str) -> None:
    """Also a request id, which clients see and which can be guessed (D-6, Y-1)."""
    there = service()
    there.ask()
    assert there.tell(result_id).status == 404
    assert there.here.engine.tally.settled == 0


@each(
    "change",
    [
        lambda name, digits, place: f"{name}.{'0' * 27}{place}",
        lambda name, digits, place: f"{name}.{digits[:-1]}{int(digits[-1], 16) ^ 1:x}{place}",
        lambda name, digits, place: f"{name}.{digits}00001",  # nothing was asked there yet
        lambda name, digits, place: f"{name}.{digits}fffff",  # beyond all places
        lambda name, digits, place: f"{name}.{digits.upper()}{place}",
        lambda name, digits, place: f"{name}.{digits}",
        lambda name, digits, place: f"{name}%0a.{digits}{place}",
        lambda name, digits, place: f".{digits}{place}",
    ],
)
def test_each_part_of_a_result_id_counts(change: Callable[[str, str, str], str]) -> None:
    """A place alone can be guessed; what stands before is written to logs (D-6, Y-1)."""
    there = service()
    name, _, secret = (result_id := there.ask()).partition(".")
    assert change(name, secret[:-5], secret[-5:]) != result_id
    assert there.tell(change(name, secret[:-5], secret[-5:])).status == 404
    assert there.tell(result_id).status == 204


def test_result_ids_cannot_be_guessed() -> None:
    """The request id, for whoever searches a log, 108 random bits, and a place; no two services have the same
    (D-6, Y-1)."""
    ids = [there.ask(call(f"/{number}")) for there in (service(), service()) for number in range(600)]
    names, secrets = zip(*[one.split(".") for one in ids], strict=True)
    assert names[:2] == names[600:602] == ("t-1", "t-2")
    assert [int(secret[27:], 16) for secret in secrets] == [number % 512 for number in range(600)] * 2
    assert len({secret[:27] for secret in secrets}) == 1200
    assert {len(bytes.fromhex(secret)) for secret in secrets} == {16}


def test_a_failure_takes_back_its_own_count_once() -> None:
    """Not that of another decision, and not twice (D-6, LD-6)."""
    there, other = service(), chat(user("other"))
    failed = there.ask()
    there.ask(other)
    assert [there.tell(failed, 503).status for _ in range(3)] == [204, 404, 404]
    assert there.here.engine.tally.forgiven == 1
    there.here.clock.advance(2)
    assert there.ask(other)
    there.here.clock.advance(2)
    assert there.ask(other) == ""


def test_a_denial_has_no_result() -> None:
    """What was denied is not running (D-6, LD-6)."""
    there = service(policy("p", bucket(rate=1, burst=1), loop=exact(9)))
    assert there.ask()
    assert there.ask() == ""
    assert len(there.results) == 1


def test_what_nobody_counted_has_no_result() -> None:
    """Without a loop detector there is nothing to settle yet, and nothing is kept for it (D-6)."""
    there = service(policy("p", bucket()))
    assert there.ask() == "not awaited"
    assert len(there.results) == 0


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
def test_only_post(method: str) -> None:
    """405 with what is allowed; nothing is settled (D-6)."""
    there = service()
    first = there.ask()
    reply = there.tell(first, method=method)
    assert (reply.status, reply.head) == (405, b"Allow: POST\r\n")
    assert there.tell(first).status == 204


def test_a_mistake_loses_nothing() -> None:
    """Whoever sends nonsense can send the result again (D-6)."""
    there = service()
    first = there.ask()
    assert there.tell(first, {"status": "ok"}).status == 400
    assert there.tell(first, 200).status == 204


def test_the_query_is_not_part_of_the_id() -> None:
    """As on the other paths (D-6)."""
    there = service()
    target = f"/v1/decision/{there.ask()}/result?x=/result"
    assert there.results.handle(request(target, body=b'{"status": 200}')).status == 204


def test_usage_is_counted() -> None:
    """Tokens of reported answers add up (D-6)."""
    there = service()
    there.tell(there.ask(), {"status": 200, "usage": {"prompt_tokens": 100, "completion_tokens": 20}})
    there.tell(there.ask(), {"status": 200, "usage": {"input_tokens": 5, "output_tokens": 1}})
    tally = there.here.engine.tally
    assert (tally.input_tokens, tally.output_tokens) == (105, 21)


def test_a_result_settles_in_the_store_that_decided() -> None:
    """In a shared one, and in the memory of the process for what was decided while it was away (D-6, S-3)."""

    def test() -> None:
        there = RemoteWorld(bundle(policy("p", loop=exact(9))))
        results = ReportedResults(there.here.engine, there.here.descriptors, there.here.clock)

        def ask(path: str) -> str:
            made = call(path)
            made.request_id = "t-1"
            results.expect(made)
            assert there.decide(made).allowed
            return results.keep(made)

        shared = ask("/shared")
        there.remote.failed("gone")
        alone = ask("/alone")
        there.health.up = True
        for result_id in (shared, alone):
            results.handle(request(f"/v1/decision/{result_id}/result", body=b'{"status": 503}'))
        assert there.store.asked["settle"] == 1
        assert there.here.engine.tally.forgiven == 2
        there.remote.close()

    run(test)


# -- whom it believes --------------------------------------------------------------------------------------------------


def test_who_reports_may_sample() -> None:
    """After a report the caller's running requests are known, so that those that start together count once
    (D-6, LD-6)."""
    there = service()
    there.tell(there.ask(), 200)
    assert there.results.is_reporter(chat(headers=KEY))
    there.here.clock.advance(60)
    sampled = [there.ask() for _ in range(17)]
    assert all(sampled)
    assert there.here.engine.tally.joined == 16
    there.tell(sampled[0], 200)  # the leader has its answer
    assert there.ask()
    assert all(there.ask() for _ in range(16))
    assert there.ask() == ""


def test_others_are_not_believed() -> None:
    """A caller who has told nothing is counted request by request, whoever else tells (D-6)."""
    there = service()
    there.tell(there.ask(), 200)
    other = chat(headers={"authorization": "Bearer sk-two"})
    assert not there.results.is_reporter(fresh(other))
    assert [bool(there.ask(other)) for _ in range(3)] == [True, True, False]


def test_belief_lasts_ten_minutes() -> None:
    """After the last report; a new one renews it (D-6)."""
    there = service()
    first, second = there.ask(), there.ask(call())
    there.tell(first)
    asked = chat(headers=KEY)
    there.here.clock.advance(599)
    assert there.results.is_reporter(asked)
    there.here.clock.advance(1)
    assert not there.results.is_reporter(asked)
    there.tell(second)  # somebody else's
    assert not there.results.is_reporter(asked)


# -- what it keeps -----------------------------------------------------------------------------------------------------


def test_results_are_awaited_for_a_quarter_of_an_hour() -> None:
    """Exactly then it is forgotten (D-6)."""
    there = service()
    first = there.ask()
    there.here.clock.advance(899.9)
    second = there.ask(call())
    there.here.clock.advance(0.1)
    assert there.tell(first).status == 404
    assert there.tell(second).status == 204


def test_it_is_bounded() -> None:
    """The oldest go first, a block of 256 at a time; those that are kept are never fewer than was asked for (Y-2)."""
    there = service(max_open=200)
    ids = [there.ask(call(f"/{number}")) for number in range(1000)]
    assert len(there.results) == 1000 - 512  # of two blocks, the last one holds 232
    assert [there.tell(result_id).status for result_id in ids] == [404] * 512 + [204] * 488
    assert len(there.results) == 0


def test_it_keeps_no_request() -> None:
    """Neither body nor header fields stay in memory (Y-2, Y-1)."""
    there = service()
    there.ask(chat(headers={"authorization": "Bearer sk-canary"}))
    (awaited,) = filter(None, there.results._ring)
    assert "canary" not in repr(awaited)
    assert not any(isinstance(part, Call) for part in astuple(awaited))


# -- what it reads -----------------------------------------------------------------------------------------------------


def read(told: Any, headers: dict[str, str] | None = None) -> Answer:
    raw = told if isinstance(told, bytes) else json.dumps(told).encode()
    return read_report(request(headers=headers, body=raw))


@pytest.mark.parametrize(
    ("told", "answer"),
    [
        ({"status": 200}, Answer(200, complete=True)),
        ({"status": 200.0, "unknown": {"x": 1}, "usage": None, "text": None}, Answer(200, complete=True)),
        ({"status": 0}, Answer(0)),
        ({"status": 499}, Answer(CLIENT_LEFT)),
        ({"status": 529, "text": "done"}, Answer(529, "done", complete=True)),
        ({"status": 200, "text": "so", "digest": "x"}, Answer(200, "so", complete=True)),
        ({"status": 200, "digest": "sha256:ab"}, Answer(200, "<digest:sha256:ab>", complete=True)),
        ({"status": 200, "digest": ""}, Answer(200, complete=True)),
        (b'\xef\xbb\xbf{"status": 200, "text": "\\ud83d"}', Answer(200, "?", complete=True)),
    ],
)
def test_what_a_report_says(told: Any, answer: Answer) -> None:
    """Status, and a text or a digest of it; unknown fields are ignored (D-6)."""
    assert read(told) == answer


def test_long_texts_are_cut() -> None:
    """As where answers are read (Y-2)."""
    assert len(read({"status": 200, "text": "x" * 100_000}).text) == 64 * 1024


CALL = (ToolCall("search", '{"a":1,"q":"x"}'),)


@pytest.mark.parametrize(
    ("told", "calls"),
    [
        ([{"name": "search", "arguments": {"q": "x", "a": 1}}], CALL),
        ([{"name": "search", "arguments": '{"q": "x", "a": 1}'}], CALL),
        ([{"id": "1", "type": "function", "function": {"name": "search", "arguments": '{"q":"x","a":1}'}}], CALL),
        ([{"type": "tool_use", "id": "1", "name": "search", "input": {"q": "x", "a": 1}}], CALL),
        ([{"functionCall": {"name": "search", "args": {"q": "x", "a": 1}}}], CALL),
        ([{"name": "stop"}], (ToolCall("stop", ""),)),
        ([], ()),
        (None, ()),
    ],
)
def test_tool_calls_in_every_spelling(told: Any, calls: tuple[ToolCall, ...]) -> None:
    """Ours, OpenAI's, Anthropic's, Gemini's; arguments in one spelling (D-6, C-8)."""
    assert read({"status": 200, "tool_calls": told}).calls == calls


@pytest.mark.parametrize(
    ("told", "usage"),
    [
        ({"input_tokens": 10, "output_tokens": 3}, Usage(10, 3)),
        (
            {
                "input_tokens": 10,
                "output_tokens": 3,
                "cached_tokens": 4,
                "cache_write_tokens": 2,
                "reasoning_tokens": 1,
            },
            Usage(10, 3, 4, 2, 1),
        ),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 3,
                "total_tokens": 13,
                "prompt_tokens_details": {"cached_tokens": 4},
                "completion_tokens_details": {"reasoning_tokens": 1},
            },
            Usage(10, 3, 4, 0, 1),
        ),
        (
            {
                "input_tokens": 10,
                "output_tokens": 3,
                "input_tokens_details": {"cached_tokens": 4},
                "output_tokens_details": {"reasoning_tokens": 1},
            },
            Usage(10, 3, 4, 0, 1),
        ),
        (
            {
                "input_tokens": 10,
                "output_tokens": 3,
                "cache_read_input_tokens": 100,
                "cache_creation_input_tokens": 7,
            },
            Usage(117, 3, 100, 7),
        ),
        (
            {"promptTokenCount": 10, "candidatesTokenCount": 3, "thoughtsTokenCount": 2, "cachedContentTokenCount": 4},
            Usage(10, 5, 4, 0, 2),
        ),
        ({"prompt_tokens": 10, "completion_tokens": None, "prompt_tokens_details": None}, Usage(10, 0)),
        ({"cost": "x"}, None),
        ({}, None),
    ],
)
def test_usage_in_every_spelling(told: Json, usage: Usage | None) -> None:
    """Ours, OpenAI's two, Anthropic's, where the cached parts stand beside the input, and Gemini's (D-6)."""
    assert read({"status": 200, "usage": told}).usage == usage


@each(
    "told, says",
    [
        (b"", "the body must be a JSON object"),
        (b"status=200", "the body must be a JSON object"),
        (b"[200]", "the body must be a JSON object"),
        (b"[" * 5000, "the body must be a JSON object"),
        ({}, "status: is missing; send the HTTP status of the response as a number, or 0 if there was none"),
        ({"status": None}, "status: is missing"),
        ({"status": "200"}, "status: is not a status; send"),
        ({"status": True}, "status: is not a status"),
        ({"status": 20}, "status: is not a status"),
        ({"status": -1}, "status: is not a status"),
        ({"status": 1000}, "status: is not a status"),
        ({"status": 200.5}, "status: is not a status"),
        ({"status": 200, "text": ["a"]}, "text: send the text of the response as a string"),
        ({"status": 200, "digest": 5}, "digest: send a string"),
        ({"status": 200, "digest": "x" * 257}, "digest: send a string of at most 256 characters"),
        ({"status": 200, "usage": 5}, "usage: send an object"),
        ({"status": 200, "usage": {"input_tokens": "5"}}, "usage.input_tokens: send a whole number of tokens"),
        ({"status": 200, "usage": {"output_tokens": 2**60}}, "usage.output_tokens: send a whole number of tokens"),
        ({"status": 200, "usage": {"prompt_tokens": -1}}, "usage.prompt_tokens: send a whole number"),
        ({"status": 200, "usage": {"promptTokenCount": 1.5}}, "usage.promptTokenCount: send a whole number"),
        (
            {"status": 200, "usage": {"prompt_tokens_details": {"cached_tokens": "x"}}},
            "usage.prompt_tokens_details.cached_tokens: send a whole number",
        ),
        ({"status": 200, "usage": {"prompt_tokens_details": 5}}, "usage.prompt_tokens_details: send an object"),
        ({"status": 200, "tool_calls": {}}, "tool_calls: send a list"),
        ({"status": 200, "tool_calls": ["f"]}, "tool_calls[0]: send an object with name and arguments"),
        ({"status": 200, "tool_calls": [{"name": "f"}, {}]}, "tool_calls[1].name: send the name"),
        ({"status": 200, "tool_calls": [{"function": "f"}]}, "tool_calls[0].name: send the name"),
    ],
)
def test_what_is_wrong_is_named(told: Any, says: str) -> None:
    """The field and the remedy (D-6)."""
    with pytest.raises(RequestError) as caught:
        read(told)
    assert caught.value.status == 400
    assert str(caught.value).startswith(says)


def test_refusals_have_the_shape_of_all_errors() -> None:
    """A message a person can act on (A-1)."""
    there = service()
    assert error(there.tell(there.ask(), {}))[:2] == (400, "bad_request")
    status, code, message = error(there.tell(there.ask(call()), b" " * (BODY_MAX_BYTES + 1)))
    assert (status, code) == (413, "body_too_large")
    assert "digest" in message


def test_packed_results_are_refused() -> None:
    """Nothing is unpacked here (Y-2)."""
    with pytest.raises(RequestError, match="Content-Encoding: send the result uncompressed"):
        read({"status": 200}, {"content-encoding": "gzip"})
    assert read({"status": 200}, {"content-encoding": "identity"}).status == 200


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (b"/v1/decision/t-1/result", True),
        (b"/v1/decision//result", False),
        (b"/v1/decision/result", False),
        (b"/v1/decision/t-1/results", False),
        (b"/v1/decision", False),
        (b"/v2/decision/t-1/result", False),
    ],
)
def test_its_paths(path: bytes, expected: bool) -> None:
    """The door tells them apart (D-6)."""
    assert is_result(path) is expected


def test_shadow_policies_settle_too() -> None:
    """What a shadow policy counted is taken back as well (E-1, D-6)."""
    there = service(policy("s", loop=exact(2), mode="shadow"))
    found: list[int] = []
    for status in (503, 503, 200, 200):
        there.tell(there.ask(call()), status)
        there.here.clock.advance(2)
        found.append(len(there.here.named(SHADOW_WOULD_REJECT)))
    assert found == [0, 0, 0, 1]
