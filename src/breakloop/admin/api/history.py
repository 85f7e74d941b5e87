"""Operations on the past: incidents, events, the audit log, sums and curves.

Events can also be followed as `text/event-stream`. The stream reads the history behind the last event that was sent,
so that each event arrives once, with its id, and a client that was disconnected can resume (`Last-Event-ID`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Annotated, Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import StreamingResponse

from breakloop.admin.api.operations import Id, Moment, Most, Name, Operation, OperationRequest
from breakloop.admin.api.responses import (
    AuditResponse,
    CurveResponse,
    EventsResponse,
    IncidentsResponse,
    OverviewResponse,
    ShadowCount,
    ShadowReport,
)
from breakloop.admin.errors import ApiError
from breakloop.admin.services import AdminServices
from breakloop.history.values import EventFilter, IncidentFilter
from breakloop.model.records import EventRecord, Incident

EVERY_S: Final = 0.5  # the history is written once a second
QUIET_S: Final = 15.0  # of silence, before a comment keeps the connection open
MOST: Final = 500


def follow(services: AdminServices, wanted: EventFilter, request: Request) -> StreamingResponse:
    """Return an endless response: the events behind `after`, or the new ones."""
    last = request.headers.get("last-event-id", "")
    if last.isdecimal() and len(last) < 17:
        wanted = replace(wanted, after=int(last))
    return StreamingResponse(
        stream(services, wanted), headers={"X-Accel-Buffering": "no"}, media_type="text/event-stream"
    )


async def stream(
    services: AdminServices, wanted: EventFilter, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> AsyncIterator[bytes]:
    after = wanted.after or await _newest(services, wanted)
    quiet_s = 0.0
    yield b": breakloop events\n\n"
    while True:
        found = await _events(services, replace(wanted, after=after, before=0, most=MOST))
        for one in sorted(found, key=lambda event: event.id):  # behind 0 they would come newest first
            after = max(after, one.id)
            yield _lines(one)
        if len(found) == MOST:
            continue
        quiet_s = 0.0 if found else quiet_s + EVERY_S
        if quiet_s >= QUIET_S:
            quiet_s = 0.0
            yield b": still here\n\n"
        await sleep(EVERY_S)


async def _newest(services: AdminServices, wanted: EventFilter) -> int:
    """Return the id behind which all events are new; 0 would return all events."""
    newest = replace(wanted, names=(), project="", agent="", incident="", since=0.0, most=1, before=0, after=0)
    found = await _events(services, newest)
    return found[0].id if found else 0


async def _events(services: AdminServices, wanted: EventFilter) -> list[EventRecord]:
    found: list[EventRecord] = await services.in_thread(lambda: services.history.events(wanted))
    return found


def _lines(one: EventRecord) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (one.id, one.name.encode(), msgspec.json.encode(one))


_POINTS_MAX = 2_000
_DAY_S = 86_400.0


class IncidentsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which incidents."""

    state: Annotated[
        str, msgspec.Meta(pattern="^(open|stopped|cleared)?$", description="open, stopped or cleared.")
    ] = ""
    project: Name = ""
    agent: Name = ""
    kind: Name = ""
    policy: Name = ""
    shadow: bool | None = None
    cursor: Annotated[str, msgspec.Meta(max_length=40, description="`next` of the previous page.")] = ""
    most: Most = 50


class EventsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which events: the newest first; with `after` those behind this id, the oldest first."""

    name: Annotated[list[Name], msgspec.Meta(max_length=50, description="Names of events; may be repeated.")] = []
    project: Name = ""
    agent: Name = ""
    incident: Name = ""
    since: Moment | None = None
    until: Moment | None = None
    before: Id = 0
    after: Id = 0
    most: Most = 50
    follow: Annotated[bool, msgspec.Meta(description="Stream events as they happen, as text/event-stream.")] = False


class PageQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which page."""

    before: Id = 0
    most: Most = 100


class SinceQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Since when; the default is one day."""

    since: Moment | None = None
    project: Name = ""


class SpanQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """From when until when, in intervals of how many seconds."""

    since: Moment | None = None
    until: Moment | None = None
    step_s: Annotated[int, msgspec.Meta(ge=1, le=86_400)] = 600
    project: Name = ""
    agent: Name = ""


class PolicyQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Since when, and which policy."""

    since: Moment | None = None
    policy: Name = ""


