"""Limits through `Engine.decide` and `settle`: random policies, several callers at once, answers in any order, late,
twice or never, and a clock that steps back and over the ends of periods. A model beside it adds everything up by itself.

The model knows nothing of limiters or stores. It is told what each request may use and has used, and works with whole
numbers and fractions: periods from the calendar, buckets from what flowed back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from breakloop.engine.decision_state import state_of
from breakloop.model.call import CLIENT_LEFT, NO_ANSWER, Answer, Call, Usage
from breakloop.model.verdict import Verdict
from breakloop.pricing.prices import ListedModel, Price, Prices
from breakloop.store.limit_ops import ChargeBudget, TakeTokens
from tests.builders import Json, World, bucket, bundle, call, chat_body, policy, user, world
from tests.stores import NO_LIMITER, NO_RULE

IN, OUT = 3, 7  # micro-dollars for a token
PRICE: Final = Price(IN * 1_000_000, OUT * 1_000_000)
LENGTHS = {"5m": 300, "1h": 3600, "1d": 86_400}
REJECT = [{"threshold_percent": 100, "action": "reject"}]
LATE_S: Final = 3600  # so long after its end an account can still be corrected
BACK_S: Final = 1800  # so far the clock may step back: accounts that are long over are dropped when room is needed


@dataclass(frozen=True)
class Account:
    """A budget of a period, in plain costs (thousandths), tokens or micro-dollars."""

    name: str
    unit: str
    budget: int  # in units
    period: str
    keyed: bool

    def data(self) -> Json:
        config: Json = {"period": self.period, "staged_actions": REJECT}
        if self.unit == "cost":
            config |= {"budget": self.budget / 1000, "fixed_cost": 1}
        elif self.unit == "tokens":
            config |= {"budget": self.budget, "cost_key": "usage:tokens"}
        else:
            config |= {"budget": self.budget / 1_000_000, "cost_key": "usage:usd"}
        return _rule(self, "cost_based", config)

    def amount(self, tokens: int, microusd: int) -> int:
        return {"cost": 1000, "tokens": tokens, "usd": microusd}[self.unit]


@dataclass(frozen=True)
class Flow:
    """A bucket: of requests, or of an LLM's tokens with what flows back in a minute."""

    name: str
    unit: str
    rate: Fraction  # a second
    burst: int
    keyed: bool

    def data(self) -> Json:
        if self.unit == "requests":
            return {**bucket(self.name, float(self.rate), self.burst), "limit_keys": _keys(self)}
        return _rule(self, "token_bucket_llm", {"tokens_per_minute": int(self.rate * 60), "burst_tokens": self.burst})

    def amount(self, tokens: int, _microusd: int) -> int:
        return 1 if self.unit == "requests" else tokens


Limit = Account | Flow


def _keys(limit: Limit) -> list[str]:
    return ["header:x-team"] if limit.keyed else []


def _rule(limit: Limit, algorithm: str, config: Json) -> Json:
    return {"name": limit.name, "limit_keys": _keys(limit), "algorithm": algorithm, "algorithm_config": config}


@dataclass
class Model:
    """What everybody has used. Time stands still while the clock is behind."""

    limits: list[Limit]
    latest: float = 0.0  # as the store has it: the latest time it was asked at
    used: dict[tuple[str, str, int], int] = field(default_factory=dict)  # rule, team, start of the period
    ends: dict[tuple[str, str, int], float] = field(default_factory=dict)
    tokens: dict[tuple[str, str], tuple[Fraction, float]] = field(default_factory=dict)

    def account(self, limit: Account, team: str, clock: float) -> tuple[str, str, int]:
        length = LENGTHS[limit.period]
        return limit.name, team if limit.keyed else "", int(clock) // length * length

    def left(self, limit: Flow, team: str) -> Fraction:
        left, last = self.tokens.get((limit.name, team if limit.keyed else ""), (Fraction(limit.burst), self.latest))
        return min(left + (Fraction(self.latest) - Fraction(last)) * limit.rate, Fraction(limit.burst))

    def fits(self, limit: Limit, team: str, clock: float, amount: int) -> bool:
        if isinstance(limit, Flow):
            return amount <= self.left(limit, team)
        return self.used.get(self.account(limit, team, clock), 0) + amount <= limit.budget

    def charge(self, limit: Limit, team: str, clock: float, amount: int) -> None:
        if isinstance(limit, Flow):
            self.flow(limit, team, amount)
            return
        account = self.account(limit, team, clock)
        self.used[account] = self.used.get(account, 0) + amount
        self.ends[account] = max(account[2] + LENGTHS[limit.period], self.latest)

    def flow(self, limit: Flow, team: str, amount: int) -> None:
        left = min(self.left(limit, team) - amount, Fraction(limit.burst))
        self.tokens[(limit.name, team if limit.keyed else "")] = (left, self.latest)

    def correct(self, limit: Limit, team: str, charged_at: float, amount: int) -> None:
        """To the period that was charged, whenever the answer comes; unless it is long over."""
        if isinstance(limit, Flow):
            self.flow(limit, team, amount)
            return
        account = self.account(limit, team, charged_at)
        if self.latest < self.ends[account] + LATE_S:
            self.used[account] = max(0, self.used[account] + amount)


