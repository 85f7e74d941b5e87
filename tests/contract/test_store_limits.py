"""What every store does with money: accounts of a period, breakers, corrections. The rest is in test_store.py."""

from __future__ import annotations

import pytest

from breakloop.store.limit_ops import BreakerSpec, BucketSpec, BudgetSpec, ChargeBudget, CheckBreaker, TakeTokens
from breakloop.store.ops import (
    AdjustCharge,
    BreakerResult,
    CommitResult,
    CountFingerprint,
    Deny,
    FingerprintCount,
    FingerprintSpec,
    Op,
    Store,
    StoredBreaker,
    StoredWindow,
    WindowWrite,
)
from tests.contract.test_store import NOW, TEN, take
from tests.redis_store import NewStore
from tests.stores import NO_LIMITER, NO_OWNER, NO_RULE

HUNDRED = BudgetSpec(100)
HOUR = 3600.0
TPM = BucketSpec(100.0, 6000.0)
THOUSAND = BreakerSpec(1000.0, 300.0)
ONLY_BY_HAND = BreakerSpec(1000.0, 0.0)


@pytest.fixture
def store(new_store: NewStore) -> Store:
    """An empty store of each kind."""
    return new_store()


def spend(store: Store, cost: int, now: float = NOW, key: str = "cb:k:1", ends: float = NOW + HOUR) -> tuple[int, bool]:
    """What is used after it, and whether it passed."""
    done = store.commit([ChargeBudget(HUNDRED, key, cost, ends, NO_LIMITER, NO_RULE)], now)
    (used,) = done.results
    assert type(used) is int
    return used, done.denied_at < 0


def ask(
    store: Store, amount: float, at: float = 0.0, spec: BreakerSpec = THOUSAND, key: str = "brk:k"
) -> BreakerResult:
    done = store.commit([CheckBreaker(spec, key, amount, NO_LIMITER, NO_RULE)], NOW + at)
    (result,) = done.results
    assert isinstance(result, BreakerResult)
    assert result.open == (done.denied_at == 0)
    return result


# -- accounts ----------------------------------------------------------------------------------------------------------


def test_a_budget_passes_exactly(store: Store) -> None:
    """Budget 100, cost 10: ten pass, the eleventh does not, and exactly 100 % is not too much (L-2)."""
    assert [spend(store, 10) for _ in range(11)] == [(10 * n, n <= 10) for n in range(1, 12)]


def test_what_is_denied_is_not_charged(store: Store) -> None:
    """Its result says what would have been used; what fits still passes (L-2, E-4)."""
    spend(store, 50)
    assert spend(store, 60) == (110, False)
    assert spend(store, 60) == (110, False)
    assert spend(store, 50) == (100, True)
    assert spend(store, 0) == (100, True)
    assert spend(store, 1) == (101, False)


@pytest.mark.parametrize("size", [2**53, 2**60])
def test_money_is_whole(store: Store, size: int) -> None:
    """Beyond what a float can count, one micro-dollar is one (L-5)."""
    large = BudgetSpec(size)
    used = [
        store.commit([ChargeBudget(large, "cb:k", cost, NOW + HOUR, NO_LIMITER, NO_RULE)], NOW)
        for cost in (size - 1, 1, 1)
    ]
    assert [done.results[0] for done in used] == [size - 1, size, size + 1]
    assert [done.denied_at for done in used] == [-1, -1, 0]


def test_large_money_is_corrected_exactly(store: Store) -> None:
    """Up, down, and not below nothing (L-5)."""
    large = BudgetSpec(2**62)
    store.commit([ChargeBudget(large, "cb:k", 2**60 + 1, NOW + HOUR, NO_LIMITER, NO_RULE)], NOW)
    for amount, used in ((2**60, 2**61 + 1), (-(2**30), 2**61 - 2**30 + 1), (-2, 2**61 - 2**30 - 1), (-(2**61), 0)):
        store.correct([AdjustCharge(large, "cb:k", amount)], NOW)
        assert store.commit([ChargeBudget(large, "cb:k", 0, NOW + HOUR, NO_LIMITER, NO_RULE)], NOW).results == [used]


