"""Check that the site's page of contracts has every call."""

from services.api.roles import RULES
from tools.contracts_page import contracts_markdown


def test_the_page_has_every_call() -> None:
    page = contracts_markdown()
    assert [name for name in RULES if f"### {name.split('/')[1]}\n" not in page] == []
