"""The protocol itself; what it promises is proven in tests/contract/test_store.py, over every store."""

from __future__ import annotations

from breakloop.store.memory import MemoryStore
from breakloop.store.ops import Store
from tests.builders import FailingStore, SpyStore


def test_the_stores_of_this_tree_fit_the_protocol() -> None:
    """Also the ones that tests use (S-1)."""
    stores: list[Store] = [MemoryStore(), SpyStore(), FailingStore()]
    wanted = {name for name in vars(Store) if not name.startswith("_")}
    assert wanted == {"accounts", "breakers", "commit", "correct", "drop", "read_window", "settle"}
    assert all(callable(getattr(store, name)) for store in stores for name in wanted)
