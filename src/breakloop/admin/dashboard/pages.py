"""The overview: what was saved, what goes on, what needs a look. Its parts are asked for again as things happen.

Agents: the list with a search, and the page of one with its incidents, curve, settings and buttons.

Incidents: the list with filters, and the page of one with the picture of its steps, evidence, money and buttons.

Policies: what is in force, in words, and what those in shadow mode would have blocked.

Limits: breakers, kill switches and overrides, and a look at what is counted under a key.

Events: what happened, with filters, page by page, and live.

Alerts: webhooks, what became of their deliveries, and the rules of the settings.

What there is to read, and nothing to press: the audit log, and the settings in force.

Live updates: a stream of server-sent events that tells pages to look again. It says that something happened and
what it is called, nothing more; what is shown comes from the pages' own parts, so that it is rendered in one way.

Signing in and out, and the choice of light or dark. Tokens and sessions are the door's business, which paths are
open to everybody the guard's.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from breakloop.admin.auth import AdminIdentity, SessionCookies
from breakloop.admin.dashboard import timeline, views, words
from breakloop.admin.dashboard.actions import OVERRIDES
from breakloop.admin.dashboard.render import THEME_COOKIE, THEMES, PageRenderer, own_path, read_form
from breakloop.admin.errors import ApiError
from breakloop.detect.steps.kinds import ABOUT
from breakloop.errors import StateError
from breakloop.history.store import History
from breakloop.history.values import EventFilter, IncidentFilter
from breakloop.model.events import SHADOW_WOULD_REJECT
from breakloop.model.records import OPEN, STOPPED, is_blocked

INCIDENTS: Final = 6
HELD: Final = 4


class OverviewPage:
    """The first page."""

    def __init__(self, pages: PageRenderer) -> None:
        self._pages = pages

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            self._pages.get("/", self.page),
            self._pages.get("/parts/overview", self.part),
            self._pages.get("/parts/curve", self.curve),
        ]

    async def page(self, request: Request) -> Response:
        """Show everything."""
        values = await self._sums(request) | await self._points(request)
        return await self._pages.show(request, "overview.html", **values)

    async def part(self, request: Request) -> Response:
        """Show the numbers, incidents and agents again."""
        return await self._pages.show(request, "parts/overview.html", **await self._sums(request))

    async def curve(self, request: Request) -> Response:
        """Show the numbers of the curve again."""
        return await self._pages.show(request, "parts/curve.html", **await self._points(request))

    async def _sums(self, request: Request) -> dict[str, Any]:
        now, span = self._pages.services.clock.now(), views.span(request.query_params.get("span", ""))

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

        holds = self._pages.services.operator.holds()
        found: dict[str, Any] = await self._pages.past(ask)
        return found | {"span": span, "spans": views.SPANS, "held": len(holds), "holds": holds[-HELD:][::-1]}

    async def _points(self, request: Request) -> dict[str, Any]:
        span = views.span(request.query_params.get("span", ""))
        return await points(self._pages, span)


async def points(pages: PageRenderer, span: views.CurveSpan, project: str = "", agent: str = "") -> dict[str, Any]:
    """Return what the template of a curve needs."""
    now = pages.services.clock.now()
    found = await pages.past(lambda h: h.curve(span.since(now), now, span.step_s, project, agent))
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


class AgentsPages:
    """The pages of agents."""

    def __init__(self, pages: PageRenderer) -> None:
        self._pages = pages

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            self._pages.get("/agents", self.list),
            self._pages.get("/agent", self.one),
            self._pages.get("/parts/agent-curve", self.curve),
        ]

    async def list(self, request: Request) -> Response:
        """Show the agents."""
        asked, services = request.query_params, self._pages.services
        find, state = asked.get("find", "")[:FIND_MAX].strip(), asked.get("state", "")
        state = state if state in views.AGENT_STATES else ""
        seen = await self._pages.past(lambda h: h.agents(find=find, most=LISTED_MAX))
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
        return await self._pages.show(request, "agents.html", **values)

    async def one(self, request: Request) -> Response:
        """Show one agent."""
        project, name = _asked(request, self._pages.services.project)
        services = self._pages.services

        def ask(history: History) -> dict[str, Any]:
            return {
                "agent": history.agent(project, name),
                "incidents": history.incidents(IncidentFilter(project=project, agent=name, most=20)),
                "events": history.events(EventFilter(project=project, agent=name, most=15)),
            }

        found = await self._pages.past(ask)
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
        curve = await points(self._pages, span, project, name)
        return await self._pages.show(request, "agent.html", **values, **curve)

    async def curve(self, request: Request) -> Response:
        """Show the numbers of an agent's curve again."""
        project, name = _asked(request, self._pages.services.project)
        span = views.span(request.query_params.get("span", ""))
        return await self._pages.show(request, "parts/curve.html", **await points(self._pages, span, project, name))


