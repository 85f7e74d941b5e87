"""Chains of answers (`previous_response_id`, SPEC C-7) that instances share: which conversation goes on is known
wherever its next request arrives. One more round trip where the answer before passed elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from breakloop.errors import StateError
from breakloop.model.call import Call
from breakloop.policy.sessions import Sessions
from breakloop.state.keys import part
from breakloop.state.store import RemoteStore

TTL_S: Final = 3600.0

Unknown = tuple[str, str]  # caller, and the answer that a call goes on from


class Recalling:
    """One call that waits for it. Stands among those that a store keeps waiting."""

    __slots__ = ("_decide", "_failed", "deadline", "heard", "over")

    def __init__(self, deadline: float, failed: Callable[[str], None], decide: Callable[[], None]) -> None:
        self.deadline = deadline
        self.heard = False
        self.over = False
        self._failed = failed
        self._decide = decide

    def answered(self, session: str | StateError) -> None:
        """Go on with what was noted, or without."""
        if self.over:
            return
        if isinstance(session, StateError):
            self._failed(str(session))
        self.give_up()

    def give_up(self) -> None:
        """Decide with what is known."""
        if not self.over:
            self.over = True
            self._decide()


class SharedChains:
    """Notes chains in the store, and looks there for those that are not known here."""

    __slots__ = ("_sessions", "_store")

    def __init__(self, sessions: Sessions, store: RemoteStore) -> None:
        self._sessions = sessions
        self._store = store
        sessions.chains.told = self._told

    def unknown(self, call: Call) -> Unknown | None:
        """Return what has to be asked for before a call can be judged; nearly always nothing."""
        return self._sessions.unknown(call) if call.body else None

    def recall(self, unknown: Unknown, recalling: Recalling) -> None:
        """Ask the store."""

        def answered(session: str | StateError) -> None:
            if isinstance(session, str) and session:
                self._sessions.chains.learn(*unknown, session)
            recalling.answered(session)

        self._store.recall(_key(unknown), answered)

    def _told(self, caller: str, answer: str, session: str) -> None:
        self._store.note(_key((caller, answer)), session, TTL_S)


def _key(unknown: Unknown) -> str:
    """Return where it is noted, whose session an answer belonged to."""
    caller, answer = unknown
    return f"chain:{part(caller)}:{part(answer)}"
