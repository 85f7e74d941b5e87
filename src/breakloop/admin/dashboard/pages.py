"""The pages of the dashboard. A page is one class here and one row in `dashboard.PAGES`.

A class may serve a list, the page of one item, and parts of pages that are loaded again as events arrive.
"""

from __future__ import annotations

import asyncio
import json
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from typing import Any, ClassVar, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from breakloop.admin.auth import AdminIdentity, SessionCookies
from breakloop.admin.dashboard import timeline, views, words
from breakloop.admin.dashboard.actions import OVERRIDES
from breakloop.admin.dashboard.render import THEME_COOKIE, THEMES, PageRenderer, own_path, read_form
from breakloop.admin.errors import ApiError
from breakloop.detect.steps.kinds import BY_NAME
from breakloop.errors import StateError
from breakloop.history.store import History
from breakloop.history.values import EventFilter, IncidentFilter
from breakloop.model.events import SHADOW_WOULD_REJECT
from breakloop.model.records import OPEN, STOPPED, is_blocked


class NavEntry(NamedTuple):
    """An entry of the navigation."""

    path: str
    name: str
    icon: str
    key: str  # the keyboard shortcut is `g` and this key


class Page(ABC):
    """One or several related pages."""

    nav: ClassVar[tuple[NavEntry, ...]] = ()

    def __init__(self, renderer: PageRenderer) -> None:
        self._renderer = renderer

    @abstractmethod
    def routes(self) -> list[Route]:
        """Return the routes of its pages and parts."""


INCIDENTS: Final = 6
HOLDS: Final = 4


class OverviewPage(Page):
    """Savings, current activity, and incidents that need attention."""

    nav: ClassVar[tuple[NavEntry, ...]] = (NavEntry("/", "Overview", "overview", "o"),)

    def routes(self) -> list[Route]:
        return [
            self._renderer.get("/", self.page),
            self._renderer.get("/parts/overview", self.part),
            self._renderer.get("/parts/curve", self.curve),
        ]

    async def page(self, request: Request) -> Response:
        values = await self._sums(request) | await self._points(request)
        return await self._renderer.show(request, "overview.html", **values)

    async def part(self, request: Request) -> Response:
        return await self._renderer.show(request, "parts/overview.html", **await self._sums(request))

    async def curve(self, request: Request) -> Response:
        return await self._renderer.show(request, "parts/curve.html", **await self._points(request))

    async def _sums(self, request: Request) -> dict[str, Any]:
        now, span = self._renderer.services.clock.now(), views.span(request.query_params.get("span", ""))

        def ask(history: History) -> dict[str, Any]:
            found = {one.id: one for one in history.incidents(IncidentFilter(most=INCIDENTS))}
            for state in (OPEN, STOPPED):
                found |= {one.id: one for one in history.incidents(IncidentFilter(state=state, most=INCIDENTS))}
            return {
                "totals": history.totals(span.since(now)),
                "minute": history.totals(now - 60),
                "incidents": views.first_open(found.values())[:INCIDENTS],
                "dearest": views.dearest(history.agents()),
            }

        holds = self._renderer.services.operator.holds()
        found: dict[str, Any] = await self._renderer.past(ask)
        return found | {"span": span, "spans": views.SPANS, "held": len(holds), "holds": holds[-HOLDS:][::-1]}

    async def _points(self, request: Request) -> dict[str, Any]:
        span = views.span(request.query_params.get("span", ""))
        return await points(self._renderer, span)


async def points(renderer: PageRenderer, span: views.CurveSpan, project: str = "", agent: str = "") -> dict[str, Any]:
    """Return the variables of the chart template."""
    now = renderer.services.clock.now()
    found = await renderer.past(lambda h: h.curve(span.since(now), now, span.step_s, project, agent))
    return {
        "span": span,
        "spans": views.SPANS,
        "chart": views.chart(found),
        "chart_rows": views.curve_table(found),
        "chart_any": views.anything(found),
        "chart_query": {"span": span.name} | ({"project": project, "name": agent} if agent else {}),
    }