def test_accounts_are_their_keys(store: Store) -> None:
    """Each key and period has its own; one that is full denies nobody else (L-2)."""
    assert spend(store, 100) == (100, True)
    assert spend(store, 100, key="cb:other:1") == (100, True)
    assert spend(store, 100, NOW + HOUR, "cb:k:2", NOW + 2 * HOUR) == (100, True)


def test_an_account_ends_with_its_period(store: Store) -> None:
    """Exactly then; also where a key is used again for the next one (L-2, S-2)."""
    spend(store, 100)
    assert spend(store, 1, NOW + HOUR - 0.1) == (101, False)
    assert spend(store, 100, NOW + HOUR, ends=NOW + 2 * HOUR) == (100, True)
    assert spend(store, 1, NOW + HOUR, ends=NOW + 2 * HOUR) == (101, False)


def test_each_charge_moves_the_end_along(store: Store) -> None:
    """The account of a run lives on while it is charged; what is denied does not keep it (G-1)."""
    spend(store, 60, ends=NOW + 10)
    assert spend(store, 30, NOW + 9, ends=NOW + 19) == (90, True)
    assert spend(store, 20, NOW + 18, ends=NOW + 28) == (110, False)
    assert spend(store, 20, NOW + 19, ends=NOW + 29) == (20, True)


def test_accounts_are_listed_for_operators(store: Store) -> None:
    """By prefix, the most used first, and none that has ended, or is something else (G-6)."""
    spend(store, 30, key="tree:a")
    spend(store, 70, key="tree:b")
    spend(store, 90, key="tree:c", ends=NOW + 1)
    spend(store, 50, key="other:d")
    store.commit([TakeTokens(TEN, "tree:e", 1.0, NO_LIMITER, NO_RULE)], NOW)
    assert [one.key for one in store.accounts("tree:", NOW, 2)] == ["tree:c", "tree:b"]
    listed = store.accounts("tree:", NOW + 1, 10)
    assert [(one.key, one.used, one.ends) for one in listed] == [
        ("tree:b", 70, NOW + HOUR),
        ("tree:a", 30, NOW + HOUR),
    ]
    assert store.accounts("nothing:", NOW, 10) == []


def test_a_clock_back_over_the_end_of_a_period_gives_nothing_away(store: Store) -> None:
    """What was used before counts, and so does what comes while the clock is behind (L-2, S-2)."""
    spend(store, 60)
    for number in range(50):
        spend(store, 1, NOW + HOUR + 1, f"cb:{number}:2", NOW + 2 * HOUR)
    assert spend(store, 30, NOW + HOUR - 1) == (90, True)
    assert spend(store, 30, NOW + HOUR - 1) == (120, False)
    assert spend(store, 70, NOW - 1, "cb:late:0", NOW) == (70, True)
    assert spend(store, 70, NOW - 1, "cb:late:0", NOW) == (140, False)


def test_budgets_and_buckets_are_charged_all_or_none(store: Store) -> None:
    """In whichever order they come, and what is behind a denial is not looked at (E-4)."""
    one, rich = TakeTokens(TEN, "tb:k", 1.0, NO_LIMITER, NO_RULE), TakeTokens(TEN, "tb:r", 11.0, NO_LIMITER, NO_RULE)
    dear, cheap = (
        ChargeBudget(HUNDRED, "cb:d", 101, NOW + 1, NO_LIMITER, NO_RULE),
        ChargeBudget(HUNDRED, "cb:c", 10, NOW + 1, NO_LIMITER, NO_RULE),
    )
    assert store.commit([cheap, one, dear, Deny(NO_OWNER)], NOW) == CommitResult([10, 9.0, 101, None], 2)
    assert store.commit([cheap, rich, one], NOW) == CommitResult([10, -1.0, None], 1)
    assert store.commit([Deny(NO_OWNER), cheap], NOW) == CommitResult([None, None], 0)
    assert store.commit([cheap, one], NOW) == CommitResult([10, 9.0], -1)
    assert store.commit([cheap, one], NOW) == CommitResult([20, 8.0], -1)


