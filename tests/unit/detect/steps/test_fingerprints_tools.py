"""Which calls change something, and what a policy says of tools (LD-4)."""

from __future__ import annotations

from breakloop.detect.stateful import BLOCK
from breakloop.detect.steps.detector import StepEvaluator
from breakloop.detect.steps.fingerprints import (
    CHANGES,
    NO_OPTIONS,
    OTHER,
    READS,
    RUNS,
    ToolOptions,
    ToolTable,
    changes,
    manner,
)
from breakloop.detect.steps.kinds import NORMAL, StepsSettings
from tests.each import each
from tests.growth import GROWTH_MAX, growth
from tests.unit.detect.steps.stepping import LONG, digest
from tests.unit.detect.steps.test_waiting import Session


@each("name, arguments", [
    ("write_file", "{}"), ("apply_patch", "{}"), ("createIssue", "{}"), ("fileWrite", "{}"), ("book_flight", "{}"),
    ("str_replace_based_edit_tool", '{"command":"insert"}'),
    ("bash", '{"command":"echo a > b.txt"}'), ("bash", '{"command":"sed -i s/a/b/ f"}'), ("shell", '{"command":"git commit -m x"}'),
    ("execute_bash", '{"command":"cat <<EOF > a"}'), ("python", "open('a', 'w').write('x')"),
    ("execute-tool", '{"tool_name": "create_presentation"}'),
    ("bash", "ls | tee out.txt"), ("bash", "mv a b"), ("bash", "tar xf a"), ("bash", "pip3 install x"), ("bash", "apt-get install x"),
    ("python", "path.write_text('x')"), ("python", "frame.to_csv('x')"), ("python", "model.save('x')"), ("python", "open('a', 'x')"),
    ("bash", "cat <<E\nE"), ("bash", "sed -n -E -e -s -i s/a/b/ f"), ("python", "f(1); open('a', mode='w')"),
])  # fmt: skip
def test_changes(name: str, arguments: str) -> None:
    """By name, or by what a shell command does (LD-4)."""
    assert changes(manner(name), arguments.encode())


@each("name, arguments", [
    ("read_file", "{}"), ("search", '{"q":"write"}'), ("str_replace_based_edit_tool", '{"command":"view"}'),
    ("bash", '{"command":"ls -la 2>&1"}'), ("bash", '{"command":"grep x f >/dev/null"}'), ("bash", '{"command":"python -c \'1 -> 2\'"}'),
    ("execute-tool", '{"tool_name": "list_files"}'), ("get_address", "{}"), ("bash", "git log"), ("python", "open('b.txt')"),
    ("", "> a"), ("bash", "cat a; sort b"),
])  # fmt: skip
def test_looks(name: str, arguments: str) -> None:
    """Reading is no change, whatever the arguments say (LD-4)."""
    assert not changes(manner(name), arguments.encode())


def test_many_beginnings_are_no_matter() -> None:
    """Calls full of beginnings that come to nothing cost as much as they are long (Y-2)."""
    for beginning in (b"open(", b"sed -"):
        assert not changes(RUNS, beginning * 800)
        times = growth(lambda size, line=beginning: changes(RUNS, line * (size // len(line))), 1000)  # type: ignore[misc]
        assert times <= GROWTH_MAX, beginning


def test_manners() -> None:
    """Tools that run commands or code, tools that read, tools that change things (LD-4)."""
    assert [manner(name) for name in ("execute_bash", "run_command", "python")] == [RUNS] * 3
    assert [manner(name) for name in ("task_done", "publish", "", "42")] == [OTHER] * 4
    assert (manner("read_code"), manner("updateTicket"), manner("change_page")) == (READS, CHANGES, CHANGES)


def test_options_by_name_and_by_prefix() -> None:
    """A name goes before a prefix, a longer prefix before a shorter one (LD-4)."""
    exact, long, short = ToolOptions(exempt=True), ToolOptions(poll=True), ToolOptions(exclude=frozenset("x"))
    tools = ToolTable({"job*": short, "job_status": exact, "job_st*": long})
    assert tools.of("job_status").options is exact
    assert tools.of("job_start").options is long
    assert tools.of("jobs").options is short
    assert tools.of("other").options is tools.of("joke").options is NO_OPTIONS
    assert ToolTable({"*": long}).of("anything").options is long


def test_names_are_remembered_but_not_for_ever() -> None:
    """Constant memory, whatever names clients come up with; other names, other keys (LD-4)."""
    tools = ToolTable({})
    assert tools.of("look") is tools.of("look")
    assert tools.of("x" * 200) is tools.of("x" * 200)
    assert tools.of("x" * 201) is not tools.of("x" * 201)
    one = tools.of("look")
    for number in range(1001):
        tools.of(f"tool{number}")
    assert tools.of("look") is not one
    assert tools.of("look") == one != tools.of("\ud800")
    assert len({tools.of(name).key for name in ("look", "\ud800", "Look")}) == 3


def test_looks_that_seem_to_change_something() -> None:
    """An input that is redirected, and a tool that finds and replaces nothing by itself (LD-4)."""
    assert not changes(RUNS, b"sort < names.txt")
    assert not changes(RUNS, b'{"tool_name": "find_and_replace"}')
    assert changes(RUNS, b"<<END cat")


def test_how_many_names_are_kept() -> None:
    """A thousand (Y-2)."""
    tools, sizes = ToolTable({}), []
    for number in range(2500):
        tools.of(f"tool{number}")
        sizes.append(len(tools.known))
    assert max(sizes) == 1000


def test_options_that_are_not_given() -> None:
    """An option of one kind changes nothing else: repeats of the call are counted as without it (LD-4)."""
    excluding = {"look": ToolOptions(exclude=frozenset(("page",)))}
    sessions = [Session(), Session(StepEvaluator(StepsSettings(NORMAL, excluding), digest))]
    for session in sessions:
        for _ in range(6):
            session.call(2.0, "look", "{}", LONG)
    one, other = ([(found.level, found.kind) for found in session.found] for session in sessions)
    assert one == other
    assert one[-1] == (BLOCK, "repeat")
