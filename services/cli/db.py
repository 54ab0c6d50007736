"""Create, upgrade, check, maintain and rebuild the metadata database: `sediment db`."""

from dataclasses import asdict

import typer

from services.api.errors import RetriableRemoteStorageError
from services.api.ids import uuid_to_text
from services.cli.command import option, quantity
from services.cli.connections import Call, command_group, with_services
from services.cli.output import (
    EXIT_PARTIAL,
    EXIT_REFUSED,
    CommandError,
    print_json,
    print_line,
    progress,
    say,
)
from services.cli.rebuild import confirm_rebuild, rebuild
from services.common.quantities import DURATION_MS, counted
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

_PLAN = MaintenancePlan()
_STEPS = {
    "tombstones": "rows of deleted segments purged",
    "request_outcomes": "request ids purged",
    "events": "old events purged",
    "removed_topics": "removed topics purged",
    "anomalies": "resolved anomalies purged",
    "tool_runs": "old parts of checks purged",
    "holds": "ended holds purged",
}


@app.command()
@with_services(has_database=True)
def upgrade(call: Call) -> None:
    """Create the schema, or upgrade it to this release's.

    Safe to repeat, and to run from two places at once: one waits for the other. Services of the
    previous release keep running meanwhile.

    \b
    Exit codes:
      4  the database refused user, password or database name; correct them
    """
    try:
        role = schema.upgrade(*call.database)
    except RetriableRemoteStorageError as e:
        if isinstance(e.__cause__, RefusedConnectionError) and e.__cause__.is_final:
            raise CommandError(str(e), EXIT_REFUSED) from e
        raise
    if call.is_json:
        deployment = uuid_to_text(schema.deployment_id(*call.database))
        revision = schema.current_revision(*call.database)
        print_json({"revision": revision, "deployment_id": deployment, "reader_role": role})
    say(f"schema is at {schema_revision.known_revision()}")
    if role is ReaderRole.MISSING:
        say(
            f"role {ROLE} for reports was not created: this user may not create roles. Have an "
            f"administrator run CREATE ROLE {ROLE} NOLOGIN, then run the upgrade again"
        )


@app.command()
@with_services(has_database=True)
def current(call: Call) -> None:
    """Show the schema revision of a database and of this release.

    Also shows whether a rebuild has frozen deletions.
    """
    current, known = schema.current_revision(*call.database), schema_revision.known_revision()
    since_ms = schema.deletions_frozen_since_ms(*call.database)
    if call.is_json:
        print_json({"current": current, "known": known, "deletions_frozen_since_ms": since_ms})
        return
    print_line([f"database: {current or 'no schema'}"])
    print_line([f"this release: {known}"])
    if since_ms is not None:
        since = time_text(since_ms)
        print_line([f"deletions: frozen since {since}, until `sediment db confirm-rebuild`"])


@app.command()
@with_services(has_database=True)
def deployment_id(call: Call) -> None:
    """Show the id that marks this deployment's objects.

    `sediment db upgrade` creates it once; RSM takes it as RSM_DEPLOYMENT_ID.
    """
    text = uuid_to_text(schema.deployment_id(*call.database))
    if call.is_json:
        print_json({"deployment_id": text})
    else:
        print_line([text])


@app.command()
@with_services(has_database=True)
def check(call: Call) -> None:
    """Compare a database with what this release expects.

    Changes nothing.

    \b
    Exit codes:
      1  it differs; each difference is listed
    """
    problems = schema.check_schema(*call.database)
    rows = [(problem.what, problem.problem) for problem in problems]
    table = ("Differs from what this release expects", ("object", "problem"), rows)
    call.show(
        {"problems": [asdict(problem) for problem in problems]},
        table if problems else None,
        lines=[] if problems else ["the database is as this release expects it"],
    )
    raise typer.Exit(EXIT_PARTIAL if problems else 0)


@app.command()
@with_services(has_database=True)
def maintain(
    call: Call,
    delete_retention_ms: int = quantity(
        "--delete-retention",
        DURATION_MS,
        "Keep rows of deleted segments this long.",
        _PLAN.delete_retention_ms,
    ),
    events_retention_ms: int = quantity(
        "--events-retention",
        DURATION_MS,
        "Keep the audit trail at least this long.",
        _PLAN.events_retention_ms,
    ),
    anomalies_retention_ms: int = quantity(
        "--anomalies-retention",
        DURATION_MS,
        "Keep an anomaly this long after a run saw it.",
        _PLAN.anomalies_retention_ms,
    ),
    rsm: str | None = option(
        "HOST:PORT of RSM, which then keeps in the bucket what a rebuild needs besides "
        "the segments. Not given: nothing is kept.",
        envvar="SEDIMENT_RSM",
    ),
) -> None:
    """Purge old rows from the metadata database, and keep its settings in the bucket.

    Purges rows of deleted segments and of removed topics, request ids older than a day, old
    events and old anomalies.
    With --rsm the settings of topics, log starts and deletion marks are kept in the bucket, for
    `sediment db rebuild`. Safe at any time, under traffic, and if started twice.

    \b
    Exit codes:
      1  the bucket keeps what is newer than the database; nothing was replaced
    """
    plan = MaintenancePlan(delete_retention_ms, events_retention_ms, anomalies_retention_ms)
    url, password_file = call.database
    with progress() as show:
        report = maintenance.maintain(
            url, plan, lambda step, rows: show(f"{_STEPS[step]}: {rows:,}"), password_file
        )
    topics, reason = None, ""
    if rsm is not None and not report.already_running:
        topics, reason = _store_state(rsm, call)
    rows = [(text, getattr(report, step)) for step, text in _STEPS.items()]
    lines = []
    if report.already_running:
        lines = ["another maintenance of this database is running; this one did nothing"]
    elif topics is not None:
        lines = [f"the bucket keeps settings, log starts or marks of {counted(topics, 'topic')}"]
    call.show(
        {**asdict(report), "kept_topics": topics, "not_kept": reason},
        None if report.already_running else ("Maintenance", ("action", "rows"), rows),
        lines=lines,
    )
    if reason:
        say(reason)
        raise typer.Exit(EXIT_PARTIAL)


def _store_state(rsm: str, call: Call) -> tuple[int | None, str]:
    """Replace the state in the bucket by the database's, unless a rebuild needs the bucket's.

    Returns:
        How many topics the bucket keeps now, or None and the reason if nothing was stored.
    """
    if schema.deletions_frozen_since_ms(*call.database) is not None:
        return None, "a rebuild is not confirmed; nothing is kept in the bucket until then"
    state = read_deployment_state(*call.database)
    with Call(rsm).rsm_clients() as (_, objects):
        before = deployment_state.read_head(objects)
        topics = iter(()) if before is None else deployment_state.kept_topics(objects, before)
        reason = deployment_state.refusal(before, state, topics)
        if reason:
            return None, reason
        deployment_state.store_state(objects, state, before)
    return len(state.topics), ""