def _asked(request: Request, project: str) -> tuple[str, str]:
    return request.query_params.get("project", project), request.query_params.get("name", "")


INCIDENTS_LISTED: Final = 50
KINDS: Final = ("exact", "tail", "simhash", "stream", *ABOUT)


class IncidentsPages:
    """The pages of incidents."""

    def __init__(self, pages: PageRenderer) -> None:
        self._pages = pages

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            self._pages.get("/incidents", self.list),
            self._pages.get("/parts/incidents", self.part),
            self._pages.get("/incidents/{incident}", self.one),
        ]

    async def list(self, request: Request) -> Response:
        """Show the incidents that are asked for."""
        return await self._pages.show(request, "incidents.html", **await self._found(request))

    async def part(self, request: Request) -> Response:
        """Show the list again."""
        return await self._pages.show(request, "parts/incidents.html", **await self._found(request))

    async def _found(self, request: Request) -> dict[str, Any]:
        asked = request.query_params
        state, shadow = asked.get("state", ""), {"yes": True, "no": False}.get(asked.get("shadow", ""))
        agent, kind = asked.get("agent", "").strip()[:200], asked.get("kind", "")[:40]
        before = _number(asked.get("before", ""))
        state = state if state in views.INCIDENT_STATES else ""
        wanted = IncidentFilter(
            state=state, agent=agent, kind=kind, shadow=shadow, before=before, most=INCIDENTS_LISTED
        )
        found = await self._pages.past(lambda h: h.incidents(wanted))
        chosen = {"state": state, "agent": agent, "kind": kind, "shadow": asked.get("shadow", "")}
        more = {**chosen, "before": repr(found[-1].last_at)} if len(found) == INCIDENTS_LISTED else None
        shown = found if state or math.isfinite(before) else views.first_open(found)
        values = {"chosen": chosen, "states": views.INCIDENT_STATES, "kinds": KINDS, "more": more, "incidents": shown}
        return values | {"paged": math.isfinite(before), "filtered": any(chosen.values())}

    async def one(self, request: Request) -> Response:
        """Show one incident."""
        name = request.path_params["incident"]

        def ask(history: History) -> dict[str, Any]:
            incident = history.incident(name)
            related = history.events(EventFilter(incident=name, most=50)) if incident is not None else []
            return {"incident": incident, "events": related}

        found = await self._pages.past(ask)
        incident = found["incident"]
        if incident is None:
            raise ApiError(404, "There is no such incident. It may be older than what is kept.")
        values = found | {
            "picture": timeline.picture(incident.steps),
            "small": timeline.picture(incident.steps, columns=10),
            "score": views.score(incident.score),
            "hold": views.held(incident, self._pages.services.operator.holds()),
            "blocked": is_blocked(incident, self._pages.services.clock.now()),
            "means": views.state_means(incident),
            "lasted": words.lasted(incident.last_at - incident.first_at),
        }
        return await self._pages.show(request, "incident.html", **values)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return math.inf
    return math.inf if math.isnan(value) else value


