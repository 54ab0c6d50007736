"""Compare the object store with the metadata: `sediment reconcile`, `scrub` and `anomalies`."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Event
from typing import Annotated
from uuid import UUID, uuid4

import typer

from services.api.errors import InvalidRequestError
from services.api.ids import uuid_from_text, uuid_to_text
from services.api.operations import AnomalyKind, AnomalyQuery, SeenAnomaly
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, all_anomalies
from services.cli.connections import Call, Locations, command_group, with_services
from services.cli.output import (
    EXIT_FAILED,
    EXIT_PARTIAL,
    CommandError,
    counter,
    print_json,
    print_table,
    say,
)
from services.cli.topics import find_topic, known_topics
from services.common.fair_queue import TokenBucket
from services.rsm.deadline import BURST_S
from services.views.texts import size_text, time_text
from services.views.tier import anomaly_as_json
from services.workflows.check_documents import (
    SCRUB_KINDS,
    failures_of,
    needs_operator,
    reconcile_document,
    scrub_document,
)
from services.workflows.reconcile import Reconciled, Reconciliation, ReconciliationPlan
from services.workflows.scrub import (
    DEFAULT_RATE_BYTES_PER_S,
    Pace,
    Scrub,
    Scrubbed,
    ScrubPlan,
    parse_part,
)
from services.workflows.unfinished_copies import CopyKind

app = command_group()

_MIB = 1024 * 1024

Rate = Annotated[
    int,
    typer.Option(
        min=0, metavar="BYTES_PER_S", help="Read at most this many bytes/s; 0 for no limit."
    ),
]


@app.command()
@with_services("rlmm")
def anomalies(
    call: Call,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Only this kind, for example ORPHAN_OBJECTS; may be repeated."),
    ] = None,
    topic: Annotated[
        str, typer.Option(metavar="TOPIC", help="Only this topic: its name or its id.")
    ] = "",
) -> None:
    """List the problems that reconcile and scrub found.

    Oldest first. The topic of objects that RLMM does not know is shown by its id.
    """
    wanted = tuple(_kind(text) for text in kind or [])
    with call.rlmm_client() as manager:
        topic_id = _topic_id(manager, topic) if topic else None
        found = all_anomalies(manager, AnomalyQuery(wanted, topic_id))
        if call.is_json:
            for seen in found:
                print_json(anomaly_as_json(seen))
            return
        listed = list(found)
        topics = known_topics(manager) if listed else []
        names = {topic.topic_id: topic.name for topic in topics}
        columns = ("kind", "topic", "partition", "segment id", "object", "detail")
        seen_columns = ("first seen", "last seen", "times", "last run")
        rows = (_anomaly_as_row(seen, names) for seen in listed)
        print_table("Anomalies", (*columns, *seen_columns), rows)


def _kind(text: str) -> AnomalyKind:
    try:
        return AnomalyKind(text.upper())
    except ValueError:
        known = ", ".join(kind.value for kind in AnomalyKind)
        raise CommandError(f"--kind: unknown kind {text!r}; use one of {known}") from None


def _topic_id(manager: RemoteLogMetadataManager, text: str) -> UUID:
    """Find the id of a topic that RLMM knows by name, or accept any topic's id."""
    try:
        return uuid_from_text(text, "--topic")
    except InvalidRequestError:
        return find_topic(manager, text).topic_id


def _anomaly_as_row(seen: SeenAnomaly, names: Mapping[UUID, str]) -> tuple[object, ...]:
    anomaly = seen.anomaly
    return (
        anomaly.kind.value,
        names.get(anomaly.topic_id) or uuid_to_text(anomaly.topic_id),
        anomaly.partition,
        uuid_to_text(anomaly.segment_id),
        anomaly.object_key or "-",
        anomaly.detail or "-",
        time_text(seen.first_seen_ms, "seconds"),
        time_text(seen.last_seen_ms, "seconds"),
        seen.times_seen,
        seen.run_id,
    )


