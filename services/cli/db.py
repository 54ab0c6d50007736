"""Create, upgrade, check, maintain and rebuild the metadata database: `sediment db`."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from services.api.errors import RetriableRemoteStorageError
from services.api.ids import uuid_to_text
from services.cli.connections import Call, command_group, with_services
from services.cli.output import (
    EXIT_PARTIAL,
    EXIT_REFUSED,
    CommandError,
    counter,
    print_json,
    print_line,
    print_table,
    say,
)
from services.cli.rebuild import confirm_rebuild, rebuild
from services.rlmm.database import schema, schema_revision
from services.rlmm.database.refused_connections import RefusedConnectionError
from services.rlmm.database.schema import ROLE, ReaderRole
from services.rlmm.operations import maintenance
from services.rlmm.operations.deployment_state import read_deployment_state
from services.rlmm.operations.maintenance import MaintenancePlan
from services.views.texts import time_text
from services.workflows import deployment_state

app = command_group("Create, check, maintain and rebuild the metadata database.")
app.command()(rebuild)
app.command()(confirm_rebuild)

_STEPS = {
    "tombstones": "rows of deleted segments purged",
    "request_outcomes": "request ids purged",
    "events": "old events purged",
    "anomalies": "resolved anomalies purged",
    "verifications": "old parts of verifications purged",
}

_DatabaseUrl = Annotated[
    str,
    typer.Option(
        envvar="RLMM_DATABASE_URL",
        help="postgresql://USER:PASSWORD@HOST:PORT/NAME. Other users of this machine can read "
        "options: keep the password in the variable or in a file.",
    ),
]
_PasswordFile = Annotated[
    Path | None,
    typer.Option(
        envvar="RLMM_DATABASE_PASSWORD_FILE",
        help="File with the database password, if the URL has none.",
    ),
]


@app.command()
@with_services()
def upgrade(
    call: Call,
    database_url: _DatabaseUrl,
    database_password_file: _PasswordFile = None,
) -> None:
    """Create the schema, or upgrade it to this release's.

    Safe to repeat, and to run from two places at once: one waits for the other. Services of the
    previous release keep running meanwhile.

    \b
    Exit codes:
      4  the database refused user, password or database name; correct them
    """
    try:
        role = schema.upgrade(database_url, database_password_file)
    except RetriableRemoteStorageError as e:
        if isinstance(e.__cause__, RefusedConnectionError) and e.__cause__.is_final:
            raise CommandError(str(e), EXIT_REFUSED) from e
        raise
    if call.is_json:
        deployment = uuid_to_text(schema.deployment_id(database_url, database_password_file))
        revision = schema.current_revision(database_url, database_password_file)
        print_json({"revision": revision, "deployment_id": deployment, "reader_role": role})
    say(f"schema is at {schema_revision.known_revision()}")
    if role is ReaderRole.MISSING:
        say(
            f"role {ROLE} for reports was not created: this user may not create roles. Have an "
            f"administrator run CREATE ROLE {ROLE} NOLOGIN, then run the upgrade again"
        )


@app.command()
@with_services()
def current(
    call: Call,
    database_url: _DatabaseUrl,
    database_password_file: _PasswordFile = None,
) -> None:
    """Show the schema revision of a database and of this release.

    Also shows whether a rebuild has frozen deletions.
    """
    found = schema.current_revision(database_url, database_password_file)
    known = schema_revision.known_revision()
    since_ms = schema.deletions_frozen_since_ms(database_url, database_password_file)
    if call.is_json:
        print_json({"current": found, "known": known, "deletions_frozen_since_ms": since_ms})
        return
    print_line([f"database: {found or 'no schema'}"])
    print_line([f"this release: {known}"])
    if since_ms is not None:
        since = time_text(since_ms, "seconds")
        print_line([f"deletions: frozen since {since}, until `sediment db confirm-rebuild`"])


@app.command()
@with_services()
def deployment_id(
    call: Call,
    database_url: _DatabaseUrl,
    database_password_file: _PasswordFile = None,
) -> None:
    """Show the id that marks this deployment's objects.

    `sediment db upgrade` creates it once; RSM takes it as RSM_DEPLOYMENT_ID.
    """
    text = uuid_to_text(schema.deployment_id(database_url, database_password_file))
    if call.is_json:
        print_json({"deployment_id": text})
    else:
        print_line([text])


@app.command()
@with_services()
def check(
    call: Call,
    database_url: _DatabaseUrl,
    database_password_file: _PasswordFile = None,
) -> None:
    """Compare a database with what this release expects.

    Changes nothing.

    \b
    Exit codes:
      1  it differs; each difference is listed
    """
    problems = schema.check_schema(database_url, database_password_file)
    if call.is_json:
        print_json({"problems": [asdict(problem) for problem in problems]})
    elif problems:
        rows = [(problem.what, problem.problem) for problem in problems]
        print_table("Differs from what this release expects", ("object", "problem"), rows)
    else:
        say("the database is as this release expects it")
    raise typer.Exit(EXIT_PARTIAL if problems else 0)


@app.command()
@with_services()
def maintain(
    call: Call,
    database_url: _DatabaseUrl,
    database_password_file: _PasswordFile = None,
    delete_retention_ms: Annotated[
        int,
        typer.Option(min=0, help="Keep rows of deleted segments this long (delete.retention.ms)."),
    ] = 86_400_000,
    events_days: Annotated[
        int, typer.Option(min=1, help="Keep the audit trail for at least this many days.")
    ] = 90,
    anomalies_days: Annotated[
        int, typer.Option(min=1, help="Keep an anomaly this many days after a run last saw it.")
    ] = 90,
    rsm: Annotated[
        str | None,
        typer.Option(
            envvar="SEDIMENT_RSM",
            help="HOST:PORT of RSM, which then keeps in the bucket what a rebuild needs besides "
            "the segments. Not given: nothing is kept.",
        ),
    ] = None,
) -> None:
    """Purge old rows from the metadata database, and keep its settings in the bucket.

    Purges rows of deleted segments, request ids older than a day, old events and old anomalies.
    With --rsm the settings of topics, log starts and deletion marks are kept in the bucket, for
    `sediment db rebuild`. Safe at any time, under traffic, and if started twice.

    \b
    Exit codes:
      1  the bucket keeps what is newer than the database, and nothing was replaced
    """
    plan = MaintenancePlan(delete_retention_ms, events_days, anomalies_days)
    with counter() as show:
        report = maintenance.maintain(
            database_url,
            plan,
            lambda step, rows: show(_STEPS[step], rows),
            database_password_file,
        )
    kept = _NOTHING_KEPT
    if rsm is not None and not report.already_running:
        kept = _keep_state(rsm, database_url, database_password_file)
    if call.is_json:
        print_json({**asdict(report), "kept_topics": kept.topics, "not_kept": kept.reason})
    elif report.already_running:
        say("another maintenance of this database is running; this one did nothing")
    else:
        rows = [(text, getattr(report, step)) for step, text in _STEPS.items()]
        print_table("Maintenance", ("action", "rows"), rows)
        if kept.topics is not None:
            say(f"the bucket keeps settings, log starts or marks of {kept.topics:,} topics")
    if kept.reason:
        say(kept.reason)
        raise typer.Exit(EXIT_PARTIAL)


@dataclass(frozen=True, slots=True)
class _Kept:
    """How many topics the bucket keeps now; None and perhaps a reason if nothing was kept."""

    topics: int | None = None
    reason: str = ""


_NOTHING_KEPT = _Kept()


def _keep_state(rsm: str, database_url: str, password_file: Path | None) -> _Kept:
    """Replace the state in the bucket by the database's, unless a rebuild needs what is there."""
    if schema.deletions_frozen_since_ms(database_url, password_file) is not None:
        return _Kept(reason="a rebuild is not confirmed; nothing is kept in the bucket until then")
    state = read_deployment_state(database_url, password_file)
    with Call(rsm).rsm_clients() as (_, objects):
        before = deployment_state.read_head(objects)
        topics = iter(()) if before is None else deployment_state.kept_topics(objects, before)
        reason = deployment_state.refusal(before, state, topics)
        if reason:
            return _Kept(reason=reason)
        deployment_state.keep(objects, state, before)
    return _Kept(topics=len(state.topics))
