"""What is said of agents: by name, else by the longest pattern."""

from __future__ import annotations

from breakloop.policy.compiled import ActiveHours, AgentTerms, CompiledAgents


def terms(pattern: str) -> AgentTerms:
    return AgentTerms(pattern, (), ActiveHours(active=True, hours=None, zone="UTC"))


def found(agents: CompiledAgents, agent: str) -> str | None:
    one = agents.find(agent)
    return None if one is None else one.pattern


def test_the_longest_pattern_holds_and_a_name_before_all() -> None:
    """The longest pattern holds and a name before all (B-1)."""
    agents = CompiledAgents([terms("*"), terms("crawl*"), terms("crawler-*"), terms("crawler-7")])
    names = ("x", "crawl", "crawler-1", "crawler-7")
    assert [found(agents, name) for name in names] == ["*", "crawl*", "crawler-*", "crawler-7"]
    assert found(CompiledAgents([terms("a")]), "b") is None


def test_nothing_said_and_nothing_metered() -> None:
    assert not CompiledAgents([]).terms
    assert not CompiledAgents([terms("*")]).metered
