"""A request whose head differs from the one before in a few values, such as a trace id, is read as any other (Y-3)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakloop.errors import RequestError
from breakloop.gateway import http_request
from breakloop.gateway.decision import original_call
from breakloop.gateway.forwarding import HeadRewriter, UpstreamRoutes
from breakloop.gateway.http_request import HeadCache, HeadParser, Request, RequestLimits, VaryingTemplate
from breakloop.model.upstream import upstreams
from tests.unit.gateway.fake_client import Client

ROUTES = UpstreamRoutes(upstreams(["x=http://up.example:81/base"]))


def head(*fields: str, body: bytes | None = b"abc", line: str = "POST /x/y?a=b%20c") -> bytes:
    """A request; without a body if it is None."""
    lines = [f"{line} HTTP/1.1", "Host: a", "Authorization: Bearer 1", *fields]
    if body is not None:
        lines.insert(3, f"Content-Length: {len(body)}")
    return "\r\n".join((*lines, "", "")).encode("latin-1") + (body or b"")


def traced(number: int, body: bytes | None = b"abc") -> bytes:
    return head("Accept: */*", f"traceparent: 00-{number:032x}-01", "X-Later: 1", body=body)


def received(*requests: bytes, limits: RequestLimits | None = None) -> list[Request]:
    """What the handler gets from one client."""
    with Client(limits=limits) as client:
        client.send(*requests)
        return list(client.seen)


def alone(data: bytes) -> Request | None:
    """The same of a client that has sent nothing else; None if it is refused."""
    found = received(data)
    return found[0] if found else None


def plain(request: Request) -> Request:
    return msgspec.structs.replace(request, template=None)


@pytest.mark.parametrize("bodies", [[b"abc"] * 5, [b"", b"a", b"ab", b"abc", b"abcd"], [None] * 5])
def test_heads_that_differ_in_a_trace_id_share_a_template(bodies: Sequence[bytes | None]) -> None:
    """From the third on: the first two show what differs."""
    requests = [traced(number, body) for number, body in enumerate(bodies)]
    seen = received(*requests)
    templates = [request.template for request in seen]
    assert templates[0] is templates[1] is None
    assert isinstance(templates[2], VaryingTemplate)
    assert templates[2] is templates[3] is templates[4]
    assert [plain(request) for request in seen] == [alone(data) for data in requests]
    assert [list(request.headers) for request in seen] == [list(seen[0].headers)] * 5
    assert templates[4].varying == ("traceparent",)
    assert seen[4].headers["traceparent"] == f"00-{4:032x}-01".encode()


def test_a_request_has_its_own_fields() -> None:
    """What is done to one is not seen in the next."""
    with Client() as client:
        client.send(*[traced(number) for number in range(4)])
        client.seen[-1].headers["host"] = b"b"
        client.seen[-1].headers["new"] = b"1"
        client.send(traced(5))
        assert plain(client.seen[-1]) == alone(traced(5))


def asked_about(request: Request) -> tuple[object, ...]:
    """What a request to the decision service asks about, or why that cannot be told."""
    try:
        made = original_call(request, "id")
    except RequestError as error:
        return error.status, str(error)
    return made.method, made.path, made.host, made.query, made.path_agent, made.body, made.body_unseen


@pytest.mark.parametrize("body", [b"abc", b"", None])
@pytest.mark.parametrize(
    "fields",
    [
        ("X-Original-URI: /v1/page?n={}",),
        ("X-Original-URI: /v1/page?n={}", "X-Original-Method: PUT", "X-Original-Host: H{}:80"),
        ("X-Original-URI: /v1/page?n={}", "X-Original-Method: PUT", "X-Original-Host: H:80"),
        ("X-Original-URI: /v1/page", "X-Original-Method: M{}"),
        ("X-Original-URI: /agents/a-{}/x", "X-Original-Content-Length: 3"),
        ("X-Original-URI: /a", "X-Original-Content-Length: {}", "traceparent: {}"),
        ("X-Original-URI: /a", "X-Forwarded-Uri: /a", "X-Forwarded-Method: M{}"),
        ("X-Forwarded-Uri: /a?n={}",),
        ("X-Original-URI: http://h/a?n={}", "traceparent: {}"),
        ("traceparent: {}",),
        ("X_Original_URI: /harmless", "X-Original-URI: /v1/chat/completions"),
        ("X-Original-URI: /a", "X_Original_Method: GET", "X-Original-Method: POST"),
        ("X-Original-URI: /a", "X-Original-Host: a", "X_Original_Host: b"),
        ("X-Original-URI: /a", "X-Original-Host: a", "X_Original_Host: a"),
    ],
)
def test_what_a_gateway_asks_about_is_read_from_each_request(fields: Sequence[str], body: bytes | None) -> None:
    """From heads that share a template as from others (D-3)."""
    line = "POST /v1/decision?n=1"
    for seen in received(*[head(*[one.format(n) for one in fields], body=body, line=line) for n in range(6)]):
        assert asked_about(seen) == asked_about(plain(seen))


def test_another_client_of_the_same_kind_shares_the_template() -> None:
    with Client() as client:
        client.send(*[traced(number) for number in range(4)])
        other = Client(server=client.server, loop=client.loop)
        other.send(traced(7))
        assert client.seen[-1].template is client.seen[-2].template is not None


@pytest.mark.parametrize(
    "field",
    [
        "Accept-Encoding: gzip;q=0.{}",
        "Connection: x-{}",
        "Cookie: a={}",
        "X-API-Key: {}",
        "x_api_key: {}",
        "api-key: {}",
        "Anthropic-Version: {}",
        "X-Breakloop-Hop: {}",
        "Content-Encoding: x{}",
        "Keep-Alive: {}",
        "TE: {}",
    ],
)
def test_what_a_head_is_judged_by_is_the_same_in_all_of_a_template(field: str) -> None:
    """Where it goes, whose key it has, and how the connection is used, are kept with the template."""
    assert [request.template for request in received(*[head(field.format(number)) for number in range(6)])] == [
        None
    ] * 6


def test_what_differs_in_one_line_only_at_first_may_differ_in_another() -> None:
    """A template that does not fit is no obstacle to the next."""
    requests = [
        head(f"X-A: {one}", f"X-B: {two}") for one, two in ((1, 0), (2, 0), (3, 0), (3, 1), (3, 2), (3, 3), (4, 4))
    ]
    seen = received(*requests, *requests)
    assert [plain(request) for request in seen] == [alone(data) for data in requests] * 2
    found = {request.template.varying for request in seen if isinstance(request.template, VaryingTemplate)}
    assert len(found) > 1


@pytest.mark.parametrize(
    "value",
    ["", " 1", "1 ", "\t1", "1\t", "a b", "\xff", "a" * 1024, "a" * 1025, "%d%b%", "X-Later: 1", ":", "1\x00", "1\n"],
)
def test_a_value_of_any_form(value: str) -> None:
    """It is read, or refused, as in a head of its own."""
    with Client() as client:
        client.send(*[traced(number) for number in range(4)])
        before = client.server.bad_requests
        data = head("Accept: */*", f"traceparent: {value}", "X-Later: 1")
        client.send(data)
        expected = alone(data)
        assert (client.server.bad_requests > before) is (expected is None)
        assert expected is None or plain(client.seen[-1]) == expected


@pytest.mark.parametrize(
    "data",
    [
        *[traced(7).replace(b"Length: 3", b"Length: " + size) for size in (b"", b"-1", b"+3", b"3x", b"0" * 18 + b"3")],
        traced(7) + traced(8, b"ab"),
        traced(7) + b"x",
        traced(7)[:-1],
        traced(7)[:-5],
        traced(7, None),
        traced(7).replace(b"POST", b"PUT"),
        traced(7).replace(b"X-Later", b"X-Early"),
        traced(7).replace(b"X-Later: 1\r\n", b""),
        traced(7).replace(b"\r\nContent-", b"\r\nX: y\r\nContent-"),
        traced(7)[1:],
        b"\r\n" + traced(7),
    ],
)
def test_bytes_that_only_begin_as_a_known_head(data: bytes) -> None:
    """They are read, kept until there are more, or refused, as without the heads before."""

    def outcome(before: int) -> list[object]:
        with Client() as client:
            client.send(*[traced(number) for number in range(before)])
            known, sent, refused = len(client.seen), len(client.sent()), client.server.bad_requests
            client.send(data)
            state = (
                client.closed(),
                client.phase(),
                len(client.connection._reader),
                client.server.bad_requests - refused,
            )
            return [[plain(request) for request in client.seen[known:]], client.sent()[sent:], state]

    assert outcome(5) == outcome(0)


def test_an_incomplete_head_is_not_taken_for_a_whole_request() -> None:
    """Even where the number of its bytes would do."""
    with Client() as client:
        for number in range(5):
            client.send(head(f"X-A: {number}"))
        known = len(client.seen)
        data = head("X-A: 12").removesuffix(b"\r\n\r\nabc")
        for size in range(len(data) - 9, len(data) + 9):
            other = Client(server=client.server, loop=client.loop)
            other.connection._template = client.connection._template
            other.send(data.replace(b"Length: 3", b"Length: %d" % size))
        assert len(client.seen) == known


def test_a_value_longer_than_others_is_measured_with_its_head() -> None:
    with Client(limits=RequestLimits(head_bytes=3000)) as client:
        client.send(*[traced(number) for number in range(5)])
        assert client.connection._template is not None
        client.send(head("Accept: */*", "traceparent: " + "x" * 3000, "X-Later: 1"))
        assert b" 431 " in client.sent()


@pytest.mark.parametrize(
    "fields",
    [
        [("X-A: 1",), ("X-A: 1", "X-B: 2")],
        [("X-A:1",), ("X-A:2",), ("X-A:3",)],
        [("X-A:b: 1",), ("X-A:b: 2",), ("X-A:b: 3",)],
        [('X-A:{"b": 1}',), ('X-A:{"b": 2}',), ('X-A:{"b": 3}',)],
        [("Cookie:a: 1",), ("Cookie:a: 2",), ("Cookie:a: 3",)],
        [("X-A: 1" + "x" * 5000,), ("X-A: 2" + "x" * 5000,), ("X-A: 3" + "x" * 5000,)],
        [("X-A:  1",), ("X-A:  2",), ("X-A:  3",)],
        [("X-A: 1", "x-a: 1"), ("X-A: 2", "x-a: 2"), ("X-A: 3", "x-a: 3")],
        [("Connection: close", f"X-A: {number}") for number in range(3)],
    ],
)
def test_heads_that_share_no_template(fields: list[tuple[str, ...]]) -> None:
    parser, fresh = HeadParser(RequestLimits()), HeadParser(RequestLimits())
    for lines in fields * 4:
        data = head(*lines)[:-3]
        request = parser.parse(data, "p")
        assert not isinstance(request.template, VaryingTemplate)
        assert plain(request) == fresh.parse_new(data, "p")


@pytest.mark.parametrize(
    "field", ['X-A:{{"b": {}}}', "X-A:b: {}", "Cookie:a: {}", "X-A: {}: b: c", "Content-Length:{}"]
)
def test_colons_in_values_end_no_request(field: str) -> None:
    """Neither the one that has them nor those that follow it."""
    body = None if "Content-Length" in field else b"abc"
    requests = [head(field.format(number if body else 0), body=body) for number in range(5)]
    with Client() as client:
        client.send(*requests, *requests)
        assert [plain(request) for request in client.seen] == [alone(data) for data in requests * 2]
        assert client.server.handler_errors == 0


def test_a_template_holds_no_values() -> None:
    """Long ones would take memory for as long as it is kept (Y-2)."""
    parser = HeadParser(RequestLimits())
    request, *_ = [parser.parse(head(f"X-A: {number}{'x' * 900}")[:-3], "") for number in range(4)][::-1]
    assert request.template is not None
    assert request.template.request.headers["x-a"] == request.template.request.headers["content-length"] == b""
    assert len(request.headers["x-a"]) == 901


def test_a_head_that_arrives_before_its_body_costs_no_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is parsed again when the body has come, which finds the template."""
    seen: list[int] = []
    monkeypatch.setattr(HeadParser, "_find_template", lambda _parser, request: seen.append(request.length))
    with Client() as client:
        for number in range(3):
            data = traced(number)
            client.send(data[:-3], data[-3:])
        assert len(client.seen) == 3
    assert seen == [3] * 3


