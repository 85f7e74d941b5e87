"""Part of `scripts.photograph`: the bundles that sessions are judged with."""

from __future__ import annotations

from typing import Final

BUILTIN: Final = "builtin"

_LIMITS: Final = """\
bundle_version: 1
policies:
  - id: limits
    spec:
      selector: {pathPrefix: /v1}
      rules:
        - name: requests
          limit_keys: [agent:id]
          algorithm: token_bucket
          algorithm_config: {tokens_per_second: 0.25, burst: 20}
        - name: tokens
          limit_keys: [agent:session]
          on_missing: skip
          algorithm: token_bucket_llm
          algorithm_config:
            tokens_per_minute: 60000
            tokens_per_day: 400000
            max_prompt_tokens: 30000
            max_tokens_per_request: 31000
            max_completion_tokens: 4000
            default_max_completion: 500
        - name: dollars
          limit_keys: []
          algorithm: cost_based
          algorithm_config:
            budget: 0.4
            period: 1h
            cost_key: usage:usd
            staged_actions:
              - {threshold_percent: 50, action: warn}
              - {threshold_percent: 80, action: throttle, delay_ms: 250}
              - {threshold_percent: 100, action: reject}
  - id: breaker
    spec:
      selector: {pathPrefix: /orders}
      deny_status: 503
      rules:
        - name: spend
          limit_keys: [agent:id]
          algorithm: cost_based
          algorithm_config:
            budget: 50
            period: 1d
            cost_key: header:x-cost
            default_cost: 3
            staged_actions: [{threshold_percent: 100, action: reject}]
        - name: named
          limit_keys: [header:x-team]
          match: {agent:id: agent-failing}
          on_missing: reject
          algorithm: token_bucket
          algorithm_config: {rps: 1, burst: 5}
      circuit_breaker:
        enabled: true
        spend_rate_threshold_per_minute: 40
        auto_reset_after_minutes: 0.2
        alert: true
agents:
  "*":
    budget_usd_per_day: 2
    rate_limit: {requests_per_minute: 30, burst: 20}
defaults: {loop_detection: off}
"""

_RUNS: Final = """\
bundle_version: 2
policies:
  - id: breaker
    spec:
      selector: {pathPrefix: /v1}
      rules:
        - name: money
          limit_keys: [agent:id]
          algorithm: cost_based
          algorithm_config:
            budget: 5
            period: 30d
            cost_key: usage:usd
            staged_actions:
              - {threshold_percent: 5, action: warn}
              - {threshold_percent: 10, action: throttle, delay_ms: 100}
              - {threshold_percent: 100, action: reject}
      circuit_breaker:
        enabled: true
        spend_rate_threshold_per_minute: 0.25
        auto_reset_after_minutes: 1
        spend_source: usage:usd
agents:
  "*":
    max_steps_per_run: 15
    max_usd_per_run: 0.5
    kill_switch_enabled: true
    kill_switch_window_size: 20
    kill_switch_threshold: 10
    allowed_hours: "00:00-23:59"
projects:
  default: {loop_guard: {window_seconds: 120, max_hits: 3, cooldown_seconds: 20}}
kill_switches:
  - {scope_key: agent:id, scope_value: agent-plain, route: /orders, reason: maintenance}
"""

_DETECTORS: Final = """\
bundle_version: 3
policies:
  - id: loops
    spec:
      selector: {pathPrefix: /}
      deny_status: 409
      loop_detection:
        - similarity: steps
          sensitivity: strict
          ladder: {notice: steer, block: reject, stop: kill}
          quarantine_seconds: 300
          thresholds: {repeat: [2, 4, 6], spawn: [2, 4, never]}
          tools: {"read_*": {poll: true}, search: {loop_key: {include: [q]}}}
          cooldown_seconds: 10
          cooldown_max_seconds: 60
        - similarity: tail
          tail_messages: 2
          max_hits: 4
          window_seconds: 120
          cooldown_seconds: 15
          cooldown_growth: 3
          cooldown_max_seconds: 120
          retry_free: 2
        - similarity: exact
          enabled: true
          window_seconds: 60
          threshold_identical_requests: 3
          window: sliding
          concurrent_free: 2
          ladder: {notice: throttle, block: throttle, stop: reject}
        - similarity: simhash
          window_requests: 12
          threshold_score: 9
          action: warn
"""

_SHADOW: Final = """\
bundle_version: 4
policies:
  - id: watched
    spec:
      selector: {pathPrefix: /}
      mode: shadow
      rules:
        - name: requests
          limit_keys: [agent:id, agent:session]
          on_missing: reject
          algorithm: token_bucket
          algorithm_config: {rps: 0.1, burst: 4}
      loop_detection:
        - {similarity: steps, action: kill, quarantine_seconds: 60}
        - {similarity: tail, max_hits: 2, action: reject}
        - {similarity: exact, enabled: true, window_seconds: 60, threshold_identical_requests: 2, window: idle}
        - {similarity: simhash, window_requests: 8, threshold_score: 5, action: reject}
  - id: throttled
    spec:
      selector: {pathPrefix: /v1}
      loop_detection: {similarity: steps, sensitivity: relaxed, action: throttle}
agents:
  "*": {max_steps_per_run: 40}
"""

# Name -> text; "" is the built-in protection.
BUNDLES: Final = {
    BUILTIN: "",
    "limits": _LIMITS,
    "runs": _RUNS,
    "detectors": _DETECTORS,
    "shadow": _SHADOW,
}