def test_groups_spend_for_themselves(store: Store) -> None:
    """A shadow budget denies its own group only; an enforced denial charges nobody (E-1, E-2)."""
    ops: list[Op] = [
        ChargeBudget(HUNDRED, "shadow:a", 10, NOW + 1, NO_LIMITER, NO_RULE, 1),
        ChargeBudget(HUNDRED, "shadow:b", 101, NOW + 1, NO_LIMITER, NO_RULE, 1),
        ChargeBudget(HUNDRED, "shadow:c", 10, NOW + 1, NO_LIMITER, NO_RULE, 2),
        ChargeBudget(HUNDRED, "cb:d", 10, NOW + 1, NO_LIMITER, NO_RULE),
    ]
    assert store.commit(ops, NOW) == CommitResult([10, 101, 10, 10], -1)
    assert store.commit([*ops, Deny(NO_OWNER)], NOW) == CommitResult([10, 101, 20, 20, None], 4)
    assert store.commit(ops, NOW).results == [10, 101, 20, 20]


# -- breakers ----------------------------------------------------------------------------------------------------------


def test_the_request_that_reaches_the_threshold_opens(store: Store) -> None:
    """900 + 100 of 1000 opens and is denied, and its spend counts in the rate; other keys stay closed (CB-1)."""
    assert ask(store, 900) == BreakerResult(False, 900.0)
    assert ask(store, 100) == BreakerResult(True, 1000.0, 300.0, "opened")
    assert ask(store, 100, key="brk:other") == BreakerResult(False, 100.0)


def test_just_below_the_threshold_is_closed(store: Store) -> None:
    """Nine tenths and a little are not one; ten tenths are, whatever floats make of them (CB-1)."""
    one = BreakerSpec(1.0, 300.0)
    assert [ask(store, 0.1, spec=one).open for _ in range(10)] == [False] * 9 + [True]
    assert not ask(store, 999.999999, key="brk:other").open


def test_the_rate_is_of_a_sliding_minute(store: Store) -> None:
    """Of the minute before, what is still within 60 s; of those before it, nothing (CB-1)."""
    assert NOW % 60 == 0
    ask(store, 400, 10)
    ask(store, 200, 59)
    assert ask(store, 0, 60).rate == 600.0
    assert ask(store, 100, 90).rate == 100 + 600 * 0.5
    assert ask(store, 0, 105).rate == 100 + 600 * 0.25
    assert ask(store, 0, 120).rate == 100.0
    assert ask(store, 7, 180).rate == 7.0
    assert ask(store, 8, 1000).rate == 8.0


def test_an_open_breaker_denies_and_counts_nothing(store: Store) -> None:
    """Until its reset, whatever is asked for; it says how long that is (CB-2)."""
    ask(store, 1000, 30)
    assert ask(store, 1, 30) == BreakerResult(True, 1000.0, 300.0)
    assert ask(store, 5000, 90) == BreakerResult(True, 500.0, 240.0)
    assert ask(store, 0, 329.75) == BreakerResult(True, 0.0, 0.25)


def test_one_probe_closes(store: Store) -> None:
    """Exactly at the reset one is let through; its rate is below the threshold, and all is as before (CB-2)."""
    ask(store, 1000)
    ask(store, 999, 299)
    assert ask(store, 1, 300) == BreakerResult(False, 1.0, 0.0, "closed")
    assert ask(store, 998, 300) == BreakerResult(False, 999.0)
    assert ask(store, 1, 300) == BreakerResult(True, 1000.0, 300.0, "opened")


def test_a_probe_over_the_threshold_opens_again(store: Store) -> None:
    """For another reset time, and of several that come at once none but the first is the probe (CB-2)."""
    ask(store, 1000)
    assert ask(store, 1000, 310) == BreakerResult(True, 1000.0, 300.0, "opened")
    assert ask(store, 1, 310) == BreakerResult(True, 1000.0, 300.0)
    assert ask(store, 1, 600) == BreakerResult(True, 0.0, 10.0)
    assert ask(store, 1, 610) == BreakerResult(False, 1.0, 0.0, "closed")