def test_lines_that_name_the_client_are_made_for_each_request() -> None:
    """`Via` and `X-Forwarded-For` depend on the address of the client (D-1)."""
    rewriter, parser = HeadRewriter("X-Own-", "own-token", via=True), HeadParser(RequestLimits())
    request = parser.parse(traced(9)[:-3], "")
    for number in range(6):
        request = parser.parse(traced(number)[:-3], f"192.0.2.{number}")
        sent = rewriter.rewrite(request, ROUTES.find(b"/x/y", request.headers), b"", 3)
        assert f"X-Forwarded-For: 192.0.2.{number}\r\n".encode() in sent
    assert request.template is not None


def test_lines_in_a_value_are_refused() -> None:
    """Nothing gets past the checks of lines behind the line break (Y-2)."""
    with Client() as client:
        client.send(*[traced(number) for number in range(4)])
        client.send(head("Accept: */*", "traceparent: 1\r\nTransfer-Encoding: gzip", "X-Later: 1"))
        assert b" 400 " in client.sent()


def test_a_head_near_the_limit_is_measured_each_time() -> None:
    """With a longer value, it may be too long."""
    data = head("X-A: 1")
    with Client(limits=RequestLimits(head_bytes=len(data) + 100)) as client:
        client.send(*[head(f"X-A: {number}") for number in range(5)])
        assert len(client.seen) == 5
        client.send(head("X-A: " + "x" * 200))
        assert b" 431 " in client.sent()


