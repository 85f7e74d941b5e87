"""Which upstream a request goes to, and under which path (SPEC D-2, R-3). Policies see the normal form of the path;
what is sent is the original, unless that could mean something else there. Reserved paths are the door's business."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from breakloop.errors import RequestError
from breakloop.model.upstream import BUILTIN, Upstream, parse_upstream, upstreams
from breakloop.policy.paths import normalise, strip_agent
from breakloop.policy.recent import Remembered

__all__ = ["BUILTIN", "Destination", "Targets", "Upstream", "is_azure", "parse_upstream", "upstreams"]

_VERSION: Final = re.compile(r"v[0-9]+(?:(?:alpha|beta)[0-9]*)?")
_OPENAI: Final = "openai"
_OPENAI_HOST: Final = "api.openai.com"
_AZURE_HOSTS: Final = (".azure.com", ".azure.us", ".azure.cn")
_DOT_SEGMENT: Final = re.compile(rb"/(?:\.|%2e){1,2}(?:/|$)", re.IGNORECASE)
_DOTS_AND_MORE: Final = re.compile(r"/\.\.?(?:;|%3B)")


class Destination(NamedTuple):
    """Where a request goes."""

    upstream: Upstream
    path: str  # normalised, without /agents/x and /{upstream}: what policies see
    target: bytes  # the path to send, without query
    agent: str  # of /agents/{agent}, or ""


class Targets:
    """Finds destinations among the upstreams, of which the first is the default. Remembers, because paths recur."""

    __slots__ = ("_azure", "_by_name", "_default", "_found", "_found_for_anthropic")

    def __init__(self, upstreams: Sequence[Upstream]) -> None:
        self._default = upstreams[0]
        self._by_name = {upstream.name: upstream for upstream in upstreams}
        self._azure = next(filter(is_azure, upstreams), None)
        self._found = Remembered(partial(self._find, v1=self._default))
        anthropic = self._by_name.get("anthropic", self._default)
        self._found_for_anthropic = Remembered(partial(self._find, v1=anthropic))

    def find(self, path: bytes, headers: Mapping[str, bytes]) -> Destination:
        """Return where a path (as sent, without query) goes; raises `RequestError` (400) for one with two meanings.

        `/v1/models` and the like are paths of several providers; Anthropic's clients say `anthropic-version`.
        """
        return (self._found_for_anthropic if "anthropic-version" in headers else self._found)[path]

    def _find(self, raw: bytes, v1: Upstream) -> Destination:
        path = normalise(raw)
        if path[0] != "/":
            raise RequestError(400, "the path does not begin with a slash")
        agent = strip_agent(path)[0]
        cut = 2 if agent else 0  # how many segments of the original are not sent
        upstream, named = self._choose(_after(path, cut), v1)
        cut += named
        rest = _after(path, cut)
        base = upstream.base.decode("ascii")
        if _DOTS_AND_MORE.search(path):
            raise RequestError(400, "the path holds a dot segment with parameters")
        version, doubled = _overlap(base, rest)
        cut += doubled
        rest = _after(path, cut)
        target = upstream.base + _as_sent(raw, cut, rest, bool(base))
        return Destination(upstream, version + rest or "/", target or b"/", agent)

    def _choose(self, path: str, v1: Upstream) -> tuple[Upstream, int]:
        """The upstream, and how many segments (0 or 1) only served to name it."""
        segment = path.split("/", 2)[1] if path else ""
        named = self._by_name.get(segment)
        if segment == _OPENAI:
            azure = self._azures(path, named)
            if azure is not None:
                return azure, azure.base.endswith(b"/openai")
        if named is not None:
            return named, 1
        if _is_below(path, "/v1/messages"):
            return self._by_name.get("anthropic", self._default), 0
        if segment == "v1beta":
            return self._by_name.get("gemini", self._default), 0
        return v1 if segment == "v1" else self._default, 0

    def _azures(self, path: str, openai: Upstream | None) -> Upstream | None:
        """Who gets a path below /openai as it is, because that is Azure's own beginning and not the name of `openai`.

        OpenAI has nothing outside of /v1, and nobody but Azure, and what stands in for it, has deployments.
        """
        if _is_below(path, "/openai/deployments"):
            return self._azure or (self._default if self._default.host != _OPENAI_HOST else None)
        if openai is None or is_azure(openai):
            return openai
        if openai.host == _OPENAI_HOST and not openai.base and not _is_below(path, "/openai/v1"):
            return self._azure
        return None


def _after(path: str, count: int) -> str:
    """What follows the first `count` segments: from a slash on, or nothing."""
    parts = path.split("/", count + 1)
    return "/" + parts[-1] if len(parts) == count + 2 else ""


def _overlap(base: str, path: str) -> tuple[str, int]:
    """The version that the base ends in (`/v1`), and how many segments of the path say again what the base says.

    So https://x/v1 takes /v1/chat/completions and /chat/completions alike, and policies see the first for both.
    """
    segments = base.split("/")[1:]
    if not segments or not _VERSION.fullmatch(segments[-1]):
        return "", 0
    for count in range(len(segments), 0, -1):
        if _is_below(path, "/" + "/".join(segments[-count:])):
            return "/" + segments[-1], count
    return "/" + segments[-1], 0


def _as_sent(raw: bytes, cut: int, rest: str, has_base: bool) -> bytes:  # noqa: FBT001 - private, one caller
    """The original without its first segments, where it means the same as `rest`; else `rest`.

    It does not where dot segments reach over the cut. With a base they would leave it, so they are not sent at all.
    """
    parts = raw.split(b"/", cut + 1)
    original = b"/" + parts[-1] if len(parts) == cut + 2 else b""
    if normalise(original) != (rest or "/") or (has_base and _DOT_SEGMENT.search(original)):
        return rest.encode("ascii")
    return original


def _is_below(path: str, start: str) -> bool:
    return path.startswith(start) and path[len(start) : len(start) + 1] in ("", "/")


def is_azure(upstream: Upstream) -> bool:
    """Tell whether it is Azure's, whose paths and key header are its own."""
    return upstream.host.endswith(_AZURE_HOSTS)
