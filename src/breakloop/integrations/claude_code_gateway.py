"""Judges the steps that a hook tells by asking the gateway: each is a request of its own, with no more than the step in
it, because the gateway remembers the session. The other judge is `hook_judge`, which needs nobody."""

from __future__ import annotations

from typing import Final

from breakloop.integrations.claude_code import HookEvent, HookSession
from breakloop.model.verdict import Decision
from breakloop.sdk.backend import AgentContext, chat_call
from breakloop.sdk.remote_backend import RemoteBackend
from breakloop.sdk.run import Transcript

TIMEOUT_S: Final = 1.0  # everybody waits for a hook
_MODEL: Final = "claude-code"


class GatewayHookJudge:
    """A decision service. Raises what `RemoteBackend` raises."""

    def __init__(self, url: str, token: str, agent: str) -> None:
        self._door = RemoteBackend(url, token, TIMEOUT_S)
        self._agent = agent

    def step(self, session: HookSession, event: HookEvent, arguments: str, now: float) -> Decision:  # noqa: ARG002 - `Judge`
        """Ask about a call with what it returned."""
        body = _begun(event).add([(event.tool, arguments)], [event.outcome], "", "")
        return self._asked(event, body)

    def prompt(self, session: HookSession, event: HookEvent, now: float) -> Decision:  # noqa: ARG002 - `Judge`
        """Ask about what a person said."""
        return self._asked(event, _begun(event).add([], [], "", event.prompt))

    def _asked(self, event: HookEvent, body: bytes) -> Decision:
        try:
            return self._door.decide(chat_call(body, AgentContext(self._agent, event.owner)))
        finally:
            self._door.close()


def _begun(event: HookEvent) -> Transcript:
    """A conversation that opens with its session's name, lest two sessions that do the same be taken for one."""
    return Transcript(_MODEL, f"Session {event.owner}")
