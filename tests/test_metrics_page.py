"""Metrics are documented, and the Grafana dashboard asks for what there is."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from breakloop.observe.metrics import HISTOGRAM, LABELS, METRICS
from scripts.gen_docs import ROOT
from tests.each import each

DASHBOARD = ROOT / "deploy/grafana/dashboard.json"
FUNCTIONS = {"sum", "max", "rate", "increase", "histogram_quantile", "by"}
TOKEN = re.compile(
    r'\s*(?:(?P<text>"[^"]*")|(?P<span>\[[^\]]*\])|(?P<number>\d[\d.e]*)|(?P<name>[a-z_]\w*)|(?P<sign>\S))'
)


def tokens(expression: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(expression):
        match = TOKEN.match(expression, at)
        assert match is not None, expression[at:]
        found += [(kind, text) for kind, text in match.groupdict().items() if text is not None]
        at = match.end()
    return found


def check(expression: str) -> set[str]:
    """Return the metrics that a PromQL expression asks for; fails for names, labels and brackets that are wrong."""
    metrics: set[str] = set()
    labels: set[str] = set()
    open_brackets: list[str] = []
    inside = ""  # "(" of a list behind `by`, "{" of a matcher
    known = tokens(expression)
    for (kind, text), (_, before) in zip(known, [("", ""), *known], strict=False):
        if kind == "span":
            assert text in ("[$__rate_interval]", "[24h]"), text
        elif kind == "sign" and text in "({":
            open_brackets.append(text)
            inside = "{" if text == "{" else "by" if before == "by" else ""
        elif kind == "sign" and text in ")}":
            assert open_brackets.pop() == {")": "(", "}": "{"}[text]
            inside = ""
        elif kind == "name" and inside:
            labels.add(text)
        elif kind == "name" and text not in FUNCTIONS:
            metrics.add(text)
    assert open_brackets == []
    for name in metrics:
        plain = re.sub(r"_(bucket|sum|count)$", "", name)
        metric = METRICS[name] if name in METRICS else METRICS[plain]
        extra = {"le"} if name.endswith("_bucket") and metric.kind == HISTOGRAM else set()
        assert (name == plain) or metric.kind == HISTOGRAM
        assert labels <= {*metric.labels, *extra}, (labels, name)
    return metrics


def panels() -> list[dict[str, Any]]:
    content = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    found = content["panels"]
    assert isinstance(found, list)
    return found


def test_every_metric_and_label_is_documented() -> None:
    """Every metric and label is documented (G-5)."""
    page = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
    assert [name for name in METRICS if f"| `{name}` | {METRICS[name].kind} |" not in page] == []
    assert [name for name in LABELS if f"\n| `{name}` | " not in page] == []


@each("panel", {str(panel["title"]): panel for panel in panels()})
def test_every_expression_asks_for_what_there_is(panel: dict[str, Any]) -> None:
    """Each metric and each label of the dashboard is in the table (G-5)."""
    assert panel["targets"]
    for target in panel["targets"]:
        assert check(target["expr"])
        named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert named <= set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", target["expr"]))))


def test_the_dashboard_shows_what_people_ask_for() -> None:
    """Requests, denials, loops, money, overhead, the store, drops, estimates (G-5)."""
    asked = {name for panel in panels() for target in panel["targets"] for name in check(target["expr"])}
    wanted = {
        "breakloop_decisions_total",
        "breakloop_loops_total",
        "breakloop_spend_microusd_total",
        "breakloop_saved_microusd_total",
        "breakloop_overhead_seconds_bucket",
        "breakloop_upstream_seconds_bucket",
        "breakloop_store_degraded",
        "breakloop_events_dropped_total",
        "breakloop_estimate_ratio_bucket",
    }
    assert wanted - asked == set()


def test_it_can_be_imported() -> None:
    """Ids and places are its own, and the data source is asked for."""
    content = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    found = panels()
    assert len({panel["id"] for panel in found}) == len(found)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in found]
    assert len(set(places)) == len(places)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in found)
    assert content["templating"]["list"][0]["type"] == "datasource"
    assert {panel["datasource"]["uid"] for panel in found} == {"${datasource}"}
    assert "__inputs" not in content


@pytest.mark.parametrize(
    "wrong",
    [
        "sum(rate(breakloop_nothing_total[$__rate_interval]))",
        "sum by (agent) (rate(breakloop_loops_total[$__rate_interval]))",
        'sum(breakloop_loops_total{colour="red"})',
        "sum(rate(breakloop_loops_total[$__rate_interval])",
        "sum(rate(breakloop_loops_total_bucket[$__rate_interval]))",
        "sum(rate(breakloop_loops_total[5 minutes]))",
    ],
)
def test_a_wrong_expression_is_found(wrong: str) -> None:
    """The check can fail."""
    with pytest.raises((AssertionError, KeyError)):
        check(wrong)
