"""Chains of answers and traces over several requests: bounded, and never across callers."""

from __future__ import annotations

from breakloop.policy.identity import ResponseChains, SeenNames


def test_a_chain_leads_back_to_its_root() -> None:
    """`previous_response_id` is resolved to the session of the first request, however long the chain is (C-7)."""
    chains = ResponseChains()
    chains.remember("key:a", "resp_0", "root")
    for number in range(100):
        session = chains.root("key:a", f"resp_{number}")
        assert session == "root"
        chains.remember("key:a", f"resp_{number + 1}", session)


def test_an_unknown_answer_is_a_root_itself() -> None:
    """After a restart, or on another instance, every request that continues an answer has the same session (C-7)."""
    assert ResponseChains().root("key:a", "resp_7") == ResponseChains().root("key:a", "resp_7") == "resp_7"


def test_callers_have_chains_of_their_own() -> None:
    """Nobody gets into a session by naming somebody else's answer (C-7)."""
    chains = ResponseChains()
    chains.remember("key:a", "resp_1", "root")
    assert chains.root("key:b", "resp_1") == "resp_1"
    chains.remember("key:b", "resp_1", "other")
    assert (chains.root("key:a", "resp_1"), chains.root("key:b", "resp_1")) == ("root", "other")


def test_nothing_is_remembered_for_nothing() -> None:
    chains = ResponseChains()
    chains.remember("key:a", "", "root")
    chains.remember("key:a", "resp_1", "")
    assert len(chains) == 0


def test_chains_are_bounded_and_those_in_use_stay() -> None:
    """Memory has a limit, and what is asked for again outlives what is not (C-7)."""
    chains = ResponseChains(limit=10)
    chains.remember("key:a", "kept", "root")
    chains.remember("key:a", "unused", "other")
    for number in range(500):
        chains.remember("key:a", f"resp_{number}", "x")
        assert chains.root("key:a", "kept") == "root"
        assert len(chains) <= 20
    assert chains.root("key:a", "unused") == "unused"


def test_a_trace_counts_when_it_comes_again() -> None:
    """A trace id is a session once it has recurred, for the same caller (C-7)."""
    traces = SeenNames()
    assert [traces.recurs("key:a", "t1"), traces.recurs("key:a", "t2")] == [False, False]
    assert [traces.recurs("key:a", "t1"), traces.recurs("key:a", "t1")] == [True, True]
    assert traces.recurs("key:b", "t1") is False


def test_traces_are_bounded() -> None:
    """A new trace for every request does not fill the memory (C-7)."""
    traces = SeenNames(limit=10)
    for number in range(500):
        traces.recurs("key:a", str(number))
        assert len(traces) <= 20
    assert traces.recurs("key:a", "0") is False
