"""Mutation testing of the decision core (`make mutants`): the share of small faults that the unit tests notice.

Cosmic Ray makes the faults, one at a time. This script draws a sample per package, has `scripts.mutants_tests` run the
tests that execute the changed line, and prints what survived. It runs in the environment of `requirements/mutants.txt`;
the tests run in the one of development. No file of the tree is changed. docs/reference/mutation.md has the figures.
"""

from __future__ import annotations

import argparse
import ast
import functools
import hashlib
import json
import math
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, cast

import cosmic_ray.plugins
import parso.python.tree
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.exception_replacer import ExceptionReplacer
from cosmic_ray.operators.operator import Operator

ROOT: Final = Path(__file__).resolve().parent.parent
SRC: Final = ROOT / "src" / "breakloop"
EQUIVALENT: Final = ROOT / "scripts" / "mutants_equivalent.toml"

PACKAGES: Final[dict[str, tuple[str, ...]]] = {
    "detect": ("detect/**/*.py",),
    "limits": ("limits/*.py",),
    "store": ("store/*.py",),
    "redis": ("store/redis/*.py",),
    "kill-switches": ("engine/operator.py", "policy/orders.py"),
    "quarantine": ("engine/quarantine.py",),
    "shadow": ("engine/plan.py", "engine/fold.py"),
    "signing": ("policy/signing.py",),
    "auth": ("admin/auth.py", "policy/jwt.py"),
    "trees": ("policy/trees.py", "engine/tree_budgets.py"),
}

LUA: Final = "lua"  # store/redis/lua: see `scripts.mutants_lua`, which is run by itself

# One replacement for each operator, the closest one. Cosmic Ray has up to eleven for each, and nearly all of them raise
# TypeError or are as easy to notice as the one here: they would raise the score without testing anything more.
OPERATORS: Final = (
    "ReplaceBinaryOperator_Add_Sub",
    "ReplaceBinaryOperator_Sub_Add",
    "ReplaceBinaryOperator_Mul_Div",
    "ReplaceBinaryOperator_Div_Mul",
    "ReplaceBinaryOperator_FloorDiv_Mul",
    "ReplaceBinaryOperator_Mod_FloorDiv",
    "ReplaceBinaryOperator_Pow_Mul",
    "ReplaceBinaryOperator_RShift_LShift",
    "ReplaceBinaryOperator_LShift_RShift",
    "ReplaceBinaryOperator_BitOr_BitAnd",
    "ReplaceBinaryOperator_BitAnd_BitOr",
    "ReplaceBinaryOperator_BitXor_BitOr",
    "ReplaceComparisonOperator_Eq_NotEq",
    "ReplaceComparisonOperator_NotEq_Eq",
    "ReplaceComparisonOperator_Lt_LtE",
    "ReplaceComparisonOperator_LtE_Lt",
    "ReplaceComparisonOperator_Gt_GtE",
    "ReplaceComparisonOperator_GtE_Gt",
    "ReplaceComparisonOperator_Is_IsNot",
    "ReplaceComparisonOperator_IsNot_Is",
    "ReplaceUnaryOperator_Delete_Not",
    "ReplaceUnaryOperator_Delete_USub",
    "ReplaceUnaryOperator_Delete_Invert",
    "AddNot",
    "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak",
    "NumberReplacer",
    "RemoveDecorator",
    "ZeroIterationForLoop",
)

# Decorators that only type checkers read.
_TYPING_ONLY: Final = frozenset({"final", "overload", "override", "runtime_checkable"})


class DeleteStatement(Operator):  # type: ignore[misc]  # Cosmic Ray has no types
    """Replaces a statement that has an effect by `pass`: a call, a `raise`, an assignment in place, or one to an
    attribute or an item. Cosmic Ray has no such operator."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        if node.type == "simple_stmt" and parso.tree.search_ancestor(node, "funcdef") and self._has_effect(node):
            yield node.children[0].start_pos, node.children[0].end_pos

    def mutate(self, node: Any, _index: int) -> Any:
        first = node.children[0]
        node.children[0] = parso.python.tree.Keyword("pass", first.start_pos, first.get_first_leaf().prefix)
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        return ()

    @staticmethod
    def _has_effect(node: Any) -> bool:
        statement = node.children[0]
        if statement.type == "expr_stmt":
            target, operator = statement.children[:2]
            if operator.type == "annassign":
                return False
            return target.type in {"atom_expr", "power"} or operator.get_code().strip() != "="
        return statement.type in {"atom_expr", "power", "await_expr", "raise_stmt"}


class ReplaceException(ExceptionReplacer):  # type: ignore[misc]  # as above
    """Cosmic Ray's own fails at names with dots, as in `except jwt.InvalidTokenError`: these are left alone."""

    @staticmethod
    def _name_nodes(node: Any) -> list[Any]:
        found = ExceptionReplacer._name_nodes(node)  # noqa: SLF001 - the method that is wrong
        return [each for each in found if each.type == "name"]


