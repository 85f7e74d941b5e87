"""Whether judging a request needs its body (SPEC D-1): one that nobody looks at can pass in pieces, however large."""

from __future__ import annotations

from typing import Final

from breakloop.model.call import Call
from breakloop.policy.compiled import CompiledBundle
from breakloop.wire.dialects import of_path

_NO_TEXT: Final = (b"multipart/", b"audio/", b"image/", b"video/", b"application/octet-stream", b"application/zip")
BODY_DESCRIPTORS: Final = frozenset(("agent:session", "llm:model", "llm:provider", "tool:name"))


def needs_body(bundle: CompiledBundle, host: str, method: str, path: str, content_type: bytes) -> bool:
    """Tell whether anything in the bundle would look into the body of such a request."""
    loops_decided, says_tokens = False, bool(of_path(path))  # what limits of tokens and money read is found by the path
    if says_tokens and bundle.agents.metered:
        return True
    for policy in bundle.routes.match(host, method, path):
        if (
            policy.loops
            or policy.rejects_large_bodies
            or (says_tokens and (policy.metered or policy.breaker is not None))
            or any(name in BODY_DESCRIPTORS for name, _ in policy.descriptors)
        ):
            return True
        loops_decided = loops_decided or (policy.decides_loops and not policy.shadow)
    if not BODY_DESCRIPTORS.isdisjoint(bundle.kill_switches.keys):
        return True
    # The protection of LLM calls finds them by their path, or in JSON, whatever the type says. Only what is clearly no
    # text, and goes nowhere where LLMs answer, is none.
    has_loops = bool(bundle.default_loops or bundle.project_loops)
    return has_loops and not loops_decided and (says_tokens or not content_type.lower().startswith(_NO_TEXT))


def rejects_large(bundle: CompiledBundle | None, call: Call) -> bool:
    """Tell whether a policy for this call does not want bodies to pass that are too large to be judged (SPEC Y-2)."""
    if bundle is None:
        return False
    return any(policy.rejects_large_bodies for policy in bundle.routes.match(call.host, call.method, call.path))
