"""The limit on open files, and how many clients it allows."""

from __future__ import annotations

import resource

import pytest

from breakloop.gateway.server import connections_for
from tests.each import each

INFINITY = resource.RLIM_INFINITY


@each(
    "soft, hard, allowed, raised",
    [
        (1024, 1_048_576, 10_000, 20_200),  # the usual limits of a shell: raised as far as needed
        (1024, 4096, 1948, 4096),  # half of the rest is left for upstreams
        (1024, INFINITY, 10_000, 20_200),
        (65_536, 65_536, 10_000, 65_536),
        (INFINITY, INFINITY, 10_000, INFINITY),
        (100, 100, 1, 100),
    ],
)
def test_the_limit_is_raised_and_a_half_kept_for_upstreams(soft: int, hard: int, allowed: int, raised: int) -> None:
    """A thousand idle clients must not take the files that requests to upstreams need (Y-2)."""
    limits = [soft, hard]

    def set_limit(_which: int, wanted: tuple[int, int]) -> None:
        limits[:] = wanted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resource, "getrlimit", lambda _which: tuple(limits))
        patch.setattr(resource, "setrlimit", set_limit)
        assert (connections_for(10_000), limits) == (allowed, [raised, hard])