@dataclass
class Open:
    """A request that was let through."""

    asked: Call
    team: str
    at: float
    prompt: int
    most: int
    settled: bool = False


# -- what happens ------------------------------------------------------------------------------------------------------

COSTS = st.builds(Account, st.just("c"), st.just("cost"), st.sampled_from([3000, 7000]), st.just("5m"), st.booleans())
USD = st.builds(
    Account, st.just("u"), st.just("usd"), st.sampled_from([4000, 20_000]), st.sampled_from(["5m", "1d"]), st.booleans()
)
USED = st.builds(
    Account, st.just("t"), st.just("tokens"), st.sampled_from([600, 3000]), st.sampled_from(["5m", "1h"]), st.booleans()
)
RATES = st.builds(
    Flow, st.just("r"), st.just("requests"), st.just(Fraction(1, 4)), st.sampled_from([2, 5]), st.booleans()
)
TPM = st.builds(Flow, st.just("m"), st.just("llm"), st.just(Fraction(10)), st.sampled_from([600, 2000]), st.booleans())
LIMITS = st.lists(st.one_of(COSTS, USD, USED, RATES, TPM), min_size=1, max_size=5, unique_by=lambda one: one.name)
# Eighths of a second: exact in binary, so that fractions and floating point agree on what is enough.
TICKS = st.sampled_from([0, 0, 0, 1, 8, 80, 480, 2392, 2400, 28_800, 700_000, -8, -800, -2400])
ASK = st.tuples(st.just("ask"), st.sampled_from("ab"), st.integers(0, 300), st.sampled_from([0, 5, 50, 150, 400]))
# Which open request, what came: as counted, cut off, an error, nothing at all.
SETTLE = st.tuples(
    st.just("settle"),
    st.integers(0, 50),
    st.sampled_from(["usage", "usage", "cut", "error", "never"]),
    st.integers(0, 500),
)
STEPS = st.lists(st.tuples(TICKS, st.one_of(ASK, ASK, SETTLE)), max_size=60)


def made(prompt: int, most: int, team: str) -> Call:
    headers = {"authorization": "Bearer k", "x-team": team}
    body = chat_body(user("x" * (4 * prompt)), max_tokens=most)
    asked = call("/v1/chat/completions", "POST", headers, body=body)
    asked.tracked = True
    return asked


def here_with(limits: list[Limit]) -> World:
    here = world(bundle(policy("p", *[one.data() for one in limits])))
    prices = Prices(ListedModel({"gpt-x": PRICE}, "a test"))
    here.engine.meter._prices = lambda: prices
    return here


def answer(kind: str, one: Open, tokens: int) -> tuple[Answer, tuple[int, int] | None]:
    """An answer, and what it has used in tokens and money; None: nobody knows."""
    if kind == "never":
        return Answer(NO_ANSWER), None
    if kind == "error":
        return Answer(503), (0, 0)
    if kind == "cut":
        return Answer(CLIENT_LEFT, "y" * (4 * tokens)), (one.prompt + tokens, one.prompt * IN + tokens * OUT)
    usage = Usage(one.prompt + 7, tokens)
    return Answer(200, "ok", usage=usage, complete=True), (
        one.prompt + 7 + tokens,
        (one.prompt + 7) * IN + tokens * OUT,
    )


def ask(here: World, model: Model, team: str, prompt: int, most: int) -> Open | None:
    """Ask, and see that the answer is the model's; whatever is denied changes nothing."""
    clock, tokens, microusd = here.clock.now(), prompt + most, prompt * IN + most * OUT
    model.latest = max(model.latest, clock)
    asked = made(prompt, most, team)
    verdict = here.engine.decide(asked)
    lacking = [one for one in model.limits if not model.fits(one, team, clock, one.amount(tokens, microusd))]
    assert verdict.allowed == (not lacking), (verdict.reason, lacking)
    if lacking:
        assert verdict.rule == lacking[0].name
        assert state_of(asked).charges is None
        return None
    for one in model.limits:
        model.charge(one, team, clock, one.amount(tokens, microusd))
    _shown(model, verdict)
    return Open(asked, team, clock, prompt, most)


