"""Verdict -> header fields (SPEC A-1, A-2, A-5). One place, so every door says the same in the same words."""

from __future__ import annotations

from hashlib import blake2b

from breakloop.model.verdict import Limit, Verdict

_LIMIT_HEADS_KEPT = 4096


def quoted(name: str) -> str:
    """Return a policy id as a structured-field string: printable ASCII between quotes."""
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    if not (escaped.isascii() and escaped.isprintable()):
        escaped = "".join(c if c.isascii() and c.isprintable() else "?" for c in escaped)
    return f'"{escaped}"'


class Answers:
    """Renders verdicts. `prefix` is `header_prefix`; `secret` keys the jitter, so that clients cannot compute it."""

    __slots__ = (
        "_body", "_delay", "_heads", "_loop_count", "_note", "_reason", "_request_id", "_secret", "_status", "_warning",
    )  # fmt: skip

    def __init__(self, prefix: str, secret: bytes) -> None:
        self._secret = secret[:64]
        self._reason = f"{prefix}Reason: "
        self._request_id = f"{prefix}Request-Id: "
        self._warning = f"{prefix}Warning: "
        self._loop_count = f"{prefix}Loop-Count: "
        self._delay = f"{prefix}Loop-Delay: "
        self._note = f"{prefix}Note: "
        self._status = f"{prefix}Status: "
        self._body = f"{prefix}Body: "
        # The part of the RateLimit fields that never changes for one limit, by (name, quota, window).
        self._heads: dict[tuple[str, int, int], tuple[str, str]] = {}

    def allowed(self, verdict: Verdict, request_id: str) -> bytes:
        """Return the header lines of an allowed answer."""
        head = f"{self._request_id}{request_id}\r\n"
        if verdict.limit is not None:
            head += self._limit(verdict.limit)
        if verdict.warning:
            head += self._warned(verdict)
        return head.encode("latin-1")

    def denied(self, verdict: Verdict, request_id: str, identity: str) -> bytes:
        """Return the header lines of a denial. `identity` is who is to wait: the jitter is his."""
        head = f"{self._request_id}{request_id}\r\n{self._reason}{verdict.reason}\r\n"
        wait_s = self.retry_after_s(verdict, identity)
        if wait_s is not None:
            head += f"Retry-After: {wait_s}\r\n"
        if verdict.never:
            head += "x-should-retry: false\r\n"
        if verdict.limit is not None:
            head += self._limit(verdict.limit)
        elif verdict.policy and verdict.retry_after_s is not None:
            head += f"RateLimit: {quoted(verdict.policy)};r=0;t={verdict.retry_after_s}\r\n"
            head += f"RateLimit-Reset: {verdict.retry_after_s}\r\n"
        return head.encode("latin-1")

    def carried(self, status: int, body: bytes) -> bytes:
        """Return the header lines that carry a status and a one-line body past a gateway which drops both."""
        return self.real_status(status) + f"{self._body}{body.decode('ascii')}\r\n".encode("ascii")

    def real_status(self, status: int) -> bytes:
        """Return the header line that carries a status past a gateway which takes it for something else."""
        return f"{self._status}{status}\r\n".encode("ascii")

    def retry_after_s(self, verdict: Verdict, identity: str) -> int | None:
        """Return the `Retry-After` value: with up to half more for limits, spread by identity, always the same."""
        base = verdict.retry_after_s
        if base is None or not verdict.retry_jitter:
            return base
        seed = f"{verdict.policy}\x00{verdict.rule}\x00{verdict.reason}\x00{identity}".encode("utf-8", "surrogatepass")
        draw = int.from_bytes(blake2b(seed, digest_size=4, key=self._secret, person=b"breakloop-jit").digest())
        return base + draw * (max(1, base // 2) + 1) // 2**32

    def _limit(self, limit: Limit) -> str:
        key = (limit.name, limit.quota, limit.window_s)
        head = self._heads.get(key)
        if head is None:
            name = quoted(limit.name)
            policy = f"RateLimit-Policy: {name};q={limit.quota};w={limit.window_s}\r\n"
            head = (f"{policy}RateLimit-Limit: {limit.quota}\r\nRateLimit: {name};r=", "RateLimit-Remaining: ")
            if len(self._heads) < _LIMIT_HEADS_KEPT:
                self._heads[key] = head
        left, reset = limit.remaining, limit.reset_s
        return f"{head[0]}{left};t={reset}\r\n{head[1]}{left}\r\nRateLimit-Reset: {reset}\r\n"

    def _warned(self, verdict: Verdict) -> str:
        head = f"{self._warning}{verdict.warning}\r\n"
        if verdict.loop is not None:
            head += f"{self._loop_count}{verdict.loop.hit_count}\r\n"
        if verdict.delay_ms:
            head += f"{self._delay}{verdict.delay_ms}\r\n"
        if verdict.note:
            head += f"{self._note}{verdict.note}\r\n"
        return head