SHADOW_S: Final = 7 * 86_400
SHADOW_EVENTS: Final = 200


class PoliciesPage:
    """The page of policies."""

    def __init__(self, pages: PageRenderer) -> None:
        self._pages = pages

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [self._pages.get("/policies", self.page)]

    async def page(self, request: Request) -> Response:
        """Show the policies of the bundle in force."""
        services = self._pages.services
        since = services.clock.now() - SHADOW_S

        def ask(history: History) -> tuple[Any, Any]:
            wanted = EventFilter(names=(SHADOW_WOULD_REJECT,), since=since, most=SHADOW_EVENTS)
            return history.shadow(since), history.events(wanted)

        counts, events = await self._pages.past(ask)
        values: dict[str, Any] = {
            "bundle": dict(services.bundles.current()),
            "earlier": services.bundles.earlier(),
            "policies": views.policies(services.bundles.policies(), counts, events),
            "overrides": services.operator.overrides(),
        }
        return await self._pages.show(request, "policies.html", **values)


PREFIX_MAX: Final = 300


class LimitsPage:
    """The page of limits."""

    def __init__(self, pages: PageRenderer) -> None:
        self._pages = pages

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [self._pages.get("/limits", self.page)]

    async def page(self, request: Request) -> Response:
        """Show what limits there are; a store that is away is said, and the rest is shown."""
        services, prefix = self._pages.services, request.query_params.get("prefix", "")[:PREFIX_MAX].strip()
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
        return await self._pages.show(request, "limits.html", **values)


EVENTS_LISTED: Final = 50


class EventsPage:
    """The page of events."""

    def __init__(self, pages: PageRenderer) -> None:
        self._pages = pages

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [self._pages.get("/events", self.page), self._pages.get("/parts/events", self.part)]

    async def page(self, request: Request) -> Response:
        """Show the events that are asked for."""
        return await self._pages.show(request, "events.html", **await self._found(request))

    async def part(self, request: Request) -> Response:
        """Show the newest again."""
        return await self._pages.show(request, "parts/events.html", **await self._found(request))

    async def _found(self, request: Request) -> dict[str, Any]:
        asked = request.query_params
        chosen = {name: asked.get(name, "").strip()[:200] for name in ("name", "agent", "incident")}
        given = asked.get("before", "")
        before = int(given) if given.isdecimal() and len(given) < 19 else 0
        names = (chosen["name"],) if chosen["name"] else ()
        wanted = EventFilter(
            names=names, agent=chosen["agent"], incident=chosen["incident"], before=before, most=EVENTS_LISTED
        )
        found = await self._pages.past(lambda h: h.events(wanted))
        more = {**chosen, "before": str(found[-1].id)} if len(found) == EVENTS_LISTED else None
        return {
            "events": found,
            "chosen": chosen,
            "names": words.EVENT_NAMES,
            "more": more,
            "paged": bool(before),
            "filtered": any(chosen.values()),
        }


class AlertsPage:
    """The page of alerts."""

    def __init__(self, pages: PageRenderer) -> None:
        self._pages = pages

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [self._pages.get("/alerts", self.page)]

    async def page(self, request: Request) -> Response:
        """Show who is told of what."""
        alerts = self._pages.services.alerts
        webhooks, deliveries, rules = await self._pages.services.in_thread(
            lambda: (alerts.webhooks(), alerts.deliveries(50), alerts.rules())
        )
        values: dict[str, Any] = {
            "webhooks": [views.filled(one, views.WEBHOOK) for one in webhooks],
            "deliveries": [views.filled(one, views.DELIVERY) for one in deliveries],
            "rules": [views.filled(one, views.RULE) for one in rules],
            "endings": views.endings(deliveries),
        }
        return await self._pages.show(request, "alerts.html", **values)


RECORDS_LISTED: Final = 100


