"""Configuration files of other programs: a change is made, and every other byte stays."""

from __future__ import annotations

import json
import tomllib
from difflib import SequenceMatcher

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakloop.cli.config_edit import Change, edit_config, read_config
from breakloop.errors import BundleError

URL = "http://127.0.0.1:8787/agents/x"
ENV = Change(("env", "BASE"), URL)
HOOK = Change(("hooks", "Pre"), {"command": "mine"}, append=True)
PROVIDER = [Change(("model_provider",), "breakloop"), Change(("model_providers", "breakloop", "base_url"), URL)]
AIDER = [Change(("openai-api-base",), URL), Change(("set-env",), "A=1", append=True)]

JSON_FILES = {
    "empty": "",
    "an object": "{}",
    "one line": '{"a": 1}',
    "lines": '{\n  "a": 1\n}\n',
    "tabs and no newline at the end": '{\n\t"a": {\n\t\t"b": 1\n\t}\n}',
    "windows": '{\r\n  "a": 1\r\n}\r\n',
    "a byte order mark": '\ufeff{"a": 1}\n',
    "comments": '// of mine\n{\n  "a": 1, // one\n  /* two\n     lines */\n  "b": "http://x//y" // last\n  // end\n}\n',
    "trailing commas": '{\n  "env": {\n    "X": "1", // x\n  },\n}\n',
    "a comment that goes on": '{\n  "a": 1, /* from here\n  to there */\n}\n',
    "only a comment": "{\n  // nothing yet\n}\n",
    "a comment in the line": "{ /* x */ }",
    "null": '{"env": null, "hooks": {"Pre": null}}',
    "it is there": '{\n  "env": {"BASE": "https://other", "X": "1"}\n}\n',
    "strings like syntax": '{"a": "}, // \\" /*", "b": ["],"]}',
}
TOML_FILES = {
    "empty": "",
    "keys": '# mine\nmodel = "x"  # why\n\n[profiles.a]\nmodel = "y"\n',
    "only tables": '[profiles.a]\nmodel_provider = "not this one"\n',
    "another provider": 'model_provider = "azure"  # ours\n\n[model_providers.azure]\nname = "Azure"\n',
    "ours": f'model_provider = "breakloop"\n[ model_providers.breakloop ]\nbase_url = "{URL}/old" # was\n',
    "text over lines": 'note = """\nmodel_provider = "x"\n[model_providers.breakloop]\n"""\n\n[z]\na = 1',
    "windows": 'model = "x"\r\n\r\n[a]\r\nb = 1\r\n',
}
YAML_FILES = {
    "empty": "",
    "comments only": "# of mine\n\n# and another\n",
    "keys": "model: x  # why\n# last\n",
    "a list": "set-env:\n  # first\n  - B=2 # b\n  - C=3\ndark-mode: true\n",
    "a list at the margin": 'a: 1\nset-env:\n- "B=2"',
    "in one line": "{a: 1, set-env: [B=2]}\n",
    "no values": "set-env:\nopenai-api-base:  # soon\n",
    "it is there": "openai-api-base: 'https://other/v1'   # mine\nset-env: []\n",
    "windows": "a: 1\r\nset-env:\r\n  - B=2\r\n",
}


def kept(before: str, after: str) -> list[str]:
    """What is left of the text before: pieces that were taken out."""
    matcher = SequenceMatcher(a=before, b=after, autojunk=False)
    return [before[a:b] for tag, a, b, _, _ in matcher.get_opcodes() if tag in {"delete", "replace"}]


@pytest.mark.parametrize("before", JSON_FILES.values(), ids=JSON_FILES)
def test_json(before: str) -> None:
    """Comments, order and layout of JSON with comments stay (X-7)."""
    after = edit_config(before, "json", "f", [ENV, HOOK])
    data = read_config(after.removeprefix("\ufeff"), "json", "f")
    assert data["env"]["BASE"] == URL
    assert data["hooks"]["Pre"] == [{"command": "mine"}]
    gone = "".join(kept(before, after))
    assert not gone.strip() or before in (JSON_FILES["null"], JSON_FILES["it is there"]), gone
    assert after.startswith("\ufeff") == before.startswith("\ufeff")
    assert after.count("\r\n") in {0, after.count("\n")}
    assert edit_config(after, "json", "f", [ENV, HOOK]) == after, "twice is once"


def test_json_looks_as_if_a_person_had_written_it() -> None:
    """A comma in front of a comment, and the indentation of the file (X-7)."""
    assert edit_config(JSON_FILES["trailing commas"], "json", "f", [ENV]) == (
        '{\n  "env": {\n    "X": "1", // x\n    "BASE": "' + URL + '",\n  },\n}\n'
    )
    assert edit_config(JSON_FILES["comments"], "json", "f", [ENV]) == (
        '// of mine\n{\n  "a": 1, // one\n  /* two\n     lines */\n  "b": "http://x//y", // last\n  "env": {\n    "BASE": "'
        + URL
        + '"\n  }\n  // end\n}\n'
    )
    assert edit_config('{"a": 1}', "json", "f", [ENV]) == f'{{"a": 1, "env": {{"BASE": "{URL}"}}}}'


