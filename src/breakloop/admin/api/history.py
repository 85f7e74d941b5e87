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

from breakloop.admin.actions import AdminServices
from breakloop.admin.api.operations import Id, Moment, Most, Name, OperationRequest, Operations
from breakloop.admin.errors import ApiError
from breakloop.model.records import AuditRecord, EventFilter, EventRecord, Incident, IncidentFilter, Point, TotalsRecord

OPERATIONS = Operations()
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
    found: list[EventRecord] = await services.past(lambda history: history.events(wanted))
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


class IncidentsResponse(msgspec.Struct):
    """A page of incidents; `next` is the `cursor` of the next page, null on the last one."""

    incidents: list[Incident]
    next: str | None


class EventsResponse(msgspec.Struct):
    """A page of events; `next` is the `before` of the next page, null on the last one."""

    events: list[EventRecord]
    next: int | None


class AuditResponse(msgspec.Struct):
    """A page of the audit log; `next` is the `before` of the next page, null on the last one."""

    audit: list[AuditRecord]
    next: int | None


class CurveResponse(msgspec.Struct):
    """Sums by interval."""

    points: list[Point]


class OverviewResponse(msgspec.Struct):
    """Sums over a span of time."""

    since: float
    totals: TotalsRecord


class ShadowCount(msgspec.Struct):
    """Requests that a policy in shadow mode would have denied."""

    policy: str
    rule: str
    reason: str
    count: int


class ShadowReport(msgspec.Struct):
    """Requests that policies in shadow mode would have denied."""

    shadow: list[ShadowCount]


@OPERATIONS("GET", "/incidents", "listIncidents", query=IncidentsQuery)
async def incidents(request: OperationRequest) -> IncidentsResponse:
    """List incidents, newest first."""
    given = msgspec.structs.asdict(request.query)
    before = _cursor(given.pop("cursor"))
    wanted = IncidentFilter(**given, before=before)
    found: list[Incident] = await request.past(lambda history: history.incidents(wanted))
    return IncidentsResponse(found, repr(found[-1].last_at) if len(found) == wanted.most else None)


@OPERATIONS("GET", "/incidents/{id}", "getIncident")
async def incident(request: OperationRequest) -> Incident:
    """Show one incident with its steps."""
    found: Incident | None = await request.past(lambda history: history.incident(request.path["id"]))
    if found is None:
        raise ApiError(404, "there is no such incident", code="unknown_incident")
    return found


@OPERATIONS("GET", "/events", "listEvents", query=EventsQuery)
async def events(request: OperationRequest) -> EventsResponse | StreamingResponse:
    """List events, or follow them."""
    wanted = _wanted(request.query)
    if request.query.follow:
        return follow(request.services, wanted, request.http)
    found = await _events(request.services, wanted)
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


@OPERATIONS("GET", "/audit", "listAudit", query=PageQuery)
async def audit(request: OperationRequest) -> AuditResponse:
    """List who did what, newest first."""
    query = request.query
    found = await request.past(lambda history: history.audit(query.before, query.most))
    return AuditResponse(found, found[-1].id if len(found) == query.most else None)


@OPERATIONS("GET", "/totals", "getTotals", query=SinceQuery)
async def totals(request: OperationRequest) -> OverviewResponse:
    """Sums over a span of time."""
    since = _since(request)
    return OverviewResponse(since, await request.past(lambda history: history.totals(since, request.query.project)))


@OPERATIONS("GET", "/curve", "getCurve", query=SpanQuery)
async def curve(request: OperationRequest) -> CurveResponse:
    """Sums by interval."""
    query, since = request.query, _since(request)
    until = request.services.clock.now() if query.until is None else query.until
    if not since < until:
        raise ApiError(400, "must be later than since", field="until")
    if (until - since) / query.step_s > _POINTS_MAX:
        many = f"gives more than {_POINTS_MAX} points: make it longer, or the span shorter"
        raise ApiError(400, many, field="step_s")
    span = since, until, query.step_s
    return CurveResponse(await request.past(lambda history: history.curve(*span, query.project, query.agent)))


@OPERATIONS("GET", "/shadow", "getShadow", query=PolicyQuery)
async def shadow(request: OperationRequest) -> ShadowReport:
    """What policies in shadow mode would have denied."""
    since = _since(request)
    found = await request.past(lambda history: history.shadow(since, request.query.policy))
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