def test_a_reset_before_the_minute_is_over_finds_the_old_rate(store: Store) -> None:
    """A probe passes if the rate stays below for it, and what opened the breaker is in that (CB-2)."""
    quick = BreakerSpec(1000.0, 30.0)
    ask(store, 1000, spec=quick)
    assert ask(store, 1, 30, quick) == BreakerResult(True, 1001.0, 30.0, "opened")
    assert ask(store, 1, 60, quick) == BreakerResult(True, 1002.0, 30.0, "opened")
    assert ask(store, 1, 90, quick) == BreakerResult(False, 2 + 1001 * 0.5, 0.0, "closed")


def test_without_a_reset_only_an_operator_closes(store: Store) -> None:
    """It waits for nobody, and `drop` resets it at once, with its rate (CB-1, CB-2)."""
    assert ask(store, 1000, spec=ONLY_BY_HAND) == BreakerResult(True, 1000.0, 0.0, "opened")
    assert ask(store, 1, 1e9, ONLY_BY_HAND) == BreakerResult(True, 0.0)
    store.drop(["brk:k"])
    assert ask(store, 1, 1e9, ONLY_BY_HAND) == BreakerResult(False, 1.0)


def test_a_reset_time_that_changes_holds_for_what_is_open(store: Store) -> None:
    """A new bundle may free what only an operator could (B-1)."""
    ask(store, 1000, spec=ONLY_BY_HAND)
    assert ask(store, 1, 100) == BreakerResult(True, 1000 * 20 / 60, 200.0)
    assert ask(store, 1, 300).changed == "closed"


def test_breakers_count_what_is_denied_behind_them(store: Store) -> None:
    """They come before the limits; a limit that denies hides no runaway, and charges nothing (E-4, CB-1)."""
    ops: list[Op] = [
        CheckBreaker(THOUSAND, "brk:k", 400, NO_LIMITER, NO_RULE),
        ChargeBudget(HUNDRED, "cb:k", 101, NOW + 1, NO_LIMITER, NO_RULE),
    ]
    for rate in (400.0, 800.0):
        assert store.commit(ops, NOW) == CommitResult([BreakerResult(False, rate), 101], 1)
    assert store.commit(ops, NOW) == CommitResult([BreakerResult(True, 1200.0, 300.0, "opened"), None], 0)


def test_breakers_do_not_count_what_was_denied_before_them(store: Store) -> None:
    """Evaluation has ended, and the request spends nothing; whatever denied it (E-4, CB-1)."""
    denying: tuple[Op, ...] = (
        Deny(NO_OWNER),
        TakeTokens(TEN, "tb:k", 11, NO_LIMITER, NO_RULE),
        ChargeBudget(HUNDRED, "cb:k", 101, NOW + 1, NO_LIMITER, NO_RULE),
        CountFingerprint(FingerprintSpec(60.0, 0), "ld:k", NO_OWNER),
    )
    for first in denying:
        done = store.commit([first, CheckBreaker(THOUSAND, "brk:k", 900, NO_LIMITER, NO_RULE)], NOW)
        assert (done.results[1], done.denied_at) == (None, 0)
    assert ask(store, 1) == BreakerResult(False, 1.0)


def test_an_open_breaker_charges_no_limit(store: Store) -> None:
    """Neither before it nor after it, and loops are counted all the same (E-4)."""
    ask(store, 1000)
    before, after = TakeTokens(TEN, "tb:a", 1.0, NO_LIMITER, NO_RULE), TakeTokens(TEN, "tb:b", 1.0, NO_LIMITER, NO_RULE)
    loop = CountFingerprint(FingerprintSpec(60.0, 9), "ld:k", NO_OWNER)
    for hits in (1, 2):
        results = store.commit(
            [before, CheckBreaker(THOUSAND, "brk:k", 1, NO_LIMITER, NO_RULE), after, loop], NOW
        ).results
        assert results == [9.0, BreakerResult(True, 1000.0, 300.0), None, FingerprintCount(hits)]
    assert (take(store, key="tb:a"), take(store, key="tb:b")) == (9.0, 9.0)


