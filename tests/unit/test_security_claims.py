"""Check that claims on security and differences from Kafka name tests that exist."""

import ast
import re
from functools import cache

import pytest

from hatch_build import ROOT

PAGE = (ROOT / "docs/run/security.md").read_text()
KAFKA_PAGE = (ROOT / "docs/understand/spi-mapping.md").read_text()
NAMED = re.compile(r"`((?:tests|kafka_plugin)/[\w./-]+\.(?:py|java))::(\w+)`")
BULLET = re.compile(r"^\* (.*(?:\n  .*)*)", re.MULTILINE)
JAVA_TEST = re.compile(r"@Test[^{;]*?\bvoid (\w+)\(")


def _section(title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/run/security.md has no section {title!r}"
    return found[1]


CLAIMS = BULLET.findall(_section("Claims and their tests"))
DIFFERENCES = re.findall(r"^\| \d+ \| .*", KAFKA_PAGE, re.MULTILINE)


@cache
def _tests_of(path: str) -> frozenset[str]:
    text = (ROOT / path).read_text()
    if path.endswith(".java"):
        return frozenset(JAVA_TEST.findall(text))
    functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
    return frozenset(each.name for each in functions if each.name.startswith("test_"))


def test_there_are_claims() -> None:
    assert len(CLAIMS) > 30
    assert len(DIFFERENCES) == 11


@pytest.mark.parametrize("claim", [*CLAIMS, *DIFFERENCES], ids=lambda claim: claim[:40])
def test_a_claim_names_a_test(claim: str) -> None:
    assert NAMED.search(claim) is not None, f"names no test: {claim}"


@pytest.mark.parametrize(("path", "name"), sorted(set(NAMED.findall(PAGE + KAFKA_PAGE))))
def test_a_named_test_exists(path: str, name: str) -> None:
    assert name in _tests_of(path)
