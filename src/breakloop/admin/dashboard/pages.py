"""The pages of the dashboard. A page, or a part of one that is loaded again as events arrive, is one function here: it
returns the variables of its template. `NAV` has the entries of the navigation.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from breakloop.admin.actions import AdminServices
from breakloop.admin.auth import AdminIdentity, Auth
from breakloop.admin.dashboard import timeline, views, words
from breakloop.admin.dashboard.actions import OVERRIDES
from breakloop.admin.dashboard.render import THEME_COOKIE, THEMES, PageRenderer, own_path, read_form
from breakloop.admin.errors import ApiError
from breakloop.detect.steps.kinds import BY_NAME
from breakloop.engine.quarantine import RUN
from breakloop.engine.tree_budgets import TreeSpending
from breakloop.errors import StateError
from breakloop.formatting import duration
from breakloop.history.store import History
from breakloop.model.events import LOOP_DETECTED, SHADOW_WOULD_REJECT
from breakloop.model.records import OPEN, STOPPED, EventFilter, IncidentFilter, is_blocked
from breakloop.model.verdict import ANSWERS, UNANSWERED

# Path, name, icon, and key: the keyboard shortcut is `g` and this key.
NAV: Final = (
    ("/", "Overview", "overview", "o"),
    ("/incidents", "Incidents", "loop", "i"),
    ("/agents", "Agents", "agents", "a"),
    ("/pauses", "Paused runs", "paused", "w"),
    ("/policies", "Policies", "policy", "p"),
    ("/limits", "Limits", "limits", "l"),
    ("/events", "Events", "events", "e"),
    ("/alerts", "Alerts", "alerts", "t"),
    ("/audit", "Audit log", "audit", "u"),
    ("/settings", "Settings", "settings", "s"),
)
INCIDENTS: Final = 6  # on the overview
HOLDS: Final = 4
LISTED_MAX: Final = 200
FIND_MAX: Final = 200
PREFIX_MAX: Final = 300
INCIDENTS_LISTED: Final = 50
EVENTS_LISTED: Final = 50
RECORDS_LISTED: Final = 100
TREES_LISTED: Final = 20
TREE_EVENTS: Final = 500  # loops that are searched for those of a tree
SHADOW_S: Final = 7 * 86_400
SHADOW_EVENTS: Final = 200
KINDS: Final = ("exact", "tail", "simhash", "stream", *BY_NAME)

Values = dict[str, Any]
ShowPage = Callable[[AdminServices, Request], Awaitable[Values]]


class Page(NamedTuple):
    """A page, or a part of one. `show` returns the variables of its template."""

    path: str
    template: str
    show: ShowPage


PAGES: Final[list[Page]] = []


def _page(path: str, template: str) -> Callable[[ShowPage], ShowPage]:
    def add(show: ShowPage) -> ShowPage:
        PAGES.append(Page(path, template, show))
        return show

    return add


@_page("/", "overview.html")
async def overview(services: AdminServices, request: Request) -> Values:
    """Savings, current activity, and incidents that need attention."""
    return await overview_sums(services, request) | await overview_curve(services, request)


@_page("/parts/overview", "parts/overview.html")
async def overview_sums(services: AdminServices, request: Request) -> Values:
    now, span = services.clock.now(), _span(request)

    def ask(history: History) -> Values:
        found = {one.id: one for one in history.incidents(IncidentFilter(most=INCIDENTS))}
        for state in (OPEN, STOPPED):
            found |= {one.id: one for one in history.incidents(IncidentFilter(state=state, most=INCIDENTS))}
        return {
            "totals": history.totals(span.since(now)),
            "minute": history.totals(now - 60),
            "incidents": views.first_open(found.values())[:INCIDENTS],
            "dearest": views.dearest(history.agents()),
        }

    waiting = services.operator.pauses()
    holds = [one for one in services.operator.holds() if not one.is_open]
    found: Values = await services.past(ask)
    found |= {"pauses": waiting[:HOLDS], "paused": len(waiting), "answers": ANSWERS, "unanswered": UNANSWERED}
    return found | {"span": span, "spans": views.SPANS, "held": len(holds), "holds": holds[-HOLDS:][::-1]}


@_page("/pauses", "pauses.html")
@_page("/parts/pauses", "parts/pauses.html")
async def paused(services: AdminServices, _request: Request) -> Values:
    """The runs that wait for an answer."""
    return {"pauses": services.operator.pauses()[:LISTED_MAX], "answers": ANSWERS, "unanswered": UNANSWERED}


@_page("/parts/curve", "parts/curve.html")
async def overview_curve(services: AdminServices, request: Request) -> Values:
    return await _curve(services, request)


async def _curve(services: AdminServices, request: Request, project: str = "", agent: str = "") -> Values:
    """Return the variables of the chart, of one agent or of all."""
    now, span = services.clock.now(), _span(request)
    found = await services.past(lambda history: history.curve(span.since(now), now, span.step_s, project, agent))
    return {
        "span": span,
        "spans": views.SPANS,
        "chart": views.chart(found),
        "chart_rows": views.curve_table(found),
        "chart_any": views.anything(found),
        "chart_query": {"span": span.name} | ({"project": project, "name": agent} if agent else {}),
    }


def _span(request: Request) -> views.CurveSpan:
    return views.span(request.query_params.get("span", ""))


@_page("/agents", "agents.html")
async def agents(services: AdminServices, request: Request) -> Values:
    asked = request.query_params
    find, state = asked.get("find", "")[:FIND_MAX].strip(), asked.get("state", "")
    state = state if state in views.AGENT_STATES else ""
    seen = await services.past(lambda history: history.agents(find=find, most=LISTED_MAX))
    holds = [one for one in services.operator.holds() if not one.is_open]  # those have a page of their own
    known = {(one.project, one.agent) for one in seen}
    others = [one for one in holds if not one.agent or one.run or (one.project, one.agent) not in known]
    return {
        "find": find,
        "state": state,
        "states": views.AGENT_STATES,
        "rows": views.rows(seen, holds, services.operator.stops, services.clock.now(), state),
        "others": [] if find or state else others,
        "full": len(seen) >= LISTED_MAX,
    }


@_page("/agent", "agent.html")
async def agent(services: AdminServices, request: Request) -> Values:
    project, name = _asked(services, request)

    def ask(history: History) -> Values:
        return {
            "agent": history.agent(project, name),
            "incidents": history.incidents(IncidentFilter(project=project, agent=name, most=20)),
            "events": history.events(EventFilter(project=project, agent=name, most=15)),
        }

    found: Values = await services.past(ask)
    agent = found["agent"] or views.unseen(project, name)
    held = views.holds_of(agent, services.operator.holds())
    if found["agent"] is None and not held:
        raise ApiError(404, f"No agent of the name {name[:100]} has been seen in project {project[:100]}.")
    stops, now = services.operator.stops(name), services.clock.now()
    values = found | {
        "agent": agent,
        "holds": held,
        "stops": stops,
        "blocked": any(is_blocked(one, now) for one in found["incidents"]),
        "state": views.state_of(agent, held, stops, now),
        "fields": views.fields(agent.settings),
    }
    return values | await _curve(services, request, project, name)


@_page("/parts/agent-curve", "parts/curve.html")
async def agent_curve(services: AdminServices, request: Request) -> Values:
    return await _curve(services, request, *_asked(services, request))


def _asked(services: AdminServices, request: Request) -> tuple[str, str]:
    return request.query_params.get("project", services.project), request.query_params.get("name", "")


@_page("/trees", "trees.html")
@_page("/parts/trees", "parts/trees.html")
async def trees(services: AdminServices, _request: Request) -> Values:
    """The trees of agents that are at work, or were lately."""
    return {"trees": services.trees.all()[:LISTED_MAX]}


@_page("/tree", "tree.html")
@_page("/parts/tree", "parts/tree.html")
async def tree(services: AdminServices, request: Request) -> Values:
    """One tree: who started whom, when, and what each has spent."""
    asked = {name: request.query_params.get(name, "") for name in ("project", "caller", "root")}
    found = services.trees.find(**asked)
    if found is None:
        raise ApiError(
            404, "Nothing is known of this tree: its agents have been idle for 12 hours, or it has one agent."
        )
    held = {hold.run: hold.lands for hold in services.operator.holds() if hold.binds == RUN}
    spent = next((one for one in await _spending(services) if views.is_of(one, found)), None)
    wanted = EventFilter((LOOP_DETECTED,), found.project, since=found.first_at, most=TREE_EVENTS)
    events = await services.past(lambda history: history.events(wanted))
    return {
        "tree": found,
        "rows": views.tree_rows(found, held, services.clock.now()),
        "spent": spent,
        "asked": asked,
        "incidents": views.incidents_of(found, events),
    }


async def _spending(services: AdminServices) -> list[TreeSpending]:
    try:
        return await services.tree_budgets()
    except StateError:
        return []  # the page shows the rest


@_page("/incidents", "incidents.html")
@_page("/parts/incidents", "parts/incidents.html")
async def incidents(services: AdminServices, request: Request) -> Values:
    asked = request.query_params
    state, shadow = asked.get("state", ""), {"yes": True, "no": False}.get(asked.get("shadow", ""))
    agent, kind = asked.get("agent", "").strip()[:200], asked.get("kind", "")[:40]
    before = _number(asked.get("before", ""))
    state = state if state in views.INCIDENT_STATES else ""
    wanted = IncidentFilter(state=state, agent=agent, kind=kind, shadow=shadow, before=before, most=INCIDENTS_LISTED)
    found = await services.past(lambda history: history.incidents(wanted))
    chosen = {"state": state, "agent": agent, "kind": kind, "shadow": asked.get("shadow", "")}
    more = {**chosen, "before": repr(found[-1].last_at)} if len(found) == INCIDENTS_LISTED else None
    shown = found if state or math.isfinite(before) else views.first_open(found)
    values = {"chosen": chosen, "states": views.INCIDENT_STATES, "kinds": KINDS, "more": more, "incidents": shown}
    return values | {"paged": math.isfinite(before), "filtered": any(chosen.values())}


@_page("/incidents/{incident}", "incident.html")
async def incident(services: AdminServices, request: Request) -> Values:
    name = request.path_params["incident"]

    def ask(history: History) -> Values:
        incident = history.incident(name)
        related = history.events(EventFilter(incident=name, most=50)) if incident is not None else []
        return {"incident": incident, "events": related}

    found: Values = await services.past(ask)
    incident = found["incident"]
    if incident is None:
        raise ApiError(404, "There is no such incident. It may be older than the history.")
    named = next(
        ((one.data.get("caller", ""), one.data["tree"]) for one in found["events"] if "tree" in one.data), None
    )
    return found | {
        "tree": None if named is None else services.trees.find(incident.project, *named),
        "picture": timeline.picture(incident.steps),
        "small": timeline.picture(incident.steps, columns=10),
        "score": views.score(incident.score),
        "hold": views.held(incident, services.operator.holds()),
        "blocked": is_blocked(incident, services.clock.now()),
        "means": views.state_means(incident),
        "lasted": duration(incident.last_at - incident.first_at),
    }


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return math.inf
    return math.inf if math.isnan(value) else value


@_page("/policies", "policies.html")
async def policies(services: AdminServices, _request: Request) -> Values:
    """The active policies, and what those in shadow mode would have denied."""
    since = services.clock.now() - SHADOW_S
    wanted = EventFilter(names=(SHADOW_WOULD_REJECT,), since=since, most=SHADOW_EVENTS)
    counts, events = await services.past(lambda history: (history.shadow(since), history.events(wanted)))
    return {
        "bundle": dict(services.bundles.current()),
        "earlier": services.bundles.earlier(),
        "policies": views.policies(services.bundles.policies(), counts, events),
        "overrides": services.operator.overrides(),
    }


@_page("/limits", "limits.html")
async def limits(services: AdminServices, request: Request) -> Values:
    """Breakers, budgets of trees, switches, overrides, counters by key. If the store fails, its error and the rest."""
    prefix = request.query_params.get("prefix", "")[:PREFIX_MAX].strip()
    trouble, breakers, trees, found = "", [], [], []
    try:
        breakers = await services.breakers()
        trees = await services.tree_budgets()
        found = await services.counters(prefix) if prefix else []
    except StateError as error:
        trouble = str(error)
    columns, rows = views.counters_table(found)
    on = {one.name: one for one in services.operator.overrides()}
    return {
        "prefix": prefix,
        "trouble": trouble,
        "breakers": breakers,
        "trees": trees[:TREES_LISTED],
        "trees_hidden": max(0, len(trees) - TREES_LISTED),
        "switches": services.operator.switches(),
        "overrides": [(name, says, on.get(name)) for name, says in OVERRIDES.items()],
        "columns": columns,
        "rows": rows,
    }


@_page("/events", "events.html")
@_page("/parts/events", "parts/events.html")
async def events(services: AdminServices, request: Request) -> Values:
    asked, before = request.query_params, _before(request)
    chosen = {name: asked.get(name, "").strip()[:200] for name in ("name", "agent", "incident")}
    names = (chosen["name"],) if chosen["name"] else ()
    wanted = EventFilter(names, agent=chosen["agent"], incident=chosen["incident"], before=before, most=EVENTS_LISTED)
    found = await services.past(lambda history: history.events(wanted))
    return {
        "events": found,
        "chosen": chosen,
        "names": words.EVENT_NAMES,
        "more": {**chosen, "before": str(found[-1].id)} if len(found) == EVENTS_LISTED else None,
        "paged": bool(before),
        "filtered": any(chosen.values()),
    }


@_page("/alerts", "alerts.html")
async def alerts(services: AdminServices, _request: Request) -> Values:
    """Webhooks, their deliveries, and alert rules."""
    alerts = services.alerts
    webhooks, deliveries, rules = await services.in_thread(
        lambda: (alerts.webhooks(), alerts.deliveries(50), alerts.rules())
    )
    endings = Counter(one["state"] for one in deliveries)
    return {"webhooks": webhooks, "deliveries": deliveries, "rules": rules, "endings": endings}


@_page("/audit", "audit.html")
async def audit(services: AdminServices, request: Request) -> Values:
    before = _before(request)
    found = await services.past(lambda history: history.audit(before, RECORDS_LISTED))
    more = {"before": str(found[-1].id)} if len(found) == RECORDS_LISTED else None
    return {"entries": found, "more": more, "paged": bool(before)}


def _before(request: Request) -> int:
    """Return the id behind which a page of a list begins; 0 for the first page."""
    given = request.query_params.get("before", "")
    return int(given) if given.isdecimal() and len(given) < 19 else 0


@_page("/settings", "settings.html")
async def settings(services: AdminServices, _request: Request) -> Values:
    """Each setting and where it comes from. Secrets are already masked."""
    return {"settings": list(services.settings())}


STILL_HERE_S: Final = 15.0  # a comment this often keeps the stream open, and detects that the client is gone
LISTENERS_MAX: Final = 100
_STILL_HERE: Final = b": still here\n\n"


class LiveUpdates:
    """Live updates: server-sent events that make pages reload their parts.

    A message contains only the name of an event; what is shown comes from the pages' own parts.
    """

    def __init__(self, renderer: PageRenderer, still_here_s: float = STILL_HERE_S) -> None:
        self._renderer = renderer
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


class LoginPage:
    """The login form, logout, and the choice of a theme."""

    def __init__(self, renderer: PageRenderer, auth: Auth) -> None:
        self._renderer = renderer
        self._auth = auth

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
        going = ""
        try:
            form = await read_form(request)
            going = own_path(form.get("next", ""))
            response = RedirectResponse(going, 303)
            if await self._auth.sign_in(request, form.get("token", "").strip(), response):
                return response
        except ApiError as fault:
            return self._asked(request, fault.status, going, str(fault))
        return self._asked(request, 401, going, _WRONG)

    async def leave(self, request: Request, _who: AdminIdentity, _form: dict[str, str]) -> Response:
        response = RedirectResponse("/login", 303)
        await self._renderer.services.in_thread(lambda: self._auth.sign_out(request, response))
        return response

    async def theme(self, _request: Request, _who: AdminIdentity, form: dict[str, str]) -> Response:
        response = RedirectResponse(own_path(form.get("back", "")), 303)
        if form.get("theme") in THEMES:
            response.set_cookie(THEME_COOKIE, form["theme"], max_age=_YEAR_S, path="/", samesite="strict")
        return response

    def _asked(self, request: Request, status: int, going: str, wrong: str) -> Response:
        return self._renderer.bare(request, "login.html", status, after=own_path(going), wrong=wrong)
