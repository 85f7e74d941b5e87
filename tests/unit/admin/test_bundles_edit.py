"""Tests of `policy.edit`: single values change, everything else stays as its author wrote it."""

from __future__ import annotations

import json

import pytest

from breakloop.admin.bundles import promoted, replaced
from breakloop.errors import BundleError
from breakloop.policy.load import load_text

YAML = """\
# our policies
bundle_version: 7   # raised by hand

policies:
  - id: fair-use     # in force since May
    spec: {selector: {pathPrefix: /v1/}, mode: enforce}
  - id: "new one"
    spec:
      # still watching
      mode: 'shadow'  # until Friday
      selector:
        pathPrefix: /v2/
"""


def test_a_policy_is_promoted_and_nothing_else_changes() -> None:
    """Comments, quotes and layout stay (X-2)."""
    made = promoted(YAML.encode(), "p.yaml", "new one").decode()
    expected = YAML.replace("'shadow'", "'enforce'").replace("bundle_version: 7", "bundle_version: 8")
    assert made == expected
    loaded = load_text(made.encode(), "p.yaml").bundle
    assert [one.spec.mode for one in loaded.policies] == ["enforce", "enforce"]


@pytest.mark.parametrize("mode", ["shadow", '"shadow"', "'shadow'"])
def test_flow_style_works_too(mode: str) -> None:
    text = f"policies: [{{id: a, spec: {{mode: {mode}, selector: {{}}}}}}]\nbundle_version: 9\n"
    made = promoted(text.encode(), "p.yaml", "a").decode()
    assert made == text.replace("shadow", "enforce").replace("9", "10")


def test_json_stays_json() -> None:
    data = {"bundle_version": 1, "policies": [{"id": "é", "spec": {"selector": {}, "mode": "shadow"}}]}
    text = json.dumps(data, indent=4, ensure_ascii=False)
    made = promoted(text.encode(), "p.json", "é").decode()
    assert made == text.replace('"shadow"', '"enforce"').replace('"bundle_version": 1', '"bundle_version": 2')


def test_windows_lines_and_wide_characters_are_no_trouble() -> None:
    text = "# \U0001f501 ünï\r\nbundle_version: 1\r\npolicies:\r\n- {id: \U0001f501, spec: {selector: {}, mode: shadow}}\r\n"
    made = promoted(text.encode(), "p.yaml", "\U0001f501").decode()
    assert made == text.replace("shadow", "enforce").replace("version: 1", "version: 2")


@pytest.mark.parametrize(
    ("policy", "message"),
    [("nobody", 'there is no policy "nobody"'), ("fair-use", '"fair-use" is already enforced')],
)
def test_what_cannot_be_promoted_is_said(policy: str, message: str) -> None:
    with pytest.raises(BundleError, match=message):
        promoted(YAML.encode(), "p.yaml", policy)


@pytest.mark.parametrize(
    "text",
    [
        "bundle_version: 1\npolicies:\n- {id: a, spec: {selector: {}, mode: &m shadow}}\n- {id: b, spec: {selector: {}, mode: *m}}\n",
        "bundle_version: 1\npolicies:\n- {id: a, spec: &s {selector: {}, mode: shadow}}\n- {id: b, spec: *s}\n",
        "bundle_version: 1\npolicies:\n- {id: a, spec: {selector: {}, mode: !!str shadow}}\n",
        'bundle_version: 1\npolicies:\n- {id: a, spec: {selector: {}, mode: "sha\\\n    dow"}}\n',
    ],
)
def test_what_would_change_more_than_was_meant_is_left_to_a_person(text: str) -> None:
    """An alias is another's value, too."""
    with pytest.raises(BundleError, match=r"cannot be changed here.*edit the file"):
        promoted(text.encode(), "p.yaml", "a")


def test_a_value_keeps_its_quotes_and_a_number_has_none() -> None:
    assert replaced(b"a: 'x'\nb: 1\n", "p.yaml", {("a",): "y", ("b",): 2}) == b"a: 'y'\nb: 2\n"
    assert replaced(b"a: {b: [1, 0x10]}\n", "p.yaml", {("a", "b", 1): 3}) == b"a: {b: [1, 3]}\n"
