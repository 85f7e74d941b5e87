"""`similarity: exact` (SPEC LD-1): the same method, path, query, body, caller, agent and descriptors."""

from __future__ import annotations

from collections.abc import Callable

from breakloop.detect.fingerprint import Fingerprinter
from breakloop.model.call import Call

Text = Callable[[Call], str]
MaybeText = Callable[[Call], str | None]


class ExactFingerprint:
    """Reads what identifies a call whole. Equal JSON bodies are equal whatever their key order or white space."""

    __slots__ = ("_agent", "_body", "_caller", "_descriptors", "_fingerprinter", "_query")

    def __init__(
        self,
        fingerprinter: Fingerprinter,
        *,
        caller: Text,
        agent: Text,
        query: Text,
        body: Callable[[bytes], bytes],
        descriptors: tuple[MaybeText, ...],
    ) -> None:
        self._fingerprinter = fingerprinter
        self._caller = caller
        self._agent = agent
        self._query = query
        self._body = body
        self._descriptors = descriptors

    def __call__(self, call: Call) -> str | None:
        """Return the fingerprint, or None when the request has a body that was not shown to us.

        Without its body every POST to one path looks the same, and healthy agents would be stopped.
        """
        if call.body_unseen:
            return None
        parts = [
            call.method,
            call.path,
            self._query(call) if call.query else "",
            self._caller(call),
            self._agent(call),
        ]
        parts += [descriptor(call) or "" for descriptor in self._descriptors]
        return self._fingerprinter.digest(parts, self._body(call.body) if call.body else b"")
