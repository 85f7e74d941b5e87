"""Values of settings as text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr

from breakloop.config.loader import blocks_of, effective_settings, fields_of, load_settings, parse, shown
from breakloop.policy.schema.types import Model
from tests.each import each


class Inner(Model):
    deep: int = 1


class Named(Model):
    name: str = ""


class Other(Model):
    title: str = ""


class Outer(Model):
    count: int = 1
    share: float = 1.0
    on: bool = False
    names: list[str] = Field(default=[])
    level: Literal["low", "high"] = "low"
    table: dict[str, int] = Field(default={})
    text: str = ""
    rules: list[Named] = Field(default=[])
    places: dict[str, Annotated[Named | Other, "mark"]] = Field(default={})
    inner: Inner = Inner()


FIELDS = dict(fields_of(Outer))


def test_a_block_is_no_setting_but_its_fields_are() -> None:
    """A block is not a setting but its fields are: at any depth (T-1)."""
    assert list(FIELDS)[-4:] == [("text",), ("rules",), ("places",), ("inner", "deep")]


@each(
    "name, text, value",
    [
        ("count", "7", 7),
        ("count", "7.5", "7.5"),
        ("share", "0.5", 0.5),
        ("on", "Yes", True),
        ("on", "OFF", False),
        ("on", "maybe", "maybe"),
        ("names", "a, b,,", ["a", "b"]),
        ("level", "HIGH", "high"),
        ("level", "loud", "loud"),
        ("table", '{"a": 1}', {"a": 1}),
        ("table", "a=1", "a=1"),
        ("table", "[" * 100_000, "[" * 100_000),
        ("text", "x", "x"),
        ("rules", '[{"name": "a"}]', [{"name": "a"}]),
        ("rules", "a,b", "a,b"),
    ],
)
def test_a_variable_is_read_by_the_type_of_its_field(name: str, text: str, value: object) -> None:
    """What does not fit stays text, for validation to refuse (T-1)."""
    assert parse(text, FIELDS[(name,)]) == value


@each(
    "value, text",
    [
        (SecretStr("x"), "********"),
        (SecretStr(""), "-"),
        (True, "true"),
        (None, "-"),
        ([], "-"),
        (["a", "b"], "a, b"),
        ({"gpt-x": 1}, "gpt-x"),
        ({}, "-"),
        (2.0, "2"),
        (7, "7"),
        ("https://me:secret@host", "https://***@host"),
        ("https://me:se@cret@host/a@b", "https://***@host/a@b"),
        ("https://host/policy.yaml?sv=1&sig=secret%3D=&se=", "https://host/policy.yaml?sv=***&sig=***&se="),
        ("https://host/policy.yaml?secret", "https://host/policy.yaml?***"),
        ("postgresql://me@host/db?password=secret", "postgresql://***@host/db?password=***"),
        ("rediss://:secret@host/0?ca_file=ca.pem", "rediss://***@host/0?ca_file=ca.pem"),
        (["a=https://host/?sig=secret,more", "b"], "a=https://host/?sig=***, b"),
        ("what?.yaml", "what?.yaml"),
    ],
)
def test_values_for_people(value: Any, text: str) -> None:
    """Short, and without secrets (T-1, Y-1)."""
    assert shown(value) == text


def test_lists_and_maps_of_blocks() -> None:
    """People see the names of blocks; which kinds there are is known, for hints (T-1)."""
    assert shown([Named(name="a"), Named(name="b"), Other()]) == "a, b, ?"
    assert blocks_of(FIELDS["rules",]) == [Named]
    assert {block.__name__ for block in blocks_of(FIELDS["places",])} == {"Named", "Other"}
    assert blocks_of(FIELDS["names",]) == blocks_of(FIELDS["text",]) == []


def test_every_setting_is_shown_with_where_it_came_from(tmp_path: Path) -> None:
    """In `doctor` and on the dashboard (X-1, T-2)."""
    loaded = load_settings({"port": 9999}, env={"BREAKLOOP_LOG_LEVEL": "debug"}, directory=tmp_path)
    shown = effective_settings(loaded.settings)
    origins = {name: origin for name, _, origin in shown}
    assert (origins["port"], origins["log_level"], origins["host"]) == (
        "flag --port",
        "environment BREAKLOOP_LOG_LEVEL",
        "default",
    )
