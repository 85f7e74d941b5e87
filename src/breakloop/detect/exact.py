"""`similarity: exact` (SPEC LD-1): the same method, path, query, body, caller, agent and descriptors."""

from __future__ import annotations

from collections.abc import Callable

from breakloop.detect.fingerprint import Fingerprinter
from breakloop.model.call import Call

Text = Callable[[Call], str]


class ExactFingerprint:
    """Reads what identifies a call whole. Equal JSON bodies are equal whatever their key order or white space."""

    __slots__ = ("_body", "_fingerprinter", "_identity", "_query")

    def __init__(
        self,
        fingerprinter: Fingerprinter,
        *,
        identity: Text,
        query: Text,
        body: Callable[[bytes], bytes],
    ) -> None:
        self._fingerprinter = fingerprinter
        self._identity = identity  # caller, agent and the policy's descriptors in one text
        self._query = query
        self._body = body

    def __call__(self, call: Call) -> str | None:
        """Return the fingerprint, or None when the request has a body that was not shown to us.

        Without its body every POST to one path looks the same, and healthy agents would be stopped.
        """
        if call.body_unseen:
            return None
        parts = [self._identity(call), call.method, call.path, self._query(call) if call.query else ""]
        return self._fingerprinter.digest(parts, self._body(call.body) if call.body else b"")
