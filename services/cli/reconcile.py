"""Compare the object store with the metadata: `sediment reconcile`, `scrub` and `anomalies`."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from threading import Event
from typing import Annotated
from uuid import UUID, uuid4

import typer

from services.api.errors import InvalidRequestError
from services.api.ids import TopicIdPartition, uuid_from_text, uuid_to_text
from services.api.operations import CHECKS, AnomalyKind, AnomalyQuery, RecordedAnomaly
from services.api.remote_log_metadata_manager import (
    RemoteLogMetadataManager,
    all_anomalies,
    all_partitions,
    all_tool_runs,
)
from services.cli.command import option, quantity, toggle
from services.cli.connections import (
    ONLY_TOPICS,
    Call,
    Locations,
    command_group,
    completed,
    with_services,
)
from services.cli.local_files import files_in
from services.cli.names import find_topic, known_topics
from services.cli.output import EXIT_FAILED, EXIT_PARTIAL, Cells, CommandError, progress, say
from services.cli.tables import Wide
from services.common.fair_queue import TokenBucket
from services.common.quantities import DURATION_MS, SIZE_BYTES, counted
from services.rsm.deadline import BURST_S
from services.views.documents import as_json
from services.views.texts import age_text, size_text, sized, time_text
from services.views.tier import NEVER_LOOKED
from services.workflows.check_documents import (
    FOR_AN_OPERATOR,
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

_SHOWN = 10
"""The most damaged segments that a run names."""

Rate = Annotated[
    int,
    quantity("--rate", SIZE_BYTES, "Read at most this much in a second; 0 for no limit."),
]


@app.command()
@with_services("rlmm", limit="--limit")
def anomalies(
    call: Call,
    kind: list[str] | None = option("Only this kind, for example ORPHAN_OBJECTS; may be repeated."),
    topic: str = option(
        "Only this topic: its name or its id.",
        default="",
        metavar="TOPIC",
        autocompletion=completed("TOPIC"),
    ),
) -> None:
    """List the problems that reconcile and scrub found.

    Oldest first. The topic of objects that RLMM does not know is shown by its id.
    """
    now_ms = time.time_ns() // 1_000_000
    wanted = tuple(_kind(text) for text in kind or [])
    with call.rlmm_client() as manager:
        topic_id = _topic_id(manager, topic) if topic else None
        names = {} if call.is_json else {t.topic_id: t.name for t in known_topics(manager)}
        found = all_anomalies(manager, AnomalyQuery(wanted, topic_id))
        first = list(islice(found, 1))
        if not first and not any(each.kind in CHECKS for each in all_tool_runs(manager)):
            say(f"{NEVER_LOOKED}: run `sediment reconcile`")
            return
        call.show_each(
            chain(first, found),
            as_json,
            "anomalies",
            lambda each: _anomaly_as_row(each, names, now_ms),
        )


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


def _anomaly_as_row(recorded: RecordedAnomaly, names: Mapping[UUID, str], now_ms: int) -> Cells:
    anomaly = recorded.anomaly
    topic = names.get(anomaly.topic_id) or uuid_to_text(anomaly.topic_id)
    return {
        "kind": anomaly.kind.value,
        "partition": f"{topic}-{anomaly.partition}",
        "age": age_text(now_ms - recorded.last_seen_ms),
        Wide("last seen"): time_text(recorded.last_seen_ms),
        Wide("first seen"): time_text(recorded.first_seen_ms),
        Wide("times"): recorded.times_seen,
        Wide("last run"): recorded.run_id,
        Wide("segment id"): uuid_to_text(anomaly.segment_id),
        Wide("object"): anomaly.object_key or "-",
        "detail": anomaly.detail or "-",
    }


@app.command()
@with_services("rsm", "rlmm")
def reconcile(
    call: Call,
    delete: bool = toggle(
        "--delete",
        "Delete orphaned objects and abort unfinished uploads that an earlier run saw at "
        "least a grace period ago. Without it they are only reported.",
    ),
    grace_ms: int = quantity(
        "--grace", DURATION_MS, "Ignore objects and uploads younger than this.", 86_400_000
    ),
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
    with call.tier_clients() as (store, objects, metadata), progress() as show:
        done = Reconciliation(
            metadata, store, objects, plan, lambda done: show(counted(done.segments, "segment"))
        ).run()
        damage = damage_lines(metadata, plan.run_id) if needs_operator(done) else []
    call.show(
        reconcile_document(plan, done),
        ("Reconciled", ("", ""), _rows(done)),
        lines=(*done.unfinished, *failures_of(done), *damage),
    )
    raise typer.Exit(EXIT_PARTIAL if needs_operator(done) else 0)


def damage_lines(metadata: RemoteLogMetadataManager, run_id: str) -> list[str]:
    """Name the first segments that a run found damaged or missing, and what to do next."""
    query = AnomalyQuery(FOR_AN_OPERATOR)
    found = (each.anomaly for each in all_anomalies(metadata, query) if each.run_id == run_id)
    first = list(islice(found, _SHOWN))
    names = {each.topic_id: each.name for each in known_topics(metadata)} if first else {}
    lines = [
        f"{each.kind.value}: {names.get(each.topic_id) or uuid_to_text(each.topic_id)}-"
        f"{each.partition} segment {uuid_to_text(each.segment_id)}: "
        f"{each.detail or each.object_key or 'no objects'}"
        for each in first
    ]
    return [*lines, "next: `sediment anomalies` lists all"] if lines else []


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
        ("kept by holds", done.deletions.held),
        ("failures", len(failures_of(done))),
    ]


@app.command()
@with_services("rsm", "rlmm")
def scrub(
    call: Call,
    rate: Rate = DEFAULT_RATE_BYTES_PER_S,
    part: str = option(
        "Only part I of N parts of about the same size; a segment stays in its part.",
        default="1/1",
        metavar="I/N",
    ),
    topic: list[str] | None = ONLY_TOPICS,
    location: Locations = None,
    repair: bool = toggle(
        "--repair",
        "Copy damaged segments again, from the mirror, with rebuilt indexes if their own logs are "
        "whole, or from --log-dir, and let them be read from that copy.",
    ),
    log_dir: list[Path] | None = option(
        "With --repair: a Kafka log directory, which is only read; may be repeated."
    ),
) -> None:
    """Read stored segments and verify their checksums.

    Only finished segments. `sediment anomalies` lists the damaged and missing ones; without
    --repair nothing else is changed.

    \b
    Exit codes:
      1  a segment is damaged or missing, and was not repaired
      3  no damage found, but something could not be read (it is named), or a
         service failed; run the command again
    """
    number, parts = parse_part(part)
    if log_dir and not repair:
        raise CommandError("--log-dir: nothing is read from it without --repair; add --repair")
    local_files = files_in(log_dir) if log_dir else None
    topics, locations = topic or [], tuple(location or [0])
    with call.tier_clients() as (store, objects, metadata):
        topic_ids = frozenset(find_topic(metadata, text).topic_id for text in topics)
        plan = ScrubPlan(uuid4().hex, number, parts, topic_ids or None, locations, repair)
        all_parts = finished_segments(metadata, lambda tp: plan.has_topic(tp.topic_id))
        with scrub_progress(all_parts // parts) as show:
            done = Scrub(metadata, store, objects, plan, pace_of(rate), show, local_files).run()
        damage = damage_lines(metadata, plan.run_id) if done.damaged else []
    cut_short = "stopped early because the store stayed unreachable; run the command again"
    call.show(
        scrub_document(plan, topics, rate, done),
        ("Scrubbed", ("", ""), _scrub_rows(done)),
        lines=[*done.reasons, *done.repairs, *([cut_short] if done.is_cut_short else []), *damage],
    )
    if done.damaged > done.repaired:
        raise typer.Exit(EXIT_PARTIAL)
    raise typer.Exit(0 if done.is_complete else EXIT_FAILED)


def finished_segments(
    metadata: RemoteLogMetadataManager, is_wanted: Callable[[TopicIdPartition], bool]
) -> int:
    """Count the finished segments of these partitions, by the totals that RLMM keeps."""
    summaries = (each for each in all_partitions(metadata) if is_wanted(each.topic_id_partition))
    return sum(each.totals.finished_segments for each in summaries)


@contextmanager
def scrub_progress(about: int) -> Iterator[Callable[[Scrubbed], None]]:
    """Show how far a scrub of about so many segments is; yield the call that shows it."""
    with progress() as show:
        yield lambda done: show(
            f"{done.segments:,} of about {sized(max(about, done.segments), done.read_bytes)}"
        )


def pace_of(bytes_per_s: int) -> Pace:
    """Return the pace of a scrub that reads at most so many bytes/s; 0 for no limit."""
    if not bytes_per_s:
        return Pace(lambda _: None, Event().wait)
    limit = TokenBucket(bytes_per_s, bytes_per_s * BURST_S, name="bytes per second")
    return Pace(limit.spend, Event().wait)


def _scrub_rows(done: Scrubbed) -> list[tuple[object, ...]]:
    return [
        ("segments", done.segments),
        ("verified", done.verified),
        ("damaged", done.damaged),
        ("repaired", done.repaired),
        *((kind.value, done.anomalies[kind]) for kind in SCRUB_KINDS),
        ("not checked", done.unchecked),
        ("deleted meanwhile", done.gone),
        ("incomplete listings", done.unlisted),
        ("read", size_text(done.read_bytes)),
    ]
