"""Decides about Claude Code's events by asking a gateway. Each event is a request with one step in it, because the
gateway keeps the window of the session. Internal: used by `breakloop hook --url`."""

from __future__ import annotations

from typing import Final

from breakloop.integrations.claude_code import HookEvent, HookSession
from breakloop.model.verdict import Decision
from breakloop.sdk.context import AgentContext
from breakloop.sdk.remote_backend import RemoteBackend
from breakloop.sdk.requests import Transcript, chat_call

TIMEOUT_S: Final = 1.0  # the agent waits for the hook
_MODEL: Final = "claude-code"


class GatewayHookBackend:
    """A decision service. Raises what `RemoteBackend` raises."""

    def __init__(self, url: str, token: str, agent: str) -> None:
        self._backend = RemoteBackend(url, token, TIMEOUT_S)
        self._agent = agent

    def step(self, session: HookSession, event: HookEvent, arguments: str, now: float) -> Decision:  # noqa: ARG002
        return self._decide(event, _transcript(event).add([(event.tool, arguments)], [event.outcome], "", ""))

    def prompt(self, session: HookSession, event: HookEvent, now: float) -> Decision:  # noqa: ARG002
        return self._decide(event, _transcript(event).add([], [], "", event.prompt))

    def _decide(self, event: HookEvent, body: bytes) -> Decision:
        try:
            return self._backend.decide(chat_call(body, AgentContext(self._agent, event.owner)))
        finally:
            self._backend.close()


def _transcript(event: HookEvent) -> Transcript:
    """Return a conversation that opens with the name of its session, so that two sessions with the same steps are not
    taken for one."""
    return Transcript(_MODEL, f"Session {event.owner}")
