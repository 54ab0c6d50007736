"""`sediment db`: the schema of the metadata database."""

from services.cli.output import Format, print_json, say
from services.rlmm.schema import current_revision, known_revision, upgrade


def upgrade_schema(database_url: str) -> None:
    upgrade(database_url)
    say(f"schema is at {known_revision()}")


def show_revision(database_url: str, output: Format) -> None:
    current, known = current_revision(database_url), known_revision()
    if output is Format.JSON:
        print_json({"current": current, "known": known})
    else:
        print(f"database: {current or 'no schema'}\nthis release: {known}")
