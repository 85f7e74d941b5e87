"""Finds calls and imports that have no place in the product (Y-5): deserialisers that run code, `eval`, shells,
certificate checks switched off, broken digests. It reads the tree, so words in comments and strings do not count."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

MODULES = {
    "cPickle": "runs code on loading",
    "dill": "runs code on loading",
    "marshal": "crashes on bytes of a stranger",
    "pickle": "runs code on loading",
    "shelve": "is pickle underneath",
    "telnetlib": "speaks in the clear",
    "yaml": "ruamel.yaml is our reader",
}
BUILTINS = frozenset({"__import__", "compile", "eval", "exec"})
CALLS = {
    "hashlib.md5": "a broken digest",
    "hashlib.sha1": "a broken digest",
    "os.popen": "starts a shell",
    "os.system": "starts a shell",
    "ssl._create_unverified_context": "does not check certificates",
    "subprocess.getoutput": "starts a shell",
    "subprocess.getstatusoutput": "starts a shell",
    "tempfile.mktemp": "can be raced; use mkstemp",
}
KEYWORDS = {
    ("shell", True): "starts a shell",
    ("verify", False): "does not check certificates",
    ("check_hostname", False): "does not check certificates",
}
# Where one of the above is meant, and why. `path: {what}`; an entry that is not needed any more is a finding too.
ALLOWED: dict[str, frozenset[str]] = {
    # As namedtuple does: a function made at import from the names of declared fields, never from input.
    "breakloop/detect/steps/window.py": frozenset({"exec"}),
    "breakloop/store/redis/scripts.py": frozenset({"hashlib.sha1"}),  # how Redis names scripts
}


def _aliases(tree: ast.Module) -> dict[str, str]:
    """Local name -> full dotted name, for everything imported anywhere in the file."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _dotted(node: ast.expr) -> str:
    """`a.b.c` as text, or nothing for any other expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _imports(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module]
    return []


def _judge_call(node: ast.Call, names: dict[str, str]) -> Iterator[tuple[str, str]]:
    written = _dotted(node.func)
    head, dot, rest = written.partition(".")
    full = names.get(head, head) + dot + rest
    if written in BUILTINS and written not in names:
        yield written, "runs text as code"
    if full in CALLS:
        yield full, CALLS[full]
    if full == "hashlib.new" and node.args and isinstance(node.args[0], ast.Constant):
        digest = str(node.args[0].value).lower().replace("-", "")
        if digest in {"md5", "sha1"}:
            yield f"hashlib.new({digest})", "a broken digest"
    for keyword in node.keywords:
        if isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, bool):
            found = KEYWORDS.get((keyword.arg or "", keyword.value.value))
            if found:
                yield f"{keyword.arg}={keyword.value.value}", found


def findings(source: str) -> list[tuple[int, str, str]]:
    """Line, name and reason of everything forbidden in `source`, in order."""
    tree = ast.parse(source)
    names = _aliases(tree)
    found: list[tuple[int, str, str]] = []
    for node in ast.walk(tree):
        for module in _imports(node):
            top = module.partition(".")[0]
            if top in MODULES:
                found.append((getattr(node, "lineno", 0), f"import {top}", MODULES[top]))
        if isinstance(node, ast.Call):
            found.extend((node.lineno, name, why) for name, why in _judge_call(node, names))
    return sorted(found)


def scan(root: Path, allowed: dict[str, frozenset[str]]) -> list[str]:
    """Judge every Python file below `root`; `allowed` is keyed by the path relative to it."""
    problems: list[str] = []
    unused = {(path, name) for path, names in allowed.items() for name in names}
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root).as_posix()
        for line, name, why in findings(file.read_text(encoding="utf-8")):
            if name in allowed.get(path, frozenset()):
                unused.discard((path, name))
            else:
                problems.append(f"{path}:{line}: {name}: {why}")
    problems.extend(f"{path}: {name} is allowed but not used any more" for path, name in sorted(unused))
    return problems
