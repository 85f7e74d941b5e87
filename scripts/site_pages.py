"""The pages of the documentation site, from the Markdown files of the repository.

The files are written for readers of the repository: relative links, also to files outside docs/, and lists as GitHub
reads them. The site generator needs pages below one folder, links between those, and list items indented by four.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

LINK: Final = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
FENCE: Final = re.compile(r"^( *)(```+|~~~+)(.*)$")
_ITEM: Final = re.compile(r"( *)([-*+]|\d+[.)])( +)(?=\S)")
_COMMENT: Final = re.compile(r"<!--.*?-->\s*|\A---\n.*?\n---\n", re.DOTALL)
_START: Final = "index.md"
# Files of the root that are pages; `LICENSE` and the like are linked as they are.
_PROJECT: Final = re.compile(r"([A-Z]+)(\.md)?")
_LANGUAGES: Final = {"cfg": "text", "conf": "nginx", "service": "ini", "Caddyfile": "text", "LICENSE": "text"}
API_INDEX: Final = "reference/python.md"
_API_FOLDER: Final = "reference/python/"


@dataclass(frozen=True)
class Page:
    """A page: its path in the site, the file of the repository it comes from, and its text."""

    path: str
    source: str
    text: str
    summary: str = ""  # where the text has no first sentence

    @property
    def title(self) -> str:
        """The first heading, without markup."""
        found = re.search(r"^# (.+)$", self.text, re.MULTILINE)
        return found[1].replace("`", "") if found else self.path

    @property
    def description(self) -> str:
        """What the page is about: its first sentence, or that of the decision in a decision record."""
        if self.summary:
            return first_sentence(self.summary)
        text = _COMMENT.sub("", self.text)
        decision = re.search(r"^\*\*Decision\.\*\*\s+(?:- +)?(.+?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
        return first_sentence(" ".join(decision[1].split()) if decision else next(paragraphs(text), ""))


@dataclass(frozen=True)
class Entry:
    """A line of the navigation: a page, or a group of entries."""

    title: str
    path: str = ""
    children: tuple[Entry, ...] = ()

    def pages(self) -> Iterator[Entry]:
        """This entry and those below it that are pages."""
        if self.path:
            yield self
        for child in self.children:
            yield from child.pages()


def paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of prose outside code, without headings, tables and lists."""
    prose = re.sub(r"^( *)(```+).*?^\1\2 *$", "", text, flags=re.MULTILINE | re.DOTALL)
    for block in re.split(r"\n\s*\n", prose):
        if block.strip() and not re.match(r"\s*([#|<>!-]|\d+\. |:::)", block):
            yield " ".join(block.split())


def first_sentence(paragraph: str) -> str:
    """The first sentence as plain text; a colon at its end becomes a full stop."""
    plain = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", paragraph).replace("**", "")
    end = re.search(r"[.:](?= [A-Z`\"(\[]|$)", plain)
    return plain if end is None else plain[: end.start()] + "."


def site_path(source: str) -> str:
    """Where the site has a file of the repository."""
    if source == "README.md":
        return _START
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    if "/" not in source and (root := _PROJECT.fullmatch(source)):
        return f"project/{root[1].lower()}.md"
    shown = re.sub(r"(^|/)\.+(?=\w)", r"\1", source)  # the site generator leaves out hidden files
    folder, name = posixpath.split(shown)
    return f"{folder}.md" if name == "README.md" else f"{shown}.md"


def links(text: str) -> Iterator[str]:
    """The targets of the relative links outside code."""
    for line, code in lines_with_code(text):
        if not code:
            yield from (target for target in LINK.findall(line) if is_relative(target))


def is_relative(target: str) -> bool:
    return not re.match(r"[a-z][a-z0-9+.-]*:|#", target)


