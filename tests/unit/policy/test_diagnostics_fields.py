"""Where an unknown field belongs."""

from __future__ import annotations

from breakloop.policy.diagnostics import where_it_belongs
from breakloop.policy.schema import bundle


def test_unknown_fields_are_told_where_they_belong() -> None:
    """One block in, one block out, another kind, or a misspelling (B-2)."""
    rule = ("policies", 0, "spec", "rules", 0, "token_bucket")
    assert where_it_belongs(bundle.Bundle, ("policies", 0), "mode") == '; it belongs in "spec"'
    assert where_it_belongs(bundle.Bundle, rule, "mode") == '; it belongs in "spec"'
    assert where_it_belongs(bundle.Bundle, rule, "burst") == '; it belongs in "algorithm_config"'
    assert (
        where_it_belongs(bundle.Bundle, (*rule, "algorithm_config"), "budget")
        == '; it belongs to algorithm "cost_based"'
    )
    assert where_it_belongs(bundle.Bundle, (), "polices") == '; did you mean "policies"?'
    assert where_it_belongs(bundle.Bundle, (), "xyz") == ""
    assert where_it_belongs(bundle.Bundle, ("bundle_version",), "xyz") == ""
