"""Make segments byte by byte, and copy them into a tier."""

from dataclasses import replace
from typing import Any

from services.api.ids import TopicIdPartition
from services.api.lineage import checkpoint_text
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentMetadata, segment_leader_epochs
from tests.contract.remote_storage_manager_contract import Files
from tests.harness.tier import SmallTier, segment
from tests.unit.rlm.kafka_bytes import batch, producer_snapshot, varint


def copied(
    tier: SmallTier,
    tp: TopicIdPartition,
    start: int,
    batches: list[bytes],
    *,
    epochs: tuple[tuple[int, int], ...] = ((0, 0),),
    open_transactions: dict[int, int] | None = None,
    aborted: bytes = b"",
    checkpoint: bytes | None = None,
) -> RemoteLogSegmentMetadata:
    """Copy a segment that is made byte by byte, with its indexes.

    Args:
        checkpoint: the leader epoch index; None: that of `epochs`.
    """
    log = b"".join(batches)
    last = batches[-1]
    end = int.from_bytes(last[:8], "big") + int.from_bytes(last[23:27], "big")
    own = [(epoch, max(at, start)) for epoch, at in epochs if at <= end]
    made = replace(
        segment(tp, 0, segment_size_in_bytes=len(log), txn_idx_empty=not aborted),
        start_offset=start,
        end_offset=end,
        max_timestamp_ms=1_000,
        segment_leader_epochs=segment_leader_epochs(own[-1:]),
    )
    if checkpoint is None:
        checkpoint = checkpoint_text(segment_leader_epochs(epochs)).encode()
    indexes = {
        IndexType.OFFSET: b"",
        IndexType.TIMESTAMP: b"",
        IndexType.PRODUCER_SNAPSHOT: producer_snapshot(open_transactions),
        IndexType.LEADER_EPOCH: checkpoint,
    }
    if aborted:
        indexes[IndexType.TRANSACTION] = aborted
    return tier.copy(made, Files(log, indexes))


def plain(base_offset: int, values: list[bytes], **fields: Any) -> bytes:
    """Build a batch of real records."""
    payload = b""
    for delta, value in enumerate(values):
        body = bytes([0, 0, delta << 1, 1]) + varint(len(value)) + value + b"\0"
        payload += varint(len(body)) + body
    return batch(base_offset, len(values), payload=payload, **fields)