def test_shadow_breakers_deny_their_group(store: Store) -> None:
    """They open for themselves, and count what the enforced group denies (E-1, E-2)."""
    ops: list[Op] = [
        Deny(NO_OWNER),
        CheckBreaker(THOUSAND, "shadow:brk:k", 500, NO_LIMITER, NO_RULE, 1),
        TakeTokens(TEN, "shadow:tb:k", 1, NO_LIMITER, NO_RULE, 1),
    ]
    assert store.commit(ops, NOW).results == [None, BreakerResult(False, 500.0), 9.0]
    done = store.commit([*ops[1:], TakeTokens(TEN, "tb:k", 1, NO_LIMITER, NO_RULE)], NOW)
    assert done == CommitResult([BreakerResult(True, 1000.0, 300.0, "opened"), None, 9.0], -1)


def test_a_conflict_spends_nothing(store: Store) -> None:
    """Neither accounts nor breakers move when a window has (E-5)."""
    store.commit([], NOW, [WindowWrite("win:a", 0, b"one", 60.0)])
    ops: list[Op] = [
        CheckBreaker(THOUSAND, "brk:k", 900, NO_LIMITER, NO_RULE),
        ChargeBudget(HUNDRED, "cb:k:1", 60, NOW + HOUR, NO_LIMITER, NO_RULE),
    ]
    assert store.commit(ops, NOW, [WindowWrite("win:a", 0, b"two", 60.0)]).conflict == {
        "win:a": StoredWindow(1, b"one")
    }
    assert (ask(store, 1).rate, spend(store, 1)) == (1.0, (1, True))


def test_breakers_stand_still_when_the_clock_steps_back(store: Store) -> None:
    """Nothing leaves the minute twice, and no reset comes later or sooner (S-2)."""
    ask(store, 600, 59)
    assert ask(store, 100, 90).rate == 400.0
    assert ask(store, 100, 30).rate == 500.0
    assert ask(store, 500, 0).changed == "opened"
    assert ask(store, 1, -1000).wait_s == 300.0
    assert ask(store, 1, 390).changed == "closed"


# -- corrections -------------------------------------------------------------------------------------------------------


def reserve(store: Store, cost: float, at: float = 0.0) -> float:
    return take(store, cost=cost, key="tpm:k", spec=TPM, now=NOW + at)


def correct_bucket(store: Store, amount: float, at: float = 0.0) -> None:
    store.correct([AdjustCharge(TPM, "tpm:k", amount)], NOW + at)


def test_what_was_not_used_comes_back(store: Store) -> None:
    """TPM 6000: 5000 reserved leave 1000; 3000 used return 2000, and the next 5000 does not fit yet (L-3)."""
    assert reserve(store, 5000) == 1000.0
    correct_bucket(store, -2000)
    assert reserve(store, 5000) == -2000.0
    assert reserve(store, 3000) == 0.0


def test_what_was_used_beyond_is_charged(store: Store) -> None:
    """7000 used charge 2000 more: below nothing, from where it refills (L-3)."""
    reserve(store, 5000)
    correct_bucket(store, 2000)
    assert reserve(store, 1) == -1001.0
    assert reserve(store, 1, 10) == -1.0
    assert reserve(store, 1, 10.01) == pytest.approx(0.0, abs=1e-3)


def test_a_bucket_is_in_debt_for_an_hour_at_most(store: Store) -> None:
    """Whatever is corrected, and how often; a larger bucket by sixty times what it holds (L-3)."""
    for _ in range(2):
        correct_bucket(store, 10_000_000)
    assert reserve(store, 1, 3600) == -1.0
    assert reserve(store, 1, 3600.01) == pytest.approx(0.0, abs=1e-3)
    slow = BucketSpec(0.1, 100.0)
    store.correct([AdjustCharge(slow, "tpm:slow", 10_000)], NOW)
    assert take(store, cost=0, key="tpm:slow", spec=slow, now=NOW) == -6000.0