LISTED_MAX: Final = 200
FIND_MAX: Final = 200


class AgentsPages(Page):
    """The list of agents, and the page of one agent."""

    nav: ClassVar[tuple[NavEntry, ...]] = (NavEntry("/agents", "Agents", "agents", "a"),)

    def routes(self) -> list[Route]:
        return [
            self._renderer.get("/agents", self.list),
            self._renderer.get("/agent", self.one),
            self._renderer.get("/parts/agent-curve", self.curve),
        ]

    async def list(self, request: Request) -> Response:
        asked, services = request.query_params, self._renderer.services
        find, state = asked.get("find", "")[:FIND_MAX].strip(), asked.get("state", "")
        state = state if state in views.AGENT_STATES else ""
        seen = await self._renderer.past(lambda h: h.agents(find=find, most=LISTED_MAX))
        holds = services.operator.holds()
        known = {(one.project, one.agent) for one in seen}
        others = [one for one in holds if not one.agent or one.run or (one.project, one.agent) not in known]
        values: dict[str, Any] = {
            "find": find,
            "state": state,
            "states": views.AGENT_STATES,
            "rows": views.rows(seen, holds, services.operator.stops, services.clock.now(), state),
            "others": [] if find or state else others,
            "full": len(seen) >= LISTED_MAX,
        }
        return await self._renderer.show(request, "agents.html", **values)

    async def one(self, request: Request) -> Response:
        project, name = _asked(request, self._renderer.services.project)
        services = self._renderer.services

        def ask(history: History) -> dict[str, Any]:
            return {
                "agent": history.agent(project, name),
                "incidents": history.incidents(IncidentFilter(project=project, agent=name, most=20)),
                "events": history.events(EventFilter(project=project, agent=name, most=15)),
            }

        found = await self._renderer.past(ask)
        agent = found["agent"] or views.unseen(project, name)
        held = views.holds_of(agent, services.operator.holds())
        if found["agent"] is None and not held:
            text = f"No agent of the name {name[:100]} has been seen in project {project[:100]}."
            raise ApiError(404, text)
        stops, now = services.operator.stops(name), services.clock.now()
        span = views.span(request.query_params.get("span", ""))
        values = found | {
            "agent": agent,
            "holds": held,
            "stops": stops,
            "blocked": any(is_blocked(one, now) for one in found["incidents"]),
            "state": views.state_of(agent, held, stops, now),
            "fields": views.fields(agent.settings),
        }
        curve = await points(self._renderer, span, project, name)
        return await self._renderer.show(request, "agent.html", **values, **curve)

    async def curve(self, request: Request) -> Response:
        project, name = _asked(request, self._renderer.services.project)
        span = views.span(request.query_params.get("span", ""))
        return await self._renderer.show(
            request, "parts/curve.html", **await points(self._renderer, span, project, name)
        )


def _asked(request: Request, project: str) -> tuple[str, str]:
    return request.query_params.get("project", project), request.query_params.get("name", "")


INCIDENTS_LISTED: Final = 50
KINDS: Final = ("exact", "tail", "simhash", "stream", *BY_NAME)


