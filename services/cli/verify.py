"""Verify a partition, and show what was verified: `sediment verify` and `sediment verified`."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID, uuid4

import typer

from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition
from services.api.operations import Anomaly, AnomalyKind, Verification, VerificationKind
from services.api.remote_log_metadata_manager import (
    RemoteLogMetadataManager,
    all_segments,
    all_verifications,
)
from services.api.remote_storage_manager import IndexType, RemoteStorageManager
from services.api.segment_objects import (
    CURRENT_LOCATION,
    MAX_OBJECT_SHARDS,
    ObjectQuery,
    SegmentObjects,
    all_segment_objects,
    shard_of,
)
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.cli.connections import (
    Call,
    Locations,
    TopicPartition,
    Topics,
    command_group,
    find_partition,
    with_services,
)
from services.cli.output import EXIT_FAILED, EXIT_PARTIAL, print_json, print_table, say
from services.cli.reconcile import Rate, pace_of, scrub_counter
from services.cli.topics import KnownTopic, chosen_topics
from services.views.documents import Json, fields_as_json
from services.views.texts import age_text, partition_text, size_text
from services.workflows.scrub import Scrub, Scrubbed, ScrubPlan
from services.workflows.segment_views import StoreView, store_views

app = command_group()

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_SHOWN = 10


@dataclass(frozen=True)
class Verified:
    """The result for a partition.

    Attributes:
        missing: start offsets of finished segments without objects.
        elsewhere: those of segments with objects in a location that was not read.
    """

    scrubbed: Scrubbed
    missing: Sequence[int]
    elsewhere: Sequence[int]

    @property
    def exit_code(self) -> int:
        if self.scrubbed.damaged or self.missing:
            return EXIT_PARTIAL
        return 0 if self.scrubbed.is_complete and not self.elsewhere else EXIT_FAILED


@app.command()
@with_services("rsm", "rlmm")
def verify(
    call: Call, partition: TopicPartition, rate: Rate = 0, location: Locations = None
) -> None:
    """Read a partition's segments and verify their checksums.

    Only finished segments. Damaged and missing ones are recorded, as by a scrub;
    `sediment anomalies` lists them.

    \b
    Exit codes:
      1  a segment is damaged or missing
      3  no damage found, but something could not be read (it is named), or a
         service failed; run the command again
    """
    with call.tier_clients() as (store, objects, metadata), scrub_counter() as show:
        tp = find_partition(metadata, partition)
        locations = tuple(location or [CURRENT_LOCATION])
        plan = ScrubPlan(uuid4().hex, topic_ids=frozenset({tp.topic_id}), locations=locations)
        scrub = Scrub(metadata, store, objects, plan, pace_of(rate), show)
        found = _verify(tp, plan, scrub, metadata, store, objects)
    if call.is_json:
        print_json(_as_json(tp, found))
    else:
        _print(tp, found)
    raise typer.Exit(found.exit_code)


def _verify(
    tp: TopicIdPartition,
    plan: ScrubPlan,
    scrub: Scrub,
    metadata: RemoteLogMetadataManager,
    store: RemoteStorageManager,
    objects: SegmentObjects,
) -> Verified:
    wanted = _finished(metadata, tp)
    listed: set[UUID] = set()
    done = scrub.run_over(_stored(tp, plan, objects, listed))
    unlisted = {id: each for id, each in wanted.items() if id not in listed}
    absent = {id for id, each in unlisted.items() if _is_missing(store, each)}
    # A segment may have been deleted since it was listed.
    known = _finished(metadata, tp).keys() if unlisted else set()
    missing = [id for id in unlisted if id in absent & known]
    if missing:
        kind = AnomalyKind.MISSING_OBJECTS
        anomalies = [Anomaly(kind, tp.topic_id, tp.partition, id) for id in missing]
        metadata.report_anomalies(anomalies, plan.run_id)
    elsewhere = [each.start_offset for id, each in unlisted.items() if id in known - absent]
    return Verified(done, [unlisted[id].start_offset for id in missing], elsewhere)


def _finished(
    metadata: RemoteLogMetadataManager, tp: TopicIdPartition
) -> dict[UUID, RemoteLogSegmentMetadata]:
    segments = all_segments(metadata, tp, states=[_FINISHED])
    return {each.remote_log_segment_id.id: each for each in segments}


def _stored(
    tp: TopicIdPartition, plan: ScrubPlan, objects: SegmentObjects, listed: set[UUID]
) -> Iterator[StoreView]:
    """Yield the segments of the partition that have a manifest; add their ids to `listed`."""
    shard = shard_of(tp.topic_id, MAX_OBJECT_SHARDS)
    for location_id in plan.locations:
        query = ObjectQuery(location_id, shard, MAX_OBJECT_SHARDS)
        for view in store_views(all_segment_objects(objects, query)):
            if view.partition == (tp.topic_id, tp.partition) and view.manifest is not None:
                listed.add(view.id)
                yield view


def _is_missing(store: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> bool:
    try:
        next(iter(store.fetch_index(segment, IndexType.OFFSET)), None)
    except RemoteResourceNotFoundError:
        return True
    return False


def _as_json(tp: TopicIdPartition, found: Verified) -> Json:
    done = found.scrubbed
    return {
        **fields_as_json(tp),
        "segments": done.segments,
        "verified": done.verified,
        "damaged": done.damaged,
        "unchecked": done.unchecked,
        "deleted_meanwhile": done.gone,
        "missing_start_offsets": list(found.missing),
        "elsewhere_start_offsets": list(found.elsewhere),
        "read_bytes": done.read_bytes,
        "reasons": done.reasons,
    }


def _print(tp: TopicIdPartition, found: Verified) -> None:
    done = found.scrubbed
    rows = [
        ("segments", done.segments),
        ("verified", done.verified),
        ("damaged", done.damaged),
        ("missing", len(found.missing)),
        ("not checked", done.unchecked),
        ("in other locations", len(found.elsewhere)),
        ("deleted meanwhile", done.gone),
        ("read", size_text(done.read_bytes)),
    ]
    print_table(partition_text(tp), ("what", "count"), rows)
    for reason in done.reasons:
        say(reason)
    if found.missing:
        say(f"no objects of the segments at {_offsets(found.missing)}: `sediment anomalies`")
    if found.elsewhere:
        say(f"--location was not that of the segments at {_offsets(found.elsewhere)}")


def _offsets(offsets: Sequence[int]) -> str:
    others = len(offsets) - _SHOWN
    shown = ", ".join(map(str, offsets[:_SHOWN]))
    return f"{shown} and {others:,} others" if others > 0 else shown


@app.command()
@with_services("rlmm")
def verified(call: Call, topics: Topics = None) -> None:
    """Show what was verified of each topic, and how long ago.

    A run of reconcile or scrub is recorded when it ends. Parts of a scrub
    count together: the age is that of the oldest part.
    """
    with call.rlmm_client() as manager:
        chosen = chosen_topics(manager, topics or [])
        last = {(each.verified.topic_id, each.kind): each for each in all_verifications(manager)}
    now_ms = time.time_ns() // 1_000_000
    call.show_each(
        [
            (each, kind, last.get((each.topic_id, kind)))
            for each in chosen
            for kind in VerificationKind
        ],
        lambda each: _verified_as_json(*each),
        "Verified",
        ("topic", "check", "age", "parts", "verified", "of", "size", "failed"),
        lambda each: _verified_as_row(*each, now_ms),
    )


def _verified_as_json(topic: KnownTopic, kind: VerificationKind, last: Verification | None) -> Json:
    described: Json | None = None
    if last is not None:
        described = fields_as_json(last) | fields_as_json(last.verified)
        for name in ("verified", "kind", "topic", "topic_id"):
            del described[name]
    totals = fields_as_json(topic.totals, "finished_segments", "finished_bytes")
    return {**topic.as_json(), "kind": kind.value, **totals, "last": described}


def _verified_as_row(
    topic: KnownTopic, kind: VerificationKind, last: Verification | None, now_ms: int
) -> tuple[object, ...]:
    name, check, of = topic.name, kind.value.lower(), topic.totals.finished_segments
    if last is None:
        return (name, check, "never", "-", 0, of, "-", 0)
    return (
        name,
        check,
        age_text(now_ms - last.ended_ms),
        f"{last.verified_parts}/{last.parts}",
        last.verified.verified_segments,
        of,
        size_text(last.verified.verified_bytes),
        last.verified.failed_segments,
    )
