"""Budgets while a shared store is away, and when it is back: with its data, or without."""

from __future__ import annotations

from breakloop.model.call import Answer, Call, Usage
from breakloop.pricing.prices import ListedModel, Price, Prices
from breakloop.store.memory import MemoryStore
from tests.builders import Json, bundle, call, chat_body, policy, user
from tests.fake_remote import RemoteWorld, run

DAY = 86_400.0
PRICES = Prices(ListedModel({"gpt-x": Price(1_000_000, 1_000_000, None, None, None)}, "a test"))
CHEAP = Answer(200, usage=Usage(0, 500_000), complete=True)


def budget(most: int = 20, unit: str = "") -> Json:
    stages = [{"threshold_percent": 100, "action": "reject"}]
    config: Json = {"budget": most, "period": "1d", "staged_actions": stages} | ({"cost_key": unit} if unit else {})
    return {"name": "b", "limit_keys": [], "algorithm": "cost_based", "algorithm_config": config}


def world_of(*instances: str, rule: Json | None = None) -> list[RemoteWorld]:
    """Instances with one store."""
    shared = MemoryStore()
    return [RemoteWorld(bundle(policy("p", rule or budget())), shared) for _ in instances]


def passed(there: RemoteWorld, times: int) -> int:
    return sum(there.decide(call()).allowed for _ in range(times))


def back(*instances: RemoteWorld, empty: bool = False) -> None:
    """The store is back for all of them, perhaps without its data."""
    if empty:
        tables = instances[0].store.memory._tables()
        for table in tables:
            table.clear()
    for one in instances:
        while not one.health.up:
            one.remote._probe()


def paid(there: RemoteWorld) -> Call:
    """A call that reserves $4 and will cost $0.50."""
    body = chat_body(user("hi"), max_tokens=3_999_999)
    asked = call("/v1/chat/completions", "POST", {"authorization": "Bearer k"}, body=body)
    assert there.decide(asked).allowed
    return asked


def total(there: RemoteWorld) -> int:
    """What the store has in its only account."""
    kept = there.store.memory.kept()
    [(_, used)] = [*kept["accounts"].values(), *kept["spent"].values()]
    assert isinstance(used, int)
    return used


def test_a_budget_goes_on_where_the_store_was() -> None:
    """15 of 20 are used: 5 are left while it is away, and none when it is back, with its data or without (S-3, L-2)."""

    def test() -> None:
        for empty in (False, True):
            [there] = world_of("a")
            assert passed(there, 15) == 15
            there.remote.failed("gone")
            assert passed(there, 15) == 5
            back(there, empty=empty)
            assert passed(there, 20) == 0
            there.remote.close()

    run(test)


def test_what_several_instances_charged_adds_up() -> None:
    """Each adds its own part to what the store has; where that is nothing, to what it last said to the first (S-3)."""

    def test() -> None:
        for empty in (False, True):
            one, two = world_of("a", "b")
            assert (passed(one, 5), passed(two, 5)) == (5, 5)  # one knows 5, two knows 10
            for there in (one, two):
                there.remote.failed("gone")
            assert (passed(one, 3), passed(two, 4)) == (3, 4)
            back(two, one, empty=empty)
            assert passed(one, 20) == 3
            one.remote.close()
            two.remote.close()

    run(test)


def test_a_call_that_was_on_its_way_is_charged_once() -> None:
    """Whether the store has charged it before it failed or not (S-3)."""

    def test() -> None:
        for lost in (False, True):
            [there] = world_of("a")
            passed(there, 10)
            there.store.holds = True
            verdicts = [there.ask(call()) for _ in range(5)]
            if lost:
                for table in there.store.memory._tables():
                    table.clear()
            there.remote.failed("gone")
            there.store.answers.clear()
            while there.remote._waiting:
                there.remote._waiting.popleft().give_up()
            there.store.holds = False
            assert [one.allowed for [one] in verdicts] == [True] * 5
            back(there)
            assert passed(there, 20) == 5
            there.remote.close()

    run(test)


def test_a_refund_by_another_instance_is_not_undone() -> None:
    """What one knew may have been refunded since; a store that kept its data knows better (L-5, S-3)."""

    def test() -> None:
        one, two = world_of("a", "b", rule=budget(20, "usage:usd"))
        for there in (one, two):
            there.here.engine.meter._prices = lambda: PRICES
        reserved = paid(one)
        paid(two)  # reserves $4 more: two knows $8
        one.settle(reserved, CHEAP)
        two.remote.failed("gone")
        paid(two)
        back(two)
        assert total(two) == 500_000 + 4_000_000 + 4_000_000
        one.remote.close()
        two.remote.close()

    run(test)


def test_an_account_that_was_denied_meanwhile_is_written_back() -> None:
    """It was asked, so it is known that somebody uses it (S-3)."""

    def test() -> None:
        [there] = world_of("a")
        passed(there, 20)
        there.remote.failed("gone")
        assert passed(there, 1) == 0
        back(there, empty=True)
        assert passed(there, 1) == 0
        there.remote.close()

    run(test)


def test_a_period_that_is_over_is_not_written_back() -> None:
    """The next one begins with nothing (L-2)."""

    def test() -> None:
        [there] = world_of("a")
        passed(there, 20)
        there.remote.failed("gone")
        passed(there, 1)
        there.here.clock.advance(2 * DAY)
        back(there)
        assert passed(there, 21) == 20
        there.remote.close()

    run(test)


def test_estimates_are_corrected_wherever_the_answer_finds_them() -> None:
    """Decided in the store or without it, answered while it is away or when it is back: only $0.50 each (L-5, S-3)."""

    def test() -> None:
        [there] = world_of("a", rule=budget(20, "usage:usd"))
        there.here.engine.meter._prices = lambda: PRICES
        first, second = paid(there), paid(there)
        there.settle(first, CHEAP)
        there.remote.failed("gone")
        third, fourth = paid(there), paid(there)
        there.settle(second, CHEAP)
        there.settle(third, CHEAP)
        back(there)
        there.settle(fourth, CHEAP)
        assert total(there) == 4 * 500_000
        there.remote.close()

    run(test)


def test_what_is_noted_is_bounded() -> None:
    """A flood of invented accounts while the store is away is not kept without end (Y-2)."""

    def test() -> None:
        rule = {**budget(), "limit_keys": ["header:x-team"]}
        [there] = world_of("a", rule=rule)
        there.remote.failed("gone")
        for number in range(10_050):
            there.decide(call(headers={"x-team": str(number)}))
        assert len(there.remote._charged) == 10_000
        back(there)
        assert len(there.remote._charged) == 0
        assert 100 <= there.store.asked["correct"] <= 200
        there.remote.close()

    run(test)
