"""Check that pages, headings, decisions, files, settings and metrics in the documentation exist."""

import re
from pathlib import Path

import pytest

from hatch_build import ROOT
from tools.contracts_page import contracts_markdown
from tools.printed.page import json_markdown

PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("helm/*.md")],
)
CURRENT = [p for p in PAGES if p.name not in {"config.md", "metrics.md", "CHANGELOG.md"}]
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#]*)(?:#([^)]*))?\)")
NAMED_FILE = re.compile(
    r"`((?:services|spark_jobs|demos|tests|tools|benchmarks|protos)/[\w./-]+\.(?:py|proto|yaml))`"
)
DECISION = re.compile(r"(?:ADR |docs/adr/)(\d{4})(?!\d)")
SETTING = re.compile(r"(?<![\w*])(?:RSM|RLMM|RLM)_[A-Z0-9_]+")
METRIC = re.compile(r"`(sediment_(?:rpc|rsm|rlmm|rlm)_[a-z_]+[a-z])")
CODE = ("services", "spark_jobs", "demos", "tests", "tools", "benchmarks", "protos", "kafka_plugin")

ON_THE_SITE = {"contracts.md": contracts_markdown, "json.md": json_markdown}
"""What `make site` adds to pages."""


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, made as GitHub makes them."""
    text = page.read_text() + ON_THE_SITE.get(page.name, str)()
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
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


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: str(page.relative_to(ROOT)))
def test_settings_and_metrics_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    settings = (ROOT / "docs/reference/config.md").read_text()
    metrics = (ROOT / "docs/reference/metrics.md").read_text()

    assert [name for name in SETTING.findall(text) if f"`{name}" not in settings] == []
    assert [name for name in METRIC.findall(text) if f"`{name}" not in metrics] == []


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


def test_decisions_have_four_parts_and_are_listed() -> None:
    listed = (ROOT / "docs/understand/architecture.md").read_text()
    for page in ROOT.glob("docs/adr/0*.md"):
        assert re.findall(r"^## (.*)$", page.read_text(), re.MULTILINE) == [
            "Context",
            "Decision",
            "Consequences",
            "Non-goals",
        ]
        assert f"(../adr/{page.name})" in listed