def _shown(model: Model, verdict: Verdict) -> None:
    """What the client is told of is one of the limits that hold."""
    assert verdict.rule in {one.name for one in model.limits}
    assert verdict.limit is not None
    assert verdict.limit.remaining >= 0


def settle(here: World, model: Model, one: Open, kind: str, tokens: int) -> None:
    """Settle; a second time nothing may change."""
    told, used = answer(kind, one, tokens)
    here.engine.settle(one.asked, told)
    if one.settled:
        return
    one.settled = True
    if used is None:
        return
    before = (one.prompt + one.most, one.prompt * IN + one.most * OUT)
    estimated = [limit for limit in model.limits if limit.unit not in {"cost", "requests"}]
    wrong = [(limit, limit.amount(*used) - limit.amount(*before)) for limit in estimated]
    if any(amount for _, amount in wrong):
        model.latest = max(model.latest, here.clock.now())
    for limit, amount in wrong:
        if amount:
            model.correct(limit, one.team, one.at, amount)


def totals(here: World, model: Model) -> None:
    """Every account holds what the model says, to the unit, and every bucket what has flowed back."""
    store: Any = here.store
    kept = {**store.kept()["accounts"], **store.kept()["spent"]}
    accounts = {key: entry for key, entry in kept.items() if entry[0] > model.latest}
    expected = {
        f"cb:default:p:{name}:{team}:{start}": amount
        for (name, team, start), amount in model.used.items()
        if model.ends[(name, team, start)] + LATE_S > model.latest
    }
    assert {key: entry[1] for key, entry in accounts.items()} == expected
    for limit in model.limits:
        if not isinstance(limit, Flow):
            continue
        for team in ("a", "b"):
            family = "tb" if limit.unit == "requests" else "tpm"
            key = f"{family}:default:p:{limit.name}:{team if limit.keyed else ''}"
            [bucket_of] = [rule.limiter for rule in _rules(here) if rule.name == limit.name]
            spec = bucket_of.spec if limit.unit == "requests" else bucket_of._bucket.spec
            found: list[Any] = []
            TakeTokens(spec, key, 0.0, NO_LIMITER, NO_RULE).check(store.kept(), model.latest, found, [])
            (left,) = found
            assert abs(Fraction(left) - model.left(limit, team)) < Fraction(1, 10**6)


def _rules(here: World) -> list[Any]:
    assert here.engine.bundle is not None
    return list(here.engine.bundle.policies[0].rules)


@given(limits=LIMITS, steps=STEPS)
def test_nothing_passes_a_limit_and_nothing_is_lost(
    limits: list[Limit], steps: list[tuple[int, tuple[Any, ...]]]
) -> None:
    """Who is let in, who is denied by what, and every total, over any order of answers (L-1, L-2, L-3, E-4)."""
    here, model = here_with(limits), Model(limits)
    running: list[Open] = []
    for ticks, step in steps:
        if here.clock.now() + ticks / 8 > model.latest - BACK_S:
            here.clock.advance(ticks / 8)
        if step[0] == "ask":
            _, team, prompt, most = step
            one = ask(here, model, team, prompt, most)
            if one is not None:
                running.append(one)
        elif running:
            _, which, kind, tokens = step
            settle(here, model, running[which % len(running)], kind, tokens)  # it stays: it may be settled twice
        totals(here, model)


@given(
    costs=st.lists(st.integers(1, 400), min_size=1, max_size=30),
    order=st.randoms(use_true_random=False),
    most=st.sampled_from([800, 4000]),
)
def test_the_sum_is_the_same_in_every_order(costs: list[int], order: Any, most: int) -> None:
    """Whatever was estimated, in the end exactly what was used is charged; nothing twice, however often told (L-3)."""
    here = here_with([Account("u", "usd", 50_000_000, "1d", keyed=False)])
    asked = [made(3, most, "a") for _ in costs]
    assert all(here.engine.decide(one).allowed for one in asked)
    answers = [(one, Answer(200, usage=Usage(3, cost), complete=True)) for one, cost in zip(asked, costs, strict=True)]
    answers += order.choices(answers, k=len(answers))
    order.shuffle(answers)
    for one, told in answers:
        here.engine.settle(one, told)
    probe = made(0, 0, "a")
    here.engine.decide(probe)
    [op] = state_of(probe).charges or []
    assert isinstance(op, ChargeBudget)
    store: Any = here.store
    assert store.kept()["accounts"][op.key][1] == sum(3 * IN + cost * OUT for cost in costs)
