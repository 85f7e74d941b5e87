"""Builds the documentation site in .cache/site/html (`make site`). A warning, a link that leads nowhere and a request
to another host are errors. With `--serve` the site is served until you stop it."""

from __future__ import annotations

import argparse
import json
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from scripts import site_pages
from scripts.site_pages import Entry, Page

ROOT: Final = Path(__file__).resolve().parent.parent
HOME: Final = ROOT / ".cache/site"
_GENERATOR: Final = ROOT / ".cache/docs/bin/zensical"
_ICON: Final = ROOT / "src/breakloop/admin/dashboard/static/icon.svg"
_SUMMARY: Final = (
    "breakloop stops runaway AI agents before they burn money: loop detection, limits, budgets and kill switches."
)
_ID: Final = re.compile(r"\b(?:id|name)=\"([^\"]+)")
_HREF: Final = re.compile(r"<a\b[^>]*?\bhref=\"([^\"]*)")
# What a browser loads without being asked, in HTML and in CSS; a link that a reader may follow is fine.
_LOADED: Final = re.compile(
    r"(?:<(?:script|img|iframe|source|link)\b[^>]*?\b(?:src|href)=\"|url\([\"']?|@import [\"'])"
    r"((?:https?:)?//[^\s\"')>]+)"
)


def stage(pages: Mapping[str, Page], nav: Iterable[Entry], home: Path) -> None:
    """Write the pages and the configuration for the site generator."""
    folder = home / "pages"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder, ignore=shutil.ignore_patterns("*.md", "*.toml"))
    shutil.copy(_ICON, folder / "images")
    for page in pages.values():
        target = folder / page.path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page.text, encoding="utf-8")
    settings = (ROOT / "docs/site.toml").read_text(encoding="utf-8")
    (home / "zensical.toml").write_text(settings.replace("nav = []", f"nav = {_toml(nav)}"), encoding="utf-8")


def _toml(entries: Iterable[Entry]) -> str:
    rows = [
        f"{{ {json.dumps(entry.title)} = {_toml(entry.children) if entry.children else json.dumps(entry.path)} }}"
        for entry in entries
    ]
    return f"[{', '.join(rows)}]"


def generate(home: Path) -> list[str]:
    """Run the site generator, and return what it complains about."""
    command = [str(_GENERATOR), "build", "--strict", "--clean", "--config-file", str(home / "zensical.toml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    # Its --strict does not count what mkdocstrings and griffe log.
    if done.returncode or "No issues found" not in said or re.search(r"WARN|ERROR|Warning|Error", said):
        return [said.partition("Traceback")[0].strip() or said.strip()]
    return []


def broken(html: Path) -> list[str]:
    """Return the links of the built pages that lead nowhere, and what the pages load from other hosts."""
    files = {path.relative_to(html).as_posix(): path for path in html.rglob("*") if path.is_file()}
    texts = {name: path.read_text(encoding="utf-8") for name, path in files.items() if path.suffix in {".html", ".css"}}
    ids = {name: set(_ID.findall(text)) for name, text in texts.items()}
    ids |= {name: set() for name in files if name not in ids}
    loaded = [f"{name}: loads {url}" for name, text in texts.items() for url in _LOADED.findall(text)]
    # The links of 404.html are absolute, for whatever address was not found.
    checked = [name for name in texts if name.endswith(".html") and name != "404.html"]
    return loaded + [f"{name}: {link} leads nowhere" for name in checked for link in _dead(name, texts[name], ids)]


def _dead(name: str, text: str, ids: Mapping[str, set[str]]) -> Iterator[str]:
    for link in sorted(set(_HREF.findall(text))):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        path = posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(parts.path))) if parts.path else name
        target = path if path in ids else posixpath.normpath(f"{path}/index.html")
        if target not in ids or (parts.fragment and unquote(parts.fragment) not in ids[target]):
            yield link


def llms_txt(pages: Mapping[str, Page], nav: Iterable[Entry]) -> str:
    """The index for language models (llmstxt.org): every page with one sentence about it."""
    lines = ["# breakloop", "", f"> {_SUMMARY}"]
    for section in nav:
        lines += ["", f"## {section.title}", ""]
        for entry in section.pages():
            page = pages[entry.path]
            lines.append(f"- [{page.title}]({_text_path(page)}): {page.description}")
    return "\n".join(lines) + "\n"


def llms_full_txt(pages: Mapping[str, Page], nav: Iterable[Entry]) -> str:
    """The text of every page that has one; the API reference exists as HTML only."""
    listed = [pages[entry.path] for section in nav for entry in section.pages()]
    return "\n\n---\n\n".join(page.text.strip() for page in listed if page.source) + "\n"


def _text_path(page: Page) -> str:
    return page.path if page.source else page.path.removesuffix(".md") + "/"


def build(home: Path = HOME) -> list[str]:
    """Build the site, and return what is wrong with it."""
    try:
        pages = site_pages.collect(ROOT)
        nav = site_pages.navigation(pages)
    except ValueError as error:
        return [str(error)]
    stage(pages, nav, home)
    html = home / "html"
    shutil.rmtree(html, ignore_errors=True)
    wrong = generate(home)
    if not html.is_dir():
        return wrong or ["the site generator wrote nothing"]
    for page in pages.values():
        if page.source:
            (html / page.path).write_text(page.text, encoding="utf-8")
    (html / "llms.txt").write_text(llms_txt(pages, nav), encoding="utf-8")
    (html / "llms-full.txt").write_text(llms_full_txt(pages, nav), encoding="utf-8")
    return [*wrong, *broken(html)]


def main(arguments: list[str]) -> int:
    """Build, report, and serve if asked to."""
    parser = argparse.ArgumentParser(prog="make site", description=__doc__)
    parser.add_argument("--serve", action="store_true", help="serve the site on 127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args(arguments)
    wrong = build()
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"site: {'not fit to publish' if wrong else 'built'}, .cache/site/html")
    if options.serve:
        handler = partial(SimpleHTTPRequestHandler, directory=str(HOME / "html"))
        with ThreadingHTTPServer(("127.0.0.1", options.port), handler) as server:
            print(f"http://127.0.0.1:{server.server_port} (stop with Ctrl-C)", flush=True)
            server.serve_forever()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