def lines_with_code(text: str) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it belongs to a block of code."""
    fence = ""
    for line in text.split("\n"):
        mark = FENCE.match(line)
        if not fence and mark:
            fence = mark[2]
            yield line, True
        elif fence:
            if mark and mark[2].startswith(fence) and not mark[3].strip():
                fence = ""
            yield line, True
        else:
            yield line, False


def prepared(text: str, source: str) -> str:
    """The text of a file as the site needs it."""
    return with_wide_lists(with_layers(with_site_links(text, source)))


def with_site_links(text: str, source: str) -> str:
    """Rewrite the links of a file to what they lead to in the site."""
    here = posixpath.dirname(site_path(source))

    def rewritten(match: re.Match[str]) -> str:
        if not is_relative(match[1]):
            return match[1]
        name, mark, anchor = match[1].partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), name))
        is_page = not target.startswith("docs/") or target.endswith(".md")
        path = site_path(target) if is_page else target.removeprefix("docs/")
        return posixpath.relpath(path, here) + mark + anchor

    return "\n".join(line if code else LINK.sub(rewritten, line) for line, code in lines_with_code(text))


def with_wide_lists(text: str) -> str:
    """Indent what belongs to a list item by four, and separate lists from the paragraph above them."""
    done: list[str] = []
    items: list[int] = []  # the columns where the text of the open items begins
    shift = 0
    paragraph = True  # whether an item that follows needs an empty line above it
    for line, code in lines_with_code(text):
        if not line.strip() or (code and not FENCE.match(line)):
            done.append(_shifted(line, shift))
            paragraph = paragraph or not line.strip()
            continue
        indent = len(line) - len(line.lstrip())
        while items and indent < items[-1]:
            items.pop()
        shift = 4 * len(items) - items[-1] if items else 0
        item = None if code else _ITEM.match(line)
        if item is None:
            done.append(_shifted(line, shift))
            paragraph = paragraph or not items
            continue
        if paragraph and done and done[-1].strip():
            done.append("")
        done.append(" " * (shift + len(item[1])) + item[2].ljust(4) + line[item.end() :])
        items.append(item.end())
        shift = 4 * len(items) - items[-1]
        paragraph = False
    return "\n".join(done)


def _shifted(line: str, shift: int) -> str:
    return " " * shift + line if line.strip() else ""


def with_layers(text: str) -> str:
    """Replace a Mermaid diagram by boxes, because Mermaid is a script of several megabytes. It has to be one chain."""
    return re.sub(r"^```mermaid\n(.*?)^```$", _layers, text, flags=re.MULTILINE | re.DOTALL)


def _layers(diagram: re.Match[str]) -> str:
    boxes = dict(re.findall(r'^ *(\w+)\["(.+?)"\]$', diagram[1], re.MULTILINE))
    chain = re.findall(r"^ *(\w+(?: --> \w+)+)$", diagram[1], re.MULTILINE)
    if len(chain) != 1 or chain[0].split(" --> ") != list(boxes):
        raise ValueError(f"a diagram that is not one chain of its boxes, in order:\n{diagram[1]}")
    labels = [re.sub(r"<br/>(.+)", r"<small>\1</small>", label) for label in boxes.values()]
    return "\n".join(['<div class="layers">', *(f"<div>{label}</div>" for label in labels), "</div>"])


def _file_page(root: Path, source: str) -> str:
    """A page that shows a file that is not Markdown."""
    text = (root / source).read_text(encoding="utf-8")
    return f"---\nsearch:\n  exclude: true\n---\n\n# {source}\n\n{_block(source, text)}"


def _block(name: str, text: str) -> str:
    language = _LANGUAGES.get(name.rpartition(".")[2].rpartition("/")[2], name.rpartition(".")[2])
    return f"````{language}\n{text.rstrip()}\n````\n"


def _example_files(root: Path, source: str) -> dict[str, str]:
    """The files of an example by name, which a reader of the repository has next to its README."""
    files = sorted(path for path in (root / source).parent.iterdir() if path.is_file() and path.name != "README.md")
    return {path.name: f"### {path.name}\n\n{_block(path.name, path.read_text(encoding='utf-8'))}" for path in files}


def collect(root: Path) -> dict[str, Page]:
    """Every page by its path in the site: all of docs/, and the files that these link to, and so on."""
    waiting = [path.relative_to(root).as_posix() for path in sorted((root / "docs").rglob("*.md"))]
    pages: dict[str, Page] = {}
    while waiting:
        source = waiting.pop(0)
        path = site_path(source)
        if path in pages or (source.startswith("docs/") and not source.endswith(".md")) or source == "README.md":
            continue
        if not (root / source).is_file():
            continue  # a link that leads nowhere, which the site generator reports with its line
        if not source.endswith(".md"):
            pages[path] = Page(path, source, _file_page(root, source), f"The file {source} of the repository.")
            continue
        text = (root / source).read_text(encoding="utf-8")
        folder = posixpath.dirname(source)
        waiting += [posixpath.normpath(posixpath.join(folder, target.partition("#")[0])) for target in links(text)]
        pages[path] = page = Page(path, source, prepared(text, source))
        if source.startswith("examples/"):
            files = _example_files(root, source)
            summary = f"A complete example that you can run: {', '.join(files)}."
            pages[path] = replace(page, text=page.text + "\n## Files\n\n" + "\n".join(files.values()), summary=summary)
    pages |= {page.path: page for page in api_pages(root)}
    pages[API_INDEX] = _with_api_links(pages[API_INDEX])
    pages[_START] = replace(pages[_START], text="---\nhide: [navigation]\n---\n\n" + pages[_START].text)
    return pages


def navigation(pages: Mapping[str, Page]) -> list[Entry]:
    """The navigation: the lists of docs/index.md below their headings, then what else those pages link to."""
    sections = list(_sections(pages))
    listed = {entry.path for section in sections for entry in section.pages()} | {_START}
    rest = [Entry(page.title, path) for path, page in sorted(pages.items()) if path not in listed]
    if missing := [entry.path for entry in rest if pages[entry.path].source.startswith("docs/")]:
        raise ValueError(f"not in the lists of docs/index.md: {', '.join(missing)}")
    # By the names of their folders, because their titles are those of the how-to guides.
    examples = [Entry(posixpath.basename(one.path)[:-3], one.path) for one in rest if one.path.startswith("examples/")]
    others = [one for one in rest if not one.path.startswith("examples/")]
    files = Entry("Files", children=tuple(replace(one, title=one.title.removeprefix("deploy/")) for one in others))
    return [Entry("Start", _START), *sections, Entry("Examples", children=(*examples, files))]


def _sections(pages: Mapping[str, Page]) -> Iterator[Entry]:
    """The headings of docs/index.md that have lists of pages. A line that ends in a colon names the list below it."""
    for section in re.split(r"^## ", pages[_START].text, flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        groups: dict[str, list[Entry]] = {"": []}
        group = ""
        for line in body.split("\n"):
            if found := re.fullmatch(r"([A-Z][^|`]*):", line):
                group = found[1]
            elif line.startswith(("-   ", "    ")):
                named = re.findall(r"\[([^]]+)\]\(([^)#\s]+)\)", line)
                entries = [_entry(title, path, pages) for title, path in named if path in pages]
                groups.setdefault(group, []).extend(entries)
        alone = groups.pop("")
        children = (*alone, *(Entry(title, children=tuple(entries)) for title, entries in groups.items() if entries))
        if children:
            yield Entry(heading, children=children)


def _entry(title: str, path: str, pages: Mapping[str, Page]) -> Entry:
    if path != API_INDEX:
        return Entry(_capital(title), path)
    modules = [page for page in pages.values() if page.path.startswith(_API_FOLDER)]
    below = [Entry(page.title.removeprefix("breakloop."), page.path) for page in modules]
    return Entry(_capital(title), children=(Entry("Overview", path), *below))


def _capital(title: str) -> str:
    plain = title.replace("`", "")
    return plain[:1].upper() + plain[1:] if " " in plain else plain


# -- the Python API


def api_pages(root: Path) -> Iterator[Page]:
    """A page for each public module. The site generator fills it from the docstrings of the names in `__all__`."""
    overview = LINK.sub(r"../\1", (root / "docs" / API_INDEX).read_text(encoding="utf-8"))  # one folder deeper
    rows = re.findall(r"^\| `(breakloop[\w.]*)` \| .+ \| (.+) \| (.+) \|$", overview, re.MULTILINE)
    use = {module: f"How to use it: {guide}. Install: {extra}." for module, extra, guide in rows}
    for module, path in public_modules(root).items():
        public = [name for name in public_names(path) if not name.startswith("_")]
        names = sorted(public, key=lambda name: (name.endswith("Error"), name != "Guard", name.startswith("Async")))
        summary = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n\n")[0]
        text = f"# {module}\n\n{use[module]}\n\n::: {module}\n    options:\n      members: {names}\n"
        yield Page(f"{_API_FOLDER}{module}.md", "", text, " ".join(summary.split()))


def _with_api_links(page: Page) -> Page:
    """Let the names of modules in the overview lead to their pages, which the repository does not have."""
    return replace(
        page, text=re.sub(r"^\| `(breakloop[\w.]*)` \|", r"| [`\1`](python/\1.md) |", page.text, flags=re.MULTILINE)
    )


def public_modules(root: Path) -> dict[str, Path]:
    """The modules for users: those that the docstring of the package names, and that have an `__all__`."""
    package = root / "src/breakloop"
    candidates = [
        *(package / name for name in ("__init__.py", "exceptions.py", "openai.py", "anthropic.py")),
        *sorted((package / "integrations").glob("[a-z]*.py")),
        package / "testing/__init__.py",
    ]
    return {_module(root, path): path for path in candidates if public_names(path)}


def _module(root: Path, path: Path) -> str:
    parts = path.relative_to(root / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def public_names(path: Path) -> list[str]:
    """The `__all__` of a module, without importing it: some frameworks do not fit into one environment."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [getattr(one, "id", "") for one in node.targets] == ["__all__"]:
            return [str(name) for name in ast.literal_eval(node.value)]
    return []