@app.command()
@with_services("rsm", "rlmm")
def reconcile(
    call: Call,
    delete: Annotated[
        bool,
        typer.Option(
            "--delete",
            help="Delete orphaned objects and abort unfinished uploads that an earlier run saw at "
            "least a grace period ago. Without it they are only reported.",
        ),
    ] = False,
    grace_ms: Annotated[
        int, typer.Option(min=0, help="Ignore objects and uploads younger than this, ms.")
    ] = 86_400_000,
    location: Locations = None,
) -> None:
    """Compare the object store with the metadata.

    `sediment anomalies` lists what was found; `sediment events` shows each deletion. Nothing is
    deleted after a single observation, and a complete copy without metadata is never deleted: a
    rebuild of the metadata can use it.

    \b
    Exit codes:
      1  objects are missing, complete copies have no metadata, or something
         could not be deleted
    """
    now_ms = time.time_ns() // 1_000_000
    plan = ReconciliationPlan(uuid4().hex, now_ms, grace_ms, delete, location or [0])
    with (
        call.tier_clients() as (store, objects, metadata),
        counter() as count,
    ):
        done = Reconciliation(
            metadata, store, objects, plan, lambda done: count("segments", done.segments)
        ).run()
    if call.is_json:
        print_json(reconcile_document(plan, done))
    else:
        print_table("Reconciled", ("what", "count"), _rows(done))
        for line in (*done.unfinished, *failures_of(done)):
            say(line)
    raise typer.Exit(EXIT_PARTIAL if needs_operator(done) else 0)


def _rows(done: Reconciled) -> list[tuple[object, ...]]:
    return [
        ("objects", done.objects),
        ("segments", done.segments),
        *((kind.value, done.anomalies[kind]) for kind in AnomalyKind),
        *((kind.value, done.copies[kind]) for kind in CopyKind),
        ("objects deleted", done.deletions.objects),
        ("left for the next run", done.deletions.left),
        ("uploads aborted", done.deletions.uploads),
        ("deleted without an event", done.deletions.unrecorded),
        ("failures", len(failures_of(done))),
    ]


@app.command()
@with_services("rsm", "rlmm")
def scrub(
    call: Call,
    rate: Rate = DEFAULT_RATE_BYTES_PER_S,
    part: Annotated[
        str,
        typer.Option(
            metavar="I/N",
            help="Only part I of N parts of about the same size; a segment stays in its part.",
        ),
    ] = "1/1",
    topic: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this topic, for example orders, or TOPIC_ID:orders if several topics have "
            "had this name; may be repeated."
        ),
    ] = None,
    location: Locations = None,
) -> None:
    """Read stored segments and verify their checksums.

    Only finished segments. `sediment anomalies` lists the damaged and missing ones; nothing else is
    changed.

    \b
    Exit codes:
      1  a segment is damaged or missing
      3  no damage found, but something could not be read (it is named), or a
         service failed; run the command again
    """
    number, parts = parse_part(part)
    topics, locations = topic or [], tuple(location or [0])
    with (
        call.tier_clients() as (store, objects, metadata),
        scrub_counter() as show,
    ):
        topic_ids = frozenset(find_topic(metadata, text).topic_id for text in topics)
        plan = ScrubPlan(uuid4().hex, number, parts, topic_ids or None, locations)
        done = Scrub(metadata, store, objects, plan, pace_of(rate), show).run()
    if call.is_json:
        print_json(scrub_document(plan, topics, rate, done))
    else:
        _print_scrub(done)
    if done.damaged:
        raise typer.Exit(EXIT_PARTIAL)
    raise typer.Exit(0 if done.is_complete else EXIT_FAILED)


@contextmanager
def scrub_counter() -> Iterator[Callable[[Scrubbed], None]]:
    """Count what a scrub has read, as `counter` does; yield the call that shows it."""
    with counter() as count:

        def show(done: Scrubbed) -> None:
            count("segments", done.segments)
            count("MiB", done.read_bytes // _MIB)

        yield show


def pace_of(bytes_per_s: int) -> Pace:
    """Return the pace of a scrub that reads at most so many bytes/s; 0 for no limit."""
    if not bytes_per_s:
        return Pace(lambda _: None, Event().wait)
    limit = TokenBucket(bytes_per_s, bytes_per_s * BURST_S, name="bytes per second")
    return Pace(limit.take, Event().wait)


def _print_scrub(done: Scrubbed) -> None:
    rows = [
        ("segments", done.segments),
        ("verified", done.verified),
        ("damaged", done.damaged),
        *((kind.value, done.anomalies[kind]) for kind in SCRUB_KINDS),
        ("not checked", done.unchecked),
        ("deleted meanwhile", done.gone),
        ("incomplete listings", done.unlisted),
        ("read", size_text(done.read_bytes)),
    ]
    print_table("Scrubbed", ("what", "count"), rows)
    for reason in done.reasons:
        say(reason)
    if done.is_cut_short:
        say("stopped early because the store stayed unreachable; run the command again")
