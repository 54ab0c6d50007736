"""Check that docs/reference/roles.md matches the table of roles."""

from pathlib import Path

from services.api.roles import MEANING, RULES, Role
from tools.reference import roles_markdown

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "roles.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text().strip() == roles_markdown().strip(), "run `make docs`"


def test_every_rpc_and_every_role_is_on_the_page() -> None:
    page = roles_markdown()
    assert [name for name in RULES if f"| {name.split('/')[1]} |" not in page] == []
    assert MEANING.keys() == set(Role)