class RecordsPages:
    """The pages of the audit log and of settings."""

    def __init__(self, pages: PageRenderer) -> None:
        self._pages = pages

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [self._pages.get("/audit", self.audit), self._pages.get("/settings", self.settings)]

    async def audit(self, request: Request) -> Response:
        """Show who did what."""
        given = request.query_params.get("before", "")
        before = int(given) if given.isdecimal() and len(given) < 19 else 0
        found = await self._pages.past(lambda h: h.audit(before, RECORDS_LISTED))
        more = {"before": str(found[-1].id)} if len(found) == RECORDS_LISTED else None
        return await self._pages.show(request, "audit.html", entries=found, more=more, paged=bool(before))

    async def settings(self, request: Request) -> Response:
        """Show each value and where it comes from; secrets are masked before they come here."""
        return await self._pages.show(request, "settings.html", settings=list(self._pages.services.settings()))


STILL_HERE_S: Final = 15.0  # how often a quiet stream says that it lives, and learns that nobody listens
LISTENERS_MAX: Final = 100
_STILL_HERE: Final = b": still here\n\n"


class LiveUpdates:
    """The stream."""

    def __init__(self, pages: PageRenderer, still_here_s: float = STILL_HERE_S) -> None:
        self._pages = pages
        self._still_here_s = still_here_s
        self._listeners = 0

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [self._pages.get("/live", self.stream)]

    async def stream(self, _request: Request) -> Response:
        """Tell whatever happens from now on."""
        if self._listeners >= LISTENERS_MAX:
            return Response("too many listeners", 503, headers={"retry-after": "30"})
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self.lines(), headers=headers, media_type="text/event-stream")

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield the stream; ends with what it listens to."""
        self._listeners += 1
        items = aiter(self._pages.services.live())
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
    """There is nothing more to listen to."""


async def _next(items: AsyncIterator[Mapping[str, Any]]) -> Mapping[str, Any]:
    """`StopAsyncIteration` cannot leave a task."""
    try:
        return await anext(items)
    except StopAsyncIteration:
        raise _OverError from None


def message(item: Mapping[str, Any]) -> bytes:
    """Return one message: something happened (an event, or events that are kept by now), or only sums."""
    event = item.get("event", item)
    name = event.get("name") if isinstance(event, Mapping) else None
    kind = "happened" if isinstance(name, str) or item.get("kept") else "sums"
    data = json.dumps({"name": name[:80]} if isinstance(name, str) else {})
    return f"event: {kind}\ndata: {data}\n\n".encode()


_YEAR_S: Final = 365 * 86_400
_WRONG: Final = "That is not a token of this server."


class LoginPage:
    """The page before all others."""

    def __init__(self, pages: PageRenderer, sessions: SessionCookies) -> None:
        self._pages = pages
        self._sessions = sessions

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/login", self.page, methods=["GET"]),
            Route("/login", self.enter, methods=["POST"]),
            self._pages.post("/logout", self.leave, anybody=True),
            self._pages.post("/theme", self.theme, anybody=True),
        ]

    async def page(self, request: Request) -> Response:
        """Ask for the token."""
        return self._asked(request, 200, request.query_params.get("next", ""), "")

    async def enter(self, request: Request) -> Response:
        """Let somebody in, or say why not."""
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
        """Let somebody out."""
        response = RedirectResponse("/login", 303)
        self._sessions.sign_out(request, response)
        return response

    async def theme(self, _request: Request, _who: AdminIdentity, form: dict[str, str]) -> Response:
        """Keep what was chosen."""
        response = RedirectResponse(own_path(form.get("back", "")), 303)
        if form.get("theme") in THEMES:
            response.set_cookie(THEME_COOKIE, form["theme"], max_age=_YEAR_S, path="/", samesite="strict")
        return response

    def _asked(self, request: Request, status: int, going: str, wrong: str) -> Response:
        return self._pages.bare(request, "login.html", status, after=own_path(going), wrong=wrong)
