"""An extension of griffe, which reads the source for the API reference and does not run it.

- `check, acheck = sync_and_async(_check)` defines two methods, with the signature and the docstring of `_check`
  (`breakloop.sdk.core.sync_and_async`).
- A comment behind a field or a constant describes it. Fields are listed with their class.
- Parameters and fields that begin with an underscore are not for users.
"""

from __future__ import annotations

import ast
import copy
import re
from typing import Any, Final

import griffe

_COMMENT: Final = re.compile(r"\s# (?!noqa|type:|fmt:)(.+)$")


class SourceExtension(griffe.Extension):
    """Changes classes and modules when their members are known."""

    def on_class_members(self, *, node: ast.AST | griffe.ObjectNode, cls: griffe.Class, **_: Any) -> None:
        """Called by griffe for each class."""
        for statement in node.body if isinstance(node, ast.ClassDef) else ():
            match statement:
                case ast.Assign(
                    targets=[ast.Tuple(elts=[ast.Name(id=blocking), ast.Name(id=asynchronous)])],
                    value=ast.Call(func=ast.Name(id="sync_and_async"), args=[ast.Name(id=source)]),
                ):
                    made = cls.members[source]
                    if isinstance(made, griffe.Function):
                        cls.set_member(blocking, _blocking(made, blocking, statement.lineno))
                        cls.set_member(asynchronous, _asynchronous(made, asynchronous, blocking, statement.lineno))
        for name, member in list(cls.members.items()):
            if isinstance(member, griffe.Function):
                member.parameters = _for_users(member)
            elif isinstance(member, griffe.Attribute) and name.startswith("_") and cls.decorators:
                cls.del_member(name)  # a field of a dataclass, which would be a parameter
        public = [one for name, one in cls.members.items() if isinstance(one, griffe.Attribute) and name[0] != "_"]
        fields = [f"    {one.name}: {text}" for one in public if (text := _description(one))]
        if fields and cls.docstring is not None:
            cls.docstring.value = "\n".join([cls.docstring.value, "", "Attributes:", *fields])

    def on_module_members(self, *, mod: griffe.Module, **_: Any) -> None:
        """Called by griffe for each module."""
        for member in mod.members.values():
            if isinstance(member, griffe.Attribute) and (text := _description(member)):
                member.docstring = griffe.Docstring(text, parent=member)


def _description(attribute: griffe.Attribute) -> str:
    """The comment behind an attribute, as a sentence, unless it has a docstring."""
    lines = attribute.lines
    comment = _COMMENT.search(lines[-1]) or _COMMENT.search(lines[0]) if lines else None
    if attribute.docstring is not None or comment is None:
        return ""
    return comment[1][:1].upper() + comment[1][1:].rstrip(".") + "."


def _for_users(function: griffe.Function) -> griffe.Parameters:
    return griffe.Parameters(*(one for one in function.parameters if not re.match(r"_[a-z]|io$", one.name)))


def _blocking(made: griffe.Function, name: str, line: int) -> griffe.Function:
    method = griffe.Function(name, lineno=line, parameters=_for_users(made), returns=made.returns)
    if made.docstring is not None:
        method.docstring = copy.copy(made.docstring)  # with its parser
        method.docstring.parent = method
    return method


def _asynchronous(made: griffe.Function, name: str, blocking: str, line: int) -> griffe.Function:
    method = _blocking(made, name, line)
    method.labels.add("async")
    method.docstring = griffe.Docstring(f"Like `{blocking}`, for use on an event loop.", parent=method)
    return method
