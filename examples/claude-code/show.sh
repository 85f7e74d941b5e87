#!/bin/sh
# Prints the hook's output to Claude Code while an agent repeats a command. Needs neither Claude Code nor keys.
set -eu

BREAKLOOP_DATA_DIR=$(mktemp -d)
export BREAKLOOP_DATA_DIR
trap 'rm -rf "$BREAKLOOP_DATA_DIR"' EXIT

tell() {
    printf '{"session_id":"demo","hook_event_name":"%s","tool_name":"Bash","tool_input":{"command":"make test"},
        "tool_use_id":"toolu_demo_%s","tool_response":{"stdout":"1 test failed","stderr":""}}' "$1" "$2" |
        breakloop hook claude-code
}

for number in 1 2 3 4 5 6 7; do
    said=$(tell PreToolUse "$number")                        # before the call
    [ -n "$said" ] || said=$(tell PostToolUse "$number")     # after the call, with its result
    printf 'call %s: %s\n' "$number" "${said:-(nothing)}"
done