async def incidents(request: OperationRequest) -> IncidentsResponse:
    query, history = request.query, request.services.history
    wanted = IncidentFilter(
        state=query.state,
        project=query.project,
        agent=query.agent,
        kind=query.kind,
        shadow=query.shadow,
        policy=query.policy,
        before=_cursor(query.cursor),
        most=query.most,
    )
    found: list[Incident] = await request.services.in_thread(lambda: history.incidents(wanted))
    return IncidentsResponse(found, repr(found[-1].last_at) if len(found) == query.most else None)


async def incident(request: OperationRequest) -> Incident:
    wanted, history = request.path["id"], request.services.history
    found: Incident | None = await request.services.in_thread(lambda: history.incident(wanted))
    if found is None:
        raise ApiError(404, "there is no such incident", code="unknown_incident")
    return found


async def events(request: OperationRequest) -> EventsResponse | StreamingResponse:
    """Return a page of events, or a stream."""
    wanted = _wanted(request.query)
    if request.query.follow:
        return follow(request.services, wanted, request.http)
    found = await request.services.in_thread(lambda: request.services.history.events(wanted))
    return EventsResponse(found, found[-1].id if len(found) == wanted.most and not wanted.after else None)


def _wanted(query: Any) -> EventFilter:
    return EventFilter(
        names=tuple(query.name),
        project=query.project,
        agent=query.agent,
        incident=query.incident,
        since=query.since or 0.0,
        until=math.inf if query.until is None else query.until,
        before=query.before,
        after=query.after,
        most=query.most,
    )


async def audit(request: OperationRequest) -> AuditResponse:
    query, history = request.query, request.services.history
    found = await request.services.in_thread(lambda: history.audit(query.before, query.most))
    return AuditResponse(found, found[-1].id if len(found) == query.most else None)


async def totals(request: OperationRequest) -> OverviewResponse:
    since, history = _since(request), request.services.history
    return OverviewResponse(
        since, await request.services.in_thread(lambda: history.totals(since, request.query.project))
    )


async def curve(request: OperationRequest) -> CurveResponse:
    query, since, history = request.query, _since(request), request.services.history
    until = request.services.clock.now() if query.until is None else query.until
    if not since < until:
        raise ApiError(400, "must be later than since", field="until")
    if (until - since) / query.step_s > _POINTS_MAX:
        raise ApiError(
            400, f"gives more than {_POINTS_MAX} points: make it longer, or the span shorter", field="step_s"
        )
    found = await request.services.in_thread(
        lambda: history.curve(since, until, query.step_s, query.project, query.agent)
    )
    return CurveResponse(found)


async def shadow(request: OperationRequest) -> ShadowReport:
    since, history = _since(request), request.services.history
    found = await request.services.in_thread(lambda: history.shadow(since, request.query.policy))
    return ShadowReport([ShadowCount(*row) for row in found])


def _since(request: OperationRequest) -> float:
    given: float | None = request.query.since
    return request.services.clock.now() - _DAY_S if given is None else given


def _cursor(given: str) -> float:
    if not given:
        return math.inf
    try:
        found = float(given)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise ApiError(400, "is not the `next` of a page", field="cursor")
    return found


OPERATIONS = (
    Operation(
        "GET",
        "/incidents",
        "listIncidents",
        "List incidents, newest first",
        incidents,
        IncidentsResponse,
        IncidentsQuery,
    ),
    Operation("GET", "/incidents/{id}", "getIncident", "Show one incident with its steps", incident, Incident),
    Operation("GET", "/events", "listEvents", "List events, or follow them", events, EventsResponse, EventsQuery),
    Operation("GET", "/audit", "listAudit", "List who did what, newest first", audit, AuditResponse, PageQuery),
    Operation("GET", "/totals", "getTotals", "Sums over a span of time", totals, OverviewResponse, SinceQuery),
    Operation("GET", "/curve", "getCurve", "Sums by interval", curve, CurveResponse, SpanQuery),
    Operation(
        "GET",
        "/shadow",
        "getShadow",
        "What policies in shadow mode would have denied",
        shadow,
        ShadowReport,
        PolicyQuery,
    ),
)
