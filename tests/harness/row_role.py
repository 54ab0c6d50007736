"""Make the role of docs/database.md that reads and writes rows, and may do nothing else."""

import re
from pathlib import Path

import psycopg
from sqlalchemy import make_url

_PAGE = Path(__file__).parents[2] / "docs" / "database.md"
_ROLE, _OWNER = "rlmm", "sediment"


def make_row_role(owner_url: str, role: str) -> str:
    """Run the page's statements in a database, for a role of another name; return its URL."""
    url = make_url(owner_url)
    (block,) = re.findall(r"```sql\n(CREATE ROLE .*?)```", _PAGE.read_text(), re.DOTALL)
    statements = re.sub(rf"\b{_ROLE}\b", role, block)
    statements = re.sub(rf"\bROLE {_OWNER}\b", f"ROLE {url.username}", statements)
    with psycopg.connect(owner_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(statements.encode())
        connection.execute(f"ALTER ROLE {role} PASSWORD '{role}'".encode())
    return url.set(username=role, password=role).render_as_string(hide_password=False)


def drop_role(owner_url: str, role: str) -> None:
    """Drop the role, which owns nothing but its grants in this database."""
    with psycopg.connect(owner_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"DROP OWNED BY {role}".encode())
        connection.execute(f"DROP ROLE {role}".encode())