@dataclass(frozen=True, slots=True)
class Site:
    """Where an operator applies: a mutant that is not made yet."""

    path: Path
    operator: Operator
    occurrence: int  # of the operator in the file
    key: str  # what the order of drawing depends on

    def rank(self, seed: int) -> bytes:
        return hashlib.blake2b(f"{seed}\0{self.key}".encode()).digest()


@dataclass(frozen=True, slots=True)
class Mutant:
    package: str
    path: str  # below the root of the repository
    line: int
    was: str  # the changed line without its indentation
    now: str
    source: str = field(repr=False)  # of the whole module

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line}\n    - {self.was}\n    + {self.now}"


@dataclass(slots=True)
class Score:
    package: str
    mutants: int  # all that could be drawn
    killed: list[Mutant] = field(default_factory=list)
    survived: list[Mutant] = field(default_factory=list)

    @property
    def drawn(self) -> int:
        return len(self.killed) + len(self.survived)

    @property
    def share(self) -> float:
        return len(self.killed) / self.drawn if self.drawn else 1.0

    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the share."""
        n, z = self.drawn, 1.96
        if not n:
            return 0.0, 1.0
        if n == self.mutants:
            return self.share, self.share
        middle = (self.share + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(self.share * (1 - self.share) / n + z * z / (4 * n * n))
        return max(0.0, middle - half), min(1.0, middle + half)


@functools.cache
def operators() -> tuple[Operator, ...]:
    known = (cosmic_ray.plugins.get_operator(f"core/{name}")() for name in OPERATORS)
    return *known, ReplaceException(), DeleteStatement()


def not_mutated(tree: ast.Module) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Spans of what does not decide anything when it runs: annotations, aliases of types, imports for type checkers,
    arguments of `dataclass`, whose effect on programs mypy checks. And bounds of memory: tests set them to a few.
    """
    found: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            found.append(node.annotation)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.returns:
                found.append(node.returns)
            if _is_stub(node):
                found += [node, *node.decorator_list]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found += [each for each in node.decorator_list if _name_of(each) in {"dataclass", *_TYPING_ONLY}]
            found += getattr(node, "keywords", ())  # of `msgspec.Struct`, as those of `dataclass`
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            found.append(node)
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.BinOp) and _is_union(node.value):
            found.append(node.value)
        if isinstance(node, ast.Call) and _name_of(node) in {"assert_never", "cast", "TypeVar", "NewType"}:
            found.append(node)
        if isinstance(node, ast.AnnAssign) and "_MAX" in ast.unparse(node.target) and _product(node.value) >= 1000:
            found.append(cast("ast.expr", node.value))
        if isinstance(node, ast.keyword) and node.arg == "strict":  # of `zip`: an assertion
            found.append(node)
    return [
        ((each.lineno, each.col_offset), (each.end_lineno or each.lineno, each.end_col_offset or 0))  # type: ignore[attr-defined]
        for each in found
    ]


def _name_of(node: ast.expr) -> str:
    function = node.func if isinstance(node, ast.Call) else node
    return ast.unparse(function).rpartition(".")[2]


def _product(node: ast.expr | None) -> float:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _product(node.left) * _product(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):  # the largest number of a field: 2**16 - 1
        return _product(node.left) - _product(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return float(_product(node.left) ** _product(node.right))
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int | float) else 0


