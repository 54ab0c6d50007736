"""Replay batches into the state of a log's producers, and write a producer snapshot of it."""

from dataclasses import dataclass
from struct import Struct

from services.records.batches import Batch
from services.records.decode import control_record, marker_of
from services.records.index_files import (
    EMPTY_PRODUCER_SNAPSHOT,
    ProducerEntry,
    producer_entries,
    producer_snapshot,
)

_EPOCH_AND_SEQUENCE = Struct(">hi")
_EPOCH_AT = 51
_MARKER_VALUE = Struct(">hi")
_INT_MAX = 2**31 - 1


@dataclass(slots=True)
class _Producer:
    """What Kafka keeps of a producer: ProducerStateEntry, with its last batch alone."""

    epoch: int = -1
    last_sequence: int = -1
    last_offset: int = -1
    offset_delta: int = 0
    timestamp_ms: int = -1
    coordinator_epoch: int = -1
    first_offset_of_transaction: int = -1

    def begin_epoch(self, epoch: int) -> None:
        """Forget the batches of another epoch."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.last_sequence, self.last_offset, self.offset_delta = -1, -1, 0


class Producers:
    """Follow the producers of a log, batch by batch.

    No producer expires: Kafka forgets one that has been silent for producer.id.expiration.ms,
    which is not on the disk. A snapshot that has more of them is correct, too.

    Source: ProducerStateManager, ProducerAppendInfo with AppendOrigin.REPLICATION.
    """

    def __init__(self, snapshot: bytes = EMPTY_PRODUCER_SNAPSHOT) -> None:
        """Begin with a snapshot.

        Raises:
            ValueError: it is damaged.
        """
        self._by_id = {id: _Producer(*state) for id, *state in producer_entries(snapshot)}

    def observe(self, batch: Batch) -> None:
        """Add the next batch of the log; the data of a control batch must be whole."""
        if batch.producer_id < 0:
            return
        epoch, first_sequence = _EPOCH_AND_SEQUENCE.unpack_from(batch.data, _EPOCH_AT)
        if batch.is_control:
            self._end_transaction(batch, epoch)
            return
        producer = self._by_id.setdefault(batch.producer_id, _Producer())
        producer.begin_epoch(epoch)
        producer.offset_delta = batch.last_offset - batch.base_offset
        producer.last_sequence = _increased(first_sequence, producer.offset_delta)
        producer.last_offset = batch.last_offset
        producer.timestamp_ms = batch.max_timestamp_ms
        if batch.is_transactional and producer.first_offset_of_transaction < 0:
            producer.first_offset_of_transaction = batch.base_offset

    def snapshot(self) -> bytes:
        """Write the snapshot of the log up to here, its producers by id."""
        return producer_snapshot(
            ProducerEntry(
                id,
                producer.epoch,
                producer.last_sequence,
                producer.last_offset,
                producer.offset_delta,
                producer.timestamp_ms,
                producer.coordinator_epoch,
                producer.first_offset_of_transaction,
            )
            for id, producer in sorted(self._by_id.items())
        )

    def _end_transaction(self, batch: Batch, epoch: int) -> None:
        record = control_record(batch)
        # A batch whose marker was compacted away changes nothing, as in Kafka.
        if record is None or marker_of(record) is None or record.value is None:
            return
        producer = self._by_id.setdefault(batch.producer_id, _Producer())
        producer.begin_epoch(epoch)
        producer.timestamp_ms = record.timestamp_ms
        producer.first_offset_of_transaction = -1
        if len(record.value) >= _MARKER_VALUE.size:
            _, producer.coordinator_epoch = _MARKER_VALUE.unpack_from(record.value)


def _increased(sequence: int, by: int) -> int:
    """Return the sequence number `by` records later; after 2^31-1 follows 0."""
    return (sequence + by) % (_INT_MAX + 1)
