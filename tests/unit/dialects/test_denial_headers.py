"""Verdict to header fields: exact lines, quoting, jitter."""

from __future__ import annotations

import pytest

from breakloop.dialects.denial import VerdictHeaders, quoted
from breakloop.model.verdict import LimitState, LoopFinding, TreeBudgetState, Verdict

ANSWERS = VerdictHeaders("X-Breakloop-", b"key")
LOOP = LoopFinding("tail", "f" * 32, 6, 60, 30, "reject", fresh=True, message="m", evidence="e")


def limited(base: int | None, *, jitter: bool = True, policy: str = "p") -> Verdict:
    verdict = Verdict(allowed=False, reason="token_bucket_exceeded", status=429, policy=policy, rule="r")
    verdict.retry_after_s, verdict.retry_jitter = base, jitter
    verdict.limit = LimitState(policy, 10, 1, 0, base or 7)
    return verdict


def denied(verdict: Verdict, identity: str = "ip:192.0.2.1") -> list[str]:
    return ANSWERS.denied(verdict, "r1", identity).decode("latin-1").split("\r\n")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plain", '"plain"'),
        ('with "quotes"', '"with \\"quotes\\""'),
        ("back\\slash", '"back\\\\slash"'),
        ("größe", '"gr??e"'),
        ("line\r\nSet-Cookie: a", '"line??Set-Cookie: a"'),
        ("tab\tdel\x7f", '"tab?del?"'),
    ],
)
def test_policy_names_are_structured_field_strings(name: str, text: str) -> None:
    """Printable ASCII between quotes, quotes and backslashes escaped, and no way to begin a line (A-1)."""
    assert quoted(name) == text
    assert any(line.startswith(f"RateLimit: {text};r=0;t=12") for line in denied(limited(12, policy=name)))


def test_all_lines_of_a_limit_denial() -> None:
    """In this order, without jitter where none is wanted (A-1)."""
    assert denied(limited(12, jitter=False)) == [
        "X-Breakloop-Request-Id: r1",
        "X-Breakloop-Reason: token_bucket_exceeded",
        "X-Breakloop-Stop-Reason: limit",
        "Retry-After: 12",
        'RateLimit-Policy: "p";q=10;w=1',
        "RateLimit-Limit: 10",
        'RateLimit: "p";r=0;t=12',
        "RateLimit-Remaining: 0",
        "RateLimit-Reset: 12",
        "",
    ]


def test_what_can_never_pass_says_so() -> None:
    """No `Retry-After`, and SDKs are told not to retry (L-4, A-1)."""
    verdict = limited(None)
    verdict.never = True
    found = denied(verdict)
    assert "x-should-retry: false" in found
    assert not any(line.startswith("Retry-After") for line in found)


def test_a_loop_denial_is_not_jittered() -> None:
    """Exactly the window or the remaining cooldown, for everybody (A-2)."""
    verdict = Verdict(allowed=False, reason="loop_detected", status=429, policy="p")
    verdict.loop, verdict.retry_after_s, verdict.never = LOOP, 30, True
    for number in range(20):
        assert denied(verdict, f"ip:{number}")[3:] == [
            "Retry-After: 30",
            "x-should-retry: false",
            'RateLimit: "p";r=0;t=30',
            "RateLimit-Reset: 30",
            "",
        ]


@pytest.mark.parametrize(("base", "most"), [(1, 2), (2, 3), (3, 4), (10, 15), (60, 90), (3600, 5400)])
def test_jitter_is_up_to_half_more_and_spread_over_identities(base: int, most: int) -> None:
    """Between the base and half more, every value is somebody's, and never less than the truth (A-2)."""
    waits = {ANSWERS.retry_after_s(limited(base), f"key:{number}") for number in range(1000)}
    assert min(filter(None, waits)) >= base
    assert max(filter(None, waits)) <= most
    assert len(waits) >= min(most - base + 1, 300)


def test_jitter_is_the_same_for_the_same_identity() -> None:
    """Deterministic, on every instance that shares the secret; another secret gives others (A-2)."""
    mine = [ANSWERS.retry_after_s(limited(1000), f"key:{n}") for n in range(50)]
    same = [VerdictHeaders("Y-", b"key").retry_after_s(limited(1000), f"key:{n}") for n in range(50)]
    other = [VerdictHeaders("Y-", b"other").retry_after_s(limited(1000), f"key:{n}") for n in range(50)]
    assert mine == same
    assert mine != other


