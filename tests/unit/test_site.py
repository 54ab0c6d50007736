"""Check that the navigation of the site has every page once (`make site` checks the links)."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from hatch_build import ROOT

DOCS = ROOT / "docs"
OUTSIDE = {"index.md", "chart.md"}
PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "helm" / "README.md", *sorted(DOCS.rglob("*.md"))]


def pages(nav: Any) -> Iterator[str]:
    if isinstance(nav, dict):
        nav = list(nav.values())
    if isinstance(nav, list):
        for entry in nav:
            yield from pages(entry)
    elif (DOCS / nav).is_dir():
        yield from (f"{nav}/{page.name}" for page in (DOCS / nav).glob("*.md"))
    else:
        yield nav


def test_every_page_is_in_the_navigation_once() -> None:
    nav = yaml.safe_load((ROOT / "docs_site" / "mkdocs.yml").read_text())["nav"]
    written = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert sorted(pages(nav)) == sorted(written | OUTSIDE)


def test_the_readme_is_short_and_its_blocks_fit_a_laptop() -> None:
    readme = ROOT / "README.md"
    assert len(readme.read_text().splitlines()) <= 120
    assert wider(readme, 72) == []


def wider(page: Path, columns: int) -> list[str]:
    """Return the lines of the page's blocks of code that are wider."""
    blocks = re.findall(r"(?ms)^ *```.*?^ *```$", page.read_text())
    return [line for block in blocks for line in block.splitlines() if len(line) > columns]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_of_code_are_100_columns_wide_at_most(page: Path) -> None:
    assert wider(page, 100) == []


def test_pages_show_tables_as_a_terminal_prints_them() -> None:
    framed = [page.name for page in DOCS.rglob("*.md") if "\u250f" in page.read_text()]
    assert framed == []


@pytest.mark.parametrize(
    ("text", "is_refused"),
    [
        ('<script src="https://cdn.example.org/a.js">', True),
        ('<link rel="stylesheet" href="//fonts.example.org/a.css">', True),
        ('<a class="md-source" data-md-component="source">', True),
        ('<a href="https://kafka.apache.org">Kafka</a><script src="assets/a.js">', False),
    ],
)
def test_a_page_that_asks_another_host_is_found(text: str, is_refused: bool) -> None:
    """`make site` refuses it."""
    source = (ROOT / "docs_site" / "pages.py").read_text()
    pattern = re.search(r"(?s)_LOADED = re\.compile\((.*?)\n\)", source)
    assert pattern is not None
    assert bool(re.search(ast.literal_eval(f"({pattern[1]})"), text)) is is_refused


@pytest.mark.parametrize("picture", sorted(DOCS.rglob("*.svg")), ids=lambda path: path.name)
def test_a_drawing_has_a_title_and_needs_no_other_file(picture: Path) -> None:
    """So that it is shown without a network, and read out to who cannot see it."""
    text = picture.read_text()
    title = ElementTree.fromstring(text).find("{http://www.w3.org/2000/svg}title")
    assert title is not None
    assert title.text
    assert not {word for word in ("href", "url(", "@import", "<script") if word in text}
