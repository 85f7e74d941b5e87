"""Runs the tests of mutants for `scripts.mutants`, in the environment of development.

`--trace` runs the tests once with coverage and stores which test executes which line, and how long it takes. Otherwise
questions come as lines of JSON: the path of a module, its mutated text and the changed line. The answer says which test
failed, if any. No file of the tree is changed. Each mutant has a process of its own, in one of two ways:

- forked from a run of pytest that has collected all tests, with the code of the changed functions replaced, or
- forked from a process that has imported third-party packages only, with the changed module imported from memory. This
  takes seconds. It is for what an import runs: constants, and functions that an import calls.

Programs that a test starts would run the original, so tests that start programs are left out.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import gc
import hashlib
import importlib
import inspect
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_loader
from pathlib import Path
from types import CodeType, FunctionType
from typing import IO, Any, Final

import coverage
import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
CACHE: Final = ROOT / ".cache" / "mutation"

CORPUS: Final = "tests/test_corpus.py"
DOCS: Final = "tests/test_docs.py::test_generated_pages_are_what_the_code_says"  # with thresholds and settings
# Tests that may kill a mutant; those of a module's own name are run first.
TESTS: Final = (
    "tests/unit/detect",
    "tests/unit/limits",
    "tests/unit/store",
    "tests/unit/engine",
    "tests/unit/policy",
    *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "tests/unit/admin").glob("test_auth*.py"))),
    "tests/unit/admin/test_api.py",
    "tests/unit/app/test_operations.py",
    "tests/unit/app/test_shared_state.py",
    "tests/unit/app/test_state.py",
    "tests/unit/cli/test_bundle_sign.py",
    "tests/unit/gateway/test_proxy_hops.py",
    "tests/unit/gateway/test_stream_guard.py",
    "tests/unit/gateway/test_stream_guard_caps.py",
    "tests/unit/replay/test_explain_limits.py",
    "tests/unit/replay/test_explain_parts.py",
    "tests/contract/test_batches_not_flagged.py",
    "tests/contract/test_limits.py",
    "tests/contract/test_operator_state.py",
    "tests/contract/test_pauses.py",
    "tests/contract/test_steps.py",
    "tests/contract/test_steps_engine.py",
    "tests/contract/test_store.py",
    "tests/contract/test_store_limits.py",
    "tests/contract/test_store_windows.py",
    "tests/contract/test_tree_budgets.py",
    CORPUS,
    DOCS,
)
PYTEST: Final = ("-q", "--timeout=0", "-pno:xdist", "-pno:pytest_cov", "-m", "not e2e and (not slow or corpus)")
# Plugins are imported before the fork, too late for pytest to rewrite the `assert` statements in them.
IN_FORK: Final = ("-x", "-ocache_dir=.cache/mutation/pytest", "-Wignore::pytest.PytestAssertRewriteWarning")
TESTS_MAX_S: Final = 10.0  # for the tests of one mutant, fastest first; those of the module and the corpus come on top
MEMORY_MAX: Final = 3 * 1024**3
IDLE_MAX_S: Final = 12  # without CPU time; no test waits as long, unless for what never happens


def _lines_of_functions(path: Path) -> set[int]:
    """Lines that run when a function is called; the others run when the module is imported."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.update(range(node.body[0].lineno, (node.end_lineno or 0) + 1))
    return found


class _Tracer:
    """A plugin of pytest: which lines each test executes, and the CPU time that it takes."""

    def __init__(self) -> None:
        self.coverage = coverage.Coverage(data_file=None, source_pkgs=["breakloop"], config_file=False)
        self.coverage.start()
        self.cost: dict[str, float] = {}
        self.failed: list[str] = []
        self.names: list[str] = []

    def pytest_collection_finish(self) -> None:
        import_core()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.coverage.switch_context(str(len(self.names)))
        self.names.append(item.nodeid)
        before = time.process_time()
        result = yield
        self.cost[item.nodeid] = time.process_time() - before
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()

    def lines(self) -> dict[str, dict[int, list[int]]]:
        """Path -> line -> places of tests in `names`, and -1 if an import executes it."""
        data = self.coverage.get_data()
        return {
            Path(path).relative_to(ROOT).as_posix(): {
                line: [int(each or -1) for each in names] for line, names in data.contexts_by_lineno(path).items()
            }
            for path in data.measured_files()
        }


