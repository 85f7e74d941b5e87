"""Decides in this process, with an engine and a memory store. To share state between processes, run a decision service
and use `RemoteBackend`."""

from __future__ import annotations

import json
import logging
import secrets
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any, Final

from breakloop.clock import Clock, SystemClock
from breakloop.detect.counting import BuiltinLoopGuard
from breakloop.dialects.denial import PREFIX, VerdictHeaders, field_pairs
from breakloop.dialects.encoding import unpack
from breakloop.engine.engine import Engine
from breakloop.errors import BundleError, SettingsError
from breakloop.model.call import Answer, Call
from breakloop.model.decision import Decision
from breakloop.model.verdict import Verdict
from breakloop.observe.log import INTERVAL_S, LogEvents
from breakloop.policy.compile import compile_loaded
from breakloop.policy.descriptors import ContextSettings, Descriptors
from breakloop.policy.load import LoadedBundle, load_bundle, load_text
from breakloop.pricing.prices import GenaiTable, Prices, has_table
from breakloop.sdk.requests import BODY_MAX_BYTES, DecisionHandle, handle_of
from breakloop.store.memory import MemoryStore

Policy = str | PathLike[str] | Mapping[str, Any] | None

MEMORY: Final = "memory://"


class LocalBackend:
    """One engine for all threads of a process, behind a lock: a decision takes about 50 us."""

    blocking = False

    def __init__(self, policy: Policy, state: str, clock: Clock | None, secret: bytes) -> None:
        if state != MEMORY:
            raise SettingsError(
                "state: a Guard keeps its state in this process (memory://); "
                "to share it, run `breakloop serve` and pass url="
            )
        self._clock = clock or SystemClock()
        key = secret or secrets.token_bytes(32)
        loaded = _loaded(policy, self._clock.now())
        self._descriptors = descriptors = Descriptors(ContextSettings(secret=key), self._clock)
        self._headers = VerdictHeaders(PREFIX, key)
        self._events = LogEvents()
        self._flushed_at = self._clock.now()
        # Read when a budget first needs them. Without the extra, no budget does: `load_bundle` rejects it.
        prices = cache(lambda: Prices(GenaiTable(), clock=self._clock)) if has_table() else None
        self.engine = Engine(MemoryStore(), self._clock, descriptors, publish=self._events, prices=prices)
        self.engine.set_bundle(compile_loaded(loaded, descriptors, key, BuiltinLoopGuard()))
        self._lock = threading.Lock()
        self._prefix = secrets.token_hex(4)
        self._number = 0
        library = logging.getLogger("breakloop")
        if not library.handlers:  # a library is silent until the program configures logging
            library.addHandler(logging.NullHandler())

    def decide(self, call: Call) -> Decision:
        why = unpack(call, BODY_MAX_BYTES) if "content-encoding" in call.headers else ""
        with self._lock:
            self._number += 1
            call.request_id = f"{self._prefix}-{self._number:x}"
            if why:
                self.engine.not_unpacked(call, why)
            verdict = self.engine.decide(call)
            now = self._clock.now()
            if not 0 <= now - self._flushed_at < INTERVAL_S:  # the clock may have been set back
                self._flushed_at = now
                self._events.flush(now)
            if verdict.allowed:
                return _decision(verdict, call)
            head = self._headers.denied(verdict, call.request_id, self._descriptors.caller(call))
        return _decision(verdict, call, field_pairs(head))

    def settle(self, decision: Decision, answer: Answer) -> None:
        call = handle_of(decision).call
        if call is not None:
            with self._lock:
                self.engine.settle(call, answer)

    def close(self) -> None:
        """Write the log lines that were held back."""
        self._events.flush(self._clock.now(), everything=True)


def _loaded(policy: Policy, now: float) -> LoadedBundle | None:
    if policy is None:
        return None
    if isinstance(policy, Mapping):
        try:
            return load_text(json.dumps(policy, default=str).encode(), "policy.json", now=now)
        except BundleError as error:  # there is no file, and no lines
            raise BundleError([replace(one, file="policy", line=0, column=0) for one in error.problems]) from None
    return load_bundle(Path(policy), now=now)


def _decision(verdict: Verdict, call: Call, headers: Iterable[tuple[str, str]] = ()) -> Decision:
    """Return a verdict as a decision. `headers` are the header fields of a denial."""
    loop, tree = verdict.loop, verdict.tree
    return Decision(
        allowed=verdict.allowed,
        reason=verdict.reason,
        status=verdict.status,
        message=verdict.message,
        retry_after=None if verdict.allowed else verdict.retry_after_s,
        delay_seconds=verdict.delay_ms / 1000,
        warning=verdict.warning,
        note=verdict.note,
        landed=verdict.landed,
        kind=loop.kind if loop else "",
        hit_count=loop.hit_count if loop else 0,
        cooldown_seconds=loop.cooldown_s if loop else 0,
        fingerprint=loop.fingerprint if loop else "",
        evidence=loop.evidence if loop else "",
        policy=verdict.policy,
        request_id=call.request_id,
        degraded=verdict.degraded,
        tree_usd_left=None if tree is None or tree.microusd_left is None else tree.microusd_left / 1_000_000,
        tree_tokens_left=None if tree is None else tree.tokens_left,
        _handle=DecisionHandle(call, verdict, headers=tuple(headers)),
    )