class IncidentsPages(Page):
    """The list of incidents, and the page of one incident."""

    nav: ClassVar[tuple[NavEntry, ...]] = (NavEntry("/incidents", "Incidents", "loop", "i"),)

    def routes(self) -> list[Route]:
        return [
            self._renderer.get("/incidents", self.list),
            self._renderer.get("/parts/incidents", self.part),
            self._renderer.get("/incidents/{incident}", self.one),
        ]

    async def list(self, request: Request) -> Response:
        return await self._renderer.show(request, "incidents.html", **await self._found(request))

    async def part(self, request: Request) -> Response:
        return await self._renderer.show(request, "parts/incidents.html", **await self._found(request))

    async def _found(self, request: Request) -> dict[str, Any]:
        asked = request.query_params
        state, shadow = asked.get("state", ""), {"yes": True, "no": False}.get(asked.get("shadow", ""))
        agent, kind = asked.get("agent", "").strip()[:200], asked.get("kind", "")[:40]
        before = _number(asked.get("before", ""))
        state = state if state in views.INCIDENT_STATES else ""
        wanted = IncidentFilter(
            state=state, agent=agent, kind=kind, shadow=shadow, before=before, most=INCIDENTS_LISTED
        )
        found = await self._renderer.past(lambda h: h.incidents(wanted))
        chosen = {"state": state, "agent": agent, "kind": kind, "shadow": asked.get("shadow", "")}
        more = {**chosen, "before": repr(found[-1].last_at)} if len(found) == INCIDENTS_LISTED else None
        shown = found if state or math.isfinite(before) else views.first_open(found)
        values = {"chosen": chosen, "states": views.INCIDENT_STATES, "kinds": KINDS, "more": more, "incidents": shown}
        return values | {"paged": math.isfinite(before), "filtered": any(chosen.values())}

    async def one(self, request: Request) -> Response:
        name = request.path_params["incident"]

        def ask(history: History) -> dict[str, Any]:
            incident = history.incident(name)
            related = history.events(EventFilter(incident=name, most=50)) if incident is not None else []
            return {"incident": incident, "events": related}

        found = await self._renderer.past(ask)
        incident = found["incident"]
        if incident is None:
            raise ApiError(404, "There is no such incident. It may be older than the history.")
        values = found | {
            "picture": timeline.picture(incident.steps),
            "small": timeline.picture(incident.steps, columns=10),
            "score": views.score(incident.score),
            "hold": views.held(incident, self._renderer.services.operator.holds()),
            "blocked": is_blocked(incident, self._renderer.services.clock.now()),
            "means": views.state_means(incident),
            "lasted": words.lasted(incident.last_at - incident.first_at),
        }
        return await self._renderer.show(request, "incident.html", **values)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return math.inf
    return math.inf if math.isnan(value) else value


SHADOW_S: Final = 7 * 86_400
SHADOW_EVENTS: Final = 200


class PoliciesPage(Page):
    """The active policies, and what those in shadow mode would have denied."""

    nav: ClassVar[tuple[NavEntry, ...]] = (NavEntry("/policies", "Policies", "policy", "p"),)

    def routes(self) -> list[Route]:
        return [self._renderer.get("/policies", self.page)]

    async def page(self, request: Request) -> Response:
        services = self._renderer.services
        since = services.clock.now() - SHADOW_S

        def ask(history: History) -> tuple[Any, Any]:
            wanted = EventFilter(names=(SHADOW_WOULD_REJECT,), since=since, most=SHADOW_EVENTS)
            return history.shadow(since), history.events(wanted)

        counts, events = await self._renderer.past(ask)
        values: dict[str, Any] = {
            "bundle": dict(services.bundles.current()),
            "earlier": services.bundles.earlier(),
            "policies": views.policies(services.bundles.policies(), counts, events),
            "overrides": services.operator.overrides(),
        }
        return await self._renderer.show(request, "policies.html", **values)


PREFIX_MAX: Final = 300


class LimitsPage(Page):
    """Breakers, kill switches, overrides, and counters by key."""

    nav: ClassVar[tuple[NavEntry, ...]] = (NavEntry("/limits", "Limits", "limits", "l"),)

    def routes(self) -> list[Route]:
        return [self._renderer.get("/limits", self.page)]

    async def page(self, request: Request) -> Response:
        """Show the limits; if the store fails, its error and the rest of the page."""
        services, prefix = self._renderer.services, request.query_params.get("prefix", "")[:PREFIX_MAX].strip()
        trouble, breakers, found = "", [], []
        try:
            breakers = await services.breakers()
            found = await services.counters(prefix) if prefix else []
        except StateError as error:
            trouble = str(error)
        columns, rows = views.counters_table(found)
        on = {one.name: one for one in services.operator.overrides()}
        values: dict[str, Any] = {
            "prefix": prefix,
            "trouble": trouble,
            "breakers": breakers,
            "switches": services.operator.switches(),
            "overrides": [(name, says, on.get(name)) for name, says in OVERRIDES.items()],
            "columns": columns,
            "rows": rows,
        }
        return await self._renderer.show(request, "limits.html", **values)


