"""Which descriptor names exist (SPEC C-6) and what is wrong with one that does not. Reading a descriptor's value from
a request is `policy.descriptors`' work."""

from __future__ import annotations

import re

from breakloop.policy.suggest import did_you_mean

FIXED: dict[str, tuple[str, ...]] = {
    "ip": ("address", "country", "asn", "type", "tor"),
    "ua": ("bot", "bot_category"),
    "agent": ("id", "session"),
    "caller": ("key",),
    "project": ("id",),
    "llm": ("model", "provider"),
    "tool": ("name",),
    "upstream": ("name",),
}
OPEN: dict[str, str] = {"jwt": "a claim", "header": "a header name", "query": "a query parameter"}

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
# Claims may be namespaced by a URL, which identity providers do; dots separate nested claims.
_CLAIM = re.compile(r"[A-Za-z0-9_@:/-]+(?:\.[A-Za-z0-9_@:/-]+)*")
_QUERY = re.compile(r"[^\s&=#]+")
_NAME_PATTERNS = {"jwt": _CLAIM, "header": _TOKEN, "query": _QUERY}


def canonical(text: str) -> str:
    """Return the one spelling of a valid descriptor: header names in lower case with `-`."""
    if text.startswith("header:"):
        return text.lower().replace("_", "-")
    return text


def fault(text: str) -> tuple[str, str] | None:
    """Return (message, hint) saying what is wrong with a descriptor, or None when it is fine."""
    kind, colon, name = text.partition(":")
    if not colon:
        return _without_kind(text)
    if kind in FIXED:
        return None if name in FIXED[kind] else _bad_name(kind, name)
    if kind in OPEN:
        if _NAME_PATTERNS[kind].fullmatch(name):
            return None
        if not name:
            return f'descriptor "{text}" names nothing', f'write {OPEN[kind]} after "{kind}:"'
        return f'descriptor "{text}" has a character that cannot stand in {OPEN[kind]}', ""
    guess = did_you_mean(kind.lower(), [*OPEN, *FIXED])
    return f'unknown descriptor kind "{kind}" in "{text}"{guess}', "kinds: " + ", ".join([*OPEN, *FIXED])


def _bad_name(kind: str, name: str) -> tuple[str, str]:
    guess = did_you_mean(name.lower(), FIXED[kind], prefix=f"{kind}:")
    return f'unknown descriptor "{kind}:{name}"{guess}', f"known: {', '.join(f'{kind}:{n}' for n in FIXED[kind])}"


def _without_kind(text: str) -> tuple[str, str]:
    every = [f"{kind}:{name}" for kind, names in FIXED.items() for name in names]
    near = [known for known in every if text in (known.replace(":", "_"), known.split(":")[0], known.replace(":", "."))]
    guess = f'; did you mean "{near[0]}"?' if near else ""
    return f'descriptor "{text}" has no kind{guess}', "write kind:name, for example header:x-tool-name or jwt:org_id"
