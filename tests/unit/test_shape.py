"""Check that the rules of the house find what breaks them (`make shape`)."""

import ast

import pytest

from tools.shape import broken_rules, circles, misplaced, part_of

GLUED = """
class A:
    pass

_log = get_logger()
LIMIT = 1
OTHER = 2

def f():
    return LIMIT, OTHER, _log
"""
BESIDE = """
class A:
    pass

LIMIT = 1
OTHER = 2

class B:
    limits = LIMIT, OTHER
"""
MADE_OF_IT = """
class A:
    pass

FIRST = A()
SECOND = A()

def f():
    return FIRST, SECOND
"""


@pytest.mark.parametrize(
    ("text", "names"),
    [(GLUED, [["_log", "LIMIT", "OTHER"]]), (BESIDE, []), (MADE_OF_IT, [])],
    ids=["glued", "beside its class", "made of its class"],
)
def test_constants_in_mid_file_are_found(text: str, names: list[list[str]]) -> None:
    assert [found for _, found in misplaced(ast.parse(text))] == names


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("services.rlmm.manager", "core"),
        ("services.rlm.manager", "shipping"),
        ("services.rlm.fetch.reads", "reading"),
        ("services.records.batches", "core"),
        ("services.client.records", "reading"),
        ("services.cli.main", "services.cli"),
    ],
)
def test_each_module_has_a_part(name: str, part: str) -> None:
    assert part_of(name) == part


@pytest.mark.deep
def test_the_rules_of_the_house_hold() -> None:
    """The table of parts, the budgets, files in one piece, settings and RPCs; no circles."""
    assert broken_rules() == []


def test_a_circle_between_folders_is_found() -> None:
    edges = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}
    assert circles(edges) == [["b", "c"]]