def import_core() -> None:
    """Import what is mutated: a lazy import would count as work of the first test that does it."""
    for package in ("detect", "limits", "store", "engine", "policy", "admin"):
        for path in sorted((ROOT / "src" / "breakloop" / package).rglob("*.py")):
            importlib.import_module(_module_of(path))


def _module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")


def _digest() -> str:
    """Of everything that the trace depends on."""
    state = hashlib.blake2b()
    for folder in ("src", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            state.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    state.update(repr((TESTS, PYTEST)).encode())
    return state.hexdigest()


def trace() -> None:
    """Run the tests once, unless that was done for this tree."""
    file = CACHE / "trace.json"
    digest = _digest()
    with contextlib.suppress(FileNotFoundError):
        if json.loads(file.read_text())["digest"] == digest:
            return
    print("mutants: running the tests once, to see which of them executes which line ...", file=sys.stderr, flush=True)
    tracer = _Tracer()
    code = pytest.main([*PYTEST, *TESTS], plugins=[tracer])
    if code or tracer.failed:
        sys.exit(f"mutants: the tests fail without a mutation: {tracer.failed}")
    CACHE.mkdir(parents=True, exist_ok=True)
    modules = sorted(name for name in sys.modules if _preloadable(name))
    file.write_text(
        json.dumps(
            {"digest": digest, "modules": modules, "names": tracer.names, "cost": tracer.cost, "lines": tracer.lines()}
        )
    )


def _preloadable(name: str) -> bool:
    top = name.partition(".")[0]
    return top not in sys.stdlib_module_names and top not in {"breakloop", "conftest", "coverage", "scripts", "tests"}


class Selection:
    """Chooses the tests of a mutant."""

    def __init__(self, traced: dict[str, Any]) -> None:
        self._names: list[str] = traced["names"]
        self._lines: dict[str, dict[str, list[int]]] = traced["lines"]
        self._cost: dict[str, float] = traced["cost"]

    def stages(self, path: str, line: int) -> list[list[str]]:
        """Tests in the files that are named after the module, and the others: a failure of the first saves the rest."""
        package = Path(*Path(path).parts[2:-1])
        own, rest, left = [], [], TESTS_MAX_S
        for name in sorted(
            self._executing(path, line), key=lambda name: (name.startswith((CORPUS, DOCS)), self._cost[name])
        ):
            if name.startswith(f"tests/unit/{package}/test_{Path(path).stem}"):
                own.append(name)
            elif name.startswith((CORPUS, DOCS)):
                rest += [name] if package.parts[0] == "detect" else []
            elif (left := left - self._cost[name]) > 0:
                rest.append(name)
        return [stage for stage in (own, rest) if stage]

    def cost(self, names: Iterable[str]) -> float:
        return sum(self._cost[name] for name in names)

    def is_run_by_import(self, path: str, line: int) -> bool:
        return line not in _lines_of_functions(ROOT / path) or -1 in self._tests(path, line)

    def _tests(self, path: str, line: int) -> Sequence[int]:
        rows = self._lines.get(path, {})
        while str(line) not in rows and line > 0:  # a statement of several lines may be recorded at its first one
            line -= 1
        return rows.get(str(line), ())

    def _executing(self, path: str, line: int) -> set[str]:
        if not self.is_run_by_import(path, line):
            return {self._names[each] for each in self._tests(path, line)}
        # Run by the import: what depends on it is found by nothing smaller than the package.
        folder = str(Path(path).parent)
        near = (rows for other, rows in self._lines.items() if other.startswith(folder))
        tests = set[int]().union(*(each for rows in near for each in rows.values())) - {-1}
        unit = f"tests/unit/{Path(path).parts[2]}/"  # all of them: some only look at a constant
        others = (self._names[each] for each in tests)
        found = {name for name in self._names if name.startswith(unit)}
        return found | {
            name for name in others if name.startswith(("tests/unit/engine/", "tests/contract/", CORPUS, DOCS))
        }


class _Mutant(SourceFileLoader):
    """Imports a module from a text that is not in its file."""

    def __init__(self, path: Path, source: str) -> None:
        super().__init__(_module_of(path), str(path))
        self._source = source

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        return spec_from_loader(name, self) if name == self.name else None

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 - one module, one text
        return self.source_to_code(self._source.encode(), self.path)


class _Failure:
    """A plugin of pytest that keeps the name of the first test that fails."""

    def __init__(self) -> None:
        self.name = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.name:
            self.name = f"importing {report.nodeid}"


class _Chosen:
    """A plugin of pytest that runs the given tests, in the given order."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        known = {item.nodeid: item for item in items}
        # A test whose parameters depend on the mutant has another name now.
        renamed = {name.partition("[")[0] for name in self._names if name not in known}
        chosen = [known[name] for name in self._names if name in known]
        items[:] = chosen + [item for item in items if item.nodeid.partition("[")[0] in renamed and item not in chosen]


def _in_fork(run: Callable[[], tuple[int, str]], limit_s: float) -> str:
    """What failed in a forked process, or an empty text. CPU time is limited: a busy machine changes nothing."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(read)
            resource.setrlimit(resource.RLIMIT_CPU, (int(limit_s), int(limit_s) + 5))
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_MAX, MEMORY_MAX))
            nothing = os.open(os.devnull, os.O_RDWR)
            for each in (0, 1, 2):
                os.dup2(nothing, each)
            os.write(write, json.dumps(run()).encode())
        finally:
            os._exit(0)
    os.close(write)
    answer = _answer(read, child, 30 + 4 * limit_s)
    os.close(read)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if not answer:
        return "a limit of time or memory"
    code, failed = json.loads(answer)
    return "" if code in {0, 5} else failed or f"exit status {code}"