EVENTS_LISTED: Final = 50


class EventsPage(Page):
    """Events, with filters, page by page, and live."""

    nav: ClassVar[tuple[NavEntry, ...]] = (NavEntry("/events", "Events", "events", "e"),)

    def routes(self) -> list[Route]:
        return [self._renderer.get("/events", self.page), self._renderer.get("/parts/events", self.part)]

    async def page(self, request: Request) -> Response:
        return await self._renderer.show(request, "events.html", **await self._found(request))

    async def part(self, request: Request) -> Response:
        return await self._renderer.show(request, "parts/events.html", **await self._found(request))

    async def _found(self, request: Request) -> dict[str, Any]:
        asked = request.query_params
        chosen = {name: asked.get(name, "").strip()[:200] for name in ("name", "agent", "incident")}
        given = asked.get("before", "")
        before = int(given) if given.isdecimal() and len(given) < 19 else 0
        names = (chosen["name"],) if chosen["name"] else ()
        wanted = EventFilter(
            names=names, agent=chosen["agent"], incident=chosen["incident"], before=before, most=EVENTS_LISTED
        )
        found = await self._renderer.past(lambda h: h.events(wanted))
        more = {**chosen, "before": str(found[-1].id)} if len(found) == EVENTS_LISTED else None
        return {
            "events": found,
            "chosen": chosen,
            "names": words.EVENT_NAMES,
            "more": more,
            "paged": bool(before),
            "filtered": any(chosen.values()),
        }


class AlertsPage(Page):
    """Webhooks, their deliveries, and alert rules."""

    nav: ClassVar[tuple[NavEntry, ...]] = (NavEntry("/alerts", "Alerts", "alerts", "t"),)

    def routes(self) -> list[Route]:
        return [self._renderer.get("/alerts", self.page)]

    async def page(self, request: Request) -> Response:
        alerts = self._renderer.services.alerts
        webhooks, deliveries, rules = await self._renderer.services.in_thread(
            lambda: (alerts.webhooks(), alerts.deliveries(50), alerts.rules())
        )
        values: dict[str, Any] = {
            "webhooks": [views.filled(one, views.WEBHOOK) for one in webhooks],
            "deliveries": [views.filled(one, views.DELIVERY) for one in deliveries],
            "rules": [views.filled(one, views.RULE) for one in rules],
            "endings": views.endings(deliveries),
        }
        return await self._renderer.show(request, "alerts.html", **values)


RECORDS_LISTED: Final = 100


class RecordsPages(Page):
    """The audit log, and the settings."""

    nav: ClassVar[tuple[NavEntry, ...]] = (
        NavEntry("/audit", "Audit log", "audit", "u"),
        NavEntry("/settings", "Settings", "settings", "s"),
    )

    def routes(self) -> list[Route]:
        return [self._renderer.get("/audit", self.audit), self._renderer.get("/settings", self.settings)]

    async def audit(self, request: Request) -> Response:
        given = request.query_params.get("before", "")
        before = int(given) if given.isdecimal() and len(given) < 19 else 0
        found = await self._renderer.past(lambda h: h.audit(before, RECORDS_LISTED))
        more = {"before": str(found[-1].id)} if len(found) == RECORDS_LISTED else None
        return await self._renderer.show(request, "audit.html", entries=found, more=more, paged=bool(before))

    async def settings(self, request: Request) -> Response:
        """Show each setting and where it comes from. Secrets are already masked."""
        return await self._renderer.show(request, "settings.html", settings=list(self._renderer.services.settings()))


STILL_HERE_S: Final = 15.0  # a comment this often keeps the stream open, and detects that the client is gone
LISTENERS_MAX: Final = 100
_STILL_HERE: Final = b": still here\n\n"


