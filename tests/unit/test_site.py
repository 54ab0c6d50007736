"""Check that the navigation of the site has every page once (`make site` checks the links)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from hatch_build import ROOT

DOCS = ROOT / "docs"
OUTSIDE = {"index.md", "chart.md"}


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


@pytest.mark.parametrize("picture", sorted(DOCS.rglob("*.svg")), ids=lambda path: path.name)
def test_a_drawing_has_a_title_and_needs_no_other_file(picture: Path) -> None:
    """So that it is shown without a network, and read out to who cannot see it."""
    text = picture.read_text()
    title = ElementTree.fromstring(text).find("{http://www.w3.org/2000/svg}title")
    assert title is not None
    assert title.text
    assert not {word for word in ("href", "url(", "@import", "<script") if word in text}
