"""Actions that are written as plain text: which forms are read, and what is not taken for one."""

from __future__ import annotations

from breakloop.dialects.text_actions import read
from breakloop.model.call import ToolCall
from tests.each import each
from tests.growth import GROWTH_MAX, HOSTILE_TEXTS, growth

LISTED = "Calling tools:\n[{{'id': '{}', 'type': 'function', 'function': {{'name': 'web_search', 'arguments': {}}}}}]"
BLOCK = "THOUGHT: I look.\n\n```{}\n{}\n```"


@each(
    "text, name, arguments",
    [
        (BLOCK.format("bash", "ls -la\npwd"), "bash", "ls -la\npwd"),
        (BLOCK.format("sh", "ls") + "\n\nThen I go on.", "bash", "ls"),
        ("Thought: x\n\nCode:\n```py\nfinal(1)\n```<end_code>", "python", "final(1)"),
        ("Thought: x\nCode:\n```python\nprint(1)<end_code>", "python", "print(1)"),
        ("Thought: x\n<code>\nprint(1)\n</code>", "python", "print(1)"),
        (BLOCK.format("tool_code", "find(1)"), "python", "find(1)"),
        ("```python\na = 1\n```\nand\n```python\nb = 2\n```", "python", "b = 2"),
        ("```bash\nls\n```\nwhere `a` is\n```python\nquoted()\n```", "bash", "ls"),
        ("An odd fence\n```\nnever closed\n\n```bash\nls\n```", "bash", "ls"),
        ("Action: ```bash\nmake\n```", "bash", "make"),
        ("Action:\n```python\nlook('a')\n```", "python", "look('a')"),
        ("cut off\n```bash\nls -la", "bash", "ls -la"),
        ("DISCUSSION\nI open it.\n```\nopen a.py 12\n```", "open", "open a.py 12"),
        ("I run it.\n```\n./run.sh --all\n```", "./run.sh", "./run.sh --all"),
        ("Thought: x\nAction: search\nAction Input: big cats", "search", "big cats"),
        ('Action: `look`\nAction Input: {"b": 1, "a": 2}\nObservation: made up', "look", '{"a":2,"b":1}'),
        ("**Action:** search\n**Action Input:** *.py", "search", "*.py"),
        ("Action: search[big cats]\n", "search", "big cats"),
        ('Action:\n```json\n{"action": "look", "action_input": "x"}\n```', "look", "x"),
        ('Action:\n```\n{"action": "look", "action_input": {"q": 1}}\n```', "look", '{"q":1}'),
        ('<tool_call>\n{"name": "f", "arguments": {"b": 1, "a": 2}}\n</tool_call>', "f", '{"a":2,"b":1}'),
        ('<tool_call>{"name": "f", "arguments": {}}', "f", "{}"),
        ("<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>", "f", '{"x":"1"}'),
        ("<function=run>\n<parameter=command>ls</parameter>\n</function>", "run", '{"command":"ls"}'),
        ('<function=f>{"a": 1}</function>', "f", '{"a":1}'),
        ('<invoke name="f"><parameter name="x">1</parameter></invoke>', "f", '{"x":"1"}'),
        ("<execute_bash>\nls\n</execute_bash>", "bash", "ls"),
        ("<execute_browse>\ngoto(1)\n</execute_browse>", "execute_browse", "goto(1)"),
        ("<code>\n```py\nprint(1)\n```\n</code>", "python", "print(1)"),
        ("Action: run\nAction Input:\n```\nls -la\n```", "run", "ls -la"),
        ("<execute_ipython>\n1\n</execute_ipython>", "python", "1"),
        ("I read it.\n<read_file>\n<path>a.py</path>\n</read_file>", "read_file", "<path>a.py</path>"),
        (LISTED.format("a1b2", "{'query': 'big cats'}"), "web_search", '{"query":"big cats"}'),
        (f"[PLAN]:\n1. Search.\n{LISTED.format('c3', '{}')}", "web_search", "{}"),
        (
            LISTED.format("c4", """{'a': 'it"s', 'b': "it's", 'c': 'it\\'s'}"""),
            "web_search",
            '{"a":"it\\"s","b":"it\'s","c":"it\'s"}',
        ),
        (
            LISTED.format("c5", r"{'a': 'x\ny\x1b', 'b': [True, None]}"),
            "web_search",
            r'{"a":"x\ny\u001b","b":[true,null]}',
        ),
        (LISTED.format("c6", "{'a': <Image>}"), "web_search", "{'a': <Image>"),
        ("Code:\n```py\nlook(1)\n```\n" + LISTED.format("d4", "'look(1)'"), "python", "look(1)"),
        ('{"name": "f", "arguments": {"x": 1}}', "f", '{"x":1}'),
        ('{"name": "f", "parameters": {"x": 1}}', "f", '{"x":1}'),
        ('{"action": "run", "args": {"command": "ls"}}', "run", '{"command":"ls"}'),
        ('{"thoughts": {}, "command": {"name": "f", "args": {"x": 1}}}', "f", '{"x":1}'),
        ('[{"name": "f", "arguments": {"x": 1}}]', "f", '{"x":1}'),
        ('{"current_state": {}, "action": [{"click": {"index": 3}}]}', "click", '[{"click":{"index":3}}]'),
    ],
)
def test_forms(text: str, name: str, arguments: str) -> None:
    """The usual forms of actions in text (LD-4)."""
    assert read(text) == ToolCall(name, arguments)


