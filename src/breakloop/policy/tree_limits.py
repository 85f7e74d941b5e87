"""Which budgets of a tree of agents apply to a call, and what it charges to them.

The settings are entries of `agents`, but a tree may have agents of many names. Therefore a tree has one account in each
unit, and an agent for which no entry sets a limit is charged as well. The limit of an agent is that of the entry with
its name, or else of the longest pattern that matches and sets one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from breakloop.limits.base import NOTHING
from breakloop.limits.tree_budget import TOKEN, USD, TreeBudget
from breakloop.model.call import Call
from breakloop.policy.rules import MeterPort, unpriced
from breakloop.policy.schema.bundle import Agent
from breakloop.pricing.tokens import Estimator
from breakloop.store.keys import TREE_FAMILIES, tree_account
from breakloop.store.ops import Op

_SETTINGS: Final = tuple(zip((USD, TOKEN), TREE_FAMILIES, strict=True))


class TreeRule:
    """The budget of a tree in one unit, for the agents of one entry. `pattern` is "" if no entry sets a limit."""

    __slots__ = ("family", "limiter", "name", "pattern", "policy", "status")

    def __init__(self, family: str, pattern: str, limiter: TreeBudget, status: int) -> None:
        self.policy, self.status = "agents", status
        self.name = f"{pattern}/{limiter.setting}" if pattern else limiter.setting
        self.pattern = pattern
        self.family = family
        self.limiter = limiter


class TreeLimits:
    """The budgets of trees that the entries of `agents` set. Empty (false) if none does."""

    __slots__ = ("_estimator", "_money", "_named", "_patterns", "_rest", "_root")

    def __init__(
        self, agents: Iterable[tuple[str, Agent]], root: Callable[[Call], str], estimator: Estimator, status: int
    ) -> None:
        self._root = root  # returns caller and root of a call's tree, joined for a key; "" if it has none
        self._estimator = estimator
        # Exact names first, then the longest patterns, as for the other settings of agents.
        order = sorted(agents, key=lambda one: (not one[0].endswith("*"), len(one[0])), reverse=True)
        used = [one for one in _SETTINGS if any(getattr(agent, one[0]) is not None for _, agent in order)]
        self._money = any(setting == USD for setting, _ in used)

        def rules(matching: Sequence[tuple[str, Agent]]) -> tuple[TreeRule, ...]:
            tells = next((agent.tell_tree_budget for _, agent in matching if agent.tell_tree_budget is not None), False)
            lands = next((agent.land_at_percent for _, agent in matching if agent.land_at_percent is not None), None)
            made: list[TreeRule] = []
            for setting, family in used:
                found = [(name, most) for name, agent in matching if (most := getattr(agent, setting)) is not None]
                pattern, most = found[0] if found else ("", None)
                limiter = TreeBudget(setting, most, tells=tells, land_at_percent=lands)
                made.append(TreeRule(family, pattern, limiter, status))
            return tuple(made)

        def matching(name: str) -> list[tuple[str, Agent]]:
            stem = name.removesuffix("*")
            return [one for one in order if one[0] == name or (one[0].endswith("*") and stem.startswith(one[0][:-1]))]

        made = {name: rules(matching(name)) for name, _ in order} if used else {}
        self._named = {name: found for name, found in made.items() if not name.endswith("*")}
        self._patterns = [(name[:-1], found) for name, found in made.items() if name.endswith("*")]
        self._rest = rules(()) if used else ()

    def __bool__(self) -> bool:
        return bool(self._rest)

    def find(self, agent: str) -> tuple[TreeRule, ...]:
        """Return the budgets that an agent is charged to."""
        named = self._named.get(agent)
        if named is not None:
            return named
        return next((found for stem, found in self._patterns if agent.startswith(stem)), self._rest)

    def all(self) -> list[TreeRule]:
        """Return every budget that denies."""
        made = [*self._named.values(), *(found for _, found in self._patterns)]
        rules = {rule.name: rule for found in made for rule in found if rule.limiter.limited}
        return list(rules.values())

    def plan(self, call: Call, agent: str, project: str, group: int, now: float, meter: MeterPort) -> list[Op]:
        """Return the charges; nothing for calls other than LLM calls, or without a session."""
        rules = self.find(agent)
        if self._money and meter.denies(call):
            priced = next((one for one in rules if one.limiter.setting == USD and one.limiter.limited), None)
            return [] if priced is None else [unpriced(priced, group)]
        estimate = meter.reserve(call, self._estimator, money=self._money)
        root = "" if estimate is NOTHING else self._root(call)
        if not root:
            return []
        return [
            rule.limiter.plan(
                tree_account(rule.family, project, root, group), rule.limiter.cost_of(call, estimate), rule, group, now
            )
            for rule in rules
        ]
