"""The budgets of trees of agents as operators see them: list what each tree has spent, and give it its budget again.

The store has one account of a tree in each unit (`limits.tree_budget`). A tree is named by its project, its caller and
its root.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from breakloop.engine.breakers import StoredLimits, ignore
from breakloop.limits.tree_budget import KEPT_S, USD
from breakloop.policy.compiled import CompiledBundle
from breakloop.store.keys import SHADOW, TREE_FAMILIES, TreeKey, escape, join_values, parse_tree_key, project_of
from breakloop.store.keys import tree_account as account_key
from breakloop.store.ops import ENFORCED, StoredAccount

LISTED_MAX: Final = 1000
_MICROUSD: Final = TREE_FAMILIES[0]


@dataclass(frozen=True, slots=True)
class TreeSpending:
    """What the agents of one tree have spent, and what is reserved for their requests in flight. A limit is the highest
    one that an entry of `agents` sets; None if none does.
    """

    project: str
    caller: str
    root: str  # session at the top of the tree, or the name that clients give it
    microusd: int
    microusd_limit: int | None
    tokens: int
    tokens_limit: int | None
    last_at: float  # when a request was last allowed
    shadow: bool  # counted in global shadow mode, and not enforced

    @property
    def share(self) -> float:
        """The share that is spent of the limit that is nearer."""
        pairs = ((self.microusd, self.microusd_limit), (self.tokens, self.tokens_limit))
        return max((used / most for used, most in pairs if most), default=0.0)

    @property
    def left(self) -> tuple[int | None, int | None]:
        """Micro-dollars and tokens that are left; None without a limit."""
        pairs = ((self.microusd, self.microusd_limit), (self.tokens, self.tokens_limit))
        usd, tokens = [None if most is None else max(0, most - used) for used, most in pairs]
        return usd, tokens


class TreeBudgets:
    """The budgets of trees. Methods raise `StateError` if the store is not available."""

    __slots__ = ("_bundle", "_stored")

    def __init__(self, stored: StoredLimits, bundle: Callable[[], CompiledBundle | None]) -> None:
        self._stored = stored
        self._bundle = bundle

    async def states(self) -> list[TreeSpending]:
        """Return the trees, those that have spent the largest share first."""
        bundle = self._bundle()
        kept = [one for prefix in prefixes(bundle) for one in await self._stored.accounts(prefix, LISTED_MAX)]
        return states(bundle, kept)[:LISTED_MAX]

    async def reset(self, project: str, caller: str, root: str) -> TreeSpending | None:
        """Give a tree its whole budget again. Returns its state before, or None if it has none."""
        keys = accounts_of(project, caller, root)
        kept = [one for key in keys for one in await self._stored.accounts(key, LISTED_MAX) if one.key == key]
        found = states(self._bundle(), kept)
        if found:
            self._stored.drop(keys, ignore)
        return found[0] if found else None


def prefixes(bundle: CompiledBundle | None) -> list[str]:
    """Return the key prefixes of the accounts of trees; none if the bundle sets no budget of trees."""
    if bundle is None or bundle.agents.trees is None:
        return []
    return [f"{shadow}{family}:" for shadow in ("", SHADOW) for family in TREE_FAMILIES]


def accounts_of(project: str, caller: str, root: str) -> list[str]:
    """Return the keys of the enforced accounts of a tree."""
    place, owner = escape(project), join_values([caller, root])
    return [account_key(family, place, owner, ENFORCED) for family in TREE_FAMILIES]


def states(bundle: CompiledBundle | None, kept: Iterable[StoredAccount]) -> list[TreeSpending]:
    """Return the stored accounts by tree, those that have spent the largest share first."""
    trees = None if bundle is None else bundle.agents.trees
    most: dict[str, int] = {}
    for rule in trees.all() if trees is not None else ():
        most[rule.limiter.setting] = max(rule.limiter.spec.budget, most.get(rule.limiter.setting, 0))
    found: dict[TreeKey, dict[str, StoredAccount]] = {}
    for one in kept:
        key = parse_tree_key(one.key)
        if key is not None:
            found.setdefault(key._replace(family=""), {})[key.family] = one
    usd = most.pop(USD, None)
    tokens = next(iter(most.values()), None)
    made = [_state(key, accounts, usd, tokens) for key, accounts in found.items()]
    return sorted(made, key=lambda one: (one.shadow, -one.share, one.caller, one.root))


def _state(key: TreeKey, accounts: dict[str, StoredAccount], usd: int | None, tokens: int | None) -> TreeSpending:
    used = {family: one.used for family, one in accounts.items()}
    return TreeSpending(
        project=project_of(key.place),
        caller=key.caller,
        root=key.root,
        microusd=used.pop(_MICROUSD, 0),
        microusd_limit=usd,
        tokens=sum(used.values()),
        tokens_limit=tokens,
        last_at=max(one.ends for one in accounts.values()) - KEPT_S,
        shadow=key.shadow,
    )
