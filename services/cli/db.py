"""`sediment db`: the metadata database, its schema and its upkeep."""

from dataclasses import asdict

from services.api.ids import uuid_to_text
from services.cli.failures import EXIT_PARTIAL
from services.cli.output import Format, print_json, print_table, say
from services.cli.progress import counter
from services.rlmm.deployment import deployment_id
from services.rlmm.maintenance import MaintenancePlan, maintain
from services.rlmm.reader_role import ROLE, ReaderRole
from services.rlmm.schema import current_revision, known_revision, upgrade
from services.rlmm.schema_check import check_schema

_STEPS = {
    "tombstones": "rows of deleted segments purged",
    "request_outcomes": "request ids forgotten",
    "events": "old events purged",
    "anomalies": "anomalies forgotten that no run sees any more",
    "passable": "segments found that searches may pass over, or no longer",
}


def upgrade_schema(database_url: str, output: Format) -> None:
    role = upgrade(database_url)
    if output is Format.JSON:
        deployment = uuid_to_text(deployment_id(database_url))
        revision = current_revision(database_url)
        print_json({"revision": revision, "deployment_id": deployment, "reader_role": role})
    say(f"schema is at {known_revision()}")
    if role is ReaderRole.MISSING:
        say(
            f"no role {ROLE} for reports: this user may not create roles. Let an administrator run "
            f"CREATE ROLE {ROLE} NOLOGIN, then upgrade again"
        )


def show_revision(database_url: str, output: Format) -> None:
    current, known = current_revision(database_url), known_revision()
    if output is Format.JSON:
        print_json({"current": current, "known": known})
    else:
        print(f"database: {current or 'no schema'}\nthis release: {known}")


def show_deployment_id(database_url: str, output: Format) -> None:
    text = uuid_to_text(deployment_id(database_url))
    if output is Format.JSON:
        print_json({"deployment_id": text})
    else:
        print(text)


def check_database(database_url: str, output: Format) -> int:
    """The exit code."""
    problems = check_schema(database_url)
    if output is Format.JSON:
        print_json({"problems": [asdict(problem) for problem in problems]})
    elif problems:
        rows = [(problem.what, problem.problem) for problem in problems]
        print_table("Not as this release expects it", ("what", "problem"), rows)
    else:
        say("the database is as this release expects it")
    return EXIT_PARTIAL if problems else 0


def maintain_database(
    database_url: str,
    delete_retention_ms: int,
    events_days: int,
    anomalies_days: int,
    find_passable: bool,
    output: Format,
) -> None:
    plan = MaintenancePlan(delete_retention_ms, events_days, anomalies_days, find_passable)
    with counter() as show:
        report = maintain(database_url, plan, lambda step, rows: show(_STEPS[step], rows))
    if output is Format.JSON:
        print_json(asdict(report))
    elif report.already_running:
        say("another maintenance of this database is under way; nothing was done here")
    else:
        rows = [(text, getattr(report, step)) for step, text in _STEPS.items()]
        print_table("Maintenance", ("what", "rows"), rows)
