"""Verify one partition of the tier, byte for byte: `sediment verify`."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated
from uuid import UUID, uuid4

import typer

from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.partitions import Anomaly, AnomalyKind
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, all_segments
from services.api.remote_storage_manager import (
    CURRENT_LOCATION,
    MAX_OBJECT_SHARDS,
    IndexType,
    ObjectQuery,
    RemoteStorageManager,
    SegmentObjects,
    all_segment_objects,
    shard_of,
)
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.cli.connections import (
    Call,
    Locations,
    TopicPartition,
    command_group,
    find_partition,
    with_services,
)
from services.cli.output import EXIT_FAILED, EXIT_PARTIAL, print_json, print_table, say
from services.cli.reconcile import pace_of, scrub_counter
from services.views.texts import size_text
from services.workflows.scrub import Scrub, Scrubbed, ScrubPlan
from services.workflows.segment_views import StoreView, store_views

app = command_group()

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


@dataclass(frozen=True)
class Verified:
    """What was found.

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
    call: Call,
    partition: TopicPartition,
    rate: Annotated[
        int,
        typer.Option(
            min=0, metavar="BYTES_PER_S", help="Read at most this many bytes/s; 0 for no limit."
        ),
    ] = 0,
    location: Locations = None,
) -> None:
    """Read a partition's segments and verify their checksums.

    Only finished segments. Damaged and missing ones are recorded, as by a scrub;
    `sediment anomalies` lists them.

    \b
    Exit codes:
      0  every segment is as it was copied
      1  a segment is damaged or missing
      2  unknown partition, or an option is wrong
      3  no damage found, but something could not be read (it is named), or a
         service failed; run the command again
    """
    with (
        call.tier_clients() as (store, objects, metadata),
        scrub_counter() as show,
    ):
        tp = find_partition(metadata, partition)
        plan = ScrubPlan(
            uuid4().hex,
            topic_ids=frozenset({tp.topic_id}),
            locations=tuple(location or [CURRENT_LOCATION]),
        )
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
    views = _stored(tp, plan, objects, listed)
    done = scrub.run_over(views)
    unlisted = [each for segment_id, each in wanted.items() if segment_id not in listed]
    missing = [each for each in unlisted if _is_missing(store, each)]
    # A segment may have been deleted since it was listed.
    known = _finished(metadata, tp) if unlisted else {}
    missing = [each for each in missing if each.remote_log_segment_id.id in known]
    lost = {each.remote_log_segment_id.id for each in missing}
    elsewhere = [
        each.start_offset
        for each in unlisted
        if each.remote_log_segment_id.id in known.keys() - lost
    ]
    if missing:
        metadata.report_anomalies(list(_anomalies(tp, missing)), plan.run_id)
    return Verified(done, [each.start_offset for each in missing], elsewhere)


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
        for _ in store.fetch_index(segment, IndexType.OFFSET):
            break
    except RemoteResourceNotFoundError:
        return True
    return False


def _anomalies(
    tp: TopicIdPartition, missing: Iterable[RemoteLogSegmentMetadata]
) -> Iterator[Anomaly]:
    for segment in missing:
        segment_id = segment.remote_log_segment_id.id
        yield Anomaly(AnomalyKind.MISSING_OBJECTS, tp.topic_id, tp.partition, segment_id)


def _as_json(tp: TopicIdPartition, found: Verified) -> dict[str, object]:
    done = found.scrubbed
    return {
        "topic": tp.topic,
        "topic_id": uuid_to_text(tp.topic_id),
        "partition": tp.partition,
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
        ("segments", f"{done.segments:,}"),
        ("verified", f"{done.verified:,}"),
        ("damaged", f"{done.damaged:,}"),
        ("missing", f"{len(found.missing):,}"),
        ("not checked", f"{done.unchecked:,}"),
        ("in other locations", f"{len(found.elsewhere):,}"),
        ("deleted meanwhile", f"{done.gone:,}"),
        ("read", size_text(done.read_bytes)),
    ]
    print_table(f"{tp.topic}-{tp.partition}", ("what", "count"), rows)
    for reason in done.reasons:
        say(reason)
    if found.missing:
        say(f"no objects of the segments at {_offsets(found.missing)}: `sediment anomalies`")
    if found.elsewhere:
        say(f"--location was not that of the segments at {_offsets(found.elsewhere)}")


def _offsets(offsets: Sequence[int]) -> str:
    shown = ", ".join(map(str, offsets[:10]))
    return f"{shown} and {len(offsets) - 10:,} others" if len(offsets) > 10 else shown
