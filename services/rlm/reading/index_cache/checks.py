"""Whether what the store answered is an index of the segment; only such a one is kept.

Source: sanityCheck of OffsetIndex, TimeIndex, TransactionIndex.
"""

from services.api.errors import CorruptSegmentError, InvalidRequestError
from services.api.lineage import parse_checkpoint
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentMetadata
from services.rlm.kafka_log.indexes import TIME_ENTRY, OffsetIndex
from services.rlm.kafka_log.producer_snapshot import open_transactions
from services.rlm.kafka_log.transactions import parse_aborted_txns


def check_index(segment: RemoteLogSegmentMetadata, kind: IndexType, data: bytes) -> None:
    """
    Raises:
        CorruptSegmentError: it is not an index of this kind, or not of this segment.
    """
    try:
        _check(segment, kind, data)
    except (ValueError, InvalidRequestError) as e:
        name = segment.remote_log_segment_id
        raise CorruptSegmentError(f"{name}: {kind.value} index: {e}") from e


def _check(segment: RemoteLogSegmentMetadata, kind: IndexType, data: bytes) -> None:
    match kind:
        case IndexType.OFFSET:
            OffsetIndex(data, segment.start_offset, segment.segment_size_in_bytes)
        case IndexType.TIMESTAMP:
            _check_times(data, segment.end_offset - segment.start_offset)
        case IndexType.TRANSACTION:
            parse_aborted_txns(data)
        case IndexType.PRODUCER_SNAPSHOT:
            open_transactions(data)
        case IndexType.LEADER_EPOCH:
            parse_checkpoint(data.decode("ascii"))


def _check_times(data: bytes, last_relative_offset: int) -> None:
    """Less than of an index that is copied: who copied it may have been a broker."""
    if len(data) % TIME_ENTRY.size:
        raise ValueError(f"{len(data)} bytes are not whole entries of {TIME_ENTRY.size}")
    before = (-1, -1)
    for entry in TIME_ENTRY.iter_unpack(data):
        if entry[0] < before[0] or entry[1] < before[1]:
            raise ValueError(f"entry {entry} stands behind {before}")
        before = entry[0], entry[1]
    if before[1] > last_relative_offset:
        raise ValueError(f"relative offset {before[1]} is beyond the segment")
