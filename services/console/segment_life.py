"""Gather everything that is known of one segment: state, objects, events and why it is kept."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from services.api.errors import (
    ConcurrentUpdateError,
    InvalidRequestError,
    RemoteResourceNotFoundError,
)
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.imported_segments import is_imported
from services.api.partitions import NO_SEGMENTS, PartitionEvent
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentMetadata
from services.console.access import Viewer
from services.console.tier import Tier
from services.console.topics import LISTING_AGE_S, summaries
from services.rsm.layout import CustomMetadata, segment_keys
from services.views.documents import as_json, event_as_json
from services.views.explanation import change_text, event_text, explained, facts_or_none, verdict_of
from services.views.partition_facts import PartitionFacts, SegmentFacts, segment_facts
from services.views.texts import partition_text

Json = dict[str, Any]

MAX_EVENTS = 500
"""The most events of one segment that are shown; most have three."""

MAX_EXPLAINED = 20_000
"""The most segments of a partition of which one is explained: all of them are read for that."""

_EVENTS = "RemoteLogMetadataManager/ListEvents"
_LISTING = "RemoteLogMetadataManager/ListRemoteLogSegments"
_BY_ID = "RemoteLogMetadataManager/GetRemoteLogSegmentMetadataById"


def segment_life(tier: Tier, viewer: Viewer, name: TopicIdPartition, id: UUID) -> Json:
    """Describe a segment, even if it or its partition is gone.

    Raises:
        PermissionDeniedError: the viewer may not see the topic.
        RemoteResourceNotFoundError: RLMM has no trace of the segment.
    """
    viewer.require(_BY_ID, name.topic)
    may_see_events = viewer.may(_EVENTS, name.topic)
    max_events = MAX_EVENTS + 1 if may_see_events else 0
    try:
        facts = segment_facts(tier.metadata, name, id, max_events)
    except RemoteResourceNotFoundError:
        facts = None
    if facts is None:
        raise RemoteResourceNotFoundError(
            f"RLMM has no segment {uuid_to_text(id)} of {partition_text(name)}"
            + ("" if may_see_events else ", or only events, which need the role auditor")
        )
    life: Json = {
        "segment_id": uuid_to_text(id),
        "segment": as_json(facts.metadata),
        "broker_id": None if facts.metadata is None else facts.metadata.broker_id,
        "objects": objects_of(facts.metadata),
        "events": [_event(each) for each in facts.events[:MAX_EVENTS]],
        "events_note": _events_note(may_see_events, facts.events),
        "verdict": None,
        "explanation": None,
    }
    return life | _explain(tier, viewer, name, facts)


def _events_note(may_see: bool, events: Sequence[PartitionEvent]) -> str:
    if not may_see:
        return "events need the role auditor"
    return f"only the first {MAX_EVENTS} are shown" if len(events) > MAX_EVENTS else ""


def _event(event: PartitionEvent) -> Json:
    return {**event_as_json(event), "change": change_text(event), "text": event_text(event)}


def objects_of(metadata: RemoteLogSegmentMetadata | None) -> Json | None:
    """Name a segment's objects, from what the copy reported to RLMM; None if it reported nothing.

    The keys are those after the location's prefix, which only RSM knows.
    """
    if metadata is None or metadata.custom_metadata is None:
        return None
    if is_imported(metadata.custom_metadata):
        return {"problem": "imported: another storage wrote its objects"}
    try:
        copy = CustomMetadata.from_bytes(metadata.custom_metadata)
    except InvalidRequestError as e:
        return {"problem": f"the custom metadata is not RSM's: {e}"}
    keys, digest = segment_keys("", metadata), copy.manifest_digest
    indexes_bytes = sum(max(size, 0) for size in copy.index_sizes_bytes.values())
    return {
        "location_id": copy.location_id,
        "attempt": copy.attempt,
        "objects": [
            {"key": keys.log(copy.attempt), "bytes": copy.log_size_bytes},
            {"key": keys.indexes(copy.attempt), "bytes": indexes_bytes},
            {"key": keys.manifest, "bytes": None},
        ],
        "indexes": {
            kind.name: copy.index_sizes_bytes[kind]
            for kind in IndexType
            if copy.index_sizes_bytes.get(kind, -1) >= 0
        },
        "manifest_sha256_prefix": digest.hex(),
    }


def _explain(tier: Tier, viewer: Viewer, name: TopicIdPartition, facts: SegmentFacts) -> Json:
    """Explain why the segment is kept or deleted, or why that is not explained."""
    if not (viewer.may(_EVENTS, name.topic) and viewer.may(_LISTING, name.topic)):
        return {"verdict": "not explained: that needs the role auditor"}
    summary = next((s for s in summaries(tier) if s.topic_id_partition == name), None)
    totals = NO_SEGMENTS if summary is None else summary.totals
    command = f"sediment explain {partition_text(name)} -- {uuid_to_text(facts.id)}"
    if totals.live_segments > MAX_EXPLAINED:
        return {
            "verdict": f"not explained here: the partition has {totals.live_segments:,} segments, "
            f"which all count for the rules; run `{command}`"
        }
    try:
        partition: PartitionFacts | None = tier.facts.get(
            name, LISTING_AGE_S, lambda: facts_or_none(tier.metadata, name)
        )
    except ConcurrentUpdateError:
        return {"verdict": f"not explained: the partition changes too fast; run `{command}`"}
    explanation = explained(partition, facts.id)
    return {
        "verdict": verdict_of(partition, facts, explanation),
        "explanation": as_json(explanation),
    }