class LiveUpdates(Page):
    """Live updates: server-sent events that make pages reload their parts.

    A message contains only the name of an event; what is shown comes from the pages' own parts.
    """

    def __init__(self, renderer: PageRenderer, still_here_s: float = STILL_HERE_S) -> None:
        super().__init__(renderer)
        self._still_here_s = still_here_s
        self._listeners = 0

    def routes(self) -> list[Route]:
        return [self._renderer.get("/live", self.stream)]

    async def stream(self, _request: Request) -> Response:
        if self._listeners >= LISTENERS_MAX:
            return Response("too many listeners", 503, headers={"retry-after": "30"})
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self.lines(), headers=headers, media_type="text/event-stream")

    async def lines(self) -> AsyncIterator[bytes]:
        self._listeners += 1
        items = aiter(self._renderer.services.live())
        waiting: asyncio.Task[Mapping[str, Any]] | None = None
        try:
            yield b"retry: 3000\n\n"
            while True:
                waiting = waiting or asyncio.create_task(_next(items))
                done, _ = await asyncio.wait({waiting}, timeout=self._still_here_s)
                if not done:
                    yield _STILL_HERE
                    continue
                item, waiting = waiting.result(), None
                yield message(item)
        except _OverError:
            return
        finally:
            self._listeners -= 1
            if waiting is not None:
                waiting.cancel()


class _OverError(Exception):
    """There are no further events."""


async def _next(items: AsyncIterator[Mapping[str, Any]]) -> Mapping[str, Any]:
    """`StopAsyncIteration` cannot leave a task."""
    try:
        return await anext(items)
    except StopAsyncIteration:
        raise _OverError from None


def message(item: Mapping[str, Any]) -> bytes:
    """Return a message: an event happened or was stored, or only sums changed."""
    event = item.get("event", item)
    name = event.get("name") if isinstance(event, Mapping) else None
    kind = "happened" if isinstance(name, str) or item.get("kept") else "sums"
    data = json.dumps({"name": name[:80]} if isinstance(name, str) else {})
    return f"event: {kind}\ndata: {data}\n\n".encode()


_YEAR_S: Final = 365 * 86_400
_WRONG: Final = "This token is not valid."


class LoginPage(Page):
    """The login form, logout, and the choice of a theme."""

    def __init__(self, renderer: PageRenderer, sessions: SessionCookies) -> None:
        super().__init__(renderer)
        self._sessions = sessions

    def routes(self) -> list[Route]:
        return [
            Route("/login", self.page, methods=["GET"]),
            Route("/login", self.enter, methods=["POST"]),
            self._renderer.post("/logout", self.leave, anybody=True),
            self._renderer.post("/theme", self.theme, anybody=True),
        ]

    async def page(self, request: Request) -> Response:
        return self._asked(request, 200, request.query_params.get("next", ""), "")

    async def enter(self, request: Request) -> Response:
        try:
            form = await read_form(request)
        except ApiError as fault:
            return self._asked(request, fault.status, "", str(fault))
        going = own_path(form.get("next", ""))
        response = RedirectResponse(going, 303)
        if not self._sessions.sign_in(request, form.get("token", "").strip(), response):
            return self._asked(request, 401, going, _WRONG)
        return response

    async def leave(self, request: Request, _who: AdminIdentity, _form: dict[str, str]) -> Response:
        response = RedirectResponse("/login", 303)
        self._sessions.sign_out(request, response)
        return response

    async def theme(self, _request: Request, _who: AdminIdentity, form: dict[str, str]) -> Response:
        response = RedirectResponse(own_path(form.get("back", "")), 303)
        if form.get("theme") in THEMES:
            response.set_cookie(THEME_COOKIE, form["theme"], max_age=_YEAR_S, path="/", samesite="strict")
        return response

    def _asked(self, request: Request, status: int, going: str, wrong: str) -> Response:
        return self._renderer.bare(request, "login.html", status, after=own_path(going), wrong=wrong)
