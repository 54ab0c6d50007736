"""Provide a console over a tier with a history, and a real browser, one of each for all tests."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.console.history import Guarded, Shown, served_history
from tests.harness.local_servers import DatabaseServer


@pytest.fixture(scope="session")
def shown(
    postgres: DatabaseServer, migrated_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shown]:
    database_url = postgres.create_database("console", template=migrated_database)
    with served_history(database_url, tmp_path_factory.mktemp("console")) as made:
        yield made


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Root has no sandbox in a container.
        made = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
        )
        yield made
        made.close()


@pytest.fixture
def page(browser: Browser, shown: Shown) -> Iterator[Page]:
    """A page 1,280 pixels wide; any error in it, and any request to elsewhere, fails the test."""
    made = browser.new_page(viewport={"width": 1_280, "height": 900}, reduced_motion="reduce")
    with Guarded(made, shown):
        yield made
    made.close()