def test_heads_that_have_nothing_in_common_are_rarely_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every head has another key, comparing is of no use; a template is found all the same, later."""
    counted: list[int] = []
    compare = http_request._slots

    def counting(lines: list[bytes], before: list[bytes]) -> dict[int, str] | None:
        counted.append(1)
        return compare(lines, before)

    monkeypatch.setattr(http_request, "_slots", counting)
    parser = HeadParser(RequestLimits())
    for number in range(2000):
        parser.parse(head(f"api-key: {number}")[:-3], "")
    assert len(counted) < 50
    found = [parser.parse(traced(number)[:-3], "").template for number in range(300)]
    assert found[-1] is not None


def test_templates_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sends something new each time fills nothing, and connections hold no templates (Y-2)."""
    monkeypatch.setattr(HeadCache, "max_entries", 2)
    with Client() as client:
        parser = client.server.head_parser
        for number in range(100):
            client.send(*[head(f"X-{number}: {value}", line=f"POST /{number}") for value in range(4)])
            assert len(parser._varying) <= 2
            assert len(parser._latest) <= 64
        known = client.connection._template
        assert known is not None
        parser._varying.clear()
        client.seen.clear()
        assert known() is None


names = st.sampled_from(
    ["X-A", "x_a", "X-B", "traceparent", "Content-Type", "Cookie", "X-Own-Note", "Connection", "Via"]
)
values = st.sampled_from(["", "1", "2", " 3", "x-a", "keep-alive", "%d", "a b", "close"]) | st.text(
    st.characters(codec="latin-1"), max_size=4
)


