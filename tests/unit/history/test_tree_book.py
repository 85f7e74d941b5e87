"""The trees at work, as the dashboard shows them (G-6)."""

from __future__ import annotations

from breakloop.history.tree_book import KEPT_S, NODES_MAX, TREES_MAX, TreeBook
from breakloop.model.events import TreeNodeUse

NAME = ("p", "c", "root")


def add(book: TreeBook, session: str, parent: str = "", *, at: float = 0.0, root: str = "root", cost: int = 1) -> None:
    book.add({("p", "c", root, session): TreeNodeUse(1, 0, 10, cost, float(at), f"agent of {session}", parent)}, at)


def shown(book: TreeBook) -> list[tuple[str, int]]:
    tree = book.find(*NAME)
    return [] if tree is None else [(one.session, one.depth) for one in tree.nodes]


def test_each_session_is_below_the_one_that_started_it() -> None:
    """The earlier first; one whose parent is not known is below the root, and so are two that name each other."""
    book = TreeBook()
    add(book, "b", "root", at=3)
    add(book, "a", "root", at=1)
    add(book, "a1", "a", at=4)
    add(book, "lost", "never seen", at=5)
    assert shown(book) == [("root", 1), ("a", 2), ("a1", 3), ("b", 2), ("lost", 2)]
    add(book, "x", "y", at=6)
    add(book, "y", "x", at=6)
    assert shown(book)[5:] == [("x", 2), ("y", 3)]
    tree = book.find(*NAME)
    assert tree is not None
    assert [one.session for one in tree.below("a")] == ["a", "a1"]
    assert [one.session for one in tree.below("root")] == [one.session for one in tree.nodes]
    assert tree.below("no such") == []


def test_sums_grow_and_the_first_request_is_remembered() -> None:
    book = TreeBook()
    for at in (10.0, 50.0, 700.0):
        add(book, "root", at=at, cost=5)
    add(book, "a", "root", at=60, cost=7)
    tree = book.find(*NAME)
    assert tree is not None
    assert (tree.nodes[0].first_at, tree.nodes[0].use.requests, tree.nodes[0].use.cost_microusd) == (10, 3, 15)
    assert (tree.first_at, tree.last_at, tree.cost_microusd, tree.tokens, tree.depth) == (10, 700, 22, 40, 2)
    assert tree.at_work(701) == 1


def test_it_is_bounded() -> None:
    """In trees, in sessions of a tree, and in time."""
    book = TreeBook()
    for number in range(NODES_MAX + 3):
        add(book, f"s{number}", "root", at=1)
    tree = book.find(*NAME)
    assert tree is not None
    assert (len(tree.nodes), tree.hidden) == (NODES_MAX + 1, 3)
    for number in range(TREES_MAX):
        add(book, "a", f"r{number}", root=f"r{number}", at=2)
    assert len(book.all()) == TREES_MAX
    assert book.find(*NAME) is None
    assert book.all()[0].root == f"r{TREES_MAX - 1}"
    add(book, "a", "new", root="new", at=2 + KEPT_S)
    assert [one.root for one in book.all()] == ["new"]