def _answer(read: int, child: int, limit_s: float) -> bytes:
    """What the process writes. Nothing if it waits for what never happens: a mutant of asynchronous code often does."""
    used: list[float] = []
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        if select.select([read], [], [], 1.0)[0]:
            return os.read(read, 65536)
        used.append(_cpu_s(child))
        if len(used) > IDLE_MAX_S and used[-1] - used[-IDLE_MAX_S] < 0.02:
            break
    return b""


def _cpu_s(process: int) -> float:
    """The CPU time of a process; on systems without /proc, one that never waits."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return time.monotonic()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_imported(names: Sequence[str], path: Path, source: str, limit_s: float) -> str:
    """Run tests in a process that imports the mutant in place of its module."""

    def run() -> tuple[int, str]:
        sys.meta_path.insert(0, _Mutant(path, source))
        failure = _Failure()
        files = dict.fromkeys(name.partition("::")[0] for name in names)
        return int(pytest.main([*PYTEST, *IN_FORK, *files], plugins=[failure, _Chosen(names)])), failure.name

    return _in_fork(run, limit_s)


def functions_of(source: str) -> tuple[list[CodeType], object]:
    """The functions and methods of a module, in order, and the rest of its code: what an import runs."""
    functions: list[CodeType] = []

    def rest(code: CodeType) -> object:
        constants: list[object] = []
        for each in code.co_consts:
            if not isinstance(each, CodeType):
                constants.append((type(each), each))
            elif (
                each.co_flags & inspect.CO_NEWLOCALS and each.co_flags & inspect.CO_OPTIMIZED and each.co_name[0] != "<"
            ):
                functions.append(each)
                constants.append(each.co_qualname)
            else:
                constants.append(rest(each))
        return code.co_code, code.co_names, constants

    return functions, rest(compile(source, "", "exec", dont_inherit=True))


class _Collected:
    """A plugin of pytest that, instead of running the tests it has collected, answers questions."""

    def __init__(self, questions: IO[str], answers: IO[str]) -> None:
        self._questions, self._answers = questions, answers
        self._failure = _Failure()
        self._live: dict[tuple[str, str, int], list[FunctionType]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        import_core()
        gc.unfreeze()  # `tests/conftest.py` freezes: frozen objects are not listed
        for each in gc.get_objects():
            if isinstance(each, FunctionType) and "/breakloop/" in each.__code__.co_filename:
                code = each.__code__
                self._live.setdefault((code.co_filename, code.co_qualname, code.co_firstlineno), []).append(each)
        gc.freeze()
        session.config.pluginmanager.register(self._failure)
        items = {item.nodeid: item for item in session.items}
        for question in self._questions:
            asked = json.loads(question)
            path = ROOT / asked["path"]
            changes = self._changes(path, asked["source"])
            answer = None
            if changes is not None:
                chosen = [items[name] for name in asked["names"]]
                answer = _in_fork(functools.partial(self._run, session, chosen, changes), asked["limit_s"])
            print(json.dumps(answer), file=self._answers, flush=True)
        return True

    def _changes(self, path: Path, source: str) -> list[tuple[FunctionType, CodeType]] | None:
        """Functions and their mutated code. None if more than functions is changed."""
        (old, old_rest), (new, new_rest) = functions_of(path.read_text()), functions_of(source)
        if old_rest != new_rest:
            return None
        found = []
        for before, after in zip(old, new, strict=True):
            if before != after:
                live = self._live.get((str(path), before.co_qualname, before.co_firstlineno), ())
                if not live:
                    return None
                found += [(function, after) for function in live]
        return found

    def _run(
        self, session: pytest.Session, items: list[pytest.Item], changes: list[tuple[FunctionType, CodeType]]
    ) -> tuple[int, str]:
        for function, code in changes:
            function.__code__ = code
        session.config.option.maxfail = 1
        for place, item in enumerate(items):
            session.config.hook.pytest_runtest_protocol(
                item=item, nextitem=items[place + 1] if place + 1 < len(items) else None
            )
            if self._failure.name:
                break
        return int(bool(self._failure.name)), self._failure.name


class Tests:
    """Runs the tests of mutants."""

    def __init__(self) -> None:
        traced = json.loads((CACHE / "trace.json").read_text())
        self._selection = Selection(traced)
        self._proven: set[str] = set()
        for name in traced["modules"]:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        # The exception that Cosmic Ray writes into `except` clauses, which nothing raises.
        builtins.CosmicRayTestingException = type("CosmicRayTestingException", (Exception,), {})  # type: ignore[attr-defined]
        gc.collect()
        gc.freeze()
        asked, answered = os.pipe(), os.pipe()
        if not os.fork():
            plugin = _Collected(os.fdopen(asked[0]), os.fdopen(answered[1], "w"))
            os.close(asked[1])
            os.dup2(os.open(os.devnull, os.O_RDWR), 1)
            pytest.main([*PYTEST, *IN_FORK, *TESTS], plugins=[plugin])
            os._exit(0)
        os.close(asked[0])
        os.close(answered[1])
        self._questions, self._answers = os.fdopen(asked[1], "w"), os.fdopen(answered[0])

    def kill(self, path: str, line: int, source: str) -> tuple[str, int]:
        """What killed the mutant, or an empty text, and the number of tests."""
        stages = self._selection.stages(path, line)
        by_import = self._selection.is_run_by_import(path, line)
        number = sum(map(len, stages))
        original = (ROOT / path).read_text()
        for names in stages:
            if path not in self._proven:  # a failure without a mutation would count as a kill
                self._require_none(self._run(names, path, original, by_import=by_import), path)
                self._proven.add(path)
            if failed := self._run(names, path, source, by_import=by_import):
                if failed in names and failed not in self._proven:
                    self._require_none(self._run([failed], path, original, by_import=by_import), path)
                    self._proven.add(failed)
                return failed, number
        return "", number

    def _run(self, names: list[str], path: str, source: str, *, by_import: bool) -> str:
        limit_s = 10 + 10 * self._selection.cost(names)
        if by_import:
            return run_imported(names, ROOT / path, source, limit_s)
        question = {"names": names, "path": path, "source": source, "limit_s": limit_s}
        print(json.dumps(question), file=self._questions, flush=True)
        failed: str | None = json.loads(self._answers.readline())
        return run_imported(names, ROOT / path, source, limit_s) if failed is None else failed

    @staticmethod
    def _require_none(failed: str, path: str) -> None:
        if failed:
            sys.exit(f"mutants: {failed} fails without a mutation of {path}")


def serve() -> None:
    tests = Tests()
    for question in sys.stdin:
        began = time.monotonic()
        failed, number = tests.kill(**json.loads(question))
        answer = {"killed": bool(failed), "by": failed, "tests": number, "seconds": time.monotonic() - began}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    if "--trace" in sys.argv:
        trace()
    else:
        serve()
