#!/bin/sh
# Resolves pyproject.toml into requirements/*.txt, every file with its hashes. The index is whatever uv is configured with;
# the files name none.
set -eu

python=${PYTHON:-python3}
[ -x .venv-lock/bin/uv ] || { "$python" -m venv .venv-lock && .venv-lock/bin/python -m pip install --quiet uv; }

compile() {
    out=$1
    shift
    .venv-lock/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --custom-compile-command "make lock" --output-file "requirements/$out.txt" "$@"
}

compile runtime --all-extras pyproject.toml
compile dev --all-extras --group dev pyproject.toml
compile deploy --group pyproject.toml:deploy
