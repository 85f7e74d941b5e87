"""Builds an engine, in the same way for the server, the library, replays and the demo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from breakloop.clock import Clock
from breakloop.detect.counting import BuiltinLoopGuard
from breakloop.engine.engine import Answered, Engine
from breakloop.model.events import Publish, nowhere
from breakloop.policy.compile import compile_bundle
from breakloop.policy.compiled import CompiledBundle
from breakloop.policy.descriptors import Descriptors
from breakloop.policy.load import LoadedBundle
from breakloop.pricing.prices import Prices
from breakloop.store.memory import MemoryStore

BUILTIN: Final = "builtin"  # the digest if there is no bundle


def compile_loaded(
    loaded: LoadedBundle | None, descriptors: Descriptors, secret: bytes, guard: BuiltinLoopGuard
) -> CompiledBundle:
    """Compile a loaded bundle, or the built-in loop protection if there is none."""
    bundle, digest = (loaded.bundle, loaded.digest) if loaded else (None, BUILTIN)
    return compile_bundle(bundle, digest, descriptors, secret, guard)


def build_engine(
    descriptors: Descriptors,
    clock: Clock,
    bundle: CompiledBundle | None = None,
    *,
    store: MemoryStore | None = None,
    publish: Publish = nowhere,
    answered: Answered | None = None,
    prices: Callable[[], Prices] | None = None,
) -> Engine:
    """Return an engine with a memory store. Without a bundle, it denies requests until `set_bundle` is called."""
    store = MemoryStore() if store is None else store
    engine = Engine(store, clock, descriptors, publish=publish, answered=answered, prices=prices)
    if bundle is not None:
        engine.set_bundle(bundle)
    return engine