def _is_stub(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether it has no body: a member of a protocol, or an abstract method."""
    return len(node.body) == 1 and isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant)


def _is_union(node: ast.expr) -> bool:
    """Whether this is `A | B`, an alias of types: numbers are in lower case or all in capitals."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.BitOr) and _is_union(node.left) and _is_union(node.right)
    text = ast.unparse(node).rpartition(".")[2]
    return text in {"None", "str", "int", "float", "bytes", "bool"} or (text[:1].isupper() and not text.isupper())


def sites(path: Path) -> Iterator[Site]:
    source = path.read_text()
    lines = source.split("\n")
    skipped = not_mutated(ast.parse(source))
    nodes = tuple(ast_nodes(get_ast(source)))
    same: Counter[str] = Counter()
    for operator in operators():
        positions = [(node, start) for node in nodes for start, _ in operator.mutation_positions(node)]
        for occurrence, (node, (line, column)) in enumerate(positions):
            if node.parent and node.parent.type == "parameters":  # the star before keyword arguments is no operator
                continue
            begin = (line, column + (lines[line - 1][column] == "@"))  # `ast` has a decorator begin behind its sign
            if any(start <= begin < end for start, end in skipped):
                continue
            # Without the number of the line: an edit elsewhere does not change which mutants are drawn.
            key = f"{path.relative_to(SRC).as_posix()}\0{lines[line - 1].strip()}\0{type(operator).__name__}"
            same[key] += 1
            yield Site(path, operator, occurrence, f"{key}\0{same[key]}")


def mutant_at(package: str, site: Site) -> Mutant | None:
    source = site.path.read_text()
    mutated: str = mutate_code(source, site.operator, site.occurrence)
    try:
        compile(mutated, site.path, "exec", dont_inherit=True)
    except SyntaxError:
        return None
    lines, changed = source.split("\n"), mutated.split("\n")
    at = next(i for i, pair in enumerate(zip(lines, changed, strict=False)) if pair[0] != pair[1])
    now = "(deleted)" if lines[at].lstrip().startswith("@") else changed[at]
    return Mutant(package, site.path.relative_to(ROOT).as_posix(), at + 1, lines[at].strip(), now.strip(), mutated)


def equivalents() -> dict[tuple[str, ...], str]:
    """Mutants that no test can kill, because they behave as the original does, with the reason."""
    rows = tomllib.loads(EQUIVALENT.read_text()).get("mutant", [])
    return {(f"src/breakloop/{row['path']}", *_without_spaces(row["was"], row["now"])): row["reason"] for row in rows}


def stale(known: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Entries whose line is not in the file any more."""
    lines = functools.cache(lambda path: {*_without_spaces(*(ROOT / path).read_text().split("\n"))})
    return [one for one in known if not (ROOT / one[0]).exists() or one[1] not in lines(one[0])]


def _without_spaces(*lines: str) -> tuple[str, ...]:
    """Cosmic Ray adds spaces before numbers."""
    return tuple("".join(line.split()) for line in lines)


def draw(
    package: str, known: Collection[tuple[str, ...]], count: int | None, seed: int, only: str = ""
) -> tuple[Score, list[Mutant]]:
    """The first mutants in an order that depends on the seed, without those that are known to be equivalent."""
    paths = sorted({path for pattern in PACKAGES[package] for path in SRC.glob(pattern)})
    if not paths:
        raise SystemExit(f"mutants: {package} has no files")
    wanted = [path for path in paths if only.partition(":")[0] in path.as_posix()]  # making mutants takes long
    every = sorted((site for path in wanted for site in sites(path)), key=lambda site: site.rank(seed))
    found: dict[str, Mutant] = {}
    for site in every:
        if len(found) == count:
            break
        mutant = mutant_at(package, site)
        if not mutant or only not in f"{mutant.path}:{mutant.line}":
            continue
        if (mutant.path, *_without_spaces(mutant.was, mutant.now)) not in known:
            found.setdefault(mutant.source, mutant)
    names = {path.relative_to(ROOT).as_posix() for path in paths}
    return Score(package, len(every) - sum(path in names for path, *_ in known)), list(found.values())


class Tester:
    """A process of `scripts.mutants_tests`, which runs the tests of one mutant at a time."""

    def __init__(self, python: str) -> None:
        command = [python, "-m", "scripts.mutants_tests"]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._questions = cast("IO[bytes]", self._process.stdin)
        self._answers = cast("IO[bytes]", self._process.stdout)

    def ask(self, question: dict[str, object]) -> dict[str, Any]:
        self._questions.write(json.dumps(question).encode() + b"\n")
        self._questions.flush()
        line = self._answers.readline()
        if not line:
            raise SystemExit("mutants: the tests could not be run; the message is above")
        return dict(json.loads(line))

    def close(self) -> None:
        self._questions.close()
        self._process.wait()


def test(mutants: list[Mutant], scores: dict[str, Score], python: str, jobs: int) -> None:
    testers = [Tester(python) for _ in range(jobs)]
    free = list(testers)
    done = 0

    def one(mutant: Mutant) -> tuple[Mutant, dict[str, Any]]:
        tester = free.pop()
        try:
            return mutant, tester.ask({"path": mutant.path, "line": mutant.line, "source": mutant.source})
        finally:
            free.append(tester)

    with ThreadPoolExecutor(jobs) as pool:
        for each in as_completed(pool.submit(one, mutant) for mutant in mutants):
            mutant, answer = each.result()
            done += 1
            score = scores[mutant.package]
            (score.killed if answer["killed"] else score.survived).append(mutant)
            what = f"killed by {answer['by']}" if answer["killed"] else f"SURVIVED {answer['tests']} tests"
            print(f"{done}/{len(mutants)} {answer['seconds']:5.1f} s  {what}  {mutant.name}", flush=True)
    for tester in testers:
        tester.close()


def report(scores: Iterable[Score], equivalent: int) -> float:
    """Print the table, and return the estimated share for all packages together."""
    scores = list(scores)
    for score in scores:
        for mutant in score.survived:
            print(f"survived: {mutant.name}")
    print("\n| package | mutants | drawn | killed | share | 95 % interval |\n|---|---|---|---|---|---|")
    for score in scores:
        low, high = score.interval()
        print(
            f"| `{score.package}` | {score.mutants} | {score.drawn} | {len(score.killed)} "
            f"| {score.share:.1%} | {low:.1%} to {high:.1%} |"
        )
    total = sum(score.mutants for score in scores)
    share = sum(score.share * score.mutants for score in scores) / total
    # Each package weighs as much as it has mutants. For the variance, two kills and two survivors are added to each
    # sample (Agresti and Coull); it would be 0 where all were killed.
    variance = 0.0
    for score in scores:
        if score.drawn < score.mutants:
            near = (len(score.killed) + 2) / (score.drawn + 4)
            variance += (score.mutants / total) ** 2 * near * (1 - near) / (score.drawn + 4)
    half = 1.96 * math.sqrt(variance)
    drawn, killed = sum(score.drawn for score in scores), sum(len(score.killed) for score in scores)
    print(
        f"| all, weighted | {total} | {drawn} | {killed} | {share:.1%} "
        f"| {max(0.0, share - half):.1%} to {min(1.0, share + half):.1%} |"
    )
    print(f"\n{killed} of {drawn} killed ({killed / drawn:.1%}); {equivalent} equivalent mutants are left out.")
    return share


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--package", action="append", choices=[*PACKAGES, LUA], help="only this one; may be repeated")
    parser.add_argument("--count", type=int, default=50, help="mutants drawn from each package (%(default)s)")
    parser.add_argument("--all", action="store_true", help="every mutant: many hours")
    parser.add_argument("--seed", type=int, default=1, help="draws others (%(default)s)")
    parser.add_argument(
        "--floor", type=float, default=0.0, help="exit with 1 if a smaller share is killed, such as 0.95"
    )
    parser.add_argument("--jobs", type=int, default=2, help="tests of so many mutants at a time (%(default)s)")
    parser.add_argument("--list", action="store_true", help="print the mutants, run no tests")
    parser.add_argument("--only", default="", help="only mutants whose place (path:line) contains this")
    parser.add_argument("--python", default=str(ROOT / ".venv" / "bin" / "python"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.package == [LUA]:
        asked = [f"--seed={options.seed}", f"--count={options.count}", f"--only={options.only}"]
        asked += [f"--{name}" for name in ("all", "list") if getattr(options, name)]
        return subprocess.run([options.python, "-m", "scripts.mutants_lua", *asked], cwd=ROOT, check=False).returncode
    known = equivalents()
    for path, was, _ in stale(known):
        print(f"mutants: {EQUIVALENT.name}: {path} has no line {was!r} any more: remove the entry", file=sys.stderr)
    scores, mutants = {}, []
    for package in [each for each in options.package or PACKAGES if each != LUA]:
        count = None if options.all else options.count
        scores[package], drawn = draw(package, known, count, options.seed, options.only)
        mutants += drawn
    if options.list:
        for mutant in mutants:
            print(mutant.name)
        return 0
    subprocess.run([options.python, "-m", "scripts.mutants_tests", "--trace"], cwd=ROOT, check=True)
    test(mutants, scores, options.python, options.jobs)
    return int(report(scores.values(), len(known)) < options.floor)


if __name__ == "__main__":
    sys.exit(main())