@st.composite
def alike(draw: st.DrawFn) -> list[bytes]:
    """Heads with the same names, most of them in the same order, and few different values."""
    given_names = draw(st.lists(names, min_size=1, max_size=4))
    choices = [draw(st.lists(values, min_size=1, max_size=3)) for _ in given_names]
    body = draw(st.sampled_from([None, b"", b"abc"]))
    heads = []
    for _ in range(draw(st.integers(4, 12))):
        fields = [f"{name}: {draw(st.sampled_from(of))}" for name, of in zip(given_names, choices, strict=True)]
        heads.append(head(*fields, body=body))
    return heads


@pytest.mark.slow
@given(alike())
def test_what_came_before_changes_nothing_but_the_cost(requests: list[bytes]) -> None:
    """Of any heads, what the handler and the upstream get is what they get from a new process (Y-3, D-1)."""
    parser, rewriter = HeadParser(RequestLimits()), HeadRewriter("X-Own-", "own-token")
    template: object = None
    for data in requests:
        end = data.index(b"\r\n\r\n") + 4
        fresh = _parsed(HeadParser(RequestLimits()), data[:end])
        known = template.whole_request(data, "p") if isinstance(template, VaryingTemplate) else None
        if known is not None:
            assert known.body == data[end:]
            known.body = b""
        else:
            known = _parsed(parser, data[:end])
        assert (known is None) is (fresh is None)
        if known is None or fresh is None:
            continue
        template = known.template or template
        assert plain(known) == fresh
        destination = ROUTES.find(b"/x/y", fresh.headers)
        for length in (0, 3, 17):
            sent = rewriter.rewrite(known, destination, b"a=b%20c", length)
            assert sent == HeadRewriter("X-Own-", "own-token").rewrite(fresh, destination, b"a=b%20c", length)


def _parsed(parser: HeadParser, data: bytes) -> Request | None:
    try:
        return parser.parse(data, "p") if b"Content-Length" in data else parser.parse_bodiless(data, "p")
    except RequestError:
        return None
