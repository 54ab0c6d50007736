"""Draw random metadata of Kafka's own RemoteLogMetadataManager."""

from random import Random
from uuid import UUID

from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    segment_leader_epochs,
)
from services.interop.metadata_values import MetadataValue, SegmentSnapshot

INT32, INT64 = 2**31 - 1, 2**63 - 1
_TOPICS = ("a", "orders", "orders.eu-west_1", "t" * 249)
_STATES = tuple(RemoteLogSegmentState)


def draw_value(random: Random) -> MetadataValue:
    """Draw the value of a record in version 0: of each kind, each optional field there or not."""
    kind = random.randrange(4)
    if kind == 1:
        state = random.choice(_STATES[1:])
        update = RemoteLogSegmentMetadataUpdate(
            _segment_id(random), _number(random, INT64), state, _broker(random), _custom(random)
        )
        return MetadataValue(update)
    if kind == 2:
        state_of_deletion = random.choice(tuple(RemotePartitionDeleteState))
        deletion = RemotePartitionDeleteMetadata(
            _partition(random), state_of_deletion, _number(random, INT64), _broker(random)
        )
        return MetadataValue(deletion)
    start = _number(random, INT64 - 1)
    end = start + _number(random, INT64 - start)
    names = ("start_offset", "end_offset", "max_timestamp_ms", "event_timestamp_ms")
    numbers = (start, end, _number(random, INT64), _number(random, INT64))
    epochs = sorted({_number(random, INT32) for _ in range(random.randint(1, 5))})
    starts = sorted(min(_number(random, INT64), end) for _ in epochs)
    common = {
        **dict(zip(names, numbers, strict=True)),
        "broker_id": _broker(random),
        "segment_leader_epochs": segment_leader_epochs([*zip(epochs, starts, strict=True)]),
        "segment_size_in_bytes": _number(random, INT32),
        "custom_metadata": _custom(random),
        "txn_idx_empty": random.random() < 0.5,
    }
    if kind == 3:
        snapshot = SegmentSnapshot(_uuid(random), state=random.choice(_STATES[1:]), **common)  # type: ignore[arg-type]  # by name
        return MetadataValue(snapshot)
    return MetadataValue(RemoteLogSegmentMetadata(_segment_id(random), **common))  # type: ignore[arg-type]  # by name


def _number(random: Random, most: int) -> int:
    return random.choice([0, 1, most, random.randint(0, most), random.randint(0, min(most, 300))])


def _broker(random: Random) -> int:
    return _number(random, INT32)


def _uuid(random: Random) -> UUID:
    return UUID(int=random.getrandbits(random.choice([1, 64, 128])) or 1)


def _partition(random: Random) -> TopicIdPartition:
    return TopicIdPartition(_uuid(random), random.choice(_TOPICS), _number(random, INT32))


def _segment_id(random: Random) -> RemoteLogSegmentId:
    return RemoteLogSegmentId(_partition(random), _uuid(random))


def _custom(random: Random) -> bytes | None:
    return random.choice([None, b"", random.randbytes(random.randint(1, 200))])