@pytest.mark.parametrize("before", TOML_FILES.values(), ids=TOML_FILES)
def test_toml(before: str) -> None:
    """Keys of the first part and of a table; comments and other tables stay (X-7)."""
    after = edit_config(before, "toml", "f", PROVIDER)
    data = tomllib.loads(after)
    assert (data["model_provider"], data["model_providers"]["breakloop"]["base_url"]) == ("breakloop", URL)
    old = tomllib.loads(before)
    assert {key: data[key] for key in old if not key.startswith("model_provider")} == {
        key: old[key] for key in old if not key.startswith("model_provider")
    }
    lost = [line for line in before.splitlines() if "#" in line and line.split("#")[1] not in after]
    assert lost == []
    assert after.count("\r\n") in {0, after.count("\n")}
    assert edit_config(after, "toml", "f", PROVIDER) == after


@pytest.mark.parametrize("before", YAML_FILES.values(), ids=YAML_FILES)
def test_yaml(before: str) -> None:
    """Keys and lists, in blocks and in one line; comments stay (X-7)."""
    after = edit_config(before, "yaml", "f", AIDER)
    data = read_config(after, "yaml", "f")
    assert data["openai-api-base"] == URL
    assert data["set-env"][0] == "A=1"
    assert data["set-env"][1:] == ((read_config(before, "yaml", "f").get("set-env")) or [])
    gone = "".join(kept(before, after)).strip()
    assert not gone or before == YAML_FILES["it is there"], gone
    assert after.count("\r\n") in {0, after.count("\n")}
    assert edit_config(after, "yaml", "f", AIDER) == after


def test_a_part_of_a_mapping_in_yaml() -> None:
    """In front of what is there, with its indentation (X-7)."""
    assert edit_config(YAML_FILES["it is there"], "yaml", "f", AIDER) == (
        f'openai-api-base: "{URL}"   # mine\nset-env: ["A=1"]\n'
    )
    change = Change(("environment_variables", "K"), "v")
    there = "environment_variables:\n    # mine\n    Z: '1'\nmodel_list: []\n"
    assert edit_config(there, "yaml", "f", [change]) == there.replace("    Z:", '    K: "v"\n    Z:')


BAD = {
    ("json", '{\n  "a": 1\n  "b": 2\n}'): "f:3:3: is not valid JSON",
    ("json", '{"a": 1, "a": 2}'): "f:1:10: ",
    ("json", "[]"): "f:1:1: is not a table",
    ("json", '{\n  "env": []\n}'): "f:2:10: env: is not a table",
    ("json", '{\n  "env": {},\n  "hooks": {"Pre": {}}\n}'): "f:3:20: hooks.Pre: is not a list",
    ("toml", 'a = 1\nb = "x'): "f:2:7: is not valid TOML",
    ("toml", 'model_providers = {a = {name = "A"}}\n'): "f: is written in a way that cannot be changed safely",
    ("toml", 'model_provider = """\nx"""\n'): "f: is written in a way that cannot be changed safely",
    ("yaml", "a: 1\n b: 2\n"): "f:2:3: is not valid YAML",
    ("yaml", "set-env: x\n"): "f:1:10: set-env: is not a list",
    ("yaml", "openai-api-base: |\n  text\n"): "f: is written in a way that cannot be changed safely",
}


@pytest.mark.parametrize(("kind", "text"), BAD, ids=[f"{kind} {text[:20]!r}" for kind, text in BAD])
def test_a_bad_file_is_refused(kind: str, text: str) -> None:
    """With its place and, where there is something to do by hand, what (X-7)."""
    changes = {"json": [ENV, HOOK], "toml": PROVIDER, "yaml": AIDER}[kind]
    with pytest.raises(BundleError) as refused:
        edit_config(text, kind, "f", changes)
    assert str(refused.value).startswith(BAD[kind, text])


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(max_size=3), _VALUES, max_size=4),
    st.sampled_from([None, 1, 2, "\t"]),
    st.sampled_from(["", " // x", " /* , } */"]),
)
def test_any_json(data: dict[str, object], indent: int | str | None, comment: str) -> None:
    """Whatever stands in a file, it stands there after a change (X-7)."""
    text = json.dumps(data, indent=indent, ensure_ascii=False) + comment + "\n"
    made = read_config(edit_config(text, "json", "f", [Change(("of ours", "x"), URL)]), "json", "f")
    assert made == {**data, "of ours": {"x": URL}}
