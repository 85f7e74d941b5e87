"""Many cases of one behaviour in one test."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

_SHOWN = 20  # of those that fail
_LINES = 12  # of the message of each

Test = Callable[..., None]


def each(names: str, cases: Iterable[Any] | Mapping[str, Any]) -> Callable[[Test], Test]:
    """Like `pytest.mark.parametrize`, but it makes one test, which runs every case and lists those that fail.

    For cases that nobody would name: places to cut at, rows of a table, pieces of garbage. `names` are the parameters,
    separated by commas. Of a mapping, the values are the cases and the keys are shown. All cases share the fixtures of
    the test.
    """
    parameters = [name.strip() for name in names.split(",")]
    known = list(cases.items()) if isinstance(cases, Mapping) else [(None, case) for case in cases]
    assert known, "a test without a case"

    def decorate(test: Test) -> Test:
        signature = inspect.signature(test)
        kept = [one for name, one in signature.parameters.items() if name not in parameters]

        @functools.wraps(test)
        def every_case(**fixtures: Any) -> None:
            failed = []
            for name, case in known:
                values = dict(zip(parameters, case, strict=True)) if len(parameters) > 1 else {parameters[0]: case}
                try:
                    test(**fixtures, **values)
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - whatever fails is listed
                    shown = f"{type(error).__name__}: {error}".splitlines()[:_LINES]
                    failed.append(f"{str(name if name is not None else case)[:100]}: " + "\n    ".join(shown))
            if failed:
                more = [f"and {len(failed) - _SHOWN} more"] if len(failed) > _SHOWN else []
                pytest.fail("\n".join([f"{len(failed)} of {len(known)} cases", *failed[:_SHOWN], *more]), pytrace=False)

        every_case.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return every_case

    return decorate