def test_a_bucket_refills_before_it_is_corrected(store: Store) -> None:
    """What came back by time is there already; nothing goes over the brim (L-3)."""
    reserve(store, 5000)
    correct_bucket(store, -2000, 20)
    assert reserve(store, 0, 20) == 5000.0
    reserve(store, 5000, 20)
    correct_bucket(store, -4000, 50)
    assert reserve(store, 0, 50) == 6000.0
    correct_bucket(store, -100, 50)
    assert reserve(store, 6000, 50) == 0.0
    assert reserve(store, 100, 51) == 0.0


def test_a_bucket_that_has_become_smaller_is_full_at_most(store: Store) -> None:
    """A policy that is changed applies to what is stored (L-2)."""
    large, small = BucketSpec(1.0, 100.0), BucketSpec(1.0, 10.0)
    for spec, left in ((large, 90.0), (small, 0.0), (small, -10.0)):
        done = store.commit([TakeTokens(spec, "tb:k", 10.0, NO_LIMITER, NO_RULE)], NOW)
        assert done.results == [left]


def test_a_bucket_that_is_full_again_is_charged(store: Store) -> None:
    """An answer may take longer than its estimate takes to refill; what it used beyond is not lost (L-3)."""
    reserve(store, 1000)
    correct_bucket(store, 4000, 60)
    assert reserve(store, 0, 60) == 2000.0
    correct_bucket(store, -4000, 1000)
    assert reserve(store, 0, 1000) == 6000.0


def correct_account(store: Store, amount: int, at: float = 0.0, key: str = "cb:k:1") -> None:
    store.correct([AdjustCharge(HUNDRED, key, amount)], NOW + at)


def test_an_account_is_corrected(store: Store) -> None:
    """Up and down, over the budget too, and then even nothing is too much (L-2, L-3)."""
    spend(store, 50)
    correct_account(store, -20)
    assert spend(store, 0) == (30, True)
    correct_account(store, 71)
    assert spend(store, 0) == (101, False)
    correct_account(store, -1)
    assert spend(store, 0) == (100, True)


def test_an_account_does_not_fall_below_nothing(store: Store) -> None:
    """Nobody is given more than the budget (L-3)."""
    spend(store, 10)
    correct_account(store, -11)
    assert spend(store, 100) == (100, True)


def test_the_period_that_was_charged_is_corrected(store: Store) -> None:
    """An answer that comes after its end changes nothing in the next one (L-3)."""
    spend(store, 50)
    spend(store, 10, NOW + HOUR, "cb:k:2", NOW + 2 * HOUR)
    correct_account(store, 60, HOUR)
    assert spend(store, 0, NOW + HOUR, "cb:k:2", NOW + 2 * HOUR) == (10, True)
    assert spend(store, 0, NOW + HOUR - 1) == (110, False)  # a clock that stepped back


def test_an_account_that_is_gone_stays_so(store: Store) -> None:
    """One that nobody charged, or that an operator dropped, is not made by a correction (L-3, G-1)."""
    correct_account(store, 60)
    assert spend(store, 10) == (10, True)
    store.drop(["cb:k:1"])
    correct_account(store, 60)
    assert spend(store, 10) == (10, True)


def test_an_account_stays_whole(store: Store) -> None:
    """Also where a correction is a float that came from a division (L-5)."""
    spend(store, 50)
    for amount, used in ((-20.000000001, 30), (-9.999999999, 20)):
        store.correct([AdjustCharge(HUNDRED, "cb:k:1", amount)], NOW)
        assert spend(store, 0) == (used, True)


def test_corrections_come_in_any_order(store: Store) -> None:
    """Several at once, and which was first makes no difference (L-3)."""
    for amounts in ((-20, 30, -5), (-5, -20, 30)):
        key = f"cb:{amounts}"
        spend(store, 50, key=key)
        store.correct([AdjustCharge(HUNDRED, key, amount) for amount in amounts], NOW)
        assert spend(store, 0, key=key) == (55, True)
    store.correct([], NOW)


