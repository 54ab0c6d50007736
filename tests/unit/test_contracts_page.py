"""Check that docs/reference/contracts.md matches protos/."""

from pathlib import Path

from services.api.roles import RULES
from tools.contracts_page import contracts_markdown

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "contracts.md"


def test_the_page_is_up_to_date_and_has_every_call() -> None:
    page = contracts_markdown()
    assert PAGE.read_text() == page, "run `make docs`"
    assert [name for name in RULES if f"### {name.split('/')[1]}\n" not in page] == []
