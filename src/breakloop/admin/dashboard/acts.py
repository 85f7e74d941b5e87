"""Actions (SPEC X-2): each asks once, is done and audited by `admin.actions`, and only then acknowledged. `/ask/NAME`
shows the question, as a page or inside a dialog; `/act/NAME` does it. What each asks and does stands in `act_*`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from breakloop.admin.actions import Actions
from breakloop.admin.auth import Identity, identity
from breakloop.admin.dashboard.form import own_path
from breakloop.admin.dashboard.page import Pages, check_acts
from breakloop.admin.faults import Fault
from breakloop.admin.services import Services
from breakloop.errors import OrderError

Asked = Mapping[str, str]
SHARED_LATER: Final = " The shared store is away: other instances follow as soon as it is back."


@dataclass(frozen=True, slots=True)
class Input:
    """Something to be filled in before it is done. `choices`: value and what it is called."""

    name: str
    label: str
    value: str = ""
    hint: str = ""
    kind: str = "text"  # "text", "choice" or "check"
    choices: tuple[tuple[str, str], ...] = ()
    required: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked before something is done."""

    title: str
    says: str
    button: str
    danger: bool = False
    inputs: tuple[Input, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was done, for the person."""

    said: str
    back: str
    tone: str = "good"
    shared: bool = True  # every instance knows
    secret: str = ""  # shown once, and nowhere else


class Act(ABC):
    """One action. `carries`: the fields of the question that go on into the form."""

    name: ClassVar[str]
    carries: ClassVar[tuple[str, ...]] = ()

    def __init__(self, services: Services) -> None:
        self._services = services

    @abstractmethod
    def question(self, asked: Asked) -> Question:
        """Return what is asked."""

    @abstractmethod
    async def do(self, actions: Actions, form: Asked) -> Outcome:
        """Do it; raises `BreakloopError` where that is not possible."""

    def ends_at(self, form: Asked) -> float | None:
        """Return when an order ends; None for never. Raises `OrderError`."""
        given = form.get("for", "")
        if not given:
            return None
        if not (given.isascii() and given.isdecimal()) or len(given) > 9:
            raise OrderError(["for: must be a number of seconds"])
        return self._services.clock.now() + int(given)


class Acts:
    """The two doors of all actions."""

    def __init__(self, pages: Pages, acts: Sequence[Act]) -> None:
        self._pages = pages
        self._acts = {act.name: act for act in acts}

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [self._pages.get("/ask/{name}", self.ask), self._pages.post("/act/{name}", self.act)]

    async def ask(self, request: Request) -> Response:
        """Ask once: as a page, or the part of it that a dialog shows."""
        check_acts(identity(request))
        act, asked = self._named(request), dict(request.query_params)
        values: dict[str, Any] = {
            "act": act.name,
            "question": act.question(asked),
            "carried": {name: asked.get(name, "") for name in act.carries},
            "back": own_path(asked.get("back", ""), ""),
        }
        return await self._pages.show(request, "ask.html", **values)

    async def act(self, request: Request, who: Identity, form: dict[str, str]) -> Response:
        """Do it, and go on."""
        done = await self._named(request).do(Actions(self._pages.services, who), form)
        if done.secret:
            return await self._pages.show(request, "secret.html", said=done.said, secret=done.secret, back=done.back)
        said = done.said if done.shared else done.said + SHARED_LATER
        return self._pages.go(own_path(form.get("back", ""), done.back), said, done.tone)

    def _named(self, request: Request) -> Act:
        act = self._acts.get(request.path_params["name"])
        if act is None:
            raise Fault(404, "there is no such action")
        return act
