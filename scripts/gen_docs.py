"""Generates files under docs/, deploy/ and examples/ from the code, and copies the gateway files that `breakloop init`
writes (`make docs`). With `--check`, reports which files are out of date. A page is one entry in `PAGES`: its path and
the function that returns its text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from scripts import admin_page, bench_page, doc_pages, loop_kinds, metrics_page

ROOT = Path(__file__).resolve().parent.parent

GATEWAYS = ("caddy", "envoy", "haproxy", "nginx", "traefik")


def _copies() -> dict[str, Callable[[], str]]:
    """The files that `breakloop init --for` writes are copies of the tested ones in examples/."""
    copies: dict[str, Callable[[], str]] = {}
    for gateway in GATEWAYS:
        for file in sorted((ROOT / "examples" / gateway).iterdir()):
            if file.name not in {"README.md", "policy.yaml"}:
                target = f"src/breakloop/cli/templates/for/{gateway}/{file.name}"
                copies[target] = partial(file.read_text, encoding="utf-8")
    return copies


PAGES: Mapping[str, Callable[[], str]] = {
    "docs/reference/reasons.md": doc_pages.reasons,
    "docs/reference/clients.md": doc_pages.clients,
    "docs/reference/bundle.md": doc_pages.bundle,
    "docs/reference/settings.md": doc_pages.settings,
    "docs/reference/cli.md": doc_pages.commands,
    "docs/reference/admin-api.md": admin_page.admin_api,
    "docs/reference/metrics.md": metrics_page.metrics,
    "docs/reference/benchmarks.md": bench_page.benchmarks,
    "docs/reference/loop-thresholds.md": loop_kinds.thresholds,
    "docs/explanation/loop-kinds.md": loop_kinds.timelines,
    "deploy/grafana/dashboard.json": metrics_page.dashboard,
    "examples/breakloop.schema.json": doc_pages.bundle_schema,
    **_copies(),
}


def stale(pages: Mapping[str, Callable[[], str]], root: Path) -> list[str]:
    """Return the paths whose file is absent or differs from what the code says now."""
    return [
        path
        for path, render in pages.items()
        if not (root / path).is_file() or (root / path).read_text(encoding="utf-8") != render()
    ]


def write(pages: Mapping[str, Callable[[], str]], root: Path) -> list[str]:
    """Write the pages that changed, and return their paths."""
    changed = stale(pages, root)
    for path in changed:
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(pages[path](), encoding="utf-8")
    return changed


def main(arguments: list[str]) -> int:
    """Write, or with `--check` only look."""
    if "--check" in arguments:
        old = stale(PAGES, ROOT)
        for path in old:
            print(f"{path}: not what the code says; run `make docs`", file=sys.stderr)
        print(f"generated pages: {len(PAGES) - len(old)} of {len(PAGES)} up to date")
        return 1 if old else 0
    for path in write(PAGES, ROOT):
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
