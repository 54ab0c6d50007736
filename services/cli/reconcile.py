"""`sediment reconcile`, `sediment scrub` and `sediment anomalies`: bucket against metadata."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from uuid import UUID, uuid4

from rich.console import Console

from services.api.anomalies import AnomalyKind, AnomalyQuery, SeenAnomaly
from services.api.errors import InvalidRequestError
from services.api.ids import uuid_from_text, uuid_to_text
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, all_anomalies
from services.cli.connections import connected_rlmm, connected_rsm, connected_segment_objects
from services.cli.output import (
    EXIT_FAILED,
    EXIT_PARTIAL,
    CommandError,
    Format,
    counter,
    print_json,
    print_table,
    say,
    size_text,
)
from services.cli.topics import find_topic
from services.rsm.active_copies import Waiting
from services.rsm.deadline import RateLimit
from services.workflows.reconcile import Reconciled, Reconciliation, ReconciliationPlan
from services.workflows.scrub import Pace, Scrub, Scrubbed, ScrubPlan


def list_anomalies(
    kinds: Sequence[str], topic: str, rlmm: str | None, data_dir: Path | None, output: Format
) -> None:
    wanted = tuple(_kind(kind) for kind in kinds)
    with connected_rlmm(rlmm, data_dir) as manager:
        topic_id = _topic_id(manager, topic) if topic else None
        found = all_anomalies(manager, AnomalyQuery(wanted, topic_id))
        if output is Format.JSON:
            for seen in found:
                print_json(_anomaly_as_json(seen))
            return
        columns = ("kind", "topic id", "partition", "segment id", "object", "detail")
        seen_columns = ("first seen", "last seen", "times", "last run")
        print_table("Anomalies", (*columns, *seen_columns), map(_anomaly_as_row, found))


def _kind(text: str) -> AnomalyKind:
    try:
        return AnomalyKind(text.upper())
    except ValueError:
        known = ", ".join(kind.value for kind in AnomalyKind)
        raise CommandError(f"--kind: {text!r} is none of {known}") from None


def _topic_id(manager: RemoteLogMetadataManager, text: str) -> UUID:
    """Of a topic that is known, by its name; of any, by its id."""
    try:
        return uuid_from_text(text, "--topic")
    except InvalidRequestError:
        return find_topic(manager, text).topic_id


def _anomaly_as_json(seen: SeenAnomaly) -> dict[str, object]:
    anomaly = seen.anomaly
    return {
        "kind": anomaly.kind.value,
        "topic_id": uuid_to_text(anomaly.topic_id),
        "partition": anomaly.partition,
        "segment_id": uuid_to_text(anomaly.segment_id),
        "object_key": anomaly.object_key,
        "detail": anomaly.detail,
        "first_seen_ms": seen.first_seen_ms,
        "last_seen_ms": seen.last_seen_ms,
        "times_seen": seen.times_seen,
        "run_id": seen.run_id,
    }


def _anomaly_as_row(seen: SeenAnomaly) -> tuple[object, ...]:
    anomaly = seen.anomaly
    return (
        anomaly.kind.value,
        uuid_to_text(anomaly.topic_id),
        anomaly.partition,
        uuid_to_text(anomaly.segment_id),
        anomaly.object_key or "-",
        anomaly.detail or "-",
        _time_text(seen.first_seen_ms),
        _time_text(seen.last_seen_ms),
        seen.times_seen,
        seen.run_id,
    )


def _time_text(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")


_FOR_AN_OPERATOR = (
    AnomalyKind.MISSING_OBJECTS,
    AnomalyKind.CORRUPT_OBJECT,
    AnomalyKind.UNREFERENCED_COMPLETE,
)


def reconcile(
    delete: bool,
    grace_ms: int,
    locations: Sequence[int],
    rsm: str | None,
    rlmm: str | None,
    data_dir: Path | None,
    output: Format,
) -> int:
    """The exit code."""
    now_ms = time.time_ns() // 1_000_000
    plan = ReconciliationPlan(uuid4().hex, now_ms, grace_ms, delete, locations)
    with (
        connected_rsm(rsm, data_dir) as store,
        connected_segment_objects(rsm, data_dir) as objects,
        connected_rlmm(rlmm, data_dir) as metadata,
        counter() as count,
    ):
        done = Reconciliation(
            metadata, store, objects, plan, lambda done: count("segments", done.segments)
        ).run()
    if output is Format.JSON:
        print_json(_as_json(plan, done))
    else:
        print_table("Reconciled", ("what", "how many"), _rows(done))
        for failure in _failures(done):
            Console(stderr=True).print(failure, markup=False, highlight=False)
    amiss = _failures(done) or any(done.anomalies[kind] for kind in _FOR_AN_OPERATOR)
    return EXIT_PARTIAL if amiss else 0


def _failures(done: Reconciled) -> list[str]:
    """What could not be read, and what not deleted."""
    return [*done.unread, *done.deletions.failures]


def _rows(done: Reconciled) -> list[tuple[object, ...]]:
    return [
        ("objects", f"{done.objects:,}"),
        ("segments", f"{done.segments:,}"),
        *((kind.value, f"{done.anomalies[kind]:,}") for kind in AnomalyKind),
        ("objects deleted", f"{done.deletions.objects:,}"),
        ("left for the next run", f"{done.deletions.left:,}"),
        ("uploads ended", f"{done.deletions.uploads:,}"),
        ("failures", f"{len(_failures(done)):,}"),
    ]


def _as_json(plan: ReconciliationPlan, done: Reconciled) -> dict[str, object]:
    return {
        "run_id": plan.run_id,
        "delete": plan.delete,
        "grace_ms": plan.grace_ms,
        "locations": list(plan.locations),
        "objects": done.objects,
        "segments": done.segments,
        "anomalies": {kind.value: done.anomalies[kind] for kind in AnomalyKind},
        "deleted_objects": done.deletions.objects,
        "ended_uploads": done.deletions.uploads,
        "left": done.deletions.left,
        "failures": _failures(done),
    }


_PART = re.compile(r"(\d{1,9})/(\d{1,9})")
_KINDS = (AnomalyKind.CORRUPT_OBJECT, AnomalyKind.MISSING_OBJECTS)
_MIB = 1024 * 1024


@dataclass(frozen=True)
class ScrubOptions:
    """What is looked at: a part as I/N, topics by NAME or TOPIC_ID:NAME (none: all), locations."""

    part: str
    topics: Sequence[str]
    locations: Sequence[int]


def scrub(
    options: ScrubOptions,
    rate_bytes_per_s: int,
    rsm: str | None,
    rlmm: str | None,
    data_dir: Path | None,
    output: Format,
) -> int:
    """The exit code."""
    part, parts = _part(options.part)
    with (
        connected_rsm(rsm, data_dir) as store,
        connected_segment_objects(rsm, data_dir) as objects,
        connected_rlmm(rlmm, data_dir) as metadata,
        counter() as count,
    ):

        def show(done: Scrubbed) -> None:
            count("segments", done.segments)
            count("MiB", done.read_bytes // _MIB)

        topic_ids = frozenset(find_topic(metadata, text).topic_id for text in options.topics)
        plan = ScrubPlan(uuid4().hex, part, parts, topic_ids or None, tuple(options.locations))
        pace = Pace(_turns_at(rate_bytes_per_s), Event().wait)
        done = Scrub(metadata, store, objects, plan, pace, show).run()
    if output is Format.JSON:
        print_json(_scrub_as_json(plan, options, rate_bytes_per_s, done))
    else:
        _print_scrub(done)
    if done.damaged:
        return EXIT_PARTIAL
    return 0 if done.is_complete else EXIT_FAILED


def _part(text: str) -> tuple[int, int]:
    found = _PART.fullmatch(text)
    if found is None:
        raise CommandError(f"--part: {text!r} is not I/N, for example 3/28")
    return int(found[1]), int(found[2])


def _turns_at(bytes_per_s: int) -> Callable[[int], None]:
    return RateLimit(bytes_per_s, Waiting()).take if bytes_per_s else lambda _: None


def _print_scrub(done: Scrubbed) -> None:
    rows = [
        ("segments", f"{done.segments:,}"),
        ("verified", f"{done.verified:,}"),
        ("damaged", f"{done.damaged:,}"),
        *((kind.value, f"{done.anomalies[kind]:,}") for kind in _KINDS),
        ("not checked", f"{done.unchecked:,}"),
        ("deleted meanwhile", f"{done.gone:,}"),
        ("listings that broke off", f"{done.unlisted:,}"),
        ("read", size_text(done.read_bytes)),
    ]
    print_table("Scrubbed", ("what", "how many"), rows)
    for reason in done.reasons:
        say(reason)
    if done.is_cut_short:
        say("the store was away for too long: what follows was not looked at; run it again")


def _scrub_as_json(
    plan: ScrubPlan, options: ScrubOptions, rate_bytes_per_s: int, done: Scrubbed
) -> dict[str, object]:
    return {
        "run_id": plan.run_id,
        "part": plan.part,
        "parts": plan.parts,
        "topics": list(options.topics),
        "locations": list(plan.locations),
        "rate_bytes_per_s": rate_bytes_per_s,
        "segments": done.segments,
        "verified": done.verified,
        "damaged": done.damaged,
        "anomalies": {kind.value: done.anomalies[kind] for kind in _KINDS},
        "not_checked": done.unchecked,
        "deleted_meanwhile": done.gone,
        "listings_broken_off": done.unlisted,
        "cut_short": done.is_cut_short,
        "read_bytes": done.read_bytes,
        "reasons": done.reasons,
    }