@each(
    "text",
    [
        "",
        "I am done.",
        "Final Answer: 42",
        "Action: Final Answer\nAction Input: 42",
        '{"action": "Final Answer", "action_input": "42"}',
        '{"name": "Ann", "age": 7}',
        '{"broken": ',
        "[1, 2]",
        "The result:\n```json\n[1, 2]\n```",
        "The result:\n```\n42\n```",
        "The result:\n```\nTotal costs\n```",
        "```\nls -la\n```\nThat was the command.",
        "```\nls\n```\nand\n```\npwd\n```",
        "In Rust:\n```rust\nfn main() {}\n```",
        "Use the <code>len</code> function.",
        "<div>\n<b>bold</b>\n</div>",
        "<read_file></read_file>",
        "action: we go on\n",
        "```bash\n\n```",
        "<execute_ of something else",
        "Action: say (to all) what is\nAction Input: x",
    ],
)
def test_no_action(text: str) -> None:
    """Answers that are shown to somebody (LD-4)."""
    assert read(text) is None


def test_ids_of_listed_calls_do_not_count() -> None:
    """Calls that a framework writes back as text have a new id each time (LD-4)."""
    two = "Calling tools:\n[{'id': '%s', 'type': 'function', 'function': {'name': 'f', 'arguments': {}}}, {'id': '%s', "
    two += "'type': 'function', 'function': {'name': 'g', 'arguments': {'n': 1}}}]"
    assert read(two % ("call_1", "call_2"), declared=True) == read(two % ("call_3", "call_4"), declared=True)
    assert read("The function is done. Calling tools:\n[1, 2, 3]") is None


def test_code_is_shown_where_tools_are_declared() -> None:
    """Who has tools calls them; a code block is an explanation then, and a call in text is still a call (LD-4)."""
    for text in (BLOCK.format("bash", "ls"), BLOCK.format("", "ls"), "<code>\nls()\n</code>"):
        assert read(text) is not None
        assert read(text, declared=True) is None
    assert read('<tool_call>{"name": "f", "arguments": {}}</tool_call>', declared=True) == ToolCall("f", "{}")
    assert read('```json\n{"name": "f", "arguments": {}}\n```', declared=True) == ToolCall("f", "{}")


def test_nothing_takes_long() -> None:
    """No text makes the reading slow: four times as much is some four times the work (C-9)."""

    def growth_of(begin: str, again: str, end: str) -> float:
        return growth(lambda size: read(begin + again * (size // len(again)) + end), 1000)

    grown = {f"{begin}{again}...{end}": growth_of(begin, again, end) for begin, again, end in HOSTILE_TEXTS}
    assert {text: times for text, times in grown.items() if times > GROWTH_MAX} == {}


def test_actions_within_actions_are_read_once() -> None:
    """Objects that hold each other are no deeper than they are (C-9)."""
    assert growth(lambda size: read('{"function":' * (size // 24) + "1" + "}" * (size // 24)), 3000) <= GROWTH_MAX
