"""The page behind a signed link (`auth.AnswerLinks`) that answers for a paused run, and asks for one click.

The signature is the permission: nobody has to sign in. Opening a link changes nothing, because mail scanners and
previews open links too; only the button on the page does. A pause is answered once, so a link that was used has no
effect, and neither have the other links of the same pause.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from breakloop.admin.actions import Actions
from breakloop.admin.auth import ANSWER, OPERATOR, AdminIdentity, AnswerLink, Auth, peer
from breakloop.admin.dashboard.render import PageRenderer
from breakloop.admin.errors import ApiError
from breakloop.engine.quarantine import Hold
from breakloop.errors import BreakloopError
from breakloop.model.verdict import ANSWERS

_FORGED: Final = "This link is not valid. Copy the whole address from the message."
_OVER: Final = "This link has expired: nobody answered in time. Nothing was changed."
_USED: Final = "This was answered already. Nothing was changed."
# What each answer does, for the person who is about to give it.
_MEANS: Final = {
    "once": "The run goes on. If it is detected again, you are asked again.",
    "5usd": "The run goes on, and is not paused again until it has spent $5 more. Its limits stay as they are.",
    "1h": "The run goes on, and is not paused again for one hour. Its limits stay as they are.",
    "land": "Two more requests pass with tools switched off, so that the model gives its final answer.",
    "kill": "All further requests of this run are denied until somebody releases it.",
}


class AnswerPage:
    """The page behind a link. GET shows the question, POST answers it."""

    def __init__(self, renderer: PageRenderer, auth: Auth) -> None:
        self._renderer = renderer
        self._auth = auth

    def routes(self) -> list[Route]:
        path = f"{ANSWER}{{token}}"
        return [Route(path, self.ask, methods=["GET"]), Route(path, self.act, methods=["POST"])]

    async def ask(self, request: Request) -> Response:
        try:
            link, hold = await self._asked(request)
        except BreakloopError as error:
            return self._refused(request, error)
        values: Mapping[str, object] = {
            "title": f"{ANSWERS[link.answer]}?",
            "text": _MEANS[link.answer],
            "hold": hold,
            "button": ANSWERS[link.answer],
            "danger": link.answer == "kill",
        }
        return self._renderer.bare(request, "answer.html", 200, **values)

    async def act(self, request: Request) -> Response:
        try:
            link, _ = await self._asked(request)
            actions = Actions(self._renderer.services, AdminIdentity(f"link ({peer(request)})", OPERATOR))
            _, shared = await actions.answer(link.pause, link.answer)
        except BreakloopError as error:
            return self._refused(request, error)
        later = "" if shared else " Other instances follow when the shared store is back."
        return self._page(request, 200, "Done", f"{ANSWERS[link.answer]}: your answer is in force.{later}")

    async def _asked(self, request: Request) -> tuple[AnswerLink, Hold]:
        """Return what a link says, and the pause that it is about. Raises `ApiError`."""
        who = peer(request)
        await self._auth.slow_down(who, "too many wrong links from your address")
        link = self._auth.links.read(request.path_params["token"])
        if link is None:
            self._auth.note_wrong(who)
            raise ApiError(404, _FORGED)
        if self._auth.links.is_over(link):
            raise ApiError(404, _OVER)
        pauses = self._renderer.services.operator.pauses()
        hold = next((one for one in pauses if one.question is not None and one.question.id == link.pause), None)
        if hold is None:
            raise ApiError(404, _USED)
        return link, hold

    def _refused(self, request: Request, error: BreakloopError) -> Response:
        status = error.status if isinstance(error, ApiError) else 409
        return self._page(request, status, "Nothing was done", str(error))

    def _page(self, request: Request, status: int, title: str, text: str) -> Response:
        return self._renderer.bare(request, "answer.html", status, title=title, text=text, hold=None)
