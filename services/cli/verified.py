"""Show what reconcile and scrub verified of each topic, and how long ago: `sediment verified`."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from services.api.ids import uuid_to_text
from services.api.partitions import NO_SEGMENTS, SegmentTotals, Verification, VerificationKind
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, all_verifications
from services.cli.connections import Call, command_group, with_services
from services.cli.output import print_json, print_table
from services.cli.topics import KnownTopic, chosen_topics
from services.views.texts import age_text, size_text

app = command_group()


@dataclass(frozen=True)
class Verified:
    """A topic's segments, and its last verification of a kind; None if there was none."""

    topic: KnownTopic
    kind: VerificationKind
    totals: SegmentTotals
    last: Verification | None


@app.command()
@with_services("rlmm")
def verified(
    call: Call,
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC]...",
            help="For example orders, or TOPIC_ID:orders if several topics have had this name. "
            "Default: all topics.",
        ),
    ] = None,
) -> None:
    """Show what was verified of each topic, and how long ago.

    A run of reconcile or scrub is recorded when it ends. Parts of a scrub
    count together: the age is that of the oldest part.

    \b
    Exit codes:
      0  shown
      2  unknown topic; nothing was shown
      3  RLMM could not be reached
    """
    with call.rlmm_client() as manager:
        rows = list(last_verifications(manager, chosen_topics(manager, topics or [])))
    if call.is_json:
        for row in rows:
            print_json(_as_json(row))
        return
    now_ms = time.time_ns() // 1_000_000
    columns = ("topic", "check", "age", "parts", "verified", "of", "size", "failed")
    print_table("Verified", columns, [_as_row(row, now_ms) for row in rows])


def last_verifications(
    manager: RemoteLogMetadataManager, topics: Iterable[KnownTopic]
) -> Iterator[Verified]:
    """Yield the last verification of each kind of each of these topics."""
    found = {(each.verified.topic_id, each.kind): each for each in all_verifications(manager)}
    for topic in topics:
        totals = NO_SEGMENTS
        for partition in topic.partitions:
            totals += partition.totals
        for kind in VerificationKind:
            yield Verified(topic, kind, totals, found.get((topic.topic_id, kind)))


def _as_json(row: Verified) -> dict[str, object]:
    described: dict[str, object] = {
        "topic": row.topic.name,
        "topic_id": uuid_to_text(row.topic.topic_id),
        "kind": row.kind.value,
        "finished_segments": row.totals.finished_segments,
        "finished_bytes": row.totals.finished_bytes,
        "last": None,
    }
    if row.last is not None:
        counts = asdict(row.last.verified)
        del counts["topic_id"]
        described["last"] = {
            "ended_ms": row.last.ended_ms,
            "last_ended_ms": row.last.last_ended_ms,
            "parts": row.last.parts,
            "verified_parts": row.last.verified_parts,
            "run_id": row.last.run_id,
            **counts,
        }
    return described


def _as_row(row: Verified, now_ms: int) -> tuple[object, ...]:
    of, last = row.totals.finished_segments, row.last
    if last is None:
        return (row.topic.name, row.kind.value.lower(), "never", "-", 0, of, "-", 0)
    return (
        row.topic.name,
        row.kind.value.lower(),
        age_text(now_ms - last.ended_ms),
        f"{last.verified_parts}/{last.parts}",
        last.verified.verified_segments,
        of,
        size_text(last.verified.verified_bytes),
        last.verified.failed_segments,
    )