def test_correcting_moves_time_on(store: Store) -> None:
    """A clock that steps back stands still, whoever told the time: nothing refills twice (S-2)."""
    reserve(store, 6000)
    correct_bucket(store, 0, 10)
    assert store.commit([], NOW).at == NOW + 10
    correct_bucket(store, 0, 5)
    assert reserve(store, 0, 0) == 1000.0
    assert reserve(store, 0, 11) == 1100.0


def test_drop_covers_money(store: Store) -> None:
    """Accounts, breakers that are open and closed (G-1, CB-2)."""
    spend(store, 100, key="a:cb")
    spend(store, 100, key="b:cb")
    ask(store, 999, key="a:closed")
    ask(store, 1000, key="a:open")
    ask(store, 1000, key="b:open")
    store.drop(["a:cb", "a:closed", "a:open"])
    assert spend(store, 100, key="a:cb") == (100, True)
    assert ask(store, 999, key="a:closed").rate == ask(store, 999, key="a:open").rate == 999.0
    assert spend(store, 1, key="b:cb") == (101, False)
    assert ask(store, 1, key="b:open").wait_s == 300.0


# -- for operators -----------------------------------------------------------------------------------------------------


def test_breakers_are_listed(store: Store) -> None:
    """Open ones first, by key; those of one prefix only, and no more than asked for (CB-2)."""
    assert store.breakers("brk:", NOW, 10) == []
    ask(store, 400, key="brk:p:c")
    for key in ("brk:p:b", "brk:p:a", "brk:q:a"):
        ask(store, 1000, 6, key=key)
    at = NOW + 6
    opened = [StoredBreaker("brk:p:a", 1000.0, at), StoredBreaker("brk:p:b", 1000.0, at)]
    assert store.breakers("brk:p:", at, 10) == [*opened, StoredBreaker("brk:p:c", 400.0, None)]
    assert store.breakers("brk:", at, 3) == [*opened, StoredBreaker("brk:q:a", 1000.0, at)]
    assert store.breakers("brk:p:", at, 1) == opened[:1]
    assert store.breakers("brk:p:b", at, 1) == opened[1:]


def test_a_listed_breaker_has_the_rate_of_now(store: Store) -> None:
    """An open one stays listed, a closed one as long as it has a rate (CB-1, CB-2)."""
    ask(store, 600, key="brk:c")
    ask(store, 1000, key="brk:o")
    [opened, closed] = store.breakers("brk:", NOW + 30, 10)
    assert (opened.key, opened.since) == ("brk:o", NOW)
    assert 0 < closed.rate <= 600
    assert store.breakers("brk:", NOW + 200, 10) == [StoredBreaker("brk:o", 0.0, NOW)]


def test_a_dropped_breaker_is_closed_and_has_spent_nothing(store: Store) -> None:
    """How an operator resets it (CB-2)."""
    ask(store, 1000, spec=ONLY_BY_HAND)
    assert ask(store, 1, 600, spec=ONLY_BY_HAND).open
    store.drop(("brk:k",))
    assert store.breakers("brk:", NOW + 600, 10) == []
    assert ask(store, 999, 600, spec=ONLY_BY_HAND) == BreakerResult(False, 999.0)


def test_what_was_charged_elsewhere_is_added(store: Store) -> None:
    """To what is there, or where there is nothing, to what was known of it, until its period ends (S-3, L-2)."""

    def add(amount: int, known: int, key: str = "cb:k:1", at: float = 0.0) -> None:
        store.correct([AdjustCharge(HUNDRED, key, amount, known, NOW + HOUR)], NOW + at)

    assert spend(store, 30)[0] == 30
    add(5, 20)
    add(5, 90)  # what they knew has been refunded since
    assert spend(store, 0)[0] == 40
    add(7, 40, "cb:k:2")  # it has nothing
    add(8, 30, "cb:k:2")
    assert spend(store, 0, key="cb:k:2")[0] == 55
    add(1, 2**40, "cb:k:3")
    assert spend(store, 0, key="cb:k:3")[0] == 2**40 + 1
    add(7, 40, "cb:k:4", HOUR)  # its period is over
    assert spend(store, 0, NOW + HOUR, "cb:k:4", NOW + 2 * HOUR)[0] == 0
