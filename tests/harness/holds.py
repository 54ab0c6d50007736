"""Set and end holds of a topic or a partition."""

from typing import Any

from services.api.holds import Hold, HoldKind
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager

HOUR_MS = 3_600_000
REBUILD = Hold("rebuild", HoldKind.REBUILD)


def hold_of(tp: TopicIdPartition, **fields: Any) -> Hold:
    """Return an operator's hold of the whole topic, unless the fields say otherwise."""
    values = {"name": "audit", "kind": HoldKind.OPERATOR, "reason": "test", **fields}
    return Hold(topic_id=tp.topic_id, topic=tp.topic, **values)


def hold(rlmm: RemoteLogMetadataManager, tp: TopicIdPartition, **fields: Any) -> Hold:
    return rlmm.set_hold(hold_of(tp, **fields))


def release(rlmm: RemoteLogMetadataManager, tp: TopicIdPartition, **fields: Any) -> Hold | None:
    return rlmm.end_hold(hold_of(tp, **fields))


def export(
    rlmm: RemoteLogMetadataManager,
    tp: TopicIdPartition,
    first_offset: int,
    name: str = "lake",
    lease_ms: int = HOUR_MS,
) -> Hold:
    """Keep a partition's offsets for an export."""
    of = hold_of(
        tp,
        name=name,
        kind=HoldKind.EXPORT,
        reason="",
        partition=tp.partition,
        first_offset=first_offset,
    )
    return rlmm.set_hold(of, lease_ms)


def end_export(
    rlmm: RemoteLogMetadataManager, tp: TopicIdPartition, name: str = "lake"
) -> Hold | None:
    return release(rlmm, tp, name=name, kind=HoldKind.EXPORT, partition=tp.partition)
