"""Building and parsing of state keys.

A key consists of parts joined by `:`. Every part that a client can choose is escaped, so that ("a:b", "c") and
("a", "b:c") are different keys and no client can name the key of another.

    rule      [shadow:]FAMILY:PLACE:POLICY:RULE:VALUES[:PERIOD]   families tb, cb, tpm, tpd, brk
    run       [shadow:]run:PLACE:POLICY:RULE:OWNER:START[:paid]
    account   [shadow:]treeusd|treetok:PLACE:CALLER|ROOT          what the agents of a tree have spent
    count     [shadow:]ld|cnt:PLACE:[OWNER:]BLOCK:FINGERPRINT     BLOCK is POLICY:INDEX, with `|` in front for defaults
    traffic   [shadow:]mix:PLACE:BLOCK:SENDER                     the last requests of a sender, see `ops.is_mixed`
    landed    [shadow:]land:PLACE:BLOCK:OWNER                     how many calls of a session were landed
    window    win:PLACE:OWNER:
    chain     chain:CALLER:ANSWER
    tree      tree:CALLER:SESSION

PLACE is the project, or `PROJECT|AGENT` where state is split by agent (`shard_by: agent`). It determines
the slot in a Redis cluster. VALUES are those of the rule's `limit_keys`, joined by `|`.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

PART_MAX: Final = 256
SHADOW: Final = "shadow:"
AGENT_MARK: Final = "|"  # between project and agent
_RULE_PARTS: Final = 5
TREE_FAMILIES: Final = ("treeusd", "treetok")  # the accounts of a tree: micro-dollars, tokens
_TREE_PARTS: Final = 3


def escape(value: str) -> str:
    """Return `value` with `%`, `:` and `|` percent-escaped, or a digest if it is long.

    A store is bounded by its number of entries, so clients must not control the size of an entry.
    """
    if len(value) > PART_MAX:
        # No escaped value begins with `%~`.
        return "%~" + blake2b(value.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return value if value.isalnum() else _escaped(value)


@lru_cache(4096)  # callers and sessions are the same in many requests
def _escaped(value: str) -> str:
    return value.replace("%", "%25").replace(":", "%3A").replace("|", "%7C")


def unescape(escaped: str) -> str:
    """Return the original value; for a long one, the digest."""
    return escaped.replace("%7C", "|").replace("%3A", ":").replace("%25", "%")


def join_values(values: list[str]) -> str:
    """Join several values into one part, in order."""
    if len(values) == 1:
        return escape(values[0])
    return "|".join([escape(value) for value in values])


def split_values(values: str) -> list[str]:
    """Return the values that `join_values` joined."""
    return [unescape(value) for value in values.split("|")]


# -- building ----------------------------------------------------------------------------------------------------------


def prefix(group: int) -> str:
    """Return the prefix of a group's keys: the state of shadow policies is separate."""
    return SHADOW if group else ""


def window_key(owner: str) -> str:
    """Return the key of a window; `owner` includes the place. The final `:` separates it from longer owners with the
    same prefix.
    """
    return f"win:{owner}:"


def run_key(place: str, rule: str, owner: str, start: float, group: int) -> str:
    """Return the key of the account of a run; `rule` is policy and rule, between colons."""
    return f"{prefix(group)}run:{place}{rule}{owner}:{round(start * 1e6)}"


def tree_account(family: str, place: str, root: str, group: int) -> str:
    """Return the key of an account of a tree; `root` is its caller and root (`join_values`)."""
    return f"{prefix(group)}{family}:{place}:{root}"


def chain_key(caller: str, answer: str) -> str:
    """Return the key that maps a response to its session."""
    return f"chain:{escape(caller)}:{escape(answer)}"


def tree_key(caller: str, session: str) -> str:
    """Return the key that maps a session to its place in a tree of agents."""
    return f"tree:{escape(caller)}:{escape(session)}"


# -- parsing -----------------------------------------------------------------------------------------------------------


def fingerprint_of(key: str) -> str:
    return key.rpartition(":")[2]


def place_of(key: str) -> str:
    """Return the place of a key, which may be truncated."""
    return split_place(key)[0]


def split_place(key: str) -> tuple[str, str]:
    """Return the place of a key and the separator after it, which is empty if the key may be truncated within its
    place.
    """
    family, _, rest = key.partition(":")
    if family == "shadow":
        rest = rest.partition(":")[2]
    place, end, _ = rest.partition(":")
    return place, end


def project_of(place: str) -> str:
    """Return the project of a place, unescaped."""
    return unescape(place.partition(AGENT_MARK)[0])


class RuleKey(NamedTuple):
    shadow: bool
    place: str
    policy: str
    values: str


def parse_rule_key(key: str) -> RuleKey | None:
    """Parse the key of a rule's counter without a period; None if it is not one."""
    parts = key.removeprefix(SHADOW).split(":")
    if len(parts) != _RULE_PARTS:
        return None
    _, place, policy, _, values = parts
    return RuleKey(key.startswith(SHADOW), place, unescape(policy), values)


class TreeKey(NamedTuple):
    shadow: bool
    family: str
    place: str
    caller: str
    root: str


def parse_tree_key(key: str) -> TreeKey | None:
    """Parse the key of a tree's account; None if it is not one."""
    parts = key.removeprefix(SHADOW).split(":")
    if len(parts) != _TREE_PARTS or parts[0] not in TREE_FAMILIES:
        return None
    values = split_values(parts[2])
    if len(values) != 2:
        return None
    return TreeKey(key.startswith(SHADOW), parts[0], parts[1], *values)