def test_ratelimit_reset_is_never_jittered() -> None:
    """Whoever reads the RateLimit fields gets the truth (A-2)."""
    for number in range(50):
        assert "RateLimit-Reset: 1000" in denied(limited(1000), f"key:{number}")
        assert 'RateLimit: "p";r=0;t=1000' in denied(limited(1000), f"key:{number}")


def test_an_identity_that_is_no_text_gets_its_jitter() -> None:
    """A token's subject may hold half a character (A-2)."""
    assert 10 <= (ANSWERS.retry_after_s(limited(10), "sub:\ud800") or 0) <= 15


def test_allowed_answers() -> None:
    """Request id, limit, warning with count, delay and note; nothing that is not there (A-5)."""
    verdict = Verdict(limit=LimitState("p", 10, 1, 9, 1))
    assert ANSWERS.allowed(Verdict(), "r1") == b"X-Breakloop-Request-Id: r1\r\n"
    verdict.warning, verdict.loop, verdict.delay_ms, verdict.note = "loop_detected", LOOP, 600, "Stop."
    assert ANSWERS.allowed(verdict, "r1").decode().split("\r\n") == [
        "X-Breakloop-Request-Id: r1",
        'RateLimit-Policy: "p";q=10;w=1',
        "RateLimit-Limit: 10",
        'RateLimit: "p";r=9;t=1',
        "RateLimit-Remaining: 9",
        "RateLimit-Reset: 1",
        "X-Breakloop-Warning: loop_detected",
        "X-Breakloop-Loop-Count: 6",
        "X-Breakloop-Loop-Delay: 600",
        "X-Breakloop-Note: Stop.",
        "",
    ]


def test_the_prepared_heads_are_bounded() -> None:
    """Many limits do not make memory grow for ever, and all of them are still rendered (Y-2)."""
    answers = VerdictHeaders("X-", b"key")
    for number in range(5000):
        head = answers.allowed(Verdict(limit=LimitState(f"p{number}", number + 1, 1, 0, 1)), "r")
        assert f'RateLimit-Policy: "p{number}";q={number + 1};w=1'.encode() in head
    assert len(answers._heads) <= 4096


def test_a_long_secret_is_fine() -> None:
    """The hash takes 64 bytes of key; a longer secret is no error (A-2)."""
    assert VerdictHeaders("X-", b"k" * 200).retry_after_s(limited(10), "a") is not None


def test_the_reset_of_a_denial_without_a_limit_is_not_jittered() -> None:
    """Only `Retry-After` is spread, also where the store was to blame and there is no limit to show (A-2)."""
    verdict = limited(100)
    verdict.reason, verdict.limit = "store_unavailable", None
    waits = {line for number in range(20) for line in denied(verdict, f"ip:{number}") if "Retry-After" in line}
    assert len(waits) > 1
    for number in range(20):
        told = denied(verdict, f"ip:{number}")
        assert 'RateLimit: "p";r=0;t=100' in told
        assert "RateLimit-Reset: 100" in told


def test_a_status_past_a_gateway() -> None:
    """What the client's status would be, were the gateway not to read it otherwise (D-3)."""
    assert VerdictHeaders("X-B-", b"s").real_status(503) == b"X-B-Status: 503\r\n"


def test_what_is_left_to_a_tree_of_agents() -> None:
    """In dollars and tokens, with allowed requests and denials; a note without a warning is sent, too (G-6)."""
    verdict = Verdict()
    verdict.tree, verdict.note = TreeBudgetState(12_340_005, 77), "Budget: little."
    assert ANSWERS.allowed(verdict, "r1").decode().split("\r\n")[1:] == [
        "X-Breakloop-Note: Budget: little.",
        "X-Breakloop-Tree-Usd-Left: 12.340005",
        "X-Breakloop-Tree-Tokens-Left: 77",
        "",
    ]
    refused = Verdict(allowed=False, reason="tree_budget_exceeded", status=429)
    refused.tree = TreeBudgetState(None, 0)
    assert denied(refused)[3:] == ["X-Breakloop-Tree-Tokens-Left: 0", ""]


def test_each_state_of_a_limit_has_its_own_lines() -> None:
    """Also where the same object comes again, another one in between, or none (A-2)."""
    write = VerdictHeaders("X-Breakloop-", b"secret")
    states = [LimitState("p", 10, 1, 9, 1), LimitState("p", 10, 1, 8, 2), LimitState("q", 10, 1, 9, 1)]
    for state in (states[0], states[0], states[1], None, states[1], states[2], states[0]):
        head = write.allowed(Verdict(limit=state), "1")
        expected = b"" if state is None else f'RateLimit: "{state.name}";r={state.remaining};t={state.reset_s}'.encode()
        assert head.count(b"RateLimit: ") == (state is not None)
        assert expected in head
