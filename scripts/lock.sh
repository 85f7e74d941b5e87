#!/bin/sh
# Resolves pyproject.toml into requirements/*.txt, every file with its hashes. The index is whatever uv is configured with;
# the files name none.
set -eu

python=${PYTHON:-python3}
[ -x .venv-lock/bin/uv ] || { "$python" -m venv .venv-lock && .venv-lock/bin/python -m pip install --quiet uv; }

write() {
    out=$1
    shift
    .venv-lock/bin/uv pip compile --quiet --upgrade --python-version 3.11 --generate-hashes \
        --no-emit-index-url --custom-compile-command "make lock" --output-file "requirements/$out.txt" "$@"
}

compile() {
    write "$@" --universal
}

# Extras that have an environment of their own: they do not fit beside the rest, or beside each other, or are very large.
apart='ag2 agent-framework agno autogen claude-agent crewai dspy google-adk haystack litellm llama-index semantic-kernel'
apart="$apart smolagents strands"
extras() {
    "$python" - "$@" <<'END'
import sys, tomllib
with open("pyproject.toml", "rb") as file:
    names = tomllib.load(file)["project"]["optional-dependencies"]
print(*(f"--extra {name}" for name in names if name not in sys.argv[1:]))
END
}

# shellcheck disable=SC2046,SC2086  # one word each
compile dev $(extras $apart) --group dev pyproject.toml
# What `make serve` needs, and the build backend, which installs breakloop itself.
compile serve --extra server --group build pyproject.toml
# What an image of the server has; the other extras are for programs that import the library.
compile runtime --extra server --extra alerts --extra envoy --extra geo --extra otel --extra postgres --extra redis --extra tokenizer pyproject.toml
compile deploy --group pyproject.toml:deploy
compile release --group pyproject.toml:release
compile docs --group pyproject.toml:docs
compile gateways --group pyproject.toml:gateways
compile mutants --group pyproject.toml:mutants
compile clients --group pyproject.toml:clients
# With what breakloop itself needs, because it is imported there.
compile frameworks --group pyproject.toml:frameworks pyproject.toml
compile semantic-kernel --group pyproject.toml:semantic-kernel pyproject.toml
# Not universal: there is no CrewAI for Python 3.14 and up.
write claude --extra claude-agent pyproject.toml
write crewai --extra crewai pyproject.toml
# LiteLLM may ask for a certifi of the day after: the newest that there is will do.
printf 'certifi\n' | write litellm --extra litellm --overrides - pyproject.toml
