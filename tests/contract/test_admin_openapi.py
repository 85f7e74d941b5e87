"""The admin API keeps to its own document, whatever is sent to it: schemathesis makes requests that fit the document, and
requests that do not, and looks at every answer."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import HealthCheck, assume, given, settings

from breakloop.admin.api import DOCUMENT, OPERATIONS
from breakloop.admin.api.operations import Operation, PlainText
from breakloop.model.records import TotalsRecord
from tests.admin_client import OWN, app_of
from tests.admin_world import full

schemathesis = pytest.importorskip("schemathesis")

pytestmark = pytest.mark.slow
TOKEN = {"authorization": f"Bearer {OWN}"}
EXAMPLES = settings().max_examples // 3  # of each kind, for each operation
QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large, HealthCheck.large_base_example]


@pytest.fixture(scope="module")
def described() -> Any:
    """The document, as the application gives it out, bound to the application."""
    world = full()
    setattr(world.history, "totals", lambda *_: TotalsRecord())  # noqa: B010 - the stand-in adds up every interval since 1970
    return schemathesis.openapi.from_asgi(DOCUMENT, app_of(world, hosts=("testserver",)), headers=TOKEN)


def checks() -> list[Any]:
    # Not among them: that everything which fits the document is accepted. What a descriptor or a breaker is called, no
    # schema can say.
    from schemathesis import checks as general
    from schemathesis.specs.openapi import checks as own

    return [
        general.not_a_server_error,
        own.status_code_conformance,
        own.content_type_conformance,
        own.response_headers_conformance,
        own.response_schema_conformance,
        own.negative_data_rejection,
        own.ignored_auth,
    ]


def _can_be_wrong(operation: Operation) -> bool:
    """Any text may be a bundle, as far as the document knows."""
    return bool(operation.query.__struct_fields__) or operation.body not in (None, PlainText)


CASES = [
    *(pytest.param(one, True, id=f"fits-{one.name}") for one in OPERATIONS),
    *(pytest.param(one, False, id=f"does-not-fit-{one.name}") for one in OPERATIONS if _can_be_wrong(one)),
]


@pytest.mark.parametrize(("operation", "fits"), CASES)
def test_every_answer_is_one_of_the_document(described: Any, operation: Operation, fits: bool) -> None:
    """No 5xx, no status, type or form that the document does not have; what does not fit it is refused (X-1)."""
    found = described[f"/api/v1{operation.path}"][operation.method]
    mode = schemathesis.GenerationMode.POSITIVE if fits else schemathesis.GenerationMode.NEGATIVE
    lists = {one.name for one in found.query if one.definition["schema"].get("type") == "array"}

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=QUIET)
    @given(case=found.as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        assume("follow" not in (case.query or {}))  # an answer that does not end
        response = case.call(headers=TOKEN)
        assume(fits or _was_sent(case, response, lists))
        case.validate_response(response, checks=checks(), headers=TOKEN)

    run()


def _was_sent(case: Any, response: Any, lists: set[str]) -> bool:
    """What is wrong may be lost on the way: an empty list has no form in a query, and `?name=false` is a list of one."""
    query = case.query or {}
    sent = parse_qs(urlsplit(response.request.url).query, keep_blank_values=True)
    return set(query) <= set(sent) and all(isinstance(query[name], list) for name in lists & set(query))
