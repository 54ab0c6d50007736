"""Check that what the documentation points to is there: pages, headings, decisions and files."""

import re
from pathlib import Path

import pytest

from hatch_build import ROOT

PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("helm/*.md")],
)
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#]*)(?:#([^)]*))?\)")
NAMED_FILE = re.compile(
    r"`((?:services|spark_jobs|demos|tests|benchmarks|protos)/[\w./-]+\.(?:py|proto|yaml))`"
)
DECISION = re.compile(r"(?:ADR |docs/adr/)(\d{4})(?!\d)")
CODE = ("services", "spark_jobs", "demos", "tests", "benchmarks", "protos", "kafka_plugin")


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, made as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_resolve(page: Path) -> None:
    broken = []
    for target, anchor in LINK.findall(page.read_text()):
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            broken.append(f"{target}#{anchor}")

    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = NAMED_FILE.findall(page.read_text())

    assert [name for name in named if not (ROOT / name).exists()] == []


def test_decisions_that_code_names_exist() -> None:
    decisions = {page.name[:4] for page in ROOT.glob("docs/adr/0*.md")}
    files = [
        file
        for folder in CODE
        for file in (ROOT / folder).rglob("*")
        if file.suffix in {".py", ".java", ".proto"}
    ]
    files += [*PAGES, ROOT / "pyproject.toml", ROOT / "Makefile"]

    unknown = {
        f"{file.relative_to(ROOT)}: {number}"
        for file in files
        for number in DECISION.findall(file.read_text())
        if number not in decisions
    }

    assert unknown == set()


def test_decisions_have_three_parts_and_are_listed() -> None:
    listed = (ROOT / "docs/adr/README.md").read_text()
    for page in ROOT.glob("docs/adr/0*.md"):
        assert re.findall(r"^## (.*)$", page.read_text(), re.MULTILINE) == [
            "Context",
            "Decision",
            "Consequences",
        ]
        assert f"({page.name})" in listed
