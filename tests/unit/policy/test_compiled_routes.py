"""Which policies apply: hosts, path trie, methods, order, and that the cost does not grow with their number."""

from __future__ import annotations

import gc
from sys import getrefcount
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakloop.policy.compiled import CompiledPolicy, CompiledSelector, Routes, _Node
from tests.each import each


def policy(index: int, selector: CompiledSelector) -> CompiledPolicy:
    return CompiledPolicy(
        id=f"p{index}",
        index=index,
        selector=selector,
        shadow=False,
        loops=(),
        decides_loops=False,
        rules=(),
        fallback=None,
        breaker=None,
        status=429,
        denies_on_store_error=False,
        rejects_large_bodies=False,
        descriptors=(),
        metered=False,
        steady=True,
    )


def routes(*selectors: CompiledSelector) -> Routes:
    return Routes([policy(index, selector) for index, selector in enumerate(selectors)])


def matched(table: Routes, path: str, host: str = "", method: str = "GET") -> list[int]:
    return [entry.index for entry in table.match(host, method, path)]


@each(
    "selector, path, applies",
    [
        (CompiledSelector(prefix="/v1/"), "/v1/x", True),
        (CompiledSelector(prefix="/v1/"), "/v1/x/y/z", True),
        (CompiledSelector(prefix="/v1/"), "/v1/", True),
        (CompiledSelector(prefix="/v1/"), "/v1", False),
        (CompiledSelector(prefix="/v1/"), "/v1x/", False),
        (CompiledSelector(prefix="/v1"), "/v1", True),
        (CompiledSelector(prefix="/v1"), "/v1/", True),
        (CompiledSelector(prefix="/v1"), "/v1/x", True),
        (CompiledSelector(prefix="/v1"), "/v10", False),
        (CompiledSelector(prefix="/"), "/", True),
        (CompiledSelector(prefix="/"), "/a/b", True),
        (CompiledSelector(), "/a/b", True),
        (CompiledSelector(), "/", True),
        (CompiledSelector(exact="/v1/x"), "/v1/x", True),
        (CompiledSelector(exact="/v1/x"), "/v1/x/", False),
        (CompiledSelector(exact="/v1/x"), "/v1/x/y", False),
        (CompiledSelector(exact="/v1/x"), "/v1", False),
        (CompiledSelector(exact="/v1/x/"), "/v1/x", False),
        (CompiledSelector(exact="/v1/x/"), "/v1/x/", True),
        (CompiledSelector(exact="/"), "/", True),
        (CompiledSelector(exact="/"), "/a", False),
        (CompiledSelector(exact="/a", prefix="/b/"), "/a", True),
        (CompiledSelector(exact="/a", prefix="/b/"), "/b/c", True),
        (CompiledSelector(exact="/a", prefix="/b/"), "/a/c", False),
    ],
)
def test_paths(selector: CompiledSelector, path: str, applies: bool) -> None:
    """Prefixes at every level and on whole segments, exact paths only at the leaf, `/` for all (R-1)."""
    assert (matched(routes(selector), path) == [0]) is applies


def test_order_is_that_of_the_bundle() -> None:
    """Overlapping policies apply in the order of the bundle, not by how specific they are (R-1)."""
    table = routes(
        CompiledSelector(exact="/v1/a/b"),
        CompiledSelector(),
        CompiledSelector(prefix="/v1/a/"),
        CompiledSelector(prefix="/v1/"),
        CompiledSelector(prefix="/v2/"),
    )
    assert matched(table, "/v1/a/b") == [0, 1, 2, 3]
    assert matched(table, "/v1/a/c") == [1, 2, 3]
    assert matched(table, "/v2/") == [1, 4]
    assert matched(table, "/v3") == [1]


def test_hosts_and_any_host_both_apply() -> None:
    """Host-specific and host-agnostic policies are merged, in the order of the bundle (R-1)."""
    table = routes(
        CompiledSelector(prefix="/", hosts=("api.example",)),
        CompiledSelector(prefix="/"),
        CompiledSelector(exact="/x", hosts=("api.example", "other.example")),
    )
    assert matched(table, "/x", "api.example") == [0, 1, 2]
    assert matched(table, "/x", "other.example") == [1, 2]
    assert matched(table, "/x", "third.example") == [1]
    assert matched(table, "/y", "api.example") == [0, 1]


def test_methods_filter_last() -> None:
    """A policy with methods applies to these; without, to all (R-1)."""
    table = routes(CompiledSelector(prefix="/", methods=frozenset({"POST", "PUT"})), CompiledSelector(prefix="/"))
    assert matched(table, "/x", method="POST") == [0, 1]
    assert matched(table, "/x", method="GET") == [1]


def test_a_policy_that_matches_twice_applies_once() -> None:
    """By its exact path and its prefix, or by a host named twice (R-1)."""
    table = routes(CompiledSelector(exact="/a/b", prefix="/a/"), CompiledSelector(prefix="/", hosts=("h", "h")))
    assert matched(table, "/a/b", "h") == [0, 1]
    assert matched(routes(CompiledSelector(prefix="/", hosts=("h", "h"))), "/", "h") == [0]


def test_nothing_matches() -> None:
    """An empty list, with policies elsewhere or none at all (R-2)."""
    assert matched(routes(), "/x") == []
    assert matched(routes(CompiledSelector(exact="/y")), "/x") == []


def test_a_replaced_index_is_freed_at_once() -> None:
    """Without the collector, which hardly ever runs in a server."""
    only = policy(0, CompiledSelector(prefix="/"))
    alone = getrefcount(only)
    table = Routes([only])
    assert matched(table, "/x") == [0]
    assert getrefcount(only) > alone
    gc.disable()
    try:
        del table
        assert getrefcount(only) == alone
    finally:
        gc.enable()


class CountingChildren(dict[str, Any]):
    """Counts how often the trie is walked down."""

    looked = 0

    def get(self, key: str, default: Any = None) -> Any:
        type(self).looked += 1
        return super().get(key, default)


def count_looks(node: _Node) -> None:
    node.children = CountingChildren(node.children)
    for child in node.children.values():
        count_looks(child)


@pytest.mark.parametrize("policies", [10, 10_000])
def test_the_number_of_policies_does_not_matter(policies: int) -> None:
    """A match walks as many nodes as the path is deep, with 10 policies or 10,000 (R-1, Q-2)."""
    table = routes(*[CompiledSelector(prefix=f"/v1/t{n % 100}/p{n}/") for n in range(policies)])
    count_looks(table._any_host)
    CountingChildren.looked = 0
    assert matched(table, "/v1/t7/p7/x/y/z/w") == [7]
    assert CountingChildren.looked <= 8


SEGMENTS = st.lists(st.sampled_from(["a", "b", ""]), max_size=4)
PATHS = SEGMENTS.map(lambda parts: "/" + "/".join(parts))


def naive(selector: CompiledSelector, path: str) -> bool:
    if selector.exact is not None and path == selector.exact:
        return True
    if selector.exact is not None and selector.prefix is None:
        return False
    prefix = selector.prefix or "/"
    if prefix.endswith("/"):
        return path.startswith(prefix)
    return path == prefix or path.startswith(prefix + "/")


@given(
    selectors=st.lists(st.builds(CompiledSelector, exact=st.none() | PATHS, prefix=st.none() | PATHS), max_size=6),
    path=PATHS,
)
def test_the_trie_equals_looking_at_every_policy(selectors: list[CompiledSelector], path: str) -> None:
    """What the trie finds is what comparing strings finds (R-1)."""
    assert matched(routes(*selectors), path) == [n for n, selector in enumerate(selectors) if naive(selector, path)]
